"""Processor instructions that Numba lacks: access by address, memory order, clocks, calls by address.

Frames are wherever an engine stored them, so a packet has an address. ``load_acquire`` and ``store_release``
order the writes of one worker and the reads of another; the compiler does not move accesses across them.
All functions here exist in compiled code only.
"""

# Numba passes objects without static types to an intrinsic.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, ARG001

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils, sigutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from dios.sprayer.compile.kept_code import KeptCode, name_of
from dios.sprayer.compile.tuple_methods import Function

_Scalar = TypeVar("_Scalar", np.void, np.int64, np.uint64, np.int32, np.uint32, np.uint16, np.uint8)

Words = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

# Conversions in compiled code, declared as functions of integers for the type checker.
int64: Final = cast("Callable[[int], int]", np.int64)
uint64: Final = cast("Callable[[int], int]", np.uint64)
uint32: Final = cast("Callable[[int], int]", np.uint32)
uint16: Final = cast("Callable[[int], int]", np.uint16)
uint8: Final = cast("Callable[[int], int]", np.uint8)

_I8: Final = ir.IntType(8)
_I32: Final = ir.IntType(32)
_I64: Final = ir.IntType(64)


def _peek(bits, kind, *, swapped):
    """Return an intrinsic that reads ``bits`` bits in network byte order at an address of any alignment."""

    def typed(_context, address):
        def built(_target, builder, _signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            loaded = builder.load(pointer, align=1)
            return builder.bswap(loaded) if swapped else loaded

        return kind(types.int64), built

    return cast("Callable[[int], int]", intrinsic(typed))


def _poke(bits, kind, *, swapped):
    """Return an intrinsic that writes ``bits`` bits in network byte order."""

    def typed(_context, address, value):
        def built(target, builder, _signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = arguments[1]
            builder.store(builder.bswap(value) if swapped else value, pointer, align=1)
            return target.get_dummy_value()

        return types.void(types.int64, kind), built

    return cast("Callable[[int, int], None]", intrinsic(typed))


peek8: Final = _peek(8, types.uint8, swapped=False)
"""Return the byte at an address."""
peek16: Final = _peek(16, types.uint16, swapped=True)
peek32: Final = _peek(32, types.uint32, swapped=True)
peek64: Final = _peek(64, types.uint64, swapped=True)
poke8: Final = _poke(8, types.uint8, swapped=False)
poke16: Final = _poke(16, types.uint16, swapped=True)
poke32: Final = _poke(32, types.uint32, swapped=True)
poke64: Final = _poke(64, types.uint64, swapped=True)


@intrinsic
def _load_acquire(_context, array, index):
    def built(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        size = signature.args[0].dtype.bitwidth // 8
        return builder.load_atomic(place, "acquire", size)

    return array.dtype(array, types.intp), built


@intrinsic
def _store_release(_context, array, index, value):
    def built(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        size = signature.args[0].dtype.bitwidth // 8
        builder.store_atomic(arguments[2], place, "release", size)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), built


def _place(context, builder, signature, arguments):
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, arguments[0])
    return cgutils.get_item_pointer(context, builder, kind, array, [arguments[1]])


@intrinsic
def _swap_if(_context, array, index, old, new):
    def built(context, builder, signature, arguments):
        place = _place(context, builder, signature, arguments)
        exchange = builder.cmpxchg(place, arguments[2], arguments[3], "acq_rel", "acquire")
        return builder.extract_value(exchange, 1)

    return types.boolean(array, types.intp, array.dtype, array.dtype), built


@intrinsic
def _fence(_context):
    def built(context, builder, _signature, _arguments):
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return types.void(), built


@intrinsic
def _prefetch(_context, address):
    def built(context, builder, _signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        pointer = builder.inttoptr(arguments[0], _I8.as_pointer())
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), built


@intrinsic
def _copy_bytes(_context, target, source, count):
    def built(context, builder, _signature, arguments):
        pointers = [builder.inttoptr(address, _I8.as_pointer()) for address in arguments[:2]]
        cgutils.raw_memcpy(builder, pointers[0], pointers[1], arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), built


@intrinsic
def _cycles(_context):
    def built(_target, builder, _signature, _arguments):
        kind = ir.FunctionType(_I64, [])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter")
        return builder.call(function, [])

    return types.int64(), built


@intrinsic
def _call_at(_context, address, first, two, three):
    def built(_target, builder, _signature, arguments):
        kind = ir.FunctionType(_I64, [_I64, _I64, _I64])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.call(function, arguments[1:])

    whole = types.int64
    return whole(whole, whole, whole, whole), built


@intrinsic
def _array_at(_context, address, shape, dtype):
    kind = types.Array(dtype.dtype, len(shape), "C")

    def built(context, builder, _signature, arguments):
        size = context.get_abi_sizeof(context.get_data_type(dtype.dtype))
        sides = cgutils.unpack_tuple(builder, arguments[1])
        steps = [_I64(size)]
        for side in sides[:0:-1]:
            steps.insert(0, builder.mul(steps[0], side))
        array = context.make_array(kind)(context, builder)
        data = builder.inttoptr(arguments[0], array.data.type)
        populate_array(array, data, sides, steps, _I64(size), None)
        return array._getvalue()  # noqa: SLF001 - Numba's own way

    return kind(types.int64, shape, dtype), built


load_acquire: Final = cast("Callable[[Words, int], int]", _load_acquire)
"""Return an element of a one-dimensional array; later accesses are not moved before it."""
store_release: Final = cast("Callable[[Words, int, int], None]", _store_release)
"""Write an element of a one-dimensional array after all earlier writes."""
compare_and_swap: Final = cast("Callable[[Words, int, int, int], bool]", _swap_if)
"""Atomically write an element of a one-dimensional array if it has a value; return True if it had."""
fence: Final = cast("Callable[[], None]", _fence)
"""Order all earlier accesses before all later ones."""
copy_bytes: Final = cast("Callable[[int, int, int], None]", _copy_bytes)
"""Copy bytes to an address, from another address, of a count; the ranges must not overlap."""
prefetch: Final = cast("Callable[[int], None]", _prefetch)
"""Start to load the cache line of an address; it never causes a fault."""
cycles: Final = cast("Callable[[], int]", _cycles)
"""Return the cycle counter of the processor."""
call_at: Final = cast("Callable[[int, int, int, int], int]", _call_at)
"""Call the compiled C function at an address with three integers; return its integer."""


class _ArrayAt(Protocol):
    def __call__(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[_Scalar], /
    ) -> npt.NDArray[_Scalar]: ...


array_at: Final = cast("_ArrayAt", _array_at)
"""Return the array of a shape and a constant type at an address; the caller keeps the memory alive."""

KernelFunction = Callable[[int, int, int], int]
"""A function for ``call_at``, before compilation."""

_KEPT: Final[list[object]] = []
"""Compiled functions; their addresses are valid while the functions are stored here."""


def callable_at(function: KernelFunction, name: str | None = None) -> int:
    """Compile a function for ``call_at``; return its address, valid until the process ends.

    The compiled code is kept on disk as ``name``, by default one that follows from the function.
    """
    kept = KeptCode(name or name_of(function.__name__, {"function": cast("Function", function)}))
    arguments = sigutils.normalize_signature("int64(int64, int64, int64)")
    compiled = CFunc(function, arguments, locals={}, options={"_nrt": False})
    vars(compiled)["_cache"] = kept
    with kept.compiled_once():
        compiled.compile()
    _KEPT.append(compiled)
    return cast("int", compiled.address)
