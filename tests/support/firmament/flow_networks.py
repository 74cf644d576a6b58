"""Random flow problems by seed, in every shape that has hurt a solver, and a brute oracle for tiny ones.

Networks of tasks and machines in real sizes are in ``labs.benchmarks.networks``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import Final

import numpy as np

from dios.firmament.solvers import FlowProblem
from dios.limits import FLOW_UNBOUNDED

Arc = tuple[int, int, int, int, int]
"""Tail, head, lower bound, capacity, cost."""

SHAPES: Final = (
    "plain",
    "layered",
    "scheduling",
    "oversubscribed",
    "disconnected",
    "negative",
    "lower",
    "parallel",
    "large costs",
    "free",
    "wide",
    "endless",
    "tight",
    "tiny",
)


def shape_of(seed: int) -> str:
    """The shape that :func:`network` gives for a seed: all of them in turn."""
    return SHAPES[seed % len(SHAPES)]


def problem_of(supply: list[int], arcs: list[Arc]) -> FlowProblem:
    """The problem with these rows."""
    columns = np.array(arcs, np.int64).reshape(len(arcs), 5).T
    return FlowProblem(np.array(supply, np.int64), *columns)


def arcs_of(problem: FlowProblem) -> list[Arc]:
    """The arcs of a problem as rows."""
    columns = (problem.tail, problem.head, problem.lower, problem.capacity, problem.cost)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _supplies(rng: Random, vertices: int, most: int) -> list[int]:
    """Supplies that add up to 0; about a half of the vertices have none."""
    supply = [0] * vertices
    for _ in range(rng.randrange(vertices)):
        source, sink = rng.randrange(vertices), rng.randrange(vertices)
        amount = rng.randint(0, most)
        supply[source] += amount
        supply[sink] -= amount
    return supply


def _around(rng: Random, vertices: int, room: int, cost: int) -> list[Arc]:
    """Dear arcs both ways around a ring: whatever has to be sent can be."""
    arcs: list[Arc] = []
    for vertex in range(vertices):
        other = (vertex + 1) % vertices
        arcs += [(vertex, other, 0, room, cost), (other, vertex, 0, room, cost)]
    rng.shuffle(arcs)
    return arcs


def _any(rng: Random, vertices: int, count: int, room: int, costs: tuple[int, int]) -> list[Arc]:
    """Arcs between any two vertices, loops and parallel ones too."""
    return [
        (rng.randrange(vertices), rng.randrange(vertices), 0, rng.randint(0, room), rng.randint(*costs))
        for _ in range(count)
    ]


def _with_lower(rng: Random, arcs: list[Arc], share: float) -> list[Arc]:
    return [(v, w, rng.randint(0, most) if rng.random() < share else 0, most, c) for v, w, _, most, c in arcs]


def _layered(rng: Random) -> FlowProblem:
    layers, width = rng.randint(2, 4), rng.randint(1, 5)
    vertices = layers * width + 1
    arcs: list[Arc] = []
    for layer in range(layers):
        for here in range(width):
            tail = layer * width + here
            if layer == layers - 1:
                arcs.append((tail, vertices - 1, 0, rng.randint(0, 9), rng.randint(0, 20)))
                continue
            for _ in range(rng.randint(1, 3)):
                head = (layer + 1) * width + rng.randrange(width)
                arcs.append((tail, head, 0, rng.randint(0, 6), rng.randint(-3, 20)))
    sent = [rng.randint(0, 4) for _ in range(width)]
    supply = [*sent, *([0] * (vertices - width - 1)), -sum(sent)]
    return problem_of(supply, arcs)


def _scheduling(rng: Random, *, over: bool) -> FlowProblem:
    machines, slots, jobs = rng.randint(1, 6), rng.randint(1, 3), rng.randint(1, 3)
    tasks = machines * slots + rng.randint(1, 6) if over else rng.randint(1, machines * slots)
    cluster, sink = tasks + machines + jobs, tasks + machines + jobs + 1
    arcs: list[Arc] = []
    for task in range(tasks):
        arcs.append((task, cluster, 0, 1, rng.randint(5, 30)))
        arcs.append((task, tasks + machines + rng.randrange(jobs), 0, 1, rng.randint(20, 90)))
        wanted = rng.sample(range(machines), rng.randint(0, min(3, machines)))
        arcs += [(task, tasks + machine, 0, 1, rng.randint(0, 25)) for machine in wanted]
    for machine in range(machines):
        arcs.append((cluster, tasks + machine, 0, slots, rng.choice((0, 0, rng.randint(1, 5)))))
        arcs.append((tasks + machine, sink, 0, slots, rng.choice((0, rng.randint(0, 5)))))
    arcs += [(tasks + machines + job, sink, 0, tasks, 0) for job in range(jobs)]
    rng.shuffle(arcs)
    return problem_of([1] * tasks + [0] * (machines + jobs + 1) + [-tasks], arcs)


def _disconnected(rng: Random) -> FlowProblem:
    parts = [_plain(rng, 8, (-5, 30)) for _ in range(rng.randint(2, 3))]
    supply: list[int] = []
    arcs: list[Arc] = []
    for part in parts:
        shift = len(supply)
        supply += part.supply.tolist()
        arcs += [(v + shift, w + shift, low, most, cost) for v, w, low, most, cost in arcs_of(part)]
    return problem_of([*supply, 0, 0], arcs)


def _plain(rng: Random, most: int, costs: tuple[int, int]) -> FlowProblem:
    vertices = rng.randint(2, most)
    supply = _supplies(rng, vertices, 9)
    arcs = _any(rng, vertices, rng.randint(1, 4 * vertices), 12, costs)
    if rng.random() < 0.7:
        arcs += _around(rng, vertices, 10 * vertices, max(costs) * 2 + 1)
    return problem_of(supply, arcs)


def _endless(rng: Random) -> FlowProblem:
    """Some arcs without end; a third of these problems is without end themselves, or infeasible, or both."""
    plain = _plain(rng, 8, (-2, 9) if rng.random() < 0.5 else (0, 9))
    arcs = [
        (v, w, 0, FLOW_UNBOUNDED if rng.random() < 0.4 else most, cost)
        for v, w, _, most, cost in arcs_of(plain)
    ]
    return problem_of(plain.supply.tolist(), arcs)


def tiny(rng: Random) -> FlowProblem:
    """At most four vertices and six arcs, few units: :func:`brute_cost` can try every flow."""
    vertices = rng.randint(1, 4)
    supply = [0] * vertices
    for _ in range(rng.randint(0, 2)):
        supply[rng.randrange(vertices)] += 1
        supply[rng.randrange(vertices)] -= 1
    if rng.random() < 0.05:
        supply[0] += 1
    arcs = _with_lower(rng, _any(rng, vertices, rng.randint(0, 6), 2, (-4, 6)), 0.3)
    return problem_of(supply, arcs)


def network(seed: int) -> FlowProblem:
    """The random problem of a seed; its shape is ``shape_of(seed)``."""
    shape = shape_of(seed)
    rng = Random(f"flow {seed}")  # noqa: S311 - a test repeats itself
    if shape == "layered":
        return _layered(rng)
    if shape in {"scheduling", "oversubscribed"}:
        return _scheduling(rng, over=shape == "oversubscribed")
    if shape == "disconnected":
        return _disconnected(rng)
    if shape == "endless":
        return _endless(rng)
    if shape == "tiny":
        return tiny(rng)
    if shape == "lower":
        plain = _plain(rng, 9, (-9, 30))
        arcs = _with_lower(rng, arcs_of(plain), 0.2)
        if rng.random() < 0.4:
            arcs = [(v, w, low - rng.randint(0, 5), most, cost) for v, w, low, most, cost in arcs]
        return problem_of(plain.supply.tolist(), arcs)
    if shape == "parallel":
        vertices = rng.randint(2, 4)
        return problem_of(_supplies(rng, vertices, 6), _any(rng, vertices, 30, 3, (-4, 9)))
    if shape == "tight":
        vertices = rng.randint(2, 9)
        return problem_of(_supplies(rng, vertices, 6), _any(rng, vertices, 4 * vertices, 5, (0, 9)))
    most, costs = {
        "plain": (12, (0, 40)),
        "negative": (12, (-40, 10)),
        "large costs": (10, (-(1 << 40), 1 << 40)),
        "free": (12, (0, 0)),
        "wide": (40, (-5, 100)),
    }[shape]
    return _plain(rng, most, costs)


def hubs(seed: int) -> FlowProblem:
    """Some hundred sources and sinks around two vertices that everything passes, with few different costs."""
    rng = Random(f"hubs {seed}")  # noqa: S311 - a test repeats itself
    sources, sinks = rng.randint(300, 400), rng.randint(260, 400)
    room = -(-sources // sinks) + rng.randint(0, 1)
    first_hub, two, end = sources + sinks, sources + sinks + 1, sources + sinks + 2
    arcs = [(source, hub, 0, 1, rng.randint(0, 3)) for source in range(sources) for hub in (first_hub, two)]
    arcs += [
        (hub, sink, 0, room, rng.randint(0, 3))
        for sink in range(sources, first_hub)
        for hub in (first_hub, two)
    ]
    arcs += [(sink, end, 0, room, rng.randint(0, 3)) for sink in range(sources, first_hub)]
    return problem_of([1] * sources + [0] * (sinks + 2) + [-sources], arcs)


def _flows(problem: FlowProblem) -> Iterator[tuple[int, ...]]:
    bounds = zip(problem.lower.tolist(), problem.capacity.tolist(), strict=True)
    return itertools.product(*(range(low, most + 1) for low, most in bounds))


def brute_cost(problem: FlowProblem) -> int | None:
    """The least cost, by trying every flow of a tiny problem; None where there is none."""
    ends = list(zip(problem.tail.tolist(), problem.head.tolist(), strict=True))
    costs, best = problem.cost.tolist(), None
    for flow in _flows(problem):
        left = problem.supply.tolist()
        for (tail, head), amount in zip(ends, flow, strict=True):
            left[tail] -= amount
            left[head] += amount
        if any(left):
            continue
        cost = sum(amount * price for amount, price in zip(flow, costs, strict=True))
        best = cost if best is None else min(best, cost)
    return best
