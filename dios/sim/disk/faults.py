"""What can go wrong at one operation of the simulated disk, and plans that say where it does.

Not for: doing it (``dios.sim.disk.device``). Each operation of a disk has a number; a plan is asked once for
each, so that a systematic pass can go through all of them and a seed repeats itself.
"""

from __future__ import annotations

import enum
from random import Random
from typing import Final, Protocol


class Operation(enum.StrEnum):
    """What a store asks of its disk; READ_UNCHECKED is a read of bytes that no digest covers yet."""

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


class Fault(enum.StrEnum):
    """How an operation fails.

    FAIL: EIO; a write may have left a part. SHORT: a write takes only some of the bytes. FULL: ENOSPC, now
    and for a while. LOSE: a sync fails with EIO, and of the unsynced pages some are lost: a later sync
    succeeds without them, and readers may see the old ones again. CUT: the power goes before the operation
    has ended. FLIP: a bit of what is being read has changed on the disk.
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

APPLIES: Final[dict[Fault, frozenset[Operation]]] = {
    # What is read through a map fails by a signal that ends the process, and that is a crash.
    Fault.FAIL: frozenset(Operation) - {Operation.READ_MAPPED},
    Fault.SHORT: frozenset({Operation.WRITE}),
    Fault.FULL: _TAKE_SPACE,
    Fault.LOSE: _SYNCS,
    Fault.CUT: frozenset(Operation) - _READS - {Operation.READ_UNCHECKED},
    Fault.FLIP: _READS,
}
"""The operations at which each fault can happen."""


class Plan(Protocol):
    """Says which fault, if any, happens at an operation."""

    def fault(self, number: int, operation: Operation) -> Fault | None:
        """The fault at operation ``number``, counted from 0."""
        ...


class NoFaults:
    """Everything works."""

    def fault(self, number: int, operation: Operation) -> Fault | None:
        """Never one."""
        del number, operation
        return None


class OneFault:
    """One fault at operation ``number``, and with ``cut_after`` a power cut so many operations later."""

    def __init__(self, number: int, fault: Fault, cut_after: int = 0) -> None:
        self._number: Final = number
        self._fault: Final = fault
        self._cut_after = cut_after

    def fault(self, number: int, operation: Operation) -> Fault | None:
        """The fault at its place."""
        if number == self._number:
            return self._fault if operation in APPLIES[self._fault] else None
        if self._cut_after and number >= self._number + self._cut_after and operation in APPLIES[Fault.CUT]:
            self._cut_after = 0
            return Fault.CUT
        return None


class RandomFaults:
    """A fault at about every ``every``-th operation, of a kind that fits it."""

    def __init__(self, rng: Random, every: int) -> None:
        self._rng: Final = rng
        self._every: Final = every

    def fault(self, number: int, operation: Operation) -> Fault | None:
        """Perhaps one."""
        del number
        if self._rng.randrange(self._every):
            return None
        return self._rng.choice([fault for fault in Fault if operation in APPLIES[fault]])
