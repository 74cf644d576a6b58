"""The four policies of Whare-Map (§7.2): measured costs by machine type, by neighbours, or by both.

Whare suits shared, heterogeneous clusters with recurring work. It ignores input data and resource demands.

Costs are slow-downs in thousandths: 1,000 is a task of its class on its best machine, undisturbed. They are
computed from picoseconds per instruction (§7.2.2), which the thesis adds up as they are (``relative=False``).
The network is that of Figure 7.2. Each task has one arc to
its class TA_c. Arcs lead from there to the aggregators MA_m of machine types at Psi(c, m), to single machines
at Xi(c, L_m, m), and to X at alpha. (The thesis has an arc to X for each task. Alpha is the same for all
tasks of a class, so one arc from TA_c replaces these.)

Three parameters go beyond the thesis, and by default they are on. Costs are ``relative``. A place also costs
the harm to the tasks that run there (``mutual``), because Whare-Map's search minimises the sum over all
tasks. At most ``wave`` tasks reach a machine through its type in one round: Psi is a mean that does not see
the other tasks of the round. ``docs/experiments.md#firmament`` compares the variants.

The policies explore unknown combinations. A type of machine on which a class never ran costs slightly less
than the best known type, for at most ``trials`` tasks of the class at a time.
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
from dios.firmament.models.slow_downs import excess, parse_slow_downs

CLASSES_MAX = 256
"""The most classes with scores; a limit keeps the tables small. Classes with the most tasks come first."""

RATIO = 1000.0
"""The best score of a class without measurements in picoseconds; its ratios are scaled to this."""


@dataclass
class Scores:
    """Tables over C scored classes, T types of machines, and C classes of neighbours; NaN means unknown."""

    number: Ints
    """The row of each class of ``ClusterState.equivalences`` in these tables, or ABSENT without a profile."""
    mean: Floats
    """Psi(c, t), shape (C, T): the score with any neighbours."""
    alone: Floats
    """The score without neighbours, shape (C, T)."""
    harm: Floats
    """The amount that each class of neighbours adds, shape (C, T, C); 0 where unknown."""
    known: Flags
    """Flags: True for the elements of ``harm`` that are measured, or assumed by a parameter."""
    position: int = 0
    """The position of the knowledge base when the tables were made."""
    computed_at: float = 0.0
    """The scheduler's time when the tables were made."""
    present: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The classes with tasks when the tables were made."""


def scores(
    state: ClusterState, base: KnowledgeBase | None, present: Ints, *, relative: bool = False
) -> Scores:
    """Return the knowledge base's scores of the classes ``present`` (numbers of ``state.equivalences``).

    With ``relative``, the least score of each class without neighbours becomes ``RATIO``.
    """
    names = state.equivalences.names
    number = np.full(len(names), ABSENT, np.int64)
    types = state.machine_types.names
    scored: list[tuple[str, Metric]] = []
    for class_number in present.tolist() if base is not None else ():
        metric = _metric(base, names[class_number], types)
        if metric is not None and len(scored) < CLASSES_MAX:
            number[class_number] = len(scored)
            scored.append((names[class_number], metric))
    size = len(scored)
    mean = np.full((size, len(types)), np.nan)
    alone = mean.copy()
    harm = np.zeros((size, len(types), size))
    known = np.zeros(harm.shape, np.bool_)
    tables = Scores(number, mean, alone, harm, known, computed_at=state.now, present=present)
    if base is not None:
        tables.position = base.position
        _fill(tables, base, scored, types)
    if relative and size:
        # Scores from different counters have different units, so each class has its own.
        _scale(tables, np.arange(size), RATIO / np.maximum(np.nanmin(alone, axis=1), 1e-9))
    return tables


def _scale(tables: Scores, rows: Ints, factors: Floats) -> None:
    """Multiply all scores of classes by a factor for each class."""
    tables.mean[rows] *= factors[:, None]
    tables.alone[rows] *= factors[:, None]
    tables.harm[rows] *= factors[:, None, None]


def _metric(base: KnowledgeBase | None, name: str, types: list[str]) -> Metric | None:
    """Return the first metric known on any type of machine here, used for the whole class, or None."""
    profiles = [base.profile(name, machine_type) for machine_type in types] if base is not None else []
    metrics = {scored[0] for profile in profiles if profile is not None and (scored := profile.score())}
    return next((metric for metric in SCORES if metric in metrics), None)


def _fill(tables: Scores, base: KnowledgeBase, scored: list[tuple[str, Metric]], types: list[str]) -> None:
    row_of = {name: row for row, (name, _) in enumerate(scored)}
    column_of = {name: column for column, name in enumerate(types)}
    for row, (name, metric) in enumerate(scored):
        for column, machine_type in enumerate(types):
            profile = base.profile(name, machine_type)
            score = profile.score() if profile is not None else None
            if score is not None and score[0] is metric:
                tables.mean[row, column] = score[1]
                tables.alone[row, column] = base.score_beside(name, (), machine_type) or 0.0
    for task_class, neighbour, machine_type in list(base.pairs):
        at = row_of.get(task_class), column_of.get(machine_type), row_of.get(neighbour)
        if at[0] is None or at[1] is None or at[2] is None or np.isnan(tables.mean[at[0], at[1]]):
            continue
        together = base.score_beside(task_class, (neighbour,), machine_type) or 0.0
        tables.harm[at] = max(together - tables.alone[at[0], at[1]], 0.0)
        tables.known[at] = True
    for row, (_, metric) in enumerate(scored):
        if metric is not Metric.PS_PER_INSTRUCTION:
            least = max(float(np.nanmin(tables.mean[row])), 1e-9)
            _scale(tables, np.array([row]), np.array([RATIO / least]))


def _interference_of(state: ClusterState, size: int, number: Ints) -> Ints:
    """Return the class of interference of each scored class, shape (size,): the worst of its tasks."""
    worst = np.zeros(size, np.int64)
    tasks = state.tasks.all()
    rows = number[state.tasks.equivalence[tasks]]
    scored = rows != ABSENT
    np.maximum.at(worst, rows[scored], state.tasks.interference[tasks[scored]])
    return worst


def _assume(tables: Scores, interference: Ints, slow_downs: Floats) -> None:
    """Fill the harm of pairs without measurements with that of their classes of interference."""
    share = excess(slow_downs)[interference[:, None], interference[None, :]]
    assumed = np.nan_to_num(tables.alone)[:, :, None] * share[:, None, :]
    possible = ~np.isnan(tables.alone)[:, :, None] & ~tables.known
    tables.harm[possible] = assumed[possible]
    tables.known |= possible


def without_types(tables: Scores) -> Scores:
    """Return the means over all types (Whare-C, which does not distinguish types)."""
    counts = np.maximum(np.count_nonzero(tables.known, axis=1, keepdims=True), 1)
    harm = tables.harm.sum(axis=1, keepdims=True) / counts
    known = tables.known.any(axis=1, keepdims=True)
    return Scores(
        tables.number,
        np.broadcast_to(_row_means(tables.mean), tables.mean.shape),
        np.broadcast_to(_row_means(tables.alone), tables.alone.shape),
        np.broadcast_to(harm, tables.harm.shape),
        np.broadcast_to(known, tables.known.shape),
        present=tables.present,
    )


def without_affinity(tables: Scores) -> Scores:
    """Return scores with interference by type in which all types have equal scores alone (Whare-Cs)."""
    scale = _row_means(tables.alone) / np.where(tables.alone > 0, tables.alone, 1.0)
    scale = np.where(np.isnan(scale), 1.0, scale)
    return Scores(
        tables.number,
        tables.mean * scale,
        tables.alone * scale,
        tables.harm * scale[:, :, None],
        tables.known,
        present=tables.present,
    )


def _row_means(table: Floats) -> Floats:
    """Return the mean of the known values of each row, as a column. Each scored class has a known value."""
    known = ~np.isnan(table)
    sums: Floats = np.where(known, table, 0.0).sum(axis=1, keepdims=True)
    return sums / np.maximum(np.count_nonzero(known, axis=1, keepdims=True), 1)


@dataclass(frozen=True)
class Neighbours:
    """The running tasks of M machines and their effect on C scored classes."""

    machines: Ints
    """Rows of the machines, shape (M,)."""
    place: Ints
    """The index in ``machines`` of each resource row, or ABSENT."""
    types: Ints
    """Numbers of the machines' types, shape (M,)."""
    counts: Ints
    """Running tasks by scored class, shape (M, C)."""
    all: Ints
    """Running tasks of any class, shape (M,)."""
    added: Floats
    """The amount that the classes running there add to the score of each class, shape (M, C)."""
    informed: Floats
    """The number of these classes whose effect is known, shape (M, C)."""
    caused: Floats
    """The amount that a task of each class adds to the scores of all tasks there together, shape (M, C)."""


def neighbours(state: ClusterState, tables: Scores, *, effects: bool = True) -> Neighbours:
    """Count the running tasks of each machine and, with ``effects``, add up their effects."""
    machines = state.resources.at(Level.MACHINE)
    place = np.full(len(state.resources.alive), ABSENT, np.int64)
    place[machines] = np.arange(len(machines))
    running = running_tasks(state)
    at = place[state.tasks.machine[running]]
    row = tables.number[state.tasks.equivalence[running]]
    classes = len(tables.mean)
    cells = (at * classes + row)[row != ABSENT]
    counts = np.bincount(cells, minlength=len(machines) * classes).reshape(len(machines), classes)
    everybody = np.bincount(at, minlength=len(machines))
    types = state.resources.machine_type[machines]
    there = (counts > 0).astype(np.float64)
    added, informed, caused = np.zeros(counts.shape), np.zeros(counts.shape), np.zeros(counts.shape)
    # One matrix product for each type, because harm depends on the type, the class and the neighbours.
    for kind in np.unique(types).tolist() if classes and effects else ():
        mine = types == kind
        added[mine] = there[mine] @ tables.harm[:, kind, :].T
        informed[mine] = there[mine] @ tables.known[:, kind, :].T.astype(np.float64)
        caused[mine] = counts[mine] @ tables.harm[:, kind, :]
    return Neighbours(machines, place, types, counts, everybody, added, informed, caused)


def neighbour_scores(
    tables: Scores, around: Neighbours, rows: Ints, places: Ints, itself: int, mutual: float = 0.0
) -> Floats:
    """Return Xi(c, L_m, c_m), the scores of classes at machines, as in ``KnowledgeBase.score_beside``.

    Args:
        tables: the scores.
        around: the running tasks.
        rows: rows of classes in ``tables``, shape (n,).
        places: indices of machines in ``around``, shape (n,).
        itself: 1 if the task in question is itself among the running tasks there, else 0.
        mutual: the weight of the amount that it adds to the scores of the other tasks there.

    Returns:
        Scores, shape (n,); NaN where the class never ran on that type of machine.
    """
    types = around.types[places]
    # A task that is the only one of its class there has no neighbour of that class.
    single = (around.counts[places, rows] == itself) & (itself > 0)
    added = around.added[places, rows] - np.where(single, tables.harm[rows, types, rows], 0.0)
    informed = around.informed[places, rows] - (single & tables.known[rows, types, rows])
    alone = tables.alone[rows, types]
    among = np.where(informed > 0.5, alone + added, tables.mean[rows, types])
    expected: Floats = np.where(around.all[places] == itself, alone, among)
    if mutual:
        own = itself * tables.harm[rows, types, rows]
        expected = expected + mutual * (around.caused[places, rows] - own)
    return expected


TASKS = 1
"""The kind of class TA_c."""
MACHINES = 2
"""The kind of class MA_m."""


class _View(NamedTuple):
    """The data that a round reads."""

    scores: Scores
    around: Neighbours
    worst: Floats
    """Alpha by class of ``ClusterState.equivalences``."""
    average: Floats
    """The lower bound of the cost of waiting, by class of ``ClusterState.equivalences``."""


class WhareModel(BaseModel):
    """The base of the four policies. Each accepts the parameters that have an effect on it.

    Args:
        omega: cost of a second of waiting, in picoseconds per instruction.
        theta: the amount by which each second of running reduces the cost of staying.
        unknown: the score of a class without any measurement.
        trials: the most tasks of a class that run at once on a type of machine that is new to the class.
        arcs: the most arcs from one class to single machines.
        load: cost of a full machine compared with an empty one, on arcs MA -> M (0: as in the thesis).
        relative: True if costs are slow-downs of a class, False for picoseconds per instruction.
        mutual: the weight of the harm to the tasks that run at a place, with ``relative`` in thousandths of
            one task's best speed (0: as in the thesis).
        wave: the most tasks of a round that a machine gets through its type (0: no limit, as in the thesis).
        refresh: seconds before the scores are computed again.
        slow_downs: slow-downs by class of interference, for pairs that were never measured together; see
            ``models.slow_downs``. Empty: such pairs do not disturb each other, as in the thesis.

    Raises:
        BadModelError: a value is out of range.
    """

    by_type = True
    """True if the policy has arcs to the aggregators MA_m of machine types."""
    by_neighbours = True
    """True if the policy considers neighbours and has arcs to single machines."""

    def __init__(
        self,
        *,
        omega: int = 10,
        theta: int = 10,
        unknown: int = 1000,
        trials: int = 2,
        arcs: int = 1000,
        load: int = 0,
        relative: bool = True,
        mutual: float = 1.0,
        wave: int = 1,
        refresh: float = 5.0,
        slow_downs: str = "",
    ) -> None:
        not_negative(
            self.name,
            omega=omega,
            theta=theta,
            unknown=unknown,
            trials=trials,
            arcs=arcs,
            load=load,
            mutual=mutual,
            wave=wave,
            refresh=refresh,
        )
        self.omega = omega
        self.theta = theta
        self.unknown = unknown
        self.trials = trials
        self.arcs = arcs
        self.load = load
        self.relative = relative
        self.mutual = mutual
        self.wave = wave
        self.refresh = refresh
        self.slow_downs: Floats | None = parse_slow_downs(self.name, slow_downs)
        self._scores: Scores | None = None
        self._round_view: _View | None = None

    def policy(self, tables: Scores) -> Scores:
        """Return the scores as this policy sees them."""
        return tables

    def begin(self, state: ClusterState) -> None:
        """Drop the counts of the last round."""
        self._round_view = None

    def _view(self, state: ClusterState) -> _View:
        if self._round_view is None:
            tables = self.policy(self._current(state))
            around = neighbours(state, tables, effects=self.by_neighbours)
            self._round_view = _View(tables, around, *self._bounds(state, tables, around))
        return self._round_view

    def _current(self, state: ClusterState) -> Scores:
        """Return the scores, at most ``refresh`` seconds old."""
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
                and not 0 <= state.now - known.computed_at < self.refresh
            )
        ):
            frequent = present[np.argsort(-count, kind="stable")]
            known = self._scores = scores(state, state.knowledge, frequent, relative=self.relative)
            if self.slow_downs is not None:
                _assume(known, _interference_of(state, len(known.mean), known.number), self.slow_downs)
        return known

    def _bounds(self, state: ClusterState, tables: Scores, around: Neighbours) -> tuple[Floats, Floats]:
        """Return alpha and the average score of each class (§7.2.2)."""
        worst = np.full(len(state.equivalences), float(self.unknown))
        average = worst.copy()
        scored = np.flatnonzero(tables.number != ABSENT)
        if len(scored) == 0:
            return worst, average
        # These are rows of the scores. Each scored class has a value for at least one type.
        rows = tables.number[scored]
        worst[scored] = np.nanmax(tables.mean[rows], axis=1)
        average[scored] = np.nanmean(tables.mean[rows], axis=1)
        if self.by_neighbours and len(around.machines):
            every = np.arange(len(around.machines))
            here = neighbour_scores(tables, around, rows[:, None], every[None, :], 0, self.mutual)
            seen = ~np.isnan(here)
            count = seen.sum(axis=1)
            sums = np.where(seen, here, 0.0).sum(axis=1)
            average[scored] = np.where(count > 0, sums / np.maximum(count, 1), average[scored])
            worst[scored] = np.maximum(worst[scored], np.where(seen, here, 0.0).max(axis=1))
        return worst, average

    # Tasks ------------------------------------------------------------------------------------------

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return one arc from each task to its class TA_c, at cost 0."""
        classes = class_numbers(TASKS, state.tasks.equivalence[tasks])
        return Options(np.arange(len(tasks)), classes, np.zeros(len(tasks), np.int64))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return omega for each second, at least the average score, plus 1 so that a tie gives a place."""
        average = self._view(state).average[state.tasks.equivalence[tasks]]
        return whole(np.maximum(self.omega * state.tasks.waiting_time(tasks, state.now), average)) + 1

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return gamma: the score at the present machine, less theta for each second of running."""
        view = self._view(state)
        cost = np.full(len(tasks), float(self.unknown))
        rows = view.scores.number[state.tasks.equivalence[tasks]]
        places = view.around.place[state.tasks.machine[tasks]]
        known = np.flatnonzero(rows != ABSENT)
        cost[known] = self._here(view, rows[known], places[known])
        return whole(cost - self.theta * state.tasks.running_time(tasks, state.now))

    def _here(self, view: _View, rows: Ints, places: Ints) -> Floats:
        """Return the scores of running tasks at their machines, or the class's mean where unknown."""
        if self.by_neighbours:
            here = neighbour_scores(view.scores, view.around, rows, places, 1, self.mutual)
        else:
            here = view.scores.mean[rows, view.around.types[places]]
        unknown = np.isnan(here)
        here[unknown] = np.nanmean(view.scores.mean[rows[unknown]], axis=1)
        return here

    # Classes ----------------------------------------------------------------------------------------

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return the arcs TA_c -> MA_m at Psi(c, m).

        A type that a class never tried costs slightly less than the best type, for few tasks at a time.
        """
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
        """Return Psi of classes by type of machine, and True where it is measured; shape (classes, types)."""
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
        """Return the number of running tasks of each class on each type, shape (classes, types)."""
        running = running_tasks(state)
        kind = state.resources.machine_type[state.tasks.machine[running]]
        equivalence = state.tasks.equivalence[running]
        width = max(len(state.machine_types), 1)
        cells = np.bincount(equivalence * width + kind, minlength=len(state.equivalences) * width)
        return cells.reshape(-1, width)[np.ix_(members, types)].astype(np.int64)

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return the arcs MA_m -> its machines, TA_c -> the best machines at Xi, and TA_c -> X at alpha."""
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
            parts += [
                self._of_neighbours(state, view, class_number, int(wanted[class_number]))
                for class_number in some.tolist()
            ]
        return joined(*parts)

    def _of_types(self, state: ClusterState, view: _View, types: Ints) -> ClassArcs:
        table, around = state.resources, view.around
        usable = table.usable[around.machines]
        chosen = usable & np.isin(around.types, types)
        machines = around.machines[chosen]
        slots = table.slots[machines]
        load = whole(self.load * table.running[machines] / np.maximum(slots, 1))
        most = np.minimum(slots, self.wave) if self.wave else slots
        return ClassArcs(class_numbers(MACHINES, around.types[chosen]), machines, load, most)

    def _of_neighbours(self, state: ClusterState, view: _View, number: int, wanted: int) -> ClassArcs:
        """Return arcs to the ``wanted`` best machines with room, one task each.

        Each arc takes one task, because Xi holds for the present neighbours only.
        """
        row = int(view.scores.number[number])
        table, around = state.resources, view.around
        most = min(wanted, self.arcs)
        if row == ABSENT or most == 0:
            return joined()
        machines = around.machines
        room = table.usable[machines] & (table.running[machines] < table.slots[machines])
        places = np.flatnonzero(room)
        cost = neighbour_scores(view.scores, around, np.full(len(places), row), places, 0, self.mutual)
        good = np.flatnonzero(~np.isnan(cost))
        order = good[np.argsort(cost[good], kind="stable")][:most]
        source = np.full(len(order), class_numbers(TASKS, np.array([number]))[0])
        ones = np.ones(len(order), np.int64)
        return ClassArcs(source, machines[places[order]], whole(cost[order]), ones)

    # Explanations -----------------------------------------------------------------------------------

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the scores that form the cost."""
        # The task may have arrived after the last round.
        self.begin(state)
        view = self._view(state)
        number = int(state.tasks.equivalence[task])
        name = state.equivalences.names[number]
        row = int(view.scores.number[number])
        machine = int(state.resources.machine[resource])
        if row == ABSENT:
            return f"class {name!r} has no measurements yet: every place costs {self.unknown}"
        if machine == ABSENT:
            return f"class {name!r} at its worst place: {view.worst[number]:.0f} {self._unit}"
        place = view.around.place[[machine]]
        here = int(state.tasks.machine[task] == machine)
        kind = state.machine_types.names[int(view.around.types[place[0]])]
        parts: list[str] = []
        if self.by_type:
            parts.append(f"{_score(view.scores.mean[row, view.around.types[place[0]]])} on type {kind!r}")
        if self.by_neighbours:
            others = int(view.around.all[place[0]]) - here
            rows = np.array([row])
            among = float(neighbour_scores(view.scores, view.around, rows, place, here, self.mutual)[0])
            parts.append(f"{_score(among)} next to the {others} other tasks that run there")
        return f"class {name!r} in {self._unit}: {', '.join(parts)}"

    @property
    def _unit(self) -> str:
        return "thousandths of its best time" if self.relative else "ps per instruction"


def _score(value: float) -> str:
    return "not known" if np.isnan(value) else f"{value:.0f}"


class WhareM(WhareModel):
    """The policy by machine type alone. It has no parameters about neighbours."""

    name = "whare-m"
    summary = "types of machines, by measured instructions per second (section 7.2)"
    by_neighbours = False

    def __init__(
        self,
        *,
        omega: int = 10,
        theta: int = 10,
        unknown: int = 1000,
        trials: int = 2,
        load: int = 0,
        relative: bool = True,
        wave: int = 1,
        refresh: float = 5.0,
    ) -> None:
        super().__init__(
            omega=omega,
            theta=theta,
            unknown=unknown,
            trials=trials,
            load=load,
            relative=relative,
            wave=wave,
            refresh=refresh,
        )


class _WhareByNeighbours(WhareModel):
    """A policy without arcs to types of machines, and so without the parameters of these arcs."""

    by_type = False

    def __init__(
        self,
        *,
        omega: int = 10,
        theta: int = 10,
        unknown: int = 1000,
        arcs: int = 1000,
        relative: bool = True,
        mutual: float = 1.0,
        refresh: float = 5.0,
        slow_downs: str = "",
    ) -> None:
        super().__init__(
            omega=omega,
            theta=theta,
            unknown=unknown,
            arcs=arcs,
            relative=relative,
            mutual=mutual,
            refresh=refresh,
            slow_downs=slow_downs,
        )


class WhareC(_WhareByNeighbours):
    """The policy by neighbours alone. It does not distinguish types of machines."""

    name = "whare-c"
    summary = "co-location interference on any machine type (section 7.2)"

    def policy(self, tables: Scores) -> Scores:
        """Return the mean over all types."""
        return without_types(tables)


class WhareCs(_WhareByNeighbours):
    """The policy by neighbours on each type of machine, without a preference for a type itself."""

    name = "whare-cs"
    summary = "co-location interference by type of machine (section 7.2)"

    def policy(self, tables: Scores) -> Scores:
        """Return scores that are equal on all types for a task without neighbours."""
        return without_affinity(tables)


class WhareMCs(WhareModel):
    """The policy by both machine type and neighbours."""

    name = "whare-mcs"
    summary = "types of machines and co-location interference together (section 7.2)"
