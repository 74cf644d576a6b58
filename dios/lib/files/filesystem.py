"""The file system ``dios://group/path/name`` for fsspec, and so for pandas, Polars, pyarrow, DuckDB and Dask.

fsspec finds it by an entry point: ``fsspec.open("dios://…")`` needs no import of this module.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias, cast, get_args, overload

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction
from fsspec.utils import isfilelike, stringify_path

from dios.client.blob_file import BlobFile
from dios.client.ops.handles import Data
from dios.errors import DamagedError, InvalidError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.disks import has_kept_copies, hold_on, promised_disks
from dios.lib.files.downloads import copy_out, download
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.group_list import GroupList
from dios.lib.files.groups import ReachableGroups
from dios.lib.files.paths import PROTOCOL, parent_of, split_group
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tree import FileTree
from dios.lib.files.writers import FileWriter, TextWriter
from dios.lib.kept.promises import Promises
from dios.wire.nametext import fingerprint

Info: TypeAlias = dict[str, object]

BytesMode: TypeAlias = Literal["rb", "wb", "ab", "xb", "r+b", "w+b", "a+b", "x+b"]
TextMode: TypeAlias = Literal["r", "w", "a", "x", "r+", "w+", "a+", "x+", "rt", "wt", "at", "xt"]

_MODES: Final = frozenset(get_args(BytesMode))
_TEXT_ARGUMENTS: Final = ("encoding", "errors", "newline")


_PYARROW_S: Final = 0.1


class _Callback(Protocol):
    """The progress of a transfer, as fsspec has it."""

    def set_size(self, size: int) -> object:
        """Set the number of bytes of the whole."""

    def relative_update(self, moved: int) -> object:
        """Add a number of moved bytes."""


class FilesTransaction(Transaction):  # type: ignore[misc] # fsspec has no types
    """A transaction whose files become visible in one write for each group."""

    def complete(self, commit: bool = True) -> None:  # noqa: FBT001, FBT002 - fsspec calls it so
        """Make all files of the transaction visible, or none."""
        files = list(self.files)
        self.files.clear()
        together: dict[GroupList, StagedFiles] = {}
        try:
            if commit:
                for file in files:
                    file.close()
                    staged = file.staged
                    if staged.files in together:
                        together[staged.files].take(staged)
                    else:
                        together[staged.files] = staged
                for staged in together.values():
                    staged.publish()
            else:
                for file in files:
                    file.discard()
        finally:
            owner = cast("DiosFileSystem | None", getattr(self, "fs", None))
            if owner is not None:
                owner.end_deferring()
            self.fs = None


class _Deferred:
    """Changes of a transaction that are no open file: they are part of it like its files."""

    def __init__(self, staged: StagedFiles) -> None:
        self.staged: Final = staged

    def close(self) -> None:
        """Do nothing: they are stored."""

    def discard(self) -> None:
        """Leave everything as it was."""
        self.staged.discard()


@atexit.register
def _let_pyarrow_finish() -> None:
    """Wait at the end of a program for the threads in which pyarrow has used Python files.

    They still release these files when their results are there already. A thread of C++ that needs the
    interpreter while it ends is stopped by it, and then the process aborts: with pyarrow 26 and Python 3.11
    that happens with every file system in Python. pyarrow has no call that waits for its threads.
    """
    if "pyarrow" in sys.modules:
        time.sleep(_PYARROW_S)


class DiosFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The files of the groups in your keyring, or of those that a task was given.

    ``node`` is a data directory or socket, by default the configured node. Paths are ``group/path/name``.
    A file is written as a whole: readers see it when it is closed, and see the old content until then, also
    if the writer fails. Reading needs no copy: ``open`` returns a file over the object's bytes, and ``view``
    returns them. Errors about paths are those of Python's files, errors of the node ``dios.DiosError``.
    """

    protocol = PROTOCOL
    root_marker = ""
    transaction_type = FilesTransaction

    def __init__(self, node: str | None = None, **storage_options: object) -> None:
        if self._cached:
            return
        super().__init__(node=node, **storage_options)
        self._groups: Final = ReachableGroups(node)
        self._local: Final = threading.local()

    def end_deferring(self) -> None:
        """End a transaction: from now on files become visible when they are closed."""
        self._intrans = False
        self._transaction = None

    @classmethod
    def _strip_protocol(cls, path: object) -> object:
        if isinstance(path, list):
            return [cls._strip_protocol(single_path) for single_path in path]
        text = str(stringify_path(path))
        return text.removeprefix(f"{PROTOCOL}://").removeprefix(f"{PROTOCOL}::").strip("/")

    def _place(self, path: object) -> tuple[GroupFiles, str, str]:
        """Return the group's files, its alias, and the path in it."""
        alias, inner = split_group(str(self._strip_protocol(path)))
        if not alias:
            raise IsADirectoryError(21, "the root has groups only", str(path))
        return self._groups.files(alias), alias, inner

    # -- listing --------------------------------------------------------------------------------------
    def ls(self, path: str, detail: bool = True, **_options: object) -> list[Info] | list[str]:  # noqa: FBT001, FBT002
        """Return the files and directories in a directory, or the file itself; "" lists the groups."""
        if not self._strip_protocol(path):
            infos = [_directory(alias) for alias in self._groups.aliases()]
        else:
            files, alias, inner = self._place(path)
            tree = files.tree()
            if tree.is_file(inner):
                infos = [_described(tree, alias, inner)]
            elif tree.is_directory(inner):
                infos = [_described(tree, alias, child) for child in tree.children(inner)]
            else:
                raise FileNotFoundError(2, "there is no such file or directory", str(path))
        return infos if detail else [str(info["name"]) for info in infos]

    def info(self, path: str, **_options: object) -> Info:
        """Return name, size in bytes, type, and for a file the time of its creation."""
        if not self._strip_protocol(path):
            return _directory("")
        files, alias, inner = self._place(path)
        return _described(files.tree(), alias, inner)

    def exists(self, path: str, **_options: object) -> bool:
        """Return True if there is a file or directory. A list that cannot be read is an error, not absent."""
        return self._type_of(path) is not None

    def isfile(self, path: str) -> bool:
        """Return True if there is a file with this path; raises as ``exists`` does."""
        return self._type_of(path) == "file"

    def isdir(self, path: str) -> bool:
        """Return True if there is a directory with this path; raises as ``exists`` does."""
        return self._type_of(path) == "directory"

    def _type_of(self, path: str) -> object:
        try:
            return self.info(path)["type"]
        except FileNotFoundError:
            return None

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,  # noqa: FBT001, FBT002 - fsspec's order
        detail: bool = False,  # noqa: FBT001, FBT002 - the same
        **_options: object,
    ) -> list[str] | dict[str, Info]:
        """Return all files below a path, sorted, with ``withdirs`` the directories, too."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        infos: dict[str, Info] = {}
        if not self._strip_protocol(path):
            for alias in self._groups.aliases():
                if withdirs:
                    infos[alias] = _directory(alias)
                if maxdepth != 1:
                    infos |= self._found(alias, "", None if maxdepth is None else maxdepth - 1, withdirs)
        else:
            with contextlib.suppress(FileNotFoundError):
                _, alias, inner = self._place(path)
                infos = self._found(alias, inner, maxdepth, withdirs)
                if withdirs and self._groups.files(alias).tree().is_directory(inner):
                    infos[_joined(alias, inner)] = _directory(_joined(alias, inner))
        names = sorted(infos)
        return {name: infos[name] for name in names} if detail else names

    def _found(self, alias: str, inner: str, depth: int | None, withdirs: bool) -> dict[str, Info]:  # noqa: FBT001
        tree = self._groups.files(alias).tree()
        if tree.is_file(inner):
            return {_joined(alias, inner): _described(tree, alias, inner)}
        if not tree.is_directory(inner):
            return {}
        return {
            _joined(alias, descendant): _described(tree, alias, descendant)
            for descendant in tree.below(inner, depth)
            if withdirs or tree.is_file(descendant)
        }

    def created(self, path: str) -> datetime:
        """Return the time at which the file's present content was stored."""
        return cast("datetime", self.info(path)["created"])

    def modified(self, path: str) -> datetime:
        """Return the time at which the file's present content was stored."""
        return self.created(path)

    def ukey(self, path: str) -> str:
        """Return a text that changes with every change of the file."""
        files, _, inner = self._place(path)
        return fingerprint(files.entry(inner).name)

    # -- reading --------------------------------------------------------------------------------------
    def view(self, path: str, start: int | None = None, end: int | None = None) -> memoryview:
        """Return a read-only view of a file, or of a range of it.

        It stays valid, with these bytes, when the file is replaced or removed. There is no copy, unless the
        range is in several parts of a large file.
        """
        files, _, inner = self._place(path)
        return files.view(inner, start, end)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_options: object
    ) -> bytes:
        """Return the bytes of a file, or of a range of it; a negative bound counts from the end."""
        return bytes(self.view(path, start, end))

    def cat_ranges(
        self,
        paths: list[str],
        starts: Sequence[int | None] | int | None,
        ends: Sequence[int | None] | int | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **_options: object,
    ) -> list[bytes | Exception]:
        """Return a range of each path, as bytes; each file that is one object is opened once.

        ``max_gap`` is a hint to read ranges together, and changes nothing: the bytes are in memory already.
        """
        del max_gap
        first = [starts] * len(paths) if starts is None or isinstance(starts, int) else starts
        last = [ends] * len(paths) if ends is None or isinstance(ends, int) else ends
        views: dict[str, memoryview] = {}
        contents: list[bytes | Exception] = []
        for path, start, end in zip(paths, first, last, strict=True):
            try:
                files, _, inner = self._place(path)
                if files.readable(inner).in_parts:
                    contents.append(bytes(files.view(inner, start, end)))
                    continue
                if path not in views:
                    views[path] = files.view(inner)
                contents.append(bytes(views[path][start:end]))
            except Exception as error:
                if on_error != "return":
                    raise
                contents.append(error)
        return contents

    @overload
    def open(
        self, path: str, mode: BytesMode = "rb", *arguments: object, **options: object
    ) -> io.BufferedIOBase: ...

    @overload
    def open(self, path: str, mode: TextMode, *arguments: object, **options: object) -> io.TextIOWrapper: ...

    @overload
    def open(
        self, path: str, mode: str, *arguments: object, **options: object
    ) -> io.BufferedIOBase | io.TextIOWrapper: ...

    def open(
        self, path: str, mode: str = "rb", *arguments: object, **options: object
    ) -> io.BufferedIOBase | io.TextIOWrapper:
        """Open a file: "rb", "wb", "xb" (new only), "ab", each also with "+", and the same as text.

        A file for writing is stored and becomes visible when it is closed, unless its ``with`` body raises.
        """
        if "b" in mode or options.get("compression") is not None:
            return cast("io.BufferedIOBase", super().open(path, mode, *arguments, **options))
        text = {key: cast("str | None", options.pop(key, None)) for key in _TEXT_ARGUMENTS}
        file = super().open(path, mode.replace("t", "") + "b", *arguments, **options)
        if isinstance(file, FileWriter):
            return TextWriter(file, text["encoding"], text["errors"], text["newline"])
        encoding = text["encoding"] or "utf-8"
        return io.TextIOWrapper(file, encoding=encoding, errors=text["errors"], newline=text["newline"])

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,  # noqa: ARG002 - pages have the size of a part
        autocommit: bool = True,  # noqa: FBT001, FBT002 - fsspec's order
        cache_options: object = None,  # noqa: ARG002 - the same
        **_options: object,
    ) -> BlobFile | io.BufferedReader | FileWriter:
        if mode not in _MODES:
            raise ValueError(f"a file cannot be opened with mode {mode!r}")
        files, _, inner = self._place(path)
        if mode == "rb":
            return files.open(inner)
        tree = files.tree()
        tree.require_room(inner)
        staged = StagedFiles(files)
        original, size = None, 0
        if mode.startswith("x"):
            if tree.is_file(inner):
                raise FileExistsError(17, "there is a file with this path", path)
            staged.require_new(inner)
        elif mode.startswith("r") or (mode.startswith("a") and tree.is_file(inner)):
            entry = files.readable(inner)
            original, size = files.original(entry)
            staged.require_unchanged(inner, entry.name)
        elif mode.startswith("a"):
            staged.require_new(inner)
        # fsspec adds no file to a transaction whose mode has an "r".
        commits = autocommit or mode.startswith("r")
        if original is None:
            return FileWriter(staged, inner, mode, autocommit=commits)
        return FileWriter(staged, inner, mode, original, size, autocommit=commits)

    def get_file(
        self,
        rpath: str,
        lpath: str | io.IOBase | None = None,
        callback: _Callback = DEFAULT_CALLBACK,
        outfile: io.IOBase | None = None,
        **_options: object,
    ) -> None:
        """Write a file to a local path, which it takes when it is complete, or to an open file.

        For a directory a local directory is made.
        """
        output = lpath if outfile is None and isfilelike(lpath) else outfile
        if output is None and self.isdir(rpath):
            Path(str(lpath)).mkdir(parents=True, exist_ok=True)
            return
        files, _, inner = self._place(rpath)
        entry = files.entry(inner)
        callback.set_size(entry.size)
        if output is not None:
            copy_out(files, entry, cast("io.BufferedIOBase", output), callback.relative_update)
            return
        target = Path(str(lpath)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            # A device or a pipe is written, and not replaced for everybody.
            with target.open("wb") as device:
                copy_out(files, entry, device, callback.relative_update)
            return
        download(files, entry, target, callback.relative_update)

    # -- writing --------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _together(self) -> Iterator[dict[str, StagedFiles]]:
        """Collect the changes of a body, and make them visible in one write for each group at its end."""
        outer = getattr(self._local, "staged", None)
        if outer is not None:
            yield outer
            return
        staged: dict[str, StagedFiles] = {}
        self._local.staged = staged
        try:
            yield staged
        except BaseException:
            for staged_files in staged.values():
                staged_files.discard()
            raise
        finally:
            self._local.staged = None
        for staged_files in staged.values():
            if self._intrans:
                self.transaction.files.append(_Deferred(staged_files))
            else:
                staged_files.publish()

    def _add(self, path: str, add: Callable[[StagedFiles, str], None]) -> None:
        files, alias, inner = self._place(path)
        with self._together() as staged:
            if alias not in staged:
                staged[alias] = StagedFiles(files)
            add(staged[alias], inner)

    def pipe_file(self, path: str, value: Data, mode: str = "overwrite", **_options: object) -> None:
        """Store bytes as a file, copied once; FileExistsError with mode "create" if there is one."""
        files, _, inner = self._place(path)
        if mode == "create" and files.tree().is_file(inner):
            raise FileExistsError(17, "there is a file with this path", path)

        def add(staged: StagedFiles, place: str) -> None:
            if mode == "create":
                staged.require_new(place)
            staged.add_bytes(place, value)

        self._add(path, add)

    def pipe(self, path: str | Mapping[str, Data], value: Data | None = None, **options: object) -> None:
        """Store bytes as a file, or a mapping of paths to bytes; they become visible together."""
        with self._together():
            super().pipe(path, value, **options)

    def put_file(
        self,
        lpath: str,
        rpath: str,
        callback: _Callback = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **_options: object,
    ) -> None:
        """Store a local file, copied once, or a directory without its content."""
        local = Path(lpath)
        if local.is_dir():
            self.makedirs(rpath, exist_ok=True)
            return
        files, _, inner = self._place(rpath)
        if mode == "create" and files.tree().is_file(inner):
            raise FileExistsError(17, "there is a file with this path", rpath)
        with local.open("rb", buffering=0) as file:
            size = local.stat().st_size
            callback.set_size(size)

            def add(staged: StagedFiles, place: str) -> None:
                if mode == "create":
                    staged.require_new(place)
                staged.add_file(place, file, size, callback.relative_update)

            self._add(rpath, add)

    def put(self, lpath: object, rpath: object, *arguments: object, **options: object) -> None:
        """Store local files; they become visible together, or none of them does."""
        with self._together():
            super().put(lpath, rpath, *arguments, **options)

    def cp_file(self, path1: str, path2: str, **_options: object) -> None:
        """Copy a file, or make a directory of the same name."""
        recorded = getattr(self._local, "pairs", None)
        if recorded is not None:
            # ``mv`` lets ``copy`` find out which path becomes which.
            recorded.append((path1, path2))
            return
        files, _, inner = self._place(path1)
        if files.tree().is_directory(inner):
            self.makedirs(path2, exist_ok=True)
            return
        entry = files.readable(inner)
        if entry.in_parts:
            parts = files.parts(entry)
            self._add(path2, lambda staged, place: staged.add_source(place, parts, entry.size))
            return
        view = files.view(inner)
        self._add(path2, lambda staged, place: staged.add_bytes(place, view))

    def copy(self, path1: object, path2: object, *arguments: object, **options: object) -> None:
        """Copy files; the copies become visible together, or none of them does."""
        with self._together():
            super().copy(path1, path2, *arguments, **options)

    def touch(self, path: str, truncate: bool = True, **_options: object) -> None:  # noqa: FBT001, FBT002
        """Store an empty file; without ``truncate`` leave a file as it is."""
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")

    # -- directories ----------------------------------------------------------------------------------
    def mkdir(self, path: str, create_parents: bool = True, **_options: object) -> None:  # noqa: FBT001, FBT002
        """Make a directory, with its parents. `dios group create` makes a group."""
        files, _, inner = self._place(path)
        tree = files.tree()
        if tree.is_directory(inner):
            raise FileExistsError(17, "there is a directory with this path", path)
        if not create_parents and not tree.is_directory(parent_of(inner)):
            raise FileNotFoundError(2, "there is no such directory", parent_of(inner))
        tree.require_room(inner, directory=True)
        self._add(path, lambda staged, place: staged.add_directory(place))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - fsspec's order
        """Make a directory with its parents; with ``exist_ok`` it may exist."""
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        files, _, inner = self._place(path)
        tree = files.tree()
        if not tree.is_directory(inner):
            kind = NotADirectoryError if tree.is_file(inner) else FileNotFoundError
            raise kind("there is no such directory", path)
        if not inner or tree.children(inner):
            raise OSError(39, "the directory is not empty", path)
        files.remove([inner])

    # -- moving and removing --------------------------------------------------------------------------
    def mv(
        self,
        path1: object,
        path2: object,
        recursive: bool = False,  # noqa: FBT001, FBT002 - fsspec's order
        maxdepth: int | None = None,
        **_options: object,
    ) -> None:
        """Move files or directories. Within a group it is one write of the catalogue: nothing is copied."""
        if path1 == path2:
            return
        whole = recursive or (isinstance(path1, str) and self.isdir(path1))
        pairs: list[tuple[str, str]] = []
        self._local.pairs = pairs
        try:
            super().copy(path1, path2, recursive=whole, maxdepth=maxdepth, on_error="raise")
        finally:
            self._local.pairs = None
        inside: dict[str, dict[str, str]] = {}
        across: list[tuple[str, str]] = []
        for old, new in pairs:
            (alias, source), (other, target) = split_group(old), split_group(new)
            if alias == other:
                inside.setdefault(alias, {})[source] = target
            else:
                across.append((old, new))
        for alias, moved in inside.items():
            self._groups.files(alias).move(moved)
        if across:
            if self._intrans:
                raise InvalidError(
                    "in a transaction no file is moved to another group: its copy is not visible before the "
                    "end, and the file would be removed at once. Move it before or afterwards."
                )
            self.copy([old for old, _ in across], [new for _, new in across])
            for old, new in across:
                self._require_kept(old, new)
            self._remove([old for old, _ in across])

    def _require_kept(self, path: str, copied: str) -> None:
        """Make the promised replicas of a copy of a file in another group, and compare their bytes with it.

        Raises DamagedError, or UnreachableError if too few nodes take them. Both files stay then.
        """
        source, _, inner = self._place(path)
        target, _, place = self._place(copied)
        if not source.tree().is_file(inner):
            return
        former, entry = source.entry(inner), target.entry(place)
        if (former.digest or entry.digest) != entry.digest:
            raise DamagedError(
                f"{copied} does not have the bytes that were put as {path}, which stays. Look at its "
                "replicas with `dios stat`."
            )
        disks = promised_disks(Promises(target.node).known(), target.group, entry)
        for name in entry.names if disks > 1 else ():
            hold_on(target.node, target.group, name, disks)
        if not has_kept_copies(target.node, target.group, entry, disks):
            raise DamagedError(
                f"{copied} is on fewer than {disks} nodes with the right bytes, so that {path} stays, too"
            )

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        files, _, inner = self._place(path)
        files.entry(inner)
        files.remove([inner])

    def rm(
        self,
        path: object,
        recursive: bool = False,  # noqa: FBT001, FBT002 - fsspec's order
        maxdepth: int | None = None,
    ) -> None:
        """Remove files, with ``recursive`` directories with their content, in one write for each group."""
        paths = cast("list[str]", self.expand_path(path, recursive=recursive, maxdepth=maxdepth))
        if not recursive:
            for single_path in paths:
                files, _, inner = self._place(single_path)
                files.entry(inner)
        self._remove(paths)

    def _remove(self, paths: Iterable[str]) -> None:
        for_group: dict[str, list[str]] = {}
        for path in paths:
            files, alias, inner = self._place(path)
            tree = files.tree()
            if inner in tree.files or inner in tree.explicit_directories:
                for_group.setdefault(alias, []).append(inner)
            elif not tree.is_directory(inner):
                raise FileNotFoundError(2, "there is no such file or directory", path)
        for alias, inner_paths in for_group.items():
            self._groups.files(alias).remove(inner_paths)


def _joined(alias: str, inner: str) -> str:
    return f"{alias}/{inner}" if inner else alias


def _directory(name: str) -> Info:
    return {"name": name, "size": 0, "type": "directory"}


def _described(tree: FileTree, alias: str, inner: str) -> Info:
    name = _joined(alias, inner)
    entry: CatalogueEntry | None = tree.files.get(inner)
    if entry is not None:
        created = datetime.fromtimestamp(entry.put_ns / 1e9, UTC)
        times = {"created": created, "mtime": entry.put_ns / 1e9}
        return {"name": name, "size": entry.size, "type": "file", **times}
    if tree.is_directory(inner):
        return _directory(name)
    raise FileNotFoundError(2, "there is no such file or directory", name)
