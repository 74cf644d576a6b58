"""``FileWatch``: the changes of files in a sandbox, for programs on asyncio and trio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, cast

from dios.client.aio.running_loop import running_loop
from dios.lib.sandbox.async_steps import Turn, finish, held
from dios.lib.sandbox.processes.records import FileEvent
from dios.lib.sandbox.processes.watches import WatchOps

if TYPE_CHECKING:
    from types import TracebackType


class FileWatch:
    """The changes of files from ``watch`` on; iterating yields them as ``dios.FileEvent``s until the end."""

    def __init__(self, ops: WatchOps) -> None:
        self._ops: Final = ops
        self._turn: Final = Turn()

    async def read(self, timeout: float | None = None) -> FileEvent | None:  # noqa: ASYNC109 - as in the blocking face
        """Return the next change; None if the sandbox has ended.

        Raises TimeLimitError if there was none within ``timeout`` seconds.
        """
        async with held([self._turn], timeout) as left:
            read = self._ops.read_op(cast("float | None", left))
            return await finish(running_loop(), lambda: self._ops.node, read)

    async def close(self) -> None:
        """End the watch; a second call does nothing. A task that reads gets None."""
        await finish(running_loop(), lambda: self._ops.node, self._ops.leave_op())
        async with self._turn:
            await finish(running_loop(), lambda: self._ops.node, self._ops.close_op())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
