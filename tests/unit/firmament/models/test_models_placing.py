from __future__ import annotations

import pytest

from dios.firmament.descriptors import (
    Interference,
    JobDescriptor,
    Kind,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.coco import CocoModel
from dios.firmament.models.green import GreenModel
from dios.firmament.models.green_power import Power
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings

GB = 10**9
SLOW, FAST = 1, 2
"""Machines of the Green tests."""


def machine(number: int, slots: int = 1, kind: str = "") -> MachineDescriptor:
    """A machine of 8 cores and 32 GB in a rack with all others."""
    return MachineDescriptor(number, f"m{number}", "r", Resources(8, 32 * GB, GB, GB), slots, kind)


def coco(*machines: MachineDescriptor, wave: str = "machine", fit: bool = True) -> FlowScheduler:
    """The real scheduler with CoCo; ``fit`` is its own check."""
    scheduler = FlowScheduler(CocoModel(wave=wave), SchedulerSettings(fit=fit))
    for descriptor in machines:
        scheduler.add_machine(descriptor, 0.0)
    return scheduler


def green() -> FlowScheduler:
    """The real scheduler with Green on a slow and frugal machine and a fast and thirsty one."""
    model = GreenModel()
    model.power.note("slow", Power(idle=5, full=9, cores=4, speed=0.25, requests=500))
    model.power.note("fast", Power(idle=80, full=200, cores=12, speed=1.0, requests=2500))
    scheduler = FlowScheduler(model)
    scheduler.add_machine(machine(SLOW, 4, "slow"), 0.0)
    scheduler.add_machine(machine(FAST, 4, "fast"), 0.0)
    return scheduler


def submit(scheduler: FlowScheduler, job: int, *tasks: TaskDescriptor, kind: Kind = Kind.BATCH) -> None:
    """Tasks of one job, at the beginning."""
    scheduler.submit(JobDescriptor(job, kind=kind), tasks, 0.0)


def changes(scheduler: FlowScheduler, now: float) -> list[tuple[Change, int, int]]:
    """What a round does: change, task, target; a fault fails the test."""
    done = scheduler.round(now)
    assert not done.faults
    return sorted((delta.change, delta.task, delta.target) for delta in done.deltas)


def test_coco_displaces_for_priority_and_for_nothing_else() -> None:
    """§7.3.2: equal priority waits however long; higher priority takes the place; batch never a service's."""
    scheduler = coco(machine(1))
    submit(scheduler, 1, TaskDescriptor(10))
    assert changes(scheduler, 0.0) == [(Change.PLACE, 10, 1)]
    submit(scheduler, 2, TaskDescriptor(20))
    assert changes(scheduler, 1e6) == []
    submit(scheduler, 3, TaskDescriptor(30, priority=1))
    assert changes(scheduler, 1e6) == [(Change.PLACE, 30, 1), (Change.PREEMPT, 10, -1)]
    submit(scheduler, 4, TaskDescriptor(40, priority=-100), kind=Kind.SERVICE)
    assert changes(scheduler, 1e6) == [(Change.PLACE, 40, 1), (Change.PREEMPT, 30, -1)]
    submit(scheduler, 5, TaskDescriptor(50, priority=100))
    assert changes(scheduler, 2e6) == []


@pytest.mark.parametrize(("wave", "placed"), [("machine", [3, 3, 0]), ("aggregate", [1, 1, 1, 1, 2, 0])])
def test_coco_places_in_waves(wave: str, placed: list[int]) -> None:
    """§7.3.3: one task for each machine in a round, or one for each aggregate where it fits everywhere.

    Six tasks, three machines of two slots: when the first machine is full, two aggregates are left.
    """
    scheduler = coco(*(machine(number, 2) for number in (1, 2, 3)), wave=wave)
    submit(scheduler, 1, *(TaskDescriptor(number) for number in range(6)))
    assert [len(changes(scheduler, float(now))) for now in range(len(placed))] == placed


def test_coco_never_overflows_a_machine_without_the_schedulers_own_check() -> None:
    """Strict fit by admission alone: memory for two tasks on each machine, whatever the slots."""
    scheduler = coco(machine(1, 8), machine(2, 8), fit=False)
    submit(scheduler, 1, *(TaskDescriptor(number, Resources(1, 15 * GB)) for number in range(9)))
    for now in range(6):
        changes(scheduler, float(now))
    table = scheduler.state.resources
    rows = [scheduler.state.machine_row(number) for number in (1, 2)]
    assert [float(table.reserved[row, 1]) for row in rows] == [30 * GB, 30 * GB]


def test_coco_keeps_devils_from_rabbits() -> None:
    """A rabbit joins the turtle and not the devil, where all else is equal."""
    scheduler = coco(machine(1, 2), machine(2, 2))
    submit(scheduler, 1, TaskDescriptor(10, interference=Interference.DEVIL))
    [(_, _, with_devil)] = changes(scheduler, 0.0)
    submit(scheduler, 2, TaskDescriptor(20, interference=Interference.TURTLE))
    [(_, _, with_turtle)] = changes(scheduler, 1.0)
    assert with_devil != with_turtle
    submit(scheduler, 3, TaskDescriptor(30, interference=Interference.RABBIT))
    assert changes(scheduler, 2.0) == [(Change.PLACE, 30, with_turtle)]


def batch(number: int, deadline: float | None) -> TaskDescriptor:
    """Ten seconds of work on the fast machine."""
    return TaskDescriptor(number, Resources(1, GB), deadline=deadline, expected_runtime=10.0)


def test_green_takes_the_slow_machine_until_the_deadline_is_near() -> None:
    """§7.4: a task with time goes to the frugal machine, one without to the fast one, at once."""
    scheduler = green()
    submit(scheduler, 1, batch(10, 1000.0), batch(11, 15.0), batch(12, 1.0))
    assert changes(scheduler, 0.0) == [
        (Change.PLACE, 10, SLOW),
        (Change.PLACE, 11, FAST),
        (Change.PLACE, 12, FAST),
    ]


def test_green_moves_a_task_that_would_be_late() -> None:
    """§7.4: it was started where it cannot be in time, as a new coordinator finds it, and is moved."""
    scheduler = green()
    submit(scheduler, 1, batch(10, 30.0))
    scheduler.started(10, SLOW, 0.0)
    assert changes(scheduler, 1.0) == [(Change.MIGRATE, 10, FAST)]


def test_green_waits_for_the_frugal_machine_as_long_as_it_can() -> None:
    """§7.4.1: the slow machine is full; a task waits for it, and takes the fast one when time is short."""
    scheduler = green()
    submit(scheduler, 1, *(batch(number, 41.0) for number in range(4)))
    for number in range(4):
        scheduler.started(number, SLOW, 0.0)
    submit(scheduler, 2, batch(9, 60.0))
    # Two machines are few (epsilon), and make it urgent at once; so look with none that are few.
    scheduler.set_model(patient(scheduler), 0.0)
    assert changes(scheduler, 1.0) == []
    assert changes(scheduler, 30.0) == [(Change.PLACE, 9, FAST)]


def patient(scheduler: FlowScheduler) -> GreenModel:
    """The same model without urgency."""
    model = GreenModel(few=0)
    old = scheduler.model
    assert isinstance(old, GreenModel)
    model.power = old.power
    return model


def test_green_never_leaves_a_service_waiting_where_there_is_room() -> None:
    """§7.4.1: Gamma is the largest cost there is; a service goes where a request costs least energy."""
    scheduler = green()
    submit(scheduler, 1, *(TaskDescriptor(number) for number in range(6)), kind=Kind.SERVICE)
    placed = [target for _, _, target in changes(scheduler, 0.0)]
    assert sorted(placed) == [SLOW] * 4 + [FAST] * 2
