"""A node with a valid certificate that sends rubbish: it loses its connection, and nobody else anything."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from msgspec import msgpack

from dios import limits
from dios.core.events import PeerDown, Received
from dios.errors import ProtocolError
from dios.host.peers.link import CONNECTIONS_MAX
from dios.ids import NodeId
from dios.transport.identity import identity
from dios.transport.identity.identity import Identity
from dios.transport.tcp.secured import Secured
from dios.transport.tcp.tls import dial
from dios.wire import dcp
from dios.wire.calls import CommitWrite, ReadOnce, Run, WriteOnce
from dios.wire.codec import DCP_VERSION
from dios.wire.dcp_frames import (
    OLDEST_VERSION,
    Channel,
    Head,
    Revoked,
    decode_frame,
    encode_channel,
    encode_frame,
    encode_head,
)
from dios.wire.earlier_forms import earlier_form
from dios.wire.messages import Done
from tests.support.peers.hosts import CALLER, PeerHost, connected, identities, peer_host, until, ups


def framed(body: bytes) -> bytes:
    """A frame around any bytes."""
    return struct.pack("<I", len(body)) + body


def packed(*values: object) -> bytes:
    """A frame around any array."""
    return framed(msgpack.encode(values))


class Villain:
    """A node that has a certificate, and says what it likes."""

    def __init__(self, me: Identity, target: PeerHost, nursery: trio.Nursery) -> None:
        self.me = me
        self.target = target
        self._nursery = nursery

    @property
    def node(self) -> NodeId:
        """Its id."""
        return self.me.node

    def hello(
        self,
        *,
        oldest: int = 1,
        newest: int = DCP_VERSION,
        channel: int = 0,
        epoch: int = 7,
        rack: str = "",
        address: str = "127.0.0.1:1",
    ) -> bytes:
        """Its hello."""
        return encode_frame(
            dcp.PeerHello(oldest, newest, self.node, epoch, self.me.name, rack, address, channel)
        )

    async def connect(self, *frames: bytes) -> Secured:
        """A fresh connection on which these were said."""
        line = await dial(self.target.address, self.me, self._nursery)
        for frame in frames:
            line.send_nowait(frame)
        return line

    async def control(self) -> Secured:
        """A control connection that was accepted."""
        line = await self.connect(self.hello())
        await until(lambda: self.node in ups(self.target), "it was taken for a node")
        return line

    async def data(self) -> socket.socket:
        """A data connection that was accepted."""
        line = await self.connect(self.hello(channel=1), encode_channel(Channel()))
        assert await line.receive(), "a data connection is answered"
        return line.detach()

    async def is_cut(self, line: Secured) -> None:
        """Wait until the other side has ended this connection."""
        with trio.fail_after(10):
            while await line.receive():
                pass
        line.close()


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[tuple[Villain, PeerHost, PeerHost]]:
    """A villain, the node it turns to, and another node that this one is connected with."""
    paths = identities(folder, 3)
    me = identity.load(paths[2])
    assert me is not None
    async with (
        peer_host(paths[0]) as target,
        peer_host(paths[1]) as friend,
        trio.open_nursery() as nursery,
    ):
        await connected(target, friend)
        yield Villain(me, target, nursery), target, friend
        await still_friends(target, friend)
        nursery.cancel_scope.cancel()


async def still_friends(target: PeerHost, friend: PeerHost) -> None:
    """Other nodes are served as before."""
    number = len(target.messages())
    assert not [event for event in target.core.seen(PeerDown) if event.node == friend.node]
    friend.links.send(target.node, dcp.Gossip(b"still there"))
    await until(lambda: len(target.messages()) > number, "the friend is heard")
    assert target.messages()[-1] == dcp.Gossip(b"still there")


def published(**changes: int) -> bytes:
    """A publication of counters with some of them changed."""
    usual = {"object": 1, "size": 1, "v_r": 1, "v_w": 1, "a_r": 1, "a_w": 1, "dirty": 0}
    return packed([42, *(usual | changes).values(), False, 1])


def answered(**changes: object) -> bytes:
    """An answer with a reference in which some fields are changed."""
    usual: dict[str, object] = {
        "ref": 1, "object": 1, "type": 2, "permissions": 31, "persistence": 0, "proximity": 1, "deletion": 0,
        "buffering": 0, "slot": 0, "size": 1, "v_r": 1, "v_w": 1, "a_r": 0, "a_w": 0, "fingerprint": "0" * 12,
    }  # fmt: skip
    return packed([41, 1, [3, [list((usual | changes).values())]]])


RUBBISH = {
    "a published size below 0": published(size=-1),
    "more readers than a page can show": published(a_r=2**40),
    "a published version that cannot be counted on": published(v_w=2**63 - 1),
    "an answer of a size below 0": answered(size=-1),
    "an answer with more writers than a page can show": answered(a_w=2**40),
    "an answer with a slot outside of the page": answered(slot=limits.REFERENCES_PER_TASK_MAX),
    "an answer with a number of 64 bits": answered(object=2**64 - 1),
    "an answer with rights below 0": answered(permissions=-1),
    "an answer with a long fingerprint": answered(fingerprint="f" * 5_000),
    "a failure with a long message": packed([41, 1, [0, 5, "x" * 100_000]]),
    "a result that no select has": packed([41, 1, [6, 2**40]]),
    "an end of a stream without bounds": packed([41, 1, [7, 2**50]]),
    "nothing": framed(b""),
    "no MessagePack": framed(b"\xc1\xff"),
    "not an array": framed(msgpack.encode({"a": 1})),
    "an unknown tag": packed([199, 1]),
    "an unknown tag inside": packed([40, 1, 1, [99, 1]]),
    "too few fields": packed([40, 1]),
    "a wrong type": packed([43, 17]),
    "text for bytes": packed([43, "text"]),
    "bytes after the end": framed(msgpack.encode([[43, b"x"]]) + b"\0"),
    "cut short": framed(msgpack.encode([[43, b"long enough"]])[:-3]),
    "nested deeply": framed(b"\x91" * 5000),
    "a second hello": encode_frame(dcp.PeerHello(1, DCP_VERSION, NodeId(1), 1, "n2", "", "")),
    "too many bytes inside": encode_frame(dcp.Gossip(b""), bytes(limits.DCP_INLINE_BYTES_MAX + 1)),
    "bytes inside and beside": encode_frame(
        dcp.Ask(1, 1, dcp.Forward(CALLER, WriteOnce(1, b"x"))), b"beside"
    ),
    "a damaged list of revoked": encode_frame(Revoked(b"\xff")),
    "a list of revoked with bytes": encode_frame(Revoked(b""), b"beside"),
    "a frame over the limit": struct.pack("<I", limits.DCP_FRAME_BYTES_MAX + 1) + bytes(100),
    "a frame of four gigabytes": struct.pack("<I", 2**32 - 1),
}


def test_lies_differ_from_valid_messages_in_one_field() -> None:
    """Without the changed field, the numbers out of range are messages that a node accepts."""
    for body in (published(), answered()):
        decode_frame(body[4:])


@pytest.mark.parametrize("case", RUBBISH)
async def test_rubbish_costs_its_own_connection(tmp_path: Path, case: str) -> None:
    """Whatever is no message ends the connection that it came on; the core is told, and the audit log."""
    async with stage(tmp_path) as (villain, target, _):
        line = await villain.control()
        line.send_nowait(RUBBISH[case])
        await villain.is_cut(line)
        (down,) = await until(lambda: target.core.seen(PeerDown), "it is down")
        assert down.node == villain.node
        assert target.links.counts["denied"] == 1
        assert target.core.seen(Received) == []


REFUSED_AT_ONCE = {
    "no hello": lambda _: [encode_frame(dcp.Gossip(b"x"))],
    "rubbish": lambda _: [framed(b"\xc1")],
    "another's id": lambda villain: [
        encode_frame(dcp.PeerHello(1, DCP_VERSION, NodeId(villain.node ^ 1), 1, villain.me.name, "", ""))
    ],
    "another's name": lambda villain: [
        encode_frame(dcp.PeerHello(1, DCP_VERSION, villain.node, 1, "n1", "", ""))
    ],
    "a later version": lambda villain: [villain.hello(oldest=DCP_VERSION + 1, newest=DCP_VERSION + 9)],
    "a negative channel": lambda villain: [villain.hello(channel=-1)],
    "a negative epoch": lambda villain: [villain.hello(epoch=-1)],
    "an epoch over 63 bits": lambda villain: [villain.hello(epoch=2**63)],
    "an epoch that no node reaches": lambda villain: [villain.hello(epoch=limits.EPOCH_MAX + 1)],
    "a rack that gossip cannot carry": lambda villain: [villain.hello(rack="r" * 64)],
    "an address that gossip cannot carry": lambda villain: [villain.hello(address="h" * 300)],
    "a data connection for rubbish": lambda villain: [villain.hello(channel=1), framed(b"\xc1")],
}


@pytest.mark.parametrize("case", REFUSED_AT_ONCE)
async def test_a_wrong_beginning_is_refused(tmp_path: Path, case: str) -> None:
    """Who does not begin as a node does is no node for the core, and the audit log has it."""
    begin: Callable[[Villain], list[bytes]] = REFUSED_AT_ONCE[case]
    async with stage(tmp_path) as (villain, target, friend):
        line = await villain.connect(*begin(villain))
        await villain.is_cut(line)
        assert ups(target) == {friend.node}
        assert target.links.counts["denied"] == 1


async def test_a_version_that_is_unknown_is_told_ours(tmp_path: Path) -> None:
    """A node of a much later release learns which versions this one speaks, and this one's log says both."""
    async with stage(tmp_path) as (villain, target, _):
        line = await villain.connect(villain.hello(oldest=DCP_VERSION + 1, newest=DCP_VERSION + 2))
        (body,) = await line.receive()
        assert msgpack.decode(body)[0][1:3] == [OLDEST_VERSION, DCP_VERSION]
        await villain.is_cut(line)
        target.host.journal.flush()
        assert f"n2 {DCP_VERSION + 1} to {DCP_VERSION + 2}. Update this node" in audited(tmp_path / "n0")


async def test_a_node_of_an_earlier_version_gets_messages_in_its_form(tmp_path: Path) -> None:
    """It refuses fields that it does not know, so those with defaults are left out."""
    async with stage(tmp_path) as (villain, target, _):
        line = await villain.connect(villain.hello(newest=dcp.TIME_VERSION - 1))
        await line.receive()
        await until(lambda: villain.node in ups(target), "it was taken for a node")
        message = dcp.Ask(1, 1, dcp.Forward(CALLER, Run(3)))
        target.links.send(villain.node, message)
        wanted = msgpack.encode([earlier_form(message)])
        with trio.fail_after(10):
            while wanted not in await line.receive():
                pass
        line.close()


async def test_a_node_of_the_version_before_is_refused_with_the_cause(tmp_path: Path) -> None:
    """A node without moves and devices in its messages is no member; the log says which to update."""
    async with stage(tmp_path) as (villain, target, friend):
        line = await villain.connect(villain.hello(oldest=1, newest=2))
        (body,) = await line.receive()
        assert msgpack.decode(body)[0][1:3] == [OLDEST_VERSION, DCP_VERSION]
        await villain.is_cut(line)
        assert ups(target) == {friend.node}
        target.host.journal.flush()
        assert "n2 1 to 2. Update n2" in audited(tmp_path / "n0")


def audited(data: Path) -> str:
    """Everything that a node's audit log holds."""
    return "".join(path.read_text(errors="replace") for path in (data / "audit").iterdir())


async def test_what_the_core_refuses_costs_the_connection(tmp_path: Path) -> None:
    """A message that makes no sense to the core ends the connection; the node goes on soundly."""
    async with stage(tmp_path) as (villain, target, friend):
        line = await villain.control()

        def refuse(event: Received) -> list[object]:
            if event.node == villain.node:
                raise ProtocolError("an answer to request 99, which was never made")
            return []

        target.when_received(refuse)  # type: ignore[arg-type] # no effects
        line.send_nowait(encode_frame(dcp.PeerReply(99, Done())))
        await villain.is_cut(line)
        await until(lambda: target.core.seen(PeerDown), "it is down")
        assert target.host.driver.sound
        assert friend.node in ups(target)


def transfer(message: bytes, data: bytes) -> bytes:
    """The bytes of one transfer, or of something like one."""
    return encode_head(Head(len(message), len(data))) + message + data


MESSAGE = msgpack.encode([dcp.Ask(1, 1, dcp.Forward(CALLER, CommitWrite(1, 2)))])
BAD_TRANSFERS = {
    "a transfer of an earlier release": b"dtr1" + transfer(MESSAGE, b"")[4:],
    "no head": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "a head of too many bytes": struct.pack("<4sIQ", b"dtr2", 10, 2**63),
    "a message of too many bytes": struct.pack("<4sIQ", b"dtr2", 2**32 - 1, 10),
    "no message": struct.pack("<4sIQ", b"dtr2", 0, 10),
    "a message that is none": transfer(b"\xc1", bytes(100_000)),
    "a second hello": transfer(
        msgpack.encode([dcp.PeerHello(1, DCP_VERSION, NodeId(1), 1, "n2", "", "")]), bytes(100_000)
    ),
    "bytes inside the call, too": transfer(
        msgpack.encode([dcp.Ask(1, 1, dcp.Forward(CALLER, WriteOnce(1, b"x")))]), bytes(100_000)
    ),
    "bytes inside the frame, too": transfer(
        msgpack.encode([dcp.Ask(1, 1, dcp.Forward(CALLER, ReadOnce(1))), b"x"]), bytes(100_000)
    ),
    "a list of revoked with bytes": transfer(msgpack.encode([Revoked(b"")]), bytes(100_000)),
}


@pytest.mark.parametrize("case", BAD_TRANSFERS)
async def test_a_bad_transfer_costs_the_connection(tmp_path: Path, case: str) -> None:
    """What is no transfer ends all connections with that node."""
    async with stage(tmp_path) as (villain, target, _):
        line = await villain.control()
        with await villain.data() as sock:
            await trio.to_thread.run_sync(sock.sendall, BAD_TRANSFERS[case])
            await villain.is_cut(line)
        await until(lambda: target.core.seen(PeerDown), "it is down")
        assert target.links.counts["denied"] == 1
        assert target.core.seen(Received) == []


@pytest.mark.parametrize("keep", [0, 10, 60, 50_000, 100_020])
async def test_a_transfer_cut_short_is_nothing(tmp_path: Path, keep: int) -> None:
    """A data connection that ends within a transfer ends alone: the control connection stays."""
    async with stage(tmp_path) as (villain, target, _):
        line = await villain.control()
        whole = transfer(MESSAGE, bytes(100_000))
        with await villain.data() as sock:
            await trio.to_thread.run_sync(sock.sendall, whole[:keep])
        line.send_nowait(encode_frame(dcp.Gossip(b"after")))
        await until(lambda: target.messages() == [dcp.Gossip(b"after")], "the control connection stands")
        line.close()


async def test_data_connections_are_bounded(tmp_path: Path) -> None:
    """A node that opens more data connections than it may loses them all."""
    async with stage(tmp_path) as (villain, target, _):
        line = await villain.control()
        socks = [await villain.data() for _ in range(CONNECTIONS_MAX + 1)]
        await villain.is_cut(line)
        for sock in socks:
            sock.close()
        assert target.links.counts["denied"] == 1


async def test_a_data_connection_of_another_start_is_refused(tmp_path: Path) -> None:
    """Data connections belong to a control connection of the same epoch."""
    async with stage(tmp_path) as (villain, _, _):
        line = await villain.control()
        data = await villain.connect(villain.hello(channel=1, epoch=8), encode_channel(Channel()))
        await villain.is_cut(data)
        line.close()


async def test_a_peer_that_does_not_read_loses_its_connection(tmp_path: Path) -> None:
    """What a node does not read is kept for it within a bound; then its connection goes.

    Before, what is large goes another way, so that who reads slowly is not cut off for it.
    """
    async with stage(tmp_path) as (villain, target, _):
        line = await villain.control()
        standing = target.links.session_of(villain.node)
        assert standing is not None
        large, small = (dcp.Gossip(bytes(size)) for size in (limits.DCP_INLINE_BYTES_MAX, 3_000))
        with trio.fail_after(10):
            for _ in range(500):
                target.links.send(villain.node, large)
                await trio.lowlevel.checkpoint()
            assert standing.line.queued_bytes < 2 * limits.DCP_QUEUE_HIGH_WATER_BYTES
            assert target.links.counts["transfers_sent"] > 0
            while target.links.is_up(villain.node):
                target.links.send(villain.node, small)
                await trio.lowlevel.checkpoint()
        await until(lambda: target.core.seen(PeerDown), "it is down")
        line.close()
