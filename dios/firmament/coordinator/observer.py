"""Measurements of one node: its machine, and what its tasks use (§6.5.2, §6.5.3).

Every coordinator observes its own node. The measurements go into its own knowledge base and, in batches, to
the coordinator that schedules.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from dios import limits
from dios.errors import DiosError, InvalidError
from dios.firmament.coordinator.best_effort import MILLIWATTS_MAX, NodeLoad, TaskLoad
from dios.firmament.descriptors import FinalReport
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import (
    BATCH_HEAD_BYTES,
    BatchMark,
    KnowledgeBatch,
    KnowledgeEntry,
    Metric,
    Sample,
    derived,
    encoded_bytes,
)
from dios.firmament.monitor.counters import CounterReading, TaskCounters, survey
from dios.firmament.monitor.machine_load import MachineReading, read_machine, use
from dios.firmament.monitor.task_probe import TaskProbe, TaskReading, unmeasured, values
from dios.host.machine import procfs
from dios.host.machine.machine_tree import MachineTopology
from dios.host.machine.power import MeasuredPower, PowerMeter
from dios.host.machine.topology import read_topology
from dios.wire.fields import Inline, Label
from dios.wire.messages import Occupant, QueueRows
from dios.wire.types import TaskState

_CPUS_MOVED_MILLI: Final = 250
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LOAD_BYTES_MAX: Final = 40 * limits.PROFILED_TASKS_MAX
_AGAIN: Final = 5
"""One in this number of reports repeats usage profiles."""
_BATCH_BYTES_MAX: Final = limits.INLINE_BYTES_MAX - _LOAD_BYTES_MAX - 1024
"""The most bytes of a report that are measurements."""


class MeasurementReport(msgspec.Struct, frozen=True, array_like=True):
    """The measurements that a node's coordinator sends to the scheduler."""

    node: Label
    machine_type: Annotated[str, msgspec.Meta(max_length=limits.PROFILE_TEXT_BYTES_MAX)]
    batch: Inline = b""
    load: NodeLoad | None = None
    """The use of the node; None if it is not measured yet, or has hardly changed."""
    boot: Label = ""
    """The boot id of its machine, which other nodes of the same machine report, too; empty if unknown."""


class _ObservedTask:
    """A task that runs here, and its last readings."""

    def __init__(self, row: Occupant) -> None:
        self.row = row
        self.probe = TaskProbe()
        self.counters = TaskCounters((row.pid,))
        self.seen: TaskReading | None = None
        self.counted: CounterReading | None = None


class Observer:
    """Measures the machine and the tasks of a coordinator's own node.

    Args:
        knowledge: receives the measurements.
        own_pid: the process of the coordinator, which is not measured: it is on every node.
    """

    def __init__(self, knowledge: KnowledgeBase, own_pid: int = 0) -> None:
        self._own_pid = own_pid
        self.knowledge = knowledge
        self.topology: MachineTopology | None = None
        self.problem = ""
        """Why the machine's topology is not known; empty if it is."""
        try:
            self.topology = read_topology()
        except (DiosError, OSError) as error:
            self.problem = str(error)
        self.unmeasured = unmeasured({counter: why for counter, why in survey().items() if why})
        """The rows of Table 6.4 that this machine cannot measure, and the reasons."""
        self._boot = procfs.text(_BOOT_ID)
        self._mark: BatchMark | None = None
        self._followed: dict[int, _ObservedTask] = {}
        self._ended: set[int] = set()
        self._used: dict[int, TaskLoad] = {}
        self.load: NodeLoad | None = None
        """The use of the node and of its tasks between the last two measurements."""
        self._reported: NodeLoad | None = None
        self._machine: MachineReading | None = None
        self._power = PowerMeter()
        self._reports = 0
        self._turn = 0
        """The position of the next usage profile to repeat."""

    @property
    def machine_type(self) -> str:
        """Equal for machines that are alike; empty if it is not known."""
        return "" if self.topology is None else self.topology.machine_type

    @property
    def follows_tasks(self) -> bool:
        """Return True if any task runs here that is measured."""
        return bool(self._followed)

    def close(self) -> None:
        """Close all counters."""
        for followed in self._followed.values():
            followed.counters.close()
        self._followed.clear()

    def look(self, board: QueueRows) -> None:
        """Measure each task in the node's own queue, and record those that have ended."""
        self._used = dict[int, TaskLoad]()
        ignored = {0, self._own_pid}
        running = [row for row in board.tasks if row.state is TaskState.RUNNING and row.pid not in ignored]
        classes = {row.id: _class_of(row) for row in running}
        for row in running[: limits.PROFILED_TASKS_MAX]:
            if row.id not in self._followed:
                self._followed[row.id] = _ObservedTask(row)
            self._sample(self._followed[row.id], _others(classes, row.id))
        for row in board.tasks:
            fresh = row.state is TaskState.ENDED and row.id not in self._ended
            # An earlier coordinator of this node may have recorded its end.
            if fresh and self.knowledge.report(row.id) is None:
                self._end(row, _others(classes, row.id))
        for task in [task for task in self._followed if task not in classes]:
            self._followed.pop(task).counters.close()
        self._ended = {row.id for row in board.tasks if row.state is TaskState.ENDED}
        self._measure_machine(max(1, board.cpus))

    def _measure_machine(self, processors: int) -> None:
        before, after = self._machine, read_machine(time.monotonic_ns())
        power = self._power.read(after.at_ns) or MeasuredPower(0.0, 0.0)
        if before is not None and after.at_ns > before.at_ns:
            used = use(before, after)
            self.load = NodeLoad(
                round(1000 * used.cpu * processors),
                max(0, after.memory - after.available),
                round(used.disk),
                round(used.network),
                tuple(self._used.values()),
                min(MILLIWATTS_MAX, round(1000 * power.watts)),
                min(MILLIWATTS_MAX, round(1000 * power.least_watts)),
            )
        self._machine = after

    def _fresh_load(self) -> NodeLoad | None:
        """Return the load if tasks run, or if it differs much from the last reported one; else None."""
        load, last = self.load, self._reported
        if load is None:
            return None
        if last is not None and not (load.tasks or last.tasks or _moved(last, load)):
            return None
        self._reported = load
        return load

    def report(self, node: str) -> bytes | None:
        """Return what is new since the last report, up to its bound; None for nothing.

        Some reports repeat usage profiles. These are worth keeping for months, and the coordinator that
        schedules may be another one by then, or may have been out of reach.
        """
        self._reports += 1
        load = self._fresh_load()
        if self._reports % _AGAIN == 0 and (again := self._again()):
            return self._encoded(node, again, load)
        batch = self.knowledge.batch(self._mark, _BATCH_BYTES_MAX)
        if self._mark is not None and not batch.entries and load is None:
            return None
        self._mark = batch.upto
        return self._encoded(node, batch, load)

    def _encoded(self, node: str, batch: KnowledgeBatch, load: NodeLoad | None) -> bytes:
        report = MeasurementReport(node, self.machine_type, batch.to_bytes(), load, self._boot)
        return msgspec.msgpack.encode(report)

    def _again(self) -> KnowledgeBatch | None:
        """Return some of the usage profiles that this node measured, in turn; None if there are none."""
        own = [
            entry for entry in self.knowledge.usage_profiles.entries() if entry.node == self.knowledge.node
        ]
        if not own:
            return None
        self._turn %= len(own)
        # The latest profile is needed first.
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
        reading = followed.probe.read(time.monotonic_ns(), (row.pid,))
        counted = followed.counters.read()
        before, counted_before = followed.seen, followed.counted
        if before is not None and reading.at_ns > before.at_ns and reading.processes:
            measured = values(before, reading, counted, counted_before)
            self._used[row.id] = TaskLoad(
                row.id,
                measured.get(Metric.CPU_MILLI, 0),
                measured.get(Metric.RESIDENT, 0),
                measured.get(Metric.READ_S, 0) + measured.get(Metric.WRITTEN_S, 0),
            )
            node = self.knowledge.node
            self._add(
                row,
                Sample.of(_class_of(row), self.machine_type, node, time.time_ns(), measured, beside=beside),
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
            row,
            Sample.at_end(
                _class_of(row),
                self.machine_type,
                node,
                time.time_ns(),
                report,
                row.id,
                beside=beside,
                also=also,
            ),
        )

    def _add(self, row: Occupant, sample: Sample) -> None:
        """Keep a measurement of a task. A labelled one has no profile, which others would share or see."""
        if row.secrecy:
            return
        try:
            self.knowledge.add(sample)
        except InvalidError as error:
            self.problem = f"an invalid measurement was skipped: {error}"


def _moved(before: NodeLoad, after: NodeLoad) -> bool:
    """Return True if a node's use differs by a quarter of a processor, or a tenth of its memory in use."""
    return (
        abs(before.cpus_milli - after.cpus_milli) >= _CPUS_MOVED_MILLI
        or 10 * abs(before.memory_bytes - after.memory_bytes) >= before.memory_bytes
    )


def _class_of(row: Occupant) -> str:
    return row.work.equivalence or row.label or "unnamed"


def _others(classes: dict[int, str], task: int) -> tuple[str, ...]:
    names: Iterable[str] = (name for other, name in classes.items() if other != task)
    return tuple(sorted(names))[: limits.PROFILED_NEIGHBOURS_MAX]
