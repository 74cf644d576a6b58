"""Processes of a template that are forked and confined in advance, and wait for a task.

A prepared process is in its namespaces and its control group, has all its filters, and has run its own
warm-up. It has received nothing but its limits: no byte of any principal. Each serves one task and ends.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from dios.errors import DiosError
from dios.host.process.failure_pause import FailurePause
from dios.host.process.task_process import TaskProcess

_log: Final = logging.getLogger(__name__)

IDLE_S: Final = 300.0
"""A template that started no task for this time keeps no process."""

PAUSE_S: Final = 0.01
"""The pause between a start and the next preparation, because the task that has just started comes first."""


class PreparedTasks:
    """The prepared processes of one template; those that can be forked later are apart from the others.

    At most ``most`` of each kind wait, and none before a task has asked for one of its kind. ``make`` creates
    one, and ``has_room`` returns False while the node has as many processes as it may have tasks.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        most: int,
        make: Callable[[bool], Awaitable[TaskProcess]],
        has_room: Callable[[], bool],
    ) -> None:
        self._nursery: Final = nursery
        self._most: Final = most
        self._make: Final = make
        self._has_room: Final = has_room
        self._waiting: Final = {kind: deque[TaskProcess]() for kind in (False, True)}
        self._wanted_until: Final[dict[bool, float]] = {}
        self._changed = trio.Event()
        self._is_filling = False
        self._closed: Final = trio.Event()
        self._pause: Final = FailurePause()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def take(self, *, forkable: bool) -> TaskProcess | None:
        """Return a prepared process, or None; others are prepared afterwards."""
        if not self._most or self._closed.is_set():
            return None
        self._wanted_until[forkable] = trio.current_time() + IDLE_S
        self._changed.set()
        if not self._is_filling:
            self._is_filling = True
            self._nursery.start_soon(self._keep_filled, name="prepare tasks of a template")
        waiting = self._waiting[forkable]
        while waiting:
            child = waiting.popleft()
            if child.exit is None:
                self._pause.succeeded()
                return child
            child.close()
        return None

    def ended(self, child: TaskProcess) -> None:
        """Note the end of a process; nothing happens if it does not wait here."""
        for waiting in self._waiting.values():
            if child in waiting:
                waiting.remove(child)
                child.close()
                self._pause.failed()
                self._changed.set()

    def clear(self) -> None:
        """End all prepared processes: their template has ended, or nobody uses it."""
        self._pause.succeeded()
        for kind in self._waiting:
            self._end(kind)

    def close(self) -> None:
        """End all prepared processes, and prepare no other."""
        self._closed.set()
        self.clear()

    def _end(self, kind: bool) -> None:  # noqa: FBT001 - it is a key
        waiting = self._waiting[kind]
        while waiting:
            waiting.popleft().close()

    async def _keep_filled(self) -> None:
        try:
            while not self._closed.is_set():
                await trio.sleep(PAUSE_S)
                if self._closed.is_set():
                    return
                self._changed = trio.Event()
                now = trio.current_time()
                for kind in [kind for kind, until in self._wanted_until.items() if until <= now]:
                    del self._wanted_until[kind]
                    self._end(kind)
                if not self._wanted_until:
                    return
                for kind in list(self._wanted_until):
                    await self._fill(kind)
                with trio.move_on_at(min(self._pause.end, *self._wanted_until.values())):
                    await self._changed.wait()
        except Exception as error:  # noqa: BLE001 - tasks then start on demand
            _log.error("an internal error ended the preparation of tasks", exc_info=error)
        finally:
            self._is_filling = False

    async def _fill(self, kind: bool) -> None:  # noqa: FBT001 - it is a key
        waiting, closed = self._waiting[kind], self._closed
        while len(waiting) < self._most and self._pause.is_over and self._has_room() and not closed.is_set():
            try:
                child = await self._make(kind)
            except DiosError:
                # The next task that starts on demand shows the reason to its caller.
                self._pause.failed()
                return
            if child.exit is not None:
                self._pause.failed()
                child.close()
            elif self._closed.is_set():
                child.close()
                return
            else:
                waiting.append(child)
