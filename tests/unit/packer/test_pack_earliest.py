"""The earliest start of a job that may wait."""

from __future__ import annotations

import numpy as np
import pytest

from dios.packer import Datacenter, Edge, Node, Placement, Refusal, TiMra, allocate, allocate_earliest
from dios.packer.datacenter import Capacity

HORIZON = 48


def datacenter() -> Datacenter:
    """Two servers of four cores in two racks."""
    return Datacenter(
        capacity=Capacity(4, 1000, 10, 10),
        rack_of=[0, 1],
        pod_of=[0, 0],
        link=100.0,
        rack_link=60.0,
        pod_link=100.0,
        horizon=HORIZON,
    )


def job(name: str, cpu: list[float]) -> TiMra:
    """A job of one task with this demand over time."""
    return TiMra(name, [Node("a", np.array(cpu))], [], len(cpu))


def test_a_job_begins_when_enough_has_ended() -> None:
    """Three jobs of the same size on two servers: the third begins when the first ends, and is a promise."""
    site = datacenter()
    ends = [allocate(site, job(str(length), [4.0] * length)) for length in (5, 9)]
    third = allocate_earliest(site, job("third", [3.0] * 4))
    assert isinstance(third, Placement)
    assert (third.start, third.end) == (5, 9)
    fourth = allocate_earliest(site, job("fourth", [3.0] * 5))
    assert isinstance(fourth, Placement)
    assert fourth.start == 9, "the promise to the third is kept"
    small = allocate_earliest(site, job("small", [1.0] * 4))
    assert isinstance(small, Placement)
    assert small.start == 5, "it fits next to the third"
    assert all(ends)
    for held in (*ends, third, fourth, small):
        assert isinstance(held, Placement)
        held.release()
    assert site.is_empty()


def test_rises_within_a_job_count() -> None:
    """A job whose demand rises later begins earlier than a constant one, by as many instants."""
    site = datacenter()
    for length in (10, 12):
        assert allocate(site, job(str(length), [4.0] * length))
    rising = allocate_earliest(site, job("rising", [0.0] * 3 + [4.0] * 2))
    assert isinstance(rising, Placement)
    assert rising.start == 7


def test_no_start_within_the_bound_is_a_refusal() -> None:
    """The refusal is that of the first start; nothing is reserved."""
    site = datacenter()
    held = [allocate(site, job(str(length), [4.0] * length)) for length in (10, 12)]
    assert isinstance(allocate_earliest(site, job("late", [1.0]), last=9), Refusal)
    assert isinstance(allocate_earliest(site, job("large", [5.0])), Refusal)
    assert isinstance(allocate_earliest(site, job("long", [1.0] * (HORIZON - 9))), Refusal)
    assert isinstance(allocate_earliest(site, job("fits", [1.0] * (HORIZON - 10))), Placement)
    with pytest.raises(ValueError, match="after is -1"):
        allocate(site, job("early", [1.0]), after=-1)
    assert all(held)


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_earliest_of_all_starts(seed: int) -> None:
    """In random data centres no start before it has places, as trying each start shows."""
    random = np.random.default_rng(seed)
    site = datacenter()
    for number in range(9):
        length = int(random.integers(1, 12))
        start = int(random.integers(0, 20))
        allocate(site, job(f"j{number}", list(random.integers(0, 4, length) * 1.0)), after=start)
    length = int(random.integers(1, 8))
    # One task: then a start with places is found wherever there is one.
    wanted = job("wanted", list(random.integers(0, 5, length) * 1.0))

    def fits(start: int) -> bool:
        attempt = allocate(site, wanted, after=start)
        if isinstance(attempt, Placement):
            attempt.release()
        return bool(attempt)

    begin = int(random.integers(0, 3))
    first = next((start for start in range(begin, HORIZON - length + 1) if fits(start)), None)
    outcome = allocate_earliest(site, wanted, begin=begin)
    assert (outcome.start if isinstance(outcome, Placement) else None) == first


def test_links_that_become_free_count() -> None:
    """A job waits for the link between racks as it waits for processors."""
    site = datacenter()

    def pair(name: str, length: int) -> TiMra:
        tasks = [Node(end, np.full(length, 1.0)) for end in ("a", "b")]
        return TiMra(name, tasks, [Edge("a", "b", np.full(length, 50.0))], length)

    pinned = {"a": 0, "b": 1}
    assert allocate(site, pair("first", 6), pinned=pinned)
    second = allocate_earliest(site, pair("second", 3), pinned=pinned)
    assert isinstance(second, Placement)
    assert second.start == 6


def test_links_that_are_set_aside_are_free_of_jobs() -> None:
    """Amounts of a tree's links replace the previous ones, and reservations count in addition."""
    site = datacenter()
    tasks = [Node(end, np.full(2, 1.0)) for end in ("a", "b")]
    pair = TiMra("pair", tasks, [Edge("a", "b", np.full(2, 30.0))], 2)
    site.set_links_aside([40.0, 0, 0, 0, 0, 0])
    assert not allocate(site, pair, pinned={"a": 0, "b": 1})
    assert allocate(site, pair, pinned={"a": 1, "b": 0})
    site.set_links_aside([30.0, 0, 0, 0, 0, 0])
    assert allocate(site, pair, pinned={"a": 0, "b": 1})
    assert site.link_peak().tolist() == [30.0, 30.0, 30.0, 30.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="only in a tree"):
        Datacenter.fat_tree(4).set_links_aside(0.0)
