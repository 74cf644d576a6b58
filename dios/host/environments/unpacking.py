"""Unpacks the archive of an environment into a new folder. These functions run in a thread.

Nobody has read an archive. Its manifest is validated first, its files are regular ones in a folder that is
new, and it counts only if all its bytes have the digest in its name. Nothing of it is executed here.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from dios import limits
from dios.errors import InvalidError
from dios.host.confinement.privileges import UNPRIVILEGED_ID
from dios.wire import images
from dios.wire.environments import LENGTH, MAGIC, ArchiveDigest, Manifest, decode_manifest
from dios.wire.images import FOLDERS, ChangeEntry, ChangeManifest, EntryKind, ImageEntry, ImageManifest

AnyManifest: TypeAlias = Manifest | ImageManifest | ChangeManifest

_CHUNK: Final = 1 * limits.MIB
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755
"""Tasks may run as another user than the node."""
_NO_DEVICE: Final = os.makedev(0, 0)
"""A device with this number hides a file of the image, as overlay file systems read it."""
_HIDES: Final = "user.overlay.opaque"
"""The attribute of a folder that hides what the image has there."""
_OWNER_READS: Final = 0o400
_OWNER_CHANGES: Final = 0o700
"""The node can remove whatever it has unpacked."""


class ArchiveReader:
    """The bytes of an archive from its begin to its end: a descriptor that it owns, or bytes."""

    def __init__(self, source: int | bytes) -> None:
        self._source: Final = source
        self._place = 0
        self.digest: Final = ArchiveDigest()

    def read(self, length: int) -> bytes:
        """Return the next bytes. Raise InvalidError if there are fewer."""
        if isinstance(self._source, bytes):
            data = self._source[self._place : self._place + length]
        else:
            data = os.pread(self._source, length, self._place)
        if len(data) < length and isinstance(self._source, int):
            data += b"".join(self._rest(self._source, length, len(data)))
        if len(data) != length:
            raise InvalidError("the archive of the environment is cut off")
        self._place += length
        self.digest.add(data)
        return data

    def _rest(self, source: int, length: int, done: int) -> list[bytes]:
        parts: list[bytes] = []
        while done < length:
            part = os.pread(source, length - done, self._place + done)
            if not part:
                break
            parts.append(part)
            done += len(part)
        return parts

    @property
    def bytes_left(self) -> int:
        """The number of bytes after those that were read."""
        size = len(self._source) if isinstance(self._source, bytes) else os.fstat(self._source).st_size
        return size - self._place

    def is_at_end(self) -> bool:
        """Return True if no byte follows."""
        if isinstance(self._source, bytes):
            return self._place == len(self._source)
        return not os.pread(self._source, 1, self._place)

    def close(self) -> None:
        """Close the descriptor."""
        if isinstance(self._source, int):
            os.close(self._source)


class _Form(NamedTuple):
    """The validation of an archive's manifest, and its greatest length in bytes."""

    decode: Callable[[bytes], AnyManifest]
    bytes_max: int


_FORMS: Final[Mapping[bytes, _Form]] = {
    MAGIC: _Form(decode_manifest, limits.ENVIRONMENT_MANIFEST_BYTES_MAX),
    images.MAGIC: _Form(images.decode_image, limits.IMAGE_MANIFEST_BYTES_MAX),
    images.MAGIC_OF_CHANGES: _Form(images.decode_changes, limits.IMAGE_MANIFEST_BYTES_MAX),
}


def read_manifest(archive: ArchiveReader) -> AnyManifest:
    """Read and validate the begin of an archive: of packages, an image, or changes. Raise InvalidError."""
    form = _FORMS.get(archive.read(len(MAGIC)))
    if form is None:
        raise InvalidError("the content is no archive of an environment of this release")
    (length,) = LENGTH.unpack(archive.read(LENGTH.size))
    if length > form.bytes_max:
        raise InvalidError("the manifest of the environment is too long")
    manifest = form.decode(archive.read(length))
    surplus = archive.bytes_left - manifest.file_bytes()
    if surplus < 0:
        raise InvalidError("the archive of the environment is cut off")
    if surplus:
        raise InvalidError("the archive of the environment has more bytes than its manifest says")
    return manifest


def unpack(
    archive: ArchiveReader,
    manifest: AnyManifest,
    digest: str,
    folder: Path,
    image: Path | None,
    stop: threading.Event,
) -> bool:
    """Write the files of an archive below ``folder``, which is new. Return False if ``stop`` is set.

    ``image`` is the folder of the image for an archive of changes.
    Raise InvalidError if the bytes are not those of the digest, OSError.
    """
    _make_folder(folder)
    if isinstance(manifest, Manifest):
        is_complete = _write_packages(archive, manifest, folder, stop)
    else:
        is_complete = _write_image(archive, manifest, folder, stop, _FilesBelow(image))
    if not is_complete:
        return False
    if not archive.is_at_end():
        raise InvalidError("the archive of the environment has more bytes than its manifest says")
    if archive.digest.text != digest:
        raise InvalidError("the archive of the environment has another digest than its name")
    return True


def _write_packages(archive: ArchiveReader, manifest: Manifest, folder: Path, stop: threading.Event) -> bool:
    for name in sorted(manifest.folders()):
        _make_folder(folder / name)
    return all(
        _write_file(archive, folder / file.path, file.size, _FILE_MODE, stop) for file in manifest.files
    )


class _FilesBelow:
    """The files of an image of which others are changed. It looks at no path that leads through a link."""

    def __init__(self, image: Path | None) -> None:
        self._image: Final = image
        self._folders: Final = {""} if image is not None else set[str]()
        """The folders of the changes that the image has, too, and of which it shows the rest."""

    def enter(self, entry: ImageEntry) -> None:
        """Note a folder of the changes."""
        if entry.kind is EntryKind.FOLDER and stat.S_ISDIR(self._mode(entry)):
            self._folders.add(entry.path)

    def has(self, entry: ImageEntry) -> bool:
        """Return True if the image has a file with this path."""
        return self._mode(entry) != 0

    def _mode(self, entry: ImageEntry) -> int:
        if self._image is None or entry.path.rpartition("/")[0] not in self._folders:
            return 0
        try:
            return (self._image / entry.path).lstat().st_mode
        except FileNotFoundError:
            return 0


def _write_image(
    archive: ArchiveReader,
    manifest: ImageManifest | ChangeManifest,
    folder: Path,
    stop: threading.Event,
    below: _FilesBelow,
) -> bool:
    """Write an image, or changes. Its files belong to the user of its tasks, who is its root."""
    is_root = os.geteuid() == 0
    folders: list[ImageEntry] = []
    for entry in manifest.entries:
        place = folder / entry.path
        if stop.is_set():
            return False
        if entry.kind in FOLDERS:
            place.mkdir(mode=_OWNER_CHANGES)
            folders.append(entry)
            below.enter(entry)
        elif entry.kind is EntryKind.REMOVED:
            if not below.has(entry):
                continue  # the kernel would list it
            os.mknod(place, stat.S_IFCHR, _NO_DEVICE)
        elif entry.kind is EntryKind.SYMLINK:
            place.symlink_to(entry.target)
        elif entry.kind is EntryKind.HARD_LINK:
            os.link(folder / entry.target, place, follow_symlinks=False)
        elif not _write_file(archive, place, entry.size, entry.mode | _OWNER_READS, stop):
            return False
        if is_root:
            os.chown(place, UNPRIVILEGED_ID, UNPRIVILEGED_ID, follow_symlinks=False)
        if isinstance(entry, ChangeEntry) and entry.kind not in FOLDERS:
            _describe(place, entry)
    if is_root:
        os.chown(folder, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    for entry in reversed(folders):
        place = folder / entry.path
        place.chmod(entry.mode | _OWNER_CHANGES)
        if entry.kind is EntryKind.REPLACED_FOLDER:
            os.setxattr(place, _HIDES, b"y")
        if isinstance(entry, ChangeEntry):
            _describe(place, entry)
    return True


def _describe(place: Path, entry: ChangeEntry) -> None:
    """Set the time of a changed file, and its attributes as far as the disk has room for them."""
    for name, value in entry.attributes:
        try:
            os.setxattr(place, name, value)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.ENOSPC}:
                raise
    if entry.kind not in {EntryKind.REMOVED, EntryKind.HARD_LINK}:
        os.utime(place, ns=(entry.modified_ns, entry.modified_ns), follow_symlinks=False)


def _write_file(archive: ArchiveReader, place: Path, size: int, mode: int, stop: threading.Event) -> bool:
    if stop.is_set():
        return False
    number = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    with open(number, "wb") as target:  # noqa: PTH123 - a descriptor
        os.fchmod(number, mode)
        for start in range(0, size, _CHUNK):
            if stop.is_set():
                return False
            target.write(archive.read(min(_CHUNK, size - start)))
    return True


def _make_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(_FOLDER_MODE)
