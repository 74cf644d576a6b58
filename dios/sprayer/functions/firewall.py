"""A stateful firewall: packets pass in both directions if a rule allowed their connection to be opened.

It does not read payloads.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from dios.sprayer.flows.five_tuple import drop, get_five_tuple, hand_over, reverse, wait
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.closing import track_closing
from dios.sprayer.network_function import NetworkFunction, checked_quic_ports
from dios.sprayer.packets.fragments import complete, make_datagrams
from dios.sprayer.packets.packet import (
    INSIDE,
    LATER_PART,
    NO_FLOW,
    REFUSED,
    TABLE_FULL,
    Batch,
    Flow,
    Kept,
    Packet,
)

OPENED, TURNED_AWAY = range(2)
_FULL: Final = 2**64 - 1


class Rule(NamedTuple):
    """A rule for opening connections; the first rule that matches a packet decides."""

    allow: bool = True
    side: int = INSIDE
    """The side from which the packet comes."""
    source: str = "::/0"
    """A network of IPv4 or IPv6; ``::/0`` matches any address of both."""
    target: str = "::/0"
    protocol: int = 0
    """The number of a protocol; 0 for any."""
    ports: tuple[int, int] = (0, 65_535)
    """The first and the last target port; protocols other than TCP and UDP have port 0."""


class Firewall(NetworkFunction):
    """A firewall that passes connections that a rule allows, by default all that are opened from inside."""

    state_in_flows = True
    takes_fragments = True
    takes_protocols = True
    entry = (("fins", "u1"),)

    def __init__(
        self, rules: Sequence[Rule] = (Rule(),), flows_max: int = 65_536, quic_ports: Sequence[int] = ()
    ) -> None:
        self.quic_ports = checked_quic_ports(quic_ports)
        self.flows_max = 2 * flows_max
        self.nets = np.array([[*_net(rule.source), *_net(rule.target)] for rule in rules], np.uint64)
        self.nets = self.nets.reshape(len(rules), 8)
        """(R, 8) halves of networks and their masks: of the source, of the target."""
        self.ends = np.array(
            [(rule.allow, rule.side, rule.protocol, *rule.ports, _rule_version(rule)) for rule in rules],
            np.int64,
        ).reshape(len(rules), 6)
        """(R, 6)"""

    def prepare(self, cores: int) -> None:
        """Create counters for each core, and the table of fragmented datagrams."""
        self.datagrams, self.locks = make_datagrams()
        self.counts = self.counters(cores, "opened", "turned_away")

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Pass packets of known connections, and new connections that a rule allows."""
        for packet in batch:
            flow = get_five_tuple(packet)
            known = flows.get_flow(flow)
            if known is None and not packet.opens:
                drop(packet, NO_FLOW)
            elif known is None and not self.allowed(packet):
                self.counts[flows.core, TURNED_AWAY] += 1
                drop(packet, REFUSED)
            elif known is None:
                if flows.insert_local_flow(flow) is None or flows.insert_local_flow(reverse(flow)) is None:
                    flows.remove_local_flow(flow)
                    drop(packet, TABLE_FULL)
                else:
                    self.counts[flows.core, OPENED] += 1
            elif packet.syn | packet.fin | packet.rst:
                track_closing(packet, flow, reverse(flow), flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Pass packets of known connections."""
        for packet in batch:
            if packet.cause | packet.fragment:
                done = complete(packet, self.datagrams, self.locks, flows.seed[0], flows.now, True)
                if done == 0:
                    continue
                if done == 1:
                    packet.hash = flows.hash_of(get_five_tuple(packet))
            if packet.error:
                if flows.peek_flow(get_five_tuple(packet)) is None:
                    drop(packet, NO_FLOW)
            elif flows.get_flow(get_five_tuple(packet)) is not None:
                if packet.fragment and packet.syn | packet.fin | packet.rst:
                    hand_over(packet)
            elif packet.fragment == LATER_PART:
                wait(packet)
            elif packet.opens:
                hand_over(packet)
            else:
                drop(packet, NO_FLOW)

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:  # noqa: ARG002 - nothing is in it
        """Keep both directions while one of them is in use."""
        return flows.still_seen(reverse(flow))

    def allowed(self, packet: Packet) -> bool:
        """Return the decision of the first rule that matches; False if none does."""
        for i in range(len(self.ends)):
            net, end = self.nets[i], self.ends[i]
            away = ((packet.source_high & net[2]) ^ net[0]) | ((packet.source_low & net[3]) ^ net[1])
            away |= ((packet.target_high & net[6]) ^ net[4]) | ((packet.target_low & net[7]) ^ net[5])
            fits = away == 0 and packet.side == end[1] and end[2] * (end[2] - packet.protocol) == 0
            fits = fits and end[5] * (end[5] - packet.version) == 0
            if fits and end[3] <= packet.target_port <= end[4]:
                return bool(end[0] != 0)
        return False


def _rule_version(rule: Rule) -> int:
    """Return the version of IP that a rule is for, 0 for both; raise ``ValueError`` if it matches nothing."""
    nets = [ipaddress.ip_network(text) for text in (rule.source, rule.target)]
    versions: set[int] = {net.version for net in nets if net.version == 4 or net.prefixlen}
    versions |= {version for protocol, version in ((1, 4), (58, 6)) if rule.protocol == protocol}
    if len(versions) > 1:
        raise ValueError(f"{rule} matches no packet: it names IPv4 and IPv6. Make a rule for each of them")
    mapped = ipaddress.IPv6Network("::ffff:0:0/96")
    if any(isinstance(net, ipaddress.IPv6Network) and net.subnet_of(mapped) for net in nets):
        raise ValueError(f"{rule} matches no packet: write addresses of IPv4 in their own form")
    if rule.side not in {0, 1} or not 0 <= rule.ports[0] <= rule.ports[1] < 2**16:
        raise ValueError(
            f"{rule} matches no packet: side is 0 or 1, ports are from 0 to 65535, the lower first"
        )
    return versions.pop() if versions else 0


def _net(text: str) -> tuple[int, int, int, int]:
    """Return both halves of a network and of its mask; raise ``ValueError`` if it is invalid."""
    net = ipaddress.ip_network(text)
    base, mask = int(net.network_address), int(net.netmask)
    if net.version == 4:
        base, mask = 0xFFFF << 32 | base, (_FULL << 64 | 0xFFFFFFFF << 32) | mask
    return base >> 64, base & _FULL, mask >> 64, mask & _FULL
