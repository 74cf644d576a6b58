"""``RunningSandbox`` for programs on asyncio and trio."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar, cast

from dios.client.aio.node import AsyncNode, open_node
from dios.client.aio.running_loop import running_loop
from dios.client.sync.node import Node
from dios.lib.sandbox.async_process import SandboxProcess
from dios.lib.sandbox.async_steps import finish
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.processes.handles import ProcessOps, ProgramInfo
from dios.lib.sandbox.running_ops import RunningOps
from dios.lib.sandbox.steps import Steps

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    op: Callable[Concatenate[RunningOps, P], Steps[ProcessOps]],
) -> Callable[Concatenate[RunningSandbox, P], Coroutine[object, object, SandboxProcess]]:
    @functools.wraps(op)
    async def method(self: RunningSandbox, /, *args: P.args, **kwargs: P.kwargs) -> SandboxProcess:
        return SandboxProcess(await self._finish(op(self, *args, **kwargs)))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = f"RunningSandbox.{method.__name__}"
    return method


class RunningSandbox(RunningOps):
    """A sandbox that another connection of the same owner has opened, for an ``async with`` body.

    ``dios.RunningSandbox`` is the blocking one, with the same arguments; its errors come with the body.
    """

    def __init__(
        self,
        session: str,
        *,
        node: AsyncNode | str | Path | None = None,
        timeout: float | None = 60.0,
        bounds: SandboxBounds | None = None,
    ) -> None:
        super().__init__(session, timeout, bounds)
        self._place: Final = node
        self._stack: Final = contextlib.AsyncExitStack()

    start = _awaited(RunningOps.start_op)
    attach = _awaited(RunningOps.attach_op)

    async def processes(self) -> list[ProgramInfo]:
        """Return the programs of the sandbox; see ``Sandbox.processes``."""
        return await self._finish(self.processes_op())

    async def _finish(self, steps: Steps[T]) -> T:
        loop = running_loop()
        await loop.checkpoint()
        return await finish(loop, lambda: self._node, steps)

    async def __aenter__(self) -> Self:
        place = self._place
        if not isinstance(place, AsyncNode):
            place = await self._stack.enter_async_context(open_node(place, start=False))
        try:
            await self._finish(self.open_op(cast("Node", place)))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
