"""The scheduler: it receives events, solves rounds, and returns changes (thesis §6.2 to §6.4).

The simulator and the coordinators call it and carry out its changes. It has no clock (``now``, in seconds, is
an argument), sends nothing, and starts no process.

Every event is checked before anything is changed, so a refused event leaves no trace. A round that cannot be
solved leaves the schedule as it is, and its result says why.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from dios.firmament.cluster import changes as tables
from dios.firmament.cluster.columns import ABSENT, Floats, Ints
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.descriptors import (
    DIMENSIONS,
    BadDescriptorError,
    FinalReport,
    JobDescriptor,
    Level,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.explain.counterfactuals import CounterfactualSearch, start_within
from dios.firmament.explain.explain_task import ExplainedTask, explain_left_out, explain_task
from dios.firmament.explain.explanation import Explanation
from dios.firmament.explain.free_amounts import free_amounts
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models.base import BaseModel
from dios.firmament.models.protocol import CostModel
from dios.firmament.network.export import NamedProblem, VertexNames, named_problem
from dios.firmament.network.flow_network import FlowNetwork
from dios.firmament.policies.backlog import Backlog, BackloggedTask
from dios.firmament.policies.fair_queue import TaskFairQueue
from dios.firmament.policies.fit import room_of
from dios.firmament.policies.gangs import GangTable
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.policies.reservations import RemoteReservation, Reservation, Reservations
from dios.firmament.policies.restrictions import Restrictions
from dios.firmament.rounds.model_guard import ModelError, ModelGuard
from dios.firmament.rounds.results import Change, Fault, Round
from dios.firmament.rounds.round_maker import RoundMaker
from dios.firmament.settings import SchedulerSettings
from dios.limits import BACKLOG_SPARE_TASKS, SCHED_FAULTS_MAX, SCHED_HISTORY_MAX

PROMISED_NAMES = 4
"""The number of machines that an explanation names as kept for a task."""

_GROWTH_S = 10.0
"""The interval over which the growth of a waiting cost is measured for explanations."""


class PromisedStart(NamedTuple):
    """The identifiers of the machines that are kept for a task, and when it is expected to start.

    ``awaited`` are the identifiers of the tasks there that are expected to end before, in their order.
    """

    machines: tuple[int, ...]
    start: float
    awaited: tuple[int, ...] = ()


class FlowScheduler:
    """One cluster and its schedule. Not safe for threads.

    Unknown identifiers and impossible arguments raise :class:`BadDescriptorError`. With a ``ledger``,
    principals take turns while there is not enough room for all, and a long queue waits outside the tables
    (``policies.backlog``); without one, only costs decide.
    """

    def __init__(
        self,
        model: CostModel,
        settings: SchedulerSettings | None = None,
        *,
        knowledge: KnowledgeBase | None = None,
        ledger: PrincipalAccounts | None = None,
    ) -> None:
        self.settings = settings or SchedulerSettings()
        self.state = ClusterState(knowledge=knowledge)
        """The tables of the cluster; callers only read them."""
        self.model = model
        self.history: deque[Round] = deque(maxlen=SCHED_HISTORY_MAX)
        self._guard = ModelGuard(self.settings.model_time_limit_s)
        self._network = FlowNetwork(self.state, self.settings)
        self._restrictions = Restrictions(self.settings)
        self._gangs = GangTable(self.settings)
        self._fresh: set[int] = set()
        self._faults: list[Fault] = []
        self._fair_queue = (
            None if ledger is None else TaskFairQueue(ledger, preemption=self.settings.preemption)
        )
        self._backlog = None if ledger is None else Backlog(self._is_possible, self._running_of)
        if self._backlog is not None:
            self.state.waiting_principals = self._backlog.principals
        self.starts = math.inf
        """The number of tasks that may start in the next round; more need not take part in it."""
        self._rounds = RoundMaker(
            self.state, self.settings, self._network, self._restrictions, self._gangs, self._fair_queue
        )

    # Machines ---------------------------------------------------------------------------------------

    def add_machine(self, machine: MachineDescriptor, now: float) -> None:
        """Add a machine."""
        if self.state.machine_row(machine.machine) != ABSENT:
            raise BadDescriptorError(f"machine {machine.name} ({machine.machine}) exists already")
        self.state.now = now
        row = self.state.add_machine(machine)
        self._restrictions.add_machine(row, machine)
        if self._backlog is not None:
            self._backlog.machines_changed()
        self._gangs.room_appeared()
        self._notify_model("add_machine", lambda: self.model.add_machine(self.state, row))

    def remove_machine(self, machine: int, now: float) -> list[int]:
        """Remove a machine; return the identifiers of the tasks that ran there, which wait again."""
        row = self._machine(machine)
        self.state.now = now
        tasks = self.state.tasks
        rows = np.flatnonzero(tasks.alive & (tasks.status == RUNNING) & (tasks.machine == row))
        tables.stop(self.state, rows)
        tables.withhold(self.state, row, np.zeros(DIMENSIONS))
        self._notify_model("remove_machine", lambda: self.model.remove_machine(self.state, row))
        self._restrictions.remove_machine(row)
        if self._backlog is not None:
            self._backlog.machines_changed()
        self._network.forget_resources(self.state.remove_machine(machine))
        return [int(task_id) for task_id in tasks.id[rows]]

    def drain(self, machine: int, drained: bool) -> None:  # noqa: FBT001 - the contract of all callers
        """Set whether a machine takes no new tasks; its running tasks stay."""
        self.state.resources.usable[self._machine(machine)] = not drained
        self._gangs.room_appeared()

    def withhold(self, machine: int, amounts: Resources) -> None:
        """Reserve part of a machine for jobs that were admitted over time; tasks get the rest.

        ``amounts`` replaces the amounts that were reserved before.
        """
        row = self._machine(machine)
        if (self.state.resources.withheld[row] != amounts).any():
            self._gangs.room_appeared()
            tables.withhold(self.state, row, np.array(amounts))

    def set_outside(self, processors: Mapping[int, float]) -> None:
        """Set the processors of machines that programs other than tasks use; models may avoid them."""
        rows = np.array([self._machine(machine) for machine in processors], np.int64)
        self.state.resources.outside[rows] = list(processors.values())

    def promise(self, principal: str, tasks: int, amounts: Resources) -> None:
        """Set the amounts that a principal holds in addition to those of its tasks."""
        tables.promise(self.state, self.state.principal(principal), np.array((tasks, *amounts)))

    # Tasks ------------------------------------------------------------------------------------------

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float) -> None:
        """Add waiting tasks, of a new job or of a known one."""
        self._check(job, tasks)
        self.state.now = now
        if self._backlog is None or job.gang or job.minimum_running:
            self._add(job, tasks)
            return
        for descriptor in tasks:
            self._backlog.add(job, descriptor, now)
            if len(self.state.tasks) < BACKLOG_SPARE_TASKS and self._backlog.may_enter(descriptor.task):
                self._enter(descriptor.task)

    def set_bounds(self, job: int, minimum: int, maximum: int | None) -> None:
        """Change E_j and F_j of a known job from the next round on; an unknown job is ignored."""
        known = self.job(job)
        if known is None or (known.minimum_running, known.maximum_running) == (minimum, maximum):
            return
        self.redescribe_job(replace(known, minimum_running=minimum, maximum_running=maximum))

    def redescribe_job(self, described: JobDescriptor) -> None:
        """Change the bounds, the gang and the affinity of a known job from the next round on."""
        row, table = self.state.jobs.find(described.job), self.state.tasks
        inside: list[int] = []
        if row != ABSENT:
            tables.describe_job(self.state, row, described)
            inside = table.id[table.alive & (table.job == row)].tolist()
        if self._backlog is not None:
            outside = self._backlog.set_job(described, inside)
            if described.minimum_running:
                for task in outside:
                    self._enter(task)

    def redescribe(self, described: TaskDescriptor) -> None:
        """Give a waiting task another description; it keeps its place in the queue."""
        task = described.task
        if self._backlog is not None and self._backlog.knows(task):
            outside = task in self._backlog
            self._backlog.redescribe(described)
            if outside:
                return
        row = self._task(task)
        if self.state.tasks.status[row] == RUNNING:
            raise BadDescriptorError(f"task {task} runs: its description can be changed only while it waits")
        rows = np.array([row])
        self._notify_model("remove_task", lambda: self.model.remove_task(self.state, row))
        tables.describe_tasks(self.state, rows, [described])
        self._restrictions.add_tasks(rows, [described])
        self._network.forget_task(row)
        self._fresh.add(row)
        self._notify_model("add_tasks", lambda: self.model.add_tasks(self.state, rows))

    def finished(self, task: int, now: float, report: FinalReport | None = None) -> None:
        """Remove a task that has ended, failed or was withdrawn.

        For its gang, a task that ended successfully counts as running. Without a report it ended
        successfully.
        """
        if self._backlog is not None:
            outside = task in self._backlog
            self._backlog.remove(task)
            if outside:
                self.state.now = now
                return
        row = self._task(task)
        self.state.now = now
        self._remove(row, completed=report is None or report.completed)
        self._gangs.room_appeared()

    def started(self, task: int, machine: int, now: float, thread: str = "", ran: float = 0.0) -> None:
        """Record that a waiting task runs already; a coordinator that takes over finds such tasks.

        ``thread`` is the name of its hardware thread; it is empty if that is unknown. ``ran`` is the number
        of seconds for which it has run.
        """
        place = self._machine(machine)
        if self._backlog is not None:
            if task in self._backlog:
                self._enter(task)
            self._backlog.remove(task)
        row = self._task(task)
        if self.state.tasks.status[row] == RUNNING:
            raise BadDescriptorError(f"task {task} runs already")
        self.state.now = now
        names = self.state.resources.names
        named = [below for below in self.state.below(place) if names[below] == thread] if thread else []
        leaf = named[0] if named else tables.emptiest_leaf(self.state, place)
        tables.start(self.state, np.array([row]), np.array([leaf]))
        self.state.tasks.since[row] -= ran

    def rejected(self, task: int, now: float) -> None:
        """Record that a machine refused a task: it waits again and avoids that machine for a while."""
        row = self._task(task)
        table = self.state.tasks
        if table.status[row] != RUNNING:
            raise BadDescriptorError(f"task {task} waits: there is no placement to reject")
        self.state.now = now
        machine = self.state.machine_ids[int(table.machine[row])]
        tables.stop_one(self.state, row)
        self._restrictions.refused(row, machine, now)

    def measured(self, task: int, usage: Resources) -> None:
        """Record the resources that a task uses now."""
        self.state.tasks.usage[self._task(task)] = usage

    def progressed(self, task: int, share: float) -> None:
        """Record the share (0 to 1) of its work that a running task has done."""
        row = self._task(task)
        if not 0 <= share <= 1:
            raise BadDescriptorError(
                f"task {task}: its progress is {share}; it is a share and must be from 0 to 1"
            )
        if self.state.tasks.status[row] != RUNNING:
            raise BadDescriptorError(f"task {task} waits: it makes no progress")
        self.state.tasks.progress[row] = share

    def job(self, job: int) -> JobDescriptor | None:
        """Return a known job's description."""
        row = self.state.jobs.find(job)
        if row != ABSENT:
            return self.state.jobs.descriptors[row]
        return None if self._backlog is None else self._backlog.job(job)

    @property
    def backlog(self) -> int:
        """The number of waiting tasks outside the tables."""
        return 0 if self._backlog is None else self._backlog.outside

    def thread_of(self, task: int) -> str:
        """Return the name of the hardware thread on which a task was placed; empty without insides."""
        row = self.state.tasks.find(task)
        leaf = ABSENT if row == ABSENT else int(self.state.tasks.leaf[row])
        if leaf == ABSENT or self.state.resources.level[leaf] != Level.THREAD:
            return ""
        return self.state.resources.names[leaf]

    def promised_start(self, task: int) -> PromisedStart | None:
        """Return the machines that are kept for a waiting task, and when it starts there; None without."""
        reservation = self._rounds.reservations.present.get(task)
        if reservation is None:
            return None
        places = tuple(dict.fromkeys(self.state.machine_ids[row] for row in reservation.machines))
        awaited = self._rounds.reservations.awaited(self.state, task)
        return PromisedStart(places, reservation.start, tuple(self.state.tasks.id[awaited].tolist()))

    def promised_starts(self) -> dict[int, tuple[int, float]]:
        """Return the machine that is kept for each waiting task, and when it is expected to start there."""
        present = self._rounds.reservations.present
        return {
            task: (self.state.machine_ids[reservation.machines[at]], reservation.start)
            for reservation in dict.fromkeys(present.values())
            for at, task in enumerate(reservation.tasks)
        }

    def recall(self, machines: Mapping[int, int]) -> None:
        """Keep the machines for waiting tasks that another coordinator kept for them; both by identifier.

        Unknown tasks and machines are skipped. The tasks of a gang belong together.
        """
        gangs: dict[int, list[tuple[int, int]]] = {}
        for task, machine in sorted(machines.items()):
            row, place = self.state.tasks.find(task), self.state.machine_row(machine)
            if ABSENT in {row, place} or self.state.tasks.status[row] == RUNNING:
                continue
            job = int(self.state.tasks.job[row])
            key = job if self.state.jobs.gang[job] else -1 - row
            gangs.setdefault(key, []).append((task, place))
        for members in gangs.values():
            tasks, places = zip(*members, strict=True)
            self._rounds.reservations.recall(Reservation(tasks, places, math.inf))

    def leave_to_others(self, rooms: Sequence[RemoteReservation]) -> None:
        """Leave room to the tasks of other coordinators from the next round on; replaces what was left."""
        self._rounds.reservations.elsewhere = rooms

    def is_running(self, task: int) -> bool:
        """Return True if the task is known and has been placed."""
        row = self.state.tasks.find(task)
        return row != ABSENT and bool(self.state.tasks.status[row] == RUNNING)

    # Rounds -----------------------------------------------------------------------------------------

    def set_model(self, model: CostModel, now: float) -> None:
        """Use another cost model from the next round on; it receives every machine and task as an event."""
        self.state.now = now
        self.model = model
        self._guard = ModelGuard(self.settings.model_time_limit_s)
        self._network.forget_options()
        self._fresh = set(self.state.tasks.all().tolist())
        rows = self.state.tasks.all()
        for row in sorted(self.state.machine_ids):
            self._notify_model("add_machine", partial(model.add_machine, self.state, row))
        self._notify_model("add_tasks", lambda: model.add_tasks(self.state, rows))

    def set_settings(self, settings: SchedulerSettings, now: float) -> None:
        """Use other settings from the next round on, which is solved from scratch."""
        self.state.now = now
        self.settings = settings
        self._network.settings = settings
        self._restrictions.settings = settings
        self._gangs.settings = settings
        self._rounds.set_settings(settings)
        if self._fair_queue is not None:
            self._fair_queue.preemption = settings.preemption
        self._guard.limit_s = settings.model_time_limit_s
        self._network.forget_options()
        self._fresh = set(self.state.tasks.all().tolist())

    def round(self, now: float) -> Round:
        """Solve a round, change the state, and return the changes."""
        started = time.perf_counter()
        self.state.now = now
        free = self._fill_tables()
        outcome = Round(self._round_number + 1, now, self.model.name, self.settings.solver)
        outcome.faults, self._faults = self._faults, []
        self._rounds.run(self.model, self._guard, self._fresh, outcome)
        outcome.waiting += self.backlog
        self._update_backlog(outcome, free)
        outcome.total_s = time.perf_counter() - started
        self.history.append(outcome)
        return outcome

    # Reports ----------------------------------------------------------------------------------------

    def explain(self, task: int, budget_s: float = math.inf) -> Explanation:
        """Explain why a task waits or runs where it does, and describe what would change that.

        Rounds are played for it in copies of this scheduler, so the answer is about the present cluster, and
        nothing changes. At most ``budget_s`` seconds, and one change more, are spent on changes that would
        start a waiting task. Without any there is no copy, but a trial round in this scheduler, after which
        a round may choose another one of equally good solutions.

        Raises:
            BadDescriptorError: the task is not known.
            ModelError: the cost model failed.
            NoSolverError: no solver found a solution.
        """
        before = self._backlog.place_of(task) if self._backlog is not None and task in self._backlog else None
        if before is None:
            self._task(task)
        if budget_s <= 0:
            return self._explain_untried(task, "explanations have used up their time")
        try:
            trial = self.copy()
        except ModelError as error:
            return self._explain_untried(task, str(error))
        if self.is_running(task):
            return trial._explain(task)  # noqa: SLF001 - the copy is of this class
        return replace(self._explain_waiting(task, trial, budget_s), before=before)

    def _explain_untried(self, task: int, why: str) -> Explanation:
        """Explain a task by a trial round alone; ``why`` says why no changes are tried."""
        explained = self._explain_entered(task)
        if self.is_running(task):
            return explained
        enough = [change for change in explained.enough if change.machine is None]
        return replace(explained, enough=enough, unsolved=f"no changes were tried: {why}")

    def _explain_waiting(self, task: int, trial: FlowScheduler, budget_s: float) -> Explanation:
        """Explain a waiting task as it is after the next rounds, which are played in ``trial``."""
        number, (_, described) = self._round_number, self.described(task)
        free = free_amounts(self.state, described.demand, self.reservations, task)
        machine, rounds = start_within(trial, task, self.state.now)
        if machine != ABSENT:
            name = self.state.resources.names[self.state.machine_row(machine)]
            which = "the next round" if rounds == 1 else f"one of the next {rounds} rounds"
            reason = f"{which} places it on {name}"
            return replace(self.copy()._explain_entered(task), reason=reason, free=free)  # noqa: SLF001 - as above
        explained = trial._explain_entered(task)
        search = CounterfactualSearch(self, task, budget_s)
        changes = search.solve()
        enough = [
            change
            for change in explained.enough
            if change.machine is None or search.starts_with_slot(change.machine)
        ]
        unsolved = search.remark
        if not unsolved and not changes and all(change.machine is None for change in enough):
            unsolved = "none of the changes that were tried, alone or two together, would start it now"
        return replace(
            explained, round=number, free=free, counterfactuals=changes, enough=enough, unsolved=unsolved
        )

    def _explain_entered(self, task: int) -> Explanation:
        """Explain a task, which enters the tables for it if it waits outside."""
        before = None
        if self._backlog is not None and task in self._backlog:
            before = self._backlog.place_of(task)
            self._enter(task)
        try:
            explanation = self._explain(task)
        finally:
            if self._backlog is not None and before is not None:
                self._backlog.put_back(task)
                self._remove(self._task(task), completed=False)
        return replace(explanation, before=before, promised=self._promise_text(task))

    def copy(self) -> FlowScheduler:
        """Return an independent copy, for rounds that must not count.

        The copies share the knowledge base, which rounds only read.

        Raises:
            ModelError: the cost model cannot be copied.
        """
        shared: tuple[object, ...] = (self.state.knowledge, *self.history)
        return deepcopy(self, {id(part): part for part in shared})

    def described(self, task: int) -> tuple[JobDescriptor, TaskDescriptor]:
        """Return the descriptions of a known task and of its job."""
        if self._backlog is not None and task in self._backlog:
            return self._backlog.described(task)
        row = self._task(task)
        table = self.state.tasks
        return self.state.jobs.descriptors[int(table.job[row])], table.descriptors[row]

    def waiting(self) -> dict[int, str]:
        """Return the principals of all waiting tasks."""
        table, jobs, names = self.state.tasks, self.state.jobs, self.state.principals.names
        rows = np.flatnonzero(table.alive & (table.status == WAITING))
        owners = [names[number] for number in jobs.principal[table.job[rows]].tolist()]
        outside = {} if self._backlog is None else self._backlog.waiting()
        return dict(zip(table.id[rows].tolist(), owners, strict=True)) | outside

    @property
    def ledger(self) -> PrincipalAccounts | None:
        """The accounts of principals; None if they take no turns."""
        return None if self._fair_queue is None else self._fair_queue.ledger

    @property
    def reservations(self) -> Reservations:
        """The machines that are kept for tasks; callers only read them."""
        return self._rounds.reservations

    @property
    def _round_number(self) -> int:
        return self.history[-1].number if self.history else 0

    def _promise_text(self, task: int) -> str:
        """Return in a sentence what is kept for a task, and when it starts there; "" for nothing."""
        promised = self.promised_start(task)
        if promised is None:
            return ""
        rows = [self.state.machine_row(machine) for machine in promised.machines]
        shown = ", ".join(self.state.resources.names[row] for row in rows[:PROMISED_NAMES])
        more = len(rows) - PROMISED_NAMES
        text = f"kept for it: room on {shown}" + (f" and {more} more" if more > 0 else "")
        seconds = promised.start - self.state.now
        if seconds <= 0:
            return f"{text}; it starts there in the next round"
        return f"{text}; it is expected to start there in {seconds:.3g} s, when tasks there have ended"

    def _explain(self, task: int) -> Explanation:
        row = self._task(task)
        outcome = self._rounds.try_round(self.model, self._guard, self._fresh)
        number = self._round_number
        job = int(self.state.tasks.job[row])
        if not outcome.takes_part(row, job, is_gang=bool(self.state.jobs.gang[job])):
            if task in self._rounds.reservations.present:
                why = "its gang starts when there is room for it on the machines that are kept for it"
            elif self._fair_queue is not None and outcome.admission is not None:
                why = self._fair_queue.why_not(self.state, outcome.admission, row)
            else:
                why = ""
            return explain_left_out(self.state, self._gangs, row, number, self.model.name, why)
        names = VertexNames(self._network.vertices, self.state)
        subject = ExplainedTask(
            self.state,
            self._restrictions,
            outcome,
            self._network.vertices,
            names,
            row,
            number,
            self.model.name,
            lambda place: self._guard.call(lambda: self.model.explain(self.state, row, place)),
            lambda: self._growth(row),
            self.settings.solver,
        )
        return explain_task(subject)

    def problem(self) -> NamedProblem:
        """Return the network of a round as it would be made now, with names, for export and pictures."""
        outcome = self._rounds.try_round(self.model, self._guard, self._fresh)
        names = VertexNames(self._network.vertices, self.state)
        return named_problem(outcome.network, names, self.state.tasks.id[outcome.plan.tasks])

    def _growth(self, row: int) -> float:
        """Return the growth of a task's waiting cost per second."""
        rows, now = np.array([row]), self.state.now
        costs = []
        for at in (now, now + _GROWTH_S):
            self.state.now = at
            try:
                answer = self._guard.call(lambda: self.model.task_to_unscheduled(self.state, rows))
                costs.append(float(answer[0]))
            finally:
                self.state.now = now
        return (costs[1] - costs[0]) / _GROWTH_S

    # Parts ------------------------------------------------------------------------------------------

    def _add(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor]) -> Ints:
        """Add waiting tasks to the tables, and return their rows."""
        row = self.state.jobs.find(job.job)
        if row == ABSENT:
            row = tables.add_job(self.state, job)
        rows = tables.add_tasks(self.state, row, tasks)
        self._restrictions.add_tasks(rows, list(tasks))
        self._fresh.update(rows.tolist())
        self._notify_model("add_tasks", lambda: self.model.add_tasks(self.state, rows))
        return rows

    def _remove(self, row: int, *, completed: bool) -> None:
        """Remove a task from the tables, and its job if it was the last one."""
        self._notify_model("remove_task", lambda: self.model.remove_task(self.state, row))
        table = self.state.tasks
        if table.status[row] == RUNNING:
            tables.stop_one(self.state, row)
        job = int(table.job[row])
        tables.remove_task(self.state, row, completed=completed)
        self._fresh.discard(row)
        self._restrictions.forget_task(row)
        self._network.forget_task(row)
        if self.state.jobs.tasks[job] == 0:
            tables.remove_job(self.state, job)
            self._network.forget_job(job)
            self._gangs.forget(job)

    def _enter(self, task: int) -> None:
        """Move a task from the backlog to the tables."""
        assert self._backlog is not None  # noqa: S101 - for the type checker; the callers have checked
        self._enter_again(self._backlog.enter(task))

    def _enter_again(self, waiting: BackloggedTask) -> None:
        """Add a task to the tables that has waited since it was submitted."""
        rows = self._add(waiting.job, [waiting.described])
        self.state.tasks.submitted[rows] = self.state.tasks.since[rows] = waiting.submitted

    def _running_of(self, job: int) -> int:
        row = self.state.jobs.find(job)
        return 0 if row == ABSENT else int(self.state.jobs.running[row])

    def _is_possible(self, task: TaskDescriptor) -> bool:
        """Return True if some machine, drained or not, could take a task if it were empty."""
        tree = self.state.resources
        machines = tree.at(Level.MACHINE)
        capacity = tree.capacity[machines]
        fits = np.all((np.array(task.demand) <= capacity * (1 + 1e-9)) | (capacity == 0), axis=1)
        for constraint in task.constraints:
            if constraint.hard:
                fits &= self._restrictions.labels.matches(constraint, len(tree.alive))[machines]
        return bool(fits.any())

    def _fill_tables(self) -> Floats:
        """Let tasks of the backlog enter the tables; return the free room of the cluster."""
        state = self.state
        machines = state.resources.at(Level.MACHINE)
        free = room_of(state, machines[state.resources.usable[machines]], left=True)
        if self._backlog is not None:
            entering, leaving = self._backlog.fill(self._shares, free.tolist(), self.starts)
            for task in leaving:
                self._remove(self._task(task), completed=False)
            for waiting in entering:
                self._enter_again(waiting)
        return free

    def _update_backlog(self, outcome: Round, free: Floats) -> None:
        """Record the placements of a round, and take tasks out of the tables that keep others out."""
        if self._backlog is None:
            return
        for delta in outcome.deltas:
            if delta.change is Change.PLACE:
                self._backlog.placed(delta.task)
        if not self._backlog.outside or not outcome.stands:
            return
        table, rows = self.state.tasks, self._rounds.left_over
        rows = rows[(free[0] >= 1) & np.all(table.demand[rows] <= free[1:], axis=1) & (table.ran[rows] == 0)]
        for task in self._backlog.failed(table.id[rows].tolist()):
            self._remove(self._task(task), completed=False)

    def _shares(self) -> dict[str, float]:
        """Return the dominant shares and commitments by principal."""
        assert self._fair_queue is not None  # noqa: S101 - for the type checker; there is a backlog
        accounts = self._fair_queue.ledger
        accounts.sync(self.state)
        sums = accounts.shares() + accounts.commitments().max(axis=1, initial=0.0)
        return dict(zip(self.state.principals.names, sums.tolist(), strict=False))

    def _notify_model(self, method: str, call: Callable[[], None]) -> None:
        """Notify the model of an event; its errors are reported with the next round.

        Most models do not listen to most events, and asking behind the guard costs more than the event.
        """
        if getattr(type(self.model), method, None) is getattr(BaseModel, method):
            return
        try:
            self._guard.call(call)
        except ModelError as error:
            if len(self._faults) < SCHED_FAULTS_MAX:
                self._faults.append(Fault(f"model {self.model.name}", f"{method}: {error}"))

    def _machine(self, machine: int) -> int:
        row = self.state.machine_row(machine)
        if row == ABSENT:
            raise BadDescriptorError(f"there is no machine {machine}")
        return row

    def _task(self, task: int) -> int:
        row = self.state.tasks.find(task)
        if row == ABSENT:
            raise BadDescriptorError(f"there is no task {task}")
        return row

    def _check(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor]) -> None:
        state = self.state
        seen: set[int] = set()
        for descriptor in tasks:
            known = descriptor.task in state.tasks or (
                self._backlog is not None and descriptor.task in self._backlog
            )
            if known or descriptor.task in seen:
                raise BadDescriptorError(f"task {descriptor.task} exists already")
            seen.add(descriptor.task)
            if descriptor.pinned is not None and state.machine_row(descriptor.pinned) == ABSENT:
                raise BadDescriptorError(
                    f"task {descriptor.task}: pinned to machine {descriptor.pinned}, which does not exist"
                )
        described = self.job(job.job)
        if described not in {None, job}:
            raise BadDescriptorError(f"job {job.job} is known with another description")
        if described is None and job.gang > len(tasks):
            raise BadDescriptorError(f"job {job.job}: a gang of {job.gang}, but only {len(tasks)} tasks")
        slots = int(state.resources.slots[state.cluster])
        if state.machine_ids and job.gang > slots:
            raise BadDescriptorError(
                f"job {job.job}: a gang of {job.gang}, but the cluster has {slots} slots"
            )
