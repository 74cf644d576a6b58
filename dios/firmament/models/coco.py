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

from functools import cached_property
from typing import Final

import numpy as np

from dios.errors import InvalidError
from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.cluster.state import WAITING, ClusterState
from dios.firmament.descriptors import DIMENSIONS as RESOURCES
from dios.firmament.descriptors import Interference, Level
from dios.firmament.models import coco_admission as admission
from dios.firmament.models import coco_interference as interference
from dios.firmament.models.base import BaseModel
from dios.firmament.models.coco_classes import TaskClass, TaskClasses
from dios.firmament.models.coco_room import Occupancy
from dios.firmament.models.coco_vectors import (
    DIMENSIONS,
    OMEGA,
    PRIORITY_STEP,
    PRIORITY_WORST,
    SMALL_MAX,
    Dimension,
    capacity_vector,
    flatten,
    priority_dimension,
    unscheduled_vector,
    weights_of,
)
from dios.firmament.models.cost_terms import BadModelError, joined, not_negative
from dios.firmament.models.protocol import ClassArcs, Options
from dios.firmament.models.resource_tree import Steps, all_steps, mean_up, steps_of, sum_up

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
        self._round: _Round | None = None
        self._asked: Ints = np.zeros(0, np.int64)
        """By task row: the status in which its classes were asked for; -1: never."""
        self._largest: Floats = np.zeros(RESOURCES)

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
        fits = admission.Fit(int(self._now(state).fits(mine)[resource])).name.lower()
        kind = Interference(mine.interference).name.lower()
        return f"{kind}; fits there: {fits}; of {OMEGA} in each dimension: {', '.join(parts) or 'nothing'}"

    # Inside -------------------------------------------------------------------------------------------

    def _now(self, state: ClusterState) -> _Round:
        if self._round is None:
            self._round = _Round(self, state, self._steps or all_steps(state))
        return self._round

    @cached_property
    def _patience(self) -> int:
        return int(flatten(unscheduled_vector(), self.weights)[0])

    def worth(self, task_class: TaskClass) -> float:
        """What a place may cost a class, without its priority: the longer one waits, the more (§7.3)."""
        return self._patience + min(self.per_second * task_class.longest, SMALL_MAX)

    def _priority_vectors(self, state: ClusterState, tasks: Ints) -> Floats:
        vectors = np.zeros((len(tasks), DIMENSIONS))
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


class _Round:
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
        self.penalty: Floats = interference.leaf_penalties(
            leaves, table.slots[leaves], self.occupancy.leaf, tasks.interference[self.occupancy.rows], rows
        )
        mean_up(steps, self.penalty)
        idle, total = interference.places(steps, leaves, table.slots[leaves], self.occupancy.at_leaf)
        scores = self.penalty.mean(axis=1)
        self.disturbance: Floats = interference.normalised(
            steps, interference.decayed(steps, scores, idle, total)
        )
        self.arcs: Ints = flatten(self._tree_vectors(), model.weights)
        self.down: Ints = np.zeros(rows, np.int64)
        """What all arcs of the tree from the cluster to a row cost together."""
        for step in reversed(steps):
            self.down[step.children] = self.down[step.above] + self.arcs[step.children]
        self.taken: Floats = np.zeros((rows, admission.ROOM))

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

    def room(self, task_class: TaskClass) -> admission.Room:
        """Least and greatest room of every row for a class, after what was promised in this round."""
        free = self.occupancy.free(self.ends, task_class.kind) - self.taken
        if (self.occupancy.rank > task_class.rank).any():
            free += self.occupancy.preemptible(self.ends, task_class.rank)
        return admission.gathered(self.steps, self.ends, free)

    def request(self, task_class: TaskClass) -> Floats:
        """What a task asks for: its resources and one place."""
        return np.append(task_class.demand, 1.0)

    def fits(self, task_class: TaskClass) -> admission.Verdicts:
        """Where a task of the class fits, by row."""
        return admission.verdicts(self.room(task_class), self.request(task_class))

    def admit(self, task_class: TaskClass) -> ClassArcs:
        """The arcs of a class, and the promise that goes with them."""
        room, request = self.room(task_class), self.request(task_class)
        table = self.state.resources
        heads = admission.maximal_subtrees(self.steps, self.state.cluster, admission.verdicts(room, request))
        vectors = np.zeros((len(heads), DIMENSIONS))
        vectors[:, Dimension.INTERFERENCE] = self.penalty[heads, task_class.interference] * OMEGA
        costs = flatten(vectors, self.model.weights) + self.down[heads]
        good = costs <= self.model.worth(task_class)
        heads, costs = heads[good], costs[good]
        chosen = admission.selected(self.state, heads, costs, task_class.waiting, room, request)
        heads, costs = heads[chosen], costs[chosen]
        covered = admission.below(self.steps, heads, len(table.id))
        self.taken += admission.promised(self.state, self.ends, covered, heads, task_class.demand)
        wide = self.model.wave == "machine"
        capacity = np.where(wide & (table.level[heads] < Level.MACHINE), self.machines[heads], 1)
        capacity = np.minimum(capacity, task_class.waiting).astype(np.int64)
        return ClassArcs(np.full(len(heads), task_class.number), heads, costs, capacity)
