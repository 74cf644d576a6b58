"""Table 4.1 and §4.2: what each object type is, and how its objects end."""

from __future__ import annotations

import pytest

from dios.core import effects, events
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import (
    Buffering,
    Deletion,
    Flag,
    NameKind,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
)
from tests.support.core.harness import Client, Node

COUNTED, IMMEDIATE = Deletion.REFERENCE_COUNTED, Deletion.IMMEDIATE
VOLATILE, DURABLE = Persistence.VOLATILE, Persistence.DURABLE
PROCESS, NEAR = Proximity.PROCESS, Proximity.NODE


@pytest.mark.parametrize(
    ("kind", "deletion", "persistence", "proximity"),
    [
        (ObjectType.DURABLE_BLOB, IMMEDIATE, DURABLE, NEAR),
        (ObjectType.PRIVMEM_BLOB, COUNTED, VOLATILE, PROCESS),
        (ObjectType.SHMEM_BLOB, COUNTED, VOLATILE, NEAR),
        (ObjectType.TIMER_BLOB, COUNTED, VOLATILE, PROCESS),
        (ObjectType.SHMEM_STREAM, COUNTED, VOLATILE, NEAR),
        (ObjectType.GROUP, IMMEDIATE, DURABLE, NEAR),
        (ObjectType.DURABLE_STREAM, IMMEDIATE, DURABLE, NEAR),
    ],
)
def test_row_of_a_type_that_is_created(
    node: Node, kind: ObjectType, deletion: Deletion, persistence: Persistence, proximity: Proximity
) -> None:
    """Table 4.1: every type a task makes has its deletion mode, persistence and proximity."""
    reference = node.session().create(kind).reference
    assert (reference.type, reference.deletion, reference.persistence, reference.proximity) == (
        kind,
        deletion,
        persistence,
        proximity,
    )
    assert reference.permissions == int(Permission.ALL)


@pytest.mark.parametrize("kind", [ObjectType.UDP_STREAM, ObjectType.TCP_STREAM, ObjectType.TCP_ACCEPT_STREAM])
def test_rows_of_the_network(node: Node, kind: ObjectType) -> None:
    """Table 4.1: network streams take the right to make them, which no task has by itself."""
    assert node.session().refused(messages.Create(kind, address="127.0.0.1:80")) == Code.EPERM


@pytest.mark.parametrize("kind", [ObjectType.CONSOLE_STREAM, ObjectType.TASK])
def test_rows_of_the_node(node: Node, kind: ObjectType) -> None:
    """Table 4.1: consoles and tasks are made by the node, never by create."""
    assert node.session().refused(messages.Create(kind)) == Code.EINVAL


def test_row_console(node: Node) -> None:
    """Table 4.1, CONSOLE_STREAM: immortal, written in one message, read in order."""
    client = node.session()
    assert client.welcome.console.deletion is Deletion.IMMORTAL
    client.ask(messages.Committed, messages.WriteOnce(client.welcome.console.ref, b"hello"))
    assert any(isinstance(effect, effects.WriteConsole) for effect in node.outcome.after)
    node.step(events.ConsoleArrived(node.now, client.task, 5))
    first = client.ask(messages.Buffer, messages.ReadOnce(client.welcome.console.ref, size=3))
    second = client.ask(messages.Buffer, messages.ReadOnce(client.welcome.console.ref))
    assert (first.size, second.size) == (3, 2)


def test_row_task(node: Node) -> None:
    """Table 4.1, TASK: reference-counted, and no bytes can be written to it."""
    client = node.session()
    child = client.run()
    assert child.reference.type is ObjectType.TASK
    assert child.reference.deletion is COUNTED
    assert client.refused(messages.WriteOnce(child.reference.ref, b"x")) == Code.EINVAL


def test_row_timer(node: Node) -> None:
    """Table 4.1, TIMER_BLOB: reading one gives the current system time."""
    client = node.session()
    timer = client.create(ObjectType.TIMER_BLOB).reference.ref
    node.now = 123_456
    answer = client.ask(effects.AnswerBytes, messages.ReadOnce(timer))
    assert int.from_bytes(answer.data, "little") == 123_456
    assert client.refused(messages.WriteOnce(timer, b"x")) == Code.EINVAL


def test_row_group(node: Node) -> None:
    """§4.4, Representation: a group's only content is its own name, and nobody writes to it."""
    client = node.session()
    group = client.create(ObjectType.GROUP)
    answer = client.ask(effects.AnswerBytes, messages.ReadOnce(group.reference.ref))
    assert answer.data == group.name
    assert client.refused(messages.WriteOnce(group.reference.ref, b"x")) == Code.EINVAL
    assert client.refused(messages.AcquireWrite(group.reference.ref)) == Code.EINVAL


def test_row_stream_is_not_read_through_the_node(node: Node) -> None:
    """Table 4.1, SHMEM_STREAM: its requests work on the ring, the node only hands out the ends."""
    client = node.session()
    stream = client.create(ObjectType.SHMEM_STREAM).reference.ref
    assert client.refused(messages.ReadOnce(stream)) == Code.EINVAL
    assert client.refused(messages.AcquireRead(stream)) == Code.EINVAL
    assert client.refused(messages.AcquireWrite(stream)) == Code.EINVAL


def test_raw_buffering_is_for_shared_memory(node: Node) -> None:
    """§3.7: only shared memory can show writers its own bytes."""
    client = node.session()
    for kind in (ObjectType.DURABLE_BLOB, ObjectType.PRIVMEM_BLOB, ObjectType.SHMEM_STREAM, ObjectType.GROUP):
        assert client.refused(messages.Create(kind, buffering=Buffering.RAW)) == Code.EINVAL
    created = client.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, buffering=Buffering.RAW))
    assert created.reference.buffering is Buffering.RAW


# -- §4.2, Life cycle ------------------------------------------------------------------------------
def _held_twice(node: Node, deletion: Deletion) -> tuple[Client, int, Client, int]:
    """An object that two sessions refer to."""
    first, second = node.session(), node.session()
    call = messages.Create(ObjectType.SHMEM_BLOB, (first.groups[0],), deletion=deletion)
    created = first.ask(messages.Created, call)
    (other,) = second.lookup(created.name)
    return first, created.reference.ref, second, other.ref


def test_reference_counted_objects_live_with_their_last_reference(node: Node) -> None:
    """§4.2: a reference-counted object is destroyed when its count reaches zero, not before."""
    first, ref, second, other = _held_twice(node, COUNTED)
    object_id = first.stat(ref).object
    first.ask(messages.Done, messages.Delete(ref))
    second.ask(messages.Buffer, messages.ReadOnce(other))
    second.ask(messages.Done, messages.Delete(other))
    assert object_id not in node.core.state.objects
    assert any(isinstance(effect, effects.DiscardContent) for effect in node.outcome.after)


def test_immediate_deletion_invalidates_all_references(node: Node) -> None:
    """§4.2: an immediate object goes with the first delete; other references become stale."""
    first, ref, second, other = _held_twice(node, IMMEDIATE)
    first.ask(messages.Done, messages.Delete(ref))
    assert second.refused(messages.ReadOnce(other)) == Code.ESTALE
    assert second.refused(messages.AcquireWrite(other)) == Code.ESTALE
    assert second.refused(messages.Copy(other, second.self_ref)) == Code.ESTALE
    assert second.ask(messages.Done, messages.Delete(other)).value == 0


def test_immediate_deletion_needs_the_privilege(node: Node) -> None:
    """§4.2: only a deletion-privileged reference destroys an immediate object; others drop."""
    first, ref, second, other = _held_twice(node, IMMEDIATE)
    call = messages.Copy(ref, first.self_ref, int(Permission.READ))
    (plain,) = first.ask(messages.References, call).references
    first.ask(messages.Done, messages.Delete(plain.ref))
    second.ask(messages.Buffer, messages.ReadOnce(other))


def test_immediate_objects_live_without_references(node: Node) -> None:
    """§4.2: only a delete call ends an immediate object, so that durable data outlives its tasks."""
    client = node.session()
    created = client.create(ObjectType.DURABLE_BLOB, data=b"x")
    node.step(events.Disconnected(node.now, client.task))
    assert len(node.session().lookup(created.name)) == 1


def test_immortal_objects_are_never_destroyed(node: Node) -> None:
    """§4.2: deleting a reference to an immortal object drops the reference and nothing else."""
    client = node.session()
    home = client.groups[0]
    assert client.refused(messages.Delete(home, int(Flag.DESTROY))) == Code.EINVAL
    client.ask(messages.Done, messages.Delete(home))
    assert client.refused(messages.Stat(home)) == Code.EBADF
    assert node.session().welcome.home is not None
    assert client.refused(messages.Create(ObjectType.SHMEM_BLOB, deletion=Deletion.IMMORTAL)) == Code.EINVAL


def test_zombie_first(node: Node) -> None:
    """§4.2: the counters that announce the end come before the content is discarded."""
    first, ref, _, _ = _held_twice(node, IMMEDIATE)
    first.call(messages.Delete(ref))
    kinds = [effect for effect in node.outcome.after if isinstance(effect, effects.DiscardContent)]
    assert kinds
    assert any(isinstance(effect, effects.PublishCounters) and effect.zombie for effect in node.outcome.after)


def test_other_physical_objects_go_on(node: Node) -> None:
    """§4.2: the other physical objects of a logical object survive the end of one."""
    client = node.session()
    created = client.create(data=b"abc")
    call = messages.Copy(created.reference.ref, client.self_ref, persistence=DURABLE)
    client.call(call)
    client.call(messages.Delete(created.reference.ref))
    (left,) = client.lookup(created.name)
    assert left.type is ObjectType.DURABLE_BLOB


def test_persistent_objects_are_reinstated(node: Node) -> None:
    """§4.2, Persistence: a new core has the durable objects, their versions, and nothing else."""
    client = node.session()
    created = client.create(ObjectType.DURABLE_BLOB, data=b"x")
    volatile = client.create(data=b"y")
    client.call(messages.WriteOnce(created.reference.ref, b"xyz"))
    again = Node(seed=1)
    again.step(events.Recovered(again.now, tuple(node.stored.values())))
    later = again.session()
    (reference,) = later.lookup(created.name)
    assert (reference.size, reference.v_w) == (3, 1)
    assert later.lookup(volatile.name) == ()


def test_recovered_counted_object_goes_with_the_references_of_a_lone_node(node: Node) -> None:
    """§4.2, Persistence: nothing refers to a counted object after a kill, so a node alone collects it."""
    client = node.session()
    call = messages.Create(ObjectType.DURABLE_BLOB, (client.groups[0],), deletion=COUNTED, data=b"x")
    created = client.ask(messages.Created, call)
    again = Node(seed=1)
    again.stored = dict(node.stored)
    again.step(events.Recovered(again.now, tuple(node.stored.values())))
    assert created.reference.object not in again.stored
    assert again.session().lookup(created.name) == ()


def test_anonymous_objects_are_not_found(node: Node) -> None:
    """§4.3.1: an anonymous object has no name in any table."""
    client = node.session()
    names = len(node.core.state.names)
    created = client.create(name_kind=NameKind.ANONYMOUS)
    assert created.name is None
    assert len(node.core.state.names) == names
