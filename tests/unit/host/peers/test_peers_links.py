"""Connections between nodes over their lives: lost, made anew, replaced, hung up, found."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from dios import limits
from dios.core import effects as fx
from dios.core.events import PeerDown, PeerPaused, PeerUp, Received
from dios.host.peers.connection_protocols import PeerConnection
from dios.ids import NodeId, TaskId
from dios.transport.identity import identity
from dios.transport.identity.identity import Identity
from dios.transport.tcp.tls import dial
from dios.wire import dcp
from dios.wire.codec import DCP_VERSION
from dios.wire.dcp_frames import encode_frame
from dios.wire.messages import Buffer, Done, Results
from tests.support.host.harness import open_descriptors
from tests.support.peers.hosts import PeerHost, connected, identities, peer_host, two_hosts, until, ups

GOSSIP = dcp.Gossip(b"there")


async def heard(local: PeerHost, other: PeerHost) -> None:
    """What the first says reaches the second."""
    before = len(other.messages())
    local.links.send(other.node, GOSSIP)
    await until(lambda: len(other.messages()) > before, "it was heard")


async def test_a_connection_that_breaks_is_made_anew(tmp_path: Path) -> None:
    """Both cores are told that it broke, not that the other is gone, and soon that it stands again."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        standing = local.links.session_of(other.node)
        assert standing is not None
        standing.line.close()
        for host in (local, other):
            await until(lambda host=host: len(host.core.seen(PeerUp)) == 2, "it stands again")  # type: ignore[misc] # bound early
            (down,) = host.core.seen(PeerDown)
            assert not down.refused
        await heard(local, other)
        await heard(other, local)


async def test_the_others_are_told_that_a_program_is_replaced(tmp_path: Path) -> None:
    """Each connected node learns once that it begins, and once that it does not happen after all."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        for begins in (True, True, False, False):
            local.links.announce_pause(begins=begins)
        await local.links.flush()
        await heard(local, other)
        assert [event.begins for event in other.core.seen(PeerPaused)] == [True, False]
        assert not local.core.seen(PeerPaused)


async def test_a_connection_on_demand_is_made_for_gossip(tmp_path: Path) -> None:
    """A node that is known has no connection before gossip is sent to it, which then arrives in order."""
    async with two_hosts(tmp_path) as (local, other):
        local.links.contact(other.node, other.name, other.address, on_demand=True)
        local.links.send(other.node, dcp.PeerReply(1, Done(1)))
        await trio.testing.wait_all_tasks_blocked()
        assert not local.links.counts["connections"]
        said = [dcp.Gossip(bytes([number])) for number in range(limits.PEER_WAITING_GOSSIP_MAX + 2)]
        for message in said:
            local.links.send(other.node, message)
        await until(lambda: len(other.messages()) >= limits.PEER_WAITING_GOSSIP_MAX, "it arrived")
        assert other.messages() == said[2:]


async def test_a_lost_connection_on_demand_is_made_for_the_next_gossip(tmp_path: Path) -> None:
    """Both cores learn of the loss, and what is sent next brings the connection back."""
    async with two_hosts(tmp_path) as (local, other):
        for here, there in ((local, other), (other, local)):
            here.links.contact(there.node, there.name, there.address, on_demand=True)
        local.links.send(other.node, GOSSIP)
        await until(
            lambda: local.links.is_up(other.node) and other.links.is_up(local.node), "they are connected"
        )
        session = local.links.session_of(other.node)
        assert session is not None
        session.end()
        for host in (local, other):
            await until(lambda host=host: host.core.seen(PeerDown), "it is down")  # type: ignore[misc] # bound early
        other.links.send(local.node, GOSSIP)
        local.links.send(other.node, GOSSIP)
        await until(
            lambda: local.links.is_up(other.node) and other.links.is_up(local.node), "they are connected"
        )
        await heard(local, other)


async def test_an_unused_connection_ends_and_no_node_is_suspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unused connection on demand ends; both cores learn why, and the next gossip is heard."""
    monkeypatch.setattr(limits, "PEER_IDLE_MS", 400)
    async with two_hosts(tmp_path) as (local, other), trio.open_nursery() as nursery:
        nursery.start_soon(local.links.close_idle)
        local.links.contact(other.node, other.name, other.address, on_demand=True)
        other.links.contact(local.node, local.name, local.address, on_demand=True)
        local.links.send(other.node, GOSSIP)
        for host in (local, other):
            (down,) = await until(lambda host=host: host.core.seen(PeerDown), "it is down")  # type: ignore[misc] # bound early
            assert down.idle
            assert not down.refused
        nursery.cancel_scope.cancel()
        await heard(other, local)


async def test_a_node_that_ended_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody listens any more at the other's address, the core is told so at once."""
    monkeypatch.setattr(limits, "PEER_PROBE_MS_MAX", 60_000)
    first, second = identities(tmp_path, 2)
    async with peer_host(first) as local:
        async with peer_host(second) as other:
            await connected(local, other)
        (down,) = await until(lambda: local.core.seen(PeerDown), "it is down")
        assert down.refused
        assert down.node == other.node
        assert down.epoch == 1


async def test_a_node_that_starts_anew_takes_its_place_again(tmp_path: Path) -> None:
    """A node that was started again comes back by itself, with its next epoch, at another address."""
    first, second = identities(tmp_path, 2)
    async with peer_host(first) as local:
        async with peer_host(second) as other:
            await connected(local, other)
        async with peer_host(second) as again:
            again.links.contact(local.node, local.name, local.address)
            await until(lambda: len(local.core.seen(PeerUp)) == 2, "it is up again")
            assert [event.epoch for event in local.core.seen(PeerUp)] == [1, 2]
            await heard(local, again)


async def test_a_node_that_was_hung_up_on_is_left_alone(tmp_path: Path) -> None:
    """After HangUp nobody dials it; when it dials by itself it is met anew."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        local.do(fx.HangUp(other.node, "people asked for it"))
        assert not local.links.is_up(other.node)
        await until(lambda: len(local.core.seen(PeerUp)) == 2, "it came by itself")
        await until(lambda: other.core.seen(PeerDown), "the other saw the connection end")
        assert not local.core.seen(PeerDown)


@pytest.mark.parametrize("address", ["a..b:1", "l" * 64 + ".example:1", "ü" * 70 + ":1", "no address", ""])
async def test_an_address_that_a_node_made_up_harms_nobody(tmp_path: Path, address: str) -> None:
    """Gossip about a node at an address that no resolver takes costs an attempt to connect, and no more."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        local.links.contact(NodeId(4_711), "liar", address)
        link = local.links._links[NodeId(4_711)]
        await until(lambda: link.last_error, "it was tried")
        await heard(local, other)


async def test_a_defect_in_connecting_ends_that_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that nobody expects while a node is dialled is logged, and other nodes are served."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        dial = local.links._network.dial

        async def broken(address: str, *, expect: NodeId | None = None) -> PeerConnection:
            if address == "liar:1":
                raise ZeroDivisionError("nobody thought of it")
            return await dial(address, expect=expect)

        monkeypatch.setattr(local.links._network, "dial", broken)
        local.links.contact(NodeId(4_711), "liar", "liar:1")
        await until(lambda: "nobody thought of it" in caplog.text, "it was tried")
        await heard(local, other)


async def test_a_revoked_node_is_refused_by_all(tmp_path: Path) -> None:
    """Whoever is told that a node was revoked tells the others; none of them lets it in again."""
    paths = identities(tmp_path, 3)
    async with peer_host(paths[0]) as local, peer_host(paths[1]) as other, peer_host(paths[2]) as bad:
        await connected(local, other, bad)
        local.do(fx.RemoveNode(bad.node, False, (TaskId(1), 1, 1)))
        await until(lambda: not other.links.is_up(bad.node), "the other lets it go, too")
        bad.links.contact(other.node, other.name, other.address)
        await until(lambda: "was revoked" in audited(other, paths[1]), "it is refused")
        assert not other.links.is_up(bad.node)
        await heard(local, other)


async def test_a_revoked_node_is_told_why_nobody_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that was revoked and starts again says in its log, once, that the others refuse it."""
    first, second = identities(tmp_path, 2)
    async with peer_host(first) as local:
        async with peer_host(second) as bad:
            await connected(local, bad)
            local.do(fx.RemoveNode(bad.node, False, (TaskId(1), 1, 1)))
            await until(lambda: not bad.links.is_up(local.node), "it is let go")
        async with peer_host(second) as again, trio.open_nursery() as nursery:
            nursery.start_soon(again.links.seek, local.address)
            await until(lambda: "a node refuses this node" in caplog.text, "it is told")
            before = audited(local, first).count("was revoked")
            await until(lambda: audited(local, first).count("was revoked") > before, "it is refused again")
            assert caplog.text.count("a node refuses this node") == 1
            nursery.cancel_scope.cancel()


def audited(host: PeerHost, data: Path) -> str:
    """Everything that a node's audit log holds."""
    host.host.journal.flush()
    return "".join(path.read_text(errors="replace") for path in (data / "audit").iterdir())


class Hanging:
    """A network on which connecting takes for ever."""

    def __init__(self) -> None:
        self.begun = 0
        self.given_up = 0

    async def dial(self, address: str, *, expect: NodeId | None = None) -> PeerConnection:
        """Wait until cancelled."""
        self.begun += 1
        try:
            await trio.sleep_forever()
        finally:
            self.given_up += 1
        raise AssertionError(address, expect)


@pytest.mark.parametrize("lower", [True, False])
async def test_who_dials_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lower: bool) -> None:
    """While both nodes of a pair connect, the connection made by the one with the lower id stays."""
    paths = sorted(identities(tmp_path, 2), key=lambda path: identity_of(path).node, reverse=lower)
    me = identity_of(paths[0])
    async with peer_host(paths[1]) as host, trio.open_nursery() as nursery:
        assert (host.node < me.node) is lower
        network = Hanging()
        monkeypatch.setattr(host.links, "_network", network)
        host.links.contact(me.node, me.name, "127.0.0.1:1")
        await until(lambda: network.begun, "it dials")
        line = await dial(host.address, me, nursery)
        line.send_nowait(encode_frame(dcp.PeerHello(1, DCP_VERSION, me.node, 1, me.name, "", "127.0.0.1:1")))
        with trio.fail_after(10):
            answered = await line.receive()
        # The host has the lower id: its own connection, on its way, stays.
        assert bool(answered) is not lower
        assert (ups(host) == set()) is lower
        if lower:
            assert not network.given_up
        else:
            await until(lambda: network.given_up, "its own is given up")
        line.close()
        nursery.cancel_scope.cancel()


def identity_of(path: Path) -> Identity:
    """A node's identity."""
    own = identity.load(path)
    assert own is not None
    return own


async def test_a_node_is_found_by_its_address(tmp_path: Path) -> None:
    """Looking at an address where nobody is yet finds whoever comes to be there."""
    first, second = identities(tmp_path, 2)
    async with peer_host(first) as local, trio.open_nursery() as nursery:
        async with peer_host(second) as other:
            nursery.start_soon(local.links.seek, other.address)
            nursery.start_soon(local.links.seek, local.address)  # itself is nobody to be found
            await until(lambda: ups(local) == {other.node}, "it was found")
            assert ups(other) == {local.node}
            assert other.address in local.links.addresses
        nursery.cancel_scope.cancel()


async def test_a_message_too_long_for_a_frame_arrives(tmp_path: Path) -> None:
    """An answer of more than a frame goes over a data connection, and is the same message there."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        part = Buffer(0, limits.INLINE_BYTES_MAX, 1, 1, data=bytes(limits.INLINE_BYTES_MAX))
        reply = dcp.PeerReply(1, Results((part,) * 60))
        local.do(fx.Send(other.node, reply))
        (event,) = await until(lambda: other.core.seen(Received), "it arrived")
        assert event.message == reply
        assert event.attached == 0
        assert local.links.counts["transfers_sent"] == 1


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Hosts that were connected, and moved large bytes, leave no descriptor and no thread."""
    before, threads = open_descriptors(), threading.active_count()
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        local.links.send(
            other.node, dcp.PeerReply(1, Results((Buffer(0, 9, 1, 1, data=bytes(50_000)),) * 40))
        )
        await until(other.messages, "it arrived")
    await until(lambda: threading.active_count() <= threads + 1, "threads have ended")
    assert open_descriptors() <= before + 1
