from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from dios import limits
from dios.core.effects import Audit
from dios.errors import DamagedError
from dios.host.audit.log import GENESIS, AuditLog, segments
from dios.host.audit.reader import AuditReader, read, verify

HEADER_BYTES = 56


def record(number: int, detail: str = "") -> Audit:
    """A record that differs from every other by ``number``."""
    return Audit(1_000 + number, "create", "ok", "uid:1000", "00aa11bb22cc", f"{number:012x}", detail)


def written(folder: Path, count: int = 10, segment_bytes: int = limits.AUDIT_SEGMENT_BYTES) -> str:
    """A closed log of ``count`` records in ``folder``; returns its head."""
    log = AuditLog(folder, segment_bytes=segment_bytes)
    for number in range(count):
        log.append(record(number))
        log.flush()
    log.close()
    return log.head


def boundaries(data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Start and end of each record of a segment."""
    start = HEADER_BYTES
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "little") + 32
        yield start, end
        start = end


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """The one segment of a log of ten records."""
    written(tmp_path)
    (path,) = segments(tmp_path)
    return path


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    """Reading gives every record whole, in order, with its index; since skips."""
    written(tmp_path, 5)
    entries = list(read(tmp_path))
    assert [entry.index for entry in entries] == [0, 1, 2, 3, 4]
    assert [entry.record.subject for entry in entries] == [f"{number:012x}" for number in range(5)]
    assert [entry.index for entry in read(tmp_path, since=3)] == [3, 4]


def test_an_untouched_log_verifies_and_knows_its_head(tmp_path: Path) -> None:
    """The verdict on an untouched log is good and names the head that the writer had."""
    head = written(tmp_path, 7)
    verdict = verify(tmp_path)
    assert (verdict.ok, verdict.records, verdict.head, verdict.torn_bytes) == (True, 7, head, 0)


def test_an_empty_log_verifies(tmp_path: Path) -> None:
    """A log with no records, and a folder with no log, are whole."""
    assert verify(tmp_path / "none").ok
    AuditLog(tmp_path / "log").close()
    assert verify(tmp_path / "log").head == GENESIS.hex()


def test_the_stored_bytes_never_change(tmp_path: Path) -> None:
    """The frozen vector of docs/formats.md: one record, byte for byte."""
    log = AuditLog(tmp_path)
    log.append(Audit(1, "run", "ok", "uid:0", "t", "s", ""))
    log.close()
    body = bytes.fromhex("9701a372756ea26f6ba57569643a30a174a173a0")
    digest = blake3(GENESIS + body).digest()
    header = b"DIOSAUD\0" + bytes.fromhex("02000000010000000000000000000000") + GENESIS
    data = segments(tmp_path)[0].read_bytes()
    assert data == header + len(body).to_bytes(4, "little") + body + digest
    assert GENESIS.hex() == blake3(b"dios audit log 1").hexdigest()
    page = (Path(__file__).resolve().parents[4] / "docs" / "formats.md").read_text()
    assert data[HEADER_BYTES:].hex() in "".join(page.split())


def test_every_changed_byte_is_noticed(segment: Path) -> None:
    """Whichever byte is changed, the verdict is bad, or says that the end is torn."""
    whole = segment.read_bytes()
    for position in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[position] ^= 0x40
        segment.write_bytes(changed)
        verdict = verify(segment.parent)
        assert not verdict.ok or verdict.torn_bytes, position


def test_a_changed_record_is_named(segment: Path) -> None:
    """The verdict names index, segment and byte offset of the first record that was changed."""
    data = bytearray(segment.read_bytes())
    start, end = list(boundaries(data))[4]
    data[end - 40] ^= 1
    segment.write_bytes(data)
    verdict = verify(segment.parent)
    assert (verdict.ok, verdict.index, verdict.segment, verdict.offset) == (False, 4, segment.name, start)


@pytest.mark.parametrize("how", ["delete", "insert", "reorder", "truncate"])
def test_records_cannot_be_removed_inserted_or_moved(segment: Path, how: str) -> None:
    """Taking a record out, putting one in, or exchanging two breaks the chain where it was done."""
    data = segment.read_bytes()
    marks = list(boundaries(data))
    pieces = [data[start:end] for start, end in marks]
    if how == "delete":
        del pieces[4]
    elif how == "insert":
        pieces.insert(4, pieces[2])
    elif how == "reorder":
        pieces[4], pieces[5] = pieces[5], pieces[4]
    else:
        pieces[4] = pieces[4][:-7]
    segment.write_bytes(data[:HEADER_BYTES] + b"".join(pieces))
    verdict = verify(segment.parent)
    assert (verdict.ok, verdict.index, verdict.offset) == (False, 4, marks[4][0])


def test_records_cut_off_the_end_are_noticed_with_an_anchor(segment: Path) -> None:
    """Cutting at a record's boundary leaves a whole log; a head kept elsewhere shows the loss."""
    head = verify(segment.parent).head
    data = segment.read_bytes()
    segment.write_bytes(data[: list(boundaries(data))[8][0]])
    assert verify(segment.parent).ok
    assert "cut off" in verify(segment.parent, anchor=head).problem


def test_an_old_anchor_stays_good_while_the_log_grows(tmp_path: Path) -> None:
    """The head of an earlier day is found in the longer log of a later one."""
    anchor = written(tmp_path, 3)
    written(tmp_path, 3)
    assert verify(tmp_path, anchor=anchor).ok


def test_segments_continue_each_other(tmp_path: Path) -> None:
    """A full segment is followed by a numbered one; the chain and the indices go on."""
    head = written(tmp_path, 40, segment_bytes=600)
    assert len(segments(tmp_path)) > 3
    assert (verify(tmp_path).ok, verify(tmp_path).head) == (True, head)
    assert [entry.index for entry in read(tmp_path)] == list(range(40))


@pytest.mark.parametrize("which", [0, 1, -2])
def test_a_missing_segment_is_noticed(tmp_path: Path, which: int) -> None:
    """A log from which a whole segment was taken does not verify."""
    written(tmp_path, 40, segment_bytes=600)
    segments(tmp_path)[which].unlink()
    assert not verify(tmp_path).ok


def test_a_log_goes_on_after_closing(tmp_path: Path) -> None:
    """Opening a log again continues its chain and its count."""
    written(tmp_path, 4)
    log = AuditLog(tmp_path)
    assert (log.records, log.recovered) == (4, "")
    log.append(record(4))
    log.close()
    assert verify(tmp_path).records == 5


@pytest.mark.parametrize("left", [1, 3, 5, 30, -1])
def test_a_torn_record_is_cut_off_reported_and_kept(segment: Path, left: int) -> None:
    """A record half written by a crash is set aside; the log says so and verifies again."""
    data = segment.read_bytes()
    start, end = list(boundaries(data))[-1]
    torn = data[start : start + left if left > 0 else end + left]
    segment.write_bytes(data[:start] + torn)
    assert verify(segment.parent).torn_bytes == len(torn)
    log = AuditLog(segment.parent)
    log.close()
    assert f"cut {len(torn)} bytes after record 8" in log.recovered
    assert next(segment.parent.glob("*.torn-*")).read_bytes() == torn
    assert verify(segment.parent).ok
    last = list(read(segment.parent))[-1]
    assert (last.index, last.record.outcome) == (9, "recovered")


def test_a_tail_of_zeros_is_torn(segment: Path) -> None:
    """Space that the file system gave but never filled counts as torn."""
    with segment.open("ab") as file:
        file.write(bytes(100))
    assert verify(segment.parent).torn_bytes == 100
    AuditLog(segment.parent).close()
    assert verify(segment.parent).records == 11


@pytest.mark.parametrize("size", [0, 20])
def test_a_segment_torn_in_its_header_is_begun_again(tmp_path: Path, size: int) -> None:
    """A crash while a segment was begun loses nothing."""
    written(tmp_path, 3)
    (tmp_path / "00000002.audit").write_bytes(b"DIOSAUD\0"[:size] + bytes(max(0, size - 8)))
    written(tmp_path, 3)
    assert (verify(tmp_path).ok, verify(tmp_path).records) == (True, 6)


def test_a_foreign_file_is_not_written_to(tmp_path: Path) -> None:
    """A segment with other magic bytes or a newer version is refused with what to do."""
    (tmp_path / "00000001.audit").write_bytes(b"something else entirely" * 5)
    with pytest.raises(DamagedError, match="Move this file away"):
        AuditLog(tmp_path)
    assert "magic" in verify(tmp_path).problem
    with pytest.raises(DamagedError, match="magic"):
        list(read(tmp_path))


def test_a_reader_follows_the_writer(tmp_path: Path) -> None:
    """Each poll gives what was flushed since the last, over the border of segments too."""
    log = AuditLog(tmp_path, segment_bytes=600)
    reader = AuditReader(tmp_path)
    seen: list[int] = []
    for number in range(30):
        log.append(record(number))
        if number % 4 == 3:
            log.flush()
            seen += [entry.index for entry in reader.poll()]
    log.close()
    seen += [entry.index for entry in reader.poll()]
    assert seen == list(range(30))
    assert not list(reader.poll())


def test_nothing_is_written_before_flush_and_all_after(tmp_path: Path) -> None:
    """Appending touches no file; flushing hands over everything."""
    log = AuditLog(tmp_path)
    log.append(record(0))
    assert not list(read(tmp_path))
    log.flush()
    assert len(list(read(tmp_path))) == 1
    log.close()


def test_sync_runs_beside_appends(tmp_path: Path) -> None:
    """Syncing in a thread while records are appended and segments change loses and breaks nothing."""
    log = AuditLog(tmp_path, segment_bytes=2_000)
    done = threading.Event()

    def sync() -> None:
        while not done.is_set():
            log.sync()

    thread = threading.Thread(target=sync)
    thread.start()
    for number in range(500):
        log.append(record(number))
        log.flush()
    done.set()
    thread.join()
    log.close()
    assert verify(tmp_path).records == 500


class _Rotating(list[int]):
    """The retired segments of a log, which begins a segment right after it was asked for them."""

    def __init__(self, log: AuditLog) -> None:
        super().__init__()
        self.log = log

    def __bool__(self) -> bool:
        """Return True if there were any before the log began a segment."""
        some = len(self) > 0
        self.log._begin_segment()
        return some


def test_a_segment_that_is_retired_during_a_sync_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are durable only when their own segment was synced, also if the next one begins meanwhile."""
    log = AuditLog(tmp_path)
    log.append(record(0))
    log.flush()
    synced: list[str] = []

    def noting(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr("dios.host.audit.log.os.fdatasync", noting)
    monkeypatch.setattr(log, "_retired", _Rotating(log))
    log.sync()
    assert log.durable.records == 1
    assert segments(tmp_path)[0].name in synced


def test_the_record_about_a_cut_is_not_durable_before_it_is_written(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a log opens, and its durable end is that of the records in the file."""
    segment.write_bytes(segment.read_bytes()[:-1])

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as disk:
        disk.setattr("dios.host.audit.log.os.write", full)
        log = AuditLog(segment.parent)
        log.sync()
    assert (log.records, log.durable.records) == (10, 9)
    log.close()
    assert (log.durable.records, verify(segment.parent).records) == (10, 10)


def test_an_oversized_record_is_shortened_not_lost(tmp_path: Path) -> None:
    """A record beyond the bound is kept with its texts cut."""
    log = AuditLog(tmp_path)
    log.append(record(0, "x" * (limits.AUDIT_RECORD_BYTES_MAX + 1)))
    log.close()
    assert [len(entry.record.detail) for entry in read(tmp_path)] == [1024]
    assert verify(tmp_path).ok


def test_closing_leaves_no_descriptor(tmp_path: Path) -> None:
    """A closed log holds no file open, also after changes of segment; closing twice is fine."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not walked
    log = AuditLog(tmp_path, segment_bytes=200)
    for number in range(10):
        log.append(record(number))
        log.flush()
    log.close()
    log.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - counted, not walked
