"""NAT64: clients of IPv6 reach servers of IPv4 (RFC 6146, with the headers of RFC 7915).

Inside is IPv6, outside is IPv4. A server has the address of the prefix with its own in it (RFC 6052).
``mapping.py`` has mappings (the bindings of RFC 6146), sessions, filters and timers; this module has the
addresses, and translates the packets.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import int64, peek8, peek16, peek32, uint64
from dios.sprayer.flows.five_tuple import drop, get_five_tuple, reverse, with_source
from dios.sprayer.functions.mapping import FILTERS, NEXT_NAME, MappingFunction, is_authenticated
from dios.sprayer.packets.fragments import fragment_header
from dios.sprayer.packets.packet import (
    BAD_SUM,
    FINE,
    INSIDE,
    NO_ADDRESS,
    PROTOCOL,
    TOO_LONG,
    Flow,
    Packet,
    checked_address,
    halves,
)
from dios.sprayer.packets.translate import error_to_four, error_to_six, has_right_header, to_four, to_six

MTU_MIN: Final = 1280
MTU_MAX: Final = 9000
_MAPPED: Final = uint64(0xFFFF << 32)
_LOW: Final = uint64(0xFFFFFFFF)
_ONE: Final = uint64(1)
_PREFIXES: Final = (32, 40, 48, 56, 64, 96)


class Nat64(MappingFunction):
    """A NAT64 with the IPv4 ``addresses`` outside and the IPv6 ``prefix`` inside.

    ``mtu`` is that of the interface inside. The other arguments are those of ``MappingFunction``.

    Raises ``ValueError`` for addresses of IPv6, a prefix that RFC 6052 does not have, invalid ports, another
    ``filtering``, and numbers that are not possible.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        prefix: str = "64:ff9b::/96",
        ports: Sequence[int] = range(1024, 65536),
        mtu: int = 1500,
        flows_max: int = 131_072,
        filtering: str = FILTERS[0],
        sessions_max: int = 4096,
    ) -> None:
        listed = [checked_address(address, 4) for address in addresses]
        super().__init__(listed, ports, flows_max, filtering, sessions_max)
        if not MTU_MIN <= mtu <= MTU_MAX:
            raise ValueError(f"an MTU of {mtu} bytes: choose from {MTU_MIN} to {MTU_MAX}")
        self.mtu = mtu
        self.prefix, self.prefix_bits = read_prefix(prefix)
        self._prefix = prefix

    def own_networks(self) -> Sequence[str]:
        """Return the addresses outside, and the prefix inside."""
        return [*super().own_networks(), self._prefix]

    def fault_of(self, packet: Packet) -> int:
        """Return the cause to drop a packet: of the other side's version of IP, damaged, or authenticated."""
        if (packet.version == 6) != (packet.side == INSIDE):
            return NO_ADDRESS
        if packet.version == 4 and not has_right_header(packet):
            return BAD_SUM
        return PROTOCOL if packet.side == INSIDE and is_authenticated(packet) else FINE

    def outside_of(self, high: int, low: int) -> tuple[int, int]:
        """Return the IPv4 address in an IPv6 address of the prefix."""
        return uint64(0), four_of(high, low, self.prefix, self.prefix_bits)

    def inside_of(self, high: int, low: int) -> tuple[int, int]:  # noqa: ARG002 - it is 0 for IPv4
        """Return the IPv6 address that stands for an IPv4 address."""
        return six_of(low, self.prefix, self.prefix_bits)

    def inward(self, packet: Packet, high: int, low: int, port: int, core: int) -> None:
        """Translate a packet from IPv4, which continues to an address and port inside."""
        old = get_five_tuple(packet)
        here = packet.address + packet.network
        from_high, from_low = six_of(packet.source_low, self.prefix, self.prefix_bits)
        new = Flow(
            from_high, from_low, uint64(high), uint64(low), old.source_port, uint64(port), old.protocol
        )
        size = int64(packet.end) - int64(packet.transport) + 40
        cause = int64(FINE)
        if packet.error:
            out_high, out_low = six_of(_MAPPED | uint64(peek32(here + 12)), self.prefix, self.prefix_bits)
            outer = with_source(new, out_high, out_low, old.source_port)
            cause = error_to_six(packet, outer, reverse(old), reverse(new), self.mtu)
        elif peek8(here + 8) < 2:
            self.answer(packet, 11, 0, 0, uint64(0), packet.target_low, core)
        elif size > self.mtu and int64(peek16(here + 6)) & 0x4000:
            self.answer(packet, 3, 4, self.mtu - 20, uint64(0), packet.target_low, core)
        elif size > self.mtu:
            cause = int64(TOO_LONG)
        else:
            cause = to_six(packet, old, new)
        if cause != FINE:
            drop(packet, cause)

    def outward(self, packet: Packet, high: int, low: int, port: int, core: int) -> None:  # noqa: ARG002 - the same
        """Translate a packet from IPv6, which continues from an address and port outside."""
        old = get_five_tuple(packet)
        to = four_of(packet.target_high, packet.target_low, self.prefix, self.prefix_bits)
        if to == 0:
            drop(packet, NO_ADDRESS)
            return
        new = Flow(uint64(0), uint64(low), uint64(0), to, uint64(port), old.target_port, old.protocol)
        cause = int64(FINE)
        if packet.error:
            cause = error_to_four(packet, new, reverse(old), reverse(new), self.mtu)
        elif peek8(packet.address + packet.network + 7) < 2:
            own_high, own_low = six_of(uint64(low), self.prefix, self.prefix_bits)
            self.answer(packet, 3, 0, 0, own_high, own_low, core)
        else:
            self.next[core, NEXT_NAME] += 1
            part = fragment_header(packet) if packet.fragment else int64(0)
            cause = to_four(packet, old, new, self.next[core, NEXT_NAME], part)
        if cause != FINE:
            drop(packet, cause)


def read_prefix(text: str) -> tuple[npt.NDArray[np.uint64], int]:
    """Return (2,) halves of a prefix and its length; raise ``ValueError`` if RFC 6052 has no such prefix."""
    net = ipaddress.ip_network(text)
    if net.version != 6 or net.prefixlen not in _PREFIXES or int(net.network_address) >> 56 & 0xFF:
        raise ValueError(
            f"prefix {text}: give one of IPv6 of 32, 40, 48, 56, 64 or 96 bits, whose bits 64 to 71 are 0"
        )
    return np.array(halves(str(net.network_address)), np.uint64), net.prefixlen


@no_refcount_kernel
def six_of(low: int, prefix: npt.NDArray[np.uint64], bits: int) -> tuple[int, int]:
    """Return the halves of the IPv6 address that stands for an IPv4 address (RFC 6052, section 2.2)."""
    four = low & _LOW
    if bits == 96:
        return prefix[0], prefix[1] | four
    # Bits 64 to 71 stay 0, so the address may be in two parts.
    before = uint64(64 - bits)
    after = uint64(32) - before
    return prefix[0] | four >> after, prefix[1] | (four & ((_ONE << after) - _ONE)) << (uint64(56) - after)


@no_refcount_kernel
def four_of(high: int, low: int, prefix: npt.NDArray[np.uint64], bits: int) -> int:
    """Return the lower half of the IPv4 address that an IPv6 address stands for, or 0."""
    if bits == 96:
        four = low & _LOW
    else:
        before = uint64(64 - bits)
        after = uint64(32) - before
        four = (high & ((_ONE << before) - _ONE)) << after
        four |= (low >> (uint64(56) - after)) & ((_ONE << after) - _ONE)
    mapped = _MAPPED | four
    same_high, same_low = six_of(mapped, prefix, bits)
    return mapped if same_high == high and same_low == low else uint64(0)
