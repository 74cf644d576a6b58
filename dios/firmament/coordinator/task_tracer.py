"""Usage profiles of the tasks of admitted jobs on a coordinator's own node, measured once a second.

``observer`` samples all other tasks at longer intervals.

The use of processors, memory and disks is that of the task's processes. But the node itself writes what a
task stores durably, and moves what it sends and receives: these bytes are on the node's meters. The meters
have an account for a task while it is at an end of a guarantee, and one account for all other tasks of its
principal. If a task was the only one of its principal on the node at each measurement, all its stored and
received bytes are reported. For any other task only the bytes on its own account are reported.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from dios import limits
from dios.errors import DiosError, InvalidError
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.usage_profile import UsageChannel, UsageProfile, UsageRecording
from dios.firmament.monitor.task_probe import TaskProbe, TaskReading
from dios.wire.messages import Meter, Occupant, QueueRows
from dios.wire.types import TaskState, Traffic

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode

_LOOK_S: Final = 1.0
_MS: Final = 1_000_000
_SPAN_MS: Final = 500
"""Use over a shorter time is averaged over this time: moments say little about a second."""
_LETTER_BYTES_MAX: Final = 4
_UNREAD: Final = "bytes read and written"
"""The beginning of a reading's problem if the system does not show disk accesses."""


def job_of(row: Occupant) -> str:
    """Return the name of the job of which a task is a member: its class is the job's and the member's name.

    If both together were too long, the end is missing, and with it the part of it that belongs to the job.
    """
    named = row.work.equivalence or row.label
    ends = [f"/{row.work.member}"]
    if len(named.encode()) > limits.NODE_NAME_BYTES_MAX - _LETTER_BYTES_MAX:
        ends += [f"/{row.work.member[:letters]}" for letters in range(len(row.work.member) - 1, -1, -1)]
    return next((named.removesuffix(end) for end in ends if named.endswith(end)), "") or named


def known_as(job: str) -> str:
    """Return a job's name as its tasks have it, cut to the longest possible length."""
    return job.encode()[: limits.NODE_NAME_BYTES_MAX].decode(errors="ignore")


def is_followed(row: Occupant) -> bool:
    """Return True for a task of an admitted job."""
    return bool(row.work.reservation and row.work.member)


def _counts(row: Occupant) -> bool:
    """Return True if a task may use its principal's account; the coordinator itself does not."""
    return row.state is not TaskState.ENDED and row.pid != os.getpid()


class _Meters:
    """The meters of a node at one time."""

    def __init__(self, meters: Iterable[Meter]) -> None:
        self.tasks: dict[int, dict[Traffic, int]] = {}
        self.others: dict[str, dict[Traffic, int]] = {}
        """By principal: bytes that are on no task's account."""
        for meter in meters:
            kept = self.tasks.setdefault(meter.task, {}) if meter.task else None
            if kept is None:
                kept = self.others.setdefault(meter.principal, {})
            kept[meter.traffic] = meter.moved


class _TracedTask:
    """One task, and its last readings."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        """The start by the clock of measurements; the time of discovery until the task is seen running."""
        self.runs = False
        self.recording = UsageRecording()
        self.alone: UsageRecording | None = UsageRecording()
        """Its bytes on the principal's account; None once another task may have used that account."""
        self.probe = TaskProbe()
        self.looked_ms = 0
        self.reading: TaskReading | None = None
        self.peak = 0
        self._own: dict[Traffic, int] = {}
        self._others: dict[Traffic, int] | None = None

    def span_to(self, age_ms: int) -> tuple[int, int]:
        """Return the begin and the counted length of the span from the last measurement to now."""
        begin, self.looked_ms = self.looked_ms, max(self.looked_ms, age_ms)
        return begin, max(_SPAN_MS, self.looked_ms - begin)

    @property
    def followed(self) -> bool:
        """Return True if its node's meters were read before it ended."""
        return self._others is not None

    def moved(self, own: dict[Traffic, int], others: dict[Traffic, int]) -> tuple[dict[Traffic, int], ...]:
        """Return the bytes since the last measurement: on its own account, and on its principal's."""
        mine: dict[Traffic, int] = {}
        for traffic, now in own.items():
            before = self._own.get(traffic, 0)
            # A smaller value is of an account that was closed and opened again meanwhile.
            mine[traffic] = now - before if now >= before else now
        theirs = {
            traffic: max(0, now - self._others.get(traffic, 0)) if self._others is not None else 0
            for traffic, now in others.items()
        }
        # A missing account may come again.
        self._own |= own
        self._others = {**(self._others or {}), **others}
        return mine, theirs


class TaskTracer:
    """Makes usage profiles of the tasks of admitted jobs on one node."""

    def __init__(self, knowledge: KnowledgeBase) -> None:
        self._knowledge = knowledge
        self._rows: dict[int, Occupant] = {}
        self._cpus = 1
        self._crowded: set[str] = set()
        """Principals with more than one task here, now or in the last queue."""
        self._tasks: dict[int, _TracedTask] = {}
        self._done: set[int] = set()
        self._problem = ""
        self.fresh = False
        """True if there are profiles that are not stored yet; the storing code sets it to False."""
        self._news = trio.Event()

    async def run(self, node: AsyncNode, lock: trio.Lock) -> None:
        """Measure once a second while such tasks run, until cancelled; wait while there are none.

        Args:
            node: the own node, which reports its meters.
            lock: held while the knowledge base is changed.
        """
        while True:
            # A task should be measured soon after its start: until then others may use the same account.
            with trio.move_on_after(_LOOK_S if self.busy else math.inf):
                await self._news.wait()
            self._news = trio.Event()
            if not self.busy:
                continue
            meters: tuple[Meter, ...] | None = None
            try:
                meters = (await node.govern()).meters
            except DiosError as error:
                self._log_once(f"the traffic of tasks is not known: {error}")
            look = partial(self.look, meters, time.monotonic_ns(), time.time_ns())
            courses = await trio.to_thread.run_sync(look)
            async with lock:
                self.take_in(courses)

    def take_in(self, courses: Iterable[UsageProfile]) -> None:
        """Add profiles to the knowledge base; skip and report invalid ones."""
        for course in courses:
            try:
                self._knowledge.add_usage_profile(course)
                self.fresh = True
            except InvalidError as error:
                self._log_once(f"an invalid usage profile of a task was skipped: {error}")

    def _log_once(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            sys.stderr.write(f"coordinator: {problem}\n")

    @property
    def busy(self) -> bool:
        """Return True if there is any task to measure."""
        return any(task not in self._done for task in self._rows)

    def heard(self, board: QueueRows, now_ns: int) -> None:
        """Use the node's own queue at once, because the ages in it are those of this moment."""
        was_busy = self.busy
        rows = [row for row in board.tasks if is_followed(row)]
        self._rows = {row.id: row for row in rows}
        self._cpus = max(1, board.cpus)
        running = Counter(row.principal for row in board.tasks if _counts(row))
        self._crowded = {principal for principal, count in running.items() if count > 1}
        self._done &= self._rows.keys()
        self._tasks = {task: traced for task, traced in self._tasks.items() if task in self._rows}
        for row in rows:
            if row.state is TaskState.ENDED:
                continue
            task = self._tasks.get(row.id)
            if task is None and len(self._tasks) < limits.TRACED_TASKS_MAX:
                task = self._tasks[row.id] = _TracedTask(now_ns)
                self._news.set()
            if task is not None and not task.runs and row.state is not TaskState.STARTING:
                task.runs, task.began_ns = True, now_ns - row.age_ms * _MS
        if self.busy and not was_busy:
            self._news.set()

    def look(self, meters: Iterable[Meter] | None, now_ns: int, wall_ns: int) -> list[UsageProfile]:
        """Measure each running task; return the profiles of those that have ended.

        Args:
            meters: the node's own, of this moment; None if it did not answer.
            now_ns: by the same clock as ``heard``.
            wall_ns: the same moment in nanoseconds since 1970.
        """
        moved = None if meters is None else _Meters(meters)
        profiles: list[UsageProfile] = []
        for number, row in self._rows.items():
            if number in self._done:
                continue
            if row.state is TaskState.ENDED:
                self._done.add(number)
                # An earlier coordinator of this node may have recorded its end.
                if not self._is_known(row):
                    # For a task that was never measured, only the queue has data: it has ended just now.
                    task = self._tasks.pop(number, None) or _TracedTask(now_ns - row.age_ms * _MS)
                    began_ns = max(0, wall_ns - (now_ns - task.began_ns))
                    profiles.append(self._end(row, task, moved, began_ns))
            elif (running := self._tasks.get(number)) is not None:
                if row.pid:
                    self._sample(running, row, moved, now_ns)
                elif moved is not None:
                    # The bytes on its principal's account are not its own yet.
                    running.moved({}, moved.others.get(row.principal, {}))
        return profiles

    def _is_known(self, row: Occupant) -> bool:
        return self._knowledge.usage_profiles.knows(row.principal, job_of(row), row.work.member, row.id)

    def _sample(self, task: _TracedTask, row: Occupant, moved: _Meters | None, now_ns: int) -> None:
        reading = task.probe.read(now_ns, (row.pid,))
        if not reading.processes:
            return
        begin, span = task.span_to((now_ns - task.began_ns) // _MS)
        before, task.reading = task.reading, reading
        memory = reading.resident if before is None else max(reading.resident, before.resident)
        values = {
            UsageChannel.CPU_MILLI: self._cpu(_wanted_ns(reading) - _wanted_ns(before), span),
            # Between two measurements it may have used more: the kernel keeps the peak.
            UsageChannel.MEMORY: max(memory, reading.peak if reading.peak > task.peak else 0),
        }
        task.peak = max(task.peak, reading.peak)
        written = 0
        if not any(why.startswith(_UNREAD) for why in reading.missing):
            values[UsageChannel.DISK_READ] = _rate(reading.read - (before.read if before else 0), span)
            written = max(0, reading.written - (before.written if before else 0))
        self._record(task, row, moved, written, (begin, task.looked_ms, span), values)

    def _end(self, row: Occupant, task: _TracedTask, moved: _Meters | None, began_ns: int) -> UsageProfile:
        if not task.followed:
            # It was never measured, so its principal's traffic in that time is not known.
            task.alone = None
        begin, span = task.span_to(row.age_ms)
        cpu_ns = task.reading.cpu_ns if task.reading else 0
        memory = task.reading.resident if task.reading else 0
        values = {
            UsageChannel.CPU_MILLI: self._cpu(row.cpu_ms * _MS - cpu_ns, span),
            UsageChannel.MEMORY: max(memory, row.memory_bytes if row.memory_bytes > task.peak else 0),
        }
        self._record(task, row, moved, 0, (min(begin, row.age_ms), row.age_ms, span), values)
        instant_s, told = task.recording.values(row.age_ms)
        if task.alone is not None:
            told |= task.alone.values(row.age_ms)[1]
        return UsageProfile(
            row.principal,
            job_of(row),
            row.work.member,
            self._knowledge.node,
            row.work.reservation,
            row.id,
            began_ns,
            row.age_ms,
            instant_s,
            told,
            row.completed,
        )

    def _record(
        self,
        task: _TracedTask,
        row: Occupant,
        moved: _Meters | None,
        written: int,
        span: tuple[int, int, int],
        values: dict[UsageChannel, int],
    ) -> None:
        """Record a span: begin, end, and its counted length; ``written`` by the task's processes."""
        begin, end, length = span
        if moved is None or row.principal in self._crowded:
            task.alone = None
        own = moved.tasks.get(row.id, {}) if moved else {}
        mine, others = task.moved(own, moved.others.get(row.principal, {}) if moved else {})
        stored, received = mine.get(Traffic.STORE, 0), mine.get(Traffic.IN, 0)
        if own:
            values[UsageChannel.SENT] = _rate(mine.get(Traffic.OUT, 0), length)
            values[UsageChannel.RECEIVED] = _rate(received, length)
        # A pure task writes nothing itself, because its node writes for it: 0 says nothing then.
        if written or Traffic.STORE in own:
            values[UsageChannel.DISK_WRITE] = _rate(written + stored, length)
        task.recording.span(begin, end, values)
        if task.alone is not None:
            alone = {
                UsageChannel.DISK_WRITE: _rate(written + stored + others.get(Traffic.STORE, 0), length),
                UsageChannel.RECEIVED: _rate(received + others.get(Traffic.IN, 0), length),
            }
            task.alone.span(begin, end, alone)

    def _cpu(self, ran_ns: int, span_ms: int) -> int:
        """Return thousandths of a processor, at most those of the machine."""
        return min(max(0, ran_ns) * 1000 // (span_ms * _MS), self._cpus * 1000)


def _wanted_ns(reading: TaskReading | None) -> int:
    """Return the time on a processor or waiting for one."""
    return 0 if reading is None else reading.cpu_ns + reading.wait_ns


def _rate(amount: int, span_ms: int) -> int:
    """Return the amount per second, rounded up so that a little is not 0."""
    return -(-max(0, amount) * 1000 // span_ms)
