"""A scheduling-shaped network that stays solved while it changes (thesis §6.4.3): the warm start.

Upper vertices (aggregates, machines, the sink) and the arcs between them stand beside tasks, which are rows
of options: each sends one unit to exactly one of its targets. All changes come as columns, many at once, and
cost what they touch. Nothing is solved until :meth:`WarmSolver.solve`.

Not for: networks of other shapes (``incremental.py`` dispatches), and not for contracting one
(``shape.py`` does, before). Nothing here knows what a task or a machine is beyond that shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from dios.firmament.solvers.columns import Ints


@dataclass(frozen=True, eq=False)
class WarmSolution:
    """What a round found.

    ``status`` is "optimal" or "infeasible" (then ``reason`` says where, and the rest is not meaningful).
    ``choice`` is (ids,): for each task id the index of the option it takes, -1 where the id is not in use.
    ``target`` is (ids,): the upper vertex of that option, or -1. ``flow`` is (arcs,), ``prices`` (vertices,)
    as in ``FlowSolution`` (the sink's price is 0 and others are the less the farther they are from it); a
    task's own price is the largest ``prices[target] - cost`` of its options. ``cost`` is exact.
    """

    status: str
    choice: Ints
    target: Ints
    flow: Ints
    prices: Ints
    cost: int
    reason: str = ""


class WarmSolver:
    """Tasks as rows of options over a small upper network, solved again after each batch of changes.

    Vertex 0 is the sink: it takes whatever is left, and its supply need not be told. Ids of vertices, arcs
    and tasks are numbers from 0 that stay the same; a removed task's id is given to a later one.
    Arguments are columns (anything numpy takes), and a single number stands for a column of the same numbers.
    Costs are whole numbers within 2**40, prices stay within 2**61. Not safe for threads.
    """

    def __init__(self) -> None:
        raise NotImplementedError

    # -- the upper network ------------------------------------------------------------------------
    def add_vertices(self, count: int) -> Ints:
        """New vertices without supply, (count,) of ids."""
        raise NotImplementedError

    def set_supply(self, vertices: ArrayLike, supply: ArrayLike) -> None:
        """Units that begin (positive) or end (negative) at vertices: U_j has F_j - N_j (thesis §C.2)."""
        raise NotImplementedError

    def add_arcs(
        self, tail: ArrayLike, head: ArrayLike, capacity: ArrayLike, cost: ArrayLike, lower: ArrayLike = 0
    ) -> Ints:
        """New arcs between upper vertices, their ids. Parallel arcs are welcome: they make a convex cost."""
        raise NotImplementedError

    def change_arcs(
        self,
        arcs: ArrayLike,
        capacity: ArrayLike | None = None,
        cost: ArrayLike | None = None,
        lower: ArrayLike | None = None,
    ) -> None:
        """New bounds or costs of arcs. A capacity of 0 takes an arc out (a lost machine)."""
        raise NotImplementedError

    # -- tasks ------------------------------------------------------------------------------------
    def add_tasks(self, start: ArrayLike, target: ArrayLike, cost: ArrayLike) -> Ints:
        """New tasks, their ids (n,): the options of the i-th are those from ``start[i]`` to ``start[i + 1]``.

        ``start`` is (n + 1,), ``target`` (upper vertices) and ``cost`` are (options,). The order of a row's
        options is kept: later calls name an option by its index in the row.
        """
        raise NotImplementedError

    def remove_tasks(self, tasks: ArrayLike) -> None:
        """Tasks leave, wherever they are; their ids are free for later ones."""
        raise NotImplementedError

    def replace_tasks(self, tasks: ArrayLike, start: ArrayLike, target: ArrayLike, cost: ArrayLike) -> None:
        """New rows of options in place of the old ones; a task stays where it is while that is best."""
        raise NotImplementedError

    def change_costs(self, tasks: ArrayLike, index: ArrayLike, cost: ArrayLike) -> None:
        """New costs of single options: (n,) tasks, indices within their rows, and costs."""
        raise NotImplementedError

    # -- the answer -------------------------------------------------------------------------------
    def solve(self) -> WarmSolution:
        """The cheapest flow after all changes so far. An infeasible network may be changed again."""
        raise NotImplementedError

    @property
    def tasks(self) -> int:
        """How many task ids there are, used or not: the length of ``WarmSolution.choice``."""
        raise NotImplementedError
