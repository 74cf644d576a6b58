"""The read-only view: a root directory that contains the interpreter's library and nothing else.

Every pure task gets it (ADR 0002). The view consists of mounts that are cloned before any directory is
covered, so the trees may be anywhere on the machine. It has no /proc, /sys or /etc, and nothing in it can be
written. Of the machine's devices it has /dev/null alone, which keeps nothing (ADR 0002). It also has a
directory and links for the private folder of each task, which is mounted later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dios.host.confinement import linux_calls, memory_mounts, private_folder

_AT_RECURSIVE: Final = 0x8000
_AT_EMPTY_PATH: Final = 0x1000
_CLONE: Final = 1
_CLOEXEC: Final = 0o2000000
_RECURSIVE: Final = 0x4000
_PRIVATE: Final = 0x40000
_DETACH: Final = 2
_ROOT_OPTIONS: Final = {"size": "1m", "mode": "0755"}
_SEALED: Final = memory_mounts.READ_ONLY | memory_mounts.NO_SUID | memory_mounts.NO_DEV
_SEALED_DEVICE: Final = memory_mounts.READ_ONLY | memory_mounts.NO_SUID | memory_mounts.NO_EXEC
"""Writing to a device is no change of its mount; changing its mode or times is."""

_UNSEALED: Final = memory_mounts.NO_SUID | memory_mounts.NO_DEV | memory_mounts.NO_EXEC

_NULL_NUMBER: Final = os.makedev(1, 3)

NULL: Final = "/dev/null"
"""Programs open it to discard what they write (os.devnull)."""

NO_LINKS: Final[Mapping[str, str]] = {}

ENVIRONMENT: Final = "/environment"
"""The place of the packages of the tasks' environment."""

FOR_ENVIRONMENTS: Final = frozenset({"user", "mount", "landlock"})
"""The mechanisms without which no task has an environment."""

DATA_OF_THE_C_LIBRARY: Final = ("/usr/share/zoneinfo", "/usr/lib/locale/C.utf8")
"""Time zones and the locale of a task's environment. The C library opens them by these paths."""


def import_first_from(folder: str, path: list[str]) -> None:
    """Add a folder to a list of folders of modules: before the packages of this machine, after the library.

    Its files with the suffix .pth have no effect.
    """
    places = [place for place, entry in enumerate(path) if entry.endswith("-packages")]
    path.insert(min(places, default=len(path)), folder)


class ViewParts(NamedTuple):
    """What a view is built of: links by path, and mounts that are nowhere yet, with their places.

    Of each mount, ``clones`` has the path, True for a directory, and the descriptor.
    """

    links: dict[str, str]
    clones: list[tuple[str, bool, int]]


def enter_user_namespace(flags: int) -> None:
    """Unshare a user namespace, and those of ``flags``, in which the own user and group map to themselves.

    Raise ``OSError`` on machines that deny user namespaces to ordinary users.
    """
    user, group = os.geteuid(), os.getegid()
    # A process that changed its user is not dumpable, and then cannot write its own maps.
    linux_calls.prctl(linux_calls.PR_SET_DUMPABLE, 1)
    linux_calls.syscall("unshare", linux_calls.CLONE_NEWUSER | flags)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - no pathlib in the zygote
            file.write(text)


def library_trees(paths: Iterable[str]) -> list[str]:
    """Return every path that a task may read: of the interpreter, of loaded modules, and ``paths``.

    The result has real paths, none inside another. A package outside the interpreter's trees adds only its
    own directory, never the directory in which it was found.
    """
    # Not from sysconfig: its table of the interpreter's build would take half a megabyte in every child.
    prefixes = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)]
    candidates = {os.path.dirname(os.__file__), *paths}  # noqa: PTH120 - no pathlib in the zygote
    candidates.update(path for path in sys.path if _inside(path, prefixes))
    candidates.difference_update(prefixes)
    candidates.update(DATA_OF_THE_C_LIBRARY)
    trees = _outermost(candidates)
    for name, module in list(sys.modules.items()):
        if "." in name or name == "__main__":
            continue
        file = getattr(module, "__file__", None)
        places = list(getattr(module, "__path__", ())) or ([file] if file else [])
        candidates.update(place for place in places if isinstance(place, str) and not _inside(place, trees))
    for path in _loaded_libraries():
        if not _inside(path, trees):
            candidates.add(os.path.dirname(path))  # noqa: PTH120 - no pathlib in the zygote
    return _outermost(candidates)


def _loaded_libraries() -> set[str]:
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - no pathlib in the zygote
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    return {path for path in paths if ".so" in path and os.path.exists(path)}  # noqa: PTH110 - the same


def _inside(path: str, trees: Iterable[str]) -> bool:
    real = os.path.realpath(path)
    return any(real == tree or real.startswith(tree + "/") for tree in trees)


def _outermost(paths: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths}):
        if path != "/" and os.path.exists(path) and not _inside(path, kept):  # noqa: PTH110 - no pathlib here
            kept.append(path)
    return kept


def _links(trees: list[str], paths: Iterable[str]) -> dict[str, str]:
    """Return links in the machine's root that lead into the view; the loader and sys.path use them."""
    known = ["/lib", "/lib64", "/lib32", "/usr/lib64", *sys.path, sys.prefix, sys.base_prefix, *paths]
    links: dict[str, str] = {}
    for path in known:
        parts = [part for part in path.split("/") if part]
        for count in range(1, len(parts) + 1):
            prefix = "/" + "/".join(parts[:count])
            if os.path.islink(prefix) and not _inside(os.path.dirname(prefix), trees):  # noqa: PTH114, PTH120 - the same
                links[prefix] = os.path.realpath(prefix)
    return links


def _links_of_files(trees: list[str], paths: Iterable[str]) -> dict[str, str]:
    """Return links for those of ``paths`` that are links themselves, each in its real directory."""
    known = [f"{os.path.realpath(os.path.dirname(path))}/{os.path.basename(path)}" for path in paths]  # noqa: PTH119, PTH120 - no pathlib here
    return {
        path: os.path.realpath(path)
        for path in known
        if os.path.islink(path) and not _inside(os.path.dirname(path), trees)  # noqa: PTH114, PTH120 - the same
    }


def are_open_to_all(trees: Iterable[str]) -> bool:
    """Return True if every user may enter the folders in which ``trees`` are."""
    folders = {os.path.dirname(tree) for tree in trees}  # noqa: PTH120 - no pathlib in the zygote
    while folders - {"/"}:
        if not all(os.stat(folder).st_mode & stat.S_IXOTH for folder in folders):  # noqa: PTH116 - the same
            return False
        folders = {os.path.dirname(folder) for folder in folders}  # noqa: PTH120 - the same
    return True


def parts_of(
    trees: list[str],
    paths: Iterable[str] = (),
    extra: Mapping[str, str] = NO_LINKS,
    added: Mapping[str, str] = NO_LINKS,
) -> ViewParts:
    """Clone the mounts for a view of ``trees``; this needs the right to mount. Raise ``OSError``.

    ``paths`` are names of files in ``trees``, which may lead through links, and ``extra`` has further links.
    ``added`` has further folders of the machine by their places in the view.
    """
    paths = list(paths)
    links = _links(trees, map(os.path.dirname, paths)) | _links_of_files(trees, paths) | dict(extra)
    clones = [(path, os.path.isdir(path), _clone(path)) for path in trees]  # noqa: PTH112 - no pathlib here
    clones += [(place, True, _clone(path)) for place, path in added.items()]
    if has_null() and not _inside(NULL, trees):
        # The view has none if the machine does not permit this mount.
        with contextlib.suppress(OSError):
            clones.append((NULL, False, _clone(NULL, _SEALED_DEVICE)))
    return ViewParts(links, clones)


def clone(
    path: str, place: str = "", *, is_device: bool = False, is_sealed: bool = True
) -> tuple[str, bool, int]:
    """Clone one more mount for a view, at ``path`` or another place. Raise ``OSError``."""
    attributes = _SEALED_DEVICE if is_device else _SEALED if is_sealed else _UNSEALED
    return place or path, os.path.isdir(path), _clone(path, attributes)  # noqa: PTH112 - no pathlib here


def enter(parts: ViewParts, folders: Iterable[str] = ()) -> None:
    """Build a root and move the calling process into it; needs an own mount namespace.

    ``folders`` are places of further, empty folders. Raise ``OSError``. The process must then only report the
    error and end.
    """
    linux_calls.syscall("mount", None, b"/\0", None, _PRIVATE | _RECURSIVE, None)
    root = memory_mounts.new(_ROOT_OPTIONS)
    # Tasks run as another user, which must be able to read the view even if the node has a strict umask.
    umask = os.umask(0o022)
    try:
        memory_mounts.place(root, "/")
        os.fchdir(root)
        for path, is_directory, clone in parts.clones:
            _place(path, clone, is_directory=is_directory)
        _make_directories(private_folder.MOUNT_POINT)
        _make_directories(private_folder.NEXT)
        for folder in folders:
            _make_directories(folder)
        for path, target in (parts.links | private_folder.LINKS).items():
            _make_directories(os.path.dirname(path))  # noqa: PTH120 - no pathlib in the zygote
            if not os.path.lexists("." + path):
                os.symlink(target, "." + path)  # noqa: PTH211 - the same
        _seal(root, 0)
        linux_calls.syscall("pivot_root", b".\0", b".\0")
        linux_calls.syscall("umount2", b".\0", _DETACH)
        os.chdir("/")
    finally:
        os.umask(umask)
        os.close(root)
        for _, _, clone in parts.clones:
            os.close(clone)


def has_null() -> bool:
    """Return True if NULL is the device that keeps nothing, and not something else with its name."""
    try:
        info = os.stat(NULL)  # noqa: PTH116 - no pathlib in the zygote
    except OSError:
        return False
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == _NULL_NUMBER


def _clone(path: str, attributes: int = _SEALED) -> int:
    flags = _CLONE | _CLOEXEC | _AT_RECURSIVE
    try:
        clone = linux_calls.syscall("open_tree", memory_mounts.AT_FDCWD, os.fsencode(path) + b"\0", flags)
    except OSError as error:
        error.filename = path
        if error.errno == errno.EACCES:
            error.strerror = "tasks cannot enter it: put Python and DIOS where every user may read them"
        raise
    _seal(clone, _AT_RECURSIVE, attributes)
    return clone


def _seal(mount: int, flags: int, attributes: int = _SEALED) -> None:
    # Private, so that no mount made on one side ever appears on the other.
    change = struct.pack("=4Q", attributes, 0, _PRIVATE, 0)
    linux_calls.syscall("mount_setattr", mount, b"\0", _AT_EMPTY_PATH | flags, change, len(change))


def _place(path: str, clone: int, *, is_directory: bool) -> None:
    _make_directories(path if is_directory else os.path.dirname(path))  # noqa: PTH120 - no pathlib in the zygote
    if not is_directory:
        os.close(os.open("." + path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    memory_mounts.place(clone, "." + path)


def _make_directories(path: str) -> None:
    os.makedirs("." + path, mode=0o755, exist_ok=True)  # noqa: PTH103 - no pathlib in the zygote
