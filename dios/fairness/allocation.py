"""What a division of shared resources comes to, and the checks of what goes into one.

Not for: dividing (``drf.py``, ``edrf.py``, ``dc_drf.py``).
"""

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
    """Who gets how much, as fractions of each resource's total.

    ``amounts`` has the shape of the demands: (n,) for one resource, (n, m), or one number for each value of
    a CSR matrix. ``share`` is (n,): the dominant share, or for the extended forms the level z at which the
    tenant left. ``bottleneck`` is (n,): the resource that ran dry and stopped the user, -1 where none did
    (all that was asked for was given, or nothing was asked for). ``rounds`` counts the times that a resource
    ran dry and stopped somebody. ``epsilon`` is the fraction of a resource that may have been left over on
    purpose, 0 in the exact forms. ``completed`` is False where a deadline came first.
    """

    amounts: Floats
    share: Floats
    bottleneck: Ints
    rounds: int
    epsilon: float = 0.0
    completed: bool = True


def numbers(name: str, given: npt.ArrayLike, shape: tuple[int | None, ...]) -> Floats:
    """``given`` as doubles in one piece: finite, not negative and of ``shape`` (None: any length).

    It is the caller's own array where that is possible, so do not write to it.
    ``ValueError`` names the first index at fault, as in ``demands[3, 1] is nan``.
    """
    found = as_compiled(array_of(name, given), np.float64)
    wanted = ", ".join("any" if length is None else str(length) for length in shape)
    if found.ndim != len(shape) or any(
        length not in (None, actual) for length, actual in zip(shape, found.shape, strict=True)
    ):
        raise ValueError(f"{name} has the shape {found.shape}: ({wanted}) is needed")
    good = np.isfinite(found) & (found >= 0.0)
    if not good.all():
        refuse(name, found, good, "a finite number of at least 0 is needed")
    return found


def array_of(name: str, given: npt.ArrayLike) -> npt.NDArray[np.float32 | np.float64 | np.int64]:
    """``given`` as an array of real numbers of some kind, none of them looked at; ``ValueError`` names it."""
    try:
        found = np.asarray(given)
        if found.dtype.kind == "O":
            # Whole numbers without a bound, fractions, None: what is no number is nan, or raises.
            found = found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a rectangle of numbers: {error}") from error
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {found.dtype}: numbers are needed")
    return found


def as_compiled(given: npt.ArrayLike, kind: type[_Number]) -> npt.NDArray[_Number]:
    """The same array, or a copy where it is frozen, strided or of another type: kernels know one kind only.

    Numba would compile them anew, for seconds, for each other kind that somebody brings.
    """
    return np.require(given, dtype=kind, requirements=["C", "W"])


def positive(name: str, found: Floats, where: npt.NDArray[np.bool_] | None = None) -> None:
    """Raise ``ValueError`` for the first number that is zero, looking only at ``where``."""
    good = found > 0.0
    if where is not None:
        good |= ~where
    if not good.all():
        refuse(name, found, good, "more than 0 is needed")


def refuse(name: str, found: Floats, good: npt.NDArray[np.bool_], need: str) -> None:
    """Raise ``ValueError`` for the first place at which ``good`` is False."""
    place = np.unravel_index(int(np.argmin(good)), found.shape)
    index = ", ".join(str(int(at)) for at in place)
    raise ValueError(f"{name}[{index}] is {found[place]}: {need}")
