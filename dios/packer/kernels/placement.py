"""Algorithm 1, compiled: place node after node at the best place, or none of them."""

from __future__ import annotations

import numpy as np

from dios.kernels import no_refcount_kernel
from dios.packer.job.ti_mra import Ints
from dios.packer.kernels.paths import gather, link_worth, weigh_far_ends, weigh_tiers
from dios.packer.kernels.records import CUBIC, DOWN, UP, Load, Near, Rule, Singles, Site
from dios.packer.kernels.reservations import AT_ONCE, TAKE, give_back, give_edges, move_node, take_edges
from dios.packer.kernels.scores import best_place, count_places, weigh_links, weigh_servers


@no_refcount_kernel
def weigh_network(site: Site, load: Load, node: int, rule: Rule, weight: float, near: Near) -> None:
    """Add the score of all path links to each place's score, and mark places without room (equation 8)."""
    low, high = load.span[node, 0], load.span[node, 1]
    for group in range(near.groups[0]):
        place = near.who[0, group]
        near.kept[0, group], near.kept[1, group] = near.score[place], near.worst[place]
    weigh_far_ends(site, load, rule, weight, near)
    weigh_tiers(site, load, rule, weight, near)
    weigh_links(site, load, node, rule, weight, near)
    for place in range(low, high):
        rack = site.rack[place]
        if near.full[0] > 0 or near.tier_ok[1, rack] == 0:
            near.worst[place] = np.float32(-1.0)
        if rule.kind == CUBIC:
            near.score[place] += np.float32(near.beyond[0] + near.tier_score[1, rack])
        else:
            near.score[place] *= np.float32(near.factor[rack])
    everything = 0.0
    for group in range(near.groups[0]):
        everything += near.volume[0, group]
    for group in range(near.groups[0]):
        if low <= near.who[0, group] < high:
            _weigh_beside(site, load, rule, weight, near, group, everything)


@no_refcount_kernel
def _weigh_beside(
    site: Site, load: Load, rule: Rule, weight: float, near: Near, group: int, everything: float
) -> None:
    """Score a place that holds nodes with which the node exchanges; that exchange needs no link."""
    place = near.who[0, group]
    rack = site.rack[place]
    score, worst = near.kept[0, group], near.kept[1, group]
    for way in range(2):
        row = DOWN if way == 0 else UP
        for t in range(load.slots.size):
            for k in range(4):
                near.work[k] = near.total[way, t, k] - near.part[0, group, way, t, k]
            if near.work[0] == 0.0:
                continue
            free = np.float64(site.free[load.slots[t], row, place])
            scale = np.float64(site.scale[row, place])
            worst = min(worst, free - near.work[1])
            score += link_worth(free, scale, near.work, rule.kind, weight)
    if near.full[0] > 1 - near.far_ok[0, group] or near.tier_ok[1, rack] == 0:
        worst = -1.0
    if rule.kind == CUBIC:
        score += near.beyond[0] + near.inside[0, group] + near.tier_score[1, rack]
    else:
        part = near.volume[0, group] / everything if everything > 0.0 else 0.0
        score *= near.factor[rack] + rule.remote * part
    near.score[place], near.worst[place] = np.float32(score), np.float32(worst)


@no_refcount_kernel
def weigh(site: Site, load: Load, node: int, rule: Rule, weights: Singles, near: Near) -> None:
    """Compute the score and the room of every place (equation 6)."""
    weigh_servers(site, load, node, rule, weights, near)
    if gather(site, load, node, near) > 0:
        weigh_network(site, load, node, rule, np.float64(weights[4]), near)


@no_refcount_kernel
def settle(site: Site, load: Load, node: int, tries: int, near: Near) -> bool:
    """Place a scored node where its score is highest and all of its paths have room."""
    for _ in range(tries):
        place = best_place(near, load.span[node, 0], load.span[node, 1])
        if place < 0:
            return False
        load.place[node] = place
        if take_edges(site, load, node, near):
            move_node(site, load, node, TAKE, AT_ONCE)
            return True
        # No single path has the room that the bundles promised.
        load.place[node] = -1
        near.worst[place] = np.float32(-1.0)
    return False


@no_refcount_kernel
def place_job(
    site: Site, load: Load, rule: Rule, weights: Singles, tries: int, near: Near, report: Ints
) -> bool:
    """Place all nodes (Algorithm 1), or none and fill ``report`` as ``explain`` does."""
    for at in range(load.order.size):
        node = load.order[at]
        weigh(site, load, node, rule, weights, near)
        if not settle(site, load, node, tries, near):
            explain(site, load, node, rule, weights, near, report)
            give_back(site, load, AT_ONCE, near)
            load.place[:] = -1
            load.plane[:] = -1
            return False
    return True


@no_refcount_kernel
def explain(
    site: Site, load: Load, node: int, rule: Rule, weights: Singles, near: Near, report: Ints
) -> None:
    """Report why a node has no place: (node, resource, instant, places with room, link); link -1 for servers.

    The resource is the one that the fewest places have at its worst instant. If some place has enough of all
    server resources, it is bandwidth (4): the link is one that is short if the node goes to the best such
    place, and the count is that of such places.
    """
    weigh_servers(site, load, node, rule, weights, near)
    low, high = load.span[node, 0], load.span[node, 1]
    many = 0
    for place in range(low, high):
        many += 1 if near.worst[place] >= 0.0 else 0
    report[0], report[4] = node, -1
    if many == 0:
        count_places(site, load, node, near)
        report[3] = high - low + 1
        for t in range(load.slots.size):
            for r in range(4):
                if near.count_fit[t, r] < report[3]:
                    report[1], report[2], report[3] = r, t, near.count_fit[t, r]
        return
    load.place[node] = best_place(near, low, high)
    near.short[0], near.short[1] = -1, 0
    if take_edges(site, load, node, near):
        give_edges(site, load, load.first[node], load.first[node + 1], near)
    load.place[node] = -1
    report[1], report[2], report[3], report[4] = 4, near.short[1], many, near.short[0]
