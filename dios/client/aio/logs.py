"""Logs of the async client; ``dios.client.ops.logs`` has the operations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from dios.client.aio.handles import AsyncReference, awaited, drive
from dios.client.ops.logs import Entry, LogOps


class AsyncLog(LogOps, AsyncReference):
    """A log; iterating yields its present entries, from the first one on."""

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
        """Return the entries from ``position`` on that fit one message; an empty list at the end.

        With ``wait`` it waits at the end for the next entry; TimeLimitError after ``timeout`` seconds.
        """
        if wait and timeout is not None:
            return await drive(self, self.next_op(position, timeout))
        return await drive(self, self.read_op(position, wait=wait))

    async def entries(self, position: int = 0) -> AsyncGenerator[Entry, None]:
        """Yield the entries from ``position`` to the end at the time it is reached."""
        while entries := await self.read_entries(position):
            for entry in entries:
                yield entry
            position = entries[-1].next

    async def follow(self, position: int = 0) -> AsyncGenerator[Entry, None]:
        """Yield the entries from ``position`` on, for ever: at the end it waits for the next entry."""
        while True:
            entries = await self.read_entries(position, wait=True)
            for entry in entries:
                yield entry
            position = entries[-1].next

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self.entries()
