"""The policies of Table 8.6: each does what its paper is known for, on the real scheduler and solver."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sched_clusters import MACHINE, block

from dios.firmament.descriptors import (
    Constraint,
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.knowledge import KnowledgeBase
from dios.firmament.models.admission import DominantShares
from dios.firmament.models.catalogue import make
from dios.firmament.models.jockey import JockeyModel
from dios.firmament.models.late import LateModel
from dios.firmament.models.protocol import CostModel
from dios.firmament.models.terms import BadModelError
from dios.firmament.rounds import Change
from dios.firmament.samples import Metric, Sample
from dios.firmament.scheduler import FlowScheduler

GPU = (Constraint("gpu", value="yes"),)


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


# Trivial and random ---------------------------------------------------------------------------------


def test_the_trivial_model_lets_who_has_waited_longest_go_first_and_stops_nobody() -> None:
    """One slot: the older task gets it, and keeps it however long the other waits."""
    made = scheduler(make("trivial"), 1)
    submit(made, TaskDescriptor(1), now=5.0)
    submit(made, TaskDescriptor(2), job=2, now=0.0)
    assert rounds(made, 10.0) == {2: 0}
    assert rounds(made, 1e6) == {2: 0}


def test_random_fit_scatters_by_seed() -> None:
    """The same seed places alike, another one does not, and everything that fits is placed."""

    def run(seed: int) -> dict[int, int]:
        made = scheduler(make("random-fit", seed=seed), *[4] * 10)
        submit(made, *(TaskDescriptor(number) for number in range(20)))
        return rounds(made, 1.0)

    assert len(run(1)) == 20
    assert run(1) == run(1)
    assert run(1) != run(2)
    assert len(set(run(1).values())) > 4


def test_random_fit_draws_only_machines_where_the_task_fits() -> None:
    """A large task goes to the one large machine, whatever the seed."""
    for seed in range(5):
        made = FlowScheduler(make("random-fit", seed=seed))
        for number in range(8):
            cpus = 16.0 if number == 5 else 1.0
            capacity = Resources(cpus=cpus)
            made.add_machine(MachineDescriptor(number, f"m{number}", capacity=capacity, slots=2), 0.0)
        submit(made, TaskDescriptor(1, demand=Resources(cpus=4)))
        assert rounds(made, 1.0) == {1: 5}, f"seed {seed}"


# Delay scheduling -----------------------------------------------------------------------------------


def test_delay_scheduling_waits_for_the_data_then_for_the_rack_then_goes_anywhere() -> None:
    """With its machine full a task waits 5 s; then its rack, when that is full until 10 s; then anywhere."""
    made = scheduler(make("delay", machine_wait=5, rack_wait=10), 1, 1, 1, 1, racks=2)
    # Machines 0 and 2 are one rack, 1 and 3 the other.
    submit(made, *(TaskDescriptor(number, blocks=(block(1, 0),)) for number in (1, 2, 3)))
    first = rounds(made, 1.0)
    assert list(first.values()) == [0]
    assert rounds(made, 4.9) == first
    second = rounds(made, 5.1)
    assert sorted(second.values()) == [0, 2]
    assert rounds(made, 9.9) == second
    third = rounds(made, 10.1)
    assert sorted(third.values()) in ([0, 1, 2], [0, 2, 3])


def test_delay_scheduling_takes_a_local_slot_that_comes_free_in_time() -> None:
    """That is what the delay is for: the slot beside the data comes free after a moment."""
    made = scheduler(make("delay"), 1, 1)
    submit(made, TaskDescriptor(1, blocks=(block(1, 0),)), TaskDescriptor(2, blocks=(block(1, 0),)))
    first = rounds(made, 1.0)
    assert len(first) == 1
    made.finished(next(iter(first)), 2.0)
    assert list(rounds(made, 3.0).values()) == [0]


def test_delay_scheduling_does_not_hold_up_tasks_without_data() -> None:
    """They are at home everywhere."""
    made = scheduler(make("delay"), 1, 1)
    submit(made, TaskDescriptor(1), TaskDescriptor(2))
    assert len(rounds(made, 0.0)) == 2


# LATE -----------------------------------------------------------------------------------------------


def speculating() -> tuple[FlowScheduler, LateModel]:
    """Eight tasks on four machines, of which machine 3 is slow; 100 s old."""
    model = LateModel(cap=0.5)
    made = scheduler(model, 3, 3, 3, 3)
    submit(made, *(TaskDescriptor(number) for number in range(8)))
    for number in range(8):
        made.started(number, number % 4, 0.0)
        model.progressed(number, 0.1 + 0.01 * number if number % 4 == 3 else 0.7)
    made.state.now = 100.0
    return made, model


def test_late_copies_the_task_that_would_end_last_first() -> None:
    """Slow ones alone, the longest time to their end first, and nobody twice."""
    made, model = speculating()
    rows = [made.state.tasks.row(number) for number in (3, 7)]
    found = model.candidates(made.state)
    assert [each.task for each in found] == rows
    # A tenth is done, and 0.13 of the work took 100 s.
    assert found[0].left == pytest.approx(0.87 / 0.13 * 100)
    model.copied(copy=100, original=3)
    assert [each.task for each in model.candidates(made.state)] == rows[1:]


def targets(made: FlowScheduler, number: int) -> set[int]:
    """The machines to which a task has arcs."""
    row = np.array([made.state.tasks.row(number)])
    found = made.model.task_options(made.state, row)
    return {made.state.machine_ids[int(each)] for each in found.target}


def test_late_runs_copies_on_fast_machines_alone() -> None:
    """Machine 3, whose tasks are slow, gets no copy, though it has room."""
    made, model = speculating()
    model.copied(100, 3)
    submit(made, TaskDescriptor(100), now=100.0)
    assert targets(made, 100) == {0, 1, 2}
    assert rounds(made, 101.0)[100] in {0, 1, 2}


def test_late_runs_no_copy_beside_its_original() -> None:
    """A task that is slow on a fast machine is copied elsewhere."""
    made, model = speculating()
    model.progressed(1, 0.2)
    model.copied(100, 1)
    submit(made, TaskDescriptor(100), now=100.0)
    assert targets(made, 100) == {0, 2}


def test_late_runs_ordinary_tasks_before_copies() -> None:
    """As many new tasks as slots are free: none is left for the copy, though it has waited longer."""
    made, model = speculating()
    model.copied(100, 3)
    submit(made, TaskDescriptor(100), now=0.0)
    submit(made, *(TaskDescriptor(number) for number in range(20, 24)), job=2, now=100.0)
    found = rounds(made, 101.0)
    assert 100 not in found
    assert len(found) == 12


def test_late_forgets_tasks_that_are_gone() -> None:
    """What was told of tasks that ended, or that never came, is not kept for ever."""
    made, model = speculating()
    model.copied(100, 3)
    for number in range(1000, 2000):
        model.progressed(number, 0.5)
        model.copied(number + 5000, number)
    for number in range(8):
        made.finished(number, 101.0)
    made.round(102.0)
    assert model.candidates(made.state) == []
    assert not model._progress
    assert not model._original


def test_late_keeps_copies_below_its_cap() -> None:
    """A cap of no slots is no speculation; one of one slot in twelve is one copy."""
    for cap, most in ((0.0, 0), (0.09, 1)):
        made, model = speculating()
        model.cap = cap
        assert len(model.candidates(made.state)) == most


def test_late_judges_nobody_who_has_just_begun() -> None:
    """A task that ran for less than ``minimum_run`` has no rate yet."""
    made, model = speculating()
    made.state.now = 10.0
    assert model.candidates(made.state) == []


def test_late_refuses_a_progress_that_is_no_share() -> None:
    """The message names the task and the value."""
    with pytest.raises(BadModelError, match="task 7 is 70"):
        LateModel().progressed(7, 70)


# Apollo ---------------------------------------------------------------------------------------------


def two_speeds(fast: float, slow: float, left: float) -> FlowScheduler:
    """A fast machine that is busy for ``left`` seconds, and a slow one that is free."""
    base = KnowledgeBase("n0", 1)
    for kind, seconds in (("fast", fast), ("slow", slow)):
        base.add(Sample("work", kind, "m", 1, {Metric.RUNTIME_NS: int(seconds * 1e9)}))
    made = FlowScheduler(make("apollo"), knowledge=base)
    add_machine(made, 0, 1, kind="fast")
    add_machine(made, 1, 1, kind="slow")
    submit(made, TaskDescriptor(1, equivalence="other", expected_runtime=left), job=1)
    made.started(1, 0, 0.0)
    submit(made, TaskDescriptor(2, equivalence="work"), job=2)
    return made


def test_apollo_waits_for_a_busy_machine_that_will_be_done_first() -> None:
    """W + R = 5 + 10 on the fast machine beats R = 60 on the free slow one."""
    assert rounds(two_speeds(fast=10, slow=60, left=5), 0.0) == {1: 0}


def test_apollo_takes_the_free_machine_when_waiting_takes_longer() -> None:
    """W + R = 55 + 10 on the fast machine does not beat 60."""
    assert rounds(two_speeds(fast=10, slow=60, left=55), 0.0) == {1: 0, 2: 1}


def test_apollo_counts_the_queue_before_a_busy_machine() -> None:
    """Only one task can wait for the slot that comes free; the second goes to the slow machine."""
    made = two_speeds(fast=10, slow=60, left=5)
    submit(made, TaskDescriptor(3, equivalence="work"), job=3)
    found = rounds(made, 0.0)
    assert sorted(found.values()) == [0, 1]


@pytest.mark.parametrize(("left", "expected"), [(5.0, None), (500.0, 1)])
def test_apollo_waits_for_memory_too(left: float, expected: int | None) -> None:
    """A machine with a slot but no memory is busy until who has the memory ends."""
    base = KnowledgeBase("n0", 1)
    for kind, seconds in (("fast", 10), ("slow", 60)):
        base.add(Sample("work", kind, "m", 1, {Metric.RUNTIME_NS: seconds * 10**9}))
    made = FlowScheduler(make("apollo"), knowledge=base)
    add_machine(made, 0, 5, kind="fast")
    add_machine(made, 1, 5, kind="slow")
    large = Resources(cpus=1, memory=0.75 * MACHINE.memory)
    submit(made, TaskDescriptor(1, large, equivalence="other", expected_runtime=left))
    made.started(1, 0, 0.0)
    submit(made, TaskDescriptor(2, large, equivalence="work"), job=2)
    assert rounds(made, 0.0).get(2) == expected


def test_apollo_counts_the_time_to_fetch_the_input() -> None:
    """Of two free and equal machines the one with the data is done first."""
    made = scheduler(make("apollo"), 1, 1, 1)
    submit(made, TaskDescriptor(1, blocks=(block(5, 1),), expected_runtime=10.0))
    assert rounds(made, 0.0) == {1: 1}


def test_apollo_weighs_data_against_speed() -> None:
    """10 s to fetch 5 GB and 10 s to run on a fast machine beat 60 s on the slow one with the data."""
    base = KnowledgeBase("n0", 1)
    for kind, seconds in (("fast", 10), ("slow", 60)):
        base.add(Sample("work", kind, "m", 1, {Metric.RUNTIME_NS: seconds * 10**9}))
    for gigabytes, expected in ((5, 0), (40, 1)):
        made = FlowScheduler(make("apollo"), knowledge=base)
        add_machine(made, 0, 1, rack="r0", kind="fast")
        add_machine(made, 1, 1, rack="r1", kind="slow")
        submit(made, TaskDescriptor(1, equivalence="work", blocks=(block(gigabytes, 1),)))
        assert rounds(made, 0.0) == {1: expected}


def test_apollo_sends_one_task_to_a_machine_in_a_round() -> None:
    """Without data four tasks spread over two machines of four slots, two rounds long."""
    made = scheduler(make("apollo"), 4, 4)
    submit(made, *(TaskDescriptor(number, expected_runtime=10.0) for number in range(4)))
    assert Counter(rounds(made, 0.0).values()) == {0: 1, 1: 1}
    assert Counter(rounds(made, 1.0).values()) == {0: 2, 1: 2}


# Sparrow --------------------------------------------------------------------------------------------


def highest_load(probes: int, seed: int) -> int:
    """The tasks on the fullest of 40 machines, after 80 came one by one."""
    made = scheduler(make("sparrow", probes=probes, seed=seed), *[20] * 40)
    for number in range(80):
        submit(made, TaskDescriptor(number), job=number)
        made.round(0.0)
    found = places(made)
    assert len(found) == 80
    return max(Counter(found.values()).values())


def test_sparrow_has_the_power_of_two_choices() -> None:
    """With two probes the fullest machine is less full than with one, over some seeds together."""
    one, two = (sum(highest_load(probes, seed) for seed in range(3)) for probes in (1, 2))
    assert two < one, f"seeds 0 to 2: {two} with two probes, {one} with one"


def test_sparrow_samples_for_the_whole_batch() -> None:
    """A job of ten tasks with twenty probes gets the emptiest of them, not the better of each two."""
    made = scheduler(make("sparrow", seed=3), *[20] * 60)
    for number in range(600, 600 + 30 * 5):
        submit(made, TaskDescriptor(number), job=9)
    for number in range(600, 600 + 30 * 5):
        made.started(number, number % 30, 0.0)
    submit(made, *(TaskDescriptor(number) for number in range(10)))
    model = made.model
    model.begin(made.state)
    rows = np.array([made.state.tasks.row(number) for number in range(10)])
    arcs = model.class_to_resources(made.state, model.task_classes(made.state, rows).target[:1])
    costs = np.repeat(arcs.cost, arcs.capacity)
    assert len(costs) == 20
    found = rounds(made, 0.0)
    got = sorted(50 * (found[number] < 30) for number in range(10))
    assert got == sorted(costs.tolist())[:10]


def test_sparrow_reaches_probed_machines_alone_until_its_patience_ends() -> None:
    """With all its probes full a task waits, though others have room; later it probes others."""
    made = scheduler(make("sparrow", seed=1, patience=5.0), *[1] * 30)
    model = made.model
    submit(made, TaskDescriptor(1))
    row = np.array([made.state.tasks.row(1)])
    arcs = model.class_to_resources(made.state, model.task_classes(made.state, row).target)
    probed = [made.state.machine_ids[int(each)] for each in arcs.target]
    for number, machine in enumerate(probed):
        submit(made, TaskDescriptor(50 + number), job=2)
        made.started(50 + number, machine, 0.0)
    assert 1 not in rounds(made, 1.0, 4.0)
    assert 1 in rounds(made, 6.0, 11.0, 16.0)


# KMN ------------------------------------------------------------------------------------------------


def test_kmn_runs_the_k_tasks_that_are_nearest_to_their_data() -> None:
    """Of six tasks of which three are needed, those run whose data has a free slot; the others wait."""
    made = scheduler(make("kmn"), 1, 1, 1, 1, 1, 1)
    holders = [0, 0, 0, 1, 2, 77]
    tasks = [TaskDescriptor(number, blocks=(block(1, holder),)) for number, holder in enumerate(holders)]
    made.submit(JobDescriptor(1, gang=3), tasks, 0.0)
    found = rounds(made, 1.0)
    assert sorted(found.values()) == [0, 1, 2]
    assert {3, 4} <= set(found)
    # However long they wait: three are enough.
    assert rounds(made, 1000.0) == found


def test_kmn_runs_the_others_where_doing_without_is_dearer() -> None:
    """With ``extra`` above the cost of far data all tasks run."""
    made = scheduler(make("kmn", extra=10_000), 1, 1, 1, 1, 1, 1)
    tasks = [TaskDescriptor(number, blocks=(block(1, 0),)) for number in range(5)]
    made.submit(JobDescriptor(1, gang=3), tasks, 0.0)
    assert len(rounds(made, 1.0)) == 5


def test_kmn_lets_what_is_not_needed_give_way() -> None:
    """Two of a job run where one would do; who has waited for long displaces one of them, never both."""
    made = scheduler(make("kmn", extra=1))
    submit(made, TaskDescriptor(10), TaskDescriptor(11), job=2)
    add_machine(made, 0, 1)
    add_machine(made, 1, 1)
    made.submit(JobDescriptor(1, gang=1), [TaskDescriptor(1), TaskDescriptor(2)], 50.0)
    made.started(1, 0, 50.0)
    made.started(2, 1, 50.0)
    found = rounds(made, 51.0)
    assert len({1, 2} & set(found)) == 1
    assert len({10, 11} & set(found)) == 1


def test_kmn_leaves_jobs_that_need_all_their_tasks_to_quincy() -> None:
    """Without a gang waiting gets dearer, and all run in the end."""
    made = scheduler(make("kmn"), 1, 1, 1)
    submit(made, *(TaskDescriptor(number, blocks=(block(1, 0),)) for number in range(3)))
    assert len(rounds(made, 60.0)) == 3


# Choosy and H-DRF -----------------------------------------------------------------------------------


def of_users(made: FlowScheduler, **tasks: int) -> None:
    """Jobs of principals with so many tasks each; those whose name begins with gpu need one."""
    for job, (principal, count) in enumerate(tasks.items(), start=len(made.state.jobs) + 1):
        constraints = GPU if principal.startswith("gpu") else ()
        made.submit(
            JobDescriptor(job, principal=principal),
            [TaskDescriptor(1000 * job + number, constraints=constraints) for number in range(count)],
            0.0,
        )


def running_by_principal(made: FlowScheduler) -> Counter[str]:
    """How many tasks of each principal run."""
    state = made.state
    rows = [state.tasks.row(task) for task in places(made)]
    return Counter(state.principals.names[int(state.jobs.principal[state.tasks.job[row]])] for row in rows)


def test_choosy_divides_slots_evenly_however_many_tasks_somebody_has() -> None:
    """Twelve slots and three users: four each; what one does not need the others share."""
    made = scheduler(make("choosy"), 4, 4, 4)
    of_users(made, a=50, b=50, c=2)
    rounds(made, 1.0)
    assert running_by_principal(made) == {"a": 5, "b": 5, "c": 2}


def test_choosy_lets_the_constrained_have_what_only_they_need() -> None:
    """Constrained max-min: whoever can use GPU machines alone gets its share there, others make room."""
    made = FlowScheduler(make("choosy"))
    for number in range(4):
        add_machine(made, number, 2, gpu=number == 0)
    of_users(made, a=20, gpu_b=20)
    rounds(made, 1.0)
    assert running_by_principal(made) == {"a": 6, "gpu_b": 2}


def test_choosy_evens_out_as_tasks_end() -> None:
    """Somebody who comes to a full cluster gets each slot that comes free, until shares are even."""
    made = scheduler(make("choosy"), 4)
    of_users(made, a=10)
    first = rounds(made, 1.0)
    of_users(made, b=10)
    rounds(made, 2.0)
    assert running_by_principal(made) == {"a": 4}
    for task in sorted(first)[:2]:
        made.finished(task, 3.0, FinalReport(runtime=2.0))
    rounds(made, 4.0)
    assert running_by_principal(made) == {"a": 2, "b": 2}


def test_choosy_admits_no_more_than_its_wave() -> None:
    """Admission goes on in the next round."""
    made = scheduler(make("choosy", wave=3), 10)
    of_users(made, a=10)
    assert len(rounds(made, 1.0)) == 3
    assert len(rounds(made, 2.0)) == 6


def test_h_drf_evens_out_dominant_shares() -> None:
    """The first paper's example: 9 CPUs and 18 GB, tasks of (1, 4) and (3, 1): three and two of them."""
    made = FlowScheduler(make("h-drf"))
    capacity = Resources(cpus=9, memory=18)
    made.add_machine(MachineDescriptor(0, "m0", capacity=capacity, slots=20), 0.0)
    for job, (principal, demand) in enumerate([("a", (1, 4)), ("b", (3, 1))]):
        each = Resources(cpus=demand[0], memory=demand[1])
        tasks = [TaskDescriptor(100 * job + number, demand=each) for number in range(10)]
        made.submit(JobDescriptor(job, principal=principal), tasks, 0.0)
    rounds(made, 1.0, 2.0, 3.0)
    assert running_by_principal(made) == {"a": 3, "b": 2}


def test_h_drf_divides_between_branches_before_users() -> None:
    """One team with one user gets as much as another with three."""
    made = scheduler(make("h-drf"), 6, 6)
    names = ("left/a", "right/b", "right/c", "right/d")
    for job, name in enumerate(names):
        tasks = [TaskDescriptor(100 * job + number, demand=Resources(cpus=1)) for number in range(20)]
        made.submit(JobDescriptor(job, principal=name), tasks, 0.0)
    rounds(made, 1.0)
    assert running_by_principal(made) == {"left/a": 6, "right/b": 2, "right/c": 2, "right/d": 2}


def test_h_drf_rescales_children_that_want_different_resources() -> None:
    """A branch is as rich as its poorest user: what another user of it has does not starve that one."""
    shares = DominantShares(np.array([10.0, 10.0]))
    shares.give("n/x", np.array([8.0, 0.0]))
    shares.give("n/y", np.array([0.0, 2.0]))
    shares.give("m", np.array([5.0, 5.0]))
    assert shares.next_of(["n/y", "m"]) == "n/y"


# Jockey ---------------------------------------------------------------------------------------------


def dated(number: int, deadline: float | None, runtime: float = 10.0) -> TaskDescriptor:
    """A task with a deadline."""
    return TaskDescriptor(number, deadline=deadline, expected_runtime=runtime)


def test_jockey_makes_waiting_dearer_as_slack_goes() -> None:
    """V rises along a curve until the last moment, and stays there after the deadline."""
    model = JockeyModel(idle=10, utility=1000, steepness=2, margin=1.0)
    made = scheduler(model, 1)
    submit(made, dated(1, 100.0))
    rows = made.state.tasks.all()
    costs = []
    for now in (0.0, 50.0, 80.0, 90.0, 200.0):
        made.state.now = now
        model.begin(made.state)
        costs.append(int(model.task_to_unscheduled(made.state, rows)[0]))
    assert costs == [10 + 10, 10 + 40, 10 + 250, 10 + 1000, 10 + 1000]


def test_jockey_runs_the_most_urgent_first() -> None:
    """One slot and three tasks: the nearest deadline gets it."""
    made = scheduler(make("jockey"), 1)
    submit(made, dated(1, 500.0), job=1)
    submit(made, dated(2, 50.0), job=2)
    submit(made, dated(3, None), job=3)
    assert rounds(made, 1.0) == {2: 0}


def test_jockey_gives_a_job_as_many_tasks_as_it_needs() -> None:
    """Ten tasks of 10 s: one at a time until 100 s before the deadline, five when 20 s are left."""
    model = JockeyModel(margin=1.0)
    made = scheduler(model, *[1] * 10)
    submit(made, *(dated(number, 200.0) for number in range(10)))
    for now, expected in ((0.0, 1), (100.0, 1), (150.0, 2), (180.0, 5)):
        made.state.now = now
        assert model.allocation(made.state, 0) == expected, f"at {now}"


def test_jockey_takes_slots_back_from_a_job_that_is_ahead() -> None:
    """A job with slack that had all slots gives up what another one needs now, and no more."""
    made = scheduler(make("jockey", margin=1.0, lost=1), *[1] * 4)
    submit(made, *(dated(number, 1000.0, 100.0) for number in range(4)), job=1)
    assert len(rounds(made, 0.0)) == 4
    submit(made, dated(10, 21.0), dated(11, 21.0), dated(12, 21.0), job=2, now=1.0)
    made.round(1.0)
    found = places(made)
    # Thirty seconds of work in twenty: two at once.
    assert len({10, 11, 12} & set(found)) == 2
    assert [each.change for each in made.history[-1].deltas].count(Change.PREEMPT) == 2
