from __future__ import annotations

import numpy as np
import pytest

from dios.packer import Capacity, Datacenter, Edge, JobError, Node, Placement, Spot, TiMra, allocate
from dios.packer.templates import hose, map_reduce, web_service
from tests.support.packer.oracles import Books, draw_datacenter, draw_job

SEQUENCES = 10_000
POOL = [draw_job(99, number) for number in range(300)]
RULES = ["fixed", "literal", "aligned", "ahead", "tetris", "slots", "drf-first-fit", "best-fit-time"]


def never_over(datacenter: Datacenter, place: str) -> None:
    """No instant at which anything is over its capacity."""
    assert datacenter.site.free.min() >= 0.0, place
    assert datacenter.site.trunk.min() >= 0, place


@pytest.mark.long
def test_no_instant_is_over_capacity_in_many_sequences() -> None:
    """In 10,000 drawn sequences of admission, release and time, nothing is ever over capacity or lost."""
    stages = [draw_datacenter(seed, fat=seed % 5 == 0) for seed in range(40)]
    admitted = refused = 0
    for seed in range(SEQUENCES):
        rng = np.random.default_rng([seed, 3])
        datacenter = stages[seed % len(stages)]
        held: list[Placement] = []
        # As many numbers as a sequence takes at most: drawing one by one costs more than the rest.
        draws = rng.integers(0, 2**31, 16).tolist()
        for step in range(int(draws[0] % 3) + 1):
            job_pick, two, three = draws[1 + 3 * (step % 5) : 4 + 3 * (step % 5)]
            placement = allocate(datacenter, POOL[job_pick % len(POOL)], policy=RULES[two % len(RULES)])
            never_over(datacenter, f"seed {seed}, step {step}")
            if placement:
                held.append(placement)
                admitted += 1
            else:
                refused += 1
            if three % 3 == 0:
                datacenter.advance(datacenter.now + three % 4)
                held = [kept for kept in held if kept.end > datacenter.now]
            if held and three % 5 == 0:
                held.pop(three % len(held)).release()
        for remaining in held:
            remaining.release()
        assert datacenter.is_empty(), f"seed {seed}"
    assert admitted > SEQUENCES // 2
    assert refused > SEQUENCES // 2


def test_books_are_the_sum_of_what_is_held() -> None:
    """After each admission, refusal, release and step of time, books are those of a recount."""
    for seed in range(40):
        datacenter = draw_datacenter(seed)
        rng = np.random.default_rng([seed, 4])
        held: list[Placement] = []
        for number in range(12):
            placement = allocate(datacenter, draw_job(seed, number), policy=RULES[number % len(RULES)])
            if placement:
                held.append(placement)
            if rng.random() < 0.4:
                datacenter.advance(datacenter.now + int(rng.integers(0, 4)))
                held = [kept for kept in held if kept.end > datacenter.now]
            if held and rng.random() < 0.3:
                held.pop(int(rng.integers(len(held)))).release()
            compare(datacenter, held, f"seed {seed}, after {number}")


def compare(datacenter: Datacenter, held: list[Placement], place: str) -> None:
    """Recount what is held at each instant still to come and compare all books with it."""
    site, whole = datacenter.site, datacenter._empty_instant
    places = site.rack.size
    for instant in range(datacenter.now, datacenter.now + datacenter.horizon):
        slot = instant % datacenter.horizon
        live = Books(datacenter)
        for placement in held:
            if placement.start <= instant < placement.end:
                live.take(placement._arrays)
        for r in range(4):
            used = [live.used[slot, r, n] for n in range(places)]
            np.testing.assert_array_equal(whole.free[0, r] - site.free[slot, r], used, err_msg=place)
        for row, kind in ((4, "up"), (5, "down")):
            flow = [live.flow[slot, (kind, n)] for n in range(places)]
            np.testing.assert_array_equal(whole.free[0, row] - site.free[slot, row], flow, err_msg=place)
        kinds = [("rack up", datacenter.racks), ("rack down", datacenter.racks)]
        kinds += [("pod up", datacenter.pods), ("pod down", datacenter.pods)]
        trunk = [live.flow[slot, (kind, at)] for kind, count in kinds for at in range(count)]
        np.testing.assert_array_equal(whole.trunk[0] - site.trunk[slot], trunk, err_msg=place)
        np.testing.assert_array_equal(whole.bundle[0] - site.bundle[slot], trunk, err_msg=place)
        spent = [sum(live.used[slot, r, n] for n in range(places)) for r in range(4)]
        spent.append(sum(live.flow[key] for key in live.flow if key[0] == slot))
        assert site.spent[slot].tolist() == spent, place


def test_a_refused_job_leaves_no_trace() -> None:
    """A job of which the last task finds no place takes nothing, though the others had theirs."""
    datacenter = Datacenter.tree(4, per_rack=2)
    before = datacenter.site.free.copy()
    nodes = [Node(f"n{at}", cpu=4, memory={1: 64}) for at in range(9)]
    job = TiMra("j", [*nodes, Node("last", cpu=17)], [Edge("n0", f"n{at}", 50) for at in range(1, 9)], 3)
    refusal = allocate(datacenter, job)
    assert not refusal
    assert (refusal.node, refusal.resource, refusal.instant, refusal.needed, refusal.room) == (
        "last",
        "cpu",
        0,
        17,
        0,
    )
    assert "'last' needs 17 cores of cpu, and of 4 possible places none has that" in str(refusal)
    np.testing.assert_array_equal(datacenter.site.free, before)
    assert datacenter.is_empty()


def test_refusals_name_the_resource_and_the_instant() -> None:
    """What is short is named with its instant, also when each resource by itself would be there."""
    datacenter = Datacenter.tree(2, horizon=8)
    for _ in range(2):
        assert allocate(datacenter, TiMra("fill", [Node("a", memory={2: 32_000, 4: 0})], instants=5))
    refusal = allocate(datacenter, TiMra("j", [Node("b", memory=1000, cpu=1)], instants=6))
    assert not refusal
    assert (refusal.resource, refusal.instant, refusal.needed, refusal.room) == ("memory", 2, 1000, 0)
    capacity = [[16, 1, 1, 1], [1, 16, 1, 1]]
    mixed = Datacenter.tree(2, capacity=capacity)
    refusal = allocate(mixed, TiMra("j", [Node("b", cpu=2, memory=2)]))
    assert not refusal
    assert refusal.room == 1
    assert "only 1 have that, and those are short of something else" in str(refusal)


def test_time_goes_on_and_brings_room() -> None:
    """A job ends by itself; what it held is free then, and its placement holds nothing more."""
    datacenter = Datacenter.tree(1, horizon=4)
    first = allocate(datacenter, TiMra("first", [Node("a", cpu=16)], instants=3), now=10)
    assert first
    assert not allocate(datacenter, TiMra("second", [Node("a", cpu=1)], instants=2), now=12)
    assert allocate(datacenter, TiMra("second", [Node("a", cpu=1)], instants=2), now=13)
    with pytest.raises(ValueError, match="has ended"):
        first.release()
    with pytest.raises(ValueError, match="never runs backwards"):
        datacenter.advance(12)
    datacenter.advance(10**9)
    assert datacenter.is_empty()


def test_released_early_only_what_is_left_comes_back() -> None:
    """A release gives back from now on, once."""
    datacenter = Datacenter.tree(1, horizon=6)
    held = allocate(datacenter, TiMra("j", [Node("a", cpu=[1, 2, 3, 4])], instants=4))
    assert held
    held.release(now=2)
    assert datacenter.is_empty()
    assert held.end == 4
    with pytest.raises(ValueError, match="has ended"):
        held.release()


def test_complementary_demands_share_a_server() -> None:
    """Jobs whose peaks lie at different times fit where their peaks together would not."""
    first = TiMra("one", [Node("a", cpu=[16, 0])], instants=2)
    two = TiMra("two", [Node("a", cpu=[0, 16])], instants=2)
    for policy, has_room in (("fixed", True), ("tetris-time", True), ("tetris", False), ("slots", False)):
        datacenter = Datacenter.tree(1)
        assert allocate(datacenter, first, policy=policy)
        assert bool(allocate(datacenter, two, policy=policy)) == has_room, policy


def test_decimal_fractions_fill_a_server_exactly() -> None:
    """Ten tasks of 0.1 cores fill one core, to the last unit."""
    datacenter = Datacenter.tree(1, capacity=Capacity(1, 1, 1, 1))
    assert allocate(datacenter, TiMra("j", [Node(f"n{at}", cpu=0.1) for at in range(10)]))
    assert datacenter.free("cpu")[0, 0] == 0.0
    assert not allocate(datacenter, TiMra("one more", [Node("a", cpu=1e-6)]))


def test_services_are_where_they_are_offered() -> None:
    """A node that names a service is put on a machine that offers it; tasks never are."""
    spots = [Spot(1, Capacity(2, 10, 10, 10)), Spot(0, Capacity(2, 10, 10, 10))]
    datacenter = Datacenter.tree(4, per_rack=2, services={"objects": spots, "other": [Spot(0)]})
    job = web_service(1, 1, storage="objects", load=(0.5, 1.0), instant_s=1.0)
    placement = allocate(datacenter, job)
    assert placement
    assert placement.places["storage"] in {"objects[0]", "objects[1]"}
    assert set(placement.servers) == {"front.0", "work.0"}
    assert max(placement.servers.values()) < 4
    full = allocate(datacenter, TiMra("j", [Node("s", cpu=3, service="objects")]))
    assert not full
    assert (full.places, full.room) == (2, 0)
    with pytest.raises(JobError, match="no machine offers; known: objects, other"):
        allocate(datacenter, TiMra("j", [Node("s", service="nothing")]))


def test_a_fat_tree_uses_all_of_its_paths() -> None:
    """Between two pods of a fat tree, four edges of a full link's bandwidth go over four planes."""
    datacenter = Datacenter.fat_tree(4, capacity=[[1, 1, 1, 1]] * 16, link=100)
    assert datacenter.site.trunk.shape[1] == 2 * 8 * 2 + 2 * 4 * 4
    # Each task takes a whole server; a pod holds four of them.
    nodes = [Node(f"n{at}", cpu=1) for at in range(16)]
    edges = [Edge(f"n{at}", f"n{at + 8}", 100) for at in range(8)]
    placement = allocate(datacenter, TiMra("j", nodes, edges), policy="drf-first-fit")
    assert placement
    assert placement.servers == {f"n{at}": at for at in range(16)}
    assert sorted(placement.planes[:4]) == [0, 1, 2, 3]
    never_over(datacenter, "fat tree")
    placement.release()
    assert datacenter.is_empty()


def test_planes_are_checked_one_by_one() -> None:
    """Room in two planes together is none for an edge that needs it in one: another server is tried."""
    datacenter = Datacenter.fat_tree(4, capacity=Capacity(1, 1, 1, 1), link=100)
    datacenter.site.trunk[:, :8] = datacenter.site.trunk[0, 0] * 6 // 10
    datacenter.site.bundle[:, :8] = datacenter.site.trunk[0, 0] * 2
    job = TiMra("j", [Node("a", cpu=1), Node("b", cpu=1)], [Edge("a", "b", 80)])
    near = allocate(datacenter, job, policy="drf-first-fit")
    assert near
    assert near.servers == {"a": 0, "b": 1}
    far = allocate(datacenter, job, policy="drf-first-fit")
    assert far
    assert far.servers == {"a": 2, "b": 3}


def test_jobs_in_other_instants_are_taken_at_their_peaks() -> None:
    """A job in seconds is booked in a data centre of minutes with the most that it needs in each."""
    datacenter = Datacenter.tree(1, horizon=4, instant_s=60.0)
    held = allocate(datacenter, TiMra("j", [Node("a", cpu={0: 1, 90: 5})], instants=120))
    assert held
    assert (16 - datacenter.free("cpu")[:, 0]).tolist() == [1, 5, 0, 0]


def test_templates_find_places() -> None:
    """Jobs of the templates are admitted in a data centre of the paper's size, by every rule."""
    for policy in RULES:
        datacenter = Datacenter.tree(80)
        for job in (map_reduce(8, 4), hose(6, 100.0, instants=3), web_service(2, 4, instant_s=1.0)):
            assert allocate(datacenter, job, policy=policy), policy


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"servers": 0}, "servers is 0"),
        ({"per_rack": -1}, "per_rack is -1"),
        ({"capacity": [[1, 2, 3, -4]]}, r"capacity\[0, 3\] is -4.0"),
        ({"capacity": [1, 2]}, "capacity must be a number or an array of the shape"),
        ({"link": float("nan")}, "link is nan"),
        ({"link": [1, 2]}, "link must be a number"),
        ({"rack_link": -1}, "rack_link is -1"),
        ({"pod_link": float("inf")}, "pod_link is inf"),
        ({"horizon": 0}, "horizon is 0"),
        ({"instant_s": 0.0}, "instant_s is 0.0"),
        ({"services": {"x": []}}, r"services\[x\] is empty"),
        ({"services": {"x": [Spot(9)]}}, r"services\[x\].rack is 9"),
        ({"services": {"x": [Spot(0, link=-1.0)]}}, r"services\[x\].link is -1"),
    ],
)
def test_bad_data_centres_are_named(given: dict[str, float], place: str) -> None:
    """An argument that makes no sense is a ValueError that names it."""
    with pytest.raises(ValueError, match=place):
        Datacenter.tree(**{"servers": 3, **given})  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize("ports", [0, 3, 10_000])
def test_fat_trees_have_an_even_number_of_ports(ports: int) -> None:
    """Ports that make no fat tree are named."""
    with pytest.raises(ValueError, match=f"ports is {ports}"):
        Datacenter.fat_tree(ports)


def test_slots_of_nothing_hold_nothing() -> None:
    """Where a server has none of a resource, slots have none of it, and who needs it is refused."""
    datacenter = Datacenter.tree(2, capacity=[[8, 0, 1, 1], [8, 64, 1, 1]])
    assert allocate(datacenter, TiMra("j", [Node("a", cpu=1)]), policy="slots")
    assert not allocate(datacenter, TiMra("j", [Node("a", memory=1)]), policy="slots")


def test_links_without_end_stay_whole_numbers() -> None:
    """A pod's link far beyond what servers can send is as good as that."""
    datacenter = Datacenter.tree(4, per_rack=1, racks_per_pod=1, link=1.0, rack_link=1e15, pod_link=1e15)
    nodes = [Node("a", cpu=16), Node("b", cpu=16)]
    placement = allocate(datacenter, TiMra("j", nodes, [Edge("a", "b", 1.0)]))
    assert placement
    never_over(datacenter, "wide links")
    placement.release()
    assert datacenter.is_empty()


def test_bad_requests_are_named_and_change_nothing() -> None:
    """A job longer than the horizon, an unknown policy or resource, and time that runs back are named."""
    datacenter = Datacenter.tree(2, horizon=4)
    datacenter.advance(5)
    job = TiMra("j", [Node("a", cpu=1)], instants=5)
    with pytest.raises(JobError, match="instants is 5, but the data centre's horizon is 4"):
        allocate(datacenter, job)
    with pytest.raises(
        ValueError, match="policy is 'best'; choose one of literal, fixed, aligned, ahead, tetris"
    ):
        allocate(datacenter, TiMra("j", [Node("a")]), policy="best")
    with pytest.raises(ValueError, match="now is 4"):
        allocate(datacenter, TiMra("j", [Node("a")]), now=4)
    with pytest.raises(ValueError, match="resource is 'gpu'"):
        datacenter.free("gpu")
    assert datacenter.is_empty()


def test_what_is_set_aside_is_nobodys() -> None:
    """Others' part is kept free of jobs at all instants, also at those that come; it may grow and shrink."""
    datacenter = Datacenter.tree(2, horizon=4)
    share = np.zeros((2, 6))
    share[0] = (10, 0, 0, 0, 900, 0)
    datacenter.set_aside(share)
    assert datacenter.is_empty()
    large = TiMra("large", [Node("a", cpu=12)], instants=4)
    first = allocate(datacenter, large)
    assert first
    assert first.servers == {"a": 1}
    assert not allocate(datacenter, large, now=3), "the new instants have less, too"
    assert datacenter.free("cpu").tolist() == [[6, 4], [6, 16], [6, 16], [6, 16]]
    sends = TiMra("sends", [Node("a"), Node("b")], [Edge("a", "b", 200)])
    assert not allocate(datacenter, sends, pinned={"a": 0, "b": 1})
    assert allocate(datacenter, sends, pinned={"a": 1, "b": 0})
    share[0, :] = 0
    datacenter.set_aside(share)
    assert allocate(datacenter, sends, pinned={"a": 0, "b": 1})
    assert datacenter.peak()[:, 0].tolist() == [0, 12]
    datacenter.advance(10)
    assert datacenter.is_empty()
    assert (datacenter.free("cpu") == 16).all()


def test_more_is_set_aside_than_there_is() -> None:
    """It leaves nothing; who was admitted before keeps what it holds and gives back exactly that."""
    datacenter = Datacenter.tree(1, horizon=3)
    held = allocate(datacenter, TiMra("early", [Node("a", cpu=10)], instants=3))
    assert held
    datacenter.set_aside(np.full((1, 6), 10.0**12))
    assert not allocate(datacenter, TiMra("late", [Node("a", cpu=0.01)]))
    held.release()
    datacenter.set_aside(np.zeros((1, 6)))
    assert datacenter.is_empty()
    assert (datacenter.free("cpu") == 16).all()
    with pytest.raises(ValueError, match=r"amounts\[0, 2\] is -1"):
        datacenter.set_aside([[0, 0, -1, 0, 0, 0]])


def test_pinned_tasks_are_where_they_have_to_be() -> None:
    """A pinned task goes nowhere else; an unknown task or server is an error that names it."""
    datacenter = Datacenter.tree(4, per_rack=2)
    job = TiMra("j", [Node("a", cpu=9), Node("b", cpu=9)], [Edge("a", "b", 10)])
    for policy in RULES:
        placement = allocate(datacenter, job, policy=policy, pinned={"b": 3})
        assert placement, policy
        assert placement.servers["b"] == 3, policy
        assert not allocate(datacenter, job, policy=policy, pinned={"b": 3}), policy
        placement.release()
    assert datacenter.is_empty()
    with pytest.raises(ValueError, match=r"pinned\['c'\]"):
        allocate(datacenter, job, pinned={"c": 0})
    with pytest.raises(ValueError, match=r"pinned\['a'\] is 4; it must be from 0 to 3"):
        allocate(datacenter, job, pinned={"a": 4})
