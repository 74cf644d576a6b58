"""The flow network of a cluster, kept from round to round (thesis §6.2): vertices, options, arcs, capacities.

A round gives it the model's checked answers and a plan of policies. It returns task rows and upper arcs,
which a solver takes in bulk, or as one ``FlowProblem``. The model is asked in ``model_answers``; the
solution is read in ``flow_trace``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.protocol import Options
from dios.firmament.network.change_log import SolverInput, WarmNetwork
from dios.firmament.network.model_answers import ModelAnswers, ModelQuestions
from dios.firmament.network.option_pool import OptionPool
from dios.firmament.network.task_rows import RowRules, TaskRows, make_rows
from dios.firmament.network.upper_arcs import (
    JobBounds,
    UpperArcs,
    class_columns,
    closed_vertices,
    machine_of,
    upper_arcs,
)
from dios.firmament.network.vertices import SINK, VertexKind, Vertices
from dios.firmament.policies.filters import Narrowing, PlacementFilter
from dios.firmament.settings import SchedulerSettings
from dios.firmament.solvers import FlowProblem


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """The decisions of policies before a round is solved."""

    tasks: Ints
    """The task rows that take part, ascending; the others wait."""
    fixed: Flags
    """(n,): True for running tasks that may neither move nor stop."""
    rooted: Flags
    """(n,): True for running tasks that may stop, but not move."""
    filter_of: Ints
    """(n,): the number of the filter that applies to each task; 0: none."""
    filters: Mapping[int, PlacementFilter]
    bounds: JobBounds


@dataclass(frozen=True, eq=False)
class RoundNetwork:
    """One round's network: rows of tasks over upper arcs."""

    make: Callable[[], TaskRows]
    upper: UpperArcs
    vertices: int
    """The number of upper vertices; the tasks' vertices follow them in :meth:`problem`."""
    solver_input: SolverInput | None = None
    """The differences from the last round, if a warm solver continues from there."""

    @cached_property
    def rows(self) -> TaskRows:
        """All rows. They are made on demand, because few rounds need them all."""
        return self.make()

    def problem(self) -> FlowProblem:
        """Return one problem: upper vertices, then tasks; task arcs, then upper arcs."""
        rows, upper = self.rows, self.upper
        owner = rows.owner() + self.vertices
        supply = np.concatenate([upper.supply, np.ones(len(rows.tasks), np.int64)])
        supply[SINK] = -int(supply.sum())
        ones = np.ones(len(owner), np.int64)
        tail = np.concatenate([owner, upper.tail])
        return FlowProblem(
            supply,
            tail,
            np.concatenate([rows.target, upper.head]),
            np.zeros(len(tail), np.int64),
            np.concatenate([ones, upper.capacity]),
            np.concatenate([rows.cost, upper.cost]),
        )


class FlowNetwork:
    """The vertices and options that outlive a round."""

    def __init__(self, state: ClusterState, settings: SchedulerSettings) -> None:
        self._state = state
        self.settings = settings
        self.vertices = Vertices()
        self.pool = OptionPool()
        self.warm: WarmNetwork | None = None
        self._closed: Flags = np.zeros(0, np.bool_)
        self._touched: Flags = np.zeros(16, np.bool_)
        """By task row: True if its options have changed since the solver was updated."""
        self._filters: Mapping[int, PlacementFilter] = {}
        """The filters of the last round."""
        self.forget_warm()

    def forget_warm(self, *, for_good: bool = False) -> None:
        """Solve the next round from scratch; with ``for_good``, all rounds under this model."""
        keeps = self.settings.solver == "auto" and not for_good
        self.warm = WarmNetwork() if keeps else None

    def forget_task(self, row: int) -> None:
        """Drop the options of a task that has left the tables."""
        self.pool.forget(row)

    def forget_job(self, row: int) -> None:
        """Drop the vertex of a job that has left the tables."""
        self.vertices.drop_job(row)

    def forget_resources(self, rows: list[int]) -> None:
        """Drop the vertices of a machine that has left the tables, and all options that lead to them."""
        gone = np.zeros(self.vertices.used, np.bool_)
        for row in rows:
            vertex = self.vertices.drop_resource(row)
            if vertex != ABSENT:
                gone[vertex] = True
        if gone.any():
            self._mark_touched(self.pool.remove_targets(gone))

    def forget_options(self) -> None:
        """Drop all options, because another model has others."""
        self.pool = OptionPool()
        self.forget_warm()

    def _mark_touched(self, tasks: Ints) -> None:
        size = max(int(tasks.max(initial=0)) + 1, len(self._state.tasks.alive))
        if size > len(self._touched):
            self._touched = np.concatenate([self._touched, np.zeros(size - len(self._touched), np.bool_)])
        self._touched[tasks] = True

    def classes(self, asked: Ints, named: Ints) -> Ints:
        """Return the classes that tasks lead to: ``named`` for ``asked``, the known ones for others."""
        if not len(self.vertices.all_of(VertexKind.CLASS)):
            return np.unique(named)
        others = np.ones(len(self.pool.count), np.bool_)
        others[asked[asked < len(others)]] = False
        rows = np.flatnonzero(others & (self.pool.count > 0))
        target = self.pool.gather(rows)[1]
        known = np.unique(target[self.vertices.kind[target] == VertexKind.CLASS])
        return np.union1d(self.vertices.row[known], named)

    def build(
        self, questions: ModelQuestions, answers: ModelAnswers, plan: RoundPlan, *, warm: bool
    ) -> RoundNetwork:
        """Keep the model's new options and return the round's network, with the changes if ``warm``."""
        self._keep_options(answers)
        if self.warm is not None and self.warm.is_sparse:
            self.forget_warm()
        state, vertices = self._state, self.vertices
        vertices.resources(np.concatenate([questions.children, [state.cluster]]))
        vertices.jobs(questions.jobs)
        classes = class_columns(answers, vertices, closed_vertices(state, vertices))
        narrowing = Narrowing(state.resources, vertices, dict(plan.filters))
        rules = self._rules(answers, plan)
        changed_rows = self._changed_rows(rules, narrowing) if warm and self.warm is not None else None

        def make() -> TaskRows:
            return make_rows(self.pool, rules, narrowing.options)

        # Narrowed vertices are found while rows are made; those with a filter are always among them.
        rows = None if changed_rows else make()
        held = np.zeros(len(state.resources.alive), np.int64)
        np.add.at(held, state.tasks.leaf[plan.tasks[plan.fixed]], 1)
        upper = upper_arcs(state, vertices, questions, answers, narrowing, classes, plan.bounds, held)
        vertices.keep_classes(VertexKind.ONLY, narrowing.vertices_in_use())
        self._keep_classes(classes)
        solver_input = (
            None
            if changed_rows is None
            else SolverInput(state.tasks.id[plan.tasks], rules, *changed_rows, upper, vertices.used)
        )
        network = RoundNetwork(make, upper, vertices.used, solver_input)
        if rows is not None:
            vars(network)["rows"] = rows
        return network

    def pool_entries(self) -> int:
        """Return the number of arcs that the model gave to tasks."""
        return int(self.pool.count.sum())

    def changes_sent(self) -> None:
        """Record that the solver has received all changes."""
        self._touched[:] = False

    def _changed_rows(self, rules: RowRules, narrowing: Narrowing) -> tuple[Flags, TaskRows]:
        """Return the rows that differ from what the solver knows, as flags and as rows."""
        assert self.warm is not None  # noqa: S101 - for the type checker; the caller has checked
        self._mark_touched(np.zeros(0, np.int64))
        if not np.array_equal(np.flatnonzero(rules.closed), np.flatnonzero(self._closed)):
            self._closed = rules.closed
            self._touched[:] = True
        narrowed = np.isin(rules.filters, narrowing.changed(self._filters))
        self._filters = narrowing.filters
        # Rows that are not written again lead to vertices of filters that have not changed.
        narrowing.keep(np.unique(rules.filters))
        dirty = self.warm.stale(self._state.tasks.id[rules.tasks], rules, self._touched, narrowed)
        return dirty, make_rows(self.pool, rules.select(dirty), narrowing.options)

    def _keep_classes(self, classes: tuple[Ints, Ints, Ints, Ints]) -> None:
        if len(self.vertices.all_of(VertexKind.CLASS)):
            heads = np.unique(np.concatenate([classes[0], classes[1], self.pool.targets()]))
            wanted = heads[self.vertices.kind[heads] == VertexKind.CLASS]
            self.vertices.keep_classes(VertexKind.CLASS, wanted)

    def _keep_options(self, answers: ModelAnswers) -> None:
        options = self._possible(answers)
        count = np.zeros(len(answers.asked), np.int64)
        for part in (options, answers.classes):
            count += np.bincount(part.task, minlength=len(count))
        owner = np.concatenate([options.task, answers.classes.task])
        target = np.concatenate(
            [
                self.vertices.resources(options.target),
                self.vertices.classes(answers.classes.target),
            ]
        )
        cost = np.concatenate([options.cost, answers.classes.cost])
        order = np.argsort(owner, kind="stable")
        self.pool.replace(answers.asked, count, target[order], cost[order])
        self._mark_touched(answers.asked)

    def _possible(self, answers: ModelAnswers) -> Options:
        """Return the model's options without those on machines that are too small even when empty."""
        tree, options = self._state.resources, answers.options
        asked = self._state.tasks.demand[answers.asked]
        known = tree.capacity[tree.at(Level.MACHINE)]
        least = np.where(known == 0, np.inf, known).min(axis=0, initial=np.inf)
        if (asked.max(axis=0, initial=0) <= least).all():
            # Every task fits every machine, which is usual, and read from far fewer numbers.
            return options
        machine = tree.machine[options.target]
        demand = self._state.tasks.demand[answers.asked[options.task]]
        capacity = tree.capacity[machine]
        fits = (machine == ABSENT) | np.all((demand <= capacity) | (capacity == 0), axis=1)
        return options if fits.all() else Options(*(column[fits] for column in options))

    def _rules(self, answers: ModelAnswers, plan: RoundPlan) -> RowRules:
        state, settings, vertices = self._state, self.settings, self.vertices
        tasks = plan.tasks
        running = state.tasks.status[tasks] == RUNNING
        leaf = np.full(len(tasks), ABSENT, np.int64)
        leaf[running] = vertices.resources(state.tasks.leaf[tasks[running]])
        stay = np.zeros(len(tasks), np.int64)
        stay[running] = answers.continuation
        wait = np.empty(len(tasks), np.int64)
        wait[~running] = answers.unscheduled
        wait[running] = answers.preemption + settings.preemption_hysteresis
        stays = plan.fixed | plan.rooted
        return RowRules(
            tasks=tasks,
            movable=~running | (~stays & settings.migration),
            running=running,
            leaf=leaf,
            machine=state.tasks.machine[tasks],
            stay_cost=stay,
            may_wait=~plan.fixed,
            waiting_vertex=vertices.jobs(state.tasks.job[tasks]),
            waiting_cost=wait,
            filters=plan.filter_of,
            machine_of=machine_of(state, vertices),
            closed=closed_vertices(state, vertices),
            migration_hysteresis=settings.migration_hysteresis,
        )
