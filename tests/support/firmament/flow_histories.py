"""Random changes to a flow network by seed, of every kind that a solver which keeps its state must survive.

The changes of a cluster's rounds are in ``labs.benchmarks.networks``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import numpy as np

from dios.limits import FLOW_UNBOUNDED
from labs.solvers import IncrementalSolver

COSTS: Final = ((0, 30), (-20, 20), (0, 0), (-(1 << 40), 1 << 40))


class History:
    """A network and the random changes to it; the same seed brings the same."""

    def __init__(self, live: IncrementalSolver, seed: int) -> None:
        self.live = live
        self.random = Random(f"history {seed}")  # noqa: S311 - a test repeats itself
        self.costs = self.random.choice(COSTS)
        self._hub = -1
        if self.random.random() < 0.8:
            self._add_hub()
        self._kinds: list[Callable[[], None]] = [
            self._move_supply,
            self._move_supply,
            self._add_task,
            self._add_task,
            self._add_arc,
            self._change_cost,
            self._change_cost,
            self._change_capacity,
            self._change_lower,
            self._change_many,
            self._drift,
            self._remove_arc,
            self._remove_vertex,
            self._unbalance,
            self._endless,
        ]

    def step(self) -> str:
        """Make one change; its name."""
        if self._balance() and self.random.random() < 0.7:
            self._settle()
        kind = self.random.choice(self._kinds)
        kind()
        return kind.__name__

    def _add_hub(self) -> None:
        """A dear way from each vertex to each other: most supplies can be sent, and changes decide how."""
        vertices = self._vertices()
        self._hub = self.live.add_node()
        for vertex in vertices:
            self._join(vertex)

    def _join(self, vertex: int) -> None:
        if self._hub in self._vertices():
            dear = 2 * max(self.costs) + 1
            self.live.add_arcs([self._hub, vertex], [vertex, self._hub], capacity=80, cost=dear)

    def _vertices(self) -> list[int]:
        vertices: list[int] = self.live.compacted().vertices.tolist()
        while len(vertices) < 2:
            vertices.append(self.live.add_node())
        return vertices

    def _arcs(self) -> list[int]:
        arcs: list[int] = self.live.compacted().arcs.tolist()
        if not arcs:
            self._add_arc()
            return self._arcs()
        return arcs

    def _supply(self, vertex: int) -> int:
        return int(self.live.problem().supply[vertex])

    def _cost(self) -> int:
        return self.random.randint(*self.costs)

    def _balance(self) -> int:
        return int(self.live.problem().supply.sum())

    def _settle(self) -> None:
        """Have the supplies add up again, mostly."""
        if self.random.random() < 0.9:
            vertex = self.random.choice(self._vertices())
            self.live.set_supply(vertex, self._supply(vertex) - self._balance())

    def _move_supply(self) -> None:
        source, sink = self.random.sample(self._vertices(), 2)
        amount = self.random.randint(1, 4)
        self.live.set_supplies([source, sink], [self._supply(source) + amount, self._supply(sink) - amount])
        if self.random.random() < 0.3:
            self._settle()

    def _add_task(self) -> None:
        others = self._vertices()
        task = self.live.add_node(self.random.randint(0, 3))
        wanted = self.random.sample(others, min(len(others), self.random.randint(1, 4)))
        self.live.add_arcs([task] * len(wanted), wanted, 0, 2, [self._cost() for _ in wanted])
        if self.random.random() < 0.4:
            self.live.add_arc(self.random.choice(others), task, 0, 3, self._cost())
        self._join(task)
        self._settle()

    def _add_arc(self) -> None:
        tail, head = self.random.choices(self._vertices(), k=2)
        lower = self.random.choice((0, 0, 0, 1, 2))
        self.live.add_arc(tail, head, lower, lower + self.random.randint(0, 8), self._cost())

    def _change_cost(self) -> None:
        self.live.change_arc(self.random.choice(self._arcs()), cost=self._cost())

    def _change_capacity(self) -> None:
        arc = self.random.choice(self._arcs())
        lower = int(self.live.problem().lower[arc])
        self.live.change_arc(arc, capacity=max(lower, 0) + self.random.choice((0, 0, 1, 3, 20)))

    def _change_lower(self) -> None:
        arc = self.random.choice(self._arcs())
        most = min(int(self.live.problem().capacity[arc]), 4)
        self.live.change_arc(arc, lower=self.random.randint(0, most) if self.random.random() < 0.4 else 0)

    def _change_many(self) -> None:
        arcs = self._arcs()
        arcs = self.random.sample(arcs, self.random.randint(1, len(arcs)))
        lower = np.zeros(len(arcs), np.int64)
        capacity = [self.random.randint(0, 12) for _ in arcs]
        self.live.change_arcs(arcs, lower=lower, capacity=capacity, cost=[self._cost() for _ in arcs])

    def _drift(self) -> None:
        arcs = self._arcs()
        costs = self.live.problem().cost[arcs]
        self.live.change_arcs(arcs, cost=costs + [self.random.randint(-2, 2) for _ in arcs])

    def _remove_arc(self) -> None:
        self.live.remove_arc(self.random.choice(self._arcs()))

    def _remove_vertex(self) -> None:
        self.live.remove_node(self.random.choice(self._vertices()))
        self._settle()

    def _unbalance(self) -> None:
        vertex = self.random.choice(self._vertices())
        self.live.set_supply(vertex, self._supply(vertex) + self.random.choice((-1, 1)))
        self._settle()

    def _endless(self) -> None:
        arc = self.random.choice(self._arcs())
        cost = self._cost() if self.random.random() < 0.2 else abs(self._cost())
        self.live.change_arc(arc, capacity=FLOW_UNBOUNDED, cost=cost)
