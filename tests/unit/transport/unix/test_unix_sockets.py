import contextlib
import gc
import os
import socket
import stat
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from dios import limits
from dios.client.aio.channel import AsyncChannel
from dios.errors import (
    ClosedError,
    ExistsError,
    InvalidError,
    NotPermittedError,
    ProtocolError,
    TimeLimitError,
    UnreachableError,
    WouldBlockError,
)
from dios.transport.batch import BATCH
from dios.transport.unix.client import ClientChannel, FrameAssembler, Received, close_all, connect
from dios.transport.unix.credentials import PeerCredentials
from dios.transport.unix.server import TaskChannel, UnreadDescriptors, accept, close_listener, open_listener
from tests.support.c_calls import counted_c_calls

LIMIT_S = 10
_SO_PASSRIGHTS = 83


def framed(body: bytes) -> bytes:
    """The body as it travels."""
    return struct.pack("<I", len(body)) + body


def open_descriptors() -> int:
    """Return the number of descriptors that this process has open, without those of earlier tests."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def send_many(channel: TaskChannel, count: int, frame: bytes, fds: Sequence[int] = ()) -> None:
    """Send the frame again and again, as a node does whose peer asks and asks."""
    for _ in range(count):
        channel.send_nowait(frame, fds)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one connection."""
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


# -- the listener ---------------------------------------------------------------------------------
async def test_a_listener_tells_who_connects(tmp_path: Path) -> None:
    """The peer's process and user are what the system attests, and the socket file is its owner's alone."""
    path = tmp_path / "node.sock"
    listener = open_listener(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    client = connect(path)
    with trio.fail_after(LIMIT_S):
        served, peer = await accept(listener)
    assert peer == PeerCredentials(os.getpid(), os.getuid(), os.getgid())
    served.close()
    client.close()
    close_listener(listener, path)
    assert not path.exists()


async def test_a_path_may_be_longer_than_an_address(tmp_path: Path) -> None:
    """A socket deep below a folder is listened at and connected to like any other."""
    folder = tmp_path.joinpath(*["a" * 50] * 4)
    folder.mkdir(parents=True)
    path = folder / "node.sock"
    listener = open_listener(path, 0o660)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    connect(path).close()
    close_listener(listener, path)


async def test_a_dead_nodes_socket_is_replaced(tmp_path: Path) -> None:
    """The file of a listener that ended without removing it does not stand in the way of the next."""
    path = tmp_path / "node.sock"
    close_listener(open_listener(path))
    assert path.exists()
    listener = open_listener(path)
    with pytest.raises(ExistsError, match="listens at"):
        open_listener(path)
    close_listener(listener, path)


async def test_another_file_is_never_replaced(tmp_path: Path) -> None:
    """A path that something else has is left alone."""
    path = tmp_path / "node.sock"
    path.write_text("mine")
    with pytest.raises(ExistsError, match="is not a socket"):
        open_listener(path)
    assert path.read_text() == "mine"


async def test_closing_the_listener_wakes_its_loop(tmp_path: Path) -> None:
    """Who waits in accept learns that the listener was closed."""
    listener = open_listener(tmp_path / "node.sock")
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:

            async def loop() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await accept(listener)

            nursery.start_soon(loop)
            await trio.testing.wait_all_tasks_blocked()
            close_listener(listener)


def test_connecting_to_nobody_says_so(tmp_path: Path) -> None:
    """Where no node listens the error names the place."""
    with pytest.raises(UnreachableError, match=r"node\.sock"):
        connect(tmp_path / "node.sock")
    with pytest.raises(UnreachableError):
        connect(tmp_path / ("b" * 120) / "node.sock")


def test_connecting_without_permission_says_so(tmp_path: Path) -> None:
    """A socket file that refuses this user gives its own error."""
    if os.geteuid() == 0:
        pytest.skip("root may connect to everything")
    path = tmp_path / "node.sock"
    listener = open_listener(path, 0o000)
    with pytest.raises(NotPermittedError):
        connect(path)
    listener.close()


# -- the node's channel ---------------------------------------------------------------------------
async def test_frames_arrive_whole_whatever_the_chunks(pair: tuple[socket.socket, socket.socket]) -> None:
    """Frames cut anywhere, or several in one piece, arrive as the bodies that were sent."""
    ours, theirs = pair
    bodies = [b"", b"a", b"b" * 1000, b"c" * 70_000]
    stream = b"".join(map(framed, bodies))
    got: list[bytes] = []
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)

        async def send() -> None:
            sock = trio.socket.from_stdlib_socket(theirs)
            place = 0
            for size in (1, 2, 3, 500, 9, 60_000, len(stream)):
                for _ in range(2):
                    await sock.send(stream[place : place + size])
                    place += size
            sock.close()

        nursery.start_soon(send)
        with trio.fail_after(LIMIT_S):
            while received := await channel.receive():
                got += received
        await channel.aclose()
    assert got == bodies


async def test_an_oversized_frame_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    """A length over the limit is an error as soon as it is read, without waiting for the body."""
    ours, theirs = pair
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        theirs.send(struct.pack("<I", limits.FRAME_BYTES_MAX + 1))
        with trio.fail_after(LIMIT_S), pytest.raises(ProtocolError, match="over the limit"):
            await channel.receive()
        channel.close()


async def test_a_frame_cut_by_the_end_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    """A peer that leaves in the middle of a frame is told apart from one that leaves between frames."""
    ours, theirs = pair
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        theirs.send(framed(b"abc")[:-1])
        theirs.close()
        with trio.fail_after(LIMIT_S), pytest.raises(ProtocolError, match=r"truncated: .* after 6 bytes"):
            await channel.receive()
        channel.close()


async def test_descriptors_from_a_peer_are_never_taken(pair: tuple[socket.socket, socket.socket]) -> None:
    """What a peer sends beside its bytes does not become a descriptor of the node.

    The peer cannot even send it, where the kernel can refuse it.
    """
    ours, theirs = pair
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        with contextlib.suppress(OSError):
            assert ours.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS) == 0
            with pytest.raises(PermissionError):
                socket.send_fds(theirs, [framed(b"take these")], [0, 1, 2])
            ours.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 1)
        before = open_descriptors()
        socket.send_fds(theirs, [framed(b"take these")], [0, 1, 2])
        with trio.fail_after(LIMIT_S):
            assert await channel.receive() == [b"take these"]
        assert open_descriptors() == before
        channel.close()


async def test_what_the_peer_does_not_take_is_queued_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Frames beyond the socket's own buffer arrive complete, in order and with their descriptors."""
    ours, theirs = pair
    before = open_descriptors()
    client = AsyncChannel(theirs)
    frames: deque[Received] = deque()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            channel = TaskChannel(ours, nursery)
            for number in range(30):
                fd = os.memfd_create(f"test {number}")
                os.write(fd, b"%d" % number)
                channel.send_nowait(framed(bytes([number]) * 50_000), [fd] * (number % 3))
                os.close(fd)
            assert channel.queued_bytes > 0
            for number in range(30):
                while not frames:
                    await trio.lowlevel.wait_readable(theirs)
                    frames = client.receive()
                body, fds = frames.popleft()
                assert body == bytes([number]) * 50_000
                assert [os.pread(fd, 9, 0) for fd in fds] == [b"%d" % number] * (number % 3)
                close_all(fds)
            await channel.flush()
            assert channel.queued_bytes == 0
            channel.close()
    trio.lowlevel.notify_closing(theirs)
    client.close()
    assert open_descriptors() == before - 2


async def test_a_peer_that_never_reads_costs_bounded_memory(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Over the bound the sender is told to close, and closing frees what was queued."""
    ours, _theirs = pair
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        with pytest.raises(WouldBlockError, match="does not read"):
            send_many(channel, 1000, framed(bytes(10_000)))
        assert channel.queued_bytes <= limits.SEND_QUEUE_BYTES_MAX
        channel.close()
        assert channel.queued_bytes == 0


async def test_queued_descriptors_are_bounded(pair: tuple[socket.socket, socket.socket]) -> None:
    """Descriptors that wait for a peer are counted, and closed with the channel."""
    ours, _theirs = pair
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        channel.send_nowait(framed(bytes(2_000_000)))
        with pytest.raises(WouldBlockError):
            send_many(channel, limits.DESCRIPTORS_QUEUED_MAX, framed(b""), [0, 1])
        assert open_descriptors() == before + limits.DESCRIPTORS_QUEUED_MAX
        with pytest.raises(InvalidError):
            channel.send_nowait(framed(b""), [0] * (limits.DESCRIPTORS_PER_FRAME_MAX + 1))
        channel.close()
    assert open_descriptors() == before - 1


async def test_descriptors_wait_for_a_peer_that_does_not_read_them(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A peer has a bounded number on their way to it; the rest follows, in order, when it reads."""
    ours, theirs = pair
    frames = limits.DESCRIPTORS_UNREAD_MAX // limits.DESCRIPTORS_PER_FRAME_MAX
    unread = UnreadDescriptors(10 * limits.DESCRIPTORS_UNREAD_MAX)
    client = ClientChannel(theirs)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            channel = TaskChannel(ours, nursery, unread)
            for number in range(frames + 1):
                channel.send_nowait(framed(b"%d" % number), [0] * limits.DESCRIPTORS_PER_FRAME_MAX)
            assert channel.queued_bytes > 0
            assert unread.of(channel) == unread.total == limits.DESCRIPTORS_UNREAD_MAX
            for number in range(frames):
                assert client.receive(0)[0] == b"%d" % number
            await channel.flush()
            body, fds = client.receive(0)
            assert (body, len(fds)) == (b"%d" % frames, limits.DESCRIPTORS_PER_FRAME_MAX)
            assert unread.total == limits.DESCRIPTORS_PER_FRAME_MAX
            channel.close()
    assert unread.total == 0


async def test_a_peer_that_reads_is_counted_anew_before_its_count_is_full(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """When it is full, a busy peer has seldom read everything."""
    ours, theirs = pair
    client = ClientChannel(theirs)
    frame, fds = framed(b""), [0] * limits.DESCRIPTORS_PER_FRAME_MAX
    frames = limits.DESCRIPTORS_UNREAD_MAX // limits.DESCRIPTORS_PER_FRAME_MAX
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        for _ in range(frames // 2):
            channel.send_nowait(frame, fds)
            client.receive(0)
        for _ in range(frames):
            channel.send_nowait(frame, fds)
        assert channel.queued_bytes == 0
        channel.close()


async def test_a_peer_makes_no_more_requests_while_descriptors_wait_for_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """So a client with many threads that reads late is not taken for one that does not read."""
    ours, theirs = pair
    client = ClientChannel(theirs)
    frames = limits.DESCRIPTORS_UNREAD_MAX // limits.DESCRIPTORS_PER_FRAME_MAX
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            channel = TaskChannel(ours, nursery)
            for _ in range(frames + 1):
                channel.send_nowait(framed(b""), [0] * limits.DESCRIPTORS_PER_FRAME_MAX)
            theirs.send(framed(b"one more"))
            with trio.move_on_after(0.1):
                await channel.receive()
                pytest.fail("it was read before the descriptors")
            for _ in range(frames):
                client.receive(0)
            assert await channel.receive() == [b"one more"]
            channel.close()


async def test_copies_that_wait_in_the_node_are_bounded_together() -> None:
    """Peers that read nothing share the node's room for copies; the next one that needs more is let go."""
    unread = UnreadDescriptors(4 * limits.DESCRIPTORS_UNREAD_MAX)
    room = unread.most // 4 // limits.DESCRIPTORS_QUEUED_MAX
    pairs = [socket.socketpair() for _ in range(room + 1)]
    async with trio.open_nursery() as nursery:
        channels = [TaskChannel(ours, nursery, unread) for ours, _ in pairs]
        for channel in channels:
            channel.send_nowait(framed(bytes(2_000_000)))
        for channel in channels[:room]:
            channel.send_nowait(framed(b""), [0] * limits.DESCRIPTORS_QUEUED_MAX)
        with pytest.raises(WouldBlockError):
            channels[room].send_nowait(framed(b""), [0])
        channels[0].close()
        channels[room].send_nowait(framed(b""), [0])
        for channel in channels:
            channel.close()
    assert unread.queued == 0
    for _, theirs in pairs:
        theirs.close()


async def test_who_keeps_the_most_descriptors_unread_is_cut_off() -> None:
    """At the bound for all channels, room comes from the greediest peer, and from no other."""
    unread = UnreadDescriptors(2 * limits.DESCRIPTORS_UNREAD_MAX)
    pairs = [socket.socketpair() for _ in range(3)]
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            modest, greedy, other = [TaskChannel(ours, nursery, unread) for ours, _ in pairs]
            modest.send_nowait(framed(b""), [0] * limits.DESCRIPTORS_PER_FRAME_MAX)
            for channel in (greedy, other):
                for _ in range(limits.DESCRIPTORS_UNREAD_MAX // limits.DESCRIPTORS_PER_FRAME_MAX):
                    channel.send_nowait(framed(b""), [0] * limits.DESCRIPTORS_PER_FRAME_MAX)
            with pytest.raises(ProtocolError, match="does not read them"):
                await greedy.receive()
            assert unread.of(modest) == limits.DESCRIPTORS_PER_FRAME_MAX
            assert unread.total <= 2 * limits.DESCRIPTORS_UNREAD_MAX
            pairs[0][1].send(framed(b"still there"))
            assert await modest.receive() == [b"still there"]
            for channel in (modest, greedy, other):
                channel.close()
    for _, theirs in pairs:
        theirs.close()


async def test_unread_descriptors_stay_counted_until_their_peer_is_gone(
    pair: tuple[socket.socket, socket.socket], autojump_clock: trio.testing.MockClock
) -> None:
    """A peer that hangs on to a finished connection gains nothing: its place is not free yet."""
    ours, theirs = pair
    unread = UnreadDescriptors(limits.DESCRIPTORS_UNREAD_MAX)
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery, unread)
        channel.send_nowait(framed(b""), [0, 1])
        with trio.move_on_after(60) as waiting:
            await channel.wait_descriptors_read()
        assert waiting.cancelled_caught
        assert unread.total == 2
        theirs.close()
        await channel.wait_descriptors_read()
        channel.close()
    assert unread.total == 0


async def test_sending_to_who_is_gone_changes_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    """A reply to a peer that left is dropped; receive is what tells of its end."""
    ours, theirs = pair
    theirs.close()
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        channel.send_nowait(framed(b"lost"))
        channel.send_nowait(framed(b"lost too"), [0])
        with trio.fail_after(LIMIT_S):
            assert await channel.receive() == []
        channel.close()
        channel.send_nowait(framed(b"after closing"))
        assert await channel.receive() == []


async def test_closing_wakes_the_reader(pair: tuple[socket.socket, socket.socket]) -> None:
    """Who waits for frames when the channel is closed gets the end."""
    ours, _theirs = pair
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            channel = TaskChannel(ours, nursery)

            async def read() -> None:
                assert await channel.receive() == []

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            channel.close()


# -- the client's channels ------------------------------------------------------------------------
def test_a_frame_comes_with_its_own_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    """Of frames received in one piece each has its own descriptors, which close themselves on exec."""
    ours, theirs = pair
    client = ClientChannel(ours)
    theirs.send(framed(b"none"))
    socket.send_fds(theirs, [framed(b"two")], [0, 1])
    theirs.send(framed(b"none again"))
    socket.send_fds(theirs, [framed(b"one")[:3]], [0])
    theirs.send(framed(b"one")[3:])
    assert client.receive(LIMIT_S) == (b"none", ())
    body, fds = client.receive(LIMIT_S)
    assert (body, len(fds)) == (b"two", 2)
    assert not any(os.get_inheritable(fd) for fd in fds)
    close_all(fds)
    assert client.receive(LIMIT_S) == (b"none again", ())
    body, fds = client.receive(LIMIT_S)
    assert (body, len(fds)) == (b"one", 1)
    close_all(fds)
    client.close()


def test_untaken_descriptors_are_closed_with_the_channel(pair: tuple[socket.socket, socket.socket]) -> None:
    """Descriptors of frames that nobody received do not leak."""
    ours, theirs = pair
    before = open_descriptors()
    client = ClientChannel(ours)
    socket.send_fds(theirs, [framed(b"a")], [0])
    socket.send_fds(theirs, [framed(b"unfinished")[:6]], [0, 1])
    _, fds = client.receive(LIMIT_S)
    with pytest.raises(TimeLimitError):
        client.receive(0)
    with pytest.raises(TimeLimitError):
        client.receive(0.001)
    close_all(fds)
    client.close()
    assert open_descriptors() == before - 1


def test_a_client_waits_no_longer_than_told(pair: tuple[socket.socket, socket.socket]) -> None:
    """A time limit that passes is an error of its own, and the channel stays usable."""
    ours, theirs = pair
    client = ClientChannel(ours)
    with pytest.raises(TimeLimitError):
        client.receive(0.001)
    theirs.send(framed(b"late"))
    assert client.receive(LIMIT_S) == (b"late", ())
    assert not client.has_received
    client.close()


def test_the_last_words_are_heard_before_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    """A node that closes has its last frame read, though the request could not be sent any more."""
    ours, theirs = pair
    client = ClientChannel(ours)
    theirs.send(framed(b"goodbye"))
    theirs.close()
    assert client.call(framed(b"hello")) == (b"goodbye", ())
    with pytest.raises(ClosedError, match="closed the connection"):
        client.call(framed(b"hello"))
    client.close()
    with pytest.raises(ClosedError):
        client.send(framed(b"hello"))


def test_a_reply_cut_short_or_too_long_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    """A client refuses frames over the limit of replies, and ones that the end cut."""
    ours, theirs = pair
    client = ClientChannel(ours)
    theirs.send(framed(b"cut")[:-1])
    theirs.close()
    with pytest.raises(ProtocolError, match="truncated"):
        client.receive(LIMIT_S)
    client.close()
    assembler = FrameAssembler()
    with pytest.raises(ProtocolError, match="over the limit"):
        assembler.feed(struct.pack("<I", limits.REPLY_BYTES_MAX + 1), ())


async def test_both_ends_on_trio(pair: tuple[socket.socket, socket.socket]) -> None:
    """The asynchronous client and the node's channel talk to each other, large frames both ways."""
    ours, theirs = pair
    body = os.urandom(limits.FRAME_BYTES_MAX)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            channel = TaskChannel(ours, nursery)
            client = AsyncChannel(theirs)
            frames: deque[Received] = deque()

            async def echo() -> None:
                while bodies := await channel.receive():
                    for part in bodies:
                        channel.send_nowait(framed(part * 4))
                channel.close()

            nursery.start_soon(echo)
            for size in (0, 1, 1000, len(body)):
                sent = client.send(framed(body[:size]))
                while not sent:
                    await trio.lowlevel.wait_writable(theirs)
                    sent = client.flush()
                while not frames:
                    await trio.lowlevel.wait_readable(theirs)
                    frames = client.receive()
                assert frames.popleft() == (body[:size] * 4, ())
            trio.lowlevel.notify_closing(theirs)
            client.close()
            with pytest.raises(ClosedError):
                client.receive()


async def test_a_peer_that_waits_for_its_answer_is_not_polled(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """No try to receive is made before the answer was sent, and each message is received with one call."""
    ours, theirs = pair
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        theirs.sendall(framed(b"first"))
        assert await channel.receive() == [b"first"]
        received: list[list[bytes]] = []

        async def receive() -> None:
            received.append(await channel.receive())

        with counted_c_calls() as calls:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            assert calls["recv"] == 0
            channel.send_nowait(framed(b"answer"))
            theirs.sendall(framed(b"second"))
            while not received:
                await trio.lowlevel.checkpoint()
            assert calls["recv"] == 1
        assert received == [[b"second"]]
        channel.close()


async def test_frames_of_one_turn_are_sent_together(pair: tuple[socket.socket, socket.socket]) -> None:
    """A batch holds small frames back; large ones, and ones with descriptors, keep the order."""
    ours, theirs = pair
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        client = ClientChannel(theirs)
        bodies = [b"one", b"two", bytes(limits.BATCHED_BYTES_MAX), b"four", b"five"]
        BATCH.begin(len(bodies))
        for body in bodies[:2]:
            channel.send_nowait(framed(body))
        assert not BATCH.is_empty
        channel.send_nowait(framed(bodies[2]))
        channel.send_nowait(framed(bodies[3]), [ours.fileno()])
        channel.send_nowait(framed(bodies[4]))
        channel.close()
        BATCH.end()
        received = [client.receive() for _ in bodies]
        close_all(tuple(fd for _, fds in received for fd in fds))
        assert [body for body, _ in received] == bodies
        assert [len(fds) for _, fds in received] == [0, 0, 0, 1, 0]
        client.close()


async def test_a_batch_for_a_peer_that_does_not_read_ends_the_connection(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Frames that were held back are bounded as others are."""
    ours, _theirs = pair
    async with trio.open_nursery() as nursery:
        channel = TaskChannel(ours, nursery)
        frame = framed(bytes(limits.BATCHED_BYTES_MAX - 100))
        with pytest.raises(WouldBlockError):
            send_many(channel, 1_000_000, frame)
        BATCH.begin(2)
        with pytest.raises(WouldBlockError):
            channel.send_nowait(frame)
        BATCH.end()
        channel.close()
