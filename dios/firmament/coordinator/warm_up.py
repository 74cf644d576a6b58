"""A short simulated life of a small cluster, which calls every kernel that a coordinator uses.

Numba compiles a kernel at its first call, or loads it from its cache. The life is always the same, and its
results are dropped.
"""

from __future__ import annotations

import itertools
import random
from typing import Final

from dios.firmament.coordinator.rate_control import RateControl
from dios.firmament.coordinator.rate_solver import RateSolver
from dios.firmament.descriptors import Constraint, JobDescriptor, MachineDescriptor, Resources, TaskDescriptor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models import catalogue
from dios.firmament.policies.packed_jobs import POLICY
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.scheduler import FlowScheduler
from dios.limits import RATE_SLOW_SOLVES
from dios.packer import Datacenter, Edge, Node, TiMra, allocate
from dios.wire.messages import Meter, Metered
from dios.wire.types import Affinity, Traffic

MODELS: Final = ("spread", "coco")
"""Cost models whose networks have all shapes; the other models need no further kernel."""
_MACHINES: Final = 6
_ROUNDS: Final = 40
_TASKS_MAX: Final = 40
"""More tasks than have a place."""


def exercise_all() -> None:
    """Compile or load every kernel that any cost model of a coordinator needs."""
    for model in MODELS:
        exercise_kernels(model)


def exercise_kernels(model: str) -> None:
    """Fill and empty a small cluster under a cost model, while machines join and leave."""
    _SmallCluster(model).run()
    _exercise_rates()
    _exercise_packing()


def _exercise_rates() -> None:
    """Divide a link between two principals that want more than it can carry, exactly and before a deadline.

    The solver's clock goes on by a second with each look, so that exact shares are too slow for it.
    """
    control = RateControl(RateSolver(map(float, itertools.count()).__next__))
    for second in range(2):
        meters = tuple(Meter(who, Traffic.OUT, second, 10**9) for who in ("a", "b"))
        control.record("m0", Metered(0, meters, (10**6, 0, 0), 0, b""), float(second))
    for _ in range(RATE_SLOW_SOLVES + 1):
        control.rates({})


def _exercise_packing() -> None:
    """Allocate and release one job over time."""
    site = Datacenter.tree(2, horizon=2)
    nodes = [Node("a", cpu=1), Node("b", cpu=1)]
    allocation = allocate(site, TiMra("job", nodes, [Edge("a", "b", 1)], 2), policy=POLICY, pinned={"b": 1})
    if allocation:
        allocation.release()


class _SmallCluster:
    """A cluster of six machines; the same events for each run of a model."""

    def __init__(self, model: str) -> None:
        self._random = random.Random(1)  # noqa: S311 - no secret depends on it
        self._scheduler = FlowScheduler(
            catalogue.make(model), knowledge=KnowledgeBase("warm-up", 1), ledger=PrincipalAccounts(wall=1.0)
        )
        self._tasks: list[int] = []
        self._submitted = 0
        self._filling = True

    def run(self) -> None:
        """Run all events, from the first machine to the last round."""
        for machine in range(_MACHINES):
            self._join(machine, 0.0)
        for number in range(_ROUNDS):
            now = float(number)
            if len(self._tasks) > _TASKS_MAX or not self._tasks:
                self._filling = not self._tasks
            if self._filling:
                self._submit(number, now)
            else:
                self._finish(now)
            self._scheduler.round(now)
            self._explain()
            if number % 5 == 0:
                machine = self._random.randrange(_MACHINES)
                self._scheduler.remove_machine(machine, now)
                self._scheduler.round(now)
                self._join(machine, now)

    def _join(self, machine: int, now: float) -> None:
        size, name = Resources(4.0, 1e9), f"m{machine}"
        labels = (("node", name),)
        added = MachineDescriptor(machine, name, f"r{machine % 2}", size, 4, labels=labels)
        self._scheduler.add_machine(added, now)

    def _submit(self, job: int, now: float) -> None:
        fresh = []
        for _ in range(self._random.randrange(1, 9)):
            constrained = self._random.random() < 0.2
            constraints = (
                (Constraint("node", value=f"m{self._random.randrange(_MACHINES)}"),) if constrained else ()
            )
            demand = Resources(self._random.choice((0.0, 0.5, 2.0)), self._random.choice((0.0, 2e8)))
            priority = self._random.randrange(3)
            fresh.append(TaskDescriptor(self._submitted, demand, priority=priority, constraints=constraints))
            self._submitted += 1
        together = job % 4 == 0
        who = f"user {job % 3}"
        gang = JobDescriptor(job, who, gang=len(fresh), affinity=Affinity.SPREAD_NODES)
        self._scheduler.submit(gang if together else JobDescriptor(job, who), fresh, now)
        self._tasks += [task.task for task in fresh]

    def _explain(self) -> None:
        for task in self._tasks[:1]:
            self._scheduler.explain(task, budget_s=0.0)  # the changes that are tried need no other kernel

    def _finish(self, now: float) -> None:
        self._random.shuffle(self._tasks)
        for _ in range(min(len(self._tasks), self._random.randrange(1, 9))):
            self._scheduler.finished(self._tasks.pop(), now)
