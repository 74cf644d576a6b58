from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import (
    BadDescriptorError,
    Constraint,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.base import BaseModel
from dios.firmament.models.protocol import Options
from dios.firmament.policies.evict import make_room_reserved
from dios.firmament.policies.fairness import divide
from dios.firmament.policies.reservations import Reservation
from dios.firmament.policies.restrictions import Restrictions
from dios.firmament.rounds.results import Change, Round
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import Fairness, SchedulerSettings
from dios.wire.types import Affinity, Operator

GB = 2.0**30


class LevelModel(BaseModel):
    """Anywhere at 10 (a machine's number dearer, so that there is an order), waiting at 100."""

    name = "level"

    def __init__(self, *, preemption: int = 100, staying: int = 10) -> None:
        self.preemption, self.staying = preemption, staying

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """X."""
        return Options(np.arange(len(tasks)), np.full(len(tasks), state.cluster), np.full(len(tasks), 10))

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """The number of the machine, so that a solution is the only one."""
        return np.array([state.machine_ids.get(int(row), 0) for row in children], np.int64)

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """More with priority."""
        return 100 + 100 * state.tasks.priority[tasks]

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """As told."""
        return np.full(len(tasks), self.preemption) + 100 * state.tasks.priority[tasks]

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """As told."""
        return np.full(len(tasks), self.staying)


class Stage:
    """A cluster of n0, n1, ... in racks of two, whose rounds have to stand."""

    def __init__(
        self,
        slots: Sequence[int],
        settings: SchedulerSettings | None = None,
        model: BaseModel | None = None,
        capacity: Resources | None = None,
    ) -> None:
        self.scheduler = FlowScheduler(model or LevelModel(), settings or SchedulerSettings(certify_every=1))
        for number, count in enumerate(slots):
            self.scheduler.add_machine(
                MachineDescriptor(
                    number,
                    f"n{number}",
                    f"r{number // 2}",
                    capacity=capacity or Resources(),
                    slots=count,
                    labels=(("zone", "abc"[number % 3]), *((("gpu", "yes"),) if number == 0 else ())),
                ),
                0.0,
            )
        self.now = 0.0
        self.last = Round(0, 0.0, "", "")

    def submit(self, first: int, count: int, job: JobDescriptor | None = None, **task: object) -> None:
        """Tasks first, first + 1, ..., of a job of their own if none is given."""
        tasks = [TaskDescriptor(first + at, **task) for at in range(count)]  # type: ignore[arg-type]
        self.scheduler.submit(job or JobDescriptor(first), tasks, self.now)

    def round(self, later: float = 0.0) -> Stage:
        """A round, ``later`` seconds after the last."""
        self.now += later
        self.last = self.scheduler.round(self.now)
        assert self.last.stands, self.last.faults
        # A wrong answer is caught by its certificate and mended from scratch; here it is a failure.
        assert not any(fault.source.startswith("solver") for fault in self.last.faults), self.last.faults
        return self

    @property
    def places(self) -> dict[int, int]:
        """Running tasks and their machines."""
        state = self.scheduler.state
        tasks = state.tasks
        return {
            int(tasks.id[row]): state.machine_ids[int(tasks.machine[row])]
            for row in tasks.all()
            if tasks.status[row] == RUNNING
        }


# Constraints (§6.3.1) -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        (Constraint("zone", value="b"), {1, 4}),
        (Constraint("zone", Operator.UNEQUAL, "b"), {0, 2, 3, 5}),
        (Constraint("gpu", Operator.PRESENT), {0}),
        (Constraint("gpu", Operator.ABSENT), {1, 2, 3, 4, 5}),
        (Constraint("zone", value="nowhere"), set()),
    ],
)
def test_a_hard_constraint_leaves_only_machines_that_match(constraint: Constraint, allowed: set[int]) -> None:
    """§6.3.1: the wildcard arc goes, arcs lead to permissible machines only; others wait."""
    stage = Stage([1] * 6)
    stage.submit(0, 6, constraints=(constraint,))
    assert set(stage.round().places.values()) == allowed


def test_a_soft_constraint_costs_and_does_not_forbid() -> None:
    """§6.3.1: soft constraints are a matter of cost: the matching machine first, then the others."""
    settings = SchedulerSettings(soft_penalty=50)
    stage = Stage([1] * 4, settings)
    stage.submit(0, 2, constraints=(Constraint("zone", value="c", hard=False),))
    assert set(stage.round().places.values()) == {2, 0}


def test_unmet_wishes_dearer_than_waiting_are_waited_for() -> None:
    """§6.3.1: with a penalty above the cost of waiting, a task waits for the machine that it likes."""
    stage = Stage([1] * 4, SchedulerSettings(soft_penalty=1_000))
    stage.submit(0, 2, constraints=(Constraint("zone", value="c", hard=False),))
    assert set(stage.round().places.values()) == {2}


def test_a_pinned_task_waits_for_its_machine() -> None:
    """A pinned task runs on its machine or nowhere."""
    stage = Stage([1, 1, 1])
    stage.submit(0, 2, pinned=1)
    assert list(stage.round().places.values()) == [1]
    running = next(iter(stage.places))
    stage.scheduler.finished(running, 1.0)
    assert stage.round().places == {1 - running: 1}


# Affinity (§6.3.1, C.4.1) ---------------------------------------------------------------------------


def test_spread_tasks_never_share_a_machine() -> None:
    """C.4.1: "tasks of this job must never share a machine", in the first round and in all later ones."""
    stage = Stage([4] * 3)
    stage.submit(0, 5, JobDescriptor(1, affinity=Affinity.SPREAD_NODES))
    for _ in range(3):
        assert Counter(stage.round().places.values()) == {0: 1, 1: 1, 2: 1}


def test_spread_over_racks_takes_a_rack_each() -> None:
    """C.4.1: one task for each rack, after as many rounds as it takes (reactive rounds, §6.3.1)."""
    stage = Stage([4] * 6)
    stage.submit(0, 4, JobDescriptor(1, affinity=Affinity.SPREAD_RACKS))
    for _ in range(3):
        racks = [machine // 2 for machine in stage.round().places.values()]
        assert len(set(racks)) == len(racks)
    assert {machine // 2 for machine in stage.places.values()} == {0, 1, 2}


@pytest.mark.parametrize(("affinity", "group"), [(Affinity.SAME_NODE, 1), (Affinity.SAME_RACK, 2)])
def test_tasks_that_belong_together_come_together(affinity: Affinity, group: int) -> None:
    """C.4.1: "tasks of this job must run on the same machine" (or rack), also those that come later."""
    stage = Stage([3, 2, 6, 2])
    job = JobDescriptor(1, affinity=affinity)
    stage.submit(0, 3, job)
    stage.round()
    stage.submit(3, 2, job)
    places = stage.round().places
    assert len(places) == 5
    assert {machine // group for machine in places.values()} == {2 // group}


# Gangs (§6.3.3) -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("needed", "runs"), [(6, 0), (5, 5), (3, 5)])
def test_a_gang_starts_with_k_of_n_or_not_at_all(needed: int, runs: int) -> None:
    """§6.3.3: at least k of n tasks, or none; five slots for six tasks."""
    stage = Stage([2, 3, 1])
    stage.scheduler.drain(2, drained=True)
    stage.submit(0, 6, JobDescriptor(1, gang=needed))
    assert len(stage.round().places) == runs


def test_a_gang_takes_its_places_at_any_cost() -> None:
    """§6.3.3: gang-scheduled tasks must be scheduled, at the expense of others whose cost is lower."""
    stage = Stage([4])
    stage.submit(0, 4, priority=5)
    stage.round()
    stage.submit(10, 3, JobDescriptor(10, gang=3))
    assert sum(task >= 10 for task in stage.round().places) == 3


def test_a_patient_gang_waits_for_free_slots() -> None:
    """With gang_preempts off a gang is let in when there are free slots for it, and nobody is stopped."""
    stage = Stage([4], SchedulerSettings(gang_preempts=False))
    stage.submit(0, 2)
    stage.round()
    stage.submit(10, 3, JobDescriptor(10, gang=3))
    assert set(stage.round().places) == {0, 1}
    stage.scheduler.finished(0, 0.0)
    assert set(stage.round().places) == {1, 10, 11, 12}


def test_the_more_urgent_gang_comes_first() -> None:
    """Gangs are let in by priority, then by age, as many as there is room for."""
    stage = Stage([4])
    stage.submit(0, 3, JobDescriptor(1, gang=3))
    stage.submit(10, 3, JobDescriptor(2, gang=3), priority=1)
    assert set(stage.round().places) == {10, 11, 12}


def test_a_gang_that_loses_a_member_stops_or_is_completed() -> None:
    """§6.3.3: after the loss of a machine the rest goes on with a replacement, or waits as a whole."""
    stage = Stage([2, 2, 1])
    stage.submit(0, 4, JobDescriptor(1, gang=4))
    assert len(stage.round().places) == 4
    lost = next(machine for machine in (0, 1) if machine in stage.places.values())
    stage.scheduler.remove_machine(lost, 1.0)
    assert stage.round(1.0).places == {}
    stage.scheduler.add_machine(MachineDescriptor(9, "n9", slots=2), 2.0)
    assert len(stage.round(1.0).places) == 4


def test_a_gang_that_does_not_fit_on_one_machine_spreads() -> None:
    """C.4.2: two machines with slots enough but memory for one member each: the gang starts all the same."""
    stage = Stage([2, 2], capacity=Resources(8, 8 * GB))
    stage.submit(0, 2, JobDescriptor(1, gang=2), demand=Resources(1, 5 * GB))
    assert stage.round().places == {}
    assert sorted(stage.round(2.0).places.values()) == [0, 1]
    stage.scheduler.remove_machine(1, 3.0)
    assert stage.round(1.0).places == {}


def test_a_gang_without_room_is_tried_again_after_pauses_that_double() -> None:
    """A gang for which the solver finds no room is left out for a while, up to the longest pause."""
    stage = Stage([1, 1, 1], SchedulerSettings(retry_first_s=1.0, retry_last_s=4.0))
    stage.submit(0, 2, JobDescriptor(1, gang=2), constraints=(Constraint("zone", value="b"),))
    gangs, row = stage.scheduler._gangs, stage.scheduler.state.jobs.row(1)
    for pause in (1.0, 2.0, 4.0, 4.0):
        assert stage.round().places == {}
        assert gangs.paused_until(row) == stage.now + pause
        stage.now += pause


def test_a_gang_that_ran_begins_with_the_shortest_pause_again() -> None:
    """The pauses double while a gang finds no room; once it has run, a loss starts them anew."""
    stage = Stage([1, 1, 1], SchedulerSettings(retry_first_s=1.0, retry_last_s=8.0))
    stage.submit(0, 2, JobDescriptor(1, gang=2), constraints=(Constraint("zone", value="b"),))
    gangs, row = stage.scheduler._gangs, stage.scheduler.state.jobs.row(1)
    assert stage.round().places == {}
    assert stage.round(1.0).places == {}
    assert gangs.paused_until(row) == stage.now + 2.0
    stage.scheduler.add_machine(MachineDescriptor(9, "n9", labels=(("zone", "b"),)), stage.now)
    assert sorted(stage.round().places.values()) == [1, 9]
    stage.scheduler.remove_machine(9, stage.now)
    assert stage.round().places == {}
    assert gangs.paused_until(row) == stage.now + 1.0


def test_gangs_that_cannot_be_are_refused_at_once() -> None:
    """A gang larger than its job, or than the cluster, is an error that changes nothing."""
    stage = Stage([2, 2])
    with pytest.raises(BadDescriptorError, match="a gang of 5, but only 4 tasks"):
        stage.submit(0, 4, JobDescriptor(1, gang=5))
    with pytest.raises(BadDescriptorError, match="a gang of 5, but the cluster has 4 slots"):
        stage.submit(0, 5, JobDescriptor(1, gang=5))
    assert len(stage.scheduler.state.tasks) == len(stage.scheduler.state.jobs) == 0


def test_members_that_ended_well_count_for_their_gang() -> None:
    """A gang goes on when some of its tasks are done, and the slots are free for others."""
    stage = Stage([3])
    stage.submit(0, 3, JobDescriptor(1, gang=3))
    stage.round()
    stage.scheduler.finished(0, 1.0)
    assert set(stage.round().places) == {1, 2}


# E_j and F_j, fairness (§6.3.2, C.2) ----------------------------------------------------------------


def test_no_more_than_the_maximum_run() -> None:
    """C.2: F_j tasks at most, although there is room for more."""
    stage = Stage([4, 4])
    stage.submit(0, 6, JobDescriptor(1, maximum_running=2))
    assert len(stage.round().places) == 2


def test_the_minimum_runs_whatever_it_costs() -> None:
    """C.2: E_j tasks run even where that stops others which are worth more."""
    stage = Stage([2])
    stage.submit(0, 2, priority=5)
    stage.round()
    stage.submit(10, 2, JobDescriptor(10, minimum_running=1))
    assert sum(task >= 10 for task in stage.round().places) == 1


def test_a_minimum_without_room_is_reported_and_does_no_harm() -> None:
    """E_j of a job that finds no machine is a fault with the job's number; everybody else is scheduled."""
    stage = Stage([2, 2])
    never = (Constraint("zone", value="nowhere"),)
    stage.submit(0, 1, JobDescriptor(7, minimum_running=1), constraints=never)
    stage.submit(10, 4, JobDescriptor(8, gang=4))
    for _ in range(2):
        stage.round(2.0)
        assert [fault.source for fault in stage.last.faults] == ["job 7"]
    assert set(stage.places) == {10, 11, 12, 13}


@pytest.mark.parametrize("fairness", [Fairness.BOUNDED, Fairness.STRICT])
def test_principals_get_equal_shares_by_preemption(fairness: Fairness) -> None:
    """§6.3.2: with F_j = A_j who came later gets the fair share, although nobody ends."""
    stage = Stage([4, 4], SchedulerSettings(fairness=fairness))
    stage.submit(0, 10, JobDescriptor(1, "ann"))
    assert len(stage.round().places) == 8
    stage.submit(20, 3, JobDescriptor(2, "bob"))
    stage.submit(30, 10, JobDescriptor(3, "cid"))
    shares = Counter(task // 10 for task in stage.round().places)
    assert sorted(shares.values()) == [2, 3, 3]


def test_jobs_that_reserve_nothing_take_no_share_of_what_others_reserve() -> None:
    """Coordinators run as tasks of the same user, whose jobs get and divide all processors nevertheless."""
    stage = Stage([8, 8, 8], SchedulerSettings(fairness=Fairness.BOUNDED), capacity=Resources(2.0, GB))
    for number in range(3):
        stage.submit(100 + number, 1, JobDescriptor(100 + number, "ann"), demand=Resources())
    stage.round().round()
    for job, expected in ((1, {10: 3, 1: 6}), (2, {10: 3, 1: 3, 2: 3})):
        stage.submit(10 * job, 6, JobDescriptor(job, "ann"), demand=Resources(1.0))
        for _ in range(6):
            stage.round(1.0)
        assert Counter(task // 10 for task in stage.places) == expected


def test_shares_are_max_min_fair() -> None:
    """§6.3.2: small demands are met; what they leave is divided evenly, to a task."""
    units = np.ones((4, 1))
    assert divide(np.array([2, 20, 20, 20]), units, np.array([20.0])).tolist() == [2, 6, 6, 6]
    assert divide(np.array([2, 20, 20, 20]), units, np.array([21.0])).tolist() == [2, 7, 6, 6]
    assert divide(np.array([2, 3, 4, 5]), units, np.array([100.0])).tolist() == [2, 3, 4, 5]


def test_dominant_shares_are_equal_in_several_dimensions() -> None:
    """§6.3.2: one wants processors, the other memory; the dominant parts grow alike."""
    demands = np.array([[1.0, 4.0], [3.0, 1.0]])
    shares = divide(np.array([100, 100]), demands, np.array([9.0, 18.0]))
    assert shares.tolist() == [3, 2]


# Preemption and migration (§6.2.3) ------------------------------------------------------------------


def test_preemption_happens_where_it_pays_and_not_by_a_tie() -> None:
    """§6.2.3: a running task is stopped when that is cheaper by more than the hysteresis."""
    for priority, moved in ((0, False), (1, True)):
        stage = Stage([1])
        stage.submit(0, 1)
        stage.round()
        stage.submit(10, 1, priority=priority)
        assert (10 in stage.round().places) is moved


@pytest.mark.parametrize("which", ["setting", "task", "hysteresis"])
def test_preemption_can_be_ruled_out(which: str) -> None:
    """§6.2.3: all arcs but the one to where it runs are removed, which pins the task; or it is made dear."""
    settings = SchedulerSettings(
        preemption=which != "setting", preemption_hysteresis=1000 if which == "hysteresis" else 1
    )
    stage = Stage([1], settings)
    stage.submit(0, 1, restartable=which != "task")
    stage.round()
    stage.submit(10, 1, priority=5)
    assert set(stage.round().places) == {0}


@pytest.mark.parametrize(("hysteresis", "place"), [(1, 0), (60, 3)])
def test_migration_waits_for_a_gain_above_the_hysteresis(hysteresis: int, place: int) -> None:
    """§6.2.3: a task moves to a machine that is cheaper by more than the hysteresis, and else stays."""
    stage = Stage([0, 0, 0, 1], SchedulerSettings(migration_hysteresis=hysteresis), LevelModel(staying=40))
    stage.submit(0, 1)
    stage.round()
    stage.scheduler.add_machine(MachineDescriptor(9, "n9", slots=0), 0.0)
    stage.scheduler.remove_machine(0, 0.0)
    stage.scheduler.add_machine(MachineDescriptor(0, "n0", "r0", slots=1), 0.0)
    assert stage.round().places == {0: place}
    assert [delta.change for delta in stage.last.deltas] == ([Change.MIGRATE] if place == 0 else [])


def test_a_cost_that_returns_to_what_it_was_is_noticed() -> None:
    """§6.4.3: the log compares with what the solver was told last, not with what it was told first."""
    model = LevelModel(staying=10)
    stage = Stage([1], model=model)
    stage.submit(0, 1)
    stage.round().round()
    model.staying = 60
    stage.round()
    model.staying = 10
    stage.submit(10, 1)
    assert set(stage.round().places) == {0}


def test_what_runs_beyond_the_slots_and_cannot_stop_stays() -> None:
    """A new scheduler takes over two tasks on a machine with one slot; they run on."""
    stage = Stage([1, 1])
    stage.submit(0, 2, restartable=False)
    for task in (0, 1):
        stage.scheduler.started(task, 0, 0.0)
    assert stage.round().places == {0: 0, 1: 0}
    assert stage.last.deltas == []


def test_a_drained_machine_keeps_what_runs_and_takes_nothing() -> None:
    """Drained: running tasks stay, no arc leads there; open again, it is used."""
    stage = Stage([2, 1])
    stage.submit(0, 1)
    assert stage.round().places == {0: 0}
    stage.scheduler.drain(0, drained=True)
    stage.submit(10, 2)
    assert Counter(stage.round().places.values()) == {0: 1, 1: 1}
    stage.scheduler.drain(0, drained=False)
    assert Counter(stage.round().places.values()) == {0: 2, 1: 1}


def test_a_machine_that_refuses_is_avoided_longer_each_time() -> None:
    """A refused placement: the machine is avoided for a pause that doubles; others are used meanwhile."""
    stage = Stage([1], SchedulerSettings(retry_first_s=4.0, retry_last_s=8.0))
    stage.submit(0, 1)
    stage.round()
    for pause in (4.0, 8.0, 8.0):
        stage.scheduler.rejected(0, stage.now)
        assert stage.round(pause - 1.0).places == {}
        assert stage.round(1.0).places == {0: 0}


# Several dimensions (§C.4.2) ------------------------------------------------------------------------


def test_what_does_not_fit_together_is_held_back_and_finds_another_machine() -> None:
    """C.4.2: two tasks that together overflow a machine's memory do not both go there, slots or not."""
    stage = Stage([4, 4], capacity=Resources(8, 8 * GB))
    stage.submit(0, 3, demand=Resources(1, 5 * GB))
    stage.round()
    assert Counter(stage.places.values()) == {0: 1}
    stage.round()
    assert Counter(stage.places.values()) == {0: 1, 1: 1}
    assert "not enough free: 5 GiB of memory" in " ".join(stage.scheduler.explain(2).lines())


def test_the_higher_priority_fits_first() -> None:
    """Of placements that do not go together the ones with higher priority are kept."""
    stage = Stage([4], capacity=Resources(8, 8 * GB))
    stage.submit(0, 2, demand=Resources(1, 5 * GB))
    stage.submit(10, 1, demand=Resources(1, 5 * GB), priority=1)
    assert set(stage.round().places) == {10}


def test_lower_priorities_make_room_in_memory() -> None:
    """C.4.2: a flow stops tasks for slots only; for memory the least important make room, as few as do."""
    stage = Stage([8], capacity=Resources(8, 8 * GB))
    for task in (0, 1, 2):
        stage.submit(task, 1, demand=Resources(1, 2 * GB), priority=task)
    stage.round()
    stage.submit(10, 1, demand=Resources(1, 4 * GB), priority=5)
    assert set(stage.round().places) == {1, 2, 10}
    assert {delta.change for delta in stage.last.deltas} == {Change.PREEMPT, Change.PLACE}
    stage.submit(11, 1, demand=Resources(1, 8 * GB), priority=5)
    assert set(stage.round().places) == {1, 2, 10}


def test_nobody_is_stopped_for_a_placement_that_is_held_back() -> None:
    """The solution stops a task for its slot, the placement lacks memory: then the task goes on."""
    stage = Stage([2], capacity=Resources(8, 8 * GB))
    stage.submit(0, 1, demand=Resources(1, 1 * GB))
    stage.submit(1, 1, demand=Resources(1, 6 * GB), restartable=False)
    stage.round()
    stage.submit(10, 1, demand=Resources(1, 4 * GB), priority=5)
    assert set(stage.round().places) == {0, 1}
    assert stage.last.deltas == []


def test_without_the_check_only_slots_count() -> None:
    """settings.fit off: several dimensions are the cost model's business alone."""
    stage = Stage([4], SchedulerSettings(fit=False), capacity=Resources(8, 8 * GB))
    stage.submit(0, 3, demand=Resources(1, 5 * GB))
    assert len(stage.round().places) == 3


# Reservations ---------------------------------------------------------------------------------------


def test_a_reservation_stops_only_what_stands_in_its_way() -> None:
    """A task that was stopped before the machine that was short had room gets its place back."""
    stage = Stage([8, 8], capacity=Resources(4))
    stage.submit(1, 1, demand=Resources(4), pinned=1)
    stage.round()
    stage.submit(2, 1, demand=Resources(1), pinned=0)
    stage.round(1.0)
    stage.submit(3, 2, JobDescriptor(3, gang=2), demand=Resources(2), priority=1)
    state = stage.scheduler.state
    tasks = state.tasks.all()
    leaf, held, fixed = state.tasks.leaf[tasks], *np.zeros((2, len(tasks)), np.bool_)
    machines = (state.machine_row(0), state.machine_row(1))
    make_room_reserved(state, tasks, leaf, held, fixed, Reservation((3, 4), machines, 1000.0))
    assert set(state.tasks.id[tasks[leaf == ABSENT]].tolist()) == {1}


@pytest.mark.parametrize(("task", "allowed"), [(1, {0}), (2, {0, 1}), (3, set()), (4, {1})])
def test_a_task_that_did_not_fit_leaves_room_on_the_machines_of_others(task: int, allowed: set[int]) -> None:
    """An owner may fill its own machine, and a short task those whose owners begin later."""
    stage = Stage([8, 8], capacity=Resources(4))
    stage.submit(1, 1, demand=Resources(1))
    stage.submit(2, 1, demand=Resources(1), expected_runtime=5.0)
    stage.submit(3, 1, demand=Resources(1))
    stage.submit(4, 1, demand=Resources(1), expected_runtime=20.0)
    state = stage.scheduler.state
    first, second = state.machine_row(0), state.machine_row(1)
    restrictions = Restrictions(SchedulerSettings())
    kept = restrictions.reservations
    kept.present[1] = Reservation((1,), (first,), 10.0)
    kept.spare = dict.fromkeys((first, second), np.zeros(1 + len(Resources._fields)))
    kept.until = {first: 10.0, second: 30.0}
    row = np.array([state.tasks.row(task)])
    restrictions.misfits(row)
    (number,), filters = restrictions.choose(state, row, 0.0)
    assert {state.machine_ids[at] for at in np.flatnonzero(filters[number].allowed).tolist()} == allowed
