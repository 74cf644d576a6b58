"""The score of the links between a task and the nodes placed before, for every possible place of the task.

Paths of a tree differ only by rack and pod, so links beyond them are scored once for each rack and not for
each server. If racks have several planes, a bundle counts as one link with the room of all of its links. It
may promise room that no single path has, which is noticed when the node is placed, but it never denies room
that exists.
"""

from __future__ import annotations

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.packer.job.ti_mra import Floats
from dios.packer.kernels.records import CUBIC, DOWN, UP, DatacenterArrays, JobArrays, ScoreRule, Scratch


@no_refcount_kernel
def sum_exchange(site: DatacenterArrays, job: JobArrays, node: int, scratch: Scratch) -> int:
    """Sum up a node's exchange with placed nodes; return the number of edges between them."""
    scratch.total[:] = 0.0
    scratch.groups[:] = 0
    edges = 0
    for which in range(job.first[node], job.first[node + 1]):
        edge = job.at[which]
        way = 0 if job.ends[edge, 1] == node else 1
        there = job.place[job.ends[edge, way]]
        if there < 0:
            continue
        edges += 1
        for level in range(3):
            name = there
            if level >= 1:
                name = site.rack[there]
            if level == 2:
                name = site.pod[name]
            group = _find_or_add(scratch, level, name)
            for t in range(job.slots.size):
                flow = np.float64(job.flow[edge, t])
                _add_flow(scratch.part[level, group, way, t], flow)
                scratch.volume[level, group] += flow
                if level == 0:
                    _add_flow(scratch.total[way, t], flow)
    return edges


@no_refcount_kernel
def _add_flow(sums: Floats, flow: float) -> None:
    sums[0] += 1.0
    sums[1] += flow
    sums[2] += flow * flow
    sums[3] += flow * flow * flow


@no_refcount_kernel
def _find_or_add(scratch: Scratch, level: int, name: int) -> int:
    """Return the index of a server, rack or pod among those with which the task exchanges; add it if new."""
    for group in range(scratch.groups[level]):
        if scratch.who[level, group] == name:
            return group
    group = int(scratch.groups[level])
    scratch.groups[level] += 1
    scratch.who[level, group] = name
    scratch.part[level, group] = 0.0
    scratch.volume[level, group] = 0.0
    return group


@no_refcount_kernel
def link_score(free: float, scale: float, sums: Floats, kind: int, weight: float) -> float:
    """Return a link's score at one instant: equation 8 over all edges that use it, or 0 for other kinds."""
    if kind == CUBIC:
        q, z = free * scale, scale
        cubes: float = sums[0] * q**3 - 3.0 * sums[1] * z * q**2 + 3.0 * sums[2] * z**2 * q - sums[3] * z**3
        return weight * cubes * q
    return 0.0


@no_refcount_kernel
def score_far_ends(
    site: DatacenterArrays, job: JobArrays, rule: ScoreRule, weight: float, scratch: Scratch
) -> None:
    """Score the links at the other ends: of servers, racks and pods with which the task exchanges."""
    racks = site.pod.size
    pods = scratch.pods[0]
    for level in range(3):
        scratch.beyond[level], scratch.full[level] = 0.0, 0
        for group in range(scratch.groups[level]):
            name = scratch.who[level, group]
            worth, ok, edges = 0.0, 1, 0.0
            for way in range(2):
                if scratch.part[level, group, way, 0, 0] == 0.0:
                    continue
                edges += scratch.part[level, group, way, 0, 0]
                for t in range(job.slots.size):
                    sums, slot = scratch.part[level, group, way, t], job.slots[t]
                    if level == 0:
                        # Traffic that the task receives leaves there by the link up.
                        row = UP if way == 0 else DOWN
                        free, scale = (
                            np.float64(site.free[slot, row, name]),
                            np.float64(site.scale[row, name]),
                        )
                    else:
                        at = name + way * racks if level == 1 else 2 * racks + way * pods + name
                        free, scale = np.float64(site.bundle[slot, at]), site.bundle_scale[at]
                    if free < sums[1]:
                        ok = 0
                    worth += link_score(free, scale, sums, rule.kind, weight)
            # If the task is on the same server, two links of each edge are saved.
            scratch.inside[level, group] = 2.0 * edges * job.slots.size * rule.bonus * weight - worth
            scratch.far_ok[level, group] = ok
            scratch.beyond[level] += worth
            scratch.full[level] += 1 - ok


@no_refcount_kernel
def _score_near_end(
    site: DatacenterArrays,
    job: JobArrays,
    level: int,
    name: int,
    own: int,
    rule: ScoreRule,
    weight: float,
    scratch: Scratch,
) -> tuple[float, int]:
    """Score the links of a rack or pod that holds the task; exchange inside of it does not count."""
    racks, pods = site.pod.size, scratch.pods[0]
    worth, ok = 0.0, 1
    sums = scratch.work
    for way in range(2):
        if scratch.total[way, 0, 0] == 0.0:
            continue
        # Traffic that the task receives comes in by the link down.
        at = name + (1 - way) * racks if level == 1 else 2 * racks + (1 - way) * pods + name
        for t in range(job.slots.size):
            for k in range(4):
                sums[k] = scratch.total[way, t, k]
                if own >= 0:
                    sums[k] -= scratch.part[level, own, way, t, k]
            if sums[0] == 0.0:
                continue
            free = np.float64(site.bundle[job.slots[t], at])
            if free < sums[1]:
                ok = 0
            worth += link_score(free, site.bundle_scale[at], sums, rule.kind, weight)
    return worth, ok


@no_refcount_kernel
def _find(scratch: Scratch, level: int, name: int) -> int:
    for group in range(scratch.groups[level]):
        if scratch.who[level, group] == name:
            return group
    return -1


@no_refcount_kernel
def score_tiers(
    site: DatacenterArrays, job: JobArrays, rule: ScoreRule, weight: float, scratch: Scratch
) -> None:
    """Fill, for each rack with the task in it, the score and the room of the links of racks and pods."""
    # Levels come from ranges, because Numba would compile the kernels again for a constant argument.
    for level in range(1, 3):
        count = site.pod.size if level == 1 else scratch.pods[0]
        for name in range(count):
            own = _find(scratch, level, name)
            worth, ok = _score_near_end(site, job, level, name, own, rule, weight, scratch)
            full = scratch.full[level]
            worth += scratch.beyond[level]
            if own >= 0:
                worth += scratch.inside[level, own]
                full -= 1 - scratch.far_ok[level, own]
            scratch.tier_score[level, name] = worth
            scratch.tier_ok[level, name] = 1 if ok == 1 and full == 0 else 0
            scratch.tier_kept[level, name] = scratch.volume[level, own] if own >= 0 else 0.0
    everything = 0.0
    for group in range(scratch.groups[2]):
        everything += scratch.volume[2, group]
    for rack in range(site.pod.size):
        pod = site.pod[rack]
        scratch.tier_score[1, rack] += scratch.tier_score[2, pod]
        scratch.tier_ok[1, rack] *= scratch.tier_ok[2, pod]
        factor = 1.0
        if everything > 0.0:
            factor -= rule.remote
            factor -= rule.racks * (1.0 - scratch.tier_kept[1, rack] / everything)
            factor -= rule.pods * (1.0 - scratch.tier_kept[2, pod] / everything)
        scratch.factor[rack] = factor
