"""SIIT: stateless translation between IPv6 and IPv4 (RFC 7915), with addresses of RFC 6052.

Inside is IPv6, outside is IPv4. Every address has one IPv4 address and one IPv6 address, which is the prefix
with the former in it; also hosts inside have such addresses. So there are no flows: each packet is translated
where it arrives, any host can do it, and ports stay. ``nat64`` is for hosts with other addresses.

Packets of all transport protocols are translated, but only TCP, UDP and ICMP have their checksums changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import int64, peek8, peek16, peek32, peek64, uint16, uint64
from dios.sprayer.flows.five_tuple import drop, get_five_tuple, reverse, with_source
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.mapping import is_authenticated
from dios.sprayer.functions.nat64 import MTU_MAX, MTU_MIN, four_of, read_prefix, six_of
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.fragments import fragment_header, fragment_of
from dios.sprayer.packets.packet import (
    BAD_SUM,
    FINE,
    FRAGMENT,
    INSIDE,
    NO_ADDRESS,
    PROTOCOL,
    TOO_LONG,
    Batch,
    Flow,
    Packet,
    checked_address,
    halves,
)
from dios.sprayer.packets.translate import (
    answer_with_error,
    error_to_four,
    error_to_six,
    has_right_header,
    has_right_sums,
    to_four,
    to_six,
)

ERRORS, FRAGMENTS, TRANSLATED, OTHERS = range(4)
_EXTENSIONS: Final = (0, 43, 44, 51, 60, 135, 139, 140)
"""Headers that are part of IPv6: after a translation, a router would read what a sender of IPv4 wrote."""
_MAPPED: Final = uint64(0xFFFF << 32)
_NAME: Final = 0


class Siit(NetworkFunction):
    """A stateless translator for the IPv6 ``prefix``; its own ICMP errors come from the IPv4 ``address``.

    ``mtu`` is that of the interface inside. Raises ``ValueError`` for an address that is not one of IPv4, a
    prefix that RFC 6052 does not have, and an invalid MTU.
    """

    stateless = True
    takes_fragments = True
    takes_protocols = True
    grows = 48

    def __init__(self, address: str, prefix: str = "64:ff9b::/96", mtu: int = 1500) -> None:
        if not MTU_MIN <= mtu <= MTU_MAX:
            raise ValueError(f"an MTU of {mtu} bytes: choose from {MTU_MIN} to {MTU_MAX}")
        own = checked_address(address, 4)
        self.own = np.array([halves(own)[1]], np.uint64)
        """(1,) the lower half."""
        self.mtu = mtu
        self.prefix, self.prefix_bits = read_prefix(prefix)
        self._own = [own]

    def prepare(self, cores: int) -> None:
        """Create identifications and counters of each core."""
        self.next = np.zeros((cores, 16), np.int64)
        self.counts = self.counters(cores, "errors", "fragments", "translated", "other_protocols")

    def own_networks(self) -> Sequence[str]:
        """Return the address of the translator."""
        return self._own

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Translate each packet."""
        for packet in batch:
            if packet.cause == FRAGMENT:
                self.counts[flows.core, FRAGMENTS] += 1
                packet.cause = FINE
                if not read_part(packet):
                    drop(packet, FRAGMENT)
                    continue
            other = packet.protocol not in (1, 6, 17, 58) or packet.cause == PROTOCOL
            if other:
                packet.source_port = packet.target_port = uint16(0)
                packet.payload = packet.transport
                packet.cause = FINE
                self.counts[flows.core, OTHERS] += 1
                if not passes(packet.protocol):
                    drop(packet, PROTOCOL)
                    continue
            if (packet.version == 6) != (packet.side == INSIDE):
                drop(packet, NO_ADDRESS)
            elif (packet.version == 4 and not has_right_header(packet)) or (
                packet.error and not has_right_sums(packet)
            ):
                drop(packet, BAD_SUM)
            elif packet.version == 4:
                self.inward(packet, flows.core)
            elif is_authenticated(packet):
                drop(packet, PROTOCOL)
            else:
                self.outward(packet, flows.core)

    def inward(self, packet: Packet, core: int) -> None:
        """Translate a packet of IPv4."""
        old = get_five_tuple(packet)
        here = packet.address + packet.network
        from_high, from_low = six_of(packet.source_low, self.prefix, self.prefix_bits)
        to_high, to_low = six_of(packet.target_low, self.prefix, self.prefix_bits)
        new = Flow(from_high, from_low, to_high, to_low, old.source_port, old.target_port, old.protocol)
        size = int64(packet.end) - int64(packet.transport) + 40
        cause = int64(FINE)
        if packet.error:
            out_high, out_low = six_of(_MAPPED | uint64(peek32(here + 12)), self.prefix, self.prefix_bits)
            outer = with_source(new, out_high, out_low, old.source_port)
            cause = error_to_six(packet, outer, reverse(old), reverse(new), self.mtu)
        elif peek8(here + 8) < 2:
            self.answer(packet, 11, 0, 0, uint64(0), self.own[0], core)
            return
        elif size > self.mtu and int64(peek16(here + 6)) & 0x4000:
            self.answer(packet, 3, 4, self.mtu - 20, uint64(0), self.own[0], core)
            return
        elif size > self.mtu:
            cause = int64(TOO_LONG)
        else:
            cause = to_six(packet, old, new)
        self.count(packet, cause, core)

    def outward(self, packet: Packet, core: int) -> None:
        """Translate a packet of IPv6, whose addresses must stand for addresses of IPv4."""
        old = get_five_tuple(packet)
        source = four_of(packet.source_high, packet.source_low, self.prefix, self.prefix_bits)
        target = four_of(packet.target_high, packet.target_low, self.prefix, self.prefix_bits)
        if source == 0 or target == 0:
            drop(packet, NO_ADDRESS)
            return
        new = Flow(uint64(0), source, uint64(0), target, old.source_port, old.target_port, old.protocol)
        cause = int64(FINE)
        if packet.error:
            # A router between may have any address; then the error comes from the translator (RFC 6791).
            here = packet.address + packet.network
            high, low = peek64(here + 8), peek64(here + 16)
            router = four_of(high, low, self.prefix, self.prefix_bits)
            outer = with_source(new, uint64(0), self.own[0] if router == 0 else router, old.source_port)
            cause = error_to_four(packet, outer, reverse(old), reverse(new), self.mtu)
        elif peek8(packet.address + packet.network + 7) < 2:
            own_high, own_low = six_of(self.own[0], self.prefix, self.prefix_bits)
            self.answer(packet, 3, 0, 0, own_high, own_low, core)
            return
        else:
            self.next[core, _NAME] += 1
            part = fragment_header(packet) if packet.fragment else int64(0)
            cause = to_four(packet, old, new, self.next[core, _NAME], part)
        self.count(packet, cause, core)

    def count(self, packet: Packet, cause: int, core: int) -> None:
        """Count a translated packet, or drop it for a cause."""
        if cause == FINE:
            self.counts[core, TRANSLATED] += 1
        else:
            drop(packet, cause)

    def answer(
        self, packet: Packet, kind: int, code: int, value: int, high: int, low: int, core: int
    ) -> None:
        """Send an ICMP error back to the sender of a packet, or drop the packet."""
        self.counts[core, ERRORS] += 1
        if not answer_with_error(packet, kind, code, value, high, low):
            drop(packet, TOO_LONG)


@no_refcount_kernel
def passes(protocol: int) -> bool:
    """Return True for a protocol other than TCP, UDP and ICMP that may be translated.

    ICMP messages of other types do not pass, and neither does ICMP of the other version, which a receiver
    would read as its own.
    """
    return bool(protocol not in (1, 58) and protocol not in _EXTENSIONS)


@no_refcount_kernel
def read_part(packet: Packet) -> bool:
    """Fill in the ports of a first fragment; return False if it is invalid."""
    _, start, _ = fragment_of(packet)
    if start == 0 and packet.protocol in (6, 17):
        if int64(packet.end) - int64(packet.transport) < 8:
            return False
        packet.source_port = peek16(packet.address + packet.transport)
        packet.target_port = peek16(packet.address + packet.transport + 2)
    return bool(start >= 0)
