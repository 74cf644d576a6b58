"""Carry out the effects of a step: replies, buffers, public pages, streams, tasks, audit records.

``dios.host.loop.driver`` decides when a step's effects may run. Slow effects go to a thread; until the
thread is done, no other effect touches that object, and the rest of the step waits.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

from msgspec.structs import replace

from dios.core import effects as fx
from dios.core.events import ConsoleArrived, DefectFound, EffectFailed, Event, Received, TaskEnded
from dios.errors import Code, DiosError
from dios.host.audit.admission import Journal, refusal
from dios.host.bandwidth.rates import Rates
from dios.host.content.buffers import BackgroundWork, Buffers
from dios.host.content.consoles import Consoles
from dios.host.content.contents import (
    Content,
    Contents,
    JoinedPayloads,
    MemoryNotes,
    MemorySource,
    OwnedPayloads,
    Payloads,
    read_from,
    size_of,
)
from dios.host.content.log_reader import LogReader
from dios.host.content.public_pages import PublicPages
from dios.host.content.streams import Streams
from dios.host.handover import format as form
from dios.host.loop import effect_kinds
from dios.host.loop.call_tracer import CallTracer
from dios.host.loop.clock import Clock
from dios.host.loop.outbox import Outbox
from dios.host.loop.staging import Staging
from dios.host.loop.vectors import (
    Described,
    VectorReplies,
    failure_answer,
    is_expected,
    run_now,
    with_data,
    without_buffer,
)
from dios.host.network.sockets import Sockets
from dios.host.peers.interface import RemoteEffects
from dios.ids import BufferId, ObjectId, PayloadId, TaskId
from dios.transport.batch import BATCH
from dios.wire import dcp
from dios.wire.fields import TRACE_OUTPUT
from dios.wire.messages import (
    AnyCall,
    CommitAcquireWrite,
    CommitWrite,
    Failure,
    Info,
    Metered,
    TableRows,
    Welcome,
)
from dios.wire.types import Cause

_log: Final = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[fx.Effect], BackgroundWork | None]

_TOO_EARLY: Final = Failure(
    int(Code.EBADF),
    "cannot commit: the buffer is not open. Wait for the reply that carries it, then commit.",
)
_JOINED_MIN: Final = 4
"""Fewer effects hardly send two messages to one peer."""
NO_PAYLOADS: Final[dict[PayloadId, bytes]] = {}


class TaskController(Protocol):
    """The operations on processes and connections that effects need."""

    def spawn(self, effect: fx.Spawn) -> None:
        """Begin to start a process. Raise OSError if descriptors are exhausted."""

    def kill(self, task: TaskId) -> None:
        """End the task's process."""

    def suspend(self, task: TaskId) -> None:
        """Stop the task's process."""

    def resume(self, task: TaskId) -> None:
        """Continue the task's process."""

    def hold(self, shares: tuple[tuple[TaskId, fx.TaskShare], ...], lease_ms: int) -> None:
        """Hold these tasks to shares of the machine for ``lease_ms``, and others no longer."""

    def prune_environments(self, digest: str, unused_ms: int) -> None:
        """Begin to remove environments in which no task runs."""

    def close(self, task: TaskId, reason: str) -> None:
        """Close the task's connection after its queued replies are sent."""


class EffectorParts(NamedTuple):
    """The parts of the node that the effector works with."""

    contents: Contents
    buffers: Buffers
    staging: Staging
    pages: PublicPages
    consoles: Consoles
    streams: Streams
    sockets: Sockets
    logs: LogReader
    outbox: Outbox
    tasks: TaskController
    journal: Journal
    clock: Clock
    rates: Rates
    remote: RemoteEffects | None = None
    tracer: CallTracer | None = None


class RemainingEffects(NamedTuple):
    """The effects of one step, from index ``place`` on, that have not been carried out."""

    effects: list[fx.Effect]
    place: int
    payloads: Payloads
    step: int


class Effector:
    """Carries out the effects of one step after another.

    ``post`` queues an event for the core, to be processed after the current step. ``in_thread`` runs the
    slow part of a task's work in a thread and then calls its callback with the error or None. ``complete``
    completes answers that describe the node.
    """

    def __init__(
        self,
        parts: EffectorParts,
        *,
        post: Callable[[Event], None],
        in_thread: Callable[[TaskId, BackgroundWork, Callable[[Exception | None], None]], None],
        complete: Callable[[Described], Described],
        begin_shutdown: Callable[[], None],
    ) -> None:
        self._parts: Final = parts
        self._post: Final = post
        self._in_thread: Final = in_thread
        self._complete: Final = complete
        self._begin_shutdown: Final = begin_shutdown
        self._reply: Final = parts.outbox.reply
        self._hand_over: Final = parts.outbox.reply_and_close
        self.journal: Final = parts.journal
        self._payloads: Payloads = NO_PAYLOADS
        self._kept: Final[dict[PayloadId, Payloads]] = {}
        self._step = 0
        self._vectors: Final = VectorReplies(
            parts.buffers, parts.consoles, complete, self._effect_failed, self._payload_of, parts.streams
        )
        self._steps_by_busy_object: Final[dict[ObjectId, deque[RemainingEffects]]] = {}
        self._oldest_steps: Final[dict[ObjectId, int]] = {}  # of those that wait for a busy object
        self._deferred_closes: Final[deque[tuple[int, BufferId]]] = deque()
        self._unopened: Final[dict[int, TaskId]] = {}
        """The tasks of the buffers that deferred effects open. Buffers stay here until they are closed."""
        self._handlers: Final = self._table()

    def _table(self) -> dict[type, Handler]:
        handlers: dict[type, Callable[..., BackgroundWork | None]] = {  # type: ignore[explicit-any] # each takes its own key's type
            fx.Answer: self._answer,
            fx.AnswerRead: self._answer_read,
            fx.AnswerWrite: self._answer_write,
            fx.AnswerBytes: self._answer_bytes,
            fx.AnswerConsole: self._answer_console,
            fx.AnswerVector: self._answer_vector,
            fx.CloseBuffer: self._close_buffer,
            fx.ApplyWrite: self._apply_write,
            fx.DuplicateContent: self._duplicate,
            fx.DiscardContent: self._discard,
            fx.BindSlot: self._bind,
            fx.UnbindSlot: self._unbind,
            fx.PublishCounters: self._publish,
            fx.AnswerAttach: self._attach,
            fx.CloseStreamEnd: self._close_stream,
            fx.WriteConsole: self._write_console,
            fx.OpenNetwork: self._parts.sockets.open,
            fx.AdoptConnection: self._parts.sockets.adopt,
            fx.CloseNetwork: self._parts.sockets.close,
            fx.AnswerLog: self._parts.logs.answer,
            fx.Spawn: self._spawn,
            fx.Kill: self._kill,
            fx.PruneEnvironments: self._prune_environments,
            fx.Suspend: self._suspend,
            fx.Continue: self._continue,
            fx.CloseConnection: self._close_connection,
            fx.BeginShutdown: self._shut_down,
            fx.KeepPayload: self._keep_payload,
            fx.DropPayload: self._drop_payload,
            fx.Audit: self._audit,
            fx.SetRates: self._set_rates,
            fx.LogDefect: self._log_defect,
        }
        elsewhere = self._parts.remote
        if elsewhere is not None:
            handlers |= elsewhere.handlers(self._payload_of)
            handlers |= elsewhere.overrides(dict(handlers))
        return cast("dict[type, Handler]", handlers)

    @property
    def idle(self) -> bool:
        """Return True if no work is being done in a thread."""
        return not self._steps_by_busy_object

    def done_before(self, step: int) -> bool:
        """Return True if no step before ``step`` is working in a thread or waiting for such work."""
        return all(oldest >= step for oldest in self._oldest_steps.values())

    # -- the successor of this process -----------------------------------------------------------------
    def hand_over(self, memories: MemoryNotes) -> tuple[form.KeptPayload, ...]:
        """Describe the payloads of calls that wait."""
        return tuple(
            form.KeptPayload(payload, memories.note(owner[payload])) for payload, owner in self._kept.items()
        )

    def take_over(self, payloads: Iterable[form.KeptPayload], memories: MemorySource) -> None:
        """Continue with the payloads of the predecessor."""
        for kept in payloads:
            payload = PayloadId(kept.payload)
            self._kept[payload] = OwnedPayloads({payload: memories.content(kept.content)})

    # -- the audit log --------------------------------------------------------------------------------
    def record(self, steps: Iterable[list[fx.Effect]]) -> None:
        """Write the audit records of durable steps to the log, before anybody gets a reply.

        The records are removed from the steps, so that ``run`` does not write them again. A kill in between
        can therefore not leave a durable change that a client knows of and the audit log does not.
        """
        has_records = False
        for effects in steps:
            records = [effect for effect in effects if type(effect) is fx.Audit]
            if records:
                has_records = True
                effects[:] = [effect for effect in effects if type(effect) is not fx.Audit]
                for record in records:
                    self.journal.append(record)
        if has_records:
            # The journal keeps records that it cannot write, and refuses further calls in time.
            with contextlib.suppress(DiosError):
                self.journal.flush()

    def refuse_unrecorded(self, task: TaskId, seq: int, call: AnyCall) -> bool:
        """Refuse a call if it could not be recorded in the audit log. Return True if it was refused."""
        refused = refusal(self.journal, call)
        if refused is not None:
            self._reply(task, seq, Failure(int(refused.code), refused.message))
        return refused is not None

    def note_deferred(self, effects: Iterable[fx.Effect]) -> None:
        """Note the buffers that these effects will open when they are carried out later."""
        for effect in effects:
            if type(effect) is fx.CloseBuffer:
                self._unopened.pop(effect.buffer, None)
            elif type(effect) in effect_kinds.MAY_OPEN:
                for part in effect_kinds.opening(effect):
                    self._unopened[part.result.buffer] = part.task

    def refuse_early_commit(self, task: TaskId, seq: int, call: AnyCall) -> bool:
        """Refuse a commit of a buffer that was not handed out. Return True if it was refused.

        A task that guesses a buffer's number would commit bytes that may never exist. The core would accept
        the commit, and without the bytes the store would fail all later changes, of every task (ADR 0007).
        """
        if (
            not self._unopened
            or not isinstance(call, CommitWrite | CommitAcquireWrite)
            or call.data is not None
        ):
            return False
        buffer = BufferId(call.buffer)
        if self._unopened.get(buffer) != task or self._parts.buffers.has(buffer, 0):
            return False  # it is open, or no buffer of this task: the core answers
        self._reply(task, seq, _TOO_EARLY)
        return True

    # -- one step after another ---------------------------------------------------------------------
    def run(self, effects: list[fx.Effect], payloads: Payloads, step: int, index: int = 0) -> None:
        """Carry out a step's effects in order, beginning with ``index``.

        The messages of many effects to the same peer are sent together.
        """
        if len(effects) < _JOINED_MIN or BATCH.is_open:
            self._run(effects, payloads, step, index)
            return
        BATCH.begin(len(effects))
        try:
            self._run(effects, payloads, step, index)
        finally:
            BATCH.end()

    def _run(self, effects: list[fx.Effect], payloads: Payloads, step: int, index: int) -> None:
        self._payloads, self._step = payloads, step
        handlers, gates = self._handlers, self._steps_by_busy_object
        while index < len(effects):
            effect = effects[index]
            index += 1
            if gates and self._must_pause(effect, RemainingEffects(effects, index - 1, payloads, step)):
                self.note_deferred(effects[index - 1 :])
                return
            try:
                work = handlers[type(effect)](effect)
            except Exception as error:  # noqa: BLE001 - what is not expected is contained
                if not is_expected(error):
                    self._contain(effect, effects, error)
                    continue
                failure = failure_answer(error)
                if self._refused(effect, failure):
                    continue
                self.run_failed(RemainingEffects(effects, index, payloads, step), failure, content_lost=False)
                return
            if work is not None:
                self.note_deferred(effects[index - 1 :])
                self._begin(work, effect, RemainingEffects(effects, index, payloads, step))
                return

    def run_failed(self, rest: RemainingEffects, failure: Failure, *, content_lost: bool = True) -> None:
        """Finish a step that could not be made durable: free what it used and answer with ``failure``.

        ``content_lost`` means that the durable writes among the effects did not take place.
        """
        self._payloads, self._step = rest.payloads, rest.step
        for effect in rest.effects[rest.place :]:
            try:
                self._run_one_failed(effect, failure, content_lost=content_lost)
            except Exception as error:
                if is_expected(error):
                    raise
                self._contain(effect, rest.effects, error)

    def _run_one_failed(self, effect: fx.Effect, failure: Failure, *, content_lost: bool) -> None:
        if isinstance(effect, effect_kinds.RUN_DESPITE_FAILURE):
            self._handlers[type(effect)](effect)
        elif isinstance(effect, fx.Answer) and isinstance(effect.result, Welcome):
            if effect.seq:
                self._reply(effect.task, effect.seq, failure)
        elif isinstance(effect, effect_kinds.ANSWER_EFFECTS):
            self._reply(effect.task, effect.seq, failure)
        elif isinstance(effect, fx.Send) and self._parts.remote is not None:
            self._parts.remote.send_failed(effect, failure)
        elif isinstance(effect, fx.ApplyWrite | fx.DuplicateContent | fx.DiscardContent):
            self._content_in_failure(effect, content_lost=content_lost)
        elif isinstance(effect, fx.Spawn):
            self._report_not_started(effect.task, failure.message)

    def _content_in_failure(
        self, effect: fx.ApplyWrite | fx.DuplicateContent | fx.DiscardContent, *, content_lost: bool
    ) -> None:
        """Apply changes of volatile contents all the same: only the part in the store failed."""
        contents = self._parts.contents
        if isinstance(effect, fx.ApplyWrite) and effect.durable:
            version = self._parts.staging.take(effect.object)
            if not content_lost:
                contents.set_durable(effect.object, version)
            return
        if isinstance(effect, fx.DiscardContent) and contents.is_durable(effect.object):
            return
        try:
            work = self._handlers[type(effect)](effect)
            if work is not None:
                run_now(work)
        except (DiosError, OSError) as error:
            _log.error("cannot build the content of an object", extra={"why": str(error)})

    def _refused(self, effect: fx.Effect, failure: Failure) -> bool:
        """Report a failed effect to the waiting task. Return False if the step's other answers must fail."""
        if isinstance(effect, fx.AnswerRead | fx.AnswerWrite):
            self._reply(effect.task, effect.seq, without_buffer(effect, failure))
            self._effect_failed(effect, failure)
        elif isinstance(effect, effect_kinds.ANSWER_EFFECTS):
            self._reply(effect.task, effect.seq, without_buffer(effect, failure))
        elif isinstance(effect, fx.Spawn):
            self._report_not_started(effect.task, failure.message)
        elif isinstance(effect, fx.ApplyWrite | fx.DuplicateContent):
            _log.error("cannot build the content of an object", extra={"why": failure.message})
            return False
        else:
            _log.error("effect failed", extra={"effect": type(effect).__name__, "why": failure.message})
            if isinstance(effect, fx.Send) and failure.code == Code.EIO:
                self._send_damaged(effect, failure)
        return True

    def _send_damaged(self, effect: fx.Send, failure: Failure) -> None:
        """Let a reply fail at the asking node, and a request here: its bytes will not become readable.

        Without an answer the caller would wait for the end of all attempts to send it.
        """
        if isinstance(effect.message, dcp.Ask):
            reply = dcp.PeerReply(effect.message.number, failure)
            self._post(Received(self._parts.clock.now(), effect.node, effect.epoch, reply))
        elif self._parts.remote is not None:
            self._parts.remote.send_failed(effect, failure)

    def _effect_failed(self, effect: fx.AnswerRead | fx.AnswerWrite, failure: Failure) -> None:
        self._post(
            EffectFailed(
                self._parts.clock.now(),
                effect.task,
                effect.result.buffer,
                effect.object,
                failure.code,
                failure.message,
            )
        )

    def _contain(self, effect: fx.Effect, effects: list[fx.Effect], error: Exception) -> None:
        """Report a defect in carrying out an effect, so that the core ends the task or the connection.

        A call that the effect was to answer has no answer: what it asked for may have been done.
        Raise the error of an effect on which the node's promises depend: then the node ends.
        """
        if isinstance(effect, effect_kinds.ESSENTIAL) or (
            isinstance(effect, fx.ApplyWrite) and effect.durable
        ):
            raise error
        name = type(effect).__name__
        _log.error("an internal error was contained", extra={"effect": name}, exc_info=error)
        task, node, target = effect_kinds.parties_of(effect, effects)
        changes = isinstance(effect, fx.ApplyWrite | fx.DuplicateContent)
        description = f"{name}: {type(error).__name__}"
        self._post(DefectFound(self._parts.clock.now(), task, node, target, description, ends_object=changes))

    def _log_defect(self, effect: fx.LogDefect) -> None:
        _log.error(
            "an internal error was contained", extra={"subject": effect.subject, "trace": effect.trace}
        )

    def _report_not_started(self, task: TaskId, why: str) -> None:
        self._post(TaskEnded(self._parts.clock.now(), task, Cause.SPAWN, detail=why))

    # -- work in threads ----------------------------------------------------------------------------
    def _begin(self, work: BackgroundWork, effect: fx.Effect, rest: RemainingEffects) -> None:
        # The first entry is the step that does the work; the others wait for the object.
        self._steps_by_busy_object[work.target] = deque((rest,))
        self._oldest_steps[work.target] = rest.step

        def finish(error: Exception | None) -> None:
            self._finish(work, effect, rest, error)

        asker = effect_kinds.task_answered((effect, *rest.effects[rest.place :]))
        self._in_thread(asker, work, finish)

    def _finish(
        self, work: BackgroundWork, effect: fx.Effect, rest: RemainingEffects, error: Exception | None
    ) -> None:
        """Answer after a thread has finished, run the rest of its step, then the steps that wait."""
        waiting = self._steps_by_busy_object.pop(work.target)
        del self._oldest_steps[work.target]
        waiting.popleft()
        self._payloads, self._step = rest.payloads, rest.step
        if error is None:
            try:
                answered = work.done()
                if answered is not None and isinstance(effect, fx.AnswerRead | fx.AnswerWrite):
                    self._hand_over(effect.task, effect.seq, answered.result, answered.fds)
            except Exception as late:  # noqa: BLE001 - it is contained below
                error = late
        else:
            work.failed()
        if error is not None and not is_expected(error):
            self._contain(effect, rest.effects, error)
            error = None
        if error is None:
            self.run(rest.effects, rest.payloads, rest.step, rest.place)
        else:
            failure = failure_answer(error)
            if self._refused(effect, failure):
                self.run(rest.effects, rest.payloads, rest.step, rest.place)
            else:
                self.run_failed(rest, failure, content_lost=False)
        while waiting:
            paused = waiting.popleft()
            again = self._steps_by_busy_object.get(work.target)
            if again is not None:
                again.append(paused)
                self._oldest_steps[work.target] = min(self._oldest_steps[work.target], paused.step)
            else:
                self.run(paused.effects, paused.payloads, paused.step, paused.place)
        while self._deferred_closes and self.done_before(self._deferred_closes[0][0]):
            self._parts.buffers.close(self._deferred_closes.popleft()[1])

    def _must_pause(self, effect: fx.Effect, rest: RemainingEffects) -> bool:
        if isinstance(effect, fx.CloseBuffer):
            return False
        for target in effect_kinds.objects_of(effect):
            waiting = self._steps_by_busy_object.get(target)
            if waiting is not None:
                waiting.append(rest)
                self._oldest_steps[target] = min(self._oldest_steps[target], rest.step)
                return True
        return False

    # -- replies ------------------------------------------------------------------------------------
    def _answer(self, effect: fx.Answer) -> None:
        result = effect.result
        kind = type(result)
        if kind is Welcome:
            _log.debug(
                "the core knows a task or session",
                extra={
                    "connection": f"{effect.task:016x}",
                    "fingerprint": cast("Welcome", result).self_ref.fingerprint,
                },
            )
            page = self._parts.pages.take_descriptor(effect.task)
            if page is not None:
                whole = self._with_program(effect, cast("Welcome", result))
                if self._answers_traces(effect.task, whole):
                    whole = replace(whole, traces=True)
                self._hand_over(effect.task, effect.seq, whole, (page,))
        elif kind is Info or kind is TableRows:
            self._reply(effect.task, effect.seq, self._complete(cast("Described", result)))
        elif kind is Metered:
            self._reply(effect.task, effect.seq, self._parts.rates.completed(cast("Metered", result)))
        else:
            self._reply(effect.task, effect.seq, result)

    def _answers_traces(self, task: TaskId, welcome: Welcome) -> bool:
        """Return True for a session, and for a task whose starter wants to know what its calls take."""
        tracer = self._parts.tracer
        if tracer is None or not tracer.enabled:
            return False
        if welcome.executable is None:
            return True
        if welcome.outputs and welcome.outputs[-1].label.startswith(TRACE_OUTPUT):
            tracer.tasks.add(task)
            return True
        return False

    def _with_program(self, effect: fx.Answer, welcome: Welcome) -> Welcome:
        """Return the Welcome with the task's program in it, if that is small and here now."""
        if welcome.program is not None or welcome.executable is None:
            return welcome  # it came with the request of another node
        program = effect_kinds.program_of(effect)
        if not program:
            return welcome
        # Without it, the task reads the program, and gets the error if there is one.
        return replace(welcome, program=self._parts.contents.program(program, welcome.executable.size))

    def _answer_read(self, effect: fx.AnswerRead) -> BackgroundWork | None:
        answered = self._parts.buffers.read(effect)
        if type(answered) is BackgroundWork:
            return answered
        result, fds = answered[0], answered[1]
        if fds:
            self._hand_over(effect.task, effect.seq, result, fds)  # type: ignore[arg-type] # no Work here
        else:
            self._reply(effect.task, effect.seq, result)  # type: ignore[arg-type] # as above
        return None

    def _answer_write(self, effect: fx.AnswerWrite) -> BackgroundWork | None:
        answered = self._parts.buffers.write(effect)
        if isinstance(answered, BackgroundWork):
            return answered
        self._hand_over(effect.task, effect.seq, answered.result, answered.fds)
        return None

    def _answer_bytes(self, effect: fx.AnswerBytes) -> None:
        self._reply(effect.task, effect.seq, with_data(effect.result, effect.data))

    def _answer_console(self, effect: fx.AnswerConsole) -> None:
        data = self._parts.consoles.read(effect.console, effect.position, effect.length)
        self._reply(effect.task, effect.seq, with_data(effect.result, data))

    def _answer_vector(self, effect: fx.AnswerVector) -> None:
        results, fds = self._vectors.answer(effect)
        self._hand_over(effect.task, effect.seq, results, fds)

    def _payload_of(self, payload: PayloadId) -> Content | None:
        return self._payloads.get(payload) or self._kept.get(payload, NO_PAYLOADS).get(payload)

    def with_kept(self, outcome: fx.Outcome, payloads: Payloads) -> Payloads:
        """Keep the payloads of an event that later steps need. Return its payloads, with those kept before
        that this step uses.

        They are kept at once: the effects of this step may wait for the disk while a later step does not,
        and may drop bytes that this step needs.
        """
        if payloads:
            for effect in outcome.after:
                if type(effect) is fx.KeepPayload:
                    self._kept[effect.payload] = payloads
        if not self._kept:
            return payloads
        used = [
            (payload, owner)
            for effect in outcome.after
            for payload in effect_kinds.payloads_used(effect)
            if (owner := self._kept.get(payload)) is not None and owner is not payloads
        ]
        return JoinedPayloads(payloads, used) if used else payloads

    def _keep_payload(self, effect: fx.KeepPayload) -> None:
        """Do nothing, because ``with_kept`` has kept the payload."""

    def _drop_payload(self, effect: fx.DropPayload) -> None:
        self._kept.pop(effect.payload, None)

    # -- contents and buffers -----------------------------------------------------------------------
    def _close_buffer(self, effect: fx.CloseBuffer) -> None:
        self._unopened.pop(effect.buffer, None)
        if not self.done_before(self._step):
            # Work in a thread may be about to open this buffer.
            self._deferred_closes.append((self._step, effect.buffer))
        else:
            self._parts.buffers.close(effect.buffer)

    def _apply_write(self, effect: fx.ApplyWrite) -> BackgroundWork | None:
        if effect.durable:
            self._parts.contents.set_durable(effect.object, self._parts.staging.take(effect.object))
            return None
        payload = effect.source.payload
        return self._parts.buffers.apply(effect, self._payloads[payload] if payload else None)

    def _duplicate(self, effect: fx.DuplicateContent) -> BackgroundWork | None:
        return self._parts.buffers.duplicate(effect)

    def _discard(self, effect: fx.DiscardContent) -> None:
        self._parts.contents.discard(effect.object)

    # -- pages, streams, consoles -------------------------------------------------------------------
    def _bind(self, effect: fx.BindSlot) -> None:
        self._parts.pages.bind(effect, self._step)

    def _unbind(self, effect: fx.UnbindSlot) -> None:
        self._parts.pages.unbind(effect)

    def _publish(self, effect: fx.PublishCounters) -> None:
        self._parts.pages.publish(effect, self._step)
        if effect.zombie:
            self._parts.streams.discard(effect.object)

    def _attach(self, effect: fx.AnswerAttach) -> None:
        result, fds = self._parts.streams.attach(
            effect.object, effect.mode, effect.ring_bytes, duplex=effect.duplex
        )
        self._hand_over(effect.task, effect.seq, result, fds)

    def _close_stream(self, effect: fx.CloseStreamEnd) -> None:
        self._parts.streams.close_end(effect.object, effect.mode)

    def _write_console(self, effect: fx.WriteConsole) -> None:
        content = self._payloads[effect.source.payload] if effect.source.payload else b""
        data = read_from(content, 0, size_of(content))
        if data:
            self._parts.consoles.of(effect.task).append(data)
            self._post(ConsoleArrived(self._parts.clock.now(), effect.task, len(data)))

    # -- tasks --------------------------------------------------------------------------------------
    def _spawn(self, effect: fx.Spawn) -> None:
        self._parts.tasks.spawn(effect)

    def _kill(self, effect: fx.Kill) -> None:
        self._parts.tasks.kill(effect.task)

    def _prune_environments(self, effect: fx.PruneEnvironments) -> None:
        self._parts.tasks.prune_environments(effect.digest, effect.unused_ms)

    def _set_rates(self, effect: fx.SetRates) -> None:
        self._parts.rates.set(effect)
        self._parts.tasks.hold(effect.shares, effect.lease_ms)

    def _suspend(self, effect: fx.Suspend) -> None:
        self._parts.tasks.suspend(effect.task)

    def _continue(self, effect: fx.Continue) -> None:
        self._parts.tasks.resume(effect.task)

    def _close_connection(self, effect: fx.CloseConnection) -> None:
        self._parts.tasks.close(effect.task, effect.reason)

    def _shut_down(self, effect: fx.BeginShutdown) -> None:
        del effect
        self._begin_shutdown()

    def _audit(self, effect: fx.Audit) -> None:
        self._parts.journal.append(effect)
