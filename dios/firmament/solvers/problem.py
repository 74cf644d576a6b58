"""A minimum-cost flow problem and its solution: columns of whole numbers, frozen.

Not for: tasks, machines or policies (``dios.firmament.network.flow_network``), and not for solving
(``registry.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from dios.firmament.solvers import dimacs
from dios.firmament.solvers.columns import Ints, exact_product, exact_sum, whole_numbers
from dios.firmament.solvers.errors import InvalidProblemError
from dios.limits import (
    FLOW_ARCS_MAX,
    FLOW_PRICE_MAX,
    FLOW_UNBOUNDED,
    FLOW_VERTICES_MAX,
    FLOW_VOLUME_MAX,
)


@dataclass(frozen=True, eq=False)
class FlowProblem:
    """Send all supplies to the demands over arcs with bounds, as cheaply as possible (thesis §C.1.1).

    ``supply`` is (V,): positive where flow begins, negative where it ends, in units of flow.
    ``tail``, ``head`` (vertices from 0), ``lower``, ``capacity`` (units) and ``cost`` (of one unit) are (E,).
    Each arc's flow is a whole number within [lower, capacity], and 0 <= lower. A capacity of
    ``FLOW_UNBOUNDED`` (2**62) or more has no end: a cycle of such arcs with a negative cost, a loop of one
    arc too, makes the problem unbounded. Parallel arcs, loops and negative costs are welcome.

    The columns are copied and frozen. :class:`InvalidProblemError` names the field and the index at fault.
    """

    supply: Ints
    tail: Ints
    head: Ints
    lower: Ints
    capacity: Ints
    cost: Ints

    def __post_init__(self) -> None:
        for name in ("supply", "tail", "head", "lower", "capacity", "cost"):
            object.__setattr__(self, name, whole_numbers(name, getattr(self, name)))
        self._check_shapes()
        self._check_arcs()
        self._check_sums()

    def _check_shapes(self) -> None:
        arcs = len(self.tail)
        for name, column in (
            ("head", self.head),
            ("lower", self.lower),
            ("capacity", self.capacity),
            ("cost", self.cost),
        ):
            if len(column) != arcs:
                raise InvalidProblemError(f"{name} has {len(column)} entries, but tail has {arcs}")
        if self.vertices > FLOW_VERTICES_MAX or arcs > FLOW_ARCS_MAX:
            raise InvalidProblemError(
                f"{self.vertices} vertices and {arcs} arcs; at most {FLOW_VERTICES_MAX} and"
                f" {FLOW_ARCS_MAX} fit"
            )

    def _check_arcs(self) -> None:
        for name, column in (("tail", self.tail), ("head", self.head)):
            wrong = np.flatnonzero((column < 0) | (column >= self.vertices))
            if wrong.size:
                raise InvalidProblemError(
                    f"{name}[{wrong[0]}] is {column[wrong[0]]}; there are {self.vertices} vertices, from 0"
                )
        for name, column in (("lower", self.lower), ("capacity", self.capacity)):
            wrong = np.flatnonzero(column < 0)
            if wrong.size:
                raise InvalidProblemError(
                    f"{name}[{wrong[0]}] is {column[wrong[0]]}; it must not be negative"
                )
        wrong = np.flatnonzero(self.lower > self.capacity)
        if wrong.size:
            arc = int(wrong[0])
            raise InvalidProblemError(
                f"lower[{arc}] is {self.lower[arc]}, above capacity[{arc}], which is {self.capacity[arc]}"
            )
        bound = FLOW_PRICE_MAX // (self.vertices + 1)
        wrong = np.flatnonzero((self.cost > bound) | (self.cost < -bound))
        if wrong.size:
            raise InvalidProblemError(
                f"cost[{wrong[0]}] is {self.cost[wrong[0]]}; with {self.vertices} vertices prices fit 64 bits"
                f" only for costs up to {bound}: use a larger unit"
            )

    def _check_sums(self) -> None:
        columns = {
            "supply": np.maximum(self.supply, 0),
            "demand (negative supply)": -np.maximum(np.minimum(self.supply, 0), -FLOW_VOLUME_MAX - 1),
            "lower": self.lower,
        }
        for name, column in columns.items():
            total = exact_sum(column)
            if total > FLOW_VOLUME_MAX:
                index = int(np.argmax(column))
                raise InvalidProblemError(
                    f"{name} adds up to {total}, more than {FLOW_VOLUME_MAX};"
                    f" the largest is {column[index]} at {index}"
                )

    @property
    def vertices(self) -> int:
        """How many vertices there are."""
        return len(self.supply)

    @property
    def arcs(self) -> int:
        """How many arcs there are."""
        return len(self.tail)

    @property
    def unbounded_arcs(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which arcs have a capacity without end, (E,) of bool."""
        return self.capacity >= FLOW_UNBOUNDED

    @classmethod
    def from_dimacs(cls, path: str | Path) -> Self:
        """Read DIMACS' format ("p min V E"); :class:`InvalidProblemError` names the line at fault."""
        return cls(*dimacs.read(Path(path)))

    def to_dimacs(self, path: str | Path) -> None:
        """Write DIMACS' format; ``from_dimacs`` gives the same problem again."""
        columns = dimacs.Columns(self.supply, self.tail, self.head, self.lower, self.capacity, self.cost)
        dimacs.write(Path(path), columns)


@dataclass(frozen=True, eq=False)
class FlowSolution:
    """What an algorithm found, with what proves it (thesis §C.1.2).

    With status "optimal": ``flow`` is (E,), ``cost`` its exact cost, and ``prices`` (V,) prove it: the
    reduced cost ``cost + prices[tail] - prices[head]`` is >= 0 on each arc with room, and <= 0 on each that
    carries more than its lower bound.
    With "infeasible": flow and prices are zeros, ``reason`` says in words which vertices cannot send how
    much, and ``witness`` lists those vertices (none, where the supplies do not add up to 0).
    With "unbounded": ``flow`` is feasible, and ``witness`` lists the arcs of a cycle, in order, that lowers
    the cost without end. ``seconds`` is the wall-clock time that the algorithm took.
    """

    flow: Ints
    cost: int
    prices: Ints
    status: str
    algorithm: str
    seconds: float
    reason: str = ""
    witness: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


def cost_of(problem: FlowProblem, flow: Ints) -> int:
    """The exact cost of a flow (E,), however large."""
    return exact_product(flow, problem.cost)
