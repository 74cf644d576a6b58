"""Arrays of kept jobs: the indices of their elements, and how many of these run at once, as text.

``1-100%8`` are the indices 1 to 100, at most 8 at once; ``1,3,10-20:2`` has a list and a range with a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dios import limits
from dios.errors import InvalidError

_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_AT_ONCE: Final = re.compile(r"[0-9]{1,9}")
_RUN_LENGTH: Final = 3
"""The least number of indices that are written as a range."""


class ArrayShape(NamedTuple):
    """The indices of an array, ascending, and the number of elements that may run at once."""

    indices: tuple[int, ...]
    at_once: int = limits.JOB_ARRAY_AT_ONCE_MAX


def parse_array(text: str) -> ArrayShape:
    """Return the shape of an array like ``1-100%8``. Raise InvalidError if it has none or is too large."""
    listed, percent, most = text.partition("%")
    if percent and not _AT_ONCE.fullmatch(most):
        raise InvalidError(
            f"after % comes the number of elements that run at once, as in 1-100%8, not {most!r}"
        )
    at_once = int(most) if percent else limits.JOB_ARRAY_AT_ONCE_MAX
    indices: set[int] = set()
    for part in listed.split(","):
        bounds = _RANGE.fullmatch(part.strip())
        if bounds is None:
            raise InvalidError(f"an array is like 1-100%8 or 1,3,10-20:2, not {text!r}")
        first, last, step = int(bounds[1]), int(bounds[2] or bounds[1]), int(bounds[3] or 1)
        if last < first or step < 1:
            raise InvalidError(f"the range {part.strip()!r} is empty: give FIRST-LAST or FIRST-LAST:STEP")
        # Checked first, because a range may be too long to be made.
        if last > limits.JOB_INDEX_MAX:
            raise InvalidError(f"an index of an array is at most {limits.JOB_INDEX_MAX}, not {last}")
        indices.update(range(first, last + 1, step))
    return checked_shape(ArrayShape(tuple(sorted(indices)), at_once))


def checked_shape(shape: ArrayShape) -> ArrayShape:
    """Return the shape of an array. Raise InvalidError if it is no shape, or too large."""
    indices, at_once = shape
    if list(indices) != sorted(set(indices)) or not all(
        0 <= index <= limits.JOB_INDEX_MAX for index in indices
    ):
        raise InvalidError(f"the indices of an array ascend from 0 to {limits.JOB_INDEX_MAX} at most")
    if not 1 <= len(indices) <= limits.JOB_ELEMENTS_MAX:
        raise InvalidError(f"an array has 1 to {limits.JOB_ELEMENTS_MAX} elements, not {len(indices)}")
    if not 1 <= at_once <= limits.JOB_ARRAY_AT_ONCE_MAX:
        raise InvalidError(
            f"of an array 1 to {limits.JOB_ARRAY_AT_ONCE_MAX} elements run at once, not {at_once}"
        )
    return shape


def array_text(shape: ArrayShape) -> str:
    """Return a shape as text, which ``parse_array`` reads."""
    most = "" if shape.at_once == limits.JOB_ARRAY_AT_ONCE_MAX else f"%{shape.at_once}"
    return index_text(shape.indices) + most


def index_text(indices: Sequence[int]) -> str:
    """Return ascending indices as text, the long runs with equal steps as ranges."""
    return ",".join(_ranges(indices))


def _ranges(indices: Sequence[int]) -> Iterable[str]:
    at = 0
    while at < len(indices):
        end = at + 1
        step = indices[end] - indices[at] if end < len(indices) else 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        if end - at >= _RUN_LENGTH:
            yield f"{indices[at]}-{indices[end - 1]}" + (f":{step}" if step > 1 else "")
        else:
            end = at + 1
            yield str(indices[at])
        at = end
