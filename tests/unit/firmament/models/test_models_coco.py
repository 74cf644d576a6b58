from __future__ import annotations

import math

import numpy as np
import pytest

from dios.firmament.cluster.columns import Ints
from dios.firmament.descriptors import (
    Interference,
    JobDescriptor,
    Kind,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models import coco as interference
from dios.firmament.models import coco as vectors
from dios.firmament.models.coco import CocoModel, Fit
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.protocol import COST_MAX
from dios.firmament.models.resource_tree import all_steps
from tests.support.firmament import clusters as small
from tests.support.firmament.clusters import GB, MACHINE, rows
from tests.support.firmament.coco import arcs, ask, fill, ready, targets

# Costs ----------------------------------------------------------------------------------------------


def test_requests_are_shares_of_the_largest_machine() -> None:
    """A request's dimension is Ω times its share of the most that any machine has (§7.3.2)."""
    state = small.cluster(1)
    small.add_machine(state, 1, capacity=Resources(cpus=16, memory=64 * GB, disk_io=GB, network=GB))
    task = small.add_task(state, TaskDescriptor(1, Resources(cpus=4, memory=16 * GB, network=GB / 2)))
    model = ready(state)
    [vector] = model._task_vectors(state, rows(task))
    priority = vectors.PRIORITY_WORST - 128
    assert vector.tolist() == [priority, 250, 250, 500, 0, 0, 0, 0]
    expected = priority * vectors.PRIORITY_STEP + 1000
    assert model.task_classes(state, rows(task)).cost.tolist() == [expected]
    weighted = ready(state, weights="1,0.5,0.1,1,1,1,1")
    expected = priority * vectors.PRIORITY_STEP + 250 + 125 + 50
    assert weighted.task_classes(state, rows(task)).cost.tolist() == [expected]


def test_the_unscheduled_vector_is_full_where_capacity_is_meant() -> None:
    """Ω in the four dimensions of capacity, one for interference and machine type (§7.3.2)."""
    assert vectors.unscheduled_vector().tolist() == [[0, 1000, 1000, 1000, 1000, 1, 1, 0]]


def test_dimensions_are_cut_to_their_range() -> None:
    """No dimension but the priority counts for more than Ω."""
    wild = np.full((1, vectors.VECTOR_DIMENSIONS), 5.0 * vectors.OMEGA)
    wild[0, 0] = 2
    flat = vectors.flatten(wild, vectors.weights_of((1, 1, 1, 1, 1, 1, 0.5)))
    assert flat.tolist() == [2 * vectors.PRIORITY_STEP + 6_500]


def test_a_step_of_priority_outweighs_all_else_on_a_path() -> None:
    """Eight full vectors on a path cost less than one step, the growth of waiting included (§7.3.2)."""
    full = np.full((8, vectors.VECTOR_DIMENSIONS), float(vectors.OMEGA))
    full[:, vectors.Dimension.PRIORITY] = 0
    path = int(vectors.flatten(full, np.ones(vectors.VECTOR_DIMENSIONS)).sum())
    assert path + 3 * vectors.SMALL_MAX < vectors.PRIORITY_STEP
    assert vectors.PRIORITY_WORST * vectors.PRIORITY_STEP < COST_MAX / 4


def test_every_service_task_stands_before_every_batch_task() -> None:
    """The priority dimension falls with the priority, and services have the lower half."""
    kinds = rows(Kind.SERVICE, Kind.SERVICE, Kind.BATCH, Kind.BATCH, Kind.BATCH)
    dimensions = vectors.priority_dimension(kinds, rows(127, -128, 127, 0, -10_000))
    assert dimensions.tolist() == [0, 255, 256, 383, 511]


def test_the_penalty_of_a_leaf_by_hand() -> None:
    """Three of four places taken by a devil, a sheep and a turtle: the penalties' sum over places."""
    state = small.cluster(1, slots=4)
    for number, kind in enumerate((Interference.DEVIL, Interference.SHEEP, Interference.TURTLE)):
        fill(state, number, 0, interference=kind)
    small.add_task(state, ask(9))
    model = ready(state)
    leaf = small.machine(state, 0)
    penalty = model._now(state).penalty[leaf]
    assert penalty.tolist() == pytest.approx([0.025, 0.225, 0.3125, 0.35])
    assert penalty[Interference.DEVIL] == pytest.approx((0.5 + 0.8 + 0.1) / 4)


def test_the_decay_up_the_tree_by_hand() -> None:
    """e^((t - i) / t) times the children's mean (§7.3.2): two cores, one busy at 0.6, below one machine."""
    state = small.cluster()
    small.add_machine(state, 1, slots=2, inner=small.TWO_CORES)
    steps = all_steps(state)
    leaves = state.resources.leaves()
    scores = np.zeros(len(state.resources.id))
    scores[leaves] = [0.6, 0.0]
    running = np.zeros(len(scores), np.int64)
    running[leaves[0]] = 1
    idle, total = interference.count_places(steps, leaves, rows(1, 1), running)
    costs = interference.decayed_penalties(steps, scores, idle, total)
    machine, rack = small.machine(state, 1), small.rack(state, 0)
    assert costs[machine] == pytest.approx(math.exp(0.5) * 0.3)
    assert costs[rack] == pytest.approx(math.exp(0.5) * math.exp(0.5) * 0.3)
    flat = interference.normalised_penalties(steps, costs)
    assert flat[machine] == pytest.approx(math.exp(-0.5) * 0.3)
    assert flat[leaves].tolist() == [0.6, 0.0]


def test_dense_idle_places_are_preferred_to_sparse_ones() -> None:
    """The super-linear factor: of two machines with the same mean penalty the idler one is cheaper."""
    scores = np.array([0.0, 0.4, 0.4, 0.8, 0.0, 0.0, 0.0])
    state = small.cluster()
    small.add_machine(state, 1, slots=2, inner=small.TWO_CORES)
    small.add_machine(state, 2, slots=2, inner=small.TWO_CORES)
    leaves = state.resources.leaves()
    column = np.zeros(len(state.resources.id))
    column[leaves] = scores[[1, 2, 3, 0]]
    running = np.zeros(len(column), np.int64)
    running[leaves[:3]] = 1
    steps = all_steps(state)
    idle, total = interference.count_places(steps, leaves, rows(1, 1, 1, 1), running)
    costs = interference.decayed_penalties(steps, column, idle, total)
    assert costs[small.machine(state, 2)] < costs[small.machine(state, 1)]


def test_a_delicate_task_goes_beside_turtles_and_not_beside_devils() -> None:
    """The arc of a rabbit's class to a turtle's machine is cheaper than to a devil's."""
    state = small.cluster(3, slots=2)
    fill(state, 1, 0, interference=Interference.DEVIL)
    fill(state, 2, 1, interference=Interference.TURTLE)
    fill(state, 3, 2, memory=30)
    for number in (4, 5):
        small.add_task(state, ask(number, interference=Interference.RABBIT, memory=4))
    options = arcs(state, ready(state))
    cost = dict(zip(options.target.tolist(), options.cost.tolist(), strict=True))
    assert cost[small.machine(state, 1)] < cost[small.machine(state, 0)]


def test_entering_below_an_aggregate_costs_what_the_way_through_it_costs() -> None:
    """A class's arc to a machine carries the arcs from the cluster down to it."""
    state = small.cluster(2, 1, slots=2)
    fill(state, 1, 0, memory=30)
    fill(state, 2, 1, cpus=4)
    for number in (3, 4):
        small.add_task(state, ask(number, memory=4))
    model = ready(state)
    options = arcs(state, model)
    machine, rack = small.machine(state, 1), small.rack(state, 0)
    way = model.resource_to_resource(state, rows(state.cluster, rack), rows(rack, machine)).sum()
    penalty = round(0.1 / 2 * vectors.OMEGA)
    assert options.cost[options.target == machine].tolist() == [way + penalty]


# Priorities and preemption ------------------------------------------------------------------------------


def test_only_the_more_important_see_room_on_a_full_machine() -> None:
    """Priority preemption: a full machine is open to higher priorities, and to nobody else."""
    state = small.cluster(1, slots=1)
    fill(state, 1, 0, memory=30)
    equal = small.add_task(state, ask(2, memory=30))
    assert targets(state, ready(state)) == set()
    state.tasks.priority[equal] = 1
    assert targets(state, ready(state)) == {state.cluster}
    state.tasks.demand[equal] = Resources(cpus=1, memory=33 * GB)
    assert targets(state, ready(state)) == set()


def test_room_behind_the_less_important_is_seen_machine_by_machine() -> None:
    """Of two full machines only the one where somebody less important runs is offered."""
    state = small.cluster(2, slots=1)
    for machine, priority in ((0, 0), (1, 1)):
        fill(state, machine, machine, priority=priority)
    for number in (5, 6):
        small.add_task(state, ask(number, priority=1))
    assert targets(state, ready(state)) == {small.machine(state, 0)}


def test_batch_never_pushes_out_a_service() -> None:
    """However important, a batch task sees no room where a service task runs."""
    state = small.cluster(1, slots=1)
    small.add_job(state, JobDescriptor(7, kind=Kind.SERVICE))
    service = small.add_task(state, ask(1, priority=-100), job=7)
    small.run(state, service, 0)
    small.add_task(state, ask(2, priority=100))
    assert targets(state, ready(state)) == set()


def test_preemption_pays_for_higher_priorities_only() -> None:
    """Gain and loss of a displacement, at their extremes: one step pays, equal priority never does."""
    state = small.cluster(1, slots=1)
    runs = fill(state, 1, 0)
    equal = small.add_task(state, ask(2), waited=1e9)
    above = small.add_task(state, ask(3, cpus=8, memory=32, priority=1))
    model = ready(state)
    loss = model.task_preemption(state, rows(runs)) - model.task_continuation(state, rows(runs))
    tasks = rows(equal, above)
    gain = model.task_to_unscheduled(state, tasks) - model.task_classes(state, tasks).cost
    path = np.array([0, 7 * vectors.VECTOR_DIMENSIONS * vectors.OMEGA])
    assert (gain - path > loss).tolist() == [False, True]


def test_the_longer_a_class_waits_the_worse_places_it_takes() -> None:
    """§7.3: what a place may cost grows with the time of waiting."""
    state = small.cluster(1, slots=1)
    task = small.add_task(state, ask(1))
    model = ready(state)
    first = model.classes.find(int(model.classes.of_task[task]))
    assert first is not None
    before = model.worth(first)
    state.now = 60.0
    model.begin(state)
    assert model.worth(first) == before + 600


def test_batch_gives_way_when_use_outgrows_the_machine() -> None:
    """§7.3.1: the batch task that started last is dearer to keep than to stop; the service is not."""
    state = small.cluster(1, slots=4)
    small.add_job(state, JobDescriptor(7, kind=Kind.SERVICE))
    service = small.add_task(state, ask(1, memory=10), job=7)
    small.run(state, service, 0)
    old, new = (fill(state, number, 0, memory=8) for number in (2, 3))
    state.tasks.since[new] = 50.0
    state.tasks.usage[service] = Resources(cpus=1, memory=20 * GB)
    model = ready(state)
    tasks = rows(service, old, new)
    stopped = model.task_continuation(state, tasks) > model.task_preemption(state, tasks)
    assert stopped.tolist() == [False, False, True]


# The rest of the protocol -------------------------------------------------------------------------------


def test_a_task_is_asked_about_again_when_it_starts_or_stops() -> None:
    """Running tasks have no arc to their class; the model names those whose status changed."""
    state = small.cluster(1)
    task = small.add_task(state, ask(1))
    model = ready(state)
    model.task_classes(state, rows(task))
    assert model.stale_tasks(state).tolist() == []
    small.run(state, task, 0)
    assert model.stale_tasks(state).tolist() == [task]
    model.begin(state)
    assert len(model.task_classes(state, rows(task)).task) == 0
    small.add_machine(state, 50, capacity=Resources(cpus=80))
    assert model.stale_tasks(state).tolist() == [task]


def test_tasks_alike_share_a_class_and_rows_are_used_again() -> None:
    """Equal needs, one class; a row that a different task took over is told apart."""
    state = small.cluster(1)
    tasks: Ints = rows(*(small.add_task(state, ask(number), job=number) for number in (1, 2)))
    model = ready(state)
    assert len(np.unique(model.task_classes(state, tasks).target)) == 1
    state.tasks.remove(1)
    again = small.add_task(state, ask(3, memory=5))
    assert again == tasks[0]
    model.begin(state)
    assert len(np.unique(model.task_classes(state, tasks).target)) == 2


def test_explanations_name_class_fit_and_dimensions() -> None:
    """What people read tells of which dimensions the cost is made."""
    state = small.cluster(1)
    task = small.add_task(state, ask(1, cpus=4, interference=Interference.DEVIL))
    text = ready(state).explain(state, task, small.machine(state, 0))
    assert text.startswith("devil; fits there: always; of 1000 in each dimension: priority 383, cpu 500")


@pytest.mark.parametrize(
    "bad", [{"wave": "tsunami"}, {"weights": "1,2"}, {"weights": "1,1,1,1,1,1,9"}, {"per_second": -1}]
)
def test_bad_parameters_are_refused(bad: dict[str, str | int]) -> None:
    """The message names the model and the parameter."""
    with pytest.raises(BadModelError, match=f"model coco: {next(iter(bad))}"):
        CocoModel(**bad)  # type: ignore[arg-type] # that is the point


def test_verdicts_of_unknown_capacity_are_that_everything_fits() -> None:
    """A machine that does not tell what it has holds anything."""
    state = small.cluster(1, capacity=Resources())
    small.add_task(state, ask(1, memory=500))
    model = ready(state)
    assert targets(state, model) == {state.cluster}
    [mine] = [model.classes.find(0)]
    assert mine is not None
    assert model._now(state).fits(mine)[small.machine(state, 0)] == Fit.ALWAYS
    assert MACHINE.cpus == 8
