"""One admitted job in the cluster's units, and a cluster's machines in Packer's (Packer paper, III-A).

For: ``policies.packing``. Not for: keeping books.

A job of more than one instant ends when they are over. One of a single instant, as of whoever knows only
constants, has no end: it holds what it asks for until its tasks have ended.

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
    PACKED_TEXT_BYTES_MAX,
)
from dios.packer import Datacenter, JobError, Node, Refusal, TiMra, allocate

POLICY: Final = "ahead"
"""Which of Packer's policies places jobs: the one that admits most (docs/packer.md)."""
MIB: Final = 2**20
MB: Final = 1e6
MBIT: Final = 1e6 / 8
"""Bytes a second."""
_NOISE: Final = 1e-9
"""Of a job's instant: 3 times 0.1 s are not a fourth."""
_NO_LIMIT: Final = 1e12
"""Of links between racks, Mbit/s: what they carry is not known to nodes."""


class Machine(NamedTuple):
    """A node, as Packer sees it; ``link`` and ``disk`` in bytes a second, 0 where nobody knows."""

    node: int
    name: str
    rack: str
    cpus: float
    memory: float
    """Bytes."""
    link: float
    disk: float
    heard: bool = True
    """Whether the node has told yet what these are."""

    def all_of_it(self) -> Floats:
        """(6,): the four resources, and bandwidth up and down, in Packer's units."""
        disk, link = self.disk / MB, self.link / MBIT
        return np.array((self.cpus, self.memory / MIB, disk, disk, link, link))

    def taken(self, amounts: Resources) -> Floats:
        """(6,): what tasks of the flow network have been given, likewise."""
        disk, link = amounts.disk_io / MB, amounts.network / MBIT
        return np.array((amounts.cpus, amounts.memory / MIB, disk, disk, link, link))


def units_of(amounts: Floats) -> Resources:
    """(4,) or more amounts of Packer's in the scheduler's units; Packer's bandwidth is told of by nobody."""
    cpu, memory, write, read = amounts[:4].tolist()
    return Resources(cpu, math.ceil(memory * MIB), (write + read) * MB)


def site_of(machines: tuple[Machine, ...], now: int, horizon: int = PACKED_HORIZON_INSTANTS) -> Datacenter:
    """Empty books of these machines, from instant ``now`` on. Their racks limit nothing."""
    racks = {rack: number for number, rack in enumerate(dict.fromkeys(one.rack for one in machines))}
    has = np.array([one.all_of_it() for one in machines])
    return Datacenter(
        capacity=has[:, :4],
        rack_of=np.array([racks[one.rack] for one in machines]),
        pod_of=np.zeros(len(racks), np.int64),
        link=has[:, 4],
        rack_link=_NO_LIMIT,
        pod_link=_NO_LIMIT,
        horizon=horizon,
        instant_s=PACKED_INSTANT_S,
        now=now,
    )


@dataclass(frozen=True)
class Booking:
    """A job, where its members are, and when it began."""

    job: TiMra
    """As it was described; what it calls services are nodes of the cluster, and members like the others."""
    packed: bytes
    """Its description, as it is handed on."""
    began: float
    """In seconds since 1970."""
    places: dict[str, str]
    """The node of each member, by name."""

    @classmethod
    def unpacked(cls, packed: bytes, began: float, places: dict[str, str]) -> Booking:
        """A booking that was handed on; InvalidError for what is none."""
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(packed, PACKED_TEXT_BYTES_MAX)
            if unpacker.unconsumed_tail:
                raise InvalidError("a job that was handed on is too long")
            job = TiMra.from_toml(text.decode())
        except (zlib.error, UnicodeDecodeError, JobError) as error:
            raise InvalidError(f"a job that was handed on makes no sense: {error}") from None
        if not math.isfinite(began) or places.keys() != {node.name for node in job.nodes}:
            raise InvalidError(f"a job that was handed on makes no sense: the places of {job.name}")
        return cls(job, packed, began, places)

    @property
    def endless(self) -> bool:
        """Whether it lasts until its tasks have ended."""
        return self.job.instants == 1

    @property
    def ends(self) -> float:
        """In seconds since 1970; infinity where it lasts until its tasks have ended."""
        return math.inf if self.endless else self.began + self.job.instants * self.job.instant_s

    @cached_property
    def _services(self) -> frozenset[str]:
        return frozenset(node.name for node in self.job.nodes if node.service is not None)

    def is_service(self, member: str) -> bool:
        """Whether a member is a node of the cluster, and no task."""
        return member in self._services

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The nodes that edges with bandwidth leave for other nodes, once for each edge."""
        flows = self.job.bandwidth.max(axis=1, initial=0.0).tolist()
        ends = [(self.places[edge.source], self.places[edge.target]) for edge in self.job.edges]
        return tuple(out for (out, into), sends in zip(ends, flows, strict=True) if sends and out != into)

    @cached_property
    def kept_bytes(self) -> int:
        """How much of what is handed on it takes, about."""
        return (
            64 + len(self.packed) + sum(len(member) + len(node) + 8 for member, node in self.places.items())
        )

    def rest(self, elapsed: float, members: Collection[str]) -> TiMra | None:
        """What is left of it for these members after so many seconds, in the books' instants.

        None for nothing.
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

    def add_to(self, held: Floats, names: Mapping[str, int]) -> None:
        """Add what it holds at its first instant to ``held`` (machines, 6), where ``names`` has numbers."""
        where = [names.get(self.places[node.name], -1) for node in self.job.nodes]
        for at, machine in enumerate(where):
            if machine >= 0:
                held[machine, :4] += self.job.demand[at, 0]
        for (source, target), flow in zip(self.job.ends.tolist(), self.job.bandwidth[:, 0], strict=True):
            out, into = where[source], where[target]
            if out != into:
                for machine, side in ((out, 4), (into, 5)):
                    if machine >= 0:
                        held[machine, side] += flow


def booking_of(job: TiMra, began: float, nodes: Collection[str]) -> Booking:
    """A job that begins then and has no places yet.

    Raises ``JobError``: a service is no node, or the job lasts longer than books reach.
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


def placed(booking: Booking, books: Datacenter, names: Mapping[str, int]) -> Booking | Refusal:
    """The booking with places for all of its members; they are not held. ``names`` has machines' numbers."""
    members = list(booking.places)
    wanted = booking.rest(0.0, members)
    if wanted is None:
        raise JobError("instants", "are over")
    pinned = {member: names[node] for member, node in booking.places.items() if node}
    found = allocate(books, wanted, policy=POLICY, pinned=pinned)
    if isinstance(found, Refusal):
        return found
    found.release()
    nodes = list(names)
    return replace(booking, places={member: nodes[found.servers[member]] for member in members})


def _bare(node: Node, demand: Floats) -> Node:
    """A member with what it needs from now on, and nothing that it waits for."""
    cpu, memory, write, read = demand.T
    return Node(node.name, cpu, memory, write, read)


def _spans(instants: int, instant_s: float, elapsed: float) -> list[tuple[int, int]]:
    """Which of a job's instants (from, up to) each of the books touches, so many seconds after its beginning.

    It may begin anywhere within an instant of the books, so each touches what two together would.
    """
    count = math.ceil((instants * instant_s - elapsed) / PACKED_INSTANT_S) + 1
    spans = []
    for at in range(count):
        begin = max(0.0, elapsed + (at - 1) * PACKED_INSTANT_S)
        end = elapsed + (at + 1) * PACKED_INSTANT_S
        first = min(instants - 1, int(begin / instant_s + _NOISE))
        spans.append((first, max(first + 1, math.ceil(end / instant_s - _NOISE))))
    return spans
