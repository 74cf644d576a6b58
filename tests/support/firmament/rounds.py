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
    made = FlowScheduler(model, knowledge=base)
    for number, each in enumerate(slots):
        add_machine(made, number, each, rack=f"r{number % racks}")
    return made


def add_machine(
    made: FlowScheduler, number: int, slots: int, *, rack: str = "r0", kind: str = "", gpu: bool = False
) -> None:
    """One machine more."""
    labels = (("gpu", "yes"),) if gpu else ()
    made.add_machine(
        MachineDescriptor(number, f"m{number}", rack, MACHINE, slots, kind, labels=labels), now=0.0
    )


def submit(made: FlowScheduler, *tasks: TaskDescriptor, job: int = 1, now: float = 0.0) -> None:
    """Tasks of one job."""
    made.submit(JobDescriptor(job), tasks, now)


def places(made: FlowScheduler) -> dict[int, int]:
    """Which task runs on which machine, in the caller's identifiers."""
    state = made.state
    rows = state.tasks.all()
    return {
        int(state.tasks.id[row]): state.machine_ids[int(state.tasks.machine[row])]
        for row in rows
        if state.tasks.machine[row] >= 0
    }


def rounds(made: FlowScheduler, *times: float) -> dict[int, int]:
    """Where tasks run after rounds at these times; no fault in any."""
    for now in times:
        found = made.round(now)
        assert not found.faults
    return places(made)
