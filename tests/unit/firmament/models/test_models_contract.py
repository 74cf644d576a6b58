"""What every cost model of the catalogue owes its callers, on random clusters of all kinds."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest

from dios.firmament.cluster.columns import Ints, Rows
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.descriptors import Level, TaskDescriptor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.models.base import PerArcModel
from dios.firmament.models.catalogue import MODELS, make, parameters
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.protocol import COST_MAX, ClassArcs, CostModel, Options
from dios.firmament.network.model_answers import ModelAnswers, ModelQuestions, ask_model, children_of
from tests.support.firmament import clusters as small

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "cost-models.md"
KINDS = {
    "empty": (0, 0, 0.0),
    "no machines": (0, 9, 0.0),
    "no tasks": (6, 0, 0.0),
    "one machine": (1, 5, 0.5),
    "all wait": (6, 20, 0.0),
    "all run": (8, 6, 1.0),
    "all drained": (4, 12, 0.5),
    "mixed": (9, 60, 0.5),
}
"""Machines, tasks, and the share that runs."""
SEEDS = (1, 2)
every_model = pytest.mark.parametrize("name", sorted(MODELS))
every_kind = pytest.mark.parametrize("kind", KINDS)


def a_cluster(kind: str, seed: int) -> ClusterState:
    """A random cluster of a kind, with some knowledge."""
    machines, tasks, running = KINDS[kind]
    state = small.random_cluster(seed, machines=machines, tasks=tasks, running=running)
    if kind == "all drained":
        state.resources.usable[state.resources.at(Level.MACHINE)] = False
    state.knowledge = base = KnowledgeBase("n0", 1)
    for number, near in enumerate([(), ("serve",), ("sort", "serve")]):
        values: dict[int, int] = {Metric.PS_PER_INSTRUCTION: 400 + 90 * number, Metric.RUNTIME_NS: 7 * 10**9}
        base.add(Sample("sort", f"type {number % 2}", "m0", number, values, near))
    return state


def told(name: str, state: ClusterState) -> CostModel:
    """A model that was told of all that there is."""
    model = make(name)
    for machine in sorted(state.machine_ids):
        model.add_machine(state, state.machine_row(machine))
    model.add_tasks(state, state.tasks.all())
    return model


def answers(model: CostModel, state: ClusterState) -> ModelAnswers:
    """One round's questions, checked as the scheduler checks them."""
    tasks = state.tasks.all()
    children, depth = children_of(state)
    status = state.tasks.status[tasks]
    questions = ModelQuestions(
        tasks,
        tasks[status == WAITING],
        tasks[status == RUNNING],
        state.jobs.all(),
        children,
        depth,
        state.resources.leaves(),
        lambda _, now: np.unique(now),
    )
    return ask_model(model, state, questions)


def flat(found: ModelAnswers) -> list[Ints]:
    """All arrays of the answers."""
    arrays: list[Ints] = []
    for value in vars(found).values():
        arrays += list(value) if isinstance(value, Options | ClassArcs) else [value]
    return arrays


def columns(state: ClusterState) -> dict[str, bytes]:
    """A copy of everything in the tables."""
    tables: dict[str, Rows] = {"tasks": state.tasks, "jobs": state.jobs, "resources": state.resources}
    return {
        f"{name}.{key}": value.tobytes()
        for name, table in tables.items()
        for key, value in vars(table).items()
        if isinstance(value, np.ndarray)
    }


@every_kind
@every_model
def test_answers_are_of_the_right_shape_and_within_bounds(name: str, kind: str) -> None:
    """The scheduler's own check finds nothing: lengths, int64, bounds, rows in use, no arc twice."""
    for seed in SEEDS:
        state = a_cluster(kind, seed)
        answers(told(name, state), state)


@every_model
def test_a_model_changes_nothing_in_the_cluster(name: str) -> None:
    """After a round of questions and an explanation the tables are what they were."""
    for seed in SEEDS:
        state = a_cluster("mixed", seed)
        before = columns(state)
        others = copy.deepcopy((state.machine_ids, state.tasks.descriptors, state.resources.children))
        model = told(name, state)
        answers(model, state)
        model.explain(state, int(state.tasks.all()[0]), state.cluster)
        after = columns(state)
        assert [key for key in before if before[key] != after[key]] == [], f"seed {seed}"
        assert others == (state.machine_ids, state.tasks.descriptors, state.resources.children)


@every_model
def test_answers_repeat_themselves(name: str) -> None:
    """Two models of equal parameters answer alike, and one model alike when it is asked again."""
    for seed in SEEDS:
        state = a_cluster("mixed", seed)
        first, second = told(name, state), told(name, state)
        expected = flat(answers(first, state))
        for again in (flat(answers(second, state)), flat(answers(first, state))):
            assert all(np.array_equal(a, b) for a, b in zip(expected, again, strict=True)), f"seed {seed}"


@every_model
def test_single_rows_cost_what_they_cost_in_a_vector(name: str) -> None:
    """A task, job or leaf that is asked about alone has the cost that it has among all."""
    state = a_cluster("mixed", 3)
    model = told(name, state)
    found = answers(model, state)
    tasks = state.tasks.all()
    waiting = tasks[state.tasks.status[tasks] == WAITING]
    running = tasks[state.tasks.status[tasks] == RUNNING]
    for at in range(0, len(running), 5):
        one = running[at : at + 1]
        assert model.task_continuation(state, one).tolist() == [found.continuation[at]]
        assert model.task_preemption(state, one).tolist() == [found.preemption[at]]
    leaves = state.resources.leaves()
    assert model.leaf_to_sink(state, leaves[2:3]).tolist() == [found.leaf_cost[2]]
    if name == "apollo":
        return  # Which machine it would wait for depends on who waits before it.
    for at in range(0, len(waiting), 5):
        assert model.task_to_unscheduled(state, waiting[at : at + 1]).tolist() == [found.unscheduled[at]]


@every_model
def test_explanations_are_text(name: str) -> None:
    """For each task there is something to read at a machine; at aggregates it may be nothing."""
    state = a_cluster("mixed", 4)
    model = told(name, state)
    answers(model, state)
    places = [state.cluster, *(int(state.resources.at(level)[0]) for level in (Level.RACK, Level.MACHINE))]
    for task in state.tasks.all()[:6].tolist():
        for place in places:
            text = model.explain(state, task, place)
            assert isinstance(text, str)
            assert text or place != places[-1]
            assert "nan" not in text


@pytest.mark.parametrize("name", ["trivial", "random-fit", "delay", "late", "apollo", "sparrow", "choosy"])
def test_of_a_running_task_that_stays_the_models_say_so(name: str) -> None:
    """Models that move nobody speak of no other cost for those who run."""
    state = a_cluster("all run", 4)
    model = told(name, state)
    answers(model, state)
    for task in state.tasks.all()[state.tasks.status[state.tasks.all()] == RUNNING].tolist():
        assert "stops and moves no tasks" in model.explain(state, task, int(state.tasks.machine[task]))


@every_model
def test_a_task_that_came_after_the_round_can_be_explained(name: str) -> None:
    """An explanation needs no round in between."""
    state = a_cluster("mixed", 5)
    model = told(name, state)
    answers(model, state)
    fresh = [
        small.add_task(state, TaskDescriptor(10_000 + number, equivalence="fresh"), job=1)
        for number in range(40)
    ]
    place = int(state.resources.at(Level.MACHINE)[0])
    assert all(model.explain(state, task, place) for task in fresh)


@every_model
def test_tasks_and_machines_may_come_and_go(name: str) -> None:
    """Answers stay right while rows are freed and used again."""
    state = a_cluster("mixed", 6)
    model = told(name, state)
    answers(model, state)
    waiting = state.tasks.all()[state.tasks.status[state.tasks.all()] == WAITING]
    for task in waiting[::2].tolist():
        model.remove_task(state, task)
        state.jobs.tasks[state.tasks.job[task]] -= 1
        state.tasks.remove(int(state.tasks.id[task]))
    idle = [
        identifier
        for row, identifier in state.machine_ids.items()
        if state.resources.running[row] == 0 and identifier
    ]
    for identifier in idle:
        model.remove_machine(state, state.machine_row(identifier))
        state.remove_machine(identifier)
    answers(model, state)
    model.add_machine(state, small.add_machine(state, 50, rack="r9", machine_type="new"))
    for number in range(20):
        row = small.add_task(state, TaskDescriptor(500 + number, blocks=(small.block(1, 50),)))
        model.add_tasks(state, np.array([row]))
    answers(model, state)


@every_model
def test_a_model_says_what_it_is(name: str) -> None:
    """The name is the catalogue's, the summary one line, and docs/cost-models.md has each parameter."""
    model = make(name)
    assert isinstance(model, CostModel)
    assert model.name == name
    assert model.summary
    assert "\n" not in model.summary
    text = DOCUMENT.read_text()
    assert f"`{name}`" in text
    assert [each for each in parameters(name) if not re.search(rf"`{each}[`=]", text)] == []


@every_model
def test_parameters_may_be_words(name: str) -> None:
    """Each default may be given as a command line has it, and is the default then."""
    words = {each: str(value) for each, value in parameters(name).items()}
    assert vars(make(name, **words)).keys() == vars(make(name)).keys()


@every_model
def test_a_strange_parameter_is_refused_with_the_known_ones(name: str) -> None:
    """The message names it and lists what there is."""
    with pytest.raises(BadModelError, match="no parameter 'colour'") as caught:
        make(name, colour=1)
    assert all(each in str(caught.value) for each in parameters(name))


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    """The message lists all names."""
    with pytest.raises(BadModelError, match="'quinsy'") as caught:
        make("quinsy")
    assert all(name in str(caught.value) for name in MODELS)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"waiting": "soon"}, "a whole number"),
        ({"waiting": 1.5}, "a whole number"),
        ({"per_second": -1}, "-1"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(given: dict[str, int | float | str], wanted: str) -> None:
    """The message names the parameter, the value and what it must be."""
    with pytest.raises(BadModelError, match=wanted) as caught:
        make("trivial", **given)
    assert next(iter(given)) in str(caught.value)


def test_names_may_be_written_with_underscores() -> None:
    """A name with a hyphen can be written as an identifier."""
    assert make("whare_mcs").name == "whare-mcs"


class ByArc(PerArcModel):
    """The trivial model with data costs, arc by arc, in the names of Listing C.1."""

    name = "by arc"

    def task_to_unscheduled_cost(self, state: ClusterState, task: int) -> int:
        """As the trivial model."""
        waited = float(state.tasks.waiting_time(np.array([task]), state.now)[0])
        return round(1000 + 10 * waited)

    def task_preference_arcs(self, state: ClusterState, task: int) -> list[int]:
        """X."""
        return [state.cluster]

    def task_preemption_cost(self, state: ClusterState, task: int) -> int:
        """Never."""
        return 2**32

    def task_continuation_cost(self, state: ClusterState, task: int) -> int:
        """Always."""
        return -(2**32)


@every_kind
def test_the_per_arc_form_agrees_with_the_vectors(kind: str) -> None:
    """The trivial policy written arc by arc answers what the vectors answer."""
    state = a_cluster(kind, 7)
    by_arc, by_vector = answers(ByArc(), state), answers(told("trivial", state), state)
    for one, other in zip(flat(by_arc), flat(by_vector), strict=True):
        assert np.array_equal(one, other)


def test_costs_of_a_very_long_wait_stay_within_bounds() -> None:
    """After thirty years of waiting and running every model still answers within ± COST_MAX."""
    for name in MODELS:
        state = a_cluster("mixed", 8)
        state.now = 1e9
        found = answers(told(name, state), state)
        assert all(np.all(np.abs(each) <= COST_MAX) for each in (found.unscheduled, found.continuation)), name
