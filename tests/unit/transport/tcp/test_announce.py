"""Announcements on a local network: what is believed, what is left out, and real sockets on loopback."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios import limits
from dios.ids import NodeId
from dios.transport.identity.certificates import key_digest
from dios.transport.tcp import announce
from dios.transport.tcp.announce import AnnouncedNode, MulticastNetwork, ReceivedAnnouncement
from tests.support.host.multicast import own_group, sender

CLUSTER = hashlib.sha256(b"one cluster").digest()
OTHER = hashlib.sha256(b"another cluster").digest()
KEYS = {number: Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (11, 22, 33)}
STRANGER = Ed25519PrivateKey.from_private_bytes(b"f" * 32)
ONE = AnnouncedNode(CLUSTER, KEYS[11], NodeId(11), "10.0.0.1:7400")
TWO = AnnouncedNode(CLUSTER, KEYS[22], NodeId(22), "10.0.0.2:7400")


def is_member(node: NodeId, key: bytes) -> bool:
    """Two nodes are members, with these keys."""
    return node in {11, 22} and key == key_digest(KEYS[node].public_key())


def believes(_node: NodeId, _key: bytes) -> bool:
    """Whoever says so is a member."""
    return True


def test_an_announcement_says_who_and_where() -> None:
    """What one node of a cluster says another understands."""
    assert announce.decode(announce.encode(ONE), CLUSTER, is_member) == ReceivedAnnouncement(
        ONE.node, ONE.address
    )


def test_the_bytes_of_an_announcement_are_frozen() -> None:
    """A node of this release is heard by every one that speaks this version."""
    assert announce.encode(ONE).hex() == (
        "44494f5320686572652032000bc487fe03f27c1b930bad31302e302e302e313a37343030c42066be7e33"
        "2c7a453332bd9d0a7f7db055f5c5ef1a06ada66d98b39fb6810c473a706aacf6b894af8a9c6ea602e0f3"
        "5f950bcfcccc12da1077ee76c5cb2671837e8a054fa2ab62ee5accc90358bcff98861697b9bab57e31fd"
        "4f8900998ae1d10e"
    )


def test_whatever_is_altered_is_left_out() -> None:
    """No single bit can be another, and nothing can be cut off or added."""
    datagram = announce.encode(ONE)
    altered = [
        datagram[:place] + bytes([datagram[place] ^ 1 << bit]) + datagram[place + 1 :]
        for place in range(len(datagram))
        for bit in range(8)
    ]
    altered += [datagram[:length] for length in range(len(datagram))]
    altered += [datagram + b"\0", b"\0" + datagram]
    assert all(announce.decode(variant, CLUSTER, is_member) is None for variant in altered)


def test_other_clusters_are_left_out() -> None:
    """Neither another cluster's nodes nor somebody who knows only this one's public hash are heard."""
    foreign = announce.encode(ONE._replace(cluster=OTHER, key=STRANGER))
    pretended = announce.encode(ONE._replace(key=STRANGER))
    same_key = announce.encode(ONE._replace(cluster=OTHER))
    for datagram in (foreign, pretended, same_key):
        assert announce.decode(datagram, CLUSTER, is_member) is None


@pytest.mark.parametrize("node", [NodeId(0), NodeId(2**63)])
def test_a_node_that_cannot_be_is_left_out(node: NodeId) -> None:
    """Even a datagram with a right seal says nothing when it is out of bounds."""
    assert announce.decode(announce.encode(ONE._replace(node=node)), CLUSTER, believes) is None


@pytest.mark.parametrize("length", [0, limits.NODE_ADDRESS_CHARS_MAX + 1])
def test_an_address_out_of_bounds_is_left_out(length: int) -> None:
    """An address has at least one character and at most its bound."""
    datagram = announce.encode(ONE._replace(address="h" * length))
    assert announce.decode(datagram, CLUSTER, believes) is None


def test_the_longest_announcement_is_within_its_bound() -> None:
    """A node with the longest address there can be is heard."""
    longest = ONE._replace(node=NodeId(2**63 - 1), address="h" * limits.NODE_ADDRESS_CHARS_MAX)
    assert announce.decode(announce.encode(longest), CLUSTER, believes) is not None


def test_a_removed_node_is_left_out() -> None:
    """It has its key still, and its certificate; a node that was never known is left out as well."""
    datagram = announce.encode(ONE)
    assert announce.decode(datagram, CLUSTER, lambda node, key: is_member(node, key) and node != 11) is None
    assert announce.decode(announce.encode(ONE._replace(node=NodeId(33))), CLUSTER, is_member) is None


def test_nothing_shows_the_key() -> None:
    """What is printed of a node that announces itself has no key in it."""
    assert repr(ONE) == "AnnouncedNode(000000000000000b, '10.0.0.1:7400')"


@pytest.fixture
def place() -> MulticastNetwork:
    """A network of this machine's own."""
    return own_group()


class Ear:
    """What one node has heard."""

    def __init__(self) -> None:
        self.heard: list[ReceivedAnnouncement] = []
        self._changed = trio.Event()

    def __call__(self, announcement: ReceivedAnnouncement) -> None:
        """Note it."""
        self.heard.append(announcement)
        self._changed.set()

    async def wait(self, ready: Callable[[list[ReceivedAnnouncement]], bool]) -> None:
        """Wait until what was heard is enough."""
        while not ready(self.heard):
            self._changed = trio.Event()
            await self._changed.wait()


async def test_two_nodes_of_one_machine_hear_each_other_and_not_themselves(place: MulticastNetwork) -> None:
    """Both are at the same port, and each hears the other's announcement only."""
    ears = {ONE: Ear(), TWO: Ear()}
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for voice, ear in ears.items():
                nursery.start_soon(announce.announce, voice, is_member, ear, place)
            await ears[ONE].wait(bool)
            await ears[TWO].wait(bool)
            nursery.cancel_scope.cancel()
    assert set(ears[ONE].heard) == {ReceivedAnnouncement(TWO.node, TWO.address)}
    assert set(ears[TWO].heard) == {ReceivedAnnouncement(ONE.node, ONE.address)}


async def test_what_strangers_send_is_not_heard_and_not_answered(place: MulticastNetwork) -> None:
    """Rubbish, altered and oversized datagrams are read over, and what comes after them is heard."""
    ear = Ear()
    datagram = announce.encode(TWO)
    rubbish = [b"", b"\xff" * 64, datagram[:-1] + b"\0", b"x" * 60_000, datagram + b"x" * 600]
    with trio.fail_after(30), sender(place) as stranger:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(announce.announce, ONE, is_member, ear, place)
            while not ear.heard:
                for packet in [*rubbish, datagram]:
                    stranger.sendto(packet, (place.group, place.port))
                with trio.move_on_after(0.2):
                    await ear.wait(bool)
            nursery.cancel_scope.cancel()
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(1)
    assert set(ear.heard) == {ReceivedAnnouncement(TWO.node, TWO.address)}


async def test_what_is_sent_to_this_machine_alone_is_not_heard(place: MulticastNetwork) -> None:
    """The port takes what is sent to the group; a datagram to the machine's own address finds nobody."""
    ear = Ear()
    with trio.fail_after(30), sender(place) as stranger:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(announce.announce, ONE, is_member, ear, place)
            while not ear.heard:
                alone = announce.encode(TWO._replace(node=NodeId(33)))
                stranger.sendto(alone, ("127.0.0.1", place.port))
                stranger.sendto(announce.encode(TWO), (place.group, place.port))
                with trio.move_on_after(0.2):
                    await ear.wait(bool)
            nursery.cancel_scope.cancel()
    assert {announcement.node for announcement in ear.heard} == {TWO.node}
