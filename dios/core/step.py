"""One step of the core: collects the outcome while handlers change the state.

Handlers check everything first and change the state afterwards, so that a refusal changes nothing. The
creation and the end of references and objects are in ``dios.core.lifetimes``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from dios import limits
from dios.core import effects
from dios.core.effects import Effect, Outcome, Reply, StoreOperation, WriteSource
from dios.core.membership.swim import Decision
from dios.core.model import disclosure
from dios.core.model.records import Holder, Pending, PhysicalObject, Waking
from dios.core.model.secrecy import Label
from dios.core.model.state import State
from dios.core.model.work_items import WokenCalls, WorkItem
from dios.core.remote import cached_replies, publication
from dios.core.remote.continuations import Continuation
from dios.core.remote.peers import Cluster, Peer
from dios.errors import DiosError, InvalidError, UnreachableError, WouldBlockError
from dios.ids import NodeId, PayloadId, Ticket
from dios.wire import dcp, messages

Party: TypeAlias = Holder | PhysicalObject | Peer | None
"""The one that a step works for: a task, an object, a node, or None for this node itself."""

_SHOWN_MAX: Final = 8_192
"""References for which a change of their object is charged, at most: one unit for eight of them."""


class Defect(NamedTuple):
    """An exception in the work for a party."""

    party: Party
    error: Exception


class ReceivedAnswer(NamedTuple):
    """An answer of another node, the bytes that came with it, and the continuation that handles it.

    With ``unsent``, the answer is a failure of a request that never left this node.
    """

    then: Continuation
    answer: dcp.Answer
    payload: PayloadId
    payload_size: int
    unsent: bool


class Step:
    """The state, the event's time and caller, and the growing outcome."""

    # Defaults of the class, which most steps never set: a step is made for each event.
    answers: tuple[ReceivedAnswer, ...] = ()
    decisions: tuple[Decision, ...] = ()
    defects: Sequence[Defect] = ()
    parts: list[Reply] | None = None
    served: tuple[Peer, int] | None = None
    """The node and the number of the request of this step."""
    payload = PayloadId(0)
    payload_size = 0
    unsent = False
    """True while the failure of a request is handled that never left this node."""
    units = 0
    units_max: int = limits.STEP_UNITS
    writing: PhysicalObject | None = None
    """An object whose attributes and bytes may not fit each other."""
    informed = NodeId(0)
    """The node to which the answer itself carries the new versions."""
    known: int | None = None
    """The version that the asking node has, of the object of its call."""
    wants_lease = False
    """True if the asking node wants a lease for the reference of its call."""
    _ticket = Ticket(0)
    _wait = Ticket(0)

    def __init__(self, state: State, now: int) -> None:
        self.state: Final = state
        self.now: Final = now
        self.persist: list[StoreOperation] = []
        self.after: list[Effect] = []
        self.started: deque[WorkItem] = deque()
        self.woken: dict[tuple[int, int], Pending] = {}
        self.written: set[int] = set()  # objects whose volatile bytes this step writes
        self.read_in_vector: set[int] = set()
        self.opened_in_vector: set[int] = set()
        self._changed: dict[int, PhysicalObject] = {}

    def require_cluster(self) -> Cluster:
        """Return the state of the cluster; raise UnreachableError on a node without a cluster."""
        cluster = self.state.cluster
        if cluster is None:
            raise UnreachableError("cannot reach other nodes: this node is not part of a cluster")
        return cluster

    def note_defect(self, party: Party, error: Exception) -> None:
        """Note an exception in the work for a party, which ``dios.core.containment`` then ends."""
        self.defects = [*self.defects, Defect(party, error)]

    def abandon_vector(self) -> None:
        """Forget the vector that was being answered: its calls stay without an answer."""
        self.parts = None
        self.read_in_vector.clear()
        self.opened_in_vector.clear()

    # -- answers --------------------------------------------------------------------------------
    def reply(self, answer: Reply) -> None:
        """Answer a call; inside a vector the parts are collected first."""
        if self._changed and self.parts is None:
            self.flush_counters()
        if self.state.remote_tasks and self.parts is None:
            cached_replies.remember(self.state, answer)
        if self.parts is not None:
            self.parts.append(answer)
        else:
            self.after.append(answer)

    def emit_answer(self, answer: effects.AnswerVector) -> None:
        """Answer a whole vector."""
        self.flush_counters()
        if self.state.remote_tasks:
            cached_replies.remember(self.state, answer)
        self.after.append(answer)

    def answer(self, task: Holder, seq: int, result: messages.AnyResult) -> None:
        """Answer with a result that needs no bytes from the host."""
        if type(result) in disclosure.LISTS:
            result = disclosure.shown(task, result)
        self.reply(effects.Answer(task.id, seq, result))

    def refuse(self, task: Holder, seq: int, error: DiosError) -> None:
        """Answer with an error."""
        self.answer(task, seq, messages.Failure(int(error.code), error.message, error.fingerprint))

    def require_unread(self, target: PhysicalObject) -> None:
        """Raise InvalidError if an earlier call of this vector reads the object, or attaches to it.

        The bytes of a read are taken, and the ring is made, when the whole vector is answered. So later calls
        must not change them.
        """
        if target.id in self.read_in_vector:
            raise InvalidError(
                "the calls of a vector must be independent, but an earlier one uses this object."
                " Send this call after the vector."
            )

    # -- effects --------------------------------------------------------------------------------
    def emit(self, effect: Effect) -> None:
        """Add an effect, which runs once the step's store operations are durable."""
        self.after.append(effect)

    def show_counters(self, task: Holder, tags: Label) -> None:
        """Show a task the counters of the labelled objects that it may know since its label has these tags.

        Its page has them before the answer by which it learns of its label.
        """
        self.spend(len(task.table) // 16)
        shown = [
            effects.BindSlot(task.id, reference.public())
            for reference in task.table
            if not set(tags).isdisjoint(reference.object.counters_label) and reference.shows_counters
        ]
        answered = (place for place, effect in enumerate(self.after) if isinstance(effect, Reply))
        place = next(answered, len(self.after))
        self.after[place:place] = shown

    def changed(self, target: PhysicalObject) -> None:
        """Publish the object's counters with this step, and wake the calls that wait on it."""
        self._changed[target.id] = target
        if target.waiters:
            self.wake(target)

    def flush_counters(self) -> None:
        """Write changed counters to the pages before the answer that mentions them."""
        for target in self._changed.values():
            self.spend(min(len(target.references), _SHOWN_MAX) // 8)
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
                    target.direct,
                )
            )
            if target.watchers and self.state.cluster is not None:
                self.after += publication.publish(self.state.cluster, target, self.now, self.informed)
        self._changed.clear()

    def audit(self, task: Holder, action: str, outcome: str, subject: str, detail: str = "") -> None:
        """Write an audit record (§3.2.2)."""
        self.after.append(
            effects.Audit(
                self.now,
                action,
                outcome,
                task.principal,
                task.object.fingerprint,
                subject,
                detail,
                task.job,
            )
        )

    def audit_node(self, action: str, outcome: str, subject: str, detail: str = "") -> None:
        """Write an audit record of an action of the node itself."""
        self.after.append(
            effects.Audit(self.now, action, outcome, self.state.node_owner, "", subject, detail)
        )

    # -- persistence ----------------------------------------------------------------------------
    def depend_on(self, target: PhysicalObject) -> None:
        """Delay the answer until the object's last store operation, which it depends on, is durable."""
        self._wait = max(self._wait, target.ticket)

    def depend_on_everything(self) -> None:
        """Delay the answer until the store operations of all earlier steps are durable."""
        self._wait = max(self._wait, Ticket(self.state.next_ticket - 1))

    @property
    def waits_for(self) -> Ticket:
        """The ticket that must be durable before this step's answers are sent."""
        return self._wait

    def wait_for(self, ticket: Ticket) -> None:
        """Delay the answers until this ticket is durable."""
        self._wait = max(self._wait, ticket)

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
        before = target.recorded
        target.undo.append((ticket, before))
        self.state.unsettled.append((ticket, target))
        target.recorded = target.record()
        self.persist.append(effects.PutObject(target.recorded, source, new=before is None))

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
        self.state.dropping[target.id] = ticket
        self.persist.append(effects.DropObject(target.id))

    # -- answers of other nodes -----------------------------------------------------------------
    def continue_with(self, then: Continuation, answer: dcp.Answer, *, unsent: bool = False) -> None:
        """Handle an answer of another node after the current event is handled."""
        self.answers += (ReceivedAnswer(then, answer, self.payload, self.payload_size, unsent),)

    def follow(self, decision: Decision) -> None:
        """Carry out a decision of the membership after the current call is handled."""
        self.decisions += (decision,)

    # -- long work ------------------------------------------------------------------------------
    def spend(self, units: int) -> None:
        """Count work, see ``dios.core.model.work_items``."""
        self.units += units

    @property
    def exhausted(self) -> bool:
        """True if long work must wait for further steps."""
        return self.units >= self.units_max

    def start(self, item: WorkItem) -> None:
        """Begin long work: this step does as much of it as it can, and further steps do the rest."""
        self.started.append(item)

    def wake(self, target: PhysicalObject) -> None:
        """Try all calls again that wait on an object."""
        if target.waking is Waking.NO:
            target.waking = Waking.QUEUED
            self.started.append(WokenCalls(target))
        elif target.waking is Waking.BEGUN:
            target.waking = Waking.AGAIN

    def wake_own(self, task: Holder, target: PhysicalObject) -> None:
        """Try a task's own calls again that wait on an object."""
        self.spend(len(task.pending) // 16)
        self.woken.update({row.key: row for row in task.pending.values() if target in row.watched})

    # -- waiting --------------------------------------------------------------------------------
    def wait(self, row: Pending) -> None:
        """Let a call wait; raise WouldBlockError inside a vector."""
        if self.parts is not None:
            raise WouldBlockError(
                "the call would have to wait, which calls of a vector cannot. Send it alone."
            )
        self.state.pending.add(row)

    def outcome(self) -> Outcome:
        """Return everything that the host has to do."""
        self.flush_counters()
        deadline = self.state.pending.next_deadline()
        expiry = self.state.expiries.next()
        if expiry is not None and (deadline is None or expiry < deadline):
            deadline = expiry
        move = self.state.moves.next()
        if move is not None and (deadline is None or move < deadline):
            deadline = move
        if self.state.work or (deadline is not None and deadline < self.now):
            deadline = self.now  # there is work left, or there are more references that have expired
        cluster = self.state.cluster
        if cluster is not None:
            moment = cluster.due_at = cluster.next_moment()
            if moment is not None:
                deadline = moment if deadline is None else min(deadline, moment)
        return Outcome(self.persist, self.after, self._ticket, self._wait, deadline, self.units)
