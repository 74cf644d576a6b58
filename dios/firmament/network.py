"""The flow network of a cluster, kept from round to round (thesis §6.2): vertices, options, arcs, capacities.

For: the scheduler. A round gives it the model's checked answers and a plan of policies; it gives back task
rows and upper arcs, which a solver takes in bulk, or as one ``FlowProblem``.
Not for: asking models (``network_answers``), policies (``policies``), solving, or reading the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dios.firmament.columns import ABSENT, Flags, Ints
from dios.firmament.network_answers import Answers, Questions
from dios.firmament.network_options import OptionPool
from dios.firmament.network_rows import RowRules, TaskRows, make_rows
from dios.firmament.network_upper import Bounds, UpperArcs, class_columns, closed_vertices, upper_arcs
from dios.firmament.network_vertices import SINK, VertexKind, Vertices
from dios.firmament.policies.filters import Filter, Narrowing
from dios.firmament.settings import SchedulerSettings
from dios.firmament.solvers import FlowProblem
from dios.firmament.state import RUNNING, ClusterState


@dataclass(frozen=True, eq=False)
class Plan:
    """What policies decide before a round is solved."""

    tasks: Ints
    """The task rows that take part, ascending; the others wait without being asked."""
    fixed: Flags
    """(n,): running tasks that may neither move nor stop."""
    rooted: Flags
    """(n,): running tasks that may stop, but not move."""
    filter_of: Ints
    """(n,): number of the filter that holds for each; 0: none."""
    filters: Mapping[int, Filter]
    bounds: Bounds


@dataclass(frozen=True, eq=False)
class RoundNetwork:
    """One round's network: rows of tasks over upper arcs."""

    rows: TaskRows
    upper: UpperArcs
    vertices: int
    """How many numbers upper vertices have; the tasks' vertices follow them in :meth:`problem`."""

    def problem(self) -> FlowProblem:
        """The same as one problem: upper vertices first, then tasks; task arcs first, then upper arcs."""
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
    """Vertices and options that outlive a round."""

    def __init__(self, state: ClusterState, settings: SchedulerSettings) -> None:
        self._state = state
        self._settings = settings
        self.vertices = Vertices()
        self.pool = OptionPool()

    def forget_task(self, row: int) -> None:
        """A task has left the tables."""
        self.pool.forget(row)

    def forget_job(self, row: int) -> None:
        """A job has left the tables."""
        self.vertices.drop_job(row)

    def forget_resources(self, rows: list[int]) -> None:
        """A machine and what is inside of it has left the tables; no option leads there any more."""
        gone = np.zeros(self.vertices.used, np.bool_)
        for row in rows:
            vertex = self.vertices.drop_resource(row)
            if vertex != ABSENT:
                gone[vertex] = True
        if gone.any():
            self.pool.remove_targets(gone)

    def forget_options(self) -> None:
        """Another model has other options."""
        self.pool = OptionPool()

    def classes(self, asked: Ints, named: Ints) -> Ints:
        """The model's classes that tasks lead to: those of ``asked`` are ``named``, the others' are known."""
        others = np.ones(len(self.pool.count), np.bool_)
        others[asked[asked < len(others)]] = False
        rows = np.flatnonzero(others & (self.pool.count > 0))
        target = self.pool.gather(rows)[1]
        known = np.unique(target[self.vertices.kind[target] == VertexKind.CLASS])
        return np.union1d(self.vertices.row[known], named)

    def build(self, questions: Questions, answers: Answers, plan: Plan) -> RoundNetwork:
        """This round's network; the model's new options are kept."""
        self._keep_options(answers)
        state, vertices = self._state, self.vertices
        vertices.resources(np.concatenate([questions.children, [state.cluster]]))
        vertices.jobs(questions.jobs)
        classes = class_columns(answers, vertices, closed_vertices(state, vertices))
        narrowing = Narrowing(state.resources, vertices, dict(plan.filters))
        rows = make_rows(self.pool, self._rules(answers, plan), narrowing.options)
        held = np.zeros(len(state.resources.alive), np.int64)
        np.add.at(held, state.tasks.leaf[plan.tasks[plan.fixed]], 1)
        upper = upper_arcs(state, vertices, questions, answers, narrowing, classes, plan.bounds, held)
        vertices.keep_classes(VertexKind.ONLY, narrowing.vertices_in_use())
        vertices.keep_classes(VertexKind.CLASS, np.union1d(classes[0], self._class_heads(classes, rows)))
        return RoundNetwork(rows, upper, vertices.used)

    def _class_heads(self, classes: tuple[Ints, Ints, Ints, Ints], rows: TaskRows) -> Ints:
        heads = np.union1d(np.concatenate([classes[1], rows.target]), self.pool.targets())
        return heads[self.vertices.kind[heads] == VertexKind.CLASS]

    def _keep_options(self, answers: Answers) -> None:
        count = np.zeros(len(answers.asked), np.int64)
        for part in (answers.options, answers.classes):
            count += np.bincount(part.task, minlength=len(count))
        owner = np.concatenate([answers.options.task, answers.classes.task])
        target = np.concatenate(
            [
                self.vertices.resources(answers.options.target),
                self.vertices.classes(answers.classes.target),
            ]
        )
        cost = np.concatenate([answers.options.cost, answers.classes.cost])
        order = np.argsort(owner, kind="stable")
        self.pool.replace(answers.asked, count, target[order], cost[order])

    def _rules(self, answers: Answers, plan: Plan) -> RowRules:
        state, settings, vertices = self._state, self._settings, self.vertices
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
            stay_cost=stay,
            may_wait=~plan.fixed,
            waiting_vertex=vertices.jobs(state.tasks.job[tasks]),
            waiting_cost=wait,
            filters=plan.filter_of,
            closed=closed_vertices(state, vertices),
            migration_hysteresis=settings.migration_hysteresis,
        )
