"""Logs: one append-only file for each DURABLE_STREAM, beside the database and the extents.

Not for: saying how long a log is. Its row in the database does, in the transaction that acknowledges an
entry; what stands behind that in the file was never acknowledged, and is cut off at the next start.

An entry is its length and eight bytes of a BLAKE3 digest, over the object, its position and its bytes, and
then those. ``docs/store-format.md`` has the page for people.
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
    """One entry to write: the log, where in it, and its bytes."""

    object: ObjectId
    position: int
    data: bytes


class LogStore(Protocol):
    """What the host asks of logs."""

    def write(self, entries: Sequence[LogFrame]) -> None:
        """Make entries durable at their positions; nobody sees them before their rows tell of them.

        Raises NoSpaceError, DamagedError.
        """
        ...

    def read(self, target: ObjectId, position: int, length: int) -> bytes:
        """The bytes of a log in that range, as far as there are any; raises DamagedError."""
        ...

    def remove(self, targets: Iterable[ObjectId]) -> None:
        """Forget the logs of objects that have no row any more."""
        ...


def encode_frame(entry: LogFrame) -> bytes:
    """An entry as it stands in its log."""
    return _HEAD.pack(len(entry.data), _check(entry.object, entry.position, entry.data)) + entry.data


def whole_entries(target: ObjectId, position: int, data: bytes) -> int:
    """How many of the bytes of a log that were read at ``position`` are whole and sound entries.

    Raises DamagedError when the first one is not, or ``position`` is not where one begins.
    """
    done = 0
    while len(data) - done >= _HEAD.size:
        size, check = _HEAD.unpack_from(data, done)
        end = done + _HEAD.size + size
        if end > len(data) or check != _check(target, position + done, data[done + _HEAD.size : end]):
            break
        done = end
    if data and not done:
        # A read is long enough for any entry, so that it holds the first one whole.
        raise _unsound(target, position)
    return done


def _unsound(target: ObjectId, position: int) -> DamagedError:
    return DamagedError(
        f"no sound entry begins at position {position} of the log of {schema.object_text(target)}; "
        "read from a position that an earlier read told"
    )


def _check(target: ObjectId, position: int, data: bytes | memoryview) -> bytes:
    return blake3(_TAG + _PLACE.pack(target, position) + data).digest(8)


class LogFiles:
    """The folder of logs of one store. One thread writes; any may read."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._read: Final[_Cache] = OrderedDict()
        self._written: Final[_Cache] = OrderedDict()
        self._lock: Final = Lock()

    def settle(self, records: Iterable[ObjectRecord], *, complete: bool) -> list[str]:
        """At the start: cut off what was not acknowledged; what is damaged, one sentence each.

        Files of no object are removed, if every row could be read.
        """
        found: list[str] = []
        known = set()
        for record in records:
            if record.type is ObjectType.DURABLE_STREAM:
                known.add(record.object)
                size = self.size(record.object)
                if size < record.size:
                    found.append(schema.damaged(record, f"has a log file of {size} bytes").message)
                elif size > record.size:
                    os.truncate(self.path(record.object), record.size)
        if complete:
            self.remove([target for target in self.stored() if target not in known])
        return found

    def path(self, target: ObjectId) -> Path:
        """Where a log lies."""
        return self._folder / self.name(target)

    @staticmethod
    def name(target: ObjectId) -> str:
        """Where a log lies inside the folder."""
        name = f"{target:0{_DIGITS}x}"
        return f"{name[-2:]}/{name}"

    def size(self, target: ObjectId) -> int:
        """The size of a log's file in bytes; 0 when there is none."""
        try:
            return self.path(target).stat().st_size
        except FileNotFoundError:
            return 0

    def stored(self) -> Iterator[ObjectId]:
        """Every log that has a file; files whose names are not ours are left alone."""
        for file in sorted(self._folder.glob("??/*")):
            with contextlib.suppress(ValueError):
                target = ObjectId(int(file.name, 16))
                if self.path(target) == file:
                    yield target

    def write(self, entries: Sequence[LogFrame]) -> None:
        """Make entries durable; those of one log with one sync."""
        with translate_errors(self._folder, in_service=True):
            for target, runs in _runs(entries).items():
                for start, data in runs:
                    _write_at(self._to_write(target), start, data)
            for target in dict.fromkeys(entry.object for entry in entries):
                os.fdatasync(self._to_write(target))

    def read(self, target: ObjectId, position: int, length: int) -> bytes:
        """The bytes in that range, as far as there are any."""
        with translate_errors(self._folder, in_service=True), self._lock:
            fd = self._to_read(target)
            return b"" if fd is None else os.pread(fd, length, position)

    def remove(self, targets: Iterable[ObjectId]) -> None:
        """Remove the files; one that cannot be removed costs space until the next start."""
        for target in targets:
            with self._lock:
                for cache in (self._read, self._written):
                    fd = cache.pop(target, None)
                    if fd is not None:
                        os.close(fd)
            with contextlib.suppress(OSError):
                self.path(target).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of every file."""
        with self._lock:
            for cache in (self._read, self._written):
                while cache:
                    os.close(cache.popitem()[1])

    def _to_write(self, target: ObjectId) -> int:
        # The writer's descriptors are its own: nobody closes one under its hands.
        fd = _known(self._written, target)
        if fd is None:
            file = self.path(target)
            made = not file.exists()
            for folder in (self._folder, file.parent):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
                    sync_folder(folder.parent)
            fd = _keep(self._written, target, os.open(file, _FLAGS | os.O_RDWR | os.O_CREAT, 0o600))
            if made:
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
    """What is to be written, entries that follow each other together."""
    found: dict[ObjectId, list[tuple[int, bytearray]]] = {}
    for entry in entries:
        runs = found.setdefault(entry.object, [])
        if not runs or runs[-1][0] + len(runs[-1][1]) != entry.position:
            runs.append((entry.position, bytearray()))
        runs[-1][1].extend(encode_frame(entry))
    return found


def _write_at(fd: int, position: int, data: bytearray) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], position + done)


def log_problem(logs: LogFiles, record: ObjectRecord) -> str:
    """What is wrong with the entries of a log, up to the length that its record tells; empty for nothing."""
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
    """Logs as long as the process lives, for throw-away nodes."""

    def __init__(self) -> None:
        self._logs: Final[dict[ObjectId, bytearray]] = {}

    def write(self, entries: Sequence[LogFrame]) -> None:
        """Keep entries."""
        for entry in entries:
            log = self._logs.setdefault(entry.object, bytearray())
            del log[entry.position :]
            log += encode_frame(entry)

    def read(self, target: ObjectId, position: int, length: int) -> bytes:
        """The bytes in that range."""
        return bytes(self._logs.get(target, b"")[position : position + length])

    def remove(self, targets: Iterable[ObjectId]) -> None:
        """Forget them."""
        for target in targets:
            self._logs.pop(target, None)
