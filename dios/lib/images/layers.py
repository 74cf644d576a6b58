"""The files that result from the layers of an image: a layer adds, replaces and removes files.

Nothing is written to a path of a layer. The files become a tree in memory, and their bytes one file of the
caller's. An entry that leads out of the tree, or through a symbolic link, is refused.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final, NamedTuple

from dios.errors import InvalidError, TooLargeError
from dios.lib.images.tar_reader import TarReader, opened_tar
from dios.limits import (
    ENVIRONMENT_BYTES_MAX,
    ENVIRONMENT_PATH_CHARS_MAX,
    IMAGE_DEPTH_MAX,
    IMAGE_ENTRIES_MAX,
    IMAGE_MANIFEST_BYTES_MAX,
    IMAGE_NAME_BYTES_MAX,
    IMAGE_TARGET_CHARS_MAX,
    MIB,
)
from dios.wire.images import EntryKind, ImageEntry

_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_OTHER: Final = ".wh..wh."
_FOLDER_MODE: Final = 0o755
_MODE_BITS: Final = 0o777
_STICKY: Final = 0o1000
_DEVICES: Final = "dev"


@dataclass(slots=True, eq=False)
class _Content:
    """The bytes of a file, in the file of all contents; hard links share one."""

    offset: int
    size: int


@dataclass(slots=True)
class _Node:
    """A file of the tree; ``layer`` is the number of the last layer with an entry for it."""

    kind: EntryKind
    mode: int
    layer: int
    target: str = ""
    content: _Content | None = None
    children: dict[str, _Node] = field(default_factory=dict)


class PackedFile(NamedTuple):
    """An entry of an image, and the offset of its bytes in the file of all contents; 0 for none."""

    entry: ImageEntry
    offset: int


class LayeredFiles:
    """The tree to which layers are added, the lowest first. ``contents`` gets the bytes of files."""

    def __init__(self, contents: BinaryIO) -> None:
        self._contents: Final = contents
        self._root: Final = _Node(EntryKind.FOLDER, _FOLDER_MODE, 0)
        self._layer = 0
        self._entries = 0
        self._bytes = 0
        self._name_chars = 0

    def add(self, layer: BinaryIO) -> None:
        """Add a layer, a tar file. Raise InvalidError for what is refused, TooLargeError, OSError."""
        self._layer += 1
        with opened_tar(layer) as (reader, members):
            for member in members:
                self._entries += 1
                if self._entries > IMAGE_ENTRIES_MAX:
                    raise TooLargeError(f"the image has over {IMAGE_ENTRIES_MAX:,} files: use a smaller one")
                self._name_chars += len(member.name) + len(member.linkname)
                if self._name_chars > IMAGE_MANIFEST_BYTES_MAX:
                    raise TooLargeError("the layers of the image have too many long names: use a smaller one")
                self._add(reader, member)

    def add_folder(self, path: str) -> None:
        """Add a folder that no layer has, with those above it. Do nothing for a path through a link."""
        with contextlib.suppress(InvalidError):
            self._folder(_parts_of(path), path)

    def files(self) -> Iterator[PackedFile]:
        """Yield all entries: folders before what is in them, and files before hard links to them."""
        folders: list[ImageEntry] = []
        others: list[tuple[str, _Node]] = []
        for path, node in _walk(self._root, ""):
            if node.kind is EntryKind.FOLDER:
                folders.append(ImageEntry(path, node.kind, node.mode))
            else:
                others.append((path, node))
        paths: dict[int, str] = {}
        links: list[ImageEntry] = []
        yield from (PackedFile(entry, 0) for entry in folders)
        for path, node in others:
            content = node.content
            if content is None:
                yield PackedFile(ImageEntry(path, node.kind, 0, 0, node.target), 0)
            elif id(content) in paths:
                links.append(ImageEntry(path, EntryKind.HARD_LINK, 0, 0, paths[id(content)]))
            else:
                paths[id(content)] = path
                yield PackedFile(ImageEntry(path, node.kind, node.mode, content.size), content.offset)
        yield from (PackedFile(entry, 0) for entry in links)

    # -- one entry --------------------------------------------------------------------------------
    def _add(self, reader: TarReader, member: tarfile.TarInfo) -> None:
        parts = _parts_of(member.name)
        if not parts:
            return  # the root itself
        *folders, name = parts
        if name == _OPAQUE:
            parent = self._folder(folders, member.name)
            self._remove_earlier(parent)
            return
        if name.startswith(_OTHER):
            return  # of a union file system, and no file of the image
        if name.startswith(_WHITEOUT):
            hidden = name.removeprefix(_WHITEOUT)
            if hidden in {"", ".", ".."}:
                raise _refused(member.name, "removes a file without a name")
            parent = self._folder(folders, member.name)
            node = parent.children.get(hidden)
            if node is not None and self._is_empty_of_this(node):
                del parent.children[hidden]
            return
        if (member.ischr() or member.isblk() or member.isfifo()) and folders and folders[0] == _DEVICES:
            return  # the container has devices of its own there
        parent = self._folder(folders, member.name)
        node = self._node(reader, member)
        former = parent.children.get(name)
        if former is not None and former.kind is EntryKind.FOLDER and node.kind is EntryKind.FOLDER:
            former.mode, former.layer = node.mode, self._layer
            return
        parent.children[name] = node

    def _node(self, reader: TarReader, member: tarfile.TarInfo) -> _Node:
        mode = member.mode & _MODE_BITS
        if member.isdir():
            return _Node(EntryKind.FOLDER, mode | member.mode & _STICKY, self._layer)
        if member.issym():
            _require_text(member.linkname)
            if not member.linkname:
                raise _refused(member.name, "is a link without a target")
            if len(member.linkname) > IMAGE_TARGET_CHARS_MAX:
                raise _refused(member.name, f"is a link of over {IMAGE_TARGET_CHARS_MAX:,} letters")
            return _Node(EntryKind.SYMLINK, 0, self._layer, member.linkname)
        if member.islnk():
            linked = self._linked(member)
            return _Node(linked.kind, linked.mode, self._layer, linked.target, linked.content)
        if not member.isreg() or member.issparse():
            raise _refused(member.name, "is no file, folder or link: it may be a device")
        return _Node(EntryKind.FILE, mode, self._layer, content=self._copy(reader, member))

    def _copy(self, reader: TarReader, member: tarfile.TarInfo) -> _Content:
        if member.size > ENVIRONMENT_BYTES_MAX - self._bytes:
            raise TooLargeError(
                f"the files of the layers have over {ENVIRONMENT_BYTES_MAX // MIB:,} MiB: use a smaller image"
            )
        content = _Content(self._bytes, member.size)
        for part in reader.parts(member):
            self._contents.write(part)
        self._bytes += member.size
        return content

    def _linked(self, member: tarfile.TarInfo) -> _Node:
        parts = _parts_of(member.linkname)
        node: _Node | None = self._root
        for part in parts:
            node = node.children.get(part) if node is not None else None
        if node is None or node.kind is EntryKind.FOLDER:
            raise _refused(
                member.name, f"is a link to {member.linkname[:200]!r}, which is no file of the image"
            )
        return node

    def _folder(self, parts: list[str], path: str) -> _Node:
        node = self._root
        for part in parts:
            child = node.children.get(part)
            if child is None:
                self._entries += 1
                child = node.children[part] = _Node(EntryKind.FOLDER, _FOLDER_MODE, self._layer)
            elif child.kind is not EntryKind.FOLDER:
                raise _refused(path, f"leads through {part[:200]!r}, which is no folder")
            node = child
        return node

    def _remove_earlier(self, folder: _Node) -> None:
        """Remove what earlier layers have put into a folder."""
        for name, node in list(folder.children.items()):
            if self._is_empty_of_this(node):
                del folder.children[name]

    def _is_empty_of_this(self, node: _Node) -> bool:
        """Remove what earlier layers have put below ``node``; return True if this layer has nothing of it."""
        self._remove_earlier(node)
        return node.layer < self._layer and not node.children


def _walk(folder: _Node, path: str) -> Iterator[tuple[str, _Node]]:
    # The depth of a tree is bounded, and that of the calls with it.
    for name in sorted(folder.children):
        node = folder.children[name]
        below = f"{path}/{name}" if path else name
        yield below, node
        yield from _walk(node, below)


def _parts_of(path: str) -> list[str]:
    if len(path) > ENVIRONMENT_PATH_CHARS_MAX:
        raise _refused(path, f"has over {ENVIRONMENT_PATH_CHARS_MAX:,} letters")
    _require_text(path)
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise _refused(path, "leads out of its folder")
    if len(parts) > IMAGE_DEPTH_MAX:
        raise _refused(path, f"is over {IMAGE_DEPTH_MAX} folders deep")
    if any(len(part.encode()) > IMAGE_NAME_BYTES_MAX for part in parts):
        raise _refused(path, f"has a name of over {IMAGE_NAME_BYTES_MAX} bytes")
    return parts


def _require_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidError("the image has a name that is not UTF-8: it cannot be used") from None
    if "\0" in path:
        raise InvalidError("the image has a name with a zero byte: it cannot be used")


def _refused(path: str, reason: str) -> InvalidError:
    return InvalidError(f"the image cannot be used: {path[:200]!r} {reason}")
