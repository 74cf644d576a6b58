"""Bodies of results as trees of operations, so that a test can change any part of one."""

from __future__ import annotations

import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from dios.lib.executor.results import reader
from dios.lib.executor.results.builtin_forms import LIST, TUPLE
from dios.lib.executor.results.reader import Body
from dios.lib.executor.results.writer import WrittenValue


class Node(NamedTuple):
    """A form with its parts: nodes, scalars, bytes and buffers."""

    code: int
    parts: tuple[object, ...]


def written(tree: object) -> WrittenValue:
    """Return the body of a tree."""
    kinds, counts, scalars, octets = bytearray(), array.array("I"), [], []
    buffers: list[memoryview] = []

    def add(part: object) -> None:
        if isinstance(part, Node):
            operation(part.code, len(part.parts))
            for inner in part.parts:
                add(inner)
        elif isinstance(part, memoryview):
            buffers.append(part)
            operation(reader.BUFFER, len(buffers) - 1)
        elif isinstance(part, bytes):
            octets.append(part)
            operation(reader.OCTETS, 1)
        else:
            scalars.append(part)
            operation(reader.SCALARS, 1)

    def operation(kind: int, count: int) -> None:
        kinds.append(kind)
        counts.append(count)

    add(tree)
    body = Body([msgspec.msgpack.encode(scalars)], octets, bytes(kinds), counts.tobytes())
    return WrittenValue(msgspec.msgpack.encode(body), buffers)


def tree_of(value: WrittenValue) -> object:
    """Return the tree of a body; values that are used again stand in each of their places."""
    body = msgspec.msgpack.decode(value.body, type=Body)
    scalars: Iterator[object] = (part for chunk in body.scalars for part in msgspec.msgpack.decode(chunk))
    octets = iter(body.octets)
    operations = enumerate(zip(body.kinds, memoryview(body.counts).cast("I"), strict=True))
    places: dict[int, object] = {}

    def parts(wanted: int) -> tuple[object, ...]:
        items: list[object] = []
        while len(items) < wanted:
            place, (kind, count) = next(operations)
            code = kind & ~reader.USED_AGAIN
            if code == reader.SCALARS:
                items += [next(scalars) for _ in range(count)]
            elif code == reader.OCTETS:
                items += [next(octets) for _ in range(count)]
            elif code == reader.SHARED:
                items.append(places[count])
            elif code == reader.BUFFER:
                items.append(value.buffers[count])
            elif code in {reader.SCALAR_LIST, reader.SCALAR_TUPLE}:
                outer = LIST if code == reader.SCALAR_LIST else TUPLE
                items.append(Node(outer, tuple(next(scalars) for _ in range(count))))
            else:
                items.append(Node(code, parts(count)))
            places[place] = items[-1]
        return tuple(items)

    return parts(1)[0]


def variants(tree: object, replacements: Sequence[object]) -> Iterator[object]:
    """Yield the tree with each part replaced in turn, and each form without and with another part."""
    yield from replacements
    if not isinstance(tree, Node):
        return
    for place, part in enumerate(tree.parts):
        before, after = tree.parts[:place], tree.parts[place + 1 :]
        yield Node(tree.code, before + after)
        yield Node(tree.code, (*before, part, part, *after))
        for inner in variants(part, replacements):
            yield Node(tree.code, (*before, inner, *after))
