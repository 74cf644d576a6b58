"""A load balancer of layer 4: connections to one address are dealt to servers, which answer through it.

It does not read requests and does not check the health of servers. In front of a DIOS service the servers are
the tasks that accept connections for it: ``Balancer(("192.0.2.9", 80), followed.places, "10.1.0.254")``, with
a ``dios.lib.services.Followed``.

A QUIC client may change its address in the middle of a connection. The ids that servers announce in their
handshakes are stored, each on the core of its connection. A packet of an unknown flow with a known id opens a
flow to the same server, which sees that the address changed and validates the new one.

Servers may change at any time. There are two lists of servers: Python fills the one that is not in use, then
publishes in one word which list is in use and its length. A core that reads a list reads the word again
afterwards: if it is the same, the list was not changed in between.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from dios.kernels import kernel, no_refcount_kernel
from dios.limits import (
    SERVICE_MEMBERS_MAX,
    SPRAYER_QUIC_ID_BYTES_MAX,
    SPRAYER_QUIC_IDS_MAX,
    SPRAYER_QUIC_LENGTHS_MAX,
    SPRAYER_READ_RETRIES_MAX,
)
from dios.sprayer.compile.intrinsics import Words, fence, int64, load_acquire, store_release, uint64
from dios.sprayer.flows.five_tuple import (
    drop,
    get_five_tuple,
    hand_over,
    reverse,
    wait,
    with_source,
    with_target,
)
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.closing import track_closing
from dios.sprayer.network_function import NetworkFunction, checked_quic_ports
from dios.sprayer.packets.fragments import complete, make_datagrams
from dios.sprayer.packets.packet import (
    LATER_PART,
    NO_FLOW,
    NO_PORT,
    NO_SERVER,
    TABLE_FULL,
    Batch,
    Flow,
    Kept,
    Packet,
    checked_address,
    halves,
)
from dios.sprayer.packets.quic import QUIC_ID, QUIC_LONG, QUIC_SHORT, id_flow, source_id
from dios.sprayer.packets.rewrite import set_source, set_target

TRIES: Final = 256
PORTS: Final = 64_512
"""The number of ports, from 1024 on."""
OPENED, MIGRATED, IDS_REFUSED = range(3)
_LENGTHS: Final = 32
"""The flags of lengths in a row of a core: cache lines of its own."""

Server = tuple[str, int]
"""An address and a port."""
_BITS: Final = SERVICE_MEMBERS_MAX.bit_length()
"""The number of bits for the number of servers in the published word; the number of changes is above them."""


class Balancer(NetworkFunction):
    """A load balancer that deals connections to ``service`` (address, port) to ``servers`` in turn.

    ``servers`` are (address, port) each, or a function that returns them and is called regularly. A server
    that is not listed any more gets no new connections; its existing connections continue.

    Servers do not see the addresses of clients. Their packets come from ``inner``, an address of the
    balancer, with a port such that both directions have the same designated core. Each core deals out servers
    by itself: they are the global state of a load balancer (Table 3.1).
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
        ("ids", "u1"),
    )
    takes_fragments = True

    def __init__(
        self,
        service: Server,
        servers: Sequence[Server] | Callable[[], Sequence[Server]],
        inner: str,
        flows_max: int = 65_536,
        quic_ports: Sequence[int] = (),
    ) -> None:
        self.flows_max = 2 * flows_max
        self.quic_ports = checked_quic_ports(quic_ports)
        self.high, self.low = (int(np.array(half, np.uint64).astype(np.int64)) for half in halves(service[0]))
        self.port = service[1]
        self.inner = np.array(halves(inner), np.uint64)
        self.lists = np.zeros((2, SERVICE_MEMBERS_MAX, 4), np.uint64)
        """(2, servers, 4) halves of addresses, ports, and indices into ``by_server``."""
        self.reading = np.zeros(1, np.int64)
        """(1,) the list in use and the number of its servers."""
        self.by_server = np.zeros((1, SERVICE_MEMBERS_MAX), np.int64)
        self._before = np.zeros(SERVICE_MEMBERS_MAX, np.int64)
        self._places: dict[Server, int] = {}
        self._version = _version(service[0])
        checked_address(inner, self._version)
        if checked_address(service[0]) == checked_address(inner):
            raise ValueError(f"inner and the service have the address {inner}; give inner another one")
        if not 0 < service[1] < 2**16:
            raise ValueError(f"the port of the service is {service[1]}; give one from 1 to 65535")
        self._own = [service[0], inner]
        self._source = servers if callable(servers) else None
        if not callable(servers):
            if not servers:
                raise ValueError("a load balancer needs servers: give at least one (address, port)")
            self.set_servers(servers)

    def prepare(self, cores: int) -> None:
        """Create ports and counters for each core, and the table of fragmented datagrams."""
        self.datagrams, self.locks = make_datagrams()
        self.next = np.zeros((cores, 16), np.int64)
        self.counts = self.counters(cores, "opened", "migrated", "ids_refused")
        self.lengths = np.zeros((cores, _LENGTHS), np.int64)
        """(cores, lengths) 1 for each length of an id that a core has stored."""
        self.by_server = np.zeros((cores, SERVICE_MEMBERS_MAX), np.int64)
        """(cores, servers) connections, by the current index of a server."""

    def own_networks(self) -> Sequence[str]:
        """Return the address of the service and that for the servers."""
        return self._own

    def manage(self) -> None:
        """Update the servers if they come from a function; servers of another version of IP are left out."""
        if self._source is not None:
            servers = [
                (address, port) for address, port in self._source() if _version(address) == self._version
            ]
            self.set_servers(servers)

    def set_servers(self, servers: Sequence[Server]) -> None:
        """Deal new connections to these servers from now on; safe while workers run, one call at a time.

        Raises ``ValueError`` for too many servers, and for addresses or ports that are not valid for the
        service; then nothing changes.
        """
        wanted = list(dict.fromkeys((address, port) for address, port in servers))
        if len(wanted) > SERVICE_MEMBERS_MAX:
            raise ValueError(f"{len(wanted)} servers: at most {SERVICE_MEMBERS_MAX} are possible")
        for address, port in wanted:
            checked_address(address)
            if _version(address) != self._version or not 0 < port < 2**16:
                raise ValueError(
                    f"{address} port {port}: the service needs IPv{self._version} and a port from 1 to 65535"
                )
        if wanted == list(self._places):
            return
        used = set(self._places.values())
        free = [place for place in range(SERVICE_MEMBERS_MAX) if place not in used]
        free += [place for server, place in self._places.items() if server not in wanted]
        places = {}
        for server in wanted:
            places[server] = self._places[server] if server in self._places else free.pop(0)
            if server not in self._places:
                self._before[places[server]] = self.by_server[:, places[server]].sum()
        self._places = places
        changes = (int(self.reading[0]) >> _BITS) + 1
        rows = [(*halves(address), port, place) for (address, port), place in places.items()]
        for column in range(4):
            self.lists[changes & 1, : len(rows), column] = np.array([row[column] for row in rows], np.uint64)
        _publish(self.reading, changes << _BITS | len(wanted))

    def shares(self) -> dict[Server, int]:
        """Return the number of connections that each current server has received."""
        sums = self.by_server.sum(axis=0) - self._before
        return {server: int(sums[place]) for server, place in self._places.items()}

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Choose a server and a port for packets that open a connection; translate the others."""
        for packet in batch:
            flow = get_five_tuple(packet)
            opens = packet.opens and flow.target_port == uint64(self.port)
            opens = opens and flow.target_high == uint64(self.high) and flow.target_low == uint64(self.low)
            if opens and flows.get_flow(flow) is None:
                self.open(packet, flow, flows)
            else:
                if packet.quic == QUIC_LONG:
                    self.learn_id(packet, flow, flows)
                self.translate(packet, flow, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Translate packets of known connections."""
        for packet in batch:
            if packet.cause | packet.fragment:
                done = complete(packet, self.datagrams, self.locks, flows.seed[0], flows.now, False)
                if done == 0:
                    continue
                if done == 1:
                    packet.hash = flows.hash_of(get_five_tuple(packet))
            flow = get_five_tuple(packet)
            if packet.quic | packet.fragment:
                known = flows.get_flow(flow) is not None
                if packet.fragment == LATER_PART and not known:
                    wait(packet)
                    continue
                if packet.fragment != LATER_PART and (
                    not known or (packet.fragment and packet.syn | packet.fin | packet.rst)
                ):
                    hand_over(packet)
                    continue
            self.translate(packet, flow, flows)

    def open(self, packet: Packet, flow: Flow, flows: Flows) -> None:
        """Choose a server, and a port that is not used with it."""
        core = flows.core
        size = int64(0)
        if packet.quic == QUIC_SHORT:
            to, server, size = self.server_by_id(packet, flow, flows)
            if server < 0:
                drop(packet, NO_FLOW)
                return
        else:
            to, server = self.choose(flow, core)
        if server < 0:
            drop(packet, NO_SERVER)
            return
        for _ in range(TRIES):
            self.next[core, 1] = (self.next[core, 1] + 1) % PORTS
            there = with_source(to, self.inner[0], self.inner[1], 1024 + self.next[core, 1])
            if flows.designated_core(there) == core and flows.get_flow(reverse(there)) is None:
                if self.keep(packet, flow, there, server, flows) and size:
                    self.counts[core, MIGRATED] += 1
                    self.store_id(packet, packet.payload + 1, size, there, server, flows)
                return
        drop(packet, NO_PORT)

    def choose(self, flow: Flow, core: int) -> tuple[Flow, int]:
        """Return the flow to the next server, and the server's index; -1 if there is none."""
        self.next[core, 0] += 1
        for _ in range(SPRAYER_READ_RETRIES_MAX):
            said = load_acquire(self.reading, 0)
            count = said & ((1 << _BITS) - 1)
            if count == 0:
                break
            row = self.lists[(said >> _BITS) & 1, self.next[core, 0] % count]
            to = with_target(flow, row[0], row[1], row[2])
            place = int64(row[3])
            fence()
            if load_acquire(self.reading, 0) == said:
                return to, place
        return flow, int64(-1)

    def server_by_id(self, packet: Packet, flow: Flow, flows: Flows) -> tuple[Flow, int, int]:
        """Return the flow to the server of a connection id, the server's index, and the id's length.

        The index is -1 if no core has stored the id of a packet with a short header.
        """
        for size in range(1, SPRAYER_QUIC_ID_BYTES_MAX + 1):
            learned = int64(0)
            for core in range(flows.cores):
                learned |= self.lengths[core, size]
            for number in range(id_numbers(flows.cores) * learned):
                entry = flows.get_flow(id_flow(packet, packet.payload + 1, size, number))
                if entry is not None:
                    to = with_target(flow, entry.target_high, entry.target_low, entry.target_port)
                    return to, int64(entry.server), int64(size)
        return flow, int64(-1), int64(0)

    def learn_id(self, packet: Packet, flow: Flow, flows: Flows) -> None:
        """Store the id that a server announces for a known connection, if it has not announced too many."""
        entry = flows.get_local_flow(flow)
        mine = flow.target_high == self.inner[0] and flow.target_low == self.inner[1]
        if entry is None or not mine:
            return
        at, size = source_id(packet)
        server, announced = int64(entry.server), entry.ids
        if size == 0 or self.holds_id(packet, at, size, flows):
            return
        if announced < SPRAYER_QUIC_IDS_MAX and self.store_id(packet, at, size, reverse(flow), server, flows):
            entry = flows.get_local_flow(flow)
            if entry is not None:
                entry.ids = announced + 1
        else:
            self.counts[flows.core, IDS_REFUSED] += 1

    def holds_id(self, packet: Packet, at: int, size: int, flows: Flows) -> bool:
        """Return True if this core has stored an id."""
        for number in range(id_numbers(flows.cores)):
            if flows.holds(id_flow(packet, at, size, number)):
                return True
        return False

    def store_id(self, packet: Packet, at: int, size: int, there: Flow, server: int, flows: Flows) -> bool:
        """Store an id of the connection ``there`` to a server on this core; return False without room."""
        lengths = self.lengths[flows.core]
        if lengths[size] == 0 and lengths.sum() >= SPRAYER_QUIC_LENGTHS_MAX:
            return False
        for number in range(id_numbers(flows.cores)):
            key = id_flow(packet, at, size, number)
            if flows.designated_core(key) == flows.core:
                if not self.note(key, there, server, flows):
                    return False
                lengths[size] = 1
                return True
        return False

    def keep(self, packet: Packet, flow: Flow, there: Flow, server: int, flows: Flows) -> bool:
        """Store both directions of a connection and translate its first packet; return False without room."""
        if not self.note(flow, there, server, flows) or not self.note(
            reverse(there), reverse(flow), server, flows
        ):
            flows.remove_local_flow(flow)
            drop(packet, TABLE_FULL)
            return False
        self.counts[flows.core, OPENED] += 1
        self.by_server[flows.core, server] += 1
        set_source(packet, there.source_high, there.source_low, there.source_port)
        set_target(packet, there.target_high, there.target_low, there.target_port)
        return True

    def note(self, flow: Flow, other: Flow, server: int, flows: Flows) -> bool:
        """Store the translation of a flow; return False if the table is full."""
        entry = flows.insert_local_flow(flow)
        if entry is None:
            return False
        entry.source_high, entry.source_low = other.source_high, other.source_low
        entry.target_high, entry.target_low = other.target_high, other.target_low
        entry.source_port, entry.target_port = other.source_port, other.target_port
        entry.server = server
        return True

    def translate(self, packet: Packet, flow: Flow, flows: Flows) -> None:
        """Replace the addresses of a packet of a known connection."""
        entry = flows.peek_flow(flow) if packet.error else flows.get_flow(flow)
        if entry is None:
            drop(packet, NO_FLOW)
            return
        if packet.syn | packet.fin | packet.rst:
            track_closing(packet, flow, return_flow(entry, flow.protocol), flows)
            entry = flows.get_flow(flow)
        if entry is not None:
            set_source(packet, entry.source_high, entry.source_low, entry.source_port)
            set_target(packet, entry.target_high, entry.target_low, entry.target_port)

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:
        """Keep both directions while one of them is in use, and an id while its connection is."""
        if flow.protocol == QUIC_ID:
            # A direction is stored as long as the connection, but it may be idle itself.
            return flows.holds(return_flow(entry, 17))
        return flows.still_seen(return_flow(entry, flow.protocol))


@no_refcount_kernel
def id_numbers(cores: int) -> int:
    """Return the number of keys of an id that are tried: nearly always one of them belongs to each core."""
    return 16 + 4 * cores


@kernel
def _publish(word: Words, value: int) -> None:
    """Write a word after all earlier writes, and before all later writes."""
    store_release(word, 0, value)
    fence()


def _version(address: str) -> int:
    return ipaddress.ip_address(address).version


@no_refcount_kernel
def return_flow(entry: Kept, protocol: int) -> Flow:
    """Return the flow of the answers to a flow with this translation."""
    return Flow(
        entry.target_high,
        entry.target_low,
        entry.source_high,
        entry.source_low,
        uint64(entry.target_port),
        uint64(entry.source_port),
        uint64(protocol),
    )
