"""The queue of a node, as a coordinator reads it: in parts if it is long, and then only its changes."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from msgspec.structs import replace

from dios import limits
from dios.firmament.coordinator.task_tracer import is_followed
from dios.wire.messages import Occupant, QueueRows
from dios.wire.types import TaskState

_EVERY_S: Final = 0.1
"""Measurements use a new view at most this often; at once if a task of an admitted job has changed."""


class QueueMark(NamedTuple):
    """The place in a node's queue up to which a coordinator has read it."""

    since: int = 0
    listed: int = 0
    tasks_listed: int = 0

    @classmethod
    def behind(cls, queue: QueueRows) -> QueueMark:
        """Return the mark for the call after this answer."""
        return cls(queue.version, queue.listed, queue.tasks_listed)

    def precedes(self, queue: QueueRows) -> bool:
        """Return True if this answer to a call with the mark may have rows."""
        return queue.version > self.since or self.listed > 0 or self.tasks_listed > 0


def joined(whole: QueueRows, part: QueueRows) -> QueueRows:
    """Return the first parts of a whole answer together with the next one.

    Its tasks and waiting runs are those that the node has at the moment of the last part.
    """
    tasks: dict[int, Occupant] = {row.id: row for row in whole.tasks}
    waiting = {row.id: row for row in whole.waiting}
    for gone in part.gone:
        tasks.pop(gone, None)
        waiting.pop(gone, None)
    tasks.update((row.id, row) for row in part.tasks)
    waiting.update((row.id, row) for row in part.waiting)
    is_newer = part.version > whole.version
    return replace(
        part,
        waiting=tuple(waiting.values()),
        tasks=tuple(tasks.values()),
        asked=part.asked if is_newer else whole.asked,
        reports=(*whole.reports, *part.reports),
        shares=part.shares or (whole.shares if part.shares_version == whole.shares_version else b""),
        whole=True,
        threads=part.threads or whole.threads,
        gone=(),
        kept=whole.kept if part.kept is None else part.kept,
    )


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
