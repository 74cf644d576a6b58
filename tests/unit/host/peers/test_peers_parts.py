"""Parts of what connects nodes, each by itself: turns at sending, bounds of receiving, refusals in time."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from dios import limits
from dios.core import effects as fx
from dios.core.events import PeerUp, Received
from dios.errors import Code, OutOfMemoryError, UnreachableError, WouldBlockError
from dios.host.audit.log import BacklogLevel
from dios.host.bandwidth.rates import Charge, Rates
from dios.host.content.memories import ContentMemory
from dios.host.loop.fair_queue import TaskPrincipals
from dios.host.peers import handshake
from dios.host.peers.bulk import (
    DataReceiver,
    DataSender,
    FileRange,
    IncomingTransfer,
    ReceiveAllowance,
    ReceivedTransfer,
    ReceivingMemory,
    Transfer,
)
from dios.host.peers.connection_protocols import NodeDescription
from dios.host.peers.sending import TransferQueue
from dios.ids import BufferId, PayloadId, TaskId
from dios.transport.memory.memfd import create_memory, write_all
from dios.wire import dcp
from dios.wire.calls import CommitWrite, Create, Lookup
from dios.wire.codec import DCP_VERSION
from dios.wire.messages import Buffer, Failure, Mapping, Metered
from dios.wire.rates import UNMEASURED
from dios.wire.types import ObjectType, Traffic
from tests.support.host.harness import TASK
from tests.support.peers.hosts import BLOB, CALLER, connected, identities, peer_host, two_hosts, until

WAIT_S = 10.0


# -- sending ------------------------------------------------------------------------------------------
async def test_every_transfer_is_over_once() -> None:
    """When a node goes, every transfer that waits for it is over, however many they are."""
    over: list[int] = []

    async def never() -> socket.socket:
        await trio.sleep_forever()
        raise AssertionError

    async with trio.open_nursery() as nursery:
        sending = TransferQueue(nursery, TaskPrincipals(), Rates(), never)
        for number in range(limits.DCP_TRANSFERS_QUEUED_MAX):
            done = over.append
            sending.send(TaskId(number % 7 + 1), Transfer(b"", (), lambda n=number, d=done: d(n)))  # type: ignore[misc] # bound early
        with pytest.raises(WouldBlockError):
            sending.send(TaskId(1), Transfer(b"", (), lambda: over.append(-1)))
        assert over == [-1]
        sending.close()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(WAIT_S):
            await sending.wait_empty()
    assert sorted(over) == list(range(-1, limits.DCP_TRANSFERS_QUEUED_MAX))


async def test_a_node_that_cannot_be_reached_with_bytes() -> None:
    """Transfers for which no data connection can be made are over, and the next one tries again."""
    tries: list[int] = []
    over: list[int] = []

    async def refuse() -> socket.socket:
        await trio.lowlevel.checkpoint()
        tries.append(1)
        raise UnreachableError("nobody answers")

    async with trio.open_nursery() as nursery:
        rates = Rates()
        sending = TransferQueue(nursery, TaskPrincipals(), rates, refuse)
        for number in range(3):
            sending.send(TaskId(1), Transfer(b"m", (), lambda n=number: over.append(n)))  # type: ignore[misc] # bound early
        with trio.fail_after(WAIT_S):
            await sending.wait_empty()
    assert over == [0, 1, 2]
    assert len(tries) == 3
    assert not rates.completed(Metered(0, (), UNMEASURED, 0, b"")).meters, "no bytes are on no meter"


def nothing() -> None:
    """Nobody minds that a transfer is over."""


class Wire:
    """A sender and a receiver with a socket between them."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        self.sent: list[bool] = []
        self.arrived: list[ReceivedTransfer] = []
        self.ended: list[Exception | None] = []
        self.allowance = ReceiveAllowance(ReceivingMemory(1_000_000), wait_ms=0)
        self.sender = DataSender(
            here,
            sent=lambda _, __, whole: self.sent.append(whole),
            ended=self.ended.append,
        )
        rates = Rates()
        self.receiver = DataReceiver(
            there,
            self.allowance,
            incoming=lambda _, __, size: IncomingTransfer(Charge(rates, "", Traffic.IN, size), size, nothing),
            arrived=self.arrived.append,
            ended=self.ended.append,
        )

    async def close(self) -> None:
        """End both threads."""
        self.sender.close()
        self.receiver.close()
        self.allowance.close()
        await until(lambda: len(self.ended) == 2, "both have ended")
        for arrived in self.arrived:
            if arrived.fd >= 0:
                os.close(arrived.fd)


async def test_pieces_arrive_as_one() -> None:
    """Pieces of several memories, from anywhere in them, arrive one after another in one memory."""
    wire = Wire()
    first, second = create_memory(300_000), create_memory(10)
    write_all(first, bytes(range(250)) * 1_200)
    write_all(second, b"0123456789")
    wire.sender.send(
        Transfer(
            b"message",
            (FileRange(second, 3, 4), FileRange(first, 7, 299_993), FileRange(second, 0, 1)),
            nothing,
        )
    )
    (arrived,) = await until(lambda: wire.arrived, "it arrived")
    assert arrived.message == b"message"
    assert arrived.size == 299_998
    expected = b"3456" + (bytes(range(250)) * 1_200)[7:] + b"0"
    assert os.pread(arrived.fd, 300_000, 0) == expected
    await wire.close()
    assert wire.sent == [True]
    os.close(first)
    os.close(second)


async def test_a_source_that_ends_early_ends_the_transfer() -> None:
    """Bytes that are not there are never made up: the transfer is cut off, and nothing arrives."""
    wire = Wire()
    short = create_memory(10)
    wire.sender.send(Transfer(b"message", (FileRange(short, 0, 1_000),), nothing))
    await until(lambda: wire.sent, "it is over")
    assert wire.sent == [False]
    await wire.close()
    assert wire.arrived == []
    os.close(short)


async def test_more_than_there_is_room_for_is_dropped_and_reported() -> None:
    """The bytes of such a transfer are read and not kept, and the next transfer on the connection arrives."""
    wire = Wire()
    memory = create_memory(600_000)
    wire.sender.send(Transfer(b"large", (FileRange(memory, 0, 600_000),), nothing))
    wire.sender.send(Transfer(b"small", (FileRange(memory, 0, 10),), nothing))
    await until(lambda: len(wire.arrived) == 2, "both arrived")
    large, small = wire.arrived
    assert (large.message, large.fd, large.size) == (b"large", -1, 0)
    assert isinstance(large.refused, OutOfMemoryError)
    assert "at most 500000" in large.refused.message
    assert (small.size, small.refused) == (10, None)
    await wire.close()
    os.close(memory)


def test_no_node_takes_all_the_memory_for_arriving_bytes() -> None:
    """One node has at most half, all have no more than there is, and a transfer does not wait for ever."""
    memory = ReceivingMemory(100)
    nodes = [ReceiveAllowance(memory, wait_ms=0) for _ in range(3)]
    assert nodes[0].take(50)
    with pytest.raises(WouldBlockError):
        nodes[0].take(1)
    assert nodes[1].take(40)
    with pytest.raises(WouldBlockError):
        nodes[2].take(20)
    with pytest.raises(OutOfMemoryError):
        nodes[2].take(51)
    assert memory.used == 90
    nodes[0].give_back(50)
    assert nodes[2].take(20)


def test_what_comes_in_is_bounded() -> None:
    """A transfer waits while others take the room, and at the end nobody waits."""
    allowance = ReceiveAllowance(ReceivingMemory(200))
    assert allowance.take(100)
    taken: list[bool] = []
    waiting = threading.Thread(target=lambda: taken.append(allowance.take(10)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    allowance.give_back(100)
    waiting.join(WAIT_S)
    assert taken == [True]
    blocked = threading.Thread(target=lambda: taken.append(allowance.take(100)))
    blocked.start()
    allowance.close()
    blocked.join(WAIT_S)
    assert taken == [True, False]


# -- beginnings ---------------------------------------------------------------------------------------
async def test_the_dialling_node_refuses_an_unknown_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also who makes the connection looks at the other's versions, and tries again later, not at once."""
    paths = identities(tmp_path, 2)
    async with peer_host(paths[0]) as local, peer_host(paths[1]) as other:
        low, high = (local, other) if local.node < other.node else (other, local)
        hello_of = handshake.hello_of

        def later(me: NodeDescription, channel: int = 0) -> dcp.PeerHello:
            said = hello_of(me, channel)
            return (
                said if me.node == low.node else replace(said, oldest=DCP_VERSION + 1, newest=DCP_VERSION + 2)
            )

        monkeypatch.setattr(handshake, "hello_of", later)
        low.links.contact(high.node, high.name, high.address)
        await until(lambda: low.links.counts["denied"], "it is refused")
        assert not low.links.is_up(high.node)
        monkeypatch.setattr(handshake, "hello_of", hello_of)
        await until(lambda: low.core.seen(PeerUp), "it was updated, and is up")


# -- receiving ----------------------------------------------------------------------------------------
async def test_what_cannot_be_recorded_is_not_done_for_others(tmp_path: Path) -> None:
    """While the audit log cannot be written, calls of tasks elsewhere are refused as those of tasks here."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        other.host.journal._log.pressure = BacklogLevel.SOME
        local.ask(other, dcp.Forward(CALLER, Create(ObjectType.SHMEM_BLOB)))
        (event,) = await until(lambda: local.core.seen(Received), "it is answered")
        assert isinstance(event.message, dcp.PeerReply)
        assert isinstance(event.message.result, Failure)
        assert event.message.result.code == Code.ENOSPC
        local.ask(other, dcp.Forward(CALLER, Lookup(bytes(32))))
        await until(lambda: other.core.seen(Received), "what leaves no record is done")
        other.host.journal._log.pressure = BacklogLevel.NONE


async def test_a_buffer_is_filled_again(tmp_path: Path) -> None:
    """A writer that acquires again keeps its mapping, and finds what came in it."""
    async with two_hosts(tmp_path) as (local, _):
        size, buffer = 100_000, BufferId(9)
        result = Buffer(buffer, size, 1, 1)
        local.do(fx.AnswerReceived(TASK, 1, result, PayloadId(0), size, writable=True))
        opened = local.host.buffers.get(buffer)
        assert opened is not None
        again = Buffer(buffer, 5, 2, 2, data=b"again")
        local.do(fx.AnswerReceived(TASK, 1, again, PayloadId(0), size, writable=True, reuse=True))
        first, second = local.results()
        assert isinstance(first, Buffer)
        assert isinstance(second, Buffer)
        assert (first.mapping, second.mapping) == (Mapping.WRITABLE, Mapping.NONE)
        assert second.data is None
        assert local.host.buffers.get(buffer) is opened
        assert isinstance(opened.content, ContentMemory)
        assert opened.content.read(0, 6) == b"again\0"


async def test_received_memory_becomes_the_content(tmp_path: Path) -> None:
    """Large bytes of another node are the object's new content, sealed, without a copy."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        size = 400_000
        memory = ContentMemory.shadow(size)
        local.blob(memory)
        other.when_received(
            lambda event: [fx.ApplyWrite(BLOB, fx.WriteSource(payload=event.payload, length=size))]
        )
        local.ask(other, dcp.Forward(CALLER, CommitWrite(1, 2)), fx.WriteSource(content_of=BLOB, length=size))
        await until(lambda: other.core.seen(Received), "it arrived")
        content = other.host.contents.current(BLOB)
        assert isinstance(content, ContentMemory)
        assert content.frozen
        assert content._pooled is None
