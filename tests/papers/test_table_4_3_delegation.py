"""Table 4.3 and §4.5: each attribute of a reference on delegation, and how references are come by."""

from __future__ import annotations

import itertools

import pytest

from dios import limits
from dios.core import effects, events
from dios.errors import Code
from dios.ids import TaskId
from dios.wire import messages
from dios.wire.types import (
    Buffering,
    Flag,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
    Semantics,
)
from tests.support.core.harness import Node

ALL = int(Permission.ALL)


class Pair:
    """A giver, a receiver that shares no group with it, and an object of the giver's."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.giver = node.session()
        self.receiver = self.giver.run()
        self.to = self.receiver.reference.ref
        self.created = self.giver.create(data=b"abc")
        self.ref = self.created.reference.ref

    def give(self, **options: object) -> messages.Reference:
        """Delegate the object and be told of it."""
        self.giver.ask(messages.Done, messages.Copy(self.ref, self.to, **options))  # type: ignore[arg-type]
        return self.receiver.given()


@pytest.fixture
def pair(node: Node) -> Pair:
    """Two tasks, one object."""
    return Pair(node)


def test_row_type(pair: Pair) -> None:
    """Table 4.3, type: the same on both sides; there is no way to ask for another."""
    assert pair.give().type is pair.created.reference.type


def test_row_group(pair: Pair) -> None:
    """Table 4.3, group: a delegated reference brings no membership; its name still resolves to nothing."""
    pair.give()
    assert pair.receiver.lookup(pair.created.name) == ()


def test_rows_versions(pair: Pair) -> None:
    """Table 4.3, v_r and v_w: the object's, unchanged by delegation."""
    pair.giver.call(messages.WriteOnce(pair.ref, b"abcd"))
    pair.giver.call(messages.ReadOnce(pair.ref))
    given = pair.give()
    assert (given.v_r, given.v_w) == (1, 1)


def test_rows_active_requests(pair: Pair) -> None:
    """Table 4.3, a_r and a_w: as they are at the receiver's moment, and live from then on."""
    pair.giver.call(messages.AcquireRead(pair.ref))
    given = pair.give()
    assert (given.a_r, given.a_w) == (1, 0)
    pair.giver.call(messages.AcquireWrite(pair.ref))
    assert pair.receiver.counters(given.ref)[:2] == (1, 1)


def test_row_buffers(pair: Pair) -> None:
    """Table 4.3, buffer size: a delegated reference starts without buffers of its giver's."""
    buffer = pair.giver.ask(messages.Buffer, messages.AcquireRead(pair.ref)).buffer
    given = pair.give()
    assert pair.receiver.refused(messages.ReleaseRead(given.ref, buffer)) == Code.EBADF
    assert pair.receiver.refused(messages.CommitRead(given.ref, buffer)) == Code.EBADF


@pytest.mark.parametrize(
    ("held", "wanted"), list(itertools.product([31, 9, 15, 8, 24], [0, 1, 3, 8, 21, 31, 2**40 + 1]))
)
def test_row_permissions(pair: Pair, held: int, wanted: int) -> None:
    """Table 4.3, permissions: a delegation only removes rights, whatever bits it asks for."""
    call = messages.Copy(pair.ref, pair.giver.self_ref, held)
    (narrow,) = pair.giver.ask(messages.References, call).references
    pair.giver.ask(messages.Done, messages.Copy(narrow.ref, pair.to, wanted))
    assert pair.receiver.given().permissions == held & wanted & ALL


def test_rows_concurrency_and_multiplexing_modes(pair: Pair) -> None:
    """Table 4.3, concurrent access and I/O multiplexing mode: another buffering is another object."""
    raw = pair.give(buffering=Buffering.RAW)
    assert raw.object != pair.created.reference.object
    assert raw.buffering is Buffering.RAW
    assert any(isinstance(effect, effects.DuplicateContent) for effect in pair.node.effects)
    same = pair.give(buffering=Buffering.DOUBLE)
    assert same.object == pair.created.reference.object


def test_incompatible_mode(pair: Pair) -> None:
    """Table 4.3, I/O multiplexing mode: raw is refused where the copy would be no shared memory."""
    for options in ({"persistence": Persistence.DURABLE}, {"proximity": Proximity.PROCESS}):
        call = messages.Copy(pair.ref, pair.giver.self_ref, buffering=Buffering.RAW, **options)
        assert pair.giver.refused(call) == Code.EINVAL
    durable = pair.giver.create(ObjectType.DURABLE_BLOB, data=b"x").reference.ref
    call = messages.Copy(durable, pair.giver.self_ref, buffering=Buffering.RAW)
    assert pair.giver.refused(call) == Code.EINVAL


@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB, ObjectType.PRIVMEM_BLOB])
@pytest.mark.parametrize("wanted", list(Persistence))
def test_row_persistence(node: Node, kind: ObjectType, wanted: Persistence) -> None:
    """Table 4.3, persistence: another one is a new physical object with the data; the same is not."""
    client = node.session()
    created = client.create(kind, data=b"abc")
    call = messages.Copy(created.reference.ref, client.self_ref, persistence=wanted)
    (given,) = client.ask(messages.References, call).references
    assert given.persistence is wanted
    changed = wanted is not created.reference.persistence
    assert (given.object != created.reference.object) is changed
    assert given.size == 3
    assert bool(node.outcome.persist) is (changed and wanted is Persistence.DURABLE)
    if changed and kind is not ObjectType.PRIVMEM_BLOB:
        assert {reference.object for reference in client.lookup(created.name)} == {
            given.object,
            created.reference.object,
        }


def test_row_proximity(pair: Pair) -> None:
    """Table 4.3, proximity: a private copy for the receiver, a shared copy of private memory."""
    near = pair.give(proximity=Proximity.PROCESS)
    assert (near.type, near.proximity) == (ObjectType.PRIVMEM_BLOB, Proximity.PROCESS)
    private = pair.giver.create(ObjectType.PRIVMEM_BLOB, data=b"abc").reference.ref
    assert pair.giver.refused(messages.Copy(private, pair.to)) == Code.EPERM
    pair.giver.ask(messages.Done, messages.Copy(private, pair.to, proximity=Proximity.NODE))
    assert pair.receiver.given().type is ObjectType.SHMEM_BLOB


def test_farther_proximity(pair: Pair) -> None:
    """Table 4.3, proximity: farther than this node there is nobody yet."""
    for proximity in (Proximity.RACK, Proximity.CLUSTER):
        call = messages.Copy(pair.ref, pair.giver.self_ref, proximity=proximity)
        assert pair.giver.refused(call) == Code.EHOSTUNREACH
    durable = pair.giver.create(ObjectType.DURABLE_BLOB).reference.ref
    call = messages.Copy(durable, pair.giver.self_ref, proximity=Proximity.PROCESS)
    assert pair.giver.refused(call) == Code.EINVAL


def test_only_blobs_are_copied(pair: Pair) -> None:
    """§4.5.3: data is copied where there is some; a stream is delegated as it is or not at all."""
    stream = pair.giver.create(ObjectType.SHMEM_STREAM).reference.ref
    call = messages.Copy(stream, pair.giver.self_ref, persistence=Persistence.DURABLE)
    assert pair.giver.refused(call) == Code.EINVAL
    pair.giver.delegate(stream, pair.to, int(Permission.READ))
    assert pair.receiver.given().type is ObjectType.SHMEM_STREAM


# -- §4.5.2, Acquisition; §4.5.3, Delegation -------------------------------------------------------
def test_default_references(pair: Pair) -> None:
    """§4.5.2, first way: a task starts with itself, its console, its groups, and what it was handed."""
    welcome = pair.receiver.welcome
    assert welcome.self_ref.type is ObjectType.TASK
    assert welcome.console.type is ObjectType.CONSOLE_STREAM
    assert [group.type for group in welcome.groups] == [ObjectType.GROUP]
    assert welcome.executable is not None
    table = pair.node.core.state.tasks[TaskId(pair.receiver.task)].table
    assert {reference.id for reference in table} == {
        reference.ref
        for reference in (welcome.self_ref, welcome.console, welcome.executable, *welcome.groups)
    }


def test_every_way_gives_a_fresh_reference(pair: Pair) -> None:
    """§4.5.2: creation, resolution and delegation each give a new reference; the object id tells them one."""
    (looked,) = pair.giver.lookup(pair.created.name)
    (copied,) = pair.giver.ask(messages.References, messages.Copy(pair.ref, pair.giver.self_ref)).references
    assert len({pair.ref, looked.ref, copied.ref}) == 3
    assert {looked.object, copied.object} == {pair.created.reference.object}
    assert len({pair.created.reference.slot, looked.slot, copied.slot}) == 3


def test_delegated_reference_acts_for_itself(pair: Pair) -> None:
    """§4.5.3: giver's and receiver's references end independently."""
    given = pair.give()
    pair.giver.call(messages.Delete(pair.ref))
    pair.receiver.ask(messages.Buffer, messages.ReadOnce(given.ref))
    assert pair.giver.refused(messages.ReadOnce(pair.ref)) == Code.EBADF


def test_delegation_needs_the_right(pair: Pair) -> None:
    """§4.5.3: without the right to delegate nothing is handed on, and every other right is checked."""
    given = pair.give(permissions=int(Permission.READ | Permission.EXECUTE))
    other = pair.receiver.self_ref
    assert pair.receiver.refused(messages.Copy(given.ref, other)) == Code.EPERM
    assert pair.receiver.refused(messages.WriteOnce(given.ref, b"x")) == Code.EPERM
    assert pair.receiver.refused(messages.AcquireWrite(given.ref)) == Code.EPERM
    assert pair.receiver.refused(messages.Delete(given.ref, int(Flag.DESTROY))) == Code.EPERM
    call = messages.Run(given.ref, inputs=(messages.Handed(given.ref, ALL),))
    assert pair.receiver.refused(call) == Code.EPERM
    blind = pair.give(permissions=int(Permission.WRITE))
    assert pair.receiver.refused(messages.ReadOnce(blind.ref)) == Code.EPERM
    assert pair.receiver.refused(messages.Select((blind.ref,))) == Code.EPERM
    assert pair.receiver.refused(messages.Run(blind.ref)) == Code.EPERM


def test_recipient_is_told(pair: Pair) -> None:
    """§4.5.3, Notifying: the self-reference becomes ready and tells the new reference and its sender."""
    waiting = pair.receiver.send(messages.Select((pair.receiver.self_ref,)))
    assert pair.receiver.answer(waiting) is None
    pair.giver.delegate(pair.ref, pair.to)
    assert pair.receiver.answer(waiting) == messages.Selected(0)
    told = pair.receiver.event()
    assert isinstance(told, messages.Delegated)
    assert told.sender == pair.giver.welcome.self_ref.fingerprint
    assert pair.receiver.stat(told.reference.ref).object == pair.created.reference.object


def test_events_are_bounded(node: Node) -> None:
    """§4.5.3, Notifying: a task that never reads its events loses some, and is told how many."""
    client = node.session()
    ref = client.create().reference.ref
    lost = 3
    for _ in range(limits.EVENTS_PER_TASK_MAX + lost):
        given = client.ask(messages.References, messages.Copy(ref, client.self_ref)).references[0]
        client.call(messages.Delete(given.ref))
    for _ in range(limits.EVENTS_PER_TASK_MAX):
        assert isinstance(client.event(), messages.Delegated)
    assert client.event() == messages.Lost(lost)


def test_delegation_to_who_has_ended(pair: Pair) -> None:
    """B.1.3: a delegation to an ended task fails and leaves no reference behind."""
    pair.node.end(TaskId(pair.receiver.task))
    assert pair.giver.refused(messages.Copy(pair.ref, pair.to)) == Code.ESRCH


def test_names_of_private_memory_do_not_carry_it_out(pair: Pair) -> None:
    """Table 4.1, PRIVMEM_BLOB: not even its name in a shared group leads another task to it."""
    private = pair.giver.create(ObjectType.PRIVMEM_BLOB, data=b"abc")
    assert len(pair.giver.lookup(private.name)) == 1
    assert pair.node.session().lookup(private.name) == ()


def test_readers_of_a_copy_do_not_count_on_the_original(pair: Pair) -> None:
    """§4.5.3: a copy has counters of its own."""
    given = pair.give(persistence=Persistence.DURABLE)
    pair.receiver.ask(messages.Buffer, messages.AcquireRead(given.ref, semantics=Semantics.EXCL))
    assert pair.giver.counters(pair.ref) == (0, 0, 0, 0)


def test_giver_dies(pair: Pair) -> None:
    """§4.5.3: what was delegated stays with its receiver when the giver is gone."""
    given = pair.give()
    pair.node.step(events.Disconnected(pair.node.now, pair.giver.task))
    pair.receiver.ask(messages.Buffer, messages.ReadOnce(given.ref))
