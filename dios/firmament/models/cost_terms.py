"""Pieces that several cost models share: whole costs, the cost of waiting, class numbers, fixed draws.

For: the models of this package. Not for: data and where it lies (``locality``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.protocol import COST_MAX, NO_CLASS_ARCS, ClassArcs

WAIT_MAX = 2**31
"""What waiting may cost at the most, so that NEVER stays above it."""

NEVER = 2**32
"""The cost of what a model does not want under any circumstances, such as stopping a task."""

_CLASS_BITS = 48
"""A class's number has its kind above these bits and its own number below."""

Words = npt.NDArray[np.uint64]


class BadModelError(InvalidError):
    """A cost model, or a parameter of one, that does not exist or cannot be meant."""


def whole(costs: Floats) -> Ints:
    """Costs as whole numbers within ± COST_MAX, rounded to the nearest; any shape."""
    return np.rint(np.clip(costs, -COST_MAX, COST_MAX)).astype(np.int64)


def waiting_cost(state: ClusterState, tasks: Ints, per_second: float, at_once: float = 0.0) -> Ints:
    """``at_once`` and ``per_second`` for each second that a task has waited in all; shape (n,)."""
    cost = at_once + per_second * state.tasks.waiting_time(tasks, state.now)
    return whole(np.minimum(cost, WAIT_MAX))


def stay(tasks: Ints) -> Ints:
    """The cost of staying where nobody is to move; shape (n,)."""
    return np.full(len(tasks), -NEVER)


def stop_nobody(tasks: Ints) -> Ints:
    """The cost of being stopped where nobody is to be; shape (n,)."""
    return np.full(len(tasks), NEVER)


def unmoved(state: ClusterState, task: int) -> str:
    """What a model that stops and moves nobody says of a running task; nothing of a waiting one."""
    if state.tasks.status[task] != RUNNING:
        return ""
    return "it runs; this model stops nobody and moves nobody"


def gigabytes(size: float) -> str:
    """Bytes for people."""
    return f"{size / 10**9:.3g} GB"


def not_negative(model: str, most: int = WAIT_MAX, /, **values: float) -> None:
    """Refuse parameters below 0 or above ``most``, or that are no numbers.

    Raises:
        BadModelError: naming the model, the parameter and the value.
    """
    for name, value in values.items():
        if not 0 <= value <= most:
            raise BadModelError(f"model {model}: {name} is {value}; it must be from 0 to {most}")


def class_numbers(kind: int, numbers: Ints) -> Ints:
    """Classes of one kind (from 1), each for a number from 0 to 2^48 - 1."""
    return (kind << _CLASS_BITS) + numbers


def class_kinds(classes: Ints) -> Ints:
    """Which kind each class is of."""
    return classes >> _CLASS_BITS


def class_members(classes: Ints) -> Ints:
    """The number that each class was made for."""
    return classes & ((1 << _CLASS_BITS) - 1)


def joined(*parts: ClassArcs) -> ClassArcs:
    """All arcs of the parts, in their order."""
    columns = zip(NO_CLASS_ARCS, *parts, strict=True)
    return ClassArcs(*(np.concatenate(each).astype(np.int64, copy=False) for each in columns))


def waiting_tasks(state: ClusterState) -> Ints:
    """Rows of the tasks that wait, ascending."""
    return np.flatnonzero(state.tasks.alive & (state.tasks.status == WAITING))


def running_tasks(state: ClusterState) -> Ints:
    """Rows of the tasks that run, ascending."""
    return np.flatnonzero(state.tasks.alive & (state.tasks.status == RUNNING))


def open_machines(state: ClusterState) -> Ints:
    """Rows of the machines that take tasks, ascending."""
    machines = state.resources.at(Level.MACHINE)
    return machines[state.resources.usable[machines]]


def roomy(state: ClusterState, machines: Ints) -> Ints:
    """Those of the machines that take tasks and have a free slot."""
    table = state.resources
    return machines[table.usable[machines] & (table.running[machines] < table.slots[machines])]


def draws(seed: int, identifiers: Ints, count: int, among: int) -> Ints:
    """``count`` numbers below ``among`` for each identifier, shape (n, count).

    The same for the same arguments, on every machine and in every order: a model may be asked twice.
    ``among`` must be 1 or more.
    """
    each = identifiers.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    mixed = _mix(np.bitwise_xor(each, _mix(np.full(1, seed % 2**64, np.uint64))))
    return (mixed % np.uint64(among)).astype(np.int64)


def _mix(words: Words) -> Words:
    """A bijection of 64-bit words whose outputs look independent (a multiply-and-shift finaliser)."""
    mixed: Words = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
