"""The free amounts of machines, of the resources that a task demands."""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level, Resources
from dios.firmament.explain.explanation import FreeAmounts
from dios.firmament.policies.reservations import Reservations
from dios.limits import EXPLAIN_NODES


def free_amounts(
    state: ClusterState, demand: Resources, reservations: Reservations, task: int
) -> list[FreeAmounts]:
    """Return the free amounts of EXPLAIN_NODES machines, those that lack the least of a demand first.

    ``task`` is the identifier of the task; room that is kept for it counts as free.
    """
    tree = state.resources
    machines = tree.at(Level.MACHINE)
    wanted = [at for at, amount in enumerate(demand) if amount > 0]
    parts = np.ones((len(machines), 1 + len(wanted)))
    parts[:, 0] = tree.slots[machines] - tree.running[machines]
    parts[:, 1:] = state.available(machines)[:, wanted] / np.array(demand)[wanted]
    short = np.minimum(parts, 1.0).min(axis=1)
    order = np.lexsort((machines, -parts.sum(axis=1, where=np.isfinite(parts)), -short))
    own = reservations.machine_of(task)
    return [
        _free(state, row, wanted, kept=row in reservations.spare and row != own)
        for row in machines[order[:EXPLAIN_NODES]].tolist()
    ]


def _free(state: ClusterState, row: int, wanted: list[int], *, kept: bool) -> FreeAmounts:
    tree = state.resources
    capacity: dict[str, float | None] = {}
    free: dict[str, float | None] = {}
    for at in wanted:
        name, has = Resources._fields[at], float(tree.capacity[row, at])
        capacity[name] = has or None
        free[name] = max(has - float(tree.reserved[row, at]), 0.0) if has else None
    slots = int(tree.slots[row])
    free_slots = max(slots - int(tree.running[row]), 0)
    return FreeAmounts(state.machine_ids[row], tree.names[row], free_slots, slots, free, capacity, kept=kept)
