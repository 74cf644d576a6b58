"""A load balancer of layer 4: connections to one address are dealt to servers, which answer through it.

Not for: looking at requests. In front of a service of DIOS the servers are the nodes that accept for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dios.compiled import borrowing
from dios.sprayer.flow_kernels import drop, get_five_tuple, reverse, with_source, with_target
from dios.sprayer.flow_table import Flows
from dios.sprayer.functions.closing import follow
from dios.sprayer.machine import natural
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packet import NO_FLOW, NO_PORT, TABLE_FULL, Batch, Flow, Kept, Packet, halves
from dios.sprayer.rewrite_kernels import set_source, set_target

TRIES: Final = 256
PORTS: Final = 64_512
"""From 1024 on."""
OPENED: Final = 0


class Balancer(NetworkFunction):
    """Connections to ``service`` (address, port) go to one of ``servers``, each to the next one.

    Clients are not seen by servers: what they get comes from ``inner``, an address of the balancer's own,
    with a port such that both ways have the same designated core. Servers are dealt out by each core for
    itself, by weighted turns: servers are the global state of a load balancer (Table 3.1).
    """

    entry = (
        ("source_high", "u8"),
        ("source_low", "u8"),
        ("target_high", "u8"),
        ("target_low", "u8"),
        ("source_port", "u2"),
        ("target_port", "u2"),
        ("server", "i4"),
        ("fins", "u1"),
    )

    def __init__(
        self,
        service: tuple[str, int],
        servers: Sequence[tuple[str, int]],
        inner: str,
        flows_max: int = 65_536,
    ) -> None:
        if not servers:
            raise ValueError("a load balancer needs servers: name at least one (address, port)")
        self.flows_max = 2 * flows_max
        self.high, self.low = (int(np.array(half, np.uint64).astype(np.int64)) for half in halves(service[0]))
        self.port = service[1]
        self.servers = np.array([(*halves(address), port) for address, port in servers], np.uint64)
        self.inner = np.array(halves(inner), np.uint64)

    def prepare(self, cores: int) -> None:
        """Turns, ports and counters for each core."""
        self.next = np.zeros((cores, 16), np.int64)
        self.counts = self.counters(cores, "opened")
        self.by_server = np.zeros((cores, -(-len(self.servers) // 16) * 16), np.int64)

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """What opens a connection to the service gets a server and a port."""
        for packet in batch:
            flow = get_five_tuple(packet)
            opens = packet.opens and flow.target_port == natural(self.port)
            opens = opens and flow.target_high == natural(self.high) and flow.target_low == natural(self.low)
            if opens and flows.get_flow(flow) is None:
                self.open(packet, flow, flows)
            else:
                self.translate(packet, flow, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Whatever is of a connection goes on its way."""
        for packet in batch:
            self.translate(packet, get_five_tuple(packet), flows)

    def open(self, packet: Packet, flow: Flow, flows: Flows) -> None:
        """Choose a server, and a port that nobody uses with it."""
        core = flows.core
        server = self.next[core, 0] % len(self.servers)
        self.next[core, 0] += 1
        to = with_target(flow, self.servers[server, 0], self.servers[server, 1], self.servers[server, 2])
        for _ in range(TRIES):
            self.next[core, 1] = (self.next[core, 1] + 1) % PORTS
            there = with_source(to, self.inner[0], self.inner[1], 1024 + self.next[core, 1])
            if flows.designated_core(there) == core and flows.get_flow(reverse(there)) is None:
                self.keep(packet, flow, there, server, flows)
                return
        drop(packet, NO_PORT)

    def keep(self, packet: Packet, flow: Flow, there: Flow, server: int, flows: Flows) -> None:
        """Note both ways of a connection, and let its first packet go."""
        if not self.note(flow, there, server, flows) or not self.note(
            reverse(there), reverse(flow), server, flows
        ):
            flows.remove_local_flow(flow)
            drop(packet, TABLE_FULL)
            return
        self.counts[flows.core, OPENED] += 1
        self.by_server[flows.core, server] += 1
        set_source(packet, there.source_high, there.source_low, there.source_port)
        set_target(packet, there.target_high, there.target_low, there.target_port)

    def note(self, flow: Flow, other: Flow, server: int, flows: Flows) -> bool:
        """What a flow becomes; whether there was room."""
        entry = flows.insert_local_flow(flow)
        if entry is None:
            return False
        entry.source_high, entry.source_low = other.source_high, other.source_low
        entry.target_high, entry.target_low = other.target_high, other.target_low
        entry.source_port, entry.target_port = other.source_port, other.target_port
        entry.server = server
        return True

    def translate(self, packet: Packet, flow: Flow, flows: Flows) -> None:
        """Give a packet of a known connection its other addresses."""
        entry = flows.get_flow(flow)
        if entry is None:
            drop(packet, NO_FLOW)
            return
        if packet.syn | packet.fin | packet.rst:
            follow(packet, flow, turned(entry, flow.protocol), flows)
            entry = flows.get_flow(flow)
        if entry is not None:
            set_source(packet, entry.source_high, entry.source_low, entry.source_port)
            set_target(packet, entry.target_high, entry.target_low, entry.target_port)

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:
        """Both ways are kept as long as one of them is seen."""
        return flows.still_seen(turned(entry, flow.protocol))


@borrowing
def turned(entry: Kept, protocol: int) -> Flow:
    """What comes back to a flow that becomes what an entry says."""
    return Flow(
        entry.target_high,
        entry.target_low,
        entry.source_high,
        entry.source_low,
        natural(entry.target_port),
        natural(entry.source_port),
        natural(protocol),
    )
