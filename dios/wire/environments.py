"""The names and archives of environments: sets of installed packages in which pure tasks start.

A run call names an environment in the place of a template. A node without it makes it from the input with the
label ``CONTENT``, an archive whose digest is in the name. An archive is MAGIC, the length of its manifest in
four bytes, the manifest, and then the bytes of its files in the same order.
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import InvalidError

PREFIX: Final = "environment:"
"""The beginning of each name. No template has one, because its name has no colon."""

CONTENT: Final = "environment:archive"
"""The label of the input with the archive."""

DIGEST_CHARS: Final = 40
_DIGEST: Final = re.compile(f"[0-9a-f]{{{DIGEST_CHARS}}}")

MAGIC: Final = b"DIOSENV1"
LENGTH: Final = struct.Struct("<I")

_Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]


class Package(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An installed distribution."""

    name: _Word
    version: _Word
    sha256: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z", max_length=64)] = ""
    """The digest of its wheel, if the installer has reported it."""


class ArchivedFile(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file of an archive: its path below the folder from which tasks import, and its number of bytes."""

    path: Annotated[str, Meta(min_length=1, max_length=limits.ENVIRONMENT_PATH_CHARS_MAX)]
    size: Annotated[int, Meta(ge=0, le=limits.ENVIRONMENT_BYTES_MAX)]


class Manifest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The description of an archive. ``python`` names the interpreter and the machine that it is for."""

    python: _Word
    packages: Annotated[tuple[Package, ...], Meta(max_length=limits.ENVIRONMENT_PACKAGES_MAX)]
    files: Annotated[tuple[ArchivedFile, ...], Meta(max_length=limits.ENVIRONMENT_FILES_MAX)]

    def folders(self) -> set[str]:
        """Return the paths of all folders in which files are. Raise InvalidError for too many."""
        folders: set[str] = set()
        for file in self.files:
            folder = file.path.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                if len(folders) > limits.ENVIRONMENT_FILES_MAX:
                    raise InvalidError(
                        f"the archive of the environment has over {limits.ENVIRONMENT_FILES_MAX} folders"
                    )
                folder = folder.rpartition("/")[0]
        return folders

    def check(self) -> None:
        """Raise InvalidError for a path that leads out of the folder, and for what is over a bound."""
        paths = {file.path for file in self.files}
        if len(paths) < len(self.files):
            raise InvalidError("the archive of the environment has a path twice")
        for path in paths:
            if not _is_inside(path):
                raise InvalidError(f"the archive of the environment has the path {path[:200]!r}")
        folders = self.folders()
        if folders & paths:
            raise InvalidError("the archive of the environment has a path that is a file and a folder")
        if self.file_bytes() > limits.ENVIRONMENT_BYTES_MAX:
            raise InvalidError(f"the environment has over {limits.ENVIRONMENT_BYTES_MAX >> 20} MiB")

    def file_bytes(self) -> int:
        """Return the number of bytes of all files."""
        return sum(file.size for file in self.files)

    def disk_bytes(self) -> int:
        """Return the bytes that the files and folders take on a disk with blocks of 4 KiB."""
        block = 4 * limits.KIB
        files = sum(-(-file.size // block) * block for file in self.files)
        return files + block * (len(self.files) + len(self.folders()) + 2)


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return (
        len(parts) <= limits.ENVIRONMENT_DEPTH_MAX
        and not {"", ".", ".."}.intersection(parts)
        and path.isprintable()
    )


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Manifest)


def encode_head(manifest: Manifest) -> bytes:
    """Return the bytes of an archive before those of its files. Raise InvalidError for one over a bound."""
    manifest.check()
    body = _encode(manifest)
    if len(body) > limits.ENVIRONMENT_MANIFEST_BYTES_MAX:
        raise InvalidError("the environment has too many long paths")
    return MAGIC + LENGTH.pack(len(body)) + body


def decode_manifest(body: bytes) -> Manifest:
    """Validate the manifest of an archive. Raise InvalidError."""
    try:
        manifest = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidError(f"the archive of the environment has no valid manifest: {error}") from None
    manifest.check()
    return manifest


def digest_of(template: str) -> str:
    """Return the digest in the name of an environment, and an empty text for the name of a template.

    Raise ValueError for a name with the prefix that has no digest.
    """
    if not template.startswith(PREFIX):
        return ""
    digest = template.removeprefix(PREFIX)
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"the name of an environment has {DIGEST_CHARS} hexadecimal digits after {PREFIX!r}")
    return digest


def name_for(digest: str) -> str:
    """Return the name of the environment with this digest."""
    return PREFIX + digest


class ArchiveDigest:
    """The digest of an archive, to which its bytes are added in order."""

    def __init__(self) -> None:
        self._hash: Final = hashlib.sha256(b"dios environment\n")

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        self._hash.update(data)

    @property
    def text(self) -> str:
        """The digest of all bytes so far, as it is in a name."""
        return self._hash.hexdigest()[:DIGEST_CHARS]
