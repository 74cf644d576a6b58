"""Nodes that a test moves by hand, and one coordinator's view of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from dios.firmament.coordinator.cluster_state import TaskScheduler, TrackedCluster
from dios.wire.messages import DeviceRequest, Occupant, Placed, QueueRows, Submission, ThreadPlace, Work
from dios.wire.types import Fitness, TaskState

CPUS = 2
"""Of each node."""


@dataclass
class FakeNode:
    """A node's queue as it is: the runs that wait, the tasks that run, and those that have ended."""

    number: int
    version: int = 1
    waiting: dict[int, Submission] = field(default_factory=dict)
    running: dict[int, Occupant] = field(default_factory=dict)
    ended: list[Occupant] = field(default_factory=list)
    devices: tuple[DeviceRequest, ...] = ()
    threads: tuple[ThreadPlace, ...] = ()
    fitness: Fitness = Fitness.FIT
    limbo_from_nodes: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return f"n{self.number}"

    def queue(self) -> QueueRows:
        """Return its rows at this time."""
        return QueueRows(
            self.version, self.number, self.name, "r1", CPUS, 2**30, 16, (), draining=False, coordinated=True,
            waiting=tuple(self.waiting.values()),
            tasks=(*self.running.values(), *self.ended[-8:]),
            asked=(), reports=(), partial=False, devices=self.devices, threads=self.threads,
            fitness=self.fitness, limbo_from_nodes=self.limbo_from_nodes,
        )  # fmt: skip

    def reserved(self) -> int:
        """Return the reserved thousandths of processors."""
        return sum(row.work.cpus_milli for row in self.running.values())


class CoordinatedNodes:
    """Three nodes, and the cluster as one coordinator tracks it.

    Args:
        scheduler: receives the events.
        place: runs a round at a time in seconds; returns tasks and the machines where they go.
    """

    def __init__(self, scheduler: TaskScheduler, place: Callable[[float], Iterable[tuple[int, int]]]) -> None:
        self.place = place
        self.cluster = TrackedCluster(scheduler)
        self.nodes = {f"n{number}": FakeNode(number) for number in (1, 2, 3)}
        self.now = 0.0
        self.started: dict[int, int] = {}
        self._next = 100

    def submit(
        self,
        host: str,
        work: Work = Work(),  # noqa: B008 - it is frozen
        principal: str = "uid:0",
        *,
        pure: bool = False,
    ) -> int:
        """Submit a run on a node; return its task."""
        self._next += 1
        node = self.nodes[host]
        node.waiting[self._next] = Submission(
            self._next, f"{self._next:012x}", f"job {self._next}", principal, 0, work, host, pure
        )
        node.version += 1
        return self._next

    def read(self, *names: str) -> None:
        """Let the coordinator read the present queues."""
        for name in names or self.nodes:
            self.take(self.nodes[name].queue())

    def take(self, queue: QueueRows) -> None:
        """Let the coordinator read a queue, which may be an old one."""
        self.cluster.read(queue, self.now, attend=True, machine=True)

    def round(self) -> list[tuple[str, int, str]]:
        """Run a round; return host, task and target of each placement that is sent."""
        names = {node.number: node.name for node in self.nodes.values()}
        placements = []
        for task, machine in self.place(self.now):
            tracked = self.cluster.mark_sent(task, names[machine], self.now)
            assert tracked is not None
            placements.append((tracked.host, task, names[machine]))
        return placements

    def carry_out(self, host: str, task: int, target: str) -> Placed:
        """Carry out a placement as a node does: once, and only if there is room."""
        node, there = self.nodes[host], self.nodes[target]
        version = node.version
        row = node.waiting.pop(task, None)
        if row is None:
            return Placed(((task, "placed already"),), version)
        node.version += 1
        if there.reserved() + row.work.cpus_milli > CPUS * 1000:
            node.waiting[task] = row
            node.version += 1
            return Placed((), version)
        self.started[task] = self.started.get(task, 0) + 1
        there.running[task] = Occupant(
            task, row.fingerprint, row.label, row.principal, TaskState.RUNNING, 1, 0, row.work, 0, 0, False
        )
        there.version += 1
        return Placed((), version)

    def end(self, name: str, task: int) -> None:
        """End a task."""
        node = self.nodes[name]
        row = node.running.pop(task)
        node.ended.append(replace(row, state=TaskState.ENDED, completed=True))
        node.version += 1

    def work_off(self) -> None:
        """Read, decide and carry out until no waiting task can be placed."""
        for _ in range(20):
            self.read()
            placements = self.round()
            if not placements:
                return
            for host, task, target in placements:
                answer = self.carry_out(host, task, target)
                self.cluster.record_answer(host, [task], answer, self.now)
            self.now += 1.0
        raise AssertionError("the coordinator places runs for ever")
