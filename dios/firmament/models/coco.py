"""CoCo, the coordinated co-location model (§7.3): strict fit, strict priorities, little interference.

For: clusters that are shared by work of several kinds, whose needs are declared. It looks down to hardware
threads where machines tell of them.
Not for: work whose needs nobody knows (the Whare models learn), and not for placing large jobs at once: tasks
come in waves, as the thesis has it.

How it differs from the text: costs down the tree are added to the arcs of classes that enter below the
cluster, so that entering deeper is no cheaper; and classes are admitted in order of priority and waiting,
which the thesis proposes in §8.2.1. The dimension of data locality is carried and is 0, as in §7.3.2.
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
"""Ω, the largest value of a dimension: fine enough to tell 0.1 % of a machine."""

CAPACITY_DIMENSIONS: Final = (Dimension.CPU, Dimension.MEMORY, Dimension.DISK_IO, Dimension.NETWORK)
"""Where the columns of ``Resources`` stand in a cost vector, in their order."""

_ARCS_MAX: Final = 8
"""Arcs on a task's path that carry a vector: two from the task on, six levels of the tree."""
SMALL_MAX: Final = _ARCS_MAX * VECTOR_DIMENSIONS * OMEGA
"""More than a path can cost without its priority: d x Ω on each arc."""
PRIORITY_STEP: Final = 5 * SMALL_MAX
"""What one step of priority weighs. The thesis' d x Ω holds for one arc; here for whole paths, for the
growing cost of waiting and for the resistance of what runs, which are three more of that size."""

_LEVELS: Final = 256
PRIORITY_WORST: Final = 2 * _LEVELS - 1
"""The priority dimension of the least important batch task; 0 is the most important service task."""


def weights_of(given: tuple[float, ...]) -> Floats:
    """The weights w_1 .. w_7 as a vector of eight whose first is 0 (the priority has its step).

    Raises:
        InvalidError: not seven numbers, or one that is not in [0, 1].
    """
    if len(given) != VECTOR_DIMENSIONS - 1 or not all(0 <= each <= 1 for each in given):
        names = ", ".join(each.name.lower() for each in Dimension if each)
        raise InvalidError(f"weights are {given}; seven numbers from 0 to 1 are wanted: {names}")
    return np.array((0.0, *given))


def flatten(vectors: Floats, weights: Floats) -> Ints:
    """Cost vectors of shape (n, 8) as costs of shape (n,): the weighted sum, and the priority on top.

    The seven ordinary dimensions are cut to [0, Ω].
    """
    ordinary = np.clip(vectors[:, 1:], 0, OMEGA) @ weights[1:]
    return (np.rint(ordinary) + vectors[:, Dimension.PRIORITY] * PRIORITY_STEP).astype(np.int64)


def priority_dimension(kinds: Ints, priorities: Ints) -> Ints:
    """The value of the priority dimension, shape (n,): the lower the more important.

    Every service task stands before every batch task, which therefore never displaces it. Priorities
    beyond -128 .. 127 count as the nearest of these.
    """
    half = _LEVELS // 2
    level = np.clip(priorities, -half, half - 1) + half + np.where(kinds == Kind.SERVICE, _LEVELS, 0)
    return PRIORITY_WORST - level


def capacity_vector(shares: Floats) -> Floats:
    """Vectors, shape (n, 8), of shares of the four resources, shape (n, 4), each from 0 to 1."""
    vectors = np.zeros((len(shares), VECTOR_DIMENSIONS))
    vectors[:, list(CAPACITY_DIMENSIONS)] = shares * OMEGA
    return vectors


def unscheduled_vector() -> Floats:
    """The vector on an unscheduled arc, shape (1, 8): Ω where capacity is meant, one in two others."""
    vector = capacity_vector(np.ones((1, len(CAPACITY_DIMENSIONS))))
    vector[0, [Dimension.MACHINE_TYPE, Dimension.INTERFERENCE]] = 1
    return vector


INTERFERENCE_CLASSES: Final = len(Interference)

PENALTIES: Final[Floats] = np.array(
    [
        # beside a turtle, a sheep, a rabbit, a devil
        [0.00, 0.00, 0.05, 0.10],  # a turtle
        [0.00, 0.10, 0.20, 0.80],  # a sheep
        [0.05, 0.20, 0.40, 1.00],  # a rabbit
        [0.10, 0.80, 1.00, 0.50],  # a devil
    ]
)
"""How bad a neighbour (column) is for one that comes (row), 0 to 1. A devil stands badly beside rabbits and
sheep, and middling beside another devil; it is symmetric, because who comes also disturbs."""


def leaf_penalties(leaves: Ints, slots: Ints, at: Ints, classes: Ints, rows: int) -> Floats:
    """The penalty of each leaf for each interference class, shape (rows, 4), 0 to 1; 0 beside leaves.

    Args:
        leaves: rows of the leaves, shape (n,).
        slots: how many tasks each leaf takes, shape (n,).
        at: for each running task the row of its leaf, shape (m,).
        classes: its interference class, shape (m,).
        rows: the length of the table of resources.
    """
    found = np.zeros((rows, INTERFERENCE_CLASSES))
    for mine in range(INTERFERENCE_CLASSES):
        found[:, mine] = np.bincount(at, weights=PENALTIES[mine, classes], minlength=rows)
    scores = np.zeros((rows, INTERFERENCE_CLASSES))
    scores[leaves] = np.minimum(1.0, found[leaves] / np.maximum(slots, 1)[:, None])
    return scores


def decayed_penalties(steps: list[Steps], scores: Floats, idle: Floats, total: Floats) -> Floats:
    """cost(u, w) for each row w: e^((t - i) / t) times the mean of its children's, shape (rows,).

    Args:
        steps: the tree, deepest level first.
        scores: the leaves' own costs, shape (rows,); rows that have children are overwritten.
        idle: i, idle places at or below each row.
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
    """The costs of ``decayed_penalties`` divided by the largest factor at their height: [0, 1] again.

    This is what lets a single leaf's score count for less the further up it is felt.
    """
    height = np.zeros(len(costs))
    for step in steps:
        height[step.parents] = np.maximum(
            height[step.parents], 1 + np.maximum.reduceat(height[step.children], step.starts)
        )
    return costs / np.power(math.e, height)


def count_places(steps: list[Steps], leaves: Ints, slots: Ints, running: Ints) -> tuple[Floats, Floats]:
    """Idle and all places at or below each row, both shape (rows,).

    ``slots`` and ``running`` are those of the leaves; a leaf without slots has no place.
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
    """What all tasks of a class have in common, and how many of them wait."""

    number: int
    demand: Floats
    """Shape (DIMENSIONS,)."""
    kind: int
    rank: int
    """The priority dimension; the lower the more important."""
    interference: int
    waiting: int = 0
    longest: float = 0.0
    """Seconds that the longest waiting of them has waited."""


class TaskClasses:
    """Which class each task is of; classes come with their first task and go with their last."""

    def __init__(self) -> None:
        self.of_task: Ints = np.zeros(0, np.int64)
        """By row of the table of tasks; good for rows whose identifier is in ``_known``."""
        self._known: Ints = np.zeros(0, np.int64)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._classes: dict[int, tuple[tuple[object, ...], TaskClass]] = {}
        self._next = 0

    def find(self, number: int) -> TaskClass | None:
        """A class by its number, if it is there."""
        found = self._classes.get(number)
        return None if found is None else found[1]

    def refresh(self, state: ClusterState) -> None:
        """Take in new tasks, forget empty classes, and count who waits."""
        tasks = state.tasks
        self._grow(len(tasks.id))
        rows = tasks.all()
        # A row may hold another task than the last time; identifiers do not come again.
        self.assign(state, rows[self._known[rows] != tasks.id[rows]])
        for gone in set(self._classes) - set(np.unique(self.of_task[rows]).tolist()):
            key, _ = self._classes.pop(gone)
            del self._numbers[key]
        for _, each in self._classes.values():
            each.waiting, each.longest = 0, 0.0
        waiting = waiting_tasks(state)
        numbers, at, counts = np.unique(self.of_task[waiting], return_inverse=True, return_counts=True)
        longest = np.zeros(len(numbers))
        np.maximum.at(longest, at, tasks.waiting_time(waiting, state.now))
        for number, count, seconds in zip(numbers, counts, longest, strict=True):
            one = self._classes[int(number)][1]
            one.waiting, one.longest = int(count), float(seconds)

    def assign(self, state: ClusterState, rows: Ints) -> None:
        """Find or make the classes of tasks, in one step for all that are alike."""
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
                self._number(tuple(key.tolist()), tasks.demand[rows[one]], *(int(c[one]) for c in whole))
                for key, one in zip(alike, first, strict=True)
            ]
        )
        self.of_task[rows] = numbers[at.reshape(-1)]
        self._known[rows] = tasks.id[rows]

    def _number(self, key: tuple[object, ...], demand: Floats, kind: int, rank: int, mild: int) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._next
            self._next += 1
            self._classes[found] = (key, TaskClass(found, demand.copy(), kind, rank, mild))
        return found

    def _grow(self, length: int) -> None:
        missing = length - len(self._known)
        if missing > 0:
            self._known = np.concatenate([self._known, np.full(missing, ABSENT, np.int64)])
            self.of_task = np.concatenate([self.of_task, np.full(missing, ABSENT, np.int64)])


ROOM: Final = DIMENSIONS + 1
"""Columns of room: the four resources, then places."""
PLACES: Final = DIMENSIONS
"""The column of places for tasks."""

Verdicts = npt.NDArray[np.int8]


class Fit(IntEnum):
    """The listing's TaskFitIndication_t."""

    NEVER = 0
    SOMETIMES = 1
    ALWAYS = 2


class Room(NamedTuple):
    """What is free below each row, both of shape (rows, ROOM); nothing is known as infinity."""

    least: Floats
    most: Floats


def gather_room(steps: list[Steps], ends: Ints, free: Floats) -> Room:
    """Least and greatest room of every row from that at ``ends``, the rows where admission stops.

    Rows without any end below them have a greatest room of minus infinity: nothing fits there.
    """
    least = np.full((len(free), ROOM), np.inf)
    most = np.full((len(free), ROOM), -np.inf)
    least[ends] = most[ends] = free[ends]
    least_up(steps, least)
    most_up(steps, most)
    return Room(least, most)


def fit_verdicts(room: Room, request: Floats) -> Verdicts:
    """TaskFitsUnderResourceAggregate for all rows at once; ``request`` has shape (ROOM,)."""
    never = (request > room.most).any(axis=1)
    always = (request <= room.least).all(axis=1)
    return np.where(never, Fit.NEVER, np.where(always, Fit.ALWAYS, Fit.SOMETIMES)).astype(np.int8)


def maximal_subtrees(steps: list[Steps], root: int, fits: Verdicts) -> Ints:
    """The heads of the largest subtrees in which a task fits everywhere (Listing 7.1), ascending.

    Where it always fits the head is taken and nothing below is looked at; where it never fits nothing
    below is looked at either; else the children are.
    """
    visited = np.zeros(len(fits), np.bool_)
    visited[root] = True
    for step in reversed(steps):
        opened = visited[step.above] & (fits[step.above] == Fit.SOMETIMES)
        visited[step.children[opened]] = True
    return np.flatnonzero(visited & (fits == Fit.ALWAYS))


def rows_below(steps: list[Steps], heads: Ints, rows: int) -> Flags:
    """Which rows are one of ``heads`` or below one, shape (rows,)."""
    covered = np.zeros(rows, np.bool_)
    covered[heads] = True
    for step in reversed(steps):
        covered[step.children] |= covered[step.above]
    return covered


def select_heads(
    state: ClusterState, heads: Ints, costs: Ints, wanted: int, room: Room, request: Floats
) -> Ints:
    """Which of ``heads`` get an arc, as indices into it, the cheapest first (§7.3.1, §7.3.3).

    No more than ``wanted``, for so many tasks come in. Inside of one machine only as many as the machine
    has room for together, because each arc may bring a task.
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
    """What arcs to ``heads`` may take from each end, shape (rows, ROOM): one task over each arc.

    The resources are the machine's, so that an arc into a machine takes from all its leaves. Places are
    not promised: a leaf's arc to the sink holds those.
    """
    table = state.resources
    rows = len(covered)
    arcs_into = np.zeros(rows)
    inside = heads[table.level[heads] > Level.MACHINE]
    np.add.at(arcs_into, table.machine[inside], 1.0)
    # A machine that stands below an aggregate, or is one, gets one task over the arc to it.
    machines = table.machine[ends]
    taken = np.zeros((rows, ROOM))
    taken[ends, :DIMENSIONS] = (arcs_into[machines] + covered[machines])[:, None] * demand
    return taken


def _earlier(groups: Ints) -> Ints:
    """For each element how many before it are of the same group, shape (n,)."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(groups) else np.zeros(0, np.bool_)
    begins = np.flatnonzero(first)
    counts = np.arange(len(groups)) - np.repeat(begins, np.diff(np.append(begins, len(groups))))
    found = np.zeros(len(groups), np.int64)
    found[order] = counts
    return found


class Occupancy:
    """Who runs where in this round, as columns: made once and asked for each class."""

    def __init__(self, state: ClusterState, ranks: Ints) -> None:
        """``ranks``: the priority dimension of each row of the table of tasks."""
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
        # A task that was not measured yet will use about what it asked for.
        measured: Flags = np.any(usage > 0, axis=1)
        self.usage: Floats = np.where(measured[:, None], usage, demand)
        self.used: Floats = self._by_machine(self.usage)

    def _by_machine(self, values: Floats) -> Floats:
        rows = len(self.state.resources.id)
        sums = [
            np.bincount(self.machine, weights=values[:, each], minlength=rows) for each in range(DIMENSIONS)
        ]
        return np.column_stack(sums)

    def free(self, ends: Ints, kind: int) -> Floats:
        """Room at ``ends`` (leaves or machines) for tasks of a kind, shape (rows, ROOM).

        Machines that take nothing have no room at all; a capacity of 0 is not known, and holds anything.
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
        """What the least victim of a task of ``rank`` would give back at full ends, shape (rows, ROOM).

        A task that arrives where all places are taken pushes out one that is less important, which the
        solver chooses; so much room there is at any rate. Where places are free nobody is pushed out.
        """
        table = self.state.resources
        rows = len(table.id)
        victims = self.restartable & (self.rank > rank)
        at = self.leaf if (table.level[ends] > Level.MACHINE).any() else self.machine
        least = np.full((rows, DIMENSIONS), np.inf)
        demand = self.state.tasks.demand[self.rows]
        for each in range(DIMENSIONS):
            np.minimum.at(least[:, each], at[victims], demand[victims, each])
        taken = np.where(table.is_leaf, self.at_leaf, table.running)
        full = np.zeros(rows, np.bool_)
        full[ends] = (taken[ends] >= table.slots[ends]) & table.usable[table.machine[ends]]
        full &= np.isfinite(least[:, 0])
        given = np.zeros((rows, ROOM))
        given[full, :DIMENSIONS] = least[full]
        given[full, PLACES] = 1 + np.maximum(taken[full] - table.slots[full], 0)
        return given

    def surplus(self) -> Ints:
        """Rows of batch tasks to stop because their machines are used beyond what they have (§7.3.1).

        The least important first, of those the ones that started last, and no more than it takes.
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
            for one in here:
                if (left <= 0).all():
                    break
                if (self.usage[one][left > 0] > 0).any():
                    stopped.append(int(self.rows[one]))
                    left = left - self.usage[one]
        return np.array(sorted(stopped), np.int64)


_CLASSES_PER_ROUND: Final = 64
"""Each class costs one pass over the tree; what is left over has waited shorter and comes next time."""
_LEAVES_MAX: Final = 50_000
"""Above so many leaves admission stops at machines, where a pass is some milliseconds."""
_UNSCHEDULED: Final = (PRIORITY_WORST + 1) * PRIORITY_STEP
"""Waiting is dearer than any place, for every priority."""
WAVES: Final = ("machine", "aggregate")


class CocoModel(BaseModel):
    """One task for each machine (or aggregate) and class in a round, where it fits and disturbs least."""

    name = "coco"
    summary = "strict resource fit and priorities, interference classes, balanced load (thesis 7.3)"

    def __init__(
        self,
        *,
        weights: str = "1,1,1,1,1,1,1",
        wave: str = "machine",
        per_second: int = 10,
        threads: bool = True,
    ) -> None:
        """A model.

        Args:
            weights: of CPU, memory, network, disk, machine type, interference and locality, each 0 to 1.
            wave: "machine" lets a class send one task to each machine of an aggregate in a round;
                "aggregate" only one to the whole aggregate, as the thesis does.
            per_second: what a second of waiting adds to the cost of waiting, up to a bound below priorities.
            threads: whether admission looks below machines.

        Raises:
            BadModelError: a parameter that cannot be meant.
        """
        not_negative(self.name, per_second=per_second)
        if wave not in WAVES:
            raise BadModelError(f"model coco: wave is {wave!r}; it must be machine or aggregate")
        try:
            self.weights: Floats = weights_of(tuple(float(each) for each in weights.split(",")))
        except (ValueError, InvalidError) as error:
            raise BadModelError(f"model coco: {error}") from None
        self.wave, self.per_second, self.threads = wave, per_second, threads
        self.classes = TaskClasses()
        self._steps: list[Steps] = []
        self._round: _CocoRound | None = None
        self._asked: Ints = np.zeros(0, np.int64)
        """By task row: the status in which its classes were asked for; -1: never."""
        self._largest: Floats = np.zeros(DIMENSIONS)

    # Statistics ---------------------------------------------------------------------------------------

    def begin(self, state: ClusterState) -> None:
        """Classes and who waits in them; what was known of machines is out of date."""
        self.classes.refresh(state)
        self._steps, self._round = [], None

    def prepare(self, state: ClusterState) -> None:
        """The tree is told anew by ``gather``."""
        self._steps, self._round = [], None

    def gather(self, state: ClusterState, parents: Ints, children: Ints) -> None:
        """Note one level; least and greatest room, penalties and idle places go up along these arcs."""
        if len(children):
            self._steps.append(steps_of(parents, children))
            self._round = None

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Those that began or ceased to wait, and all when the largest machine is another one."""
        rows = state.tasks.all()
        rows = rows[rows < len(self._asked)]
        rows = rows[self._asked[rows] >= 0]
        if (self._largest_of(state) != self._largest).any():
            return rows
        changed: Ints = rows[self._asked[rows] != state.tasks.status[rows]]
        return changed

    # Tasks --------------------------------------------------------------------------------------------

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """A waiting task has an arc to its class (Figure 7.3); one that runs stays or is stopped."""
        self._note_asked(state, tasks)
        self.classes.assign(state, tasks)
        at = np.flatnonzero(state.tasks.status[tasks] == WAITING)
        rows = tasks[at]
        return Options(at, self.classes.of_task[rows], flatten(self._task_vectors(state, rows), self.weights))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """More than any place costs, and more each second, but never so much as a step of priority."""
        waited = self.per_second * state.tasks.waiting_time(tasks, state.now)
        costs: Ints = _UNSCHEDULED + self._patience + np.minimum(waited, SMALL_MAX).astype(np.int64)
        return costs

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """The priority alone; more than being stopped where batch work has to give way to services."""
        stay = flatten(self._priority_vectors(state, tasks), self.weights)
        surplus = np.isin(tasks, self._now(state).surplus)
        return np.where(surplus, self.task_preemption(state, tasks) + SMALL_MAX, stay)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """So much that only a task of higher priority pushes one out."""
        return np.full(len(tasks), _UNSCHEDULED + 3 * SMALL_MAX)

    # Aggregates and resources -------------------------------------------------------------------------

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Arcs to the maximally aggregated subtrees where each class fits, while the room lasts."""
        known = (self.classes.find(int(each)) for each in classes)
        waiting = sorted(
            (each for each in known if each is not None and each.waiting),
            key=lambda each: (each.rank, -each.longest, each.number),
        )
        now = self._now(state)
        return joined(*(now.admit(each) for each in waiting[:_CLASSES_PER_ROUND]))

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """Load and expected interference of what is below."""
        return self._now(state).arcs[children]

    def resource_capacity(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """One task more in a round: for each machine, or for each aggregate (§7.3.3)."""
        table = state.resources
        slots = table.slots[children]
        level = table.level[children]
        machines = self._now(state).machines[children].astype(np.int64)
        new = np.where(level < Level.MACHINE, machines if self.wave == "machine" else 1, 1)
        # A running task's flow enters at its leaf, and needs nothing of these arcs.
        most: Ints = np.minimum(new, slots)
        return most

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """The dimensions that are not 0, and the room there."""
        rows = np.array([task])
        self.classes.assign(state, rows)
        mine = self.classes.find(int(self.classes.of_task[task]))
        if mine is None:
            return "CoCo does not know it"
        vector = self._task_vectors(state, rows)[0] + self._now(state).vector(mine, resource)
        parts = [
            f"{each.name.lower().replace('_', ' ')} {vector[each]:.0f}" for each in Dimension if vector[each]
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
    def _patience(self) -> int:
        return int(flatten(unscheduled_vector(), self.weights)[0])

    def worth(self, task_class: TaskClass) -> float:
        """What a place may cost a class, without its priority: the longer one waits, the more (§7.3)."""
        return self._patience + min(self.per_second * task_class.longest, SMALL_MAX)

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
        """The most that one machine has of each resource."""
        machines = state.resources.at(Level.MACHINE)
        largest: Floats = state.resources.capacity[machines].max(axis=0, initial=0.0)
        return largest

    def _note_asked(self, state: ClusterState, tasks: Ints) -> None:
        missing = len(state.tasks.id) - len(self._asked)
        if missing > 0:
            self._asked = np.concatenate([self._asked, np.full(missing, -1, np.int64)])
        self._asked[tasks] = state.tasks.status[tasks]
        self._largest = self._largest_of(state)


class _CocoRound:
    """What a round needs to know of the machines, worked out once; room shrinks with each admission."""

    def __init__(self, model: CocoModel, state: ClusterState, steps: list[Steps]) -> None:
        self.model, self.state = model, state
        table = state.resources
        rows = len(table.id)
        leaves = table.leaves()
        self.deep = model.threads and len(leaves) <= _LEAVES_MAX
        self.ends: Ints = leaves if self.deep else table.at(Level.MACHINE)
        self.steps = [each for each in steps if self.deep or table.level[each.children[0]] <= Level.MACHINE]
        tasks = state.tasks
        ranks = priority_dimension(state.jobs.kind[tasks.job], tasks.priority)
        self.occupancy = Occupancy(state, ranks)
        self.surplus = self.occupancy.surplus()
        self.machines: Floats = np.zeros(rows)
        self.machines[table.at(Level.MACHINE)] = 1
        sum_up([each for each in steps if table.level[each.children[0]] <= Level.MACHINE], self.machines)
        self.penalty: Floats = leaf_penalties(
            leaves, table.slots[leaves], self.occupancy.leaf, tasks.interference[self.occupancy.rows], rows
        )
        mean_up(steps, self.penalty)
        idle, total = count_places(steps, leaves, table.slots[leaves], self.occupancy.at_leaf)
        scores = self.penalty.mean(axis=1)
        self.disturbance: Floats = normalised_penalties(steps, decayed_penalties(steps, scores, idle, total))
        self.arcs: Ints = flatten(self._tree_vectors(), model.weights)
        self.down: Ints = np.zeros(rows, np.int64)
        """What all arcs of the tree from the cluster to a row cost together."""
        for step in reversed(steps):
            self.down[step.children] = self.down[step.above] + self.arcs[step.children]
        self.taken: Floats = np.zeros((rows, ROOM))

    def _tree_vectors(self) -> Floats:
        """The vectors of the arcs into each row: its load, where it has one of its own, and disturbance."""
        table = self.state.resources
        capacity = np.where(table.capacity > 0, table.capacity, np.inf)
        shares = np.clip(table.reserved / capacity, 0.0, 1.0)
        # Inside of a machine its leaves share one load.
        shares[table.level > Level.MACHINE] = 0.0
        vectors = capacity_vector(shares)
        vectors[:, Dimension.INTERFERENCE] = self.disturbance * OMEGA
        return vectors

    def vector(self, task_class: TaskClass, row: int) -> Floats:
        """The resource-specific vector of a row for a class, shape (8,)."""
        vector: Floats = self._tree_vectors()[row]
        vector[Dimension.INTERFERENCE] += self.penalty[row, task_class.interference] * OMEGA
        return vector

    def room(self, task_class: TaskClass) -> Room:
        """Least and greatest room of every row for a class, after what was promised in this round."""
        free = self.occupancy.free(self.ends, task_class.kind) - self.taken
        if (self.occupancy.rank > task_class.rank).any():
            free += self.occupancy.preemptible(self.ends, task_class.rank)
        return gather_room(self.steps, self.ends, free)

    def request(self, task_class: TaskClass) -> Floats:
        """What a task asks for: its resources and one place."""
        return np.append(task_class.demand, 1.0)

    def fits(self, task_class: TaskClass) -> Verdicts:
        """Where a task of the class fits, by row."""
        return fit_verdicts(self.room(task_class), self.request(task_class))

    def admit(self, task_class: TaskClass) -> ClassArcs:
        """The arcs of a class, and the promise that goes with them."""
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
