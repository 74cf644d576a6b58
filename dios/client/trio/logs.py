"""Logs of the face on trio.

Not for: what the methods do, which both faces share (``dios.client.ops.logs``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from dios.client.ops.logs import Entry, LogOps
from dios.client.trio.handles import AsyncReference, awaited, drive


class AsyncLog(LogOps, AsyncReference):
    """A log; iterating gives the entries that there are, from the first one on."""

    __slots__ = ()

    append = awaited(LogOps.append_op)
    append_all = awaited(LogOps.append_all_op)

    async def read_entries(
        self,
        position: int = 0,
        *,
        wait: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - the blocking client's argument
    ) -> list[Entry]:
        """The entries from ``position`` on, as many as one message holds; none at the end.

        With ``wait`` it waits there for the next one, at most ``timeout`` seconds (TimeLimitError).
        """
        if wait and timeout is not None:
            return await drive(self, self.next_op(position, timeout))
        return await drive(self, self.read_op(position, wait=wait))

    async def entries(self, position: int = 0) -> AsyncGenerator[Entry, None]:
        """The entries from ``position`` to the end as it is when it is reached."""
        while found := await self.read_entries(position):
            for entry in found:
                yield entry
            position = found[-1].next

    async def follow(self, position: int = 0) -> AsyncGenerator[Entry, None]:
        """The entries from ``position`` on, for ever: at the end it waits for the next one."""
        while True:
            found = await self.read_entries(position, wait=True)
            for entry in found:
                yield entry
            position = found[-1].next

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self.entries()
