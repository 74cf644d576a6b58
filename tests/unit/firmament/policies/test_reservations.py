"""Nobody whose turn it is waits for ever: machines are kept for tasks that fit on none, under every model."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from dios.firmament.descriptors import (
    DIMENSIONS,
    JobDescriptor,
    Level,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.catalogue import MODELS, make
from dios.firmament.policies.fit import fitting_tasks
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.limits import FAIR_QUEUE_TIMEOUT_S
from dios.wire.types import Affinity

GIB = 2.0**30


@dataclass
class Play:
    """A scheduler with machines, and tasks that run for a time that only the play knows."""

    scheduler: FlowScheduler
    ends: dict[int, float] = field(default_factory=dict)
    lengths: dict[int, float] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)
    number: int = 0

    def submit(
        self,
        principal: str,
        length: float,
        now: float,
        *,
        tasks: int = 1,
        cpus: float = 1.0,
        memory: float = 0.0,
        gang: int = 0,
        affinity: Affinity = Affinity.NONE,
        known: bool = False,
        priority: int = 0,
        restartable: bool = False,
    ) -> list[int]:
        """Submit a job, and return the identifiers of its tasks."""
        ids = list(range(self.number, self.number + tasks))
        self.number += tasks
        expected = length if known else None
        described = [
            TaskDescriptor(
                task,
                Resources(cpus, memory),
                restartable=restartable,
                expected_runtime=expected,
                equivalence=f"p{task}",
                priority=priority,
            )
            for task in ids
        ]
        job = JobDescriptor(10**6 + ids[0], principal, f"job {ids[0]}", gang=gang, affinity=affinity)
        self.scheduler.submit(job, described, now)
        self.lengths |= dict.fromkeys(ids, length)
        return ids

    def overtake(self, principal: str, now: float) -> None:
        """Let a task that needs no processor start before those that wait, which then have their turn."""
        self.submit(principal, 0.1, now, cpus=0.0)
        self.step(now)
        self.step(now + 0.25)

    def step(self, now: float) -> list[int]:
        """End what is over, play a round, and return what starts."""
        for task in [task for task, end in self.ends.items() if end <= now]:
            self.scheduler.finished(task, now)
            del self.ends[task]
        placed = []
        for delta in self.scheduler.round(now).deltas:
            if delta.change is Change.PREEMPT:
                del self.ends[delta.task], self.started[delta.task]
                continue
            assert delta.change is Change.PLACE
            placed.append(delta.task)
            self.ends[delta.task] = now + self.lengths[delta.task]
            self.started[delta.task] = now
        return placed


def play(*cpus: int, model: str = "spread", slots: int = 64, racks: int = 0) -> Play:
    """Return a play with machines of these processors."""
    scheduler = FlowScheduler(make(model), SchedulerSettings(), ledger=PrincipalAccounts(wall=1.0))
    for number, count in enumerate(cpus):
        rack = f"r{number % racks}" if racks else ""
        capacity = Resources(count, 8 * GIB)
        scheduler.add_machine(MachineDescriptor(number, f"n{number}", rack, capacity, slots), 0.0)
    return Play(scheduler)


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("users", [("ann", "bob"), ("ann", "ann")])
@pytest.mark.extended(keep=32)
def test_a_large_task_starts_in_a_stream_of_small_ones(model: str, users: tuple[str, str]) -> None:
    """It starts when what ran there has ended; after its own user's earlier ones, if one submits both."""
    small, large = users
    there = play(2, 2, model=model)
    wanted = -1
    for second in range(120):
        if second % 4 == 0 or second < 4:
            there.submit(small, 20.0, float(second))
        if second == 40:
            (wanted,) = there.submit(large, 5.0, float(second), cpus=2.0)
        there.step(float(second))
        if wanted in there.started:
            break
    earlier = [there.started.get(task, 120.0) for task in range(wanted)]
    turn = max(40.0, *earlier) if small == large else 40 + FAIR_QUEUE_TIMEOUT_S
    assert there.started[wanted] <= turn + 20 + 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.extended(keep=3)
def test_all_wait_at_most_for_what_runs(seed: int) -> None:
    """Whoever submits what, of whatever size: the first of each starts when what ran has ended."""
    chance = random.Random(seed)  # noqa: S311 - a play, no secret
    sizes = [chance.choice((2, 4, 8)) for _ in range(chance.randint(2, 5))]
    there = play(*sizes)
    lengths = chance.choice(((10.0,), (5.0, 20.0)))
    longest = max(lengths)
    large: list[int] = []
    for second in range(400):
        now = float(second)
        for user in ("ann", "bob", "eve"):
            if chance.random() < 0.4:
                there.submit(user, chance.choice(lengths), now, memory=chance.choice((0, GIB)))
        if second % 100 == 50:
            cpus = chance.uniform(1, max(sizes))
            large += there.submit("sue", chance.choice(lengths), now, cpus=cpus)
        there.step(now)
    for number, task in enumerate(large):
        asked = 50.0 + 100 * number
        # Its turn comes at once: it has the least share. What ran then ends, and what was placed
        # before its machine was kept.
        bound = asked + FAIR_QUEUE_TIMEOUT_S + longest + 2
        assert there.started.get(task, 1e9) <= bound, f"seed {seed}: task {task} of {asked}"


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("priority", [0, 1])
def test_room_goes_to_the_task_whose_turn_it_is(model: str, priority: int) -> None:
    """No model gives the room that it has its turn for to tasks that wait longer and have none."""
    there = play(4, model=model, slots=4)
    for length in (10.0, 10.0, 60.0, 60.0):
        there.submit("ann", length, 0.0)
    for second in range(8):
        there.step(float(second))
    for _ in range(4):
        there.submit("ann", 5.0, 8.0)
    if priority:
        there.submit("bob", 5.0, 8.0)
    (wanted,) = there.submit("bob", 5.0, 9.0, cpus=2.0, priority=priority)
    placed: list[int] = []
    for second in range(9, 10 + int(FAIR_QUEUE_TIMEOUT_S)):
        placed = placed or there.step(float(second))
    assert placed == [wanted]


def test_a_single_user_has_the_order_of_the_cost_model() -> None:
    """A task that no later one has overtaken needs no machines of its own."""
    there = play(4)
    there.submit("ann", 30.0, 0.0, tasks=4)
    there.step(0.0)
    (wanted,) = there.submit("ann", 5.0, 1.0, cpus=4.0)
    for second in range(1, 5):
        there.step(float(second))
    assert there.scheduler.promised_start(wanted) is None
    there.overtake("ann", 5.0)
    there.step(6.0)
    assert there.scheduler.promised_start(wanted) is not None


def test_short_tasks_go_before_a_reservation() -> None:
    """Those that are known to end before it begins use its machine; those that may not, do not."""
    there = play(4)
    there.submit("ann", 30.0, 0.0, tasks=2, known=True)
    there.step(0.0)
    (wanted,) = there.submit("ann", 5.0, 1.0, cpus=4.0)
    there.step(1.0)
    there.overtake("ann", 1.5)
    short = there.submit("ann", 10.0, 2.0, known=True)
    long = there.submit("ann", 60.0, 2.0, known=True)
    unknown = there.submit("ann", 1.0, 2.0)
    there.step(2.0)
    assert set(there.started) & {*short, *long, *unknown} == set(short)
    for second in range(3, 32):
        there.step(float(second))
    assert there.started[wanted] == 30.0


def test_a_promise_names_the_tasks_that_have_to_end() -> None:
    """Those on its machine that end before it starts, by their stated times."""
    there = play(4)
    (late,) = there.submit("ann", 40.0, 0.0, known=True)
    (soon,) = there.submit("ann", 20.0, 0.0, known=True)
    there.submit("ann", 60.0, 0.0, tasks=2, known=True)
    there.step(0.0)
    (wanted,) = there.submit("ann", 5.0, 1.0, cpus=2.0)
    there.step(1.0)
    there.overtake("ann", 1.5)
    there.step(2.0)
    promised = there.scheduler.promised_start(wanted)
    assert promised is not None
    assert (promised.start, promised.awaited) == (40.0, (soon, late))
    for second in range(3, 41):
        there.step(float(second))
    assert there.started[wanted] == 40.0


def test_others_use_what_a_reservation_leaves() -> None:
    """It is part of a machine; the rest is for everybody."""
    there = play(4, 4)
    there.submit("ann", 30.0, 0.0, tasks=6, known=True)
    there.step(0.0)
    (wanted,) = there.submit("ann", 5.0, 1.0, cpus=3.0)
    there.step(1.0)
    there.overtake("ann", 1.5)
    there.submit("ann", 100.0, 2.0, tasks=4)
    there.step(2.0)
    assert len(there.ends) == 7, "one on the other machine"
    for second in range(3, 32):
        there.step(float(second))
    assert there.started[wanted] == 30.0
    assert len(there.ends) == 1 + 4


@pytest.mark.parametrize(
    ("affinity", "machines"),
    [(Affinity.NONE, 1), (Affinity.SPREAD_NODES, 3), (Affinity.SAME_NODE, 1), (Affinity.SPREAD_RACKS, 3)],
)
def test_gangs_get_all_their_machines(affinity: Affinity, machines: int) -> None:
    """They start together, in a stream of small tasks."""
    there = play(4, 4, 4, racks=3)
    gang: list[int] = []
    for second in range(100):
        now = float(second)
        if second % 2 == 0:
            there.submit("ann", 20.0, now)
        if second == 40:
            gang = there.submit("bob", 5.0, now, tasks=3, gang=3, affinity=affinity)
        there.step(now)
        if gang and gang[0] in there.started:
            break
    starts = {there.started.get(task) for task in gang}
    assert len(starts) == 1
    assert starts.pop() is not None
    assert second <= 40 + FAIR_QUEUE_TIMEOUT_S + 20 + 2
    table = there.scheduler.state.tasks
    assert len({int(table.machine[table.row(task)]) for task in gang}) >= machines


def test_a_reservation_moves_when_its_machine_goes() -> None:
    """A machine that is drained or lost is kept for nobody."""
    there = play(4, 4)
    there.submit("ann", 50.0, 0.0, tasks=4, known=True)
    there.submit("ann", 90.0, 0.0, tasks=4, known=True)
    there.step(0.0)
    (wanted,) = there.submit("ann", 5.0, 1.0, cpus=4.0)
    there.step(1.0)
    there.overtake("ann", 1.5)
    there.step(2.0)
    promise = there.scheduler.promised_start(wanted)
    assert promise is not None
    there.scheduler.drain(promise.machines[0], drained=True)
    there.step(3.0)
    other = there.scheduler.promised_start(wanted)
    assert other is not None
    assert other.machines != promise.machines
    assert other.start >= promise.start


def test_a_task_that_no_machine_can_take_keeps_none() -> None:
    """It would keep it for ever."""
    there = play(4)
    (huge,) = there.submit("ann", 5.0, 0.0, cpus=5.0)
    for second in range(3):
        there.step(float(second))
    assert there.scheduler.promised_start(huge) is None
    (small,) = there.submit("bob", 5.0, 3.0)
    assert there.step(3.0) == [small]


def test_an_explanation_names_what_is_kept() -> None:
    """For whom, where and from when on; for others it is a reason to wait."""
    there = play(4)
    there.submit("ann", 30.0, 0.0, tasks=2, known=True)
    there.step(0.0)
    (wanted,) = there.submit("ann", 5.0, 1.0, cpus=4.0)
    there.step(1.0)
    there.overtake("ann", 1.5)
    (other,) = there.submit("ann", 100.0, 2.0)
    there.step(2.0)
    lines = there.scheduler.explain(wanted).lines()
    assert "no machine can take it now: not enough free: 4 CPUs are needed (n0 has 2)" in lines[0]
    assert any("kept for it: room on n0; it is expected to start there in 28 s" in line for line in lines)
    assert "room is kept for a task that has waited longer" in there.scheduler.explain(other).reason


def test_a_task_that_is_too_large_has_one_reason_and_no_path() -> None:
    """No line says that there is a way to a machine."""
    there = play(2, 2, 2)
    (huge,) = there.submit("ann", 5.0, 0.0, memory=100 * GIB)
    there.step(0.0)
    explanation = there.scheduler.explain(huge)
    assert explanation.reason == "no machine can take it: too small: 100 GiB of memory are needed"
    assert not explanation.path


@pytest.mark.long
@pytest.mark.parametrize("cpus", [1.0, 2.0])
@pytest.mark.parametrize("others", [(), ("bob",)])
def test_priorities_age(cpus: float, others: tuple[str, ...]) -> None:
    """A task of low priority is the first one after a time, whatever comes, also where users take turns."""
    there = play(2)
    low: list[int] = []
    for second in range(0, 1500, 5):
        now = float(second)
        there.submit("ann", 10.0, now, priority=1)
        for user in others:
            there.submit(user, 10.0, now, priority=1)
        if second == 100:
            low = there.submit("ann", 10.0, now, cpus=cpus)
        there.step(now)
    assert low[0] in there.started


def test_nothing_is_kept_for_a_task_that_may_not_start() -> None:
    """Its user has reached a quota: others use the machine."""
    there = play(4)
    ledger = PrincipalAccounts(wall=1.0)
    there.scheduler = FlowScheduler(make("spread"), SchedulerSettings(), ledger=ledger)
    there.scheduler.add_machine(MachineDescriptor(0, "n0", "", Resources(4, 8 * GIB), 64), 0.0)
    there.submit("ann", 30.0, 0.0, tasks=2, known=True)
    there.step(0.0)
    (wanted,) = there.submit("ann", 5.0, 1.0, cpus=4.0)
    there.step(1.0)
    there.overtake("ann", 1.5)
    there.step(2.0)
    assert there.scheduler.promised_start(wanted) is not None
    ledger.set_terms(there.scheduler.state, "ann", None, {"cpus": 2.0})
    (other,) = there.submit("bob", 100.0, 3.0)
    there.step(3.0)
    assert there.scheduler.promised_start(wanted) is None
    assert other in there.started


@pytest.mark.parametrize(
    ("owner", "priority", "length", "start"),
    [
        ("bob", 0, 300.0, 1.75),
        ("bob", 1, 300.0, None),
        ("ann", 0, 300.0, None),
        ("ann", -1, 300.0, 1.0),
        ("bob", 0, 10.0, None),
    ],
)
def test_restartable_work_yields_to_a_reservation(
    owner: str, priority: int, length: float, start: float | None
) -> None:
    """Others who have more than their share yield, and lower priorities; not for a few seconds, though."""
    there = play(2)
    there.submit(owner, length, 0.0, restartable=True, priority=1 + priority, known=True)
    there.submit(owner, length, 0.0, restartable=True, priority=1 + priority, known=True)
    there.step(0.0)
    (wanted,) = there.submit("ann", 5.0, 1.0, cpus=1.5, priority=1)
    there.step(1.0)
    there.overtake("ann", 1.5)
    for second in range(2, 9):
        there.step(float(second))
    assert there.started.get(wanted) == start


@pytest.mark.parametrize("left", [0.0, 1.0, math.inf])
def test_a_machine_is_offered_as_often_as_a_reservation_leaves_slots(left: float) -> None:
    """Else a task would be sent to it in each round, and refused there."""
    state = play(4).scheduler.state
    (machine,) = state.resources.at(Level.MACHINE)
    leaves = np.full((len(state.resources.alive), 1 + DIMENSIONS), np.inf)
    leaves[machine, 0] = left
    demand = np.array(Resources(1.0, 0.0))
    count = fitting_tasks(state, demand, 0, preemption=False, left=leaves)
    assert count[machine] == min(4, left)
