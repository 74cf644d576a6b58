"""The faults of a simulated disk operation, and plans that decide where they happen.

Each operation of a disk has a number. A plan is asked once for each operation, so that a systematic pass can
go through all of them and a seed can be repeated. ``labs.sim.disk.device`` carries the faults out.
"""

from __future__ import annotations

import enum
from random import Random
from typing import Final, Protocol


class Operation(enum.StrEnum):
    """The operations of a disk. READ_UNCHECKED reads bytes that no digest covers yet."""

    CREATE = "create"
    ALLOCATE = "allocate"
    WRITE = "write"
    WRITE_THROUGH = "write through"
    SYNC = "sync"
    SYNC_FOLDER = "sync folder"
    READ = "read"
    READ_MAPPED = "read mapped"
    READ_UNCHECKED = "read unchecked"
    UNLINK = "unlink"


class DiskFault(enum.StrEnum):
    """The ways in which an operation fails.

    FAIL: EIO; a write may have written a part. SHORT: a write accepts only some of the bytes. FULL: ENOSPC,
    now and for some operations. LOSE: a sync fails with EIO and loses some unsynced pages: a later sync
    succeeds without them, and readers may see the old pages again. CUT: the power goes off before the
    operation ends. FLIP: one bit of the data that is read has changed on the disk.
    """

    FAIL = "EIO"
    SHORT = "short write"
    FULL = "full disk"
    LOSE = "failed sync loses pages"
    CUT = "power cut"
    FLIP = "bit flip"


_SYNCS: Final = frozenset({Operation.SYNC, Operation.SYNC_FOLDER, Operation.WRITE_THROUGH})
_TAKE_SPACE: Final = frozenset(
    {Operation.CREATE, Operation.ALLOCATE, Operation.WRITE, Operation.WRITE_THROUGH}
)
_READS: Final = frozenset({Operation.READ, Operation.READ_MAPPED})

APPLIES: Final[dict[DiskFault, frozenset[Operation]]] = {
    # A failed read through a map raises a signal that ends the process: that is a crash, not an EIO.
    DiskFault.FAIL: frozenset(Operation) - {Operation.READ_MAPPED},
    DiskFault.SHORT: frozenset({Operation.WRITE}),
    DiskFault.FULL: _TAKE_SPACE,
    DiskFault.LOSE: _SYNCS,
    DiskFault.CUT: frozenset(Operation) - _READS - {Operation.READ_UNCHECKED},
    DiskFault.FLIP: _READS,
}
"""The operations at which each fault can happen."""


class FaultPlan(Protocol):
    """A plan that decides which fault, if any, happens at an operation."""

    def fault(self, number: int, operation: Operation) -> DiskFault | None:
        """Return the fault at operation ``number``, counted from 0, or None."""


class NoFaults:
    """A plan without faults."""

    def fault(self, number: int, operation: Operation) -> DiskFault | None:
        """Return None."""
        del number, operation
        return None


class OneFault:
    """One fault at operation ``number``; with ``cut_after``, also a power cut that many operations later."""

    def __init__(self, number: int, fault: DiskFault, cut_after: int = 0) -> None:
        self._number: Final = number
        self._fault: Final = fault
        self._cut_after = cut_after

    def fault(self, number: int, operation: Operation) -> DiskFault | None:
        """Return the planned fault if this is its operation."""
        if number == self._number:
            return self._fault if operation in APPLIES[self._fault] else None
        if (
            self._cut_after
            and number >= self._number + self._cut_after
            and operation in APPLIES[DiskFault.CUT]
        ):
            self._cut_after = 0
            return DiskFault.CUT
        return None


class RandomFaults:
    """A fault at about every ``every``-th operation, of a kind that can happen there."""

    def __init__(self, rng: Random, every: int) -> None:
        self._rng: Final = rng
        self._every: Final = every

    def fault(self, number: int, operation: Operation) -> DiskFault | None:
        """Return a random fault, or None."""
        del number
        if self._rng.randrange(self._every):
            return None
        return self._rng.choice([fault for fault in DiskFault if operation in APPLIES[fault]])
