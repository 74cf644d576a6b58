"""Tetris as published, which checks no link: its admitted tasks, and those whose bandwidth the links have.

Its jobs are placed as if no edge needed bandwidth. Then the bandwidth that all admitted jobs really need is
added up on the links of their paths.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.packer.allocate import Placement, allocate
from dios.packer.datacenter import Datacenter
from dios.packer.job.ti_mra import Floats, Ints, TiMra
from labs.simulate.packing.simulate import JobSource


class MissingCapacity(NamedTuple):
    """Fractions of the tasks that arrived."""

    admitted: float
    supplied: float
    """The tasks of jobs whose links are never overloaded."""


class LinkLoads:
    """The bandwidth that admitted jobs need on each link of a tree over time."""

    def __init__(self, datacenter: Datacenter, instants: int) -> None:
        site = datacenter.site
        self._rack: Final = site.rack
        self._pod: Final = site.pod
        places, racks, pods = site.rack.size, datacenter.racks, datacenter.pods
        self._first: Final = np.cumsum([0, places, places, racks, racks, pods])
        """The first link of each kind: servers up and down, racks up and down, pods up and down."""
        units = np.concatenate([site.free[0, 4], site.free[0, 5], site.bundle[0].astype(np.float64)])
        self.capacity: Final[Floats] = datacenter.band.amount(units[:, None])[:, 0]
        self.loads: Final[Floats] = np.zeros((instants + datacenter.horizon, units.size))
        self.jobs: Final[list[tuple[int, int, Ints, int]]] = []
        """Of each job its start, its end, the links of its edges, and its number of tasks."""

    def add(self, job: TiMra, placement: Placement) -> None:
        """Add a job with its real bandwidth at the places of its admission."""
        place = np.array([placement.servers[node.name] for node in job.nodes])
        source, target = place[job.ends[:, 0]], place[job.ends[:, 1]]
        racks = self._rack[source], self._rack[target]
        pods = self._pod[racks[0]], self._pod[racks[1]]
        used = []
        for level, (origin, other) in enumerate(((source, target), racks, pods)):
            apart = origin != other
            for side, ends in enumerate((origin, other)):
                links = self._first[2 * level + side] + ends[apart]
                np.add.at(self.loads[placement.start : placement.end].T, links, job.bandwidth[apart])
                used.append(links)
        self.jobs.append((placement.start, placement.end, np.concatenate(used), len(job.nodes)))

    def supplied(self, begin: int) -> int:
        """Return the number of tasks of jobs from ``begin`` on whose links are never asked for too much."""
        over = self.loads > self.capacity * (1 + 1e-6)
        return sum(
            tasks
            for start, end, links, tasks in self.jobs
            if start >= begin and not over[start:end, links].any()
        )


def without_checks(
    datacenter: Datacenter, source: JobSource, policy: str, begin: int, instants: int
) -> MissingCapacity:
    """Offer the jobs of ``source`` to a policy that looks at no link; count those from ``begin`` on."""
    loads = LinkLoads(datacenter, instants)
    arrived = admitted = 0
    for instant in range(instants):
        for job in source(instant):
            placement = allocate(
                datacenter, job.with_arrays(job.demand, 0.0 * job.bandwidth), instant, policy=policy
            )
            counts = len(job.nodes) if instant >= begin else 0
            arrived += counts
            if placement:
                admitted += counts
                loads.add(job, placement)
    whole = max(arrived, 1)
    return MissingCapacity(admitted / whole, loads.supplied(begin) / whole)
