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
    PACKED_TEXT_BYTES_MAX,
)
from dios.packer import Datacenter, JobError, Node, Refusal, TiMra, allocate

POLICY: Final = "ahead"
"""The policy of Packer that admits most jobs (docs/packer.md)."""
MIB: Final = 2**20
MB: Final = 1e6
MBIT: Final = 1e6 / 8
"""Bytes per second."""
_NOISE: Final = 1e-9
"""Relative to an instant: 3 times 0.1 s must not reach into a fourth."""
_NO_LIMIT: Final = 1e12
"""Mbit/s of links between racks, whose capacity the nodes do not know."""


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


def site_of(machines: tuple[Machine, ...], now: int, horizon: int = PACKED_HORIZON_INSTANTS) -> Datacenter:
    """Return an empty data centre of these machines, from instant ``now`` on. Racks limit nothing."""
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

    def add_to(self, held: Floats, names: Mapping[str, int]) -> None:
        """Add its first demand to ``held`` (machines, 6); ``names`` has the machines' numbers."""
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


def placed(booking: Booking, books: Datacenter, names: Mapping[str, int]) -> Booking | Refusal:
    """Return the booking with places, which are not held yet; ``names`` has the machines' numbers."""
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
