"""Rounds of a real scheduler under a cost model, in few words: for tests of where tasks land.

Not for: questions to a model alone (``sched_clusters``).
"""

from __future__ import annotations

from dios.firmament.descriptors import JobDescriptor, MachineDescriptor, TaskDescriptor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models.protocol import CostModel
from dios.firmament.scheduler import FlowScheduler
from tests.support.firmament.clusters import MACHINE


def scheduler(
    model: CostModel, *slots: int, racks: int = 1, base: KnowledgeBase | None = None
) -> FlowScheduler:
    """Machines 0, 1, ... with so many slots, dealt out to the racks in turn."""
    flow_scheduler = FlowScheduler(model, knowledge=base)
    for number, capacity in enumerate(slots):
        add_machine(flow_scheduler, number, capacity, rack=f"r{number % racks}")
    return flow_scheduler


def add_machine(
    flow_scheduler: FlowScheduler,
    number: int,
    slots: int,
    *,
    rack: str = "r0",
    kind: str = "",
    gpu: bool = False,
) -> None:
    """One machine more."""
    labels = (("gpu", "yes"),) if gpu else ()
    flow_scheduler.add_machine(
        MachineDescriptor(number, f"m{number}", rack, MACHINE, slots, kind, labels=labels), now=0.0
    )


def submit(flow_scheduler: FlowScheduler, *tasks: TaskDescriptor, job: int = 1, now: float = 0.0) -> None:
    """Tasks of one job."""
    flow_scheduler.submit(JobDescriptor(job), tasks, now)


def places(flow_scheduler: FlowScheduler) -> dict[int, int]:
    """Which task runs on which machine, in the caller's identifiers."""
    state = flow_scheduler.state
    rows = state.tasks.all()
    return {
        int(state.tasks.id[row]): state.machine_ids[int(state.tasks.machine[row])]
        for row in rows
        if state.tasks.machine[row] >= 0
    }


def rounds(flow_scheduler: FlowScheduler, *times: float) -> dict[int, int]:
    """Where tasks run after rounds at these times; no fault in any."""
    for now in times:
        outcome = flow_scheduler.round(now)
        assert not outcome.faults
    return places(flow_scheduler)
