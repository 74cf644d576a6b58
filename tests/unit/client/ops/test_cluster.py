"""What both faces make of nodes, hosts and answers that lack some, against a node that answers as told."""

from __future__ import annotations

import math

import pytest
import trio
from msgspec.structs import replace

from dios.client.aio.channel import AsyncChannel
from dios.client.aio.connection import AsyncConnection
from dios.client.aio.node import AsyncNode
from dios.errors import InvalidError
from dios.wire import messages
from dios.wire.types import (
    Brand,
    Cause,
    Flag,
    NodeStatus,
    NodeWish,
    ObjectType,
    Persistence,
    TaskState,
)
from tests.support.client.fake_node import FakeNode, in_turn, reference

ROW = messages.NodeRow(7, "n1", "r1", "127.0.0.1:1", NodeStatus.ALIVE, False, 3, 5, 1, 2, 1024, True)
OTHER = replace(ROW, node=8, name="n2", status=NodeStatus.SUSPECT, here=False)
TASK = messages.TaskRow(
    b"t" * 32, "0a0b", "job", TaskState.RUNNING, Brand.PURE, "uid:1", 9, 1, 0, Cause.NONE, 0, 0, "", "", "n2"
)


def test_nodes_are_told_as_they_came() -> None:
    """Every field of a row is that of its member, in the order of the answer."""
    with FakeNode(in_turn(messages.Nodes((ROW, OTHER)))) as fake:
        first, second = fake.connect().nodes()
    assert (first.node, first.name, first.rack, first.address) == (7, "n1", "r1", "127.0.0.1:1")
    assert (first.epoch, first.since_ns, first.tasks, first.cpus, first.memory_bytes) == (3, 5, 1, 2, 1024)
    assert first.here
    assert first.usable
    assert not first.draining
    assert second.status is NodeStatus.SUSPECT
    assert not second.usable
    assert fake.calls == [messages.ListNodes()]


@pytest.mark.parametrize("wish", list(NodeWish))
def test_a_wish_is_its_word(wish: NodeWish) -> None:
    """A wish may be a word or the thing itself, and the answer is the cluster after it."""
    answer = messages.Nodes((replace(ROW, draining=True),))
    with FakeNode(in_turn(answer, answer)) as fake:
        node = fake.connect()
        assert node.set_node("n2", wish.name.lower()) == node.set_node("n2", wish)
    assert fake.calls == [messages.SetNode("n2", wish)] * 2


def test_a_wish_that_is_none_is_refused_before_anything_is_sent() -> None:
    """A misspelled wish, and a node without a name, never reach the node."""
    with FakeNode(in_turn()) as fake:
        node = fake.connect()
        with pytest.raises(InvalidError, match="drain, undrain, forget, restore"):
            node.set_node("n2", "explode")
        with pytest.raises(InvalidError, match="give the name of a node"):
            node.set_node("", "drain")
    assert fake.calls == []


def test_hosts_are_said_in_the_call() -> None:
    """create, copy, run and info name the node that is meant."""
    created = messages.Created(b"n" * 32, reference(9))
    started = messages.Created(b"t" * 32, reference(11, ObjectType.TASK))
    with FakeNode(
        in_turn(
            created,
            messages.References((reference(10),)),
            started,
            started,
            messages.Info("1", "n2", {}, {}),
        )
    ) as fake:
        node = fake.connect()
        blob = node.create(ObjectType.SHMEM_BLOB, host="n2")
        blob.copy(host="n3", persistence=Persistence.DURABLE)
        node.run(blob, host="n2")
        node.run(blob, local=True, wait=False, detach=True)
        node.info(host="n2")
    create, copy, there, here, info = fake.calls
    assert isinstance(create, messages.Create)
    assert create.host == "n2"
    assert isinstance(copy, messages.Copy)
    assert (copy.host, copy.persistence) == ("n3", Persistence.DURABLE)
    assert isinstance(there, messages.Run)
    assert (there.host, there.flags) == ("n2", int(Flag.WITH_SESSION))
    assert isinstance(here, messages.Run)
    assert (here.host, here.flags) == ("", int(Flag.SPAWN_LOCAL | Flag.NON_BLOCKING))
    assert info == messages.NodeInfo("n2")


def test_a_handle_says_where_its_object_is() -> None:
    """Node and rack come with the reference."""
    with FakeNode(in_turn()) as fake:
        handle = fake.connect().handle(replace(reference(9), node="n2", rack="r1"))
        assert (handle.node, handle.rack) == ("n2", "r1")


def test_answers_say_that_they_may_lack_something() -> None:
    """Lists of references and of tasks are lists, and tell when a node could not be asked."""
    with FakeNode(
        in_turn(
            messages.References((reference(9),), incomplete=True),
            messages.References(()),
            messages.Tasks((TASK,), incomplete=True, dead_only=True),
            messages.Tasks(()),
        )
    ) as fake:
        node = fake.connect()
        handles, none = node.lookup(b"x" * 32), node.lookup(b"y" * 32)
        tasks, here = node.tasks(), node.tasks(local_only=True)
    assert handles.incomplete
    assert [handle.ref for handle in handles] == [9]
    assert not none.incomplete
    assert none == []
    assert (tasks.incomplete, tasks.dead_only) == (True, True)
    assert [task.node for task in tasks] == ["n2"]
    assert not here.incomplete
    assert fake.calls[2:] == [messages.ListTasks(), messages.ListTasks(int(Flag.LOCAL_ONLY))]


def test_a_progress_is_sent_in_thousandths() -> None:
    """A task that is not at its end is never reported as done; the status has the share again."""
    row = replace(TASK, progress=999)
    answers = (messages.Done(), messages.Done(), messages.Done(), messages.Tasks((row, TASK)))
    with FakeNode(in_turn(*answers)) as fake:
        node = fake.connect()
        for fraction in (0, 0.99999, 1):
            node.progress(fraction)
        assert [status.progress for status in node.tasks()] == [0.999, None]
    assert fake.calls[:3] == [messages.ReportProgress(thousandths) for thousandths in (0, 999, 1000)]


@pytest.mark.parametrize("fraction", [-0.1, 1.5, 42, math.nan, math.inf])
def test_a_progress_that_is_no_share_is_refused_before_anything_is_sent(fraction: float) -> None:
    """The message names the value."""
    with FakeNode(in_turn()) as fake, pytest.raises(InvalidError, match=f"is {fraction}; it is a share"):
        fake.connect().progress(fraction)
    assert fake.calls == []


def test_the_face_on_trio_asks_the_same() -> None:
    """The awaited methods make the same calls and give the same answers."""
    nodes = messages.Nodes((ROW, OTHER))

    async def ask(fake: FakeNode) -> None:
        connection = AsyncConnection(AsyncChannel(fake.peer))
        node = AsyncNode(connection, await connection.hello((), "test"))
        assert [member.name for member in await node.nodes()] == ["n1", "n2"]
        assert await node.set_node("n2", "drain") == await node.nodes()
        await node.progress(0.25)
        connection.close()

    with FakeNode(in_turn(nodes, nodes, nodes, messages.Done())) as fake:
        trio.run(ask, fake)
    assert fake.calls == [
        messages.ListNodes(),
        messages.SetNode("n2", NodeWish.DRAIN),
        messages.ListNodes(),
        messages.ReportProgress(250),
    ]
