from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dios.packer import Capacity, Datacenter, Edge, Link, Node, Policy, Spot, TiMra, allocate, baselines
from dios.packer.allocate import _by_flow, _job_arrays, _weights
from dios.packer.kernels.placement import place_job, place_node, score_places
from dios.packer.kernels.records import JobArrays
from dios.packer.kernels.reservations import release_job
from dios.packer.policies import AHEAD, ALIGNED, FIXED, LITERAL
from tests.support.packer.oracles import Books, close, draw_datacenter, draw_job, scores

TRIES = 64
POLICIES = [
    LITERAL,
    FIXED,
    ALIGNED,
    AHEAD,
    baselines.TETRIS_TIME,
    baselines.BEST_FIT_TIME,
    baselines.DRF_FIRST_FIT,
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_scores_and_room_are_those_of_the_equations(policy: Policy) -> None:
    """Equations 6 to 8, over whole paths link by link, give each place the kernel's score and room."""
    compared = 0
    for seed in range(60):
        datacenter = draw_datacenter(seed)
        books = Books(datacenter)
        datacenter.advance(seed % 5)
        for number in range(5):
            job = draw_job(seed, number)
            load = _job_arrays(datacenter, job, policy, {})
            near = datacenter.scratch(load)
            weights = _weights(datacenter.utilisation(job.instants)).astype(np.float32)
            for node in load.order.tolist():
                score_places(datacenter.site, load, node, policy.rule, weights, near)
                expected = scores(books, load, node, policy, weights.tolist())
                low = int(load.span[node, 0])
                scale = max(1.0, *(abs(score) for score, _ in expected))
                for at, (score, ok) in enumerate(expected, low):
                    place = f"seed {seed}, job {number}, node {node}, place {at}"
                    assert bool(near.worst[at] >= 0) == ok, place
                    if policy.score != "first":
                        assert close(float(near.score[at]), score, scale), place
                    compared += ok
                if not place_node(datacenter.site, load, node, TRIES, near):
                    assert not any(ok for _, ok in expected), f"seed {seed}, job {number}"
                    break
                assert expected[int(load.place[node]) - low][1], f"seed {seed}, job {number}"
                books.take_node(load, node)
                for edge in range(len(load.flow)):
                    if node in load.ends[edge] and load.plane[edge] >= 0:
                        books.take_edge(load, edge)
    assert compared > 1000


def test_a_job_is_placed_node_by_node_where_the_score_is_highest() -> None:
    """Algorithm 1 as a whole does what weighing and settling each node in order does."""
    admitted = 0
    for seed in range(60):
        whole, two = draw_datacenter(seed), draw_datacenter(seed)
        for number in range(4):
            job = draw_job(seed, number)
            left, right = _job_arrays(whole, job, FIXED, {}), _job_arrays(two, job, FIXED, {})
            weights = _weights(whole.utilisation(job.instants)).astype(np.float32)
            report = np.zeros(5, np.int64)
            placed = place_job(whole.site, left, FIXED.rule, weights, TRIES, whole.scratch(left), report)
            near = two.scratch(right)
            for node in right.order.tolist():
                score_places(two.site, right, node, FIXED.rule, weights, near)
                room = [
                    (float(near.score[at]), -at)
                    for at in range(*right.span[node].tolist())
                    if near.worst[at] >= 0
                ]
                if not place_node(two.site, right, node, TRIES, near):
                    assert not placed, f"seed {seed}, job {number}"
                    return_all(two, right)
                    break
                assert -max(room)[1] == right.place[node], f"seed {seed}, job {number}"
            else:
                assert placed, f"seed {seed}, job {number}"
                np.testing.assert_array_equal(left.place, right.place, err_msg=f"seed {seed}, job {number}")
                admitted += 1
            np.testing.assert_array_equal(
                whole.site.free, two.site.free, err_msg=f"seed {seed}, job {number}"
            )
    assert admitted > 60


def return_all(datacenter: Datacenter, load: JobArrays) -> None:
    """Give back what a half placed job holds."""
    release_job(datacenter.site, load, 0, datacenter.scratch(load))


def test_weights_are_one_less_the_part_of_utilisation() -> None:
    """w_r = 1 - utilisation_r / the sum over five resources; all alike where nothing is used."""
    datacenter = Datacenter.tree(4, per_rack=2, racks_per_pod=1, horizon=4)
    np.testing.assert_allclose(_weights(datacenter.utilisation(2)), 0.8)
    assert allocate(datacenter, TiMra("j", [Node("a", cpu=8, memory=4096)], instants=2))
    used = datacenter.utilisation(2)
    np.testing.assert_allclose(used, [8 / 64, 4096 / 131072, 0, 0, 0])
    np.testing.assert_allclose(_weights(datacenter.utilisation(2)), 1 - used / used.sum())
    np.testing.assert_allclose(datacenter.utilisation(4), used / 2)


def test_literal_scores_send_tasks_apart_and_fixed_ones_keep_them_together() -> None:
    """Read literally, equation 8 gives co-located tasks nothing; counting unused links as free mends that."""
    job = TiMra("j", [Node("a", cpu=1), Node("b", cpu=1)], [Edge("a", "b", 100)])
    for policy, together in ((LITERAL, False), (FIXED, True), (ALIGNED, True), (AHEAD, True)):
        placement = allocate(Datacenter.tree(8, per_rack=2, racks_per_pod=2), job, policy=policy)
        assert placement
        assert (placement.servers["a"] == placement.servers["b"]) == together, policy.name


def test_edges_that_share_a_link_count_together() -> None:
    """Two edges that each fit a link, but not both, do not both get it (equation 5)."""
    capacity = Capacity(1, 1, 1, 1)
    nodes = [Node("a", cpu=1), Node("b", cpu=1), Node("c", cpu=1)]
    job = TiMra("j", nodes, [Edge("a", "c", 60), Edge("b", "c", 60)])
    datacenter = Datacenter.tree(4, per_rack=2, capacity=capacity, link=100)
    refusal = allocate(datacenter, job)
    assert not refusal
    assert (refusal.resource, refusal.node, refusal.link) == (
        "bandwidth",
        "c",
        Link("server", 2, "server 2", "down"),
    )
    assert datacenter.is_empty()
    assert allocate(Datacenter.tree(4, per_rack=2, capacity=capacity, link=120), job)


def test_every_link_has_an_owner_and_a_direction() -> None:
    """Links are numbered by places, then racks, then pods, each up before down, with their planes."""
    datacenter = Datacenter.fat_tree(4, services={"store": [Spot(0)]})
    links = [datacenter.link(number) for number in range(2 * 17 + 2 * 8 * 2 + 2 * 4 * 4)]
    assert len(set(links)) == len(links)
    assert [links[at].text(links[at].owner) for at in (0, 33, 34, 51, 65, 66, 97)] == [
        "the link up of server 0",
        "the link down of store[0]",
        "the link up of rack 0, plane 0",
        "the link down of rack 0, plane 1",
        "the link down of rack 7, plane 1",
        "the link up of pod 0, plane 0",
        "the link down of pod 3, plane 3",
    ]


@pytest.mark.parametrize("policy", list(baselines.POLICIES.values()), ids=lambda policy: policy.name)
def test_every_policy_keeps_to_what_there_is(policy: Policy) -> None:
    """By whatever rule, nothing is over capacity and everything comes back."""
    admitted = 0
    for seed in range(30):
        datacenter = draw_datacenter(seed, fat=seed % 3 == 0)
        held = [allocate(datacenter, draw_job(seed, number), policy=policy) for number in range(8)]
        assert (datacenter.site.free >= 0).all(), f"seed {seed}"
        assert (datacenter.site.trunk >= 0).all(), f"seed {seed}"
        for placement in held:
            if placement:
                placement.release()
                admitted += 1
        assert datacenter.is_empty(), f"seed {seed}"
    assert admitted > 20


def test_baselines_know_what_they_may() -> None:
    """Peaks are booked all the time; slots by the whole slot; time as it is asked for."""
    job = TiMra("j", [Node("a", cpu={0: 1, 2: 6}, memory=100)], instants=4)
    for policy, cpu, memory in (
        (baselines.TETRIS_TIME, [1, 1, 6, 6], 100),
        (baselines.TETRIS, [6, 6, 6, 6], 100),
        (baselines.SLOTS, [8, 8, 8, 8], 16384),
    ):
        datacenter = Datacenter.tree(2, horizon=4)
        placement = allocate(datacenter, job, policy=policy)
        assert placement
        server = placement.servers["a"]
        assert (16 - datacenter.free("cpu")[:, server]).tolist() == cpu, policy.name
        np.testing.assert_allclose(32768 - datacenter.free("memory")[:, server], memory)


def test_shares_order_tasks_and_first_fit_takes_the_first() -> None:
    """By dominant share the smaller task goes first, and each to the first server with room."""
    job = TiMra("j", [Node("large", cpu=12), Node("small", cpu=6)])
    placement = allocate(Datacenter.tree(3), job, policy="drf-first-fit")
    assert placement
    assert placement.servers == {"small": 0, "large": 1}


def test_looking_ahead_keeps_off_a_full_link() -> None:
    """A task goes where its later edges will have room, though an earlier server is worth as much."""
    datacenter = Datacenter.tree(3, link=[10, 100, 100])
    job = TiMra("j", [Node("a", cpu=10), Node("b", cpu=10)], [Edge("a", "b", 50)])
    near = allocate(datacenter, job, policy=ALIGNED)
    assert not near
    assert near.resource == "bandwidth"
    placement = allocate(datacenter, job, policy=AHEAD)
    assert placement
    assert placement.servers == {"a": 1, "b": 2}


def test_where_bandwidth_is_plenty_servers_are_filled() -> None:
    """A rule with ``calm`` is best fit as long as bandwidth is the least of what is used."""
    small, job = TiMra("fill", [Node("a", cpu=4)]), TiMra("j", [Node("b", cpu=4)])
    for calm, server in ((0.0, 1), (0.3, 0)):
        datacenter = Datacenter.tree(2)
        rule = replace(AHEAD, calm=calm)
        assert allocate(datacenter, small, policy=rule)
        placement = allocate(datacenter, job, policy=rule)
        assert placement
        assert placement.servers == {"b": server}, calm
    talk = TiMra("talk", [Node("a", cpu=16), Node("b", cpu=16)], [Edge("a", "b", 900)])
    busy = Datacenter.tree(4, rack_link=1, pod_link=1)
    assert allocate(busy, talk, policy=AHEAD)
    assert allocate(busy, small, policy=AHEAD)
    assert busy.utilisation()[4] > 0.3 * busy.utilisation()[:4].max()
    placement = allocate(busy, job, policy=AHEAD)
    assert placement
    assert placement.servers == {"b": 3}


def test_one_rule_s_refusal_is_not_the_last_word() -> None:
    """What looking ahead leaves no server large enough for is placed by best fit, and the other way round."""
    datacenter = Datacenter.tree(2)
    assert allocate(datacenter, TiMra("fill", [Node("a", cpu=8)]))
    nodes = [Node("small", cpu=8), Node("large", cpu=16)]
    job = TiMra("j", nodes)
    assert not allocate(datacenter, job, policy=replace(AHEAD, calm=0.0))
    placement = allocate(datacenter, job, policy=AHEAD)
    assert placement
    assert placement.servers == {"small": 0, "large": 1}
    tight = Datacenter.tree(3, link=[10, 100, 100])
    pair = TiMra("p", [Node("a", cpu=10), Node("b", cpu=10)], [Edge("a", "b", 50)])
    assert not allocate(tight, pair, policy=AHEAD.calm_policy)
    assert allocate(tight, pair, policy=AHEAD)


def test_by_flow_each_follows_those_it_exchanges_with() -> None:
    """The task with the largest flow is first, then whoever exchanges the most with those before."""
    edges = [Edge("a", "b", 1), Edge("c", "d", 9), Edge("d", "e", 5), Edge("b", "e", 2)]
    job = TiMra("j", [Node(name) for name in "abcdef"], edges)
    assert [job.nodes[at].name for at in _by_flow(job)] == ["d", "c", "e", "b", "a", "f"]


def test_best_fit_fills_what_is_fullest() -> None:
    """Best fit puts a task where it leaves the least."""
    datacenter = Datacenter.tree(capacity=[[16, 1, 1, 1], [5, 1, 1, 1], [8, 1, 1, 1]], servers=3)
    placement = allocate(datacenter, TiMra("j", [Node("a", cpu=4)]), policy="best-fit")
    assert placement
    assert placement.servers == {"a": 1}
