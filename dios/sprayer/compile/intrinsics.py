"""What kernels of packets need of the processor and Numba has no words for: addresses, order, clocks, calls.

Not for: anything that can be said with arrays.

Frames lie wherever an engine put them, so a packet has an address. What one worker writes and another reads
is ordered by ``load_acquire`` and ``store_release``, which also keep the compiler from moving it.
Each function here exists in compiled code only.
"""

# What Numba hands to an intrinsic has no types that could be said.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, ARG001

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

_Scalar = TypeVar("_Scalar", np.void, np.int64, np.uint64, np.int32, np.uint32, np.uint16, np.uint8)

Words = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

# Conversions that compiled code knows, said as what they are for whoever reads types.
whole: Final = cast("Callable[[int], int]", np.int64)
natural: Final = cast("Callable[[int], int]", np.uint64)
word32: Final = cast("Callable[[int], int]", np.uint32)
word16: Final = cast("Callable[[int], int]", np.uint16)
byte8: Final = cast("Callable[[int], int]", np.uint8)

_I8: Final = ir.IntType(8)
_I32: Final = ir.IntType(32)
_I64: Final = ir.IntType(64)


def _peek(bits, kind, *, swapped):
    """Makes what reads ``bits`` at an address, of any alignment, in the order of bytes of networks."""

    def typed(_context, address):
        def built(_target, builder, _signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            found = builder.load(pointer, align=1)
            return builder.bswap(found) if swapped else found

        return kind(types.int64), built

    return cast("Callable[[int], int]", intrinsic(typed))


def _poke(bits, kind, *, swapped):
    """Makes what writes so."""

    def typed(_context, address, value):
        def built(target, builder, _signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = arguments[1]
            builder.store(builder.bswap(value) if swapped else value, pointer, align=1)
            return target.get_dummy_value()

        return types.void(types.int64, kind), built

    return cast("Callable[[int, int], None]", intrinsic(typed))


peek8: Final = _peek(8, types.uint8, swapped=False)
"""The byte at an address."""
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
        found = builder.cmpxchg(place, arguments[2], arguments[3], "acq_rel", "acquire")
        return builder.extract_value(found, 1)

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
        pointers = [builder.inttoptr(each, _I8.as_pointer()) for each in arguments[:2]]
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
def _call_at(_context, address, one, two, three):
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
"""An element of an array of one dimension; what follows is not done before."""
store_release: Final = cast("Callable[[Words, int, int], None]", _store_release)
"""Write an element of an array of one dimension after all that was written before."""
swap_if: Final = cast("Callable[[Words, int, int, int], bool]", _swap_if)
"""Write an element of an array of one dimension if it has a value, in one step for all cores; whether."""
fence: Final = cast("Callable[[], None]", _fence)
"""What stands before is done before what stands after."""
copy_bytes: Final = cast("Callable[[int, int, int], None]", _copy_bytes)
"""To an address, from another, so many; they do not overlap."""
prefetch: Final = cast("Callable[[int], None]", _prefetch)
"""Begin to bring the cache line of an address; never a fault."""
cycles: Final = cast("Callable[[], int]", _cycles)
"""The processor's cycle counter."""
call_at: Final = cast("Callable[[int, int, int, int], int]", _call_at)
"""Call the compiled function of C at an address, which takes three whole numbers and returns one."""


class _ArrayAt(Protocol):
    def __call__(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[_Scalar], /
    ) -> npt.NDArray[_Scalar]: ...


array_at: Final = cast("_ArrayAt", _array_at)
"""The array of a shape and a constant type that lies at an address, which somebody else keeps."""

Entry = Callable[[int, int, int], int]
"""A function that ``call_at`` calls, before it is compiled."""

_KEPT: Final[list[object]] = []
"""An address is good as long as what is behind it is kept."""


def callable_at(function: Entry, *, keep: bool = True) -> int:
    """Compile a function for ``call_at``; its address, good until the process ends.

    ``keep`` what was compiled on disk, beside the function's file.
    """
    compiler = numba.cfunc("int64(int64, int64, int64)", cache=keep, _nrt=False)  # type: ignore[call-arg] # as njit
    made = cast("_Compiled", compiler(function))
    _KEPT.append(made)
    return made.address


class _Compiled(Protocol):
    @property
    def address(self) -> int: ...
