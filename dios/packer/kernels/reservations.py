"""Reserving and releasing a job's amounts, link by link, in whole units, so that nothing drifts."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.packer.job.ti_mra import Ints
from dios.packer.kernels.records import BAND, DOWN, UP, Load, Near, Site

Whole: TypeAlias = int | np.int64

# Numba compiles a kernel again for a plain constant as an argument, but not for one with a type.
TAKE: Final = np.int64(1)
GIVE: Final = np.int64(-1)
AT_ONCE: Final = np.int64(0)
FIRST_PLANE: Final = np.int64(0)
WHOLE: Final = 2**62
"""More free bandwidth than any link has."""


@no_refcount_kernel
def route(site: Site, source: int, target: int, plane: Whole, links: Ints) -> int:
    """Fill in the path's switch links in a plane; return their number: 0 in a rack, 2 in a pod, or 4."""
    one, other = site.rack[source], site.rack[target]
    if one == other:
        return 0
    many, cores, racks = site.planes[0], site.planes[1], site.pod.size
    middle = plane // cores
    links[0] = one * many + middle
    links[1] = (racks + other) * many + middle
    left, right = site.pod[one], site.pod[other]
    if left == right:
        return 2
    upwards = (site.bundle.shape[1] - 2 * racks) // 2 * many * cores
    links[2] = 2 * racks * many + left * many * cores + plane
    links[3] = 2 * racks * many + upwards + right * many * cores + plane
    return 4


@no_refcount_kernel
def best_plane(site: Site, load: Load, edge: int, near: Near) -> int:
    """Return the plane whose tightest link has the most room left, or -1 if none has room.

    ``near.short`` becomes (tightest link of that plane, instant); links are numbered as places up, places
    down, then the links between switches.
    """
    source, target = load.place[load.ends[edge, 0]], load.place[load.ends[edge, 1]]
    if source == target:
        return 0
    places = site.free.shape[2]
    for t in range(load.slots.size):
        flow = np.float32(load.flow[edge, t])
        if site.free[load.slots[t], UP, source] < flow:
            near.short[0], near.short[1] = source, t
            return -1
        if site.free[load.slots[t], DOWN, target] < flow:
            near.short[0], near.short[1] = places + target, t
            return -1
    count = route(site, source, target, FIRST_PLANE, near.links)
    if count == 0:
        return 0
    cores = site.planes[1]
    step = 1 if count == 4 else cores
    best, room = -1, -WHOLE
    for plane in range(0, site.planes[0] * cores, step):
        route(site, source, target, plane, near.links)
        least, link, when = WHOLE, -1, -1
        for t in range(load.slots.size):
            for k in range(count):
                left = site.trunk[load.slots[t], near.links[k]] - load.flow[edge, t]
                if left < least:
                    least, link, when = left, near.links[k], t
        if least > room:
            best, room = plane, least
            near.short[0], near.short[1] = 2 * places + link, when
    return best if room >= 0 else -1


@no_refcount_kernel
def move_edge(site: Site, load: Load, edge: int, sign: Whole, begin: Whole, near: Near) -> None:
    """Reserve (``sign`` 1) or release (-1) an edge's bandwidth on its path, from instant ``begin`` on."""
    source, target = load.place[load.ends[edge, 0]], load.place[load.ends[edge, 1]]
    if source == target:
        return
    count = route(site, source, target, load.plane[edge], near.links)
    racks = site.pod.size
    pods = (site.bundle.shape[1] - 2 * racks) // 2
    one, other = site.rack[source], site.rack[target]
    for t in range(begin, load.slots.size):
        slot, flow = load.slots[t], sign * load.flow[edge, t]
        site.free[slot, UP, source] -= np.float32(flow)
        site.free[slot, DOWN, target] -= np.float32(flow)
        site.spent[slot, BAND] += (2 + count) * flow
        for k in range(count):
            site.trunk[slot, near.links[k]] -= flow
        if count >= 2:
            site.bundle[slot, one] -= flow
            site.bundle[slot, racks + other] -= flow
        if count == 4:
            site.bundle[slot, 2 * racks + site.pod[one]] -= flow
            site.bundle[slot, 2 * racks + pods + site.pod[other]] -= flow


@no_refcount_kernel
def move_node(site: Site, load: Load, node: int, sign: Whole, begin: Whole) -> None:
    """Reserve or release a node's demand at its place, from instant ``begin`` on."""
    place = load.place[node]
    for t in range(begin, load.slots.size):
        slot = load.slots[t]
        for r in range(4):
            need = load.demand[node, t, r]
            if need > np.float32(0.0):
                site.free[slot, r, place] -= np.float32(sign) * need
                site.spent[slot, r] += sign * int(need)


@no_refcount_kernel
def take_edges(site: Site, load: Load, node: int, near: Near) -> bool:
    """Reserve the paths from and to a placed node; reserve nothing and return False if one has no room."""
    first, last = load.first[node], load.first[node + 1]
    for which in range(first, last):
        edge = load.at[which]
        if load.place[load.ends[edge, 0]] < 0 or load.place[load.ends[edge, 1]] < 0:
            continue
        plane = best_plane(site, load, edge, near)
        if plane < 0:
            give_edges(site, load, first, which, near)
            return False
        load.plane[edge] = plane
        move_edge(site, load, edge, TAKE, AT_ONCE, near)
    return True


@no_refcount_kernel
def give_edges(site: Site, load: Load, first: int, last: int, near: Near) -> None:
    """Release the reserved edges of ``load.at[first:last]``."""
    for which in range(first, last):
        edge = load.at[which]
        if load.plane[edge] >= 0:
            move_edge(site, load, edge, GIVE, AT_ONCE, near)
            load.plane[edge] = -1


@no_refcount_kernel
def give_back(site: Site, load: Load, begin: Whole, near: Near) -> None:
    """Release all reservations of a job, from its instant ``begin`` on."""
    for edge in range(load.plane.size):
        if load.plane[edge] >= 0:
            move_edge(site, load, edge, GIVE, begin, near)
    for node in range(load.place.size):
        if load.place[node] >= 0:
            move_node(site, load, node, GIVE, begin)
