"""One step of the core: collects what the outcome will be while handlers change the state.

Not for: deciding. Handlers validate first and change afterwards, so that a refusal leaves no trace.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from dios.core import effects
from dios.core.effects import Effect, Outcome, StoreOperation, WriteSource
from dios.core.membership.swim import Decision
from dios.core.model.accounts import charge_all
from dios.core.model.io_requests import Buffer, abort, give_back
from dios.core.model.objects import PhysicalObject
from dios.core.model.pending import Pending
from dios.core.model.references import Provenance, Reference
from dios.core.model.state import State
from dios.core.model.tasks import Task
from dios.core.model.type_states import AcceptState, SocketState, StreamState
from dios.core.remote import proxies, requests
from dios.core.remote.continuations import Continuation
from dios.core.remote.remote_buffers import AwayBuffer
from dios.errors import DiosError, InvalidError, WouldBlockError
from dios.ids import NodeId, PayloadId, Ticket
from dios.wire import dcp, messages
from dios.wire.types import Deletion, Mode, Permission, Resource

Reply: TypeAlias = (
    effects.Answer
    | effects.AnswerRead
    | effects.AnswerWrite
    | effects.AnswerBytes
    | effects.AnswerConsole
    | effects.AnswerReceived
)


class ReceivedAnswer(NamedTuple):
    """An answer to a request to another node, the bytes that came with it, and what goes on with it."""

    then: Continuation
    answer: dcp.Answer
    payload: PayloadId
    payload_size: int


class Step:
    """The state, the event's time and caller, and the growing outcome."""

    __slots__ = (
        "_changed",
        "_ticket",
        "_wait",
        "after",
        "answers",
        "decisions",
        "now",
        "opened_in_vector",
        "parts",
        "payload",
        "payload_size",
        "persist",
        "read_in_vector",
        "state",
        "told",
        "wake",
    )

    def __init__(self, state: State, now: int) -> None:
        self.state: Final = state
        self.now: Final = now
        self.persist: list[StoreOperation] = []
        self.after: list[Effect] = []
        self.answers: tuple[ReceivedAnswer, ...] = ()
        self.decisions: tuple[Decision, ...] = ()
        self.parts: list[Reply] | None = None
        self.payload = PayloadId(0)
        self.payload_size = 0
        self.wake: dict[tuple[int, int], Pending] = {}
        self.read_in_vector: set[int] = set()
        self.told = NodeId(0)  # whom the answer itself tells of the versions
        self.opened_in_vector: set[int] = set()
        self._changed: dict[int, PhysicalObject] = {}
        self._ticket = Ticket(0)
        self._wait = Ticket(0)

    # -- answers --------------------------------------------------------------------------------
    def reply(self, answer: Reply) -> None:
        """Answer a call; inside a vector the parts are collected."""
        if self._changed:
            self.flush_counters()
        if self.state.deputies and self.parts is None:
            requests.note(self.state, answer)
        if self.parts is not None:
            self.parts.append(answer)
        else:
            self.after.append(answer)

    def emit_answer(self, answer: effects.AnswerVector) -> None:
        """Answer a vector as a whole."""
        self.flush_counters()
        if self.state.deputies:
            requests.note(self.state, answer)
        self.after.append(answer)

    def answer(self, task: Task, seq: int, result: messages.AnyResult) -> None:
        """Answer with a result the core knows whole."""
        self.reply(effects.Answer(task.id, seq, result))

    def refuse(self, task: Task, seq: int, error: DiosError) -> None:
        """Answer with a failure."""
        self.answer(task, seq, messages.Failure(int(error.code), error.message, error.fingerprint))

    def require_unread(self, target: PhysicalObject) -> None:
        """A vector's bytes are read when it is answered: its later calls must leave them as they are."""
        if target.id in self.read_in_vector:
            raise InvalidError("the calls of a vector must be independent; this object is used before")

    # -- effects --------------------------------------------------------------------------------
    def emit(self, effect: Effect) -> None:
        """Do this once the step's store operations are durable."""
        self.after.append(effect)

    def changed(self, target: PhysicalObject) -> None:
        """Publish the object's counters with this step, and let its waiters look again."""
        self._changed[target.id] = target
        if target.waiters:
            self.wake.update(target.waiters)

    def flush_counters(self) -> None:
        """Write changed counters to the pages before the answer that speaks of them."""
        for target in self._changed.values():
            self.after.append(
                effects.PublishCounters(
                    target.id,
                    target.size,
                    target.v_r,
                    target.v_w,
                    target.a_r,
                    target.a_w,
                    target.dirty,
                    target.zombie,
                )
            )
            if target.watchers:
                requests.publish(self, target)
        self._changed.clear()

    def audit(self, task: Task, action: str, outcome: str, subject: str, detail: str = "") -> None:
        """Leave an audit record (§3.2.2)."""
        self.after.append(
            effects.Audit(self.now, action, outcome, task.principal, task.object.fingerprint, subject, detail)
        )

    def audit_node(self, action: str, outcome: str, subject: str, detail: str = "") -> None:
        """Leave an audit record of what no task did."""
        self.after.append(
            effects.Audit(self.now, action, outcome, self.state.node_owner, "", subject, detail)
        )

    # -- persistence ----------------------------------------------------------------------------
    def seen(self, target: PhysicalObject) -> None:
        """The answer depends on the object's last store operation: wait until that is durable."""
        self._wait = max(self._wait, target.ticket)

    def wait_for_everything(self) -> None:
        """The answer depends on what earlier steps did: wait until all of it is durable."""
        self._wait = max(self._wait, Ticket(self.state.next_ticket - 1))

    def _take_ticket(self, target: PhysicalObject) -> Ticket:
        if not self._ticket:
            self._ticket = Ticket(self.state.next_ticket)
            self.state.next_ticket += 1
        target.ticket = self._ticket
        self._wait = self._ticket
        return self._ticket

    def put(self, target: PhysicalObject, source: WriteSource | None = None) -> None:
        """Store the object's record as it is now, and its bytes with it."""
        ticket = self._take_ticket(target)
        settled = self.state.settled
        target.undo = [entry for entry in target.undo if entry[0] > settled]
        target.undo.append((ticket, target.recorded))
        target.recorded = target.record()
        self.persist.append(effects.PutObject(target.recorded, source))

    def append(self, target: PhysicalObject, position: int, source: WriteSource) -> None:
        """Store one more entry of a log, and the object's record as it is now."""
        self.put(target)
        self.persist[-1] = effects.AppendLog(target.record(), position, source)

    def drop(self, target: PhysicalObject) -> None:
        """Remove the object from the store."""
        if target.recorded is None:
            return
        ticket = self._take_ticket(target)
        self.state.dropped.append((ticket, target))
        self.persist.append(effects.DropObject(target.id))

    # -- references and objects -----------------------------------------------------------------
    def grant(
        self,
        task: Task,
        target: PhysicalObject,
        permissions: Permission,
        provenance: Provenance,
        label: str = "",
        origin: Reference | None = None,
        expires_ns: int = 0,
    ) -> Reference:
        """Give the task a fresh reference and its public part."""
        reference = self.state.add_reference(
            task, target, permissions, provenance, label, origin, expires_ns, now=self.now
        )
        self.seen(target)
        if not task.home:
            self.after.append(effects.BindSlot(task.id, reference.public()))
        return reference

    def tell(self, task: Task, event: messages.SelfEvent) -> None:
        """Put an event before a task, wherever it is (§4.5.3)."""
        if task.home:
            body = dcp.Tell(task.id, event)
            if isinstance(event, messages.ChildEnded):
                peer = requests.cluster_of(self).peer(task.home)
                requests.tell_surely(self, peer, event.object, body)
            else:
                # What else there is to tell comes out when the nodes compare what they hold.
                requests.tell(self, task.home, body)
        else:
            task.push_event(event)
            self.changed(task.object)

    def close_buffer(self, buffer: Buffer) -> None:
        """End a buffer for good; an active request on it is aborted."""
        if buffer.active:
            abort(buffer)
            self.changed(buffer.object)
        task = buffer.reference.task
        task.buffers.pop(buffer.id, None)
        buffer.reference.buffers.pop(buffer.id, None)
        if buffer.owner is not None:
            buffer.owner.buffers.pop(buffer.id, None)
        charge_all(buffer.accounts, Resource.REQUESTS, -1)
        if buffer.held is not None:
            buffer.held.let_go()
        if not buffer.bare:
            # A commit of its bytes may still be on the way to the disk: they go after it.
            self.seen(buffer.object)
            self.after.append(effects.CloseBuffer(buffer.id))

    def close_away(self, buffer: AwayBuffer) -> None:
        """End a buffer whose request was on an object of another node."""
        task = buffer.reference.task
        del task.away[buffer.id]
        task.account.charge(Resource.REQUESTS, -1)
        buffer.held.let_go()
        self.after.append(effects.CloseBuffer(buffer.id))

    def drop_reference(self, reference: Reference) -> None:
        """Take a reference out of its table; the last counted one destroys its object (§4.2)."""
        task = reference.task
        target = reference.object
        for buffer in list(reference.buffers.values()):
            if buffer.reference is reference and buffer.owner is not None:
                self.changed(target)
                give_back(buffer)
            else:
                self.close_buffer(buffer)
        if target.home:
            for away in [one for one in task.away.values() if one.reference is reference]:
                self.close_away(away)
        # The task's own calls that wait on this reference must be told, whatever the object does.
        self.wake.update({row.key: row for row in target.waiters.values() if row.task is task})
        self.state.remove_reference(reference)
        if not task.home:
            self.after.append(effects.UnbindSlot(task.id, reference.slot))
        if target.home:
            self._let_go_over_there(reference)
        self._drop_stream_ends(reference)
        if not target.references and (target.home or not target.zombie):
            self.maybe_collect(target)

    def _let_go_over_there(self, reference: Reference) -> None:
        """The node that has the object is told, unless the whole task is over, which it is told as well."""
        task, cluster = reference.task, self.state.cluster
        if cluster is not None and not task.ended_ns:
            cluster.to_release.setdefault((reference.object.home, task.id), []).append(reference.id)
        mode = proxies.end_of(reference)
        if mode is not None:
            self.after.append(effects.CloseStreamEnd(reference.object.id, mode))

    def maybe_collect(self, target: PhysicalObject) -> None:
        """Destroy an object that nobody refers to any more, unless only a delete call may."""
        # One without a name is out of everybody's reach, whatever its deletion mode says.
        if target.home:
            if not target.references and not target.pinned:
                proxies.forget(self, target)
            return
        kept = target.deletion is Deletion.IMMEDIATE and target.name is not None
        if kept or target.references or target.zombie:
            return
        if not target.pinned:
            self.destroy(target)
        elif target.accounts and target.pinned == self.state.failed_programs.count(target):
            # The node alone keeps it, and its creator has no way to make room by deleting it.
            self.state.uncount(target)

    def destroy(self, target: PhysicalObject) -> None:
        """Zombie first, so that concurrent I/O fails safely, then gone from the node's tables."""
        target.zombie = True
        holders = list(target.references.values())
        target.references.clear()
        for reference in holders:
            for buffer in list(reference.task.buffers.values()):
                if buffer.object is target:
                    abort(buffer)
        target.a_r = target.a_w = 0
        if isinstance(target.state, StreamState):
            for mode in [mode for mode in Mode if mode not in target.state.gone]:
                self._close_stream_end(target, target.state, mode)
        self.changed(target)
        self.drop(target)
        self.state.forget_object(target)
        if target.state is None:
            self.after.append(effects.DiscardContent(target.id))
        elif isinstance(target.state, SocketState | AcceptState):
            self.after.append(effects.CloseNetwork(target.id))

    def _drop_stream_ends(self, reference: Reference) -> None:
        state = reference.object.state
        if not isinstance(state, StreamState):
            return
        target = reference.object
        for mode, right in ((Mode.READ, Permission.READ), (Mode.WRITE, Permission.WRITE)):
            holder = state.holder.get(mode)
            taken = holder is not None and holder != (reference.task.id, reference.id)
            could_be = holder is None and any(
                other.permissions & right for other in target.references.values()
            )
            if mode not in state.gone and not taken and not could_be:
                self._close_stream_end(target, state, mode)

    def _close_stream_end(self, target: PhysicalObject, state: StreamState, mode: Mode) -> None:
        """The end is gone for good, or nobody can take it; the other one learns it through the ring."""
        state.holder.pop(mode, None)
        state.gone.add(mode)
        self.after.append(effects.CloseStreamEnd(target.id, mode))
        self.changed(target)

    # -- answers of other nodes -----------------------------------------------------------------
    def continue_with(self, then: Continuation, answer: dcp.Answer) -> None:
        """Go on with an answer once what is under way in this step is done."""
        self.answers += (ReceivedAnswer(then, answer, self.payload, self.payload_size),)

    def follow(self, decision: Decision) -> None:
        """Have a decision of the membership followed once the call is handled."""
        self.decisions += (decision,)

    # -- waiting --------------------------------------------------------------------------------
    def wait(self, row: Pending) -> None:
        """Let a call wait; refused where it must not."""
        if self.parts is not None:
            raise WouldBlockError("the call would have to wait, which none inside a vector may")
        self.state.pending.add(row)

    def outcome(self) -> Outcome:
        """What the host has to do."""
        self.flush_counters()
        waits, ends = self.state.pending.next_deadline(), self.state.expiries.next()
        deadline = waits if ends is None else ends if waits is None else min(waits, ends)
        cluster = self.state.cluster
        if cluster is not None:
            if cluster.to_release:
                proxies.release(self, cluster)
            moment = cluster.due_at = cluster.next_moment()
            if moment is not None:
                deadline = moment if deadline is None else min(deadline, moment)
        return Outcome(self.persist, self.after, self._ticket, self._wait, deadline)
