"""A host of the core in virtual time, with bytes instead of shared memory and a list instead of sockets.

It carries out ``dios.core.effects`` exactly, so that a client receives the same answers as from the real
host. A step whose changes were refused ends as in ``dios.host.loop.effector``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final, NamedTuple

from blake3 import blake3
from msgspec import msgpack

from dios.core import effects, events
from dios.core.effects import Outcome
from dios.core.model.invariants import check
from dios.core.remote.peers import Here
from dios.errors import DiosError
from dios.host.content.public_pages import PublicPages, TaskPage
from dios.host.loop import effect_kinds
from dios.host.loop.commit_results import commit_batch
from dios.ids import BufferId, ObjectId, PayloadId, Principal, TaskId, Ticket
from dios.limits import PUBLIC_PAGE_BYTES
from dios.store.protocol import Change, Drop, InlinePayload, Put, Store
from dios.wire import messages
from dios.wire.requests import payloads_of
from dios.wire.types import Cause
from labs.sim.node.contents import SimContents, read_whole
from labs.sim.node.continued_core import ContinuedCore
from labs.sim.node.dormant_rows import NoSimRows, SimRows

NODE_OWNER: Final = Principal("uid:1000")


class PersistJob(NamedTuple):
    """The changes of one ticket; with ``error`` it fails in its turn, without being tried."""

    ticket: Ticket
    changes: list[Change]
    error: DiosError | None


class _UnstagedJob(NamedTuple):
    """The operations of a step, whose sources cannot be read before ticket ``after`` is durable."""

    outcome: Outcome
    after: Ticket
    step: int


class HeldEffects(NamedTuple):
    """The effects of a step, which wait until its ticket is durable."""

    ticket: Ticket
    after: list[effects.Effect]
    step: int


class SimHost:
    """One node from start to crash.

    ``reply`` is called with the task, the sequence number, the result and the bytes that belong to it.
    ``read`` returns a content from the store. The constructor raises what the store's ``recover`` raises.
    Without ``checked`` no step is checked or traced, for clusters that are too large for that.
    """

    def __init__(
        self,
        rng: Random,
        store: Store,
        reply: Callable[[TaskId, int, messages.AnyResult, bytes | None], None],
        trace: blake3,
        *,
        now: int,
        read: Callable[[ObjectId], bytes] | None = None,
        here: Here = Here(),  # noqa: B008 - it is frozen
        rows: SimRows = NoSimRows(),  # noqa: B008 - it has no state
        checked: bool = True,
    ) -> None:
        self.rows: Final = rows
        self._checked: Final = checked
        self._store: Final = store
        self._reply: Final = reply
        self._trace: Final = trace
        self.core: Final = ContinuedCore(rng, NODE_OWNER, here, rows, checked=checked)
        self.buffers: dict[BufferId, bytes] = {}
        self.contents: Final = SimContents(read or partial(read_whole, store), self.buffers)
        self.spawned: list[TaskId] = []
        self.killed: list[TaskId] = []
        self.closed: list[TaskId] = []
        self.now = now
        self.deadline: int | None = None
        self._next_payload = 1
        self._queue: deque[PersistJob] = deque()
        self._unstaged: deque[_UnstagedJob] = deque()
        """The jobs that read contents which deferred effects of earlier steps change first."""
        self._held: list[HeldEffects] = []
        self.views: Final[dict[TaskId, memoryview]] = {}
        """The public page of each task."""
        self.pages: Final = PublicPages(self._new_page)
        self._steps = 0
        self._posted: deque[events.Event] = deque()
        self._durable = self._issued = self._tangled = Ticket(0)
        records = tuple(store.recover())
        self.contents.recovered(record.object for record in records)
        self.step(events.Recovered(now, records))

    @property
    def settled(self) -> bool:
        """Return True if nothing waits for the disk."""
        return not (self._queue or self._unstaged or self._held)

    # -- events in ---------------------------------------------------------------------------------
    def step(self, event: events.Event) -> None:
        """Run one step of the core, check invariants, carry out the outcome, then handle resulting events."""
        self._step(event)
        self._drain()

    def _step(self, event: events.Event) -> None:
        if not self._checked:
            self._carry_out(self.core.step(event))
            return
        self._trace.update(msgpack.encode(event))
        outcome = self.core.step(event)
        self._check(event, outcome)
        self._trace.update(msgpack.encode(outcome))
        self._carry_out(outcome)

    def _check(self, event: events.Event, outcome: Outcome) -> None:
        del event, outcome
        check(self.core.state)

    def call(self, task: TaskId, seq: int, call: messages.AnyCall) -> None:
        """Handle one call of a task."""
        first = PayloadId(self._next_payload)
        self._keep(call)
        self.step(events.Called(self.now, task, seq, call, first))

    def _keep(self, call: messages.AnyCall) -> None:
        for data in payloads_of(call):
            self.contents.payloads[PayloadId(self._next_payload)] = data
            self._next_payload += 1

    def advance(self, nanoseconds: int) -> None:
        """Advance the clock; fire the timer if its deadline has passed."""
        self.now += nanoseconds
        if self.deadline is not None and self.now >= self.deadline:
            self.step(events.TimerFired(self.now))

    # -- the disk ----------------------------------------------------------------------------------
    def sync(self, jobs: int = 1) -> None:
        """Make the oldest jobs durable together; if one is refused, refuse all jobs issued since as well."""
        batch = [self._queue.popleft() for _ in range(min(jobs, len(self._queue)))]
        for result in commit_batch(batch, self._apply):
            if result.error is None:
                ready = self._no_longer_held(result.last)
                self.step(events.Persisted(self.now, result.last))
                for held in ready:
                    self._stage_earlier(held.step)
                    self._run(held.after, held.step)
                self._stage_earlier(self._steps + 1)
            else:
                self._fail(result.first, result.error)
        self._drain()

    def _apply(self, jobs: Sequence[PersistJob]) -> DiosError | None:
        refused = next((job.error for job in jobs if job.error is not None), None)
        if refused is not None:
            return refused
        try:
            self._store.apply([change for job in jobs for change in job.changes])
        except DiosError as error:
            return error
        return None

    def _fail(self, first: Ticket, error: DiosError) -> None:
        last = self._issued
        self._queue.clear()
        self._unstaged.clear()
        ready = self._no_longer_held(last)
        self._step(events.PersistFailed(self.now, first, last, int(error.code), error.message))
        failure = messages.Failure(int(error.code), error.message, error.fingerprint)
        for held in ready:
            if held.ticket < first:
                self._run(held.after, held.step)
            else:
                self._run_failed(held.after, failure, held.step)

    def _no_longer_held(self, last: Ticket) -> list[HeldEffects]:
        self._durable = max(self._durable, last)
        ready = [held for held in self._held if held.ticket <= last]
        self._held = [held for held in self._held if held.ticket > last]
        return ready

    def _carry_out(self, outcome: Outcome) -> None:
        self.deadline = outcome.deadline
        self._steps += 1
        step = self._steps
        if outcome.persist:
            self._issued = outcome.ticket
            self._unstaged.append(_UnstagedJob(outcome, self._tangled, step))
            self._stage_earlier(step + 1)
        wait = outcome.wait_for
        if self._tangled > self._durable and effect_kinds.touches_contents(outcome.after):
            wait = max(wait, self._tangled)
        if wait > self._durable:
            self._held.append(HeldEffects(wait, outcome.after, step))
            if wait > outcome.wait_for or effect_kinds.defers_volatile_changes(outcome.after):
                self._tangled = max(self._tangled, wait)
        else:
            self._run(outcome.after, step)

    def _stage_earlier(self, step: int) -> None:
        """Queue the jobs of earlier steps, up to the first whose contents are not there yet."""
        while self._unstaged and self._unstaged[0].step < step:
            first = self._unstaged[0]
            if first.after > self._durable and _reads_contents(first.outcome.persist):
                return
            self._queue.append(self._job(self._unstaged.popleft().outcome))

    def _job(self, outcome: Outcome) -> PersistJob:
        changes: list[Change] = []
        error: DiosError | None = None
        for operation in outcome.persist:
            if isinstance(operation, effects.DropObject):
                changes.append(Drop(operation.object))
            elif isinstance(operation, effects.AppendLog) or operation.source is None:
                changes.append(Put(operation.record))
            else:
                try:
                    content = self.contents.stage(operation.record.object, operation.source)
                    changes.append(Put(operation.record, InlinePayload(content)))
                except DiosError as unreadable:
                    error = unreadable
        return PersistJob(outcome.ticket, changes, error)

    def _drain(self) -> None:
        while self._posted:
            self._step(self._posted.popleft())

    # -- effects out -------------------------------------------------------------------------------
    def _run(self, after: list[effects.Effect], step: int) -> None:
        for place, effect in enumerate(after):
            try:
                self._show(effect, step)
                self._one(effect)
            except AssertionError:
                raise  # a client of the simulation has found a broken promise
            except Exception as error:  # noqa: BLE001 - what is not expected is contained, as by a node
                if not isinstance(error, DiosError):
                    self._contain(effect, after, error)
                    continue
                failure = messages.Failure(int(error.code), error.message, error.fingerprint)
                if not self._refused(effect, failure):
                    self._run_failed(after[place + 1 :], failure, step, content_lost=False)
                    return

    def _contain(self, effect: effects.Effect, after: list[effects.Effect], error: Exception) -> None:
        """Report a defect in carrying out an effect; raise that of an effect on which promises depend."""
        if isinstance(effect, effect_kinds.ESSENTIAL) or (
            isinstance(effect, effects.ApplyWrite) and effect.durable
        ):
            raise error
        task, node, target = effect_kinds.parties_of(effect, after)
        changes = isinstance(effect, effects.ApplyWrite | effects.DuplicateContent)
        defect = type(error).__name__
        self._posted.append(events.DefectFound(self.now, task, node, target, defect, ends_object=changes))

    def _refused(self, effect: effects.Effect, failure: messages.Failure) -> bool:
        """Report a failure to the task; return False if the rest of the step must fail too."""
        if isinstance(effect, effect_kinds.ANSWER_EFFECTS):
            self._reply(effect.task, effect.seq, failure, None)
        if isinstance(effect, effects.AnswerRead | effects.AnswerWrite):
            self._posted.append(
                events.EffectFailed(
                    self.now,
                    effect.task,
                    effect.result.buffer,
                    effect.object,
                    failure.code,
                    failure.message,
                )
            )
        return not isinstance(effect, effects.ApplyWrite | effects.DuplicateContent)

    def _run_failed(
        self, after: list[effects.Effect], failure: messages.Failure, step: int, *, content_lost: bool = True
    ) -> None:
        """Fail the remaining effects of a step whose changes were refused: free resources, refuse calls.

        ``content_lost``: the durable writes among the effects did not take place.
        """
        for effect in after:
            if isinstance(effect, effect_kinds.ANSWER_EFFECTS):
                self._reply(effect.task, effect.seq, failure, None)
            elif isinstance(effect, effect_kinds.RUN_DESPITE_FAILURE):
                self._show(effect, step)
                self._one(effect)
            elif isinstance(effect, effects.Spawn):
                self._posted.append(
                    events.TaskEnded(self.now, effect.task, Cause.SPAWN, detail=failure.message)
                )
            else:
                self.contents.fail(effect, lost=content_lost)

    def _new_page(self) -> TaskPage:
        self._last_view = memoryview(bytearray(PUBLIC_PAGE_BYTES))
        return TaskPage(self._last_view)

    def _show(self, effect: effects.Effect, step: int) -> None:
        """Carry out an effect on the public pages."""
        if isinstance(effect, effects.BindSlot):
            if effect.task not in self.views:
                self.pages.open(effect.task)
                self.views[effect.task] = self._last_view
            self.pages.bind(effect, step)
        elif isinstance(effect, effects.UnbindSlot):
            self.pages.unbind(effect)
        elif isinstance(effect, effects.PublishCounters):
            self.pages.publish(effect, step)

    def _one(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Answer():
                self._reply(effect.task, effect.seq, effect.result, None)
            case effects.AnswerRead():
                content = self.contents.current(effect.object)
                data = content[effect.offset : effect.offset + effect.length]
                if effect.result.buffer:
                    self.buffers[BufferId(effect.result.buffer)] = data
                self._reply(effect.task, effect.seq, effect.result, data)
            case effects.AnswerWrite():
                self._prepare(effect)
                self._reply(effect.task, effect.seq, effect.result, None)
            case effects.AnswerBytes():
                self._reply(effect.task, effect.seq, effect.result, effect.data)
            case effects.AnswerConsole():
                self._reply(effect.task, effect.seq, effect.result, bytes(effect.result.size))
            case effects.AnswerVector():
                self._run(list(effect.parts), self._steps)
            case effects.AnswerAttach():
                self._reply(effect.task, effect.seq, effect.result, None)
            case effects.ApplyWrite() | effects.DuplicateContent() | effects.DiscardContent():
                self.contents.change(effect)
            case effects.CloseBuffer():
                self.buffers.pop(effect.buffer, None)
            case effects.Spawn():
                self.spawned.append(effect.task)
            case effects.Kill():
                self.killed.append(effect.task)
            case effects.CloseConnection():
                self.closed.append(effect.task)
            case _:
                pass  # audit and process control have no effect that is checked here

    def _prepare(self, effect: effects.AnswerWrite) -> None:
        buffer = BufferId(effect.result.buffer)
        if effect.blank and effect.reuse and buffer in self.buffers:
            return
        old = b"" if effect.blank else self.contents.current(effect.object)
        self.buffers[buffer] = old[effect.offset : effect.offset + effect.length].ljust(effect.length, b"\0")


def _reads_contents(operations: Sequence[effects.StoreOperation]) -> bool:
    """Return True if bytes come from a buffer or from another object, which deferred effects may change."""
    return any(
        isinstance(operation, effects.PutObject)
        and operation.source is not None
        and bool(operation.source.buffer or operation.source.content_of)
        for operation in operations
    )
