"""Costs of the coordinator against the length of the queue, by both of its services.

The rows of a node's queue go to the real service of a coordinator, in parts as it reads them. Every run fills
a machine of three, so that the others have to wait. Measured are the processor time until the first rows have
led to three placements, the whole queue's, and that of a round: with nothing new, and after a run has ended.
The runs have equal needs, or all have different ones.

Not for: the time until a node has passed on the rows (``make load``).
"""

from __future__ import annotations

import math
import time
from typing import Final, NamedTuple

from dios.firmament.coordinator.assignment import Assignment, SetUp, StartOptions
from dios.firmament.coordinator.cluster_service import ClusterService
from dios.firmament.coordinator.kernel_compilation import KernelProgress
from dios.firmament.coordinator.scheduler_service import open_service
from dios.firmament.coordinator.start_up_service import StartUpService
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.wire.messages import Occupant, Placed, QueueRows, Submission, Work
from dios.wire.types import TaskState
from labs.benchmarks.report import Row, Section, judge, number

LENGTHS: Final = (100, 1_000, 10_000, 100_000)
ROUNDS: Final = 30
CPUS: Final = 64
"""Of each machine. Different needs are between one half of it and all of it."""
_PART: Final = 256
"""Rows of one answer of a node."""
_MACHINES: Final = 3


class QueueCosts(NamedTuple):
    """Milliseconds of processor time."""

    first: float
    whole: float
    unchanged: float
    ended: float


class _Compiler:
    """A compilation that has not ended."""

    progress = KernelProgress(0, 1)

    def is_ready(self) -> bool:
        """Return False."""
        return False

    async def compile(self, *, again: bool = False) -> None:
        """Do nothing."""


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    for rule in ("simple rule", "flow scheduler"):
        _play(_service(rule), 100, different=False)  # the first one loads what is loaded late
        for different in (False, True):
            costs = {count: _play(_service(rule), count, different=different) for count in LENGTHS}
            name = f"{rule}, {'different' if different else 'equal'} needs"
            _judge(section, name, costs)


def _judge(section: Section, name: str, costs: dict[int, QueueCosts]) -> None:
    names = {
        "first": "first 3 placements",
        "whole": "reading one row",
        "unchanged": "a round with nothing new",
        "ended": "a round after a run has ended",
    }
    goals = {"first": (1000.0, 100.0), "whole": (0.3, 0.1), "unchanged": (50.0, 5.0), "ended": (100.0, 20.0)}
    for key, label in names.items():
        by_length = {
            count: getattr(queue_costs, key) / (count if key == "whole" else 1)
            for count, queue_costs in costs.items()
        }
        for count, value in by_length.items():
            section.figure(f"{name}: {label}, {count} runs wait", value, "ms")
        least, wanted = goals[key]
        worst = max(by_length.values())
        text = ", ".join(f"{count} runs {number(value)}" for count, value in by_length.items())
        growth = by_length[LENGTHS[-1]] / by_length[LENGTHS[1]]
        section.rows.append(
            Row(
                f"{name}: {label}",
                f"{text} ms",
                "",
                f"x {number(growth)} from {LENGTHS[1]} to {LENGTHS[-1]}",
                judge(f"{number(least)} ms", worst, least),
                judge(f"{number(wanted)} ms", worst, wanted),
            )
        )


def _service(rule: str) -> ClusterService:
    options = StartOptions(SetUp.CENTRALISED, "spread")
    knowledge = KnowledgeBase("n0", 1)
    service: ClusterService = (
        StartUpService(options, "n0", knowledge, _Compiler())
        if rule == "simple rule"
        else open_service(options, "n0", knowledge, 0.0, may_compile=True)
    )
    names = frozenset(f"n{at}" for at in range(_MACHINES))
    service.change_assignment(Assignment(), Assignment(names, names, leader="n0"), 0.0)
    return service


class _Cluster:
    """Three nodes, the first of them with all the waiting runs, and the service of their coordinator."""

    def __init__(self, service: ClusterService) -> None:
        self.service = service
        self.now = 0.0
        self.running: dict[int, str] = {}
        self.rows: dict[int, Submission] = {}
        self._versions = dict.fromkeys(range(_MACHINES), 0)
        for at in range(1, _MACHINES):
            self.read(at)

    def read(
        self,
        at: int,
        waiting: tuple[Submission, ...] = (),
        *,
        tasks: tuple[Occupant, ...] = (),
        gone: tuple[int, ...] = (),
        partial: bool = False,
        whole: bool = True,
    ) -> None:
        """Let the service read rows of a node."""
        self._versions[at] += 1
        rows = QueueRows(
            self._versions[at], at + 1, f"n{at}", "r1", CPUS, 2**36, 512, (),
            draining=False, coordinated=True, waiting=waiting, tasks=tasks, asked=(), reports=(),
            partial=partial, whole=whole, gone=gone,
        )  # fmt: skip
        self.service.read(f"n{at}", rows, self.now)

    def round(self) -> float:
        """Run a round, and start its placements; return the seconds of processor time of the round."""
        self.now += 1.0
        began = time.process_time()
        actions = self.service.round(self.now)
        spent = time.process_time() - began
        for action in actions:
            tasks = [task for task, _ in action.placements]
            answer = Placed((), self._versions[0])
            self.service.record_answer(action.host, tasks, action.preempted, answer, self.now)
            for task, name in action.placements:
                self.running[task] = name
                self._report(task, TaskState.RUNNING)
        return spent

    def end(self) -> None:
        """End the run that was started first."""
        task = next(iter(self.running))
        self._report(task, TaskState.ENDED, gone=(task,))
        del self.running[task]

    def _report(self, task: int, state: TaskState, gone: tuple[int, ...] = ()) -> None:
        row = self.rows[task]
        occupant = Occupant(
            task, row.fingerprint, row.label, row.principal, state, 1, 0, row.work, 0, 0, completed=True
        )
        self.read(int(self.running[task][1:]), tasks=(occupant,), gone=gone, whole=False)


def _play(service: ClusterService, count: int, *, different: bool) -> QueueCosts:
    """Let a service read a queue of a length, and run rounds."""
    cluster = _Cluster(service)
    waiting = [_submission(task, different=different) for task in range(1000, 1000 + count)]
    cluster.rows = {row.id: row for row in waiting}
    first, unchanged, ended, reading = math.nan, 0.0, 0.0, 0.0
    started = time.process_time()
    for start in range(0, count, _PART):
        began = time.process_time()
        part = tuple(waiting[start : start + _PART])
        cluster.read(0, part, partial=start + _PART < count, whole=not start)
        reading += time.process_time() - began
        if len(cluster.running) < _MACHINES:
            cluster.round()
            first = time.process_time() - started
    for _ in range(ROUNDS):
        unchanged += cluster.round()
    for _ in range(ROUNDS):
        if len(cluster.running) != _MACHINES:
            raise RuntimeError(f"{len(cluster.running)} runs are placed, and there is room for {_MACHINES}")
        cluster.end()
        ended += cluster.round()
    return QueueCosts(first * 1e3, reading * 1e3, unchanged / ROUNDS * 1e3, ended / ROUNDS * 1e3)


def _submission(task: int, *, different: bool) -> Submission:
    cpus = CPUS * 500 + task % (CPUS * 500) if different else CPUS * 1000
    work = Work(cpus_milli=cpus, memory_bytes=task if different else 0)
    return Submission(task, f"{task:012x}", "load", "uid:0", 0, work, "n0")
