"""The fast solver from scratch, for networks of scheduling shape: contraction, auction, exact repair.

Not for: other shapes, which it refuses or, as the first try of "auto", leaves to the general algorithms; and
not for networks that change (``warm.py``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np

from dios.firmament.solvers import cost_scaling
from dios.firmament.solvers.auction_bids import AGGREGATE, bid_all
from dios.firmament.solvers.auction_ease import ease
from dios.firmament.solvers.auction_market import adopt_prices, adopt_seats, fill_pieces, open_market
from dios.firmament.solvers.columns import Ints, exact_product, exact_sum
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.repair import repair
from dios.firmament.solvers.repair_net import SOLVED, Net, count_excess, new_search, seat_best, settle_arcs
from dios.firmament.solvers.shape import Contracted, contract, expand

ALGORITHM: Final = "auction"

BIDS_SHARE_MAX: Final = 40
"""After so many bids for each task the rest is left to the repair: a war of prices is on."""

ROUNDING_STEPS: Final = 2
"""Prices this many steps apart may belong together."""


def start(net: Net, order: Ints, dead: int) -> None:
    """Good prices and seats from an auction, where one fits; nobody may sit, and there is no flow yet.

    ``order`` is topological, ``dead`` the price of vertices without a way to the sink. Slackness holds for
    the tasks that sit afterwards; the others, and the arcs, have to be settled.
    """
    market = open_market(net, order)
    if market is None:
        return
    tasks = len(net.seat)
    bid_all(net, market, tasks, BIDS_SHARE_MAX * tasks)
    ease(net, market, order)
    askers = market.askers * (market.kind == AGGREGATE)
    part = int(market.value[int(np.argmax(askers))] % market.scale) if askers.any() else 0
    # Those who came in through the largest aggregate pay its price or a step more: no rounding may part them.
    offset = market.scale - part if part + ROUNDING_STEPS >= market.scale else 0
    adopt_prices(net, market, order, offset, dead)
    adopt_seats(net, market)
    fill_pieces(net, market)


def solve_contracted(small: Contracted) -> bool:
    """Solve the small form in place; False where it is infeasible."""
    net = small.net
    start(net, small.order, small.dead)
    if seat_best(net, np.flatnonzero(net.seat < 0)):
        return False
    settle_arcs(net)
    count_excess(net, small.supply)
    return repair(net, new_search(len(net.price)), np.zeros(4, np.int64), askers=False) == SOLVED


def run(problem: FlowProblem) -> FlowSolution:
    """The solution; a problem of another shape goes on to a general algorithm, and ``reason`` says why."""
    began = time.perf_counter()
    found = _solved(problem)
    if not isinstance(found, str):
        return found
    general = cost_scaling.run(problem)
    reason = general.reason or f"solved by {general.algorithm}: {found}"
    seconds = time.perf_counter() - began
    return replace(general, algorithm=ALGORITHM, seconds=seconds, reason=reason)


def fast(problem: FlowProblem) -> FlowSolution | None:
    """The solution where the problem is of scheduling shape and feasible, else None."""
    found = _solved(problem)
    return None if isinstance(found, str) else found


def _solved(problem: FlowProblem) -> FlowSolution | str:
    began = time.perf_counter()
    small = contract(problem)
    if isinstance(small, str):
        return small
    if not solve_contracted(small):
        return "it is infeasible"
    flow, prices = expand(problem, small)
    net = small.net
    # The small form costs the same, and has far fewer arcs to add up.
    cost = exact_product(net.flow, net.cost) + exact_sum(net.option_cost[net.seat])
    seconds = time.perf_counter() - began
    return FlowSolution(flow, cost, prices, "optimal", ALGORITHM, seconds)
