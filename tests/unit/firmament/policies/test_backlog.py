"""The window of a long queue: what a round costs, and who gets into it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from dios.firmament.descriptors import (
    Constraint,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.catalogue import make
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler
from dios.limits import BACKLOG_SPARE_TASKS

MACHINES = 3


class Line:
    """Three machines of two processors, and waiting tasks in the order of their numbers."""

    def __init__(self) -> None:
        self.scheduler = FlowScheduler(make("spread"), ledger=PrincipalAccounts(wall=1e6))
        self.now = 0.0
        for number in range(MACHINES):
            machine = MachineDescriptor(number, f"m{number}", "r1", Resources(2.0, 2.0**30), 64)
            self.scheduler.add_machine(machine, 0.0)
        self._next = 0

    def submit(
        self, count: int, principal: str = "alice", *, cpus: float = 2.0, needs: str = "", priority: int = 0
    ) -> range:
        """Tasks that begin to wait; their numbers."""
        tasks = range(self._next, self._next + count)
        self._next += count
        for task in tasks:
            constraints = (Constraint(needs.format(task)),) if needs else ()
            described = TaskDescriptor(task, Resources(cpus), priority, constraints=constraints)
            self.scheduler.submit(JobDescriptor(task, principal), [described], self.now)
        return tasks

    def round(self) -> list[int]:
        """The tasks that a round places."""
        self.now += 1.0
        outcome = self.scheduler.round(self.now)
        assert outcome.stands, outcome.faults
        return [delta.task for delta in outcome.deltas if delta.change is Change.PLACE]


def calls_of(doing: Callable[[], object]) -> int:
    """The number of calls of Python functions, which does not depend on the machine."""
    count = 0

    def counts(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        del frame, argument
        count += event == "call"

    sys.setprofile(counts)
    try:
        doing()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("principals", [1, 5])
def test_a_round_costs_the_same_however_many_wait(principals: int) -> None:
    """With ten times as many waiting tasks a round makes hardly more calls, and its tables are no larger."""
    costs, sizes = [], []
    for waiting in (2_000, 20_000):
        line = Line()
        for number in range(principals):
            line.submit(waiting // principals, f"user {number}")
        assert len(line.round()) == MACHINES
        costs.append(calls_of(line.round))
        sizes.append(len(line.scheduler.state.tasks))
        assert line.scheduler.history[-1].waiting == waiting - MACHINES
    assert costs[1] < 1.2 * costs[0]
    assert sizes[1] == sizes[0] <= principals * (BACKLOG_SPARE_TASKS + MACHINES * 64)


def test_tasks_start_in_the_order_of_turns() -> None:
    """Each end lets one of the first that wait start; a higher priority goes first."""
    line = Line()
    line.submit(500)
    assert line.round() == [0, 1, 2]
    (urgent,) = line.submit(1, priority=7)
    order = []
    for _ in range(100):
        running = [task for task in range(501) if line.scheduler.is_running(task)]
        line.scheduler.finished(running[0], line.now)
        order += line.round()
    assert order[0] == urgent
    assert len(order) == 100
    assert all(task < 3 + place + 4 * BACKLOG_SPARE_TASKS for place, task in enumerate(order[1:]))


@pytest.mark.parametrize("needs", ["gpu", "gpu{}"])
@pytest.mark.parametrize("principals", [1, 2])
def test_tasks_that_nothing_can_take_hold_up_nobody(needs: str, principals: int) -> None:
    """Hundreds of them wait first, each with needs of its own or all with the same: others start at once."""
    line = Line()
    for number in range(principals):
        line.submit(300, f"user {number}", needs=needs)
    others = line.submit(50, "user 0", cpus=1.0)
    assert line.round() == list(others[:6])
    text = " ".join(line.scheduler.explain(0).lines())
    assert "lack" in text
    machine = MachineDescriptor(9, "m9", "r1", Resources(2.0, 2.0**30), 64, labels=(("gpu", ""),))
    line.scheduler.add_machine(machine, line.now)
    for task in others[6:]:
        line.scheduler.finished(task, line.now)
    assert len(line.round()) == (needs == "gpu")


def test_the_place_in_the_queue_is_explained() -> None:
    """A task deep in the queue is explained like any other, with the number of those before it."""
    line = Line()
    line.submit(400)
    line.round()
    explanation = line.scheduler.explain(399)
    assert explanation.before == 396
    assert explanation.lines()[-1] == "396 waiting tasks of its principal come before it"
    before = len(line.scheduler.state.tasks)
    line.scheduler.explain(398)
    assert len(line.scheduler.state.tasks) == before


def test_a_withdrawn_task_is_forgotten_wherever_it_waits() -> None:
    """In the window and behind it; the rest of the queue moves up."""
    line = Line()
    line.submit(300)
    line.round()
    for task in range(3, 298):
        line.scheduler.finished(task, line.now)
    line.scheduler.finished(0, line.now)
    assert line.round() == [298]
    assert line.scheduler.history[-1].waiting == 1


def test_everybody_waits_in_few_tables() -> None:
    """Of a thousand principals those with the least shares and some others are in the tables."""
    line = Line()
    for number in range(1_000):
        line.submit(5, f"user {number}")
    for _ in range(5):
        line.round()
    assert len(line.scheduler.state.tasks) < 5_000 / 2
    assert line.scheduler.history[-1].waiting == 5_000 - MACHINES
