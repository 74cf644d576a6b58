"""One admitted job in the cluster's units, and a cluster's machines in Packer's (Packer paper, III-A).

A job of several instants ends after them. A job of a single instant, for users who know only constants, has
no end: it holds its resources until its tasks have ended.

Packer counts in cores, MiB, MB/s and Mbit/s, and in instants of PACKED_INSTANT_S since 1970.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from dios.errors import InvalidError
from dios.firmament.cluster.columns import Floats
from dios.firmament.descriptors import Resources
from dios.limits import (
    PACKED_CELLS_MAX,
    PACKED_HORIZON_INSTANTS,
    PACKED_INSTANT_S,
    PACKED_MEMBERS_MAX,
    PACKED_NOTICE_INSTANTS,
    PACKED_TEXT_BYTES_MAX,
)
from dios.packer import (
    Datacenter,
    JobError,
    Node,
    Placement,
    Refusal,
    TiMra,
    allocate,
    allocate_earliest,
)

POLICY: Final = "ahead"
"""The policy of Packer that admits most jobs (docs/packer.md)."""
MIB: Final = 2**20
MB: Final = 1e6
MBIT: Final = 1e6 / 8
"""Bytes per second."""
_NOISE: Final = 1e-9
"""Relative to an instant: 3 times 0.1 s must not reach into a fourth."""
_NO_LIMIT: Final = 1e12
"""Mbit/s of links of racks and pods without a known bound."""


class Machine(NamedTuple):
    """A node, as Packer describes machines; ``link`` and ``disk`` in bytes per second, 0 if unknown."""

    node: int
    name: str
    rack: str
    cpus: float
    memory: float
    """Bytes."""
    link: float
    disk: float
    heard: bool = True
    """True if the node has reported ``link`` and ``disk``."""
    rack_link: float | None = None
    """Bytes per second of each link of its rack, in each direction; None if it has no known bound."""
    pod: str = ""
    pod_link: float | None = None
    """The same of the links of its pod."""

    def all_of_it(self) -> Floats:
        """(6,): the four resources, and bandwidth up and down, in Packer's units."""
        disk, link = self.disk / MB, self.link / MBIT
        return np.array((self.cpus, self.memory / MIB, disk, disk, link, link))

    def taken(self, amounts: Resources) -> Floats:
        """(6,): the resources that tasks of the flow network hold, in the same units."""
        disk, link = amounts.disk_io / MB, amounts.network / MBIT
        return np.array((amounts.cpus, amounts.memory / MIB, disk, disk, link, link))


def units_of(amounts: Floats) -> Resources:
    """Return (4,) or more amounts of Packer's in the scheduler's units, without bandwidth."""
    cpu, memory, write, read = amounts[:4].tolist()
    return Resources(cpu, math.ceil(memory * MIB), (write + read) * MB)


class Network:
    """The racks and pods of machines, and the bandwidth of their links (Packer paper, III-A).

    A rack is in the pod that its first machine with a pod names. Of several amounts for one link the smallest
    counts.
    """

    def __init__(self, machines: tuple[Machine, ...]) -> None:
        racks = dict.fromkeys(server.rack for server in machines)
        pod_of = dict.fromkeys(racks, "")
        for machine in machines:
            pod_of[machine.rack] = pod_of[machine.rack] or machine.pod
        self.racks: Final = tuple(racks)
        self.pods: Final = tuple(dict.fromkeys(pod_of.values()))
        numbers = {rack: number for number, rack in enumerate(self.racks)}
        self.rack_of: Final = np.array([numbers[server.rack] for server in machines], np.int64)
        """(machines,)"""
        self.pod_of: Final = np.array([self.pods.index(pod_of[rack]) for rack in self.racks], np.int64)
        """(racks,)"""
        self.rack_link: Final = np.full(len(self.racks), _NO_LIMIT)
        """(racks,) Mbit/s of the link in each direction."""
        self.pod_link: Final = np.full(len(self.pods), _NO_LIMIT)
        """(pods,) the same."""
        for machine, rack in zip(machines, self.rack_of.tolist(), strict=True):
            pod = self.pod_of[rack]
            if machine.rack_link is not None:
                self.rack_link[rack] = min(self.rack_link[rack], machine.rack_link / MBIT)
            if machine.pod_link is not None and machine.pod == self.pods[pod]:
                self.pod_link[pod] = min(self.pod_link[pod], machine.pod_link / MBIT)

    @property
    def links(self) -> int:
        """The number of links of racks and pods, in both directions."""
        return 2 * (len(self.racks) + len(self.pods))

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links between two machines: numbers among racks up, racks down, pods up, pods down."""
        source_rack, other = int(self.rack_of[source]), int(self.rack_of[target])
        if source_rack == other:
            return ()
        racks, pods = len(self.racks), len(self.pods)
        near = source_rack, racks + other
        left, right = int(self.pod_of[source_rack]), int(self.pod_of[other])
        return near if left == right else (*near, 2 * racks + left, 2 * racks + pods + right)

    def through(self, up: Floats, down: Floats) -> Floats:
        """Return (links,): the most that traffic of machines with an unknown other end puts on each link.

        ``up`` and ``down`` (machines,) are the amounts that the machines send and receive.
        """
        racks = [
            np.bincount(self.rack_of, amounts, len(self.racks)).astype(np.float64) for amounts in (up, down)
        ]
        pods = [np.bincount(self.pod_of, amounts, len(self.pods)).astype(np.float64) for amounts in racks]
        if len(self.pods) == 1:
            pods = [np.zeros(1)] * 2
        if len(self.racks) == 1:
            racks = [np.zeros(1)] * 2
        return np.concatenate([*racks, *pods])


def site_of(machines: tuple[Machine, ...], now: int, horizon: int = PACKED_HORIZON_INSTANTS) -> Datacenter:
    """Return an empty data centre of these machines, from instant ``now`` on."""
    network = Network(machines)
    has = np.array([machine.all_of_it() for machine in machines])
    return Datacenter(
        capacity=has[:, :4],
        rack_of=network.rack_of,
        pod_of=network.pod_of,
        link=has[:, 4],
        rack_link=network.rack_link,
        pod_link=network.pod_link,
        horizon=horizon,
        instant_s=PACKED_INSTANT_S,
        now=now,
    )


@dataclass(frozen=True)
class Booking:
    """A job, the places of its members, and its beginning."""

    job: TiMra
    """The description. Services are nodes of the cluster, and members like the others."""
    packed: bytes
    """Its description in the stored form."""
    began: float
    """In seconds since 1970."""
    places: dict[str, str]
    """The node of each member, by name."""

    @classmethod
    def unpacked(cls, packed: bytes, began: float, places: dict[str, str]) -> Booking:
        """Return a stored booking; raise InvalidError if it is invalid."""
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(packed, PACKED_TEXT_BYTES_MAX)
            if unpacker.unconsumed_tail:
                raise InvalidError("a stored job is too long")
            job = TiMra.from_toml(text.decode())
        except (zlib.error, UnicodeDecodeError, JobError) as error:
            raise InvalidError(f"a stored job is invalid: {error}") from None
        if not math.isfinite(began) or places.keys() != {node.name for node in job.nodes}:
            raise InvalidError(f"a stored job is invalid: the places of {job.name}")
        return cls(job, packed, began, places)

    @property
    def endless(self) -> bool:
        """Return True if it lasts until its tasks have ended."""
        return self.job.instants == 1

    @property
    def began_instant(self) -> int:
        """Packer's instant in which it begins."""
        return int(self.began // PACKED_INSTANT_S)

    @property
    def ends(self) -> float:
        """The end in seconds since 1970; infinity if it lasts until its tasks have ended."""
        return math.inf if self.endless else self.began + self.job.instants * self.job.instant_s

    @cached_property
    def _services(self) -> frozenset[str]:
        return frozenset(node.name for node in self.job.nodes if node.service is not None)

    def is_service(self, member: str) -> bool:
        """Return True if a member is a node of the cluster and not a task."""
        return member in self._services

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The nodes from which edges with bandwidth lead to other nodes, once for each edge."""
        flows = self.job.bandwidth.max(axis=1, initial=0.0).tolist()
        ends = [(self.places[edge.source], self.places[edge.target]) for edge in self.job.edges]
        return tuple(out for (out, into), sends in zip(ends, flows, strict=True) if sends and out != into)

    @cached_property
    def kept_bytes(self) -> int:
        """The approximate size of its stored form."""
        return (
            64 + len(self.packed) + sum(len(member) + len(node) + 8 for member, node in self.places.items())
        )

    def rest(self, elapsed: float, members: Collection[str]) -> TiMra | None:
        """Return the rest of the job for these members after ``elapsed`` seconds, in Packer's instants.

        Return None if nothing is left.
        """
        left = self.job.instants * self.job.instant_s - elapsed
        if not members or left <= 0.0:
            return None
        chosen = [at for at, node in enumerate(self.job.nodes) if node.name in members]
        edges = [
            at for at, edge in enumerate(self.job.edges) if edge.source in members and edge.target in members
        ]
        demand, flow = self.job.demand[chosen], self.job.bandwidth[edges]
        if not self.endless:
            spans = _spans(self.job.instants, self.job.instant_s, elapsed)
            demand = np.stack([demand[:, a:b].max(axis=1) for a, b in spans], axis=1)
            flow = np.stack([flow[:, a:b].max(axis=1) for a, b in spans], axis=1)
        return TiMra(
            self.job.name,
            [_bare(self.job.nodes[at], row) for at, row in zip(chosen, demand, strict=True)],
            [
                replace(self.job.edges[at], bandwidth=row, depends=False)
                for at, row in zip(edges, flow, strict=True)
            ],
            demand.shape[1],
            PACKED_INSTANT_S,
        )

    def demand_at(self, member: int, elapsed: float, ahead_s: float) -> tuple[float, float, float, float]:
        """Return the most that a member needs of each resource from ``elapsed`` on, for ``ahead_s`` seconds.

        ``member`` is its number among the nodes of the job. After the end of the job it needs nothing.
        """
        if self.endless:
            first, last = 0, 1
        else:
            first = min(self.job.instants, max(0, int(elapsed / self.job.instant_s)))
            last = max(first, math.ceil((elapsed + ahead_s) / self.job.instant_s))
        cpu, memory, write, read = self.job.demand[member, first:last].max(axis=0, initial=0.0).tolist()
        return cpu, memory, write, read

    def add_to(self, held: Floats, links: Floats, names: Mapping[str, int], network: Network) -> None:
        """Add its first demand to ``held`` (machines, 6) and to ``links`` of racks and pods.

        ``names`` has the machines' numbers.
        """
        machines = [names.get(self.places[node.name], -1) for node in self.job.nodes]
        for at, machine in enumerate(machines):
            if machine >= 0:
                held[machine, :4] += self.job.demand[at, 0]
        for (source, target), flow in zip(self.job.ends.tolist(), self.job.bandwidth[:, 0], strict=True):
            out, into = machines[source], machines[target]
            if out != into:
                for machine, side in ((out, 4), (into, 5)):
                    if machine >= 0:
                        held[machine, side] += flow
                if min(out, into) >= 0:
                    links[list(network.path(out, into))] += flow


def booking_of(job: TiMra, began: float, nodes: Collection[str]) -> Booking:
    """Return a job that begins at ``began`` and has no places yet.

    Raises ``JobError`` if a service is no node, or the job lasts longer than the horizon.
    """
    for node in job.nodes:
        if node.service is not None and node.service not in nodes:
            known = ", ".join(sorted(nodes)[:8])
            raise JobError(f"{node.field}.service", f"is {node.service!r}; services are nodes: {known}")
    cells = (4 * len(job.nodes) + len(job.edges)) * job.instants
    if len(job.nodes) > PACKED_MEMBERS_MAX or cells > PACKED_CELLS_MAX:
        raise JobError(
            "tasks", f"are too many for a cluster: {PACKED_MEMBERS_MAX} at most, for so long fewer"
        )
    if job.instants * job.instant_s > (PACKED_HORIZON_INSTANTS - 1) * PACKED_INSTANT_S:
        most = PACKED_HORIZON_INSTANTS * PACKED_INSTANT_S / 3600
        trouble = (
            f"is {job.instants}, of {job.instant_s:g} s each: a job that ends takes at most {most:.1f} h"
        )
        raise JobError("instants", f"{trouble}; without instants it lasts as long as its tasks")
    packed = zlib.compress(job.to_toml().encode(), 9)
    return Booking(job, packed, began, {node.name: node.service or "" for node in job.nodes})


def placed(
    booking: Booking, books: Datacenter, names: Mapping[str, int], wait: int | None = None
) -> Booking | Refusal:
    """Return the booking with places, which are not held yet; ``names`` has the machines' numbers.

    With ``wait`` it begins at most that number of instants after the time of the data centre.
    """
    members = list(booking.places)
    wanted = booking.rest(0.0, members)
    if wanted is None:
        raise JobError("instants", "are over")
    pinned = {member: names[node] for member, node in booking.places.items() if node}
    outcome = allocate(books, wanted, policy=POLICY, pinned=pinned)
    if isinstance(outcome, Refusal) and wait is not None and wait >= PACKED_NOTICE_INSTANTS:
        later = starting_later(booking, books, names, wait)
        if later is not None:
            later[0].release()
            return later[1]
    if isinstance(outcome, Refusal):
        return outcome
    outcome.release()
    return _at_places(booking, outcome, names)


def starting_later(
    booking: Booking, books: Datacenter, names: Mapping[str, int], last: int
) -> tuple[Placement, Booking] | None:
    """Hold a job at its earliest start up to ``last`` instants from now, and return it with that start.

    Members that are tasks may get any places. Return None if no such start has room.
    """
    wanted = booking.rest(0.0, list(booking.places))
    if wanted is None:
        return None
    pinned = {
        member: names[node]
        for member, node in booking.places.items()
        if booking.is_service(member) and node in names
    }
    if any(booking.is_service(member) and node not in names for member, node in booking.places.items()):
        return None
    placement = allocate_earliest(
        books, wanted, begin=PACKED_NOTICE_INSTANTS, last=last, policy=POLICY, pinned=pinned
    )
    if isinstance(placement, Refusal):
        return None
    begins = replace(booking, began=placement.start * PACKED_INSTANT_S)
    return placement, _at_places(begins, placement, names)


def _at_places(booking: Booking, placement: Placement, names: Mapping[str, int]) -> Booking:
    """Return a booking with the places that were found for its members."""
    nodes = list(names)
    return replace(booking, places={member: nodes[placement.servers[member]] for member in booking.places})


def _bare(node: Node, demand: Floats) -> Node:
    """Return a member with its demand from now on, and without dependencies."""
    cpu, memory, write, read = demand.T
    return Node(node.name, cpu, memory, write, read)


def _spans(instants: int, instant_s: float, elapsed: float) -> list[tuple[int, int]]:
    """Return the job's instants (from, up to) that each of Packer's touches, from ``elapsed`` seconds on.

    The job may begin anywhere within one of Packer's instants, so each touches the instants of two.
    """
    count = math.ceil((instants * instant_s - elapsed) / PACKED_INSTANT_S) + 1
    spans = []
    for at in range(count):
        begin = max(0.0, elapsed + (at - 1) * PACKED_INSTANT_S)
        end = elapsed + (at + 1) * PACKED_INSTANT_S
        first = min(instants - 1, int(begin / instant_s + _NOISE))
        spans.append((first, max(first + 1, math.ceil(end / instant_s - _NOISE))))
    return spans
