"""A NAT as in the thesis' Figure 3.5, for IPv4 and IPv6, TCP, UDP and ICMP.

Inside and outside are the two interfaces of the middlebox. Routing and ARP are not part of it.

Ports are the global state of a NAT (thesis Table 3.1), but no core waits for another here. A core uses only
ports for which it is the designated core of the flow, so no other core uses the same port with the same
target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.sprayer.flows.five_tuple import drop, get_five_tuple, hand_over, reverse, with_source, with_target
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.closing import track_closing
from dios.sprayer.network_function import NetworkFunction, checked_quic_ports
from dios.sprayer.packets.packet import (
    INSIDE,
    NO_ADDRESS,
    NO_FLOW,
    NO_PORT,
    TABLE_FULL,
    Batch,
    Flow,
    Kept,
    Packet,
    checked_address,
    halves,
)
from dios.sprayer.packets.rewrite import set_source, set_target

TRIES: Final = 256
"""The number of ports to try: nearly always enough while at most nine tenths of all ports are in use."""
PORT, ADDRESS, PORT_6, ADDRESS_6 = range(4)
"""The search positions of a core: for IPv4 and for IPv6."""
OPENED, CLOSED, EXPIRED = range(3)


class Nat(NetworkFunction):
    """A NAT: flows from inside leave from one of ``addresses``, with a port that is unused with the target.

    Addresses may be of both versions of IP. A flow gets one of its own version; without such an address its
    packets are dropped and counted as ``no_address``. Each core stores up to ``flows_max`` flows, two for
    each connection.

    Raises ``ValueError`` for addresses and ports from which no packet can come, or which are given twice.
    """

    state_in_flows = True
    entry = (("high", "u8"), ("low", "u8"), ("port", "u2"), ("inward", "u1"), ("fins", "u1"))

    def __init__(
        self,
        addresses: Sequence[str],
        ports: Sequence[int] = range(1024, 65536),
        flows_max: int = 131_072,
        quic_ports: Sequence[int] = (),
    ) -> None:
        self.flows_max = flows_max
        self.quic_ports = checked_quic_ports(quic_ports)
        if isinstance(addresses, str):
            addresses = [addresses]
        checked = [checked_address(address) for address in addresses]
        if not checked or not len(ports):
            raise ValueError("a NAT needs at least one address and one port")
        if len(set(checked)) < len(checked) or len(set(ports)) < len(ports):
            raise ValueError("addresses or ports of a NAT are given twice; give each once")
        if not all(0 < port < 2**16 for port in ports):
            raise ValueError(
                f"ports of a NAT are from {min(ports)} to {max(ports)}; give ports from 1 to 65535"
            )
        checked.sort(key=lambda address: ":" in address)
        self.addresses = np.array([halves(address) for address in checked], np.uint64)
        """(A, 2) those of IPv4 first."""
        self._own = checked
        self.of_4 = sum(":" not in address for address in checked)
        self.ports = np.array(ports, np.int64)

    def prepare(self, cores: int) -> None:
        """Create the search position of each core among the ports, and counters."""
        self.next = np.zeros((cores, 16), np.int64)
        self.next[:, PORT] = self.next[:, PORT_6] = np.arange(cores) * len(self.ports) // cores
        self.counts = self.counters(cores, "opened", "closed", "expired")

    def own_networks(self) -> Sequence[str]:
        """Return the addresses outside."""
        return self._own

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Choose a port for connections that are opened from inside; translate the other packets."""
        for packet in batch:
            flow = get_five_tuple(packet)
            if not packet.opens or packet.side != INSIDE or flows.get_flow(flow) is not None:
                self.translate(packet, flow, flows)
                continue
            first = 0 if packet.version == 4 else self.of_4
            count = (self.of_4 if packet.version == 4 else self.addresses.shape[0]) - first
            if count == 0:
                drop(packet, NO_ADDRESS)
                continue
            there = self.select_port(flow, first, count, flows)
            if there == flow:
                drop(packet, NO_PORT)
                continue
            outward = flows.insert_local_flow(flow)
            if outward is None:
                drop(packet, TABLE_FULL)
                continue
            outward.high, outward.low, outward.port = there.source_high, there.source_low, there.source_port
            inward = flows.insert_local_flow(reverse(there))
            if inward is None:
                flows.remove_local_flow(flow)
                drop(packet, TABLE_FULL)
                continue
            inward.high, inward.low, inward.port = flow.source_high, flow.source_low, flow.source_port
            inward.inward = 1
            self.counts[flows.core, OPENED] += 1
            set_source(packet, there.source_high, there.source_low, there.source_port)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Translate packets of known flows."""
        for packet in batch:
            flow = get_five_tuple(packet)
            if packet.quic and flows.get_flow(flow) is None:
                hand_over(packet)
            else:
                self.translate(packet, flow, flows)

    def translate(self, packet: Packet, flow: Flow, flows: Flows) -> None:
        """Replace the address of a packet of a known flow."""
        entry = flows.get_flow(flow)
        if entry is None:
            drop(packet, NO_FLOW)
            return
        high, low, port, inward = entry.high, entry.low, entry.port, entry.inward
        if packet.syn | packet.fin | packet.rst:
            other = return_flow(flow, high, low, port, inward)
            if track_closing(packet, flow, other, flows):
                self.counts[flows.core, CLOSED] += 1
        if inward:
            set_target(packet, high, low, port)
        else:
            set_source(packet, high, low, port)

    def select_port(self, flow: Flow, first: int, count: int, flows: Flows) -> Flow:
        """Return the flow with an unused outside port, or the same flow if no port is free.

        ``count`` addresses from ``first`` on are of the flow's version.
        """
        mine = self.next[flows.core]
        port, address = (PORT, ADDRESS) if first == 0 else (PORT_6, ADDRESS_6)
        for _ in range(min(TRIES, count * self.ports.size)):
            mine[port] += 1
            if mine[port] >= self.ports.size:
                mine[port] = 0
                mine[address] = (mine[address] + 1) % count
            outer = self.addresses[first + mine[address]]
            there = with_source(flow, outer[0], outer[1], self.ports[mine[port]])
            if flows.designated_core(there) == flows.core and not flows.holds(reverse(there)):
                return there
        return flow

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:
        """Remove both directions of a connection when neither is in use."""
        other = return_flow(flow, entry.high, entry.low, entry.port, entry.inward)
        if flows.still_seen(other):
            return True
        flows.remove_local_flow(other)
        self.counts[flows.core, EXPIRED] += 1
        return False


@no_refcount_kernel
def return_flow(flow: Flow, high: int, low: int, port: int, inward: int) -> Flow:
    """Return the flow of the answers to a flow with this translation."""
    return reverse(with_target(flow, high, low, port) if inward else with_source(flow, high, low, port))
