from __future__ import annotations

from pathlib import Path

import pytest

from dios import limits
from dios.core import effects as fx
from dios.core.events import PeerUp, Received
from dios.host.content.memories import ContentMemory
from dios.ids import BufferId
from dios.wire import dcp
from dios.wire.calls import ReadOnce
from dios.wire.messages import Buffer
from tests.support.host.harness import TASK
from tests.support.peers.hosts import BLOB, CALLER, DEPUTY, PeerHost, connected, two_hosts, until

BUFFER = BufferId(9)
FORWARD = dcp.Forward(CALLER, ReadOnce(1))
SIZES = (
    0,
    1,
    4096,
    limits.INLINE_BYTES_MAX + 1,
    100_000,
    limits.DCP_INLINE_BYTES_MAX,
    limits.DCP_INLINE_BYTES_MAX + 1,
    3_000_001,
)


def pattern(size: int) -> bytes:
    """Bytes of which no two places look alike."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def content(size: int) -> bytes | ContentMemory:
    """An object's content of so many bytes."""
    data = pattern(size)
    if size <= limits.INLINE_BYTES_MAX:
        return data
    memory = ContentMemory.shadow(size).filled(data)
    assert memory.adopt(size)
    return memory


async def test_both_are_told_once_of_each_other(tmp_path: Path) -> None:
    """Two nodes that dial at once have one connection, by which each knows the other's epoch and name."""
    async with two_hosts(tmp_path) as (low, high):
        await connected(low, high)
        (up,) = low.core.seen(PeerUp)
        assert (up.node, up.name, up.address, up.epoch) == (high.node, high.name, high.address, 1)
        assert [event.node for event in high.core.seen(PeerUp)] == [low.node]


async def test_messages_arrive_in_order(tmp_path: Path) -> None:
    """Small messages reach the other core as they were sent, in order."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        for number in range(500):
            here.do(fx.Send(other.node, dcp.Gossip(b"%d" % number)))
        await until(lambda: len(other.messages()) >= 500, "all arrived")
        assert other.messages() == [dcp.Gossip(b"%d" % number) for number in range(500)]


@pytest.mark.parametrize("size", SIZES)
async def test_bytes_travel_beside_a_request(tmp_path: Path, size: int) -> None:
    """The content of an object goes beside a message, of any size, and becomes the other's payload."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        here.blob(content(size))
        other.when_received(
            lambda event: [fx.ApplyWrite(BLOB, fx.WriteSource(payload=event.payload, length=event.attached))]
        )
        here.ask(other, FORWARD, fx.WriteSource(content_of=BLOB, length=size))
        (event,) = await until(lambda: other.core.seen(Received), "it arrived")
        assert event.attached == size
        await until(lambda: other.host.effector.idle, "it is done")
        arrived = other.host.contents.current(BLOB)
        assert (arrived if isinstance(arrived, bytes) else arrived.read(0, size)) == pattern(size)


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("size", SIZES)
async def test_bytes_travel_beside_an_answer(tmp_path: Path, size: int, *, writable: bool) -> None:
    """A deputy's buffer is answered with its bytes, which the asking node hands to its task."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        other.blob(content(size))
        answer_requests(other, here, size, writable=writable)
        hand_out(here, size, writable=writable)
        here.ask(other, FORWARD)
        (result,) = await until(here.results, "the task was answered")
        assert isinstance(result, Buffer)
        assert (result.size, result.buffer) == (size, BUFFER)
        assert here.channel.read == [pattern(size)]
        if writable and size > limits.INLINE_BYTES_MAX:
            assert here.host.buffers.has(BUFFER, size)


def answer_requests(host: PeerHost, asker: PeerHost, size: int, *, writable: bool) -> None:
    """Answer every request with the object's content, as to a deputy."""
    host.do(fx.OpenRemoteTask(DEPUTY, asker.node, "uid:1"))

    def answer(event: Received) -> list[fx.Effect]:
        assert isinstance(event.message, dcp.Ask)
        seq, result = event.message.number, Buffer(BUFFER, size, 1, 1)
        if writable:
            return [fx.AnswerWrite(DEPUTY, seq, result, BLOB, 0, size)]
        return [fx.AnswerRead(DEPUTY, seq, result, BLOB, 0, size)]

    host.when_received(answer)


def hand_out(host: PeerHost, size: int, *, writable: bool) -> None:
    """Hand what comes as an answer to the host's own task."""

    def answer(event: Received) -> list[fx.Effect]:
        assert isinstance(event.message, dcp.PeerReply)
        result = event.message.result
        assert isinstance(result, Buffer)
        if result.data is not None:
            return [fx.Answer(TASK, 1, result)]
        return [fx.AnswerReceived(TASK, 1, result, event.payload, size, writable)]

    host.when_received(answer)
