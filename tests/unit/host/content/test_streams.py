import pytest

from dios.errors import EndOfStreamError
from dios.host.content.streams import Streams
from dios.ids import ObjectId
from dios.transport.rings.waiting import RingReader, RingWriter
from dios.wire.types import Mode

STREAM = ObjectId(4)
RING_BYTES = 65_536


def test_two_ends_of_one_ring() -> None:
    """Both ends of a stream get the same ring, which is let go when both are closed."""
    streams = Streams()
    attached, fds = streams.attach(STREAM, Mode.WRITE, RING_BYTES)
    writer = RingWriter(list(fds), attached.ring_bytes)
    _, fds = streams.attach(STREAM, Mode.READ, RING_BYTES)
    reader = RingReader(list(fds), attached.ring_bytes)
    writer.send(b"hello")
    assert reader.receive() == b"hello"
    streams.close_end(STREAM, Mode.WRITE)
    with pytest.raises(EndOfStreamError):
        reader.receive()
    streams.close_end(STREAM, Mode.READ)
    assert len(streams) == 0
    writer.close()
    reader.close()


def test_end_closed_before_the_other_came() -> None:
    """Who attaches after the other end has gone reads what is left, then the end."""
    streams = Streams()
    attached, fds = streams.attach(STREAM, Mode.WRITE, RING_BYTES)
    writer = RingWriter(list(fds), attached.ring_bytes)
    writer.send(b"left behind")
    writer.close()
    streams.close_end(STREAM, Mode.WRITE)
    _, fds = streams.attach(STREAM, Mode.READ, RING_BYTES)
    reader = RingReader(list(fds), attached.ring_bytes)
    assert reader.receive() == b"left behind"
    with pytest.raises(EndOfStreamError):
        reader.receive()
    reader.close()
    streams.close()


def test_destroyed_stream_ends_for_both() -> None:
    """The end of the object is the end of the stream, and of the node's hold on it."""
    streams = Streams()
    attached, fds = streams.attach(STREAM, Mode.READ, RING_BYTES)
    reader = RingReader(list(fds), attached.ring_bytes)
    streams.discard(STREAM)
    streams.discard(STREAM)
    assert len(streams) == 0
    with pytest.raises(EndOfStreamError):
        reader.receive()
    reader.close()
