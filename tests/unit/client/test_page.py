"""The bytes that a client keeps for reads without a call."""

from __future__ import annotations

import pytest

from dios import limits
from dios.client import page as module
from dios.client.page import KeptBytes, Page
from dios.wire.calls import DIRECT_READS_MAX
from dios.wire.messages import Reference
from dios.wire.page import PageWriter
from dios.wire.types import Buffering, Deletion, ObjectType, Persistence, Proximity


def reference(slot: int, size: int) -> Reference:
    """A reference to an object with a slot."""
    return Reference(
        ref=100 + slot,
        object=slot,
        type=ObjectType.SHMEM_BLOB,
        permissions=31,
        persistence=Persistence.VOLATILE,
        proximity=Proximity.NODE,
        deletion=Deletion.IMMEDIATE,
        buffering=Buffering.DOUBLE,
        slot=slot,
        size=size,
        v_r=0,
        v_w=1,
        a_r=0,
        a_w=0,
        fingerprint="",
    )


class Shown:
    """A page, its writer and its reader."""

    def __init__(self) -> None:
        memory = memoryview(bytearray(limits.PUBLIC_PAGE_BYTES))
        self.writer = PageWriter(memory)
        self.page = Page(memory)

    def keep(self, slot: int, data: bytes, start: int = 0, size: int = 0) -> KeptBytes | None:
        """Keep the bytes of version 1 of an object, which the page shows as readable."""
        self.writer.bind(reference(slot, size or len(data)))
        self.publish(slot, 1, size or len(data))
        return self.page.keep(reference(slot, 0), 1, data, start)

    def publish(self, slot: int, v_w: int, size: int = 1) -> None:
        """Show a version."""
        self.writer.publish(slot, size, 0, v_w, 0, 0, 0, zombie=False, direct=True)


@pytest.fixture
def shown() -> Shown:
    """A page without references."""
    return Shown()


def test_kept_bytes_serve_until_the_next_version(shown: Shown) -> None:
    """They are read while the page shows their version, and never after it."""
    kept = shown.keep(3, b"abc")
    assert kept is not None
    assert (kept.current, kept.take()) == (True, b"abc")
    shown.publish(3, 2)
    assert (kept.current, kept.take(), kept.reads) == (False, None, 1)


def test_bytes_of_another_version_are_not_kept(shown: Shown) -> None:
    """Bytes that were outdated when they came would be taken for those of the version that is shown."""
    assert shown.keep(3, b"abc") is not None
    shown.publish(3, 2)
    assert shown.page.keep(reference(3, 0), 1, b"abc", 0) is None
    assert shown.page.keep(reference(4, 0), 1, b"abc", 0) is None


@pytest.mark.parametrize(
    ("size", "offset", "part"),
    [
        (0, 2, b"cdef"),
        (2, 3, b"de"),
        (9, 4, None),
        (0, 0, None),
        (0, 11, None),
        (4, 2, b"cdef"),
        (5, 2, None),
    ],
)
def test_a_part_serves_the_reads_inside_it(shown: Shown, size: int, offset: int, part: bytes | None) -> None:
    """A read gets exactly what the object has there, or nothing if that is not all here."""
    kept = shown.keep(3, b"cdef", start=2, size=6 if size == 0 else 10)
    assert kept is not None
    assert kept.part(size, offset) == part


def test_the_node_hears_of_reads_in_time(shown: Shown) -> None:
    """After as many reads as one message reports, the next one is a call."""
    kept = shown.keep(3, b"abc")
    assert kept is not None
    assert sum(kept.take() is not None for _ in range(2 * DIRECT_READS_MAX)) == DIRECT_READS_MAX
    assert not kept.count()
    assert kept.reads == DIRECT_READS_MAX


def test_kept_bytes_are_bounded(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is outdated goes first, then what was not read since the last look."""
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 100)
    kept = [shown.keep(slot, bytes(30)) for slot in range(3)]
    first, second, third = (content for content in kept if content is not None)
    assert first.take() == bytes(30)
    shown.publish(2, 2)
    assert shown.keep(3, bytes(30)) is not None
    assert (first.current, second.current, third.whole) == (True, True, None)
    assert shown.keep(4, bytes(30)) is not None
    assert (first.take(), second.current) == (bytes(30), False)
    shown.page.drop_kept()
    assert not first.current


def test_nothing_is_read_after_the_end_or_in_a_fork(shown: Shown) -> None:
    """The page of a closed connection, or of the parent of a fork, serves no read."""
    kept = shown.keep(3, b"abc")
    assert kept is not None
    shown.page.stop_reads()
    assert (kept.current, kept.take()) == (False, None)
    shown.page.close()
    assert shown.page.keep(reference(3, 0), 1, b"abc", 0) is None
