"""The memory that the processes of a soak share: the phase of the run, and one row for each client.

The row of a client that is killed keeps its values, so that the run can delete what the client has created.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OPERATIONS: Final = (
    *(
        "create volatile",
        "create durable",
        "update",
        "update large",
        "commit in conflict",
        "read",
        "read part",
    ),
    *(
        "read shared",
        "look up",
        "look up absent",
        "delete",
        "group",
        "stream",
        "vector",
        "async face",
        "timer",
    ),
    *(
        "copy",
        "start task",
        "look at task",
        "reap task",
        "pause task",
        "kill task",
        "delegate",
        "task stream",
    ),
    *("drop mid-frame", "drop with requests", "never read replies", "reconnect", "clear away"),
)
"""The operations of a client; its row counts each."""

SESSIONS: Final = 2
"""The number of concurrent sessions whose names a row stores: the blocking client and the trio client."""

STOP: Final = -1
_CELL: Final = 8
_NAME_CELLS: Final = 4
_HEAD: Final = 4
_DONE: Final = _HEAD + SESSIONS * (_NAME_CELLS + 1)
_CELLS: Final = _DONE + len(OPERATIONS)
_NAME: Final = struct.Struct(f"{_NAME_CELLS}q")


@dataclass(frozen=True, slots=True)
class DeadSession:
    """A session that ended without cleanup: its name, and how many durable objects it may have created."""

    name: bytes
    created: int


class SharedTable:
    """Shared memory that forked children inherit: the phase, then one row for each client.

    An even phase is work, an odd phase is rest, ``STOP`` is the end.
    """

    def __init__(self, clients: int) -> None:
        self._memory: Final = mmap.mmap(-1, (1 + clients * _CELLS) * _CELL)
        self._cells: Final = memoryview(self._memory).cast("q")
        self.rows: Final = [ClientRow(self._cells, 1 + number * _CELLS) for number in range(clients)]

    @property
    def phase(self) -> int:
        """Return the current phase."""
        return self._cells[0]

    @phase.setter
    def phase(self, value: int) -> None:
        self._cells[0] = value

    def done(self) -> dict[str, int]:
        """Return the number of times that each operation was done, over all clients."""
        return {name: sum(row.count(number) for row in self.rows) for number, name in enumerate(OPERATIONS)}


class ClientRow:
    """The row of one client."""

    def __init__(self, cells: memoryview, start: int) -> None:
        self._cells: Final = cells
        self._start: Final = start

    # -- the current operation --------------------------------------------------------------------
    def begin(self, operation: str) -> None:
        """Record the start of an operation."""
        self._cells[self._start + 2] = OPERATIONS.index(operation)
        self._cells[self._start + 1] += 1

    def finished(self) -> None:
        """Record the end of the current operation."""
        self._cells[self._start + _DONE + self._cells[self._start + 2]] += 1

    @property
    def beat(self) -> int:
        """Return a number that grows with every operation; it stands still if the client hangs."""
        return self._cells[self._start + 1]

    @property
    def doing(self) -> str:
        """Return the operation that was started last."""
        return OPERATIONS[self._cells[self._start + 2]]

    def count(self, operation: int) -> int:
        """Return the number of times that an operation was done, by all clients that had this row."""
        return self._cells[self._start + _DONE + operation]

    # -- rest -------------------------------------------------------------------------------------
    @property
    def rests(self) -> int:
        """Return the rest phase in which the client has deleted everything."""
        return self._cells[self._start]

    @rests.setter
    def rests(self, phase: int) -> None:
        self._cells[self._start] = phase

    # -- its objects ------------------------------------------------------------------------------
    @property
    def durable_bytes(self) -> int:
        """Return the number of bytes of its durable objects that are large enough for an extent."""
        return self._cells[self._start + 3]

    @durable_bytes.setter
    def durable_bytes(self, value: int) -> None:
        self._cells[self._start + 3] = value

    def session(self, which: int, name: bytes) -> None:
        """Record the start of a session; ``which`` counts from 0."""
        start = self._start + _HEAD + which * (_NAME_CELLS + 1)
        self._cells[start] = 0
        for place, value in enumerate(_NAME.unpack(name), 1):
            self._cells[start + place] = value

    def will_create(self, which: int) -> None:
        """Record that a durable object with a deterministic name is about to be created."""
        self._cells[self._start + _HEAD + which * (_NAME_CELLS + 1)] += 1

    def cleared(self) -> None:
        """Record that everything that its sessions created is deleted."""
        for which in range(SESSIONS):
            self._cells[self._start + _HEAD + which * (_NAME_CELLS + 1)] = 0
        self.durable_bytes = 0

    def take_dead(self) -> list[DeadSession]:
        """Return and clear the sessions that an ended client has left behind."""
        dead = []
        for which in range(SESSIONS):
            start = self._start + _HEAD + which * (_NAME_CELLS + 1)
            if self._cells[start]:
                name = _NAME.pack(*self._cells[start + 1 : start + 1 + _NAME_CELLS])
                dead.append(DeadSession(name, self._cells[start]))
        self.cleared()
        return dead


class Troubles:
    """A file to which every process adds its problems, one line each."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._read = 0
        path.touch()

    def add(self, who: str, trouble: str) -> None:
        """Add a line; lines of several processes do not mix."""
        line = f"{who}: {' | '.join(trouble.splitlines())}"[:2000]
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, line.encode(errors="replace") + b"\n")
        finally:
            os.close(fd)

    def new(self) -> list[str]:
        """Return the lines added since the last call."""
        with self.path.open(errors="replace") as file:
            file.seek(self._read)
            text = file.read()
            self._read = file.tell()
        return text.splitlines()
