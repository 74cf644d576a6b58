"""Functions that several cost models share: whole costs, the cost of waiting, class numbers, fixed draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from dios.firmament.cluster.columns import Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.descriptors import Constraint, Level
from dios.firmament.models.protocol import COST_MAX, NO_CLASS_ARCS, ClassArcs
from dios.firmament.policies.labels import LabelIndex

WAIT_MAX = 2**31
"""The largest cost of waiting, so that NEVER is always larger."""

NEVER = 2**32
"""The cost of an action that a model excludes, such as stopping a task."""

_CLASS_BITS = 48
"""A class's number has its kind above these bits and its own number in them."""

Words = npt.NDArray[np.uint64]


class BadModelError(InvalidError):
    """A cost model, or a parameter of a model, does not exist or is out of range."""


def whole(costs: Floats) -> Ints:
    """Return costs as whole numbers within ± COST_MAX, rounded to the nearest; any shape."""
    return np.rint(np.clip(costs, -COST_MAX, COST_MAX)).astype(np.int64)


def waiting_cost(state: ClusterState, tasks: Ints, per_second: float, at_once: float = 0.0) -> Ints:
    """Return ``at_once`` plus ``per_second`` for each second that a task has waited in all; shape (n,)."""
    cost = at_once + per_second * state.tasks.waiting_time(tasks, state.now)
    return whole(np.minimum(cost, WAIT_MAX))


def stay(tasks: Ints) -> Ints:
    """Return the cost of staying in a model that moves nothing; shape (n,)."""
    return np.full(len(tasks), -NEVER)


def stop_nobody(tasks: Ints) -> Ints:
    """Return the cost of being stopped in a model that stops nothing; shape (n,)."""
    return np.full(len(tasks), NEVER)


def unmoved(state: ClusterState, task: int) -> str:
    """Return the explanation of a running task in a model that stops and moves nothing; empty if it waits."""
    if state.tasks.status[task] != RUNNING:
        return ""
    return "it runs; this model stops and moves no tasks"


def gigabytes(size: float) -> str:
    """Return a size as text."""
    return f"{size / 10**9:.3g} GB"


def not_negative(model: str, most: int = WAIT_MAX, /, **values: float) -> None:
    """Check that parameters are numbers from 0 to ``most``.

    Raises:
        BadModelError: it names the model, the parameter and the value.
    """
    for name, value in values.items():
        if not 0 <= value <= most:
            raise BadModelError(f"model {model}: {name} is {value}; it must be from 0 to {most}")


def class_numbers(kind: int, numbers: Ints) -> Ints:
    """Return classes of one kind (from 1), each for a number from 0 to 2^48 - 1."""
    return (kind << _CLASS_BITS) + numbers


def class_kinds(classes: Ints) -> Ints:
    """Return the kind of each class."""
    return classes >> _CLASS_BITS


def class_members(classes: Ints) -> Ints:
    """Return the number for which each class was made."""
    return classes & ((1 << _CLASS_BITS) - 1)


def joined(*parts: ClassArcs) -> ClassArcs:
    """Return all arcs of the parts, in their order."""
    columns = zip(NO_CLASS_ARCS, *parts, strict=True)
    return ClassArcs(*(np.concatenate(column).astype(np.int64, copy=False) for column in columns))


def waiting_tasks(state: ClusterState) -> Ints:
    """Return the rows of the waiting tasks that take part in the round, ascending.

    A model that gave room to others would leave out a task whose turn it is, and the room would stay empty.
    """
    table = state.tasks
    return np.flatnonzero(table.alive & (table.status == WAITING) & table.takes_part)


def running_tasks(state: ClusterState) -> Ints:
    """Return the rows of the running tasks, ascending."""
    return np.flatnonzero(state.tasks.alive & (state.tasks.status == RUNNING))


def open_machines(state: ClusterState) -> Ints:
    """Return the rows of the machines that take tasks, ascending."""
    machines = state.resources.at(Level.MACHINE)
    return machines[state.resources.usable[machines]]


def roomy(state: ClusterState, machines: Ints) -> Ints:
    """Return those of the machines that take tasks and have a free slot."""
    table = state.resources
    return machines[table.usable[machines] & (table.running[machines] < table.slots[machines])]


class PlaceRules(NamedTuple):
    """The restrictions of a task's machines: its hard constraints, and the only machine that it may use."""

    constraints: tuple[Constraint, ...]
    pinned: int | None


def place_rules(state: ClusterState, task: int) -> PlaceRules:
    """Return the rules of a task."""
    described = state.tasks.descriptors[task]
    return PlaceRules(
        tuple(constraint for constraint in described.constraints if constraint.hard), described.pinned
    )


def permitted(state: ClusterState, machines: Ints, rules: Sequence[PlaceRules]) -> Flags:
    """Return which machines, (n,), satisfy each of some rules, (r,): (n, r)."""
    may = np.ones((len(machines), len(rules)), np.bool_)
    if not any(rule.constraints or rule.pinned is not None for rule in rules):
        return may
    table, labels = state.resources, LabelIndex()
    for machine in machines.tolist():
        labels.add(machine, table.labels[machine])
    for at, (constraints, pinned) in enumerate(rules):
        for constraint in constraints:
            may[:, at] &= labels.matches(constraint, len(table.alive))[machines]
        if pinned is not None:
            may[:, at] &= [state.machine_ids[machine] == pinned for machine in machines.tolist()]
    return may


def draws(seed: int, identifiers: Ints, count: int, among: int) -> Ints:
    """Return ``count`` numbers below ``among`` for each identifier, shape (n, count).

    The result is the same for the same arguments, on every machine and in every order, because a model may be
    asked twice. ``among`` must be 1 or more.
    """
    words = identifiers.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    mixed = _mix(np.bitwise_xor(words, _mix(np.full(1, seed % 2**64, np.uint64))))
    return (mixed % np.uint64(among)).astype(np.int64)


def _mix(words: Words) -> Words:
    """Return a bijection of 64-bit words whose outputs look independent (a multiply-and-shift finaliser)."""
    mixed: Words = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
