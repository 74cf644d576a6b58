r"""Records: the division of inputs among mappers, at record boundaries.

A record ends with a newline, or with its document. A split has the records that begin in it, so that every
record belongs to exactly one split, wherever the splits were cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from dios.limits import JOB_INPUTS_MAX

_SEARCH_BYTES: Final = 64 * 1024
_NEWLINE: Final = b"\n"


class Document(NamedTuple):
    """One text within an input object: bytes ``start`` to ``end`` of input number ``input``."""

    input: int
    start: int
    end: int
    label: str = ""


class Segment(Struct, frozen=True, array_like=True):
    """The part ``first`` to ``last`` of a document, whose records one mapper reads."""

    input: int
    start: int
    end: int
    first: int
    last: int
    label: str = ""

    @property
    def size(self) -> int:
        """Return the number of bytes of the part."""
        return self.last - self.first


def plan_splits(documents: Sequence[Document], count: int) -> list[tuple[Segment, ...]]:
    """Divide documents into at most ``count`` splits of nearly the same size.

    There are more splits only if one would have more than JOB_INPUTS_MAX inputs. Documents keep their order.
    Empty documents and empty splits are left out.
    """
    total = sum(document.end - document.start for document in documents)
    splits: list[list[Segment]] = [[] for _ in range(max(1, count))]
    passed = 0
    for document in documents:
        place = document.start
        while place < document.end:
            # The split with this byte, and the first byte of the next split.
            number = passed * len(splits) // total
            border = -(-(number + 1) * total // len(splits))
            last = min(document.end, place + border - passed)
            splits[number].append(
                Segment(document.input, document.start, document.end, place, last, document.label)
            )
            passed += last - place
            place = last
    return [part for split in splits for part in _of_few_inputs(split)]


def _of_few_inputs(split: list[Segment]) -> Iterator[tuple[Segment, ...]]:
    """Yield a split, divided if it needs more input objects than one task can have."""
    part: list[Segment] = []
    inputs: set[int] = set()
    for segment in split:
        if segment.input not in inputs and len(inputs) == JOB_INPUTS_MAX:
            yield tuple(part)
            part, inputs = [], set()
        part.append(segment)
        inputs.add(segment.input)
    if part:
        yield tuple(part)


def _after_newline(view: memoryview, place: int, end: int) -> int:
    """Return the byte after the first newline at or after ``place``; ``end`` if there is none."""
    while place < end:
        stop = min(place + _SEARCH_BYTES, end)
        offset = bytes(view[place:stop]).find(_NEWLINE)
        if offset >= 0:
            return place + offset + 1
        place = stop
    return end


def bounds(view: memoryview, segment: Segment) -> tuple[int, int]:
    """Return the first and last byte (exclusive) of the records that begin in a segment."""
    first, last = segment.first, segment.last
    if first > segment.start:
        first = _after_newline(view, first - 1, segment.end)
    if last < segment.end:
        last = _after_newline(view, last - 1, segment.end)
    return first, max(first, last)


def blocks(view: memoryview, segment: Segment, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of blocks of about ``block_bytes`` with whole records of a segment.

    A record longer than ``block_bytes`` makes its block longer.
    """
    place, last = bounds(view, segment)
    while place < last:
        stop = place + block_bytes
        if stop >= last:
            stop = last
        else:
            cut = _last_newline(view, place, stop)
            stop = cut if cut > place else _after_newline(view, stop, last)
        yield place, stop
        place = stop


def _last_newline(view: memoryview, first: int, stop: int) -> int:
    """Return the byte after the last newline in ``first`` to ``stop``; ``first`` if there is none."""
    while stop > first:
        start = max(first, stop - _SEARCH_BYTES)
        offset = bytes(view[start:stop]).rfind(_NEWLINE)
        if offset >= 0:
            return start + offset + 1
        stop = start
    return first
