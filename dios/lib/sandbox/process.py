"""``SandboxProcess``: a program in a sandbox, for blocking programs."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from dios.lib.sandbox.blocking_steps import finish, held
from dios.lib.sandbox.processes.channels import ProgramOutput
from dios.lib.sandbox.processes.handles import ProcessOps
from dios.lib.sandbox.steps import Steps

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    op: Callable[Concatenate[ProcessOps, P], Steps[T]], *streams: str
) -> Callable[Concatenate[SandboxProcess, P], T]:
    """Return the blocking method for an operation that uses some of the streams."""
    signature = inspect.signature(op)

    @functools.wraps(op)
    def method(self: SandboxProcess, /, *args: P.args, **kwargs: P.kwargs) -> T:
        arguments = signature.bind(self._ops, *args, **kwargs)
        with held([self._locks[stream] for stream in streams], arguments.arguments.get("timeout")) as left:
            if "timeout" in arguments.arguments:
                arguments.arguments["timeout"] = left
            return finish(lambda: self._ops.node, op(*arguments.args, **arguments.kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = f"SandboxProcess.{method.__name__}"
    return method


class ProcessInput:
    """The standard input of a program in a sandbox."""

    def __init__(self, process: SandboxProcess) -> None:
        self._process: Final = process

    def write(self, data: bytes | str, timeout: float | None = None) -> None:
        """Write, and wait while the program does not read; see ``ProcessOps.write_op`` for the errors."""
        self._process.write(data, timeout=timeout)

    def close(self) -> None:
        """Close it after what was written; a program with a terminal gets the letter for that."""
        self._process.end_input()


class SandboxProcess:
    """A program that ``start`` began in a sandbox, or that ``attach`` returned; it ends with the sandbox.

    ``stdin`` has ``write`` and ``close``. Iterating yields the output as it comes, as pairs of "stdout" or
    "stderr" and bytes; output that is not read stays in the program, which then waits. Threads may share a
    handle: one reads while another one writes. A ``with`` body ends with ``close``, and the program goes on.
    """

    def __init__(self, ops: ProcessOps) -> None:
        self._ops: Final = ops
        self._locks: Final = {name: threading.Lock() for name in ("status", "input", "output")}
        self.stdin: Final = ProcessInput(self)

    write = _blocking(ProcessOps.write_op, "input")
    end_input = _blocking(ProcessOps.end_input_op, "input")
    read = _blocking(ProcessOps.read_op, "output")
    wait = _blocking(ProcessOps.wait_op, "status")
    kill = _blocking(ProcessOps.kill_op)
    resize = _blocking(ProcessOps.resize_op)
    communicate = _blocking(ProcessOps.communicate_op, "input", "output", "status")
    _leave = _blocking(ProcessOps.leave_op)
    _close = _blocking(ProcessOps.close_op, "input", "output", "status")

    def close(self) -> None:
        """Give up the streams; the program goes on, and ``attach`` returns another handle of it.

        Calls of other threads that wait for the program return.
        """
        self._leave()
        self._close()

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

    def __iter__(self) -> Iterator[ProgramOutput]:
        while (part := self.read()) is not None:
            yield part

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
