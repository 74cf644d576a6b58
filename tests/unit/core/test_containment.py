"""An exception in the work for one task or node ends that one; the tables stay right, and others are served.

Not for: exceptions at random places of random runs (``tests/sim/test_defects.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dios.core import containment, effects, events, work
from dios.core.calls import dispatch, lifecycle
from dios.core.model import defects
from dios.core.model.invariants import check
from dios.core.model.records import Pending, PhysicalObject
from dios.core.remote import reconciliation, serving
from dios.core.step import Step
from dios.errors import Code, InvariantError
from dios.ids import NodeId, ObjectId, Principal, TaskId
from dios.wire import dcp, gossip, messages
from dios.wire.types import ObjectType, TaskState
from tests.support.core.cluster import Cluster, Parcel, record_of
from tests.support.core.harness import Client, Node

OTHER = Principal("uid:7")


def broken(*_: object, **__: object) -> None:
    """What no handler should do."""
    raise ZeroDivisionError("nobody thought of it")


def broken_once(function: Callable[..., object], kind: type = object) -> Callable[..., object]:  # type: ignore[explicit-any] # any
    """A function that meets a defect when it is first called with an argument of a kind."""
    calls: list[object] = []

    def breaks(*args: object) -> object:
        if isinstance(args[-1], kind) and not calls:
            calls.append(args)
            broken()
        return function(*args)

    return breaks


@pytest.fixture
def stat_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, every Stat meets a defect."""
    monkeypatch.setitem(dispatch._HANDLERS, messages.Stat, broken)


def closed(node: Node) -> list[TaskId]:
    """The sessions whose connections were closed in the last step."""
    return [effect.task for effect in node.outcome.after if isinstance(effect, effects.CloseConnection)]


def of(node: Node, kind: type) -> list[object]:
    """The effects of a kind in the last step."""
    return [effect for effect in node.outcome.after if isinstance(effect, kind)]


# -- tasks of this node -----------------------------------------------------------------------------------
@pytest.mark.usefixtures("stat_breaks")
def test_a_defect_in_a_call_ends_its_session() -> None:
    """The session ends without an answer, with an audit record and a trace; another one goes on."""
    node = Node()
    mine, other = node.session(), node.session()
    seq = mine.send(messages.Stat(mine.self_ref))
    assert mine.answer(seq) is None
    assert closed(node) == [mine.task]
    (trace,) = of(node, effects.LogDefect)
    assert "nobody thought of it" in trace.trace  # type: ignore[attr-defined] # a LogDefect
    records = [
        (effect.action, effect.outcome, effect.detail)
        for effect in node.outcome.after
        if isinstance(effect, effects.Audit)
    ]
    assert ("defect", "contained", "ZeroDivisionError") in records
    assert mine.task not in node.core.state.tasks
    other.create(data=b"still served")
    assert other.ask(messages.Info, messages.NodeInfo()).counts["defects"] == 1


@pytest.mark.usefixtures("stat_breaks")
def test_a_defect_inside_a_vector_answers_nothing() -> None:
    """What the calls before it did stays, and the next vector of another session is answered in full."""
    node = Node()
    mine, other = node.session(), node.session()
    created = mine.create(data=b"kept")
    mine.send(
        messages.Vector(
            (messages.Copy(created.reference.ref, other.self_ref and mine.self_ref), messages.Stat(1))
        )
    )
    assert closed(node) == [mine.task]
    results = other.call(messages.Vector((messages.NodeInfo(), messages.NodeInfo())))
    assert isinstance(results, effects.AnswerVector)
    assert len(results.parts) == 2


def test_a_defect_in_a_waiting_call_ends_its_task_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calls that wait for one object, one meets a defect when it is retried; the other is answered."""
    node = Node()
    writer, first, second = node.session(), node.session(), node.session()
    stream = writer.create(ObjectType.DURABLE_STREAM)
    readers = [client.lookup(stream.name)[0].ref for client in (first, second)]
    seqs = [
        client.send(messages.Select((ref,))) for client, ref in zip((first, second), readers, strict=True)
    ]
    retry = work._retry_call

    def sometimes(step: Step, row: Pending, changed: PhysicalObject | None) -> None:
        if row.task.id == first.task:
            broken()
        retry(step, row, changed)

    monkeypatch.setattr(work, "_retry_call", sometimes)
    writer.call(messages.WriteOnce(stream.reference.ref, b"entry"))
    assert closed(node) == [first.task]
    assert first.answer(seqs[0]) is None
    assert second.answer(seqs[1]) == messages.Selected(0)


def test_a_session_that_could_not_begin_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect while a session is entered into the tables leaves nothing of it."""
    node = Node()
    monkeypatch.setattr(lifecycle, "open_session", broken)
    node.step(events.SessionOpened(node.now, TaskId(9), 1, OTHER, (), "", 1))
    assert closed(node) == [TaskId(9)]
    assert not node.core.state.tasks


def test_a_write_that_was_begun_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A durable object keeps its stored record; a volatile one, whose bytes are unknown, is destroyed."""
    node = Node()
    reader = node.session()
    for kind in (ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB):
        writer = node.session()
        created = writer.create(kind, data=b"before")
        ref = reader.lookup(created.name)[0].ref
        with monkeypatch.context() as patch:
            patch.setattr(Step, "changed", broken_once(Step.changed))
            writer.send(messages.WriteOnce(created.reference.ref, b"much longer than before"))
        assert closed(node) == [writer.task]
        target = node.core.state.objects.get(ObjectId(created.reference.object))
        if kind is ObjectType.DURABLE_BLOB:
            assert target is not None
            assert target.size == reader.stat(ref).size == len(b"before")
        else:
            assert target is None
            assert reader.refused(messages.ReadOnce(ref)) == Code.ESTALE


def test_a_write_that_the_store_has_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that were given to the store become current, although the rest of the call failed."""
    node = Node()
    writer = node.session()
    created = writer.create(ObjectType.DURABLE_BLOB, data=b"before")
    monkeypatch.setattr(Step, "emit", broken_once(Step.emit, effects.ApplyWrite))
    writer.send(messages.WriteOnce(created.reference.ref, b"after"))
    assert closed(node) == [writer.task]
    (put,) = node.outcome.persist
    assert isinstance(put, effects.PutObject)
    (applied,) = of(node, effects.ApplyWrite)
    assert applied == effects.ApplyWrite(put.record.object, put.source, durable=True)  # type: ignore[arg-type] # it has one


def test_broken_tables_end_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are wrong after an exception raise, with the exception as the cause."""
    node = Node()
    mine = node.session()
    created = mine.create(data=b"x")

    def breaks(step: Step, *_: object) -> None:
        del step.state.objects[ObjectId(created.reference.object)]
        step.state.objects[ObjectId(4_711)] = mine_object
        broken()

    mine_object = node.core.state.objects[ObjectId(created.reference.object)]
    mine_object.zombie = False
    monkeypatch.setitem(dispatch._HANDLERS, messages.Stat, breaks)
    monkeypatch.setattr(lifecycle, "end_after_defect", lambda *_: None)
    with pytest.raises(InvariantError, match="the tables are wrong") as raised:
        mine.send(messages.Stat(mine.self_ref))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_defect_in_the_nodes_own_work_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can be ended for a defect in handling what the store reports."""
    node = Node()
    monkeypatch.setattr(type(node.core), "_persisted", broken)
    with pytest.raises(ZeroDivisionError):
        node.step(events.Persisted(node.now, node.core.state.settled))


# -- too many -----------------------------------------------------------------------------------------------
def try_often(node: Node, principal: Principal, times: int) -> list[Client]:
    """Make the defect happen in sessions of a user, one after another."""
    clients = [node.session(principal) for _ in range(times)]
    for client in clients:
        client.send(messages.Stat(client.self_ref))
    return clients


@pytest.mark.usefixtures("stat_breaks")
def test_a_user_cannot_repeat_a_defect_at_will() -> None:
    """After DEFECTS_MAX the user's calls are refused before they can do harm, until a period is over."""
    node = Node()
    try_often(node, OTHER, defects.DEFECTS_MAX)
    late, own = node.session(OTHER), node.session()
    assert late.ask(messages.Failure, messages.Stat(late.self_ref)).code == Code.EDQUOT
    own.create(data=b"others are served")
    own.send(messages.Stat(own.self_ref))
    assert closed(node) == [own.task], "programs of the node's own user are not refused"
    node.now += defects.DEFECT_PERIOD_NS + 1
    late.send(messages.Stat(late.self_ref))
    assert closed(node) == [late.task]
    assert node.core.state.defects.total == defects.DEFECTS_MAX + 2


def test_the_accounts_of_defects_are_bounded() -> None:
    """The account of the earliest party makes room for a new one."""
    accounts = defects.DefectAccounts()
    for number in range(defects.PARTIES_MAX + 5):
        accounts.note(f"uid:{number}", 1)
    assert len(accounts._accounts) == defects.PARTIES_MAX


# -- other nodes ---------------------------------------------------------------------------------------------
class Pair:
    """A node, and another whose tasks and messages meet a defect there."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.here, self.there, self.third = self.cluster.nodes
        self.mine, self.theirs, self.thirds = (self.cluster.session(node) for node in self.cluster.nodes)

    def say(self, message: dcp.Message) -> None:
        """The other node says this."""
        self.here.take(Parcel(self.there.node, self.here.node, self.there.epoch, message, b""))
        check(self.here.core.state)

    def ended(self) -> list[NodeId]:
        """The nodes whose connections ended in the last step."""
        return [
            effect.node for effect in self.here.outcome.after if isinstance(effect, effects.EndConnection)
        ]

    def replies(self) -> list[dcp.Answer]:
        """The answers to the other node in the last step."""
        sent = [effect.message for effect in self.here.outcome.after if isinstance(effect, effects.Send)]
        return [message.result for message in sent if isinstance(message, dcp.PeerReply)]


@pytest.mark.usefixtures("stat_breaks")
def test_a_defect_for_a_task_elsewhere_fails_its_call() -> None:
    """The task gets an answer and goes on, as does the connection that served it."""
    pair = Pair()
    created = pair.mine.create(data=b"here")
    reference = pair.theirs.lookup(created.name)[0]
    assert record_of(pair.theirs, pair.here).alive
    failure = pair.theirs.ask(messages.Failure, messages.Stat(reference.ref))
    assert failure.code == Code.EIO
    assert not [effect for effect in pair.here.effects if isinstance(effect, effects.EndConnection)]
    assert pair.theirs.lookup(created.name)
    assert pair.here.core.state.defects.total == 1


def breaking_gossip(monkeypatch: pytest.MonkeyPatch) -> dcp.Message:
    """Gossip, the handling of which meets a defect."""
    monkeypatch.setattr(gossip, "decode", broken)
    return dcp.Gossip(b"")


def breaking_notice(monkeypatch: pytest.MonkeyPatch) -> dcp.Message:
    """A notice, likewise."""
    monkeypatch.setitem(serving._HANDLERS, dcp.Disband, broken)
    return dcp.Ask(2**41, 0, dcp.Disband(b"g" * 32))  # type: ignore[arg-type] # a name


@pytest.mark.parametrize("breaking", [breaking_gossip, breaking_notice])
def test_a_defect_for_a_node_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, breaking: Callable[[pytest.MonkeyPatch], dcp.Message]
) -> None:
    """A message that is about no task costs the connection, and the node may connect and say it again."""
    pair = Pair()
    message = breaking(monkeypatch)
    pair.say(message)
    assert pair.ended() == [pair.there.node]
    peer = pair.here.core.state.cluster.peers[pair.there.node]  # type: ignore[union-attr] # it is in one
    assert 2**41 not in peer.answers, "the request is carried out when it is repeated"


def test_a_defect_in_an_answer_ends_the_waiting_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that the answer is for ends; other tasks of this node that wait for that node are answered."""
    pair = Pair()
    created = pair.theirs.create(data=b"there")
    second = pair.cluster.session(pair.here)
    from dios.core.remote import resume

    handler = resume.resume

    def sometimes(step: Step, continuation: object, answer: object) -> None:
        if step.state.pending.find(continuation.call).task.id == pair.mine.task:  # type: ignore[attr-defined,union-attr]
            broken()
        handler(step, continuation, answer)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(resume, "resume", sometimes)
    pair.mine.send(messages.Lookup(created.name))  # type: ignore[arg-type] # it has a name
    pair.cluster.settle()
    assert pair.mine.task not in pair.here.core.state.tasks
    assert second.lookup(created.name)


def test_a_node_cannot_repeat_a_defect_at_will(monkeypatch: pytest.MonkeyPatch) -> None:
    """After DEFECTS_MAX every request of the node is refused as invalid, which is cheap."""
    pair = Pair()
    monkeypatch.setattr(reconciliation, "_accepts_earlier_references", broken)
    for number in range(defects.DEFECTS_MAX):
        pair.say(dcp.Ask(2**41 + number, 0, dcp.ReconcileReferences(1, ())))
        assert pair.ended() == [pair.there.node]
    from dios.errors import ProtocolError

    with pytest.raises(ProtocolError, match="too many internal errors"):
        pair.say(dcp.Ask(2**42, 0, dcp.ReconcileReferences(1, ())))


# -- what the host finds ------------------------------------------------------------------------------------
def test_the_host_ends_the_task_of_an_effect() -> None:
    """A defect in carrying out an effect ends the task that it was for."""
    node = Node()
    mine = node.session()
    node.step(events.DefectFound(node.now, mine.task, NodeId(0), ObjectId(0), "Answer: KeyError"))
    assert closed(node) == [mine.task]
    assert node.core.state.defects.total == 1


def test_the_host_destroys_an_object_of_unknown_content() -> None:
    """An object whose content the host could not build can be used by nobody."""
    node = Node()
    mine, reader = node.session(), node.session()
    created = mine.create(data=b"x")
    ref = reader.lookup(created.name)[0].ref
    target = ObjectId(created.reference.object)
    node.step(
        events.DefectFound(node.now, TaskId(0), NodeId(0), target, "ApplyWrite: KeyError", ends_object=True)
    )
    assert reader.refused(messages.ReadOnce(ref)) == Code.ESTALE
    assert node.core.state.tasks[mine.task].state is not TaskState.ENDED


def test_a_defect_at_the_end_of_the_node_costs_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sessions, the calls of one cannot be answered; the others are answered, and all are closed."""
    node = Node()
    clients = [node.session() for _ in range(3)]
    seqs = [client.send(messages.Select((client.self_ref,))) for client in clients]
    answer = lifecycle.ended_by_shutdown
    monkeypatch.setattr(lifecycle, "ended_by_shutdown", broken_once(answer, Pending))
    node.step(events.ShutdownBegan(node.now))
    assert set(closed(node)) == {client.task for client in clients}
    answered = [client.answer(seq) for client, seq in zip(clients, seqs, strict=True)]
    assert sorted(type(reply).__name__ for reply in answered) == ["Failure", "Failure", "NoneType"]
    assert len(of(node, effects.LogDefect)) == 1


def test_every_event_has_a_party_or_is_the_nodes_own() -> None:
    """A new kind of event must be placed: its defects end somebody, or the node."""
    own = {
        events.Recovered, events.TimerFired, events.Persisted, events.PersistFailed, events.ShutdownBegan,
        events.LoadMeasured, events.DefectFound, events.NodesRemoved, events.LabelsStored,
            events.RegisterStored, events.SecretsStored,
        events.FitnessChanged, events.CapacityChanged,
    }  # fmt: skip
    kinds = set(events.Event.__args__)
    with_task = {kind for kind in kinds if "task" in kind.__struct_fields__} - {events.DefectFound}
    with_node = {kind for kind in kinds if "node" in kind.__struct_fields__} - {events.DefectFound}
    with_object = (
        {kind for kind in kinds if "object" in kind.__struct_fields__} - with_task - {events.DefectFound}
    )
    assert own | with_task | with_node | with_object == kinds
    state = Node().core.state
    for kind in kinds - own:
        fields = dict.fromkeys(kind.__struct_fields__, 0)
        assert containment.party_of(state, kind(**fields)) is None


def test_no_two_events_or_effects_share_a_tag() -> None:
    """A recorded event or effect is read as what it was."""
    for union in (events.Event, effects.Effect):
        tags = [kind.__struct_config__.tag for kind in union.__args__]
        assert len(set(tags)) == len(tags)
