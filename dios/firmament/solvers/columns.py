"""Columns of whole numbers: checked, summed exactly, grouped.

Floating-point costs are not accepted: the caller knows their unit, and scales and rounds them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dios.firmament.solvers.errors import InvalidProblemError
from dios.kernels import kernel

Ints: TypeAlias = NDArray[np.int64]

Indices: TypeAlias = NDArray[np.int32]
"""Half the size of int64, for columns that are read out of order, where the cache decides the speed."""

HALF_BITS: Final = 31
"""The number of low bits in the second part of a sum, so that adding 2**28 numbers cannot overflow."""

EXACT_PRODUCTS: Final = 2.0**61
"""A sum of products below this fits 64 bits, with a wide margin for the rounding of its estimate."""


def whole_numbers(name: str, values: ArrayLike) -> Ints:
    """Return a frozen int64 copy; :class:`InvalidProblemError` names the field and the index."""
    numbers = np.asarray(values)
    if numbers.ndim != 1:
        raise InvalidProblemError(
            f"{name} has {numbers.ndim} dimensions; it must be a column of whole numbers"
        )
    if numbers.size and numbers.dtype.kind not in "iuO":
        raise InvalidProblemError(
            f"{name} holds {numbers.dtype} values; scale and round them to whole numbers"
        )
    try:
        column: Ints = numbers.astype(np.int64)
        changed = np.flatnonzero(column != numbers)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidProblemError(f"{name} holds a value that is no 64-bit number: {error}") from None
    if changed.size:
        index = int(changed[0])
        raise InvalidProblemError(f"{name}[{index}] is {numbers[index]}, which is no 64-bit number")
    column.setflags(write=False)
    return column


def exact_sum(values: Ints) -> int:
    """Return the sum of a column of up to 2**28 numbers as a Python int, which cannot overflow."""
    low = int(np.sum(values & ((1 << HALF_BITS) - 1), dtype=np.int64))
    return (int(np.sum(values >> HALF_BITS, dtype=np.int64)) << HALF_BITS) + low


def exact_product(left: Ints, right: Ints) -> int:
    """Return the sum of ``left[i] * right[i]`` as a Python int, which cannot overflow."""
    # Not a matrix product: the library behind those keeps a thread of each processor spinning for a while.
    if float((np.abs(left.astype(np.float64)) * np.abs(right.astype(np.float64))).sum()) < EXACT_PRODUCTS:
        return int(np.dot(left, right))
    used = np.flatnonzero(left)
    return sum(int(a) * int(b) for a, b in zip(left[used], right[used], strict=True))


def balances(vertices: int, tail: Ints, head: Ints, flow: Ints) -> tuple[Ints, Ints]:
    """Return the flow out of each vertex minus that into it, as parts (high, low): high * 2**31 + low.

    Exact for any int64 flow. low is in [0, 2**31), so two such pairs are equal if their parts are.
    """
    low_mask = (1 << HALF_BITS) - 1
    high = np.zeros(vertices, np.int64)
    low = np.zeros(vertices, np.int64)
    for sign, ends in ((1, tail), (-1, head)):
        np.add.at(high, ends, sign * (flow >> HALF_BITS))
        np.add.at(low, ends, sign * (flow & low_mask))
    return high + (low >> HALF_BITS), low & low_mask


@kernel
def grouped(ends: Ints, groups: int) -> tuple[Ints, Ints]:
    """Group arcs by one of their ends: return the start of each group (groups + 1,), and the ordered arcs."""
    start = np.zeros(groups + 1, np.int64)
    for end in ends:
        start[end + 1] += 1
    for group in range(groups):
        start[group + 1] += start[group]
    order = np.empty(len(ends), np.int64)
    cursor = start.copy()
    for arc in range(len(ends)):
        order[cursor[ends[arc]]] = arc
        cursor[ends[arc]] += 1
    return start, order


def spans(begin: Ints, length: Ints) -> Ints:
    """Return the numbers of all spans, one after the other: ``length[i]`` numbers from ``begin[i]`` on."""
    ends = np.cumsum(length)
    return np.repeat(begin - ends + length, length) + np.arange(ends[-1] if len(ends) else 0)
