"""Whare-Map's scores (§7.2): how well each class of tasks runs on each type of machine, and beside whom.

For: the four Whare models. The scores come from the knowledge base, and are put into tables here, so that
a round asks them of all machines at once. Not for: what arcs are made of them (``whare``).

A score is in picoseconds per instruction where instructions are counted. Where they are not, it is a
thousand times the ratio to the class's best type of machine, which orders the places of one class alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import SCORES, Metric
from dios.firmament.models.cost_terms import running_tasks

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
