"""The four policies of Whare-Map (§7.2): machine types, neighbours, or both, by scores that were measured.

For: heterogeneous machines that are shared, and work that recurs. Not for: data and resource demands.

Costs are picoseconds per instruction (§7.2.2). The network is that of Figure 7.2: each task has one arc to
its class TA_c, and that goes on to aggregators MA_m of machine types at Psi(c, m), to single machines at
Xi(c, L_m, m), and to X at alpha. (alpha is the same for all tasks of a class, so one arc from TA_c does
for the thesis' one from each task.)

What is not known is found out: where a class has never run on a type of machine, that type costs a little
less than the best that is known, for at most ``trials`` of its tasks at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import SCORES, Metric
from dios.firmament.models.base import BaseModel
from dios.firmament.models.cost_terms import (
    class_kinds,
    class_members,
    class_numbers,
    joined,
    not_negative,
    running_tasks,
    waiting_tasks,
    whole,
)
from dios.firmament.models.protocol import ClassArcs, Options

CLASSES_MAX = 256
"""So many classes are scored, those with the most tasks: tables of machines and classes stay small."""

RATIO = 1000.0
"""The best score of a class of which only ratios are known."""


@dataclass
class Scores:
    """Tables over C scored classes, T types of machines, and C classes beside; NaN: not known."""

    number: Ints
    """Which row a class of ``ClusterState.equivalences`` has here; ABSENT: it has no profile."""
    mean: Floats
    """Psi(c, t), shape (C, T): among whomever."""
    alone: Floats
    """Shape (C, T)."""
    harm: Floats
    """What each class beside adds, shape (C, T, C); 0 where nothing is known."""
    known: Flags
    """Where ``harm`` is known."""
    position: int = 0
    """The knowledge base's, when this was made."""
    made: float = 0.0
    """The scheduler's time then."""
    present: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The classes that there were then."""


def scores(state: ClusterState, base: KnowledgeBase | None, present: Ints) -> Scores:
    """What the knowledge base says of classes, numbers of ``ClusterState.equivalences``."""
    names = state.equivalences.names
    number = np.full(len(names), ABSENT, np.int64)
    types = state.machine_types.names
    scored: list[tuple[str, Metric]] = []
    for each in present.tolist() if base is not None else ():
        metric = _metric(base, names[each], types)
        if metric is not None and len(scored) < CLASSES_MAX:
            number[each] = len(scored)
            scored.append((names[each], metric))
    size = len(scored)
    mean = np.full((size, len(types)), np.nan)
    alone = mean.copy()
    harm = np.zeros((size, len(types), size))
    known = np.zeros(harm.shape, np.bool_)
    made = Scores(number, mean, alone, harm, known, made=state.now, present=present)
    if base is not None:
        made.position = base.position
        _fill(made, base, scored, types)
    return made


def _metric(base: KnowledgeBase | None, name: str, types: list[str]) -> Metric | None:
    """The first of the metrics that is known on a type of machine here: all of a class is in that one."""
    profiles = [base.profile(name, each) for each in types] if base is not None else []
    found = {scored[0] for each in profiles if each is not None and (scored := each.score())}
    return next((metric for metric in SCORES if metric in found), None)


def _fill(made: Scores, base: KnowledgeBase, scored: list[tuple[str, Metric]], types: list[str]) -> None:
    row_of = {name: row for row, (name, _) in enumerate(scored)}
    column_of = {name: column for column, name in enumerate(types)}
    for row, (name, metric) in enumerate(scored):
        for column, machine_type in enumerate(types):
            profile = base.profile(name, machine_type)
            score = profile.score() if profile is not None else None
            if score is not None and score[0] is metric:
                made.mean[row, column] = score[1]
                made.alone[row, column] = base.score_beside(name, (), machine_type) or 0.0
    for task_class, beside, machine_type in list(base.pairs):
        at = row_of.get(task_class), column_of.get(machine_type), row_of.get(beside)
        if at[0] is None or at[1] is None or at[2] is None or np.isnan(made.mean[at[0], at[1]]):
            continue
        together = base.score_beside(task_class, (beside,), machine_type) or 0.0
        made.harm[at] = max(together - made.alone[at[0], at[1]], 0.0)
        made.known[at] = True
    for row, (_, metric) in enumerate(scored):
        if metric is not Metric.PS_PER_INSTRUCTION:
            scale = RATIO / max(float(np.nanmin(made.mean[row])), 1e-9)
            made.mean[row] *= scale
            made.alone[row] *= scale
            made.harm[row] *= scale


def without_types(made: Scores) -> Scores:
    """What a policy knows that cannot tell types apart (Whare-C): the mean over the types."""
    counts = np.maximum(np.count_nonzero(made.known, axis=1, keepdims=True), 1)
    harm = made.harm.sum(axis=1, keepdims=True) / counts
    known = made.known.any(axis=1, keepdims=True)
    return Scores(
        made.number,
        np.broadcast_to(_row_means(made.mean), made.mean.shape),
        np.broadcast_to(_row_means(made.alone), made.alone.shape),
        np.broadcast_to(harm, made.harm.shape),
        np.broadcast_to(known, made.known.shape),
        present=made.present,
    )


def without_affinity(made: Scores) -> Scores:
    """Interference by type, but all types equally good without it (Whare-Cs)."""
    scale = _row_means(made.alone) / np.where(made.alone > 0, made.alone, 1.0)
    scale = np.where(np.isnan(scale), 1.0, scale)
    return Scores(
        made.number,
        made.mean * scale,
        made.alone * scale,
        made.harm * scale[:, :, None],
        made.known,
        present=made.present,
    )


def _row_means(table: Floats) -> Floats:
    """The mean of what is known in each row, as a column; a scored class knows something."""
    known = ~np.isnan(table)
    sums: Floats = np.where(known, table, 0.0).sum(axis=1, keepdims=True)
    return sums / np.maximum(np.count_nonzero(known, axis=1, keepdims=True), 1)


@dataclass(frozen=True)
class Neighbours:
    """Who runs where and what that does, over M machines and C scored classes."""

    machines: Ints
    """Rows, shape (M,)."""
    place: Ints
    """Which of ``machines`` a resource row is."""
    types: Ints
    """Numbers of their types, shape (M,)."""
    counts: Ints
    """Running tasks by class, shape (M, C)."""
    all: Ints
    """Running tasks of any class, shape (M,)."""
    added: Floats
    """What all that run there add to the score of each class, shape (M, C)."""
    informed: Floats
    """Of how many of them that is known, shape (M, C)."""


def neighbours(state: ClusterState, made: Scores, *, effects: bool = True) -> Neighbours:
    """Count who runs where, and with ``effects`` add up what they do."""
    machines = state.resources.at(Level.MACHINE)
    place = np.full(len(state.resources.alive), ABSENT, np.int64)
    place[machines] = np.arange(len(machines))
    running = running_tasks(state)
    at = place[state.tasks.machine[running]]
    row = made.number[state.tasks.equivalence[running]]
    classes = len(made.mean)
    cells = (at * classes + row)[row != ABSENT]
    counts = np.bincount(cells, minlength=len(machines) * classes).reshape(len(machines), classes)
    everybody = np.bincount(at, minlength=len(machines))
    types = state.resources.machine_type[machines]
    there = (counts > 0).astype(np.float64)
    added, informed = np.zeros(counts.shape), np.zeros(counts.shape)
    # One product of matrices for each type: harm is a matter of the type, the class, and who is beside.
    for kind in np.unique(types).tolist() if classes and effects else ():
        mine = types == kind
        added[mine] = there[mine] @ made.harm[:, kind, :].T
        informed[mine] = there[mine] @ made.known[:, kind, :].T.astype(np.float64)
    return Neighbours(machines, place, types, counts, everybody, added, informed)


def beside(made: Scores, around: Neighbours, rows: Ints, places: Ints, itself: int) -> Floats:
    """Xi(c, L_m, c_m) of classes at machines; as ``KnowledgeBase.score_beside`` has it.

    Args:
        made: the scores.
        around: who runs where.
        rows: rows of classes in ``made``, shape (n,).
        places: indices of machines in ``around``, shape (n,).
        itself: how many of the tasks there are not beside but the very task that is asked about: 0 or 1.

    Returns:
        Scores, shape (n,); NaN where the class was never seen on that type of machine.
    """
    types = around.types[places]
    # Who is the only one of its class there does nothing to itself.
    single = (around.counts[places, rows] == itself) & (itself > 0)
    added = around.added[places, rows] - np.where(single, made.harm[rows, types, rows], 0.0)
    informed = around.informed[places, rows] - (single & made.known[rows, types, rows])
    alone = made.alone[rows, types]
    among = np.where(informed > 0.5, alone + added, made.mean[rows, types])
    found: Floats = np.where(around.all[places] == itself, alone, among)
    return found


TASKS = 1
"""The kind of class TA_c."""
MACHINES = 2
"""The kind of class MA_m."""


class _View(NamedTuple):
    """What a round looks at."""

    scores: Scores
    around: Neighbours
    worst: Floats
    """Alpha by class of ``ClusterState.equivalences``."""
    average: Floats
    """The lower bound of the cost of waiting, likewise."""


class WhareModel(BaseModel):
    """What the four have in common.

    Args:
        omega: cost of a second of waiting, in picoseconds per instruction.
        theta: what each second that a task ran takes off the cost of staying.
        unknown: the score of a class of which nothing is known.
        trials: how many tasks of a class may try a type of machine at once that it never ran on.
        arcs: the most arcs from one class to single machines.
        load: cost of a machine that is full against an empty one, on MA -> M (0: as in the thesis).
        refresh: new scores are looked at after so many seconds.

    Raises:
        BadModelError: a value is out of range.
    """

    by_type = True
    """Whether types of machines are told apart: arcs to MA_m."""
    by_neighbours = True
    """Whether neighbours matter: arcs to machines."""

    def __init__(
        self,
        *,
        omega: int = 10,
        theta: int = 10,
        unknown: int = 1000,
        trials: int = 2,
        arcs: int = 1000,
        load: int = 0,
        refresh: float = 5.0,
    ) -> None:
        not_negative(
            self.name,
            omega=omega,
            theta=theta,
            unknown=unknown,
            trials=trials,
            arcs=arcs,
            load=load,
            refresh=refresh,
        )
        self.omega = omega
        self.theta = theta
        self.unknown = unknown
        self.trials = trials
        self.arcs = arcs
        self.load = load
        self.refresh = refresh
        self._scores: Scores | None = None
        self._seen: _View | None = None

    def policy(self, made: Scores) -> Scores:
        """What of the scores this policy looks at."""
        return made

    def begin(self, state: ClusterState) -> None:
        """Who runs where is counted again."""
        self._seen = None

    def _view(self, state: ClusterState) -> _View:
        if self._seen is None:
            made = self.policy(self._current(state))
            around = neighbours(state, made, effects=self.by_neighbours)
            self._seen = _View(made, around, *self._bounds(state, made, around))
        return self._seen

    def _current(self, state: ClusterState) -> Scores:
        """The scores, at most ``refresh`` seconds old."""
        known = self._scores
        present, count = np.unique(state.tasks.equivalence[state.tasks.all()], return_counts=True)
        if (
            known is None
            or len(known.number) < len(state.equivalences)
            or known.mean.shape[1] < len(state.machine_types)
            or not np.isin(present, known.present).all()
            or (
                state.knowledge is not None
                and known.position != state.knowledge.position
                and not 0 <= state.now - known.made < self.refresh
            )
        ):
            known = self._scores = scores(state, state.knowledge, present[np.argsort(-count, kind="stable")])
        return known

    def _bounds(self, state: ClusterState, made: Scores, around: Neighbours) -> tuple[Floats, Floats]:
        """Alpha and the average score of each class (§7.2.2)."""
        worst = np.full(len(state.equivalences), float(self.unknown))
        average = worst.copy()
        scored = np.flatnonzero(made.number != ABSENT)
        if len(scored) == 0:
            return worst, average
        # By row of the scores; a scored class is known on some type.
        rows = made.number[scored]
        worst[scored] = np.nanmax(made.mean[rows], axis=1)
        average[scored] = np.nanmean(made.mean[rows], axis=1)
        if self.by_neighbours and len(around.machines):
            every = np.arange(len(around.machines))
            here = beside(made, around, rows[:, None], every[None, :], 0)
            seen = ~np.isnan(here)
            count = seen.sum(axis=1)
            sums = np.where(seen, here, 0.0).sum(axis=1)
            average[scored] = np.where(count > 0, sums / np.maximum(count, 1), average[scored])
            worst[scored] = np.maximum(worst[scored], np.where(seen, here, 0.0).max(axis=1))
        return worst, average

    # Tasks ------------------------------------------------------------------------------------------

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """T -> TA_c, for nothing."""
        classes = class_numbers(TASKS, state.tasks.equivalence[tasks])
        return Options(np.arange(len(tasks)), classes, np.zeros(len(tasks), np.int64))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Omega a second, and never below the average score; one more, so that a tie means a place."""
        average = self._view(state).average[state.tasks.equivalence[tasks]]
        return whole(np.maximum(self.omega * state.tasks.waiting_time(tasks, state.now), average)) + 1

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Gamma: the score where it runs, less a discount for all the time that it has run."""
        view = self._view(state)
        cost = np.full(len(tasks), float(self.unknown))
        rows = view.scores.number[state.tasks.equivalence[tasks]]
        places = view.around.place[state.tasks.machine[tasks]]
        known = np.flatnonzero(rows != ABSENT)
        cost[known] = self._here(view, rows[known], places[known])
        return whole(cost - self.theta * state.tasks.running_time(tasks, state.now))

    def _here(self, view: _View, rows: Ints, places: Ints) -> Floats:
        """The scores of running tasks where they are; the class's mean where that is not known."""
        if self.by_neighbours:
            here = beside(view.scores, view.around, rows, places, 1)
        else:
            here = view.scores.mean[rows, view.around.types[places]]
        unknown = np.isnan(here)
        here[unknown] = np.nanmean(view.scores.mean[rows[unknown]], axis=1)
        return here

    # Classes ----------------------------------------------------------------------------------------

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """TA_c -> MA_m at Psi(c, m); what was never tried a little below the best, for few at a time."""
        view = self._view(state)
        members = class_members(classes[class_kinds(classes) == TASKS])
        if not self.by_type or len(members) == 0:
            return joined()
        types, place = np.unique(view.around.types, return_inverse=True)
        slots = np.zeros(len(types), np.int64)
        np.add.at(slots, place, state.resources.slots[view.around.machines])
        psi, tried = self._psi(view, members, types)
        trying = self._running_by_type(state, members, types)
        capacity = np.where(tried, slots, np.maximum(self.trials - trying, 0))
        source = np.repeat(class_numbers(TASKS, members), len(types))
        target = np.tile(class_numbers(MACHINES, types), len(members))
        return ClassArcs(source, target, whole(psi.ravel()), capacity.ravel())

    def _psi(self, view: _View, members: Ints, types: Ints) -> tuple[Floats, Flags]:
        """Psi of classes by type of machine, and where it was measured; shape (classes, types)."""
        rows = view.scores.number[members]
        psi = np.full((len(members), len(types)), float(self.unknown))
        tried = np.zeros(psi.shape, np.bool_)
        scored = np.flatnonzero(rows != ABSENT)
        if len(scored):
            mean = view.scores.mean[rows[scored]]
            tried[scored] = ~np.isnan(mean[:, types])
            best = np.maximum(np.nanmin(mean, axis=1) - 1.0, 0.0)
            psi[scored] = np.where(tried[scored], mean[:, types], best[:, None])
        return psi, tried

    def _running_by_type(self, state: ClusterState, members: Ints, types: Ints) -> Ints:
        """How many tasks of each class run on each type, shape (classes, types)."""
        running = running_tasks(state)
        kind = state.resources.machine_type[state.tasks.machine[running]]
        equivalence = state.tasks.equivalence[running]
        width = max(len(state.machine_types), 1)
        cells = np.bincount(equivalence * width + kind, minlength=len(state.equivalences) * width)
        return cells.reshape(-1, width)[np.ix_(members, types)].astype(np.int64)

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """MA_m -> machines of the type; TA_c -> the best machines at Xi; TA_c -> X at alpha."""
        view = self._view(state)
        kinds, members = class_kinds(classes), class_members(classes)
        tasks = members[kinds == TASKS]
        anywhere = ClassArcs(
            class_numbers(TASKS, tasks),
            np.full(len(tasks), state.cluster),
            whole(view.worst[tasks]),
            np.full(len(tasks), state.resources.slots[state.cluster]),
        )
        parts = [anywhere, self._of_types(state, view, members[kinds == MACHINES])]
        if self.by_neighbours:
            waiting = waiting_tasks(state)
            wanted = np.bincount(state.tasks.equivalence[waiting], minlength=len(state.equivalences))
            some = tasks[wanted[tasks] > 0]
            parts += [self._of_neighbours(state, view, each, int(wanted[each])) for each in some.tolist()]
        return joined(*parts)

    def _of_types(self, state: ClusterState, view: _View, types: Ints) -> ClassArcs:
        table, around = state.resources, view.around
        usable = table.usable[around.machines]
        chosen = usable & np.isin(around.types, types)
        machines = around.machines[chosen]
        slots = table.slots[machines]
        load = whole(self.load * table.running[machines] / np.maximum(slots, 1))
        return ClassArcs(class_numbers(MACHINES, around.types[chosen]), machines, load, slots)

    def _of_neighbours(self, state: ClusterState, view: _View, number: int, wanted: int) -> ClassArcs:
        """Arcs to the ``wanted`` best machines with room, one task each: Xi is about who is there now."""
        row = int(view.scores.number[number])
        table, around = state.resources, view.around
        most = min(wanted, self.arcs)
        if row == ABSENT or most == 0:
            return joined()
        machines = around.machines
        room = table.usable[machines] & (table.running[machines] < table.slots[machines])
        places = np.flatnonzero(room)
        cost = beside(view.scores, around, np.full(len(places), row), places, 0)
        good = np.flatnonzero(~np.isnan(cost))
        order = good[np.argsort(cost[good], kind="stable")][:most]
        source = np.full(len(order), class_numbers(TASKS, np.array([number]))[0])
        ones = np.ones(len(order), np.int64)
        return ClassArcs(source, machines[places[order]], whole(cost[order]), ones)

    # For people -------------------------------------------------------------------------------------

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """The scores that the cost is made of."""
        # The task may have come after the last round.
        self.begin(state)
        view = self._view(state)
        number = int(state.tasks.equivalence[task])
        name = state.equivalences.names[number]
        row = int(view.scores.number[number])
        machine = int(state.resources.machine[resource])
        if row == ABSENT:
            return f"nothing was measured of class {name!r} yet: every place costs {self.unknown}"
        if machine == ABSENT:
            return f"class {name!r} at its worst place: {view.worst[number]:.0f} ps per instruction"
        place = view.around.place[[machine]]
        here = int(state.tasks.machine[task] == machine)
        kind = state.machine_types.names[int(view.around.types[place[0]])]
        parts: list[str] = []
        if self.by_type:
            parts.append(f"{_score(view.scores.mean[row, view.around.types[place[0]]])} on type {kind!r}")
        if self.by_neighbours:
            others = int(view.around.all[place[0]]) - here
            among = float(beside(view.scores, view.around, np.array([row]), place, here)[0])
            parts.append(f"{_score(among)} beside the {others} others that run there")
        return f"class {name!r} in ps per instruction: {', '.join(parts)}"


def _score(value: float) -> str:
    return "not known" if np.isnan(value) else f"{value:.0f}"


class WhareM(WhareModel):
    """Affinity to types of machines alone."""

    name = "whare-m"
    summary = "types of machines, by measured instructions per second (section 7.2)"
    by_neighbours = False


class WhareC(WhareModel):
    """Co-location alone; types of machines are not told apart."""

    name = "whare-c"
    summary = "co-location interference, whatever the machine (section 7.2)"
    by_type = False

    def policy(self, made: Scores) -> Scores:
        """The mean over all types."""
        return without_types(made)


class WhareCs(WhareModel):
    """Co-location by type of machine, without preferring a type for itself."""

    name = "whare-cs"
    summary = "co-location interference by type of machine (section 7.2)"
    by_type = False

    def policy(self, made: Scores) -> Scores:
        """All types are alike for a task that is alone."""
        return without_affinity(made)


class WhareMCs(WhareModel):
    """Both: affinity to types, and co-location by type."""

    name = "whare-mcs"
    summary = "types of machines and co-location interference together (section 7.2)"
