"""The consoles of tasks: the last bytes that each task printed, at absolute positions (CONSOLE_STREAM, §4.2).

The core decides who may read a console and records how far each reader has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from dios import limits
from dios.core.model.history import History
from dios.host.handover import format as form
from dios.ids import Principal, TaskId

_BYTES_MIN: Final = limits.CONSOLE_ENDED_BYTES_MAX // limits.ENDED_TASKS_KEPT_MAX
"""The least size at which a console is counted, so that the number of consoles is bounded, too."""


class TaskConsole:
    """The last bytes, within a bound, of a stream that began at position 0."""

    __slots__ = ("_followed", "_moved", "_read_to", "_tail", "arrived")

    def __init__(self) -> None:
        self._tail: Final = bytearray()
        self.arrived = 0
        self._read_to = 0
        # The reader has not read yet when a new task prints its first lines.
        self._followed = True
        self._moved: trio.Event | None = None

    async def wait_for_room(self) -> None:
        """Wait until the next read of CONSOLE_READ_BYTES cannot make the reader miss bytes.

        A reader that does not read for CONSOLE_READER_TIMEOUT_MS is ignored until it reads again, so that a
        task is not delayed by a reader that has gone away.
        """
        most = limits.CONSOLE_TAIL_BYTES - limits.CONSOLE_READ_BYTES
        while self._followed and self.arrived - self._read_to > most:
            self._moved = trio.Event()
            with trio.move_on_after(limits.CONSOLE_READER_TIMEOUT_MS / 1000) as patience:
                await self._moved.wait()
            self._followed = not patience.cancelled_caught

    def hand_over(self, task: TaskId) -> form.Console:
        """Describe the console for the successor of this process."""
        return form.Console(task, bytes(self._tail), self.arrived, self._read_to, self._followed)

    def take_over(self, console: form.Console) -> None:
        """Continue with a console of the predecessor."""
        self._tail[:] = console.tail
        self.arrived, self._read_to, self._followed = console.arrived, console.read_to, console.followed

    def append(self, data: bytes) -> None:
        """Append bytes, and drop the oldest bytes beyond CONSOLE_TAIL_BYTES."""
        tail = self._tail
        tail += data
        self.arrived += len(data)
        excess = len(tail) - limits.CONSOLE_TAIL_BYTES
        if excess > 0:
            del tail[:excess]

    def __len__(self) -> int:
        return len(self._tail)

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes still kept out of the ``length`` bytes from ``position`` on."""
        kept = self.arrived - len(self._tail)
        start = max(position - kept, 0)
        end = max(position + length - kept, 0)
        self._read_to = max(self._read_to, position + length)
        self._followed = True
        if self._moved is not None:
            self._moved.set()
        return bytes(self._tail[start:end])

    def last_bytes(self, count: int) -> bytes:
        """Return at most the last ``count`` bytes."""
        return bytes(self._tail[-count:])

    def text(self) -> str:
        """Return all kept bytes as text."""
        return self._tail.decode(errors="replace")

    def last_lines(self, count: int = limits.LAST_LINES_KEPT) -> list[str]:
        """Return the last ``count`` non-empty lines, from as many bytes as a message can hold."""
        text = self._tail[-limits.TEXT_BYTES_MAX :].decode(errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        return lines[-count:]


class Consoles:
    """One console per task. Consoles of ended tasks are kept within a bound of bytes.

    The principal whose consoles take most loses the oldest of its job with most consoles first.
    """

    def __init__(self) -> None:
        self._consoles: Final[dict[TaskId, TaskConsole]] = {}
        self._ended: Final = History[TaskId]()
        self._ended_tasks: Final[set[TaskId]] = set()

    def hand_over(self) -> tuple[tuple[form.Console, ...], tuple[form.EndedConsole, ...]]:
        """Describe all consoles for the successor of this process, and which of them are of ended tasks."""
        ended = tuple(
            form.EndedConsole(task, principal, job, size)
            for principal, job, task, size in self._ended.entries()
        )
        return tuple(console.hand_over(task) for task, console in self._consoles.items()), ended

    def take_over(self, consoles: Iterable[form.Console], ended: Iterable[form.EndedConsole]) -> None:
        """Continue with the consoles of the predecessor."""
        for console in consoles:
            self.of(TaskId(console.task)).take_over(console)
        for past in ended:
            self._ended_tasks.add(TaskId(past.task))
            self._ended.keep(Principal(past.principal), TaskId(past.job), TaskId(past.task), past.size)

    def of(self, task: TaskId) -> TaskConsole:
        """Return the console of a task; create it on first use."""
        console = self._consoles.get(task)
        if console is None:
            console = self._consoles[task] = TaskConsole()
        return console

    def read(self, task: TaskId, position: int, length: int) -> bytes:
        """Read from the console of a task; return nothing if it was dropped."""
        console = self._consoles.get(task)
        return b"" if console is None else console.read(position, length)

    def ended(self, task: TaskId, principal: Principal, job: TaskId) -> None:
        """Mark a task as ended. Its last bytes stay readable until newer consoles need the space."""
        console = self._consoles.get(task)
        if console is None or task in self._ended_tasks:
            return
        self._ended_tasks.add(task)
        self._ended.keep(principal, job, task, max(len(console), _BYTES_MIN))
        most = limits.CONSOLE_ENDED_BYTES_MAX
        for other in self._ended.excess(principal, most, most):
            self._ended_tasks.discard(other)
            del self._consoles[other]

    def drop(self, task: TaskId) -> None:
        """Drop the console of a session, which nobody can read any more."""
        self._consoles.pop(task, None)
