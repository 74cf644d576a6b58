"""B.1.1, B.1.4, §4.3.1 and Table 4.4: creation, deletion, and what each of the thirteen calls refuses."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import effects, events
from dios.errors import Code
from dios.ids import ObjectId, Principal, TaskId
from dios.wire import messages
from dios.wire.types import (
    Brand,
    Cause,
    CommitIov,
    Deletion,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    TaskState,
)
from tests.support.core.harness import OWNER, Client, Node


@pytest.fixture
def client(node: Node) -> Client:
    """A session."""
    return node.session()


# -- B.1.1 dios_create -----------------------------------------------------------------------------
def test_create_gives_name_and_reference(node: Node, client: Client) -> None:
    """B.1.1: a fresh name, mapped in the name table, and a reference with full permissions."""
    first, two = client.create(), client.create()
    assert first.name != two.name
    assert first.reference.permissions == int(Permission.ALL)
    assert len(client.lookup(first.name)) == 1


def test_create_without_groups(node: Node, client: Client) -> None:
    """B.1.1: the set of groups is optional; without one the name leads nobody anywhere."""
    created = client.create(groups=())
    assert created.name is not None
    assert client.lookup(created.name) == ()


def test_create_needs_groups_it_can_refer_to(client: Client) -> None:
    """B.1.1: the groups are references to group objects of the caller's own."""
    blob = client.create().reference.ref
    assert client.refused(messages.Create(ObjectType.SHMEM_BLOB, (blob,))) == Code.EINVAL
    assert client.refused(messages.Create(ObjectType.SHMEM_BLOB, (12_345,))) == Code.EBADF


def test_create_on_a_host(client: Client) -> None:
    """B.1.1: a host may be named; alone, this node knows no other."""
    assert client.refused(messages.Create(ObjectType.SHMEM_BLOB, host="n2")) == Code.EHOSTUNREACH


def test_create_flags_and_sizes(client: Client) -> None:
    """B.1.1: flags that mean nothing, data where there is none, and sizes out of bounds are refused."""
    kinds = ObjectType
    assert client.refused(messages.Create(kinds.SHMEM_BLOB, flags=1)) == Code.EINVAL
    assert client.refused(messages.Create(kinds.GROUP, data=b"x")) == Code.EINVAL
    assert client.refused(messages.Create(kinds.SHMEM_STREAM, data=b"x")) == Code.EINVAL
    assert client.refused(messages.Create(kinds.SHMEM_STREAM, size=1)) == Code.EINVAL
    call = messages.Create(kinds.SHMEM_STREAM, size=limits.STREAM_RING_BYTES_MAX + 1)
    assert client.refused(call) == Code.EINVAL
    call = messages.Create(kinds.SHMEM_BLOB, size=limits.BLOB_BYTES_MAX + 1)
    assert client.refused(call) == Code.EFBIG


def test_create_allocates_no_buffer(node: Node, client: Client) -> None:
    """B.1.1: creation sets up no buffer; that is the first request's affair."""
    client.create(data=b"abc")
    assert not node.core.state.tasks[TaskId(client.task)].buffers


def test_refused_creation_uses_up_no_name(node: Node, client: Client) -> None:
    """§4.3.1: a refused deterministic creation leaves the counter, so that a replay stays in step."""
    child = client.run()
    bad = messages.Create(ObjectType.UDP_STREAM, name_kind=NameKind.DETERMINISTIC, address="[::1]:0")
    assert child.refused(bad) == Code.EPERM
    first = child.create(name_kind=NameKind.DETERMINISTIC).name
    same = Node().session().run().create(name_kind=NameKind.DETERMINISTIC).name
    assert first == same


# -- B.1.4 dios_delete -----------------------------------------------------------------------------
def test_delete_drops_the_handle(client: Client) -> None:
    """B.1.4: the reference is gone from the caller's table, and a second call finds none."""
    created = client.create()
    client.lookup(created.name)
    assert client.ask(messages.Done, messages.Delete(created.reference.ref)).value == 1
    assert client.refused(messages.Delete(created.reference.ref)) == Code.EBADF


def test_delete_aborts_outstanding_requests(node: Node, client: Client) -> None:
    """B.1.4: requests on the deleted reference end without commit; other references' go on."""
    created = client.create(data=b"abc")
    (other,) = client.lookup(created.name)
    client.call(messages.AcquireWrite(created.reference.ref))
    kept = client.ask(messages.Buffer, messages.AcquireRead(other.ref)).buffer
    client.call(messages.Delete(created.reference.ref))
    assert client.counters(other.ref) == (1, 0, 0, 0)
    client.ask(messages.Committed, messages.CommitRead(other.ref, kept))


def test_delete_handle_only(node: Node, client: Client) -> None:
    """B.1.4 with HANDLE_ONLY: the object is left alone even where a deletion would end it."""
    created = client.create(ObjectType.DURABLE_BLOB, data=b"x")
    client.call(messages.Delete(created.reference.ref, int(Flag.HANDLE_ONLY)))
    assert len(client.lookup(created.name)) == 1


def test_delete_destroy(node: Node, client: Client) -> None:
    """B.1.4 with DESTROY: a counted object ends at once, with the right to delete it."""
    created = client.create(data=b"x")
    (other,) = client.lookup(created.name)
    call = messages.Copy(other.ref, client.self_ref, int(Permission.READ))
    (weak,) = client.ask(messages.References, call).references
    assert client.refused(messages.Delete(weak.ref, int(Flag.DESTROY))) == Code.EPERM
    client.ask(messages.Done, messages.Delete(created.reference.ref, int(Flag.DESTROY)))
    assert client.refused(messages.ReadOnce(other.ref)) == Code.ESTALE


def test_delete_does_not_reach_copies(node: Node, client: Client) -> None:
    """B.1.4: delegated copies of a deleted reference live on."""
    child = client.run()
    created = client.create(data=b"x")
    client.delegate(created.reference.ref, child.reference.ref)
    client.call(messages.Delete(created.reference.ref))
    child.ask(messages.Buffer, messages.ReadOnce(child.given().ref))


def test_deleting_the_self_reference_ends_the_task(node: Node, client: Client) -> None:
    """B.1.4: the task is terminated; as a zombie it stays until nobody refers to it."""
    child = client.run()
    child.ask(messages.Done, messages.Delete(child.self_ref))
    assert effects.Kill(TaskId(child.task)) in node.outcome.after
    seq = child.send(messages.Create(ObjectType.SHMEM_BLOB))
    assert child.answer(seq) is None
    node.end(TaskId(child.task), Cause.SIGNAL)
    row = node.core.state.tasks[TaskId(child.task)].row()
    assert (row.state, row.cause) == (TaskState.ENDED, Cause.EXITED)
    assert client.stat(child.reference.ref).object == child.task


def test_copies_of_the_self_reference_are_handles(node: Node, client: Client) -> None:
    """B.1.4: only the self-reference itself stands for the task; a copy of it is dropped like any other."""
    child = client.run()
    (copy,) = child.ask(messages.References, messages.Copy(child.self_ref, child.self_ref)).references
    child.ask(messages.Done, messages.Delete(copy.ref))
    child.stat(child.self_ref)
    assert child.refused(messages.Delete(child.self_ref, int(Flag.HANDLE_ONLY))) == Code.EINVAL


def test_exit_deletes_everything(node: Node, client: Client) -> None:
    """B.1.4: an exiting task deletes all its references; what only it held is gone."""
    before = set(node.core.state.objects)
    child = client.run()
    child.create(data=b"x")
    child.create(ObjectType.SHMEM_STREAM)
    child.call(messages.AcquireRead(child.create(data=b"y").reference.ref))
    node.end(TaskId(child.task))
    client.call(messages.Delete(child.reference.ref))
    left = set(node.core.state.objects) - before
    state = node.core.state.objects
    kinds = {state[ObjectId(object_id)].type for object_id in left}
    # Its status and console stay for who asks later; the program is the session's own.
    assert kinds == {ObjectType.TASK, ObjectType.CONSOLE_STREAM, ObjectType.SHMEM_BLOB}


def test_orphans_end(node: Node, client: Client) -> None:
    """B.1.4, B.1.5: a task's children end with it, unless somebody else refers to them."""
    parent = client.run()
    lost, kept = parent.run(), parent.run()
    parent.delegate(kept.reference.ref, client_ref(client, parent))
    node.end(TaskId(parent.task))
    killed = {effect.task for effect in node.outcome.after if isinstance(effect, effects.Kill)}
    assert killed == {lost.task}


def test_tasks_end_with_their_session(node: Node, client: Client) -> None:
    """ADR 0027: of a session's tasks those end with it that it did not detach and nobody else refers to."""
    other = node.session()
    flags = int(Flag.WITH_SESSION)
    detached, lost, kept = client.run(), client.run(flags=flags), client.run(flags=flags)
    assert other.lookup(kept.welcome.name)
    node.step(events.Disconnected(node.now, TaskId(client.task)))
    killed = {effect.task for effect in node.outcome.after if isinstance(effect, effects.Kill)}
    assert killed == {lost.task}
    assert detached.task != lost.task


def client_ref(client: Client, of: Client) -> int:
    """A reference of ``of`` to the client's task, so that it can delegate something back."""
    client.delegate(client.self_ref, of.reference.ref)
    return of.given().ref


def test_stream_ends(node: Node, client: Client) -> None:
    """ADR 0004: each end is one reference's; a destroyed stream closes both for who maps them."""
    call = messages.Create(ObjectType.SHMEM_STREAM, (client.groups[0],), deletion=Deletion.IMMEDIATE)
    created = client.ask(messages.Created, call)
    other = node.session()
    (reference,) = other.lookup(created.name)
    client.ask(messages.Attached, messages.Attach(created.reference.ref, Mode.WRITE))
    assert other.refused(messages.Attach(reference.ref, Mode.WRITE)) == Code.EBUSY
    other.ask(messages.Attached, messages.Attach(reference.ref, Mode.READ))
    client.call(messages.Delete(created.reference.ref))
    closed = [effect.mode for effect in node.outcome.after if isinstance(effect, effects.CloseStreamEnd)]
    assert sorted(closed) == [Mode.READ, Mode.WRITE]
    assert other.refused(messages.Attach(reference.ref, Mode.READ)) == Code.ESTALE
    other.call(messages.Delete(reference.ref))
    assert not [effect for effect in node.outcome.after if isinstance(effect, effects.CloseStreamEnd)]


def test_stream_end_is_used_once(node: Node, client: Client) -> None:
    """ADR 0004: an end that was let go is gone for good; the other end is told and ready."""
    created = client.create(ObjectType.SHMEM_STREAM)
    other = node.session()
    (reference,) = other.lookup(created.name)
    client.call(messages.Attach(created.reference.ref, Mode.WRITE))
    other.call(messages.Attach(reference.ref, Mode.READ))
    waiting = other.send(messages.Select((reference.ref,)))
    client.call(messages.Delete(created.reference.ref))
    assert other.answer(waiting) == messages.Selected(0)
    assert other.refused(messages.Attach(reference.ref, Mode.WRITE)) == Code.EPIPE


# -- Table 4.4: what each call says to bad references ----------------------------------------------
def calls_on(ref: int, self_ref: int, spare: int) -> list[messages.AnyCall]:
    """Every call that names references, with ``ref`` in each of its places."""
    return [
        messages.Create(ObjectType.SHMEM_BLOB, (ref,)),
        messages.Lookup(bytes(range(32)), ref),
        messages.Copy(ref, self_ref),
        messages.Copy(spare, ref),
        messages.Delete(ref),
        messages.Delete(ref, int(Flag.DESTROY)),
        messages.Run(ref),
        messages.Run(spare, groups=(ref,)),
        messages.Run(spare, inputs=(messages.Handed(ref, 31),)),
        messages.Run(spare, outputs=(messages.Handed(ref, 31),)),
        messages.Pause(ref),
        messages.Resume(ref),
        messages.AcquireRead(ref),
        messages.CommitRead(ref, 1),
        messages.CommitRead(ref, 1, CommitIov.MOVE),
        messages.ReleaseRead(ref, 1),
        messages.AcquireWrite(ref),
        messages.CommitWrite(ref, 1),
        messages.ReleaseWrite(ref, 1),
        messages.Select((ref,)),
        messages.Select((self_ref, ref)),
        messages.ReadOnce(ref),
        messages.WriteOnce(ref, b"x"),
        messages.CommitAcquireRead(ref, 1),
        messages.CommitAcquireWrite(ref, 1),
        messages.Attach(ref, Mode.READ),
        messages.Stat(ref),
        messages.ConsoleOf(ref),
    ]


@pytest.mark.parametrize("defect", ["forged", "deleted", "foreign", "foreign principal's", "ended task's"])
@pytest.mark.parametrize("place", range(28))
def test_bad_references(node: Node, defect: str, place: int) -> None:
    """Table 4.4: a reference not in the caller's table is EBADF in each place of each call."""
    client, other = node.session(), node.session(Principal("uid:7"))
    spare = client.create(data=b"pass").reference.ref
    if defect == "forged":
        ref = 0x1234_5678_9ABC
    elif defect == "deleted":
        ref = client.create().reference.ref
        client.call(messages.Delete(ref))
    elif defect == "foreign":
        ref = node.session().create().reference.ref
    elif defect == "foreign principal's":
        ref = other.self_ref
    else:
        child = client.run()
        ref = child.self_ref
        node.end(TaskId(child.task))
    call = calls_on(ref, client.self_ref, spare)[place]
    assert client.refused(call) == Code.EBADF


@pytest.mark.parametrize("place", range(28))
def test_bad_references_look_alike(node: Node, place: int) -> None:
    """Table 4.4: forged and foreign references are refused in the same words, so that none can be probed."""
    client, other = node.session(), node.session(Principal("uid:7"))
    spare = client.create(data=b"pass").reference.ref
    foreign = other.create(data=b"secret").reference.ref
    answers = []
    for ref in (foreign, foreign ^ 1):
        node.seq = 70
        answers.append((client.call(calls_on(ref, client.self_ref, spare)[place]), node.outcome.after))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("place", range(28))
def test_stale_references(node: Node, place: int) -> None:
    """§4.2: on a zombie no call does anything but drop the handle, look at it, or be ready for its end."""
    client = node.session()
    spare = client.create(data=b"pass").reference.ref
    created = client.create(ObjectType.DURABLE_BLOB, data=b"x")
    (other,) = client.lookup(created.name)
    client.call(messages.Delete(created.reference.ref))
    call = calls_on(other.ref, client.self_ref, spare)[place]
    if isinstance(call, messages.Delete | messages.Stat | messages.Select):
        assert not isinstance(client.call(call), messages.Failure)
        return
    wrong_type = isinstance(call, messages.Pause | messages.Resume | messages.ConsoleOf)
    receiver = isinstance(call, messages.Copy) and call.task == other.ref
    no_buffer = isinstance(call, messages.ReleaseRead | messages.ReleaseWrite)
    expected = Code.EINVAL if wrong_type or receiver else Code.EBADF if no_buffer else Code.ESTALE
    assert client.refused(call) == expected


@pytest.mark.parametrize("place", range(28))
def test_meaningless_flags(node: Node, place: int) -> None:
    """Appendix B: a flag that means nothing to a call is refused, not ignored."""
    client = node.session()
    spare = client.create(data=b"pass").reference.ref
    call = calls_on(spare, client.self_ref, spare)[place]
    if not hasattr(call, "flags"):
        return
    unknown = type(call)(**{name: getattr(call, name) for name in call.__struct_fields__} | {"flags": 2**40})
    assert client.refused(unknown) == Code.EINVAL


def test_call_of_nobody(node: Node) -> None:
    """Calls of a task that is not there, or has ended, are dropped without an answer."""
    client = node.session()
    node.step(events.Disconnected(node.now, client.task))
    seq = client.send(messages.Stat(client.self_ref))
    assert client.answer(seq) is None
    assert node.outcome.after == []


def test_shutdown(node: Node) -> None:
    """Only the node's own user and root stop it; then waiting and new calls are told so."""
    owner, other = node.session(OWNER), node.session(Principal("uid:7"))
    assert other.refused(messages.Shutdown()) == Code.EPERM
    owner.ask(messages.Done, messages.Shutdown())
    waiting = other.send(messages.Select((other.self_ref,)))
    child = owner.run(brand=Brand.LIMBO)
    node.step(events.ShutdownBegan(node.now))
    answer = other.answer(waiting)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EHOSTUNREACH
    assert effects.Kill(TaskId(child.task)) in node.outcome.after
    assert owner.refused(messages.Stat(owner.self_ref)) == Code.EHOSTUNREACH
