"""A short and eventful life of a small cluster: it compiles every kernel before the first real round.

For: a coordinator that is about to schedule, and the image, which compiles while it is built.
Not for: deciding anything; the same is played each time, and what comes out is thrown away.
"""

from __future__ import annotations

import random
from typing import Final

from dios.firmament.coordinator.rate_control import RateControl
from dios.firmament.descriptors import Constraint, JobDescriptor, MachineDescriptor, Resources, TaskDescriptor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models import catalogue
from dios.firmament.policies.ledger import Ledger
from dios.firmament.policies.packed_jobs import POLICY
from dios.firmament.scheduler import FlowScheduler
from dios.packer import Datacenter, Edge, Node, TiMra, allocate
from dios.wire.messages import Meter, Metered
from dios.wire.types import Affinity, Traffic

_MACHINES: Final = 6
_ROUNDS: Final = 40
_FULL: Final = 40
"""More tasks than have a place."""


def rehearse(model: str) -> None:
    """Fill a cluster and empty it again and again under a cost model, while machines come and go."""
    _Play(model).run()
    _rates()
    _job()


def _rates() -> None:
    """Two who want more than a link can do."""
    control = RateControl()
    for second in range(2):
        meters = tuple(Meter(who, Traffic.OUT, second, 10**9) for who in ("a", "b"))
        control.take("m0", Metered(0, meters, (10**6, 0, 0), 0, b""), float(second))
    control.rates({})


def _job() -> None:
    """A job over time that comes and goes."""
    site = Datacenter.tree(2, horizon=2)
    nodes = [Node("a", cpu=1), Node("b", cpu=1)]
    found = allocate(site, TiMra("job", nodes, [Edge("a", "b", 1)], 2), policy=POLICY, pinned={"b": 1})
    if found:
        found.release()


class _Play:
    """One such life; always the same for a model."""

    def __init__(self, model: str) -> None:
        self._chance = random.Random(1)  # noqa: S311 - a play, no secret
        self._scheduler = FlowScheduler(
            catalogue.make(model), knowledge=KnowledgeBase("rehearsal", 1), ledger=Ledger(wall=1.0)
        )
        self._tasks: list[int] = []
        self._made = 0
        self._fills = True

    def run(self) -> None:
        """From the first machine to the last round."""
        for machine in range(_MACHINES):
            self._join(machine, 0.0)
        for number in range(_ROUNDS):
            now = float(number)
            if len(self._tasks) > _FULL or not self._tasks:
                self._fills = not self._tasks
            if self._fills:
                self._submit(number, now)
            else:
                self._finish(now)
            self._scheduler.round(now)
            self._explain()
            if number % 5 == 0:
                machine = self._chance.randrange(_MACHINES)
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
        for _ in range(self._chance.randrange(1, 9)):
            picky = self._chance.random() < 0.2
            where = (Constraint("node", value=f"m{self._chance.randrange(_MACHINES)}"),) if picky else ()
            demand = Resources(self._chance.choice((0.0, 0.5, 2.0)), self._chance.choice((0.0, 2e8)))
            priority = self._chance.randrange(3)
            fresh.append(TaskDescriptor(self._made, demand, priority=priority, constraints=where))
            self._made += 1
        together = job % 4 == 0
        who = f"user {job % 3}"
        gang = JobDescriptor(job, who, gang=len(fresh), affinity=Affinity.SPREAD_NODES)
        self._scheduler.submit(gang if together else JobDescriptor(job, who), fresh, now)
        self._tasks += [task.task for task in fresh]

    def _explain(self) -> None:
        for task in self._tasks[:1]:
            self._scheduler.explain(task)

    def _finish(self, now: float) -> None:
        self._chance.shuffle(self._tasks)
        for _ in range(min(len(self._tasks), self._chance.randrange(1, 9))):
            self._scheduler.finished(self._tasks.pop(), now)
