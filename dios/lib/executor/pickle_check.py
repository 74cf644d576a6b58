"""Checks the pickle of a result before it is loaded: known operations only, and no key that takes for ever.

A pickle can contain a tuple of two references to a tuple of two references to a tuple, and so on: its hash
takes time that doubles with each level. The check runs the pickle's operations on the sizes of the values
alone. ``dios.lib.executor.trusted_results`` decides what the operations may name.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Final

_U2: Final = struct.Struct("<H")
_U4: Final = struct.Struct("<I")
_U8: Final = struct.Struct("<Q")

_SIZE_FREE: Final = 1_000_000
_SIZE_PER_BYTE: Final = 16
_NESTING_MAX: Final = 500
_NAMED: Final = (1, -1)
"""The size and nesting of a named function or class, which may be called and nothing else."""

# The operations that a pickler of protocol 5 writes, and the bytes of their arguments.
_PUSH: Final = {
    pickle.NONE: 0,
    pickle.NEWTRUE: 0,
    pickle.NEWFALSE: 0,
    pickle.BININT: 4,
    pickle.BININT1: 1,
    pickle.BININT2: 2,
    pickle.BINFLOAT: 8,
    pickle.EMPTY_LIST: 0,
    pickle.EMPTY_DICT: 0,
    pickle.EMPTY_SET: 0,
    pickle.EMPTY_TUPLE: 0,
    pickle.NEXT_BUFFER: 0,
}
_PUSH_SIZED: Final[dict[bytes, tuple[int, Callable[[bytes, int], int]]]] = {
    pickle.LONG1: (1, lambda data, at: data[at]),
    pickle.LONG4: (4, lambda data, at: int(_U4.unpack_from(data, at)[0])),
    pickle.SHORT_BINUNICODE: (1, lambda data, at: data[at]),
    pickle.BINUNICODE: (4, lambda data, at: int(_U4.unpack_from(data, at)[0])),
    pickle.BINUNICODE8: (8, lambda data, at: int(_U8.unpack_from(data, at)[0])),
    pickle.SHORT_BINBYTES: (1, lambda data, at: data[at]),
    pickle.BINBYTES: (4, lambda data, at: int(_U4.unpack_from(data, at)[0])),
    pickle.BINBYTES8: (8, lambda data, at: int(_U8.unpack_from(data, at)[0])),
    pickle.BYTEARRAY8: (8, lambda data, at: int(_U8.unpack_from(data, at)[0])),
}
_TUPLES: Final = {pickle.TUPLE1: 1, pickle.TUPLE2: 2, pickle.TUPLE3: 3}
_CALLS: Final = {pickle.REDUCE: 2, pickle.NEWOBJ: 2, pickle.NEWOBJ_EX: 3}
_TO_MARK: Final = frozenset({pickle.APPENDS, pickle.SETITEMS, pickle.ADDITEMS})
_POP_ONE: Final = frozenset({pickle.APPEND, pickle.BUILD})


class _Shape:
    """The stack and memo of a pickle, with the size and nesting of each value in place of the value."""

    def __init__(self, limit: int) -> None:
        self.stack: list[tuple[int, int]] = []
        self.marks: list[int] = []
        self.memo: list[tuple[int, int]] = []
        self._limit = limit

    def pop_to_mark(self) -> list[tuple[int, int]]:
        """Take the values above the last mark."""
        place = self.marks.pop()
        values = self.stack[place:]
        del self.stack[place:]
        return values

    def pop(self, count: int) -> list[tuple[int, int]]:
        """Take ``count`` values. Raise ``IndexError`` if there are fewer above the last mark."""
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) - floor < count:
            raise IndexError
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def push_whole(self, parts: list[tuple[int, int]]) -> None:
        """Put a value of these parts on the stack. Raise ``ValueError`` if it is too large or too deep."""
        size, depth = 1, 0
        for part in parts:
            if part is _NAMED:
                raise ValueError("it uses a function or class as a value")
            size += part[0]
            depth = max(depth, part[1])
        if size > self._limit:
            raise ValueError("it repeats its own parts without end")
        if depth >= _NESTING_MAX:
            raise ValueError(f"its values are nested deeper than {_NESTING_MAX}")
        self.stack.append((size, depth + 1))


def check(data: bytes) -> None:
    """Raise ``ValueError`` if a pickle must not be loaded; the time is linear in its length."""
    shape = _Shape(_SIZE_FREE + _SIZE_PER_BYTE * len(data))
    try:
        _run(data, shape)
    except (IndexError, struct.error):
        raise ValueError("it is cut off or no pickle") from None


def _run(data: bytes, shape: _Shape) -> None:  # noqa: PLR0915 - a branch for each operation
    at, end = 0, len(data)
    stack, memo, leaf = shape.stack, shape.memo, (1, 0)
    while True:
        op = data[at : at + 1]
        at += 1
        if op in _PUSH:
            at += _PUSH[op]
            stack.append(leaf)
        elif op in _PUSH_SIZED:
            width, size_of = _PUSH_SIZED[op]
            at += width + size_of(data, at)
            stack.append(leaf)
        elif op == pickle.MEMOIZE:
            memo.append(stack[-1])
        elif op == pickle.BINGET:
            stack.append(memo[data[at]])
            at += 1
        elif op == pickle.LONG_BINGET:
            stack.append(memo[_U4.unpack_from(data, at)[0]])
            at += 4
        elif op in _TUPLES:
            shape.push_whole(shape.pop(_TUPLES[op]))
        elif op == pickle.MARK:
            shape.marks.append(len(stack))
        elif op in _TO_MARK:
            _check_items(shape, shape.pop_to_mark())
        elif op in _POP_ONE:
            _check_items(shape, shape.pop(1))
        elif op == pickle.SETITEM:
            _check_items(shape, shape.pop(2))
        elif op in {pickle.TUPLE, pickle.FROZENSET}:
            shape.push_whole(shape.pop_to_mark())
        elif op == pickle.STACK_GLOBAL:
            shape.pop(2)
            stack.append(_NAMED)
        elif op in _CALLS:
            called, *arguments = shape.pop(_CALLS[op])
            if called is not _NAMED:
                raise ValueError("it calls a value")
            shape.push_whole(arguments)
        elif op == pickle.PROTO:
            at += 1
        elif op == pickle.FRAME:
            at += 8
        elif op == pickle.READONLY_BUFFER:
            stack[-1] = leaf
        elif op == pickle.POP:
            shape.pop(1)
        elif op == pickle.POP_MARK:
            shape.pop_to_mark()
        elif op == pickle.STOP:
            if at != end:
                raise ValueError("it has bytes after its end")
            return
        else:
            raise ValueError(f"its operation {op!r} is not one that a worker writes")
        if at > end:
            raise IndexError


def _check_items(shape: _Shape, items: list[tuple[int, int]]) -> None:
    """Count items of a mutable container, which has no hash, toward its nesting alone."""
    container = shape.pop(1)[0]
    if container is _NAMED or _NAMED in items:
        raise ValueError("it changes a function or class, or uses one as a value")
    size, depth = container
    for _, item_depth in items:
        depth = max(depth, item_depth + 1)
    if depth > _NESTING_MAX:
        raise ValueError(f"its values are nested deeper than {_NESTING_MAX}")
    shape.stack.append((size, depth))
