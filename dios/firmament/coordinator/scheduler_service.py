"""The flow scheduler of a coordinator, with all that goes into it and comes out of it.

The coordinator imports this module late: it loads NumPy and Numba.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from dios.errors import DiosError, InvalidError
from dios.firmament.cluster.columns import ABSENT
from dios.firmament.coordinator.admissions import Admissions
from dios.firmament.coordinator.assignment import Assignment, StartOptions
from dios.firmament.coordinator.cluster_service import ClusterService, NodeActions
from dios.firmament.coordinator.cluster_state import TrackedCluster
from dios.firmament.coordinator.job_traffic import JobTraffic
from dios.firmament.coordinator.kept_rooms import KeptRooms
from dios.firmament.coordinator.live_settings import LiveSettings
from dios.firmament.coordinator.observer import MeasurementReport
from dios.firmament.coordinator.outside_load import NodeTotals, OutsideLoad
from dios.firmament.coordinator.query_handler import QueryHandler, policy_terms
from dios.firmament.coordinator.rate_control import RateControl
from dios.firmament.coordinator.warm_up import exercise_kernels
from dios.firmament.custom_model.remote_model import RemoteModel
from dios.firmament.descriptors import Resources
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models import catalogue
from dios.firmament.models.green_power import PowerTable
from dios.firmament.policies.packing import AdmittedJobs
from dios.firmament.policies.principal_accounts import FairnessRule, PrincipalAccounts
from dios.firmament.policies.stored_shares import StoredPolicy, decode, encode
from dios.firmament.rounds.results import Change, Delta, Round
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.kernels import loading_only
from dios.limits import BACKLOG_KIND_TASKS, BACKLOG_SPARE_TASKS, GUARANTEES_MAX, HELD_PARTS_MAX
from dios.wire.messages import Asked, Guarantee, HeldPart, Metered, QueueRows, Rate
from dios.wire.types import Traffic

_DEFAULT_MODEL = "spread"
STARTS_MAX: Final = 16
"""The tasks that may be starting on a node at a time: more would only take the processors from each other."""
_SPARE_MAX: Final = BACKLOG_SPARE_TASKS - BACKLOG_KIND_TASKS
"""The most tasks by which a round is smaller because decided placements wait. Some always take part."""
_DECIDE_S: Final = 0.5
"""The longest time between two rounds of the flow scheduler while decided placements wait for their turn."""
_ROOM_TIMEOUT_S = 5.0
"""A placement waits no longer than this for tasks that have to go; then its node says whether it fits."""


class _PendingPlacement(NamedTuple):
    """A placement that is decided and not sent."""

    task: int
    target: str
    until: float


class NodeBandwidth(NamedTuple):
    """The limits and the guarantees of one node's traffic."""

    rates: tuple[Rate, ...] = ()
    guarantees: tuple[Guarantee, ...] = ()
    parts: tuple[HeldPart, ...] = ()
    """The parts of the node to which members of jobs are held."""


class SchedulerService(ClusterService):
    """The flow scheduler of one coordinator, its shares, rates and jobs over time."""

    def __init__(self, options: StartOptions, node: str, knowledge: KnowledgeBase, wall: float) -> None:
        problem = ""
        try:
            model = catalogue.make(options.model)
        except DiosError as error:
            problem = f"{error}; the model {_DEFAULT_MODEL!r} is used instead"
            model = catalogue.make(_DEFAULT_MODEL)
        self._accounts = PrincipalAccounts(FairnessRule(options.fairness), options.memory_s, wall=wall)
        self._scheduler = FlowScheduler(
            model, SchedulerSettings(), knowledge=knowledge, ledger=self._accounts
        )
        super().__init__(TrackedCluster(self._scheduler), node, knowledge)
        if problem:
            self.note(problem)
        self._policy = LiveSettings(self._scheduler, model.name, wall)
        self._rates = RateControl()
        self._traffic = JobTraffic(knowledge, wall)
        self._kept_rooms = KeptRooms(self.cluster, self._scheduler)
        self._outside = OutsideLoad()
        self._reported: dict[str, MeasurementReport] = {}
        """The measurements of nodes whose queues were not read since."""
        self._jobs = AdmittedJobs(self._scheduler, wall=wall)
        set_up = str(options.set_up)
        self._admissions = Admissions(
            self.cluster, self._scheduler.state, self._jobs, self._accounts, self._rates, set_up
        )
        self._queries = QueryHandler(
            self.cluster, self._scheduler, node, set_up, self._accounts, self._admissions, self._policy
        )
        self._leaving: dict[int, str] = {}
        """The tasks that have to stop, and the nodes where they run."""
        self._leave_by: dict[str, float] = {}
        """The time until which tasks of a node may save their state before they stop."""
        self._pending: list[_PendingPlacement] = []
        """Placements that wait until there is room."""
        self._decided = -math.inf
        """The time of the last round of the flow scheduler."""
        self._was_used = False
        """True if any principal held anything when the shares were stored last."""

    def take_over(self, before: ClusterService, assignment: Assignment, now: float) -> None:
        """Continue where another service of this coordinator ends; it must not be used afterwards."""
        self._assignment, self._now = assignment, now
        for problem in before.problems:
            self.note(problem)
        self.noted = before.noted
        self.cluster.adopt(before.cluster, now)

    @property
    def has_waiting_tasks(self) -> bool:
        return bool(self._pending) or super().has_waiting_tasks

    def may_start(self, now: float) -> bool:
        """Return True if a further round could start tasks at once, and more than a few if nodes are busy."""
        return self.has_waiting_tasks and 4 * self._starts(now) > STARTS_MAX * len(self.cluster.nodes)

    @property
    def has_admitted_jobs(self) -> bool:
        return bool(self._jobs.jobs)

    def change_assignment(self, before: Assignment, after: Assignment, now: float) -> None:
        super().change_assignment(before, after, now)
        if not after.attend:
            self._policy.suspend(now)
        for name in before.governs - after.governs:
            self._rates.forget(name)
            self._traffic.forget(name)

    def read(self, name: str, queue: QueueRows, now: float) -> None:
        if name in self._assignment.governs:
            self._traffic.seen(queue, now)
        super().read(name, queue, now)
        report, known = self._reported.pop(name, None), self.cluster.nodes.get(name)
        if report is not None and report.load is not None and known is not None:
            totals = NodeTotals(known.cpus, known.memory_bytes, len(self.cluster.tasks_on(name)))
            self._outside.record(name, report.boot, report.load, totals, now)

    def merge_report(self, name: str, report: MeasurementReport | None) -> None:
        """Add the measurements of a node's coordinator; the scheduler learns what its tasks use."""
        super().merge_report(name, report)
        if report is None or report.node != name or report.load is None:
            return
        self._reported[name] = report
        for used in report.load.tasks:
            if self._scheduler.is_running(used.task):
                usage = Resources(used.cpus_milli / 1000, float(used.memory_bytes), float(used.disk_io))
                self._scheduler.measured(used.task, usage)
        if report.load.milliwatts:
            self._observe_power(name, report.load.milliwatts - report.load.least_milliwatts)

    def _observe_power(self, name: str, milliwatts_above: int) -> None:
        power, state = getattr(self._scheduler.model, "power", None), self._scheduler.state
        queue = self.cluster.nodes.get(name)
        machine = ABSENT if queue is None else state.machine_row(queue.node)
        if machine != ABSENT and isinstance(power, PowerTable):
            power.observe_above(state, machine, milliwatts_above / 1000)

    def round(self, now: float) -> list[NodeActions]:
        """Run one round of the scheduler; return what each node has to do.

        The flow scheduler decides about more tasks than may start at once. While their placements keep all
        nodes busy, a round only sends the next of them.
        """
        self._now = now
        self.cluster.expire_placements(now)
        self.cluster.offer_best_effort(now)
        actions: dict[str, NodeActions] = {}
        self._send_pending(actions, now)
        if self._pending and not self._is_decision_due(now):
            return list(actions.values())
        self._decided = now
        changed, late = self._admissions.update(now)
        self.links_changed |= changed
        for member in late:
            self._stop(member.task, member.node, actions, now)
        self._outside.keep(self.cluster.nodes)
        self._scheduler.set_outside(
            {queue.node: self._outside.processors(name, now) for name, queue in self.cluster.nodes.items()}
        )
        self.cluster.set_inside(bool(getattr(self._scheduler.model, "inside", False)), now)
        self._scheduler.starts = max(-_SPARE_MAX, self._starts(now) - len(self._pending))
        self._kept_rooms.apply(self.noted, now)
        outcome = self._scheduler.round(now)
        for fault in outcome.faults:
            self.note(f"{fault.source}: {fault.reason}")
        self._replace_failed_model(outcome, now)
        # Tasks that leave come first: a node accepts no task before there is room.
        for delta in sorted(outcome.deltas, key=lambda delta: delta.change is Change.PLACE):
            self._apply(delta, actions, now)
        tasks = self.cluster.tasks
        self._pending = [pending for pending in self._pending if pending.task in tasks]
        self._pending.sort(key=lambda pending: -tasks[pending.task].row.work.priority)
        self._send_pending(actions, now)
        for host, promised in self._kept_rooms.changes(self.noted, now).items():
            actions[host] = actions.get(host, NodeActions(host, [], [], {}))._replace(promised=promised)
        return list(actions.values())

    def _is_decision_due(self, now: float) -> bool:
        """Return True if a node could start more than a few further tasks, or the last round is long ago."""
        if self.has_admitted_jobs or now - self._decided >= _DECIDE_S:
            return True
        return any(4 * self.cluster.starting(name, now) < 3 * STARTS_MAX for name in self.cluster.nodes)

    def _apply(self, delta: Delta, actions: dict[str, NodeActions], now: float) -> None:
        names = {queue.node: name for name, queue in self.cluster.nodes.items()}
        if delta.change is Change.PLACE:
            target = names.get(delta.target, "")
            if self.cluster.mark_sent(delta.task, target, now) is not None:
                room_at = max(now, self._leave_by.get(target, now))
                self._pending.append(_PendingPlacement(delta.task, target, room_at + _ROOM_TIMEOUT_S))
            return
        host = names.get(delta.source)
        if host is None or delta.task not in self.cluster.tasks:
            return
        # A task that moves is stopped, too.
        self._stop(delta.task, host, actions, now)

    def _stop(self, task: int, host: str, actions: dict[str, NodeActions], now: float) -> None:
        self.cluster.mark_leaving(task, host, now)
        actions.setdefault(host, NodeActions(host, [], [], {})).preempted.append(task)
        self._leaving[task] = host
        until = now + self.cluster.tasks[task].row.work.grace_ms / 1000
        self._leave_by[host] = max(until, self._leave_by.get(host, 0.0))

    def _send_pending(self, actions: dict[str, NodeActions], now: float) -> None:
        """Send the placements on nodes that have no leaving task, and on which few tasks are starting."""
        tasks = self.cluster.tasks
        self._leaving = {task: host for task, host in self._leaving.items() if task in tasks}
        leaving, pending = set(self._leaving.values()), self._pending
        room = {name: STARTS_MAX - self.cluster.starting(name, now) for name in self.cluster.nodes}
        self._pending = []
        for placement in pending:
            tracked = tasks.get(placement.task)
            if tracked is None:
                continue
            target = placement.target
            if (target in leaving and now < placement.until) or room.setdefault(target, STARTS_MAX) <= 0:
                self._pending.append(placement)
                continue
            room[target] -= 1
            self.cluster.mark_starting(placement.task, target, now)
            action = actions.setdefault(tracked.host, NodeActions(tracked.host, [], [], {}))
            action.placements.append((placement.task, target))
            threads = self.cluster.choose_threads(
                placement.task, target, self._scheduler.thread_of(placement.task)
            )
            if threads:
                action.threads[placement.task] = threads

    def _starts(self, now: float) -> int:
        """Return the number of tasks that may start now on all nodes."""
        return sum(
            STARTS_MAX - min(STARTS_MAX, self.cluster.starting(name, now)) for name in self.cluster.nodes
        )

    def quotas(self) -> Mapping[str, Sequence[float]]:
        """Return the quotas of all principals that have any."""
        return self._accounts.quotas_of(self._scheduler.state)

    # Shares -------------------------------------------------------------------------------------------

    def has_unstored_changes(self) -> bool:
        """Return True if a weight, a quota, the policy or an admitted job changed and is not stored yet."""
        return self._accounts.changed or self._jobs.changed or self._policy.changed

    def storing_failed(self, reason: str, now: float) -> bytes:
        """Return the answer to a question whose changes could not be stored.

        An admitted job is released again. Everything else holds, and storing it is tried again.
        """
        error = f"the change is in force, but it could not be stored and may be lost: {reason}"
        if self._admissions.drop_unstored(now):
            error = f"cannot admit the job: its record could not be stored ({reason}). Submit it again."
        return json.dumps({"ok": False, "error": error}).encode()

    def shares_to_store(self, now: float) -> bytes | None:
        """Return the shares for other coordinators; None if they only faded since they were stored last."""
        state = self._scheduler.state
        state.now = now
        used = bool(state.held.any())
        if not (self.has_unstored_changes() or self._was_used or used):
            return None
        self._was_used = used
        accounts = self._accounts.to_stored(state)
        return encode(replace(accounts, jobs=self._jobs.to_stored(), policy=self._policy.stored))

    def mark_stored(self) -> None:
        """Record that weights, quotas, admitted jobs and the policy are stored."""
        self._accounts.changed = self._policy.changed = False
        self._admissions.mark_stored()

    def learn(self, shares: bytes, now: float, *, commitments: bool) -> None:
        state = self._scheduler.state
        state.now = now
        try:
            stored = decode(shares)
            self._accounts.take_over(state, stored, commitments=commitments)
            if commitments:
                self._jobs.take_over(stored.jobs, now)
            self._policy.take_over(stored.policy, now)
        except InvalidError as error:
            self.note(str(error))

    def record_traffic(self, host: str, metered: Metered, now: float) -> None:
        """Record what a node has sent and received."""
        self._rates.record(host, metered, now)
        self._traffic.metered(host, metered.meters, now)

    def bandwidth(self, now: float, span_s: float) -> dict[str, NodeBandwidth]:
        """Return rates, guarantees and parts of tasks by node for the next control interval.

        Guarantees cover ``span_s`` seconds, after which nodes receive new ones.
        """
        self.links_changed = False
        used: dict[str, dict[Traffic, float]] = {}
        guarantees: dict[str, list[Guarantee]] = {}
        for edge in self._admissions.guarantees(now, span_s):
            guarantees.setdefault(edge.source, []).append(edge.guarantee)
            for node, traffic in ((edge.source, Traffic.OUT), (edge.target, Traffic.IN)):
                sums = used.setdefault(node, {})
                sums[traffic] = sums.get(traffic, 0.0) + edge.bytes_s
        rates = self._rates.rates(self._accounts.weights(self._scheduler.state), used)
        self._queries.rates, self._queries.rates_by = rates, self._rates.solver.report
        parts = self._admissions.parts(now)
        return {
            node: NodeBandwidth(
                rates.get(node, ()),
                tuple(guarantees.get(node, ())[:GUARANTEES_MAX]),
                tuple(parts.get(node, ())[:HELD_PARTS_MAX]),
            )
            for node in rates.keys() | guarantees.keys() | parts.keys()
        }

    # An operator's own model ----------------------------------------------------------------------------

    @property
    def model_time_limit_s(self) -> float:
        """The time within which a model has to answer, in seconds."""
        return self._scheduler.settings.model_time_limit_s

    @property
    def model_to_open(self) -> StoredPolicy | None:
        """The choice of an own model that has to be opened and offered; None if there is none."""
        return self._policy.to_open

    @staticmethod
    def model_in(asked: Asked) -> StoredPolicy | None:
        """Return the own model that a question wants to set; None for any other question, also a bad one."""
        if b'"source"' not in asked.question:
            return None
        try:
            terms = policy_terms(asked, json.loads(asked.question))
        except (DiosError, ValueError):
            return None
        return StoredPolicy(terms.model, tuple(terms.parameters.items()), (), 0.0, terms.source)

    def offer_model(self, model: RemoteModel) -> None:
        """Take an open model for the question, or the choice, that wants it."""
        self._policy.offer(model)

    def discard_offer(self) -> None:
        """End a model that was offered and is not used."""
        self._policy.discard_offer()

    def use_offered(self, chosen: StoredPolicy, now: float) -> None:
        """Use the offered model if it is still the chosen one."""
        self._policy.use_offered(chosen, now)

    def retry_model(self, now: float) -> None:
        """Let ``model_to_open`` name a model that has failed, if its pause is over."""
        self._policy.retry(now)

    def fall_back(self, chosen: StoredPolicy, reason: str, now: float) -> None:
        """Use another model because the chosen one cannot be opened, if it is still the chosen one."""
        if self._policy.to_open == chosen:
            self.note(self._policy.fall_back(reason, now))

    def _replace_failed_model(self, outcome: Round, now: float) -> None:
        model = self._scheduler.model
        failed = [fault.reason for fault in outcome.faults if fault.source == f"model {model.name}"]
        if failed and isinstance(model, RemoteModel):
            self.note(self._policy.fall_back(failed[0], now))

    # Questions ----------------------------------------------------------------------------------------

    def must_wait(self, asked: Asked) -> bool:
        """Return True if a question about a job came before all nodes have reported their capacities."""
        return (
            b'"pack"' in asked.question and not self.cluster.nodes.keys() <= self._rates.capacities().keys()
        )

    def answer(self, asked: Asked) -> bytes:
        queries = self._queries
        queries.assignment, queries.unmeasured, queries.now = self._assignment, self.unmeasured, self._now
        queries.problems = list(self.problems)
        return queries.answer(asked)


def open_service(
    options: StartOptions, node: str, knowledge: KnowledgeBase, wall: float, *, may_compile: bool
) -> SchedulerService:
    """Return a service whose kernels are loaded, so that the first round does not wait for them.

    Loading takes seconds. Kernels that are not compiled yet are compiled here if ``may_compile``, which takes
    minutes.

    Raises:
        NotCompiledError: a kernel would have to be compiled.
    """
    with contextlib.nullcontext() if may_compile else loading_only():
        exercise_kernels(_DEFAULT_MODEL)
    return SchedulerService(options, node, knowledge, wall)
