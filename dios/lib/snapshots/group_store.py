"""Snapshots in a group: stored with what the group does not have yet, read, and removed.

A removal takes pieces that no snapshot needs. While it looks for them, another program may store a snapshot
with the same pieces. So it puts them aside first, reads all snapshots again, and puts those back that one
needs; and a program that has stored a snapshot looks afterwards if all pieces are there.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

from dios.errors import DamagedError, InvalidError, TooLargeError, UnreachableError
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.group_list import BATCH_OBJECTS
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tree import FileTree
from dios.lib.snapshots.records import (
    FOLDER,
    IMAGES,
    PARTS,
    RECORD_BYTES_MAX,
    Segment,
    SnapshotRecord,
    StoredArchive,
    decode_record,
    encode_record,
)
from dios.lib.snapshots.segments import segments_of
from dios.limits import ENVIRONMENT_BYTES_MAX, IMAGE_MANIFEST_BYTES_MAX, MIB
from dios.wire.environments import ArchiveDigest, digest_of

_ASIDE: Final = f"{FOLDER}/aside"
_ARCHIVE_BYTES_MAX: Final = ENVIRONMENT_BYTES_MAX + IMAGE_MANIFEST_BYTES_MAX + MIB
_ATTEMPTS: Final = 5
_STAGED_BYTES_MAX: Final = 256 * MIB
"""Bytes that are stored and not listed yet: they are destroyed if the program fails."""


class SnapshotStore:
    """The snapshots of a group."""

    def __init__(self, files: GroupFiles) -> None:
        self._files: Final = files

    def store(
        self, name: str, image: str, image_archive: Callable[[], Path], changes: EnvironmentArchive
    ) -> str:
        """Store a snapshot, in the place of an earlier one with this name. Return the digest of its record.

        ``image`` is the digest of the image's archive, whose file is asked for if the group has it not.
        Raises the errors of storing files.
        """
        own = segments_of(changes.path, digest_of(changes.name))
        record = encode_record(SnapshotRecord(image, own))
        for _ in range(_ATTEMPTS):
            needed = self._store_image(image, image_archive)
            self._store_pieces(own, changes.path)
            self._put(f"{FOLDER}/{name}", record)
            tree = self._files.tree()
            if all(path in tree.files for path in (needed, *_paths(own), *self._paths_of_image(image))):
                return blake3(record).hexdigest()
        raise UnreachableError(f"another program removes snapshots all the time: store {name!r} again")

    def names(self) -> list[str]:
        """Return the names of the snapshots."""
        names = [
            path.removeprefix(f"{FOLDER}/")
            for path in self._files.tree().files
            if path.startswith(f"{FOLDER}/")
        ]
        return sorted(name for name in names if "/" not in name)

    def record(self, name: str) -> tuple[SnapshotRecord, str]:
        """Return a snapshot and the digest of its record. Raise InvalidError, FileNotFoundError."""
        data = self._read(f"{FOLDER}/{name}")
        return decode_record(data, SnapshotRecord), blake3(data).hexdigest()

    def copy_image(self, digest: str, target: Path) -> None:
        """Write the archive of an image. Raise DamagedError for one with another digest, and as ``copy``."""
        stored = decode_record(self._read(f"{IMAGES}/{digest}"), StoredArchive)
        if stored.digest != digest:
            raise DamagedError(f"the image of a snapshot has another digest: {stored.digest}")
        self.copy(stored, target)

    def copy(self, stored: StoredArchive, target: Path) -> None:
        """Write an archive whose bytes have its digest. Raise DamagedError, TooLargeError."""
        if stored.size > _ARCHIVE_BYTES_MAX:
            raise TooLargeError(f"the snapshot has over {_ARCHIVE_BYTES_MAX // MIB:,} MiB")
        whole = ArchiveDigest()
        with target.open("wb") as file:
            for segment in stored.segments:
                data = self._piece(segment)
                whole.add(data)
                file.write(data)
        if whole.text != stored.digest:
            raise DamagedError("the pieces of the snapshot are not those of its archive: restore it")

    def remove(self, name: str) -> None:
        """Remove a snapshot, and the pieces and images that no other one needs. Raise FileNotFoundError."""
        self._files.remove([f"{FOLDER}/{name}"])
        self._put_aside_unneeded()
        self._restore_needed()
        aside = [path for path in self._files.tree().files if path.startswith(f"{_ASIDE}/")]
        if aside:
            self._files.remove(aside)

    # -- storing ----------------------------------------------------------------------------------
    def _store_image(self, digest: str, archive: Callable[[], Path]) -> str:
        """Store the image of a snapshot, unless the group has it, and return the path of its list."""
        path = f"{IMAGES}/{digest}"
        tree = self._files.tree()
        if path in tree.files and all(part in tree.files for part in self._paths_of_image(digest)):
            return path
        stored = segments_of(archive(), digest)
        self._store_pieces(stored, archive())
        self._put(path, encode_record(stored))
        return path

    def _store_pieces(self, stored: StoredArchive, path: Path) -> None:
        known = self._files.tree().files
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            staged = StagedFiles(self._files)
            done: set[str] = set()
            offset = waiting = 0
            try:
                for segment in stored.segments:
                    if segment.path not in known and segment.path not in done:
                        with memoryview(mapped)[offset : offset + segment.size] as piece:
                            staged.add_bytes(segment.path, piece)
                        done.add(segment.path)
                        waiting += segment.size
                    offset += segment.size
                    if waiting > _STAGED_BYTES_MAX:
                        staged.publish()
                        staged, waiting = StagedFiles(self._files), 0
                staged.publish()
            except BaseException:
                staged.discard()
                raise

    def _put(self, path: str, data: bytes) -> None:
        staged = StagedFiles(self._files)
        try:
            staged.add_bytes(path, data)
            staged.publish()
        except BaseException:
            staged.discard()
            raise

    # -- reading ----------------------------------------------------------------------------------
    def _read(self, path: str) -> bytes:
        entry = self._files.readable(path)
        if entry.size > RECORD_BYTES_MAX or entry.in_parts:
            raise InvalidError(f"the file {path!r} is no snapshot of this release: it is too long")
        return bytes(self._files.checked_view(entry))

    def _piece(self, segment: Segment) -> memoryview:
        entry = self._files.readable(segment.path)
        if entry.in_parts or entry.size != segment.size:
            raise DamagedError("a piece of the snapshot has another size than its record says: restore it")
        data = self._files.checked_view(entry)
        if blake3(data).digest() != segment.digest:
            raise DamagedError("a piece of the snapshot has another digest than its name: restore it")
        return data

    def _paths_of_image(self, digest: str) -> Iterator[str]:
        return _paths(decode_record(self._read(f"{IMAGES}/{digest}"), StoredArchive))

    # -- removing ---------------------------------------------------------------------------------
    def _put_aside_unneeded(self) -> None:
        tree = self._files.tree()
        needed = self._needed(tree)
        self._move(
            (path, _aside(path)) for path in _shared(tree) if path not in needed and not _is_aside(path)
        )

    def _restore_needed(self) -> None:
        tree = self._files.tree()
        needed = self._needed(tree)
        self._move(
            (_aside(path), path) for path in needed if path not in tree.files and _aside(path) in tree.files
        )

    def _move(self, pairs: Iterable[tuple[str, str]]) -> None:
        rows = list(pairs)
        for start in range(0, len(rows), BATCH_OBJECTS):
            self._files.move(dict(rows[start : start + BATCH_OBJECTS]))

    def _needed(self, tree: FileTree) -> set[str]:
        """Return the paths of the pieces and images of all snapshots. Raise if one cannot be read."""
        needed: set[str] = set()
        for path in tree.files:
            if not path.startswith(f"{FOLDER}/") or path.startswith(
                (f"{PARTS}/", f"{IMAGES}/", f"{_ASIDE}/")
            ):
                continue
            record, _ = self.record(path.removeprefix(f"{FOLDER}/"))
            needed.update(_paths(record.changes))
            image = f"{IMAGES}/{record.image}"
            if image in needed:
                continue
            needed.add(image)
            there = image if image in tree.files else _aside(image)
            needed.update(_paths(decode_record(self._read(there), StoredArchive)))
        return needed


def _paths(stored: StoredArchive) -> Iterator[str]:
    return (segment.path for segment in stored.segments)


def _shared(tree: FileTree) -> list[str]:
    return [path for path in tree.files if path.startswith((f"{PARTS}/", f"{IMAGES}/"))]


def _is_aside(path: str) -> bool:
    return path.startswith(f"{_ASIDE}/")


def _aside(path: str) -> str:
    return f"{_ASIDE}/{path.removeprefix(f'{FOLDER}/')}"
