"""Jobs over time beside the flow network, in a coordinator without any node (Packer paper, II and III)."""

from __future__ import annotations

import base64
import json
import random

import pytest

from dios.firmament.cluster.columns import ABSENT
from dios.firmament.coordinator.assignment import Assignment, SetUp, StartOptions
from dios.firmament.coordinator.scheduler_service import SchedulerService
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.limits import PACKED_INSTANT_S, PACKED_LEASE_S
from dios.wire.messages import Asked, Occupant, Submission, Work
from tests.support.firmament.packing_coordinator import (
    ALL,
    CPUS,
    ME,
    NODES,
    OTHER,
    WALL,
    Yard,
    board,
    job,
    listed,
    occupant,
    places,
    submission,
)


def test_a_job_is_admitted_as_a_whole_or_not_at_all() -> None:
    """Each member has a place when all have; one too many, and nothing is held."""
    yard = Yard()
    told = yard.bring(job(a="count = 3\ncpu = 4"))
    assert set(places(told).values()) == ALL
    assert yard.reserved() == dict.fromkeys(NODES, 4.0)
    number = told["number"]
    refused = yard.bring(job("more", a="cpu = 0.5"))
    assert refused["ok"] is False
    assert "needs 0.5 cores of cpu, and of 3 possible places none has that" in str(refused["error"])
    assert yard.ask("release", number=number)["ok"]
    assert yard.reserved() == dict.fromkeys(NODES, 0.0)
    assert not yard.bring(job(a="count = 4\ncpu = 3"))["ok"]
    assert yard.reserved() == dict.fromkeys(NODES, 0.0)


def test_a_check_holds_nothing() -> None:
    """What would be is told, and what is held stays as it was."""
    yard = Yard()
    told = yard.bring(job(a="count = 3\ncpu = 4"), "check")
    assert set(places(told).values()) == ALL
    assert "number" not in told
    assert listed(yard) == []
    assert yard.reserved() == dict.fromkeys(NODES, 0.0)


def test_jobs_share_a_machine_at_different_times() -> None:
    """Two whose peaks lie apart have the same machines; the flow network keeps off the worst instant only."""
    yard = Yard()
    assert yard.bring(job("one", a="count = 3\ncpu = {0 = 4, 5 = 0.5}"))["ok"]
    assert not yard.bring(job("same", a="count = 3\ncpu = {0 = 4, 5 = 0.5}"))["ok"]
    assert yard.bring(job("late", a="count = 3\ncpu = {0 = 0, 6 = 3}"))["ok"]
    assert yard.reserved() == dict.fromkeys(NODES, 4.0)
    yard.at(14.0)
    assert yard.reserved() == dict.fromkeys(NODES, 3.5)
    yard.at(30.0)
    assert yard.reserved() == dict.fromkeys(NODES, 0.0)
    assert listed(yard) == []


def test_packer_leaves_what_the_flow_network_gave_away() -> None:
    """What runs by the flow network has no known end: a job gets what is left at all instants."""
    yard = Yard()
    runs = occupant(1, Work(cpus_milli=3000))
    yard.office.read("n2", board("n2", (runs,)), 1.0)
    yard.at(1.0)
    assert not yard.bring(job(a="count = 3\ncpu = 2.5"))["ok"]
    assert "n2" not in places(yard.bring(job(a="count = 2\ncpu = 2.5"))).values()
    assert yard.reserved() == {"n1": 2.5, "n2": 3.0, "n3": 2.5}


def test_the_flow_network_leaves_what_packer_promised() -> None:
    """A run waits where only promised processors are free, although nobody uses them yet."""
    yard = Yard()
    assert yard.bring(job("later", a="count = 3\ncpu = {0 = 0, 8 = 3}"))["ok"]
    waits = submission(5, Work(cpus_milli=2000))
    yard.office.read("n1", board("n1", waiting=(waits,)), 1.0)
    assert yard.office.round(1.0) == []
    small = submission(6, Work(cpus_milli=1000))
    yard.office.read("n1", board("n1", waiting=(waits, small)), 2.0)
    (order,) = yard.office.round(2.0)
    assert [task for task, _ in order.placements] == [6]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_given_away_twice(seed: int) -> None:
    """In random histories no machine is promised beyond what it has, at any instant."""
    chance = random.Random(seed)  # noqa: S311 - drawn histories
    yard = Yard()
    running: dict[str, dict[int, Occupant]] = {node: {} for node in NODES}
    held: list[object] = []
    for step in range(40):
        now = yard.now + chance.random() * 6
        waiting: list[Submission] = []
        if chance.random() < 0.4:
            work = Work(cpus_milli=chance.choice((500, 1000, 3000)))
            waiting.append(submission(1000 + step, work, chance.choice((ME, OTHER))))
        for node in NODES:
            if running[node] and chance.random() < 0.3:
                running[node].pop(next(iter(running[node])))
            rows = tuple(waiting) if node == "n1" else ()
            yard.office.read(node, board(node, tuple(running[node].values()), rows), now)
        yard.now = now
        for order in yard.office.round(now):
            for task, node in order.placements:
                row = next(candidate for candidate in waiting if candidate.id == task)
                running[node][task] = occupant(task, row.work, row.principal)
                yard.office.read(node, board(node, tuple(running[node].values())), now)
        if chance.random() < 0.6:
            steps = (
                f"{{0 = {chance.choice((0, 1, 2))}, {chance.randrange(1, 9)} = {chance.choice((0, 1, 3))}}}"
            )
            instants = chance.choice((1, 10))
            cpu = steps if instants > 1 else str(chance.choice((1, 2)))
            told = yard.bring(job(f"j{step}", instants, a=f"count = {chance.randrange(1, 4)}\ncpu = {cpu}"))
            if told["ok"]:
                held.append(told["number"])
        if held and chance.random() < 0.3:
            yard.ask("release", number=held.pop(0))
        state = yard.office._scheduler.state
        for number in (1, 2, 3):
            machine = state.machine_row(number)
            assert machine != ABSENT
            taken = state.resources.reserved[machine, 0]
            assert taken <= CPUS + 1e-6, f"seed {seed}, step {step}, node {number}"
        books = yard.office._jobs._datacenter
        if books is not None:
            assert books.site.free.min() >= 0, f"seed {seed}, step {step}"


def test_a_job_is_stopped_when_its_time_is_over() -> None:
    """Members that still run at the job's end are told to stop, once; what it held is free."""
    yard = Yard()
    told = yard.bring(job("short", 5, 1, a="cpu = 4"))
    (node,), number = places(told).values(), int(str(told["number"]))
    work = Work(reservation=number, member="a", restartable=True)
    yard.office.read(node, board(node, (occupant(10, work),)), 1.0)
    assert yard.office.round(4.0) == []
    (order,) = yard.office.round(5.0)
    assert (order.host, order.preempted) == (node, [10])
    assert yard.office.round(5.5) == []
    assert listed(yard) == []
    yard.office.read(node, board(node, (occupant(11, work),)), 6.0)
    (order,) = yard.office.round(6.0)
    assert order.preempted == [11], "one that begins late is stopped, too"


def test_who_is_gone_holds_nothing() -> None:
    """A job whose user is not heard of ends after its lease; one that is renewed, or runs, does not."""
    yard = Yard()
    gone, renewed, runs = (yard.bring(job(name, 1, a="cpu = 4")) for name in ("gone", "renewed", "runs"))
    node = places(runs)["a"]
    work = Work(reservation=int(str(runs["number"])), member="a", restartable=True)
    late = PACKED_LEASE_S * 0.9
    yard.office.read(node, board(node, (occupant(10, work),)), late)
    yard.at(late)
    assert yard.ask("renew", number=renewed["number"])["ok"]
    yard.at(PACKED_LEASE_S + 1)
    assert [admitted.job for admitted in listed(yard)] == ["renewed", "runs"]
    refused = yard.ask("renew", number=gone["number"])
    assert "its time is over, or it was released" in str(refused["error"])


def test_jobs_are_their_owners() -> None:
    """Nobody else sees, renews or releases a job, but the nodes' own user does."""
    yard = Yard()
    number = yard.bring(job(a="cpu = 1"))["number"]
    assert listed(yard, principal=OTHER) == []
    for do in ("renew", "release"):
        assert not yard.ask(do, principal=OTHER, number=number)["ok"]
    (row,) = listed(yard, principal="uid:0", ruler=True)
    assert row.principal == ME
    assert yard.ask("release", principal="uid:0", ruler=True, number=number)["ok"]


def test_quotas_and_rights_hold_for_jobs() -> None:
    """A quota is never exceeded; while others wait nobody takes more than its right by a job."""
    yard = Yard()
    question = json.dumps({"ask": "quota", "principal": ME, "quota": {"cpus": 5}}).encode()
    assert json.loads(yard.office.answer(Asked(1, "uid:0", ruler=True, question=question)))["ok"]
    assert yard.bring(job("fits", a="count = 2\ncpu = 2.5"))["ok"]
    refused = yard.bring(job("over", a="cpu = 1"))
    assert "it would hold 6 of cpus, and its quota is 5" in str(refused["error"])
    yard.office.read("n1", board("n1", waiting=(submission(5, Work(cpus_milli=9000), OTHER),)), 1.0)
    yard.at(1.0)
    third = "uid:9"
    assert "more than its right to" in str(
        yard.bring(job("x", a="count = 3\ncpu = 1.5"), principal=third)["error"]
    )
    assert yard.bring(job("y", a="count = 2\ncpu = 1.5"), principal=third)["ok"]


def test_jobs_outlive_their_coordinator() -> None:
    """The next coordinator knows jobs with their places and times, and books them first."""
    yard = Yard()
    told = yard.bring(job("stays", 20, 2, a="count = 3\ncpu = {0 = 1, 10 = 3}"))
    endless = yard.bring(job("endless", 1, a="cpu = 1"))
    assert yard.office.has_unstored_changes()
    shares = yard.office.shares_to_store(1.0)
    assert shares is not None
    yard.office.mark_stored()
    assert not yard.office.has_unstored_changes()
    heir = Yard()
    heir.office = SchedulerService(
        StartOptions(SetUp.CENTRALISED, "spread"), "n2", KnowledgeBase("n2", 1), WALL
    )
    heir.office.change_assignment(Assignment(), Assignment(ALL, ALL, leader="n2", governs=ALL), 6.0)
    heir.office.learn(shares, 6.0, commitments=True)
    heir.at(6.0)
    for node in NODES:
        heir.office.read(node, board(node), 7.0)
    heir.at(7.0)
    assert sum(heir.reserved().values()) == 3 * 3 + 1
    jobs = listed(heir)
    assert [admitted.number for admitted in jobs] == [told["number"], endless["number"]]
    assert {member.member: member.node for member in jobs[0].members} == places(told)
    assert not heir.bring(job("second", 20, 2, a="count = 3\ncpu = 1"))["ok"]
    heir.at(40.0 + PACKED_INSTANT_S)
    assert heir.ask("release", number=endless["number"])["ok"] is False, "nobody renewed it"
    assert sum(heir.reserved().values()) == 0


def test_the_next_coordinator_books_steps_when_they_come() -> None:
    """A step in the middle of a long instant of a job is booked for its own time, not for that instant's."""
    yard = Yard()
    assert yard.bring(job("steps", 3, 60, a="count = 3\ncpu = {0 = 1, 1 = 4}"))["ok"]
    shares = yard.office.shares_to_store(1.0)
    assert shares is not None
    heir = Yard()
    heir.office.learn(shares, 30.0, commitments=True)
    heir.at(30.0)
    early = job("early", 13, 2, a="cpu = {0 = 3, 12 = 0}")
    assert heir.bring(early)["ok"], "until 24 s from now three are free"
    late = job("late", 30, 2, a="cpu = {0 = 0, 16 = 1}")
    assert "32 s after its beginning" in str(heir.bring(late)["error"])


def test_a_job_that_cannot_be_stored_is_not_admitted() -> None:
    """What the next coordinator would not know of is taken back before its user is told."""
    yard = Yard()
    assert yard.bring(job(a="cpu = 1"))["ok"]
    told = json.loads(yard.office.storing_failed("the disk is full", 1.0))
    assert "cannot admit the job" in told["error"]
    assert listed(yard) == []


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"do": "admit", "job": "!"}, "cannot read the description"),
        ({"do": "admit", "job": base64.b64encode(b"x").decode()}, "cannot read the description"),
        ({"do": "nosuch"}, "unknown question about jobs"),
        ({"do": 3}, "invalid question about jobs"),
        ({"do": "renew", "number": 3}, "no such job"),
    ],
)
def test_questions_that_make_no_sense_are_refused(question: dict[str, object], why: str) -> None:
    """Nothing is held, and the answer says what is wrong."""
    yard = Yard()
    asked = json.dumps({"ask": "pack", **question}).encode()
    told = json.loads(yard.office.answer(Asked(1, ME, ruler=False, question=asked)))
    assert told["ok"] is False
    assert why in str(told["error"])
    assert listed(yard) == []


def test_descriptions_are_checked_by_field() -> None:
    """What makes no sense in a description is named; several coordinators at once admit nothing."""
    yard = Yard()
    for text, why in (
        (job(a="cpu = -1"), "tasks.a.cpu is -1"),
        (job(a='after = ["a"]'), "cycle"),
        (job("long", 4000, 10, a="cpu = 1"), "a job that ends takes at most 2.3 h; without instants"),
        (job("crowd", 1, a="count = 600\ncpu = 0"), "tasks are too many for a cluster: 512 at most"),
        (job("crowd", 4000, a="count = 200\ncpu = 0"), "for so long fewer"),
        ("name = 3", "name"),
    ):
        told = yard.bring(text)
        assert told["ok"] is False
        assert why in str(told["error"]), told
    many = Yard(SetUp.DISTRIBUTED)
    assert "need one coordinator for all nodes" in str(many.bring(job(a="cpu = 1"))["error"])
