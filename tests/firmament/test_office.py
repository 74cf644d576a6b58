"""What goes in and out of a coordinator that schedules, without any node."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from dios import limits
from dios.firmament.coordinator.duty import Duty
from dios.firmament.coordinator.observer import Report
from dios.firmament.coordinator.office import Office
from dios.firmament.knowledge import KnowledgeBase
from dios.wire.messages import Asked, BoardRows, Occupant, Placed, Submission, Work
from dios.wire.types import TaskState

ALL = frozenset({"n1", "n2"})


def board(number: int, waiting: tuple[Submission, ...] = (), tasks: tuple[Occupant, ...] = ()) -> BoardRows:
    """A node's board."""
    return BoardRows(
        1, number, f"n{number}", "r1", 2, 2**30, 16, (), draining=False, coordinated=True,
        waiting=waiting, tasks=tasks, asked=(), reports=(), partial=False,
    )  # fmt: skip


def submission(task: int, work: Work, principal: str = "uid:1") -> Submission:
    """A run that waits on the first node."""
    return Submission(task, f"{task:012x}", f"job{task}", principal, 0, work, "n1")


def occupant(row: Submission) -> Occupant:
    """The same once it runs."""
    return Occupant(
        row.id,
        row.fingerprint,
        row.label,
        row.principal,
        TaskState.RUNNING,
        1,
        0,
        row.work,
        0,
        0,
        completed=False,
    )


@pytest.fixture
def office() -> Office:
    """One that attends to two nodes."""
    made = Office("spread", "n1", "centralised", KnowledgeBase("n1", 1))
    made.changed_duty(Duty(), Duty(ALL, ALL, leader="n1"), 0.0)
    return made


def ask(
    office: Office, question: object, *, ruler: bool = True, principal: str = "uid:0"
) -> dict[str, object]:
    """What the desk answers."""
    found: dict[str, object] = json.loads(
        office.answer(Asked(1, principal, ruler, json.dumps(question).encode()))
    )
    return found


def test_a_preempted_task_goes_before_its_place_is_given(office: Office) -> None:
    """The order to stop goes out first; who takes the place is sent once the other is off its board."""
    low = submission(1, Work(cpus_milli=2000, restartable=True))
    other = submission(2, Work(cpus_milli=2000))
    office.read("n1", board(1, tasks=(occupant(low),)), 0.0)
    office.read("n2", board(2, tasks=(occupant(other),)), 0.0)
    office.round(0.0)
    high = submission(3, Work(cpus_milli=2000, priority=5))
    office.read("n1", board(1, (high,), (occupant(low),)), 1.0)
    (order,) = office.round(1.0)
    assert (order.host, order.placements, order.preempted) == ("n1", [], [1])
    assert office.round(2.0) == [], "it has not gone yet"
    office.answered("n1", [], [1], Placed((), 1), 2.0)
    office.read("n1", board(1, (high,)), 3.0)
    (order,) = office.round(3.0)
    assert (order.placements, order.preempted) == ([(3, "n1")], [])


def test_a_task_that_was_not_stopped_is_known_again(office: Office) -> None:
    """A node that refuses to stop a task has it still: the next board tells of it, and its room is taken."""
    low = submission(1, Work(cpus_milli=2000, restartable=True))
    other = submission(2, Work(cpus_milli=2000))
    office.read("n1", board(1, tasks=(occupant(low),)), 0.0)
    office.read("n2", board(2, tasks=(occupant(other),)), 0.0)
    office.round(0.0)
    high = submission(3, Work(cpus_milli=2000, priority=5))
    office.read("n1", board(1, (high,), (occupant(low),)), 1.0)
    office.round(1.0)
    office.answered("n1", [], [1], Placed(((1, "it has ended"),), 1), 1.5)
    office.read("n1", board(1, (high,), (occupant(low),)), 2.0)
    assert ask(office, {"ask": "explain", "task": "job1"})["phase"] == "running"


def test_a_board_that_makes_no_sense_harms_nobody_else(office: Office) -> None:
    """A node that says it is another is a problem that is told; the others are scheduled."""
    office.read("n1", board(1, (submission(1, Work()),)), 0.0)
    office.read("n2", replace(board(1), name="n2"), 0.0)
    (order,) = office.round(1.0)
    assert order.placements == [(1, "n1")]
    problems = ask(office, {"ask": "status"})["problems"]
    assert isinstance(problems, list)
    assert [text.startswith("n2: its board makes no sense") for text in problems] == [True]


def test_people_see_their_own_tasks(office: Office) -> None:
    """A task of another user is not explained, and neither network nor model is anybody's but the ruler's."""
    office.read("n1", board(1, (submission(1, Work(), "uid:7"),)), 0.0)
    mine = ask(office, {"ask": "explain", "task": "job1"}, ruler=False, principal="uid:7")
    assert mine["ok"]
    assert mine["phase"] == "waiting"
    for question in (
        {"ask": "explain", "task": "job1"},
        {"ask": "export"},
        {"ask": "set-model", "model": "coco"},
    ):
        refused = ask(office, question, ruler=False, principal="uid:8")
        assert not refused["ok"]
        assert refused["error"]


def test_what_is_told_to_everybody_names_nobody(office: Office) -> None:
    """Status and history are for all; which tasks moved, and what went wrong with whose, is the ruler's."""
    office.read("n1", board(1, (submission(1, Work(), "uid:7"),)), 0.0)
    office.round(1.0)
    office.note("something about job 77")
    for question in ({"ask": "status"}, {"ask": "history"}):
        whole = json.dumps(ask(office, question))
        told = ask(office, question, ruler=False, principal="uid:8")
        assert told["ok"]
        assert "job 77" not in json.dumps(told)
        assert '"place", 1,' in whole
        assert '"place", 1,' not in json.dumps(told)


def test_a_task_that_is_to_stop_is_explained(office: Office) -> None:
    """Between the order to stop and the end, the explanation says that."""
    low = submission(1, Work(cpus_milli=2000, restartable=True))
    office.read("n1", board(1, tasks=(occupant(low),)), 0.0)
    office.read("n2", board(2, tasks=(occupant(submission(2, Work(cpus_milli=2000))),)), 0.0)
    high = submission(3, Work(cpus_milli=2000, priority=5))
    office.read("n1", board(1, (high,), (occupant(low),)), 1.0)
    office.round(1.0)
    told = ask(office, {"ask": "explain", "task": "job1"})
    assert "told to stop" in str(told["lines"])


def test_an_unknown_question_is_answered(office: Office) -> None:
    """What is no question, and what is no JSON, gets an answer that says so."""
    assert "status" in str(ask(office, {"ask": "weather"})["error"])
    answer = json.loads(office.answer(Asked(1, "uid:0", ruler=True, question=b"{")))
    assert not answer["ok"]


def test_an_answer_that_is_too_long_says_so(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is longer than what travels; instead of a silence there is a sentence."""
    office.read("n1", board(1, (submission(1, Work()),)), 0.0)
    monkeypatch.setattr(limits, "ADVICE_BYTES_MAX", 200)
    refused = ask(office, {"ask": "export"})
    assert not refused["ok"]
    assert "at most 200 travel" in str(refused["error"])


def test_reports_are_merged_or_told_of(office: Office) -> None:
    """A report of a node that says it is another is refused, and told of."""
    office.take_report("n2", Report("n1", "type", KnowledgeBase("n1", 7).batch().to_bytes()))
    office.take_report("n2", Report("n2", "type", b"rubbish"))
    problems = ask(office, {"ask": "status"})["problems"]
    assert isinstance(problems, list)
    assert len(problems) == 2
    assert all("n2" in text for text in problems)


def test_an_unknown_model_is_told_and_another_taken() -> None:
    """A setting that names no model does not stop the scheduling; the status tells which it is, and why."""
    office = Office("nosuch", "n1", "centralised", KnowledgeBase("n1", 1))
    told = ask(office, {"ask": "status"})
    assert told["model"] == "spread"
    assert "nosuch" in str(told["problems"])
