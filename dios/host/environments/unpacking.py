"""Unpacks the archive of an environment into a new folder. These functions run in a thread.

Nobody has read an archive. Its manifest is validated first, its files are regular ones in a folder that is
new, and it counts only if all its bytes have the digest in its name. Nothing of it is executed here.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from dios import limits
from dios.errors import InvalidError
from dios.wire.environments import LENGTH, MAGIC, ArchiveDigest, Manifest, decode_manifest

_CHUNK: Final = 1 * limits.MIB
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755
"""Tasks may run as another user than the node."""


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


def read_manifest(archive: ArchiveReader) -> Manifest:
    """Read and validate the begin of an archive. Raise InvalidError."""
    if archive.read(len(MAGIC)) != MAGIC:
        raise InvalidError("the content is no archive of an environment of this release")
    (length,) = LENGTH.unpack(archive.read(LENGTH.size))
    if length > limits.ENVIRONMENT_MANIFEST_BYTES_MAX:
        raise InvalidError("the manifest of the environment is too long")
    manifest = decode_manifest(archive.read(length))
    surplus = archive.bytes_left - sum(file.size for file in manifest.files)
    if surplus < 0:
        raise InvalidError("the archive of the environment is cut off")
    if surplus:
        raise InvalidError("the archive of the environment has more bytes than its manifest says")
    return manifest


def unpack(
    archive: ArchiveReader, manifest: Manifest, digest: str, folder: Path, stop: threading.Event
) -> bool:
    """Write the files of an archive below ``folder``, which is new. Return False if ``stop`` is set.

    Raise InvalidError if the bytes are not those of the digest, OSError.
    """
    _make_folder(folder)
    for name in sorted(manifest.folders()):
        _make_folder(folder / name)
    for file in manifest.files:
        if stop.is_set():
            return False
        number = os.open(folder / file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        with open(number, "wb") as target:  # noqa: PTH123 - a descriptor
            os.fchmod(number, _FILE_MODE)
            for start in range(0, file.size, _CHUNK):
                if stop.is_set():
                    return False
                target.write(archive.read(min(_CHUNK, file.size - start)))
    if not archive.is_at_end():
        raise InvalidError("the archive of the environment has more bytes than its manifest says")
    if archive.digest.text != digest:
        raise InvalidError("the archive of the environment has another digest than its name")
    return True


def _make_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(_FOLDER_MODE)
