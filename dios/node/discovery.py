"""A node that looks for its cluster on the local network: what it does about announcements.

Not for: the datagrams (``dios.transport.tcp.announce``), or connections (``dios.host.peers.links``). An
announcement is a hint and no more: it leads to one dial with a time limit, and only to a node that is not
connected already.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import Final

import trio

from dios import limits
from dios.host.peers.links import PeerLinks
from dios.transport.tcp import announce
from dios.transport.tcp.announce import MulticastNetwork, ReceivedAnnouncement, Voice
from dios.transport.tcp.tls import split_address

_log: Final = logging.getLogger(__name__)


def place_of(listen: str) -> MulticastNetwork:
    """Where a node that listens at this address announces itself: on the same network, if it names one."""
    host, _ = split_address(listen)
    try:
        return MulticastNetwork(interface=str(ipaddress.IPv4Address(host)))
    except ValueError:
        # A name, or an IPv6 address: the system knows best which network its multicast goes to.
        return MulticastNetwork()


async def find_others(voice: Voice, links: PeerLinks, place: MulticastNetwork) -> None:
    """Announce this node, and dial the others that do; until cancelled.

    A machine without multicast is told once and works without.
    """
    sought: set[str] = set()

    async def seek(address: str) -> None:
        with trio.move_on_after(limits.ANNOUNCE_SEEK_MS / 1000):
            await links.seek(address)
        sought.discard(address)

    async with trio.open_nursery() as nursery:

        def heard(found: ReceivedAnnouncement) -> None:
            if found.address in sought or len(sought) >= limits.ANNOUNCE_SEEKS_MAX:
                return
            if not links.is_up(found.node):
                sought.add(found.address)
                nursery.start_soon(seek, found.address, name="look for who announced itself")

        try:
            await announce.announce(voice, heard, place)
        except OSError as error:
            _log.warning(
                "this node cannot look for others by UDP; it finds them by its seeds and by gossip",
                extra={"why": str(error), "interface": place.interface},
            )
