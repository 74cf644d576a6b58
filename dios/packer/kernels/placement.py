"""Algorithm 1, compiled: place node after node at the best place, or none of them."""

from __future__ import annotations

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.packer.job.ti_mra import Ints
from dios.packer.kernels.paths import link_score, score_far_ends, score_tiers, sum_exchange
from dios.packer.kernels.records import (
    CUBIC,
    DOWN,
    UP,
    DatacenterArrays,
    JobArrays,
    ScoreRule,
    Scratch,
    Singles,
)
from dios.packer.kernels.reservations import (
    FROM_START,
    RESERVE,
    move_node,
    release_edges,
    release_job,
    reserve_edges,
)
from dios.packer.kernels.scores import best_place, count_places, score_links, score_servers


@no_refcount_kernel
def score_network(
    site: DatacenterArrays, job: JobArrays, node: int, rule: ScoreRule, weight: float, scratch: Scratch
) -> None:
    """Add the score of all path links to each place's score, and mark places without room (equation 8)."""
    low, high = job.span[node, 0], job.span[node, 1]
    for group in range(scratch.groups[0]):
        place = scratch.who[0, group]
        scratch.kept[0, group], scratch.kept[1, group] = scratch.score[place], scratch.worst[place]
    score_far_ends(site, job, rule, weight, scratch)
    score_tiers(site, job, rule, weight, scratch)
    score_links(site, job, node, rule, weight, scratch)
    for place in range(low, high):
        rack = site.rack[place]
        if scratch.full[0] > 0 or scratch.tier_ok[1, rack] == 0:
            scratch.worst[place] = np.float32(-1.0)
        if rule.kind == CUBIC:
            scratch.score[place] += np.float32(scratch.beyond[0] + scratch.tier_score[1, rack])
        else:
            scratch.score[place] *= np.float32(scratch.factor[rack])
    everything = 0.0
    for group in range(scratch.groups[0]):
        everything += scratch.volume[0, group]
    for group in range(scratch.groups[0]):
        if low <= scratch.who[0, group] < high:
            _score_co_located(site, job, rule, weight, scratch, group, everything)


@no_refcount_kernel
def _score_co_located(
    site: DatacenterArrays,
    job: JobArrays,
    rule: ScoreRule,
    weight: float,
    scratch: Scratch,
    group: int,
    everything: float,
) -> None:
    """Score a place that holds nodes with which the node exchanges; that exchange needs no link."""
    place = scratch.who[0, group]
    rack = site.rack[place]
    score, worst = scratch.kept[0, group], scratch.kept[1, group]
    for way in range(2):
        row = DOWN if way == 0 else UP
        for t in range(job.slots.size):
            for k in range(4):
                scratch.work[k] = scratch.total[way, t, k] - scratch.part[0, group, way, t, k]
            if scratch.work[0] == 0.0:
                continue
            free = np.float64(site.free[job.slots[t], row, place])
            scale = np.float64(site.scale[row, place])
            worst = min(worst, free - scratch.work[1])
            score += link_score(free, scale, scratch.work, rule.kind, weight)
    if scratch.full[0] > 1 - scratch.far_ok[0, group] or scratch.tier_ok[1, rack] == 0:
        worst = -1.0
    if rule.kind == CUBIC:
        score += scratch.beyond[0] + scratch.inside[0, group] + scratch.tier_score[1, rack]
    else:
        part = scratch.volume[0, group] / everything if everything > 0.0 else 0.0
        score *= scratch.factor[rack] + rule.remote * part
    scratch.score[place], scratch.worst[place] = np.float32(score), np.float32(worst)


@no_refcount_kernel
def score_places(
    site: DatacenterArrays, job: JobArrays, node: int, rule: ScoreRule, weights: Singles, scratch: Scratch
) -> None:
    """Compute the score and the room of every place (equation 6)."""
    score_servers(site, job, node, rule, weights, scratch)
    if sum_exchange(site, job, node, scratch) > 0:
        score_network(site, job, node, rule, np.float64(weights[4]), scratch)


@no_refcount_kernel
def place_node(site: DatacenterArrays, job: JobArrays, node: int, tries: int, scratch: Scratch) -> bool:
    """Place a scored node where its score is highest and all of its paths have room."""
    for _ in range(tries):
        place = best_place(scratch, job.span[node, 0], job.span[node, 1])
        if place < 0:
            return False
        job.place[node] = place
        if reserve_edges(site, job, node, scratch):
            move_node(site, job, node, RESERVE, FROM_START)
            return True
        # No single path has the room that the bundles promised.
        job.place[node] = -1
        scratch.worst[place] = np.float32(-1.0)
    return False


@no_refcount_kernel
def place_job(
    site: DatacenterArrays,
    job: JobArrays,
    rule: ScoreRule,
    weights: Singles,
    tries: int,
    scratch: Scratch,
    report: Ints,
) -> bool:
    """Place all nodes (Algorithm 1), or none and fill ``report`` as ``explain`` does."""
    for at in range(job.order.size):
        node = job.order[at]
        score_places(site, job, node, rule, weights, scratch)
        if not place_node(site, job, node, tries, scratch):
            explain(site, job, node, rule, weights, scratch, report)
            release_job(site, job, FROM_START, scratch)
            job.place[:] = -1
            job.plane[:] = -1
            return False
    return True


@no_refcount_kernel
def explain(
    site: DatacenterArrays,
    job: JobArrays,
    node: int,
    rule: ScoreRule,
    weights: Singles,
    scratch: Scratch,
    report: Ints,
) -> None:
    """Report why a node has no place: (node, resource, instant, places with room, link); link -1 for servers.

    The resource is the one that the fewest places have at its worst instant. If some place has enough of all
    server resources, it is bandwidth (4): the link is one that is short if the node goes to the best such
    place, and the count is that of such places.
    """
    score_servers(site, job, node, rule, weights, scratch)
    low, high = job.span[node, 0], job.span[node, 1]
    many = 0
    for place in range(low, high):
        many += 1 if scratch.worst[place] >= 0.0 else 0
    report[0], report[4] = node, -1
    if many == 0:
        count_places(site, job, node, scratch)
        report[3] = high - low + 1
        for t in range(job.slots.size):
            for r in range(4):
                if scratch.count_fit[t, r] < report[3]:
                    report[1], report[2], report[3] = r, t, scratch.count_fit[t, r]
        return
    job.place[node] = best_place(scratch, low, high)
    scratch.short[0], scratch.short[1] = -1, 0
    if reserve_edges(site, job, node, scratch):
        release_edges(site, job, job.first[node], job.first[node + 1], scratch)
    job.place[node] = -1
    report[1], report[2], report[3], report[4] = 4, scratch.short[1], many, scratch.short[0]
