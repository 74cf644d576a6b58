"""The shares of the machine to which running tasks of jobs over time are held (Packer paper, II-C).

A coordinator sets them again and again. When it stops, they end with their lease.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from dios.core.effects import TaskShare
from dios.errors import DiosError
from dios.host.process.task_process import TaskProcess
from dios.ids import TaskId

_FREE: Final = TaskShare(replaces=True)
"""No part of the machine, and no bound."""
_log: Final = logging.getLogger(__name__)


class HeldShares:
    """The shares in force, and a trio task that applies them while there are any.

    Args:
        nursery: runs that task.
        hold: applies a share to a process; it may take milliseconds.
        process_of: returns the process of a task, or None if it has none.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        hold: Callable[[TaskProcess, TaskShare], Awaitable[None]],
        process_of: Callable[[TaskId], TaskProcess | None],
    ) -> None:
        self._nursery = nursery
        self._hold = hold
        self._process_of = process_of
        self._wanted: dict[TaskId, TaskShare] = {}
        self._until = 0.0
        self._changed = trio.Event()
        self._active = False

    def set(self, shares: tuple[tuple[TaskId, TaskShare], ...], lease_ms: int) -> None:
        """Hold tasks to these shares from now on, for ``lease_ms``, instead of all former ones."""
        self._wanted = dict(shares)
        self._until = trio.current_time() + lease_ms / 1000
        self._changed.set()
        if self._wanted and not self._active:
            self._active = True
            self._nursery.start_soon(self._run, name="hold tasks to their shares")

    async def _run(self) -> None:
        applied: dict[TaskId, TaskShare] = {}
        while self._wanted or applied:
            self._changed = trio.Event()
            if trio.current_time() >= self._until:
                self._wanted = {}
            for task in [*applied, *(task for task in self._wanted if task not in applied)]:
                await self._apply(task, self._wanted.get(task, _FREE), applied)
            if self._wanted:
                with trio.move_on_at(self._until):
                    await self._changed.wait()
        self._active = False

    async def _apply(self, task: TaskId, share: TaskShare, applied: dict[TaskId, TaskShare]) -> None:
        """Hold a task to a share, if its process runs and has another one."""
        process = self._process_of(task)
        if process is None:
            applied.pop(task, None)
            return
        if applied.get(task, _FREE) != share:
            try:
                await self._hold(process, share)
            except DiosError as error:
                _log.warning("a task is not held to its share", extra={"why": error.message})
        applied[task] = share
        if share == _FREE:
            del applied[task]
