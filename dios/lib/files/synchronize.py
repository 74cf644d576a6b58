"""Make a directory of a group equal to a local directory, or the reverse, by copying only what differs.

Files are equal if their size and their digest are. ``plan_put`` and ``plan_get`` compare and change nothing;
``put`` and ``get`` carry a plan out in portions that are complete, and large files in parts, so that an
interrupted run is continued by the next one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from blake3 import blake3

from dios import limits
from dios.errors import InvalidError
from dios.lib.catalogue import CatalogueEntry, why_not_stored
from dios.lib.files.downloads import download, is_partial
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import stored_path
from dios.lib.files.sources import Moved
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tree import FileTree
from dios.lib.files.uploads import part_bytes_for
from dios.wire.types import ObjectType

_CHUNK_BYTES: Final = 4 * limits.MIB
_PORTION_BYTES: Final = 1 * limits.GIB
_PORTION_FILES: Final = 4_096


LeftOut: TypeAlias = Callable[[Path, str], object]
"""A function that notes a local file that cannot be stored, and why."""

GoingOn: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""A function of a path, whose context notes the error of copying that file, if the others can be copied."""


class LocalFile(NamedTuple):
    """A local file or directory, and its path below the directory that is compared."""

    local: Path
    path: str
    size: int | None
    """None for a directory."""


class SyncPlan(NamedTuple):
    """The differences between two directories. All paths are relative to them."""

    copied: dict[str, int]
    """The files to copy, with their sizes."""
    directories: list[str]
    """The directories to make."""
    deleted: list[str]
    """The files and directories that only the destination has, deepest first."""
    unchanged: int

    @property
    def size(self) -> int:
        """The number of bytes to copy."""
        return sum(self.copied.values())


def local_tree(root: Path, left_out: LeftOut, prefix: str = "") -> Iterator[LocalFile]:
    """Yield everything below a directory but unfinished files of ``download``; paths are below ``prefix``.

    Symbolic links to directories are not followed. ``left_out`` notes what cannot be stored: names that are
    no text, devices, pipes, sockets, links to nothing, and what cannot be read.
    """

    def unreadable(error: OSError) -> None:
        left_out(Path(error.filename), error.strerror or str(error))

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders.sort()
        below = f"{prefix}/{Path(folder).relative_to(root).as_posix()}"
        for name in list(folders):
            place = Path(folder, name)
            if place.is_symlink():
                continue
            path = _storable(place, f"{below}/{name}", left_out)
            if path:
                yield LocalFile(place, path, None)
            else:
                folders.remove(name)
        for name in sorted(name for name in names if not is_partial(name)):
            place = Path(folder, name)
            path = _storable(place, f"{below}/{name}", left_out)
            size = _size(place, left_out) if path else None
            if size is not None:
                yield LocalFile(place, path, size)


def _storable(place: Path, path: str, left_out: LeftOut) -> str:
    """Return the path under which something is stored, or "" if that is not possible."""
    stored = stored_path(path)
    why = why_not_stored(stored)
    if why:
        left_out(place, why)
    return "" if why else stored


def _size(place: Path, left_out: LeftOut) -> int | None:
    """Return the size of a local file; None if it is nothing that can be stored."""
    try:
        if place.is_file() and not os.access(place, os.R_OK):
            left_out(place, os.strerror(errno.EACCES))
            return None
        if place.is_file():
            return size_of(place)
        left_out(place, "it is a link to nothing" if place.is_symlink() else "it is no regular file")
    except FileNotFoundError:
        left_out(place, "it is gone")
    return None


def size_of(path: Path) -> int:
    """Return the size of a local file; InvalidError if it cannot be stored."""
    status = path.stat()
    if not path.is_file():
        raise InvalidError(f"{path} is not a regular file and cannot be stored")
    part_bytes_for(status.st_size)
    return status.st_size


def digest_of(path: Path) -> bytes:
    """Return the digest of a local file, read a piece at a time."""
    digest, piece = blake3(), bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file, memoryview(piece) as view:
        while got := file.readinto(view):
            digest.update(view[:got])
    return digest.digest()


def plan_put(
    root: Path, files: GroupFiles, inner: str, left_out: LeftOut, *, delete: bool = False
) -> SyncPlan:
    """Compare a local directory with a directory of a group, which is to become equal to it."""
    unread: set[str] = set()

    def note(place: Path, why: str) -> None:
        left_out(place, why)
        unread.add(stored_path(f"./{place.relative_to(root).as_posix()}"))

    local = {file.path: file for file in local_tree(root, note)}
    tree = files.tree()
    copied: dict[str, int] = {}
    unchanged = 0
    for path, local_file in local.items():
        if local_file.size is None:
            continue
        entry = tree.files.get(_joined(inner, path))
        if (
            entry is not None
            and entry.size == local_file.size
            and _digest(files, entry) == digest_of(local_file.local)
        ):
            unchanged += 1
        else:
            copied[path] = local_file.size
    directories = [path for path, directory in local.items() if directory.size is None]
    new = [path for path in directories if not tree.is_directory(_joined(inner, path))]
    below = _below(files, tree, inner)
    gone = [
        path
        for path in below
        if (path not in local or (local[path].size is None) is tree.is_file(below[path]))
        and not _is_below(path, unread)
    ]
    return SyncPlan(copied, new, sorted(gone, reverse=True) if delete else [], unchanged)


def plan_get(
    files: GroupFiles, inner: str, root: Path, left_out: LeftOut, *, delete: bool = False
) -> SyncPlan:
    """Compare a directory of a group with a local directory, which is to become equal to it."""
    local = (
        {local_file.path: local_file for local_file in local_tree(root, left_out)} if root.is_dir() else {}
    )
    tree = files.tree()
    below = _below(files, tree, inner)
    copied: dict[str, int] = {}
    directories: list[str] = []
    unchanged = 0
    for path, full in below.items():
        here = local.get(path)
        if not tree.is_file(full):
            if here is None:
                directories.append(path)
            continue
        entry = tree.files[full]
        same = here is not None and here.size == entry.size
        if same and here is not None and digest_of(here.local) == _digest(files, entry):
            unchanged += 1
        else:
            copied[path] = entry.size
    gone = [
        path
        for path, local_file in local.items()
        if path not in below or (local_file.size is None) is tree.is_file(below[path])
    ]
    return SyncPlan(copied, directories, sorted(gone, reverse=True) if delete else [], unchanged)


def put(
    root: Path,
    files: GroupFiles,
    inner: str,
    plan: SyncPlan,
    left_out: LeftOut,
    moved: Moved = lambda _: None,
    *,
    secrecy: Sequence[str] | None = None,
) -> SyncPlan:
    """Carry out a plan of ``plan_put``: a portion of files becomes visible when all of it is stored.

    ``secrecy`` are tags of the new objects, in addition to those of the group. Return what was done: without
    the files that cannot be opened, which ``left_out`` notes. Nothing more is deleted then.
    """
    in_the_way = _in_the_way(plan)
    _remove(files, inner, in_the_way)
    staged = StagedFiles(files, secrecy=secrecy)
    copied: dict[str, int] = {}
    portion = count = 0
    try:
        for path in plan.directories:
            staged.add_directory(_joined(inner, path))
        for path in plan.copied:
            try:
                file = (root / path).open("rb", buffering=0)
            except OSError as error:
                left_out(root / path, error.strerror or str(error))
                continue
            with file:
                size = copied[path] = os.fstat(file.fileno()).st_size
                staged.add_file(_joined(inner, path), file, size, moved)
            portion, count = portion + size, count + 1
            if portion >= _PORTION_BYTES or count >= _PORTION_FILES:
                staged.publish()
                staged = StagedFiles(files, secrecy=secrecy)
                portion = count = 0
        staged.publish()
    except BaseException:
        staged.suspend()
        raise
    done = _done(plan, copied, in_the_way)
    _remove(files, inner, [path for path in done.deleted if path not in in_the_way])
    return done


def _done(plan: SyncPlan, copied: dict[str, int], in_the_way: Collection[str]) -> SyncPlan:
    """Return a plan without what was not copied; then only what was in the way is deleted."""
    if len(copied) == len(plan.copied):
        return plan._replace(copied=copied)
    return plan._replace(copied=copied, deleted=list(in_the_way))


def _remove(files: GroupFiles, inner: str, paths: Iterable[str]) -> None:
    tree = files.tree()
    full = [_joined(inner, path) for path in paths]
    gone = [path for path in full if tree.is_file(path) or path in tree.explicit_directories]
    if gone:
        files.remove(gone)


def get(
    files: GroupFiles,
    inner: str,
    root: Path,
    plan: SyncPlan,
    moved: Moved = lambda _: None,
    *,
    going_on: GoingOn = nullcontext,
) -> SyncPlan:
    """Carry out a plan of ``plan_get``: each file appears when it is complete and its digest is right.

    Return what was done: without the files that cannot be read or written, whose errors are ``going_on``'s.
    Nothing more is deleted then.
    """
    in_the_way = _in_the_way(plan)
    copied: dict[str, int] = {}
    _unlink(root, in_the_way)
    root.mkdir(parents=True, exist_ok=True)
    for path in plan.directories:
        (root / path).mkdir(parents=True, exist_ok=True)
    for path in plan.copied:
        target = root / path
        with going_on(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            download(files, files.entry(_joined(inner, path)), target, moved)
            copied[path] = plan.copied[path]
    done = _done(plan, copied, in_the_way)
    _unlink(root, [path for path in done.deleted if path not in in_the_way])
    return done


def _unlink(root: Path, paths: Iterable[str]) -> None:
    for path in paths:
        target = root / path
        if target.is_dir() and not target.is_symlink():
            target.rmdir()
        else:
            target.unlink()


def _in_the_way(plan: SyncPlan) -> dict[str, None]:
    """Return the paths to delete first: files where directories are needed, and the reverse."""
    new = plan.copied.keys() | set(plan.directories)

    return dict.fromkeys(path for path in plan.deleted if _is_below(path, new))


def _is_below(path: str, places: Collection[str]) -> bool:
    """Return True if a path is one of the places, or below one of them; "" is above all."""
    parts = path.split("/")
    return any("/".join(parts[:depth]) in places for depth in range(len(parts) + 1))


def _joined(inner: str, path: str) -> str:
    return f"{inner}/{path}" if inner else path


def _below(files: GroupFiles, tree: FileTree, inner: str) -> Mapping[str, str]:
    """Return the relative and the whole path of everything below a directory but logs, parents first."""
    if inner and tree.is_file(inner):
        raise InvalidError(f"{inner!r} is a file, and only directories are synchronized. Use put and get.")
    if not tree.is_directory(inner):
        return {}
    start = len(inner) + 1 if inner else 0
    return {
        path[start:]: path
        for path in tree.below(inner)
        if not (tree.is_file(path) and _is_log(files, tree.files[path]))
    }


def _digest(files: GroupFiles, entry: CatalogueEntry) -> bytes:
    """Return the digest of a stored file; of those without one the bytes are read."""
    return entry.digest or blake3(files.view(stored_path(entry.file))).digest()


def _is_log(files: GroupFiles, entry: CatalogueEntry) -> bool:
    """Return True if an entry is the one of a log, which has neither a size nor a digest."""
    if entry.size or entry.digest:
        return False
    reference = files.node.find(entry.name, group=files.group)
    if reference is None:
        return False
    with reference:
        return reference.type is ObjectType.DURABLE_STREAM
