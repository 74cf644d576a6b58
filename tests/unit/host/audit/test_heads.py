"""Signed heads of an audit log: their line, those that are kept, and the comparison with a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.core.effects import Audit
from dios.errors import ProtocolError
from dios.host.audit import signing
from dios.host.audit.heads import (
    AuditHead,
    LogDigests,
    PublishedHead,
    append_head,
    compare_heads,
    parse_head,
    read_heads,
    read_last_head,
    with_head,
    write_heads,
)
from dios.host.audit.log import (
    HEADER,
    LENGTH,
    AuditLog,
    chained,
    raw_records,
    segments,
    unpack_header,
)
from dios.host.audit.reader import digests_after, verify

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
LINE = (
    "dios-audit-head-1 2a 1 3 9 0909090909090909090909090909090909090909090909090909090909090909 1000 "
    "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8 "
    "71183ef5760d9f54519a74fbb0ac3850c057490cac8a399ada3b1c3657c9d94d"
    "510a9ca050cb5fdac7185048e826d0505e515ae6381b65b2963de20749185405"
)


def head(records: int, *, era: int = 0, since: int = 0, digest: bytes | None = None) -> AuditHead:
    """A head of a log of this number of records."""
    unsigned = AuditHead(42, era, since, records, digest or bytes([records % 256]) * 32, 1000, b"", b"")
    return signing.sign(unsigned, KEY)


def kept(*heads: AuditHead) -> list[PublishedHead]:
    """The heads as another node has kept them."""
    return [PublishedHead(published, "kept by n2") for published in heads]


def test_the_line_of_a_head_is_frozen() -> None:
    """A head is a line of text that never changes its form; it comes back equal, and its signature holds."""
    published = head(9, era=1, since=3)
    assert published.line == LINE
    assert parse_head(published.line) == published
    assert signing.is_genuine(published)


@pytest.mark.parametrize("field", ["node", "era", "since", "records", "time_ns"])
def test_each_number_of_a_head_is_signed(field: str) -> None:
    """A head with another number is not genuine."""
    published = head(9, era=1, since=3)
    assert not signing.is_genuine(published._replace(**{field: getattr(published, field) + 1}))
    assert not signing.is_genuine(published._replace(digest=bytes(32)))
    assert not signing.is_genuine(published._replace(key=bytes(32)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dios-audit-head-1", "dios-audit-head-2"),
        (" 2a 1 3 9 ", " 2a 1 3 09 "),
        (" 2a 1 3 9 ", " 2a 1 10 9 "),
        (" 2a 1 3 9 ", " 2a 1 0 0 "),
        (" 2a 1 3 9 ", " 2a 1 3 9223372036854775808 "),
        (" 2a 1 3 9 ", " 2A 1 3 9 "),
        (" 2a 1 3 9 ", " 2a 1 3 ٩ "),
        (" 2a 1 3 9 ", "  2a 1 3 9 "),
        (" 1000 ", " 1000\n "),
    ],
)
def test_another_line_is_no_head(old: str, new: str) -> None:
    """A line that a node cannot have written is refused, also one with the same meaning."""
    line = head(9, era=1, since=3).line
    assert old in line
    with pytest.raises(ProtocolError):
        parse_head(line.replace(old, new))


def test_a_file_of_heads_loses_nothing_but_what_is_no_head(tmp_path: Path) -> None:
    """Heads come back from a file, also one after a torn line, and rubbish, however long, is counted."""
    path = tmp_path / "heads" / "own"
    assert read_heads(path).heads == ()
    write_heads(path, [head(1), head(2)])
    append_head(path, head(3))
    with path.open("ab") as file:
        file.write(b"rubbish\n" + bytes(2000) + b"\n" + head(8).line[:300].encode())
    append_head(path, head(4))
    stored = read_heads(path)
    assert [published.records for published in stored.heads] == [1, 2, 3, 4]
    assert stored.damaged
    assert stored.newest == head(4)
    assert path.stat().st_mode & 0o077 == 0
    assert read_last_head(path).heads == (head(4),)


def test_a_pipe_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    """A named pipe without a reader is an error at once, and has no heads."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        append_head(tmp_path / "pipe", head(1))
    assert read_last_head(tmp_path / "pipe").heads == read_heads(tmp_path / "pipe").heads == ()


@given(st.lists(st.integers(1, 10**9), min_size=100, max_size=200, unique=True))
def test_the_heads_that_stay_are_close_together_near_the_end(counts: list[int]) -> None:
    """A bounded number of heads stays, with the oldest and newest, and more of them for newer records."""
    stored: tuple[AuditHead, ...] = ()
    for records in sorted(counts):
        stored = with_head(stored, AuditHead(1, 0, 0, records, b"", 0, b"", b""))
    numbers = [published.records for published in stored]
    assert len(numbers) == limits.AUDIT_HEADS_KEPT_MAX
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (min(counts), max(counts))


def test_old_heads_become_rare_and_new_ones_stay() -> None:
    """Of a thousand equally spaced heads half of those that stay are from the last fifth."""
    stored: tuple[AuditHead, ...] = ()
    for records in range(1, 1001):
        stored = with_head(stored, AuditHead(1, 0, 0, records, b"", 0, b"", b""))
    assert sum(published.records > 800 for published in stored) >= limits.AUDIT_HEADS_KEPT_MAX // 2


def test_the_last_head_of_each_era_stays() -> None:
    """Neither many heads of later eras nor of the same one push out the last head of an era."""
    stored: tuple[AuditHead, ...] = ()
    eras = [0] * 40 + [1] * 3 + [2] * 200
    for records, era in enumerate(eras, 1):
        stored = with_head(stored, AuditHead(1, era, 0, records, b"", 0, b"", b""))
    assert len(stored) == limits.AUDIT_HEADS_KEPT_MAX
    assert {40, 43, 243} <= {published.records for published in stored}
    for era in range(3, 300):
        stored = with_head(stored, AuditHead(1, era, 0, 500 + era, b"", 0, b"", b""))
    assert len(stored) == limits.AUDIT_HEADS_KEPT_MAX
    assert stored[-1].era == 299


def test_a_part_of_very_many_heads_has_the_last_of_each_era(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long file a bounded number of heads is read, with the last of each of few eras."""
    monkeypatch.setattr(limits, "AUDIT_HEADS_READ_MAX", 20)
    eras = [0] * 30 + [1] * 2 + [2] * 61
    write_heads(tmp_path / "few", [head(records, era=era) for records, era in enumerate(eras, 1)])
    few = read_heads(tmp_path / "few").heads
    assert len(few) <= 20
    assert {30, 32, 93} <= {published.records for published in few}
    write_heads(tmp_path / "many", [head(records, era=records) for records in range(1, 100)])
    many = read_heads(tmp_path / "many").heads
    assert len(many) <= 20
    assert many[-1] == head(99, era=99)


def filled(folder: Path, count: int) -> tuple[list[AuditHead], AuditLog]:
    """A log of this number of records in small segments, and the head after each record."""
    log, heads = AuditLog(folder, segment_bytes=700), []
    for number in range(1, count + 1):
        log.append(Audit(number, "run", "ok", "uid:0", "t", str(number), "d" * 50))
        log.flush()
        heads.append(head(number, digest=bytes.fromhex(log.head)))
    return heads, log


def rewrite(folder: Path, drop: range) -> None:
    """Remove records, and compute the chain of the last segment anew, as its attacker does."""
    path = segments(folder)[-1]
    raw = path.read_bytes()
    index, digest = unpack_header(raw)[2:]
    changed = bytearray(raw[: HEADER.size])
    for number, (_, body, _) in enumerate(raw_records(raw, HEADER.size), index):
        if number not in drop:
            digest = chained(digest, body)
            changed += LENGTH.pack(len(body)) + body + digest
    path.write_bytes(changed)


def test_a_chain_computed_anew_differs_from_the_first_head_after_it(tmp_path: Path) -> None:
    """Verify names the place where the head was kept, and the first record that may be another."""
    heads, log = filled(tmp_path, 30)
    log.close()
    assert verify(tmp_path, published=kept(*heads)).heads == 30
    index = unpack_header(segments(tmp_path)[-1].read_bytes())[2]
    rewrite(tmp_path, range(index + 1, index + 2))
    assert verify(tmp_path).ok
    verdict = verify(tmp_path, published=kept(*heads))
    assert not verdict.ok
    assert verdict.index == verdict.heads == index + 1
    assert f"record {index + 1} is not the one" in verdict.problem
    assert "kept by n2" in verdict.problem


def test_a_log_that_ends_before_a_head_has_lost_records(tmp_path: Path) -> None:
    """Whole records cut off the end are noticed, and so is an empty log."""
    heads, log = filled(tmp_path, 30)
    log.close()
    index = unpack_header(segments(tmp_path)[-1].read_bytes())[2]
    rewrite(tmp_path, range(index, 30))
    verdict = verify(tmp_path, published=kept(heads[-1], heads[3]))
    assert not verdict.ok
    assert verdict.index == 4
    assert f"the log has {index} records" in verdict.problem
    for path in segments(tmp_path):
        path.unlink()
    assert not verify(tmp_path, published=kept(heads[0])).ok


def test_heads_of_removed_records_say_nothing(tmp_path: Path) -> None:
    """Heads of segments that the node removed are passed over; the one at the boundary still counts."""
    heads, log = filled(tmp_path, 30)
    number = unpack_header(segments(tmp_path)[2].read_bytes())[2]
    assert compare_heads(kept(*heads[:-1]), LogDigests(30, 30, {})).difference is None
    log.close()
    digests = digests_after(tmp_path, range(31))
    assert digests.digests[number] == heads[number - 1].digest
    for path in segments(tmp_path)[:2]:
        path.unlink()
    compared = compare_heads(kept(*heads), digests_after(tmp_path, range(31)))
    assert compared.difference is None
    assert compared.equal == 31 - number


def test_digests_are_those_of_the_chain(tmp_path: Path) -> None:
    """The digests after any number of records are those that the writer had, in whatever segment."""
    heads, log = filled(tmp_path, 30)
    log.close()
    for published in heads:
        digests = digests_after(tmp_path, {published.records})
        assert digests.records == 30
        assert digests.digests[published.records] == published.digest


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("damage", [b"", b"DIOSAUD\0", bytes(100)])
def test_a_segment_with_a_damaged_header_has_no_digests(tmp_path: Path, place: int, damage: bytes) -> None:
    """Heads within such a segment differ from the log; those of the other segments are compared."""
    heads, log = filled(tmp_path, 30)
    log.close()
    paths = segments(tmp_path)
    first = unpack_header(paths[place].read_bytes())[2]
    end = unpack_header(paths[place + 1].read_bytes())[2]
    paths[place].write_bytes(damage)
    digests = digests_after(tmp_path, range(31))
    assert (digests.first, digests.records) == (0, 30)
    outside = [published for published in heads if not first < published.records < end]
    assert compare_heads(kept(*outside), digests).difference is None
    for published in heads[first : end - 1]:
        assert compare_heads(kept(published), digests).difference is not None


def test_an_accepted_loss_makes_the_heads_before_it_void() -> None:
    """Heads of an earlier era count up to the records that the later one keeps, and no further."""
    log = LogDigests(0, 12, {number: bytes([number]) * 32 for number in range(13)})
    before = kept(head(5), head(9, digest=bytes(32)))
    compared = compare_heads(before, log)
    assert compared.difference == before[1]
    assert (compared.equal, compared.agreed) == (1, 5)
    after = kept(head(12, era=1, since=5))
    compared = compare_heads([*before, *after], log)
    assert compared.difference is None
    assert compared.void == (before[1],)
    assert compare_heads([*kept(head(4, digest=bytes(32))), *after], log).difference is not None
