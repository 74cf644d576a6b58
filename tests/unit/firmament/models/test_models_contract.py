"""What every cost model of the catalogue owes its callers, on random clusters of all kinds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dios.firmament.cluster.columns import ABSENT
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.custom_model import contract
from dios.firmament.custom_model.contract import answers, informed, same_answers
from dios.firmament.custom_model.example_clusters import KINDS, example_cluster
from dios.firmament.descriptors import Interference, Kind, Level, TaskDescriptor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.models.base import PerArcModel
from dios.firmament.models.catalogue import MODELS, make, parameters
from dios.firmament.models.considered import CONSIDERED_BY
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.protocol import CostModel
from tests.support.firmament import clusters as small

ROOT = Path(__file__).resolve().parents[4]
DOCUMENT = ROOT / "docs" / "cost-models.md"
SCHEDULERS = ROOT / "labs" / "papers" / "schedulers.md"
every_model = pytest.mark.parametrize("name", sorted(MODELS))
every_kind = pytest.mark.parametrize("kind", KINDS)
every_part = pytest.mark.parametrize("part", contract.PARTS, ids=lambda part: part.__name__)


def a_cluster(kind: str, seed: int) -> ClusterState:
    """A random cluster of a kind, with some knowledge."""
    state = example_cluster(kind, seed)
    state.knowledge = base = KnowledgeBase("n0", 1)
    for number, near in enumerate([(), ("serve",), ("sort", "serve")]):
        values: dict[int, int] = {Metric.PS_PER_INSTRUCTION: 400 + 90 * number, Metric.RUNTIME_NS: 7 * 10**9}
        base.add(Sample("sort", f"type {number % 2}", "m0", number, values, near))
    return state


def told(name: str, state: ClusterState) -> CostModel:
    """A model that was told of all that there is."""
    return informed(make(name), state)


@every_part
@every_model
def test_the_contract_is_kept(name: str, part: Callable[[contract.Maker], None]) -> None:
    """Shapes and bounds, repetition, unchanged tables, explanations, tasks and machines that come and go."""
    part(lambda: make(name))


@every_kind
@every_model
def test_answers_are_right_with_measurements_too(name: str, kind: str) -> None:
    """The contract's clusters have no knowledge; with some, answers are right and repeat themselves, too."""
    state = a_cluster(kind, 1)
    model = told(name, state)
    first = answers(model, state)
    assert same_answers(first, answers(model, state))
    assert same_answers(first, answers(told(name, state), state))


@every_model
def test_single_rows_cost_what_they_cost_in_a_vector(name: str) -> None:
    """A task, job or leaf that is asked about alone has the cost that it has among all."""
    state = a_cluster("mixed", 3)
    model = told(name, state)
    vector = answers(model, state)
    tasks = state.tasks.all()
    waiting = tasks[state.tasks.status[tasks] == WAITING]
    running = tasks[state.tasks.status[tasks] == RUNNING]
    for at in range(0, len(running), 5):
        single = running[at : at + 1]
        assert model.task_continuation(state, single).tolist() == [vector.continuation[at]]
        assert model.task_preemption(state, single).tolist() == [vector.preemption[at]]
    leaves = state.resources.leaves()
    assert model.leaf_to_sink(state, leaves[2:3]).tolist() == [vector.leaf_cost[2]]
    if name == "apollo":
        return  # Which machine it would wait for depends on who waits before it.
    for at in range(0, len(waiting), 5):
        assert model.task_to_unscheduled(state, waiting[at : at + 1]).tolist() == [vector.unscheduled[at]]


def _all_alike(state: ClusterState, option: str) -> None:
    """Take away the differences between tasks that an option makes."""
    if option == "--deadline":
        state.tasks.deadline[:] = np.inf
    elif option == "--copy-of":
        state.tasks.copy_of[:] = ABSENT
    elif option == "--class":
        state.tasks.interference[:] = Interference.SHEEP
    else:
        state.jobs.kind[:] = Kind.BATCH


@pytest.mark.parametrize("option", CONSIDERED_BY)
@every_model
def test_an_option_matters_to_the_models_that_consider_it(name: str, option: str) -> None:
    """`dios run` warns under the other models, whose costs and arcs are the same without it."""
    differs = False
    for kind in ("mixed", "all run"):
        given, plain = a_cluster(kind, 1), a_cluster(kind, 1)
        _all_alike(plain, option)
        differs |= not same_answers(answers(told(name, given), given), answers(told(name, plain), plain))
    assert differs == (name in CONSIDERED_BY[option])


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
def test_a_model_says_what_it_is(name: str) -> None:
    """The name is the catalogue's, the summary one line, and docs/cost-models.md has each parameter."""
    model = make(name)
    assert isinstance(model, CostModel)
    assert model.name == name
    assert model.summary
    assert "\n" not in model.summary
    text = DOCUMENT.read_text()
    assert f"`{name}`" in text
    assert [parameter for parameter in parameters(name) if not re.search(rf"`{parameter}[`=]", text)] == []


TABLE_8_6 = [
    *("HFS", "LATE", "Quincy", "Delay scheduling", "Mesos", "CIEL", "Jockey", "alsched", "tetrisched"),
    *("Whare-Map", "YARN", "Omega", "Sparrow", "H-DRF", "Choosy", "Paragon", "Quasar", "Apollo", "KMN"),
    *("Tarcil", "Hawk", "Mercury", "Bistro", "CoCo", "Green"),
]
"""The rows of the thesis' table, in its order."""


def test_each_scheduler_of_table_8_6_has_a_model_or_the_reason_why_not() -> None:
    """The page's table has all rows of the thesis, models of the catalogue only, and no empty row."""
    part = SCHEDULERS.read_text().partition("## The schedulers of Table 8.6")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if "|" in line
    ]
    assert [row[0] for row in rows[2:]] == TABLE_8_6
    named = [re.findall(r"`([\w-]+)`", row[1]) for row in rows[2:]]
    assert {name for names in named for name in names} == set(MODELS) - {"spread", "trivial", "random-fit"}
    assert all(names or row[3] for names, row in zip(named, rows[2:], strict=True))


@every_model
def test_parameters_may_be_words(name: str) -> None:
    """Each default may be given as a command line has it, and is the default then."""
    words = {key: str(value) for key, value in parameters(name).items()}
    assert vars(make(name, **words)).keys() == vars(make(name)).keys()


@every_model
def test_a_strange_parameter_is_refused_with_the_known_ones(name: str) -> None:
    """The message names it and lists what there is."""
    with pytest.raises(BadModelError, match="no parameter 'colour'") as caught:
        make(name, colour=1)
    assert all(parameter in str(caught.value) for parameter in parameters(name))


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
    assert same_answers(answers(ByArc(), state), answers(told("trivial", state), state))
