"""Logs of the blocking face.

Not for: what the methods do, which both faces share (``dios.client.ops.logs``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dios.client.ops.logs import Entry, LogOps
from dios.client.sync.handles import Reference, blocking, drive

if TYPE_CHECKING:
    from collections.abc import Iterator


class Log(LogOps, Reference):
    """A log; iterating gives the entries that there are, from the first one on."""

    __slots__ = ()

    append = blocking(LogOps.append_op)
    append_all = blocking(LogOps.append_all_op)

    def read_entries(
        self, position: int = 0, *, wait: bool = False, timeout: float | None = None
    ) -> list[Entry]:
        """The entries from ``position`` on, as many as one message holds; none at the end.

        With ``wait`` it waits there for the next one, at most ``timeout`` seconds (TimeLimitError).
        """
        if wait and timeout is not None:
            return drive(self, self.next_op(position, timeout))
        return drive(self, self.read_op(position, wait=wait))

    def entries(self, position: int = 0) -> Iterator[Entry]:
        """The entries from ``position`` to the end as it is when it is reached."""
        while found := self.read_entries(position):
            yield from found
            position = found[-1].next

    def follow(self, position: int = 0) -> Iterator[Entry]:
        """The entries from ``position`` on, for ever: at the end it waits for the next one."""
        while True:
            found = self.read_entries(position, wait=True)
            yield from found
            position = found[-1].next

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()
