"""Nodes of one cluster that find each other by nothing but announcements, over real connections."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dios import limits
from dios.ids import NodeId
from dios.node import discovery
from dios.transport.tcp import announce
from dios.transport.tcp.announce import AnnouncedNode, MulticastNetwork
from tests.support.host.multicast import own_group, sender
from tests.support.peers.hosts import PeerHost, two_hosts, until, ups


@pytest.fixture
def place() -> MulticastNetwork:
    """A network of this machine's own."""
    return own_group()


def say(place: MulticastNetwork, datagram: bytes) -> None:
    """Send one datagram to the group."""
    with sender(place) as sock:
        sock.sendto(datagram, (place.group, place.port))


def voice(host: PeerHost) -> AnnouncedNode:
    """What a host announces."""
    return AnnouncedNode(host.port.identity.cluster, host.port.membership.secret, host.node, host.address)


async def test_two_nodes_that_know_nobody_find_each_other(tmp_path: Path, place: MulticastNetwork) -> None:
    """Without a seed and without anybody's help, announcements alone make the connection."""
    async with two_hosts(tmp_path) as (one, other), trio.open_nursery() as nursery:
        for host in (one, other):
            nursery.start_soon(discovery.find_others, voice(host), host.links, place)
        await until(lambda: ups(one) and ups(other), "they have met")
        assert (ups(one), ups(other)) == ({other.node}, {one.node})
        nursery.cancel_scope.cancel()


async def test_a_false_announcement_costs_dials_and_nothing_else(
    tmp_path: Path, place: MulticastNetwork
) -> None:
    """Where a stranger is, no connection comes about, and the announced node is unknown as before."""
    dials: list[trio.SocketStream] = []
    said = 0

    async def hang_up(stream: trio.SocketStream) -> None:
        dials.append(stream)
        await stream.aclose()

    async with two_hosts(tmp_path) as (one, _), trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, hang_up, [listener])
        nursery.start_soon(discovery.find_others, voice(one), one.links, place)
        lie = announce.encode(voice(one)._replace(node=NodeId(7), address=address))

        def dialled_again() -> bool:
            nonlocal said
            said += 1
            say(place, lie)
            return len(dials) > 1

        await until(dialled_again, "the stranger was dialled twice")
        assert len(dials) < said
        assert not ups(one)
        assert not one.links.is_up(NodeId(7))
        assert one.links.addresses == ()
        nursery.cancel_scope.cancel()


async def test_a_machine_without_that_network_works_without(tmp_path: Path, place: MulticastNetwork) -> None:
    """Where the system has no multicast, the node goes on."""
    async with two_hosts(tmp_path) as (one, _):
        with trio.fail_after(30):
            await discovery.find_others(voice(one), one.links, place._replace(interface="192.0.2.1"))


@pytest.mark.parametrize(
    ("listen", "interface"),
    [
        ("127.0.0.1:7400", "127.0.0.1"),
        ("0.0.0.0:7400", MulticastNetwork().interface),
        ("[fd00::1]:7400", MulticastNetwork().interface),
        ("host.example:7400", MulticastNetwork().interface),
    ],
)
def test_a_node_announces_itself_where_it_listens(listen: str, interface: str) -> None:
    """The network of a node that names its address is that one; else the system chooses."""
    assert discovery.place_of(listen) == MulticastNetwork(announce.GROUP, limits.ANNOUNCE_PORT, interface)
