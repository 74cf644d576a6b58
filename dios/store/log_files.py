"""Logs: one append-only file for each DURABLE_STREAM.

The length of a log is in its row of the database, which the transaction that acknowledges an entry changes.
Bytes after that length were never acknowledged; the next start cuts them off.

An entry is its length, eight bytes of a BLAKE3 digest over the object, its position and its bytes, and
then the bytes. ``docs/formats.md#the-store-on-disk`` has the format.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Protocol, TypeAlias

from blake3 import blake3

from dios import limits
from dios.core.events import ObjectRecord
from dios.errors import DamagedError
from dios.ids import ObjectId
from dios.store import schema
from dios.store.environment import translate_errors
from dios.store.extents import sync_folder
from dios.wire.types import ObjectType

_HEAD: Final = struct.Struct(">I8s")
_PLACE: Final = struct.Struct(">QQ")
_TAG: Final = b"dios log entry 1\0"
_DIGITS: Final = 16
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW

_Cache: TypeAlias = "OrderedDict[ObjectId, int]"

assert _HEAD.size == limits.LOG_HEAD_BYTES, "the core counts entries with their heads"  # noqa: S101


class LogFrame(NamedTuple):
    """One entry to write: the log, the position in it, and the bytes."""

    object: ObjectId
    position: int
    data: bytes


class LogStore(Protocol):
    """The interface of logs for the host."""

    def write(self, entries: Sequence[LogFrame]) -> None:
        """Make entries durable at their positions; they become visible with their rows.

        Raises NoSpaceError, DamagedError.
        """

    def read(self, target: ObjectId, position: int, length: int) -> bytes:
        """Return the existing bytes of a log in that range; raises DamagedError."""

    def remove(self, targets: Iterable[ObjectId]) -> None:
        """Remove the logs of objects that have no row any more."""


def encode_frame(entry: LogFrame) -> bytes:
    """Return the bytes of an entry in its log."""
    return _HEAD.pack(len(entry.data), _check(entry.object, entry.position, entry.data)) + entry.data


def whole_entries(target: ObjectId, position: int, data: bytes) -> int:
    """Return the number of bytes of complete, sound entries at the beginning of ``data``.

    ``data`` was read from the log at ``position``. Raises DamagedError if the first entry is damaged, or no
    entry begins at ``position``.
    """
    done = 0
    while len(data) - done >= _HEAD.size:
        size, check = _HEAD.unpack_from(data, done)
        end = done + _HEAD.size + size
        if end > len(data) or check != _check(target, position + done, data[done + _HEAD.size : end]):
            break
        done = end
    if data and not done:
        # A read is long enough for any entry, so that it has the first one completely.
        raise _unsound(target, position)
    return done


def _unsound(target: ObjectId, position: int) -> DamagedError:
    return DamagedError(
        f"no sound entry begins at position {position} of the log of {schema.object_text(target)}; "
        "read from a position that an earlier read returned"
    )


def _check(target: ObjectId, position: int, data: bytes | memoryview) -> bytes:
    return blake3(_TAG + _PLACE.pack(target, position) + data).digest(8)


class LogFiles:
    """The folder of logs of one store. One thread writes; any thread may read."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._read: Final[_Cache] = OrderedDict()
        self._written: Final[_Cache] = OrderedDict()
        self._lock: Final = Lock()

    def settle(self, records: Iterable[ObjectRecord], *, complete: bool) -> list[str]:
        """Cut off unacknowledged bytes at the start; return a sentence for each damaged log.

        Files without an object are removed, if every row could be read (``complete``).
        """
        problems: list[str] = []
        known = set()
        for record in records:
            if record.type is ObjectType.DURABLE_STREAM:
                known.add(record.object)
                size = self.size(record.object)
                if size < record.size:
                    problems.append(schema.damaged(record, f"has a log file of {size} bytes").message)
                elif size > record.size:
                    os.truncate(self.path(record.object), record.size)
        if complete:
            self.remove([target for target in self.stored() if target not in known])
        return problems

    def path(self, target: ObjectId) -> Path:
        """Return the path of a log."""
        return self._folder / self.name(target)

    @staticmethod
    def name(target: ObjectId) -> str:
        """Return the path of a log relative to the folder."""
        name = f"{target:0{_DIGITS}x}"
        return f"{name[-2:]}/{name}"

    def size(self, target: ObjectId) -> int:
        """Return the size of a log's file in bytes; 0 if there is none."""
        try:
            return self.path(target).stat().st_size
        except FileNotFoundError:
            return 0

    def stored(self) -> Iterator[ObjectId]:
        """Yield every log that has a file; files with other names are left alone."""
        for file in sorted(self._folder.glob("??/*")):
            with contextlib.suppress(ValueError):
                target = ObjectId(int(file.name, 16))
                if self.path(target) == file:
                    yield target

    def write(self, entries: Sequence[LogFrame]) -> None:
        """Make entries durable, with one sync per log."""
        with translate_errors(self._folder, in_service=True):
            for target, runs in _runs(entries).items():
                for start, data in runs:
                    _write_at(self._to_write(target), start, data)
            for target in dict.fromkeys(entry.object for entry in entries):
                os.fdatasync(self._to_write(target))

    def read(self, target: ObjectId, position: int, length: int) -> bytes:
        """Return the existing bytes in that range."""
        with translate_errors(self._folder, in_service=True), self._lock:
            fd = self._to_read(target)
            return b"" if fd is None else os.pread(fd, length, position)

    def remove(self, targets: Iterable[ObjectId]) -> None:
        """Remove the files; a file that cannot be removed takes space until the next start."""
        for target in targets:
            with self._lock:
                for cache in (self._read, self._written):
                    fd = cache.pop(target, None)
                    if fd is not None:
                        os.close(fd)
            with contextlib.suppress(OSError):
                self.path(target).unlink(missing_ok=True)

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for cache in (self._read, self._written):
                while cache:
                    os.close(cache.popitem()[1])

    def _to_write(self, target: ObjectId) -> int:
        # The writer has descriptors of its own, which no other thread closes.
        fd = _known(self._written, target)
        if fd is None:
            file = self.path(target)
            is_new = not file.exists()
            for folder in (self._folder, file.parent):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
                    sync_folder(folder.parent)
            fd = _keep(self._written, target, os.open(file, _FLAGS | os.O_RDWR | os.O_CREAT, 0o600))
            if is_new:
                sync_folder(file.parent)
        return fd

    def _to_read(self, target: ObjectId) -> int | None:
        fd = _known(self._read, target)
        if fd is None:
            with contextlib.suppress(FileNotFoundError):
                fd = _keep(self._read, target, os.open(self.path(target), _FLAGS | os.O_RDONLY))
        return fd


def _known(cache: _Cache, target: ObjectId) -> int | None:
    fd = cache.get(target)
    if fd is not None:
        cache.move_to_end(target)
    return fd


def _keep(cache: _Cache, target: ObjectId, fd: int) -> int:
    cache[target] = fd
    while len(cache) > limits.LOG_FILES_OPEN_MAX:
        os.close(cache.popitem(last=False)[1])
    return fd


def _runs(entries: Sequence[LogFrame]) -> dict[ObjectId, list[tuple[int, bytearray]]]:
    """Return the bytes to write per log, with adjacent entries joined."""
    runs_by_object: dict[ObjectId, list[tuple[int, bytearray]]] = {}
    for entry in entries:
        runs = runs_by_object.setdefault(entry.object, [])
        if not runs or runs[-1][0] + len(runs[-1][1]) != entry.position:
            runs.append((entry.position, bytearray()))
        runs[-1][1].extend(encode_frame(entry))
    return runs_by_object


def _write_at(fd: int, position: int, data: bytearray) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], position + done)


def log_problem(logs: LogFiles, record: ObjectRecord) -> str:
    """Return the fault of a log's entries up to the length in its record; empty if all are sound."""
    size = logs.size(record.object)
    if size < record.size:
        return f"has {size} bytes instead of {record.size}"
    position = 0
    try:
        while position < record.size:
            length = min(record.size - position, limits.INLINE_BYTES_MAX)
            position += whole_entries(record.object, position, logs.read(record.object, position, length))
    except DamagedError:
        return f"has no sound entry at position {position} of {record.size}"
    return ""


class MemoryLogs:
    """Logs in memory for temporary nodes."""

    def __init__(self) -> None:
        self._logs: Final[dict[ObjectId, bytearray]] = {}

    def write(self, entries: Sequence[LogFrame]) -> None:
        """Store entries."""
        for entry in entries:
            log = self._logs.setdefault(entry.object, bytearray())
            del log[entry.position :]
            log += encode_frame(entry)

    def read(self, target: ObjectId, position: int, length: int) -> bytes:
        """Return the existing bytes in that range."""
        return bytes(self._logs.get(target, b"")[position : position + length])

    def remove(self, targets: Iterable[ObjectId]) -> None:
        """Remove the logs."""
        for target in targets:
            self._logs.pop(target, None)
