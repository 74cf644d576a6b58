"""Jobs over time that wait for a promised start, in a coordinator without any node."""

from __future__ import annotations

import json

import pytest

from dios.firmament.coordinator.assignment import Assignment
from dios.limits import PACKED_LEASE_S
from dios.wire.messages import Asked, Work
from tests.support.firmament.packing_coordinator import (
    ALL,
    ME,
    NODES,
    OTHER,
    Yard,
    board,
    job,
    listed,
    occupant,
    places,
    submission,
)

ALL_OF_IT = "count = 3\ncpu = 4"


def waits(told: dict[str, object]) -> float:
    """The time until the promised start."""
    assert told["ok"], told
    return float(str(told["waits_s"]))


def test_a_job_that_may_wait_gets_the_earliest_start() -> None:
    """It begins when the job before it ends; its promise is withheld from runs, and later jobs come after."""
    yard = Yard()
    assert waits(yard.bring(job("first", 10, a=ALL_OF_IT))) == 0.0
    assert not yard.bring(job("second", 5, a=ALL_OF_IT))["ok"]
    refused = yard.bring(job("second", 5, a=ALL_OF_IT), wait_s=10)
    assert "No start within 10 s has room for all of it" in str(refused["error"])
    checked = yard.bring(job("second", 5, a=ALL_OF_IT), "check", wait_s=600)
    assert waits(checked) == pytest.approx(22.0, abs=2.0)
    assert [admitted.job for admitted in listed(yard)] == ["first"]
    assert waits(yard.bring(job("second", 5, a=ALL_OF_IT), wait_s=600)) == waits(checked)
    third = yard.bring(job("third", 5, a=ALL_OF_IT), wait_s=600)
    assert waits(third) >= waits(checked) + 10
    run = submission(5, Work(cpus_milli=1000))
    yard.office.read("n1", board("n1", waiting=(run,)), 1.0)
    assert yard.office.round(1.0) == [], "it has no known end, and would be in the way of the promise"


def test_starts_come_nearer_in_the_order_of_admission() -> None:
    """When a job ends early the first that waits begins at once, and the next when that one ends."""
    yard = Yard()
    first = yard.bring(job("first", 100, a=ALL_OF_IT))
    second = yard.bring(job("second", 5, a=ALL_OF_IT), wait_s=3600)
    third = yard.bring(job("third", 5, a=ALL_OF_IT), wait_s=3600, principal=OTHER)
    assert waits(second) > 200
    yard.at(9.0)
    assert yard.ask("release", number=first["number"])["ok"]
    told = yard.ask("renew", number=second["number"])
    assert 2.0 <= waits(told) <= 6.0
    assert set(places(told).values()) == set(NODES)
    later = yard.ask("renew", number=third["number"], principal=OTHER)
    assert waits(told) + 10 <= waits(later) < 25
    yard.at(9.0 + waits(told))
    assert waits(yard.ask("renew", number=second["number"])) == 0.0
    assert yard.reserved() == dict.fromkeys(NODES, 4.0)


def test_a_run_that_ends_lets_jobs_begin() -> None:
    """A run has no known end, so nothing is promised of its room; a job that waits gets it when it ends."""
    yard = Yard()
    yard.office.read("n2", board("n2", (occupant(1, Work(cpus_milli=3000)),)), 1.0)
    yard.at(1.0)
    assert not yard.bring(job("wide", 5, a=ALL_OF_IT), wait_s=600)["ok"]
    assert yard.bring(job("first", 50, a="count = 2\ncpu = 4"))["ok"]
    second = yard.bring(job("second", 5, a="count = 2\ncpu = 2"), wait_s=600)
    assert waits(second) > 90
    yard.office.read("n2", board("n2"), 3.0)
    yard.at(4.5)
    assert waits(yard.ask("renew", number=second["number"])) < 7.0


def test_who_waits_is_explained_and_keeps_the_lease() -> None:
    """`explain` tells of the start and the jobs before; without renewal the job is gone after its lease."""
    yard = Yard()
    yard.bring(job("first", 100, a=ALL_OF_IT))
    yard.bring(job("second", 5, a=ALL_OF_IT), wait_s=3600)
    third = yard.bring(job("third", 5, a=ALL_OF_IT), wait_s=3600)

    def explained(principal: str) -> dict[str, object]:
        question = json.dumps({"ask": "explain", "task": "third"}).encode()
        reply: dict[str, object] = json.loads(yard.office.answer(Asked(1, principal, False, question)))
        return reply

    lines = explained(ME)["lines"]
    assert isinstance(lines, list)
    assert f"third waits for its start in {waits(third):.0f} s at the latest" in lines[0]
    assert lines[1].startswith("1 of the jobs that wait were admitted before it")
    assert "no task 'third' waits or runs" in str(explained(OTHER)["error"])
    yard.at(PACKED_LEASE_S - 1)
    yard.ask("renew", number=third["number"])
    yard.at(PACKED_LEASE_S + 1)
    assert [admitted.job for admitted in listed(yard)] == ["third"]


def test_a_job_without_an_end_cannot_wait() -> None:
    """It would hold its places for ever from its start on; the message names the missing field."""
    yard = Yard()
    refused = yard.bring(job(instants=1, a="cpu = 1"), wait_s=60)
    assert "Give its description `instants`" in str(refused["error"])


def test_the_next_coordinator_keeps_the_promise() -> None:
    """A stored job that waits has the same start, and its places are held from then on."""
    yard, heir = Yard(), Yard()
    yard.bring(job("first", 50, a=ALL_OF_IT))
    second = yard.bring(job("second", 5, a=ALL_OF_IT), wait_s=3600)
    heir.office._jobs.take_over(yard.office._jobs.to_stored(), 0.0)
    heir.at(0.0)
    told = heir.ask("renew", number=second["number"])
    assert waits(told) == waits(second)
    assert places(told) == places(second)
    assert waits(heir.bring(job("third", 5, a=ALL_OF_IT), wait_s=3600)) >= waits(second) + 10


def test_a_lost_node_moves_the_start_and_the_job_says_so() -> None:
    """If a node leaves, a job that waits gets other places, later if it must, and the reason is shown."""
    yard = Yard()
    yard.bring(job("first", 20, a="count = 3\ncpu = 2"))
    second = yard.bring(job("second", 5, a="count = 3\ncpu = 3"), wait_s=3600)
    assert waits(second) > 30
    whole = Assignment(ALL, ALL, leader="n1", governs=ALL)
    fewer = Assignment(ALL - {"n3"}, ALL - {"n3"}, leader="n1", governs=ALL - {"n3"})
    yard.office.change_assignment(whole, fewer, 1.0)
    yard.at(2.0)
    jobs = yard.ask("list")["jobs"]
    assert isinstance(jobs, list)
    assert "it has no start, because nodes have left" in jobs[1]["problem"]
    yard.office.change_assignment(fewer, whole, 3.0)
    yard.office.read("n3", board("n3"), 3.0)
    yard.at(4.0)
    assert waits(yard.ask("renew", number=second["number"])) > 30
