"""The result of dividing shared resources, and the checks of array arguments that all mechanisms share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_Number = TypeVar("_Number", np.float32, np.float64, np.int64, np.int32)


@dataclass(frozen=True, eq=False)
class Allocation:
    """The amounts that each user receives, as fractions of each resource's total.

    ``amounts`` has the shape of the demands: (n,) for one resource, (n, m), or one number for each value of
    a CSR matrix. ``share`` is (n,): the dominant share, or for the extended forms the level z at which the
    tenant stopped. ``bottleneck`` is (n,): the exhausted resource that stopped the user, or -1 if none did
    (the user received all that it demands, or demands nothing). ``rounds`` is the number of times that an
    exhausted resource stopped some user. ``epsilon`` is the fraction of a resource that the mechanism may
    have left unallocated on purpose, 0 in the exact forms. ``completed`` is False if a deadline came first.
    """

    amounts: Floats
    share: Floats
    bottleneck: Ints
    rounds: int
    epsilon: float = 0.0
    completed: bool = True


def checked_numbers(name: str, given: npt.ArrayLike, shape: tuple[int | None, ...]) -> Floats:
    """Return ``given`` as a contiguous array of doubles that are finite, not negative and of ``shape``.

    A length of None in ``shape`` allows any length. The result is the caller's own array where possible, so
    do not write to it. Raise ``ValueError`` with the first index at fault, as in ``demands[3, 1] is nan``.
    """
    numbers = as_kernel_array(as_number_array(name, given), np.float64)
    wanted = ", ".join("any" if length is None else str(length) for length in shape)
    if numbers.ndim != len(shape) or any(
        length not in (None, actual) for length, actual in zip(shape, numbers.shape, strict=True)
    ):
        raise ValueError(f"{name} has the shape {numbers.shape}; it must be ({wanted})")
    good = np.isfinite(numbers) & (numbers >= 0.0)
    if not good.all():
        raise_first_invalid(name, numbers, good, "it must be finite and at least 0")
    return numbers


def as_number_array(name: str, given: npt.ArrayLike) -> npt.NDArray[np.float32 | np.float64 | np.int64]:
    """Return ``given`` as an array of real numbers, unchecked; ``ValueError`` names the argument."""
    try:
        numbers = np.asarray(given)
        if numbers.dtype.kind == "O":
            # Objects may be integers of any size, fractions or None: convert them, or fail.
            numbers = numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a rectangular array of numbers: {error}") from error
    if numbers.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds values of the type {numbers.dtype}; it must hold numbers")
    return numbers


def as_kernel_array(given: npt.ArrayLike, kind: type[_Number]) -> npt.NDArray[_Number]:
    """Return the same array, or a copy if it is read-only, strided or of another type.

    Numba would compile a kernel again, for seconds, for every other kind of array.
    """
    return np.require(given, dtype=kind, requirements=["C", "W"])


def check_positive(name: str, numbers: Floats) -> None:
    """Raise ``ValueError`` for the first number that is not above 0."""
    good = numbers > 0.0
    if not good.all():
        raise_first_invalid(name, numbers, good, "it must be more than 0")


def raise_first_invalid(name: str, numbers: Floats, good: npt.NDArray[np.bool_], need: str) -> None:
    """Raise ``ValueError`` for the first place at which ``good`` is False."""
    place = np.unravel_index(int(np.argmin(good)), numbers.shape)
    index = ", ".join(str(int(at)) for at in place)
    raise ValueError(f"{name}[{index}] is {numbers[place]}: {need}")
