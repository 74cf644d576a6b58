"""One node's own eyes: what its machine is, and what its tasks use (§6.5.2, §6.5.3).

For: every coordinator, about its own node, whoever schedules. Not for: deciding.

What is seen goes into the coordinator's own knowledge base and, in batches, to whoever schedules.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from dios import limits
from dios.errors import DiosError, InvalidError
from dios.firmament.descriptors import FinalReport
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import (
    BATCH_HEAD_BYTES,
    BatchMark,
    KnowledgeBatch,
    KnowledgeEntry,
    Sample,
    derived,
    encoded_bytes,
)
from dios.firmament.monitor.counters import CounterReading, TaskCounters, survey
from dios.firmament.monitor.machine_tree import MachineTopology
from dios.firmament.monitor.task_probe import TaskProbe, TaskReading, unmeasured, values
from dios.firmament.monitor.topology import read_topology
from dios.wire.messages import Occupant, QueueRows
from dios.wire.types import TaskState

_AGAIN: Final = 5
"""One of so many reports tells courses again."""
_BATCH_BYTES_MAX: Final = limits.INLINE_BYTES_MAX - 1024
"""What a report has room for, beside who it is from."""


class MeasurementReport(msgspec.Struct, frozen=True, array_like=True):
    """What one node's coordinator tells whoever schedules."""

    node: str
    machine_type: str
    batch: bytes = b""


class _ObservedTask:
    """A task that runs here, and how it was when it was looked at last."""

    def __init__(self, row: Occupant) -> None:
        self.row = row
        self.probe = TaskProbe()
        self.counters = TaskCounters((row.pid,))
        self.seen: TaskReading | None = None
        self.counted: CounterReading | None = None


class Observer:
    """What a coordinator knows of its own machine."""

    def __init__(self, knowledge: KnowledgeBase) -> None:
        self.knowledge = knowledge
        self.topology: MachineTopology | None = None
        self.problem = ""
        """Why the machine's topology is not known."""
        try:
            self.topology = read_topology()
        except (DiosError, OSError) as error:
            self.problem = str(error)
        self.unmeasured = unmeasured({counter: why for counter, why in survey().items() if why})
        """What of Table 6.4 this machine cannot measure, and why."""
        self._mark: BatchMark | None = None
        self._followed: dict[int, _ObservedTask] = {}
        self._ended: set[int] = set()
        self._reports = 0
        self._turn = 0
        """How many courses were told again, of those that there are."""

    @property
    def machine_type(self) -> str:
        """Equal for machines that are alike; empty where it is not known."""
        return "" if self.topology is None else self.topology.machine_type

    def close(self) -> None:
        """Let go of all counters."""
        for followed in self._followed.values():
            followed.counters.close()
        self._followed.clear()

    def look(self, board: QueueRows) -> None:
        """Look at each task of the node's own board, and take in those that have ended."""
        running = [row for row in board.tasks if row.state is TaskState.RUNNING and row.pid]
        classes = {row.id: _class_of(row) for row in running}
        for row in running[: limits.PROFILED_TASKS_MAX]:
            if row.id not in self._followed:
                self._followed[row.id] = _ObservedTask(row)
            self._sample(self._followed[row.id], _others(classes, row.id))
        for row in board.tasks:
            fresh = row.state is TaskState.ENDED and row.id not in self._ended
            # An earlier coordinator of this node may have seen it end.
            if fresh and self.knowledge.report(row.id) is None:
                self._end(row, _others(classes, row.id))
        for task in [task for task in self._followed if task not in classes]:
            self._followed.pop(task).counters.close()
        self._ended = {row.id for row in board.tasks if row.state is TaskState.ENDED}

    def report(self, node: str) -> bytes | None:
        """What is new since the last report, as much as one takes; None for nothing.

        Now and then it is courses that are not new. They are worth keeping for months, and who schedules may
        be another one by then, or have been away.
        """
        self._reports += 1
        if self._reports % _AGAIN == 0 and (again := self._again()):
            return msgspec.msgpack.encode(MeasurementReport(node, self.machine_type, again.to_bytes()))
        batch = self.knowledge.batch(self._mark, _BATCH_BYTES_MAX)
        if self._mark is not None and not batch.entries:
            return None
        self._mark = batch.upto
        return msgspec.msgpack.encode(MeasurementReport(node, self.machine_type, batch.to_bytes()))

    def _again(self) -> KnowledgeBatch | None:
        """Some of the courses that this node measured, each in its turn; None where there are none."""
        own = [entry for entry in self.knowledge.usage_profiles.entries() if entry.node == self.knowledge.node]
        if not own:
            return None
        self._turn %= len(own)
        # What was measured last is asked for first.
        waiting = [*own[::-1][self._turn :], *own[::-1][: self._turn]]
        entries: list[KnowledgeEntry] = []
        room = _BATCH_BYTES_MAX - BATCH_HEAD_BYTES
        for entry in waiting[: limits.KNOWLEDGE_BATCH_MAX]:
            room -= encoded_bytes(entry)
            if room < 0 and entries:
                break
            entries.append(entry)
        self._turn += len(entries)
        return KnowledgeBatch(BatchMark(), 0, more=False, entries=tuple(entries))

    def _sample(self, followed: _ObservedTask, beside: tuple[str, ...]) -> None:
        row = followed.row
        reading = followed.probe.look(time.monotonic_ns(), (row.pid,))
        counted = followed.counters.read()
        before, counted_before = followed.seen, followed.counted
        if before is not None and reading.at_ns > before.at_ns and reading.processes:
            found = values(before, reading, counted, counted_before)
            node = self.knowledge.node
            self._add(
                Sample.of(_class_of(row), self.machine_type, node, time.time_ns(), found, beside=beside)
            )
        followed.seen, followed.counted = reading, counted

    def _end(self, row: Occupant, beside: tuple[str, ...]) -> None:
        report = FinalReport(
            row.age_ms / 1000, row.cpu_ms / 1000, memory_peak=row.memory_bytes, completed=row.completed
        )
        followed = self._followed.get(row.id)
        counted = {} if followed is None else followed.counters.read().metrics()
        also = derived(counted, row.age_ms * 1_000_000) if counted and row.age_ms else {}
        node = self.knowledge.node
        self._add(
            Sample.at_end(
                _class_of(row),
                self.machine_type,
                node,
                time.time_ns(),
                report,
                row.id,
                beside=beside,
                also=also,
            )
        )

    def _add(self, sample: Sample) -> None:
        try:
            self.knowledge.add(sample)
        except InvalidError as error:
            self.problem = f"a measurement makes no sense: {error}"


def _class_of(row: Occupant) -> str:
    return row.work.equivalence or row.label or "unnamed"


def _others(classes: dict[int, str], task: int) -> tuple[str, ...]:
    found: Iterable[str] = (name for other, name in classes.items() if other != task)
    return tuple(sorted(found))[: limits.PROFILED_NEIGHBOURS_MAX]
