"""The archives of images: root file systems for tasks, a kind of environment.

The node sees no layers. A caller that has read the layers of an image sends one archive with the files that
result from them: MAGIC, the length of the manifest in four bytes, the manifest, and then the bytes of the
files in the same order. The digest of these bytes is in the name of the environment
(``dios.wire.environments``).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import InvalidError
from dios.wire.fields import Text

MAGIC: Final = b"DIOSIMG1"

RESERVED: Final = ".dios-python"
"""The folder of the node's Python in a container; no image has it."""

FOLDERS_OF_THE_KERNEL: Final = frozenset({"dev", "dev/pts", "dev/shm", "proc", "sys"})
"""Places of mounts: folders, if an image has them."""

FOLDERS_OF_THE_NODE: Final = frozenset({"inputs", "outputs"})
"""Places of the files of a task: folders, if an image has them."""

_TYPES_MAX: Final = 0o1777
_BLOCK: Final = 4 * limits.KIB


class EntryKind(IntEnum):
    """The kind of an entry of an image."""

    FOLDER = 1
    FILE = 2
    SYMLINK = 3
    HARD_LINK = 4


class ImageEntry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file of an image. ``mode`` has its permissions, and the sticky bit.

    ``size`` is the number of bytes of a file. ``target`` is the text of a symbolic link, or the path of the
    file that a hard link names, which comes earlier.
    """

    path: Annotated[str, Meta(min_length=1, max_length=limits.ENVIRONMENT_PATH_CHARS_MAX)]
    kind: EntryKind
    mode: Annotated[int, Meta(ge=0, le=_TYPES_MAX)] = 0
    size: Annotated[int, Meta(ge=0, le=limits.ENVIRONMENT_BYTES_MAX)] = 0
    target: Annotated[str, Meta(max_length=limits.IMAGE_TARGET_CHARS_MAX)] = ""


class ImageSettings(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The environment variables (NAME=value) and the working directory that an image gives its programs."""

    variables: Annotated[tuple[Text, ...], Meta(max_length=limits.IMAGE_VARIABLES_MAX)] = ()
    folder: Annotated[str, Meta(max_length=limits.ENVIRONMENT_PATH_CHARS_MAX)] = "/"


class ImageManifest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The description of an archive. ``machine`` is the architecture of its programs, as in ``uname``."""

    machine: Annotated[str, Meta(min_length=1, max_length=32)]
    settings: ImageSettings
    entries: Annotated[tuple[ImageEntry, ...], Meta(max_length=limits.IMAGE_ENTRIES_MAX)]

    def check(self) -> None:
        """Raise InvalidError for a path that leads out of the image, and for what is over a bound.

        Each entry is in a folder that comes before it, so that no path leads through a symbolic link.
        """
        kinds: dict[str, EntryKind] = {"": EntryKind.FOLDER}
        for entry in self.entries:
            folder, _, name = entry.path.rpartition("/")
            if name in {"", ".", ".."} or "\0" in entry.path or entry.path.count("/") >= _DEPTH_MAX:
                raise _refused(entry.path, "is no path in an image")
            if len(name.encode()) > limits.IMAGE_NAME_BYTES_MAX:
                raise _refused(entry.path, f"has a name of over {limits.IMAGE_NAME_BYTES_MAX} bytes")
            if entry.path in kinds:
                raise _refused(entry.path, "comes twice")
            if kinds.get(folder) is not EntryKind.FOLDER:
                raise _refused(entry.path, "is in no folder of the image")
            if entry.path.split("/")[0] == RESERVED:
                raise _refused(entry.path, "is a place of the node")
            if entry.path in FOLDERS_OF_THE_KERNEL and entry.kind is not EntryKind.FOLDER:
                raise _refused(entry.path, "is a place of the kernel, and no folder")
            if entry.path in FOLDERS_OF_THE_NODE and entry.kind is not EntryKind.FOLDER:
                raise _refused(entry.path, "is a place of the node, and no folder")
            if entry.kind is EntryKind.HARD_LINK and kinds.get(entry.target) is not EntryKind.FILE:
                raise _refused(entry.path, "is a link to no file before it")
            if entry.kind is EntryKind.SYMLINK and (not entry.target or "\0" in entry.target):
                raise _refused(entry.path, "is a link without a target")
            if entry.size and entry.kind is not EntryKind.FILE:
                raise _refused(entry.path, "is no file, and has bytes")
            kinds[entry.path] = entry.kind
        if self.file_bytes() > limits.ENVIRONMENT_BYTES_MAX:
            raise InvalidError(f"the image has over {limits.ENVIRONMENT_BYTES_MAX >> 20} MiB")
        for variable in self.settings.variables:
            if variable.find("=") < 1 or "\0" in variable:
                raise InvalidError(
                    f"the image has the environment variable {variable[:100]!r}, without a name"
                )
        if sum(map(len, self.settings.variables)) > limits.IMAGE_VARIABLES_CHARS_MAX:
            raise InvalidError(
                f"the environment variables of the image have over {limits.IMAGE_VARIABLES_CHARS_MAX} letters"
            )
        if not self.settings.folder.startswith("/") or "\0" in self.settings.folder:
            raise InvalidError("the working directory of the image is no absolute path")

    def file_bytes(self) -> int:
        """Return the number of bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def disk_bytes(self) -> int:
        """Return the bytes that the entries take on a disk with blocks of 4 KiB."""
        return sum(-(-entry.size // _BLOCK) * _BLOCK for entry in self.entries) + _BLOCK * (
            len(self.entries) + 2
        )


_DEPTH_MAX: Final = limits.IMAGE_DEPTH_MAX
_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(ImageManifest)


def _refused(path: str, reason: str) -> InvalidError:
    return InvalidError(f"the image cannot be used: {path[:200]!r} {reason}")


def encode_image(manifest: ImageManifest) -> bytes:
    """Return the encoded manifest. Raise InvalidError for one that a node would refuse."""
    body = _encode(manifest)
    if len(body) > limits.IMAGE_MANIFEST_BYTES_MAX:
        raise InvalidError("the image has too many long paths")
    decode_image(body)
    return body


def decode_image(body: bytes) -> ImageManifest:
    """Validate the manifest of an archive. Raise InvalidError."""
    try:
        manifest = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidError(f"the archive of the image has no valid manifest: {error}") from None
    manifest.check()
    return manifest
