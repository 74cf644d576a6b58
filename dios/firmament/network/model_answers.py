"""The questions to a cost model in one round, and the check of its answers before they are used.

The scheduler calls :func:`ask_model` through the guard. The arcs are made of the answers in ``task_rows`` and
``upper_arcs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.protocol import COST_MAX, ClassArcs, CostModel, Options
from dios.firmament.rounds.model_guard import ModelError
from dios.limits import SCHED_CLASS_DEPTH_MAX


@dataclass(frozen=True, eq=False)
class ModelQuestions:
    """The rows that exist in this round: rows of the state's tables, ascending."""

    fresh: Ints
    """Tasks of which the model has not given the options yet."""
    waiting: Ints
    running: Ints
    jobs: Ints
    children: Ints
    """Resources below the cluster vertex, the deepest level first."""
    depth: Ints
    """The depth of each of ``children``."""
    leaves: Ints
    classes: Callable[[Ints, Ints], Ints]
    """Returns the classes in use; arguments: the rows asked again, and the classes that they name now."""


@dataclass(frozen=True, eq=False)
class ModelAnswers:
    """The checked answers of the model; their columns match the rows of :class:`ModelQuestions`."""

    asked: Ints
    """The task rows to which options and classes belong: the fresh and the stale ones."""
    options: Options
    classes: Options
    unscheduled: Ints
    continuation: Ints
    preemption: Ints
    job_cost: Ints
    tree_cost: Ints
    tree_capacity: Ints
    leaf_cost: Ints
    class_resources: ClassArcs
    class_classes: ClassArcs


def ask_model(model: CostModel, state: ClusterState, questions: ModelQuestions) -> ModelAnswers:
    """Ask every question, in the order of ``models.protocol``.

    Raises:
        ModelError: an answer is wrong; the message says which.
    """
    tree = state.resources
    children, parents = questions.children, tree.parent[questions.children]
    model.begin(state)
    model.prepare(state)
    for low, high in _levels(questions.depth):
        model.gather(state, parents[low:high], children[low:high])
    stale = _rows("stale_tasks", model.stale_tasks(state), state.tasks.alive)
    asked = np.union1d(questions.fresh, stale)
    options = _options("task_options", model.task_options(state, asked), len(asked))
    _rows("task_options", options.target, tree.alive)
    classes = _options("task_classes", model.task_classes(state, asked), len(asked))
    _numbers("task_classes", classes.target)
    to_resources, to_classes = _class_arcs(model, state, questions.classes(asked, classes.target))
    waiting, running = questions.waiting, questions.running
    capacity = model.resource_capacity(state, parents, children)
    _column("resource_capacity", capacity, len(children), 0, 2**31)
    return ModelAnswers(
        asked,
        options,
        classes,
        _costs("task_to_unscheduled", model.task_to_unscheduled(state, waiting), len(waiting)),
        _costs("task_continuation", model.task_continuation(state, running), len(running)),
        _costs("task_preemption", model.task_preemption(state, running), len(running)),
        _costs("unscheduled_to_sink", model.unscheduled_to_sink(state, questions.jobs), len(questions.jobs)),
        _costs("resource_to_resource", model.resource_to_resource(state, parents, children), len(children)),
        capacity,
        _costs("leaf_to_sink", model.leaf_to_sink(state, questions.leaves), len(questions.leaves)),
        to_resources,
        to_classes,
    )


def _class_arcs(model: CostModel, state: ClusterState, classes: Ints) -> tuple[ClassArcs, ClassArcs]:
    """Return the arcs of all classes in use and of those behind them; a cycle is a ModelError."""
    resources: list[ClassArcs] = []
    onward: list[ClassArcs] = []
    known, front = classes, classes
    for _ in range(SCHED_CLASS_DEPTH_MAX):
        if not len(front):
            break
        arcs = _checked_arcs("class_to_resources", model.class_to_resources(state, front), front)
        _rows("class_to_resources", arcs.target, state.resources.alive)
        resources.append(arcs)
        arcs = _checked_arcs("class_to_classes", model.class_to_classes(state, front), front)
        _numbers("class_to_classes", arcs.target)
        onward.append(arcs)
        front = np.setdiff1d(arcs.target, known)
        known = np.union1d(known, front)
    else:
        raise ModelError(f"class_to_classes: chains of more than {SCHED_CLASS_DEPTH_MAX} classes")
    to_classes = _joined(onward)
    _check_no_cycle(to_classes)
    return _joined(resources), to_classes


def _check_no_cycle(arcs: ClassArcs) -> None:
    """Raise ModelError if the arcs form a cycle: remove classes that no arc leads to until none is left."""
    source, target = arcs.source, arcs.target
    while len(source):
        inner = np.isin(source, target)
        if inner.all():
            raise ModelError(f"class_to_classes: class {source[0]} leads back to itself")
        source, target = source[inner], target[inner]


def _joined(parts: list[ClassArcs]) -> ClassArcs:
    empty = np.zeros(0, np.int64)
    return ClassArcs(*(np.concatenate([empty, *(part[at] for part in parts)]) for at in range(4)))


def _levels(depth: Ints) -> Iterator[tuple[int, int]]:
    """Yield the slices of equal depth in a descending column."""
    bounds = [0, *(np.flatnonzero(np.diff(depth)) + 1).tolist(), len(depth)]
    yield from pairwise(bounds) if len(depth) else ()


# The checks -----------------------------------------------------------------------------------------


def _column(name: str, column: Ints, count: int | None, least: int, most: int) -> Ints:
    """Return ``column`` if it is an int64 vector within bounds; else raise ModelError."""
    if not isinstance(column, np.ndarray):
        raise ModelError(f"{name}: answered {type(column).__name__}, not an array")
    if column.dtype != np.int64:
        raise ModelError(f"{name}: answered {column.dtype}, not int64")
    if column.ndim != 1 or (count is not None and len(column) != count):
        raise ModelError(f"{name}: the shape is {column.shape}, not ({'n' if count is None else count},)")
    if len(column) and (int(column.min()) < least or int(column.max()) > most):
        at = int(np.flatnonzero((column < least) | (column > most))[0])
        raise ModelError(f"{name}: value {column[at]} at {at} is not within {least} .. {most}")
    return column


def _costs(name: str, column: Ints, count: int) -> Ints:
    return _column(name, column, count, -COST_MAX, COST_MAX)


def _numbers(name: str, column: Ints) -> Ints:
    return _column(name, column, None, 0, 2**63 - 1)


def _rows(name: str, column: Ints, alive: Flags) -> Ints:
    """Return ``column`` if it holds rows of a table that are in use."""
    _column(name, column, None, 0, len(alive) - 1)
    if len(column) and not alive[column].all():
        raise ModelError(f"{name}: row {column[~alive[column]][0]} is not in use")
    return column


def _options(name: str, options: object, asked: int) -> Options:
    if not isinstance(options, tuple) or len(options) != 3:
        raise ModelError(f"{name}: answered {type(options).__name__}, not Options")
    task = _column(f"{name}, task", options[0], None, 0, asked - 1)
    _column(f"{name}, target", options[1], len(task), 0, 2**63 - 1)
    _costs(f"{name}, cost", options[2], len(task))
    if np.any(np.diff(task) < 0):
        raise ModelError(f"{name}: tasks do not ascend")
    _check_distinct(name, task, options[1])
    return Options(*options)


def _checked_arcs(name: str, arcs: object, asked: Ints) -> ClassArcs:
    if not isinstance(arcs, tuple) or len(arcs) != 4:
        raise ModelError(f"{name}: answered {type(arcs).__name__}, not ClassArcs")
    source = _numbers(f"{name}, source", arcs[0])
    _numbers(f"{name}, target", _column(f"{name}, target", arcs[1], len(source), 0, 2**63 - 1))
    _costs(f"{name}, cost", arcs[2], len(source))
    _column(f"{name}, capacity", arcs[3], len(source), 0, 2**31)
    if not np.isin(source, asked).all():
        raise ModelError(f"{name}: class {source[~np.isin(source, asked)][0]} was not asked about")
    _check_distinct(name, source, arcs[1])
    return ClassArcs(*arcs)


def _check_distinct(name: str, source: Ints, target: Ints) -> None:
    """Raise ModelError if there is more than one arc between two ends."""
    if len(source) < 2:
        return
    order = np.lexsort((target, source))
    same = (np.diff(source[order]) == 0) & (np.diff(target[order]) == 0)
    if same.any():
        at = order[int(np.argmax(same))]
        raise ModelError(f"{name}: two arcs from {source[at]} to {target[at]}")


def children_of(state: ClusterState) -> tuple[Ints, Ints]:
    """Return all resources below the cluster vertex, deepest first, and the depth of each."""
    tree = state.resources
    rows = tree.all()
    depth = np.zeros(len(tree.alive), np.int64)
    at = tree.parent[rows]
    while (at != ABSENT).any():
        depth[rows] += at != ABSENT
        at = np.where(at != ABSENT, tree.parent[at], ABSENT)
    below = rows[rows != state.cluster]
    order = np.argsort(-depth[below], kind="stable")
    return below[order], depth[below][order]
