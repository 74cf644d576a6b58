"""The core's calls from a session and its tasks, one claim each."""

from __future__ import annotations

from dios import limits
from dios.core import effects, events
from dios.core.model.names import special_name
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.codec import decode_event, decode_status
from dios.wire.types import (
    Brand,
    Cause,
    Deletion,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Persistence,
    Semantics,
    TaskState,
)
from tests.support.core.harness import OWNER, Client, Node


def test_session_gets_its_home_group(node: Node) -> None:
    """A first session makes the principal's home group durable and is a member of it."""
    client = node.session()
    assert client.welcome.home is not None
    assert len(client.welcome.groups) == 1
    assert [record.deletion for record in node.stored.values()] == [Deletion.IMMORTAL]


def test_created_object_is_found_by_name(node: Node) -> None:
    """What a member creates in a group it resolves again, with every right, as a fresh reference."""
    client = node.session()
    created = client.create(data=b"abc")
    assert created.name is not None
    reply = client.ask(messages.References, messages.Lookup(created.name))
    (reference,) = reply.references
    assert reference.ref != created.reference.ref
    assert reference.object == created.reference.object
    assert reference.permissions == int(Permission.ALL)
    assert reference.size == 3


def test_unknown_name_gives_empty_answer(node: Node) -> None:
    """A name that does not exist is no error but an empty set."""
    client = node.session()
    assert client.ask(messages.References, messages.Lookup(bytes(range(32)))).references == ()


def test_durable_object_waits_for_the_store(node: Node) -> None:
    """The answer to a durable creation waits for the ticket of its store operation."""
    client = node.session()
    client.create(ObjectType.DURABLE_BLOB, data=b"x")
    assert node.outcome.ticket == node.outcome.wait_for != 0
    (operation,) = node.outcome.persist
    assert isinstance(operation, effects.PutObject)
    assert operation.source is not None
    assert operation.source.length == 1


def test_later_reader_waits_for_the_same_ticket(node: Node) -> None:
    """Whoever sees an object before it is durable gets no answer before it is."""
    client = node.session()
    created = client.create(ObjectType.DURABLE_BLOB, data=b"x")
    ticket = node.outcome.ticket
    client.call(messages.ReadOnce(created.reference.ref))
    assert node.outcome.persist == []
    assert node.outcome.wait_for == ticket


def test_failed_creation_leaves_nothing(node: Node) -> None:
    """When the store refuses a creation, the object is gone and its reference stale."""
    client = node.session()
    created = client.create(ObjectType.DURABLE_BLOB, data=b"x")
    ticket = node.outcome.ticket
    node.step(events.PersistFailed(node.now, ticket, ticket, int(Code.ENOSPC), "disk full"))
    assert client.refused(messages.ReadOnce(created.reference.ref)) == Code.ESTALE
    assert created.name is not None
    assert client.ask(messages.References, messages.Lookup(created.name)).references == ()


def test_failed_write_goes_back(node: Node) -> None:
    """When the store refuses a write, the object is what it was before."""
    client = node.session()
    created = client.create(ObjectType.DURABLE_BLOB, data=b"old")
    node.step(events.Persisted(node.now, node.outcome.ticket))
    client.call(messages.WriteOnce(created.reference.ref, b"newer", flags=int(Flag.REPLACE)))
    ticket = node.outcome.ticket
    node.step(events.PersistFailed(node.now, ticket, ticket, int(Code.ENOSPC), "disk full"))
    (now,) = client.ask(messages.References, messages.Stat(created.reference.ref)).references
    assert (now.size, now.v_w) == (3, 0)


def test_failed_delete_comes_back(node: Node) -> None:
    """When the store refuses a deletion, the object can be resolved again."""
    client = node.session()
    created = client.create(ObjectType.DURABLE_BLOB, data=b"old")
    node.step(events.Persisted(node.now, node.outcome.ticket))
    client.call(messages.Delete(created.reference.ref))
    ticket = node.outcome.ticket
    node.step(events.PersistFailed(node.now, ticket, ticket, int(Code.EIO), "device"))
    assert created.name is not None
    assert len(client.ask(messages.References, messages.Lookup(created.name)).references) == 1


def test_durable_objects_are_reinstated() -> None:
    """A new core that is told the store's records resolves the old names, in home and other groups."""
    first = Node()
    client = first.session()
    group = client.create(ObjectType.GROUP)
    created = client.create(ObjectType.DURABLE_BLOB, groups=(group.reference.ref,), data=b"x")
    second = Node(seed=1)
    second.step(events.Recovered(second.now, tuple(first.stored.values())))
    assert group.name is not None
    assert created.name is not None
    again = second.session(groups=(group.name,))
    assert len(again.ask(messages.References, messages.Lookup(created.name)).references) == 1
    stranger = second.session(Principal("uid:7"), groups=(group.name,))
    assert stranger.ask(messages.References, messages.Lookup(created.name)).references == ()


def test_read_and_write_requests_count(node: Node) -> None:
    """Acquire counts a request as active, commit as done, and bumps the version."""
    client = node.session()
    ref = client.create(data=b"abc").reference.ref
    buffer = client.ask(messages.Buffer, messages.AcquireRead(ref, semantics=Semantics.MRSW))
    (seen,) = client.ask(messages.References, messages.Stat(ref)).references
    assert (seen.a_r, seen.v_r) == (1, 0)
    done = client.ask(messages.Committed, messages.CommitRead(ref, buffer.buffer))
    assert (done.v_r, done.v_w) == (1, 0)
    client.ask(messages.Done, messages.ReleaseRead(ref, buffer.buffer))
    assert client.refused(messages.ReleaseRead(ref, buffer.buffer)) == Code.EBADF


def test_task_gets_what_it_was_handed(node: Node) -> None:
    """A task without groups gets one empty group, its inputs narrowed, and nothing else."""
    client = node.session()
    blob = client.create(data=b"abc")
    child = client.run(inputs=(messages.Handed(blob.reference.ref, int(Permission.READ), "in"),))
    (given,) = child.welcome.inputs
    assert given.permissions == int(Permission.READ)
    assert given.label == "in"
    assert blob.name is not None
    assert child.ask(messages.References, messages.Lookup(blob.name)).references == ()
    assert child.refused(messages.WriteOnce(given.ref, b"x")) == Code.EPERM
    assert child.refused(messages.ReadOnce(blob.reference.ref)) == Code.EBADF


def test_waiting_run_answers_when_the_child_runs(node: Node) -> None:
    """Run blocks until the child runs; without a process it is refused with the cause."""
    client = node.session()
    blob = client.create(data=b"pass")
    seq = client.send(messages.Run(blob.reference.ref))
    assert client.answer(seq) is None
    spawn = next(effect for effect in node.effects if isinstance(effect, effects.Spawn))
    node.step(events.TaskEnded(node.now, spawn.task, Cause.SPAWN, detail="no namespaces"))
    answer = client.answer(seq)
    assert isinstance(answer, messages.Failure)
    assert "no namespaces" in answer.message


def test_parent_reads_status_and_event(node: Node) -> None:
    """A child's end is an event on the parent's self-reference and a status on the child's."""
    client = node.session()
    child = client.run()
    waiting = client.send(messages.Select((child.reference.ref, client.self_ref)))
    assert client.answer(waiting) is None
    node.end(child.task, exit_code=3)
    selected = client.answer(waiting)
    assert isinstance(selected, messages.Selected)
    answer = client.call(messages.ReadOnce(child.reference.ref))
    assert isinstance(answer, effects.AnswerBytes)
    status = decode_status(answer.data)
    assert (status.state, status.exit_code, status.cause) == (TaskState.ENDED, 3, Cause.EXITED)
    event = client.call(messages.ReadOnce(client.self_ref))
    assert isinstance(event, effects.AnswerBytes)
    assert isinstance(decode_event(event.data), messages.ChildEnded)


def test_a_new_reader_of_a_long_output_begins_with_what_is_kept(node: Node) -> None:
    """The first read is of the last 256 KiB, and the next one continues there."""
    client = node.session()
    child = client.run()
    (console,) = client.ask(messages.References, messages.ConsoleOf(child.reference.ref)).references
    printed = 10 * limits.CONSOLE_TAIL_BYTES
    node.step(events.ConsoleArrived(node.now, child.task, printed))
    client.call(messages.ReadOnce(console.ref))
    client.call(messages.ReadOnce(console.ref))
    first, second = (effect for effect in node.effects if isinstance(effect, effects.AnswerConsole))
    assert first.position == printed - limits.CONSOLE_TAIL_BYTES
    assert second.position == first.position + first.length


def test_console_reads_wait_and_end(node: Node) -> None:
    """A console read waits for bytes, and gives EOF once the task has ended and all is read."""
    client = node.session()
    child = client.run()
    (console,) = client.ask(messages.References, messages.ConsoleOf(child.reference.ref)).references
    seq = client.send(messages.ReadOnce(console.ref))
    assert client.answer(seq) is None
    node.step(events.ConsoleArrived(node.now, child.task, 5))
    answer = client.answer(seq)
    assert isinstance(answer, messages.Buffer)
    assert answer.size == 5
    node.end(child.task)
    assert client.refused(messages.ReadOnce(console.ref)) == Code.EOF


def test_select_times_out(node: Node) -> None:
    """A select whose time passes answers -1 at its deadline."""
    client = node.session()
    seq = client.send(messages.Select((client.self_ref,), timeout_ns=500))
    assert node.outcome.deadline == node.now + 500
    node.step(events.TimerFired(node.now + 500))
    assert client.answer(seq) == messages.Selected(-1)


def test_timer_becomes_ready(node: Node) -> None:
    """A TIMER_BLOB is ready when its time has come."""
    client = node.session()
    timer = client.ask(messages.Created, messages.Create(ObjectType.TIMER_BLOB, size=100))
    seq = client.send(messages.Select((timer.reference.ref,)))
    assert client.answer(seq) is None
    node.step(events.TimerFired(node.now + 100))
    assert client.answer(seq) == messages.Selected(0)


def test_killed_session_leaves_no_request(node: Node) -> None:
    """A session that vanishes leaves exact counters and no volatile object behind."""
    client, other = node.session(), node.session()
    created = client.create(data=b"abc")
    assert created.name is not None
    (seen,) = other.ask(messages.References, messages.Lookup(created.name)).references
    client.ask(messages.Buffer, messages.AcquireWrite(created.reference.ref, semantics=Semantics.EXCL))
    assert other.refused(messages.ReadOnce(seen.ref, semantics=Semantics.EXCL)) == Code.EBUSY
    node.step(events.Disconnected(node.now, client.task))
    other.ask(messages.Buffer, messages.ReadOnce(seen.ref, semantics=Semantics.EXCL))
    node.step(events.Disconnected(node.now, other.task))
    assert {target.type for target in node.core.state.objects.values()} == {ObjectType.GROUP}


def test_special_names_mean_the_callers(node: Node) -> None:
    """The console's name resolves to the caller's own console and nobody else's."""
    client, other = node.session(), node.session()
    (mine,) = client.ask(messages.References, messages.Lookup(special_name(1))).references
    (theirs,) = other.ask(messages.References, messages.Lookup(special_name(1))).references
    assert mine.object == client.welcome.console.object != theirs.object


def test_vector_answers_in_order(node: Node) -> None:
    """A vector's calls are answered in one message, failures beside successes."""
    client = node.session()
    ref = client.create(data=b"abc").reference.ref
    vector = messages.Vector((messages.Stat(ref), messages.Stat(5), messages.WriteOnce(ref, b"xy")))
    answer = client.ask(effects.AnswerVector, vector)
    kinds = [type(part.result) for part in answer.parts if isinstance(part, effects.Answer)]
    assert kinds == [messages.References, messages.Failure, messages.Committed]


def test_a_vector_attaches_to_streams_that_it_does_not_delete(node: Node) -> None:
    """The ends come with the answer of the vector, so the streams exist until then."""
    client = node.session()
    stream, other = (client.create(ObjectType.SHMEM_STREAM).reference.ref for _ in range(2))
    vector = messages.Vector(
        (
            messages.Attach(stream, Mode.WRITE),
            messages.Attach(stream, Mode.WRITE),
            messages.Delete(stream, int(Flag.DESTROY)),
            messages.Attach(other, Mode.READ),
        )
    )
    first, again, deleted, last = client.ask(effects.AnswerVector, vector).parts
    assert isinstance(first, effects.AnswerAttach)
    assert isinstance(last, effects.AnswerAttach)
    assert (first.mode, last.mode) == (Mode.WRITE, Mode.READ)
    codes = [
        part.result.code
        for part in (again, deleted)
        if isinstance(part, effects.Answer) and isinstance(part.result, messages.Failure)
    ]
    assert codes == [Code.EBUSY, Code.EINVAL]
    client.ask(messages.Done, messages.Delete(stream, int(Flag.DESTROY)))


def test_pure_task_starts_no_limbo(node: Node) -> None:
    """A pure task can start pure tasks only, or the sandbox would be no boundary."""
    client = node.session()
    child = client.run()
    blob = child.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass")
    assert child.refused(messages.Run(blob.reference.ref, brand=Brand.LIMBO)) == Code.EPERM


def test_stream_has_two_ends(node: Node) -> None:
    """Each end of a stream is one reference's; when it goes, the other end is told."""
    client = node.session()
    stream = client.create(ObjectType.SHMEM_STREAM).reference.ref
    client.ask(messages.Attached, messages.Attach(stream, Mode.WRITE))
    assert client.refused(messages.Attach(stream, Mode.WRITE)) == Code.EBUSY
    node.step(events.Disconnected(node.now, client.task))
    assert any(isinstance(effect, effects.CloseStreamEnd) for effect in node.outcome.after)


def test_destroying_a_task_ends_it(node: Node) -> None:
    """Delete with DESTROY on a child's reference kills it, with the cause on record."""
    client = node.session()
    child = client.run()
    client.ask(messages.Done, messages.Delete(child.reference.ref, int(Flag.DESTROY)))
    assert effects.Kill(child.task) in node.outcome.after


def test_copy_to_durable_makes_a_new_physical_object(node: Node) -> None:
    """Asking for another persistence on delegation copies the data under the same name."""
    client = node.session()
    created = client.create(data=b"abc")
    call = messages.Copy(created.reference.ref, client.self_ref, persistence=Persistence.DURABLE)
    (copied,) = client.ask(messages.References, call).references
    assert copied.object != created.reference.object
    assert copied.type is ObjectType.DURABLE_BLOB
    assert created.name is not None
    assert len(client.ask(messages.References, messages.Lookup(created.name)).references) == 2


def test_same_events_same_outcomes() -> None:
    """The same events and entropy give the same effects, in order."""

    def story(node: Node) -> list[object]:
        client = node.session()
        child: Client = client.run()
        child.create(groups=(), data=b"x")
        node.end(child.task)
        return node.effects

    assert story(Node(3)) == story(Node(3))


def test_other_principals_see_nothing(node: Node) -> None:
    """A foreign principal resolves nothing of ours even with every name."""
    client = node.session()
    created = client.create(data=b"abc")
    stranger = node.session(Principal("uid:7"))
    assert created.name is not None
    assert stranger.ask(messages.References, messages.Lookup(created.name)).references == ()
    assert Principal("uid:7") != OWNER


def test_ended_task_can_be_looked_at_by_who_ended_it(node: Node) -> None:
    """DESTROY on a task keeps the reference: its holder reads how the task ended."""
    client = node.session()
    child = client.run()
    client.ask(messages.Done, messages.Delete(child.reference.ref, int(Flag.DESTROY)))
    node.end(child.task, Cause.SIGNAL)
    answer = client.call(messages.ReadOnce(child.reference.ref))
    assert isinstance(answer, effects.AnswerBytes)
    assert decode_status(answer.data).cause is Cause.KILLED


def test_running_task_has_a_status(node: Node) -> None:
    """A read of a task's status that may not wait tells how it is now."""
    client = node.session()
    child = client.run()
    answer = client.call(messages.ReadOnce(child.reference.ref, flags=int(Flag.NON_BLOCKING)))
    assert isinstance(answer, effects.AnswerBytes)
    assert decode_status(answer.data).state is TaskState.RUNNING


def test_unreachable_durable_objects_are_collected() -> None:
    """A durable object without a name is dropped from the store at the next start."""
    first = Node()
    client = first.session()
    client.create(ObjectType.DURABLE_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x")
    client.create(ObjectType.DURABLE_BLOB, data=b"x")
    second = Node(seed=1)
    second.step(events.Recovered(second.now, tuple(first.stored.values())))
    (dropped,) = second.outcome.persist
    assert isinstance(dropped, effects.DropObject)
    assert first.stored[dropped.object].name is None


def test_stream_end_that_nobody_can_take_is_gone(node: Node) -> None:
    """When the last reference that could attach an end goes, the attached other end is told."""
    client = node.session()
    stream = client.create(ObjectType.SHMEM_STREAM, name_kind=NameKind.ANONYMOUS).reference.ref
    reader = client.run(inputs=(messages.Handed(stream, int(Permission.READ)),))
    reader.ask(messages.Attached, messages.Attach(reader.welcome.inputs[0].ref, Mode.READ))
    client.ask(messages.Done, messages.Delete(stream))
    gone = [effect for effect in node.outcome.after if isinstance(effect, effects.CloseStreamEnd)]
    assert [effect.mode for effect in gone] == [Mode.WRITE]


def test_records_show_what_they_are_and_no_names() -> None:
    """The core, its state and its records are legible, with fingerprints in the place of names."""
    node = Node()
    client = node.session()
    blob = client.create(data=b"12345")
    assert blob.name is not None
    client.call(messages.AcquireRead(blob.reference.ref))
    task = node.core.state.tasks[client.task]
    (buffer,) = task.buffers.values()
    assert repr(buffer.reference.object) == f"<SHMEM_BLOB {blob.reference.fingerprint} of 5 bytes>"
    assert repr(task) == f"<Session {task.object.fingerprint} of uid:1000, RUNNING>"
    assert repr(buffer.reference) == (
        f"<reference {blob.reference.ref:x} of {task!r} to {buffer.reference.object!r}>"
    )
    assert repr(buffer) == f"<buffer {buffer.id:x} of {buffer.reference!r}>"
    assert repr(node.core) == "<Core with <State: 4 objects, 1 tasks, 0 calls wait>>"
    assert blob.name.hex() not in repr(buffer)
