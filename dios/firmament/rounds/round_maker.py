"""One round: selects tasks by policies, asks the cost model, solves the network, and compares places.

Events are handled in ``scheduler``; explanations are made in ``explain``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dios.firmament.cluster import changes as tables
from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.models.protocol import CostModel
from dios.firmament.network.flow_network import FlowNetwork, RoundNetwork, RoundPlan
from dios.firmament.network.flow_trace import trace
from dios.firmament.network.model_answers import ModelAnswers, ModelQuestions, ask_model, children_of
from dios.firmament.network.upper_arcs import JobBounds
from dios.firmament.policies.evict import make_room, make_room_reserved, spare
from dios.firmament.policies.fair_queue import Admission, TaskFairQueue
from dios.firmament.policies.fairness import fair_shares
from dios.firmament.policies.fit import hold_back, place_reserved
from dios.firmament.policies.gangs import GangChoice, GangTable, needed
from dios.firmament.policies.reservations import Reservation
from dios.firmament.policies.restrictions import Restrictions
from dios.firmament.rounds.model_guard import ModelError, ModelGuard
from dios.firmament.rounds.results import Change, Delta, Fault, Round
from dios.firmament.rounds.solver_chain import NoSolverError, SolverChain, SolverResult
from dios.firmament.settings import Fairness, SchedulerSettings
from dios.wire.types import Affinity

_NO_JOBS, _ALL_BUT_GANGS, _ALL_JOBS = 0, 1, 2
"""The jobs that may miss E_j: none, all except gangs (which run whole or not at all), or all."""


@dataclass(frozen=True, eq=False)
class TrialRound:
    """The result of a trial round, for explanations and export."""

    plan: RoundPlan
    network: RoundNetwork
    solved: SolverResult
    leaf: Ints
    """(n,): the leaf to which the solution moves each of the plan's tasks."""
    held: Flags
    """(n,): True for arrivals that were held back after the solution."""
    admission: Admission | None
    """The tasks that were admitted by turns, if principals take turns."""

    def takes_part(self, task: int, job: int, *, is_gang: bool) -> bool:
        """Return True if a task could get a place; a gang that was left out may have a reservation alone."""
        at = int(np.searchsorted(self.plan.tasks, task))
        if at == len(self.plan.tasks) or self.plan.tasks[at] != task:
            return False
        return not is_gang or bool(self.plan.bounds.most[job] > 0 or self.leaf[at] != ABSENT)


class RoundMaker:
    """Makes the rounds of one cluster."""

    def __init__(
        self,
        state: ClusterState,
        settings: SchedulerSettings,
        network: FlowNetwork,
        restrictions: Restrictions,
        gangs: GangTable,
        fair_queue: TaskFairQueue | None,
    ) -> None:
        self._state = state
        self.settings = settings
        self._network = network
        self._restrictions = restrictions
        self._gangs = gangs
        self._fair_queue = fair_queue
        self._chain = SolverChain(settings.solver, settings.certify_every)
        self._short_of_room = False
        """True if E_j of some job was missed in the last round, so that the next one need not ask for it."""
        self.reservations: Final = restrictions.reservations
        self.left_over: Ints = np.zeros(0, np.int64)
        """Rows of the tasks that took part in the last round and found no place."""

    def set_settings(self, settings: SchedulerSettings) -> None:
        """Use other settings from the next round on."""
        self.settings = settings
        self._chain = SolverChain(settings.solver, settings.certify_every)

    def try_round(self, model: CostModel, guard: ModelGuard, fresh: set[int]) -> TrialRound:
        """Return the result of a trial round; the schedule stays. ModelError and NoSolverError pass."""
        choice, admission = self._admit(record=False)
        plan = self._plan(choice, admission)
        questions, answers = self._ask(model, guard, plan, fresh)
        tried = Round(0, self._state.now, model.name, "")
        plan, network, solved = self._solve(choice, admission, plan, questions, answers, tried, record=False)
        leaf, held = self._places(plan, network, solved, record=False)
        return TrialRound(plan, network, solved, leaf, held, admission)

    def run(self, model: CostModel, guard: ModelGuard, fresh: set[int], outcome: Round) -> None:
        """Solve a round and fill ``outcome``; the state changes only if the round succeeds."""
        began = time.perf_counter()
        choice, admission = self._admit(record=True)
        self.left_over = self.left_over[:0]
        plan = self._plan(choice, admission)
        try:
            questions, answers = self._ask(model, guard, plan, fresh)
        except ModelError as error:
            outcome.faults.append(Fault(f"model {model.name}", str(error)))
            outcome.stands = False
            self._count(outcome)
            return
        fresh.clear()
        try:
            plan, network, solved = self._solve(choice, admission, plan, questions, answers, outcome)
        except NoSolverError as error:
            outcome.faults.append(Fault("solvers", str(error)))
            outcome.stands = False
            self._count(outcome)
            return
        outcome.algorithm, outcome.certified, outcome.cost = solved.algorithm, solved.certified, solved.cost
        outcome.vertices = network.vertices + len(plan.tasks)
        outcome.arcs = self._network.pool_entries() + len(network.upper.tail)
        outcome.changes = self._network.warm.changes if self._network.warm is not None else outcome.arcs
        outcome.update_s = time.perf_counter() - began - outcome.solve_s
        self._apply(plan, network, solved, outcome, admission)
        if self._fair_queue is not None:
            # From now on commitments grow by the tasks that run now.
            self._fair_queue.ledger.sync(self._state)
        self._count(outcome)

    # Before -----------------------------------------------------------------------------------------

    def _admit(self, *, record: bool) -> tuple[GangChoice, Admission | None]:
        """Select the gangs that take part, and the waiting tasks if principals take turns."""
        state = self._state
        if record:
            self.reservations.refresh(state, self._machines_of)
        choice = self._gangs.choose(state, state.now)
        # A gang whose machines are free starts there, whatever the network can do for it.
        due = np.isin(choice.tried, self._jobs_of(self.reservations.due(state)))
        left_out = np.concatenate([choice.left_out, choice.tried[due]])
        choice = GangChoice(choice.complete, choice.tried[~due], left_out)
        if self._fair_queue is None:
            return choice, None
        admission = self._fair_queue.choose(state, record=record, reserved=self.reservations.present)
        if record:
            self.reservations.drop_others(set(state.tasks.id[admission.tasks].tolist()))
        if record and self.settings.fit:
            heads = self._fair_queue.heads(state, admission, self.left_over)
            self.reservations.add(state, heads, self._machines_of)
        its_turn = np.isin(choice.tried, state.tasks.job[admission.tasks])
        left_out = np.concatenate([choice.left_out, choice.tried[~its_turn]])
        return GangChoice(choice.complete, choice.tried[its_turn], left_out), admission

    def _jobs_of(self, reservations: Iterable[Reservation]) -> Ints:
        tasks = self._state.tasks
        return np.array(
            [tasks.job[tasks.find(reservation.tasks[0])] for reservation in reservations], np.int64
        )

    def _machines_of(self, row: int) -> Flags:
        return self._restrictions.machines_of(self._state, row)

    def _plan(self, choice: GangChoice, admission: Admission | None) -> RoundPlan:
        state = self._state
        table = state.tasks
        out = np.zeros(len(state.jobs.alive), np.bool_)
        out[choice.left_out] = True
        if self.reservations.present:
            # The network has no place for a gang that is left out, and its reservation may have.
            out[self._jobs_of(self.reservations.waiting(state))] = False
        tasks = table.all()
        running = table.status[tasks] == RUNNING
        its_turn = ~out[table.job[tasks]]
        if admission is not None:
            its_turn &= np.isin(tasks, admission.tasks, assume_unique=True)
        tasks = tasks[running | its_turn]
        filter_of, filters = self._restrictions.choose(state, tasks, state.now)
        if len(self._restrictions.crowded_out):
            keep = ~np.isin(tasks, self._restrictions.crowded_out)
            tasks, filter_of = tasks[keep], filter_of[keep]
        running = table.status[tasks] == RUNNING
        fixed = running & ~(table.restartable[tasks] & self.settings.preemption)
        weak = np.flatnonzero(running & ~fixed)
        if self._fair_queue is not None and len(weak):
            fixed[weak] = self._fair_queue.protected(state, tasks[weak])
        together = np.isin(state.jobs.affinity[table.job[tasks]], (Affinity.SAME_NODE, Affinity.SAME_RACK))
        rooted = running & together
        return RoundPlan(tasks, fixed, rooted, filter_of, filters, self._bounds(choice, tasks, fixed))

    def _bounds(self, choice: GangChoice, tasks: Ints, fixed: Flags) -> JobBounds:
        state = self._state
        jobs, size = state.jobs, len(state.jobs.alive)
        there = np.bincount(state.tasks.job[tasks], minlength=size)
        stuck = np.bincount(state.tasks.job[tasks[fixed]], minlength=size)
        most = np.minimum(jobs.maximum, there)
        least = np.where(jobs.alive, jobs.minimum, 0)
        if self.settings.fairness != Fairness.NONE:
            most = np.minimum(most, fair_shares(state, tasks, most))
            if self.settings.fairness == Fairness.STRICT:
                least = np.where(jobs.alive, most, 0)
        for rows in (choice.complete, choice.tried):
            most[rows] = np.maximum(most[rows], np.minimum(needed(state, rows), there[rows]))
            least[rows] = np.maximum(least[rows], needed(state, rows))
        least[choice.left_out] = most[choice.left_out] = 0
        most = np.where(jobs.alive, np.maximum(most, stuck), 0)
        least = np.minimum(least, most)
        return JobBounds(least, most, there, np.zeros(size, np.int64))

    def _questions(self, plan: RoundPlan, fresh: set[int]) -> ModelQuestions:
        state = self._state
        children, depth = children_of(state)
        running = state.tasks.status[plan.tasks] == RUNNING
        return ModelQuestions(
            np.array(sorted(fresh), np.int64),
            plan.tasks[~running],
            plan.tasks[running],
            state.jobs.all(),
            children,
            depth,
            state.resources.leaves(),
            self._network.classes,
        )

    def _ask(
        self, model: CostModel, guard: ModelGuard, plan: RoundPlan, fresh: set[int]
    ) -> tuple[ModelQuestions, ModelAnswers]:
        """Ask the model everything that a round needs; :class:`ModelError` passes through."""
        takes_part = self._state.tasks.takes_part
        takes_part[:] = False
        takes_part[plan.tasks] = True
        questions = self._questions(plan, fresh)
        try:
            return questions, guard.call(lambda: ask_model(model, self._state, questions))
        except ModelError:
            # Before it failed, the model may have reported its stale tasks, and forgotten them.
            fresh.update(self._state.tasks.all().tolist())
            raise

    # Solving ----------------------------------------------------------------------------------------

    def _solve(
        self,
        choice: GangChoice,
        admission: Admission | None,
        plan: RoundPlan,
        questions: ModelQuestions,
        answers: ModelAnswers,
        outcome: Round,
        *,
        record: bool = True,
    ) -> tuple[RoundPlan, RoundNetwork, SolverResult]:
        """Solve; while that is infeasible, leave out gangs, then let jobs miss E_j, at last gangs too."""
        reason = ""
        for gangs, missing in self._attempts(choice):
            tried = plan
            if gangs < len(choice.tried):
                left = np.concatenate([choice.left_out, choice.tried[gangs:]])
                tried = self._plan(GangChoice(choice.complete, choice.tried[:gangs], left), admission)
            tried = replace(tried, bounds=tried.bounds.allowing(self._may_miss(missing)))
            network = self._network.build(
                questions, _answers_about(answers, questions, tried), tried, warm=True
            )
            solved = self._chain.solve(network, self._network, outcome.faults)
            outcome.solve_s += solved.seconds
            if not solved.optimal:
                reason = solved.reason
                continue
            # If E_j is relaxed for the first time, that and not the gang may have been without room.
            if record and (missing == _NO_JOBS or self._short_of_room):
                for job in choice.tried[gangs:].tolist():
                    self._gangs.failed(job, self._state.now)
            return tried, network, solved
        raise NoSolverError(reason)

    def _attempts(self, choice: GangChoice) -> list[tuple[int, int]]:
        """Return the attempts in order: the number of gangs that are admitted, and who may miss E_j."""
        first = _ALL_BUT_GANGS if self._short_of_room else _NO_JOBS
        counts = sorted({len(choice.tried), min(1, len(choice.tried)), 0}, reverse=True)
        return [*((count, first) for count in counts), (0, _ALL_BUT_GANGS), (0, _ALL_JOBS)]

    def _may_miss(self, missing: int) -> Flags:
        gang = self._state.jobs.gang > 0
        return np.full(len(gang), missing != _NO_JOBS) & ((missing == _ALL_JOBS) | ~gang)

    # After ------------------------------------------------------------------------------------------

    def _apply(
        self,
        plan: RoundPlan,
        network: RoundNetwork,
        solved: SolverResult,
        outcome: Round,
        admission: Admission | None,
    ) -> None:
        leaf, held = self._places(plan, network, solved, record=True)
        self._restrictions.misfits(plan.tasks[held])
        self._change(plan.tasks, leaf, held, outcome)
        if self._fair_queue is not None:
            placed = [delta.task for delta in outcome.deltas if delta.change is Change.PLACE]
            rows = np.array([self._state.tasks.row(task) for task in placed], np.int64)
            self._fair_queue.note_placed(self._state, rows)
        self.left_over = plan.tasks[self._state.tasks.status[plan.tasks] != RUNNING]
        if admission is not None:
            # A gang that was left out of the network has found no place either.
            table = self._state.tasks
            gangs = admission.tasks[self._state.jobs.gang[table.job[admission.tasks]] > 0]
            self.left_over = np.union1d(self.left_over, gangs[table.status[gangs] != RUNNING])
        shortfalls = _shortfalls(self._state, plan.bounds.may_miss)
        self._short_of_room = bool(shortfalls)
        outcome.faults.extend(shortfalls)

    def _places(
        self, plan: RoundPlan, network: RoundNetwork, solved: SolverResult, *, record: bool
    ) -> tuple[Ints, Flags]:
        """Return the leaf of each task, and the arrivals that are held back."""
        state, tasks = self._state, plan.tasks
        leaf = trace(
            state.resources,
            self._network.vertices,
            network.upper,
            solved.flow,
            solved.target,
            state.tasks.leaf[tasks],
        )
        held = hold_back(state, tasks, leaf, self.reservations, check_fit=self.settings.fit)
        if held.any():
            if self.settings.fit and self.settings.preemption:
                make_room(state, tasks, leaf, held, plan.fixed, self.reservations)
            spare(state, tasks, leaf, held, plan.bounds.most)
        for reservation in self.reservations.due(state):
            place_reserved(state, tasks, leaf, held, reservation)
        if self.settings.fit and self.settings.preemption:
            for reservation in self.reservations.later(state):
                make_room_reserved(state, tasks, leaf, held, plan.fixed, reservation)
        short = self._short_gangs(plan, leaf, held, record=record)
        held |= short & (leaf != ABSENT) & (state.tasks.leaf[tasks] == ABSENT)
        stopped = short & ~plan.fixed & (state.tasks.leaf[tasks] != ABSENT)
        held &= ~stopped
        leaf[stopped] = ABSENT
        return leaf, held

    def _short_gangs(self, plan: RoundPlan, leaf: Ints, held: Flags, *, record: bool) -> Flags:
        """Return the tasks of gangs that are too small without the held-back tasks; none may run."""
        state, tasks = self._state, plan.tasks
        gangs = np.flatnonzero(state.jobs.alive & (state.jobs.gang > 0))
        if not len(gangs):
            return np.zeros(len(tasks), np.bool_)
        job = state.tasks.job[tasks]
        runs = np.where(held, state.tasks.leaf[tasks], leaf) != ABSENT
        running = np.bincount(job[runs], minlength=len(state.jobs.alive))
        short = np.zeros(len(state.jobs.alive), np.bool_)
        short[gangs] = running[gangs] < needed(state, gangs)
        # Gangs that were left out have been counted already.
        let_in = gangs[short[gangs] & (plan.bounds.least[gangs] > 0)]
        if record:
            for row in let_in.tolist():
                self._gangs.failed(row, state.now)
            for row in gangs[~short[gangs]].tolist():
                self._gangs.forget(row)
        return short[job]

    def _change(self, tasks: Ints, leaf: Ints, held: Flags, outcome: Round) -> None:
        state = self._state
        table, tree = state.tasks, state.resources
        source = table.machine[tasks].copy()
        target = np.where(leaf != ABSENT, tree.machine[leaf], ABSENT)
        changed = (source != target) & ~held
        leaf = tables.assign_leaves(
            state, np.where(changed, target, source), np.where(held, table.leaf[tasks], leaf)
        )
        shifted = ~changed & (source != ABSENT) & (leaf != table.leaf[tasks])
        tables.shift(state, tasks[shifted], leaf[shifted])
        leaves = changed & (source != ABSENT)
        comes = changed & (target != ABSENT)
        tables.stop(state, tasks[leaves])
        tables.start(state, tasks[comes], leaf[comes])
        self._restrictions.placed(tasks[comes])
        kinds = (
            (leaves & ~comes, Change.PREEMPT),
            (leaves & comes, Change.MIGRATE),
            (comes & ~leaves, Change.PLACE),
        )
        for which, kind in kinds:
            at = np.flatnonzero(which)
            outcome.deltas.extend(
                Delta(kind, task, state.machine_ids.get(old, ABSENT), state.machine_ids.get(new, ABSENT))
                for task, old, new in zip(
                    table.id[tasks[at]].tolist(), source[at].tolist(), target[at].tolist(), strict=True
                )
            )

    def _count(self, outcome: Round) -> None:
        table = self._state.tasks
        outcome.running = int(np.count_nonzero(table.alive & (table.status == RUNNING)))
        outcome.waiting = len(table) - outcome.running


def _answers_about(answers: ModelAnswers, questions: ModelQuestions, plan: RoundPlan) -> ModelAnswers:
    """Return the answers about the tasks of a plan; the questions may have been about more tasks."""
    return replace(
        answers,
        unscheduled=answers.unscheduled[np.isin(questions.waiting, plan.tasks)],
        continuation=answers.continuation[np.isin(questions.running, plan.tasks)],
        preemption=answers.preemption[np.isin(questions.running, plan.tasks)],
    )


def _shortfalls(state: ClusterState, least: Ints) -> list[Fault]:
    """Return the jobs of which fewer tasks run than E_j asks for."""
    runs = state.jobs.running
    return [
        Fault(
            f"job {state.jobs.id[row]}",
            f"{runs[row]} of its tasks run, but {least[row]} have to: there is no room for more",
        )
        for row in np.flatnonzero(state.jobs.alive & (runs < least))
    ]
