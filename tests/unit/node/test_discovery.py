"""Nodes of one cluster that find each other by nothing but announcements, over real connections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import trio
from trio.testing import MockClock

from dios import limits
from dios.node import discovery
from dios.transport.tcp import announce
from dios.transport.tcp.announce import AnnouncedNode, IsMember, MulticastNetwork
from tests.support.host.multicast import own_group, sender
from tests.support.peers.hosts import PeerHost, two_hosts, until, ups

if TYPE_CHECKING:
    from dios.host.peers.links import PeerLinks


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
    own = host.port.certificate.own
    return AnnouncedNode(own.cluster, own.key(), host.node, host.address)


def is_member(host: PeerHost) -> IsMember:
    """How a host tells members."""
    return host.port.certificate.own.trust.is_member


async def test_two_nodes_that_know_nobody_find_each_other(tmp_path: Path, place: MulticastNetwork) -> None:
    """Without a seed and without anybody's help, announcements alone make the connection."""
    async with two_hosts(tmp_path) as (local, other), trio.open_nursery() as nursery:
        for host in (local, other):
            nursery.start_soon(discovery.find_others, voice(host), is_member(host), host.links, place)
        await until(lambda: ups(local) and ups(other), "they have met")
        assert (ups(local), ups(other)) == ({other.node}, {local.node})
        nursery.cancel_scope.cancel()


async def test_a_false_announcement_costs_dials_and_nothing_else(
    tmp_path: Path, place: MulticastNetwork
) -> None:
    """Where a member lies to be, no connection comes about, and it is not connected."""
    dials: list[trio.SocketStream] = []
    said = 0

    async def hang_up(stream: trio.SocketStream) -> None:
        dials.append(stream)
        await stream.aclose()

    async with two_hosts(tmp_path) as (local, other), trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, hang_up, [listener])
        nursery.start_soon(discovery.find_others, voice(local), is_member(local), local.links, place)
        lie = announce.encode(voice(other)._replace(address=address))

        def dialled_again() -> bool:
            nonlocal said
            said += 1
            say(place, lie)
            return len(dials) > 1

        await until(dialled_again, "the stranger was dialled twice")
        assert len(dials) < said
        assert not ups(local)
        assert not local.links.is_up(other.node)
        assert local.links.addresses == ()
        nursery.cancel_scope.cancel()


async def test_a_network_for_multicast_may_come_after_the_node(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the system has no multicast now, the node says so once, and tries again."""
    del autojump_clock
    attempts: list[float] = []
    announced = trio.Event()

    async def announce_later(*_: object) -> None:
        attempts.append(trio.current_time())
        if len(attempts) < 4:
            raise OSError("Network is unreachable")
        announced.set()
        await trio.sleep_forever()

    monkeypatch.setattr(announce, "announce", announce_later)
    voice = cast("AnnouncedNode", None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            discovery.find_others, voice, lambda _node, _key: True, cast("PeerLinks", None), own_group()
        )
        await announced.wait()
        nursery.cancel_scope.cancel()
    assert len(attempts) == 4
    assert len(caplog.records) == 1


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
