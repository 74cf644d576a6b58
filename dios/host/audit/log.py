"""The audit log: an append-only file of principals' operations on objects, chained by BLAKE3.

The core decides which records are made (``effects.Audit``). The chain shows that a record was changed,
removed, inserted or moved. Signed heads (``dios.host.audit.heads``) show that a new chain was computed.
Reading and verifying are in ``dios.host.audit.reader``; ``docs/formats.md`` describes the bytes.

Appending a record costs an encoding and a digest. The host batches writes and syncs.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import itertools
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import trio
from blake3 import blake3
from msgspec import Meta

from dios import limits
from dios.core.effects import Audit
from dios.errors import DamagedError, DiosError, NoSpaceError
from dios.wire.fields import Nanoseconds

FORMAT_VERSION: Final = 2
READ_VERSIONS: Final = frozenset({1, 2})
"""Version 1 had no records with a count, and a log that was never cut."""
MAGIC: Final = b"DIOSAUD\0"
DIGEST_BYTES: Final = 32
REMOVAL: Final = ("audit", "removed")
"""Action and outcome of a record about removed segments; its subject and detail are in the format's page."""
GENESIS: Final = blake3(b"dios audit log 1").digest()
"""The digest that the first record of a log is chained to."""

HEADER: Final = struct.Struct("<8sIIQ32s")
LENGTH: Final = struct.Struct("<I")
_pack_length: Final = LENGTH.pack
_encode: Final = msgspec.msgpack.Encoder().encode

_Text: TypeAlias = Annotated[str, Meta(max_length=limits.AUDIT_RECORD_BYTES_MAX)]
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class AuditRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One stored record. ``now`` is in nanoseconds; names appear only as fingerprints.

    A record of several equal refusals has their number in ``count``, and the time of the first in ``first``.
    """

    now: Nanoseconds
    action: _Text
    outcome: _Text
    principal: _Text
    task: _Text
    subject: _Text
    detail: _Text
    count: _Count = 1
    first: Nanoseconds = 0


_decode: Final = msgspec.msgpack.Decoder(AuditRecord).decode


class ClosedSegment(NamedTuple):
    """A segment that is complete. ``end`` is the index after its last record, ``digest`` that record's."""

    number: int
    end: int
    digest: bytes
    size: int
    closed_ns: int


class LogPosition(NamedTuple):
    """A place in the log: the number of records before it, and the digest of the last of them."""

    records: int
    digest: bytes


class BacklogLevel(enum.IntEnum):
    """The amount of records that are in memory only, because the log cannot be written."""

    NONE = 0
    SOME = 1
    """Over AUDIT_BUFFER_BYTES_MAX: calls that leave a record should be refused."""
    HIGH = 2
    """Over AUDIT_BACKLOG_BYTES_MAX: no call that can leave a record may be executed."""


class FormatError(Exception):
    """A record or header that the writer cannot have written."""


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of segment ``number`` (from 1) of the log in ``folder``."""
    return folder / f"{number:08}.audit"


def segments(folder: Path) -> list[Path]:
    """Return the paths of a log's segments, oldest first."""
    return sorted(folder.glob("[0-9]*.audit"))


def chained(previous: bytes, body: bytes) -> bytes:
    """Return the digest of a record with ``body`` that follows a record with digest ``previous``."""
    return blake3(previous + body).digest()


def unpack_header(data: bytes) -> tuple[int, int, int, bytes]:
    """Return a segment's version, number, its first record's index and previous digest. Raise FormatError."""
    magic, version, number, first, previous = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FormatError("this is not an audit segment (wrong magic bytes)")
    if version not in READ_VERSIONS:
        raise FormatError(
            f"its format version is {version}; this program reads versions up to {FORMAT_VERSION}"
        )
    return version, number, first, previous


def raw_records(data: bytes, start: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield offset, body and stored digest of each complete record, and stop at the first incomplete one."""
    end = len(data)
    while start + LENGTH.size <= end:
        (length,) = LENGTH.unpack_from(data, start)
        body = start + LENGTH.size
        stop = body + length + DIGEST_BYTES
        if not 0 < length <= limits.AUDIT_RECORD_BYTES_MAX or stop > end:
            return
        yield start, data[body : body + length], data[body + length : stop]
        start = stop


class AuditLog:
    """The writer of an audit log. Only ``sync`` may run in another thread, concurrently with the rest."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = limits.AUDIT_SEGMENT_BYTES,
        bytes_max: int = 0,
        age_ms_max: int = 0,
    ) -> None:
        """Open or create the log in ``folder``; cut off a record torn by a crash and keep it in a file.

        ``plan_removal`` keeps the log within ``bytes_max`` and ``age_ms_max``; 0 for no bound.
        ``recovered`` then describes the cut, and so does a record in the log itself. Raise DamagedError if
        the last segment is not an audit segment.
        """
        self._folder: Final = folder
        self._segment_bytes: Final = segment_bytes
        self._bytes_max: Final = bytes_max
        self._age_ns_max: Final = age_ms_max * 1_000_000
        self._closed: deque[ClosedSegment] = deque()
        self._began_ns = 0
        self._appended = trio.Event()
        self._buffer = bytearray()
        self._digest = GENESIS
        self._count = 0
        self._size = 0
        self._number = 0
        self._fd = -1
        self._retired: list[int] = []
        self._syncing: Final = threading.Lock()
        self._flushed = LogPosition(0, GENESIS)
        self.durable = LogPosition(0, GENESIS)
        """The end of the records that would survive a power failure; sync moves it on."""
        self.recovered = ""
        self.pressure = BacklogLevel.NONE
        self.trouble = ""
        """The reason of the last failed flush, in the system's words."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths = segments(folder)
        if paths:
            self._resume(paths)
        else:
            self._begin_segment()

    @property
    def records(self) -> int:
        """The number of records in the log, including those not yet flushed."""
        return self._count

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size for segment in self._closed) + self._size + len(self._buffer)

    @property
    def head(self) -> str:
        """The digest of the newest record in hex; keep it in another place as an anchor."""
        return self._digest.hex()

    async def wait_appended(self) -> None:
        """Wait for the next record after the last call."""
        await self._appended.wait()
        self._appended = trio.Event()

    def append(self, record: Audit, count: int = 1, first_ns: int = 0) -> int:
        """Append a record to the chain and keep it in memory until ``flush``; no record is lost here.

        ``count`` is the number of equal actions that it stands for, and ``first_ns`` the time of the first of
        them. Return the number of bytes by which the log grows.
        ``pressure`` rises when the disk has been full for so long that the buffer is full too; the caller
        must then refuse calls.
        """
        buffer = self._buffer
        self._appended.set()
        if len(buffer) >= limits.AUDIT_BUFFER_BYTES_MAX:
            with contextlib.suppress(DiosError):
                self.flush()
        more = (count, first_ns) if count > 1 else ()
        body = _encode(
            (
                record.now,
                record.action,
                record.outcome,
                record.principal,
                record.task,
                record.subject,
                record.detail,
                *more,
            )
        )
        if len(body) > limits.AUDIT_RECORD_BYTES_MAX:
            body = self._shortened(record, more)
        if not self._began_ns:
            self._began_ns = record.now
        digest = blake3(self._digest + body).digest()
        buffer += _pack_length(len(body))
        buffer += body
        buffer += digest
        self._digest = digest
        self._count += 1
        return LENGTH.size + len(body) + DIGEST_BYTES

    def flush(self) -> None:
        """Write the appended records to the file; start a new segment when the present segment is full.

        Raise NoSpaceError or DamagedError; the records stay in memory and a later flush continues.
        """
        buffer = self._buffer
        while buffer:
            try:
                written = os.write(self._fd, buffer)
            except OSError as error:
                self.trouble = error.strerror or str(error)
                self._measure()
                raise self._translated(error) from error
            self._size += written
            del buffer[:written]
        self.pressure = BacklogLevel.NONE
        self._flushed = LogPosition(self._count, self._digest)
        if self._size >= self._segment_bytes:
            self._begin_segment()

    def sync(self) -> None:
        """Wait until everything flushed so far would survive a power failure; for a worker thread.

        Raise NoSpaceError or DamagedError if the device fails; a later sync continues.
        """
        with self._syncing:
            flushed = self._flushed
            try:
                # The present segment first: a segment that is retired meanwhile is then synced after it.
                if self._fd >= 0:
                    os.fdatasync(self._fd)
                while self._retired:
                    os.fdatasync(self._retired[0])
                    os.close(self._retired.pop(0))
            except OSError as error:
                raise self._translated(error) from error
            self.durable = flushed

    def plan_removal(self, now: int) -> list[Path]:
        """Return the oldest segments that exceed the log's size or age, after a record that says so.

        The record has the index after the last removed record and its digest, which the rest of the chain
        continues. Sync the log, then pass the segments to ``remove``. Raise NoSpaceError or DamagedError if
        the record cannot be written: nothing may be removed then.
        """
        if self._age_ns_max and self._began_ns and now - self._began_ns > self._age_ns_max:
            self.flush()
            if self._size > HEADER.size:
                self._begin_segment()
        over = self.size + self._segment_bytes - self._bytes_max if self._bytes_max else 0
        removed: list[ClosedSegment] = []
        for segment in self._closed:
            old = self._age_ns_max and now - segment.closed_ns > self._age_ns_max
            if over <= 0 and not old:
                break
            removed.append(segment)
            over -= segment.size
        if not removed:
            return []
        first, last = removed[0], removed[-1]
        detail = (
            f"{last.digest.hex()} is the last digest; "
            f"segments {first.number} to {last.number} with {sum(segment.size for segment in removed)} bytes"
        )
        self.append(Audit(now, *REMOVAL, "node", "", str(last.end), detail))
        self.flush()
        for _ in removed:
            self._closed.popleft()
        return [segment_path(self._folder, segment.number) for segment in removed]

    def remove(self, planned: list[Path]) -> None:
        """Remove segments, the oldest first, after the record about them is durable; for a worker thread."""
        for path in planned:
            path.unlink(missing_ok=True)
        self._sync_folder()

    def close(self) -> None:
        """Flush, sync and close the files."""
        if self._fd < 0:
            return
        try:
            self.flush()
            self.sync()
        finally:
            with self._syncing:
                fds = [*self._retired, self._fd]
                self._retired, self._fd = [], -1
                for fd in fds:
                    os.close(fd)

    def _measure(self) -> None:
        size = len(self._buffer)
        if size >= limits.AUDIT_BACKLOG_BYTES_MAX:
            self.pressure = BacklogLevel.HIGH
        elif size >= limits.AUDIT_BUFFER_BYTES_MAX:
            self.pressure = BacklogLevel.SOME
        else:
            self.pressure = BacklogLevel.NONE

    def _shortened(self, record: Audit, more: tuple[int, ...]) -> bytes:
        texts = (record.action, record.outcome, record.principal, record.task, record.subject, record.detail)
        return _encode((record.now, *(text[:1024] for text in texts), *more))

    def _translated(self, error: OSError) -> DiosError:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return NoSpaceError(
                f"cannot extend the audit log in {self._folder}: {error.strerror}. Free some disk space."
            )
        return DamagedError(f"cannot write the audit log in {self._folder}: {error.strerror}")

    def _begin_segment(self) -> None:
        """Continue in a new file; the old one stays open until it has been synced."""
        number = self._number + 1
        path = segment_path(self._folder, number)
        header = HEADER.pack(MAGIC, FORMAT_VERSION, number, self._count, self._digest)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                # Unbuffered: a partly written header is an error, never the beginning of a segment.
                self._write_whole(fd, header)
                self._sync_folder()
            except OSError:
                os.close(fd)
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._translated(error) from error
        if self._fd >= 0:
            self._retired.append(self._fd)
            closed = ClosedSegment(self._number, self._count, self._digest, self._size, time.time_ns())
            self._closed.append(closed)
        self._fd, self._number, self._size, self._began_ns = fd, number, len(header), 0

    def _write_whole(self, fd: int, data: bytes) -> None:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _resume(self, paths: list[Path]) -> None:
        """Find the end of the newest segment and cut off a record that a crash left incomplete."""
        last = paths[-1]
        data = last.read_bytes()
        if len(data) < HEADER.size:
            # The crash happened while this segment was created, so it has no records.
            last.unlink()
            if len(paths) == 1:
                self._begin_segment()
                return
            self._resume(paths[:-1])
            return
        try:
            version, number, count, digest = unpack_header(data)
        except FormatError as damage:
            raise DamagedError(
                f"{last}: {damage}. Move this file away, and start with --accept-lost-audit."
            ) from None
        end = HEADER.size
        for offset, body, stored in raw_records(data, end):
            stop = offset + LENGTH.size + len(body) + DIGEST_BYTES
            # Only the last record can be torn. Earlier records are checked by verify.
            if stop == len(data) and chained(digest, body) != stored:
                break
            end, count, digest = stop, count + 1, stored
            self._began_ns = self._began_ns or _time_of(body)
        self._number, self._count, self._digest, self._size = number, count, digest, end
        self._flushed = LogPosition(count, digest)  # a full disk keeps the record about a cut in memory
        self._fd = os.open(last, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if end < len(data):
            self._set_aside(last, data[end:])
        self._closed = _closed_segments(paths, last)
        if version != FORMAT_VERSION:
            # A program that reads that version only must not meet records that it cannot read.
            self.flush()
            self._begin_segment()

    def _set_aside(self, segment: Path, torn: bytes) -> None:
        """Cut ``torn`` off the segment, save it in a file next to the log, and record that in the log."""
        aside = segment.with_suffix(f".torn-{self._size}")
        try:
            aside.write_bytes(torn)
            kept = f"kept in {aside.name}"
        except OSError as error:
            # A full disk must not keep the log from being opened. The cut bytes were not a complete record.
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            kept = f"not kept ({error.strerror}), BLAKE3 {blake3(torn).hexdigest()}"
        os.ftruncate(self._fd, self._size)
        self.recovered = f"cut {len(torn)} bytes after record {self._count - 1} of {segment.name}; {kept}"
        self.append(Audit(time.time_ns(), "audit", "recovered", "node", "", "", self.recovered))
        with contextlib.suppress(NoSpaceError):
            self.flush()
            self.sync()


def _closed_segments(paths: list[Path], last: Path) -> deque[ClosedSegment]:
    """Return the segments before ``last``, each with the index and digest that the next one continues."""
    closed: deque[ClosedSegment] = deque()
    for path, following in itertools.pairwise([*paths[: paths.index(last)], last]):
        info = path.stat()
        with following.open("rb") as file, contextlib.suppress(FormatError, struct.error):
            _, _, end, digest = unpack_header(file.read(HEADER.size))
            closed.append(ClosedSegment(int(path.stem), end, digest, info.st_size, info.st_mtime_ns))
    return closed


def _time_of(body: bytes) -> int:
    """Return the time of a record; 0 if it cannot be decoded."""
    try:
        return _decode(body).now
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
