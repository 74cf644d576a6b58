"""The consoles of tasks: the last bytes that each wrote, at absolute positions (CONSOLE_STREAM, §4.2).

Not for: who may read one, or how far a reader has come; the core knows both.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import trio

from dios import limits
from dios.ids import TaskId


class Console:
    """A bounded tail of a stream of bytes that began at position 0."""

    __slots__ = ("_followed", "_moved", "_read_to", "_tail", "arrived")

    def __init__(self) -> None:
        self._tail: Final = bytearray()
        self.arrived = 0
        self._read_to = 0
        # Whoever starts a task has not read yet when it prints its first lines.
        self._followed = True
        self._moved: trio.Event | None = None

    async def room(self) -> None:
        """Wait until the next read of CONSOLE_READ_BYTES makes nobody who reads along miss anything.

        A reader that does not come within CONSOLE_PATIENCE_MS is waited for no more until it reads again:
        a task is not held up by somebody who went away.
        """
        most = limits.CONSOLE_TAIL_BYTES - limits.CONSOLE_READ_BYTES
        while self._followed and self.arrived - self._read_to > most:
            self._moved = trio.Event()
            with trio.move_on_after(limits.CONSOLE_PATIENCE_MS / 1000) as patience:
                await self._moved.wait()
            self._followed = not patience.cancelled_caught

    def append(self, data: bytes) -> None:
        """Take more bytes; the oldest beyond CONSOLE_TAIL_BYTES are forgotten."""
        tail = self._tail
        tail += data
        self.arrived += len(data)
        excess = len(tail) - limits.CONSOLE_TAIL_BYTES
        if excess > 0:
            del tail[:excess]

    def __len__(self) -> int:
        return len(self._tail)

    def read(self, position: int, length: int) -> bytes:
        """What is still kept of ``length`` bytes from ``position`` on; nothing when all is forgotten."""
        kept = self.arrived - len(self._tail)
        start = max(position - kept, 0)
        end = max(position + length - kept, 0)
        self._read_to = max(self._read_to, position + length)
        self._followed = True
        if self._moved is not None:
            self._moved.set()
        return bytes(self._tail[start:end])

    def last_bytes(self, count: int) -> bytes:
        """At most so many of the last bytes."""
        return bytes(self._tail[-count:])

    def text(self) -> str:
        """All that is kept, as text."""
        return self._tail.decode(errors="replace")

    def last_lines(self, count: int = limits.LAST_LINES_KEPT) -> list[str]:
        """The last non-empty lines as text, each cut to what a message can hold."""
        text = self._tail[-limits.TEXT_BYTES_MAX :].decode(errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        return lines[-count:]


class Consoles:
    """One console for each task; those of ended tasks within a bound of bytes together, oldest first out."""

    def __init__(self) -> None:
        self._consoles: Final[dict[TaskId, Console]] = {}
        self._ended: Final[OrderedDict[TaskId, int]] = OrderedDict()
        self._ended_bytes = 0

    def of(self, task: TaskId) -> Console:
        """The console of a task, made when first asked for."""
        console = self._consoles.get(task)
        if console is None:
            console = self._consoles[task] = Console()
        return console

    def read(self, task: TaskId, position: int, length: int) -> bytes:
        """Read the console of a task; nothing where it is forgotten."""
        console = self._consoles.get(task)
        return b"" if console is None else console.read(position, length)

    def ended(self, task: TaskId) -> None:
        """The task is gone; its last bytes stay readable until newer ones need the room."""
        console = self._consoles.get(task)
        if console is None or task in self._ended:
            return
        self._ended[task] = len(console)
        self._ended_bytes += len(console)
        while (
            self._ended_bytes > limits.CONSOLE_ENDED_BYTES_MAX or len(self._ended) > limits.ENDED_TASKS_KEPT
        ):
            oldest, size = self._ended.popitem(last=False)
            self._ended_bytes -= size
            del self._consoles[oldest]

    def drop(self, task: TaskId) -> None:
        """Nobody will read it again: a session's."""
        self._consoles.pop(task, None)
