"""NAT64: clients of IPv6 reach servers of IPv4 (RFC 6146, with the headers of RFC 7915).

Inside is IPv6, outside is IPv4. A server has the address of the prefix with its own in it (RFC 6052). A
mapping (a binding of RFC 6146) from an address and port inside to those outside serves all servers: RFC 4787
calls that endpoint-independent. Each flow of it is a session with a state and a lifetime of its own, and a
mapping ends with its last session. ``tcp_states.py`` has the states.

The rows of a session have the translation, so a packet needs only one of them. Sessions, and what belongs to
their mapping, are on one core, which the end that is inside designates. Each core uses its own ports, so no
core waits for another.
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
from dios.sprayer.flows.five_tuple import (
    drop,
    get_five_tuple,
    hand_over,
    inside_first,
    reverse,
    with_source,
)
from dios.sprayer.flows.flow_table import HELD, Flows
from dios.sprayer.functions.tcp_states import TRANS, V4_INIT, V6_INIT, lifetime_of, next_state
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import (
    DROP,
    FINE,
    FRAGMENT,
    INSIDE,
    NO_ADDRESS,
    NO_FLOW,
    NO_PORT,
    PROTOCOL,
    REFUSED,
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

OPENED, EXPIRED, HAIRPINS, ERRORS, FRAGMENTS, SESSIONS, ENDED = range(7)
COUNTERS: Final = ("opened", "expired", "hairpins", "errors", "fragments", "sessions", "sessions_ended")
UDP_S: Final = 300
ICMP_S: Final = 60
"""The seconds for which a session without packets stays (RFC 6146, section 4)."""
SESSIONS_MAX: Final = 65_536
"""The upper bound of ``sessions_max``."""
OUTWARD, INWARD, MAPPING, MAPPED_END, PEER = range(5)
"""The rows: a session by its IPv6 and its IPv4 addresses, a mapping likewise, and an address let in."""
FILTERS: Final = ("endpoint-independent", "address-dependent")
FRAGMENT_S: Final = 10
"""The time in seconds that the ports of a first fragment stay known."""
PARTS: Final = 1024
"""First fragments that each core remembers; a power of two."""
TRIES: Final = 512
MTU_MIN: Final = 1280
MTU_MAX: Final = 9000
_MAPPED: Final = uint64(0xFFFF << 32)
_LOW: Final = uint64(0xFFFFFFFF)
_NOBODY: Final = uint64(2**64 - 1)
_ONE: Final = uint64(1)
_PRIME: Final = uint64(0x9E3779B97F4A7C15)
_PREFIXES: Final = (32, 40, 48, 56, 64, 96)
_NEXT_PORT, _NEXT_NAME = range(2)


class Nat64(NetworkFunction):
    """A NAT64 with the IPv4 ``addresses`` outside and the IPv6 ``prefix`` inside.

    ``filtering`` says who may open a session from outside. With ``endpoint-independent`` all hosts may, and
    with ``address-dependent`` a host may if the mapping has a session to its address already. ``mtu`` is that
    of the interface inside.

    Each core stores up to ``flows_max`` rows: two for each mapping, two for each session, and with
    ``address-dependent`` one for each address of a mapping's sessions. A mapping has at most ``sessions_max``
    sessions; hosts outside open at most half of them, and nothing while a table is more than three quarters
    full.

    Raises ``ValueError`` for addresses of IPv6, a prefix that RFC 6052 does not have, invalid ports, another
    ``filtering``, and numbers that are not possible.
    """

    entry = (
        *(("high", "u8"), ("low", "u8"), ("port", "u2")),
        *(("kind", "u1"), ("state", "u1"), ("sessions", "u4")),
    )
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
        filtering: str = FILTERS[0],
        sessions_max: int = 4096,
    ) -> None:
        self.flows_max = flows_max
        checked = [checked_address(address, 4) for address in addresses]
        if not checked or len(set(checked)) < len(checked):
            raise ValueError("a NAT64 needs at least one address, and each only once")
        if not len(ports) or len(set(ports)) < len(ports) or not all(0 < port < 2**16 for port in ports):
            raise ValueError("ports of a NAT64 are from 1 to 65535; give at least one, and each only once")
        if not MTU_MIN <= mtu <= MTU_MAX:
            raise ValueError(f"an MTU of {mtu} bytes: choose from {MTU_MIN} to {MTU_MAX}")
        if filtering not in FILTERS:
            raise ValueError(f"filtering {filtering!r}: choose {FILTERS[0]} or {FILTERS[1]}")
        if not 2 <= sessions_max <= SESSIONS_MAX:
            raise ValueError(f"{sessions_max} sessions of a mapping: choose from 2 to {SESSIONS_MAX}")
        self.by_address = int(filtering == FILTERS[1])
        self.sessions_max = sessions_max
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
        """Open sessions, change the states of those of TCP, and translate."""
        for packet in batch:
            key = inside_first(packet)
            entry = flows.get_flow(key)
            if entry is None:
                self.begin(packet, key, flows)
            elif packet.protocol == 6:
                self.advance(packet, key, flows)
        self.regular_packets(batch, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Translate packets of known sessions."""
        for packet in batch:
            part, whole = int64(0), packet.cause != FRAGMENT
            if not whole:
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
            if packet.side == INSIDE and is_authenticated(packet):
                drop(packet, PROTOCOL)
                continue
            entry = flows.get_flow(inside_first(packet))
            if entry is None:
                drop(packet, NO_FLOW)
                continue
            high, low, port, state = entry.high, entry.low, entry.port, entry.state
            plain = whole and packet.syn | packet.fin | packet.rst | packet.error == 0
            if state == TRANS and plain:
                # Only the designated core may change the state of the session.
                hand_over(packet)
                continue
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
            elif state == V6_INIT and plain:
                hand_over(packet)
            else:
                self.turn_inside(packet, low, port, to, part, flows)

    def turn_inside(self, packet: Packet, low: int, port: int, to: int, part: int, flows: Flows) -> None:
        """Translate a packet between two ends that are both inside (RFC 6146, section 3.8).

        Each end sees the other's address outside.
        """
        protocol = uint64(1 if packet.protocol == 58 else packet.protocol)
        end = end_flow(uint64(0), to, uint64(packet.target_port), protocol)
        other = flows.get_flow(end)
        if other is None or packet.error or part:
            drop(packet, NO_FLOW)
            return
        high, there, there_port = other.high, other.low, other.port
        if self.by_address and flows.get_flow(peer_flow(end, low)) is None:
            drop(packet, REFUSED)
            return
        own_high, own_low = six_of(low, self.prefix, self.prefix_bits)
        set_source(packet, own_high, own_low, port)
        set_target(packet, high, there, there_port)
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

    def begin(self, packet: Packet, key: Flow, flows: Flows) -> None:
        """Open a session for a packet that may, under the mapping of its end inside; else drop it."""
        inside = packet.side == INSIDE
        if (packet.version == 6) != inside or packet.opens | (inside and packet.syn) == 0:
            # The next step drops a packet without a session.
            return
        if inside:
            to, _ = four_of(
                packet.target_high, packet.target_low, self.prefix, self.prefix_bits, self.addresses
            )
            if to == 0:
                drop(packet, NO_ADDRESS)
                return
            mine = end_flow(key.source_high, key.source_low, key.source_port, key.protocol)
            if not flows.holds(mine) and not self.open(packet, mine, flows):
                return
        else:
            to = key.target_low
            end = end_flow(key.source_high, key.source_low, key.source_port, key.protocol)
            entry = flows.get_flow(end)
            if entry is None:
                return
            mine = end_flow(entry.high, entry.low, uint64(entry.port), key.protocol)
            if self.by_address and flows.get_flow(peer_flow(end, to)) is None:
                drop(packet, REFUSED)
                return
            if flows.books[HELD] > flows.flows_max // 4 * 3:
                drop(packet, TABLE_FULL)
                return
        self.add_session(packet, mine, to, flows)

    def open(self, packet: Packet, mine: Flow, flows: Flows) -> bool:
        """Make the mapping of an end inside; drop the packet and return False if that is not possible."""
        outside = self.select_port(mine, flows)
        if outside.source_port == 0:
            drop(packet, NO_PORT)
            return False
        outward = flows.insert_local_flow(mine)
        if outward is None:
            drop(packet, TABLE_FULL)
            return False
        outward.low, outward.port, outward.kind = outside.source_low, outside.source_port, MAPPING
        inward = flows.insert_local_flow(outside)
        if inward is None:
            flows.remove_local_flow(mine)
            drop(packet, TABLE_FULL)
            return False
        inward.high, inward.low, inward.port = mine.source_high, mine.source_low, mine.source_port
        inward.kind = MAPPED_END
        self.counts[flows.core, OPENED] += 1
        return True

    def add_session(self, packet: Packet, mine: Flow, to: int, flows: Flows) -> None:
        """Add a session with the IPv4 address ``to`` to a mapping, or drop the packet."""
        inside = packet.side == INSIDE
        entry = flows.get_local_flow(mine)
        if entry is None:
            drop(packet, NO_FLOW)
            return
        low, port, count = entry.low, uint64(entry.port), int64(entry.sessions)
        if count >= (self.sessions_max if inside else self.sessions_max // 2):
            drop(packet, TABLE_FULL)
            return
        service = uint64(packet.target_port if inside else packet.source_port)
        six_high, six_low = six_of(to, self.prefix, self.prefix_bits)
        own = Flow(
            mine.source_high, mine.source_low, six_high, six_low, mine.source_port, service, mine.protocol
        )
        seen = Flow(uint64(0), low, uint64(0), to, port, service, mine.protocol)
        if not self.add_rows(own, seen, flows):
            drop(packet, TABLE_FULL)
            if count == 0:
                self.close(mine, end_flow(uint64(0), low, port, mine.protocol), flows)
            return
        entry = flows.get_local_flow(mine)
        if entry is not None:
            entry.sessions += 1
        self.counts[flows.core, SESSIONS] += 1
        if mine.protocol == 6:
            set_state(own, seen, V6_INIT if inside else V4_INIT, flows)
        else:
            seconds = UDP_S if mine.protocol == 17 else ICMP_S
            flows.expire_after(own, seconds)
            flows.expire_after(seen, seconds)

    def add_rows(self, own: Flow, seen: Flow, flows: Flows) -> bool:
        """Insert the rows of a session, as seen inside and outside; without room for all, insert none."""
        outward = flows.insert_local_flow(own)
        if outward is None:
            return False
        outward.low, outward.port, outward.kind = seen.source_low, seen.source_port, OUTWARD
        inward = flows.insert_local_flow(seen)
        if inward is None:
            flows.remove_local_flow(own)
            return False
        inward.high, inward.low, inward.port = own.source_high, own.source_low, own.source_port
        inward.kind = INWARD
        if self.by_address:
            peer = flows.insert_local_flow(peer_flow(seen, seen.target_low))
            if peer is None:
                flows.remove_local_flow(seen)
                flows.remove_local_flow(own)
                return False
            peer.kind = PEER
            peer.sessions += 1
        return True

    def close(self, mine: Flow, outside: Flow, flows: Flows) -> None:
        """Remove a mapping, which has no sessions."""
        flows.remove_local_flow(mine)
        flows.remove_local_flow(outside)
        self.counts[flows.core, EXPIRED] += 1

    def select_port(self, inside: Flow, flows: Flows) -> Flow:
        """Return the end outside of a new mapping; with port 0 if no port is free.

        An address inside keeps its address outside, and a port its parity (RFC 4787, sections 4.1 and 4.2).
        """
        mine, count = self.next[flows.core], self.addresses.size
        start = int64(((inside.source_high ^ inside.source_low) * _PRIME) >> uint64(40)) % count
        tries = min(TRIES, 2 * self.ports.size)
        for i in range(count * tries):
            mine[_NEXT_PORT] += 1
            if mine[_NEXT_PORT] >= self.ports.size:
                mine[_NEXT_PORT] = 0
            port = uint64(self.ports[mine[_NEXT_PORT]])
            # Without a port of the same parity, any will do.
            if (port ^ inside.source_port) & _ONE and i % tries < tries // 2:
                continue
            candidate = end_flow(
                uint64(0), self.addresses[(start + i // tries) % count], port, uint64(inside.protocol)
            )
            if flows.designated_core(candidate) == flows.core and not flows.holds(candidate):
                return candidate
        return end_flow(uint64(0), uint64(0), uint64(0), uint64(inside.protocol))

    def advance(self, packet: Packet, key: Flow, flows: Flows) -> None:
        """Change the state of a session of TCP, and so its lifetime (RFC 6146, section 3.5.2)."""
        entry = flows.get_local_flow(key)
        if entry is None:
            return
        state, inside = int64(entry.state), packet.side == INSIDE
        other = self.other_row(key, entry.high, entry.low, entry.port, entry.kind)
        hairpin = False
        if inside:
            _, hairpin = four_of(
                packet.target_high, packet.target_low, self.prefix, self.prefix_bits, self.addresses
            )
        after = next_state(state, inside, packet.opens, packet.syn, packet.fin, packet.rst, hairpin)
        if after != state:
            set_state(key, other, after, flows)

    def other_row(self, key: Flow, high: int, low: int, port: int, kind: int) -> Flow:
        """Return the key of a session's other row, by the contents of one."""
        if kind == OUTWARD:
            to, _ = four_of(key.target_high, key.target_low, self.prefix, self.prefix_bits, self.addresses)
            return Flow(uint64(0), low, uint64(0), to, uint64(port), key.target_port, key.protocol)
        to_high, to_low = six_of(key.target_low, self.prefix, self.prefix_bits)
        return Flow(high, low, to_high, to_low, uint64(port), key.target_port, key.protocol)

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:
        """Remove a session when neither of its directions is in use, and its mapping with the last one."""
        kind = entry.kind
        if kind >= MAPPING:
            # The last session removes it.
            return True
        other = self.other_row(flow, entry.high, entry.low, entry.port, kind)
        if flows.still_seen(other):
            return True
        flows.remove_local_flow(other)
        own, seen = flow, other
        if kind == INWARD:
            own, seen = other, flow
        self.counts[flows.core, ENDED] += 1
        if self.by_address:
            peer = peer_flow(seen, seen.target_low)
            if one_less(peer, flows) == 0:
                flows.remove_local_flow(peer)
        mine = end_flow(own.source_high, own.source_low, own.source_port, own.protocol)
        if one_less(mine, flows) == 0:
            self.close(
                mine, end_flow(seen.source_high, seen.source_low, seen.source_port, seen.protocol), flows
            )
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
def peer_flow(seen: Flow, to: int) -> Flow:
    """Return the key of an IPv4 address that an end outside lets in: its target is no address of a host."""
    return Flow(
        seen.source_high, seen.source_low, _NOBODY, uint64(to), seen.source_port, uint64(0), seen.protocol
    )


@no_refcount_kernel
def set_state(own: Flow, other: Flow, state: int, flows: Flows) -> None:
    """Set the state and the lifetime of both rows of a session of TCP."""
    for flow in (own, other):
        entry = flows.get_local_flow(flow)
        if entry is not None:
            entry.state = state
            flows.expire_after(flow, lifetime_of(state))


@no_refcount_kernel
def one_less(key: Flow, flows: Flows) -> int:
    """Subtract one from the number of sessions in a row of this core; return the new number."""
    entry = flows.get_local_flow(key)
    if entry is None:
        return int64(-1)
    entry.sessions -= 1
    return int64(entry.sessions)


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
    mapped = _MAPPED | four
    same = six_of(mapped, prefix, bits)
    if same[0] != high or same[1] != low:
        return uint64(0), False
    for i in range(ours.size):
        if ours[i] == mapped:
            return mapped, True
    return mapped, False


@no_refcount_kernel
def is_authenticated(packet: Packet) -> bool:
    """Return True for a packet of IPv6 with an authentication header (RFC 4302).

    That covers the addresses, so no translated packet has a valid one, and without it the receiver would take
    a packet whose sender wanted it to be checked.
    """
    here = packet.address + packet.network
    kind, at = int64(peek8(here + 6)), int64(40)
    end = int64(packet.transport) - int64(packet.network)
    while at < end:
        if kind == 51:
            return True
        size = int64(8) if kind == 44 else (int64(peek8(here + at + 1)) + 1) * 8
        kind = int64(peek8(here + at))
        at += size
    return False


@no_refcount_kernel
def fragment_of(packet: Packet) -> tuple[int, int, int]:
    """Set the protocol and the transport header of a fragment, but not its ports.

    Return the offset of its IPv6 header for fragments (0 for IPv4), its identification and its place in the
    packet. The offset is -1 for what is no fragment by itself, such as an ICMP error about one, and for a
    first fragment without ports.
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
    if shape == 0 or transport + (8 if start == 0 and protocol in (6, 17) else 0) > packet.end:
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
    remembers those that it has seen. It is -1 for protocols other than TCP and UDP, too.
    """
    part, name, start = fragment_of(packet)
    if part < 0 or packet.protocol not in (6, 17):
        return int64(-1)
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
