"""Archives of local packages: packed with all their files by a program, and unpacked where a worker imports.

An archive has the bytes of each file as they are, under the path that it has next to the package. Its digest
names its content, so equal packages are equal archives.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.util
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dios.client.task_main import add_modules
from dios.errors import InvalidError
from dios.limits import LOCAL_PACKAGE_BYTES_MAX, LOCAL_PACKAGE_FILES_MAX, MIB

IGNORE_FILE: Final = ".dios-ignore"
"""In the folder of a package: patterns of the files that are not sent, one in a line."""

_FOLDER: Final = "/tmp/.dios-packages"  # noqa: S108 - the private folder of a task
_VISITED_MAX: Final = 10 * LOCAL_PACKAGE_FILES_MAX


class Files(msgspec.Struct, frozen=True, array_like=True):
    """The files of a package by their paths, and the errors with which others could not be read."""

    contents: dict[str, bytes]
    unreadable: dict[str, str]

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Yield the names of the modules and their sources."""
        for path, content in self.contents.items():
            if path.endswith(".py"):
                yield path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), content


class Archive(msgspec.Struct, frozen=True, array_like=True):
    """The files of one top-level package or module."""

    name: str
    digest: str
    content: bytes
    """``Files`` in MessagePack."""
    blob: int = 0
    """The object id of a blob with the content, which is empty then."""
    is_spare: bool = False
    """True for a package that is installed where the program runs: a worker prefers one of its own."""
    problem: str = ""
    """The reason why the package is not sent."""

    def files(self) -> Files:
        """Return the content."""
        return msgspec.msgpack.decode(self.content, type=Files)


# -- the program's side -----------------------------------------------------------------------------
def pack(name: str, paths: Iterable[Path], *, is_spare: bool = False) -> Archive:
    """Return the archive of the folders, or the one file, of a top-level package, and its metadata.

    Raises InvalidError for a package over a bound; the message names a file to exclude.
    """
    files = [file for path in paths for file in _files(path)]
    if len(files) > LOCAL_PACKAGE_FILES_MAX:
        raise _over(name, f"{len(files):,} files, over {LOCAL_PACKAGE_FILES_MAX:,}", files[-1][1])
    sizes = {path: _size(path) for _, path in files}
    largest = max(sizes, key=lambda path: sizes[path], default=Path(name))
    total = sum(sizes.values())
    if total > LOCAL_PACKAGE_BYTES_MAX:
        size = f"{total / MIB:.0f} MiB, over {LOCAL_PACKAGE_BYTES_MAX // MIB}"
        raise _over(name, f"{size}, of which {largest} has {sizes[largest] / MIB:.0f}", largest)
    packed = Files({}, {})
    for key, path in sorted(files):
        try:
            packed.contents[key] = _read(path, sizes[path])
        except OSError as error:
            # The import, or the opening, of this file fails as it does here.
            packed.unreadable[key] = str(error)
    content = msgspec.msgpack.encode(packed)
    return Archive(name, hashlib.sha256(content).hexdigest(), content, is_spare=is_spare)


def _over(name: str, excess: str, file: Path) -> InvalidError:
    return InvalidError(
        f"the package {name} cannot be sent to workers: it has {excess}. Exclude files such as {file} by a "
        f"pattern in {IGNORE_FILE} in the folder of the package, or install the package where the nodes run"
    )


def _size(path: Path) -> int:
    """Return the size of a file, or 0 if it has gone meanwhile."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)  # not the whole: it may have grown


def _files(top: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder, or the one file, with their paths in an archive.

    Folders without ``__init__.py`` may have much that belongs to no package: only their sources count.
    """
    if not top.is_dir():
        yield top.name, top
        return
    patterns = _patterns(top)
    visited = 0
    # Of each folder, the real paths of those around it, and True inside a package.
    state = {str(top): (frozenset({os.path.realpath(top)}), top.name.endswith("-info"))}
    for folder, names, files in os.walk(top, followlinks=True):
        above, in_package = state.pop(folder)
        in_package = in_package or "__init__.py" in files
        relative = Path(folder).relative_to(top)
        visited += len(names) + len(files)
        if visited > _VISITED_MAX:
            raise _over(top.name, f"more than {_VISITED_MAX:,} files and folders", Path(folder))
        for name in list(names):
            real = os.path.realpath(Path(folder, name))
            if real in above or _is_ignored(relative / name, patterns):
                names.remove(name)
            else:
                state[str(Path(folder, name))] = above | {real}, in_package
        for name in files:
            path = Path(folder, name)
            is_wanted = in_package or path.suffix == ".py"
            key = str(Path(top.name) / relative / name)
            if is_wanted and not _is_ignored(relative / name, patterns) and _is_text(key) and _is_file(path):
                yield key, path


def _patterns(top: Path) -> list[str]:
    try:
        lines = (top / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{top / IGNORE_FILE} cannot be read: {error}") from error
    return [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]


def _is_ignored(path: Path, patterns: Sequence[str]) -> bool:
    """Return True for hidden files, compiled modules, and what matches by its name or its path."""
    if path.name.startswith(".") or path.name == "__pycache__" or path.suffix == ".pyc":
        return True
    return any(
        fnmatch.fnmatchcase(path.name, pattern) or fnmatch.fnmatchcase(str(path), pattern)
        for pattern in patterns
    )


def _is_text(name: str) -> bool:
    """Return False for the name of a file in an unknown encoding, which no import can need."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_file(path: Path) -> bool:
    """Return True for a regular file; False for a link that leads nowhere, a socket or a pipe."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


# -- the worker's side ------------------------------------------------------------------------------
class _NotSent:
    """Explains, as the last finder, why a package of the program is not here."""

    def __init__(self) -> None:
        self.problems: Final[dict[str, str]] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for a package that was not sent."""
        del path, target
        if name in self.problems:
            raise ModuleNotFoundError(self.problems[name], name=name)


_not_sent: Final = _NotSent()


def install(archives: Iterable[Archive]) -> None:
    """Let this process import packages from their archives, before its library; spare ones after it."""
    for archive in archives:
        if archive.is_spare and _is_installed(archive.name):
            continue
        if archive.problem:
            _not_sent.problems[archive.name] = archive.problem
            if _not_sent not in sys.meta_path:
                sys.meta_path.append(_not_sent)
            continue
        files = archive.files()
        folder = f"{_FOLDER}/{archive.digest[:32]}"
        try:
            _write(folder, files)
        except OSError:
            # A task may have no private folder, or not enough room there: its sources suffice for imports.
            add_modules({name: _source(content) for name, content in files.sources()})
            continue
        sys.path.insert(len(sys.path) if archive.is_spare else 0, folder)
    importlib.invalidate_caches()


def _source(content: bytes) -> str:
    """Return a source as text; of one that cannot be decoded, a source that raises the error."""
    try:
        return importlib.util.decode_source(content)
    except (SyntaxError, UnicodeDecodeError) as error:
        return f"raise SyntaxError({str(error)!r})\n"


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:  # noqa: BLE001 - of a finder of the program
        return False


def _write(folder: str, files: Files) -> None:
    failing = {path: f"raise PermissionError({reason!r})\n" for path, reason in files.unreadable.items()}
    for path, content in (files.contents | {path: text.encode() for path, text in failing.items()}).items():
        place = Path(folder, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        if path in failing and place.suffix != ".py":
            place.chmod(0)
