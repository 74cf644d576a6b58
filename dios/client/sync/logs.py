"""Logs of the blocking client; ``dios.client.ops.logs`` has the operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dios.client.ops.logs import Entry, LogOps
from dios.client.sync.handles import Reference, blocking, drive

if TYPE_CHECKING:
    from collections.abc import Iterator


class Log(LogOps, Reference):
    """A log; iterating yields its present entries, from the first one on."""

    __slots__ = ()

    append = blocking(LogOps.append_op)
    append_all = blocking(LogOps.append_all_op)

    def read_entries(
        self, position: int = 0, *, wait: bool = False, timeout: float | None = None
    ) -> list[Entry]:
        """Return the entries from ``position`` on that fit one message; an empty list at the end.

        With ``wait`` it waits at the end for the next entry; TimeLimitError after ``timeout`` seconds.
        """
        if wait and timeout is not None:
            return drive(self, self.next_op(position, timeout))
        return drive(self, self.read_op(position, wait=wait))

    def entries(self, position: int = 0) -> Iterator[Entry]:
        """Yield the entries from ``position`` to the end at the time it is reached."""
        while entries := self.read_entries(position):
            yield from entries
            position = entries[-1].next

    def follow(self, position: int = 0) -> Iterator[Entry]:
        """Yield the entries from ``position`` on, for ever: at the end it waits for the next entry."""
        while True:
            entries = self.read_entries(position, wait=True)
            yield from entries
            position = entries[-1].next

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()
