"""The pumps between rings and sockets, against a task that writes what it wants into its ring."""

import socket
import struct
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from dios import limits
from dios.host.network.acceptor import ListeningSocket
from dios.host.network.addresses import Resolver
from dios.host.network.socket_pump import SocketBackend
from dios.host.network.tcp import TcpBackend
from dios.host.network.udp import UdpBackend
from dios.transport.rings import waiting_trio
from dios.transport.rings.layout import CLOSED
from dios.transport.rings.waiting import RingEnd, is_ready
from dios.wire.types import Mode
from tests.support.host.ring_ends import RING, Ends, write_control

LIMIT_S = 30


class Service:
    """What the node would hear of a socket."""

    def __init__(self) -> None:
        self.broke: list[OSError] = []
        self.closed = 0
        self.over = trio.Event()

    def note_broken(self, error: OSError) -> None:
        """The socket failed."""
        self.broke.append(error)
        self.over.set()

    def note_closed(self) -> None:
        """The socket was closed."""
        self.closed += 1
        self.over.set()


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The smallest ring there is."""
    both_ends = Ends()
    yield both_ends
    both_ends.close()


def set_closed(ends: Ends, mode: Mode, value: int) -> None:
    """Write the word of an end that says whether it is closed."""
    write_control(ends.ring, mode, "I", CLOSED, value)


async def test_a_datagram_that_none_can_be_is_not_collected(ends: Ends) -> None:
    """A message over the longest datagram ends the stream at its beginning; none of it is kept in memory."""
    heard = Service()
    ours, theirs = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            backend = UdpBackend(
                ours, nursery, heard.note_broken, heard.note_closed, Resolver(), lambda _count: None
            )
            view = ends.writer.acquire_write(4)
            view[:] = struct.pack("<I", limits.DATAGRAM_BYTES_MAX + 257)
            ends.writer.commit_write()
            backend.end_attached(Mode.WRITE, ends.reader)
            await heard.over.wait()
            backend.close()
    assert [error.strerror for error in heard.broke] == [
        f"a message of {limits.DATAGRAM_BYTES_MAX + 257} bytes is over {limits.DATAGRAM_BYTES_MAX + 256}"
    ]
    theirs.close()


@pytest.mark.parametrize("mode", Mode, ids=str)
async def test_a_pump_never_waits_for_an_end_that_lives_again(
    monkeypatch: pytest.MonkeyPatch, ends: Ends, mode: Mode
) -> None:
    """A task says that its end is closed until the pump has looked, and then that it is not."""
    heard = Service()
    ours, theirs = trio.socket.socketpair()
    end: RingEnd = ends.reader if mode is Mode.WRITE else ends.writer
    if mode is Mode.READ:
        ends.writer.write(bytes(RING))

    async def wait_ready(waiting: RingEnd) -> None:
        await trio.lowlevel.checkpoint()
        set_closed(ends, mode, 1)
        assert is_ready(waiting)
        set_closed(ends, mode, 0)

    monkeypatch.setattr(waiting_trio, "wait_ready", wait_ready)
    backend: SocketBackend
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            backend = TcpBackend(ours, nursery, heard.note_broken, heard.note_closed)
            backend.end_attached(mode, end)
            await trio.testing.wait_all_tasks_blocked()
            assert end.closed
            backend.close()
    assert (heard.closed, heard.broke) == (1, [])
    theirs.close()


class Raises:
    """A function that always meets a defect."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> None:
        """Do what nothing should."""
        self.calls += 1
        raise ZeroDivisionError("nobody thought of it")


async def test_a_defect_in_the_count_of_datagrams_ends_their_socket(
    ends: Ends, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A datagram is dropped, and the report of that meets a defect: only this socket is broken."""
    del autojump_clock
    heard, raises = Service(), Raises()
    ours, theirs = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    async with trio.open_nursery() as nursery:
        backend = UdpBackend(ours, nursery, heard.note_broken, heard.note_closed, Resolver(), raises)
        ends.writer.send(b"\x04none", timeout_s=0)
        backend.end_attached(Mode.WRITE, ends.reader)
        await heard.over.wait()
        backend.close()
    assert raises.calls == 1
    assert [error.strerror for error in heard.broke] == ["an internal error of the node; see its log"]
    assert "nobody thought of it" in caplog.text
    theirs.close()


async def test_a_defect_in_an_acceptor_ends_it_alone() -> None:
    """A connection arrives, and its report meets a defect: it is closed with its listener alone."""
    broke: list[Exception] = []
    raises = Raises()
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    arrived: list[int] = []
    reports: list[Callable[[int, str], None]] = [raises, lambda number, _: arrived.append(number)]
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            listeners = [
                ListeningSocket(
                    trio.socket.from_stdlib_socket(sock), nursery, report, lambda: True, broke.append
                )
                for sock, report in zip(sockets, reports, strict=True)
            ]
            addresses = [sock.getsockname() for sock in sockets]
            peers = [await trio.open_tcp_stream(*address) for address in addresses]
            assert await peers[0].receive_some() == b"", "the connection was closed"
            await trio.testing.wait_all_tasks_blocked()
            assert [type(error) for error in broke] == [ZeroDivisionError]
            assert listeners[0].waiting == 0
            with pytest.raises(OSError, match="failed"):
                await trio.open_tcp_stream(*addresses[0])
            assert len(arrived) == 1
            for listener in listeners:
                listener.close()
            for peer in peers:
                await peer.aclose()
