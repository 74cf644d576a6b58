"""The core of a node: ``Core.step`` takes an event, changes the tables, and returns an outcome.

A step never blocks, reads no clock, draws entropy only from the given function, and never accesses the
machine. The same events and the same entropy give the same outcomes, byte for byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from graphlib import TopologicalSorter
from typing import Final

from dios import limits
from dios.core import containment, effects, events, lifetimes, work
from dios.core.calls import groups, lifecycle, logs, moves, network_streams, node_calls
from dios.core.calls.dispatch import enter
from dios.core.calls.retirement import expire
from dios.core.effects import Outcome
from dios.core.events import ObjectRecord
from dios.core.membership.swim import Membership
from dios.core.model.accounts import Defaults
from dios.core.model.placement import LeastLoaded
from dios.core.model.records import PhysicalObject
from dios.core.model.rows import NoRows, RowSource
from dios.core.model.state import State
from dios.core.model.type_states import ConsoleState
from dios.core.model.work_items import NodeEnd, RetriedCalls
from dios.core.remote import (
    authority,
    cached_replies,
    cluster_events,
    generations,
    granted_leases,
    mandate_table,
    proxies,
    registration,
    requests,
)
from dios.core.remote.peers import Cluster, Here
from dios.core.remote.resume import resume_all
from dios.core.step import Step
from dios.errors import InvariantError, ProtocolError
from dios.ids import NodeId, Principal, TaskId
from dios.wire import messages
from dios.wire.gossip import Load, MemberRow
from dios.wire.node_labels import text_of
from dios.wire.types import Cause, Deletion, ObjectType


class Core:
    """One node's names, groups, objects, references, requests and tasks.

    ``entropy(n)`` returns n unpredictable bytes; ``node_owner`` may stop the node; ``restricted`` is the
    mode of Table 4.7; ``defaults`` are the limits of accounts without limits of their own. ``rows`` are the
    rows that the core reads when it needs them.
    """

    def __init__(
        self,
        entropy: Callable[[int], bytes],
        node_owner: Principal,
        *,
        restricted: bool = False,
        defaults: Defaults = Defaults(),  # noqa: B008 - it is frozen
        here: Here = Here(),  # noqa: B008 - likewise
        forgotten: tuple[NodeId, ...] = (),
        rows: RowSource = NoRows(),  # noqa: B008 - likewise
    ) -> None:
        cluster = None
        if here.node:
            load = Load(cpus=here.cpus)
            own = MemberRow(
                here.node,
                here.name,
                here.rack,
                here.address,
                here.epoch,
                load=load,
                labels=text_of(here.labels),
            )
            cluster = Cluster(here, Membership(own, entropy, forgotten), LeastLoaded())
        self.state: Final = State(
            entropy,
            node_owner,
            restricted=restricted,
            defaults=defaults,
            cluster=cluster,
            secret=here.secret,
            rows=rows,
        )

    def __repr__(self) -> str:
        return f"<Core with {self.state!r}>"

    @classmethod
    def continued(cls, state: State) -> Core:
        """Return a core that continues from a state, such as one from ``dios.core.snapshot.decode``."""
        core = cls.__new__(cls)
        object.__setattr__(core, "state", state)
        return core

    def step(self, event: events.Event) -> Outcome:
        """Handle one event: change the tables and return the outcome."""
        step = Step(self.state, event.now)
        self.state.story.now = event.now
        next_expiry = self.state.expiries.next()
        if next_expiry is not None and next_expiry <= event.now:
            expire(step, limits.STEP_UNITS if type(event) is events.TimerFired else limits.STEP_UNITS // 8)
            step.units = 0
            caller = self.state.tasks.get(event.task) if type(event) is events.Called else None
            if caller is not None and self.state.expiries.due(event.now) is not None:
                caller.table.now = event.now  # its own references may be among those that wait for a step
        next_move = self.state.moves.next()
        if next_move is not None and next_move <= event.now:
            moves.end_late(step)
            step.units = 0
        cluster = self.state.cluster
        if cluster is not None:
            if event.now - cluster.seen_ns > limits.PROCESS_STALL_MS * 1_000_000:
                requests.reset_silence(step, cluster)
            cluster.seen_ns = event.now
            moment = cluster.due_at
            if moment is not None and moment <= event.now:
                cluster_events.time_passed(step, cluster)
                resume_all(step)
        try:
            if type(event) is events.Called:
                self._called(step, event)
            else:
                self._other(step, event)
        except Exception as error:
            if isinstance(error, ProtocolError) and type(event) is events.Received:
                raise  # the message was refused, and nothing has changed
            step.note_defect(containment.party_of(self.state, event), error)
        _follow_up(step)
        if step.defects:
            first = step.defects[0]
            containment.end_parties(step, event)
            _follow_up(step)
            containment.require_sound(step, first)
        if self.state.idle:
            self.state.unload_idle()
        return step.outcome()

    def has_request(self, node: NodeId, number: int) -> bool:
        """Return True if a request of another node was handled before, so that its repeat gets the answer."""
        cluster = self.state.cluster
        peer = None if cluster is None else cluster.peers.get(node)
        return peer is not None and number in peer.answers

    def holder_id(self, node: NodeId, task: TaskId) -> TaskId:
        """Return the id here of a task of another node; 0 if no such task has a record here."""
        return self.state.holder_id(node, task) if self.state.holder_key else TaskId(0)

    def _called(self, step: Step, event: events.Called) -> None:
        task = self.state.tasks.get(event.task)
        if task is None or task.ended_ns or task.cause is not Cause.NONE:
            return  # the last messages of a task that is ending
        call = event.call
        if self.state.shutting_down:
            step.answer(task, event.seq, lifecycle.refused_for_shutdown())
        elif self.state.defects.total and containment.has_too_many(step, task):
            step.refuse(task, event.seq, containment.too_many())
        elif isinstance(call, messages.Hello):
            reason = "the client sent a second Hello on this connection"
            lifecycle.disconnected(step, events.Disconnected(event.now, event.task, reason))
            step.emit(effects.CloseConnection(event.task, reason))
        elif event.seq in task.pending:
            reason = f"the client re-used sequence number {event.seq} while its call is waiting"
            lifecycle.disconnected(step, events.Disconnected(event.now, event.task, reason))
            step.emit(effects.CloseConnection(event.task, reason))
        else:
            enter(step, task, event.seq, call, event.payload)

    def _other(self, step: Step, event: events.Event) -> None:
        task = getattr(event, "task", None)
        if task:
            holder = self.state.tasks.get(task)
            self._handle(step, event)
            holder = holder or self.state.tasks.get(task)
            if holder is not None:
                self.state.story.note(type(event).__name__, holder.object.fingerprint, "")
        else:
            self._handle(step, event)

    def _handle(self, step: Step, event: events.Event) -> None:  # noqa: PLR0915 - one case for each event
        match event:
            case events.SessionOpened():
                lifecycle.open_session(step, event)
            case events.TaskStarted():
                lifecycle.task_started(step, event)
            case events.TaskEnded():
                lifecycle.task_ended(step, event)
            case events.Disconnected():
                lifecycle.disconnected(step, event)
            case events.ConsoleArrived():
                self._console_arrived(step, event)
            case events.TimerFired():
                late = self.state.pending.expired(event.now, limits.STEP_UNITS)
                if late:
                    step.start(RetriedCalls(late[::-1]))
                work.resume(step)
            case events.Persisted():
                self._persisted(event)
            case events.PersistFailed():
                self._persist_failed(step, event)
            case events.EffectFailed():
                self._effect_failed(step, event)
            case events.DefectFound():
                containment.found_by_host(step, event)
            case events.NetworkOpened():
                network_streams.opened(step, event)
            case events.NetworkFailed():
                network_streams.failed(step, event)
            case events.ConnectionArrived():
                network_streams.arrived(step, event)
            case events.DatagramsDropped():
                network_streams.dropped(step, event)
            case events.Recovered():
                self._recovered(step, event)
            case events.ShutdownBegan():
                self._shut_down(step)
            case events.Received():
                cluster_events.received(step, event)
            case events.PeerUp():
                cluster_events.peer_up(step, event)
            case events.PeerDown():
                cluster_events.peer_down(step, event)
            case events.PeerPaused():
                cluster_events.peer_paused(step, event)
            case events.UnderWay():
                cluster_events.under_way(step, event)
            case events.LogLeft():
                logs.keep_output(step, event)
            case events.NodesRemoved():
                cluster_events.nodes_removed(step, event)
            case events.LabelsStored():
                node_calls.labels_stored(step, event)
            case events.RegisterStored():
                authority.register_stored(step, event)
            case events.ExtensionsFailed():
                mandate_table.not_signed(self.state.cluster, event)
            case events.SecretsStored():
                generations.stored(step, event)
            case events.LoadMeasured():
                cluster_events.load_measured(step, event)
            case events.FitnessChanged():
                cluster_events.fitness_changed(step, event)
            case events.CapacityChanged():
                cluster_events.capacity_changed(step, event)
            case _:
                raise InvariantError(f"no handler for {type(event).__name__}")

    # -- events of the store ----------------------------------------------------------------------
    def _recovered(self, step: Step, event: events.Recovered) -> None:
        # Groups first: the objects in them are counted with them.
        for record in _groups_first(event.records):
            counted = record.deletion is Deletion.REFERENCE_COUNTED and record.type is not ObjectType.GROUP
            if record.name is None or (counted and self.state.cluster is None):
                # Its references are gone. Without a name, nothing can reach it any more.
                step.drop(PhysicalObject.from_record(record))
                continue
            self._reinstate(record)
            if counted and self.state.cluster is not None:
                cluster_events.expect_references(step, self.state.cluster, record.object)
        self.state.expect_dormant(event.dormant)
        if self.state.cluster is not None:
            granted_leases.note_start(step, self.state.cluster)

    def _reinstate(self, record: ObjectRecord, former: PhysicalObject | None = None) -> None:
        """Enter a stored object; one that was just dropped (``former``) keeps its former accounts."""
        if record.type is ObjectType.GROUP and record.deletion is Deletion.IMMORTAL:
            groups.adopt_home(self.state, PhysicalObject.from_record(record))
            return
        owner = self.state.account_of(record.owner)
        accounts = (owner, *self.state.accounts_of_groups(record.groups))
        target = PhysicalObject.from_record(record, accounts if former is None else former.accounts)
        target.account = None if former is None else former.account
        self.state.add_object(target)
        if target.type is ObjectType.GROUP:
            self.state.enter_group(target)
        elif logs.is_log(self.state, target):
            logs.remember(self.state, target)
        else:
            self.state.note_idle(target)

    def _persisted(self, event: events.Persisted) -> None:
        self.state.settle(event.last)

    def _persist_failed(self, step: Step, event: events.PersistFailed) -> None:
        """Return to the records in the store, because no operation from ``first`` on took place."""
        cached_replies.undo_answers(self.state, event.first, messages.Failure(event.code, event.message))
        if self.state.cluster is not None:
            registration.refuse_held(self.state.cluster.index, event)
        changed = {target.id: target for _, target in self.state.unsettled if not target.zombie}
        self.state.unsettled.clear()
        for target in changed.values():
            before = _record_before(target, event)
            if before is target.recorded:
                continue
            target.undo = [entry for entry in target.undo if entry[0] < event.first]
            if before is None:
                target.recorded = None
                lifetimes.destroy(step, target)
            else:
                target.restore(before)
                self.state.apply_limits(target)
                # Versions go back and will be counted again: requests active over this must not trust them.
                target.dirty += 1
                step.changed(target)
        for ticket, target in self.state.dropped:
            before = _record_before(target, event)
            if event.first <= ticket <= event.last and before is not None:
                self._reinstate(before, target)
        self.state.dropped = deque(entry for entry in self.state.dropped if entry[0] < event.first)
        self.state.dropping = {target.id: ticket for ticket, target in self.state.dropped}

    def _effect_failed(self, step: Step, event: events.EffectFailed) -> None:
        """Close the buffer that the host could not provide; the host has answered the task."""
        task = self.state.tasks.get(event.task) or self.state.remote_tasks.get(event.task)
        if task is None:
            return
        buffer = next(
            (candidate for candidate in task.buffers.values() if candidate.id == event.buffer), None
        )
        if buffer is not None:
            lifetimes.close_buffer(step, buffer)
        remote_buffer = next(
            (candidate for candidate in task.remote_buffers.values() if candidate.id == event.buffer), None
        )
        if remote_buffer is not None:
            lifetimes.close_remote_buffer(step, remote_buffer)

    # -- other events -------------------------------------------------------------------------------
    def _console_arrived(self, step: Step, event: events.ConsoleArrived) -> None:
        task = self.state.tasks.get(event.task)
        if task is None or not isinstance(task.console.state, ConsoleState):
            return
        console = task.console
        if event.size:
            task.console.state.arrived += event.size
            console.size += event.size
        else:
            task.console.state.closed = True
        step.changed(console)

    def _shut_down(self, step: Step) -> None:
        self.state.shutting_down = True
        if self.state.cluster is not None:
            registration.release_all(step, self.state.cluster)
            cluster_events.leave(step, self.state.cluster)
        step.start(NodeEnd(list(self.state.tasks.values())[::-1]))


def _groups_first(records: tuple[ObjectRecord, ...]) -> list[ObjectRecord]:
    """Return the records in an order in which each comes after the groups that it is in."""
    named = {record.name: record for record in records if record.name and record.type is ObjectType.GROUP}
    inside = {name: [other for other in record.groups if other in named] for name, record in named.items()}
    ordered = [named[name] for name in TopologicalSorter(inside).static_order()]
    return [*ordered, *(record for record in records if record.type is not ObjectType.GROUP)]


def _record_before(target: PhysicalObject, event: events.PersistFailed) -> ObjectRecord | None:
    """Return the record that the store holds, given that the operations of ``event`` did not happen."""
    for ticket, before in target.undo:
        if event.first <= ticket <= event.last:
            return before
    return target.recorded


def _follow_up(step: Step) -> None:
    """Do everything that follows from the changes of a step, as far as it fits into the step."""
    cluster = step.state.cluster
    while step.decisions or step.answers or step.started or step.woken or step.state.names.changes:
        if step.decisions:
            cluster_events.follow_all(step)
        resume_all(step)
        work.begin(step)
        if cluster is not None and not (step.decisions or step.answers or step.started or step.woken):
            registration.note_changes(step, cluster)
    if cluster is not None and cluster.to_release:
        proxies.release(step, cluster)
