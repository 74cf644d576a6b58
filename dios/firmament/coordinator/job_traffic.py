"""What goes between nodes for the tasks of admitted jobs, as all nodes' meters tell who governs.

For: ``coordinator.office``. Not for: what a node sees of its own tasks (``coordinator.tracing``), or rates.

Bytes are moved by one of an edge's ends: they are on the account of that task, at the node from which they
go. Of a task that reads from elsewhere only who hears of all nodes knows how much. It makes a course of
each task, which has what it sent and received alone; the knowledge base joins it with the task's own one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from dios import limits
from dios.errors import InvalidError
from dios.firmament.coordinator.task_tracer import is_followed, job_of
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.usage_profile import UsageChannel, UsageProfile, UsageRecording
from dios.wire.messages import Meter, Occupant, QueueRows
from dios.wire.types import TaskState, Traffic

_MS: Final = 1000
_NS: Final = 1_000_000_000


class _JobTask:
    """A task that runs, and how fast bytes go from each node on its account."""

    def __init__(self, row: Occupant, host: str, began: float) -> None:
        self.row = row
        self.host = host
        self.began = began
        self.recording = UsageRecording()
        self.named = False
        self.rates: dict[str, int] = {}

    def take(self, host: str, rate: int, begin: float, end: float) -> None:
        """From ``begin`` to ``end`` so many bytes a second went from a node."""
        self.named = True
        self.rates[host] = rate
        received = sum(value for name, value in self.rates.items() if name != self.host)
        values = {UsageChannel.SENT: self.rates.get(self.host, 0), UsageChannel.RECEIVED: received}
        first, last = (max(0, round((at - self.began) * _MS)) for at in (begin, end))
        if last > first:
            self.recording.span(first, last, values)


class JobTraffic:
    """The flows of all tasks of admitted jobs on the nodes of one coordinator.

    Args:
        knowledge: gets their courses.
        wall: seconds since 1970 at time 0 of the clock by which it is told.
    """

    def __init__(self, knowledge: KnowledgeBase, wall: float) -> None:
        self._knowledge = knowledge
        self._wall = wall
        self._tasks: dict[int, _JobTask] = {}
        self._meters: dict[str, tuple[float, dict[int, int]]] = {}

    def seen(self, board: QueueRows, now: float) -> None:
        """Take in a node's board."""
        rows = {row.id: row for row in board.tasks if is_followed(row)}
        for task in [number for number, one in self._tasks.items() if one.host == board.name]:
            row = rows.get(task)
            if row is None or row.state is TaskState.ENDED:
                self._end(self._tasks.pop(task), row)
        for row in rows.values():
            known = row.id in self._tasks or len(self._tasks) >= limits.JOB_TRAFFIC_TASKS_MAX
            if row.state is TaskState.RUNNING and not known:
                self._tasks[row.id] = _JobTask(row, board.name, now - row.age_ms / _MS)

    def forget(self, host: str) -> None:
        """A node is gone, or another's."""
        self._meters.pop(host, None)
        self._tasks = {number: one for number, one in self._tasks.items() if one.host != host}

    def metered(self, host: str, meters: Iterable[Meter], now: float) -> None:
        """Take in a node's meters."""
        told = {one.task: one.moved for one in meters if one.task and one.traffic is Traffic.OUT}
        before = self._meters.get(host)
        self._meters[host] = now, told
        if before is None or now <= before[0]:
            return
        began, moved = before
        for task, one in self._tasks.items():
            if task in told or host in one.rates:
                had = moved.get(task, 0)
                # One that has run back, or was not there, is of an account that was opened meanwhile.
                went = told.get(task, 0) - (had if told.get(task, 0) >= had else 0)
                one.take(host, round(went / (now - began)), began, now)

    def _end(self, task: _JobTask, row: Occupant | None) -> None:
        """A task is gone from its node; of one that was on no account nothing is known."""
        if row is None or not task.named:
            return
        instant_s, values = task.recording.values(row.age_ms)
        course = UsageProfile(
            row.principal,
            job_of(row),
            row.work.member,
            task.host,
            row.work.reservation,
            row.id,
            max(0, round((self._wall + task.began) * _NS)),
            row.age_ms,
            instant_s,
            values,
            row.completed,
        )
        try:
            self._knowledge.add_usage_profile(course)
        except InvalidError as error:
            sys.stderr.write(f"coordinator: what a task moved makes no sense: {error}\n")
