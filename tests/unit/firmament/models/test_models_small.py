"""The small policies of Table 8.6 do what their papers are known for, on the real scheduler."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from dios.firmament.descriptors import (
    BadDescriptorError,
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.catalogue import make
from dios.firmament.models.late import LateModel
from dios.firmament.scheduler import FlowScheduler
from tests.support.firmament.clusters import block
from tests.support.firmament.rounds import add_machine, places, rounds, scheduler, submit

# Trivial and random ---------------------------------------------------------------------------------


def test_the_trivial_model_lets_who_has_waited_longest_go_first_and_stops_nobody() -> None:
    """One slot: the older task gets it, and keeps it however long the other waits."""
    trivial = scheduler(make("trivial"), 1)
    submit(trivial, TaskDescriptor(1), now=5.0)
    submit(trivial, TaskDescriptor(2), job=2, now=0.0)
    assert rounds(trivial, 10.0) == {2: 0}
    assert rounds(trivial, 1e6) == {2: 0}


def test_random_fit_scatters_by_seed() -> None:
    """The same seed places alike, another one does not, and everything that fits is placed."""

    def run(seed: int) -> dict[int, int]:
        random_fit = scheduler(make("random-fit", seed=seed), *[4] * 10)
        submit(random_fit, *(TaskDescriptor(number) for number in range(20)))
        return rounds(random_fit, 1.0)

    assert len(run(1)) == 20
    assert run(1) == run(1)
    assert run(1) != run(2)
    assert len(set(run(1).values())) > 4


def test_random_fit_draws_only_machines_where_the_task_fits() -> None:
    """A large task goes to the one large machine, whatever the seed."""
    for seed in range(5):
        random_fit = FlowScheduler(make("random-fit", seed=seed))
        for number in range(8):
            cpus = 16.0 if number == 5 else 1.0
            capacity = Resources(cpus=cpus)
            random_fit.add_machine(MachineDescriptor(number, f"m{number}", capacity=capacity, slots=2), 0.0)
        submit(random_fit, TaskDescriptor(1, demand=Resources(cpus=4)))
        assert rounds(random_fit, 1.0) == {1: 5}, f"seed {seed}"


# Delay scheduling -----------------------------------------------------------------------------------


def test_delay_scheduling_waits_for_the_data_then_for_the_rack_then_goes_anywhere() -> None:
    """With its machine full a task waits 5 s; then its rack, when that is full until 10 s; then anywhere."""
    delay = scheduler(make("delay", machine_wait=5, rack_wait=10), 1, 1, 1, 1, racks=2)
    # Machines 0 and 2 are one rack, 1 and 3 the other.
    submit(delay, *(TaskDescriptor(number, blocks=(block(1, 0),)) for number in (1, 2, 3)))
    first = rounds(delay, 1.0)
    assert list(first.values()) == [0]
    assert rounds(delay, 4.9) == first
    second = rounds(delay, 5.1)
    assert sorted(second.values()) == [0, 2]
    assert rounds(delay, 9.9) == second
    third = rounds(delay, 10.1)
    assert sorted(third.values()) in ([0, 1, 2], [0, 2, 3])


def test_delay_scheduling_takes_a_local_slot_that_comes_free_in_time() -> None:
    """That is what the delay is for: the slot beside the data comes free after a moment."""
    delay = scheduler(make("delay"), 1, 1)
    submit(delay, TaskDescriptor(1, blocks=(block(1, 0),)), TaskDescriptor(2, blocks=(block(1, 0),)))
    first = rounds(delay, 1.0)
    assert len(first) == 1
    delay.finished(next(iter(first)), 2.0)
    assert list(rounds(delay, 3.0).values()) == [0]


def test_delay_scheduling_does_not_hold_up_tasks_without_data() -> None:
    """They are at home everywhere."""
    delay = scheduler(make("delay"), 1, 1)
    submit(delay, TaskDescriptor(1), TaskDescriptor(2))
    assert len(rounds(delay, 0.0)) == 2


# LATE -----------------------------------------------------------------------------------------------


def speculating() -> tuple[FlowScheduler, LateModel]:
    """Eight tasks on four machines, of which machine 3 is slow; 100 s old."""
    model = LateModel(cap=0.5)
    late = scheduler(model, 3, 3, 3, 3)
    submit(late, *(TaskDescriptor(number) for number in range(8)))
    for number in range(8):
        late.started(number, number % 4, 0.0)
        late.progressed(number, 0.1 + 0.01 * number if number % 4 == 3 else 0.7)
    late.state.now = 100.0
    return late, model


def test_late_copies_the_task_that_would_end_last_first() -> None:
    """Slow ones alone, the longest time to their end first, and nobody twice."""
    late, model = speculating()
    rows = [late.state.tasks.row(number) for number in (3, 7)]
    candidates = model.candidates(late.state)
    assert [candidate.task for candidate in candidates] == rows
    # A tenth is done, and 0.13 of the work took 100 s.
    assert candidates[0].left == pytest.approx(0.87 / 0.13 * 100)
    submit(late, TaskDescriptor(100, copy_of=3), now=100.0)
    assert [candidate.task for candidate in model.candidates(late.state)] == rows[1:]


def targets(late: FlowScheduler, number: int) -> set[int]:
    """The machines to which a task has arcs."""
    row = np.array([late.state.tasks.row(number)])
    options = late.model.task_options(late.state, row)
    return {late.state.machine_ids[int(leaf)] for leaf in options.target}


def test_late_runs_copies_on_fast_machines_alone() -> None:
    """Machine 3, whose tasks are slow, gets no copy, though it has room."""
    late, _ = speculating()
    submit(late, TaskDescriptor(100, copy_of=3), now=100.0)
    assert targets(late, 100) == {0, 1, 2}
    assert rounds(late, 101.0)[100] in {0, 1, 2}


def test_late_runs_no_copy_beside_its_original() -> None:
    """A task that is slow on a fast machine is copied elsewhere."""
    late, _ = speculating()
    late.progressed(1, 0.2)
    submit(late, TaskDescriptor(100, copy_of=1), now=100.0)
    assert targets(late, 100) == {0, 2}


def test_late_runs_ordinary_tasks_before_copies() -> None:
    """As many new tasks as slots are free: none is left for the copy, though it has waited longer."""
    late, _ = speculating()
    submit(late, TaskDescriptor(100, copy_of=3), now=0.0)
    submit(late, *(TaskDescriptor(number) for number in range(20, 24)), job=2, now=100.0)
    placements = rounds(late, 101.0)
    assert 100 not in placements
    assert len(placements) == 12


def test_late_copies_a_task_again_after_its_copy_has_gone() -> None:
    """A copy is never copied, and its original is a candidate again once it has ended without success."""
    late, model = speculating()
    submit(late, TaskDescriptor(100, copy_of=3), now=100.0)
    late.started(100, 0, 100.0, ran=80.0)
    late.progressed(100, 0.5)
    original, copy, other = (late.state.tasks.row(number) for number in (3, 100, 7))
    assert [candidate.task for candidate in model.candidates(late.state)] == [other]
    late.finished(100, 101.0, FinalReport(1.0, completed=False))
    assert [candidate.task for candidate in model.candidates(late.state)] == [original, other]
    assert copy not in {candidate.task for candidate in model.candidates(late.state)}


def test_late_forgets_the_progress_of_a_placement_that_ended() -> None:
    """A task that a machine refused begins again, and one with the row of another has none."""
    late, model = speculating()
    late.rejected(3, 101.0)
    assert np.isnan(late.state.tasks.progress[late.state.tasks.row(3)])
    for number in range(8):
        late.finished(number, 102.0)
    submit(late, *(TaskDescriptor(number) for number in range(8)), now=102.0)
    for number in range(8):
        late.started(number, number % 4, 102.0)
    late.state.now = 300.0
    assert model.candidates(late.state) == []


def test_late_keeps_copies_below_its_cap() -> None:
    """A cap of no slots is no speculation; one of one slot in twelve is one copy."""
    for cap, most in ((0.0, 0), (0.09, 1)):
        late, model = speculating()
        model.cap = cap
        assert len(model.candidates(late.state)) == most


def test_late_judges_nobody_who_has_just_begun() -> None:
    """A task that ran for less than ``minimum_run`` has no rate yet."""
    late, model = speculating()
    late.state.now = 10.0
    assert model.candidates(late.state) == []


def test_a_progress_that_is_no_share_is_refused() -> None:
    """The message names the task and the value; a waiting task makes none."""
    late, _ = speculating()
    for share in (70, -0.1, math.nan):
        with pytest.raises(BadDescriptorError, match=f"task 3: its progress is {share}"):
            late.progressed(3, share)
    submit(late, TaskDescriptor(9))
    with pytest.raises(BadDescriptorError, match="task 9 waits"):
        late.progressed(9, 0.5)


def test_a_copy_of_nothing_is_refused() -> None:
    """The identifier of its original is checked like its own."""
    with pytest.raises(BadDescriptorError, match="task 1: copy_of: task identifier -1"):
        TaskDescriptor(1, copy_of=-1)


# Sparrow --------------------------------------------------------------------------------------------


def highest_load(probes: int, seed: int) -> int:
    """The tasks on the fullest of 30 machines, after 60 came one by one."""
    sparrow = scheduler(make("sparrow", probes=probes, seed=seed), *[20] * 30)
    for number in range(60):
        submit(sparrow, TaskDescriptor(number), job=number)
        sparrow.round(0.0)
    placements = places(sparrow)
    assert len(placements) == 60
    return max(Counter(placements.values()).values())


def test_sparrow_has_the_power_of_two_choices() -> None:
    """With two probes the fullest machine is less full than with one, over some seeds together."""
    single, two = (sum(highest_load(probes, seed) for seed in range(2)) for probes in (1, 2))
    assert two < single, f"seeds 0 and 1: {two} with two probes, {single} with one"


def test_sparrow_samples_for_the_whole_batch() -> None:
    """A job of ten tasks with twenty probes gets the emptiest of them, not the better of each two."""
    sparrow = scheduler(make("sparrow", seed=3), *[20] * 60)
    for number in range(600, 600 + 30 * 5):
        submit(sparrow, TaskDescriptor(number), job=9)
    for number in range(600, 600 + 30 * 5):
        sparrow.started(number, number % 30, 0.0)
    submit(sparrow, *(TaskDescriptor(number) for number in range(10)))
    model = sparrow.model
    model.begin(sparrow.state)
    rows = np.array([sparrow.state.tasks.row(number) for number in range(10)])
    arcs = model.class_to_resources(sparrow.state, model.task_classes(sparrow.state, rows).target[:1])
    costs = np.repeat(arcs.cost, arcs.capacity)
    assert len(costs) == 20
    placements = rounds(sparrow, 0.0)
    got = sorted(50 * (placements[number] < 30) for number in range(10))
    assert got == sorted(costs.tolist())[:10]


def test_sparrow_reaches_probed_machines_alone_until_its_patience_ends() -> None:
    """With all its probes full a task waits, though others have room; later it probes others."""
    sparrow = scheduler(make("sparrow", seed=1, patience=5.0), *[1] * 30)
    model = sparrow.model
    submit(sparrow, TaskDescriptor(1))
    row = np.array([sparrow.state.tasks.row(1)])
    arcs = model.class_to_resources(sparrow.state, model.task_classes(sparrow.state, row).target)
    probed = [sparrow.state.machine_ids[int(target)] for target in arcs.target]
    for number, machine in enumerate(probed):
        submit(sparrow, TaskDescriptor(50 + number), job=2)
        sparrow.started(50 + number, machine, 0.0)
    assert 1 not in rounds(sparrow, 1.0, 4.0)
    assert 1 in rounds(sparrow, 6.0, 11.0, 16.0)


def test_sparrow_schedulers_beside_each_other_settle_by_rejected_placements() -> None:
    """Two schedulers that know nothing of each other share 16 slots: who comes second goes elsewhere."""
    both = [scheduler(make("sparrow", seed=seed), *[1] * 16) for seed in (1, 2)]
    for at, sparrow in enumerate(both):
        submit(sparrow, *(TaskDescriptor(100 * at + number) for number in range(6)))
    taken: dict[int, int] = {}
    rejected = 0
    for step in range(200):
        for sparrow in both:
            rounds(sparrow, float(step))
            for task, machine in places(sparrow).items():
                if taken.setdefault(machine, task) != task:
                    sparrow.rejected(task, float(step))
                    rejected += 1
        if len(taken) == 12:
            break
    assert len(taken) == 12, f"seeds 1 and 2: {taken}"
    assert rejected


# KMN ------------------------------------------------------------------------------------------------


def test_kmn_runs_the_k_tasks_that_are_nearest_to_their_data() -> None:
    """Of six tasks of which three are needed, those run whose data has a free slot; the others wait."""
    kmn = scheduler(make("kmn"), 1, 1, 1, 1, 1, 1)
    holders = [0, 0, 0, 1, 2, 77]
    tasks = [TaskDescriptor(number, blocks=(block(1, holder),)) for number, holder in enumerate(holders)]
    kmn.submit(JobDescriptor(1, gang=3), tasks, 0.0)
    placements = rounds(kmn, 1.0)
    assert sorted(placements.values()) == [0, 1, 2]
    assert {3, 4} <= set(placements)
    # However long they wait: three are enough.
    assert rounds(kmn, 1000.0) == placements


def test_kmn_runs_the_others_where_doing_without_is_dearer() -> None:
    """With ``extra`` above the cost of far data all tasks run."""
    kmn = scheduler(make("kmn", extra=10_000), 1, 1, 1, 1, 1, 1)
    tasks = [TaskDescriptor(number, blocks=(block(1, 0),)) for number in range(5)]
    kmn.submit(JobDescriptor(1, gang=3), tasks, 0.0)
    assert len(rounds(kmn, 1.0)) == 5


def test_kmn_lets_what_is_not_needed_give_way() -> None:
    """Two of a job run where one would do; who has waited for long displaces one of them, never both."""
    kmn = scheduler(make("kmn", extra=1))
    submit(kmn, TaskDescriptor(10), TaskDescriptor(11), job=2)
    add_machine(kmn, 0, 1)
    add_machine(kmn, 1, 1)
    kmn.submit(JobDescriptor(1, gang=1), [TaskDescriptor(1), TaskDescriptor(2)], 50.0)
    kmn.started(1, 0, 50.0)
    kmn.started(2, 1, 50.0)
    placements = rounds(kmn, 51.0)
    assert len({1, 2} & set(placements)) == 1
    assert len({10, 11} & set(placements)) == 1


def test_kmn_leaves_jobs_that_need_all_their_tasks_to_quincy() -> None:
    """Without a gang waiting gets dearer, and all run in the end."""
    kmn = scheduler(make("kmn"), 1, 1, 1)
    submit(kmn, *(TaskDescriptor(number, blocks=(block(1, 0),)) for number in range(3)))
    assert len(rounds(kmn, 60.0)) == 3
