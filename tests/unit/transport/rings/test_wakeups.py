"""The wake-ups between the ends of a ring, against an end that wants to block, busy or fool the other one.

Nothing here waits: an operation that could would end the test by its time limit.
"""

import contextlib
import os
import select
import socket
from collections.abc import Iterator

import pytest
import trio

from dios.errors import ClosedError, EndOfStreamError, ProtocolError, TimeLimitError
from dios.limits import STREAM_MESSAGE_BYTES_MAX
from dios.transport.rings import waiting_trio
from dios.transport.rings.layout import CLOSED
from dios.transport.rings.waiting import RingDescriptors, wait_any
from dios.transport.rings.wakeups import create_wakeups, receive_wakeups, wake
from dios.transport.unix.descriptors import refuse_descriptors
from dios.wire.types import Mode
from tests.support.host.ring_ends import RING, Ends, write_control


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The smallest ring there is."""
    pair = Ends()
    yield pair
    pair.close()


def hostile_socket(ends: Ends, mode: Mode) -> socket.socket:
    """The socket of an end, as its task may use it: a copy, with the flags of the same open file."""
    return socket.socket(fileno=os.dup(ends.of(mode).fileno()))


def set_closed(ring: RingDescriptors, mode: Mode, value: int) -> None:
    """Write the word of an end that says whether it is closed."""
    write_control(ring, mode, "I", CLOSED, value)


@pytest.mark.parametrize("mode", Mode, ids=str)
def test_a_full_socket_that_blocks_delays_nobody(ends: Ends, mode: Mode) -> None:
    """An end fills its socket and makes it block: neither the node nor the other end waits for it."""
    other = ends.reader if mode is Mode.WRITE else ends.writer
    with hostile_socket(ends, mode) as sock:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(4096), socket.MSG_DONTWAIT)
        os.set_blocking(sock.fileno(), True)
        os.set_blocking(ends.of(Mode(1 - mode)).fileno(), True)
        other._notify(1)
        assert other.arm()
        assert select.select([other], [], [], 0)[0]
        other.disarm()
        ends.ring.mark_closed(Mode(1 - mode))
        ends.ring.mark_closed(mode)
    other.disarm()
    assert other.peer_closed


def test_an_end_cannot_take_back_that_it_closed(ends: Ends) -> None:
    """An end that was seen closed stays so: a pump that was told never waits for what does not come."""
    set_closed(ends.ring, Mode.WRITE, 1)
    assert ends.reader.readable()
    set_closed(ends.ring, Mode.WRITE, 0)
    with pytest.raises(EndOfStreamError):
        ends.reader.acquire_read(timeout_s=0)
    ends.writer.write(bytes(RING))
    set_closed(ends.ring, Mode.READ, 1)
    assert ends.writer.writable()
    set_closed(ends.ring, Mode.READ, 0)
    with pytest.raises(ClosedError):
        ends.writer.send(b"x", timeout_s=0)


@pytest.mark.parametrize("mode", Mode, ids=str)
def test_what_the_node_closed_stays_closed(ends: Ends, mode: Mode) -> None:
    """A process that still maps the memory of an end that is gone cannot make it live again."""
    ends.ring.mark_closed(mode)
    set_closed(ends.ring, mode, 0)
    if mode is Mode.WRITE:
        with pytest.raises(EndOfStreamError):
            ends.reader.receive()
    else:
        with pytest.raises(ClosedError):
            ends.writer.send(bytes(2 * RING))


@pytest.mark.parametrize("how", ["bytes", "out of band"])
async def test_wake_ups_for_nothing_cost_the_stream(ends: Ends, how: str) -> None:
    """An end that only wakes the other one is not served for long; every byte that comes starts anew."""
    flags = socket.MSG_DONTWAIT | (socket.MSG_OOB if how == "out of band" else 0)
    with hostile_socket(ends, Mode.WRITE) as sock:
        for number in range(100):
            sock.send(b"!", flags)
            ends.writer.send(b"%d" % number)
            assert await waiting_trio.receive(ends.reader, STREAM_MESSAGE_BYTES_MAX) == b"%d" % number
        waits = 0
        with contextlib.suppress(ProtocolError):
            while waits < 100 and ends.reader.arm():
                waits += 1
                sock.send(b"!", flags)
                assert select.select([ends.reader], [], [], 0)[0]
                ends.reader.disarm()
        with pytest.raises(ProtocolError, match="without moving"):
            ends.reader.receive(0)
    assert 1 < waits < 20


def test_one_late_wake_up_is_no_fault(ends: Ends) -> None:
    """A wake-up for a wait that is over is removed by the next wait, again and again."""
    for _ in range(100):
        assert ends.reader.arm()
        ends.reader._own_halves[16] = 0  # the wait ends by itself
        wake(ends.writer._wakeups)  # while it is being woken
        ends.writer.send(b"x")
        assert ends.reader.receive(0) == b"x"
        with pytest.raises(TimeLimitError):
            ends.reader.receive(0.0)


def test_an_end_cannot_steal_the_others_wake_ups(ends: Ends) -> None:
    """An end that reads all that comes to its socket leaves the wake-ups for the other end where they are."""
    assert ends.reader.arm()
    with hostile_socket(ends, Mode.WRITE) as sock:
        ends.writer.send(b"x")
        with pytest.raises(BlockingIOError):
            sock.recv(100, socket.MSG_DONTWAIT)
    assert wait_any([ends.reader], 0)[0] == [ends.reader]


async def test_an_end_that_hangs_up_is_closed(ends: Ends) -> None:
    """An end that ends its socket without a word has closed: the other end learns it, and does not spin."""
    with hostile_socket(ends, Mode.WRITE) as sock:
        sock.shutdown(socket.SHUT_RDWR)
    with trio.fail_after(30), pytest.raises(EndOfStreamError):
        await waiting_trio.receive(ends.reader, STREAM_MESSAGE_BYTES_MAX)
    assert wait_any([ends.reader])[0] == [ends.reader]
    ends.writer.send(b"x")  # it cannot wake the reader any more, and does not notice


def test_no_descriptors_through_wake_ups() -> None:
    """The ends of a stream cannot send each other descriptors."""
    sender, other = create_wakeups()
    with sender, other:
        with pytest.raises(PermissionError):
            _send_descriptor(sender)
        with pytest.raises(PermissionError):
            _send_descriptor(other)
        wake(sender)
        assert receive_wakeups(other) == 1


def _send_descriptor(sock: socket.socket) -> None:
    """Send standard input through a socket; skip where the kernel lacks the option to refuse it."""
    probe, far = socket.socketpair()
    with probe, far:
        refuse_descriptors(far)
        try:
            socket.send_fds(probe, [b"x"], [0])
        except PermissionError:
            pass
        else:
            pytest.skip("this kernel cannot refuse descriptors at a socket (SO_PASSRIGHTS, Linux 6.16)")
    socket.send_fds(sock, [b"x"], [0])
