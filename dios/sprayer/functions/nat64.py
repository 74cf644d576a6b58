"""NAT64: clients of IPv6 reach servers of IPv4 (RFC 6146, with the headers of RFC 7915).

Inside is IPv6, outside is IPv4. A server has the address of the prefix with its own in it (RFC 6052). A
mapping from an address and port inside to those outside serves all servers, and lets all of them in: RFC 4787
calls that endpoint-independent. There is no table of sessions: a mapping itself has the state.

All packets of one mapping have one designated core, by the end that is inside. Each core uses its own ports,
so no core waits for another.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import (
    fence,
    int64,
    load_acquire,
    peek8,
    peek16,
    peek32,
    store_release,
    uint16,
    uint64,
)
from dios.sprayer.flows.five_tuple import drop, get_five_tuple, inside_flow, reverse, with_source
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import (
    DROP,
    FINE,
    FRAGMENT,
    INSIDE,
    NO_ADDRESS,
    NO_FLOW,
    NO_PORT,
    TABLE_FULL,
    TOO_LONG,
    Batch,
    Flow,
    Kept,
    Packet,
    checked_address,
    halves,
)
from dios.sprayer.packets.rewrite import set_source, set_target
from dios.sprayer.packets.translate import (
    answer_with_error,
    error_to_four,
    error_to_six,
    to_four,
    to_six,
    turn_back,
)

OPENED, EXPIRED, HAIRPINS, ERRORS, FRAGMENTS = range(5)
COUNTERS: Final = ("opened", "expired", "hairpins", "errors", "fragments")
TCP_OPEN_S: Final = 7440
TCP_SHORT_S: Final = 240
UDP_S: Final = 300
ICMP_S: Final = 60
"""The seconds for which a mapping without packets stays (RFC 6146, section 4)."""
FRAGMENT_S: Final = 10
"""The time in seconds that the ports of a first fragment stay known."""
PARTS: Final = 1024
"""First fragments that each core remembers; a power of two."""
TRIES: Final = 512
MTU_MIN: Final = 1280
MTU_MAX: Final = 9000
_MAPPED: Final = uint64(0xFFFF << 32)
_LOW: Final = uint64(0xFFFFFFFF)
_ONE: Final = uint64(1)
_PRIME: Final = uint64(0x9E3779B97F4A7C15)
_PREFIXES: Final = (32, 40, 48, 56, 64, 96)
_NEXT_PORT, _NEXT_NAME = range(2)


class Nat64(NetworkFunction):
    """A NAT64 with the IPv4 ``addresses`` outside and the IPv6 ``prefix`` inside.

    ``mtu`` is that of the interface inside. Each core stores up to ``flows_max`` flows, two for each mapping.
    Raises ``ValueError`` for addresses of IPv6, a prefix that RFC 6052 does not have, and invalid ports.
    """

    entry = (("high", "u8"), ("low", "u8"), ("port", "u2"), ("inward", "u1"), ("fins", "u1"))
    by_inside_end = True
    takes_fragments = True
    grows = 48

    def __init__(
        self,
        addresses: Sequence[str],
        prefix: str = "64:ff9b::/96",
        ports: Sequence[int] = range(1024, 65536),
        mtu: int = 1500,
        flows_max: int = 131_072,
    ) -> None:
        self.flows_max = flows_max
        checked = [checked_address(address, 4) for address in addresses]
        if not checked or len(set(checked)) < len(checked):
            raise ValueError("a NAT64 needs at least one address, and each only once")
        if not len(ports) or len(set(ports)) < len(ports) or not all(0 < port < 2**16 for port in ports):
            raise ValueError("ports of a NAT64 are from 1 to 65535; give at least one, and each only once")
        if not MTU_MIN <= mtu <= MTU_MAX:
            raise ValueError(f"an MTU of {mtu} bytes: choose from {MTU_MIN} to {MTU_MAX}")
        self.addresses = np.array([halves(address)[1] for address in checked], np.uint64)
        """(A,) lower halves."""
        self.ports = np.array(ports, np.int64)
        self.mtu = mtu
        self.prefix, self.prefix_bits = read_prefix(prefix)
        self._own = [*checked, prefix]

    def prepare(self, cores: int) -> None:
        """Create search positions, fragments and counters of each core."""
        self.next = np.zeros((cores, 16), np.int64)
        self.next[:, _NEXT_PORT] = np.arange(cores) * len(self.ports) // cores
        self.parts = np.zeros((cores * PARTS, 8), np.uint64)
        """(cores * PARTS, 8) addresses, identification and protocol, ports, and the time of a fragment."""
        self.part_words = np.zeros(cores * PARTS, np.uint64)
        """(cores * PARTS,) odd while a row of ``parts`` is written."""
        self.counts = self.counters(cores, *COUNTERS)

    def own_networks(self) -> Sequence[str]:
        """Return the addresses outside, and the prefix inside."""
        return self._own

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Open mappings for packets from inside, keep their time, and translate."""
        for packet in batch:
            if packet.side == INSIDE and packet.version == 6 and packet.opens:
                self.open(packet, flows)
            if packet.syn | packet.fin | packet.rst:
                self.track(packet, flows)
        self.regular_packets(batch, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Translate packets of known mappings."""
        for packet in batch:
            part = int64(0)
            if packet.cause == FRAGMENT:
                part = read_fragment(packet, self.parts, self.part_words, flows.core, flows.cores, flows.now)
                self.counts[flows.core, FRAGMENTS] += 1
                packet.cause = FINE
                if part < 0:
                    drop(packet, FRAGMENT)
            if packet.verdict == DROP:
                continue
            if (packet.version == 6) != (packet.side == INSIDE):
                drop(packet, NO_ADDRESS)
                continue
            entry = flows.get_flow(inside_flow(packet))
            if entry is None:
                drop(packet, NO_FLOW)
                continue
            high, low, port = entry.high, entry.low, entry.port
            if packet.side != INSIDE:
                self.inward(packet, high, low, port, flows.core)
                continue
            to, ours = four_of(
                packet.target_high, packet.target_low, self.prefix, self.prefix_bits, self.addresses
            )
            if to == 0:
                drop(packet, NO_ADDRESS)
            elif not ours:
                self.outward(packet, low, port, to, part, flows.core)
            else:
                protocol = uint64(1 if packet.protocol == 58 else packet.protocol)
                other = flows.get_flow(end_flow(uint64(0), to, uint64(packet.target_port), protocol))
                if other is None or packet.error or part:
                    drop(packet, NO_FLOW)
                    continue
                # Both ends are inside, and each sees the other's address outside (RFC 6146, section 3.8).
                own_high, own_low = six_of(low, self.prefix, self.prefix_bits)
                set_source(packet, own_high, own_low, port)
                set_target(packet, other.high, other.low, other.port)
                turn_back(packet)
                self.counts[flows.core, HAIRPINS] += 1

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

    def outward(self, packet: Packet, low: int, port: int, to: int, part: int, core: int) -> None:
        """Translate a packet from IPv6, which continues from an address and port outside."""
        old = get_five_tuple(packet)
        new = Flow(uint64(0), uint64(low), uint64(0), to, uint64(port), old.target_port, old.protocol)
        cause = int64(FINE)
        if packet.error:
            cause = error_to_four(packet, new, reverse(old), reverse(new), self.mtu)
        elif peek8(packet.address + packet.network + 7) < 2:
            own_high, own_low = six_of(uint64(low), self.prefix, self.prefix_bits)
            self.answer(packet, 3, 0, 0, own_high, own_low, core)
        else:
            self.next[core, _NEXT_NAME] += 1
            cause = to_four(packet, old, new, self.next[core, _NEXT_NAME], part)
        if cause != FINE:
            drop(packet, cause)

    def answer(
        self, packet: Packet, kind: int, code: int, value: int, high: int, low: int, core: int
    ) -> None:
        """Send an ICMP error back to the sender of a packet, or drop the packet."""
        self.counts[core, ERRORS] += 1
        if not answer_with_error(packet, kind, code, value, high, low):
            drop(packet, TOO_LONG)

    def open(self, packet: Packet, flows: Flows) -> None:
        """Make the mapping of a packet from inside, unless there is one."""
        inside = inside_flow(packet)
        to, _ = four_of(packet.target_high, packet.target_low, self.prefix, self.prefix_bits, self.addresses)
        if to == 0 or flows.get_flow(inside) is not None:
            return
        outside = self.select_port(inside, flows)
        if outside.source_port == 0:
            drop(packet, NO_PORT)
            return
        outward = flows.insert_local_flow(inside)
        if outward is None:
            drop(packet, TABLE_FULL)
            return
        outward.high, outward.low, outward.port = uint64(0), outside.source_low, outside.source_port
        inward = flows.insert_local_flow(outside)
        if inward is None:
            flows.remove_local_flow(inside)
            drop(packet, TABLE_FULL)
            return
        inward.high, inward.low, inward.port = inside.source_high, inside.source_low, inside.source_port
        inward.inward = 1
        seconds = TCP_SHORT_S if packet.protocol == 6 else UDP_S if packet.protocol == 17 else ICMP_S
        flows.expire_after(inside, seconds)
        flows.expire_after(outside, seconds)
        self.counts[flows.core, OPENED] += 1

    def select_port(self, inside: Flow, flows: Flows) -> Flow:
        """Return the end outside of a new mapping; with port 0 if no port is free.

        An address inside keeps its address outside, and a port its parity (RFC 4787, sections 4.1 and 4.2).
        """
        mine, count = self.next[flows.core], self.addresses.size
        start = int64(((inside.source_high ^ inside.source_low) * _PRIME) >> uint64(40)) % count
        each = min(TRIES, 2 * self.ports.size)
        for i in range(count * each):
            mine[_NEXT_PORT] += 1
            if mine[_NEXT_PORT] >= self.ports.size:
                mine[_NEXT_PORT] = 0
            port = uint64(self.ports[mine[_NEXT_PORT]])
            # Without a port of the same parity, any will do.
            if (port ^ inside.source_port) & _ONE and i % each < each // 2:
                continue
            found = end_flow(
                uint64(0), self.addresses[(start + i // each) % count], port, uint64(inside.protocol)
            )
            if flows.designated_core(found) == flows.core and not flows.holds(found):
                return found
        return end_flow(uint64(0), uint64(0), uint64(0), uint64(inside.protocol))

    def track(self, packet: Packet, flows: Flows) -> None:
        """Set the time of a mapping by the state of its connection (RFC 6146, section 3.5.2)."""
        mine = inside_flow(packet)
        entry = flows.get_local_flow(mine)
        if entry is None:
            return
        other = end_flow(entry.high, entry.low, uint64(entry.port), mine.protocol)
        if packet.syn:
            entry.fins = 0
        entry.fins |= packet.fin
        fins = int64(entry.fins)
        seconds = int64(0)
        if packet.rst:
            seconds = int64(TCP_SHORT_S)
        elif packet.syn and packet.side != INSIDE:
            seconds = int64(TCP_OPEN_S)
        elif packet.fin:
            theirs = flows.get_flow(other)
            if theirs is not None and theirs.fins & fins:
                seconds = int64(TCP_SHORT_S)
        if seconds:
            flows.expire_after(mine, seconds)
            flows.expire_after(other, seconds)

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:
        """Remove both directions of a mapping when neither is in use."""
        other = end_flow(entry.high, entry.low, uint64(entry.port), flow.protocol)
        if flows.still_seen(other):
            return True
        flows.remove_local_flow(other)
        self.counts[flows.core, EXPIRED] += 1
        return False


def read_prefix(text: str) -> tuple[npt.NDArray[np.uint64], int]:
    """Return (2,) halves of a prefix and its length; raise ``ValueError`` if RFC 6052 has no such prefix."""
    net = ipaddress.ip_network(text)
    if net.version != 6 or net.prefixlen not in _PREFIXES or int(net.network_address) >> 56 & 0xFF:
        raise ValueError(
            f"prefix {text}: give one of IPv6 of 32, 40, 48, 56, 64 or 96 bits, whose bits 64 to 71 are 0"
        )
    return np.array(halves(str(net.network_address)), np.uint64), net.prefixlen


@no_refcount_kernel
def end_flow(high: int, low: int, port: int, protocol: int) -> Flow:
    """Return the key of a mapping: one end of its flows, as a flow to nowhere."""
    return Flow(high, low, uint64(0), uint64(0), port, uint64(0), protocol)


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
def four_of(
    high: int,
    low: int,
    prefix: npt.NDArray[np.uint64],
    bits: int,
    ours: npt.NDArray[np.uint64],
) -> tuple[int, bool]:
    """Return the lower half of the IPv4 address that an IPv6 address stands for, or 0.

    The flag is True if it is one of ``ours``.
    """
    if bits == 96:
        four = low & _LOW
    else:
        before = uint64(64 - bits)
        after = uint64(32) - before
        four = (high & ((_ONE << before) - _ONE)) << after
        four |= (low >> (uint64(56) - after)) & ((_ONE << after) - _ONE)
    found = _MAPPED | four
    same = six_of(found, prefix, bits)
    if same[0] != high or same[1] != low:
        return uint64(0), False
    for i in range(ours.size):
        if ours[i] == found:
            return found, True
    return found, False


@no_refcount_kernel
def fragment_of(packet: Packet) -> tuple[int, int, int]:
    """Set the protocol and the transport header of a fragment, but not its ports.

    Return the offset of its IPv6 header for fragments (0 for IPv4), its identification and its place in the
    packet. The offset is -1 for a fragment of anything but TCP and UDP, which cannot be translated.
    """
    here = packet.address + packet.network
    if packet.version == 4:
        part, transport = int64(0), int64(packet.network) + int64(peek8(here) & 15) * 4
        more = int64(peek16(here + 6))
        name, protocol, start, shape = (
            int64(peek16(here + 4)),
            int64(peek8(here + 9)),
            more & 0x1FFF,
            more & 0x3FFF,
        )
    else:
        part = int64(packet.network) + 40
        if peek8(here + 6) != 44:
            return int64(-1), int64(0), int64(0)
        more = int64(peek16(here + 42))
        name, protocol, start, shape = (
            int64(peek32(here + 44)),
            int64(peek8(here + 40)),
            more & 0xFFF8,
            int64(1),
        )
        transport = part + 8
    if protocol not in (6, 17) or shape == 0 or transport + 8 > packet.end:
        return int64(-1), int64(0), int64(0)
    packet.protocol, packet.transport, packet.payload = protocol, transport, transport
    packet.error = packet.opens = packet.syn = packet.fin = packet.rst = packet.ack = 0
    return part, name, start


@no_refcount_kernel
def read_fragment(
    packet: Packet,
    parts: npt.NDArray[np.uint64],
    words: npt.NDArray[np.uint64],
    core: int,
    cores: int,
    now: int,
) -> int:
    """Fill in ports and transport header of a fragment; return the offset of its IPv6 header for fragments.

    The result is 0 for IPv4, and -1 if the ports are not known: the first fragment has them, and each core
    remembers those that it has seen.
    """
    part, name, start = fragment_of(packet)
    if part < 0:
        return part
    protocol, transport = int64(packet.protocol), int64(packet.transport)
    label = uint64(name) << uint64(8) | uint64(protocol)
    mixed = (packet.source_low ^ packet.source_high) * _PRIME + (packet.target_low ^ packet.target_high)
    place = int64(((mixed ^ label) * _PRIME) >> uint64(32)) & (PARTS - 1)
    if start == 0:
        packet.source_port = peek16(packet.address + transport)
        packet.target_port = peek16(packet.address + transport + 2)
        mine = core * PARTS + place
        word = words[mine]
        store_release(words, mine, word | _ONE)
        fence()
        row = parts[mine]
        row[0], row[1], row[2], row[3] = (
            packet.source_high,
            packet.source_low,
            packet.target_high,
            packet.target_low,
        )
        row[4], row[5], row[6] = label, uint64(packet.source_port), uint64(packet.target_port)
        row[7] = uint64(now)
        store_release(words, mine, word + uint64(2))
        return part
    for other in range(cores):
        at = other * PARTS + place
        word = load_acquire(words, at)
        row = parts[at]
        same = (row[0] ^ packet.source_high) | (row[1] ^ packet.source_low) | (row[4] ^ label)
        same |= (row[2] ^ packet.target_high) | (row[3] ^ packet.target_low)
        source, target, then = row[5], row[6], int64(row[7])
        fence()
        if same == 0 and word & _ONE == 0 and load_acquire(words, at) == word and now - then <= FRAGMENT_S:
            packet.source_port, packet.target_port = uint16(source), uint16(target)
            return part
    return int64(-1)
