"""A flow problem that changes, solved again from where it was (thesis §6.4.3).

For: any network, a few changes at a time. Not for: a scheduler's own network, which has a known shape and
therefore a faster solver (``warm.py``), and not for problems that are solved once (``registry.solve``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np

from dios.errors import InvariantError
from dios.firmament.solvers.changing_network import ChangingNetwork
from dios.firmament.solvers.columns import Ints, exact_product
from dios.firmament.solvers.errors import OutOfRangeError
from dios.firmament.solvers.potentials import potentials
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.registry import solve
from dios.firmament.solvers.residual import flag_arcs
from dios.firmament.solvers.residual_repair import (
    OVERFLOW,
    PRICE_LOW,
    PRICE_MAX,
    STUCK,
    TIRED,
    WIDE,
    adopt,
    excesses,
    repair,
    settle,
)
from dios.firmament.solvers.standard import NO_VERTICES, infeasible
from dios.limits import FLOW_UNBOUNDED

NAME: Final = "incremental"

PLAIN: Final = "successive_shortest"
"""Who answers where no repair can: when a cycle lowers the cost for ever."""

COLD_ARCS_MAX: Final = 2_000
"""A first answer on a larger network is left to an algorithm that is made for first answers."""

EXCESSES_MIN: Final = 64
EXCESSES_SHARE: Final = 4
"""More excesses than that, and than a vertex in so many: a start from scratch is likely to be cheaper."""

WORK_SHARE: Final = 10
"""A repair that looked at so many half-arcs for each one there is costs as much as a start from scratch."""

FAST_SHARE: Final = 3
"""The same for a network whose shape has a fast path: a start from scratch costs little there."""

FAST: Final = "auction"
"""The algorithm of that path: who answered from scratch by it will do so again."""

ENDLESS_MAX: Final = 2**60
"""No flow on an arc without end may need more than this."""


class IncrementalSolver(ChangingNetwork):
    """A network with its best flow and prices; both are kept, and repaired after changes (thesis §6.4.3).

    Changes are checked at once and take effect at the next :meth:`solve`; a refused one raises
    :class:`InvalidProblemError` and changes nothing. Ids of vertices and arcs stay as they are for good, and
    those of removed ones are not given again. ``scratch`` names the algorithm for answers from scratch,
    which are sought where the network changed so much that a repair would take longer; None: always repair.
    """

    def __init__(self, problem: FlowProblem, *, scratch: str | None = "auto") -> None:
        self._scratch = scratch
        self._priced = 0
        self._cold = True
        self._fast = False
        self._endless = 0
        self._price_low = PRICE_LOW
        super().__init__(problem)

    def solve(self) -> FlowSolution:
        """The cheapest flow of the network as it is now; ``flow`` and ``prices`` are by id, 0 for what was
        removed.

        ``algorithm`` is "incremental", or the one that answered from scratch. An infeasible network keeps
        what could be done of it, so that a later change can make it feasible from there.
        :class:`OutOfRangeError`: the capacities add up to more than 64 bits hold; the network stays as it
        is.
        """
        began = time.perf_counter()
        if self._totals.sent != self._totals.wanted:
            return infeasible(
                self.problem(), NO_VERTICES, algorithm=NAME, seconds=time.perf_counter() - began
            )
        if self._endless_cycle():
            # With its ids as they are: the witness and the reason name arcs.
            return replace(solve(self.problem(), PLAIN), seconds=time.perf_counter() - began)
        self._bound_endless()
        if self._cold and self._scratch and self._arcs > COLD_ARCS_MAX:
            return self._from_scratch(began)
        self._bound_prices()
        net = self._net
        if settle(net, self._endless, self._priced, self._vertices) == OVERFLOW:
            raise OutOfRangeError(
                "the flows at one vertex add up to more than 64 bits hold; use a larger unit of flow,"
                f" or FLOW_UNBOUNDED ({FLOW_UNBOUNDED}) where there is no end"
            )
        self._priced = self._vertices
        work_max = FLOW_UNBOUNDED
        if self._scratch:
            if excesses(net) > max(EXCESSES_MIN, self._vertices // EXCESSES_SHARE):
                return self._from_scratch(began)
            share = FAST_SHARE if self._fast else WORK_SHARE
            work_max = share * 2 * (self._arcs + self._vertices + EXCESSES_MIN)
        outcome, settled = WIDE, 0
        while outcome == WIDE:
            self._bound_prices()
            outcome, settled = repair(net, self._endless, work_max, self._price_low)
        if outcome == TIRED:
            return self._from_scratch(began)
        self._cold = False
        if outcome == STUCK:
            stuck = np.sort(net.settled[:settled])
            return infeasible(self.problem(), stuck, algorithm=NAME, seconds=time.perf_counter() - began)
        self._bound_prices()
        flow, prices = net.flow[: self._arcs].copy(), net.price[: self._vertices].copy()
        cost = exact_product(flow, net.cost[: self._arcs])
        return FlowSolution(flow, cost, prices, "optimal", NAME, time.perf_counter() - began)

    def _from_scratch(self, began: float) -> FlowSolution:
        """An answer that starts from nothing; an optimal one is where the next repair starts from."""
        # What was removed would hide the network's shape from those who look for one.
        small = self.compacted()
        solution = solve(small.problem, self._scratch or PLAIN)
        self._fast = solution.algorithm == FAST
        if solution.status != "optimal":
            stuck = small.vertices[solution.witness]
            seconds = time.perf_counter() - began
            return infeasible(self.problem(), stuck, algorithm=solution.algorithm, seconds=seconds)
        flow, prices = np.zeros(self._arcs, np.int64), np.zeros(self._vertices, np.int64)
        flow[small.arcs], prices[small.vertices] = solution.flow, solution.prices
        adopt(self._net, flow, prices)
        self._priced, self._cold = self._vertices, False
        return replace(solution, flow=flow, prices=prices, seconds=time.perf_counter() - began)

    def _endless_cycle(self) -> bool:
        """Whether some cycle of arcs without end lowers the cost for ever."""
        if not self._endless_changed:
            return False
        if self._totals.endless_negative:
            net = self._net
            arcs = np.flatnonzero(net.capacity[: self._arcs] >= FLOW_UNBOUNDED)
            start = np.zeros(self._vertices, np.int64)
            if potentials(self._vertices, net.tail[arcs], net.head[arcs], net.cost[arcs], start).size:
                return True
        self._endless_changed = False
        return False

    def _bound_endless(self) -> None:
        """Find what stands for "without end": more than any arc carries in an optimal flow.

        Such a flow is paths from supplies, and cycles of negative cost, each of which fills an arc with an
        end. It changes by doubling, so that the arcs that it concerns are seldom looked at again.
        """
        totals, net = self._totals, self._net
        filled = totals.room if totals.endless_negative else totals.negative_room
        most = 1 + totals.sent + 2 * totals.lower + filled
        if most > ENDLESS_MAX and totals.endless:
            raise OutOfRangeError(
                f"an arc without end might carry {most - 1}, which is more than {ENDLESS_MAX};"
                " use a larger unit of flow"
            )
        endless = FLOW_UNBOUNDED if most > ENDLESS_MAX else max(1 << most.bit_length(), self._endless)
        if self._endless >= FLOW_UNBOUNDED and most <= ENDLESS_MAX:
            endless = 1 << most.bit_length()
        if endless != self._endless:
            least = min(endless, self._endless)
            flag_arcs(net, np.flatnonzero(net.capacity[: self._arcs] > least))
            self._endless = endless

    def _bound_prices(self) -> None:
        """Bring prices that drifted far off back to where nothing can leave 64 bits."""
        net = self._net
        prices = net.price[: self._vertices]
        if prices.min(initial=0) >= -PRICE_MAX and prices.max(initial=0) <= PRICE_MAX:
            return
        prices -= prices.max()
        if prices.min() < -PRICE_MAX:
            prices[:] = self._anew()

    def _anew(self) -> Ints:
        """Prices from nothing that are right on every arc that is settled."""
        net, arcs = self._net, slice(self._arcs)
        settled = net.flagged[arcs] == 0
        flow, cost = net.flow[arcs], net.cost[arcs]
        forth = settled & (flow < np.minimum(net.capacity[arcs], self._endless))
        back = settled & (flow > net.lower[arcs])
        tail, head = net.tail[arcs], net.head[arcs]
        price = np.zeros(self._vertices, np.int64)
        cycle = potentials(
            self._vertices,
            np.concatenate([tail[forth], head[back]]),
            np.concatenate([head[forth], tail[back]]),
            np.concatenate([cost[forth], -cost[back]]),
            price,
        )
        if cycle.size:
            raise InvariantError(
                f"the flow that was kept is not optimal: arcs {cycle.tolist()} cost too much"
            )
        return price
