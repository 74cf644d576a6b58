"""Archives of the files that sandboxes have changed in an image: received from a session, read, and merged.

A session is hostile: what it sends is validated like the manifest of an image before anything uses it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from dios.errors import DamagedError, InvalidError, ProtocolError
from dios.lib.environments import archives
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.images.packing import request_of
from dios.limits import IMAGE_MANIFEST_BYTES_MAX, MIB
from dios.wire.environments import LENGTH, ArchiveDigest
from dios.wire.images import (
    FOLDERS,
    MAGIC_OF_CHANGES,
    ChangeEntry,
    ChangeManifest,
    EntryKind,
    decode_changes,
    encode_image,
)

_CHUNK: Final = 1 * MIB
_REQUEST: Final = "changes"


class ReceivedChanges:
    """Writes what a session sends of its changed files into a file, as an archive of changes to ``base``.

    ``add`` raises ProtocolError for bytes that no honest session sends.
    """

    def __init__(self, file: BinaryIO, base: str) -> None:
        self._file: Final = file
        self._base: Final = base
        self._head = bytearray()
        self._left = 0
        self._digest: Final = ArchiveDigest()
        self._is_open = True
        """True until the manifest is complete."""

    def add(self, data: memoryview) -> None:
        """Add the next bytes."""
        if self._is_open:
            data = self._added_to_head(data)
        if len(data) > self._left:
            raise ProtocolError("it sent more bytes of files than it has announced")
        self._left -= len(data)
        self._write(data)

    def end(self) -> str:
        """Return the digest of the complete archive. Raise ProtocolError if bytes are missing."""
        if self._is_open or self._left:
            raise ProtocolError("it sent fewer bytes of files than it has announced")
        self._file.flush()
        return self._digest.text

    def _added_to_head(self, data: memoryview) -> memoryview:
        """Add to the manifest, and write it when it is complete. Return the bytes after it."""
        self._head += data
        if len(self._head) < LENGTH.size:
            return data[:0]
        (length,) = LENGTH.unpack_from(self._head)
        if length > IMAGE_MANIFEST_BYTES_MAX:
            raise ProtocolError("its list of changed files is too long")
        end = LENGTH.size + length
        if len(self._head) < end:
            return data[:0]
        rest = data[len(data) - (len(self._head) - end) :]
        try:
            manifest = decode_changes(bytes(self._head[LENGTH.size : end]))
            self._write(_head_of(msgspec.structs.replace(manifest, base=self._base)))
        except InvalidError as error:
            raise ProtocolError(error.message) from None
        self._left, self._is_open = manifest.file_bytes(), False
        self._head.clear()
        return rest

    def _write(self, data: memoryview | bytes) -> None:
        self._digest.add(data)
        self._file.write(data)


class ChangeArchive:
    """An open archive of changes, which stays readable when the cache of archives has no room for it.

    It is closed with the last reference to it.
    """

    def __init__(self, archive: EnvironmentArchive) -> None:
        """Read the manifest. Raise InvalidError for an archive that is none of changes, OSError."""
        self.name: Final = archive.name
        self._fd: Final = os.open(archive.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        length = len(MAGIC_OF_CHANGES) + LENGTH.size
        head = os.pread(self._fd, length, 0)
        if len(head) < length or not head.startswith(MAGIC_OF_CHANGES):
            raise InvalidError("the archive has no changes of an image")
        (size,) = LENGTH.unpack_from(head, len(MAGIC_OF_CHANGES))
        if size > IMAGE_MANIFEST_BYTES_MAX:
            raise InvalidError("the list of changed files is too long")
        self.manifest: Final = decode_changes(os.pread(self._fd, size, length))
        self._contents: Final = length + size

    @property
    def archive(self) -> EnvironmentArchive:
        """The archive, by a path of the open file, also if it was removed."""
        return EnvironmentArchive(self.name, Path(f"/proc/self/fd/{self._fd}"))

    def parts(self, offset: int, size: int) -> Iterator[bytes]:
        """Yield some of the bytes of files. Raise DamagedError if the file is cut off."""
        for start in range(0, size, _CHUNK):
            wanted = min(_CHUNK, size - start)
            data = os.pread(self._fd, wanted, self._contents + offset + start)
            if len(data) != wanted:
                raise DamagedError("an archive of changed files is cut off: make a new sandbox")
            yield data


@dataclass(slots=True, eq=False)
class _Content:
    """The bytes of a file, which hard links share: the archive, and the place and number of bytes there."""

    archive: ChangeArchive
    offset: int
    size: int


@dataclass(slots=True)
class _Change:
    """A file of the merged changes."""

    entry: ChangeEntry
    content: _Content | None = None
    children: dict[str, _Change] = field(default_factory=dict)


def keep(target: Path, digest: str) -> EnvironmentArchive:
    """Keep a finished archive of changes on this machine."""
    return archives.keep(target, digest, request_of(_REQUEST, digest))


def kept_changes(target: Path, digest: str, lower: ChangeArchive | None) -> ChangeArchive:
    """Keep the changes in the file ``target``, merged with those with which their sandbox began."""
    received = keep(target, digest)
    if lower is None:
        return ChangeArchive(received)
    merged = target.with_name("merged")
    return ChangeArchive(keep(merged, merge(lower, ChangeArchive(received), merged)))


def merge(lower: ChangeArchive, upper: ChangeArchive, target: Path) -> str:
    """Write the archive of both changes, the upper ones made later. Return its digest.

    The upper changes are those of a sandbox that began with the lower ones. Raise InvalidError over a bound.
    """
    root = _Change(ChangeEntry("", EntryKind.FOLDER))
    for archive in (lower, upper):
        _apply(root, archive)
    entries: list[ChangeEntry] = []
    contents: list[_Content] = []
    first_paths: dict[_Content, str] = {}
    links: list[ChangeEntry] = []
    for path, change in _walk(root, ""):
        entry = msgspec.structs.replace(change.entry, path=path)
        if change.content is None:
            entries.append(entry)
        elif change.content in first_paths:
            links.append(ChangeEntry(path, EntryKind.HARD_LINK, 0, 0, first_paths[change.content]))
        else:
            first_paths[change.content] = path
            entries.append(entry)
            contents.append(change.content)
    manifest = ChangeManifest(lower.manifest.base, (*entries, *links))
    digest = ArchiveDigest()
    with target.open("wb") as file:
        head = _head_of(manifest)
        digest.add(head)
        file.write(head)
        for content in contents:
            for data in content.archive.parts(content.offset, content.size):
                digest.add(data)
                file.write(data)
    return digest.text


def _apply(root: _Change, archive: ChangeArchive) -> None:
    offset = 0
    files: dict[str, _Change] = {}
    for entry in archive.manifest.entries:
        content = None
        if entry.kind is EntryKind.FILE:
            content = _Content(archive, offset, entry.size)
            offset += entry.size
        *folders, name = entry.path.split("/")
        parent = root
        for folder in folders:
            parent = parent.children[folder]
        change = _Change(entry, content)
        if entry.kind is EntryKind.HARD_LINK:
            linked = files[entry.target]
            change = _Change(linked.entry, linked.content)
        former = parent.children.get(name)
        if former is not None and entry.kind is EntryKind.FOLDER:
            if former.entry.kind in FOLDERS:
                change.children = former.children
            if former.entry.kind is not EntryKind.FOLDER:
                # A folder that was made in the place of something else shows nothing of the image.
                change.entry = msgspec.structs.replace(entry, kind=EntryKind.REPLACED_FOLDER)
        parent.children[name] = change
        files[entry.path] = change


def _walk(folder: _Change, path: str) -> Iterator[tuple[str, _Change]]:
    # The depth of a tree is bounded, and that of the calls with it.
    for name in sorted(folder.children):
        change = folder.children[name]
        below = f"{path}/{name}" if path else name
        yield below, change
        yield from _walk(change, below)


def _head_of(manifest: ChangeManifest) -> bytes:
    body = encode_image(manifest)
    return MAGIC_OF_CHANGES + LENGTH.pack(len(body)) + body
