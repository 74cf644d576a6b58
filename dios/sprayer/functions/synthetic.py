"""The synthetic network function of the thesis' evaluation (section 3.4), with given cycles per packet."""

from __future__ import annotations

from collections.abc import Sequence

from dios.sprayer.compile.intrinsics import cycles
from dios.sprayer.flows.five_tuple import get_five_tuple
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.network_function import NetworkFunction, checked_quic_ports
from dios.sprayer.packets.packet import Batch
from dios.sprayer.packets.rewrite import set_target

OPENED, KNOWN = range(2)


class Synthetic(NetworkFunction):
    """An entry for each connection; for each packet a lookup, a header change, and ``cycles_each`` cycles."""

    entry = (("packets", "u4"),)

    def __init__(self, cycles_each: int = 0, flows_max: int = 65_536, quic_ports: Sequence[int] = ()) -> None:
        self.quic_ports = checked_quic_ports(quic_ports)
        self.cycles_each = cycles_each
        self.flows_max = flows_max

    def prepare(self, cores: int) -> None:
        """Create counters for each core."""
        self.counts = self.counters(cores, "opened", "known")

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Store an entry for each new connection."""
        for packet in batch:
            if packet.opens:
                flow = get_five_tuple(packet)
                if flows.get_flow(flow) is None and flows.insert_local_flow(flow) is not None:
                    self.counts[flows.core, OPENED] += 1
        self.regular_packets(batch, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Do the work for each packet."""
        for packet in batch:
            begun = cycles()
            if flows.get_flow(get_five_tuple(packet)) is not None:
                self.counts[flows.core, KNOWN] += 1
            set_target(packet, packet.target_high, packet.target_low, packet.target_port)
            while cycles() - begun < self.cycles_each:
                pass
