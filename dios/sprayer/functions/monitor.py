"""A traffic monitor: each core counts packets and bytes of each connection; all packets pass."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.sprayer.flows.five_tuple import get_five_tuple
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import Batch, Flow, Kept, Packet, address_of

CONNECTIONS, TCP, UDP, ICMP, UNKNOWN, BYTES = range(6)
_PACKETS: Final = 0
_BYTES: Final = 1


class FlowTraffic(NamedTuple):
    """The traffic of one direction of a connection."""

    source: str
    source_port: int
    target: str
    target_port: int
    protocol: int
    packets: int
    bytes: int


class Monitor(NetworkFunction):
    """A counter of traffic. Each core has its own row for every flow (thesis section 3.2.4)."""

    entry = (("index", "i4"),)

    def __init__(self, flows_max: int = 65_536) -> None:
        self.flows_max = flows_max

    def prepare(self, cores: int) -> None:
        """Create rows for all flows of all cores; each core deals out its own rows."""
        rows = self.flows_max * cores
        self.rows = np.zeros((cores, rows, 2), np.int64)
        """(cores, rows, 2) packets and bytes, by the core that saw them."""
        self.before = np.zeros((rows, 2), np.int64)
        """(rows, 2) sums of earlier flows of a row, because a core cannot clear the rows of others."""
        self.names = np.zeros((rows, 7), np.uint64)
        """(rows, 7) the flow of each row; all 0 for none."""
        self.free = np.arange(rows).reshape(self.flows_max, cores).T.copy()
        """(cores, flows) free rows, of which the first ``left`` are valid."""
        self.left = np.full((cores, 16), self.flows_max, np.int64)
        self.counts = self.counters(cores, "connections", "tcp", "udp", "icmp", "unknown", "bytes")

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Assign a row to each new flow, and count packets."""
        for packet in batch:
            flow = get_five_tuple(packet)
            if flows.get_flow(flow) is None and (packet.opens or packet.syn):
                self.begin(flow, flows)
            self.count(packet, flow, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Count packets."""
        for packet in batch:
            self.count(packet, get_five_tuple(packet), flows)

    def begin(self, flow: Flow, flows: Flows) -> None:
        """Assign a row to a flow, if one is free."""
        core = flows.core
        if self.left[core, 0] == 0:
            return
        entry = flows.insert_local_flow(flow)
        if entry is None:
            return
        self.left[core, 0] -= 1
        row = self.free[core, self.left[core, 0]]
        entry.index = row
        for kind in range(2):
            self.before[row, kind] = 0
            for other in range(flows.cores):
                self.before[row, kind] += self.rows[other, row, kind]
        name = self.names[row]
        name[0], name[1], name[2], name[3] = (
            flow.source_high,
            flow.source_low,
            flow.target_high,
            flow.target_low,
        )
        name[4], name[5], name[6] = flow.source_port, flow.target_port, flow.protocol
        self.counts[core, CONNECTIONS] += 1

    def count(self, packet: Packet, flow: Flow, flows: Flows) -> None:
        """Count one packet."""
        mine = self.counts[flows.core]
        kind = TCP if packet.protocol == 6 else UDP if packet.protocol == 17 else ICMP
        mine[kind] += 1
        mine[BYTES] += packet.length
        entry = flows.get_flow(flow)
        if entry is None:
            mine[UNKNOWN] += 1
            return
        row = self.rows[flows.core, entry.index]
        row[_PACKETS] += 1
        row[_BYTES] += packet.length

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:  # noqa: ARG002 - the entry is enough
        row = entry.index
        self.names[row] = 0
        self.free[flows.core, self.left[flows.core, 0]] = row
        self.left[flows.core, 0] += 1
        return False

    def largest(self, count: int = 10) -> list[FlowTraffic]:
        """Return the flows with the most bytes, as counted by all cores until now."""
        sums = self.rows.sum(axis=0) - self.before
        sums[self.names[:, 6] == 0] = -1
        traffic = []
        for row in np.argsort(-sums[:, _BYTES], kind="stable")[:count]:
            name = [int(part) for part in self.names[row]]
            if name[6]:
                ends = (address_of(name[0], name[1]), name[4], address_of(name[2], name[3]), name[5], name[6])
                traffic.append(FlowTraffic(*ends, packets=int(sums[row, 0]), bytes=int(sums[row, 1])))
        return traffic
