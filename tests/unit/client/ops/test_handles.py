"""Handles and the node's own calls, through the blocking face, against a node that answers as told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dios import limits
from dios.client.sync.node import Console, Group, Node, Reference, Stream, Task
from dios.errors import (
    Code,
    Conflict,
    InvalidError,
    NoSpaceError,
    NotPermittedError,
    TimeLimitError,
)
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.types import Flag, ObjectType, Permission, TaskState
from tests.support.client.fake_node import FakeNode, in_turn, reference, welcome

BIG = limits.INLINE_BYTES_MAX + 1
DONE = messages.Done(1)
COMMITTED = messages.Committed(3, 4)
CONFLICT = messages.Failure(int(Code.ECANCELED), "another request came between", "abcabcabcabc")


def blob(node: Node, *, size: int = 0) -> Reference:
    """A handle of a blob."""
    return node.handle(reference(size=size))


# -- handles ----------------------------------------------------------------------------------------
def test_counters_are_live_without_a_call() -> None:
    """A handle's counters follow the page; once the slot is another's, the handle is a zombie."""
    with FakeNode(lambda _: DONE) as fake:
        node = fake.connect()
        handle = blob(node, size=10)
        fake.page.bind(reference(size=10))
        assert (handle.size, handle.v_w, handle.a_r, handle.zombie) == (10, 0, 0, False)
        fake.page.publish(7, 99, 1, 2, 3, 4, 5, zombie=False)
        assert (handle.size, handle.v_r, handle.v_w, handle.a_r, handle.a_w, handle.dirty) == (
            99,
            1,
            2,
            3,
            4,
            5,
        )
        fake.page.publish(7, 99, 1, 2, 0, 0, 5, zombie=True)
        assert handle.zombie
        fake.page.clear(7)
        assert handle.zombie
        assert handle.size == 10
        assert fake.calls == []
        node.close()
        assert handle.size == 10


def test_names_are_never_shown() -> None:
    """No representation has a name in it; fingerprints stand for objects."""
    with FakeNode(lambda _: messages.Created(b"N" * 32, reference())) as fake:
        node = fake.connect()
        handle = node.create(ObjectType.SHMEM_BLOB)
        assert handle.name == b"N" * 32
        for shown in (repr(handle), str(handle), repr(node), repr(node.self), repr(handle.restrict("read"))):
            assert "NNN" not in shown
            assert "nnn" not in shown
        assert repr(handle) == "<Reference SHMEM_BLOB 000000000007 rwxgd>"


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
        handle = blob(fake.connect())
        handed = handle.restrict("read", "delegate", label="text")
        assert handed.permissions == Permission.READ | Permission.DELEGATE
        assert handed.message() == messages.Handed(7, 9, "text")
        with pytest.raises(InvalidError, match="no right 'reed'"):
            handle.restrict("reed")


def test_closing_and_deleting_differ() -> None:
    """Close drops the handle alone, delete follows the object's deletion mode, destroy ends it."""
    with FakeNode(lambda _: DONE) as fake:
        node = fake.connect()
        blob(node).close()
        blob(node).delete()
        blob(node).destroy()
        with blob(node) as handle:
            handle.close()
        assert handle.zombie
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
        with pytest.raises(NoSpaceError, match="the disk is full"):
            node.create(ObjectType.DURABLE_BLOB, data=bytes(BIG))
        assert fake.calls[-1] == messages.Delete(7, int(Flag.DESTROY))


def test_lookup_gives_handles_with_the_name() -> None:
    """Each reference found knows the name that it was found by; none found is an empty list."""
    script = in_turn(messages.References((reference(8), reference(9))), messages.References(()))
    with FakeNode(script) as fake:
        node = fake.connect()
        handles = node.lookup(b"N" * 32, group=node.groups[0])
        assert [(item.ref, item.name) for item in handles] == [(8, b"N" * 32), (9, b"N" * 32)]
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


def test_mistaken_arguments_are_refused_in_words() -> None:
    """What a call cannot take, as a name for a reference, is refused in words; no program stays behind."""

    def script(call: AnyCall) -> AnyResult:
        return messages.Created(None, reference(20)) if isinstance(call, messages.Create) else DONE

    with FakeNode(script) as fake:
        node = fake.connect()
        with pytest.raises(InvalidError, match="not names or aliases"):
            node.create(ObjectType.DURABLE_BLOB, groups=["analytics"])  # type: ignore[list-item]
        with pytest.raises(InvalidError, match="not names or aliases"):
            node.run(b"", inputs=[bytes(32)])  # type: ignore[list-item]
        with pytest.raises(InvalidError, match="'pure' or 'limbo'"):
            node.run(b"", brand="wild")
        assert fake.calls[-1] == messages.Delete(20, int(Flag.HANDLE_ONLY))


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
        first, two = blob(node), node.self
        assert node.select([first, two], mode="read", timeout=1.0) is two
        assert node.select([first], mode="write") is None
        with pytest.raises(InvalidError, match="'sideways'"):
            node.select([first], mode="sideways")


def test_vectors_are_cut_and_keep_their_order() -> None:
    """Any number of calls goes in as few messages as fit; refusals stand in their place."""

    def script(call: AnyCall) -> AnyResult:
        assert isinstance(call, messages.Vector)
        return messages.Results(
            tuple(CONFLICT if isinstance(inner, messages.Stat) else COMMITTED for inner in call.calls)
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
        with pytest.raises(InvalidError, match="no output with the label 'x'"):
            node.output("x")


@pytest.mark.parametrize(
    "mistake",
    [
        lambda node: node.lookup(b"too short"),
        lambda node: node.lookup(b"N" * 32, limit=0),
        lambda node: node.select([]),
        lambda node: node.select([node.self] * (limits.SELECT_REFERENCES_MAX + 1)),
        lambda node: node.create(ObjectType.SHMEM_BLOB, size=-1),
        lambda node: node.create(ObjectType.GROUP, groups=node.groups * (limits.GROUPS_PER_CALL_MAX + 1)),
        lambda node: node.create("SHMEM_BLOB"),
        lambda node: node.run(node.groups[0], args=["x" * (limits.TEXT_BYTES_MAX + 1)]),
        lambda node: node.run(node.groups[0], args=["x"] * (limits.ARGUMENTS_MAX + 1)),
        lambda node: node.self.read_bytes(-1),
        lambda node: node.self.write(2**70),
        lambda node: node.self.write_bytes(b"", offset=-1),
        lambda node: node.vector([messages.Lookup(b"x")]),
    ],
)
def test_mistaken_argument_never_reaches_the_node(mistake: Callable[[Node], object]) -> None:
    """An argument that the node would close the connection for is refused here, and the connection lives."""
    with FakeNode(lambda _: messages.References((reference(),))) as fake:
        node = fake.connect()
        with pytest.raises(InvalidError):
            mistake(node)
        assert fake.calls == []
        assert node.self.stat().ref == 7


def test_a_commit_stands_if_the_buffer_cannot_be_released() -> None:
    """The end of a write commits and releases in one message: a refused release does not undo it."""
    refused = messages.Failure(int(Code.EBADF), "there is no such buffer")
    buffer = messages.Buffer(5, 4, 1, 1, data=b"abcd", length=4)
    with FakeNode(in_turn(buffer, messages.Results((COMMITTED, refused)))) as fake:
        write = blob(fake.connect(), size=4).write(4, replace=True)
        write.finish()
        assert (write.v_r, write.v_w) == (3, 4)
