"""The operations on a sandbox that another connection of the same owner has opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from dios.client.sync.node import Node
from dios.errors import InvalidError
from dios.lib.amounts import seconds_of
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.link import family_of
from dios.lib.sandbox.processes.handles import ProcessOps, ProgramInfo, SandboxPrograms
from dios.lib.sandbox.steps import Steps, call

NOT_OPEN: Final = "this sandbox is not open: use it in an `async with` statement"


class RunningOps:
    """The programs of a sandbox that runs, by the fingerprint of its session."""

    def __init__(self, session: str, timeout: float | None, bounds: SandboxBounds | None) -> None:
        if not session:
            raise InvalidError("name the session of a sandbox; `dios sandbox ls` lists them")
        self._session: Final = session.lower()
        self._timeout: Final = None if timeout is None else seconds_of(timeout, "timeout")
        self._bounds: Final = bounds or SandboxBounds()
        self._programs: SandboxPrograms | None = None
        self._node: Node

    def open_op(self, node: Node) -> Steps[None]:
        """Look for the session on the node. Raise InvalidError unless exactly one fits."""
        self._node = node
        rows = yield from call(node.tasks_op(local_only=True))
        fitting = [
            row
            for row in rows
            if row.fingerprint.startswith(self._session) and family_of(row) is not None and not row.ended
        ]
        if len(fitting) != 1 or fitting[0].name is None:
            number = f"{len(fitting)} sessions" if fitting else "no session"
            raise InvalidError(
                f"{self._session!r} fits {number} of your sandboxes here. `dios sandbox ls` lists them"
            )
        task = yield from call(node.find_op(fitting[0].name))
        if task is None:
            raise InvalidError(f"the session {self._session!r} has ended")
        self._programs = SandboxPrograms(node, task, self._bounds.output_bytes)  # type: ignore[arg-type]  # by its row

    def start_op(
        self,
        *arguments: str,
        cwd: str | os.PathLike[str] = "",
        env: Mapping[str, str] | None = None,
        pty: tuple[int, int] | None = None,
    ) -> Steps[ProcessOps]:
        """Start a program; see ``Sandbox.start``."""
        programs = self._open()
        return programs.process(*(yield from programs.start(arguments, cwd, env, pty, self._timeout)))

    def attach_op(self, id: str) -> Steps[ProcessOps]:  # noqa: A002 - as it is called
        """Return a handle of a program by its id; see ``Sandbox.attach``."""
        programs = self._open()
        return programs.process(*(yield from programs.attach(id, self._timeout)))

    def processes_op(self) -> Steps[list[ProgramInfo]]:
        """Return the programs of the sandbox; see ``Sandbox.processes``."""
        return (yield from self._open().processes(self._timeout))

    def _open(self) -> SandboxPrograms:
        if self._programs is None:
            raise InvalidError(NOT_OPEN)
        return self._programs
