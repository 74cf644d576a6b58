"""The log within its bounds: old segments go, a record states it, and the rest is still proven."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dios import limits
from dios.core.effects import Audit
from dios.errors import NoSpaceError
from dios.host.audit.log import HEADER, MAGIC, AuditLog, segment_path, segments
from dios.host.audit.reader import AuditReader, read, verify

SEGMENT = 4_096
MOST = 4 * SEGMENT
DAY_MS = 24 * 3600 * 1000


def bounded(folder: Path, *, bytes_max: int = MOST, age_ms: int = 0) -> AuditLog:
    """A log of small segments."""
    return AuditLog(folder, segment_bytes=SEGMENT, bytes_max=bytes_max, age_ms_max=age_ms)


def grow(log: AuditLog, count: int, *, now: int = 1, keep: bool = True) -> list[str]:
    """Append records, and keep the log within its bounds as the node does; return the head after each."""
    heads = []
    for number in range(count):
        log.append(Audit(now, "create", "ok", "uid:0", "t", str(number), "d" * 200))
        log.flush()
        heads.append(log.head)
        if keep:
            planned = log.plan_removal(now)
            log.sync()
            log.remove(planned)
    return heads


def size(folder: Path) -> int:
    """The bytes of all segments."""
    return sum(path.stat().st_size for path in segments(folder))


def test_the_log_stays_within_its_size_and_is_whole(tmp_path: Path) -> None:
    """However much is written, the folder keeps within the bound, and verify says where it begins."""
    log = bounded(tmp_path)
    for _ in range(20):
        grow(log, 50)
        assert size(tmp_path) <= MOST
        assert log.size == size(tmp_path)
    log.close()
    verdict = verify(tmp_path)
    assert verdict.ok, verdict
    entries = list(read(tmp_path))
    assert verdict.first == entries[0].index > 0
    assert verdict.records == entries[-1].index + 1
    stated = [entry.record for entry in entries if entry.record.outcome == "removed"]
    assert int(stated[-1].subject) == verdict.first


def test_old_segments_go_by_age(tmp_path: Path) -> None:
    """Records of a time before the age are removed once the segment that has them is over."""
    log = bounded(tmp_path, bytes_max=0, age_ms=DAY_MS)
    grow(log, 10)
    now = segment_path(tmp_path, 1).stat().st_mtime_ns
    grow(log, 10, now=now)
    later = now + 3 * DAY_MS * 1_000_000
    grow(log, 1, now=later)
    log.close()
    verdict = verify(tmp_path)
    assert verdict.ok
    assert verdict.first > 0
    assert next(entry.record.now for entry in read(tmp_path)) == later


def test_nothing_is_removed_without_a_bound(tmp_path: Path) -> None:
    """A log without bounds keeps all."""
    log = bounded(tmp_path, bytes_max=0)
    grow(log, 300)
    log.close()
    assert verify(tmp_path).first == 0


def test_a_log_that_was_cut_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Size, bounds and chain are continued by the next writer."""
    for _ in range(5):
        log = bounded(tmp_path)
        assert log.size == size(tmp_path)
        grow(log, 60)
        log.close()
        assert size(tmp_path) <= MOST
        assert verify(tmp_path).ok


def test_a_removal_that_a_crash_interrupted_is_no_damage(tmp_path: Path) -> None:
    """The record comes first: any number of its segments may be gone, from the oldest on."""
    log = bounded(tmp_path, bytes_max=MOST)
    grow(log, 150, keep=False)
    planned = log.plan_removal(1)
    log.close()
    assert len(planned) > 2
    for path in planned:
        assert verify(tmp_path).ok, path
        path.unlink()
    verdict = verify(tmp_path)
    assert verdict.ok
    assert verdict.first > 0


def test_a_segment_more_than_stated_is_noticed(tmp_path: Path) -> None:
    """Who removes the oldest segment that the node kept is found out, at its place."""
    log = bounded(tmp_path)
    grow(log, 200)
    log.close()
    segments(tmp_path)[0].unlink()
    verdict = verify(tmp_path)
    assert not verdict.ok
    assert "no record of the node says so" in verdict.problem


def test_the_first_segment_of_a_log_that_was_never_cut_is_missed(tmp_path: Path) -> None:
    """Without any statement, a log begins at segment 1."""
    log = bounded(tmp_path, bytes_max=0)
    grow(log, 100)
    log.close()
    segments(tmp_path)[0].unlink()
    assert not verify(tmp_path).ok


def _renumber(data: bytearray) -> None:
    data[12:16] = (int.from_bytes(data[12:16], "little") + 1).to_bytes(4, "little")


def _begin_later(data: bytearray) -> None:
    data[16:24] = (int.from_bytes(data[16:24], "little") + 1).to_bytes(8, "little")


def _continue_another(data: bytearray) -> None:
    data[24] ^= 1


def _change_a_record(data: bytearray) -> None:
    data[HEADER.size + 20] ^= 1


@pytest.mark.parametrize("change", [_renumber, _begin_later, _continue_another, _change_a_record])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_what_remains_is_protected_as_before(
    tmp_path: Path, change: Callable[[bytearray], None], place: int
) -> None:
    """A changed header or record of the oldest segment, as of every other, is noticed."""
    log = bounded(tmp_path)
    grow(log, 200)
    log.close()
    path = segments(tmp_path)[place]
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    assert not verify(tmp_path).ok


def test_an_anchor_of_removed_records_is_explained(tmp_path: Path) -> None:
    """A head of before that is gone is no proof; one that the statement names, or that is kept, is."""
    log = bounded(tmp_path)
    heads = grow(log, 200)
    log.close()
    verdict = verify(tmp_path, anchor=heads[3])
    assert not verdict.ok
    assert f"before record {verdict.first}" in verdict.problem
    assert verify(tmp_path, anchor=heads[-1]).ok
    stated = [entry.record for entry in read(tmp_path) if entry.record.outcome == "removed"]
    assert verify(tmp_path, anchor=stated[-1].detail[:64]).ok


def test_nothing_is_removed_if_the_record_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the statement waits, and with it the removal."""
    log = bounded(tmp_path)
    grow(log, 150, keep=False)
    count = len(segments(tmp_path))

    def full(_: int, __: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dios.host.audit.log.os.write", full)
    with pytest.raises(NoSpaceError):
        log.plan_removal(1)
    monkeypatch.undo()
    assert len(segments(tmp_path)) == count
    log.close()
    assert verify(tmp_path).first == 0


def test_a_reader_that_follows_skips_what_was_removed(tmp_path: Path) -> None:
    """A slow follower goes on with the oldest record that is left."""
    log = bounded(tmp_path)
    grow(log, 5)
    reader = AuditReader(tmp_path)
    assert len(list(reader.poll())) == 5
    grow(log, 300)
    followed = [entry.index for entry in reader.poll()]
    assert followed == [entry.index for entry in read(tmp_path)]
    assert followed[0] > 5
    log.close()


def test_a_log_of_version_1_is_read_and_continued(tmp_path: Path) -> None:
    """Its last segment stays as it is, and records with a count go to a new one."""
    log = AuditLog(tmp_path)
    log.append(Audit(1, "run", "ok", "uid:0", "t", "s", ""))
    log.close()
    path = segment_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    assert data.startswith(MAGIC)
    data[8:12] = (1).to_bytes(4, "little")
    path.write_bytes(data)
    again = AuditLog(tmp_path)
    again.append(Audit(2, "read", "denied", "uid:0", "t", "s", ""), 5, 1)
    again.close()
    assert path.read_bytes() == data
    assert len(segments(tmp_path)) == 2
    assert verify(tmp_path).ok
    records = [entry.record for entry in read(tmp_path)]
    assert [(record.count, record.first) for record in records] == [(1, 0), (5, 1)]


def test_the_bounds_of_the_settings_hold_several_segments() -> None:
    """A log may never be smaller than some segments, because only whole ones are removed."""
    assert limits.AUDIT_BYTES_MIN >= 4 * limits.AUDIT_SEGMENT_BYTES
