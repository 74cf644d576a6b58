"""``SandboxProcess``: a program in a sandbox, for programs on asyncio and trio."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from dios.client.aio.running_loop import running_loop
from dios.lib.sandbox.async_steps import Turn, finish, held
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
    signature = inspect.signature(op)

    @functools.wraps(op)
    async def method(self: SandboxProcess, /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = running_loop()
        await loop.checkpoint()
        arguments = signature.bind(self._ops, *args, **kwargs)
        turns = [self._turns[stream] for stream in streams]
        async with held(turns, arguments.arguments.get("timeout")) as left:
            if "timeout" in arguments.arguments:
                arguments.arguments["timeout"] = left
            return await finish(loop, lambda: self._ops.node, op(*arguments.args, **arguments.kwargs))

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
        self._turns: Final = {name: Turn() for name in ("status", "input", "output")}
        self.stdin: Final = ProcessInput(self)

    write = _awaited(ProcessOps.write_op, "input")
    end_input = _awaited(ProcessOps.end_input_op, "input")
    read = _awaited(ProcessOps.read_op, "output")
    wait = _awaited(ProcessOps.wait_op, "status")
    kill = _awaited(ProcessOps.kill_op)
    resize = _awaited(ProcessOps.resize_op)
    communicate = _awaited(ProcessOps.communicate_op, "input", "output", "status")
    _leave = _awaited(ProcessOps.leave_op)
    _close = _awaited(ProcessOps.close_op, "input", "output", "status")

    async def close(self) -> None:
        """Give up the streams; the program goes on, and ``attach`` returns another handle of it.

        Calls of other async tasks that wait for the program return.
        """
        await self._leave()
        await self._close()

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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProgramOutput:
        part = await self.read()
        if part is None:
            raise StopAsyncIteration
        return part

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
