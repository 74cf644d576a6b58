"""What each server is worth for a task: its own resources and its own link, compiled.

Not for: links between switches (``path_kernels.py``), or the decision (``place_kernels.py``).

Loops run over servers, whose numbers lie side by side: a processor then does eight at a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.compiled import borrowing
from dios.packer.site import ALIGN, BEST, CUBIC, DOWN, FIRST, UP, Load, Near, Rule, Singles, Site

BLOCK: Final = 1024
"""So many servers at a time stay in a processor's first cache."""
NOTHING_YET: Final = np.float32(2.0**26)
"""More than is left of anything."""


@borrowing
def weigh_servers(site: Site, load: Load, node: int, rule: Rule, weights: Singles, near: Near) -> None:
    """Score and room of every place that may hold a node, by its resources (equations 6 and 7)."""
    low, high = load.span[node, 0], load.span[node, 1]
    for begin in range(low, high, BLOCK):
        end = min(high, begin + BLOCK)
        score, worst = near.score[begin:end], near.worst[begin:end]
        score[:] = np.float32(0.0)
        worst[:] = NOTHING_YET
        for t in range(load.slots.size):
            slot = load.slots[t]
            for r in range(4):
                need = load.demand[node, t, r]
                row, scale = site.free[slot, r, begin:end], site.scale[r, begin:end]
                if rule.kind == CUBIC:
                    _add_cubes(row, scale, need, weights[r], score, worst)
                elif need > np.float32(0.0):
                    _add_product(row, scale, need, rule.kind, score, worst)
        if rule.ahead > 0.0:
            _look_ahead(site, load, node, rule, begin, end, near)


@borrowing
def _look_ahead(site: Site, load: Load, node: int, rule: Rule, begin: int, end: int, near: Near) -> None:
    """Count a place's own link by all that the node will exchange, and less where that has no room."""
    score, tight = near.score[begin:end], near.tight[begin:end]
    tight[:] = NOTHING_YET
    for t in range(load.slots.size):
        for way in range(2):
            need = load.hose[node, t, way]
            if need > np.float32(0.0):
                row = site.free[load.slots[t], UP + way, begin:end]
                _add_product(row, site.scale[UP + way, begin:end], need, rule.kind, score, tight)
    left = np.float32(1.0 - rule.ahead)
    for n in range(score.size):
        score[n] *= np.float32(1.0) if tight[n] >= np.float32(0.0) else left


@borrowing
def _add_cubes(
    row: Singles, scale: Singles, need: np.float32, weight: np.float32, score: Singles, worst: Singles
) -> None:
    """Equation 7 at one instant, for one resource: w (Q - d)^3 Q."""
    for n in range(row.size):
        left = row[n] - need
        rest = left * scale[n]
        worst[n] = min(worst[n], left)
        score[n] += weight * (rest * rest * rest) * (row[n] * scale[n])


@borrowing
def _add_product(
    row: Singles, scale: Singles, need: np.float32, kind: int, score: Singles, worst: Singles
) -> None:
    """The alignment at one instant, d Q; or for best fit, what is in use then."""
    if kind == ALIGN:
        for n in range(row.size):
            left = row[n] - need
            worst[n] = min(worst[n], left)
            score[n] += (need * scale[n]) * (row[n] * scale[n])
    elif kind == BEST:
        for n in range(row.size):
            left = row[n] - need
            worst[n] = min(worst[n], left)
            score[n] += np.float32(1.0) - left * scale[n]
    else:
        for n in range(row.size):
            left = row[n] - need
            worst[n] = min(worst[n], left)


@borrowing
def weigh_links(site: Site, load: Load, node: int, rule: Rule, weight: float, near: Near) -> None:
    """Add each place's own link, as if all that the node exchanges had to pass it (equation 8)."""
    low, high = load.span[node, 0], load.span[node, 1]
    for way in range(2):
        if near.total[way, 0, 0] == 0.0:
            continue
        which = DOWN if way == 0 else UP
        for begin in range(low, high, BLOCK):
            end = min(high, begin + BLOCK)
            score, worst = near.score[begin:end], near.worst[begin:end]
            scale = site.scale[which, begin:end]
            for t in range(load.slots.size):
                row = site.free[load.slots[t], which, begin:end]
                sums = near.total[way, t]
                if rule.kind == CUBIC:
                    many, one = np.float32(sums[0]), np.float32(sums[1])
                    two, three = np.float32(sums[2]), np.float32(sums[3])
                    _add_flows(row, scale, many, one, two, three, np.float32(weight), score, worst)
                elif sums[1] > 0.0:
                    # Distance, not alignment, is what other rules reckon of the network.
                    _add_product(row, scale, np.float32(sums[1]), FIRST, score, worst)


@borrowing
def _add_flows(
    row: Singles,
    scale: Singles,
    many: np.float32,
    one: np.float32,
    two: np.float32,
    three: np.float32,
    weight: np.float32,
    score: Singles,
    worst: Singles,
) -> None:
    """The sum of w (Q - d)^3 Q over edges, by the sums of d, d^2 and d^3 over them."""
    triple = np.float32(3.0)
    for n in range(row.size):
        free, z = row[n] * scale[n], scale[n]
        left = row[n] - one
        worst[n] = min(worst[n], left)
        cubes = ((many * free - triple * (one * z)) * free + triple * (two * z) * z) * free - (
            three * z
        ) * z * z
        score[n] += weight * cubes * free


@borrowing
def best_place(near: Near, low: int, high: int) -> int:
    """Who has the highest score of those with room, the first of equals; -1: nobody."""
    best = -1
    for n in range(low, high):
        if near.worst[n] >= 0.0 and (best < 0 or near.score[n] > near.score[best]):
            best = n
    return best


@borrowing
def count_places(site: Site, load: Load, node: int, near: Near) -> None:
    """How many places have room for a node, for each instant and resource by itself."""
    for t in range(load.slots.size):
        for r in range(4):
            need = load.demand[node, t, r]
            row = site.free[load.slots[t], r, load.span[node, 0] : load.span[node, 1]]
            many = 0
            for n in range(row.size):
                many += 1 if row[n] >= need else 0
            near.count_fit[t, r] = many
