"""The files and directories of a WebAssembly module: its console, its inputs, and its private folder.

A module names each by a number or by a path below a directory that it has open. A path never leads above the
directory that it starts from.
"""

from __future__ import annotations

import fcntl
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from dios.client.wasm.codes import (
    ALL_RIGHTS,
    STREAM_RIGHTS,
    TO_READ,
    TO_WRITE,
    DescriptorFlag,
    FileType,
    OpenFlag,
    WasiCode,
    WasiError,
)
from dios.errors import ClosedError, EndOfStreamError, TimeLimitError
from dios.limits import STREAM_BATCH_BYTES, WASM_DESCRIPTORS_MAX, WASM_TRANSFER_BYTES

_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_FIRST_FREE: Final = 3
_OFFSET_MAX: Final = (1 << 63) - 1


class FileStatus(NamedTuple):
    """The attributes of a file; times are in nanoseconds since 1970."""

    file_type: FileType
    size: int = 0
    inode: int = 0
    links: int = 1
    accessed: int = 0
    modified: int = 0
    changed: int = 0


class DirectoryEntry(NamedTuple):
    """An entry in the list of a directory."""

    name: bytes
    file_type: FileType
    inode: int = 0


class Opening(NamedTuple):
    """The options with which a path is opened."""

    flags: OpenFlag
    read: bool
    write: bool
    append: bool


class OpenFile:
    """An open file without any operation; kinds of files define those that they have."""

    file_type = FileType.UNKNOWN
    rights = 0
    inheriting = 0
    flags = DescriptorFlag(0)

    def read(self, parts: Iterable[memoryview]) -> int:
        """Fill the parts from the position on, and return the number of bytes; 0 at the end."""
        raise WasiError(WasiCode.BAD_DESCRIPTOR)

    def write(self, parts: Iterable[memoryview]) -> int:
        """Write the parts at the position, and return the number of bytes."""
        raise WasiError(WasiCode.BAD_DESCRIPTOR)

    def read_at(self, parts: Iterable[memoryview], offset: int) -> int:
        """Fill the parts from an offset on, without moving the position."""
        raise WasiError(WasiCode.NOT_SEEKABLE)

    def write_at(self, parts: Iterable[memoryview], offset: int) -> int:
        """Write the parts at an offset, without moving the position."""
        raise WasiError(WasiCode.NOT_SEEKABLE)

    def seek(self, offset: int, whence: int) -> int:
        """Move the position and return it."""
        raise WasiError(WasiCode.NOT_SEEKABLE)

    def status(self) -> FileStatus:
        """Return the attributes of the file."""
        return FileStatus(self.file_type)

    def set_size(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        raise WasiError(WasiCode.INVALID)

    def set_flags(self, flags: DescriptorFlag) -> None:
        """Set the flags that can change while the file is open."""
        raise WasiError(WasiCode.NOT_SUPPORTED)

    def wait_readable(self, timeout_s: float) -> bool:
        """Wait until a read would not wait; return False after the time. Files are always ready."""
        del timeout_s
        return True

    def readable_bytes(self) -> int:
        """Return how many bytes a read gets without waiting; 0 if that is not known."""
        return 0

    def close(self) -> None:
        """Give back what the file holds."""


class ConsoleEnd(OpenFile):
    """Standard input, output or error of the task."""

    file_type = FileType.CHARACTER_DEVICE
    rights = STREAM_RIGHTS

    def __init__(self, number: int) -> None:
        self._number: Final = number

    def read(self, parts: Iterable[memoryview]) -> int:
        """Fill the parts, waiting for input if there is none."""
        return os.readv(self._number, list(parts))

    def write(self, parts: Iterable[memoryview]) -> int:
        """Write the parts to the console."""
        return os.writev(self._number, list(parts))


class InputFile(OpenFile):
    """An input: the bytes of an object, which are mapped and not copied."""

    file_type = FileType.REGULAR
    rights = ALL_RIGHTS & ~TO_WRITE

    def __init__(self, content: memoryview) -> None:
        self._content: Final = content
        self._position = 0

    def read(self, parts: Iterable[memoryview]) -> int:
        """Copy bytes from the position on into the parts."""
        done = self.read_at(parts, self._position)
        self._position += done
        return done

    def read_at(self, parts: Iterable[memoryview], offset: int) -> int:
        """Copy bytes from an offset on into the parts."""
        begin = offset
        for part in parts:
            chunk = self._content[offset : offset + part.nbytes]
            part[: chunk.nbytes] = chunk
            offset += chunk.nbytes
        return offset - begin

    def seek(self, offset: int, whence: int) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._content.nbytes}
        if whence not in bases or not 0 <= bases[whence] + offset <= _OFFSET_MAX:
            raise WasiError(WasiCode.INVALID)
        self._position = bases[whence] + offset
        return self._position

    def readable_bytes(self) -> int:
        """Return the number of bytes behind the position."""
        return max(0, self._content.nbytes - self._position)

    def status(self) -> FileStatus:
        return FileStatus(FileType.REGULAR, self._content.nbytes)


class StreamInput(OpenFile):
    """A stream that the task reads: its messages one behind the other, until its writer is closed."""

    file_type = FileType.CHARACTER_DEVICE
    rights = STREAM_RIGHTS

    def __init__(self, receive: Callable[[float | None], bytes]) -> None:
        self._receive: Final = receive
        self._rest = b""
        self._ended = False

    def read(self, parts: Iterable[memoryview]) -> int:
        """Fill the parts from one message, waiting for it if there is none."""
        self._wait(None)
        done = 0
        for part in parts:
            chunk = self._rest[: part.nbytes]
            part[: len(chunk)] = chunk
            self._rest = self._rest[len(chunk) :]
            done += len(chunk)
        return done

    def wait_readable(self, timeout_s: float) -> bool:
        try:
            self._wait(timeout_s)
        except TimeLimitError:
            return False
        return True

    def readable_bytes(self) -> int:
        """Return the number of bytes that are here."""
        return len(self._rest)

    def _wait(self, timeout_s: float | None) -> None:
        while not self._rest and not self._ended:
            try:
                # An empty message is none: a read of no bytes would be the end of the file.
                self._rest = self._receive(timeout_s)
            except EndOfStreamError:
                self._ended = True


class StreamOutput(OpenFile):
    """A stream that the task writes: each write is sent as messages."""

    file_type = FileType.CHARACTER_DEVICE
    rights = STREAM_RIGHTS

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send: Final = send

    def write(self, parts: Iterable[memoryview]) -> int:
        """Send the parts, waiting while the stream has no room."""
        done = 0
        try:
            for part in _in_pieces(parts, STREAM_BATCH_BYTES):
                self._send(bytes(part))
                done += part.nbytes
        except ClosedError:
            raise WasiError(WasiCode.PIPE) from None
        return done


class FolderFile(OpenFile):
    """A file in the private folder of the task."""

    file_type = FileType.REGULAR

    def __init__(self, number: int, how: Opening) -> None:
        self._number: Final = number
        self.rights = ALL_RIGHTS & ~(0 if how.read else TO_READ) & ~(0 if how.write else TO_WRITE)
        self.flags = DescriptorFlag.APPEND if how.append else DescriptorFlag(0)

    def read(self, parts: Iterable[memoryview]) -> int:
        return os.readv(self._number, list(parts))

    def write(self, parts: Iterable[memoryview]) -> int:
        """Write the parts at the position, or at the end if the file was opened to append."""
        return os.writev(self._number, list(parts))

    def read_at(self, parts: Iterable[memoryview], offset: int) -> int:
        begin = offset
        for part in _in_pieces(parts):
            chunk = os.pread(self._number, part.nbytes, offset)
            part[: len(chunk)] = chunk
            offset += len(chunk)
            if len(chunk) < part.nbytes:
                break
        return offset - begin

    def write_at(self, parts: Iterable[memoryview], offset: int) -> int:
        begin = offset
        for part in _in_pieces(parts):
            done = os.pwrite(self._number, part, offset)
            offset += done
            if done < part.nbytes:
                break
        return offset - begin

    def seek(self, offset: int, whence: int) -> int:
        if whence not in {os.SEEK_SET, os.SEEK_CUR, os.SEEK_END}:
            raise WasiError(WasiCode.INVALID)
        return os.lseek(self._number, offset, whence)

    def status(self) -> FileStatus:
        return _status_of(os.fstat(self._number))

    def set_size(self, size: int) -> None:
        os.ftruncate(self._number, size)

    def set_flags(self, flags: DescriptorFlag) -> None:
        """Begin or end to append."""
        append = os.O_APPEND if flags & DescriptorFlag.APPEND else 0
        present = fcntl.fcntl(self._number, fcntl.F_GETFL)
        fcntl.fcntl(self._number, fcntl.F_SETFL, (present & ~os.O_APPEND) | append)
        self.flags = flags & DescriptorFlag.APPEND

    def close(self) -> None:
        os.close(self._number)


class Directory(OpenFile, ABC):
    """An open directory that cannot be changed, unless a subclass permits it."""

    file_type = FileType.DIRECTORY
    rights = ALL_RIGHTS
    inheriting = ALL_RIGHTS

    def read(self, parts: Iterable[memoryview]) -> int:
        """Refuse it: a directory has no bytes."""
        raise WasiError(WasiCode.IS_DIRECTORY)

    def write(self, parts: Iterable[memoryview]) -> int:
        """Refuse it: a directory has no bytes."""
        raise WasiError(WasiCode.IS_DIRECTORY)

    @abstractmethod
    def open(self, path: str, how: Opening) -> OpenFile:
        """Open a file or a directory below this directory."""

    @abstractmethod
    def status_of(self, path: str) -> FileStatus:
        """Return the attributes of a file below this directory."""

    @abstractmethod
    def entries(self) -> list[DirectoryEntry]:
        """Return all entries, in an order that stays while nothing changes."""

    def host_path(self, path: str) -> str:
        """Return the path in the task's view of a file that may be changed."""
        raise WasiError(WasiCode.READ_ONLY)


class InputDirectory(Directory):
    """The directory ``/inputs``; it opens the inputs, and nothing in it can be changed."""

    def __init__(self, inputs: Mapping[str, Callable[[], OpenFile]]) -> None:
        self._inputs: Final = inputs

    def open(self, path: str, how: Opening) -> OpenFile:
        name = relative(path)
        if not name:
            return self
        if name not in self._inputs:
            raise WasiError(WasiCode.READ_ONLY if how.flags & OpenFlag.CREATE else WasiCode.NO_ENTRY)
        if how.flags & OpenFlag.CREATE and how.flags & OpenFlag.EXCLUSIVE:
            raise WasiError(WasiCode.EXISTS)
        if how.flags & OpenFlag.DIRECTORY:
            raise WasiError(WasiCode.NOT_DIRECTORY)
        if how.write or how.flags & OpenFlag.TRUNCATE:
            raise WasiError(WasiCode.READ_ONLY)
        return self._inputs[name]()

    def status_of(self, path: str) -> FileStatus:
        name = relative(path)
        if not name:
            return self.status()
        if name not in self._inputs:
            raise WasiError(WasiCode.NO_ENTRY)
        return self._inputs[name]().status()

    def entries(self) -> list[DirectoryEntry]:
        return [DirectoryEntry(name.encode(), FileType.REGULAR) for name in self._inputs]


class FolderDirectory(Directory):
    """A directory in the private folder of the task."""

    def __init__(self, path: str) -> None:
        self._path: Final = path

    def open(self, path: str, how: Opening) -> OpenFile:
        place = self.host_path(path)
        if how.flags & OpenFlag.DIRECTORY or (not how.write and _is_directory(place)):
            if not _is_directory(place):
                os.stat(place)  # noqa: PTH116 - for its error
                raise WasiError(WasiCode.NOT_DIRECTORY)
            return FolderDirectory(place)
        mode = (os.O_RDWR if how.read else os.O_WRONLY) if how.write else os.O_RDONLY
        mode |= os.O_CREAT if how.flags & OpenFlag.CREATE else 0
        mode |= os.O_EXCL if how.flags & OpenFlag.EXCLUSIVE else 0
        mode |= os.O_TRUNC if how.flags & OpenFlag.TRUNCATE else 0
        mode |= os.O_APPEND if how.append else 0
        return FolderFile(os.open(place, mode | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE), how)

    def status(self) -> FileStatus:
        return self.status_of("")

    def status_of(self, path: str) -> FileStatus:
        return _status_of(os.lstat(self.host_path(path)))

    def entries(self) -> list[DirectoryEntry]:
        with os.scandir(self._path) as scan:
            return sorted(
                DirectoryEntry(
                    os.fsencode(entry.name),
                    FileType.DIRECTORY if entry.is_dir(follow_symlinks=False) else FileType.REGULAR,
                    entry.inode(),
                )
                for entry in scan
            )

    def host_path(self, path: str) -> str:
        inside = relative(path)
        return f"{self._path}/{inside}" if inside else self._path


class OutputDirectory(FolderDirectory):
    """The directory ``/outputs``: files of the private folder, and the streams that the task writes."""

    def __init__(self, path: str, streams: Mapping[str, OpenFile]) -> None:
        super().__init__(path)
        self._streams: Final = streams

    def open(self, path: str, how: Opening) -> OpenFile:
        return self._streams.get(relative(path)) or super().open(path, how)

    def status_of(self, path: str) -> FileStatus:
        stream = self._streams.get(relative(path))
        return super().status_of(path) if stream is None else stream.status()

    def entries(self) -> list[DirectoryEntry]:
        streams = [DirectoryEntry(name.encode(), stream.file_type) for name, stream in self._streams.items()]
        return streams + super().entries()


class DescriptorTable:
    """The open files of a module by number, and the paths of the directories that it starts with."""

    def __init__(self, directories: Mapping[str, Directory]) -> None:
        self._files: Final[dict[int, OpenFile]] = {
            number: ConsoleEnd(number) for number in range(_FIRST_FREE)
        }
        self._paths: Final[dict[int, bytes]] = {}
        for path, directory in directories.items():
            self._paths[self.add(directory)] = path.encode()

    def get(self, number: int) -> OpenFile:
        """Return an open file."""
        try:
            return self._files[number]
        except KeyError:
            raise WasiError(WasiCode.BAD_DESCRIPTOR) from None

    def directory(self, number: int) -> Directory:
        """Return an open directory."""
        directory = self.get(number)
        if not isinstance(directory, Directory):
            raise WasiError(WasiCode.NOT_DIRECTORY)
        return directory

    def path_of(self, number: int) -> bytes:
        """Return the path of a directory that the module starts with."""
        if number not in self._paths:
            raise WasiError(WasiCode.BAD_DESCRIPTOR)
        return self._paths[number]

    def require_room(self) -> None:
        """Fail if no more files can be open."""
        if len(self._files) >= WASM_DESCRIPTORS_MAX:
            raise WasiError(WasiCode.TOO_MANY_FILES)

    def add(self, file: OpenFile) -> int:
        """Give an open file the lowest free number from 3 on, and return it."""
        number = next(
            candidate
            for candidate in range(_FIRST_FREE, WASM_DESCRIPTORS_MAX + 1)
            if candidate not in self._files
        )
        self._files[number] = file
        return number

    def close(self, number: int) -> None:
        """Close a file; its number is free again."""
        file = self.get(number)
        del self._files[number]
        self._paths.pop(number, None)
        file.close()

    def move(self, source: int, target: int) -> None:
        """Close ``target`` and give its number to the file ``source``."""
        file = self.get(source)
        self.get(target)
        if source == target:
            return
        self.close(target)
        del self._files[source]
        self._paths.pop(source, None)
        self._files[target] = file


def relative(path: str) -> str:
    """Return a path without ``.`` and ``..``; "" is the directory itself.

    Raise ``WasiError`` for a path that leads above the directory.
    """
    if path.startswith("/"):
        raise WasiError(WasiCode.NOT_PERMITTED)
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise WasiError(WasiCode.NOT_PERMITTED)
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)


def make_directory(path: str) -> None:
    """Make a directory at a path of ``host_path``."""
    os.mkdir(path, _DIRECTORY_MODE)  # noqa: PTH102 - a task loads no pathlib for it


def _is_directory(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - the same


def _status_of(status: os.stat_result) -> FileStatus:
    kind = FileType.DIRECTORY if stat.S_ISDIR(status.st_mode) else FileType.REGULAR
    times = status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns
    return FileStatus(kind, status.st_size, status.st_ino, status.st_nlink, *times)


def _in_pieces(parts: Iterable[memoryview], size: int = WASM_TRANSFER_BYTES) -> Iterable[memoryview]:
    """Cut parts, because the host copies each of them."""
    for part in parts:
        for begin in range(0, part.nbytes, size):
            yield part[begin : begin + size]
