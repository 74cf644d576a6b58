"""The start queue of a node: runs that wait for a place, because as many tasks run as may run (B.1.5).

A run waits in the submission queue until the scheduler has chosen its node, and in the start queue of that
node until there is room for it. ``dios.core.calls.waiting_starts`` puts runs in and starts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from dios.core.model.records import ChildIdentity, Pending
from dios.ids import NodeId, Principal, TaskId
from dios.wire import dcp

CallKey: TypeAlias = tuple[int, int]


class QueuedStart(Struct):
    """A run that waits for room, and its future task's identity.

    ``node`` is the node of the caller and ``body`` its request if the caller is on another node. ``reason``
    is that of the last attempt to start it.
    """

    row: Pending
    chosen: ChildIdentity
    fingerprint: str
    since: int
    node: NodeId = NodeId(0)
    body: dcp.Start | None = None
    reason: str = ""


class StartQueue:
    """The runs that wait, in order for each principal. Principals take turns.

    ``is_served`` is True while a work item starts runs from this queue. ``starting`` has the ids of the tasks
    that calls of this node are starting, here or on other nodes.
    """

    __slots__ = ("_children", "by_principal", "is_served", "principals", "starting")

    def __init__(self) -> None:
        self.by_principal: dict[Principal, dict[CallKey, QueuedStart]] = {}
        self.principals: dict[CallKey, Principal] = {}
        self.is_served = False
        self.starting: dict[CallKey, TaskId] = {}
        self._children: set[TaskId] = set()

    def __len__(self) -> int:
        return len(self.principals)

    def has(self, row: Pending) -> bool:
        """Return True if the run of this call waits for room."""
        return row.key in self.principals

    def count_of(self, principal: Principal) -> int:
        """Return the number of waiting runs of a principal."""
        return len(self.by_principal.get(principal, ()))

    def put(self, queued: QueuedStart) -> None:
        """Append a run."""
        principal, key = queued.row.task.principal, queued.row.key
        self.by_principal.setdefault(principal, {})[key] = queued
        self.principals[key] = principal

    def note_starting(self, row: Pending, child: TaskId) -> None:
        """Note that a waiting call is starting a task, to which references are offered."""
        self.starting[row.key] = child
        self._children.add(child)

    def is_starting(self, child: TaskId) -> bool:
        """Return True if a waiting call is starting the task with this id."""
        return child in self._children

    def forget(self, row: Pending) -> None:
        """Remove the run of a call that does not wait any more."""
        child = self.starting.pop(row.key, None)
        if child is not None:
            self._children.discard(child)
        principal = self.principals.get(row.key)
        if principal is None or self.by_principal[principal][row.key].row is not row:
            return
        own = self.by_principal[principal]
        del self.principals[row.key], own[row.key]
        if not own:
            del self.by_principal[principal]

    def next_of(self, principal: Principal) -> QueuedStart | None:
        """Return the run of a principal that has waited longest, or None."""
        return next(iter(self.by_principal.get(principal, {}).values()), None)

    def end_turn(self, principal: Principal) -> None:
        """Let all other principals with waiting runs come before this principal."""
        own = self.by_principal.pop(principal, None)
        if own is not None:
            self.by_principal[principal] = own

    def all_waiting(self) -> Iterator[QueuedStart]:
        """Iterate over all waiting runs."""
        return (queued for own in self.by_principal.values() for queued in own.values())

    def waiting_of(self, principal: Principal) -> Iterator[QueuedStart]:
        """Iterate over the waiting runs of a principal, in order."""
        return iter(self.by_principal.get(principal, {}).values())
