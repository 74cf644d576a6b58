from __future__ import annotations

import random

import numpy as np
import pytest

from dios.firmament.custom_model.example_clusters import random_cluster
from dios.firmament.descriptors import (
    JobDescriptor,
    Kind,
    Resources,
)
from dios.firmament.models import coco as admission
from dios.firmament.models.resource_tree import all_steps
from tests.support.firmament import clusters as small
from tests.support.firmament.clusters import GB, rows
from tests.support.firmament.coco import SOCKETS, arcs, ask, fill, ready, targets

# Admission: Listing 7.1, one test for each branch ---------------------------------------------------


def test_a_task_that_fits_everywhere_gets_one_arc_to_the_cluster() -> None:
    """Always fits (lines 14 to 18): the head is taken and nothing below it."""
    state = small.cluster(2, 2)
    small.add_task(state, ask(1))
    assert targets(state, ready(state)) == {state.cluster}


def test_a_task_that_fits_nowhere_gets_no_arc() -> None:
    """Never fits (lines 19 to 23): the traversal gives up at the root."""
    state = small.cluster(2, 2)
    small.add_task(state, ask(1, memory=33))
    assert targets(state, ready(state)) == set()


def test_where_a_task_fits_in_parts_the_children_are_explored() -> None:
    """Sometimes (lines 24 to 30): the rack without the full machine is a head, and the other's machine."""
    state = small.cluster(2, 2)
    fill(state, 1, 0, memory=30)
    for number in range(2, 6):
        small.add_task(state, ask(number, memory=8))
    model = ready(state)
    assert targets(state, model) == {small.rack(state, 1), small.machine(state, 1)}


def test_a_subtree_where_a_task_never_fits_is_left_out() -> None:
    """Never fits below the root: of a rack that is full there is no arc, not even to its machines."""
    state = small.cluster(2, 1)
    for number in (0, 1):
        fill(state, number, number, memory=30)
    small.add_task(state, ask(9, memory=8))
    assert targets(state, ready(state)) == {small.rack(state, 1)}


def test_the_thread_level_of_figure_7_3() -> None:
    """A machine whose socket 1 is busy offers its socket 0 (Figure 7.3)."""
    state = small.cluster()
    small.add_machine(state, 1, slots=4, inner=SOCKETS)
    table = state.resources
    row = {name: at for at, name in table.names.items()}
    for number, core in enumerate(("core 2", "core 3")):
        task = small.add_task(state, ask(number))
        small.run(state, task, 1)
        # The helper lets everything run at the first core.
        first = int(state.tasks.leaf[task])
        for place, change in (
            (first, -1),
            (int(table.parent[first]), -1),
            (row[core], 1),
            (row["socket 1"], 1),
        ):
            table.running[place] += change
        state.tasks.leaf[task] = row[core]
    for number in range(2, 6):
        small.add_task(state, ask(number))
    assert targets(state, ready(state)) == {row["socket 0"]}
    assert targets(state, ready(state, threads=False)) == {state.cluster}


def test_a_drained_machine_and_an_empty_rack_offer_nothing() -> None:
    """No arc leads where a task could come to a machine that takes none."""
    state = small.cluster(1, 1)
    state.resources.usable[small.machine(state, 100)] = False
    small.add_task(state, ask(1))
    assert targets(state, ready(state)) == {small.rack(state, 0)}
    state.remove_machine(0)
    assert targets(state, ready(state)) == set()


@pytest.mark.parametrize("seed", range(8))
def test_no_path_leads_where_a_task_does_not_fit(seed: int) -> None:
    """The vectorised traversal finds the listing's heads, and all that is below them has room (seeded)."""
    chance = random.Random(seed)  # noqa: S311 - a seed, not a secret
    state = random_cluster(seed, machines=15, tasks=40, running=0.6)
    steps = all_steps(state)
    leaves = state.resources.leaves()
    free = np.zeros((len(state.resources.id), admission.ROOM))
    free[leaves] = [[chance.randint(0, 4) for _ in range(admission.ROOM)] for _ in leaves]
    request = np.array([chance.randint(0, 2) for _ in range(admission.ROOM)], float)
    room = admission.gather_room(steps, leaves, free)
    heads = admission.maximal_subtrees(steps, state.cluster, admission.fit_verdicts(room, request))

    def plain(row: int) -> list[int]:
        under = [leaf for leaf in state.below(row) if leaf in leaves]
        fits = [bool((free[leaf] >= request).all()) for leaf in under]
        if under and all(fits):
            return [row]
        return [head for child in state.resources.children[row] for head in plain(child)]

    assert heads.tolist() == sorted(plain(state.cluster)), f"seed {seed}"


def test_services_fit_beside_reservations_and_batch_beside_use() -> None:
    """§7.3.1: what is reserved and not used takes batch tasks, and no service tasks."""
    state = small.cluster(1)
    lazy = fill(state, 1, 0, memory=30)
    state.tasks.usage[lazy] = Resources(cpus=1, memory=2 * GB)
    service = small.add_job(state, JobDescriptor(7, kind=Kind.SERVICE))
    batch = small.add_task(state, ask(2, memory=8))
    assert targets(state, ready(state)) == {state.cluster}
    state.tasks.job[batch] = service
    assert targets(state, ready(state)) == set()


def test_a_class_has_no_more_arcs_than_tasks_and_the_cheapest_ones() -> None:
    """§7.3.1: the n cheapest arcs, n being the number of tasks that come in."""
    state = small.cluster(4, slots=3)
    fill(state, 1, 0, memory=30)
    for machine, memory in ((1, 9), (2, 3), (3, 6)):
        fill(state, 10 + machine, machine, memory=memory)
    for number in (20, 21):
        small.add_task(state, ask(number, memory=8))
    assert targets(state, ready(state)) == {small.machine(state, 2), small.machine(state, 3)}


# Waves and promises -----------------------------------------------------------------------------------


def test_arcs_are_made_only_while_there_is_room_for_all_who_might_come() -> None:
    """§7.3.3: a machine with disk for one of two classes gets an arc from the longer waiting one alone."""
    state = small.cluster(1)
    small.add_task(state, ask(1, disk=0.6 * GB, memory=1), waited=5)
    small.add_task(state, ask(2, disk=0.6 * GB, memory=2), waited=9)
    model = ready(state)
    options = arcs(state, model)
    [source] = options.source
    winner = model.classes.find(int(source))
    assert winner is not None
    assert winner.demand[1] == 2 * GB


def test_the_more_important_class_is_admitted_first() -> None:
    """Where room is short, priority goes before waiting."""
    state = small.cluster(1)
    small.add_task(state, ask(1, memory=20, priority=1), waited=1)
    small.add_task(state, ask(2, memory=21), waited=900)
    model = ready(state)
    [source] = arcs(state, model).source
    winner = model.classes.find(int(source))
    assert winner is not None
    assert winner.demand[1] == 20 * GB


def test_arcs_into_one_machine_have_room_together() -> None:
    """Two sockets of a machine with memory for one task more get one arc between them."""
    state = small.cluster()
    small.add_machine(state, 1, slots=4, inner=SOCKETS)
    busy = small.add_task(state, ask(1, memory=1))
    small.run(state, busy, 1)
    for number in (2, 3, 4):
        small.add_task(state, ask(number, memory=20))
    assert len(targets(state, ready(state))) == 1
    for task in state.tasks.all()[1:]:
        state.tasks.demand[task] = Resources(cpus=1, memory=15 * GB)
    assert len(targets(state, ready(state))) == 2


@pytest.mark.parametrize(("wave", "expected"), [("machine", 3), ("aggregate", 1)])
def test_tasks_come_in_waves(wave: str, expected: int) -> None:
    """§7.3.3: one task for each machine of the cluster in a round, or one for the whole cluster."""
    state = small.cluster(2, 1, slots=4)
    for number in range(9):
        small.add_task(state, ask(number))
    model = ready(state, wave=wave)
    assert arcs(state, model).capacity.tolist() == [expected]
    rack, machine = small.rack(state, 0), small.machine(state, 0)
    capacities = model.resource_capacity(state, rows(state.cluster, rack), rows(rack, machine))
    assert capacities.tolist() == [min(expected, 2), 1]


def test_inside_of_a_machine_one_task_comes_at_a_time() -> None:
    """§7.3.3: unit capacities within the topology, whatever runs there; none where there are no slots."""
    state = small.cluster()
    small.add_machine(state, 1, slots=4, inner=SOCKETS)
    small.add_machine(state, 2, slots=0)
    fill(state, 1, 1)
    row = {name: at for at, name in state.resources.names.items()}
    parents = rows(row["m1"], row["m1"], row["r0"])
    children = rows(row["socket 0"], row["socket 1"], row["m2"])
    assert ready(state).resource_capacity(state, parents, children).tolist() == [1, 1, 0]
