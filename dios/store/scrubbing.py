"""Reads the rows and contents of a store in service, and compares them with their digests, in small steps.

A step reads a bounded number of bytes and may run in any thread. It holds no lock while it reads a content:
an extent never changes, so that an extent with wrong bytes is damaged if a row still names it afterwards.
``dios.node.scrubbing`` runs the steps at a rate, and ``scrub_report`` keeps the position and the damage.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

from blake3 import blake3

from dios import limits
from dios.errors import DamagedError
from dios.ids import ObjectId
from dios.store import schema
from dios.store.lmdb_store import LmdbStore
from dios.store.schema import ContentKind, ObjectRow

_NO_DAMAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
"""Errors that say nothing about a file. The object is read again."""


class Damage(NamedTuple):
    """A damaged object; ``row`` is None if its row is damaged, and nothing else is known of it then."""

    object: ObjectId
    row: ObjectRow | None
    problem: str


class ScrubStep(NamedTuple):
    """The result of a step: the bytes to count for the rate, a damaged object, and if the pass is over."""

    cost: int
    damage: Damage | None = None
    is_end: bool = False


class Pace:
    """Keeps work at ``rate`` bytes per second, by the delay after each part."""

    def __init__(self, rate: int) -> None:
        self._rate: Final = rate
        self._free_at = float("-inf")

    def delay(self, count: int, now: float) -> float:
        """Count bytes of work that ended at ``now``, in seconds; return the seconds until the next part."""
        self._free_at = max(self._free_at, now) + count / self._rate
        return self._free_at - now


class _ExtentReading:
    """An extent that is being read."""

    def __init__(self, row: ObjectRow, fd: int) -> None:
        self.row: Final = row
        self._fd: Final = fd
        self._hasher: Final = blake3()
        self._at = 0
        self.error = ""
        """Why the file cannot be read."""

    def read(self) -> int:
        """Read one slice, from the disk where possible, and return its number of bytes. Raise OSError."""
        want = min(self.row.payload.size - self._at, limits.SCRUB_SLICE_BYTES)
        # Pages that the kernel has kept are dropped: they do not show the state of the disk. They are dropped
        # afterwards, too, so that a pass does not replace the pages that programs need.
        os.posix_fadvise(self._fd, self._at, want, os.POSIX_FADV_DONTNEED)
        data = os.pread(self._fd, want, self._at)
        os.posix_fadvise(self._fd, self._at, want, os.POSIX_FADV_DONTNEED)
        self._hasher.update(data)
        self._at += len(data)
        return len(data)

    def problem(self) -> str | None:
        """Return the fault of the extent, "" if it is sound, or None if there is more to read."""
        if self.error:
            return self.error
        size = os.fstat(self._fd).st_size
        if size != self.row.payload.size:
            return f"its file has {size} bytes instead of {self.row.payload.size}"
        if self._at < size:
            return None
        return "" if self._hasher.digest() == self.row.payload.digest else "does not match its BLAKE3 digest"

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class Scrubber:
    """A pass over the store in the order of object ids; ``after`` is the last object that was compared."""

    def __init__(self, store: LmdbStore, after: ObjectId | None = None) -> None:
        self._store: Final = store
        self.after = after
        self._reading: _ExtentReading | None = None

    def step(self) -> ScrubStep:
        """Read one slice of an extent, or some rows. Raise DiosError if the store cannot be read now."""
        cost = 0
        for _ in range(limits.SCRUB_ROWS_MAX):
            if self._reading is not None:
                cost += self._read_slice(self._reading)
                return ScrubStep(cost, self._result(self._reading))
            following = self._store.next_stored(self.after)
            if following is None:
                self.after = None
                return ScrubStep(cost, is_end=True)
            target, stored = following
            cost += max(len(stored), limits.SCRUB_ROW_BYTES)
            damage = self._look(target, stored)
            if damage is not None or cost >= limits.SCRUB_SLICE_BYTES:
                return ScrubStep(cost, damage)
        return ScrubStep(cost)

    def close(self) -> None:
        """End the pass; a next one begins with the object that was being compared."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    def _look(self, target: ObjectId, stored: bytes) -> Damage | None:
        """Compare a row and a content in it, or open the extent."""
        try:
            row = schema.decode_row(target, stored)
        except DamagedError as error:
            return self._confirmed(target, None, error.message)
        if row.payload.kind is ContentKind.EXTENT:
            return self._open(row)
        try:
            schema.check_inline(row, bytes(schema.inline_part(stored)))
        except DamagedError:
            return self._confirmed(target, row, "does not match its BLAKE3 digest")
        self.after = target
        return None

    def _open(self, row: ObjectRow) -> Damage | None:
        try:
            self._reading = _ExtentReading(row, self._store.open_extent(row.payload.extent))
        except FileNotFoundError:
            return self._confirmed(row.record.object, row, "its file is missing")
        except OSError as error:
            if error.errno in _NO_DAMAGE:
                raise
            return self._confirmed(row.record.object, row, f"its file cannot be opened ({error.strerror})")
        return None

    def _read_slice(self, reading: _ExtentReading) -> int:
        try:
            return reading.read()
        except OSError as error:
            if error.errno in _NO_DAMAGE:
                raise
            reading.error = f"its file cannot be read ({error.strerror})"
            return limits.SCRUB_ROW_BYTES

    def _result(self, reading: _ExtentReading) -> Damage | None:
        problem = reading.problem()
        if problem is None:
            return None
        self.close()
        target = reading.row.record.object
        if problem:
            return self._confirmed(target, reading.row, problem)
        self.after = target
        return None

    def _confirmed(self, target: ObjectId, row: ObjectRow | None, problem: str) -> Damage | None:
        """Return the damage, unless the object was written or dropped while it was read."""
        self.after = target
        stored = self._store.stored(target)
        if stored is None:
            return None
        try:
            present = schema.decode_row(target, stored)
        except DamagedError:
            return Damage(target, None, problem)
        if row is None or present.payload != row.payload:
            return None
        self._store.distrust(row.payload.extent)
        return Damage(target, present, problem)
