"""Every cost model drives a real scheduler through random histories of a cluster."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dios.firmament.descriptors import Block, JobDescriptor, Kind, MachineDescriptor, TaskDescriptor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.models.catalogue import MODELS, make
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from tests.support.firmament.cluster_histories import GB, History


class RichScheduler(FlowScheduler):
    """Gives each task that comes data, a deadline, a class and an expected run time, by a seed."""

    def enrich(self, seed: int) -> None:
        """Tasks are rich from now on."""
        self.chance = random.Random(seed)  # noqa: S311 - a history by seed

    def add_machine(self, machine: MachineDescriptor, now: float) -> None:
        """Of one of two types."""
        super().add_machine(replace(machine, machine_type=f"type {machine.machine % 2}"), now)

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float) -> None:
        """With more in the descriptions than was asked for; every fourth job is a service."""
        chance = self.chance
        rich = [
            replace(
                task,
                blocks=tuple(
                    Block(int(chance.uniform(0, 2) * GB), tuple(chance.sample(range(8), 3)))
                    for _ in range(chance.randint(0, 3))
                ),
                deadline=chance.choice([None, now + chance.uniform(-5, 200)]),
                equivalence=chance.choice(["sort", "serve", ""]),
                expected_runtime=chance.choice([None, chance.uniform(0, 60)]),
            )
            for task in tasks
        ]
        kind = Kind.SERVICE if job.job % 4 == 3 else Kind.BATCH
        super().submit(replace(job, kind=kind), rich, now)


@pytest.mark.long
@pytest.mark.parametrize("seed", [21])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_holds_through_a_history(name: str, seed: int) -> None:
    """Machines, jobs and knowledge come and go: no round fails, and all that the scheduler promises holds."""
    base = KnowledgeBase("n0", 1)
    history = History(seed)
    rich_scheduler = RichScheduler(make(name), SchedulerSettings(certify_every=1), knowledge=base)
    rich_scheduler.enrich(seed)
    history.scheduler, history.next_machine = rich_scheduler, 0
    for _ in range(4):
        history.add_machine()
    for step in range(30):
        history.happen()
        if step % 7 == 3:
            values: dict[int, int] = {Metric.PS_PER_INSTRUCTION: 300 + 70 * (step % 5)}
            near = ("serve",) if step % 2 else ()
            base.add(Sample("sort", f"type {step % 3}", "n0", step, values, near))
        if step == 15:
            rich_scheduler.set_model(make(name), history.now)
        outcome = history.round()
        bad = [fault for fault in outcome.faults if fault.source.startswith("model")]
        assert not bad, f"seed {seed}, step {step}: {bad}"
