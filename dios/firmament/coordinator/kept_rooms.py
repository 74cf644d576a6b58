"""Promised starts in the queues of nodes, by which coordinators know of each other's reservations.

A coordinator notes the reservations of its scheduler (``policies.reservations``) in the queue where the task
waits. The next coordinator of this queue continues with them, and other coordinators leave the room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dios.firmament.coordinator.best_effort import wanted_by
from dios.firmament.coordinator.cluster_service import NotedStart
from dios.firmament.coordinator.cluster_state import Phase, TrackedCluster
from dios.firmament.policies.reservations import RemoteReservation
from dios.firmament.scheduler import FlowScheduler
from dios.limits import RESERVATION_UNKNOWN_S
from dios.wire.messages import PromisedStart

_SLACK_S: Final = 2.0
_SLACK_PART: Final = 0.1
"""A start is noted again if it differs by more than this time and this part of the time until then."""


class KeptRooms:
    """The reservations of one coordinator's scheduler, and those that queues show."""

    def __init__(self, cluster: TrackedCluster, scheduler: FlowScheduler) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._own: set[int] = set()
        """The tasks whose promised start this coordinator has noted or taken over."""
        self._sent: dict[int, tuple[str, float]] = {}
        """The node that was noted last for a task, and when; empty: none."""

    def apply(self, noted: Mapping[str, Sequence[NotedStart]], now: float) -> None:
        """Give the scheduler the promised starts of the queues before a round; a start long past is void."""
        recalled: dict[int, int] = {}
        elsewhere: list[RemoteReservation] = []
        for noted_start in (start for several in noted.values() for start in several):
            task, node = noted_start.row.submission, self._cluster.nodes.get(noted_start.row.node)
            if node is None or noted_start.start + RESERVATION_UNKNOWN_S < now:
                continue
            tracked = self._cluster.tasks.get(task)
            if tracked is None:
                demand = wanted_by(noted_start.row.work)
                elsewhere.append(
                    RemoteReservation(task, node.node, demand, noted_start.submitted, noted_start.start)
                )
            elif tracked.phase is Phase.WAITING and task not in self._own:
                recalled[task] = node.node
        self._own.update(recalled)
        self._scheduler.recall(recalled)
        self._scheduler.leave_to_others(elsewhere)

    def changes(
        self, noted: Mapping[str, Sequence[NotedStart]], now: float
    ) -> dict[str, list[PromisedStart]]:
        """Return after a round what has to be noted, by the node of the queue."""
        names = {queue.node: name for name, queue in self._cluster.nodes.items()}
        wanted = {
            task: (names[machine], start)
            for task, (machine, start) in self._scheduler.promised_starts().items()
            if machine in names
        }
        shown = {
            noted_start.row.submission: noted_start for several in noted.values() for noted_start in several
        }
        self._own = {task for task in self._own | wanted.keys() if task in wanted or task in shown}
        self._sent = {task: sent for task, sent in self._sent.items() if task in self._own}
        changed: dict[str, list[PromisedStart]] = {}
        for task in sorted(self._own):
            tracked = self._cluster.tasks.get(task)
            node, start = wanted.get(task, ("", now))
            if tracked is None or tracked.phase is not Phase.WAITING:
                continue
            if self._differs(shown.get(task), node, start, now) and self._may_send(task, node, now):
                self._sent[task] = node, now
                in_ms = max(0, round(1000 * (start - now)))
                changed.setdefault(tracked.host, []).append(PromisedStart(task, node, in_ms))
        return changed

    def _differs(self, shown: NotedStart | None, node: str, start: float, now: float) -> bool:
        """Return True if a queue shows another promised start; that of a node unknown here is left alone."""
        if shown is None or shown.row.node not in self._cluster.nodes:
            return bool(node) and shown is None
        slack = max(_SLACK_S, _SLACK_PART * (start - now))
        return shown.row.node != node or abs(shown.start - start) > slack

    def _may_send(self, task: int, node: str, now: float) -> bool:
        """Return True unless the same was sent a short while ago, so that the queue may not show it yet."""
        before, when = self._sent.get(task, ("", -_SLACK_S))
        return before != node or now - when >= _SLACK_S
