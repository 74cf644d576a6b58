"""Small networks of scheduling shape by seed, with everything that may be odd about one.

Other shapes are in ``flow_networks``, real sizes in ``labs.benchmarks.networks``.
"""

from __future__ import annotations

from random import Random

from dios.firmament.solvers import FlowProblem
from tests.support.firmament.flow_networks import Arc, problem_of


class _Drawn:
    """A network while it is drawn: vertices get numbers in the order in which they come."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.supply: list[int] = [0]
        self.arcs: list[Arc] = []
        self.least, self.most = rng.choice([(0, 9), (0, 3), (-6, 6), (0, 0), (0, 2**40)])

    def vertex(self, supply: int = 0) -> int:
        self.supply.append(supply)
        return len(self.supply) - 1

    def cost(self) -> int:
        return self.rng.randint(self.least, self.most)

    def arc(self, tail: int, head: int, capacity: int, cost: int | None = None, lower: int = 0) -> None:
        drawn = self.cost() if cost is None else cost
        self.arcs.append((tail, head, min(lower, capacity), capacity, drawn))

    def inside(self, top: int, slots: int, depth: int) -> None:
        """A tree of inner vertices below ``top``; the leaves lead to the sink."""
        if not depth:
            for _ in range(self.rng.randint(1, 2)):
                self.arc(top, 0, self.rng.randint(0, slots))
            return
        for _ in range(self.rng.randint(1, 3)):
            below = self.vertex()
            self.arc(top, below, self.rng.randint(0, slots))
            self.inside(below, slots, depth - 1)


def scheduling_network(seed: int) -> FlowProblem:
    """A network of up to a few dozen tasks; some are infeasible."""
    rng = Random(seed)  # noqa: S311 - a network by seed is what is wanted
    drawn = _Drawn(rng)
    slots = rng.randint(1, 4)
    machines = [drawn.vertex() for _ in range(rng.randint(1, 8))]
    racks = [drawn.vertex() for _ in range(rng.randint(1, 3))]
    cluster = drawn.vertex()
    depth = rng.choice([0, 0, 0, 1, 2, 3])
    for machine in machines:
        if rng.random() < 0.9:
            drawn.inside(machine, slots, depth)
        for rack in rng.sample(racks, rng.choice([1, 1, 1, min(2, len(racks))])):
            drawn.arc(rack, machine, rng.choice([slots, slots, 1, 0]), rng.choice([0, None]))
    for rack in racks:
        lower = rng.choice([0] * 15 + [1])
        drawn.arc(cluster, rack, rng.choice([100, slots, 2]), rng.choice([0, None]), lower)
    places = [*machines, *racks, cluster]
    total = 0
    for _ in range(rng.randint(1, 4)):
        count = rng.randint(1, rng.choice([3, 12]))
        most = rng.randint(0, count) if rng.random() < 0.3 else count
        least = rng.randint(0, most) if rng.random() < 0.3 else 0
        aggregator = drawn.vertex(most - count)
        drawn.arc(aggregator, 0, rng.choice([most - least, most - least, 10**6]))
        total += most
        for _ in range(count):
            task = drawn.vertex(1)
            for place in rng.sample(places, rng.randint(0, min(6, len(places)))):
                drawn.arc(task, place, 1 if rng.random() < 0.95 else rng.randint(0, 3))
            if rng.random() < 0.95:
                drawn.arc(task, aggregator, 1, None if rng.random() < 0.3 else drawn.most)
    drawn.supply[0] = -total
    return _shuffled(drawn, rng)


def _shuffled(drawn: _Drawn, rng: Random) -> FlowProblem:
    """The network with its vertices and arcs in any order: nothing may depend on who comes first."""
    if rng.random() < 0.5:
        return problem_of(drawn.supply, drawn.arcs)
    places = list(range(len(drawn.supply)))
    rng.shuffle(places)
    supply = [0] * len(places)
    for vertex, place in enumerate(places):
        supply[place] = drawn.supply[vertex]
    arcs: list[Arc] = [(places[arc[0]], places[arc[1]], *arc[2:]) for arc in drawn.arcs]
    rng.shuffle(arcs)
    return problem_of(supply, arcs)
