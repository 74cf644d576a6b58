"""A flow network that changes: every change is checked as a whole before any of it is made.

A refused change leaves the network as it was. Its error names the argument and the position in it.
The network is solved by ``incremental``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from dios.firmament.solvers.columns import Ints, exact_sum, whole_numbers
from dios.firmament.solvers.errors import InvalidProblemError
from dios.firmament.solvers.problem import FlowProblem
from dios.limits import (
    FLOW_ARCS_MAX,
    FLOW_PRICE_MAX,
    FLOW_UNBOUNDED,
    FLOW_VERTICES_MAX,
    FLOW_VOLUME_MAX,
)

Amounts = int | ArrayLike
"""A column, or one number for every row."""

_FIRST_ROWS: Final = 16


class NetworkColumns:
    """The columns of a network, int64, with room for more rows than are in use.

    By vertex: ``supply``, ``price``, and ``vertex_exists`` (0 or 1). By arc: ``tail``, ``head``, ``lower``,
    ``capacity``, ``cost``, ``flow``, and ``arc_exists``. Flow and prices are those of the last solution, as
    in ``FlowSolution``. A removed arc is a loop at vertex 0 without room.
    """

    def __init__(self) -> None:
        vertices = (np.zeros(_FIRST_ROWS, np.int64) for _ in range(3))
        arcs = (np.zeros(_FIRST_ROWS, np.int64) for _ in range(7))
        self.supply, self.price, self.vertex_exists = vertices
        self.tail, self.head, self.lower, self.capacity, self.cost, self.flow, self.arc_exists = arcs

    def reserve_vertices(self, count: int) -> None:
        """Make room for ``count`` vertices."""
        self._reserve(("supply", "price", "vertex_exists"), count)

    def reserve_arcs(self, count: int) -> None:
        """Make room for ``count`` arcs."""
        self._reserve(("tail", "head", "lower", "capacity", "cost", "flow", "arc_exists"), count)

    def _reserve(self, names: Sequence[str], count: int) -> None:
        for name in names:
            old: Ints = getattr(self, name)
            if count > len(old):
                larger = np.zeros(max(count, 2 * len(old)), np.int64)
                larger[: len(old)] = old
                setattr(self, name, larger)


@dataclass(frozen=True, eq=False)
class Compacted:
    """A network without its removed parts; ``vertices`` and ``arcs`` are the ids of its vertices and arcs."""

    problem: FlowProblem
    vertices: Ints
    arcs: Ints


def column(name: str, values: Amounts, count: int) -> Ints:
    """Return a column of ``count`` whole numbers; a single number is repeated."""
    if np.ndim(values) == 0:
        return np.repeat(whole_numbers(name, np.reshape(values, 1)), count)
    numbers = whole_numbers(name, values)
    if len(numbers) != count:
        raise InvalidProblemError(f"{name} has {len(numbers)} entries; {count} are needed")
    return numbers


def _refuse(name: str, values: Ints, wrong: np.ndarray[tuple[int], np.dtype[np.bool_]], why: str) -> None:
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InvalidProblemError(f"{name}[{index}] is {values[index]}, {why}")


class ChangingNetwork:
    """A network to which vertices and arcs are added, changed and removed. An id is never used twice."""

    def __init__(self, problem: FlowProblem) -> None:
        self._columns = NetworkColumns()
        self._vertices = 0
        self._arcs = 0
        self._cost_max = 0
        self._sent = 0
        self._received = 0
        self._lower = 0
        self._endless_changed = False
        self._reshaped = True
        """True if vertices or arcs were added or removed since the last solution."""
        self._removed = False
        """True if a vertex or an arc was ever removed."""
        self.add_nodes(problem.supply)
        self.add_arcs(problem.tail, problem.head, problem.lower, problem.capacity, problem.cost)

    # -- the network as a problem -----------------------------------------------------------------

    def problem(self) -> FlowProblem:
        """Return the present network with the same ids.

        A removed vertex has no arcs and no supply; a removed arc is a loop that carries nothing.
        """
        columns, arcs = self._columns, slice(self._arcs)
        fields = columns.tail, columns.head, columns.lower, columns.capacity, columns.cost
        return FlowProblem(columns.supply[: self._vertices], *(field[arcs] for field in fields))

    def compacted(self) -> Compacted:
        """Return the present network without its removed vertices and arcs, and the ids of the others."""
        if not self._removed:
            return Compacted(self.problem(), np.arange(self._vertices), np.arange(self._arcs))
        columns = self._columns
        vertices = np.flatnonzero(columns.vertex_exists[: self._vertices])
        arcs = np.flatnonzero(columns.arc_exists[: self._arcs])
        place = np.cumsum(columns.vertex_exists[: self._vertices]) - 1
        ends = place[columns.tail[arcs]], place[columns.head[arcs]]
        bounds = columns.lower[arcs], columns.capacity[arcs], columns.cost[arcs]
        return Compacted(FlowProblem(columns.supply[vertices], *ends, *bounds), vertices, arcs)

    # -- vertices --------------------------------------------------------------------------------

    def add_node(self, supply: int = 0) -> int:
        """Add a vertex with this supply (negative: demand) and return its id."""
        return int(self.add_nodes([supply])[0])

    def add_nodes(self, supply: ArrayLike) -> Ints:
        """Add a vertex for each supply and return their ids in that order."""
        supplies = whole_numbers("supply", supply)
        count = self._vertices + len(supplies)
        if count > FLOW_VERTICES_MAX:
            raise InvalidProblemError(
                f"{count} vertices, with the removed ones, are more than the {FLOW_VERTICES_MAX} that fit:"
                " make a new solver from compacted().problem"
            )
        self._check_cost(self._cost_max, count)
        self._sent, self._received = self._new_volume(np.zeros(0, np.int64), supplies)
        ids = np.arange(self._vertices, count)
        self._columns.reserve_vertices(count)
        self._columns.vertex_exists[ids] = 1
        self._columns.supply[ids] = supplies
        self._vertices = count
        self._reshaped = True
        return ids

    def remove_node(self, vertex: int) -> None:
        """Remove a vertex and its arcs; their flow is sent another way by the next ``solve``."""
        self.remove_nodes([vertex])

    def remove_nodes(self, vertices: ArrayLike) -> None:
        """Remove vertices and all their arcs."""
        ids = self._known_vertices("vertices", vertices)
        self._once("vertices", ids)
        columns, arcs = self._columns, slice(self._arcs)
        removed = np.zeros(self._vertices, np.bool_)
        removed[ids] = True
        touched = removed[columns.tail[arcs]] | removed[columns.head[arcs]]
        self._remove_arcs(np.flatnonzero(touched & (columns.arc_exists[arcs] == 1)))
        self._set_supplies(ids, np.zeros(len(ids), np.int64))
        columns.vertex_exists[ids] = 0
        columns.price[ids] = 0
        self._removed = True

    def set_supply(self, vertex: int, supply: int) -> None:
        """Set the supply of a vertex (negative: demand)."""
        self.set_supplies([vertex], [supply])

    def set_supplies(self, vertices: ArrayLike, supply: Amounts) -> None:
        """Set the supplies of vertices. All supplies need to add up to 0 only when the network is solved."""
        ids = self._known_vertices("vertices", vertices)
        self._once("vertices", ids)
        self._set_supplies(ids, column("supply", supply, len(ids)))

    # -- arcs ------------------------------------------------------------------------------------

    def add_arc(
        self, tail: int, head: int, lower: int = 0, capacity: int = FLOW_UNBOUNDED, cost: int = 0
    ) -> int:
        """Add an arc with a flow within [lower, capacity] and this cost of a unit; return its id."""
        return int(self.add_arcs([tail], [head], lower, capacity, cost)[0])

    def add_arcs(
        self,
        tail: ArrayLike,
        head: ArrayLike,
        lower: Amounts = 0,
        capacity: Amounts = FLOW_UNBOUNDED,
        cost: Amounts = 0,
    ) -> Ints:
        """Add an arc for each tail and return their ids in that order."""
        tails = self._known_vertices("tail", tail)
        heads = self._known_vertices("head", head)
        if len(heads) != len(tails):
            raise InvalidProblemError(f"head has {len(heads)} entries, but tail has {len(tails)}")
        fields = [
            column(*named_values, len(tails))
            for named_values in (("lower", lower), ("capacity", capacity), ("cost", cost))
        ]
        count = self._arcs + len(tails)
        if count > FLOW_ARCS_MAX:
            raise InvalidProblemError(
                f"{count} arcs, the removed ones included, are more than the {FLOW_ARCS_MAX} that fit:"
                " make a new solver from compacted().problem"
            )
        self._check_fields(fields, self._lower)
        ids = np.arange(self._arcs, count)
        columns = self._columns
        columns.reserve_arcs(count)
        self._arcs = count
        self._reshaped = True
        columns.arc_exists[ids] = 1
        columns.tail[ids], columns.head[ids], columns.flow[ids] = tails, heads, fields[0]
        self._write(ids, fields)
        return ids

    def remove_arc(self, arc: int) -> None:
        """Remove an arc; its flow is sent another way by the next ``solve``."""
        self.remove_arcs([arc])

    def remove_arcs(self, arcs: ArrayLike) -> None:
        """Remove arcs."""
        ids = self._known_arcs(arcs)
        self._once("arcs", ids)
        self._remove_arcs(ids)

    def change_arc(
        self, arc: int, *, lower: int | None = None, capacity: int | None = None, cost: int | None = None
    ) -> None:
        """Give an arc new bounds or a new cost; an argument left out leaves the value as it is."""
        self.change_arcs([arc], lower=lower, capacity=capacity, cost=cost)

    def change_arcs(
        self,
        arcs: ArrayLike,
        *,
        lower: Amounts | None = None,
        capacity: Amounts | None = None,
        cost: Amounts | None = None,
    ) -> None:
        """Give arcs new bounds or costs, each a column or one number for all of them."""
        ids = self._known_arcs(arcs)
        self._once("arcs", ids)
        columns, fields = self._columns, list[Ints]()
        for name, values, old in (
            ("lower", lower, columns.lower),
            ("capacity", capacity, columns.capacity),
            ("cost", cost, columns.cost),
        ):
            fields.append(old[ids] if values is None else column(name, values, len(ids)))
        self._check_fields(fields, self._lower - exact_sum(np.abs(columns.lower[ids])))
        self._forget(ids)
        self._write(ids, fields)

    # -- checks ----------------------------------------------------------------------------------

    def _known_vertices(self, name: str, values: ArrayLike) -> Ints:
        ids = whole_numbers(name, values)
        _refuse(
            name, ids, (ids < 0) | (ids >= self._vertices), f"which is no vertex; {self._vertices} were added"
        )
        _refuse(name, ids, self._columns.vertex_exists[ids] == 0, "a vertex that was removed")
        return ids

    def _known_arcs(self, values: ArrayLike) -> Ints:
        ids = whole_numbers("arcs", values)
        _refuse("arcs", ids, (ids < 0) | (ids >= self._arcs), f"which is no arc; {self._arcs} were added")
        _refuse("arcs", ids, self._columns.arc_exists[ids] == 0, "an arc that was removed")
        return ids

    @staticmethod
    def _once(name: str, ids: Ints) -> None:
        first = np.zeros(len(ids), np.bool_)
        first[np.unique(ids, return_index=True)[1]] = True
        _refuse(name, ids, ~first, "for the second time in one change")

    def _check_fields(self, fields: Sequence[Ints], other_lower: int) -> None:
        lower, capacity, cost = fields
        _refuse("lower", lower, lower < -FLOW_VOLUME_MAX, f"below {-FLOW_VOLUME_MAX}")
        _refuse("capacity", capacity, capacity < 0, "but must not be negative")
        wrong = lower > capacity
        if wrong.any():
            index = int(np.argmax(wrong))
            raise InvalidProblemError(
                f"lower[{index}] is {lower[index]}, above capacity[{index}], which is {capacity[index]}"
            )
        total = other_lower + exact_sum(np.abs(lower))
        if total > FLOW_VOLUME_MAX:
            raise InvalidProblemError(f"lower bounds would add up to {total}, more than {FLOW_VOLUME_MAX}")
        bound = FLOW_PRICE_MAX // (self._vertices + 1)
        _refuse(
            "cost",
            cost,
            (cost > bound) | (cost < -bound),
            f"but only costs up to {bound} fit: use a larger unit",
        )

    @staticmethod
    def _check_cost(cost: int, vertices: int) -> None:
        if cost > FLOW_PRICE_MAX // (vertices + 1):
            raise InvalidProblemError(
                f"the prices of {vertices} vertices do not fit 64 bits with costs up to {cost}:"
                " use a larger unit for costs"
            )

    def _new_volume(self, old: Ints, new: Ints) -> tuple[int, int]:
        """Return the sums of all supplies and of all demands after ``new`` supplies replace ``old`` ones."""
        sent = self._sent + exact_sum(np.maximum(new, 0)) - exact_sum(np.maximum(old, 0))
        received = self._received - exact_sum(np.minimum(new, 0)) + exact_sum(np.minimum(old, 0))
        if max(sent, received) > FLOW_VOLUME_MAX:
            raise InvalidProblemError(
                f"supply would add up to {max(sent, received)} on one side, more than {FLOW_VOLUME_MAX}"
            )
        return sent, received

    # -- after the checks ------------------------------------------------------------------------

    def _set_supplies(self, ids: Ints, supplies: Ints) -> None:
        self._sent, self._received = self._new_volume(self._columns.supply[ids], supplies)
        self._columns.supply[ids] = supplies

    def _remove_arcs(self, ids: Ints) -> None:
        self._forget(ids)
        self._reshaped = self._removed = True
        columns = self._columns
        columns.arc_exists[ids] = 0
        for column in (
            columns.tail,
            columns.head,
            columns.lower,
            columns.capacity,
            columns.cost,
            columns.flow,
        ):
            column[ids] = 0

    def _write(self, ids: Ints, fields: Sequence[Ints]) -> None:
        columns = self._columns
        columns.lower[ids], columns.capacity[ids], columns.cost[ids] = fields
        self._cost_max = max(self._cost_max, int(np.abs(fields[2]).max(initial=0)))
        self._lower += exact_sum(np.abs(fields[0]))
        self._note_endless(ids)

    def _forget(self, ids: Ints) -> None:
        """Subtract arcs that are about to be changed or removed from the totals."""
        self._lower -= exact_sum(np.abs(self._columns.lower[ids]))
        self._note_endless(ids)

    def _note_endless(self, ids: Ints) -> None:
        if (self._columns.capacity[ids] >= FLOW_UNBOUNDED).any():
            self._endless_changed = True
