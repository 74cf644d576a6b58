"""The stores of backups: a local directory, or a folder of any file system of fsspec.

A target needs four actions: read a file, write a new one that is there as a whole or not at all, list a
folder, and remove a file. Nothing is ever written again under the same path.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol, cast

from dios.client.written_files import make_folder, naming, sync_folder
from dios.errors import DiosError, InvalidError
from dios.installation import extra_command
from dios.lib.packs.failures import DamagedBackupError, TargetError

_NEW: Final = ".new-"
"""The beginning of the names of local files that are being written."""
_LOCAL: Final = frozenset({"file", "local"})
_USER: Final = re.compile(r"//[^/@]*@")


class Target(Protocol):
    """A store of backups."""

    @property
    def place(self) -> str:
        """The URL without user and password."""

    def read(self, path: str, size_max: int) -> bytes:
        """Return a whole file. Raises FileNotFoundError, DamagedBackupError if it is larger."""

    def write(self, path: str, data: bytes) -> None:
        """Store a new file. Raises FileExistsError."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if it does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""


def open_target(url: str) -> Target:
    """Return the store of a URL or a local path. Nothing is created before the first write.

    Raises InvalidError, and TargetError if the file system of the URL is not installed.
    """
    protocol, separator, rest = url.partition("://")
    if not separator:
        if not url:
            raise InvalidError("the target is empty. Give a directory, or a URL like s3://bucket/folder.")
        return LocalTarget(Path(url))
    if protocol in _LOCAL:
        if not rest.startswith("/"):
            raise InvalidError(
                f"{url!r} names no directory. A local target is file:///PATH, or just its path."
            )
        return LocalTarget(Path(rest))
    return FsspecTarget(url)


class LocalTarget:
    """A directory of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder.expanduser().resolve()
        self.place: Final = str(self._folder)

    def read(self, path: str, size_max: int) -> bytes:
        """Return a whole file."""
        with (self._folder / path).open("rb") as file:
            return _bounded(file.read(size_max + 1), size_max, path)

    def write(self, path: str, data: bytes) -> None:
        """Store a new file, and sync it, its folder, and the folders of those that are new."""
        place = self._folder / path
        make_folder(place.parent)
        if place.exists():
            raise FileExistsError(17, "the file exists already", str(place))
        fd, temporary = tempfile.mkstemp(prefix=_NEW, dir=place.parent)
        try:
            with naming(place), os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).rename(place)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(place.parent)

    def names(self, folder: str) -> list[str]:
        """Return the names of files."""
        try:
            names = [entry.name for entry in (self._folder / folder).iterdir()]
            return [name for name in names if not name.startswith(_NEW)]
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """Remove a file."""
        (self._folder / path).unlink()


class _FileSystem(Protocol):
    """The part of a file system of fsspec that a target uses."""

    def cat_file(self, path: str, start: int, end: int) -> bytes: ...

    def pipe_file(self, path: str, value: bytes) -> object: ...

    def makedirs(self, path: str, exist_ok: bool) -> object: ...  # noqa: FBT001 - fsspec has it so

    def exists(self, path: str) -> bool: ...

    def ls(self, path: str, detail: bool) -> list[str]: ...  # noqa: FBT001 - the same

    def rm_file(self, path: str) -> object: ...

    def invalidate_cache(self) -> object: ...


class FsspecTarget:
    """A folder of a file system of fsspec, such as a bucket.

    A file is there as a whole or not at all if the file system stores it so, as object stores do. Elsewhere
    a broken write leaves a file that cannot be authenticated.
    """

    def __init__(self, url: str) -> None:
        self.place: Final = _USER.sub("//", url).rstrip("/")
        protocol = url.partition("://")[0]
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra, and needed here alone

            filesystem, folder = url_to_fs(url)
        except ImportError as error:
            raise TargetError(
                f"targets with {protocol}:// need a package that is not installed ({error}). Install "
                "the package of that file system, such as s3fs for s3://, and fsspec: "
                f"{extra_command('fsspec')}. A directory needs neither."
            ) from None
        except ValueError as error:
            raise InvalidError(
                f"the target {self.place} cannot be used: {error}. `python -c 'import fsspec; "
                "print(fsspec.available_protocols())'` lists what can be written before ://"
            ) from None
        self._files: Final = cast("_FileSystem", filesystem)
        self._folder: Final = str(folder).rstrip("/")

    def read(self, path: str, size_max: int) -> bytes:
        """Return a whole file."""
        with self._using(f"read {path}"):
            return _bounded(self._files.cat_file(self._at(path), 0, size_max + 1), size_max, path)

    def write(self, path: str, data: bytes) -> None:
        """Store a new file."""
        place = self._at(path)
        with self._using(f"write {path}"):
            if self._files.exists(place):
                raise FileExistsError(17, "the file exists already", f"{self.place}/{path}")
            self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(place, data)

    def names(self, folder: str) -> list[str]:
        """Return the names of files."""
        with self._using(f"list {folder}"):
            self._files.invalidate_cache()
            try:
                paths = self._files.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                return []
            return [name.rstrip("/").rpartition("/")[2] for name in paths]

    def remove(self, path: str) -> None:
        """Remove a file."""
        with self._using(f"remove {path}"):
            self._files.rm_file(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._folder}/{path}"

    @contextlib.contextmanager
    def _using(self, action: str) -> Iterator[None]:
        try:
            yield
        except (DiosError, FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            # Each file system has errors of its own.
            raise TargetError(
                f"cannot {action} in {self.place}: {type(error).__name__}: {error}. Check the URL, the "
                "credentials and the connection; nothing that was stored before is affected."
            ) from error


def _bounded(data: bytes, size_max: int, path: str) -> bytes:
    if len(data) > size_max:
        raise DamagedBackupError(f"{path} is larger than anything that was stored there")
    return data
