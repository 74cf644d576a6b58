"""CoCo, the coordinated co-location model (§7.3): strict fit, strict priorities, little interference.

CoCo suits clusters that are shared by several kinds of work with declared resource needs. On machines that
report them, it schedules single hardware threads. Tasks start in waves, as in the thesis. For work with
unknown needs see ``whare``.

This model differs from the text in two points. The costs of the tree are added to the arcs of classes that
enter below the cluster, so that a deeper entry is not cheaper. Classes are admitted in order of priority and
waiting time, which the thesis proposes in §8.2.1. The data locality dimension exists and is always 0, as in
§7.3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import WAITING, ClusterState
from dios.firmament.descriptors import DIMENSIONS, Interference, Kind, Level
from dios.firmament.models.base import BaseModel
from dios.firmament.models.cost_terms import BadModelError, joined, not_negative, running_tasks, waiting_tasks
from dios.firmament.models.protocol import ClassArcs, Options
from dios.firmament.models.resource_tree import Steps, all_steps, least_up, mean_up, most_up, steps_of, sum_up
from dios.firmament.models.slow_downs import parse_slow_downs, penalties_of


class Dimension(IntEnum):
    """The rows of the cost vector, in the thesis' order."""

    PRIORITY = 0
    CPU = 1
    MEMORY = 2
    NETWORK = 3
    DISK_IO = 4
    MACHINE_TYPE = 5
    INTERFERENCE = 6
    LOCALITY = 7


VECTOR_DIMENSIONS: Final = len(Dimension)
"""d in the thesis."""
OMEGA: Final = 1_000
"""Ω, the largest value of a dimension, so that a dimension resolves 0.1 % of a machine."""

CAPACITY_DIMENSIONS: Final = (Dimension.CPU, Dimension.MEMORY, Dimension.DISK_IO, Dimension.NETWORK)
"""The dimension of a cost vector for each of the first columns of ``Resources``, in the order of the columns.

Devices must fit, and cost nothing: the thesis' vector has no dimension for them.
"""

_ARCS_MAX: Final = 8
"""Arcs on a task's path that carry a vector: the first two, then one for each of six levels of the tree."""
SMALL_MAX: Final = _ARCS_MAX * VECTOR_DIMENSIONS * OMEGA
"""An upper bound of the cost of a path without its priority: d x Ω on each arc."""
PRIORITY_STEP: Final = 5 * SMALL_MAX
"""The cost of one step of priority.

The thesis' d x Ω is for a single arc. This value covers whole paths, plus the growing cost of waiting and the
resistance of running tasks, which together are three more terms of the same size.
"""

_LEVELS: Final = 256
PRIORITY_WORST: Final = 2 * _LEVELS - 1
"""The priority dimension of the least important batch task; 0 is the most important service task."""


def weights_of(given: tuple[float, ...]) -> Floats:
    """Return the weights w_1 .. w_7 as a vector of eight; the first is 0, because the priority has its step.

    Raises:
        InvalidError: the number of weights is not seven, or a weight is not in [0, 1].
    """
    if len(given) != VECTOR_DIMENSIONS - 1 or not all(0 <= weight <= 1 for weight in given):
        names = ", ".join(dimension.name.lower() for dimension in Dimension if dimension)
        raise InvalidError(f"weights are {given}; give seven numbers from 0 to 1, for {names}")
    return np.array((0.0, *given))


def flatten(vectors: Floats, weights: Floats) -> Ints:
    """Return cost vectors of shape (n, 8) as costs of shape (n,): the weighted sum plus the priority.

    The seven ordinary dimensions are clipped to [0, Ω].
    """
    ordinary = np.clip(vectors[:, 1:], 0, OMEGA) @ weights[1:]
    return (np.rint(ordinary) + vectors[:, Dimension.PRIORITY] * PRIORITY_STEP).astype(np.int64)


def priority_dimension(kinds: Ints, priorities: Ints) -> Ints:
    """Return the priority dimension, shape (n,); lower values are more important.

    Every service task is more important than every batch task, so batch tasks never displace services.
    Priorities outside -128 .. 127 are clipped.
    """
    half = _LEVELS // 2
    level = np.clip(priorities, -half, half - 1) + half + np.where(kinds == Kind.SERVICE, _LEVELS, 0)
    return PRIORITY_WORST - level


def capacity_vector(shares: Floats) -> Floats:
    """Return vectors, shape (n, 8), for shares of resources, shape (n, 4) or wider, each from 0 to 1."""
    vectors = np.zeros((len(shares), VECTOR_DIMENSIONS))
    vectors[:, list(CAPACITY_DIMENSIONS)] = shares[:, : len(CAPACITY_DIMENSIONS)] * OMEGA
    return vectors


def unscheduled_vector() -> Floats:
    """Return the vector of an unscheduled arc, shape (1, 8).

    It is Ω for the capacities, 1 for machine type and interference, and 0 for the rest.
    """
    vector = capacity_vector(np.ones((1, len(CAPACITY_DIMENSIONS))))
    vector[0, [Dimension.MACHINE_TYPE, Dimension.INTERFERENCE]] = 1
    return vector


INTERFERENCE_CLASSES: Final = len(Interference)

PENALTIES: Final[Floats] = np.array(
    [
        # next to a turtle, a sheep, a rabbit, a devil
        [0.00, 0.00, 0.05, 0.10],  # a turtle
        [0.00, 0.10, 0.20, 0.80],  # a sheep
        [0.05, 0.20, 0.40, 1.00],  # a rabbit
        [0.10, 0.80, 1.00, 0.50],  # a devil
    ]
)
"""The penalty of a neighbour (column) for an arriving task (row), 0 to 1.

Devils suit rabbits and sheep badly, and other devils moderately. The table is symmetric, because an arriving
task also disturbs its neighbours.
"""


def leaf_penalties(
    leaves: Ints, slots: Ints, at: Ints, classes: Ints, rows: int, penalties: Floats = PENALTIES
) -> Floats:
    """Return the penalty of each leaf for each interference class, shape (rows, 4), 0 to 1; 0 at other rows.

    Args:
        leaves: rows of the leaves, shape (n,).
        slots: the number of task slots of each leaf, shape (n,).
        at: for each running task the row of its leaf, shape (m,).
        classes: for each running task its interference class, shape (m,).
        rows: the length of the resource table.
        penalties: as ``PENALTIES``, shape (4, 4).
    """
    sums = np.zeros((rows, INTERFERENCE_CLASSES))
    for mine in range(INTERFERENCE_CLASSES):
        sums[:, mine] = np.bincount(at, weights=penalties[mine, classes], minlength=rows)
    scores = np.zeros((rows, INTERFERENCE_CLASSES))
    scores[leaves] = np.minimum(1.0, sums[leaves] / np.maximum(slots, 1)[:, None])
    return scores


def decayed_penalties(steps: list[Steps], scores: Floats, idle: Floats, total: Floats) -> Floats:
    """Return cost(u, w) for each row w: e^((t - i) / t) times the mean of its children, shape (rows,).

    Args:
        steps: the tree, deepest level first.
        scores: the costs of the leaves, shape (rows,); the function ignores the values of rows with children.
        idle: i, the idle places at or below each row.
        total: t, all places at or below each row.
    """
    costs = scores.copy()
    for step in steps:
        mean_up([step], costs)
        above = step.parents
        busy = (total[above] - idle[above]) / np.maximum(total[above], 1)
        costs[above] *= np.exp(busy)
    return costs


def normalised_penalties(steps: list[Steps], costs: Floats) -> Floats:
    """Return the costs of ``decayed_penalties`` divided by the largest factor at their height, in [0, 1].

    Because of this, a single leaf's score counts less at higher levels of the tree.
    """
    height = np.zeros(len(costs))
    for step in steps:
        height[step.parents] = np.maximum(
            height[step.parents], 1 + np.maximum.reduceat(height[step.children], step.starts)
        )
    return costs / np.power(math.e, height)


def count_places(steps: list[Steps], leaves: Ints, slots: Ints, running: Ints) -> tuple[Floats, Floats]:
    """Return the numbers of idle places and of all places at or below each row, both of shape (rows,).

    ``slots`` is by leaf, ``running`` by row. A leaf without slots has no place.
    """
    rows = len(running)
    idle, total = np.zeros(rows), np.zeros(rows)
    total[leaves] = slots
    idle[leaves] = np.maximum(slots - running[leaves], 0)
    sum_up(steps, idle)
    sum_up(steps, total)
    return idle, total


@dataclass(slots=True)
class TaskClass:
    """The properties that all tasks of a class share, and the number of its waiting tasks."""

    number: int
    demand: Floats
    """Shape (DIMENSIONS,)."""
    kind: int
    rank: int
    """The priority dimension; lower values are more important."""
    interference: int
    waiting: int = 0
    longest: float = 0.0
    """The longest waiting time of its waiting tasks, in seconds."""


class TaskClasses:
    """The class of each task. A class exists from its first task to its last."""

    def __init__(self) -> None:
        self.of_task: Ints = np.zeros(0, np.int64)
        """The class number by row of the task table, valid where ``_known`` has the task's identifier."""
        self._known: Ints = np.zeros(0, np.int64)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._classes: dict[int, tuple[tuple[object, ...], TaskClass]] = {}
        self._next = 0

    def find(self, number: int) -> TaskClass | None:
        """Return a class by its number, or None if it does not exist."""
        entry = self._classes.get(number)
        return None if entry is None else entry[1]

    def refresh(self, state: ClusterState) -> None:
        """Add new tasks, delete empty classes, and count the waiting tasks."""
        tasks = state.tasks
        self._grow(len(tasks.id))
        rows = tasks.all()
        # A row may hold another task than the last time. Identifiers are never reused.
        self.assign(state, rows[self._known[rows] != tasks.id[rows]])
        for gone in set(self._classes) - set(np.unique(self.of_task[rows]).tolist()):
            key, _ = self._classes.pop(gone)
            del self._numbers[key]
        for _, known_class in self._classes.values():
            known_class.waiting, known_class.longest = 0, 0.0
        waiting = waiting_tasks(state)
        numbers, at, counts = np.unique(self.of_task[waiting], return_inverse=True, return_counts=True)
        longest = np.zeros(len(numbers))
        np.maximum.at(longest, at, tasks.waiting_time(waiting, state.now))
        for number, count, seconds in zip(numbers, counts, longest, strict=True):
            task_class = self._classes[int(number)][1]
            task_class.waiting, task_class.longest = int(count), float(seconds)

    def assign(self, state: ClusterState, rows: Ints) -> None:
        """Find or create the classes of tasks, in one step for all equal tasks."""
        if not len(rows):
            return
        tasks = state.tasks
        self._grow(len(tasks.id))
        kinds = state.jobs.kind[tasks.job[rows]]
        ranks = priority_dimension(kinds, tasks.priority[rows])
        whole = [kinds, ranks, tasks.interference[rows]]
        table = np.column_stack([*whole, tasks.demand[rows]])
        alike, first, at = np.unique(table, axis=0, return_index=True, return_inverse=True)
        numbers = np.array(
            [
                self._number(tuple(key.tolist()), tasks.demand[rows[index]], *(int(c[index]) for c in whole))
                for key, index in zip(alike, first, strict=True)
            ]
        )
        self.of_task[rows] = numbers[at.reshape(-1)]
        self._known[rows] = tasks.id[rows]

    def _number(
        self, key: tuple[object, ...], demand: Floats, kind: int, rank: int, interference: int
    ) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
            self._classes[number] = (key, TaskClass(number, demand.copy(), kind, rank, interference))
        return number

    def _grow(self, length: int) -> None:
        missing = length - len(self._known)
        if missing > 0:
            self._known = np.concatenate([self._known, np.full(missing, ABSENT, np.int64)])
            self.of_task = np.concatenate([self.of_task, np.full(missing, ABSENT, np.int64)])


ROOM: Final = DIMENSIONS + 1
"""Number of columns of room: the resources, then places."""
PLACES: Final = DIMENSIONS
"""The column of places for tasks."""

Verdicts = npt.NDArray[np.int8]


class Fit(IntEnum):
    """The verdict on a task and a subtree; TaskFitIndication_t of the listing."""

    NEVER = 0
    SOMETIMES = 1
    ALWAYS = 2


class Room(NamedTuple):
    """Free room below each row, both arrays of shape (rows, ROOM); infinity stands for unknown."""

    least: Floats
    most: Floats


def gather_room(steps: list[Steps], ends: Ints, free: Floats) -> Room:
    """Return the least and the greatest room of every row, computed from the room at ``ends``.

    ``ends`` are the rows at which admission stops. Rows without an end below them have a greatest room of
    minus infinity, so that nothing fits there.
    """
    least = np.full((len(free), ROOM), np.inf)
    most = np.full((len(free), ROOM), -np.inf)
    least[ends] = most[ends] = free[ends]
    least_up(steps, least)
    most_up(steps, most)
    return Room(least, most)


def fit_verdicts(room: Room, request: Floats) -> Verdicts:
    """Return TaskFitsUnderResourceAggregate for all rows at once; ``request`` has shape (ROOM,)."""
    never = (request > room.most).any(axis=1)
    always = (request <= room.least).all(axis=1)
    return np.where(never, Fit.NEVER, np.where(always, Fit.ALWAYS, Fit.SOMETIMES)).astype(np.int8)


def maximal_subtrees(steps: list[Steps], root: int, fits: Verdicts) -> Ints:
    """Return the heads of the largest subtrees in which a task fits everywhere (Listing 7.1), ascending.

    The search descends only below rows where the task fits sometimes. It selects a row where the task always
    fits, and skips a row where the task never fits, together with everything below.
    """
    visited = np.zeros(len(fits), np.bool_)
    visited[root] = True
    for step in reversed(steps):
        opened = visited[step.above] & (fits[step.above] == Fit.SOMETIMES)
        visited[step.children[opened]] = True
    return np.flatnonzero(visited & (fits == Fit.ALWAYS))


def rows_below(steps: list[Steps], heads: Ints, rows: int) -> Flags:
    """Return True for the rows that are one of ``heads`` or below one, shape (rows,)."""
    covered = np.zeros(rows, np.bool_)
    covered[heads] = True
    for step in reversed(steps):
        covered[step.children] |= covered[step.above]
    return covered


def select_heads(
    state: ClusterState, heads: Ints, costs: Ints, wanted: int, room: Room, request: Floats
) -> Ints:
    """Return the indices of the ``heads`` that get an arc, the cheapest first (§7.3.1, §7.3.3).

    There are at most ``wanted`` indices, because that is the number of waiting tasks. Each arc may carry a
    task, so the number of arcs into one machine is limited to the number of tasks that fit there together.
    """
    order = np.lexsort((heads, costs))
    table = state.resources
    inside = table.level[heads[order]] > Level.MACHINE
    machine = np.where(inside, table.machine[heads[order]], -1 - np.arange(len(order)))
    together = (1 + _earlier(machine))[:, None] * request[:DIMENSIONS]
    fits = (together <= room.least[heads[order], :DIMENSIONS]).all(axis=1)
    chosen: Ints = order[fits | ~inside][:wanted]
    return chosen


def promised_room(state: ClusterState, ends: Ints, covered: Flags, heads: Ints, demand: Floats) -> Floats:
    """Return the room that arcs to ``heads`` may use at each end, shape (rows, ROOM): one task for each arc.

    Resources belong to the machine, so an arc into a machine reduces the room of all its leaves. Places are
    not promised, because the capacity of a leaf's arc to the sink limits them.
    """
    table = state.resources
    rows = len(covered)
    arcs_into = np.zeros(rows)
    inside = heads[table.level[heads] > Level.MACHINE]
    np.add.at(arcs_into, table.machine[inside], 1.0)
    # A machine below an aggregate, or one that is itself a head, gets one task over the arc to the head.
    machines = table.machine[ends]
    taken = np.zeros((rows, ROOM))
    taken[ends, :DIMENSIONS] = (arcs_into[machines] + covered[machines])[:, None] * demand
    return taken


def _earlier(groups: Ints) -> Ints:
    """Return for each element the number of earlier elements of the same group, shape (n,)."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(groups) else np.zeros(0, np.bool_)
    begins = np.flatnonzero(first)
    counts = np.arange(len(groups)) - np.repeat(begins, np.diff(np.append(begins, len(groups))))
    earlier = np.zeros(len(groups), np.int64)
    earlier[order] = counts
    return earlier


class Occupancy:
    """The running tasks and their places in this round, as columns. One instance serves all classes."""

    def __init__(self, state: ClusterState, ranks: Ints) -> None:
        """Read the running tasks. ``ranks`` is the priority dimension of each row of the task table."""
        tasks, table = state.tasks, state.resources
        self.state = state
        self.rows: Ints = running_tasks(state)
        self.machine: Ints = tasks.machine[self.rows]
        leaf = tasks.leaf[self.rows]
        self.leaf: Ints = np.where(leaf == ABSENT, self.machine, leaf)
        self.rank: Ints = ranks[self.rows]
        self.restartable = tasks.restartable[self.rows]
        self.at_leaf: Ints = np.bincount(self.leaf, minlength=len(table.id))
        usage, demand = tasks.usage[self.rows], tasks.demand[self.rows]
        # A task without a measurement will probably use about the amount that it requested.
        measured: Flags = np.any(usage > 0, axis=1)
        self.usage: Floats = np.where(measured[:, None], usage, demand)
        self.used: Floats = self._by_machine(self.usage)

    def _by_machine(self, values: Floats) -> Floats:
        rows = len(self.state.resources.id)
        sums = [
            np.bincount(self.machine, weights=values[:, dimension], minlength=rows)
            for dimension in range(DIMENSIONS)
        ]
        return np.column_stack(sums)

    def free(self, ends: Ints, kind: int) -> Floats:
        """Return the room at ``ends`` (leaves or machines) for tasks of a kind, shape (rows, ROOM).

        Machines that take no tasks have a room of minus infinity. A capacity of 0 means unknown and counts as
        unlimited.
        """
        table = self.state.resources
        machines = table.machine[ends]
        taken = table.reserved if kind == Kind.SERVICE else self.used
        capacity = table.capacity[machines]
        room = np.zeros((len(table.id), ROOM))
        room[ends, :DIMENSIONS] = np.where(capacity > 0, capacity - taken[machines], np.inf)
        below_machine = table.level[ends] > Level.MACHINE
        running = np.where(below_machine, self.at_leaf[ends], table.running[ends])
        room[ends, PLACES] = table.slots[ends] - running
        room[ends[~table.usable[machines]]] = -np.inf
        return room

    def preemptible(self, ends: Ints, rank: int) -> Floats:
        """Return the room that displacing a task less important than ``rank`` frees, shape (rows, ROOM).

        Only full ends have such room. The solver chooses the less important, restartable task that an arrival
        displaces. The result is the smallest demand of these tasks in each resource, because at least that
        much becomes free. No task is displaced where places are free.
        """
        table = self.state.resources
        rows = len(table.id)
        victims = self.restartable & (self.rank > rank)
        at = self.leaf if (table.level[ends] > Level.MACHINE).any() else self.machine
        least = np.full((rows, DIMENSIONS), np.inf)
        demand = self.state.tasks.demand[self.rows]
        for dimension in range(DIMENSIONS):
            np.minimum.at(least[:, dimension], at[victims], demand[victims, dimension])
        taken = np.where(table.is_leaf, self.at_leaf, table.running)
        full = np.zeros(rows, np.bool_)
        full[ends] = (taken[ends] >= table.slots[ends]) & table.usable[table.machine[ends]]
        full &= np.isfinite(least[:, 0])
        given = np.zeros((rows, ROOM))
        given[full, :DIMENSIONS] = least[full]
        given[full, PLACES] = 1 + np.maximum(taken[full] - table.slots[full], 0)
        return given

    def surplus(self) -> Ints:
        """Return the rows of batch tasks to stop because their machines are overloaded (§7.3.1).

        The least important tasks stop first, among these the ones that started last. No more tasks stop than
        are needed to remove the overload.
        """
        table, tasks = self.state.resources, self.state.tasks
        machines = table.at(Level.MACHINE)
        capacity = table.capacity[machines]
        over = np.where(capacity > 0, self.used[machines] - capacity, 0.0)
        stopped: list[int] = []
        kinds = self.state.jobs.kind[tasks.job[self.rows]]
        may_stop = self.restartable & (kinds == Kind.BATCH)
        for machine, excess in zip(
            machines[(over > 0).any(axis=1)], over[(over > 0).any(axis=1)], strict=True
        ):
            here = np.flatnonzero(may_stop & (self.machine == machine))
            here = here[np.lexsort((-tasks.since[self.rows[here]], -self.rank[here]))]
            left = excess
            for victim in here:
                if (left <= 0).all():
                    break
                if (self.usage[victim][left > 0] > 0).any():
                    stopped.append(int(self.rows[victim]))
                    left = left - self.usage[victim]
        return np.array(sorted(stopped), np.int64)


_CLASSES_PER_ROUND: Final = 64
"""The most classes admitted in a round, each at the cost of one pass over the tree. The others come later."""
_LEAVES_MAX: Final = 50_000
"""Above this number of leaves, admission stops at machines, so that a pass takes a few milliseconds."""
_UNSCHEDULED: Final = (PRIORITY_WORST + 1) * PRIORITY_STEP
"""Waiting costs more than any place, for every priority."""
WAVES: Final = ("machine", "aggregate")


class CocoModel(BaseModel):
    """One task per class and round for each machine (or aggregate), where it fits and disturbs least."""

    name = "coco"
    summary = "strict resource fit and priorities, interference classes, balanced load (thesis 7.3)"

    def __init__(
        self,
        *,
        weights: str = "1,1,1,1,1,1,1",
        wave: str = "machine",
        per_second: int = 10,
        threads: bool = True,
        slow_downs: str = "",
    ) -> None:
        """Create a model.

        Args:
            weights: of CPU, memory, network, disk, machine type, interference and locality, each 0 to 1.
            wave: "machine" lets a class send one task to each machine of an aggregate in a round;
                "aggregate" only one to the whole aggregate, as the thesis does.
            per_second: the cost that a second of waiting adds, up to a limit below one priority step.
            threads: True if admission looks below machines.
            slow_downs: measured slow-downs in place of ``PENALTIES``, see ``models.slow_downs``.

        Raises:
            BadModelError: a parameter is out of range.
        """
        not_negative(self.name, per_second=per_second)
        if wave not in WAVES:
            raise BadModelError(f"model coco: wave is {wave!r}; it must be machine or aggregate")
        try:
            self.weights: Floats = weights_of(tuple(float(word) for word in weights.split(",")))
        except (ValueError, InvalidError) as error:
            raise BadModelError(f"model coco: {error}") from None
        self.wave, self.per_second, self.threads = wave, per_second, threads
        measured = parse_slow_downs(self.name, slow_downs)
        self.penalties: Floats = PENALTIES if measured is None else penalties_of(measured)
        self.inside = threads
        self.classes = TaskClasses()
        self._steps: list[Steps] = []
        self._round: _CocoRound | None = None
        self._asked_status: Ints = np.zeros(0, np.int64)
        """By task row: the status at the time of the last request for its classes, or -1 before the first."""
        self._largest: Floats = np.zeros(DIMENSIONS)

    # Statistics ---------------------------------------------------------------------------------------

    def begin(self, state: ClusterState) -> None:
        """Update the classes and the numbers of waiting tasks, and drop the data of the last round."""
        self.classes.refresh(state)
        self._steps, self._round = [], None

    def prepare(self, state: ClusterState) -> None:
        """Drop the recorded tree; ``gather`` records it again."""
        self._steps, self._round = [], None

    def gather(self, state: ClusterState, parents: Ints, children: Ints) -> None:
        """Record one level of the tree; room, penalties and idle places are summed up along these arcs."""
        if len(children):
            self._steps.append(steps_of(parents, children))
            self._round = None

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return tasks that began or ceased to wait, and all tasks if the largest machine changed."""
        rows = state.tasks.all()
        rows = rows[rows < len(self._asked_status)]
        rows = rows[self._asked_status[rows] >= 0]
        if (self._largest_of(state) != self._largest).any():
            return rows
        changed: Ints = rows[self._asked_status[rows] != state.tasks.status[rows]]
        return changed

    # Tasks --------------------------------------------------------------------------------------------

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc from each waiting task to its class (Figure 7.3), and none for running tasks."""
        self._record_request(state, tasks)
        self.classes.assign(state, tasks)
        at = np.flatnonzero(state.tasks.status[tasks] == WAITING)
        rows = tasks[at]
        return Options(at, self.classes.of_task[rows], flatten(self._task_vectors(state, rows), self.weights))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return more than any place costs, growing with the waiting time by less than a priority step."""
        waited = self.per_second * state.tasks.waiting_time(tasks, state.now)
        costs: Ints = _UNSCHEDULED + self._unscheduled_base + np.minimum(waited, SMALL_MAX).astype(np.int64)
        return costs

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the priority alone, or more than a stop costs for batch tasks on an overloaded machine."""
        stay = flatten(self._priority_vectors(state, tasks), self.weights)
        surplus = np.isin(tasks, self._now(state).surplus)
        return np.where(surplus, self.task_preemption(state, tasks) + SMALL_MAX, stay)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return a cost so high that only a task of higher priority displaces a running one."""
        return np.full(len(tasks), _UNSCHEDULED + 3 * SMALL_MAX)

    # Aggregates and resources -------------------------------------------------------------------------

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return arcs to the largest subtrees where each class fits, while the room lasts."""
        known = (self.classes.find(int(number)) for number in classes)
        waiting = sorted(
            (task_class for task_class in known if task_class is not None and task_class.waiting),
            key=lambda task_class: (task_class.rank, -task_class.longest, task_class.number),
        )
        now = self._now(state)
        return joined(*(now.admit(task_class) for task_class in waiting[:_CLASSES_PER_ROUND]))

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """Return the load and the expected interference below each child."""
        return self._now(state).arcs[children]

    def resource_capacity(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """Return room for one more task in a round, for each machine or for each aggregate (§7.3.3)."""
        table = state.resources
        slots = table.slots[children]
        level = table.level[children]
        machines = self._now(state).machines[children].astype(np.int64)
        new = np.where(level < Level.MACHINE, machines if self.wave == "machine" else 1, 1)
        # The flow of a running task enters at its leaf and needs no capacity on these arcs.
        most: Ints = np.minimum(new, slots)
        return most

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the dimensions that are not 0 and whether the task fits at the resource."""
        rows = np.array([task])
        self.classes.assign(state, rows)
        mine = self.classes.find(int(self.classes.of_task[task]))
        if mine is None:
            return "the task has no CoCo class"
        vector = self._task_vectors(state, rows)[0] + self._now(state).vector(mine, resource)
        parts = [
            f"{dimension.name.lower().replace('_', ' ')} {vector[dimension]:.0f}"
            for dimension in Dimension
            if vector[dimension]
        ]
        fits = Fit(int(self._now(state).fits(mine)[resource])).name.lower()
        kind = Interference(mine.interference).name.lower()
        return f"{kind}; fits there: {fits}; of {OMEGA} in each dimension: {', '.join(parts) or 'nothing'}"

    # Inside -------------------------------------------------------------------------------------------

    def _now(self, state: ClusterState) -> _CocoRound:
        if self._round is None:
            self._round = _CocoRound(self, state, self._steps or all_steps(state))
        return self._round

    @cached_property
    def _unscheduled_base(self) -> int:
        return int(flatten(unscheduled_vector(), self.weights)[0])

    def worth(self, task_class: TaskClass) -> float:
        """Return the highest cost of a place that a class accepts, without its priority (§7.3).

        It grows with the longest waiting time of the class.
        """
        return self._unscheduled_base + min(self.per_second * task_class.longest, SMALL_MAX)

    def _priority_vectors(self, state: ClusterState, tasks: Ints) -> Floats:
        vectors = np.zeros((len(tasks), VECTOR_DIMENSIONS))
        kinds = state.jobs.kind[state.tasks.job[tasks]]
        vectors[:, Dimension.PRIORITY] = priority_dimension(kinds, state.tasks.priority[tasks])
        return vectors

    def _task_vectors(self, state: ClusterState, tasks: Ints) -> Floats:
        largest = self._largest_of(state)
        shares = state.tasks.demand[tasks] / np.where(largest > 0, largest, np.inf)
        return self._priority_vectors(state, tasks) + capacity_vector(np.minimum(shares, 1.0))

    def _largest_of(self, state: ClusterState) -> Floats:
        """Return the largest capacity of any machine for each resource."""
        machines = state.resources.at(Level.MACHINE)
        largest: Floats = state.resources.capacity[machines].max(axis=0, initial=0.0)
        return largest

    def _record_request(self, state: ClusterState, tasks: Ints) -> None:
        missing = len(state.tasks.id) - len(self._asked_status)
        if missing > 0:
            self._asked_status = np.concatenate([self._asked_status, np.full(missing, -1, np.int64)])
        self._asked_status[tasks] = state.tasks.status[tasks]
        self._largest = self._largest_of(state)


class _CocoRound:
    """The data about machines that a round needs, computed once. Each admission reduces the room."""

    def __init__(self, model: CocoModel, state: ClusterState, steps: list[Steps]) -> None:
        self.model, self.state = model, state
        table = state.resources
        rows = len(table.id)
        leaves = table.leaves()
        self.deep = model.threads and len(leaves) <= _LEAVES_MAX
        self.ends: Ints = leaves if self.deep else table.at(Level.MACHINE)
        self.steps = [step for step in steps if self.deep or table.level[step.children[0]] <= Level.MACHINE]
        tasks = state.tasks
        ranks = priority_dimension(state.jobs.kind[tasks.job], tasks.priority)
        self.occupancy = Occupancy(state, ranks)
        self.surplus = self.occupancy.surplus()
        self.machines: Floats = np.zeros(rows)
        self.machines[table.at(Level.MACHINE)] = 1
        sum_up([step for step in steps if table.level[step.children[0]] <= Level.MACHINE], self.machines)
        self.penalty: Floats = leaf_penalties(
            leaves,
            table.slots[leaves],
            self.occupancy.leaf,
            tasks.interference[self.occupancy.rows],
            rows,
            model.penalties,
        )
        mean_up(steps, self.penalty)
        idle, total = count_places(steps, leaves, table.slots[leaves], self.occupancy.at_leaf)
        scores = self.penalty.mean(axis=1)
        self.disturbance: Floats = normalised_penalties(steps, decayed_penalties(steps, scores, idle, total))
        self.arcs: Ints = flatten(self._tree_vectors(), model.weights)
        self.down: Ints = np.zeros(rows, np.int64)
        """The total cost of the arcs of the tree from the cluster to each row."""
        for step in reversed(steps):
            self.down[step.children] = self.down[step.above] + self.arcs[step.children]
        self.taken: Floats = np.zeros((rows, ROOM))

    def _tree_vectors(self) -> Floats:
        """Return the vectors of the arcs into each row: load (of machines and above) and disturbance."""
        table = self.state.resources
        capacity = np.where(table.capacity > 0, table.capacity, np.inf)
        shares = np.clip(table.reserved / capacity, 0.0, 1.0)
        # All leaves of a machine share its load, which the arc into the machine carries already.
        shares[table.level > Level.MACHINE] = 0.0
        vectors = capacity_vector(shares)
        vectors[:, Dimension.INTERFERENCE] = self.disturbance * OMEGA
        return vectors

    def vector(self, task_class: TaskClass, row: int) -> Floats:
        """Return the resource-specific vector of a row for a class, shape (8,)."""
        vector: Floats = self._tree_vectors()[row]
        vector[Dimension.INTERFERENCE] += self.penalty[row, task_class.interference] * OMEGA
        return vector

    def room(self, task_class: TaskClass) -> Room:
        """Return the least and greatest room of each row for a class, less the promises of this round."""
        free = self.occupancy.free(self.ends, task_class.kind) - self.taken
        if (self.occupancy.rank > task_class.rank).any():
            free += self.occupancy.preemptible(self.ends, task_class.rank)
        return gather_room(self.steps, self.ends, free)

    def request(self, task_class: TaskClass) -> Floats:
        """Return the request of one task: its resources and one place."""
        return np.append(task_class.demand, 1.0)

    def fits(self, task_class: TaskClass) -> Verdicts:
        """Return by row whether a task of the class fits."""
        return fit_verdicts(self.room(task_class), self.request(task_class))

    def admit(self, task_class: TaskClass) -> ClassArcs:
        """Return the arcs of a class, and subtract the room that they may use."""
        room, request = self.room(task_class), self.request(task_class)
        table = self.state.resources
        heads = maximal_subtrees(self.steps, self.state.cluster, fit_verdicts(room, request))
        vectors = np.zeros((len(heads), VECTOR_DIMENSIONS))
        vectors[:, Dimension.INTERFERENCE] = self.penalty[heads, task_class.interference] * OMEGA
        costs = flatten(vectors, self.model.weights) + self.down[heads]
        good = costs <= self.model.worth(task_class)
        heads, costs = heads[good], costs[good]
        chosen = select_heads(self.state, heads, costs, task_class.waiting, room, request)
        heads, costs = heads[chosen], costs[chosen]
        covered = rows_below(self.steps, heads, len(table.id))
        self.taken += promised_room(self.state, self.ends, covered, heads, task_class.demand)
        wide = self.model.wave == "machine"
        capacity = np.where(wide & (table.level[heads] < Level.MACHINE), self.machines[heads], 1)
        capacity = np.minimum(capacity, task_class.waiting).astype(np.int64)
        return ClassArcs(np.full(len(heads), task_class.number), heads, costs, capacity)
