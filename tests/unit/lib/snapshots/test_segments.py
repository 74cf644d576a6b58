"""The pieces of archives: similar archives share most of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

from dios.errors import InvalidError
from dios.lib.snapshots import records
from dios.lib.snapshots.records import (
    SEGMENT_BYTES_MAX,
    Segment,
    SnapshotRecord,
    StoredArchive,
    decode_record,
    encode_record,
)
from dios.lib.snapshots.segments import PIECE_BYTES, segments_of, sizes_of
from dios.wire.environments import LENGTH
from dios.wire.images import MAGIC_OF_CHANGES, ChangeEntry, ChangeManifest, EntryKind, encode_image

BASE = "0123456789" * 4
RECORD = SnapshotRecord(BASE, StoredArchive(1, BASE[::-1], (Segment(bytes(range(32)), 7),)))
FROZEN = (
    "44494f53534e503192d928303132333435363738393031323334353637383930313233343536373839303132333435"
    "363738399301d928393837363534333231303938373635343332313039383736353433323130393837363534333231"
    "309192c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f07"
)


def file(path: str, size: int) -> ChangeEntry:
    """An entry of a file."""
    return ChangeEntry(path, EntryKind.FILE, 0o644, size)


def data_of(number: int, size: int) -> bytes:
    """Bytes that are those of no other number."""
    return blake3(str(number).encode()).digest(length=size)


def archive_at(path: Path, files: dict[str, bytes]) -> Path:
    """An archive with these files."""
    entries = tuple(file(name, len(data)) for name, data in sorted(files.items()))
    body = encode_image(ChangeManifest(BASE, entries))
    contents = b"".join(data for _, data in sorted(files.items()))
    path.write_bytes(MAGIC_OF_CHANGES + LENGTH.pack(len(body)) + body + contents)
    return path


def test_the_bytes_of_a_record_never_change() -> None:
    """They are those that were frozen."""
    assert encode_record(RECORD).hex() == FROZEN
    assert decode_record(encode_record(RECORD), SnapshotRecord) == RECORD


@pytest.mark.parametrize(
    "data", [b"", b"DIOSSNP1", b"DIOSSNP2" + encode_record(RECORD)[8:], encode_record(RECORD) + b"x"]
)
def test_another_file_is_no_record(data: bytes) -> None:
    """The error names the file's kind."""
    with pytest.raises(InvalidError, match="no snapshot of this release"):
        decode_record(data, SnapshotRecord)


def test_a_record_over_the_bound_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader would refuse it."""
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 10)
    with pytest.raises(InvalidError, match="too many pieces"):
        encode_record(RECORD)


def test_the_pieces_are_the_archive(tmp_path: Path) -> None:
    """Their sizes are those of its bytes, and none is empty or over the bound."""
    files = {f"f{number}": data_of(number, number * 7) for number in range(300)}
    path = archive_at(tmp_path / "archive", files)
    stored = segments_of(path, BASE)
    assert stored.size == path.stat().st_size
    assert 3 < len(stored.segments) < 30


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([], []),
        ([0, 0], []),
        ([PIECE_BYTES + 1], [PIECE_BYTES, 1]),
        ([1, PIECE_BYTES + 1], [1, PIECE_BYTES, 1]),
        ([PIECE_BYTES] * 3, [SEGMENT_BYTES_MAX, PIECE_BYTES]),
    ],
)
def test_large_files_have_pieces_of_their_own(sizes: list[int], pieces: list[int]) -> None:
    """Small ones are together up to the bound."""
    # None of these paths ends a piece by itself.
    assert list(sizes_of([file(f"path{number}", size) for number, size in enumerate(sizes)])) == pieces


def test_a_file_more_changes_few_pieces(tmp_path: Path) -> None:
    """Those of the list of files, and the one in which it is."""
    files = {f"f{number}": data_of(number, 1_000) for number in range(2_000)}
    before = set(segments_of(archive_at(tmp_path / "before", files), BASE).segments)
    after = segments_of(archive_at(tmp_path / "after", {**files, "f1000-more": b"more"}), BASE)
    assert len(before) > 10
    assert len(set(after.segments) - before) == 2
