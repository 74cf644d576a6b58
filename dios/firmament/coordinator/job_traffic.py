"""The traffic between nodes for the tasks of admitted jobs, from the meters of all nodes.

One end of an edge moves its bytes: they are on the account of that task, at the node that sends them. For a
task that reads from other nodes only the coordinator that governs, which receives all meters, knows the
amount. It makes a usage profile of each task with its sent and received bytes alone; the knowledge base joins
it with the task's own.
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
    """A running task, and the rate at which each node sends bytes on its account."""

    def __init__(self, row: Occupant, host: str, began: float) -> None:
        self.row = row
        self.host = host
        self.began = began
        self.recording = UsageRecording()
        self.named = False
        self.rates: dict[str, int] = {}

    def take(self, host: str, rate: int, begin: float, end: float) -> None:
        """Record the rate at which a node sent, in bytes per second, from ``begin`` to ``end``."""
        self.named = True
        self.rates[host] = rate
        received = sum(value for name, value in self.rates.items() if name != self.host)
        values = {UsageChannel.SENT: self.rates.get(self.host, 0), UsageChannel.RECEIVED: received}
        first, last = (max(0, round((at - self.began) * _MS)) for at in (begin, end))
        if last > first:
            self.recording.span(first, last, values)


class JobTraffic:
    """The traffic of all tasks of admitted jobs on the nodes of one coordinator.

    Args:
        knowledge: receives the usage profiles.
        wall: seconds since 1970 at time 0 of the clock of the arguments ``now``.
    """

    def __init__(self, knowledge: KnowledgeBase, wall: float) -> None:
        self._knowledge = knowledge
        self._wall = wall
        self._tasks: dict[int, _JobTask] = {}
        self._meters: dict[str, tuple[float, dict[int, int]]] = {}

    def seen(self, board: QueueRows, now: float) -> None:
        """Record a node's queue."""
        rows = {row.id: row for row in board.tasks if is_followed(row)}
        for task in [number for number, job_task in self._tasks.items() if job_task.host == board.name]:
            row = rows.get(task)
            gone = row is None and (board.whole or task in board.gone)
            if gone or (row is not None and row.state is TaskState.ENDED):
                self._end(self._tasks.pop(task), row)
        for row in rows.values():
            known = row.id in self._tasks or len(self._tasks) >= limits.JOB_TRAFFIC_TASKS_MAX
            if row.state is TaskState.RUNNING and not known:
                self._tasks[row.id] = _JobTask(row, board.name, now - row.age_ms / _MS)

    def forget(self, host: str) -> None:
        """Forget a node that is gone or that another coordinator governs."""
        self._meters.pop(host, None)
        self._tasks = {number: job_task for number, job_task in self._tasks.items() if job_task.host != host}

    def metered(self, host: str, meters: Iterable[Meter], now: float) -> None:
        """Record a node's meters."""
        told = {meter.task: meter.moved for meter in meters if meter.task and meter.traffic is Traffic.OUT}
        before = self._meters.get(host)
        self._meters[host] = now, told
        if before is None or now <= before[0]:
            return
        began, moved = before
        for task, job_task in self._tasks.items():
            if task in told or host in job_task.rates:
                had = moved.get(task, 0)
                # A smaller or missing value belongs to an account that was opened meanwhile.
                went = told.get(task, 0) - (had if told.get(task, 0) >= had else 0)
                job_task.take(host, round(went / (now - began)), began, now)

    def _end(self, task: _JobTask, row: Occupant | None) -> None:
        """Add the profile of a task that has left its node, if it was on any account."""
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
            sys.stderr.write(f"coordinator: invalid traffic of a task was skipped: {error}\n")
