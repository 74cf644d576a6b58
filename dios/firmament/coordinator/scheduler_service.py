"""What a coordinator needs only while it schedules: the scheduler, its books and its desk.

For: ``coordinator.loop``, which imports this when it is its turn. Not for: talking to nodes.
"""

from __future__ import annotations

import json
from collections import deque
from typing import NamedTuple

from msgspec.structs import replace

from dios.errors import DiosError, InvalidError
from dios.firmament.coordinator.admissions import Admissions
from dios.firmament.coordinator.assignment import Duty
from dios.firmament.coordinator.cluster_state import Books, Phase
from dios.firmament.coordinator.job_traffic import Flows
from dios.firmament.coordinator.observer import Report
from dios.firmament.coordinator.query_handler import Desk
from dios.firmament.coordinator.rate_control import RateControl
from dios.firmament.coordinator.start_options import Orders
from dios.firmament.coordinator.warm_up import rehearse
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models import catalogue
from dios.firmament.policies.ledger import Ledger, Rule, decode, encode
from dios.firmament.policies.packing import Packing
from dios.firmament.rounds.results import Change, Delta
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.limits import GUARANTEES_MAX
from dios.wire.messages import Asked, QueueRows, Guarantee, Metered, Placed, Rate
from dios.wire.types import Traffic

_PROBLEMS_KEPT = 20
_PATIENCE_S = 5.0
"""A placement waits no longer than this for those who have to go; then its node says whether it fits."""


class _Guest(NamedTuple):
    """A placement that is decided and not sent."""

    task: int
    target: str
    until: float


class Links(NamedTuple):
    """What one node is told of who may move how much."""

    rates: tuple[Rate, ...] = ()
    guarantees: tuple[Guarantee, ...] = ()


class Order(NamedTuple):
    """What one node is told after a round."""

    host: str
    placements: list[tuple[int, str]]
    """Submissions that wait there, and the nodes where they go."""
    preempted: list[int]
    """Tasks that run there and have to stop."""


class Office:
    """The scheduler of one coordinator, and what goes in and out of it; one thread at a time."""

    def __init__(self, orders: Orders, node: str, knowledge: KnowledgeBase, wall: float) -> None:
        self._problems: deque[str] = deque(maxlen=_PROBLEMS_KEPT)
        try:
            chosen = catalogue.make(orders.model)
        except DiosError as error:
            self._problems.append(f"{error}; scheduling by 'spread' instead")
            chosen = catalogue.make("spread")
        self._ledger = Ledger(Rule(orders.fairness), orders.memory_s, wall=wall)
        scheduler = FlowScheduler(chosen, SchedulerSettings(), knowledge=knowledge, ledger=self._ledger)
        self._books = Books(scheduler)
        self._rates = RateControl()
        self._flows = Flows(knowledge, wall)
        self._packing = Packing(scheduler, wall=wall)
        set_up = str(orders.set_up)
        self._admissions = Admissions(self._books, self._packing, self._ledger, self._rates, set_up)
        self._desk = Desk(self._books, node, set_up, self._ledger, self._admissions)
        self._knowledge = knowledge
        self._own = node
        self._duty = Duty()
        self._now = 0.0
        self.unmeasured: dict[str, str] = {}
        self._leaving: dict[int, str] = {}
        """Tasks that were told to stop, and where they run."""
        self._outside: list[_Guest] = []
        """Placements that wait until there is room."""
        self.links_changed = False
        """Whether nodes are to be told of guarantees before the control interval is over."""
        self._holding = False
        """Whether anybody held anything when the shares were handed on last."""

    @property
    def waits(self) -> bool:
        """Whether any task waits for its place."""
        return bool(self._outside) or any(
            entry.phase is Phase.WAITING for entry in self._books.tasks.values()
        )

    @property
    def admits(self) -> bool:
        """Whether any job over time is there, which time alone may end."""
        return bool(self._packing.jobs)

    def changed_duty(self, before: Duty, now_duty: Duty, now: float) -> None:
        """Other nodes are this coordinator's from now on."""
        self._duty = now_duty
        for name in before.attend - now_duty.attend:
            self._books.left(name, now)
        for name in before.machines - now_duty.machines:
            self._books.lost(name, now)
        for name in before.governs - now_duty.governs:
            self._rates.forget(name)
            self._flows.forget(name)

    def note(self, problem: str) -> None:
        """Remember what went wrong, for `dios sched status`."""
        if not self._problems or self._problems[-1] != problem:
            self._problems.append(problem)

    def read(self, name: str, board: QueueRows, now: float) -> None:
        """Take in a board."""
        self._now = now
        duty = self._duty
        if name in duty.governs:
            self._flows.seen(board, now)
        least = duty.after_s if name in duty.below else 0.0
        attend = name in duty.attend
        try:
            self._books.read(board, now, attend=attend, machine=name in duty.machines, after_s=least)
        except InvalidError as error:
            # What one node tells must not keep the others from being scheduled.
            self.note(f"{name}: its board makes no sense: {error}")

    def take_report(self, name: str, report: Report | None) -> None:
        """Take in what a node's coordinator has measured."""
        if report is None or report.node != name:
            self.note(f"{name}: a report that makes no sense")
            return
        self._books.types[name] = report.machine_type
        if name == self._own:
            return
        try:
            self._knowledge.merge(report.batch)
        except DiosError as error:
            self.note(f"{name}: {error}")

    def round(self, now: float) -> list[Order]:
        """One round; what has to be told to whom."""
        self._now = now
        self._books.expire(now)
        orders: dict[str, Order] = {}
        news, late = self._admissions.look(now)
        self.links_changed |= news
        for runner in late:
            self._stop(runner.task, runner.node, orders, now)
        scheduler = self._books.scheduler
        found = scheduler.round(now)
        for fault in found.faults:
            self.note(f"{fault.where}: {fault.what}")
        # Who has to go first: a node takes nobody in before there is room.
        for delta in sorted(found.deltas, key=lambda delta: delta.change is Change.PLACE):
            self._order(delta, orders, now)
        self._let_in(orders, now)
        return list(orders.values())

    def _order(self, delta: Delta, orders: dict[str, Order], now: float) -> None:
        names = {board.node: name for name, board in self._books.nodes.items()}
        if delta.change is Change.PLACE:
            target = names.get(delta.target, "")
            if self._books.sent(delta.task, target, now) is not None:
                self._outside.append(_Guest(delta.task, target, now + _PATIENCE_S))
            return
        host = names.get(delta.source)
        if host is None or delta.task not in self._books.tasks:
            return
        # A task that moves is stopped, too.
        self._stop(delta.task, host, orders, now)

    def _stop(self, task: int, host: str, orders: dict[str, Order], now: float) -> None:
        self._books.leaves(task, host, now)
        orders.setdefault(host, Order(host, [], [])).preempted.append(task)
        self._leaving[task] = host

    def _let_in(self, orders: dict[str, Order], now: float) -> None:
        """Send those whose node has no task left that was told to go."""
        tasks = self._books.tasks
        self._leaving = {task: host for task, host in self._leaving.items() if task in tasks}
        full, outside = set(self._leaving.values()), self._outside
        self._outside = []
        for guest in outside:
            entry = tasks.get(guest.task)
            if entry is None:
                continue
            if guest.target in full and now < guest.until:
                self._outside.append(guest)
                continue
            order = orders.setdefault(entry.host, Order(entry.host, [], []))
            order.placements.append((guest.task, guest.target))

    def answered(
        self, host: str, tasks: list[int], preempted: list[int], answer: Placed | None, now: float
    ) -> None:
        """What a node said to an order."""
        for why in self._books.answered(host, tasks, answer, now):
            self.note(f"{host}: {why}")
        for task in preempted:
            if answer is None or task in dict(answer.refused):
                self._books.stayed(task)

    # Shares -------------------------------------------------------------------------------------------

    def terms_changed(self) -> bool:
        """Whether a weight or quota was set, or a job came or went, that nobody else knows of yet."""
        return self._ledger.changed or self._packing.changed

    def not_kept(self, why: str, now: float) -> bytes:
        """What is answered where that could not be stored.

        A job is not admitted then; what was set holds, and storing it is tried again.
        """
        told = f"it holds from now on, but could not be stored, so that it may be forgotten: {why}"
        if self._admissions.unkept(now):
            told = f"the job is not admitted: that it was could not be stored: {why}"
        return json.dumps({"ok": False, "error": told}).encode()

    def shares(self, now: float) -> bytes | None:
        """The shares as they are handed on; None where they only fade since they were handed on last."""
        state = self._books.scheduler.state
        state.now = now
        if not (self.terms_changed() or self._holding or state.held.any()):
            return None
        self._holding = bool(state.held.any())
        return encode(replace(self._ledger.keep(state), jobs=self._packing.keep()))

    def handed_on(self) -> None:
        """What was set, and who was admitted, is stored."""
        self._ledger.changed = False
        self._admissions.kept()

    def learn(self, shares: bytes, now: float, *, commitments: bool) -> None:
        """Take in shares that another coordinator, or this one in an earlier life, has handed on."""
        state = self._books.scheduler.state
        state.now = now
        try:
            kept = decode(shares)
            self._ledger.take_over(state, kept, commitments=commitments)
            if commitments:
                self._packing.take_over(kept.jobs, now)
        except InvalidError as error:
            self.note(str(error))

    def metered(self, host: str, metered: Metered, now: float) -> None:
        """Take in what a node has moved."""
        self._rates.take(host, metered, now)
        self._flows.metered(host, metered.meters, now)

    def rates(self, now: float, span_s: float) -> dict[str, Links]:
        """By node: its rates and guarantees for the next control interval; told anew after ``span_s``."""
        self.links_changed = False
        promises = self._admissions.promises(now, span_s)
        used: dict[str, dict[Traffic, float]] = {}
        told: dict[str, list[Guarantee]] = {}
        for one in promises:
            told.setdefault(one.source, []).append(one.guarantee)
            for node, traffic in ((one.source, Traffic.OUT), (one.target, Traffic.IN)):
                sums = used.setdefault(node, {})
                sums[traffic] = sums.get(traffic, 0.0) + one.bytes_s
        rates = self._rates.rates(self._ledger.weights(self._books.scheduler.state), used)
        self._desk.rates = rates
        return {
            node: Links(rates.get(node, ()), tuple(told.get(node, ())[:GUARANTEES_MAX]))
            for node in rates.keys() | told.keys()
        }

    def is_early(self, asked: Asked) -> bool:
        """Whether a question about a job has come before all nodes have told what they can do."""
        return b'"pack"' in asked.question and not self._books.nodes.keys() <= self._rates.capacities().keys()

    def answer(self, asked: Asked) -> bytes:
        """The answer to a question."""
        self._desk.duty = self._duty
        self._desk.problems = list(self._problems)
        self._desk.unmeasured = self.unmeasured
        self._desk.now = self._now
        return self._desk.answer(asked)


def open_office(orders: Orders, node: str, knowledge: KnowledgeBase, wall: float) -> Office:
    """An office whose kernels are compiled: the first real round shall not wait for that.

    A cold compilation takes tens of seconds, once for each version; runs are placed without a scheduler
    meanwhile.
    """
    rehearse("spread")
    return Office(orders, node, knowledge, wall)
