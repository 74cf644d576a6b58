"""Archives of changed files: what is accepted from a session, and the union of two of them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from dios.errors import ProtocolError
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.images.change_archives import ChangeArchive, ReceivedChanges, merge
from dios.wire.environments import LENGTH, name_for
from dios.wire.images import MAGIC_OF_CHANGES, ChangeEntry, ChangeManifest, EntryKind, encode_image

BASE = "0123456789" * 4
FOLDER, FILE, REMOVED, REPLACED = (
    EntryKind.FOLDER,
    EntryKind.FILE,
    EntryKind.REMOVED,
    EntryKind.REPLACED_FOLDER,
)
HARD_LINK = EntryKind.HARD_LINK


def sent(*entries: ChangeEntry, contents: bytes = b"") -> bytes:
    """The bytes that a session sends."""
    body = encode_image(ChangeManifest("0" * 40, entries))
    return LENGTH.pack(len(body)) + body + contents


def archive_at(path: Path, *entries: ChangeEntry, contents: bytes = b"") -> ChangeArchive:
    """An archive of changes."""
    body = encode_image(ChangeManifest(BASE, entries))
    path.write_bytes(MAGIC_OF_CHANGES + LENGTH.pack(len(body)) + body + contents)
    return ChangeArchive(EnvironmentArchive(name_for(BASE), path))


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_changes_arrive_in_any_pieces(step: int, tmp_path: Path) -> None:
    """The archive has the digest of its image, and the bytes of the files."""
    data = sent(ChangeEntry("a", FILE, 0o644, 3), ChangeEntry("b", FILE, 0o644, 2), contents=b"abcde")
    path = tmp_path / "archive"
    with path.open("wb") as file:
        received = ReceivedChanges(file, BASE)
        for start in range(0, len(data), step):
            received.add(memoryview(data)[start : start + step])
        digest = received.end()
    archive = ChangeArchive(EnvironmentArchive(name_for(digest), path))
    assert archive.manifest.base == BASE
    assert b"".join(archive.parts(0, 5)) == b"abcde"


@pytest.mark.parametrize(
    "data",
    [
        LENGTH.pack(2**31),
        LENGTH.pack(1) + b"x",
        sent() + b"x",
        sent(ChangeEntry("a", FILE, 0, 1), contents=b"xy"),
        LENGTH.pack(3) + b"abcdef",
    ],
)
def test_what_no_session_sends_ends_it(data: bytes) -> None:
    """A list that is too long, or none, and more bytes than it announces."""
    with pytest.raises(ProtocolError):
        ReceivedChanges(io.BytesIO(), BASE).add(memoryview(data))


@pytest.mark.parametrize("data", [b"", sent()[:-1], sent(ChangeEntry("a", FILE, 0, 2), contents=b"x")])
def test_changes_that_are_cut_off_do_not_count(data: bytes) -> None:
    """The session has answered, and bytes are missing."""
    received = ReceivedChanges(io.BytesIO(), BASE)
    received.add(memoryview(data))
    with pytest.raises(ProtocolError, match="fewer"):
        received.end()


Row = tuple[str, EntryKind, bytes]


@pytest.mark.parametrize(
    ("lower", "upper", "union"),
    [
        pytest.param(
            [("a", FILE, b"one")], [("a", FILE, b"two")], [("a", FILE, b"two")], id="a file is replaced"
        ),
        pytest.param([("a", FILE, b"x")], [("a", REMOVED, b"")], [("a", REMOVED, b"")], id="removed"),
        pytest.param([("a", REMOVED, b"")], [("a", FILE, b"x")], [("a", FILE, b"x")], id="made again"),
        pytest.param(
            [("d", FOLDER, b""), ("d/a", FILE, b"x")],
            [("d", FOLDER, b""), ("d/b", FILE, b"y")],
            [("d", FOLDER, b""), ("d/a", FILE, b"x"), ("d/b", FILE, b"y")],
            id="folders are united",
        ),
        pytest.param(
            [("d", FOLDER, b""), ("d/a", FILE, b"x")],
            [("d", REPLACED, b""), ("d/b", FILE, b"y")],
            [("d", REPLACED, b""), ("d/b", FILE, b"y")],
            id="a folder hides the lower one",
        ),
        pytest.param(
            [("d", REPLACED, b""), ("d/a", FILE, b"x")],
            [("d", FOLDER, b"")],
            [("d", REPLACED, b""), ("d/a", FILE, b"x")],
            id="a folder that hides the image does so for good",
        ),
        pytest.param(
            [("d", FILE, b"x")], [("d", FOLDER, b"")], [("d", REPLACED, b"")], id="a folder for a file"
        ),
        pytest.param(
            [("d", REMOVED, b"")], [("d", FOLDER, b"")], [("d", REPLACED, b"")], id="a folder made again"
        ),
        pytest.param(
            [("d", FOLDER, b""), ("d/a", FILE, b"x")],
            [("d", REMOVED, b"")],
            [("d", REMOVED, b"")],
            id="a folder is removed with its files",
        ),
        pytest.param(
            [("a", FILE, b"x"), ("b", HARD_LINK, b"a")],
            [("a", REMOVED, b"")],
            [("a", REMOVED, b""), ("b", FILE, b"x")],
            id="a link stays when its first path is removed",
        ),
        pytest.param(
            [("a", FILE, b""), ("b", FILE, b"")],
            [],
            [("a", FILE, b""), ("b", FILE, b"")],
            id="two empty files are no links",
        ),
        pytest.param(
            [("b", FILE, b"x")],
            [("c", FILE, b"y"), ("a", HARD_LINK, b"c")],
            [("a", FILE, b"y"), ("b", FILE, b"x"), ("c", HARD_LINK, b"a")],
            id="links stay links",
        ),
    ],
)
def test_the_union_of_two_changes(
    tmp_path: Path, lower: list[Row], upper: list[Row], union: list[Row]
) -> None:
    """It is what the files show after both of them."""

    def archive(name: str, rows: list[Row]) -> ChangeArchive:
        entries = [entry_of(*row) for row in rows]
        contents = b"".join(data for _, kind, data in rows if kind is FILE)
        return archive_at(tmp_path / name, *entries, contents=contents)

    target = tmp_path / "union"
    digest = merge(archive("lower", lower), archive("upper", upper), target)
    merged = ChangeArchive(EnvironmentArchive(name_for(digest), target))
    assert merged.manifest.base == BASE
    assert rows_of(merged) == union


def entry_of(path: str, kind: EntryKind, data: bytes) -> ChangeEntry:
    """An entry; the data of a hard link are its target."""
    if kind is HARD_LINK:
        return ChangeEntry(path, kind, 0, 0, data.decode())
    return ChangeEntry(path, kind, 0o644 if kind is FILE else 0, len(data))


def rows_of(archive: ChangeArchive) -> list[Row]:
    """The entries of an archive, with their data."""
    rows: list[Row] = []
    offset = 0
    read: Callable[[int], bytes] = lambda size: b"".join(archive.parts(offset, size))  # noqa: E731 - short
    for entry in archive.manifest.entries:
        rows.append((entry.path, entry.kind, entry.target.encode() or read(entry.size)))
        offset += entry.size
    return rows
