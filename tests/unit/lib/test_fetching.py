"""Claims about the parts of inputs that a mapper brings from another node."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from dios.client.sync.node import Reference
from dios.lib.jobs.records import Document, blocks, plan_splits
from dios.lib.jobs.task import fetch
from dios.limits import JOB_FETCH_BYTES


class _Blob:
    """An object whose bytes are read in pieces, and the most that was asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.read = 0

    def read_bytes(self, size: int = 0, offset: int = 0) -> bytes:
        """A part of it."""
        chunk = self._data[offset : offset + size]
        self.read += len(chunk)
        return chunk


@given(
    st.lists(st.text(alphabet="ab ", max_size=12), max_size=30),
    st.integers(1, 9),
    st.integers(0, 40),
    st.sampled_from(["", "\n"]),
)
def test_the_records_are_those_of_the_whole(lines: list[str], count: int, before: int, end: str) -> None:
    """Over all splits, what is found in fetched parts is what is found in the input itself, in order."""
    data = b"x" * before + ("\n".join(lines) + end).encode()
    view = memoryview(data)
    for split in plan_splits([Document(0, before, len(data))], count):
        for segment in split:
            whole = [bytes(view[start:stop]) for start, stop in blocks(view, segment, 8)]
            part, moved = fetch(cast("Reference", _Blob(data)), segment)
            assert b"".join(bytes(part[start:stop]) for start, stop in blocks(part, moved, 8)) == b"".join(
                whole
            )


def test_little_more_than_the_segment_is_brought() -> None:
    """Of a large input a mapper brings its own part and at most the rest of one record."""
    data = b"word word\n" * 200_000
    (split, *_) = plan_splits([Document(0, 0, len(data))], 4)
    blob = _Blob(data)
    fetch(cast("Reference", blob), split[0])
    assert blob.read <= split[0].size + JOB_FETCH_BYTES
