"""A warm solver and a plain list of its expected contents, with random changes to both.

Every change goes to the warm solver and is kept here, so that a fresh problem can be made.
"""

from __future__ import annotations

from random import Random

import numpy as np

from dios.firmament.solvers import FlowProblem, FlowSolution
from dios.firmament.solvers.warm_solver import WarmSolution, WarmSolver
from tests.support.firmament.flow_networks import problem_of

Row = list[tuple[int, int]]


class WarmHistory:
    """A small cluster that changes at random, by seed; aggregates first, machines after them."""

    def __init__(self, seed: int, **options: int) -> None:
        self.rng = Random(seed)  # noqa: S311 - changes by seed are what is wanted
        self.warm = WarmSolver(**options)
        self.least, self.most = self.rng.choice([(0, 9), (0, 40), (-5, 5), (0, 2**36)])
        self.supply = [0]
        self.arcs: list[list[int]] = []
        self.rows: dict[int, Row] = {}
        self.jobs = [self.vertex() for _ in range(2)]
        self.cluster = self.vertex()
        self.racks = [self.vertex() for _ in range(2)]
        self.machines: list[int] = []
        for job in self.jobs:
            self.add_arc(job, 0, 1000)
        for rack in self.racks:
            self.add_arc(self.cluster, rack, 50)
        for _ in range(4):
            self.add_machine()
        self.add_tasks(self.rng.randint(0, 25))

    def cost(self) -> int:
        """A drawn cost."""
        return self.rng.randint(self.least, self.most)

    def vertex(self) -> int:
        """A new upper vertex."""
        self.supply.append(0)
        (vertex,) = self.warm.add_vertices(1)
        assert vertex == len(self.supply) - 1
        return int(vertex)

    def add_arc(self, tail: int, head: int, capacity: int) -> None:
        """A new arc of a drawn cost."""
        cost = self.cost()
        (arc,) = self.warm.add_arcs(tail, head, capacity, cost)
        assert arc == len(self.arcs)
        self.arcs.append([tail, head, 0, capacity, cost])

    def add_machine(self) -> None:
        """A machine in a rack, with one or two pieces of cost to the sink."""
        machine = self.vertex()
        self.machines.append(machine)
        self.add_arc(self.rng.choice(self.racks), machine, self.rng.randint(0, 4))
        for _ in range(self.rng.randint(1, 2)):
            self.add_arc(machine, 0, self.rng.randint(0, 4))

    def drawn_row(self) -> Row:
        """Options anywhere, and a dear one at a job's aggregator."""
        places = [*self.machines, *self.racks, self.cluster]
        chosen = self.rng.sample(places, self.rng.randint(0, min(6, len(places))))
        return [(place, self.cost()) for place in chosen] + [(self.rng.choice(self.jobs), self.most)]

    def columns(self, rows: list[Row]) -> tuple[list[int], list[int], list[int]]:
        """The rows as columns (start, target, cost)."""
        start = [0]
        for row in rows:
            start.append(start[-1] + len(row))
        return start, [place for row in rows for place, _ in row], [cost for row in rows for _, cost in row]

    def add_tasks(self, count: int) -> None:
        """New tasks with drawn rows."""
        rows = [self.drawn_row() for _ in range(count)]
        for task, row in zip(self.warm.add_tasks(*self.columns(rows)).tolist(), rows, strict=True):
            assert task not in self.rows
            self.rows[task] = row

    def some_tasks(self) -> list[int]:
        """A few of the tasks there are."""
        return self.rng.sample(sorted(self.rows), min(len(self.rows), self.rng.choice([1, 2, 8])))

    def change(self) -> None:
        """One random change, of any kind."""
        kind = self.rng.choice(
            ["add", "remove", "replace", "cost", "cost", "arc", "bounds", "machine", "supply"]
        )
        tasks = self.some_tasks()
        if kind == "add":
            self.add_tasks(self.rng.choice([1, 2, 12]))
        elif kind == "remove":
            self.warm.remove_tasks(tasks)
            for task in tasks:
                del self.rows[task]
        elif kind == "replace":
            rows = [self.drawn_row() for _ in tasks]
            self.warm.replace_tasks(tasks, *self.columns(rows))
            self.rows.update(zip(tasks, rows, strict=True))
        elif kind == "cost":
            index = [self.rng.randrange(len(self.rows[task])) for task in tasks]
            costs = [self.cost() for _ in tasks]
            self.warm.change_costs(tasks, index, costs)
            for task, place, cost in zip(tasks, index, costs, strict=True):
                self.rows[task][place] = (self.rows[task][place][0], cost)
        elif kind == "machine":
            self.add_machine()
        elif kind == "supply":
            job = self.rng.choice(self.jobs)
            self.supply[job] = -self.rng.randint(0, 3)
            self.warm.set_supply(job, self.supply[job])
        else:
            self.change_arc(kind)

    def change_arc(self, kind: str) -> None:
        """A new cost ("arc") or new bounds of one arc."""
        arc = self.rng.randrange(len(self.arcs))
        if kind == "arc":
            self.arcs[arc][4] = self.cost()
            self.warm.change_arcs(arc, cost=self.arcs[arc][4])
            return
        self.arcs[arc][3] = self.rng.randint(0, 6)
        self.arcs[arc][2] = min(self.rng.choice([0, 0, 0, 0, 1]), self.arcs[arc][3])
        self.warm.change_arcs(arc, capacity=self.arcs[arc][3], lower=self.arcs[arc][2])

    def problem(self) -> FlowProblem:
        """The whole network: upper vertices first, then the tasks in the order of their ids."""
        supply = [*self.supply, *(1 for _ in self.rows)]
        supply[0] = -sum(supply[1:])
        arcs = [(a[0], a[1], a[2], a[3], a[4]) for a in self.arcs]
        for place, task in enumerate(sorted(self.rows)):
            arcs += [(len(self.supply) + place, to, 0, 1, cost) for to, cost in self.rows[task]]
        return problem_of(supply, arcs)

    def solution(self, warm_solution: WarmSolution) -> FlowSolution:
        """The warm answer as one for :meth:`problem`."""
        flow = warm_solution.flow.tolist()
        prices = warm_solution.prices.tolist()
        for task in sorted(self.rows):
            row = self.rows[task]
            taken = [0] * len(row)
            taken[int(warm_solution.choice[task])] = 1
            assert row[int(warm_solution.choice[task])][0] == warm_solution.target[task]
            flow += taken
            prices.append(max(prices[to] - cost for to, cost in row))
        return FlowSolution(
            np.array(flow, np.int64),
            warm_solution.cost,
            np.array(prices, np.int64),
            warm_solution.status,
            "warm",
            0.0,
        )
