"""A NAT for IPv4 and IPv6, between addresses of the same version, as in the thesis' Figure 3.5.

Inside and outside are the two interfaces of the middlebox. Routing and ARP are not part of it. ``mapping.py``
has its mappings, sessions, filters and timers. TCP, UDP and ICMP echoes have their ports translated; of all
other protocols the address alone.

Ports are the global state of a NAT (thesis Table 3.1), but no core waits for another here. A core uses only
ports for which it is the designated core of the end outside, so no other core uses the same port.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dios.sprayer.compile.intrinsics import int64, peek16
from dios.sprayer.flows.five_tuple import drop
from dios.sprayer.functions.mapping import FILTERS, MappingFunction, is_authenticated
from dios.sprayer.network_function import checked_quic_ports
from dios.sprayer.packets.packet import FINE, PROTOCOL, TOO_LONG, Packet
from dios.sprayer.packets.rewrite import set_source, set_target

MTU_MIN: Final = 1280
MTU_MAX: Final = 65_535


class Nat(MappingFunction):
    """A NAT: an end inside has one end outside for all targets, at one of ``addresses``.

    Addresses may be of both versions of IP. A flow gets one of its own version; without such an address its
    packets are dropped and counted as ``no_address``. A packet of more than ``mtu`` bytes is answered with an
    ICMP error, or dropped if it may be fragmented. The other arguments are those of ``MappingFunction``.

    Raises ``ValueError`` for addresses and ports from which no packet can come, or which are given twice, and
    for numbers that are not possible.
    """

    state_in_flows = True
    takes_protocols = True

    def __init__(
        self,
        addresses: Sequence[str],
        ports: Sequence[int] = range(1024, 65536),
        flows_max: int = 262_144,
        quic_ports: Sequence[int] = (),
        filtering: str = FILTERS[0],
        sessions_max: int = 4096,
        mtu: int = MTU_MAX,
    ) -> None:
        if not MTU_MIN <= mtu <= MTU_MAX:
            raise ValueError(f"an MTU of {mtu} bytes: choose from {MTU_MIN} to {MTU_MAX}, or give none")
        self.mtu = mtu
        listed = [addresses] if isinstance(addresses, str) else addresses
        super().__init__(listed, ports, flows_max, filtering, sessions_max)
        self.quic_ports = checked_quic_ports(quic_ports)

    def fault_of(self, packet: Packet) -> int:
        """Return ``PROTOCOL`` for a packet whose authentication header covers its addresses (RFC 4302)."""
        if packet.version == 4:
            return PROTOCOL if packet.protocol == 51 else FINE
        beyond = packet.transport - packet.network > 40 and is_authenticated(packet)
        return PROTOCOL if beyond else FINE

    def outside_of(self, high: int, low: int) -> tuple[int, int]:
        """Return the same address."""
        return high, low

    def inside_of(self, high: int, low: int) -> tuple[int, int]:
        """Return the same address."""
        return high, low

    def inward(self, packet: Packet, high: int, low: int, port: int, core: int) -> None:
        """Replace the target."""
        if int64(packet.end) - int64(packet.network) > self.mtu:
            self.refuse_long(packet, packet.target_high, packet.target_low, core)
        else:
            set_target(packet, high, low, port)

    def outward(self, packet: Packet, high: int, low: int, port: int, core: int) -> None:
        """Replace the source."""
        if int64(packet.end) - int64(packet.network) > self.mtu:
            self.refuse_long(packet, high, low, core)
        else:
            set_source(packet, high, low, port)

    def refuse_long(self, packet: Packet, high: int, low: int, core: int) -> None:
        """Answer a packet that does not fit, from an own address, unless it may be fragmented."""
        if packet.error:
            drop(packet, TOO_LONG)
        elif packet.version == 6:
            self.answer(packet, 2, 0, self.mtu, high, low, core)
        elif peek16(packet.address + packet.network + 6) & 0x4000:
            self.answer(packet, 3, 4, self.mtu, high, low, core)
        else:
            drop(packet, TOO_LONG)
