"""Ends of network streams that damage their memory, against the node itself, which has the other ends.

Not for: two tasks at the ends of one stream (``test_escape_buffers``), or damage at random
(``test_hostile_task``).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import dios
from dios import limits
from dios.client.sync.network import TcpConnection
from dios.transport.rings.end import RingEnd
from dios.transport.rings.layout import BROKEN, CLOSED, COMMITS, COUNT, STATE
from dios.transport.rings.wakeups import wake
from tests.support.node.running_node import RunningNode, running_node

PATIENCE_S = 20
RING = 4096
RACES = 20_000
SILENCE_S = 1
WORD = 2**64
SENT = b"sent before"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node."""
    with running_node(tmp_path_factory.mktemp("rings") / "node") as started:
        yield started


@pytest.fixture
def node(running: RunningNode) -> Iterator[dios.Node]:
    """The hostile session; after the attack, the streams of another one carry bytes in both directions."""
    with dios.connect(running.place, groups=()) as hostile:
        yield hostile
    with dios.connect(running.place, groups=()) as other, connected(other) as (connection, peer):
        connection.send(b"there")
        assert peer.recv(5) == b"there"
        peer.sendall(b"and back")
        assert connection.receive(8, timeout=PATIENCE_S) == b"and back"


@contextlib.contextmanager
def connected(node: dios.Node) -> Iterator[tuple[TcpConnection, socket.socket]]:
    """A connection with both its rings, and the socket of its peer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with node.connect_tcp(address, ring_bytes=RING) as connection, server.accept()[0] as peer:
            peer.settimeout(PATIENCE_S)
            yield connection, peer


def _set(end: RingEnd, value: int, word: int = COUNT) -> None:
    """Write a control word, and wake the node."""
    end._own[word] = value % WORD
    wake(end._wakeups)


def _race(end: RingEnd, *values: int, word: int = COUNT) -> None:
    """Change a control word while the node looks at it."""
    for turn in range(RACES):
        end._own[word] = values[turn % len(values)] % WORD
        if not turn % 64:
            wake(end._wakeups)


def _fill(end: RingEnd, byte: int) -> None:
    end._own_map[:4096] = bytes([byte]) * 4096
    wake(end._wakeups)


def _live_again(end: RingEnd) -> None:
    """Close, and take that back, again and again."""
    for turn in range(RACES):
        end._own_halves[CLOSED] = turn % 2
        wake(end._wakeups)


def _by_a_ring(end: RingEnd, at: int) -> None:
    _set(end, at + RING)
    end.close()


class Damage(NamedTuple):
    """Damage to the control words of an end, whose count is ``at`` then.

    ``arrives`` is the number of bytes that the peer gets before the stream ends; None for any, or no end.
    """

    claim: str
    do: Callable[[RingEnd, int], None]
    arrives: int | None = None


OF_WRITERS = {
    "tail beyond the ring": Damage(
        "more than a ring is not there", lambda end, at: _set(end, at + RING + 1), 0
    ),
    "tail by a whole ring": Damage("its own bytes alone are read", _by_a_ring, RING),
    "tail back": Damage("what was read is not read again", lambda end, at: _set(end, at - 1), 0),
    "tail at the end of numbers": Damage("no sum overflows", lambda end, _: _set(end, BROKEN - 1), 0),
    "broken": Damage("the rest is missing", lambda end, _: _set(end, BROKEN), 0),
    "tail that moves": Damage("each look counts once", lambda end, at: _race(end, at + 8, at, at + RING)),
    "all bits": Damage("no word is believed", lambda end, _: _fill(end, 0xFF), 0),
    "no bits": Damage("nor an empty page", lambda end, _: _fill(end, 0), 0),
    "closed and open": Damage("an end that lives again is not waited for", lambda end, _: _live_again(end)),
}
OF_READERS = {
    "head beyond the tail": Damage("no room is there twice", lambda end, at: _set(end, at + 1)),
    "head by a whole ring": Damage("the same by a whole ring", lambda end, at: _set(end, at + RING)),
    "head back": Damage("room that was given is not taken back", lambda end, at: _set(end, at - 1)),
    "head at the end of numbers": Damage("no sum overflows", lambda end, _: _set(end, BROKEN)),
    "head that moves": Damage("each look counts once", lambda end, at: _race(end, at + 8, at, at - 8)),
    "reads without end": Damage("its count of reads is its own", lambda end, _: _set(end, BROKEN, COMMITS)),
    "a wait of all bits": Damage("its waits are its own", lambda end, _: _race(end, BROKEN, 1, word=STATE)),
}


def _rest(peer: socket.socket) -> tuple[int, bool]:
    """The number of bytes until the stream ends or is silent, and True if it ended."""
    peer.settimeout(SILENCE_S)
    count = 0
    try:
        while part := peer.recv(65536):
            count += len(part)
    except TimeoutError:
        return count, False
    except ConnectionResetError:
        pass
    return count, True


@pytest.mark.parametrize("name", OF_WRITERS)
def test_a_writer_that_damages_its_words_loses_its_stream_alone(node: dios.Node, name: str) -> None:
    """The peer gets what was written, at most a ring more for each wrong count, and nothing of others."""
    damage = OF_WRITERS[name]
    with connected(node) as (connection, peer):
        connection.send(SENT)
        assert peer.recv(len(SENT)) == SENT
        damage.do(connection.writer, len(SENT))
        count, ended = _rest(peer)
    if damage.arrives is None:
        assert count <= RACES * RING
    else:
        assert (count, ended) == (damage.arrives, True), damage.claim


@pytest.mark.parametrize("name", OF_READERS)
def test_a_reader_that_damages_its_words_loses_its_stream_alone(node: dios.Node, name: str) -> None:
    """The node stores no byte outside of the ring, however much the peer sends."""
    with connected(node) as (connection, peer):
        peer.sendall(SENT)
        assert connection.receive(len(SENT), timeout=PATIENCE_S) == SENT
        OF_READERS[name].do(connection.reader, len(SENT))
        peer.setblocking(False)
        with contextlib.suppress(OSError):
            for _ in range(64):
                peer.send(bytes(65536))


DATAGRAMS = {
    "a length of all bits": struct.pack("<I", 2**32 - 1),
    "a length above every datagram": struct.pack("<I", limits.DATAGRAM_BYTES_MAX + 257) + bytes(64),
    "an address longer than its message": struct.pack("<I", 2) + b"\xff1",
    "an address of rubbish": struct.pack("<I", 9) + b"\x08\xff\x00\x1b[31m:",
    "nothing, a thousand times": struct.pack("<I", 0) * 1000,
}


@pytest.mark.parametrize("message", DATAGRAMS)
def test_a_message_that_is_no_datagram_is_sent_nowhere(node: dios.Node, message: str) -> None:
    """A prefix or an address that none can have ends the stream, or drops its message."""
    with node.bind_udp("127.0.0.1:0", ring_bytes=RING) as stream, contextlib.suppress(dios.DiosError):
        stream.writer.write(DATAGRAMS[message], timeout_s=PATIENCE_S)
