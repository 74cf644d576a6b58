"""The change log: the differences between two rounds in bulk, as input of a warm solver (§6.4.3).

There are the three kinds of change of the thesis: tasks that come and go (supply); rows and arcs that come,
go or get another capacity; and costs. They are found by comparing columns, never by looking at single
tasks. The network is made in ``flow_network``, and solved by ``solvers.warm_solver``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.network.task_rows import RowRules, TaskRows
from dios.firmament.network.upper_arcs import UpperArcs
from dios.firmament.solvers.warm_solver import WarmSolution, WarmSolver

_VERTEX_BITS = 24
_PARALLEL_BITS = 4
"""The number of bits that number parallel arcs; a soft E_j makes two such arcs."""


@dataclass(frozen=True, eq=False)
class RowCache:
    """The values of which the rows of the last round were made, by task row."""

    identity: Ints
    """The task's identifier; ABSENT if it was not in the network."""
    warm: Ints
    """The solver's number for the task."""
    length: Ints
    leaf: Ints
    movable: Flags
    may_wait: Flags
    stay_cost: Ints
    wait_cost: Ints
    filters: Ints

    @staticmethod
    def empty(size: int) -> RowCache:
        """Return a cache without tasks."""
        absent = np.full(size, ABSENT, np.int64)
        flags = np.zeros(size, np.bool_)
        return RowCache(
            absent,
            absent.copy(),
            absent.copy(),
            absent.copy(),
            flags,
            flags.copy(),
            absent.copy(),
            absent.copy(),
            absent.copy(),
        )

    def wider(self, size: int) -> RowCache:
        """Return the same with more rows."""
        more = RowCache.empty(size - len(self.identity))
        return RowCache(
            *(
                np.concatenate([getattr(self, column.name), getattr(more, column.name)])
                for column in fields(self)
            )
        )


@dataclass(frozen=True, eq=False)
class SolverInput:
    """The input of the solver for one round."""

    identity: Ints
    """(n,): the identifiers of the rules' tasks."""
    rules: RowRules
    dirty: Flags
    """(n,): True for rows that have to be written, because they are new or have other arcs."""
    rows: TaskRows
    """The rows of the dirty tasks."""
    upper: UpperArcs
    vertices: int


class WarmNetwork:
    """A warm solver, and what it knows of the network."""

    def __init__(self) -> None:
        self.solver = WarmSolver()
        self.changes = 0
        """The number of entries in the change log of the last round."""
        self._cache = RowCache.empty(16)
        self._keys: Ints = np.zeros(0, np.int64)
        """The keys of all arcs that were ever added, ascending; ``_arcs`` has their numbers."""
        self._arcs: Ints = np.zeros(0, np.int64)
        self._capacity: Ints = np.zeros(0, np.int64)
        """By arc number, as the solver knows it."""
        self._cost: Ints = np.zeros(0, np.int64)
        self._supply: Ints = np.zeros(1, np.int64)

    @property
    def is_sparse(self) -> bool:
        """Return True if a new network would be much smaller: more than half of the arcs have no room."""
        dead = int(np.count_nonzero(self._capacity == 0))
        return dead > 1024 and 2 * dead > len(self._capacity)

    def stale(self, identity: Ints, rules: RowRules, touched: Flags, narrowed: Flags) -> Flags:
        """Return the rows that have to be written again, (n,).

        ``touched`` (by task row) marks tasks with other options, ``narrowed`` (n,) tasks whose filter
        changed.
        """
        size = int(rules.tasks.max(initial=0)) + 1
        if size > len(self._cache.identity):
            self._cache = self._cache.wider(max(size, 2 * len(self._cache.identity)))
        cache, tasks = self._cache, rules.tasks
        stale: Flags = (
            touched[tasks]
            | narrowed
            | (cache.filters[tasks] != rules.filters)
            | (cache.identity[tasks] != identity)
            | (cache.leaf[tasks] != rules.leaf)
            | (cache.movable[tasks] != rules.movable)
            | (cache.may_wait[tasks] != rules.may_wait)
        )
        return stale

    def solve(self, solver_input: SolverInput) -> tuple[WarmSolution, Ints, Ints]:
        """Return the solution, the solver's numbers of the rules' tasks (n,), and those of the upper arcs."""
        self.changes = 0
        self._send_vertices(solver_input)
        arcs = self._send_arcs(solver_input.upper)
        self._send_tasks(solver_input)
        return self.solver.solve(), self._cache.warm[solver_input.rules.tasks], arcs

    # Aggregates -------------------------------------------------------------------------------------

    def _send_vertices(self, solver_input: SolverInput) -> None:
        known = len(self._supply)
        if solver_input.vertices > known:
            # Several are added at once, because the solver's columns are copied each time.
            more = max(solver_input.vertices - known, known // 8)
            self.solver.add_vertices(more)
            self._supply = np.concatenate([self._supply, np.zeros(more, np.int64)])
        wanted = np.zeros(len(self._supply), np.int64)
        wanted[: len(solver_input.upper.supply)] = solver_input.upper.supply
        changed = np.flatnonzero(wanted != self._supply)
        if len(changed):
            self.solver.set_supply(changed, wanted[changed])
            self._supply = wanted
        self.changes += len(changed)

    def _send_arcs(self, upper: UpperArcs) -> Ints:
        key = ((upper.tail << _VERTEX_BITS) | upper.head) << _PARALLEL_BITS
        order = np.argsort(key, kind="stable")
        first = np.ones(len(key), np.bool_)
        first[1:] = np.diff(key[order]) != 0
        at = np.arange(len(key))
        key[order] += at - np.maximum.accumulate(np.where(first, at, 0))
        place = np.searchsorted(self._keys, key)
        inside = np.minimum(place, max(len(self._keys) - 1, 0))
        known = self._keys[inside] == key if len(self._keys) else np.zeros(len(key), np.bool_)
        numbers = np.full(len(key), ABSENT, np.int64)
        numbers[known] = self._arcs[inside[known]]
        self._change_arcs(upper, numbers, known)
        if not known.all():
            new = ~known
            numbers[new] = self.solver.add_arcs(
                upper.tail[new], upper.head[new], upper.capacity[new], upper.cost[new]
            )
            self._capacity = np.concatenate([self._capacity, upper.capacity[new]])
            self._cost = np.concatenate([self._cost, upper.cost[new]])
            keys = np.concatenate([self._keys, key[new]])
            again = np.argsort(keys, kind="stable")
            self._arcs = np.concatenate([self._arcs, numbers[new]])[again]
            self._keys = keys[again]
            self.changes += int(np.count_nonzero(new))
        return numbers

    def _change_arcs(self, upper: UpperArcs, numbers: Ints, known: Flags) -> None:
        capacity, cost = np.zeros(len(self._capacity), np.int64), self._cost.copy()
        capacity[numbers[known]], cost[numbers[known]] = upper.capacity[known], upper.cost[known]
        changed = np.flatnonzero((capacity != self._capacity) | (cost != self._cost))
        if len(changed):
            self.solver.change_arcs(changed, capacity[changed], cost[changed])
            self._capacity, self._cost = capacity, cost
        self.changes += len(changed)

    # Tasks ------------------------------------------------------------------------------------------

    def _send_tasks(self, solver_input: SolverInput) -> None:
        cache, rules = self._cache, solver_input.rules
        tasks, dirty = rules.tasks, solver_input.dirty
        there = np.zeros(len(cache.identity), np.bool_)
        there[tasks] = True
        gone = np.flatnonzero((cache.identity != ABSENT) & ~there)
        if len(gone):
            self.solver.remove_tasks(cache.warm[gone])
            cache.identity[gone] = cache.warm[gone] = ABSENT
        self._change_costs(rules, ~dirty)
        if not dirty.any():
            return
        given = tasks[dirty]
        known = cache.warm[given] != ABSENT
        for which in (True, False):
            some = np.flatnonzero(known == which)
            if not len(some):
                continue
            rows = solver_input.rows.select(some)
            if which:
                self.solver.replace_tasks(cache.warm[given[some]], rows.start, rows.target, rows.cost)
            else:
                cache.warm[given[some]] = self.solver.add_tasks(rows.start, rows.target, rows.cost)
        cache.identity[given] = solver_input.identity[dirty]
        cache.length[given] = np.diff(solver_input.rows.start)
        cache.leaf[given], cache.movable[given] = rules.leaf[dirty], rules.movable[dirty]
        cache.may_wait[given], cache.filters[given] = rules.may_wait[dirty], rules.filters[dirty]
        cache.stay_cost[given], cache.wait_cost[given] = rules.stay_cost[dirty], rules.waiting_cost[dirty]
        self.changes += len(gone) + len(given)

    def _change_costs(self, rules: RowRules, clean: Flags) -> None:
        """Set the costs of the arcs that every task has: the last one or two of its row."""
        cache, tasks = self._cache, rules.tasks
        for flag, cost, last, behind in (
            (rules.leaf != ABSENT, rules.stay_cost, cache.stay_cost, rules.may_wait.astype(np.int64)),
            (rules.may_wait, rules.waiting_cost, cache.wait_cost, np.zeros(len(tasks), np.int64)),
        ):
            at = np.flatnonzero(clean & flag & (last[tasks] != cost))
            if not len(at):
                continue
            rows = tasks[at]
            self.solver.change_costs(cache.warm[rows], cache.length[rows] - 1 - behind[at], cost[at])
            last[rows] = cost[at]
            self.changes += len(at)
