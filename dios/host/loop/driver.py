"""The path of every event: step the core, store what must be durable, then carry out the effects.

The driver does no I/O and never waits. The reply to a frame is sent before the next frame is read; only
effects that need the disk are deferred until the writer thread reports that their ticket is durable.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Protocol

import trio

from dios import limits
from dios.core.effects import Effect, Outcome
from dios.core.events import Called, Event, Persisted, PersistFailed, Received, TimerFired
from dios.core.model.state import State
from dios.errors import DiosError, InvariantError, ProtocolError
from dios.host.audit.admission import refusal, refusal_of_request
from dios.host.content.contents import Content, OwnedPayloads, Payloads, size_of
from dios.host.content.stored_bytes import StoredBytes
from dios.host.handover import format as form
from dios.host.loop.call_meter import CallMeter
from dios.host.loop.call_tracer import CallTracer
from dios.host.loop.clock import Clock
from dios.host.loop.commit_results import CommitResult
from dios.host.loop.effect_kinds import defers_volatile_changes, touches_contents
from dios.host.loop.effector import NO_PAYLOADS, Effector, RemainingEffects
from dios.host.loop.fair_queue import TaskPrincipals
from dios.host.loop.node_log import begin_trace, end_trace
from dios.host.loop.staging import Staging
from dios.ids import NodeId, PayloadId, TaskId, Ticket
from dios.wire import dcp, messages
from dios.wire.call_table import CARRYING, COMMITTING
from dios.wire.messages import AnyCall, Failure, Vector
from dios.wire.requests import payloads_of

_log: Final = logging.getLogger(__name__)

_NO_PAYLOAD: Final = PayloadId(0)


class Stepper(Protocol):
    """The core, or a wrapper that records its steps."""

    @property
    def state(self) -> State:
        """The tables of the core, which only the core changes."""
        ...

    def step(self, event: Event) -> Outcome:
        """Process one event."""

    def has_request(self, node: NodeId, number: int) -> bool:
        """Return True if a request of another node was handled before."""

    def holder_id(self, node: NodeId, task: TaskId) -> TaskId:
        """Return the id here of a task of another node; 0 if no such task has a record here."""


class _DeferredEffects(NamedTuple):
    """The effects of a step, deferred until ``ticket`` is durable."""

    ticket: Ticket
    effects: list[Effect]
    payloads: Payloads
    step: int


class _StepGuard:
    """A block in which a step runs. An exception that leaves the block has interrupted the step."""

    __slots__ = ("_enter", "_leave")

    def __init__(self, enter: Callable[[], None], leave: Callable[[BaseException | None], None]) -> None:
        self._enter: Final = enter
        self._leave: Final = leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)


class Driver:
    """One node's core and the code around it, in one thread.

    ``alarm`` is called with the time at which the core wants its next timer event, or None for no timer.
    ``meter`` counts the calls, and ``tracer`` times the parts of traced ones.
    """

    def __init__(
        self,
        core: Stepper,
        clock: Clock,
        alarm: Callable[[int | None], None],
        owners: TaskPrincipals,
        stored: StoredBytes,
        meter: CallMeter | None = None,
        tracer: CallTracer | None = None,
    ) -> None:
        self._meter: Final = CallMeter() if meter is None else meter
        self.tracer: Final = CallTracer(enabled=False) if tracer is None else tracer
        self._core: Final = core
        self._take: Final = core.step
        self._now: Final = clock.now
        self._alarm: Final = alarm
        self._owners: Final = owners
        self._stored: Final = stored
        self._deadline: int | None = None
        self._durable = Ticket(0)
        self._issued = Ticket(0)
        self._steps = 0
        self.units = 0
        """The work of all steps so far, by which connections take turns.

        A step that takes long counts as more than the core counted, but at most as a turn, because the
        machine may have let other processes run meanwhile.
        """
        self._next_payload = 1
        self._held: deque[_DeferredEffects] = deque()
        # Until this ticket is durable, later effects that touch contents or buffers are deferred too:
        # deferred effects will change volatile contents or open buffers, and objects have no ticket for that.
        self._volatile_barrier = Ticket(0)
        self._posted: Final[deque[Event]] = deque()
        self._stepping = False
        self._step_guard: Final = _StepGuard(self._enter_step, self._leave_step)
        self.sound = True
        """False after a step was interrupted by an exception. The node's state may be wrong: it must end."""
        self._error: BaseException | None = None
        self._broken: Final = trio.Event()
        self._quiet = trio.Event()
        self._effector: Effector
        self._staging: Staging

    def connect(self, effector: Effector, staging: Staging) -> None:
        """Set the effector and the staging, which need this driver themselves: they post events to it."""
        self._effector = effector
        self._staging = staging

    @property
    def steps(self) -> int:
        """The number of events that the core has processed."""
        return self._steps

    def hand_over(self) -> form.Steps:
        """Return the counters for the successor of this process. Every effect has been carried out."""
        return form.Steps(self._durable, self._issued, self._steps, self._next_payload)

    def take_over(self, steps: form.Steps) -> None:
        """Continue with the counters of the predecessor."""
        self._durable, self._issued = Ticket(steps.durable), Ticket(steps.issued)
        self._steps, self._next_payload = steps.steps, steps.next_payload

    @property
    def settled(self) -> bool:
        """Return True if every effect of every step has been carried out."""
        return not (self._held or self._posted or self._staging) and self._effector.idle

    @property
    def has_deferred_volatile(self) -> bool:
        """Return True while deferred effects will still change volatile contents or open buffers."""
        return self._volatile_barrier > self._durable

    def _enter_step(self) -> None:
        self._stepping = True

    def _leave_step(self, error: BaseException | None) -> None:
        self._stepping = False
        if error is not None:
            self.sound = False
            self._error = self._error or error
            self._broken.set()

    async def watch(self) -> None:
        """Wait until an exception has interrupted a step, and raise it, whoever else has caught it."""
        await self._broken.wait()
        raise InvariantError("an exception interrupted a step; the node ends") from self._error

    async def wait_idle(self) -> None:
        """Let the core finish its work, and wait until every effect of every step has been carried out."""
        while self._deadline is not None and self._deadline <= self._now():
            self.feed(TimerFired(self._now()))
            await trio.lowlevel.checkpoint()
        while not self.settled:
            self._quiet = trio.Event()
            await self._quiet.wait()

    async def let_others_work(self, begun: int) -> int:
        """Give others a turn for each turn's worth of work since ``begun``. Return the present count."""
        for _ in range((self.units - begun) // limits.TURN_UNITS_MAX):
            await trio.lowlevel.checkpoint()
        return self.units

    def refusal_of(self, hello: messages.Hello) -> DiosError | None:
        """Return the reason why no session may begin now, or None if one may."""
        journal = self._effector.journal
        return refusal(journal, hello) if journal.pressure else None

    @property
    def state(self) -> State:
        """The tables of the core, which only the core changes."""
        return self._core.state

    def has_request(self, node: NodeId, number: int) -> bool:
        """Return True if a request of another node was handled before, so that its repeat gets the answer."""
        return self._core.has_request(node, number)

    def holder_id(self, node: NodeId, task: TaskId) -> TaskId:
        """Return the id here of a task of another node; 0 if no such task has a record here."""
        return self._core.holder_id(node, task)

    # -- in -----------------------------------------------------------------------------------------
    def call(self, task: TaskId, seq: int, call: AnyCall) -> None:
        """Process the call of a task. This is the hot path."""
        if self._meter.is_on:
            self._meter.begin(task, seq, type(call).__name__)
        if self._effector.journal.pressure and self._effector.refuse_unrecorded(task, seq, call):
            return
        kind = type(call)
        if kind in COMMITTING and self._effector.refuse_early_commit(task, seq, call):
            return
        payloads: Payloads = NO_PAYLOADS
        first = _NO_PAYLOAD
        if kind in CARRYING or kind is Vector:
            first = PayloadId(self._next_payload)
            payloads = self._payloads_of(call)
        self.feed(Called(self._now(), task, seq, call, first), payloads)

    def traced_call(self, task: TaskId, seq: int, call: AnyCall, context: bytes) -> None:
        """Process a call whose caller wants to know the times of its parts."""
        self.tracer.begin(task, seq, type(call).__name__, context)
        token = begin_trace(context)
        try:
            _log.debug("a traced call has arrived", extra={"call": type(call).__name__})
            self.call(task, seq, call)
        finally:
            self.tracer.current = None
            end_trace(token)

    def _payloads_of(self, call: AnyCall) -> dict[PayloadId, bytes]:
        numbered = {
            PayloadId(place): data for place, data in enumerate(payloads_of(call), self._next_payload)
        }
        self._next_payload += len(numbered)
        return numbered

    def receive(
        self, node: NodeId, epoch: int, message: dcp.Message, attached: Content | None
    ) -> Failure | None:
        """Process a message of another node and the bytes attached to it, which the driver takes over.

        Return the failure to answer with if a request is refused before it reaches the core, else None.
        Raise ProtocolError if the core refuses the message; nothing has changed then.
        """
        payloads, first = self._attached_payloads(message, attached)
        now = self._now()
        if self._deadline is not None and self._deadline <= now:
            # Fire due timers first, so that a message that the core refuses cannot undo their effects.
            self.feed(TimerFired(now))
        event = Received(now, node, epoch, message, first, 0 if attached is None else size_of(attached))
        # The core answers a repeat, because a refusal would deny what the first request has changed.
        if isinstance(message, dcp.Ask) and not self.has_request(node, message.number):
            journal = self._effector.journal
            refused = refusal_of_request(journal, message.body) if journal.pressure else None
            if refused is not None:
                return Failure(int(refused.code), refused.message)
            if attached is None and self._commits_too_early(message):
                return None
        rejection: ProtocolError | None = None
        tracer, token = self.tracer, None
        if tracer.is_on or (type(message) is dcp.Ask and message.trace is not None):
            tracer.arrived(node, message)
            if tracer.current is not None:
                token = begin_trace(tracer.current.context)
                _log.debug("a message of a traced call has arrived", extra={"call": tracer.current.name})
        with self._step_guard:
            try:
                outcome = self._take(event)
            except ProtocolError as error:
                rejection = error
            else:
                self._follow(event, outcome, payloads)
        if tracer.is_on:
            tracer.current = None
        if token is not None:
            end_trace(token)
        if rejection is not None:
            raise rejection
        if self._posted:
            self._process_posted()
        return None

    def _commits_too_early(self, asked: dcp.Ask) -> bool:
        body = asked.body
        if not isinstance(body, dcp.Forward) or type(body.call) not in COMMITTING:
            return False
        return self._effector.refuse_early_commit(body.caller.task, asked.number, body.call)

    def _attached_payloads(
        self, message: dcp.Message, attached: Content | None
    ) -> tuple[Payloads, PayloadId]:
        inside: dict[PayloadId, bytes] = {}
        first = PayloadId(self._next_payload)
        if isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Forward):
            inside = self._payloads_of(message.body.call)
        if attached is None:
            return (inside, first) if inside else (NO_PAYLOADS, _NO_PAYLOAD)
        carried = OwnedPayloads({first: attached})
        if inside:
            raise ProtocolError("a call carries bytes both inside the message and attached to it")
        self._next_payload += 1
        return carried, first

    def post(self, event: Event) -> None:
        """Process an event after the current step, or now if no step is running."""
        self._posted.append(event)
        if not self._stepping:
            self._process_posted()

    def register_payload(self, data: bytes) -> tuple[PayloadId, Payloads]:
        """Give bytes that come with an event an id. Return the id and the payloads to feed with the event."""
        number = PayloadId(self._next_payload)
        self._next_payload += 1
        return number, {number: data}

    def feed(self, event: Event, payloads: Payloads = NO_PAYLOADS) -> None:
        """Process one event now, carry out its effects, then process the events that these posted."""
        self._stepping = True  # as the guard of steps, without its calls
        try:
            self._follow(event, self._take(event), payloads)
        except BaseException as error:
            self._leave_step(error)
            raise
        self._stepping = False
        if self._posted:
            self._process_posted()

    def resume_step(self, continue_with: Callable[[], None]) -> None:
        """Continue a step whose slow part has finished in a thread."""
        with self._step_guard:
            continue_with()
        self._staging.pump()
        self._process_posted()
        if self.settled:
            self._quiet.set()

    def _process_posted(self) -> None:
        with self._step_guard:
            while self._posted:
                event = self._posted.popleft()
                self._follow(event, self._take(event), NO_PAYLOADS)

    # -- through ------------------------------------------------------------------------------------
    def _follow(self, event: Event, outcome: Outcome, payloads: Payloads) -> None:
        self._steps += 1
        self._owners.note(event, outcome)
        if outcome.deadline != self._deadline:
            self._deadline = outcome.deadline
            self._alarm(outcome.deadline)
        payloads = self._effector.with_kept(outcome, payloads)
        wait = outcome.wait_for
        if self._volatile_barrier > self._durable and touches_contents(outcome.after):
            wait = max(wait, self._volatile_barrier)
        if outcome.persist:
            self._issued = outcome.ticket
            self._staging.stage(outcome, payloads, self._steps)
            self._stored.staged(event, outcome)
            if self.tracer.is_on:
                self.tracer.staged(outcome.ticket)
        if wait > self._durable:
            self._held.append(_DeferredEffects(wait, outcome.after, payloads, self._steps))
            self._effector.note_deferred(outcome.after)
            if wait > outcome.wait_for or defers_volatile_changes(outcome.after):
                self._volatile_barrier = max(self._volatile_barrier, wait)
        elif outcome.after:
            self._effector.run(outcome.after, payloads, self._steps)
        by_time = min((self._now() - event.now) // limits.TURN_UNIT_NS, limits.TURN_UNITS_MAX)
        self.units += max(1 + outcome.units, by_time)

    # -- from the disk ------------------------------------------------------------------------------
    def persisted(self, results: list[CommitResult]) -> Ticket:
        """Carry out, in step order, the effects that waited for tickets which the writer thread has finished.

        Return the last ticket issued. After a failure, everything up to that ticket was undone.
        """
        for result in results:
            if self.tracer.is_on:
                self.tracer.durable(result.last)
            if result.error is None:
                ready = self._pop_durable(result.last)
                self.feed(Persisted(self._now(), result.last))
                self._carry_out(ready)
            else:
                self._fail(result.first, result.error)
        self._staging.pump()
        self._process_posted()
        if self.settled:
            self._quiet.set()
        return self._issued

    def _pop_durable(self, last: Ticket) -> list[_DeferredEffects]:
        self._durable = max(self._durable, last)
        self._stored.durable(last)
        ready = [held for held in self._held if held.ticket <= last]
        self._held = deque(held for held in self._held if held.ticket > last)
        return ready

    def _carry_out(self, ready: list[_DeferredEffects]) -> None:
        self._effector.record(held.effects for held in ready)
        with self._step_guard:
            for held in ready:
                self._effector.run(held.effects, held.payloads, held.step)

    def _fail(self, first: Ticket, error: DiosError) -> None:
        """Fail every ticket since ``first``: the later ones build on changes that did not take place."""
        last = self._issued
        self._stored.failed()
        ready = self._pop_durable(last)
        _log.warning("the store refused changes", extra={"why": error.message})
        self.feed(PersistFailed(self._now(), first, last, int(error.code), error.message))
        failure = Failure(int(error.code), error.message, error.fingerprint)
        self._effector.record(held.effects for held in ready if held.ticket < first)
        with self._step_guard:
            for held in ready:
                if held.ticket < first:
                    self._effector.run(held.effects, held.payloads, held.step)
                else:
                    rest = RemainingEffects(held.effects, 0, held.payloads, held.step)
                    self._effector.run_failed(rest, failure)
