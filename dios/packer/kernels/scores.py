"""The score of each server for a task, by the server's own resources and its own link.

Loops run over servers, whose amounts are adjacent in memory, so that a processor handles eight at a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.packer.kernels.records import (
    ALIGN,
    BEST,
    CUBIC,
    DOWN,
    FIRST,
    UP,
    DatacenterArrays,
    JobArrays,
    ScoreRule,
    Scratch,
    Singles,
)

BLOCK: Final = 1024
"""The number of servers at a time whose amounts fit in a processor's first-level cache."""
UNSET_REST: Final = np.float32(2.0**26)
"""More than the rest of any resource."""


@no_refcount_kernel
def score_servers(
    site: DatacenterArrays, job: JobArrays, node: int, rule: ScoreRule, weights: Singles, scratch: Scratch
) -> None:
    """Compute score and room of every place that may hold a node, by its resources (equations 6 and 7)."""
    low, high = job.span[node, 0], job.span[node, 1]
    for begin in range(low, high, BLOCK):
        end = min(high, begin + BLOCK)
        score, worst, sums = scratch.score[begin:end], scratch.worst[begin:end], scratch.sums[begin:end]
        score[:] = np.float32(0.0)
        worst[:] = UNSET_REST
        for r in range(4):
            scale = site.scale[r, begin:end]
            sums[:] = np.float32(0.0)
            if rule.kind == CUBIC:
                _sum_cubes(site, job, node, r, begin, end, scratch)
                _add_scaled(sums, scale, weights[r], score)
                continue
            cells = 0
            for t in range(job.slots.size):
                need = job.demand[node, t, r]
                if need > np.float32(0.0):
                    _add_product(site.free[job.slots[t], r, begin:end], need, rule.kind, sums, worst)
                    cells += 1
            if cells > 0:
                _add_products(sums, scale, cells, rule.kind, score)
        if rule.ahead > 0.0:
            _score_own_link(site, job, node, rule, begin, end, scratch)


@no_refcount_kernel
def _score_own_link(
    site: DatacenterArrays, job: JobArrays, node: int, rule: ScoreRule, begin: int, end: int, scratch: Scratch
) -> None:
    """Score a place's own link for all traffic of a node; lower the score if the link has no room for it."""
    score, tight, sums = scratch.score[begin:end], scratch.tight[begin:end], scratch.sums[begin:end]
    tight[:] = UNSET_REST
    for way in range(2):
        sums[:] = np.float32(0.0)
        cells = 0
        for t in range(job.slots.size):
            need = job.hose[node, t, way]
            if need > np.float32(0.0):
                _add_product(site.free[job.slots[t], UP + way, begin:end], need, rule.kind, sums, tight)
                cells += 1
        if cells > 0:
            _add_products(sums, site.scale[UP + way, begin:end], cells, rule.kind, score)
    left = np.float32(1.0 - rule.ahead)
    for n in range(score.size):
        score[n] *= np.float32(1.0) if tight[n] >= np.float32(0.0) else left


# Sums over instants are in units: single precision reaches far beyond (2**24)**4. The conversion to fractions
# of a capacity is the same at each instant and comes last.


@no_refcount_kernel
def _sum_cubes(
    site: DatacenterArrays, job: JobArrays, node: int, r: int, begin: int, end: int, scratch: Scratch
) -> None:
    """Sum equation 7 for one resource over all instants, in units and without its weight."""
    worst, sums = scratch.worst[begin:end], scratch.sums[begin:end]
    last = job.slots.size - 1
    for t in range(0, last, 2):
        row, other = site.free[job.slots[t], r, begin:end], site.free[job.slots[t + 1], r, begin:end]
        _add_two_cubes(row, job.demand[node, t, r], other, job.demand[node, t + 1, r], sums, worst)
    if last % 2 == 0:
        _add_cubes(site.free[job.slots[last], r, begin:end], job.demand[node, last, r], sums, worst)


@no_refcount_kernel
def _add_cubes(row: Singles, need: np.float32, sums: Singles, worst: Singles) -> None:
    """Add (Q - d)^3 Q at one instant."""
    for n in range(row.size):
        left = row[n] - need
        worst[n] = min(worst[n], left)
        sums[n] += (left * left * left) * row[n]


@no_refcount_kernel
def _add_two_cubes(
    row: Singles, need: np.float32, other: Singles, need_other: np.float32, sums: Singles, worst: Singles
) -> None:
    """Add two instants at once: reading and writing the sums, half as often, takes most of the time."""
    for n in range(row.size):
        left, left_other = row[n] - need, other[n] - need_other
        worst[n] = min(worst[n], left, left_other)
        sums[n] += (left * left * left) * row[n] + (left_other * left_other * left_other) * other[n]


@no_refcount_kernel
def _add_scaled(sums: Singles, scale: Singles, weight: np.float32, score: Singles) -> None:
    """Add sums of fourth powers of units to the score, as fractions of a capacity."""
    for n in range(score.size):
        square = scale[n] * scale[n]
        score[n] += weight * (sums[n] * square * square)


@no_refcount_kernel
def _add_product(row: Singles, need: np.float32, kind: int, sums: Singles, worst: Singles) -> None:
    """Add the alignment d Q at one instant, in units, or for best fit the rest."""
    if kind == ALIGN:
        for n in range(row.size):
            worst[n] = min(worst[n], row[n] - need)
            sums[n] += need * row[n]
    elif kind == BEST:
        for n in range(row.size):
            left = row[n] - need
            worst[n] = min(worst[n], left)
            sums[n] += left
    else:
        for n in range(row.size):
            worst[n] = min(worst[n], row[n] - need)


@no_refcount_kernel
def _add_products(sums: Singles, scale: Singles, cells: int, kind: int, score: Singles) -> None:
    """Add the sums of ``_add_product`` over ``cells`` instants to the score, as fractions of a capacity."""
    if kind == ALIGN:
        for n in range(score.size):
            score[n] += sums[n] * scale[n] * scale[n]
    elif kind == BEST:
        for n in range(score.size):
            score[n] += np.float32(cells) - sums[n] * scale[n]


@no_refcount_kernel
def score_links(
    site: DatacenterArrays, job: JobArrays, node: int, rule: ScoreRule, weight: float, scratch: Scratch
) -> None:
    """Score each place's own link as if the node's whole exchange used it (equation 8)."""
    low, high = job.span[node, 0], job.span[node, 1]
    for way in range(2):
        if scratch.total[way, 0, 0] == 0.0:
            continue
        which = DOWN if way == 0 else UP
        for begin in range(low, high, BLOCK):
            end = min(high, begin + BLOCK)
            worst, sums = scratch.worst[begin:end], scratch.sums[begin:end]
            sums[:] = np.float32(0.0)
            for t in range(job.slots.size):
                row, moments = site.free[job.slots[t], which, begin:end], scratch.total[way, t]
                if rule.kind == CUBIC:
                    many, linear = np.float32(moments[0]), np.float32(moments[1])
                    _add_flows(row, many, linear, np.float32(moments[2]), np.float32(moments[3]), sums, worst)
                elif moments[1] > 0.0:
                    # Other rules score the network by distance and not by alignment.
                    _add_product(row, np.float32(moments[1]), FIRST, sums, worst)
            if rule.kind == CUBIC:
                _add_scaled(sums, site.scale[which, begin:end], np.float32(weight), scratch.score[begin:end])


@no_refcount_kernel
def _add_flows(
    row: Singles,
    many: np.float32,
    linear: np.float32,
    two: np.float32,
    three: np.float32,
    sums: Singles,
    worst: Singles,
) -> None:
    """Add (Q - d)^3 Q summed over edges, in units, from the sums of d, d^2 and d^3."""
    thrice_one, thrice_two = np.float32(3.0) * linear, np.float32(3.0) * two
    for n in range(row.size):
        free = row[n]
        worst[n] = min(worst[n], free - linear)
        sums[n] += (((many * free - thrice_one) * free + thrice_two) * free - three) * free


@no_refcount_kernel
def best_place(scratch: Scratch, low: int, high: int) -> int:
    """Return the place with room that has the highest score, the first of equal ones, or -1."""
    best = -1
    for n in range(low, high):
        if scratch.worst[n] >= 0.0 and (best < 0 or scratch.score[n] > scratch.score[best]):
            best = n
    return best


@no_refcount_kernel
def count_places(site: DatacenterArrays, job: JobArrays, node: int, scratch: Scratch) -> None:
    """Count the places with room for a node, for each instant and resource separately."""
    for t in range(job.slots.size):
        for r in range(4):
            need = job.demand[node, t, r]
            row = site.free[job.slots[t], r, job.span[node, 0] : job.span[node, 1]]
            many = 0
            for n in range(row.size):
                many += 1 if row[n] >= need else 0
            scratch.count_fit[t, r] = many
