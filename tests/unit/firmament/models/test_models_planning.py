"""Policies of Table 8.6 that plan or divide: Apollo, Choosy, H-DRF and Jockey, on the real scheduler."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dios.firmament.cluster import changes as tables
from dios.firmament.descriptors import (
    Constraint,
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.models.admission import DominantShares
from dios.firmament.models.catalogue import make
from dios.firmament.models.jockey import JockeyModel
from dios.firmament.models.runtimes import Runtimes
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler
from tests.support.firmament import clusters as small
from tests.support.firmament.clusters import MACHINE, block
from tests.support.firmament.rounds import add_machine, places, rounds, scheduler, submit

GPU = (Constraint("gpu", value="yes"),)


# Apollo ---------------------------------------------------------------------------------------------


def two_speeds(fast: float, slow: float, left: float) -> FlowScheduler:
    """A fast machine that is busy for ``left`` seconds, and a slow one that is free."""
    base = KnowledgeBase("n0", 1)
    for kind, seconds in (("fast", fast), ("slow", slow)):
        base.add(Sample("work", kind, "m", 1, {Metric.RUNTIME_NS: int(seconds * 1e9)}))
    apollo = FlowScheduler(make("apollo"), knowledge=base)
    add_machine(apollo, 0, 1, kind="fast")
    add_machine(apollo, 1, 1, kind="slow")
    submit(apollo, TaskDescriptor(1, equivalence="other", expected_runtime=left), job=1)
    apollo.started(1, 0, 0.0)
    submit(apollo, TaskDescriptor(2, equivalence="work"), job=2)
    return apollo


def test_apollo_waits_for_a_busy_machine_that_will_be_done_first() -> None:
    """W + R = 5 + 10 on the fast machine beats R = 60 on the free slow one."""
    assert rounds(two_speeds(fast=10, slow=60, left=5), 0.0) == {1: 0}


def test_apollo_takes_the_free_machine_when_waiting_takes_longer() -> None:
    """W + R = 55 + 10 on the fast machine does not beat 60."""
    assert rounds(two_speeds(fast=10, slow=60, left=55), 0.0) == {1: 0, 2: 1}


def test_apollo_counts_the_queue_before_a_busy_machine() -> None:
    """Only one task can wait for the slot that comes free; the second goes to the slow machine."""
    apollo = two_speeds(fast=10, slow=60, left=5)
    submit(apollo, TaskDescriptor(3, equivalence="work"), job=3)
    placements = rounds(apollo, 0.0)
    assert sorted(placements.values()) == [0, 1]


@pytest.mark.parametrize(("left", "expected"), [(5.0, None), (500.0, 1)])
def test_apollo_waits_for_memory_too(left: float, expected: int | None) -> None:
    """A machine with a slot but no memory is busy until who has the memory ends."""
    base = KnowledgeBase("n0", 1)
    for kind, seconds in (("fast", 10), ("slow", 60)):
        base.add(Sample("work", kind, "m", 1, {Metric.RUNTIME_NS: seconds * 10**9}))
    apollo = FlowScheduler(make("apollo"), knowledge=base)
    add_machine(apollo, 0, 5, kind="fast")
    add_machine(apollo, 1, 5, kind="slow")
    large = Resources(cpus=1, memory=0.75 * MACHINE.memory)
    submit(apollo, TaskDescriptor(1, large, equivalence="other", expected_runtime=left))
    apollo.started(1, 0, 0.0)
    submit(apollo, TaskDescriptor(2, large, equivalence="work"), job=2)
    assert rounds(apollo, 0.0).get(2) == expected


def test_apollo_counts_the_time_to_fetch_the_input() -> None:
    """Of two free and equal machines the one with the data is done first."""
    apollo = scheduler(make("apollo"), 1, 1, 1)
    submit(apollo, TaskDescriptor(1, blocks=(block(5, 1),), expected_runtime=10.0))
    assert rounds(apollo, 0.0) == {1: 1}


def test_apollo_weighs_data_against_speed() -> None:
    """10 s to fetch 5 GB and 10 s to run on a fast machine beat 60 s on the slow one with the data."""
    base = KnowledgeBase("n0", 1)
    for kind, seconds in (("fast", 10), ("slow", 60)):
        base.add(Sample("work", kind, "m", 1, {Metric.RUNTIME_NS: seconds * 10**9}))
    for gigabytes, expected in ((5, 0), (40, 1)):
        apollo = FlowScheduler(make("apollo"), knowledge=base)
        add_machine(apollo, 0, 1, rack="r0", kind="fast")
        add_machine(apollo, 1, 1, rack="r1", kind="slow")
        submit(apollo, TaskDescriptor(1, equivalence="work", blocks=(block(gigabytes, 1),)))
        assert rounds(apollo, 0.0) == {1: expected}


def test_apollo_sends_one_task_to_a_machine_in_a_round() -> None:
    """Without data four tasks spread over two machines of four slots, two rounds long."""
    apollo = scheduler(make("apollo"), 4, 4)
    submit(apollo, *(TaskDescriptor(number, expected_runtime=10.0) for number in range(4)))
    assert Counter(rounds(apollo, 0.0).values()) == {0: 1, 1: 1}
    assert Counter(rounds(apollo, 1.0).values()) == {0: 2, 1: 2}


# Choosy and H-DRF -----------------------------------------------------------------------------------


def of_users(flow_scheduler: FlowScheduler, **tasks: int) -> None:
    """Jobs of principals with so many tasks each; those whose name begins with gpu need one."""
    for job, (principal, count) in enumerate(tasks.items(), start=len(flow_scheduler.state.jobs) + 1):
        constraints = GPU if principal.startswith("gpu") else ()
        flow_scheduler.submit(
            JobDescriptor(job, principal=principal),
            [TaskDescriptor(1000 * job + number, constraints=constraints) for number in range(count)],
            0.0,
        )


def running_by_principal(flow_scheduler: FlowScheduler) -> Counter[str]:
    """How many tasks of each principal run."""
    state = flow_scheduler.state
    rows = [state.tasks.row(task) for task in places(flow_scheduler)]
    return Counter(state.principals.names[int(state.jobs.principal[state.tasks.job[row]])] for row in rows)


def test_choosy_divides_slots_evenly_however_many_tasks_somebody_has() -> None:
    """Twelve slots and three users: four each; what one does not need the others share."""
    choosy = scheduler(make("choosy"), 4, 4, 4)
    of_users(choosy, a=50, b=50, c=2)
    rounds(choosy, 1.0)
    assert running_by_principal(choosy) == {"a": 5, "b": 5, "c": 2}


def test_choosy_lets_the_constrained_have_what_only_they_need() -> None:
    """Constrained max-min: whoever can use GPU machines alone gets its share there, others make room."""
    choosy = FlowScheduler(make("choosy"))
    for number in range(4):
        add_machine(choosy, number, 2, gpu=number == 0)
    of_users(choosy, a=20, gpu_b=20)
    rounds(choosy, 1.0)
    assert running_by_principal(choosy) == {"a": 6, "gpu_b": 2}


def test_choosy_evens_out_as_tasks_end() -> None:
    """Somebody who comes to a full cluster gets each slot that comes free, until shares are even."""
    choosy = scheduler(make("choosy"), 4)
    of_users(choosy, a=10)
    first = rounds(choosy, 1.0)
    of_users(choosy, b=10)
    rounds(choosy, 2.0)
    assert running_by_principal(choosy) == {"a": 4}
    for task in sorted(first)[:2]:
        choosy.finished(task, 3.0, FinalReport(runtime=2.0))
    rounds(choosy, 4.0)
    assert running_by_principal(choosy) == {"a": 2, "b": 2}


def test_choosy_admits_no_more_than_its_wave() -> None:
    """Admission goes on in the next round."""
    choosy = scheduler(make("choosy", wave=3), 10)
    of_users(choosy, a=10)
    assert len(rounds(choosy, 1.0)) == 3
    assert len(rounds(choosy, 2.0)) == 6


def test_choosy_takes_an_admission_back() -> None:
    """Who was admitted but not placed, and is not next any more, loses the arc; who is next gets one."""
    state = small.cluster(1, slots=2)
    for number, principal in ((1, "a"), (2, "b")):
        small.add_job(state, JobDescriptor(number, principal=principal))
    first = small.add_task(state, TaskDescriptor(1), job=1)
    model = make("choosy")
    model.begin(state)
    assert model.task_options(state, small.rows(first)).target.tolist() == [state.cluster]
    # Meanwhile a's other task runs, and b comes: one slot is left, and it is b's turn.
    small.run(state, small.add_task(state, TaskDescriptor(2), job=1), 0)
    second = small.add_task(state, TaskDescriptor(3), job=2)
    model.begin(state)
    assert model.stale_tasks(state).tolist() == [first, second]
    options = model.task_options(state, small.rows(first, second))
    assert options.task.tolist() == [1]
    model.begin(state)
    assert model.stale_tasks(state).tolist() == []


def test_h_drf_evens_out_dominant_shares() -> None:
    """The first paper's example: 9 CPUs and 18 GB, tasks of (1, 4) and (3, 1): three and two of them."""
    h_drf = FlowScheduler(make("h-drf"))
    capacity = Resources(cpus=9, memory=18)
    h_drf.add_machine(MachineDescriptor(0, "m0", capacity=capacity, slots=20), 0.0)
    for job, (principal, demand) in enumerate([("a", (1, 4)), ("b", (3, 1))]):
        per_task = Resources(cpus=demand[0], memory=demand[1])
        tasks = [TaskDescriptor(100 * job + number, demand=per_task) for number in range(10)]
        h_drf.submit(JobDescriptor(job, principal=principal), tasks, 0.0)
    rounds(h_drf, 1.0, 2.0, 3.0)
    assert running_by_principal(h_drf) == {"a": 3, "b": 2}


def test_h_drf_divides_between_branches_before_users() -> None:
    """One team with one user gets as much as another with three."""
    h_drf = scheduler(make("h-drf"), 6, 6)
    names = ("left/a", "right/b", "right/c", "right/d")
    for job, name in enumerate(names):
        tasks = [TaskDescriptor(100 * job + number, demand=Resources(cpus=1)) for number in range(20)]
        h_drf.submit(JobDescriptor(job, principal=name), tasks, 0.0)
    rounds(h_drf, 1.0)
    assert running_by_principal(h_drf) == {"left/a": 6, "right/b": 2, "right/c": 2, "right/d": 2}


def test_h_drf_rescales_children_that_want_different_resources() -> None:
    """A branch is as rich as its poorest user: what another user of it has does not starve that one."""
    shares = DominantShares(np.array([10.0, 10.0]))
    shares.add("n/x", np.array([8.0, 0.0]))
    shares.add("n/y", np.array([0.0, 2.0]))
    shares.add("m", np.array([5.0, 5.0]))
    assert shares.choose(["n/y", "m"]) == "n/y"


# Jockey ---------------------------------------------------------------------------------------------


def dated(number: int, deadline: float | None, runtime: float = 10.0) -> TaskDescriptor:
    """A task with a deadline."""
    return TaskDescriptor(number, deadline=deadline, expected_runtime=runtime)


def test_jockey_makes_waiting_dearer_as_slack_goes() -> None:
    """V rises along a curve until the last moment, and stays there after the deadline."""
    model = JockeyModel(idle=10, utility=1000, steepness=2, margin=1.0)
    jockey = scheduler(model, 1)
    submit(jockey, dated(1, 100.0))
    rows = jockey.state.tasks.all()
    costs = []
    for now in (0.0, 50.0, 80.0, 90.0, 200.0):
        jockey.state.now = now
        model.begin(jockey.state)
        costs.append(int(model.task_to_unscheduled(jockey.state, rows)[0]))
    assert costs == [10 + 10, 10 + 40, 10 + 250, 10 + 1000, 10 + 1000]


def test_jockey_runs_the_most_urgent_first() -> None:
    """One slot and three tasks: the nearest deadline gets it."""
    jockey = scheduler(make("jockey"), 1)
    submit(jockey, dated(1, 500.0), job=1)
    submit(jockey, dated(2, 50.0), job=2)
    submit(jockey, dated(3, None), job=3)
    assert rounds(jockey, 1.0) == {2: 0}


def test_jockey_gives_a_job_as_many_tasks_as_it_needs() -> None:
    """Ten tasks of 10 s: one at a time until 100 s before the deadline, five when 20 s are left."""
    model = JockeyModel(margin=1.0)
    jockey = scheduler(model, *[1] * 10)
    submit(jockey, *(dated(number, 200.0) for number in range(10)))
    for now, expected in ((0.0, 1), (100.0, 1), (150.0, 2), (180.0, 5)):
        jockey.state.now = now
        assert model.allocation(jockey.state, 0) == expected, f"at {now}"


def test_jockey_takes_slots_back_from_a_job_that_is_ahead() -> None:
    """A job with slack that had all slots gives up what another one needs now, and no more."""
    jockey = scheduler(make("jockey", margin=1.0, lost=1), *[1] * 4)
    submit(jockey, *(dated(number, 1000.0, 100.0) for number in range(4)), job=1)
    assert len(rounds(jockey, 0.0)) == 4
    submit(jockey, dated(10, 21.0), dated(11, 21.0), dated(12, 21.0), job=2, now=1.0)
    jockey.round(1.0)
    placements = places(jockey)
    # Thirty seconds of work in twenty: two at once.
    assert len({10, 11, 12} & set(placements)) == 2
    assert [delta.change for delta in jockey.history[-1].deltas].count(Change.PREEMPT) == 2


@pytest.mark.parametrize("younger", [1, 2])
def test_jockey_stops_who_has_least_to_lose(younger: int) -> None:
    """Of two running tasks without a deadline the one that has just begun makes room."""
    jockey = scheduler(make("jockey"), 1, 1)
    submit(jockey, dated(1, None), dated(2, None))
    for number in (1, 2):
        jockey.started(number, number - 1, 90.0 if number == younger else 0.0)
    submit(jockey, dated(3, 110.0), job=2, now=100.0)
    assert set(rounds(jockey, 100.0)) == {1, 2, 3} - {younger}


def test_jockey_counts_those_that_run_before_those_that_wait() -> None:
    """A job that needs one task at once and has one running does not press for another."""
    model = JockeyModel(margin=1.0)
    jockey = scheduler(model, 1)
    submit(jockey, dated(1, 100.0), dated(2, 100.0))
    jockey.started(2, 0, 0.0)
    model.begin(jockey.state)
    rows = np.array([jockey.state.tasks.row(number) for number in (1, 2)])
    waiting, running = model.task_to_unscheduled(jockey.state, rows).tolist()
    assert waiting == model.idle
    assert running > model.idle


def test_run_times_are_those_of_the_task_that_has_the_row_now() -> None:
    """A row that is used again tells of its new task; descriptions come before profiles, then the default."""
    base = KnowledgeBase("n0", 1)
    base.add(Sample("known", "plain", "m", 1, {Metric.RUNTIME_NS: 7 * 10**9}))
    state = small.cluster(1)
    state.knowledge = base
    runtimes = Runtimes(unknown=60.0)
    for number, (told, name, expected) in enumerate(
        [(5.0, "known", 5.0), (None, "known", 7.0), (9.0, "strange", 9.0), (None, "strange", 60.0)]
    ):
        row = small.add_task(state, TaskDescriptor(number, equivalence=name, expected_runtime=told))
        assert row == 0
        assert runtimes.expected(state, small.rows(row)).tolist() == [expected]
        tables.remove_task(state, row, completed=True)
