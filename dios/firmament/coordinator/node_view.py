"""The tasks of a node, known from the changes of its queue. The measurements of the node need them."""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec.structs import replace

from dios import limits
from dios.firmament.coordinator.task_tracer import is_followed
from dios.wire.messages import Occupant, QueueRows
from dios.wire.types import TaskState

_EVERY_S: Final = 0.1
"""Measurements use a new view at most this often; at once if a task of an admitted job has changed."""


class NodeView:
    """The tasks of one node, as the last answers about its queue show them."""

    def __init__(self) -> None:
        self._tasks: dict[int, Occupant] = {}
        self._ended: deque[Occupant] = deque(maxlen=limits.QUEUE_ENDED_KEPT)
        self._changed = self._urgent = False
        self._used = 0.0

    def update(self, queue: QueueRows) -> None:
        """Add the rows of an answer."""
        if queue.whole:
            self._tasks.clear()
            self._ended.clear()
        for task in queue.gone:
            self._tasks.pop(task, None)
        for row in queue.tasks:
            if row.state is TaskState.ENDED:
                self._ended.append(row)
                self._tasks.pop(row.id, None)
            else:
                self._tasks[row.id] = row
            self._urgent |= is_followed(row)
        self._changed = True

    def begin_use(self, now: float) -> bool:
        """Return True, and record the time, if measurements have to use the present rows."""
        if not self._changed or (now - self._used < _EVERY_S and not self._urgent):
            return False
        self._changed = self._urgent = False
        self._used = now
        return True

    def rows(self, queue: QueueRows) -> QueueRows:
        """Return an answer with all tasks of the node instead of those that changed."""
        return replace(queue, tasks=(*self._tasks.values(), *self._ended), whole=True)
