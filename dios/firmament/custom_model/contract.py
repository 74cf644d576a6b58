"""The contract of cost models: what every model owes the scheduler, checked on random clusters.

The models of ``models.catalogue`` keep it, which tests check; a model of an operator is checked before it is
used. A model that keeps it can still place badly; `dios simulate` and `dios explain` show that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import numpy as np

from dios.firmament.cluster import changes
from dios.firmament.cluster.columns import Ints, Rows
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.custom_model.example_clusters import (
    KINDS,
    add_example_task,
    example_cluster,
    example_knowledge,
)
from dios.firmament.custom_model.loading import described
from dios.firmament.descriptors import Level, MachineDescriptor, Resources
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.protocol import ClassArcs, CostModel, Options
from dios.firmament.network.model_answers import ModelAnswers, ModelQuestions, ask_model, children_of
from dios.firmament.rounds.model_guard import ModelError

Maker: TypeAlias = Callable[[], CostModel]
"""Returns a new model; all are of one class with equal parameters."""

SEEDS: Final = (1, 2)
_LONG_TIME_S: Final = 1e9
_EXPLAINED: Final = 6
_FURTHER: Final = 20


class ContractError(BadModelError):
    """A model breaks the contract; the message says which part, and on which cluster."""


def check(make: Maker) -> None:
    """Check all parts of the contract.

    Raises:
        ContractError: the model breaks one; further ones are not checked.
    """
    for part in PARTS:
        try:
            part(make)
        except BadModelError:
            raise
        except Exception as error:
            raise ContractError(f"the model raised {described(error)}") from error


def check_shapes(make: Maker) -> None:
    """Check lengths, types, bounds and rows of the answers on clusters of all kinds."""
    for kind, seed, state in _clusters(KINDS):
        _asked(informed(make(), state), state, f"{kind} {seed}")


def check_long_waits(make: Maker) -> None:
    """Check that costs stay within bounds after thirty years of waiting and running."""
    for kind, seed, state in _clusters(["mixed"]):
        state.now = _LONG_TIME_S
        _asked(informed(make(), state), state, f"{kind} {seed}, thirty years later")


def check_repetition(make: Maker) -> None:
    """Check that equal models give equal answers, and a model gives the same answers twice."""
    for kind, seed, state in _clusters(["mixed"]):
        cluster_name = f"{kind} {seed}"
        first, second = informed(make(), state), informed(make(), state)
        expected = _asked(first, state, cluster_name)
        if not same_answers(expected, _asked(second, state, cluster_name)):
            raise ContractError(
                f"two equal models answer differently about the same cluster ({cluster_name})"
            )
        if not same_answers(expected, _asked(first, state, cluster_name)):
            raise ContractError(
                f"the second answers of the model differ from its first ones ({cluster_name})"
            )


def check_tables_unchanged(make: Maker) -> None:
    """Check that questions and explanations change nothing in the tables."""
    for kind, seed, state in _clusters(["mixed"]):
        before, others = _columns(state), copy.deepcopy(_others(state))
        model = informed(make(), state)
        _asked(model, state, f"{kind} {seed}")
        _explained(model, state, int(state.tasks.all()[0]), state.cluster)
        after = _columns(state)
        changed = [name for name in before if before[name] != after[name]]
        if changed:
            raise ContractError(f"the model changes the cluster: column {changed[0]} ({kind} {seed})")
        if others != _others(state):
            raise ContractError(f"the model changes the cluster: descriptions or the tree ({kind} {seed})")


def check_explanations(make: Maker) -> None:
    """Check that explanations are text, also for a task that came after the round."""
    for _, _, state in _clusters(["mixed"]):
        model = informed(make(), state)
        _asked(model, state, "mixed")
        places = [
            state.cluster,
            *(int(state.resources.at(level)[0]) for level in (Level.RACK, Level.MACHINE)),
        ]
        fresh = add_example_task(state, 10_000)
        for task in [*state.tasks.all()[:_EXPLAINED].tolist(), fresh]:
            for place in places:
                _explained(model, state, task, place)


def check_comings_and_goings(make: Maker) -> None:
    """Check that answers stay right while rows are freed and used again."""
    for kind, seed, state in _clusters(["mixed"]):
        cluster_name = f"{kind} {seed}, tasks and machines gone"
        model = informed(make(), state)
        _asked(model, state, cluster_name)
        waiting = state.tasks.all()[state.tasks.status[state.tasks.all()] == WAITING]
        for task in waiting[::2].tolist():
            model.remove_task(state, task)
            changes.remove_task(state, task, completed=True)
        for row, number in list(state.machine_ids.items()):
            if state.resources.running[row] == 0:
                model.remove_machine(state, row)
                state.remove_machine(number)
        _asked(model, state, cluster_name)
        added = state.add_machine(
            MachineDescriptor(50, "m50", "r9", Resources(cpus=4), 2, "new", (("disk", "ssd"),))
        )
        model.add_machine(state, added)
        rows = np.array([add_example_task(state, 500 + number) for number in range(_FURTHER)])
        model.add_tasks(state, rows)
        _asked(model, state, f"{kind} {seed}, others came")


PARTS: Final = (
    check_shapes,
    check_long_waits,
    check_repetition,
    check_tables_unchanged,
    check_explanations,
    check_comings_and_goings,
)


def informed(model: CostModel, state: ClusterState) -> CostModel:
    """Report everything in a cluster to a model, and return the model."""
    for number in sorted(state.machine_ids.values()):
        model.add_machine(state, state.machine_row(number))
    model.add_tasks(state, state.tasks.all())
    return model


def answers(model: CostModel, state: ClusterState) -> ModelAnswers:
    """Ask the questions of one round about all tasks; the answers are checked as the scheduler does it."""
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


def same_answers(first: ModelAnswers, other: ModelAnswers) -> bool:
    """Return True if all vectors of the answers are equal."""
    return all(np.array_equal(a, b) for a, b in zip(flat(first), flat(other), strict=True))


def flat(model_answers: ModelAnswers) -> list[Ints]:
    """Return all vectors of the answers."""
    arrays: list[Ints] = []
    for value in vars(model_answers).values():
        arrays += list(value) if isinstance(value, Options | ClassArcs) else [value]
    return arrays


def _clusters(kinds: Iterable[str]) -> Iterator[tuple[str, int, ClusterState]]:
    for kind in kinds:
        for seed in SEEDS:
            state = example_cluster(kind, seed)
            # One of the two has measured profiles.
            state.knowledge = example_knowledge() if seed == SEEDS[-1] else None
            yield kind, seed, state


def _asked(model: CostModel, state: ClusterState, cluster_name: str) -> ModelAnswers:
    try:
        return answers(model, state)
    except ModelError as error:
        raise ContractError(f"{error} (cluster: {cluster_name})") from None


def _explained(model: CostModel, state: ClusterState, task: int, place: int) -> None:
    text: object = model.explain(state, task, place)
    if not isinstance(text, str):
        raise ContractError(f"explain: answered {type(text).__name__}, not str")


def _columns(state: ClusterState) -> dict[str, bytes]:
    tables: dict[str, Rows] = {"tasks": state.tasks, "jobs": state.jobs, "resources": state.resources}
    return {
        f"{name}.{key}": value.tobytes()
        for name, table in tables.items()
        for key, value in vars(table).items()
        if isinstance(value, np.ndarray)
    }


def _others(state: ClusterState) -> tuple[object, ...]:
    return state.machine_ids, state.tasks.descriptors, state.resources.children
