"""No step costs more than a bound on account of another node: its requests, its reports, its death."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pytest

from dios import limits
from dios.core import events
from dios.core.effects import Outcome
from dios.core.machine import Core
from dios.core.model.invariants import check
from dios.core.model.names import logs_group
from dios.core.model.records import PhysicalObject, Provenance, RemoteTask
from dios.core.model.state import State
from dios.core.remote import serving
from dios.core.remote.lease_table import HeldLease
from dios.core.remote.name_index import pack_digests
from dios.core.remote.peers import Peer
from dios.errors import ProtocolError
from dios.ids import InternalName, Name, ObjectId, Principal, RefId, TaskId
from dios.wire import dcp, messages
from dios.wire.types import Brand, Buffering, ObjectType, Permission
from labs.sim.step_work import lines_of
from tests.support.core import harness
from tests.support.core.two_nodes import Two

pytestmark = pytest.mark.long

HELD: Final = limits.REFERENCES_PER_TASK_MAX // 2
_INVENTED: Final = 1 << 40
CALLER: Final = dcp.Caller(TaskId(77), "uid:1000", "f" * 12, Brand.LEGACY)


class MeasuredCore:
    """A core whose steps are measured while ``measured`` is set."""

    def __init__(self, core: Core) -> None:
        self._core: Final = core
        self.measured = False
        self.most = 0
        self.steps = 0

    @property
    def state(self) -> State:
        """The tables."""
        return self._core.state

    def step(self, event: events.Event) -> Outcome:
        """Make one step."""
        if not self.measured:
            return self._core.step(event)
        outcome, lines = lines_of(lambda: self._core.step(event))
        self.most, self.steps = max(self.most, lines), self.steps + 1
        return outcome


class Pair(Two):
    """Two nodes; the steps of the second are measured."""

    def __init__(self) -> None:
        super().__init__()
        self.core: Final = MeasuredCore(self.there.core)
        self.there.payloads = defaultdict(bytes)
        self.there.core = self.core  # type: ignore[assignment] # all that a node asks of its core
        self._number = _INVENTED

    @property
    def state(self) -> State:
        """The tables of the second node."""
        return self.core.state

    @property
    def peer(self) -> Peer:
        """The first node in the tables of the second."""
        assert self.state.cluster is not None
        return self.state.cluster.peer(self.here.node)

    def measure(self, act: Callable[[], object]) -> None:
        """Let something happen on the second node, with all that follows there."""
        self.core.measured, self.core.most, self.core.steps = True, 0, 0
        act()
        while (deadline := self.there.outcome.deadline) is not None and deadline <= self.there.now:
            self.there.step(events.TimerFired(self.there.now))
        self.core.measured = False
        check(self.state)
        assert self.core.most <= limits.STEP_WORK_MAX, (
            f"{self.core.most} lines in one of {self.core.steps} steps"
        )

    def ask(self, body: dcp.RequestBody) -> None:
        """Measure a request of the first node."""
        self._number += 1
        self.measure(lambda: self.hear(dcp.Ask(self._number, 0, body)))

    def visitor(self, held: int = HELD, number: int = 77) -> RemoteTask:
        """A task of the first node that holds many references here, to one object each time."""
        state = self.state
        caller = dcp.Caller(TaskId(number), "uid:1000", f"{number:012x}", Brand.LEGACY)
        known = self.peer.remote_tasks
        if TaskId(number) not in known:
            self.hear(dcp.Ask(self._next(), 0, dcp.Resolve(caller, (), 1)))
            self.cluster.wire.clear()
        task = known[TaskId(number)]
        target = next(blob for blob in state.objects.values() if blob.type is ObjectType.SHMEM_BLOB)
        for _ in range(held):
            state.add_reference(task, target, Permission.ALL, Provenance.RESOLVED)
        return task

    def _next(self) -> int:
        self._number += 1
        return self._number


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Two nodes, without a check of all tables after each step."""
    monkeypatch.setattr(harness, "check", lambda state: None)  # noqa: ARG005 - checked at the end
    return Pair()


def late(pair: Pair) -> None:
    """Let so much time pass that references are no longer young."""
    pair.there.now += (limits.RECONCILE_YOUNG_MS + 1) * 1_000_000


def test_a_release_of_all_references_takes_short_steps(pair: Pair) -> None:
    """A task of another node drops all that it holds here, in one message."""
    task = pair.visitor()
    refs = tuple(RefId(reference.id) for reference in task.table)
    pair.ask(dcp.Release(task.home_id, refs))
    assert not len(task.table)


def test_the_end_of_tasks_with_full_tables_takes_short_steps(pair: Pair) -> None:
    """Tasks of another node end."""
    tasks = [pair.visitor(HELD // 4, 80 + number) for number in range(4)]
    pair.ask(dcp.TasksEnded(tuple(task.home_id for task in tasks)))
    assert not any(task.id in pair.state.remote_tasks for task in tasks)
    assert not any(len(task.table) for task in tasks)


def test_a_report_that_names_nothing_takes_short_steps(pair: Pair) -> None:
    """Another node reports that its tasks hold nothing of what they hold here."""
    tasks = [pair.visitor(HELD // 4, 80 + number) for number in range(4)]
    late(pair)
    holdings = tuple(
        dcp.HeldReferences(dcp.Caller(task.home_id, "uid:1000", "f" * 12, Brand.LEGACY), 0, 2**63 - 1, ())
        for task in tasks
    )
    pair.ask(dcp.ReconcileReferences(1, holdings, (), None))
    assert not any(len(task.table) for task in tasks)


def test_a_report_of_references_that_are_not_here_takes_short_steps(pair: Pair) -> None:
    """Another node reports as many references as a message can have, and none of them is known."""
    pair.visitor(1)
    entries = tuple(
        (RefId(number), ObjectId(number), 31, True)
        for number in range(1, limits.RECONCILE_REFERENCES_MAX + 1)
    )
    holding = dcp.HeldReferences(CALLER, 0, 2**63 - 1, entries)
    pair.ask(dcp.ReconcileReferences(1, (holding,), (), (CALLER.task,)))


def test_a_report_without_a_task_that_holds_much_takes_short_steps(pair: Pair) -> None:
    """Another node does not list a task that holds many references here; the task ends."""
    task = pair.visitor()
    late(pair)
    pair.ask(dcp.ReconcileReferences(1, (), (), ()))
    assert task.id not in pair.state.remote_tasks


def test_a_node_that_restarts_takes_short_steps(pair: Pair) -> None:
    """Another node has restarted: its tasks end here, and all requests to it fail."""
    tasks = [pair.visitor(HELD // 4, 80 + number) for number in range(4)]
    waiting = requests_to_the_first(pair)
    pair.measure(lambda: pair.there.step(events.PeerUp(pair.there.now, pair.here.node, 2, "n1", "r1", "a:1")))
    assert not any(len(task.table) for task in tasks)
    assert all(client.answer(seq) is not None for client, seq in waiting)


def test_a_node_that_dies_takes_short_steps(pair: Pair) -> None:
    """Another node is dead: all requests to it fail; its tasks end after a while."""
    task = pair.visitor()
    waiting = requests_to_the_first(pair)
    pair.cluster.part(pair.here, pair.there)
    there = pair.there
    pair.core.measured = True
    for _ in range(400):
        there.now += 100_000_000
        pair.measure(lambda: there.step(events.TimerFired(there.now)))
    assert all(client.answer(seq) is not None for client, seq in waiting)
    assert task.id not in pair.state.remote_tasks
    assert not len(task.table)


def requests_to_the_first(pair: Pair) -> list[tuple[harness.Client, int]]:
    """Make as many calls on objects of the first node as fit the table of requests; none is answered."""
    created = pair.me.create(data=b"far")
    assert created.name is not None
    waiting: list[tuple[harness.Client, int]] = []
    for _ in range(8):
        client = pair.there.session()
        (reference,) = client.lookup(created.name)
        pair.cluster.wire.clear()
        calls = [messages.Stat(reference.ref) for _ in range(limits.PENDING_PER_TASK_MAX)]
        waiting += [(client, client.send(call)) for call in calls]
        pair.cluster.wire.clear()
    return waiting


def test_what_a_node_reports_about_many_references_takes_short_steps(pair: Pair) -> None:
    """A task here holds many references to objects of another node, and the nodes compare them."""
    created = pair.me.create(data=b"far")
    assert created.name is not None
    client = pair.there.session()
    client.lookup(created.name)
    cluster = pair.state.cluster
    assert cluster is not None
    peer = cluster.peer(pair.here.node)
    proxy: PhysicalObject = next(
        candidate for candidate in peer.proxies.values() if candidate.type is ObjectType.SHMEM_BLOB
    )
    task = pair.state.tasks[client.task]
    for number in range(HELD):
        pair.state.add_reference(task, proxy, Permission.READ, Provenance.RESOLVED, ref_id=number + 1)
    pair.there.now += limits.RECONCILE_PERIOD_MS * 1_000_000
    pair.measure(lambda: pair.there.step(events.TimerFired(pair.there.now)))
    reports = [
        (parcel.message.number, parcel.message.body)
        for parcel in pair.cluster.wire
        if isinstance(parcel.message, dcp.Ask) and isinstance(parcel.message.body, dcp.ReconcileReferences)
    ]
    pair.cluster.wire.clear()
    number, _ = reports[-1]
    unknown = dcp.UnknownReferences(tuple(RefId(ref_number) for ref_number in range(1, HELD + 1)), ())
    pair.measure(lambda: pair.hear(dcp.PeerReply(number, unknown)))
    assert len(task.table) < 10


def test_changes_of_many_objects_are_published_in_short_steps(pair: Pair) -> None:
    """Many objects that another node refers to change at once."""
    client = pair.there.session()
    refs = [client.create(data=b"x").reference for _ in range(2_000)]
    task = pair.visitor(0)
    for reference in refs:
        pair.state.add_reference(
            task, pair.state.objects[ObjectId(reference.object)], Permission.READ, Provenance.RESOLVED
        )
    for reference in refs:
        client.send(messages.WriteOnce(reference.ref, b"y"))
    pair.there.now += limits.PUBLISH_DELAY_MS * 2_000_000
    pair.measure(lambda: pair.there.step(events.TimerFired(pair.there.now)))


# -- every request --------------------------------------------------------------------------------------
def _held(pair: Pair) -> dcp.HeldReference:
    public = pair.me.create(data=b"x").reference
    return dcp.HeldReference(pair.here.node, public)


def _shared(pair: Pair) -> tuple[dcp.SharedReference, ...]:
    task = pair.visitor(1)
    ref = next(iter(task.table)).id
    return tuple(dcp.SharedReference(ref, 1, "") for _ in range(2 * limits.ARGUMENTS_MAX))


_CHILD: Final = dcp.Caller(TaskId(99), "uid:1000", "a" * 12, Brand.PURE)
_NAMES: Final = tuple(
    InternalName(number.to_bytes(32, "big")) for number in range(limits.MEMBERSHIPS_PER_TASK_MAX)
)
_TASKS: Final = tuple(TaskId(number) for number in range(1, HELD))


def _first(pair: Pair) -> int:
    return next(iter(pair.peer.remote_tasks[CALLER.task].table)).id


def _logs(pair: Pair) -> Name:
    name = pair.state.homes[Principal("uid:1000")].name
    assert name is not None
    return logs_group(name)


_VIEW: Final = bytes(limits.INDEX_VIEW_BYTES)


def _registration(pair: Pair) -> dcp.Register:
    """A node that has registered all names that it may registers others in their place."""
    pair.peer.share.digests = set(range(limits.INDEX_NAMES_PER_NODE_MAX))
    part = limits.INDEX_DIGESTS_PER_MESSAGE
    added = pack_digests(range(limits.INDEX_NAMES_PER_NODE_MAX, limits.INDEX_NAMES_PER_NODE_MAX + part))
    return dcp.Register(1, _VIEW, True, True, False, added, pack_digests(range(part)))


def _call_back(pair: Pair) -> dcp.CallBack:
    """The node has as many leases as it may have, all on one object of the asking node."""
    cluster, target = pair.state.cluster, ObjectId(1)
    assert cluster is not None
    for ref in range(limits.LEASES_HELD_MAX):
        lease = HeldLease(target, pair.peer.epoch, 1, pair.here.now + 1_000_000_000)
        cluster.leases.hold(pair.here.node, RefId(ref + 1), lease)
    return dcp.CallBack(target)


def _request(pair: Pair, kind: type) -> dcp.RequestBody:
    """Return a request of this kind, as long as it may be."""
    many = range(limits.ARGUMENTS_MAX)
    every: dict[type, Callable[[], dcp.RequestBody]] = {
        dcp.Forward: lambda: dcp.Forward(
            CALLER, messages.Vector((messages.AcquireRead(_first(pair)),) * limits.VECTOR_CALLS_MAX)
        ),
        dcp.Resolve: lambda: dcp.Resolve(CALLER, _NAMES, limits.LOOKUP_REFERENCES_MAX, 31, 10**12),
        dcp.Offer: lambda: dcp.Offer(CALLER, _shared(pair), _CHILD, pair.here.node),
        dcp.Delegate: lambda: dcp.Delegate(
            CALLER, messages.Copy(_first(pair), 1, 31), CALLER, pair.here.node
        ),
        dcp.ReferenceGiven: lambda: dcp.ReferenceGiven(pair.keeper.task, "a" * 12, _held(pair)),
        dcp.Start: lambda: dcp.Start(
            CALLER,
            TaskId(500),
            Name(b"n" * 32),
            messages.Run(0),
            (),
            _held(pair),
            tuple(_held(pair) for _ in many),
            tuple(_held(pair) for _ in many),
            bytes(limits.WELCOME_PROGRAM_BYTES_MAX),
        ),
        dcp.CreateReplica: lambda: dcp.CreateReplica(
            CALLER, None, (), "uid:1000", ObjectType.SHMEM_BLOB, Buffering.DOUBLE, 0, 0, 0, pair.here.node
        ),
        dcp.Release: lambda: dcp.Release(CALLER.task, tuple(RefId(number) for number in range(1, HELD))),
        dcp.TasksEnded: lambda: dcp.TasksEnded(_TASKS),
        dcp.DeliverEvent: lambda: dcp.DeliverEvent(pair.keeper.task, messages.Lost(1)),
        dcp.ReconcileReferences: lambda: dcp.ReconcileReferences(1, (), _TASKS, ()),
        dcp.Disband: lambda: dcp.Disband(Name(b"g" * 32)),
        dcp.CallBack: lambda: _call_back(pair),
        dcp.Rows: lambda: dcp.Rows(CALLER),
        dcp.ConfirmRemoval: lambda: dcp.ConfirmRemoval(pair.here.node),
        dcp.KeepOutput: lambda: dcp.KeepOutput("uid:1000", Name(b"l" * 32), _logs(pair), 0),
        dcp.Register: lambda: _registration(pair),
        dcp.FindNames: lambda: dcp.FindNames(_VIEW, pack_digests(range(0, 2 * dcp.RESOLVED_NAMES_MAX, 2))),
    }
    return every[kind]()


@pytest.mark.parametrize("kind", serving._HANDLERS, ids=lambda kind: kind.__name__)
def test_a_request_is_bounded_with_full_tables(pair: Pair, kind: type) -> None:
    """One request, as long as it may be, to a node with full tables; a new kind needs a line above."""
    pair.visitor()
    body = _request(pair, kind)
    assert type(body) is kind
    with suppress(ProtocolError):
        pair.ask(body)
