"""A forwarded port of a sandbox for programs on asyncio and trio."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from dios.client.aio.event_loop import EventLoop
from dios.lib.sandbox.running import RunningSandbox

if TYPE_CHECKING:
    from types import TracebackType


class PortForward:
    """A port at 127.0.0.1, whose connections lead to a port in a sandbox; ``close`` ends them.

    Threads serve it, over a connection to the node of their own. See ``dios.Sandbox.forward``.
    """

    def __init__(
        self, loop: EventLoop, place: str | Path | None, session: str, port: int, local_port: int
    ) -> None:
        """Listen at once: call it in a thread."""
        self._loop: Final = loop
        self._box: Final = RunningSandbox(session, node=place)
        try:
            self._forward: Final = self._box.forward(port, local_port=local_port)
        except BaseException:
            self._box.close()
            raise
        self.host: Final = self._forward.host
        self.port: Final = self._forward.port

    async def close(self) -> None:
        """Listen no more, and end the connections; a second call does nothing."""
        await self._loop.in_thread(self._close)

    def _close(self) -> None:
        self._forward.close()
        self._box.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
