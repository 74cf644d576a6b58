"""Generators of the families of networks on which flow algorithms are compared, by size and seed.

Each follows the published description of a family: those of NETGEN (Klingman, Napier and Stutz 1974), of
GRIDGEN (Lee and Orlin 1991), of GOTO, the grid on a torus (Goldberg and Kharitonov 1993), and of the grid
graphs (Resende and Veiga 1993); and those of problems that are cases of minimum-cost flow. The numbers are
drawn by our own code, so a network is not the one that such a program makes from the same seed.

Networks of a cluster's scheduler are those of ``labs.benchmarks.networks``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isqrt
from typing import Final

import numpy as np

from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.problem import FlowProblem
from dios.limits import FLOW_UNBOUNDED
from labs.benchmarks.networks import quincy

COST_MAX: Final = 10_000
CAPACITY_MAX: Final = 1_000

Rng = np.random.Generator


def _problem(supply: Ints, tail: Ints, head: Ints, capacity: Ints, cost: Ints) -> FlowProblem:
    return FlowProblem(supply, tail, head, np.zeros(len(tail), np.int64), capacity, cost)


def _drawn(rng: Rng, most: int, count: int) -> Ints:
    """Draw whole numbers from 1 to ``most``."""
    return rng.integers(1, most + 1, count)


def assignment(vertices: int, degree: int, seed: int) -> FlowProblem:
    """Draw a bipartite network of capacity 1: each left vertex goes to one of ``degree`` right ones."""
    rng, half = np.random.default_rng(seed), vertices // 2
    left = np.repeat(np.arange(half), degree)
    right = np.argsort(rng.random((half, half)), axis=1)[:, : degree - 1]
    # Each left vertex has an arc to its own right one, so that an assignment exists.
    right = np.concatenate([np.arange(half)[:, None], right], axis=1)
    supply = np.repeat(np.array([1, -1]), half)
    ones = np.ones(len(left), np.int64)
    return _problem(supply, left, right.ravel() + half, ones, _drawn(rng, COST_MAX, len(left)))


def grid(vertices: int, length: int, seed: int) -> FlowProblem:
    """Draw a grid with arcs right, up and down, from a source at its left to a sink at its right.

    With ``length`` columns, far fewer than rows, this is the family "wide".
    """
    rng, rows = np.random.default_rng(seed), vertices // length
    place = np.arange(rows * length).reshape(rows, length)
    source, sink = rows * length, rows * length + 1
    tail = [place[:, :-1].ravel(), place[:-1].ravel(), place[1:].ravel()]
    head = [place[:, 1:].ravel(), place[1:].ravel(), place[:-1].ravel()]
    tail += [np.full(rows, source), place[:, -1]]
    head += [place[:, 0], np.full(rows, sink)]
    tails, heads = np.concatenate(tail), np.concatenate(head)
    capacity, cost = _drawn(rng, COST_MAX, len(tails)), _drawn(rng, COST_MAX, len(tails))
    # The flow is close to the largest one: what the narrowest column carries straight on, less a tenth.
    straight = capacity[: rows * (length - 1)].reshape(rows, length - 1)
    ends = capacity[-2 * rows :].reshape(2, rows)
    narrow = np.minimum(straight.min(1), ends.min(0)).sum()
    supply = np.zeros(len(place.ravel()) + 2, np.int64)
    supply[source], supply[sink] = narrow, -narrow
    return _problem(supply, tails, heads, capacity, cost)


def netgen(vertices: int, degree: int, seed: int) -> FlowProblem:
    """Draw a network of NETGEN's kind: chains from sources through all vertices to sinks, and random arcs."""
    rng = np.random.default_rng(seed)
    ends = max(1, isqrt(vertices))
    supplies = _spread(rng, ends * CAPACITY_MAX, ends)
    demands = _spread(rng, ends * CAPACITY_MAX, ends)
    middle = rng.permutation(np.arange(ends, vertices - ends))
    tails, heads, rooms = [], [], []
    for source, chain in enumerate(np.array_split(middle, ends)):
        path = np.concatenate([[source], chain])
        sinks = np.unique(np.append(rng.integers(0, ends, 2), source)) + vertices - ends
        tails += [path[:-1], np.full(len(sinks), path[-1])]
        heads += [path[1:], sinks]
        rooms += [np.full(len(path) - 1 + len(sinks), supplies[source])]
    skeleton = sum(len(part) for part in tails)
    # A sink may take what any source sends, so that each source's chain can carry all of it: the sinks pass
    # on the rest among themselves.
    ring = np.arange(vertices - ends, vertices)
    tails.append(ring)
    heads.append(np.roll(ring, 1))
    rooms.append(np.full(ends, ends * CAPACITY_MAX))
    more = max(0, vertices * degree - skeleton - ends)
    tails.append(rng.integers(0, vertices - ends, more))
    heads.append(rng.integers(ends, vertices, more))
    rooms.append(_drawn(rng, CAPACITY_MAX, more))
    tail, head, room = np.concatenate(tails), np.concatenate(heads), np.concatenate(rooms)
    cost = _drawn(rng, COST_MAX, len(tail))
    # Half of the skeleton has the largest cost, so that the optimum is not the skeleton.
    dear = rng.random(skeleton + ends) < 0.5
    cost[: skeleton + ends][dear] = COST_MAX
    supply = np.zeros(vertices, np.int64)
    supply[:ends] += supplies
    supply[vertices - ends :] -= demands
    return _problem(supply, tail, head, room, cost)


def _spread(rng: Rng, total: int, parts: int) -> Ints:
    """Divide a total into random parts of at least 1."""
    cuts = np.sort(rng.choice(np.arange(1, total), parts - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(np.int64)


def gridgen(vertices: int, degree: int, seed: int) -> FlowProblem:
    """Draw a network of GRIDGEN's kind: a grid with arcs both ways, random arcs, and dear last resorts.

    Sources and sinks are random vertices; a vertex of its own carries at the largest cost what has no way.
    """
    rng, side = np.random.default_rng(seed), isqrt(vertices)
    place = np.arange(side * side).reshape(side, side)
    across = [(place[:, :-1], place[:, 1:]), (place[:-1], place[1:])]
    pairs = [pair for first, other in across for pair in ((first, other), (other, first))]
    tail = np.concatenate([start.ravel() for start, _ in pairs])
    head = np.concatenate([other.ravel() for _, other in pairs])
    more = max(0, side * side * degree - len(tail))
    tail = np.concatenate([tail, rng.integers(0, side * side, more)])
    head = np.concatenate([head, rng.integers(0, side * side, more)])
    keep = tail != head
    tail, head = tail[keep], head[keep]
    ends = rng.permutation(side * side)[: 2 * side]
    amounts = _spread(rng, side * CAPACITY_MAX, side), _spread(rng, side * CAPACITY_MAX, side)
    hub = side * side
    supply = np.zeros(hub + 1, np.int64)
    supply[ends[:side]], supply[ends[side:]] = amounts[0], -amounts[1]
    room, cost = _drawn(rng, CAPACITY_MAX, len(tail)), _drawn(rng, COST_MAX, len(tail))
    last = np.full(side, hub)
    return _problem(
        supply,
        np.concatenate([tail, ends[:side], last]),
        np.concatenate([head, last, ends[side:]]),
        np.concatenate([room, *amounts]),
        np.concatenate([cost, np.full(2 * side, side * COST_MAX)]),
    )


def torus(vertices: int, degree: int, seed: int) -> FlowProblem:
    """Draw a network of GOTO's kind: a grid on a torus from one source to one sink, with dear short arcs.

    Each vertex has arcs some columns ahead: the farther, the narrower and the cheaper; an arc of which the
    flow has no need in the optimum often looks best at first.
    """
    rng = np.random.default_rng(seed)
    columns = max(2, ceil(vertices ** (1 / 2)))
    rows = max(2, vertices // columns)
    count = rows * columns
    place = np.arange(count)
    row, column = place % rows, place // rows
    tails, heads, rooms, costs = [], [], [], []
    for number in range(degree):
        ahead = 1 + number // 2
        goes = (column + ahead) % columns
        beside = (row + (0 if number % 2 == 0 else ahead)) % rows
        tails.append(place)
        heads.append(goes * rows + beside)
        rooms.append(_drawn(rng, CAPACITY_MAX // ahead, count))
        costs.append(_drawn(rng, COST_MAX, count) * ahead // 2 + COST_MAX // (ahead + 1))
    # One path around the torus and down its columns has room for everything, at the largest cost.
    amount = CAPACITY_MAX * rows // 4
    tails.append(place)
    heads.append((place + 1) % count)
    rooms.append(np.full(count, amount))
    costs.append(np.full(count, 4 * COST_MAX))
    supply = np.zeros(count, np.int64)
    supply[0], supply[count - 1] = amount, -amount
    return _problem(
        supply, np.concatenate(tails), np.concatenate(heads), np.concatenate(rooms), np.concatenate(costs)
    )


def shortest_paths(vertices: int, degree: int, seed: int) -> FlowProblem:
    """Draw a tree of shortest paths: one unit from a root to every vertex, without capacities."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(vertices)
    above = order[(rng.random(vertices - 1) * np.arange(1, vertices)).astype(np.int64)]
    more = vertices * (degree - 1)
    tail = np.concatenate([above, rng.integers(0, vertices, more)])
    head = np.concatenate([order[1:], rng.integers(0, vertices, more)])
    supply = np.full(vertices, -1, np.int64)
    supply[order[0]] = vertices - 1
    room = np.full(len(tail), FLOW_UNBOUNDED)
    return _problem(supply, tail, head, room, _drawn(rng, COST_MAX, len(tail)))


def circulation(vertices: int, degree: int, seed: int) -> FlowProblem:
    """Draw a network without supplies, in which about half of the costs are negative."""
    rng, count = np.random.default_rng(seed), vertices * degree
    tail, head = rng.integers(0, vertices, count), rng.integers(0, vertices, count)
    cost = rng.integers(-COST_MAX, COST_MAX + 1, count)
    return _problem(np.zeros(vertices, np.int64), tail, head, _drawn(rng, CAPACITY_MAX, count), cost)


def transport(vertices: int, degree: int, seed: int) -> FlowProblem:
    """Draw a transport problem: each source has ``degree`` arcs without capacities to sinks."""
    rng, half = np.random.default_rng(seed), vertices // 2
    tail = np.concatenate([np.repeat(np.arange(half), degree), np.arange(half), np.arange(half)])
    head = rng.integers(half, 2 * half, half * degree)
    ring = half + np.arange(half), half + (np.arange(half) + 1) % half
    head = np.concatenate([head, *ring])
    supply = np.concatenate([_spread(rng, half * 100, half), -_spread(rng, half * 100, half)])
    cost = _drawn(rng, COST_MAX, len(tail))
    # Arcs to the own sink and the next one, at the largest cost: dear ways that make every amount feasible.
    cost[half * degree :] = COST_MAX
    tails = np.concatenate([tail, half + np.arange(half)])
    heads = np.concatenate([head, ring[1]])
    costs = np.concatenate([cost, np.full(half, COST_MAX)])
    return _problem(supply, tails, heads, np.full(len(tails), FLOW_UNBOUNDED), costs)


def scheduling(vertices: int, load: int, seed: int) -> FlowProblem:
    """Draw a round of a cluster's scheduler: see ``labs.benchmarks.networks.quincy``."""
    machines = max(1, vertices // 14)
    return quincy(machines, 13 * machines, load, seed, aggregate=load < 100).problem()


Family = Callable[[int, int, int], FlowProblem]

FAMILIES: Final[dict[str, tuple[Family, int]]] = {
    "assignment": (assignment, 16),
    "assignment, dense": (lambda vertices, _, seed: assignment(vertices, vertices * 7 // 16, seed), 0),
    "grid, wide": (grid, 16),
    "netgen": (netgen, 8),
    "gridgen": (gridgen, 8),
    "torus": (torus, 6),
    "shortest paths": (shortest_paths, 8),
    "circulation": (circulation, 8),
    "transport": (transport, 12),
    "scheduling": (scheduling, 90),
    "scheduling, oversubscribed": (scheduling, 110),
}
"""Each family's generator and its second argument: a degree, a length or a load."""


def drawn(family: str, vertices: int, seed: int) -> FlowProblem:
    """Draw a network of a family with about this number of vertices."""
    generator, argument = FAMILIES[family]
    return generator(vertices, argument, seed)
