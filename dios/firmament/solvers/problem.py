"""A minimum-cost flow problem and its solution: frozen columns of whole numbers."""

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

    Args:
        supply: (V,), units of flow that begin (positive) or end (negative) at each vertex.
        tail, head: (E,), the vertices of each arc, counted from 0.
        lower, capacity: (E,), the bounds of each arc's flow, a whole number; lower <= capacity, and capacity
            >= 0. A negative flow goes from the head to the tail. A capacity of ``FLOW_UNBOUNDED`` (2**62) or
            more is unlimited: a cycle of such arcs with a negative cost, also a loop of one arc, makes the
            problem unbounded.
        cost: (E,), the cost of a unit.

    Parallel arcs, loops and negative costs are allowed. The columns are copied and frozen.

    Raises:
        InvalidProblemError: a column is wrong; the message names the field and the index.
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
        wrong = np.flatnonzero(self.capacity < 0)
        if wrong.size:
            raise InvalidProblemError(
                f"capacity[{wrong[0]}] is {self.capacity[wrong[0]]}; it must not be negative"
            )
        wrong = np.flatnonzero(self.lower < -FLOW_VOLUME_MAX)
        if wrong.size:
            raise InvalidProblemError(
                f"lower[{wrong[0]}] is {self.lower[wrong[0]]}; it must be at least {-FLOW_VOLUME_MAX}"
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
            "lower": np.abs(self.lower),
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
        """The number of vertices."""
        return len(self.supply)

    @property
    def arcs(self) -> int:
        """The number of arcs."""
        return len(self.tail)

    @property
    def unbounded_arcs(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Flags of the arcs with an unlimited capacity, (E,)."""
        return self.capacity >= FLOW_UNBOUNDED

    @classmethod
    def from_dimacs(cls, path: str | Path) -> Self:
        """Read DIMACS' format ("p min V E"); :class:`InvalidProblemError` names the wrong line."""
        return cls(*dimacs.read(Path(path)))

    def to_dimacs(self, path: str | Path) -> None:
        """Write DIMACS' format; ``from_dimacs`` reads the same problem."""
        columns = dimacs.DimacsColumns(
            self.supply, self.tail, self.head, self.lower, self.capacity, self.cost
        )
        dimacs.write(Path(path), columns)


@dataclass(frozen=True, eq=False)
class FlowSolution:
    """The result of an algorithm, with its proof (thesis §C.1.2).

    With status "optimal": ``flow`` is (E,), ``cost`` its exact cost, and ``prices`` (V,) prove it: the
    reduced cost ``cost + prices[tail] - prices[head]`` is >= 0 on each arc with room, and <= 0 on each arc
    that carries more than its lower bound. With "infeasible": flow and prices are zeros, ``reason`` says
    which vertices cannot send how much, and ``witness`` lists those vertices (none if the supplies do not
    add up to 0). With "unbounded": ``flow`` is feasible, and ``witness`` lists the arcs, in order, of a
    cycle that lowers the cost without limit. ``seconds`` is the wall-clock time of the algorithm.
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
    """Return the exact cost of a flow (E,), of any size."""
    return exact_product(flow, problem.cost)
