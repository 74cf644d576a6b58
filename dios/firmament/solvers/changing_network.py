"""The changes to a flow network that a caller asks for: checked as a whole, then made as a whole.

Not for: solving (``incremental.py``), or the columns themselves (``residual.py``). A change that is refused
changes nothing, and its error names the argument and the place in it.
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
from dios.firmament.solvers.residual import (
    arcs_of,
    change_supplies,
    flag_arcs,
    grown,
    link_arcs,
    new_net,
    unlink_arcs,
)
from dios.limits import (
    FLOW_ARCS_MAX,
    FLOW_PRICE_MAX,
    FLOW_UNBOUNDED,
    FLOW_VERTICES_MAX,
    FLOW_VOLUME_MAX,
)

Amounts = int | ArrayLike
"""A column, or one number that is meant for every row."""

_FIRST_ROWS: Final = 16


@dataclass
class Totals:
    """Sums over the network as it is, kept while it changes; exact.

    ``sent`` and ``wanted`` are the positive supplies and the demands, ``lower`` the lower bounds. The rooms
    are those between the bounds, of arcs that have an end: of all, and of those of negative cost.
    """

    sent: int = 0
    wanted: int = 0
    lower: int = 0
    room: int = 0
    negative_room: int = 0
    endless: int = 0
    endless_negative: int = 0


@dataclass(frozen=True, eq=False)
class Compacted:
    """A network without what was removed: ``vertices`` and ``arcs`` are the ids of its vertices and arcs."""

    problem: FlowProblem
    vertices: Ints
    arcs: Ints


def column(name: str, values: Amounts, count: int) -> Ints:
    """A column of ``count`` whole numbers; one number is repeated."""
    if np.ndim(values) == 0:
        return np.repeat(whole_numbers(name, np.reshape(values, 1)), count)
    found = whole_numbers(name, values)
    if len(found) != count:
        raise InvalidProblemError(f"{name} has {len(found)} entries; {count} are needed")
    return found


def _refuse(name: str, values: Ints, wrong: np.ndarray[tuple[int], np.dtype[np.bool_]], why: str) -> None:
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InvalidProblemError(f"{name}[{index}] is {values[index]}, {why}")


class ChangingNetwork:
    """A network whose vertices and arcs come, change and go; what is removed never gets its id back."""

    def __init__(self, problem: FlowProblem) -> None:
        self._net = new_net(max(_FIRST_ROWS, problem.vertices), max(_FIRST_ROWS, problem.arcs))
        self._vertices = 0
        self._arcs = 0
        self._cost_most = 0
        self._totals = Totals()
        self._endless_changed = False
        self.add_nodes(problem.supply)
        self.add_arcs(problem.tail, problem.head, problem.lower, problem.capacity, problem.cost)

    # -- what is there ---------------------------------------------------------------------------

    def problem(self) -> FlowProblem:
        """The network as it is, with the same ids: what was removed is a vertex, or a loop, that carries
        nothing.
        """
        net, arcs = self._net, slice(self._arcs)
        return FlowProblem(
            net.supply[: self._vertices],
            *(each[arcs] for each in (net.tail, net.head, net.lower, net.capacity, net.cost)),
        )

    def compacted(self) -> Compacted:
        """The network as it is, without what was removed, and the ids of what is left."""
        net = self._net
        vertices = np.flatnonzero(net.vertex_there[: self._vertices])
        arcs = np.flatnonzero(net.arc_there[: self._arcs])
        place = np.cumsum(net.vertex_there[: self._vertices]) - 1
        ends = place[net.tail[arcs]], place[net.head[arcs]]
        bounds = net.lower[arcs], net.capacity[arcs], net.cost[arcs]
        return Compacted(FlowProblem(net.supply[vertices], *ends, *bounds), vertices, arcs)

    # -- vertices --------------------------------------------------------------------------------

    def add_node(self, supply: int = 0) -> int:
        """A new vertex with this supply (negative: demand); its id."""
        return int(self.add_nodes([supply])[0])

    def add_nodes(self, supply: ArrayLike) -> Ints:
        """New vertices, one for each supply; their ids, in that order."""
        supplies = whole_numbers("supply", supply)
        count = self._vertices + len(supplies)
        if count > FLOW_VERTICES_MAX:
            raise InvalidProblemError(
                f"{count} vertices, with those removed; at most {FLOW_VERTICES_MAX} fit:"
                " begin anew with compacted()"
            )
        self._check_cost(self._cost_most, count)
        sent, wanted = self._new_volume(np.zeros(0, np.int64), supplies)
        ids = np.arange(self._vertices, count)
        self._net = grown(self._net, count, 0)
        self._net.vertex_there[ids] = 1
        self._vertices = count
        self._totals.sent, self._totals.wanted = sent, wanted
        change_supplies(self._net, ids, supplies)
        return ids

    def remove_node(self, vertex: int) -> None:
        """Remove a vertex and its arcs; what they carried looks for another way at the next ``solve``."""
        self.remove_nodes([vertex])

    def remove_nodes(self, vertices: ArrayLike) -> None:
        """Remove vertices and all their arcs."""
        ids = self._known_vertices("vertices", vertices)
        self._once("vertices", ids)
        self._remove_arcs(np.unique(arcs_of(self._net, ids)))
        self._set_supplies(ids, np.zeros(len(ids), np.int64))
        self._net.vertex_there[ids] = 0
        self._net.price[ids] = 0

    def set_supply(self, vertex: int, supply: int) -> None:
        """Have a vertex send this much (negative: receive)."""
        self.set_supplies([vertex], [supply])

    def set_supplies(self, vertices: ArrayLike, supply: Amounts) -> None:
        """Have each of these vertices send that much. The supplies need to add up to 0 only when solved."""
        ids = self._known_vertices("vertices", vertices)
        self._once("vertices", ids)
        self._set_supplies(ids, column("supply", supply, len(ids)))

    # -- arcs ------------------------------------------------------------------------------------

    def add_arc(
        self, tail: int, head: int, lower: int = 0, capacity: int = FLOW_UNBOUNDED, cost: int = 0
    ) -> int:
        """A new arc with a flow within [lower, capacity] and this cost for a unit; its id."""
        return int(self.add_arcs([tail], [head], lower, capacity, cost)[0])

    def add_arcs(
        self,
        tail: ArrayLike,
        head: ArrayLike,
        lower: Amounts = 0,
        capacity: Amounts = FLOW_UNBOUNDED,
        cost: Amounts = 0,
    ) -> Ints:
        """New arcs, one for each tail; their ids, in that order."""
        tails = self._known_vertices("tail", tail)
        heads = self._known_vertices("head", head)
        if len(heads) != len(tails):
            raise InvalidProblemError(f"head has {len(heads)} entries, but tail has {len(tails)}")
        fields = [
            column(*each, len(tails)) for each in (("lower", lower), ("capacity", capacity), ("cost", cost))
        ]
        count = self._arcs + len(tails)
        if count > FLOW_ARCS_MAX:
            raise InvalidProblemError(
                f"{count} arcs, with those removed; at most {FLOW_ARCS_MAX} fit: begin anew with compacted()"
            )
        self._check_fields(fields, self._totals.lower)
        ids = np.arange(self._arcs, count)
        self._net = net = grown(self._net, 0, count)
        self._arcs = count
        net.arc_there[ids] = 1
        for target, values in zip((net.tail, net.head), (tails, heads), strict=True):
            target[ids] = values
        self._write(ids, fields)
        link_arcs(net, ids)
        return ids

    def remove_arc(self, arc: int) -> None:
        """Remove an arc; what it carried looks for another way at the next ``solve``."""
        self.remove_arcs([arc])

    def remove_arcs(self, arcs: ArrayLike) -> None:
        """Remove arcs."""
        ids = self._known_arcs(arcs)
        self._once("arcs", ids)
        self._remove_arcs(ids)

    def change_arc(
        self, arc: int, *, lower: int | None = None, capacity: int | None = None, cost: int | None = None
    ) -> None:
        """Give an arc new bounds or a new cost; what is not named stays."""
        self.change_arcs([arc], lower=lower, capacity=capacity, cost=cost)

    def change_arcs(
        self,
        arcs: ArrayLike,
        *,
        lower: Amounts | None = None,
        capacity: Amounts | None = None,
        cost: Amounts | None = None,
    ) -> None:
        """Give arcs new bounds or costs, each a column or one number for all; what is not named stays."""
        ids = self._known_arcs(arcs)
        self._once("arcs", ids)
        net, fields = self._net, list[Ints]()
        for name, values, old in (
            ("lower", lower, net.lower),
            ("capacity", capacity, net.capacity),
            ("cost", cost, net.cost),
        ):
            fields.append(old[ids] if values is None else column(name, values, len(ids)))
        self._check_fields(fields, self._totals.lower - exact_sum(net.lower[ids]))
        self._count_arcs(ids, -1)
        self._write(ids, fields)
        flag_arcs(net, ids)

    # -- checks ----------------------------------------------------------------------------------

    def _known_vertices(self, name: str, values: ArrayLike) -> Ints:
        ids = whole_numbers(name, values)
        _refuse(
            name, ids, (ids < 0) | (ids >= self._vertices), f"which is no vertex: {self._vertices} were added"
        )
        _refuse(name, ids, self._net.vertex_there[ids] == 0, "a vertex that was removed")
        return ids

    def _known_arcs(self, values: ArrayLike) -> Ints:
        ids = whole_numbers("arcs", values)
        _refuse("arcs", ids, (ids < 0) | (ids >= self._arcs), f"which is no arc: {self._arcs} were added")
        _refuse("arcs", ids, self._net.arc_there[ids] == 0, "an arc that was removed")
        return ids

    @staticmethod
    def _once(name: str, ids: Ints) -> None:
        first = np.zeros(len(ids), np.bool_)
        first[np.unique(ids, return_index=True)[1]] = True
        _refuse(name, ids, ~first, "for the second time in one change")

    def _check_fields(self, fields: Sequence[Ints], other_lower: int) -> None:
        lower, capacity, cost = fields
        _refuse("lower", lower, lower < 0, "but must not be negative")
        _refuse("capacity", capacity, capacity < 0, "but must not be negative")
        wrong = lower > capacity
        if wrong.any():
            index = int(np.argmax(wrong))
            raise InvalidProblemError(
                f"lower[{index}] is {lower[index]}, above capacity[{index}], which is {capacity[index]}"
            )
        total = other_lower + exact_sum(lower)
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
                f"{vertices} vertices, but with costs up to {cost} prices of so many do not fit 64 bits:"
                " use a larger unit for costs"
            )

    def _new_volume(self, old: Ints, new: Ints) -> tuple[int, int]:
        """What will be sent and wanted when these supplies take the place of those."""
        sent = self._totals.sent + exact_sum(np.maximum(new, 0)) - exact_sum(np.maximum(old, 0))
        wanted = self._totals.wanted - exact_sum(np.minimum(new, 0)) + exact_sum(np.minimum(old, 0))
        if max(sent, wanted) > FLOW_VOLUME_MAX:
            raise InvalidProblemError(
                f"supply would add up to {max(sent, wanted)} on one side, more than {FLOW_VOLUME_MAX}"
            )
        return sent, wanted

    # -- after the checks ------------------------------------------------------------------------

    def _set_supplies(self, ids: Ints, supplies: Ints) -> None:
        self._totals.sent, self._totals.wanted = self._new_volume(self._net.supply[ids], supplies)
        change_supplies(self._net, ids, supplies)

    def _remove_arcs(self, ids: Ints) -> None:
        self._count_arcs(ids, -1)
        unlink_arcs(self._net, ids)
        self._net.arc_there[ids] = 0

    def _write(self, ids: Ints, fields: Sequence[Ints]) -> None:
        net = self._net
        net.lower[ids], net.capacity[ids], net.cost[ids] = fields
        self._cost_most = max(self._cost_most, int(np.abs(fields[2]).max(initial=0)))
        self._count_arcs(ids, 1)

    def _count_arcs(self, ids: Ints, sign: int) -> None:
        net, totals = self._net, self._totals
        lower, capacity, cost = net.lower[ids], net.capacity[ids], net.cost[ids]
        endless = capacity >= FLOW_UNBOUNDED
        room = capacity - lower
        totals.lower += sign * exact_sum(lower)
        totals.room += sign * exact_sum(room[~endless])
        totals.negative_room += sign * exact_sum(room[~endless & (cost < 0)])
        totals.endless += sign * int(endless.sum())
        totals.endless_negative += sign * int((endless & (cost < 0)).sum())
        self._endless_changed = self._endless_changed or bool(endless.any())
