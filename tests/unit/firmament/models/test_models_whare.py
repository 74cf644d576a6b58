"""The Whare-Map models against Table 7.1 and §7.2, with scores that were put into a knowledge base."""

from __future__ import annotations

import numpy as np
import pytest

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import JobDescriptor, MachineDescriptor, TaskDescriptor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.models import catalogue
from dios.firmament.models.cost_terms import BadModelError, class_numbers
from dios.firmament.models.protocol import ClassArcs
from dios.firmament.models.whare import (
    CLASSES_MAX,
    MACHINES,
    TASKS,
    WhareC,
    WhareCs,
    WhareM,
    WhareMCs,
    WhareModel,
    neighbour_scores,
    neighbours,
    scores,
)
from dios.firmament.parameters import Value
from dios.firmament.scheduler import FlowScheduler
from tests.support.firmament import clusters as small
from tests.support.firmament.clusters import machine, rows, run

PSPI = Metric.PS_PER_INSTRUCTION


def measured(
    base: KnowledgeBase,
    task_class: str,
    machine_type: str,
    value: int,
    *near: str,
    metric: Metric = PSPI,
) -> None:
    """One sample of a class on a type of machine, among these neighbours."""
    base.add(Sample(task_class, machine_type, f"{machine_type} machine", 1, {metric: value}, near))


def two_types(base: KnowledgeBase | None = None) -> ClusterState:
    """Machines 0 and 1 are fast, 2 and 3 slow; three slots each."""
    state = ClusterState(knowledge=base)
    for number, kind in enumerate(["fast", "fast", "slow", "slow"]):
        small.add_machine(state, number, machine_type=kind, slots=3)
    return state


def add(state: ClusterState, task_class: str, number: int, at: int | None = None) -> int:
    """A task of a class, waiting or running; returns its row."""
    row = small.add_task(state, TaskDescriptor(number, equivalence=task_class))
    if at is not None:
        run(state, row, at)
    return row


def task_class(state: ClusterState, name: str) -> Ints:
    """TA_c as a vector of one."""
    return class_numbers(TASKS, np.array([state.equivalences.number(name)]))


def plain(
    model: type[WhareModel],
    *,
    omega: int = 10,
    theta: int = 10,
    unknown: int = 1000,
    trials: int = 2,
    load: int = 0,
    refresh: float = 5.0,
) -> WhareModel:
    """A model exactly as in §7.2: costs in picoseconds per instruction, without our additions."""
    chosen: dict[str, Value] = {
        "omega": omega,
        "theta": theta,
        "unknown": unknown,
        "trials": trials,
        "load": load,
        "refresh": refresh,
        "relative": False,
        "mutual": 0.0,
        "wave": 0,
    }
    known = catalogue.parameters(model.name)
    whare = catalogue.make(model.name, **{name: value for name, value in chosen.items() if name in known})
    assert isinstance(whare, WhareModel)
    return whare


def by_target(arcs: ClassArcs) -> dict[int, tuple[int, int]]:
    """Cost and capacity of each arc of one class."""
    return {int(t): (int(c), int(k)) for t, c, k in zip(arcs.target, arcs.cost, arcs.capacity, strict=True)}


def type_number(state: ClusterState, name: str) -> int:
    """MA_m."""
    return int(class_numbers(MACHINES, np.array([state.machine_types.number(name)]))[0])


def known_base() -> KnowledgeBase:
    """Class a: 300 on fast, 900 on slow machines, both alone; beside b 100 more on fast ones."""
    base = KnowledgeBase("n0", 1)
    measured(base, "a", "fast", 300)
    measured(base, "a", "slow", 900)
    measured(base, "a", "fast", 400, "b")
    measured(base, "b", "fast", 500)
    return base


def test_psi_is_the_cost_from_a_class_to_a_type_of_machine() -> None:
    """Table 7.1, Psi: TA_c -> MA_m costs the mean over all neighbours, for as many as there are slots."""
    state = two_types(known_base())
    add(state, "a", 1)
    arcs = by_target(plain(WhareM).class_to_classes(state, task_class(state, "a")))
    assert arcs == {type_number(state, "fast"): (350, 6), type_number(state, "slow"): (900, 6)}


def test_machines_of_a_type_hang_below_its_aggregator_for_nothing() -> None:
    """Figure 7.2: MA_m -> M costs 0 and reaches the usable machines of that type."""
    state = two_types(known_base())
    state.resources.usable[machine(state, 1)] = False
    arcs = plain(WhareM).class_to_resources(state, np.array([type_number(state, "fast")]))
    assert by_target(arcs) == {machine(state, 0): (0, 3)}


def test_load_on_the_way_to_a_machine_is_an_improvement_to_choose() -> None:
    """§7.2.3: with ``load``, a machine with one of three slots taken costs a third of it."""
    state = two_types(known_base())
    add(state, "b", 1, at=0)
    arcs = plain(WhareM, load=30).class_to_resources(state, np.array([type_number(state, "fast")]))
    assert by_target(arcs) == {machine(state, 0): (10, 3), machine(state, 1): (0, 3)}


def test_xi_is_the_cost_from_a_class_to_a_machine_with_its_neighbours() -> None:
    """Table 7.1, Xi: an empty fast machine costs 300, one with b on it 400, one task at a time."""
    state = two_types(known_base())
    add(state, "b", 1, at=0)
    for number in (2, 3, 4):
        add(state, "a", number)
    arcs = by_target(plain(WhareMCs).class_to_resources(state, task_class(state, "a")))
    assert arcs[machine(state, 1)] == (300, 1)
    assert arcs[machine(state, 0)] == (400, 1)


def test_there_are_no_more_arcs_to_machines_than_tasks_that_wait() -> None:
    """§7.2.1: the number of arcs of TA_c is the smaller one of tasks and machines, the best first."""
    state = two_types(known_base())
    add(state, "b", 1, at=0)
    add(state, "a", 2)
    arcs = by_target(plain(WhareMCs).class_to_resources(state, task_class(state, "a")))
    assert set(arcs) == {machine(state, 1), state.cluster}


def test_a_full_machine_gets_no_arc_of_its_own() -> None:
    """Where no slot is free, neighbours do not matter."""
    state = two_types(known_base())
    for number in range(3):
        add(state, "b", number, at=1)
    for number in (8, 9):
        add(state, "a", number)
    arcs = by_target(plain(WhareMCs).class_to_resources(state, task_class(state, "a")))
    assert machine(state, 1) not in arcs
    assert machine(state, 0) in arcs


def test_whare_m_knows_no_neighbours() -> None:
    """§7.2, 3: the only arc from TA_c to the tree is the one to X, whoever runs where."""
    state = two_types(known_base())
    add(state, "b", 1, at=0)
    add(state, "a", 2)
    arcs = by_target(plain(WhareM).class_to_resources(state, task_class(state, "a")))
    assert set(arcs) == {state.cluster}


def test_alpha_of_whare_m_is_the_worst_type() -> None:
    """§7.2.2: TA_c -> X costs the largest Psi."""
    state = two_types(known_base())
    add(state, "a", 1)
    arcs = by_target(plain(WhareM).class_to_resources(state, task_class(state, "a")))
    assert arcs[state.cluster] == (900, 12)


def test_alpha_of_whare_mcs_is_the_worst_neighbourhood_or_type() -> None:
    """§7.2.2: where somebody disturbs more than the worst type costs, that bounds X."""
    base = known_base()
    measured(base, "a", "slow", 2000, "b")
    state = two_types(base)
    add(state, "b", 1, at=2)
    add(state, "a", 2)
    arcs = by_target(plain(WhareMCs).class_to_resources(state, task_class(state, "a")))
    assert arcs[state.cluster][0] == 2000


def test_waiting_costs_omega_a_second_and_never_less_than_the_average_score() -> None:
    """§7.2.2, v: the larger one of both; one more, so that a tie means a place."""
    state = two_types(known_base())
    state.now = 100.0
    fresh = add(state, "a", 1)
    old = add(state, "a", 2)
    state.tasks.since[old] = 0.0
    got = plain(WhareM, omega=50).task_to_unscheduled(state, rows(fresh, old))
    # The average of Psi is (350 + 900) / 2.
    assert got.tolist() == [625 + 1, 5000 + 1]


def test_waiting_under_whare_mcs_is_bounded_by_the_average_neighbourhood() -> None:
    """§7.2.2: the mean of Xi over the machines: 400 beside b, 300 on the other fast one, 900 twice."""
    state = two_types(known_base())
    add(state, "b", 1, at=0)
    row = add(state, "a", 2)
    assert plain(WhareMCs).task_to_unscheduled(state, rows(row)).tolist() == [625 + 1]


def test_gamma_is_the_score_where_it_runs_less_the_time_that_it_ran() -> None:
    """§7.2.2: Psi for Whare-M, Xi for Whare-MCs without the task itself; both discounted by the run time."""
    state = two_types(known_base())
    row = add(state, "a", 1, at=0)
    add(state, "b", 2, at=0)
    state.tasks.ran[row] = 7.0
    assert plain(WhareM, theta=10).task_continuation(state, rows(row)).tolist() == [350 - 70]
    assert plain(WhareMCs, theta=10).task_continuation(state, rows(row)).tolist() == [400 - 70]


def test_a_task_is_not_its_own_neighbour() -> None:
    """A class that disturbs itself does so from the second task on."""
    base = known_base()
    measured(base, "a", "fast", 800, "a")
    state = two_types(base)
    row = add(state, "a", 1, at=0)
    model = plain(WhareMCs, theta=0)
    assert model.task_continuation(state, rows(row)).tolist() == [300]
    other = add(state, "a", 2, at=0)
    model.begin(state)
    assert model.task_continuation(state, rows(row, other)).tolist() == [800, 800]


def test_a_task_does_not_disturb_itself_among_others() -> None:
    """Beside b alone, a class that is harmed by its own kind is harmed by b only."""
    base = known_base()
    measured(base, "a", "fast", 800, "a")
    state = two_types(base)
    row = add(state, "a", 1, at=0)
    add(state, "b", 2, at=0)
    assert plain(WhareMCs, theta=0).task_continuation(state, rows(row)).tolist() == [400]


def test_whare_c_cannot_tell_types_apart() -> None:
    """§7.2, 1: empty machines of both types cost the same, one with b on it more."""
    state = two_types(known_base())
    add(state, "b", 1, at=0)
    for number in (2, 3, 4, 5):
        add(state, "a", number)
    model = plain(WhareC)
    assert len(model.class_to_classes(state, task_class(state, "a")).source) == 0
    arcs = by_target(model.class_to_resources(state, task_class(state, "a")))
    costs = [arcs[machine(state, number)][0] for number in (1, 2, 3)]
    assert costs == [600, 600, 600]
    assert arcs[machine(state, 0)][0] == 700


def test_whare_c_takes_the_mean_of_what_a_neighbour_does_on_each_type() -> None:
    """§7.2, 1: 100 more on a fast machine and 900 on a slow one are 500 more on any."""
    base = known_base()
    measured(base, "a", "slow", 1800, "b")
    state = two_types(base)
    add(state, "b", 1, at=0)
    for number in (2, 3, 4, 5):
        add(state, "a", number)
    arcs = by_target(plain(WhareC).class_to_resources(state, task_class(state, "a")))
    assert arcs[machine(state, 0)][0] == 600 + 500


def test_whare_cs_knows_what_a_neighbour_does_on_each_type() -> None:
    """§7.2, 2: empty machines cost the same; the same neighbour harms where it was seen to harm."""
    base = known_base()
    measured(base, "a", "slow", 1800, "b")
    state = two_types(base)
    add(state, "b", 1, at=0)
    add(state, "b", 2, at=2)
    for number in (3, 4, 5, 6):
        add(state, "a", number)
    model = plain(WhareCs)
    assert len(model.class_to_classes(state, task_class(state, "a")).source) == 0
    arcs = by_target(model.class_to_resources(state, task_class(state, "a")))
    assert arcs[machine(state, 1)][0] == arcs[machine(state, 3)][0] == 600
    # A third slower on a fast machine, twice as slow on a slow one.
    assert arcs[machine(state, 0)][0] == 800
    assert arcs[machine(state, 2)][0] == 1200


@pytest.mark.parametrize("model", [WhareM, WhareC, WhareCs, WhareMCs])
def test_a_class_that_nobody_knows_may_go_anywhere(model: type[WhareModel]) -> None:
    """Without a measurement X is the way, and it is cheaper than waiting."""
    state = two_types(KnowledgeBase("n0", 1))
    row = add(state, "new", 1)
    whare = model(unknown=77)
    arcs = by_target(whare.class_to_resources(state, task_class(state, "new")))
    assert arcs == {state.cluster: (77, 12)}
    assert whare.task_to_unscheduled(state, rows(row)).tolist() == [78]


@pytest.mark.parametrize("seen", ["fast", "slow"])
def test_a_type_that_was_never_tried_is_tried_first_by_few(seen: str) -> None:
    """Exploring: it costs one less than the best that is known, for ``trials`` tasks in all."""
    base = KnowledgeBase("n0", 1)
    measured(base, "a", seen, 300)
    state = two_types(base)
    other = "slow" if seen == "fast" else "fast"
    add(state, "a", 1)
    model = plain(WhareM, trials=2)
    arcs = by_target(model.class_to_classes(state, task_class(state, "a")))
    assert arcs[type_number(state, other)] == (299, 2)
    add(state, "a", 2, at=2 if other == "slow" else 0)
    model.begin(state)
    arcs = by_target(model.class_to_classes(state, task_class(state, "a")))
    assert arcs[type_number(state, other)] == (299, 1)


def test_what_was_measured_on_machines_that_are_not_here_is_no_knowledge() -> None:
    """A profile of a type that the cluster has not got makes no score."""
    base = KnowledgeBase("n0", 1)
    measured(base, "a", "elsewhere", 300)
    state = two_types(base)
    row = add(state, "a", 1, at=0)
    for model in (plain(WhareM, unknown=50, theta=0), plain(WhareMCs, unknown=50, theta=0)):
        assert model.task_continuation(state, rows(row)).tolist() == [50]


def test_run_times_do_where_instructions_are_not_counted() -> None:
    """Then a class's best type costs 1,000, and another in proportion."""
    base = KnowledgeBase("n0", 1)
    measured(base, "a", "fast", 20_000_000, metric=Metric.RUNTIME_NS)
    measured(base, "a", "slow", 50_000_000, metric=Metric.RUNTIME_NS)
    state = two_types(base)
    add(state, "a", 1)
    arcs = by_target(plain(WhareM).class_to_classes(state, task_class(state, "a")))
    assert [cost for cost, _ in arcs.values()] == [1000, 2500]


def test_what_neighbours_do_is_in_the_same_unit_as_the_scores() -> None:
    """With run times alone 20 ms and 30 ms beside b, a machine with b costs half as much again."""
    base = KnowledgeBase("n0", 1)
    measured(base, "a", "fast", 20_000_000, metric=Metric.RUNTIME_NS)
    measured(base, "a", "fast", 20_000_000, metric=Metric.RUNTIME_NS)
    measured(base, "a", "fast", 30_000_000, "b", metric=Metric.RUNTIME_NS)
    measured(base, "b", "fast", 20_000_000, metric=Metric.RUNTIME_NS)
    state = two_types(base)
    add(state, "b", 1, at=0)
    for number in (2, 3):
        add(state, "a", number)
    arcs = by_target(plain(WhareMCs).class_to_resources(state, task_class(state, "a")))
    # The mean of the class is 23.3 ms, which is 1,000.
    assert arcs[machine(state, 1)][0] == 857
    assert arcs[machine(state, 0)][0] == 1286


def test_classes_with_the_most_tasks_are_scored_when_there_are_too_many() -> None:
    """Beyond the bound a class counts as unknown, so that the tables stay small."""
    base = KnowledgeBase("n0", 1)
    for number in range(CLASSES_MAX + 1):
        measured(base, f"c{number}", "fast", 300)
    state = two_types(base)
    for number in range(CLASSES_MAX + 1):
        add(state, f"c{number}", 2 * number)
        if number != 7:
            add(state, f"c{number}", 2 * number + 1)
    model = plain(WhareM, unknown=50)
    assert model.class_to_resources(state, task_class(state, "c7")).cost.tolist() == [50]
    assert model.class_to_resources(state, task_class(state, "c9")).cost.tolist() == [300]


def test_new_scores_are_seen_after_a_while() -> None:
    """What came into the knowledge base counts after ``refresh`` seconds, and not at once."""
    base = known_base()
    state = two_types(base)
    add(state, "a", 1)
    model = plain(WhareM, refresh=5.0)

    def fast() -> int:
        model.begin(state)
        arcs = by_target(model.class_to_classes(state, task_class(state, "a")))
        return arcs[type_number(state, "fast")][0]

    assert fast() == 350
    measured(base, "a", "fast", 950)
    state.now = 4.0
    assert fast() == 350
    state.now = 5.0
    assert fast() == 550


def test_tables_agree_with_the_knowledge_base() -> None:
    """For every class, machine and set of neighbours, Xi is what the knowledge base answers one by one."""
    base = KnowledgeBase("n0", 1)
    for at, letter in enumerate("abc"):
        for kind in ("fast", "slow"):
            measured(base, letter, kind, 300 + 50 * at)
            for step, near in enumerate("abc"):
                if (at + step) % 3:
                    measured(base, letter, kind, 350 + 70 * step + 20 * at, near)
    state = two_types(base)
    for number, (name, at) in enumerate([("a", 0), ("b", 0), ("c", 1), ("b", 2), ("a", 2), ("c", 2)]):
        add(state, name, number, at=at)
    table = scores(state, base, np.arange(len(state.equivalences)))
    around = neighbours(state, table)
    running = {0: "ab", 1: "c", 2: "abc", 3: ""}
    for name in "abc":
        row = int(table.number[state.equivalences.number(name)])
        got = neighbour_scores(table, around, np.full(4, row), np.arange(4), 0)
        for place, others in running.items():
            kind = "fast" if place < 2 else "slow"
            expected = base.score_beside(name, tuple(others), kind)
            assert got[place] == pytest.approx(expected), f"{name} at {place}"


# On the scheduler ------------------------------------------------------------------------------------


def scheduler(model: WhareModel, base: KnowledgeBase, *kinds: str) -> FlowScheduler:
    """Machines 0, 1, ... of these types with two slots each."""
    whare = FlowScheduler(model, knowledge=base)
    for number, kind in enumerate(kinds):
        descriptor = MachineDescriptor(number, f"m{number}", "r0", small.MACHINE, 2, kind)
        whare.add_machine(descriptor, 0.0)
    return whare


def place(whare: FlowScheduler, number: int) -> int:
    """The machine where a task runs."""
    return whare.state.machine_ids[int(whare.state.tasks.machine[whare.state.tasks.row(number)])]


@pytest.mark.parametrize("model", [WhareM, WhareMCs])
def test_tasks_find_the_faster_type_by_trying(model: type[WhareModel]) -> None:
    """§8.2.1: nothing is known at first; after some tasks have ended the others run where it is fast."""
    base = KnowledgeBase("n0", 1)
    speed = {0: 900, 1: 900, 2: 300, 3: 300}
    whare = scheduler(model(refresh=0.0, wave=0), base, "slow", "slow", "fast", "fast")
    landed = [0]
    for step in range(8):
        numbers = range(10 * step, 10 * step + 3)
        now = 10.0 * step
        tasks = [TaskDescriptor(number, equivalence="a") for number in numbers]
        whare.submit(JobDescriptor(step), tasks, now)
        assert not whare.round(now + 1).faults
        landed = [place(whare, number) for number in numbers]
        for number, at in zip(numbers, landed, strict=True):
            kind = "slow" if at < 2 else "fast"
            base.add(Sample("a", kind, f"m{at}", int(now), {PSPI: speed[at]}, task=number, final=True))
            whare.finished(number, now + 5)
    assert set(landed) <= {2, 3}


def test_whare_mcs_keeps_away_from_a_neighbour_that_harms() -> None:
    """Two machines of one type: the task goes where b is not."""
    for disturbed in (0, 1):
        whare = scheduler(plain(WhareMCs), known_base(), "fast", "fast")
        whare.submit(JobDescriptor(1), [TaskDescriptor(1, equivalence="b")], 0.0)
        whare.started(1, disturbed, 0.0)
        whare.submit(JobDescriptor(2), [TaskDescriptor(2, equivalence="a")], 0.0)
        whare.round(1.0)
        assert place(whare, 2) == 1 - disturbed


def test_relative_costs_of_undisturbed_tasks_are_equal_for_slow_and_fast_classes() -> None:
    """A class of 40,000 ps per instruction costs 1,000 alone on its best type, as one of 300 does."""
    base = known_base()
    measured(base, "disk", "fast", 40_000)
    measured(base, "disk", "slow", 80_000)
    state = two_types(base)
    for number, name in enumerate(("a", "disk")):
        add(state, name, number)
        arcs = by_target(WhareMCs().class_to_resources(state, task_class(state, name)))
        assert arcs[machine(state, 0)] == (1000, 1)
    slow = type_number(state, "slow")
    assert by_target(WhareM().class_to_classes(state, task_class(state, "disk")))[slow][0] == 2000


def test_a_place_costs_the_harm_to_the_tasks_that_run_there() -> None:
    """Class b is not disturbed by a, which it slows by a third: b costs 1,333 next to a, 1,000 elsewhere."""
    base = known_base()
    measured(base, "b", "fast", 500, "a")
    state = two_types(base)
    add(state, "a", 1, at=0)
    for number in (2, 3):
        add(state, "b", number)
    arcs = by_target(WhareMCs().class_to_resources(state, task_class(state, "b")))
    assert arcs[machine(state, 0)] == (1333, 1)
    assert arcs[machine(state, 1)] == (1000, 1)
    alone = by_target(WhareMCs(mutual=0.0).class_to_resources(state, task_class(state, "b")))
    assert alone[machine(state, 0)] == (1000, 1)


def test_a_task_that_runs_does_not_cost_its_own_harm() -> None:
    """Two tasks of a class that disturbs itself: staying costs each the harm to the other, once."""
    base = KnowledgeBase("n0", 1)
    measured(base, "a", "fast", 400)
    measured(base, "a", "fast", 600, "a")
    state = two_types(base)
    first, second = add(state, "a", 1, at=0), add(state, "a", 2, at=0)
    model = WhareMCs(theta=0)
    model.begin(state)
    # 1,500 for the task itself and 500 for the other one.
    assert model.task_continuation(state, rows(first, second)).tolist() == [2000, 2000]


def test_a_machine_gets_one_task_of_a_round_through_its_type() -> None:
    """With ``wave`` the mean of a type does not send a whole job to one machine at once."""
    state = two_types(known_base())
    fast = np.array([type_number(state, "fast")])
    assert by_target(WhareMCs().class_to_resources(state, fast)) == {
        machine(state, 0): (0, 1),
        machine(state, 1): (0, 1),
    }
    assert by_target(WhareMCs(wave=2).class_to_resources(state, fast))[machine(state, 0)] == (0, 2)


@pytest.mark.parametrize(
    ("name", "strange"),
    [
        ("whare-m", {"arcs": 1, "mutual": 0.0, "slow_downs": ""}),
        ("whare-c", {"trials": 1, "load": 1, "wave": 0}),
        ("whare-cs", {"trials": 1, "load": 1, "wave": 0}),
    ],
)
def test_parameters_without_an_effect_are_refused(name: str, strange: dict[str, Value]) -> None:
    """A policy that looks at no neighbours, or has no arcs to types, has no parameters about them."""
    for key, value in strange.items():
        assert key in catalogue.parameters("whare-mcs")
        with pytest.raises(BadModelError, match=f"model {name} has no parameter '{key}'"):
            catalogue.make(name, **{key: value})
