import socket
from pathlib import Path

import pytest
import trio

from dios import limits
from dios.errors import ProtocolError, UnreachableError, WouldBlockError
from dios.transport.batch import BATCH
from dios.transport.tcp.secured import Secured, cut, frame_of
from dios.transport.tcp.tls import dial
from tests.support.peers.bulk import receive_into, send_all
from tests.support.peers.connections import connected, listening, make_cluster


async def collect(end: Secured, count: int) -> list[bytes]:
    """The next ``count`` bodies."""
    collected: list[bytes] = []
    while len(collected) < count:
        bodies = await end.receive()
        assert bodies, "the connection ended early"
        collected += bodies
    return collected


def send_for_ever(end: Secured, frame: bytes) -> None:
    """Send the frame again and again, until that is refused."""
    for _ in range(1_000_000):
        end.send_nowait(frame)


async def test_many_frames_of_all_sizes(tmp_path: Path) -> None:
    """Frames of every size up to the limit arrive whole and in order, though the reader begins late."""
    n1, n2 = make_cluster(tmp_path)
    sizes = [0, 1, 100, 16_384, 16_385, 65_536, limits.DCP_FRAME_BYTES_MAX, *range(300)]
    sent = [bytes([size % 251]) * size for size in sizes]
    async with connected(n2, n1) as (dialled, accepted):
        for body in sent:
            dialled.send_nowait(frame_of(body))
        assert await collect(accepted, len(sent)) == sent
        await dialled.flush()
        assert dialled.queued_bytes == 0


async def test_nothing_is_held_back_after_a_large_frame(tmp_path: Path) -> None:
    """Large frames need no cork, which would hold a later small frame back."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        for size in (limits.DCP_FRAME_BYTES_MAX, 1, limits.BATCHED_BYTES_MAX):
            dialled.send_nowait(frame_of(bytes(size)))
            assert await collect(accepted, 1) == [bytes(size)]
        await dialled.flush()
        sock = dialled.detach()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 0
        sock.close()


async def test_who_does_not_read_costs_bounded_memory(tmp_path: Path) -> None:
    """Frames for a peer that does not read are queued up to the bound, also tiny ones, and then refused."""
    n1, n2 = make_cluster(tmp_path)
    for size in (limits.DCP_FRAME_BYTES_MAX, 1):
        async with connected(n2, n1) as (dialled, _):
            frame = frame_of(bytes(size))
            with pytest.raises(WouldBlockError, match="n1, which does not read"):
                send_for_ever(dialled, frame)
            assert 0 < dialled.queued_bytes <= limits.DCP_QUEUE_BYTES_MAX


async def test_a_frame_over_the_limit_ends_it(tmp_path: Path) -> None:
    """A peer that announces more than a frame may have is refused at its first bytes."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        dialled.send_nowait(frame_of(bytes(limits.DCP_FRAME_BYTES_MAX + 1))[:100])
        with pytest.raises(ProtocolError, match="over the limit"):
            await accepted.receive()


async def test_bytes_that_are_not_tls_end_it(tmp_path: Path) -> None:
    """Rubbish in the middle of a connection is an error, and none of it is taken for a frame."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        raw = trio.socket.fromfd(dialled.detach().detach(), 2, 1)
        await raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ProtocolError, match="not TLS"):
            await accepted.receive()
        raw.close()


async def test_the_end_is_the_end(tmp_path: Path) -> None:
    """Closing gives both ends the end, whoever waits there, and what is sent afterwards is dropped."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted), trio.open_nursery() as nursery:
        got: list[list[bytes]] = []

        async def wait(end: Secured) -> None:
            got.append(await end.receive())

        nursery.start_soon(wait, dialled)
        nursery.start_soon(wait, accepted)
        await trio.testing.wait_all_tasks_blocked()
        dialled.close()
        while len(got) < 2:
            await trio.lowlevel.checkpoint()
        assert got == [[], []]
        assert dialled.closed
        dialled.send_nowait(frame_of(b"lost"))
        accepted.send_nowait(frame_of(b"lost"))
        accepted.send_nowait(frame_of(b"lost"))
        assert await dialled.receive() == []
        await dialled.flush()
        dialled.close()


async def test_a_frame_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    """A peer that dies in the middle of a frame is gone, and no part of the frame is given out."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        dialled.send_nowait(frame_of(b"whole") + frame_of(b"broken off")[:7])
        dialled.close()
        assert await accepted.receive() == [b"whole"]
        assert await accepted.receive() == []


# -- given to a thread ------------------------------------------------------------------------------
async def test_many_bytes_in_threads(tmp_path: Path) -> None:
    """Bytes in several parts go over a connection that was given away, and arrive as they were."""
    n1, n2 = make_cluster(tmp_path)
    parts = [memoryview(b""), memoryview(bytes(range(256)) * 9000), memoryview(b"end")]
    target = bytearray(sum(map(len, parts)))
    async with connected(n2, n1) as (dialled, accepted):
        with dialled.detach() as out, accepted.detach() as into:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, send_all, out, parts)
                await trio.to_thread.run_sync(receive_into, into, memoryview(target))
            assert target == b"".join(parts)
        assert dialled.closed
        assert await dialled.receive() == []


async def test_a_thread_that_waits_can_be_cut_off(tmp_path: Path) -> None:
    """Cutting a connection, or the peer's leaving, ends a thread's reading and writing with an error."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        with dialled.detach() as ours, accepted.detach() as theirs:
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    with pytest.raises(UnreachableError, match="after 0 of 1"):
                        await trio.to_thread.run_sync(receive_into, ours, memoryview(bytearray(1)))

                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                cut(ours)
            with pytest.raises(UnreachableError):
                send_all(theirs, [memoryview(bytes(limits.DATA_PIECE_BYTES * 64))])


async def test_what_follows_a_frame_is_left_for_who_takes_over(tmp_path: Path) -> None:
    """Bytes that come right behind a frame, and are none, are there when the connection is given away."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        dialled.send_nowait(frame_of(b"bytes follow"))
        with dialled.detach() as out:
            await trio.to_thread.run_sync(send_all, out, [memoryview(b"no frame at all")])
            assert await accepted.receive() == [b"bytes follow"]
            target = bytearray(15)
            with accepted.detach() as into:
                await trio.to_thread.run_sync(receive_into, into, memoryview(target))
            assert target == b"no frame at all"


async def test_a_connection_that_stays_takes_all_at_once(tmp_path: Path) -> None:
    """Frames that have come, each in a record of its own, are received together; it is not given away."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        accepted.stay()
        sent = [b"%d" % number for number in range(8)]  # within the first window of TCP
        for body in sent:
            dialled.send_nowait(frame_of(body))
        assert await accepted.receive() == sent
        with pytest.raises(ProtocolError):
            accepted.detach()


async def test_a_frame_that_is_not_finished_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a frame keeps no connection; whole frames before it arrive, and silence between frames is fine."""
    monkeypatch.setattr(limits, "DCP_FRAME_MS_MAX", 300)
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        accepted.stay()
        with trio.move_on_after(0.6):
            await accepted.receive()
            raise AssertionError("silence is no frame")
        dialled.send_nowait(frame_of(b"whole") + frame_of(b"half of it")[:7])
        assert await accepted.receive() == [b"whole"]
        with trio.fail_after(60), pytest.raises(UnreachableError, match="did not send the rest"):
            await accepted.receive()


async def test_unfinished_frames_are_not_given_away(tmp_path: Path) -> None:
    """A connection with half a frame, or with frames that wait, stays where it is; so does a closed one."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        dialled.send_nowait(frame_of(b"one") + b"\5\0\0\0tw")
        assert await accepted.receive() == [b"one"]
        with pytest.raises(ProtocolError, match="unfinished"):
            accepted.detach()
        while not dialled.queued_bytes:
            dialled.send_nowait(frame_of(bytes(limits.DCP_FRAME_BYTES_MAX)))
        with pytest.raises(ProtocolError, match="unfinished"):
            dialled.detach()
        dialled.close()
        with pytest.raises(ProtocolError):
            dialled.detach()


async def test_what_comes_right_behind_is_not_lost(tmp_path: Path) -> None:
    """A frame that the listener sends at once, behind its acceptance, reaches who dialled."""
    n1, n2 = make_cluster(tmp_path)
    async with listening(n1) as (listener, nursery):

        async def greet() -> None:
            for _ in range(20):
                accepted = await listener.accept()
                accepted.send_nowait(frame_of(b"first"))
                accepted.close()

        nursery.start_soon(greet)
        for _ in range(20):
            dialled = await dial(listener.address, n2, nursery)
            assert await dialled.receive() == [b"first"]
            dialled.close()


async def test_urgent_frames_overtake_others_without_starving_them(tmp_path: Path) -> None:
    """Behind a full queue urgent frames arrive before most of the others, and many let some others by."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        dialled.stay()
        bulk = frame_of(b"b" * 65_536)
        sent = 0
        while dialled.queued_bytes < 4 * limits.MIB:
            dialled.send_nowait(bulk)
            sent += 1
        urgent = 3 * limits.DCP_CONTROL_RUN_MAX
        for _ in range(urgent):
            dialled.send_nowait(frame_of(b"urgent"), urgent=True)
        initials = [body[:1] for body in await collect(accepted, sent + urgent)]
        last = len(initials) - initials[::-1].index(b"u")
        before = initials[:last].count(b"b")
        assert before < sent - 32, "the urgent frames come before most of the queue"
        first = initials.index(b"u")
        assert initials[first:last].count(b"b") >= 2, "some of the others come between them"


async def test_small_frames_of_one_turn_are_one_record(tmp_path: Path) -> None:
    """A batch holds small frames back and sends them together; large frames and the end keep the order."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        small = [bytes([number]) * 10 for number in range(5)]
        large = bytes(limits.BATCHED_BYTES_MAX)
        BATCH.begin(2)
        for body in small:
            dialled.send_nowait(frame_of(body))
        assert not BATCH.is_empty
        BATCH.end()
        assert await accepted.receive() == small
        BATCH.begin(2)
        for body in (small[0], large, small[1]):
            dialled.send_nowait(frame_of(body))
        BATCH.end()
        assert await collect(accepted, 3) == [small[0], large, small[1]]
        BATCH.begin(2)
        dialled.send_nowait(frame_of(small[2]))
        dialled.close()
        BATCH.end()
        assert await collect(accepted, 1) == [small[2]]
