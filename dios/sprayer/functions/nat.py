"""A NAT as the thesis' Figure 3.5 has it, for IPv4 and IPv6, TCP, UDP and ICMP.

Not for: routes and ARP. Inside and outside are the two interfaces of the middlebox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dios.compiled import borrowing
from dios.sprayer.flow_kernels import drop, get_five_tuple, reverse, with_source, with_target
from dios.sprayer.flow_table import Flows
from dios.sprayer.functions.closing import follow
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packet import INSIDE, NO_FLOW, NO_PORT, TABLE_FULL, Batch, Flow, Kept, Packet, halves
from dios.sprayer.rewrite_kernels import set_source, set_target

TRIES: Final = 64
"""Ports of a core that are looked at for one whose flow has this core as its designated one."""
OPENED, CLOSED, EXPIRED = range(3)


class Nat(NetworkFunction):
    """Whatever comes from inside gets one of ``addresses``, with a port that nobody else has.

    Each core has a part of all (address, port) for itself, as a list of free ones: ports are the global state
    of a NAT (Table 3.1), and this is how no core waits for another.
    """

    entry = (("high", "u8"), ("low", "u8"), ("port", "u2"), ("inward", "u1"), ("fins", "u1"), ("lease", "i4"))

    def __init__(self, addresses: Sequence[str], ports: Sequence[int] = range(1024, 65536)) -> None:
        self._addresses: Final = [halves(address) for address in addresses]
        self._ports: Final = ports
        self.flows_max = 2 * len(addresses) * len(ports)

    def prepare(self, cores: int) -> None:
        """Deal ports out, each core every so-many-th."""
        pairs = [(high, low, port) for high, low in self._addresses for port in self._ports]
        self.pool = np.array(pairs, np.uint64)
        """(P, 3) both halves of an address, and a port: what a ``lease`` is the index of."""
        room = -(-len(pairs) // cores)
        self.free = np.full((cores, room), -1, np.int64)
        """(cores, P / cores) leases that are free: a ring from ``first``, of ``left``."""
        for core in range(cores):
            mine = np.arange(core, len(pairs), cores)
            self.free[core, : len(mine)] = mine
        self.first = np.zeros((cores, 16), np.int64)
        self.left = np.zeros((cores, 16), np.int64)
        self.left[:, 0] = [len(range(core, len(pairs), cores)) for core in range(cores)]
        self.counts = self.counters(cores, "opened", "closed", "expired")

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Only what opens a connection from inside gets a port; all else has one."""
        for packet in batch:
            flow = get_five_tuple(packet)
            if not packet.opens or packet.side != INSIDE or flows.get_flow(flow) is not None:
                self.translate(packet, flow, flows)
                continue
            lease = self.select_port(flow, flows)
            if lease < 0:
                drop(packet, NO_PORT)
                continue
            high, low, port = self.pool[lease, 0], self.pool[lease, 1], self.pool[lease, 2]
            there = reverse(with_source(flow, high, low, port))
            inward = flows.insert_local_flow(there)
            if inward is not None:
                inward.high, inward.low, inward.port = flow.source_high, flow.source_low, flow.source_port
                inward.inward, inward.lease = 1, lease
            outward = flows.insert_local_flow(flow)
            if inward is None or outward is None:
                flows.remove_local_flow(there)
                self.put_back(lease, flows)
                drop(packet, TABLE_FULL)
                continue
            outward.high, outward.low, outward.port, outward.lease = high, low, port, lease
            self.counts[flows.core, OPENED] += 1
            set_source(packet, high, low, port)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Whatever has a translation goes on with it."""
        for packet in batch:
            self.translate(packet, get_five_tuple(packet), flows)

    def translate(self, packet: Packet, flow: Flow, flows: Flows) -> None:
        """Give a packet of a known flow its other address."""
        entry = flows.get_flow(flow)
        if entry is None:
            drop(packet, NO_FLOW)
            return
        high, low, port, inward = entry.high, entry.low, entry.port, entry.inward
        if packet.syn | packet.fin | packet.rst:
            other = other_way(flow, high, low, port, inward)
            if follow(packet, flow, other, flows):
                self.counts[flows.core, CLOSED] += 1
        if inward:
            set_target(packet, high, low, port)
        else:
            set_source(packet, high, low, port)

    def select_port(self, flow: Flow, flows: Flows) -> int:
        """A free lease whose flow has the designated core of ``flow``, or -1."""
        core, ring = flows.core, self.free[flows.core]
        for _ in range(min(self.left[core, 0], TRIES)):
            lease = ring[self.first[core, 0]]
            self.first[core, 0] = (self.first[core, 0] + 1) % ring.size
            self.left[core, 0] -= 1
            there = with_source(flow, self.pool[lease, 0], self.pool[lease, 1], self.pool[lease, 2])
            if flows.designated_core(there) == core:
                return int(lease)
            self.put_back(lease, flows)
        return -1

    def put_back(self, lease: int, flows: Flows) -> None:
        """A lease is free again: the last to be taken, so that late packets find nobody new."""
        core, ring = flows.core, self.free[flows.core]
        ring[(self.first[core, 0] + self.left[core, 0]) % ring.size] = lease
        self.left[core, 0] += 1

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:
        """Both ways of a connection end together, once neither was seen."""
        other, lease = other_way(flow, entry.high, entry.low, entry.port, entry.inward), entry.lease
        if flows.still_seen(other):
            return True
        flows.remove_local_flow(other)
        self.put_back(lease, flows)
        self.counts[flows.core, EXPIRED] += 1
        return False


@borrowing
def other_way(flow: Flow, high: int, low: int, port: int, inward: int) -> Flow:
    """What comes back to a flow with this translation."""
    return reverse(with_target(flow, high, low, port) if inward else with_source(flow, high, low, port))
