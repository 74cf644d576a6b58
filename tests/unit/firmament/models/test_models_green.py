from __future__ import annotations

import math

import numpy as np
import pytest

from dios.errors import InvalidError
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import JobDescriptor, Kind, Resources, TaskDescriptor
from dios.firmament.models.cost_terms import BadModelError, class_kinds, class_members
from dios.firmament.models.green import (
    GOOD,
    LATE,
    OMEGA_BATCH,
    OMEGA_SERVICE,
    GreenModel,
    ServiceScaler,
    first_to_stop,
)
from dios.firmament.models.green_power import MACHINES, Power
from dios.firmament.models.protocol import Options
from tests.support.firmament import clusters as small
from tests.support.firmament.clusters import rows

SERVICE = 9
BATCH = 1
TYPES = ("slow", "fast")
SLOW = Power(idle=5, full=9, cores=4, speed=0.25, requests=500)
FAST = Power(idle=80, full=200, cores=12, speed=1.0, requests=2500)
"""A watt a core against ten; four times slower: 40 J against 100 J for ten seconds of work."""


def two_types(*machines: int) -> ClusterState:
    """So many machines of the slow and of the fast type; identifiers 0, 1, ..., and 100, 101, ...."""
    state = ClusterState(now=1000.0)
    for kind, count in enumerate(machines):
        for number in range(count):
            small.add_machine(state, 100 * kind + number, slots=4, machine_type=TYPES[kind])
    small.add_job(state, JobDescriptor(SERVICE, kind=Kind.SERVICE))
    small.add_job(state, JobDescriptor(BATCH))
    return state


def model(**parameters: str | float) -> GreenModel:
    """A model that knows the two types."""
    green = GreenModel(**parameters)  # type: ignore[arg-type] # strings and numbers as the catalogue has them
    for name, power in zip(TYPES, (SLOW, FAST), strict=True):
        green.power.note(name, power)
    return green


def add(state: ClusterState, number: int, deadline: float | None = None, job: int = BATCH) -> int:
    """A task of ten seconds of work with a deadline so many seconds from now; returns its row."""
    when = None if deadline is None else state.now + deadline
    return small.add_task(
        state, TaskDescriptor(number, Resources(cpus=1), deadline=when, expected_runtime=10.0), job
    )


def by_type(state: ClusterState, options: Options) -> dict[tuple[str, int], int]:
    """Costs by type and kind of aggregator, of one task."""
    names = [state.machine_types.names[member] for member in class_members(options.target)]
    return {
        (name, int(kind)): int(cost)
        for name, kind, cost in zip(names, class_kinds(options.target), options.cost, strict=True)
    }


def test_the_machines_of_table_8_4() -> None:
    """Idle and full-load power as the table has them, and what lies between in proportion to busy cores."""
    watts = {name: (power.idle, power.full) for name, power in MACHINES.items()}
    assert watts == {
        "pandaboard": (6.95, 7.58),
        "wandboard": (9.55, 12.25),
        "r420": (87.10, 175.04),
        "r415": (70.60, 238.02),
        "itanium": (544.94, 657.81),
    }
    assert MACHINES["r415"].watts(6) == pytest.approx((70.60 + 238.02) / 2)
    assert MACHINES["r415"].watts(40) == 238.02


# The four cases of batch tasks ------------------------------------------------------------------------


def test_a_task_that_is_in_time_costs_the_energy_of_running_it() -> None:
    """Case 1: delta is proportional to the energy on each type; waiting costs 15 % above the least."""
    state = two_types(3, 3)
    task = add(state, 1, deadline=1e6)
    green = model()
    assert by_type(state, green.task_classes(state, rows(task))) == {
        ("slow", GOOD): 400,
        ("fast", GOOD): 1000,
    }
    assert green.task_to_unscheduled(state, rows(task)).tolist() == [460]


def test_where_a_task_would_be_late_it_goes_only_at_omega() -> None:
    """Case 2: the type is reached through its "unschedulable" aggregator, whose arcs cost ω, as X does."""
    state = two_types(3, 3)
    task = add(state, 1, deadline=20)
    green = model()
    classes = green.task_classes(state, rows(task))
    assert by_type(state, classes) == {("slow", LATE): 0, ("fast", GOOD): 1000}
    late = green.class_to_resources(state, classes.target[class_kinds(classes.target) == LATE])
    assert (late.target.tolist(), set(late.cost.tolist())) == (
        [small.machine(state, number) for number in range(3)],
        {OMEGA_BATCH},
    )
    anywhere = green.task_options(state, rows(task))
    assert (anywhere.target.tolist(), anywhere.cost.tolist()) == ([state.cluster], [OMEGA_BATCH])
    # So it rather waits than to go where it is late, and rather goes where it is in time than to wait.
    [waits] = green.task_to_unscheduled(state, rows(task))
    assert 1000 < waits < OMEGA_BATCH


def test_few_machines_left_make_a_task_urgent() -> None:
    """Case 3: at no more than epsilon machines, waiting costs twenty times the best machine's cost."""
    state = two_types(3, 2)
    task = add(state, 1, deadline=20)
    assert model(few=2).task_to_unscheduled(state, rows(task)).tolist() == [20_000]
    assert model(few=1).task_to_unscheduled(state, rows(task)).tolist() == [1_150]
    # Without a deadline there is no hurry, however few machines there are.
    assert model(few=9).task_to_unscheduled(state, rows(add(state, 2))).tolist() == [460]


def test_a_task_that_is_late_everywhere_runs_as_soon_as_it_can() -> None:
    """Case 4: the soonest type at delta, the others at ω, and waiting is dearer than all of them."""
    state = two_types(3, 3)
    task = add(state, 1, deadline=5)
    green = model()
    assert by_type(state, green.task_classes(state, rows(task))) == {("slow", LATE): 0, ("fast", GOOD): 1000}
    assert green.task_to_unscheduled(state, rows(task))[0] > OMEGA_BATCH


@pytest.mark.parametrize("deadline", [1e6, 45, 20, 11.5, 5, -100])
def test_nothing_of_a_batch_task_comes_near_a_service(deadline: float) -> None:
    """In every case a batch task's costs stay far below Gamma (ω ≪ Ω)."""
    state = two_types(3, 3)
    task = add(state, 1, deadline=deadline)
    green = model()
    worst = max(green.task_to_unscheduled(state, rows(task))[0], OMEGA_BATCH)
    assert worst * 50 < OMEGA_SERVICE


# Running batch tasks -------------------------------------------------------------------------------------


def test_staying_gets_cheaper_with_completion() -> None:
    """Theta falls as the task proceeds, so that it is stopped less and less readily."""
    state = two_types(3, 3)
    task = add(state, 1, deadline=1e6)
    small.run(state, task, 0)
    green = model()
    costs = []
    for seconds in (0, 10, 30, 40, 100):
        state.now = 1000.0 + seconds
        costs.append(int(green.task_continuation(state, rows(task))[0]))
    assert costs == [400, 300, 100, 0, 0]
    assert green.task_preemption(state, rows(task))[0] >= 460


def test_a_task_that_will_be_late_where_it_runs_moves() -> None:
    """Where progress cannot meet the deadline and another type can, staying costs ω and moving delta."""
    state = two_types(3, 3)
    task = add(state, 1, deadline=20)
    small.run(state, task, 0)
    green = model()
    stay = green.task_continuation(state, rows(task))[0]
    go = by_type(state, green.task_classes(state, rows(task)))[("fast", GOOD)]
    assert go < stay == OMEGA_BATCH < green.task_preemption(state, rows(task))[0]
    # At five seconds before the end nobody could make it: it stays.
    state.now += 15
    assert green.task_continuation(state, rows(task))[0] < OMEGA_BATCH


def test_nobody_is_stopped_for_nothing() -> None:
    """Stopping is always dearer than staying."""
    state = two_types(2, 2)
    tasks = [add(state, number, deadline) for number, deadline in enumerate((None, 1e6, 45, 20, 5, -50))]
    for number, task in enumerate(tasks):
        small.run(state, task, (0, 100)[number % 2])
    green = model()
    assert (green.task_preemption(state, rows(*tasks)) > green.task_continuation(state, rows(*tasks))).all()


def test_time_takes_types_away_and_the_model_says_for_whom() -> None:
    """Tasks are asked about again when a type has become too slow for their deadline, and not before."""
    state = two_types(3, 3)
    tasks = rows(add(state, 1, deadline=50), add(state, 2))
    green = model()
    green.begin(state)
    green.task_classes(state, tasks)
    assert green.stale_tasks(state).tolist() == []
    state.now += 10
    assert green.stale_tasks(state).tolist() == [tasks[0]]
    green.task_classes(state, tasks)
    small.add_machine(state, 500, machine_type="new")
    assert green.stale_tasks(state).tolist() == tasks.tolist()


@pytest.mark.parametrize(
    ("deadline", "patient", "waits"), [(1e6, True, 460), (1e6, False, 1150), (None, True, 1150)]
)
def test_patience_ends_with_the_deadline(deadline: float | None, patient: bool, waits: int) -> None:  # noqa: FBT001 - a case
    """While the frugal machines are full, a task waits for them if it has a deadline, and else for none."""
    state = two_types(1, 3)
    for number in range(4):
        small.run(state, small.add_task(state, TaskDescriptor(10 + number)), 0)
    task = add(state, 1, deadline=deadline)
    green = model(patient=patient, few=0)
    assert green.task_to_unscheduled(state, rows(task)).tolist() == [waits]


def test_a_machine_is_offered_only_as_often_as_it_has_room() -> None:
    """Slots without cores behind them attract nobody: the smallest demand divides what is free."""
    state = two_types(1, 0)
    wide = small.add_task(state, TaskDescriptor(1, Resources(cpus=6)))
    small.run(state, wide, 0)
    green = model()
    add(state, 2)
    classes = green.task_classes(state, state.tasks.all()).target
    assert green.class_to_resources(state, np.unique(classes)).capacity.tolist() == [2]
    small.add_task(state, TaskDescriptor(3, Resources(cpus=0.25)))
    assert green.class_to_resources(state, np.unique(classes)).capacity.tolist() == [4]


# Services -----------------------------------------------------------------------------------------------


def test_a_service_costs_the_energy_of_a_request() -> None:
    """rho: microjoules for each request; Gamma is Ω; no way through X and none at ω."""
    state = two_types(3, 3)
    task = add(state, 1, job=SERVICE)
    green = model()
    costs = by_type(state, green.task_classes(state, rows(task)))
    assert costs == {("slow", GOOD): 2000, ("fast", GOOD): 4000}
    assert green.task_to_unscheduled(state, rows(task)).tolist() == [OMEGA_SERVICE]
    assert len(green.task_options(state, rows(task)).task) == 0


@pytest.mark.parametrize(("discount", "stays"), [(0.1, False), (0.6, True)])
def test_a_running_service_stays_for_a_discount(discount: float, stays: bool) -> None:  # noqa: FBT001 - a case
    """Phi is rho less the discount: the hysteresis of migration."""
    state = two_types(3, 3)
    task = add(state, 1, job=SERVICE)
    small.run(state, task, 100)
    green = model(discount=discount)
    go = by_type(state, green.task_classes(state, rows(task)))[("slow", GOOD)]
    [stay] = green.task_continuation(state, rows(task))
    assert stay == 4000 * (1 - discount)
    assert (stay < go) == stays


def test_performance_in_place_of_energy_prefers_the_fast() -> None:
    """The maximum-performance model of §8.2.2: time for batch tasks, throughput for services."""
    state = two_types(1, 1)
    tasks = rows(add(state, 1), add(state, 2, job=SERVICE))
    fast = model(objective="performance")
    costs = fast.costs(state, tasks, fast.kinds(state))
    assert costs.tolist() == [[400, 100], [2000, 400]]


@pytest.mark.parametrize(
    ("load", "capacities", "change"),
    [
        (55, [100], 0),
        (56, [100], 1),
        (500, [100, 100, 100, 100], 0),
        (29, [100, 100], -1),
        (30, [100, 100], 0),
        (10, [100], 0),
        (0, [], 1),
        (40, [280, 10], -1),
        (20, [10, 130, 10], -1),
        (16, [100, 20], -1),
    ],
)
def test_services_scale_with_their_load(load: float, capacities: list[float], change: int) -> None:
    """§8.2.2: one more above 55 % of the capacity, one fewer below 15 %, within the bounds."""
    assert ServiceScaler(1, 4).change(load, capacities) == change


def test_nobody_is_taken_away_who_would_be_missed_at_once() -> None:
    """Thresholds that are near each other: below the one, but without the task above the other."""
    near = ServiceScaler(1, 4, grow_above=0.55, shrink_below=0.5)
    assert near.change(45, [50, 50]) == 0
    assert near.change(25, [50, 50]) == -1


def test_scaling_does_not_swing() -> None:
    """At a constant load, whatever it is, the number of tasks comes to rest and stays there."""
    scaler = ServiceScaler(1, 6)
    for load in range(0, 700, 7):
        tasks = [100.0]
        seen = []
        for _ in range(30):
            change = scaler.change(load, tasks)
            tasks = [100.0] * (len(tasks) + change)
            seen.append(len(tasks))
        assert len(set(seen[10:])) == 1, f"load {load}: {seen}"


def test_the_least_efficient_task_goes_first() -> None:
    """Of several tasks, the one whose requests cost most."""
    assert first_to_stop([3.0, 9.0, 4.0]) == 1
    with pytest.raises(ValueError, match="empty"):
        first_to_stop([])


# Power ----------------------------------------------------------------------------------------------------


def test_samples_are_divided_by_cores_and_then_believed() -> None:
    """§7.4: a machine's power above idle goes to its tasks by the cores they use; costs follow."""
    state = two_types(1, 1)
    wide = small.add_task(
        state, TaskDescriptor(1, Resources(cpus=3), equivalence="wide", expected_runtime=10.0)
    )
    thin = small.add_task(
        state, TaskDescriptor(2, Resources(cpus=1), equivalence="thin", expected_runtime=10.0)
    )
    for task in (wide, thin):
        small.run(state, task, 0)
    green = model()
    green.task_classes(state, rows(wide, thin))
    for _ in range(3):
        assert green.costs(state, rows(wide, thin), [0])[:, 0].tolist() == [1200, 400]
        green.power.observe(state, small.machine(state, 0), SLOW.idle + 8)
    assert green.costs(state, rows(wide, thin), [0])[:, 0].tolist() == [2400, 800]
    assert green.stale_tasks(state).tolist() == [wide, thin]


def test_machines_may_tell_their_power_by_a_label() -> None:
    """``power=idle:full:cores:speed:requests`` describes a type; nonsense is refused with the label."""
    state = ClusterState()
    row = small.add_machine(state, 1, machine_type="mine", labels=(("power", "10:30:4:0.5:800"),))
    green = GreenModel()
    green.add_machine(state, row)
    assert green.power.of("mine") == Power(10, 30, 4, 0.5, 800)
    bad = small.add_machine(state, 2, machine_type="bad", labels=(("power", "a lot"),))
    with pytest.raises(InvalidError, match="label power=a lot"):
        green.add_machine(state, bad)
    with pytest.raises(InvalidError, match="idle <= full"):
        Power(30, 10, 4)
    with pytest.raises(InvalidError, match="-3"):
        green.power.observe(state, row, -3)


def test_the_unknown_is_ordinary_and_nothing_is_infinite() -> None:
    """Types and runtimes of which nothing is told have finite costs; no machines at all is no error."""
    state = small.cluster(2)
    task = small.add_task(state, TaskDescriptor(1))
    green = GreenModel()
    [[cost]] = green.costs(state, rows(task), green.kinds(state))
    assert cost == (60 * 10 * 10)
    empty = ClusterState()
    alone = small.add_task(empty, TaskDescriptor(1))
    fresh = GreenModel()
    assert fresh.task_to_unscheduled(empty, rows(alone)).tolist() == [OMEGA_BATCH]
    assert len(fresh.task_classes(empty, rows(alone)).task) == 0
    assert math.isfinite(float(fresh.task_continuation(empty, np.zeros(0, np.int64)).sum()))


def test_explanations_tell_energy_and_deadline() -> None:
    """What people read: joules, and whether it would be late there."""
    state = two_types(1, 1)
    task = add(state, 1, deadline=20)
    green = model()
    assert (
        green.explain(state, task, small.machine(state, 0))
        == "40 J on slow; it would miss its deadline there; 0 % done"
    )
    assert green.explain(state, task, small.machine(state, 100)) == "100 J on fast; 0 % done"


@pytest.mark.parametrize("bad", [{"objective": "fame"}, {"discount": 2.0}, {"few": -1}])
def test_bad_parameters_are_refused(bad: dict[str, str | float]) -> None:
    """The message names the model and the parameter."""
    with pytest.raises(BadModelError, match=f"model green: {next(iter(bad))}"):
        model(**bad)
