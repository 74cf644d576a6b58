"""Log files: what is written is what is read, what was not acknowledged goes, what is damaged is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dios import limits
from dios.core.events import ObjectRecord
from dios.errors import DamagedError
from dios.ids import Name, ObjectId, Principal
from dios.store.lmdb_store import LmdbStore
from dios.store.log_files import LogFiles, LogFrame, LogStore, MemoryLogs, encode_frame, whole_entries
from dios.store.protocol import Drop, Put
from dios.wire.types import Buffering, Deletion, ObjectType

LOG = ObjectId(0x1234)
HEAD = limits.LOG_HEAD_BYTES


def record(number: int, size: int) -> ObjectRecord:
    """The record of a log of that length."""
    return ObjectRecord(
        ObjectId(number),
        Name(number.to_bytes(32, "big")),
        ObjectType.DURABLE_STREAM,
        (Name(bytes(32)),),
        Principal("uid:1"),
        Deletion.IMMEDIATE,
        Buffering.DOUBLE,
        size,
        0,
        1,
    )


def entries(*parts: bytes, target: ObjectId = LOG) -> list[LogFrame]:
    """Entries that follow each other."""
    frames, position = [], 0
    for data in parts:
        frames.append(LogFrame(target, position, data))
        position += HEAD + len(data)
    return frames


@pytest.fixture(params=["files", "memory"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    """Each kind of log store, empty."""
    if request.param == "memory":
        yield MemoryLogs()
        return
    files = LogFiles(tmp_path / "logs")
    yield files
    files.close()


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[], LmdbStore]]:
    """Opens the same store, again and again."""
    opened: list[LmdbStore] = []

    def start() -> LmdbStore:
        if opened:
            opened[-1].close()
        opened.append(LmdbStore(tmp_path / "data", map_bytes=16 * limits.MIB))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


def test_entries_are_read_as_they_were_written(logs: LogStore) -> None:
    """Entries of several logs stand where they were put, whole, in one write or many."""
    other = ObjectId(0xFF34)
    first, second, third = entries(b"one", b"", b"three" * 1000)
    logs.write([first, LogFrame(other, 0, b"else"), second])
    logs.write([third])
    whole = b"".join(encode_frame(entry) for entry in (first, second, third))
    assert logs.read(LOG, 0, 1 << 20) == whole
    assert logs.read(LOG, second.position, HEAD) == encode_frame(second)
    assert logs.read(other, 0, 100) == encode_frame(LogFrame(other, 0, b"else"))
    assert logs.read(ObjectId(7), 0, 100) == b""


def test_an_entry_written_again_takes_the_place_of_what_failed(logs: LogStore) -> None:
    """What was never acknowledged is written over by the next entry at that position."""
    first, _ = entries(b"one", b"never acknowledged")
    logs.write(entries(b"one", b"never acknowledged"))
    two = LogFrame(LOG, HEAD + 3, b"two")
    logs.write([two])
    assert logs.read(LOG, 0, 2 * HEAD + 6) == encode_frame(first) + encode_frame(two)


def test_what_is_removed_is_gone(logs: LogStore) -> None:
    """A removed log has no bytes, and one that is not there is removed without a word."""
    logs.write(entries(b"one"))
    logs.remove([LOG, ObjectId(99)])
    assert logs.read(LOG, 0, 100) == b""


def test_only_whole_entries_count() -> None:
    """Of bytes that end within an entry those of the whole ones are told; where none begins is refused."""
    data = b"".join(encode_frame(entry) for entry in entries(b"one", b"three"))
    assert whole_entries(LOG, 0, data) == len(data)
    assert whole_entries(LOG, 0, data[:-1]) == HEAD + 3
    assert whole_entries(LOG, 0, b"") == 0
    with pytest.raises(DamagedError, match="position 1 "):
        whole_entries(LOG, 1, data[1:])


@pytest.mark.parametrize("place", [0, 5, HEAD, HEAD + 2])
def test_every_byte_of_an_entry_is_checked(place: int) -> None:
    """A flipped bit anywhere in an entry, and the entry of another log or position, is no sound entry."""
    (entry,) = entries(b"one")
    data = bytearray(encode_frame(entry))
    data[place] ^= 0x40
    with pytest.raises(DamagedError):
        whole_entries(LOG, 0, bytes(data))
    for target, position in ((ObjectId(5), 0), (LOG, 8)):
        with pytest.raises(DamagedError):
            whole_entries(target, position, encode_frame(entry))


def test_more_logs_than_open_files(tmp_path: Path) -> None:
    """The files kept open are bounded, and a log whose file was closed is written and read as any."""
    logs = LogFiles(tmp_path / "logs")
    count = limits.LOG_FILES_OPEN_MAX + 5
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        for number in range(count):
            logs.write([LogFrame(ObjectId(number), 0, b"%d" % number)])
            assert logs.read(ObjectId(number), HEAD, 10) == b"%d" % number
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2 * limits.LOG_FILES_OPEN_MAX
    logs.close()


def test_the_next_start_cuts_off_what_was_not_acknowledged(open_store: Callable[[], LmdbStore]) -> None:
    """Behind the length that a row tells nothing stays: torn tails, whole entries, and logs without a row."""
    store = open_store()
    list(store.recover())
    store.logs.write(entries(b"one", b"two"))
    store.apply([Put(record(LOG, HEAD + 3))])
    store.logs.write([LogFrame(ObjectId(9), 0, b"nobody's")])
    again = open_store()
    assert [recovered.size for recovered in again.recover()] == [HEAD + 3]
    assert again.logs.size(LOG) == HEAD + 3
    assert again.logs.size(ObjectId(9)) == 0
    assert not again.damaged


def test_a_log_that_is_too_short_is_told(open_store: Callable[[], LmdbStore]) -> None:
    """A file that lost acknowledged bytes is damage, and what is left is not touched."""
    store = open_store()
    list(store.recover())
    store.logs.write(entries(b"one", b"two"))
    store.apply([Put(record(LOG, 2 * HEAD + 6))])
    os.truncate(store.logs.path(LOG), HEAD + 3)
    again = open_store()
    list(again.recover())
    (told,) = again.damaged
    assert f"a log file of {HEAD + 3} bytes" in told
    assert again.logs.size(LOG) == HEAD + 3


def test_a_dropped_log_has_no_file(open_store: Callable[[], LmdbStore]) -> None:
    """With its row a log's file goes."""
    store = open_store()
    list(store.recover())
    store.logs.write(entries(b"one"))
    store.apply([Put(record(LOG, HEAD + 3))])
    assert store.logs.path(LOG).exists()
    store.apply([Drop(LOG)])
    assert not store.logs.path(LOG).exists()


def test_the_frozen_bytes_of_an_entry() -> None:
    """An entry has the bytes that docs/formats.md describes, for good."""
    assert encode_frame(LogFrame(LOG, 15, b"entry")).hex() == "000000054f0a72b1673a4798656e747279"
