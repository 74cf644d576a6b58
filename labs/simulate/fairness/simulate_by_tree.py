"""Simulation of a whole trace under SDRF with the paper's live tree, to count the tree's events.

``labs.simulate.fairness.simulate`` makes the same decisions and is faster where a scan is.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from numpy.typing import ArrayLike

from dios.fairness.allocation import Ints
from dios.fairness.stateful.input_checks import User
from dios.fairness.stateful.user_table import EVENTS, empty_user_table
from labs.simulate.fairness.simulate import prepare_simulation, run_simulation, simulation_result


def simulate_by_tree(
    submit_us: ArrayLike,
    duration_us: ArrayLike,
    user: ArrayLike,
    demands: ArrayLike,
    capacity: ArrayLike,
    *,
    users: int | Collection[Hashable] | None = None,
    weights: Mapping[User, float] | None = None,
    delta: float | None = 1 - 1e-6,
    priority: str = "dominant",
) -> tuple[Ints, Ints, int]:
    """Return the result of ``simulate``, and the number of events that the live tree had to handle.

    SDRF paper, section VI-C. The waiting users are kept in a live tree however few they are; an event is a
    crossing of two neighbours, which may be false. Arguments and exceptions are those of ``simulate``.
    """
    arguments = prepare_simulation(
        submit_us, duration_us, user, demands, capacity, users, weights, delta, priority
    )
    table = empty_user_table(arguments.table.capacity, arguments.state.first.size, 0)
    table.scale[:] = arguments.table.scale
    run_simulation(*arguments._replace(table=table))
    return (*simulation_result(arguments.state), int(table.tree.state[EVENTS]))
