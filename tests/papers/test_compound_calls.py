"""§5.2.3 and docs/semantics.md: compound calls and vectors do what their parts would, in one message."""

from __future__ import annotations

import pytest

from dios.core import effects, events
from dios.errors import Code
from dios.ids import PayloadId
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Deletion,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Semantics,
)
from tests.support.core.harness import Client, Node


@pytest.fixture
def client(node: Node) -> Client:
    """A session."""
    return node.session()


@pytest.fixture
def ref(client: Client) -> int:
    """A shared blob of ten bytes."""
    return client.create(data=b"0123456789").reference.ref


def parts_of(client: Client, *calls: messages.PlainCall) -> list[object]:
    """The parts' results of a vector."""
    return [
        part.result if not isinstance(part, effects.AnswerBytes) else part
        for part in client.ask(effects.AnswerVector, messages.Vector(calls)).parts
    ]


def codes(results: list[object]) -> list[int]:
    """The failures' codes, 0 for a success."""
    return [result.code if isinstance(result, messages.Failure) else 0 for result in results]


@pytest.mark.parametrize("level", list(Semantics))
def test_read_once(client: Client, ref: int, level: Semantics) -> None:
    """A read in one message counts as an acquire and a commit, and leaves nothing active."""
    answer = client.ask(messages.Buffer, messages.ReadOnce(ref, 4, 3, level))
    assert (answer.buffer, answer.size, answer.v_r) == (0, 4, 1)
    assert client.counters(ref) == (0, 0, 1, 0)


@pytest.mark.parametrize("level", list(Semantics))
def test_write_once(client: Client, ref: int, level: Semantics) -> None:
    """A write in one message counts as an acquire and a commit, and leaves nothing active."""
    client.ask(messages.Committed, messages.WriteOnce(ref, b"abc", 9, level))
    assert client.counters(ref) == (0, 0, 0, 1)
    assert client.stat(ref).size == 12
    assert client.refused(messages.WriteOnce(ref, b"abc", 13)) == Code.EINVAL
    client.ask(messages.Committed, messages.WriteOnce(ref, b"abc", flags=int(Flag.REPLACE)))
    assert client.stat(ref).size == 3


@pytest.mark.parametrize("level", [Semantics.EXCL, Semantics.MRSW])
def test_once_is_admitted_like_an_acquire(client: Client, ref: int, level: Semantics) -> None:
    """The compounds are refused where their acquire would be."""
    client.call(messages.AcquireWrite(ref))
    assert client.refused(messages.ReadOnce(ref, semantics=level)) == Code.EBUSY
    assert client.refused(messages.WriteOnce(ref, b"x", semantics=level)) == Code.EBUSY


def test_commit_acquire_read(client: Client, ref: int) -> None:
    """Commit-and-acquire commits the read and begins the next on the same buffer."""
    first = client.ask(messages.Buffer, messages.AcquireRead(ref, semantics=Semantics.MRSW))
    again = client.ask(messages.Buffer, messages.CommitAcquireRead(ref, first.buffer, Semantics.MRSW))
    assert again.buffer == first.buffer
    assert client.counters(ref) == (1, 0, 1, 0)


def test_commit_acquire_write(client: Client, ref: int) -> None:
    """Commit-and-acquire commits the write and begins the next on the same buffer."""
    first = client.ask(messages.Buffer, messages.AcquireWrite(ref, semantics=Semantics.EXCL))
    call = messages.CommitAcquireWrite(ref, first.buffer, semantics=Semantics.EXCL)
    again = client.ask(messages.Buffer, call)
    assert again.buffer == first.buffer
    assert client.counters(ref) == (0, 1, 0, 1)


@pytest.mark.parametrize("mode", list(Mode))
def test_commit_that_held_says_so(client: Client, ref: int, mode: Mode) -> None:
    """When the commit held and the next acquire is not admitted, the answer is no conflict: a write's
    versions, a read's EBUSY.
    """
    kind = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
    buffer = client.ask(messages.Buffer, kind(ref)).buffer
    client.call(messages.AcquireRead(ref))
    again = messages.CommitAcquireRead if mode is Mode.READ else messages.CommitAcquireWrite
    answer = client.call(again(ref, buffer, semantics=Semantics.EXCL))
    if mode is Mode.READ:
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.EBUSY
    else:
        assert isinstance(answer, messages.Committed)
    assert client.counters(ref) == (1, 0, mode is Mode.READ, mode is Mode.WRITE)
    release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
    client.ask(messages.Done, release(ref, buffer))


@pytest.mark.parametrize("mode", list(Mode))
def test_commit_that_failed_acquires_nothing(client: Client, ref: int, mode: Mode) -> None:
    """When the commit did not hold, no request is begun."""
    kind = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
    buffer = client.ask(messages.Buffer, kind(ref, semantics=Semantics.EXCL)).buffer
    client.call(messages.ReadOnce(ref))
    again = messages.CommitAcquireRead if mode is Mode.READ else messages.CommitAcquireWrite
    client.conflicts(again(ref, buffer))
    assert client.counters(ref) == (0, 0, 1, 0)


# -- vectors ---------------------------------------------------------------------------------------
def test_vector_is_answered_in_order(node: Node, client: Client, ref: int) -> None:
    """The results stand in the calls' order in one answer, refusals in their places."""
    results = parts_of(
        client,
        messages.Stat(ref),
        messages.Stat(1),
        messages.WriteOnce(ref, b"xy"),
        messages.ReadOnce(ref),
        messages.Create(ObjectType.SHMEM_BLOB),
    )
    assert codes(results) == [0, Code.EBADF, 0, 0, 0]
    assert len([e for e in node.outcome.after if isinstance(e, effects.AnswerVector)]) == 1


def test_vector_payloads_count_up(node: Node, client: Client, ref: int) -> None:
    """Each call of a vector that carries bytes takes the next payload id, and no other does."""
    other = client.create().reference.ref
    calls = (
        messages.WriteOnce(ref, b"a"),
        messages.Stat(ref),
        messages.Create(ObjectType.SHMEM_BLOB),
        messages.Stat(1),
        messages.WriteOnce(other, b""),
        messages.Create(ObjectType.SHMEM_BLOB, data=b"c"),
    )
    parts_of(client, *calls)
    applied = [e.source.payload for e in node.outcome.after if isinstance(e, effects.ApplyWrite)]
    first = PayloadId(node.payload)
    assert applied == [first, 0, first + 1, first + 2]


def test_vector_may_not_wait(client: Client) -> None:
    """A read or select that would wait is EAGAIN inside a vector; a run that always waits is EINVAL."""
    program = client.create(data=b"pass").reference.ref
    for call in (messages.ReadOnce(client.self_ref), messages.Select((client.self_ref,))):
        assert codes(parts_of(client, call)) == [Code.EAGAIN]
    assert codes(parts_of(client, messages.Run(program))) == [Code.EINVAL]
    assert codes(parts_of(client, messages.Run(program, flags=int(Flag.NON_BLOCKING)))) == [0]


def test_calls_that_stand_alone(client: Client, ref: int) -> None:
    """Cancel, shutdown, and a task's own end are refused inside a vector."""
    calls = (
        messages.Cancel(1),
        messages.Shutdown(),
        messages.Delete(client.self_ref),
        messages.Create(ObjectType.SHMEM_BLOB),
    )
    assert codes(parts_of(client, *calls)) == [Code.EINVAL] * 3 + [0]
    assert client.stat(ref).size == 10


def test_vector_calls_are_independent(node: Node, client: Client, ref: int) -> None:
    """A vector's bytes are those at its answer: a later call that would change them is refused."""
    kept = client.create(data=b"abc").reference.ref
    buffer = client.ask(messages.Buffer, messages.AcquireWrite(ref)).buffer
    reading = client.ask(messages.Buffer, messages.AcquireRead(kept)).buffer
    client.call(messages.CommitRead(kept, reading))
    calls = (
        messages.ReadOnce(ref),
        messages.WriteOnce(ref, b"x"),
        messages.CommitWrite(ref, buffer),
        messages.CommitAcquireWrite(ref, buffer),
        messages.ReleaseWrite(ref, buffer, int(Flag.RELEASE_COMMIT)),
        messages.CommitWrite(ref, reading, iov=2),  # type: ignore[arg-type]
        messages.Delete(ref),
        messages.WriteOnce(kept, b"y"),
    )
    assert codes(parts_of(client, *calls)) == [0, *[Code.EINVAL] * 6, 0]
    assert node.core.state.tasks[client.task].buffers.keys() == {buffer, reading}


@pytest.mark.parametrize("mode", list(Mode))
def test_buffer_of_the_same_vector(node: Node, client: Client, ref: int, mode: Mode) -> None:
    """A buffer acquired in a vector is named by no later call of it, though its id can be guessed."""
    acquire = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
    commit = messages.CommitRead if mode is Mode.READ else messages.CommitWrite
    release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
    probe = client.ask(messages.Buffer, acquire(ref)).buffer
    client.call(release(ref, probe))
    coming = probe + 1
    calls = (acquire(ref), commit(ref, coming), release(ref, coming), messages.Delete(ref))
    assert codes(parts_of(client, *calls)) == [0, Code.EINVAL, Code.EINVAL, Code.EINVAL]
    assert not [e for e in node.outcome.after if isinstance(e, effects.CloseBuffer)]
    client.ask(messages.Done, release(ref, coming))


def test_vector_taking_over_a_buffer(client: Client, ref: int) -> None:
    """Re-use and release of one buffer do not go into one vector either."""
    buffer = client.ask(messages.Buffer, messages.AcquireRead(ref)).buffer
    client.call(messages.CommitRead(ref, buffer))
    calls = (
        messages.AcquireRead(ref, iov=AcquireIov.REUSE, buffer=buffer),
        messages.ReleaseRead(ref, buffer),
    )
    assert codes(parts_of(client, *calls)) == [0, Code.EINVAL]


def test_vector_of_refusals_changes_nothing(node: Node, client: Client, ref: int) -> None:
    """A vector whose every call is refused leaves all as it was."""
    from tests.support.core.snapshot import snapshot

    before = snapshot(node.core.state)
    calls = (
        messages.Stat(1),
        messages.AcquireRead(ref, offset=11),
        messages.Delete(client.self_ref),
        messages.Create(ObjectType.UDP_STREAM),
        messages.Run(ref, groups=(ref,), flags=int(Flag.NON_BLOCKING)),
    )
    assert 0 not in codes(parts_of(client, *calls))
    assert snapshot(node.core.state) == before


def test_vector_waits_for_its_latest_ticket(node: Node, client: Client) -> None:
    """Several durable changes in one vector are one ticket, and the one answer waits for it."""
    make = messages.Create(ObjectType.DURABLE_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x")
    parts_of(client, make, make)
    assert len(node.outcome.persist) == 2
    assert node.outcome.ticket == node.outcome.wait_for != 0


def test_sequence_number_that_waits_already(node: Node, client: Client) -> None:
    """A call or vector under the number of a waiting call breaks the protocol and ends the session."""
    seq = client.send(messages.Select((client.self_ref,)))
    for call in (messages.Stat(client.self_ref), messages.Vector((messages.Stat(client.self_ref),))):
        other = node.session()
        waiting = other.send(messages.Select((other.self_ref,)))
        node.step(events.Called(node.now, other.task, waiting, call))
        assert any(isinstance(effect, effects.CloseConnection) for effect in node.outcome.after)
    assert client.answer(seq) is None


def test_deleting_twice_in_a_vector(client: Client) -> None:
    """B.1.4: local races are idempotent; the second call of two finds nothing."""
    call = messages.Create(ObjectType.SHMEM_BLOB, deletion=Deletion.IMMEDIATE)
    ref = client.ask(messages.Created, call).reference.ref
    assert codes(parts_of(client, messages.Delete(ref), messages.Delete(ref))) == [0, Code.EBADF]
