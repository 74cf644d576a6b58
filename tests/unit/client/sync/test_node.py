"""The blocking face against a node that answers as told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from dios import limits
from dios.client.sync.connection import Connection
from dios.client.sync.node import Node, Reference
from dios.errors import (
    Busy,
    ClosedError,
    Code,
    Conflict,
    InvalidError,
    NotPermittedError,
    ProtocolError,
)
from dios.transport.memory.memfd import create_memory, sealed_memory
from dios.transport.unix.client import ClientChannel
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult, Mapping, PlainResult
from dios.wire.types import Flag, ObjectType, Semantics
from tests.support.client.fake_node import FakeNode, in_turn, reference

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


def results(call: AnyCall, *parts: PlainResult) -> messages.Results:
    """An answer to a vector of as many calls."""
    assert isinstance(call, messages.Vector)
    assert len(call.calls) == len(parts)
    return messages.Results(parts)


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
    script = in_turn(messages.Created(None, reference(50)), messages.References((reference(),)), DONE, DONE)
    with FakeNode(script) as fake:
        connection = Connection(ClientChannel(fake.peer))
        node = Node(connection, connection.hello((), ""))
        call = messages.Create(ObjectType.SHMEM_BLOB)
        connection._give_up(connection.begin(call), call)
        blob(node).stat()
        node.pause()
    drop = messages.Delete(50, int(Flag.HANDLE_ONLY))
    assert fake.calls == [call, messages.Stat(7), drop, messages.Pause(1)]


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
        handle = blob(fake.connect())
        handle.write_bytes(b"abc")
        handle.write_bytes(memoryview(b"xy"), offset=1)
        assert fake.calls == [
            messages.WriteOnce(7, b"abc", flags=int(Flag.REPLACE)),
            messages.WriteOnce(7, b"xy", 1),
        ]


def test_not_admitted_is_busy() -> None:
    """An acquire that is not admitted raises Busy, which is not a failed commit."""
    with FakeNode(lambda _: messages.Failure(int(Code.EBUSY), "1 writer is active")) as fake:
        node = fake.connect()
        with pytest.raises(Busy) as refused:
            blob(node).write(4, Semantics.EXCL)
    assert not isinstance(refused.value, Conflict)


class BrokenOff(ClientChannel):
    """A channel on which Ctrl-C comes as soon as something was sent, once."""

    broken = False

    def send(self, frame: bytes) -> None:
        """Send, and be interrupted."""
        super().send(frame)
        if not self.broken:
            self.broken = True
            raise KeyboardInterrupt


def test_ctrl_c_behind_a_call_leaves_the_connection_whole() -> None:
    """An answer to a call that was interrupted just after it was sent is settled, and the next is found."""
    with FakeNode(lambda _: DONE) as fake:
        connection = Connection(BrokenOff(fake.peer))
        with pytest.raises(KeyboardInterrupt):
            connection.begin(messages.NodeInfo())
        assert connection.call(messages.NodeInfo())[0] == DONE
