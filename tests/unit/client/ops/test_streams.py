"""Streams and select over rings, against a node that only hands out descriptors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dios.client.sync.node import Node, Stream
from dios.errors import Busy, ClosedError, Code, EndOfStreamError, TimeLimitError
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.types import Flag, Mode, ObjectType
from tests.support.client.fake_node import FakeNode, reference
from tests.support.host.rings import Rings

SELECTED_NONE = messages.Selected(-1)


@pytest.fixture
def rings() -> Iterator[Rings]:
    """Rings that are closed at the end."""
    opened = Rings()
    yield opened
    opened.close()


def stream(node: Node, ref: int) -> Stream:
    """A stream's handle."""
    handle = node.handle(reference(ref, ObjectType.SHMEM_STREAM))
    assert isinstance(handle, Stream)
    return handle


def test_messages_move_with_one_call_in_all(rings: Rings) -> None:
    """The first use attaches; after that no call is made, however many messages move."""
    with FakeNode(rings.script) as fake:
        out = stream(fake.connect(), 20)
        reader = rings.reader(20)
        for number in range(100):
            out.send(b"message %d" % number)
        assert reader.receive_many() == [b"message %d" % number for number in range(100)]
        assert fake.calls == [messages.Attach(20, Mode.WRITE)]
        out.close()
        assert fake.calls[1:] == [messages.Delete(20, int(Flag.HANDLE_ONLY))]
        with pytest.raises(EndOfStreamError):
            reader.receive()


def test_iteration_ends_with_the_writer(rings: Rings) -> None:
    """Iterating a stream gives its messages until the writer has closed."""
    with FakeNode(rings.script) as fake:
        inlet = stream(fake.connect(), 20)
        writer = rings.writer(20)
        writer.send(b"one")
        writer.send(b"")
        writer.close()
        assert list(inlet) == [b"one", b""]
        inlet.close()


def test_writer_learns_that_the_reader_is_gone(rings: Rings) -> None:
    """Sending to a reader that has closed raises ClosedError."""
    with FakeNode(rings.script) as fake:
        out = stream(fake.connect(), 20)
        rings.reader(20).close()
        with pytest.raises(ClosedError):
            out.send(b"x")
        out.close()


def test_waiting_has_a_limit(rings: Rings) -> None:
    """Receiving with a time limit raises TimeLimitError when nothing comes."""
    with FakeNode(rings.script) as fake:
        inlet = stream(fake.connect(), 20)
        rings.writer(20)
        with pytest.raises(TimeLimitError):
            inlet.receive(timeout=0.01)
        inlet.close()


def test_end_of_another_task_is_busy() -> None:
    """An end that another task holds cannot be taken."""
    with FakeNode(lambda _: messages.Failure(int(Code.EBUSY), "another reference is the read end")) as fake:
        inlet = stream(fake.connect(), 20)
        with pytest.raises(Busy):
            inlet.receive()


def test_select_over_streams_asks_nobody(rings: Rings) -> None:
    """Among streams alone, select looks at the rings, and makes no call beyond attaching."""
    with FakeNode(rings.script) as fake:
        node = fake.connect()
        left, right = stream(node, 20), stream(node, 21)
        writers = [rings.writer(20), rings.writer(21)]
        assert node.select([left, right], timeout=0) is None
        writers[1].send(b"x")
        assert node.select([left, right], timeout=10) is right
        assert all(isinstance(call, messages.Attach) for call in fake.calls)
        left.close()
        right.close()


def test_busy_stream_starves_nobody(rings: Rings) -> None:
    """When several streams are always ready, select names each of them in turn."""
    with FakeNode(rings.script) as fake:
        node = fake.connect()
        streams = [stream(node, ref) for ref in (20, 21, 22)]
        for busy in streams:
            rings.writer(busy.ref).send(b"x")
        assert {node.select(streams) for _ in range(3)} == set(streams)
        for busy in streams:
            busy.close()


def test_stream_before_the_nodes_answer(rings: Rings) -> None:
    """A stream that is ready ends a select on other objects too; the call to the node is given up."""
    rings.select = None
    with FakeNode(rings.script) as fake:
        node = fake.connect()
        inlet = stream(node, 20)
        writer = rings.writer(20)
        assert inlet.reader.readable() is False

        def script(call: AnyCall) -> AnyResult | tuple[AnyResult, list[int]] | None:
            if isinstance(call, messages.Select):
                writer.send(b"x")
            if isinstance(call, messages.Cancel):
                fake.send(call.seq, messages.Failure(int(Code.ECANCELED), "cancelled by the caller"))
            return rings.script(call)

        fake.script = script
        assert node.select([node.self, inlet], timeout=10) is inlet
        # The next call settles what was given up.
        node.pause()
        assert [type(call).__name__ for call in fake.calls] == ["Attach", "Select", "Cancel", "Pause"]
        inlet.close()


def test_the_nodes_answer_before_the_stream(rings: Rings) -> None:
    """Another object that is ready ends a select on streams too, and so does the node's time limit."""
    with FakeNode(rings.script) as fake:
        node = fake.connect()
        inlet = stream(node, 20)
        rings.writer(20)
        rings.select = messages.Selected(0)
        assert node.select([inlet, node.self], timeout=10) is node.self
        rings.select = SELECTED_NONE
        assert node.select([inlet, node.self], timeout=0.1) is None
        inlet.close()


def test_closing_the_node_closes_its_streams(rings: Rings) -> None:
    """With its connection gone a stream's end is closed, and the other task learns of it."""
    with FakeNode(rings.script) as fake:
        node = fake.connect()
        stream(node, 20).send(b"last")
        reader = rings.reader(20)
        node.close()
        assert reader.receive() == b"last"
        with pytest.raises(EndOfStreamError):
            reader.receive()
