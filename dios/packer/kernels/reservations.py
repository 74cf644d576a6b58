"""Reserving and releasing a job's amounts, link by link, in whole units, so that nothing drifts."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.packer.job.ti_mra import Ints
from dios.packer.kernels.records import BAND, DOWN, UP, DatacenterArrays, JobArrays, Scratch

AnyInt: TypeAlias = int | np.int64

# Numba compiles a kernel again for a plain constant as an argument, but not for one with a type.
RESERVE: Final = np.int64(1)
RELEASE: Final = np.int64(-1)
FROM_START: Final = np.int64(0)
FIRST_PLANE: Final = np.int64(0)
UNLIMITED: Final = 2**62
"""More free bandwidth than any link has."""


@no_refcount_kernel
def route(site: DatacenterArrays, source: int, target: int, plane: AnyInt, links: Ints) -> int:
    """Fill in the path's switch links in a plane; return their number: 0 in a rack, 2 in a pod, or 4."""
    rack, other = site.rack[source], site.rack[target]
    if rack == other:
        return 0
    many, cores, racks = site.planes[0], site.planes[1], site.pod.size
    middle = plane // cores
    links[0] = rack * many + middle
    links[1] = (racks + other) * many + middle
    left, right = site.pod[rack], site.pod[other]
    if left == right:
        return 2
    upwards = (site.bundle.shape[1] - 2 * racks) // 2 * many * cores
    links[2] = 2 * racks * many + left * many * cores + plane
    links[3] = 2 * racks * many + upwards + right * many * cores + plane
    return 4


@no_refcount_kernel
def best_plane(site: DatacenterArrays, job: JobArrays, edge: int, scratch: Scratch) -> int:
    """Return the plane whose tightest link has the most room left, or -1 if none has room.

    ``scratch.short`` becomes (tightest link of that plane, instant); links are numbered as places up, places
    down, then the links between switches.
    """
    source, target = job.place[job.ends[edge, 0]], job.place[job.ends[edge, 1]]
    if source == target:
        return 0
    places = site.free.shape[2]
    for t in range(job.slots.size):
        flow = np.float32(job.flow[edge, t])
        if site.free[job.slots[t], UP, source] < flow:
            scratch.short[0], scratch.short[1] = source, t
            return -1
        if site.free[job.slots[t], DOWN, target] < flow:
            scratch.short[0], scratch.short[1] = places + target, t
            return -1
    count = route(site, source, target, FIRST_PLANE, scratch.links)
    if count == 0:
        return 0
    cores = site.planes[1]
    step = 1 if count == 4 else cores
    best, room = -1, -UNLIMITED
    for plane in range(0, site.planes[0] * cores, step):
        route(site, source, target, plane, scratch.links)
        least, link, when = UNLIMITED, -1, -1
        for t in range(job.slots.size):
            for k in range(count):
                left = site.trunk[job.slots[t], scratch.links[k]] - job.flow[edge, t]
                if left < least:
                    least, link, when = left, scratch.links[k], t
        if least > room:
            best, room = plane, least
            scratch.short[0], scratch.short[1] = 2 * places + link, when
    return best if room >= 0 else -1


@no_refcount_kernel
def move_edge(
    site: DatacenterArrays, job: JobArrays, edge: int, sign: AnyInt, begin: AnyInt, scratch: Scratch
) -> None:
    """Reserve (``sign`` 1) or release (-1) an edge's bandwidth on its path, from instant ``begin`` on."""
    source, target = job.place[job.ends[edge, 0]], job.place[job.ends[edge, 1]]
    if source == target:
        return
    count = route(site, source, target, job.plane[edge], scratch.links)
    racks = site.pod.size
    pods = (site.bundle.shape[1] - 2 * racks) // 2
    rack, other = site.rack[source], site.rack[target]
    for t in range(begin, job.slots.size):
        slot, flow = job.slots[t], sign * job.flow[edge, t]
        site.free[slot, UP, source] -= np.float32(flow)
        site.free[slot, DOWN, target] -= np.float32(flow)
        site.spent[slot, BAND] += (2 + count) * flow
        for k in range(count):
            site.trunk[slot, scratch.links[k]] -= flow
        if count >= 2:
            site.bundle[slot, rack] -= flow
            site.bundle[slot, racks + other] -= flow
        if count == 4:
            site.bundle[slot, 2 * racks + site.pod[rack]] -= flow
            site.bundle[slot, 2 * racks + pods + site.pod[other]] -= flow


@no_refcount_kernel
def move_node(site: DatacenterArrays, job: JobArrays, node: int, sign: AnyInt, begin: AnyInt) -> None:
    """Reserve or release a node's demand at its place, from instant ``begin`` on."""
    place = job.place[node]
    for t in range(begin, job.slots.size):
        slot = job.slots[t]
        for r in range(4):
            need = job.demand[node, t, r]
            if need > np.float32(0.0):
                site.free[slot, r, place] -= np.float32(sign) * need
                site.spent[slot, r] += sign * int(need)


@no_refcount_kernel
def reserve_edges(site: DatacenterArrays, job: JobArrays, node: int, scratch: Scratch) -> bool:
    """Reserve the paths from and to a placed node; reserve nothing and return False if one has no room."""
    first, last = job.first[node], job.first[node + 1]
    for which in range(first, last):
        edge = job.at[which]
        if job.place[job.ends[edge, 0]] < 0 or job.place[job.ends[edge, 1]] < 0:
            continue
        plane = best_plane(site, job, edge, scratch)
        if plane < 0:
            release_edges(site, job, first, which, scratch)
            return False
        job.plane[edge] = plane
        move_edge(site, job, edge, RESERVE, FROM_START, scratch)
    return True


@no_refcount_kernel
def release_edges(site: DatacenterArrays, job: JobArrays, first: int, last: int, scratch: Scratch) -> None:
    """Release the reserved edges of ``load.at[first:last]``."""
    for which in range(first, last):
        edge = job.at[which]
        if job.plane[edge] >= 0:
            move_edge(site, job, edge, RELEASE, FROM_START, scratch)
            job.plane[edge] = -1


@no_refcount_kernel
def release_job(site: DatacenterArrays, job: JobArrays, begin: AnyInt, scratch: Scratch) -> None:
    """Release all reservations of a job, from its instant ``begin`` on."""
    for edge in range(job.plane.size):
        if job.plane[edge] >= 0:
            move_edge(site, job, edge, RELEASE, begin, scratch)
    for node in range(job.place.size):
        if job.place[node] >= 0:
            move_node(site, job, node, RELEASE, begin)
