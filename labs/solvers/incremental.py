"""A flow problem that changes and is solved again from its last solution (thesis §6.4.3).

It serves networks of any shape. The network of a scheduler has a known shape, for which ``warm_solver`` is
faster; problems that are solved once go to ``registry.solve``.

The last flow and prices are repaired by ``repair``, in a network without tasks whose sink has no arcs. Where
that reaches too far, the network simplex continues from the last flow (``simplex_restart``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dios.firmament.solvers.columns import Ints, exact_product, exact_sum
from dios.firmament.solvers.contraction import PRICE_ROOM
from dios.firmament.solvers.errors import OutOfRangeError
from dios.firmament.solvers.potentials import potentials
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.repair import (
    CLOCK,
    FAR,
    GAVE_UP,
    INFEASIBLE,
    NO_LIMIT,
    ArcColumns,
    Net,
    count_excess,
    new_net,
    new_search,
    repair,
    settle_arcs,
)
from dios.firmament.solvers.standard import EXCESS_MAX, NO_VERTICES, infeasible
from dios.kernels import no_refcount_kernel
from dios.limits import FLOW_UNBOUNDED
from labs.solvers.changing_network import ChangingNetwork, Compacted
from labs.solvers.registry import solve
from labs.solvers.simplex_restart import FormerSolution, solve_from

NAME: Final = "incremental"

PLAIN: Final = "network_simplex"
"""The algorithm for networks that no repair can serve: unbounded ones, and those with very large costs."""

COLD_ARCS_MAX: Final = 2_000
"""The first solution of a network with more arcs is left to an algorithm for solutions from scratch."""

EXCESSES_MIN: Final = 64
EXCESSES_SHARE: Final = 4
"""With more excesses than both of EXCESSES_MIN and a quarter of the vertices, the problem is solved from
scratch, which is then likely to be quicker."""

TRIES_SHARE: Final = 2
"""After a repair gave up, the next one is tried only with fewer excesses by this factor; each solution from
scratch in between, and each repair that ends, raise the bound again."""

WORK_SHARE: Final = 1
"""A repair gives up after reading this many times the number of half-arcs, which takes about a tenth of the
time of a solution from scratch."""

FAST: Final = "auction"
"""Networks that this algorithm solved are solved by it again, which takes as long as the pivots of a restart.
"""

SCRATCH_ROUNDS_MAX: Final = 64
"""The most solutions from scratch before a restart is tried again, after it gave up several times."""

FAST_ROUNDS_MAX: Final = 16
"""The same for repairs of a network that FAST solves: to count the excesses takes a tenth of its time."""

ENDLESS_MAX: Final = 2**60
"""The largest flow that an arc without a capacity may need."""

PRICE_MAX: Final = 2**58
"""Prices are within this before a repair, so that its distances fit 64 bits."""


@no_refcount_kernel
def _price_new(net: Net, first: int) -> None:
    """Price the vertices from ``first`` on: by their cheapest arc out, else by their dearest arc in."""
    for vertex in range(first, len(net.price)):
        least, most = FAR, -FAR
        for arc in net.out_arcs[net.out_start[vertex] : net.out_start[vertex + 1]]:
            if net.head[arc] < vertex and net.capacity[arc] > net.lower[arc]:
                least = min(least, net.cost[arc] + net.price[net.head[arc]])
        for arc in net.in_arcs[net.in_start[vertex] : net.in_start[vertex + 1]]:
            if net.tail[arc] < vertex and net.capacity[arc] > net.lower[arc]:
                most = max(most, net.price[net.tail[arc]] - net.cost[arc])
        net.price[vertex] = least if least < FAR else most if most > -FAR else 0


def _flow_at_vertices(net: Net, supply: Ints) -> NDArray[np.float64]:
    """Return the sum of all flows and supplies at each vertex, (V,), rounded to floating point."""
    flow = np.abs(supply).astype(np.float64)
    for ends in (net.tail, net.head):
        flow += np.bincount(ends, weights=net.flow, minlength=len(supply))
    return flow


class IncrementalSolver(ChangingNetwork):
    """A network with its cheapest flow and prices, which are repaired after changes (thesis §6.4.3).

    Changes are checked at once and take effect at the next :meth:`solve`. A refused change raises
    :class:`InvalidProblemError` and changes nothing. Ids of vertices and arcs never change, and the id of a
    removed one is not used again. ``scratch`` names the algorithm for solutions from scratch, which are made
    where a repair is likely to take longer; with None the solver always repairs.
    """

    def __init__(self, problem: FlowProblem, *, scratch: str | None = "auto") -> None:
        self._scratch = scratch
        self._priced = 0
        self._cold = True
        self._fast = False
        self._excesses_max: int | None = None
        self._scratch_rounds = 0
        self._scratch_rounds_next = 1
        self._fast_rounds = 0
        self._fast_rounds_next = 1
        self._endless = 0
        self._net: Net | None = None
        self._search = new_search(1)
        self._counters: Ints = np.zeros(3, np.int64)
        super().__init__(problem)

    def solve(self) -> FlowSolution:
        """Return the cheapest flow of the present network.

        ``flow`` (arc ids,) and ``prices`` (vertex ids,) are 0 for removed arcs and vertices. ``algorithm``
        is "incremental", or the name of the one that solved the problem from scratch. After an infeasible
        result the flow so far is kept, so that a later change can complete it.
        Raises :class:`OutOfRangeError` if the capacities add up to more than fits 64 bits; the network stays
        as it is.
        """
        began = time.perf_counter()
        if self._sent != self._received:
            return self._infeasible(NO_VERTICES, NAME, began)
        if self._endless_cycle():
            # The witness and the reason name arcs by their ids, so the network is not compacted.
            return replace(solve(self.problem(), PLAIN), seconds=time.perf_counter() - began)
        self._bound_endless()
        if self._cold and self._scratch and self._arcs > COLD_ARCS_MAX:
            return self._from_scratch(self._scratch, began)
        if (self._cost_max + 1) * (self._vertices + 2) * 8 >= PRICE_ROOM:
            return self._from_scratch(PLAIN, began)
        if self._fast and self._scratch and self._fast_rounds:
            self._fast_rounds -= 1
            return self._from_scratch(self._scratch, began)
        before = self._columns.flow[: self._arcs].copy()
        net = self._settled()
        ended = self._repaired(net)
        if ended == GAVE_UP:
            self._fast_rounds = self._fast_rounds_next
            self._fast_rounds_next = min(2 * self._fast_rounds_next, FAST_ROUNDS_MAX)
            return self._restarted(before, began) or self._from_scratch(self._scratch or PLAIN, began)
        self._cold, self._fast_rounds_next = False, 1
        columns = self._columns
        columns.price[: self._vertices] = -net.price[1:]
        if ended == INFEASIBLE:
            return self._infeasible(self._stuck(), NAME, began)
        flow, prices = net.flow.copy(), -net.price[1:]
        # A vertex that was removed has no arcs, so that any price is right for it.
        prices[columns.vertex_exists[: self._vertices] == 0] = 0
        cost = exact_product(flow, net.cost)
        return FlowSolution(flow, cost, prices, "optimal", NAME, time.perf_counter() - began)

    def _repaired(self, net: Net) -> int:
        """Repair the flow and the prices; return how it ended."""
        if not self._scratch:
            return repair(net, self._search, self._counters, work_max=NO_LIMIT)
        excesses = int(np.count_nonzero(net.excess > 0))
        if not self._is_promising(excesses):
            return GAVE_UP
        work_max = WORK_SHARE * 2 * (self._arcs + self._vertices + EXCESSES_MIN)
        ended = repair(net, self._search, self._counters, work_max=work_max)
        if ended == GAVE_UP:
            self._excesses_max = excesses // TRIES_SHARE
        elif self._excesses_max is not None:
            self._excesses_max = max(self._excesses_max, TRIES_SHARE * excesses)
        return ended

    def _is_promising(self, excesses: int) -> bool:
        """Return True if a repair of this many excesses is likely to take less time than a new solution."""
        if excesses > max(EXCESSES_MIN, self._vertices // EXCESSES_SHARE):
            return False
        if self._excesses_max is None or excesses <= self._excesses_max:
            return True
        self._excesses_max += 1
        return False

    def _infeasible(self, stuck: Ints, algorithm: str, began: float) -> FlowSolution:
        seconds = time.perf_counter() - began
        return infeasible(self.problem(), stuck, algorithm=algorithm, seconds=seconds)

    def _restarted(self, before: Ints, began: float) -> FlowSolution | None:
        """Return the solution by pivots from the flow ``before``, or None if that is not quicker."""
        if self._fast or self._scratch is None:
            return None
        if self._scratch_rounds:
            self._scratch_rounds -= 1
            return None
        small = self.compacted()
        former = FormerSolution(before[small.arcs], self._columns.price[small.vertices])
        solution = solve_from(small.problem, former)
        if solution is None:
            # The next changes will hardly be smaller: try again later, and later each time.
            self._scratch_rounds = self._scratch_rounds_next
            self._scratch_rounds_next = min(2 * self._scratch_rounds_next, SCRATCH_ROUNDS_MAX)
            return None
        self._scratch_rounds_next = 1
        return self._adopted(small, replace(solution, algorithm=NAME), began)

    def _from_scratch(self, algorithm: str, began: float) -> FlowSolution:
        """Return a solution that owes nothing to the last one; later repairs start from it."""
        # Removed vertices and arcs would hide the shape of the network from algorithms that look for one.
        small = self.compacted()
        solution = solve(small.problem, algorithm)
        self._fast = solution.algorithm == FAST
        return self._adopted(small, solution, began)

    def _adopted(self, small: Compacted, solution: FlowSolution, began: float) -> FlowSolution:
        """Return the solution of the compacted network with the ids of the whole network, and keep it."""
        if solution.status != "optimal":
            return self._infeasible(small.vertices[solution.witness], solution.algorithm, began)
        flow, prices = np.zeros(self._arcs, np.int64), np.zeros(self._vertices, np.int64)
        flow[small.arcs], prices[small.vertices] = solution.flow, solution.prices
        self._columns.flow[: self._arcs], self._columns.price[: self._vertices] = flow, prices
        self._priced, self._cold = self._vertices, False
        return replace(solution, flow=flow, prices=prices, seconds=time.perf_counter() - began)

    def _stuck(self) -> Ints:
        """Return the vertices of the last phase that no edge leads out of: they send more than can leave."""
        phase, search = self._counters[CLOCK], self._search
        vertices = slice(1, self._vertices + 1)
        return np.flatnonzero((search.stamp[vertices] == phase) & (search.distance[vertices] == FAR))

    def _endless_cycle(self) -> bool:
        """Return True if a cycle of arcs without capacities has a negative cost."""
        if not self._endless_changed:
            return False
        columns = self._columns
        arcs = np.flatnonzero(columns.capacity[: self._arcs] >= FLOW_UNBOUNDED)
        if (columns.cost[arcs] < 0).any():
            start = np.zeros(self._vertices, np.int64)
            ends = columns.tail[arcs], columns.head[arcs]
            if potentials(self._vertices, *ends, columns.cost[arcs], start).size:
                return True
        self._endless_changed = False
        return False

    def _bound_endless(self) -> None:
        """Find a capacity for arcs without one: more than any arc carries in a cheapest flow.

        Such a flow consists of paths from supplies, and of cycles of negative cost, each of which fills an
        arc that has a capacity.
        """
        columns, arcs = self._columns, slice(self._arcs)
        endless = columns.capacity[arcs] >= FLOW_UNBOUNDED
        if not endless.any():
            self._endless = FLOW_UNBOUNDED
            return
        negative = columns.cost[arcs] < 0
        room = np.minimum(columns.capacity[arcs], FLOW_UNBOUNDED) - columns.lower[arcs]
        filled = ~endless if (endless & negative).any() else ~endless & negative
        most = 1 + self._sent + 2 * self._lower + exact_sum(room[filled])
        if most > ENDLESS_MAX:
            raise OutOfRangeError(
                f"an arc without a capacity might carry {most - 1}, which is more than {ENDLESS_MAX};"
                " use a larger unit of flow"
            )
        self._endless = most

    def _settled(self) -> Net:
        """Return the network for the repair: prices in range, flow right for them, excesses counted."""
        columns, arcs = self._columns, slice(self._arcs)
        if self._net is None or self._reshaped:
            ends = columns.tail[arcs] + 1, columns.head[arcs] + 1
        else:
            ends = self._net.tail, self._net.head
        capacity = np.minimum(columns.capacity[arcs], self._endless)
        none = np.zeros(0, np.int64)
        bounds = columns.lower[arcs], capacity, columns.cost[arcs]
        if self._net is None or self._reshaped:
            rows = np.zeros(1, np.int64), none.astype(np.int32), none, none.astype(np.int32)
            self._net = new_net(self._vertices + 1, ArcColumns(*ends, *bounds), *rows)
            self._reshaped = False
        net = self._net._replace(lower=bounds[0], capacity=capacity, cost=bounds[2], flow=columns.flow[arcs])
        net.price[1:] = -self._bounded_prices()
        _price_new(net, self._priced + 1)
        self._priced = self._vertices
        settle_arcs(net)
        supply = np.concatenate([[0], columns.supply[: self._vertices]])
        most = int(np.abs(supply).max()) + 2 * self._arcs * int(net.flow.max(initial=0))
        if most >= EXCESS_MAX and _flow_at_vertices(net, supply).max() >= EXCESS_MAX:
            # The lower bounds fit, so that the network can be settled when its capacities are smaller.
            net.flow[:] = net.lower
            raise OutOfRangeError(
                "the flows at one vertex add up to more than 64 bits hold; use a larger unit of flow,"
                f" or FLOW_UNBOUNDED ({FLOW_UNBOUNDED}) for an arc without a capacity"
            )
        count_excess(net, supply)
        if len(self._search.stamp) < 2 * len(supply):
            self._search = new_search(2 * len(supply))
            self._counters[CLOCK] = 0
        return net

    def _bounded_prices(self) -> Ints:
        """Return the prices, shifted where they are too large for a repair, or zeros if they still are."""
        prices = self._columns.price[: self._vertices]
        if np.abs(prices).max(initial=0) <= PRICE_MAX:
            return prices
        shifted = prices - prices.max()
        return shifted if shifted.min() >= -PRICE_MAX else np.zeros_like(prices)
