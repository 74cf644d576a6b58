"""The archives of images and of changes to them: root file systems for tasks, a kind of environment.

The node sees no layers of an image. A caller that has read them sends one archive with the files that result
from them: MAGIC, the length of the manifest in four bytes, the manifest, and then the bytes of the files in
the same order. The digest of these bytes is in the name of the environment (``dios.wire.environments``).

The archive of changes has the same form, and begins with MAGIC_OF_CHANGES. It has the files that a sandbox
has written in an image, and the paths of those that it has removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import InvalidError
from dios.wire.environments import DIGEST_CHARS
from dios.wire.fields import Text

T = TypeVar("T")

MAGIC: Final = b"DIOSIMG1"
MAGIC_OF_CHANGES: Final = b"DIOSCHG1"

RESERVED: Final = ".dios-python"
"""The folder of the node's Python in a container; no image has it."""

CHANGES: Final = ".dios-changes"
"""The folder of the changed files in a container, read-only; no image has it."""

_PLACES_OF_THE_NODE: Final = frozenset({RESERVED, CHANGES})

FOLDERS_OF_THE_KERNEL: Final = frozenset({"dev", "dev/pts", "dev/shm", "proc", "sys"})
"""Places of mounts: folders, if an image has them."""

FOLDERS_OF_THE_NODE: Final = frozenset({"inputs", "outputs"})
"""Places of the files of a task: folders, if an image has them."""

_TYPES_MAX: Final = 0o1777
_BLOCK: Final = 4 * limits.KIB


class EntryKind(IntEnum):
    """The kind of an entry of an image, or of changes; the last two kinds are in changes alone.

    ``REMOVED`` hides the file of the image with this path, and ``REPLACED_FOLDER`` is a folder that hides
    what the image has there.
    """

    FOLDER = 1
    FILE = 2
    SYMLINK = 3
    HARD_LINK = 4
    REMOVED = 5
    REPLACED_FOLDER = 6


FOLDERS: Final = frozenset({EntryKind.FOLDER, EntryKind.REPLACED_FOLDER})
_OF_CHANGES: Final = frozenset({EntryKind.REMOVED, EntryKind.REPLACED_FOLDER})


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
        """Raise InvalidError for a path that leads out of the image, and for what is over a bound."""
        _check_entries(self.entries)
        for entry in self.entries:
            if entry.kind in _OF_CHANGES:
                raise _refused(entry.path, "changes another image")
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
        return _disk_bytes(self.entries)


_AttributeName: TypeAlias = Annotated[str, Meta(min_length=6, max_length=255)]
_AttributeValue: TypeAlias = Annotated[bytes, Meta(max_length=limits.CHANGES_ATTRIBUTE_BYTES_MAX)]


class ChangeEntry(ImageEntry, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A changed file, with the time of its last change in ns since 1970, and its extended attributes.

    These are of the kind ``user`` alone: the others are rights, or words of the node's file systems.
    """

    modified_ns: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    attributes: Annotated[
        tuple[tuple[_AttributeName, _AttributeValue], ...], Meta(max_length=limits.CHANGES_ATTRIBUTES_MAX)
    ] = ()


class ChangeManifest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The description of an archive of changes. ``base`` is the digest of the archive of the image."""

    base: Annotated[str, Meta(pattern=rf"\A[0-9a-f]{{{DIGEST_CHARS}}}\Z", max_length=DIGEST_CHARS)]
    entries: Annotated[tuple[ChangeEntry, ...], Meta(max_length=limits.IMAGE_ENTRIES_MAX)]

    def check(self) -> None:
        """Raise InvalidError for a path that leads out of the image, and for what is over a bound."""
        _check_entries(self.entries)
        for entry in self.entries:
            for name, _ in entry.attributes:
                if not name.startswith(_ATTRIBUTES) or name.startswith(_ATTRIBUTES_OF_OVERLAYS):
                    raise _refused(entry.path, f"has the attribute {name[:100]!r}, which is none of a user")
                if "\0" in name:
                    raise _refused(entry.path, "has an attribute with a zero byte in its name")
            if entry.attributes and entry.kind not in {EntryKind.FILE, *FOLDERS}:
                raise _refused(entry.path, "is no file or folder, and has attributes")

    def file_bytes(self) -> int:
        """Return the number of bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def disk_bytes(self) -> int:
        """Return the bytes that the entries take on a disk with blocks of 4 KiB."""
        return _disk_bytes(self.entries)


_ATTRIBUTES: Final = "user."
_ATTRIBUTES_OF_OVERLAYS: Final = "user.overlay."
_DEPTH_MAX: Final = limits.IMAGE_DEPTH_MAX
_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(ImageManifest)
_decoder_of_changes: Final = msgspec.msgpack.Decoder(ChangeManifest)


def _check_entries(entries: Sequence[ImageEntry]) -> None:
    """Raise InvalidError for a path that leads out of the image, and for what is over a bound.

    Each entry is in a folder that comes before it, so that no path leads through a symbolic link.
    """
    kinds: dict[str, EntryKind] = {"": EntryKind.FOLDER}
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        if name in {"", ".", ".."} or "\0" in entry.path or entry.path.count("/") >= _DEPTH_MAX:
            raise _refused(entry.path, "is no path in an image")
        if len(name.encode()) > limits.IMAGE_NAME_BYTES_MAX:
            raise _refused(entry.path, f"has a name of over {limits.IMAGE_NAME_BYTES_MAX} bytes")
        if entry.path in kinds:
            raise _refused(entry.path, "comes twice")
        if kinds.get(folder) not in FOLDERS:
            raise _refused(entry.path, "is in no folder of the image")
        if entry.path.split("/")[0] in _PLACES_OF_THE_NODE:
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
    if sum(entry.size for entry in entries) > limits.ENVIRONMENT_BYTES_MAX:
        raise InvalidError(f"the image has over {limits.ENVIRONMENT_BYTES_MAX >> 20} MiB")


def _disk_bytes(entries: Sequence[ImageEntry]) -> int:
    return sum(-(-entry.size // _BLOCK) * _BLOCK for entry in entries) + _BLOCK * (len(entries) + 2)


def _refused(path: str, reason: str) -> InvalidError:
    return InvalidError(f"the image cannot be used: {path[:200]!r} {reason}")


def encode_image(manifest: ImageManifest | ChangeManifest) -> bytes:
    """Return the encoded manifest. Raise InvalidError for one that a node would refuse."""
    body = _encode(manifest)
    if len(body) > limits.IMAGE_MANIFEST_BYTES_MAX:
        raise InvalidError("the image has too many long paths")
    if isinstance(manifest, ChangeManifest):
        decode_changes(body)
    else:
        decode_image(body)
    return body


def decode_image(body: bytes) -> ImageManifest:
    """Validate the manifest of an archive. Raise InvalidError."""
    manifest = _decoded(_decoder, body)
    manifest.check()
    return manifest


def decode_changes(body: bytes) -> ChangeManifest:
    """Validate the manifest of an archive of changes. Raise InvalidError."""
    manifest = _decoded(_decoder_of_changes, body)
    manifest.check()
    return manifest


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidError(f"the archive of the image has no valid manifest: {error}") from None
