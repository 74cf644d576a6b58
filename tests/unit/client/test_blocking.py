"""The blocking face against a node that answers as told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_node import FakeNode, in_turn, reference, welcome
from msgspec.structs import replace

from dios import limits
from dios.client.blocking import Console, Group, Node, Reference, Stream, Task
from dios.client.connection import Connection
from dios.errors import (
    Busy,
    ClosedError,
    Code,
    Conflict,
    InvalidError,
    NotPermittedError,
    ProtocolError,
    TimeLimitError,
)
from dios.transport.memory import create_memory, sealed_memory
from dios.transport.unix_client import ClientChannel
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult, Mapping, PlainResult
from dios.wire.types import Flag, ObjectType, Permission, Semantics, TaskState

BIG = limits.INLINE_BYTES_MAX + 1
DONE = messages.Done(1)
COMMITTED = messages.Committed(3, 4)
CONFLICT = messages.Failure(int(Code.ECANCELED), "another request came between", "abcabcabcabc")


def blob(node: Node, *, size: int = 0) -> Reference:
    """A handle of a blob."""
    return node.handle(reference(size=size))


def buffer(size: int, **more: object) -> messages.Buffer:
    """An answer to an acquire."""
    return replace(messages.Buffer(5, size, 1, 2), **more)


def results(call: AnyCall, *each: PlainResult) -> messages.Results:
    """An answer to a vector of as many calls."""
    assert isinstance(call, messages.Vector)
    assert len(call.calls) == len(each)
    return messages.Results(each)


# -- calls and refusals -----------------------------------------------------------------------------
def test_refusal_is_its_exception() -> None:
    """A Failure becomes the exception of its code, with the call and the object's fingerprint."""
    with FakeNode(lambda _: messages.Failure(int(Code.EPERM), "no right to read", "0a0b")) as fake:
        node = fake.connect()
        with pytest.raises(NotPermittedError, match="readonce on 0a0b: no right to read"):
            blob(node).read_bytes()


def test_wrong_answer_is_refused() -> None:
    """An answer of the wrong kind is the node's fault, and says so."""
    with FakeNode(lambda _: DONE) as fake, pytest.raises(ProtocolError, match="Done"):
        blob(fake.connect()).read_bytes()


def test_unasked_answer_is_refused() -> None:
    """A reply to a request that was never made is an error, not taken for another's."""
    with FakeNode(lambda _: None) as fake:
        node = fake.connect()
        fake.send(99, DONE)
        with pytest.raises(ProtocolError, match="99"):
            blob(node).stat()


def test_node_that_leaves_is_told() -> None:
    """A connection that ends while a call waits raises ClosedError."""

    class Left(Exception):  # noqa: N818 - no error but an end
        pass

    def leave(_: AnyCall) -> None:
        raise Left

    with FakeNode(leave) as fake:
        node = fake.connect()
        with pytest.raises(ClosedError):
            blob(node).stat()
        assert isinstance(fake.failure, Left)
        fake.failure = None


def test_interrupted_call_gives_back_what_it_granted() -> None:
    """When a call is given up, the reference that its late reply brings is dropped by the next call."""
    script = in_turn(messages.Created(None, reference(50)), messages.References((reference(),)), DONE)
    with FakeNode(script) as fake:
        connection = Connection(ClientChannel(fake.peer))
        node = Node(connection, connection.hello((), ""))
        call = messages.Create(ObjectType.SHMEM_BLOB)
        connection._session.give_up(connection.begin(call), call)
        blob(node).stat()
    assert fake.calls == [call, messages.Stat(7), messages.Delete(50, int(Flag.HANDLE_ONLY))]


# -- reading ----------------------------------------------------------------------------------------
def test_small_read_is_one_message() -> None:
    """``read_bytes`` of a small object is one round trip, and gives its bytes."""
    with FakeNode(lambda _: buffer(3, buffer=0, data=b"abc")) as fake:
        assert blob(fake.connect()).read_bytes(3, 1, Semantics.MRSW) == b"abc"
        assert fake.calls == [messages.ReadOnce(7, 3, 1, Semantics.MRSW)]


def test_large_read_comes_as_memory() -> None:
    """``read_bytes`` of a large object copies it out of the memory that came beside the reply."""
    data = os.urandom(BIG)
    answer = buffer(BIG - 5, buffer=0, mapping=Mapping.READ_ONLY, start=5, length=BIG)
    with FakeNode(lambda _: (answer, [sealed_memory(data)])) as fake:
        assert blob(fake.connect()).read_bytes() == data[5:]


def test_read_request_commits_and_releases_in_one_message() -> None:
    """The end of a ``with`` commits and releases together, and the view is gone afterwards."""
    script = in_turn(buffer(3, data=b"abc"), DONE)
    with FakeNode(script) as fake:
        with blob(fake.connect()).read(Semantics.MRSW) as request:
            view = request.view
            assert sum(view) == sum(b"abc")
            assert view.readonly
            assert (request.v_r, request.v_w) == (1, 2)
        assert fake.calls[1:] == [messages.ReleaseRead(7, 5, int(Flag.RELEASE_COMMIT))]
        with pytest.raises(InvalidError, match="released"):
            request.view  # noqa: B018 - looking is the test
        with pytest.raises(ValueError, match="released"):
            view[0]


def test_invalid_read_raises_conflict() -> None:
    """A commit that fails at the end of a ``with`` raises Conflict."""
    script = in_turn(buffer(3, data=b"abc"), CONFLICT)
    with FakeNode(script) as fake:
        node = fake.connect()
        with pytest.raises(Conflict, match="abcabcabcabc"), blob(node).read():
            pass


def test_failing_body_releases_without_commit() -> None:
    """An exception in the body releases the buffer, commits nothing, and is the one that is raised."""
    script = in_turn(buffer(3, data=b"abc"), messages.Failure(int(Code.EBADF), "gone"))
    with FakeNode(script) as fake:
        node = fake.connect()
        with pytest.raises(ZeroDivisionError), blob(node).read():
            raise ZeroDivisionError
        assert fake.calls[1:] == [messages.ReleaseRead(7, 5)]


def test_mapped_read_is_without_copy_and_sealed_memory() -> None:
    """A large read's view is the shared memory itself, and cannot be written."""
    data = os.urandom(2 * limits.MIB)
    start = limits.MIB + 17
    answer = buffer(100, mapping=Mapping.READ_ONLY, start=start, length=len(data))
    script = in_turn((answer, [sealed_memory(data)]), (DONE, ()))
    with FakeNode(script) as fake:
        with blob(fake.connect()).read(size=100, offset=start) as request:
            assert bytes(request.view) == data[start : start + 100]
            with pytest.raises(TypeError):
                request.view[0] = 1
        assert fake.calls[0] == messages.AcquireRead(7, 100, start)


def test_reacquired_read_keeps_or_renews_its_bytes() -> None:
    """Re-acquiring keeps the view when nothing new came, and changes it when something did."""
    script = in_turn(buffer(3, data=b"abc"), COMMITTED, buffer(3), buffer(2, data=b"xy"), DONE)
    with FakeNode(script) as fake, blob(fake.connect()).read() as request:
        request.commit()
        request.reacquire()
        assert bytes(request.view) == b"abc"
        request.reacquire()
        assert bytes(request.view) == b"xy"
    assert [type(call).__name__ for call in fake.calls] == [
        "AcquireRead",
        "CommitRead",
        "AcquireRead",
        "CommitAcquireRead",
        "ReleaseRead",
    ]


# -- writing ----------------------------------------------------------------------------------------
def test_small_write_travels_in_the_commit() -> None:
    """A small write is filled in the client, and committed and released by one message."""

    def script(call: AnyCall) -> AnyResult:
        if isinstance(call, messages.AcquireWrite):
            return buffer(8, data=b"old old")
        return results(call, COMMITTED, DONE)

    with FakeNode(script) as fake:
        with blob(fake.connect()).write(8, Semantics.EXCL) as request:
            assert bytes(request.view) == b"old old\0"
            request.view[:3] = b"new"
        assert fake.calls[0] == messages.AcquireWrite(7, 8, semantics=Semantics.EXCL)
        assert fake.calls[1] == messages.Vector(
            (messages.CommitWrite(7, 5, data=b"new old\0"), messages.ReleaseWrite(7, 5))
        )


def test_conflicting_write_can_be_tried_again() -> None:
    """After a Conflict the same buffer can be acquired again and committed."""
    script = in_turn(buffer(4), CONFLICT, buffer(4, data=b"1234"), COMMITTED, DONE)
    with FakeNode(script) as fake, blob(fake.connect()).write(4, Semantics.EXCL) as request:
        with pytest.raises(Conflict):
            request.commit()
        request.reacquire()
        assert bytes(request.view) == b"1234"
        request.commit()
        assert (request.v_r, request.v_w) == (3, 4)


def test_large_write_is_unmapped_before_its_last_commit() -> None:
    """When the last commit is sent, no writable mapping is left, so that the node can keep the memory."""
    memory = create_memory(BIG, "test")
    mapped: list[bool] = []

    def writable_mappings() -> bool:
        inode = os.fstat(memory).st_ino
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return any(f" {inode} " in line and "rw-s" in line for line in maps)

    def script(call: AnyCall) -> AnyResult | tuple[AnyResult, list[int]]:
        if isinstance(call, messages.AcquireWrite):
            return buffer(BIG, mapping=Mapping.WRITABLE, length=BIG), [os.dup(memory)]
        mapped.append(writable_mappings())
        return COMMITTED if isinstance(call, messages.CommitWrite) else DONE

    with FakeNode(script) as fake:
        with blob(fake.connect()).write(BIG, blank=True) as request:
            request.view[-5:] = b"hello"
            request.commit()
            request.view[-1:] = b"!"
            request._active = True
        assert os.pread(memory, 5, BIG - 5) == b"hell!"
    os.close(memory)
    assert mapped == [True, False]
    assert fake.calls[1:] == [
        messages.CommitWrite(7, 5),
        messages.ReleaseWrite(7, 5, int(Flag.RELEASE_COMMIT)),
    ]


def test_kept_view_does_not_break_the_release() -> None:
    """A view derived by the program outlives the request without an error; it only costs a copy."""
    memory = create_memory(BIG, "test")
    script = in_turn((buffer(BIG, mapping=Mapping.WRITABLE, length=BIG), [os.dup(memory)]), (DONE, ()))
    with FakeNode(script) as fake:
        with blob(fake.connect()).write(BIG) as request:
            kept = request.view[10:20]
        kept[0] = 1
        assert os.pread(memory, 1, 10) == b"\1"
        kept.release()
    os.close(memory)


def test_large_bytes_are_written_without_mapping() -> None:
    """``write_bytes`` above the inline limit acquires, fills the memory and commits with the object's end."""
    memory = create_memory(BIG, "test")

    def script(call: AnyCall) -> AnyResult | tuple[AnyResult, list[int]]:
        if isinstance(call, messages.AcquireWrite):
            return buffer(BIG, mapping=Mapping.WRITABLE, length=BIG), [os.dup(memory)]
        return results(call, COMMITTED, DONE)

    data = os.urandom(BIG)
    with FakeNode(script) as fake:
        assert blob(fake.connect()).write_bytes(data) == 4
        assert os.pread(memory, BIG, 0) == data
        assert fake.calls[0] == messages.AcquireWrite(7, BIG, flags=int(Flag.BLANK))
        assert fake.calls[1] == messages.Vector(
            (messages.CommitWrite(7, 5, BIG, flags=int(Flag.REPLACE)), messages.ReleaseWrite(7, 5))
        )
    os.close(memory)


def test_small_bytes_are_written_in_one_message() -> None:
    """``write_bytes`` of little replaces the object at offset 0 and patches it elsewhere."""
    with FakeNode(lambda _: COMMITTED) as fake:
        made = blob(fake.connect())
        made.write_bytes(b"abc")
        made.write_bytes(memoryview(b"xy"), offset=1)
        assert fake.calls == [
            messages.WriteOnce(7, b"abc", flags=int(Flag.REPLACE)),
            messages.WriteOnce(7, b"xy", 1),
        ]


def test_not_admitted_is_busy() -> None:
    """An acquire that is not admitted raises Busy, which is a Conflict too."""
    with FakeNode(lambda _: messages.Failure(int(Code.EBUSY), "1 writer is active")) as fake:
        node = fake.connect()
        with pytest.raises(Busy):
            blob(node).write(4, Semantics.EXCL)


# -- handles ----------------------------------------------------------------------------------------
def test_counters_are_live_without_a_call() -> None:
    """A handle's counters follow the page; once the slot is another's, the handle is a zombie."""
    with FakeNode(lambda _: DONE) as fake:
        node = fake.connect()
        made = blob(node, size=10)
        fake.page.bind(reference(size=10))
        assert (made.size, made.v_w, made.a_r, made.zombie) == (10, 0, 0, False)
        fake.page.publish(7, 99, 1, 2, 3, 4, 5, zombie=False)
        assert (made.size, made.v_r, made.v_w, made.a_r, made.a_w, made.dirty) == (99, 1, 2, 3, 4, 5)
        fake.page.publish(7, 99, 1, 2, 0, 0, 5, zombie=True)
        assert made.zombie
        fake.page.clear(7)
        assert made.zombie
        assert made.size == 10
        assert fake.calls == []
        node.close()
        assert made.size == 10


def test_names_are_never_shown() -> None:
    """No representation has a name in it; fingerprints stand for objects."""
    with FakeNode(lambda _: messages.Created(b"N" * 32, reference())) as fake:
        node = fake.connect()
        made = node.create(ObjectType.SHMEM_BLOB)
        assert made.name == b"N" * 32
        for shown in (repr(made), str(made), repr(node), repr(node.self), repr(made.restrict("read"))):
            assert "NNN" not in shown
            assert "nnn" not in shown
        assert repr(made) == "<Reference SHMEM_BLOB 000000000007 rwxgd>"


def test_handles_fit_their_types() -> None:
    """Tasks, groups, consoles and streams come as handles with the methods of their kind."""
    with FakeNode(lambda _: DONE) as fake:
        node = fake.connect()
        assert type(node.self) is Task
        assert type(node.console) is Console
        assert type(node.groups[0]) is Group
        assert node.home is node.groups[0]
        assert type(node.handle(reference(9, ObjectType.SHMEM_STREAM))) is Stream
        assert type(node.handle(reference(9, ObjectType.DURABLE_BLOB))) is Reference


def test_rights_narrow_by_name() -> None:
    """``restrict`` takes rights by name, and refuses words that are no right."""
    with FakeNode(lambda _: DONE) as fake:
        made = blob(fake.connect())
        handed = made.restrict("read", "delegate", label="text")
        assert handed.permissions == Permission.READ | Permission.DELEGATE
        assert handed.message() == messages.Handed(7, 9, "text")
        with pytest.raises(InvalidError, match="no right 'reed'"):
            made.restrict("reed")


def test_closing_and_deleting_differ() -> None:
    """Close drops the handle alone, delete follows the object's deletion mode, destroy ends it."""
    with FakeNode(lambda _: DONE) as fake:
        made = blob(fake.connect())
        made.close()
        made.delete()
        made.destroy()
        with made:
            pass
        flags = [call.flags for call in fake.calls if isinstance(call, messages.Delete)]
        assert flags == [Flag.HANDLE_ONLY, 0, Flag.DESTROY, Flag.HANDLE_ONLY]


# -- the node ---------------------------------------------------------------------------------------
def test_small_create_is_one_message() -> None:
    """Creating a small object with its bytes is one round trip."""
    with FakeNode(lambda _: messages.Created(b"N" * 32, reference())) as fake:
        node = fake.connect()
        node.create(ObjectType.DURABLE_BLOB, groups=node.groups, data=b"abc")
        assert fake.calls == [messages.Create(ObjectType.DURABLE_BLOB, (3,), data=b"abc")]


def test_failed_first_bytes_leave_no_object() -> None:
    """When the bytes of a large new object cannot be written, the object is destroyed again."""

    def script(call: AnyCall) -> AnyResult:
        if isinstance(call, messages.Create):
            return messages.Created(None, reference())
        if isinstance(call, messages.AcquireWrite):
            return messages.Failure(int(Code.ENOSPC), "the disk is full")
        return DONE

    with FakeNode(script) as fake:
        node = fake.connect()
        with pytest.raises(Exception, match="the disk is full"):
            node.create(ObjectType.DURABLE_BLOB, data=bytes(BIG))
        assert fake.calls[-1] == messages.Delete(7, int(Flag.DESTROY))


def test_lookup_gives_handles_with_the_name() -> None:
    """Each reference found knows the name that it was found by; none found is an empty list."""
    script = in_turn(messages.References((reference(8), reference(9))), messages.References(()))
    with FakeNode(script) as fake:
        node = fake.connect()
        found = node.lookup(b"N" * 32, group=node.groups[0])
        assert [(item.ref, item.name) for item in found] == [(8, b"N" * 32), (9, b"N" * 32)]
        assert fake.calls == [messages.Lookup(b"N" * 32, 3)]
        assert node.find(b"M" * 32) is None


def test_run_creates_the_program_and_lets_it_go() -> None:
    """Running source makes an anonymous executable, hands over what was given, and drops the handle."""

    def script(call: AnyCall) -> AnyResult:
        if isinstance(call, messages.Create):
            return messages.Created(None, reference(20))
        if isinstance(call, messages.Run):
            return messages.Created(b"T" * 32, reference(21, ObjectType.TASK))
        return DONE

    with FakeNode(script) as fake:
        node = fake.connect()
        given = blob(node)
        task = node.run(
            b"print(1)",
            groups=node.groups,
            inputs={"text": given.restrict("read")},
            outputs=[given],
            args=["--top", "3"],
            brand="limbo",
            label="job",
        )
        assert isinstance(task, Task)
        run = fake.calls[1]
        assert isinstance(run, messages.Run)
        assert run.inputs == (messages.Handed(7, int(Permission.READ), "text"),)
        assert run.outputs == (messages.Handed(7, int(Permission.ALL), ""),)
        assert (run.executable, run.groups, run.arguments, run.label) == (20, (3,), ("--top", "3"), "job")
        assert fake.calls[2] == messages.Delete(20, int(Flag.HANDLE_ONLY))


def test_refused_run_leaves_no_program() -> None:
    """When run is refused, the executable made for it is dropped all the same."""

    def script(call: AnyCall) -> AnyResult:
        if isinstance(call, messages.Create):
            return messages.Created(None, reference(20))
        return messages.Failure(int(Code.EPERM), "no") if isinstance(call, messages.Run) else DONE

    with FakeNode(script) as fake:
        node = fake.connect()
        with pytest.raises(NotPermittedError):
            node.run(b"pass")
        assert fake.calls[-1] == messages.Delete(20, int(Flag.HANDLE_ONLY))


def test_wait_has_a_time_limit() -> None:
    """Waiting for a task with a time limit raises TimeLimitError when it passes."""
    with FakeNode(lambda _: messages.Selected(-1)) as fake:
        node = fake.connect()
        with pytest.raises(TimeLimitError, match="still runs"):
            node.self.wait(0.5)
        assert fake.calls == [messages.Select((1,), timeout_ns=500_000_000)]


def test_status_of_a_running_task_does_not_wait() -> None:
    """``status`` of a task that runs says so at once."""
    with FakeNode(lambda _: messages.Failure(int(Code.EAGAIN), "nothing to read yet")) as fake:
        status = fake.connect().self.status()
        assert status.state is TaskState.RUNNING
        assert not status.ended


def test_select_names_the_ready_one() -> None:
    """Select gives the ready handle, or None when the time passed."""
    script = in_turn(messages.Selected(1), messages.Selected(-1))
    with FakeNode(script) as fake:
        node = fake.connect()
        one, two = blob(node), node.self
        assert node.select([one, two], mode="read", timeout=1.0) is two
        assert node.select([one], mode="write") is None
        with pytest.raises(InvalidError, match="'raed'"):
            node.select([one], mode="raed")


def test_vectors_are_cut_and_keep_their_order() -> None:
    """Any number of calls goes in as few messages as fit; refusals stand in their place."""

    def script(call: AnyCall) -> AnyResult:
        assert isinstance(call, messages.Vector)
        return messages.Results(
            tuple(CONFLICT if isinstance(one, messages.Stat) else COMMITTED for one in call.calls)
        )

    calls = [messages.WriteOnce(7, bytes(30_000)) for _ in range(20)] + [messages.Stat(7)]
    with FakeNode(script) as fake:
        outcomes = fake.connect().vector(calls)
        assert [isinstance(outcome, Conflict) for outcome in outcomes] == [False] * 20 + [True]
        assert len(fake.calls) == 3


def test_what_a_task_was_handed_is_found_by_label() -> None:
    """Inputs and outputs are there in order and by label."""
    given = (reference(30, label="left"), reference(31, label="right"))
    with FakeNode(lambda _: DONE, welcome(inputs=given, arguments=("a",))) as fake:
        node = fake.connect()
        assert [item.ref for item in node.inputs] == [30, 31]
        assert node.input("right").ref == 31
        assert node.arguments == ("a",)
        with pytest.raises(InvalidError, match="no output labelled 'x'"):
            node.output("x")
