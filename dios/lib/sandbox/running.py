"""``RunningSandbox``: a sandbox that another connection of the same owner has opened, for its programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self

from dios.client.sync.node import Node, connect
from dios.lib.sandbox.blocking_steps import finish
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.process import SandboxProcess
from dios.lib.sandbox.processes.handles import ProcessOps, ProgramInfo
from dios.lib.sandbox.running_ops import RunningOps
from dios.lib.sandbox.steps import Steps

if TYPE_CHECKING:
    from types import TracebackType

    from dios.lib.sandbox.port_forward import PortForward

P = ParamSpec("P")


def _blocking(
    op: Callable[Concatenate[RunningOps, P], Steps[ProcessOps]],
) -> Callable[Concatenate[RunningSandbox, P], SandboxProcess]:
    @functools.wraps(op)
    def method(self: RunningSandbox, /, *args: P.args, **kwargs: P.kwargs) -> SandboxProcess:
        return SandboxProcess(finish(lambda: self._node, op(self, *args, **kwargs)))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = f"RunningSandbox.{method.__name__}"
    return method


class RunningSandbox(RunningOps):
    """A sandbox with an image that another program or connection of the same owner has opened.

    ``session`` is the beginning of the fingerprint of its session: ``Sandbox.fingerprint``, or that of
    `dios sandbox ls`. ``node`` is an open ``Node`` or the place of one. ``timeout`` and ``bounds`` are as for
    ``Sandbox``. The sandbox goes on at the end of a ``with`` body, with the programs that were started here,
    and ends with the one who opened it.

    Raises InvalidError unless one session of the caller's sandboxes on this node fits.
    """

    def __init__(
        self,
        session: str,
        *,
        node: Node | str | Path | None = None,
        timeout: float | None = 60.0,
        bounds: SandboxBounds | None = None,
    ) -> None:
        super().__init__(session, timeout, bounds)
        self._opens_node: Final = not isinstance(node, Node)
        own = node if isinstance(node, Node) else connect(node, start=False)
        try:
            finish(lambda: own, self.open_op(own))
        except BaseException:
            if self._opens_node:
                own.close()
            raise

    start = _blocking(RunningOps.start_op)
    attach = _blocking(RunningOps.attach_op)

    def processes(self) -> list[ProgramInfo]:
        """Return the programs of the sandbox; see ``Sandbox.processes``."""
        return finish(lambda: self._node, self.processes_op())

    def forward(self, port: int, *, local_port: int = 0) -> PortForward:
        """Return a port at 127.0.0.1 that leads to a server in the sandbox, at its own loopback address.

        ``local_port`` 0 is any free one. Only this process's user and root can connect. Each connection is in
        the audit log before it is made. Nothing else of the sandbox is reached, and it reaches nothing by it.
        Raises InvalidError for a number that is no port, OSError for a local port that is in use.
        """
        from dios.lib.sandbox.port_forward import PortForward  # noqa: PLC0415 - few programs need it

        return PortForward(self._node, self._open(), port, local_port, self._timeout)

    def close(self) -> None:
        """Close the connection; the sandbox goes on."""
        if self._opens_node:
            self._node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
