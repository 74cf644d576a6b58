"""Finds the nodes of the cluster on the local network by their announcements.

``dios.transport.tcp.announce`` has the datagrams. An announcement is only a hint: it leads to one attempt to
connect with a time limit, and only to a node that is not connected.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import Final

import trio

from dios import limits
from dios.host.peers.links import PeerLinks
from dios.transport.tcp import announce
from dios.transport.tcp.announce import AnnouncedNode, IsMember, MulticastNetwork, ReceivedAnnouncement
from dios.wire.addresses import split_address

_log: Final = logging.getLogger(__name__)


def place_of(listen: str) -> MulticastNetwork:
    """Return the network for announcements of a node with this address: its own interface if it names one."""
    host, _ = split_address(listen)
    try:
        return MulticastNetwork(interface=str(ipaddress.IPv4Address(host)))
    except ValueError:
        # A name or an IPv6 address: the system chooses the network for multicast.
        return MulticastNetwork()


async def find_others(
    voice: AnnouncedNode, is_member: IsMember, links: PeerLinks, place: MulticastNetwork
) -> None:
    """Announce this node and connect to others that announce themselves, until cancelled.

    Without multicast, which a machine may get after the node has started, log that once and try again.
    """
    sought: set[str] = set()

    async def seek(address: str) -> None:
        with trio.move_on_after(limits.ANNOUNCE_SEEK_MS / 1000):
            await links.seek(address)
        sought.discard(address)

    async with trio.open_nursery() as nursery:

        def heard(announcement: ReceivedAnnouncement) -> None:
            if announcement.address in sought or len(sought) >= limits.ANNOUNCE_SEEKS_MAX:
                return
            if not links.is_up(announcement.node):
                sought.add(announcement.address)
                nursery.start_soon(seek, announcement.address, name="connect to an announced node")

        told, pause_ms = "", limits.ANNOUNCE_RETRY_MS_MIN
        while True:
            try:
                await announce.announce(voice, is_member, heard, place)
            except OSError as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning(
                        "cannot announce this node by UDP now, and tries again; it finds others through its "
                        "seeds and through gossip",
                        extra={"why": told, "interface": place.interface},
                    )
            await trio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.ANNOUNCE_RETRY_MS_MAX)
