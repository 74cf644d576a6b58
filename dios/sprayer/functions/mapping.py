"""Mappings and sessions: what every function does that gives ends inside other addresses and ports outside.

A mapping from an address and port inside to those outside serves all targets, which RFC 4787 calls
endpoint-independent. Each flow of it is a session with a state and a lifetime of its own, and a mapping ends
with its last session. Filters say who may open a session from outside. Two ends inside reach each other by
their ends outside (hairpinning). ``tcp_states.py`` has the states of sessions of TCP, ``packets.fragments``
the ports of fragments.

The rows of a session have the translation, so a packet needs only one of them. Sessions, and what belongs to
their mapping, are on one core, which the end that is inside designates. Each core uses its own ports, so no
core waits for another.

Protocols without ports have a session for each pair of addresses. Its core is that of the end outside, since
no port can be chosen such that the other two ends have the same one.

``nat`` and ``nat64`` say what an address inside is outside, and change the packets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import int64, peek8, uint64
from dios.sprayer.flows.five_tuple import drop, hand_over, inside_first, reverse, wait, with_target
from dios.sprayer.flows.flow_table import HELD, REMOVED, Flows
from dios.sprayer.functions.tcp_states import INSIDE_INIT, OUTSIDE_INIT, TRANS, lifetime_of, next_state
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.fragments import complete, is_other, make_datagrams
from dios.sprayer.packets.packet import (
    BAD_SUM,
    FINE,
    INSIDE,
    LATER_PART,
    NO_ADDRESS,
    NO_FLOW,
    NO_PORT,
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
from dios.sprayer.packets.translate import answer_with_error, has_right_sums, turn_back

if TYPE_CHECKING:
    import numpy.typing as npt

OPENED, EXPIRED, HAIRPINS, ERRORS, FRAGMENTS, SESSIONS, ENDED = range(7)
COUNTERS: Final = ("opened", "expired", "hairpins", "errors", "fragments", "sessions", "sessions_ended")
UDP_S: Final = 300
ICMP_S: Final = 60
"""The seconds for which a session without packets stays (RFC 4787, REQ-5; RFC 5508, REQ-2)."""
SESSIONS_MAX: Final = 65_536
"""The upper bound of ``sessions_max``."""
OUTWARD, INWARD, TURNED, BY_ADDRESS, MAPPING, MAPPED_END, PEER = range(7)
"""The rows: a session as seen inside and outside, one to an end that is inside, too, both rows of a session
without ports, a mapping by both of its ends, and an address that it lets in."""
FILTERS: Final = ("endpoint-independent", "address-dependent", "address-and-port-dependent")
TRIES: Final = 512
"""The number of ports to try with each address."""
_MAPPED: Final = uint64(0xFFFF)
_32: Final = uint64(32)
_LET_IN: Final = uint64(128)
_ONE: Final = uint64(1)
_PRIME: Final = uint64(0x9E3779B97F4A7C15)
NEXT_PORT, NEXT_NAME = range(2)


class MappingFunction(NetworkFunction):
    """The base of functions with mappings. A subclass has the methods that raise NotImplementedError here.

    ``addresses`` are those outside, ``ports`` the ports of mappings. ``filtering`` says who may open a
    session from outside to an existing mapping: with ``endpoint-independent`` all hosts, with
    ``address-dependent`` a host to whose address the mapping has a session already, and with
    ``address-and-port-dependent`` nobody.

    Each core stores up to ``flows_max`` rows: two for each mapping, two for each session, and with
    ``address-dependent`` one for each address of a mapping's sessions. A mapping has at most ``sessions_max``
    sessions; hosts outside open at most half of them, and nothing while a table is more than three quarters
    full.

    Raises ``ValueError`` for addresses and ports from which no packet can come, or which are given twice, and
    for another ``filtering`` and ``sessions_max``.
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
        ports: Sequence[int],
        flows_max: int,
        filtering: str,
        sessions_max: int,
    ) -> None:
        self.flows_max = flows_max
        ordered = sorted((checked_address(address) for address in addresses), key=lambda text: ":" in text)
        if not ordered or not len(ports):
            raise ValueError("give at least one address and one port, for packets to come from")
        if len(set(ordered)) < len(ordered) or len(set(ports)) < len(ports):
            raise ValueError("addresses or ports are given twice; give each once")
        if not all(0 < port < 2**16 for port in ports):
            raise ValueError(f"ports are from {min(ports)} to {max(ports)}; give ports from 1 to 65535")
        if filtering not in FILTERS:
            raise ValueError(f"filtering {filtering!r}: choose {', '.join(FILTERS[:2])} or {FILTERS[2]}")
        if not 2 <= sessions_max <= SESSIONS_MAX:
            raise ValueError(f"{sessions_max} sessions of a mapping: choose from 2 to {SESSIONS_MAX}")
        self.filter_kind = FILTERS.index(filtering)
        self.sessions_max = sessions_max
        self.addresses = np.array([halves(address) for address in ordered], np.uint64)
        """(A, 2) those of IPv4 first."""
        self.of_4 = sum(":" not in address for address in ordered)
        self.ports = np.array(ports, np.int64)
        self._own = ordered

    def prepare(self, cores: int) -> None:
        """Create search positions and counters of each core, and the table of fragmented datagrams."""
        self.next = np.zeros((cores, 16), np.int64)
        self.datagrams, self.locks = make_datagrams()
        self.counts = self.counters(cores, *COUNTERS)

    def own_networks(self) -> Sequence[str]:
        """Return the addresses outside."""
        return self._own

    # What a subclass has ----------------------------------------------------------------------------------

    def fault_of(self, packet: Packet) -> int:
        """Return ``FINE``, or the cause to drop any such packet."""
        raise NotImplementedError

    def outside_of(self, high: int, low: int) -> tuple[int, int]:
        """Return the address outside for a target inside; both halves are 0 if it has none."""
        raise NotImplementedError

    def inside_of(self, high: int, low: int) -> tuple[int, int]:
        """Return the address as which hosts inside see an address outside."""
        raise NotImplementedError

    def inward(self, packet: Packet, high: int, low: int, port: int, core: int) -> None:
        """Translate a packet from outside, which continues to an address and port inside."""
        raise NotImplementedError

    def outward(self, packet: Packet, high: int, low: int, port: int, core: int) -> None:
        """Translate a packet from inside, which continues from an address and port outside."""
        raise NotImplementedError

    # Packets ----------------------------------------------------------------------------------------------

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Open sessions, change the states of those of TCP, and translate."""
        for packet in batch:
            cause = self.fault_of(packet)
            if cause != FINE:
                drop(packet, cause)
                continue
            key = session_key(packet)
            if flows.get_flow(key) is None:
                if not self.begin(packet, key, flows):
                    continue
            elif packet.protocol == 6:
                self.advance(packet, key, flows)
            entry = flows.get_flow(key)
            if entry is None:
                drop(packet, NO_FLOW)
                continue
            self.translate(packet, entry.high, entry.low, entry.port, entry.kind, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Translate packets of known sessions; hand over those that may open one."""
        for packet in batch:
            if (packet.cause | packet.fragment) and not self.read_special(packet, flows):
                continue
            cause = self.fault_of(packet)
            if cause != FINE:
                drop(packet, cause)
                continue
            key = session_key(packet)
            if packet.error:
                self.translate_error(packet, key, flows)
                continue
            entry = flows.get_hashed_flow(key, packet.hash)
            if entry is None:
                self.refer(packet)
                continue
            high, low, port, kind, state = entry.high, entry.low, entry.port, entry.kind, entry.state
            changes = packet.syn | packet.fin | packet.rst
            if packet.fragment:
                # Flags of a whole packet are always seen by the designated core.
                if changes:
                    hand_over(packet)
                    continue
            elif changes == 0 and (state == TRANS or (kind == TURNED and state == INSIDE_INIT)):
                # Only the designated core may change the state of the session.
                hand_over(packet)
                continue
            self.translate(packet, high, low, port, kind, flows)

    def read_special(self, packet: Packet, flows: Flows) -> bool:
        """Complete a fragment, or a packet without ports; return False if it waits or is dropped."""
        done = complete(packet, self.datagrams, self.locks, flows.seed[0], flows.now, self.takes_protocols)
        if done == 1:
            self.counts[flows.core, FRAGMENTS] += packet.fragment != 0
            packet.hash = flows.hash_of(session_key(packet))
        return bool(done != 0)

    def refer(self, packet: Packet) -> None:
        """Hand over a packet of no session that may open one; let a later fragment wait for its session."""
        if packet.fragment == LATER_PART:
            wait(packet)
        elif packet.opens | (packet.side == INSIDE and packet.syn):
            hand_over(packet)
        else:
            drop(packet, NO_FLOW)

    def translate(self, packet: Packet, high: int, low: int, port: int, kind: int, flows: Flows) -> None:
        """Translate a packet by the row of its session."""
        if packet.side != INSIDE:
            self.inward(packet, high, low, port, flows.core)
        elif kind == TURNED:
            self.turn_inside(packet, high, low, port, flows)
        else:
            self.outward(packet, high, low, port, flows.core)

    def turn_inside(self, packet: Packet, high: int, low: int, port: int, flows: Flows) -> None:
        """Translate a packet between two ends that are both inside (RFC 4787, section 6; RFC 6146, 3.8).

        Each end sees the other's address outside. As the addresses outside are the function's own, it answers
        for those of their ports that belong to nobody.
        """
        to_high, to_low = self.outside_of(packet.target_high, packet.target_low)
        protocol = 1 if packet.protocol == 58 else packet.protocol
        end = end_flow(to_high, to_low, uint64(packet.target_port), protocol)
        other = flows.peek_flow(end)
        if other is None:
            if packet.protocol == 17 and packet.fragment == 0:
                kind, code = (3, 3) if packet.version == 4 else (1, 4)
                self.answer(packet, kind, code, 0, packet.target_high, packet.target_low, flows.core)
            else:
                drop(packet, NO_FLOW)
            return
        there_high, there_low, there_port = other.high, other.low, other.port
        if self.refuses(end, high, low, port, flows):
            drop(packet, REFUSED)
            return
        self.turn(packet, high, low, port, there_high, there_low, there_port, flows.core)

    def turn(
        self,
        packet: Packet,
        high: int,
        low: int,
        port: int,
        there_high: int,
        there_low: int,
        there_port: int,
        core: int,
    ) -> None:
        """Send a packet back inside, from an end outside, to another end inside."""
        own_high, own_low = self.inside_of(high, low)
        set_source(packet, own_high, own_low, port)
        set_target(packet, there_high, there_low, there_port)
        turn_back(packet)
        self.counts[core, HAIRPINS] += 1

    def refuses(self, end: Flow, high: int, low: int, port: int, flows: Flows) -> bool:
        """Return True if the filter of a mapping, by its end outside, refuses an end outside."""
        if self.filter_kind == 1:
            return flows.peek_flow(peer_flow(end, high, low)) is None
        if self.filter_kind == 2:
            return flows.peek_flow(with_target(end, high, low, port)) is None
        return False

    def translate_error(self, packet: Packet, key: Flow, flows: Flows) -> None:
        """Translate an ICMP error about a packet of a session, which is neither refreshed nor ended.

        RFC 5508, section 4. An error between two ends inside needs their mappings only, because the packet
        that it is about may have had no answer.
        """
        if not has_right_sums(packet):
            drop(packet, BAD_SUM)
            return
        if packet.side == INSIDE and not is_other(packet.protocol):
            to_high, to_low = self.outside_of(packet.target_high, packet.target_low)
            if self.is_own(to_high, to_low):
                mine = flows.peek_flow(
                    end_flow(key.source_high, key.source_low, key.source_port, key.protocol)
                )
                there = flows.peek_flow(end_flow(to_high, to_low, key.target_port, key.protocol))
                if mine is None or there is None:
                    drop(packet, NO_FLOW)
                    return
                self.turn(
                    packet, mine.high, mine.low, mine.port, there.high, there.low, there.port, flows.core
                )
                return
        entry = flows.peek_flow(key)
        if entry is None:
            drop(packet, NO_FLOW)
        elif packet.side == INSIDE:
            self.outward(packet, entry.high, entry.low, entry.port, flows.core)
        else:
            self.inward(packet, entry.high, entry.low, entry.port, flows.core)

    def answer(
        self, packet: Packet, kind: int, code: int, value: int, high: int, low: int, core: int
    ) -> None:
        """Send an ICMP error back to the sender of a packet, or drop the packet."""
        self.counts[core, ERRORS] += 1
        if not answer_with_error(packet, kind, code, value, high, low):
            drop(packet, TOO_LONG)

    # Sessions and mappings --------------------------------------------------------------------------------

    def begin(self, packet: Packet, key: Flow, flows: Flows) -> bool:
        """Open a session for a packet that may, under the mapping of its end inside.

        Return False if the packet is dropped.
        """
        inside = packet.side == INSIDE
        if packet.opens | (inside and packet.syn) == 0:
            drop(packet, NO_FLOW)
            return False
        if is_other(key.protocol):
            return self.begin_by_address(packet, key, flows)
        if inside:
            to_high, to_low = self.outside_of(packet.target_high, packet.target_low)
            if to_high | to_low == 0:
                drop(packet, NO_ADDRESS)
                return False
            mine = end_flow(key.source_high, key.source_low, key.source_port, key.protocol)
            if not flows.holds(mine) and not self.open(packet, mine, is_four(to_high, to_low), flows):
                return False
        else:
            to_high, to_low = key.target_high, key.target_low
            end = end_flow(key.source_high, key.source_low, key.source_port, key.protocol)
            entry = flows.peek_flow(end)
            if entry is None:
                drop(packet, NO_FLOW)
                return False
            mine = end_flow(entry.high, entry.low, uint64(entry.port), key.protocol)
            if self.refuses(end, to_high, to_low, int64(packet.source_port), flows):
                drop(packet, REFUSED)
                return False
            if flows.books[HELD] > flows.flows_max // 4 * 3:
                drop(packet, TABLE_FULL)
                return False
        return self.add_session(packet, mine, to_high, to_low, flows)

    def open(self, packet: Packet, mine: Flow, four: bool, flows: Flows) -> bool:  # noqa: FBT001 - compiled
        """Make the mapping of an end inside; drop the packet and return False if that is not possible.

        ``four`` is True if the end outside is of IPv4.
        """
        first, count = self.addresses_of(four)
        if count == 0:
            drop(packet, NO_ADDRESS)
            return False
        outside = self.select_port(mine, first, count, flows)
        if outside.source_port == 0:
            drop(packet, NO_PORT)
            return False
        outward = flows.insert_local_flow(mine)
        if outward is None:
            drop(packet, TABLE_FULL)
            return False
        outward.high, outward.low, outward.port = (
            outside.source_high,
            outside.source_low,
            outside.source_port,
        )
        outward.kind = MAPPING
        inward = flows.insert_local_flow(outside)
        if inward is None:
            flows.remove_local_flow(mine)
            drop(packet, TABLE_FULL)
            return False
        inward.high, inward.low, inward.port = mine.source_high, mine.source_low, mine.source_port
        inward.kind = MAPPED_END
        self.counts[flows.core, OPENED] += 1
        return True

    def add_session(self, packet: Packet, mine: Flow, to_high: int, to_low: int, flows: Flows) -> bool:
        """Add a session with an address outside to a mapping, or drop the packet and return False."""
        inside = packet.side == INSIDE
        entry = flows.get_local_flow(mine)
        if entry is None:
            drop(packet, NO_FLOW)
            return False
        high, low, port, count = entry.high, entry.low, uint64(entry.port), int64(entry.sessions)
        if count >= (self.sessions_max if inside else self.sessions_max // 2):
            drop(packet, TABLE_FULL)
            return False
        service = uint64(packet.target_port if inside else packet.source_port)
        there_high, there_low = self.inside_of(to_high, to_low)
        own = Flow(
            *(mine.source_high, mine.source_low, there_high, there_low),
            *(mine.source_port, service, mine.protocol),
        )
        seen = Flow(high, low, to_high, to_low, port, service, mine.protocol)
        turned = inside and self.is_own(to_high, to_low)
        if not self.add_rows(own, seen, TURNED if turned else OUTWARD, flows):
            drop(packet, TABLE_FULL)
            if count == 0:
                self.close(mine, end_flow(high, low, port, mine.protocol), flows)
            return False
        entry = flows.get_local_flow(mine)
        if entry is not None:
            entry.sessions += 1
        self.counts[flows.core, SESSIONS] += 1
        if mine.protocol == 6:
            set_state(own, seen, INSIDE_INIT if inside else OUTSIDE_INIT, flows)
        else:
            seconds = UDP_S if mine.protocol == 17 else ICMP_S
            flows.expire_after(own, seconds)
            flows.expire_after(seen, seconds)
        return True

    def add_rows(self, own: Flow, seen: Flow, kind: int, flows: Flows) -> bool:
        """Insert the rows of a session, as seen inside and outside; without room for all, insert none."""
        outward = flows.insert_local_flow(own)
        if outward is None:
            return False
        outward.high, outward.low, outward.port = seen.source_high, seen.source_low, seen.source_port
        outward.kind = kind
        inward = flows.insert_local_flow(seen)
        if inward is None:
            flows.remove_local_flow(own)
            return False
        inward.high, inward.low, inward.port = own.source_high, own.source_low, own.source_port
        inward.kind = INWARD
        if self.filter_kind == 1:
            peer = flows.insert_local_flow(peer_flow(seen, seen.target_high, seen.target_low))
            if peer is None:
                flows.remove_local_flow(seen)
                flows.remove_local_flow(own)
                return False
            peer.kind = PEER
            peer.sessions += 1
        return True

    def begin_by_address(self, packet: Packet, key: Flow, flows: Flows) -> bool:
        """Open a session of a protocol without ports, from an address that no other end uses with the target.

        Return False if the packet is dropped.
        """
        if packet.side != INSIDE or self.is_own(packet.target_high, packet.target_low):
            drop(packet, NO_FLOW)
            return False
        first, count = self.addresses_of(is_four(key.target_high, key.target_low))
        start = home_address(key.target_high, key.target_low)
        for i in range(count):
            address = self.addresses[first + (start + i) % count]
            seen = with_target(key, address[0], address[1], 0)
            if flows.holds(seen):
                continue
            if not add_pair(key, seen, flows):
                drop(packet, TABLE_FULL)
                return False
            self.counts[flows.core, SESSIONS] += 1
            return True
        drop(packet, NO_PORT if count else NO_ADDRESS)
        return False

    def close(self, mine: Flow, outside: Flow, flows: Flows) -> None:
        """Remove a mapping, which has no sessions."""
        flows.remove_local_flow(mine)
        flows.remove_local_flow(outside)
        self.counts[flows.core, EXPIRED] += 1

    def addresses_of(self, four: bool) -> tuple[int, int]:  # noqa: FBT001 - compiled
        """Return the first of the addresses outside of a version of IP, and their number."""
        count = int64(self.addresses.shape[0])
        return (int64(0), int64(self.of_4)) if four else (int64(self.of_4), count - self.of_4)

    def is_own(self, high: int, low: int) -> bool:
        """Return True for one of the addresses outside."""
        for i in range(self.addresses.shape[0]):
            if self.addresses[i, 0] == high and self.addresses[i, 1] == low:
                return True
        return False

    def select_port(self, inside: Flow, first: int, count: int, flows: Flows) -> Flow:
        """Return the end outside of a new mapping; with port 0 if no port is free.

        An address inside keeps its address outside, and a port its parity (RFC 4787, sections 4.1 and 4.2).
        The search begins at a place that nobody outside can predict (RFC 6056).
        """
        mine = self.next[flows.core]
        start = home_address(inside.source_high, inside.source_low)
        tries = min(TRIES, 2 * self.ports.size)
        mine[NEXT_PORT] += 1
        mixed = (flows.hash_of(inside) ^ uint64(mine[NEXT_PORT])) * _PRIME
        place = int64(mixed >> uint64(33)) % self.ports.size
        for i in range(count * tries):
            place = place + 1 if place + 1 < self.ports.size else int64(0)
            port = uint64(self.ports[place])
            # Without a port of the same parity, any will do.
            if (port ^ inside.source_port) & _ONE and i % tries < tries // 2:
                continue
            address = self.addresses[first + (start + i // tries) % count]
            candidate = end_flow(address[0], address[1], port, inside.protocol)
            if flows.designated_core(candidate) == flows.core and not flows.holds(candidate):
                return candidate
        return end_flow(uint64(0), uint64(0), uint64(0), inside.protocol)

    def advance(self, packet: Packet, key: Flow, flows: Flows) -> None:
        """Change the state of a session of TCP, and so its lifetime (RFC 6146, section 3.5.2)."""
        entry = flows.get_local_flow(key)
        if entry is None:
            return
        state, kind = int64(entry.state), int64(entry.kind)
        other = self.other_row(key, entry.high, entry.low, entry.port, kind)
        after = next_state(
            state,
            packet.side == INSIDE,
            packet.opens,
            packet.syn,
            packet.fin,
            packet.rst,
            kind == TURNED,
        )
        if after != state:
            set_state(key, other, after, flows)

    def other_row(self, key: Flow, high: int, low: int, port: int, kind: int) -> Flow:
        """Return the key of a session's other row, by the contents of one."""
        if kind == BY_ADDRESS:
            return with_target(key, high, low, 0)
        if kind == INWARD:
            to_high, to_low = self.inside_of(key.target_high, key.target_low)
        else:
            to_high, to_low = self.outside_of(key.target_high, key.target_low)
        return Flow(
            *(uint64(high), uint64(low), to_high, to_low),
            *(uint64(port), key.target_port, key.protocol),
        )

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:
        """Remove a session when neither of its directions is in use, and its mapping with the last one."""
        kind = int64(entry.kind)
        if kind >= MAPPING:
            if kind == MAPPING and entry.sessions == 0:
                # Its host ended before it wrote the sessions for the next one.
                self.close(flow, end_flow(entry.high, entry.low, uint64(entry.port), flow.protocol), flows)
            # The last session removes it.
            return True
        other = self.other_row(flow, entry.high, entry.low, entry.port, kind)
        if flows.still_seen(other):
            return True
        flows.remove_local_flow(other)
        self.counts[flows.core, ENDED] += 1
        if kind == BY_ADDRESS:
            return False
        own, seen = flow, other
        if kind == INWARD:
            own, seen = other, flow
        if self.filter_kind == 1:
            peer = peer_flow(seen, seen.target_high, seen.target_low)
            if one_less(peer, flows) == 0:
                flows.remove_local_flow(peer)
        mine = end_flow(own.source_high, own.source_low, own.source_port, own.protocol)
        if one_less(mine, flows) == 0:
            self.close(
                mine, end_flow(seen.source_high, seen.source_low, seen.source_port, seen.protocol), flows
            )
        return False

    def continue_flows(self, tables: Sequence[Flows]) -> None:
        """Count the sessions of each mapping again: another host may have ended in the middle of a change."""
        for flows in tables:
            places = flows.words.size // flows.cores
            part = slice(flows.core * places, (flows.core + 1) * places)
            used = flows.words[part] >> _32 > REMOVED
            rows = flows.table[part][used]
            kinds = rows["entry"]["kind"]
            sessions = rows[kinds == INWARD]
            by_end = Counter(_ends(sessions["entry"], sessions["protocol"].tolist(), ("high", "low", "port")))
            names = ("source_high", "source_low", "source_port")
            by_peer = Counter(
                _ends(sessions, sessions["protocol"].tolist(), (*names, "target_high", "target_low"))
            )
            counts = np.array(
                [
                    by_end[end] if kind == MAPPING else by_peer[peer] if kind == PEER else 0
                    for kind, end, peer in zip(
                        kinds.tolist(),
                        _ends(rows, rows["protocol"].tolist(), names),
                        _ends(rows, (rows["protocol"] & 127).tolist(), (*names, "target_high", "target_low")),
                        strict=True,
                    )
                ],
                np.uint32,
            )
            flows.table["entry"]["sessions"][np.flatnonzero(used) + part.start] = counts


def _ends(
    rows: npt.NDArray[np.void], protocols: Sequence[int], names: Sequence[str]
) -> list[tuple[int, ...]]:
    """Return the fields of rows with their protocols."""
    return list(zip(*(rows[name].tolist() for name in names), protocols, strict=True))


@no_refcount_kernel
def session_key(packet: Packet) -> Flow:
    """Return the key of a packet's session: its end inside first, but without ports its end outside."""
    key = inside_first(packet)
    return reverse(key) if is_other(key.protocol) else key


@no_refcount_kernel
def is_four(high: int, low: int) -> bool:
    """Return True for an address of IPv4."""
    return bool(high == 0 and low >> _32 == _MAPPED)


@no_refcount_kernel
def home_address(high: int, low: int) -> int:
    """Return a number by which an address inside chooses its address outside."""
    return int64(((high ^ low) * _PRIME) >> uint64(40))


@no_refcount_kernel
def end_flow(high: int, low: int, port: int, protocol: int) -> Flow:
    """Return the key of a mapping: one end of its flows, as a flow to nowhere."""
    return Flow(
        *(uint64(high), uint64(low), uint64(0), uint64(0)),
        *(uint64(port), uint64(0), uint64(protocol)),
    )


@no_refcount_kernel
def peer_flow(seen: Flow, high: int, low: int) -> Flow:
    """Return the key of an address that an end outside lets in: no packet has its protocol and a port."""
    return Flow(
        *(seen.source_high, seen.source_low, high, low),
        *(seen.source_port, uint64(0), seen.protocol | _LET_IN),
    )


@no_refcount_kernel
def add_pair(key: Flow, seen: Flow, flows: Flows) -> bool:
    """Insert both rows of a session without ports; without room for both, insert none."""
    outward = flows.insert_local_flow(key)
    if outward is None:
        return False
    outward.high, outward.low, outward.kind = seen.target_high, seen.target_low, BY_ADDRESS
    inward = flows.insert_local_flow(seen)
    if inward is None:
        flows.remove_local_flow(key)
        return False
    inward.high, inward.low, inward.kind = key.target_high, key.target_low, BY_ADDRESS
    flows.expire_after(key, UDP_S)
    flows.expire_after(seen, UDP_S)
    return True


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
    if entry.sessions > 0:
        entry.sessions -= 1
    return int64(entry.sessions)


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
