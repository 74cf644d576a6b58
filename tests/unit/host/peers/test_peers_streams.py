from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio

from dios import limits
from dios.core import effects as fx
from dios.core.events import Received
from dios.errors import ClosedError, EndOfStreamError, LimitError, UnreachableError
from dios.host.peers.stream_pump import AttachedTask
from dios.host.peers.streams import RemoteStreams, StreamPlace
from dios.ids import ObjectId
from dios.transport.rings.end import RingEnd
from dios.transport.rings.reader import RingReader
from dios.transport.rings.writer import RingWriter
from dios.wire import dcp
from dios.wire.calls import Attach
from dios.wire.messages import Guarantee, Metered, Rate
from dios.wire.rates import UNMEASURED
from dios.wire.types import Mode, Traffic
from tests.support.host.harness import TASK
from tests.support.peers.hosts import CALLER, DEPUTY, PeerHost, connected, two_hosts, until

STREAM = ObjectId(6)
RING_BYTES = limits.STREAM_RING_BYTES_MIN
WAIT_S = 10.0
LONG = bytes(range(256)) * 1_000
ASKED = Metered(0, (), UNMEASURED, 0, b"")


def between(host: PeerHost) -> RemoteStreams:
    """A host's streams to other nodes."""
    return cast("RemoteStreams", host.links.streamer)


async def attached(local: PeerHost, other: PeerHost, mode: Mode) -> tuple[RingEnd, RingEnd]:
    """The end of a task of ``local``, and the opposite one, of a stream that ``other`` has."""
    other.do(fx.OpenRemoteTask(DEPUTY, local.node, "uid:1"))
    other.when_received(lambda event: [fx.AnswerAttach(DEPUTY, number_of(event), STREAM, mode, RING_BYTES)])
    local.when_received(
        lambda event: [fx.AnswerAttachRemote(TASK, 1, STREAM, mode, RING_BYTES, other.node, number_of(event))]
    )
    local.ask(other, dcp.Forward(CALLER, Attach(1, mode)))
    (fds,) = await until(lambda: local.channel.ends, "the task has its end")
    if mode is Mode.READ:
        return RingReader(fds, RING_BYTES), other.host.streams.local_end(STREAM, Mode.WRITE, RING_BYTES)
    return RingWriter(fds, RING_BYTES), other.host.streams.local_end(STREAM, Mode.READ, RING_BYTES)


def at_rest(host: PeerHost) -> bool:
    """Return True if all streams of a host wait."""
    return not between(host).unfinished()


def number_of(event: Received) -> int:
    """The number of the request that a message is, or answers."""
    assert isinstance(event.message, dcp.Ask | dcp.PeerReply)
    return event.message.number


@contextmanager
def both(pair: tuple[RingEnd, RingEnd], mode: Mode) -> Iterator[tuple[RingWriter, RingReader]]:
    """Who writes and who reads, closed at the end."""
    here, there = pair
    writer, reader = (there, here) if mode is Mode.READ else (here, there)
    assert isinstance(writer, RingWriter)
    assert isinstance(reader, RingReader)
    with writer, reader:
        yield writer, reader


def write_all(writer: RingWriter) -> None:
    """Messages that fill the ring many times over, and the end."""
    for number in range(200):
        writer.send(b"%d" % number, WAIT_S)
    writer.send(LONG, WAIT_S)
    writer.close()


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_stream_crosses_nodes(tmp_path: Path, mode: Mode) -> None:
    """Messages arrive whole and in order, whoever is away; the end of the stream is told."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        with both(await attached(local, other, mode), mode) as (writer, reader):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, write_all, writer)
                for number in range(200):
                    assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == b"%d" % number
                assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == LONG
                with pytest.raises(EndOfStreamError):
                    await trio.to_thread.run_sync(reader.receive, WAIT_S)
        await until(lambda: not len(between(local)) and not len(between(other)), "nothing is left of it")


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_reader_that_leaves_is_told_to_the_writer(tmp_path: Path, mode: Mode) -> None:
    """A writer whose reader on another node has gone gets ClosedError, as on one node."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        with both(await attached(local, other, mode), mode) as (writer, reader):
            writer.send(b"first", WAIT_S)
            assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == b"first"
            reader.close()
            await until(lambda: writer.peer_closed, "the writer is told")
            with pytest.raises(ClosedError):
                writer.send(b"second", WAIT_S)
        await until(lambda: not len(between(local)) and not len(between(other)), "nothing is left of it")


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_lost_node_is_no_end_of_stream(tmp_path: Path, mode: Mode) -> None:
    """When the connection is lost, a reader is told that there was more, and a writer that nobody reads."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        with both(await attached(local, other, mode), mode) as (writer, reader):
            writer.send(b"first", WAIT_S)
            assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == b"first"
            other.links.hang_up(local.node, "it is cut")
            with pytest.raises(UnreachableError):
                await trio.to_thread.run_sync(reader.receive, WAIT_S)
            await until(lambda: writer.peer_closed, "the writer is told")


def pause(host: PeerHost) -> None:
    """Let a node do what it does before its program is replaced."""
    host.links.announce_pause(begins=True)
    between(host).pause()


def resume(host: PeerHost) -> None:
    """Let it go on with the same program."""
    host.links.announce_pause(begins=False)
    between(host).resume()


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_stream_waits_and_goes_on(tmp_path: Path, mode: Mode) -> None:
    """Whichever node stops its streams, all bytes come in their order, also those with a full ring."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        with both(await attached(local, other, mode), mode) as (writer, reader):
            writer.send(b"first", WAIT_S)
            assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == b"first"
            pause(other)
            for host in (local, other):
                await until(partial(at_rest, host), "all streams wait")
                assert len(between(host)) == 1
            resume(other)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, write_all, writer)
                number = 0
                for host in (local, other, local):
                    pause(host)
                    await until(partial(at_rest, host), "all streams wait")
                    resume(host)
                    for _ in range(60):
                        assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == b"%d" % number
                        number += 1
                while number < 200:
                    assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == b"%d" % number
                    number += 1
                assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == LONG
                with pytest.raises(EndOfStreamError):
                    await trio.to_thread.run_sync(reader.receive, WAIT_S)
        await until(lambda: not len(between(local)) and not len(between(other)), "nothing is left of it")


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_stream_does_not_wait_for_another_start(tmp_path: Path, mode: Mode) -> None:
    """If the node that stopped its streams is lost for good, the reader learns that there was more."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        with both(await attached(local, other, mode), mode) as (writer, reader):
            writer.send(b"first", WAIT_S)
            assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == b"first"
            pause(local)
            for host, node in ((local, other.node), (other, local.node)):
                await until(partial(at_rest, host), "all streams wait")
                for waiting in between(host)._waiting.values():
                    waiting.epoch = 77
                session = host.links.session_of(node)
                assert session is not None
                between(host)._pauses = False
                between(host).met(node, session)
            with pytest.raises(UnreachableError):
                await trio.to_thread.run_sync(reader.receive, WAIT_S)


async def test_an_end_that_nobody_connects_for_is_closed(tmp_path: Path) -> None:
    """What was taken for a task of another node is closed when that node goes."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        other.do(fx.OpenRemoteTask(DEPUTY, local.node, "uid:1"))
        other.do(fx.AnswerAttach(DEPUTY, 5, STREAM, Mode.READ, RING_BYTES))
        with other.host.streams.local_end(STREAM, Mode.WRITE, RING_BYTES) as writer:
            assert len(between(other)) == 1
            local.links.hang_up(other.node, "it is cut")
            await until(lambda: writer.peer_closed, "the writer is told")
        await until(lambda: not len(between(other)), "nothing is left of it")


async def test_a_task_that_lets_go_of_its_end(tmp_path: Path) -> None:
    """The core says that a task let its end go: the stream ends after what it had written."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        with both(await attached(local, other, Mode.WRITE), Mode.WRITE) as (writer, reader):
            writer.send(b"last", WAIT_S)
            local.do(fx.CloseStreamEnd(STREAM, Mode.WRITE))
            assert await trio.to_thread.run_sync(reader.receive, WAIT_S) == b"last"
            with pytest.raises(EndOfStreamError):
                await trio.to_thread.run_sync(reader.receive, WAIT_S)


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_streams_bytes_are_those_of_who_is_away(tmp_path: Path, mode: Mode) -> None:
    """Both nodes count them for the principal of the task that took an end of another node's stream."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        local.host.owners.add(TASK, "uid:1")
        with both(await attached(local, other, mode), mode) as (writer, reader):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, write_all, writer)
                for _ in range(201):
                    await trio.to_thread.run_sync(reader.receive, WAIT_S)
        sender, receiver = (other, local) if mode is Mode.READ else (local, other)
        (sent,) = sender.host.rates.completed(ASKED).meters
        (received,) = receiver.host.rates.completed(ASKED).meters
        assert (sent.principal, sent.traffic, sent.waiting) == ("uid:1", Traffic.OUT, 0)
        assert (received.principal, received.traffic, received.waiting) == ("uid:1", Traffic.IN, 0)
        assert len(LONG) < sent.moved == received.moved < len(LONG) + 10_000


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_streams_bytes_are_on_its_tasks_account(tmp_path: Path, mode: Mode) -> None:
    """While a guarantee names the task that took an end from afar, its bytes are its own at the sender."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        local.host.owners.add(TASK, "uid:1")
        sender, taker = (other, DEPUTY) if mode is Mode.READ else (local, TASK)
        edge = Guarantee("uid:1", 0, taker, 500, ((0, 2**40),))
        sender.host.rates.set(fx.SetRates((), 60_000, guarantees=(edge,)))
        with both(await attached(local, other, mode), mode) as (writer, reader):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, write_all, writer)
                for _ in range(201):
                    await trio.to_thread.run_sync(reader.receive, WAIT_S)
        (sent,) = sender.host.rates.completed(ASKED).meters
        assert (sent.principal, sent.task, sent.waiting) == ("uid:1", taker, 0)
        assert len(LONG) < sent.moved < len(LONG) + 10_000


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_stream_goes_no_faster_than_its_rate(tmp_path: Path, mode: Mode) -> None:
    """Who has a rate writes as fast as that; when it is lifted all goes, and a lost node ends it."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        local.host.owners.add(TASK, "uid:1")
        sender = other if mode is Mode.READ else local
        slow = fx.SetRates((Rate("uid:1", Traffic.OUT, limits.RATE_BYTES_S_MIN),), 60_000)
        sender.host.rates.set(slow)
        with both(await attached(local, other, mode), mode) as (writer, reader):
            came: list[int] = []

            def read() -> None:
                with suppress(UnreachableError):
                    while True:
                        came.append(len(reader.receive(WAIT_S)))

            def write() -> None:
                with suppress(ClosedError):
                    while True:
                        writer.send(LONG, WAIT_S)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, read)
                nursery.start_soon(trio.to_thread.run_sync, write)
                await until(lambda: sender.host.rates.completed(ASKED).meters, "it goes")
                await until(lambda: sender.host.rates.completed(ASKED).meters[0].waiting, "it is held up")
                assert len(came) < 10
                sender.host.rates.set(fx.SetRates((), 60_000))
                await until(lambda: len(came) > 30, "all goes")
                sender.host.rates.set(slow)
                await until(lambda: sender.host.rates.completed(ASKED).meters[0].waiting, "it is held up")
                other.links.hang_up(local.node, "it is cut")
        await until(lambda: not len(between(local)) and not len(between(other)), "nothing is left of it")


async def test_no_node_and_no_principal_takes_all_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the places for streams a node, or a principal here, gets as many as it leaves for others."""
    monkeypatch.setattr(limits, "PEER_STREAMS_MAX", 4)
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        streams, taker = between(local), AttachedTask(TASK, "uid:1")
        place = StreamPlace(STREAM, Mode.READ, duplex=False, taker=taker)

        def keep(number: int) -> None:
            end = local.host.streams.local_end(ObjectId(100 + number), Mode.READ, RING_BYTES)
            streams.keep(other.node, number, place, end)

        def fetch(number: int, principal: str) -> None:
            target = ObjectId(200 + number)
            effect = fx.AnswerAttachRemote(TASK, 1, target, Mode.READ, RING_BYTES, other.node, number)
            for descriptor in streams.fetch(effect, AttachedTask(TASK, principal))[1]:
                os.close(descriptor)

        for number in (1, 2):
            keep(number)
        with pytest.raises(LimitError, match="left for others"):
            keep(3)
        fetch(4, "uid:1")
        with pytest.raises(LimitError, match="left for others"):
            fetch(5, "uid:1")
        fetch(6, "uid:2")
        assert len(streams) == 4
        for number in (4, 6):
            assert streams.close_end(ObjectId(200 + number), Mode.READ)
