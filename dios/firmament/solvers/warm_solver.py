"""A network of scheduling shape that stays solved while it changes (thesis §6.4.3): the warm start.

Upper vertices (aggregates, machines, the sink) and the arcs between them form a small network. Tasks are
rows of options: each sends one unit to exactly one of its targets. All changes are columns, many at once,
and their cost depends only on what they touch. Nothing is solved before :meth:`WarmSolver.solve`.

``contraction`` finds this shape in a given problem; ``incremental`` serves networks of any shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dios.firmament.solvers.auction import start_by_auction
from dios.firmament.solvers.columns import Ints, exact_product, exact_sum, grouped, spans, whole_numbers
from dios.firmament.solvers.contraction import PRICE_ROOM, start_prices, topological
from dios.firmament.solvers.errors import InvalidProblemError, OutOfRangeError
from dios.firmament.solvers.repair import (
    FAR,
    GAVE_UP,
    INFEASIBLE,
    NO_LIMIT,
    ArcColumns,
    Net,
    choose,
    choose_best,
    clear_choice,
    count_excess,
    new_net,
    new_search,
    repair,
    settle_arcs,
)
from dios.kernels import kernel

FIRST_LENGTH: Final = 64
"""The first length of the columns; they double when they are full."""

_Number = TypeVar("_Number", np.int64, np.int32, np.bool_)

Flags: TypeAlias = NDArray[np.bool_]


@kernel
def remove_rows(net: Net, tasks: Ints) -> None:
    """Take the options from tasks, and remove their rows from all lists; the rows are empty then."""
    for task in tasks:
        if net.choice[task] >= 0:
            clear_choice(net, task)
        for option in range(net.row_start[task], net.row_end[task]):
            net.option_task[option] = -1
        net.row_start[task] = 0
        net.row_end[task] = 0


@kernel
def insert_rows(net: Net, tasks: Ints, start: Ints, first: int, before: Ints) -> None:
    """Give tasks the rows that begin at ``first``, with the bounds in ``start`` (n + 1,).

    ``before`` (n,) is the vertex of the task's last option, or -1; the task takes an option there again.
    """
    for place in range(len(tasks)):
        task = tasks[place]
        net.row_start[task] = first + start[place]
        net.row_end[task] = first + start[place + 1]
        net.choice[task] = -1
        for option in range(net.row_start[task], net.row_end[task]):
            net.option_task[option] = task
            if net.target[option] == before[place] and net.choice[task] < 0:
                choose(net, task, option)


@kernel
def mark_targets(net: Net, tasks: Ints, led_to: Flags) -> None:
    """Mark the vertices to which options of these tasks lead."""
    for task in tasks:
        for option in range(net.row_start[task], net.row_end[task]):
            led_to[net.target[option]] = True


@kernel
def price_opened(net: Net, closed: Flags, opened: Flags) -> int:
    """Price each closed vertex that has an arc with room to one that is not closed; return their number.

    They are marked in ``opened`` (V,), and are not closed any more.
    """
    count = 0
    for vertex in np.flatnonzero(closed):
        best = FAR
        for arc in net.out_arcs[net.out_start[vertex] : net.out_start[vertex + 1]]:
            if net.capacity[arc] > net.lower[arc] and not closed[net.head[arc]]:
                best = min(best, net.cost[arc] + net.price[net.head[arc]])
        if best < FAR:
            net.price[vertex] = best
            closed[vertex] = False
            opened[vertex] = True
            count += 1
    return count


@kernel
def mark_rows(net: Net, opened: Flags, dirty: Flags) -> None:
    """Mark the tasks with an option that leads to one of the vertices; their bounds of leaving end."""
    for option in range(len(net.target)):
        task = net.option_task[option]
        if task >= 0 and opened[net.target[option]]:
            dirty[task] = True
            net.leave_price[task] = -FAR


def empty_net() -> Net:
    """Return a network of the sink alone, with room for tasks and options."""
    none = np.zeros(0, np.int64)
    start = np.zeros(FIRST_LENGTH + 1, np.int64)
    target = np.zeros(FIRST_LENGTH, np.int32)
    row = np.full(FIRST_LENGTH, -1, np.int32)
    return new_net(
        1, ArcColumns(none, none, none, none, none), start, target, np.zeros(FIRST_LENGTH, np.int64), row
    )


def lengthened(column: NDArray[_Number], length: int, fill: int) -> NDArray[_Number]:
    """Return a copy with this length; new entries are ``fill``."""
    grown = np.full(length, fill, column.dtype)
    grown[: len(column)] = column
    return grown


def with_tasks(net: Net, tasks: int) -> Net:
    """Return the network with room for this number of tasks."""
    if tasks <= len(net.choice):
        return net
    room = max(tasks, 2 * len(net.choice))
    return net._replace(
        row_start=lengthened(net.row_start, room, 0),
        row_end=lengthened(net.row_end, room, 0),
        choice=lengthened(net.choice, room, -1),
        next_task=lengthened(net.next_task, room, -1),
        previous_task=lengthened(net.previous_task, room, -1),
        leave_price=lengthened(net.leave_price, room, 0),
    )


def with_options(net: Net, options: int) -> Net:
    """Return the network with room for this number of options."""
    if options <= len(net.target):
        return net
    room = max(options, 2 * len(net.target))
    return net._replace(
        target=lengthened(net.target, room, 0),
        option_cost=lengthened(net.option_cost, room, 0),
        option_task=lengthened(net.option_task, room, -1),
    )


def without_holes(net: Net) -> tuple[Net, int]:
    """Return the network with its rows next to each other, and the number of options in them."""
    length = net.row_end - net.row_start
    kept = spans(net.row_start, length)
    begin = np.cumsum(length) - length
    choice = np.where(net.choice >= 0, net.choice - net.row_start + begin, -1)
    count, room = len(kept), len(net.target)
    closed = net._replace(
        row_start=begin,
        row_end=begin + length,
        choice=choice,
        target=lengthened(net.target[kept], room, 0),
        option_cost=lengthened(net.option_cost[kept], room, 0),
        option_task=lengthened(net.option_task[kept], room, -1),
    )
    return closed, count


def with_vertices(net: Net, vertices: int) -> Net:
    """Return the network with this number of vertices; new ones have price 0 and no tasks."""
    return net._replace(
        price=lengthened(net.price, vertices, 0),
        excess=np.zeros(vertices, np.int64),
        first_task=lengthened(net.first_task, vertices, -1),
    )


def with_arcs(net: Net, arcs: ArcColumns) -> Net:
    """Return the network with these arcs after its own; :func:`indexed` must follow."""
    return net._replace(
        tail=np.concatenate([net.tail, arcs.tail]),
        head=np.concatenate([net.head, arcs.head]),
        lower=np.concatenate([net.lower, arcs.lower]),
        capacity=np.concatenate([net.capacity, arcs.capacity]),
        cost=np.concatenate([net.cost, arcs.cost]),
        flow=np.concatenate([net.flow, arcs.lower]),
    )


def indexed(net: Net) -> Net:
    """Return the network with new lists of arcs by vertex."""
    vertices = len(net.price)
    out_start, out_arcs = grouped(net.tail, vertices)
    in_start, in_arcs = grouped(net.head, vertices)
    return net._replace(out_start=out_start, out_arcs=out_arcs, in_start=in_start, in_arcs=in_arcs)


CAPACITY_MAX: Final = 2**40
"""The largest capacity; larger ones are cut to it."""

COST_MAX: Final = PRICE_ROOM // 8
"""A larger cost leaves prices no room, even with few vertices."""

HOLES_SHARE_INVERSE: Final = 3
"""Gaps between rows are closed when a third of the columns is unused and they would have to grow."""

NEW_SHARE_INVERSE: Final = 4
"""With more than a quarter of the tasks new, the network is solved from scratch."""

WORK_PER_TASK: Final = 16
"""A repair reads at most this many entries of lists for each task; a solution from scratch costs about twice
as much."""

EXTRA_TASKS: Final = 3000
"""In small networks the limit is that for this many tasks more, because everything is quick there."""

SCRATCH_ROUNDS_MIN: Final = 4
SCRATCH_ROUNDS_MAX: Final = 64
"""The rounds from scratch before a repair is tried again; the number doubles each time it gives up."""

VERTICES_NAMED_MAX: Final = 5
"""The number of vertices that a reason names."""


@dataclass(frozen=True, eq=False)
class WarmSolution:
    """The solution of a round.

    ``status`` is "optimal" or "infeasible"; then ``reason`` says where, and the rest is not meaningful.
    ``choice`` is (ids,): for each task id the index of the option that it takes, -1 where the id is unused.
    ``target`` is (ids,): the upper vertex of that option, or -1. ``flow`` is (arcs,). ``prices``
    (vertices,) are as in ``FlowSolution``: the sink's price is 0 and others fall with the distance to it. A
    task's own price is the largest ``prices[target] - cost`` of its options. ``cost`` is exact.
    """

    status: str
    choice: Ints
    target: Ints
    flow: Ints
    prices: Ints
    cost: int
    reason: str = ""


def _column(name: str, values: ArrayLike, length: int | None = None) -> Ints:
    """Return a column of whole numbers; a single number is repeated."""
    given = np.asarray(values)
    column: Ints = np.atleast_1d(given)
    # Columns that are int64 already are not copied or checked: rounds bring a million costs.
    if column.dtype != np.int64 or column.ndim > 1:
        column = whole_numbers(name, column).copy()
    if length is not None and not given.ndim:
        return np.repeat(column, length)
    if length is not None and len(column) != length:
        raise InvalidProblemError(f"{name} has {len(column)} entries; {length} are needed")
    return column


def _within(kind: str, numbers: Ints, count: int) -> Ints:
    wrong = (numbers < 0) | (numbers >= count)
    if wrong.any():
        raise InvalidProblemError(f"{kind} {numbers[np.argmax(wrong)]} does not exist: there are {count}")
    return numbers


class WarmSolver:
    """Tasks as rows of options over a small upper network, solved again after each batch of changes.

    Vertex 0 is the sink: it takes all remaining flow, and its supply need not be set. The ids of vertices,
    arcs and tasks are numbers from 0 that stay the same; the id of a removed task is used again. Arguments
    are columns (anything that numpy accepts); a single number stands for a column of equal numbers. Costs
    are whole numbers; the largest cost ever set, times the number of vertices, must stay below 2**57. Not
    safe for threads. ``work_per_task`` is the number of entries of lists that a repair reads for each task
    before it gives up and the network is solved from scratch.
    """

    def __init__(self, *, work_per_task: int = WORK_PER_TASK) -> None:
        self._net = empty_net()
        self._supply: Ints = np.zeros(1, np.int64)
        self._search = new_search(1)
        self._counters: Ints = np.zeros(3, np.int64)
        self._alive = np.zeros(FIRST_LENGTH, np.bool_)
        self._dirty = np.zeros(FIRST_LENGTH, np.bool_)
        self._free: Ints = np.zeros(0, np.int64)
        self._count = 0
        self._options = 0
        self._unused = 0
        self._priced = 1
        self._most = 0
        self._indexed = True
        # Vertices without a way to the sink have a price far above all others until they get one; the other
        # column marks those to which options of solved tasks lead.
        self._closed = np.zeros(1, np.bool_)
        self._led_to = np.zeros(1, np.bool_)
        self._work_per_task: Final = work_per_task
        self._scratch_rounds = 0
        self._scratch_rounds_next = SCRATCH_ROUNDS_MIN

    # -- the upper network ------------------------------------------------------------------------
    def add_vertices(self, count: int) -> Ints:
        """Add vertices without supply; return their ids, (count,)."""
        first = len(self._net.price)
        self._net = with_vertices(self._net, first + count)
        self._supply = np.concatenate([self._supply, np.zeros(count, np.int64)])
        self._closed = lengthened(self._closed, first + count, fill=0)
        self._led_to = lengthened(self._led_to, first + count, fill=0)
        self._search = new_search(first + count)
        self._counters[0] = 0
        self._indexed = False
        return np.arange(first, first + count)

    def set_supply(self, vertices: ArrayLike, supply: ArrayLike) -> None:
        """Set the flow that begins (positive) or ends at vertices: F_j - N_j at U_j (thesis §C.2)."""
        places = _within("vertex", _column("vertices", vertices), len(self._net.price))
        self._supply[places] = _column("supply", supply, len(places))

    def add_arcs(
        self, tail: ArrayLike, head: ArrayLike, capacity: ArrayLike, cost: ArrayLike, lower: ArrayLike = 0
    ) -> Ints:
        """Add arcs between upper vertices; return their ids. Parallel arcs make a convex cost."""
        tails = _within("vertex", _column("tail", tail), len(self._net.price))
        count, first = len(tails), len(self._net.tail)
        heads = _within("vertex", _column("head", head, count), len(self._net.price))
        zeros = np.zeros(count, np.int64)
        self._net = with_arcs(self._net, ArcColumns(tails, heads, zeros, zeros, zeros))
        self._indexed = False
        arcs = np.arange(first, first + count)
        self.change_arcs(arcs, capacity, cost, lower)
        return arcs

    def change_arcs(
        self,
        arcs: ArrayLike,
        capacity: ArrayLike | None = None,
        cost: ArrayLike | None = None,
        lower: ArrayLike | None = None,
    ) -> None:
        """Set bounds or costs of arcs. A capacity of 0 disables an arc (a lost machine)."""
        places = _within("arc", _column("arcs", arcs), len(self._net.tail))
        net = self._net
        bottom = net.lower[places] if lower is None else _column("lower", lower, len(places))
        top = net.capacity[places] if capacity is None else _column("capacity", capacity, len(places))
        wrong = (bottom < 0) | (bottom > top)
        if wrong.any():
            arc = int(np.argmax(wrong))
            raise InvalidProblemError(f"arc {places[arc]} has bounds {bottom[arc]} to {top[arc]}")
        net.lower[places], net.capacity[places] = bottom, np.minimum(top, CAPACITY_MAX)
        if cost is not None:
            net.cost[places] = self._costs(_column("cost", cost, len(places)))

    # -- tasks ------------------------------------------------------------------------------------
    def add_tasks(self, start: ArrayLike, target: ArrayLike, cost: ArrayLike) -> Ints:
        """Add tasks; return their ids (n,). The options of the i-th are ``start[i]`` to ``start[i + 1]``.

        ``start`` is (n + 1,), ``target`` (upper vertices) and ``cost`` are (options,). The order of a row's
        options is kept: later calls name an option by its index in the row.
        """
        bounds, targets, costs = self._rows(start, target, cost)
        count = len(bounds) - 1
        fresh = max(0, count - len(self._free))
        ids = np.concatenate([self._free[:count], np.arange(self._count, self._count + fresh)])
        net = with_tasks(self._net, self._count + fresh)
        if len(net.choice) > len(self._alive):
            self._alive = np.concatenate(
                [self._alive, np.zeros(len(net.choice) - len(self._alive), np.bool_)]
            )
            self._dirty = np.concatenate(
                [self._dirty, np.zeros(len(net.choice) - len(self._dirty), np.bool_)]
            )
        self._net = net
        self._write(ids, bounds, targets, costs, np.full(count, -1, np.int64))
        self._free = self._free[count:]
        self._count += fresh
        self._alive[ids] = True
        return ids

    def remove_tasks(self, tasks: ArrayLike) -> None:
        """Remove tasks; their ids are used again."""
        ids = self._checked_tasks(tasks)
        self._unused += int((self._net.row_end[ids] - self._net.row_start[ids]).sum())
        remove_rows(self._net, ids)
        self._alive[ids] = False
        self._dirty[ids] = False
        self._free = np.concatenate([self._free, ids])

    def replace_tasks(self, tasks: ArrayLike, start: ArrayLike, target: ArrayLike, cost: ArrayLike) -> None:
        """Replace the rows of tasks; a task keeps its vertex while that is best."""
        ids = self._checked_tasks(tasks)
        bounds, targets, costs = self._rows(start, target, cost, len(ids) + 1)
        chosen = self._net.choice[ids]
        before = np.where(chosen >= 0, self._net.target[chosen], -1).astype(np.int64)
        self._unused += int((self._net.row_end[ids] - self._net.row_start[ids]).sum())
        remove_rows(self._net, ids)
        self._write(ids, bounds, targets, costs, before)

    def change_costs(self, tasks: ArrayLike, index: ArrayLike, cost: ArrayLike) -> None:
        """Set the costs of single options: (n,) tasks, indices in their rows, and costs."""
        ids = _within("task", _column("tasks", tasks), self._count)
        places = self._net.row_start[ids] + _column("index", index, len(ids))
        wrong = (places < self._net.row_start[ids]) | (places >= self._net.row_end[ids])
        if wrong.any():
            raise InvalidProblemError(f"task {ids[np.argmax(wrong)]} has no such option")
        costs = self._costs(_column("cost", cost, len(ids)))
        # Nothing moves where a chosen option becomes cheaper, or another one more expensive.
        taken = self._net.choice[ids] == places
        rises = costs - self._net.option_cost[places]
        self._dirty[ids[np.where(taken, rises > 0, rises < 0)]] = True
        self._net.option_cost[places] = costs
        # The bound falls by as much as the chosen option rises, or another one falls.
        np.subtract.at(self._net.leave_price, ids, np.maximum(np.where(taken, rises, -rises), 0))

    def _rows(
        self, start: ArrayLike, target: ArrayLike, cost: ArrayLike, length: int | None = None
    ) -> tuple[Ints, Ints, Ints]:
        """Return rows as columns (bounds, targets, costs), checked before anything is changed."""
        bounds = _column("start", start, length)
        if not len(bounds) or bounds[0]:
            raise InvalidProblemError("start must begin with 0")
        falls = np.flatnonzero(np.diff(bounds) < 0)
        if falls.size:
            place = int(falls[0]) + 1
            raise InvalidProblemError(f"start[{place}] is {bounds[place]}, less than the entry before it")
        count = int(bounds[-1])
        targets = _within("vertex", _column("target", target, count), len(self._net.price))
        return bounds, targets, self._costs(_column("cost", cost, count))

    def _write(self, ids: Ints, start: Ints, targets: Ints, costs: Ints, before: Ints) -> None:
        """Append rows and assign them to tasks (n,)."""
        count = len(targets)
        if (
            self._options + count > len(self._net.target)
            and self._unused * HOLES_SHARE_INVERSE > self._options
        ):
            self._net, self._options = without_holes(self._net)
            self._unused = 0
        first = self._options
        self._net = with_options(self._net, first + count)
        self._net.target[first : first + count] = targets
        self._net.option_cost[first : first + count] = costs
        insert_rows(self._net, ids, start, first, before)
        self._options += count
        self._dirty[ids] = True

    def _checked_tasks(self, tasks: ArrayLike) -> Ints:
        ids = _within("task", _column("tasks", tasks), self._count)
        if not self._alive[ids].all():
            raise InvalidProblemError(f"task {ids[np.argmin(self._alive[ids])]} was removed")
        left = self._alive.copy()
        left[ids] = False
        if np.count_nonzero(left) != np.count_nonzero(self._alive) - len(ids):
            raise InvalidProblemError("a task is named twice in one call")
        return ids

    def _costs(self, costs: Ints) -> Ints:
        wide = (costs > COST_MAX) | (costs < -COST_MAX)
        if wide.any():
            index = int(np.argmax(wide))
            raise OutOfRangeError(f"cost[{index}] is {costs[index]}, more than {COST_MAX}: use a larger unit")
        self._most = max(self._most, int(np.abs(costs).max(initial=0)))
        return costs

    # -- the answer -------------------------------------------------------------------------------
    def solve(self) -> WarmSolution:
        """Return the cheapest flow after all changes so far. An infeasible network may be changed again."""
        self._prepare()
        net = self._net
        used = self._alive[: self._count]
        new = np.count_nonzero(used & (net.choice[: self._count] < 0))
        from_scratch = self._scratch_rounds > 0 or bool(new * NEW_SHARE_INVERSE > np.count_nonzero(used))
        self._scratch_rounds = max(0, self._scratch_rounds - 1)
        ended = self._optimise(from_scratch=from_scratch)
        if ended == GAVE_UP:
            # The next rounds will hardly be narrower: try again later, and later each time.
            self._scratch_rounds, self._scratch_rounds_next = (
                self._scratch_rounds_next,
                min(2 * self._scratch_rounds_next, SCRATCH_ROUNDS_MAX),
            )
            ended = self._optimise(from_scratch=True)
        elif not from_scratch:
            self._scratch_rounds_next = SCRATCH_ROUNDS_MIN
        option = net.choice[: self._count]
        without = np.flatnonzero(used & (option < 0))
        if len(without):
            return self._infeasible(f"task {without[0]} has no option (and {len(without) - 1} more)")
        if ended == INFEASIBLE:
            wrong = np.flatnonzero(net.excess[1:]) + 1
            imbalances = ", ".join(f"{net.excess[v]:+d} at vertex {v}" for v in wrong[:VERTICES_NAMED_MAX])
            return self._infeasible(f"some flow finds no way out or in: {imbalances}")
        target = np.where(option >= 0, net.target[np.maximum(option, 0)], -1).astype(np.int64)
        taken = option[option >= 0]
        cost = exact_product(net.flow, net.cost) + exact_sum(net.option_cost[taken])
        choice = np.where(option >= 0, option - net.row_start[: self._count], -1)
        return WarmSolution("optimal", choice, target, net.flow.copy(), -net.price, cost)

    def _optimise(self, *, from_scratch: bool) -> int:
        """Repair the changes, or with ``from_scratch`` the whole network; return how it ended."""
        net = self._net
        if from_scratch:
            self._start_from_scratch()
        settle_arcs(net)
        dirty = np.flatnonzero(self._dirty)
        self._dirty[dirty] = False
        if self._closed.any():
            mark_targets(net, dirty, self._led_to)
        if choose_best(net, dirty):
            return INFEASIBLE
        count_excess(net, self._supply)
        work_max = NO_LIMIT if from_scratch else self._work_per_task * (EXTRA_TASKS + self._count)
        return repair(net, self._search, self._counters, work_max=work_max)

    def _infeasible(self, reason: str) -> WarmSolution:
        none = np.full(self._count, -1, np.int64)
        zeros = np.zeros(len(self._net.tail), np.int64)
        return WarmSolution(
            "infeasible", none, none, zeros, np.zeros(len(self._net.price), np.int64), 0, reason
        )

    def _prepare(self) -> None:
        """Make the lists of arcs, and price new vertices by their cheapest path to the sink."""
        vertices = len(self._net.price)
        if (self._most + 1) * (vertices + 2) * 8 >= PRICE_ROOM:
            raise OutOfRangeError(
                f"costs up to {self._most} are too large for prices of 64 bits: use a larger unit"
            )
        if not self._indexed:
            self._net = indexed(self._net)
            self._indexed = True
        net = self._net
        if self._priced < vertices:
            order = topological(net.head, net.out_start, net.out_arcs)
            dead = self._dead_price()
            start_prices(net, order[order >= self._priced], dead)
            self._closed[self._priced :] = net.price[self._priced :] > dead // 2
            self._priced = vertices
        if self._closed.any():
            self._price_opened()

    def _dead_price(self) -> int:
        """Return the price of a vertex without a way to the sink."""
        return (self._most + 1) * (len(self._net.price) + 1)

    def _price_opened(self) -> None:
        """Price the closed vertices that have a way to the sink now, as new ones.

        A repair would lower their prices too, but would read all options for that.
        """
        opened = np.zeros(len(self._net.price), np.bool_)
        while price_opened(self._net, self._closed, opened):
            pass
        if (opened & self._led_to).any():
            mark_rows(self._net, opened, self._dirty)

    def _start_from_scratch(self) -> None:
        """Replace prices and choices by those of an auction, which is quicker than adding many new tasks."""
        net = self._net
        order = topological(net.head, net.out_start, net.out_arcs)
        if len(order) < len(net.price):
            return
        net.choice[:] = -1
        net.first_task[:] = -1
        net.flow[:] = net.lower
        dead = self._dead_price()
        start_prices(net, order, dead)
        start_by_auction(net, order, dead)
        self._dirty[: self._count] = self._alive[: self._count] & (net.choice[: self._count] < 0)
        self._closed = net.price > dead // 2
        if self._closed.any():
            mark_targets(net, np.flatnonzero(self._alive), self._led_to)

    @property
    def tasks(self) -> int:
        """The number of task ids, used or not: the length of ``WarmSolution.choice``."""
        return self._count
