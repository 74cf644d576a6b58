"""``SandboxProcess``: a program in a sandbox, for programs on asyncio and trio."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from dios.client.aio.running_loop import running_loop
from dios.lib.sandbox.async_steps import Turn, finish
from dios.lib.sandbox.processes.channels import ProgramOutput
from dios.lib.sandbox.processes.handles import ProcessOps
from dios.lib.sandbox.steps import Steps

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    op: Callable[Concatenate[ProcessOps, P], Steps[T]], *streams: str
) -> Callable[Concatenate[SandboxProcess, P], Coroutine[object, object, T]]:
    """Return the coroutine method for an operation that uses some of the streams."""

    @functools.wraps(op)
    async def method(self: SandboxProcess, /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = running_loop()
        await loop.checkpoint()
        async with contextlib.AsyncExitStack() as stack:
            for stream in streams:
                await stack.enter_async_context(self._turns[stream])
            return await finish(loop, lambda: self._ops.node, op(self._ops, *args, **kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = f"SandboxProcess.{method.__name__}"
    return method


class ProcessInput:
    """The standard input of a program in a sandbox."""

    def __init__(self, process: SandboxProcess) -> None:
        self._process: Final = process

    async def write(self, data: bytes | str, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as in the blocking face
        """Write, and wait while the program does not read; see ``ProcessOps.write_op`` for the errors."""
        await self._process.write(data, timeout=timeout)

    async def close(self) -> None:
        """Close it after what was written; a program with a terminal gets the letter for that."""
        await self._process.end_input()


class SandboxProcess:
    """A program that ``start`` began in a sandbox, or that ``attach`` returned; it ends with the sandbox.

    ``dios.SandboxProcess`` is the blocking one. Async tasks may share a handle: one reads while another one
    writes. A call that is cancelled while it waits loses nothing, except for a write, of which a part may
    have been written.
    """

    def __init__(self, ops: ProcessOps) -> None:
        self._ops: Final = ops
        self._turns: Final = {name: Turn() for name in ("control", "status", "input", "output")}
        self.stdin: Final = ProcessInput(self)

    write = _awaited(ProcessOps.write_op, "input")
    end_input = _awaited(ProcessOps.end_input_op, "input", "control")
    read = _awaited(ProcessOps.read_op, "output")
    wait = _awaited(ProcessOps.wait_op, "status")
    kill = _awaited(ProcessOps.kill_op, "control")
    resize = _awaited(ProcessOps.resize_op, "control")
    communicate = _awaited(ProcessOps.communicate_op, "input", "control", "output", "status")
    close = _awaited(ProcessOps.close_op, "input", "control", "output", "status")

    @property
    def id(self) -> str:
        """The id of the program in its sandbox, in the list of programs and in the audit log."""
        return self._ops.id

    @property
    def returncode(self) -> int | None:
        """The exit status, or the negative number of a signal; None until ``wait`` has returned it."""
        return self._ops.returncode

    def __repr__(self) -> str:
        return self._ops.shown(type(self).__name__)

    async def __aiter__(self) -> AsyncIterator[ProgramOutput]:
        while (part := await self.read()) is not None:
            yield part

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
