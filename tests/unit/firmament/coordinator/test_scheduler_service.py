"""What goes in and out of a coordinator that schedules, without any node."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from dios import limits
from dios.firmament.coordinator.assignment import Assignment, SetUp, StartOptions
from dios.firmament.coordinator.best_effort import NodeLoad, TaskLoad
from dios.firmament.coordinator.observer import MeasurementReport
from dios.firmament.coordinator.scheduler_service import SchedulerService
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models.green import GreenModel
from dios.firmament.policies.principal_accounts import FairnessRule
from dios.firmament.policies.stored_shares import StoredPolicy, StoredShares, encode
from dios.node.settings import FairnessPolicy, SchedulingMode
from dios.wire.messages import (
    Asked,
    Constraint,
    Meter,
    Metered,
    Occupant,
    Placed,
    QueueRows,
    Submission,
    Work,
)
from dios.wire.types import Operator, TaskState, Traffic
from tests.support.firmament.answers import require_described
from tests.support.firmament.custom_models import derived, opened

ALL = frozenset({"n1", "n2"})
WALL = 1.7e9
"""Seconds since 1970 at time 0."""


def board(number: int, waiting: tuple[Submission, ...] = (), tasks: tuple[Occupant, ...] = ()) -> QueueRows:
    """A node's board."""
    return QueueRows(
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
def office() -> SchedulerService:
    """One that attends to two nodes."""
    service = SchedulerService(StartOptions(SetUp.CENTRALISED, "spread"), "n1", KnowledgeBase("n1", 1), WALL)
    service.change_assignment(Assignment(), Assignment(ALL, ALL, leader="n1"), 0.0)
    return service


def ask(
    office: SchedulerService, question: object, *, ruler: bool = True, principal: str = "uid:0"
) -> dict[str, object]:
    """What the desk answers."""
    reply: dict[str, object] = json.loads(
        office.answer(Asked(1, principal, ruler, json.dumps(question).encode()))
    )
    require_described(question, reply)
    return reply


def test_a_preempted_task_goes_before_its_place_is_given(office: SchedulerService) -> None:
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
    office.record_answer("n1", [], [1], Placed((), 1), 2.0)
    office.read("n1", board(1, (high,)), 3.0)
    (order,) = office.round(3.0)
    assert (order.placements, order.preempted) == ([(3, "n1")], [])


def test_decided_placements_need_no_further_round(office: SchedulerService) -> None:
    """While they keep all nodes busy, the next are sent without the flow scheduler, and each run once."""
    runs = [submission(task, Work()) for task in range(1, 101)]
    sent: dict[int, str] = {}
    rounds = 0
    while len(sent) < len(runs):
        now = 1 + rounds / 100
        begun = list(sent)[: 6 * rounds]
        left = tuple(run for run in runs if run.id not in sent)
        for number in (1, 2):
            here = [occupant(run) for run in runs if run.id in begun and sent[run.id] == f"n{number}"]
            queue = board(number, left if number == 1 else (), tuple(here))
            office.read(f"n{number}", replace(queue, version=1 + rounds, slots=100), now)
        for action in office.round(now):
            placed = dict(action.placements)
            assert not placed.keys() & sent.keys()
            sent |= placed
            office.record_answer("n1", list(placed), [], Placed((), 1 + rounds), now)
        rounds += 1
        assert rounds < 60
    assert len(office._scheduler.history) < rounds


def test_a_decided_placement_of_higher_priority_goes_first(office: SchedulerService) -> None:
    """It is sent before placements that were decided earlier and still wait."""
    runs = [submission(task, Work()) for task in range(1, 81)]
    office.read("n1", replace(board(1, tuple(runs)), slots=100), 1.0)
    office.read("n2", replace(board(2), slots=100), 1.0)
    (action,) = office.round(1.0)
    sent = dict(action.placements)
    office.record_answer("n1", list(sent), [], Placed((), 1), 1.0)
    left = [run for run in runs if run.id not in sent]
    urgent = submission(99, Work(priority=5))
    office.read("n1", replace(board(1, (*left, urgent)), version=2, slots=100), 2.0)
    assert office.round(2.0) == []
    begun = next(run for run in runs if sent.get(run.id) == "n2")
    office.read("n2", replace(board(2, tasks=(occupant(begun),)), version=2, slots=100), 3.0)
    here = next(run for run in runs if sent.get(run.id) == "n1")
    waiting = (*left, urgent)
    office.read("n1", replace(board(1, waiting, (occupant(here),)), version=3, slots=100), 3.0)
    (action,) = office.round(3.0)
    assert 99 in dict(action.placements)


def test_a_task_that_was_not_stopped_is_known_again(office: SchedulerService) -> None:
    """A node that refuses to stop a task has it still: the next board tells of it, and its room is taken."""
    low = submission(1, Work(cpus_milli=2000, restartable=True))
    other = submission(2, Work(cpus_milli=2000))
    office.read("n1", board(1, tasks=(occupant(low),)), 0.0)
    office.read("n2", board(2, tasks=(occupant(other),)), 0.0)
    office.round(0.0)
    high = submission(3, Work(cpus_milli=2000, priority=5))
    office.read("n1", board(1, (high,), (occupant(low),)), 1.0)
    office.round(1.0)
    office.record_answer("n1", [], [1], Placed(((1, "it has ended"),), 1), 1.5)
    office.read("n1", board(1, (high,), (occupant(low),)), 2.0)
    assert ask(office, {"ask": "explain", "task": "job1"})["phase"] == "running"


def test_a_board_that_makes_no_sense_harms_nobody_else(office: SchedulerService) -> None:
    """A node that says it is another is a problem that is told; the others are scheduled."""
    office.read("n1", board(1, (submission(1, Work()),)), 0.0)
    office.read("n2", replace(board(1), name="n2"), 0.0)
    (order,) = office.round(1.0)
    assert order.placements == [(1, "n1")]
    problems = ask(office, {"ask": "status"})["problems"]
    assert isinstance(problems, list)
    assert [text.startswith("n2: its queue is invalid") for text in problems] == [True]


def test_people_see_their_own_tasks(office: SchedulerService) -> None:
    """A task of another user is not explained, and neither network nor model is anybody's but the ruler's."""
    office.read("n1", board(1, (submission(1, Work(), "uid:7"),)), 0.0)
    mine = ask(office, {"ask": "explain", "task": "job1"}, ruler=False, principal="uid:7")
    assert mine["ok"]
    assert mine["phase"] == "waiting"
    for question in (
        {"ask": "explain", "task": "job1"},
        {"ask": "export"},
        {"ask": "set-model", "model": "coco"},
        {"ask": "set", "settings": {"preemption": "false"}},
        {"ask": "reset"},
    ):
        refused = ask(office, question, ruler=False, principal="uid:8")
        assert not refused["ok"]
        assert refused["error"]


def test_a_promised_start_follows_from_the_times_of_runs(office: SchedulerService) -> None:
    """People see their own promises: where, when, and after which tasks; those of others are counted."""
    times = {1: 90, 2: 30, 3: 200, 4: 200}
    tasks = [
        occupant(submission(number, Work(cpus_milli=1000, time_ms=1000 * time_s), f"uid:{6 + number % 2}"))
        for number, time_s in times.items()
    ]
    wanted, later = submission(9, Work(cpus_milli=2000), "uid:6"), submission(10, Work(), "uid:6")
    office.read("n2", board(2, tasks=tuple(tasks[2:])), 0.0)
    for second, waiting in enumerate([(), (wanted,), (wanted, later), (wanted,)]):
        there = tasks[:2] if second < 3 else [*tasks[:2], occupant(later)]
        office.read("n1", board(1, waiting, tuple(there)), float(second))
        orders = office.round(float(second))
        placed = [task for order in orders for task, _ in order.placements]
        assert placed == ([later.id] if second == 2 else []), "only the later one has room"
    mine = ask(office, {"ask": "promises"}, ruler=False, principal="uid:6")["promises"]
    assert isinstance(mine, list)
    (promise,) = mine
    assert promise.pop("starts_in_s") == pytest.approx(90, abs=5)
    assert promise == {
        "task": wanted.fingerprint,
        "nodes": ["n1"],
        "after": [tasks[1].fingerprint],
        "others": 1,
    }
    assert ask(office, {"ask": "promises"}, ruler=False, principal="uid:7")["promises"] == []


def test_what_is_told_to_everybody_names_nobody(office: SchedulerService) -> None:
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


def test_bandwidth_is_reserved_where_it_is_known(office: SchedulerService) -> None:
    """Of two runs that want most of a node's network one waits, with the reason; elsewhere both run."""
    work = Work(network=7, constraints=(Constraint("node", Operator.EQUAL, "n1"),))
    rows = (submission(1, work), submission(2, work), submission(3, replace(work, network=11)))
    office.read("n1", replace(board(1, rows), network=10), 0.0)
    office.read("n2", board(2), 0.0)
    (order,) = office.round(1.0)
    assert order.placements == [(1, "n1")]
    for task, why in ((2, "not enough free: 7 B/s of network"), (3, "too small: 11 B/s of network")):
        assert why in str(ask(office, {"ask": "explain", "task": f"job{task}"})["lines"])
    known = {row["node"]: row["network"] for row in ask(office, {"ask": "status"})["nodes"]}  # type: ignore[attr-defined] # rows
    assert known == {"n1": 10, "n2": 0}
    free = replace(work, constraints=(Constraint("node", Operator.EQUAL, "n2"),))
    office.read("n2", board(2, (submission(4, free), submission(5, free))), 2.0)
    (order,) = [candidate for candidate in office.round(2.0) if candidate.changes_tasks]
    assert order.placements == [(4, "n2"), (5, "n2")]


def loaded(office: SchedulerService, name: str, cpus: float, tasks: tuple[TaskLoad, ...] = ()) -> None:
    """A node reports how much of its processors is used."""
    load = NodeLoad(round(1000 * cpus), 0, 0, 0, tasks)
    office.merge_report(
        name, MeasurementReport(name, "type", KnowledgeBase(name, 7).batch().to_bytes(), load)
    )


def test_best_effort_fits_beside_what_is_used(office: SchedulerService) -> None:
    """On nodes whose processors are all reserved a best-effort run goes where they are idle, and others wait.

    As long as nothing is measured, or both nodes are busy, it waits, with the reason.
    """
    owners = [submission(task, Work(cpus_milli=2000)) for task in (1, 2)]
    spare = submission(3, Work(cpus_milli=1000, best_effort=True))
    more = submission(4, Work(cpus_milli=1000))
    office.read("n1", board(1, (spare, more), (occupant(owners[0]),)), 0.0)
    office.read("n2", board(2, tasks=(occupant(owners[1]),)), 0.0)
    assert office.round(0.0) == []
    assert "not measured yet" in str(ask(office, {"ask": "explain", "task": "job3"})["lines"])
    loaded(office, "n1", 2.0)
    loaded(office, "n2", 1.9)
    assert office.round(1.0) == []
    assert "on n2 1.9 of 2 cpus are in use, and 1 are wanted" in str(
        ask(office, {"ask": "explain", "task": "job3"})["lines"]
    )
    loaded(office, "n2", 0.1)
    (order,) = office.round(2.0)
    assert order.placements == [(3, "n2")]
    rows = ask(office, {"ask": "status"})["nodes"]
    assert isinstance(rows, list)
    assert [(row["cpus_set_aside"], row["cpus_used"]) for row in rows] == [(2, 2.0), (2, 0.1)]


def test_questions_that_have_used_up_their_time_get_an_answer_without_changes(
    office: SchedulerService,
) -> None:
    """Whoever asks again and again takes a part of the scheduler's time, and still hears the reason."""
    office.read("n1", board(1, (submission(1, Work(cpus_milli=4000)),)), 0.0)
    office.read("n2", board(2), 0.0)
    office.round(0.0)
    question = {"ask": "explain", "task": "job1"}
    assert "sufficient: 2 CPUs instead of 4" in str(ask(office, question)["lines"])
    lines = ""
    while "no changes were tried: explanations have used up their time" not in lines:
        lines = str(ask(office, question)["lines"])
    assert "too small" in lines
    assert "sufficient" not in lines


def test_runs_avoid_a_node_that_other_programs_load(office: SchedulerService) -> None:
    """The default model places runs on the other node once the load has lasted, and says so."""
    runs = [submission(task, Work(cpus_milli=1000)) for task in (1, 2, 3)]
    office.read("n1", board(1), 0.0)
    loaded(office, "n2", 2.0)
    office.read("n2", board(2), 0.0)
    office.round(0.0)
    assert [row["cpus_outside"] for row in status_rows(office)] == [0, 0]
    office.round(10.0)
    assert [row["cpus_outside"] for row in status_rows(office)] == [0, 2]
    office.read("n1", replace(board(1, tuple(runs[:2])), version=2), 11.0)
    (order,) = office.round(11.0)
    assert sorted(order.placements) == [(1, "n1"), (2, "n1")]
    running = tuple(occupant(run) for run in runs[:2])
    office.read("n1", replace(board(1, (runs[2],), running), version=3), 12.0)
    lines = str(ask(office, {"ask": "explain", "task": "job3"})["lines"])
    assert "0 of 2 processors are taken, and other programs use 2, which costs" in lines
    (order,) = office.round(12.0)
    assert order.placements == [(3, "n2")]


def status_rows(office: SchedulerService) -> list[dict[str, object]]:
    """The nodes in the status."""
    rows = ask(office, {"ask": "status"})["nodes"]
    assert isinstance(rows, list)
    return rows


def test_measured_power_reaches_the_model_green(office: SchedulerService) -> None:
    """A node's watts above its least are those of its tasks for Green, and the status shows its watts."""
    assert ask(office, {"ask": "set-model", "model": "green"})["ok"]
    office.read("n1", board(1, tasks=(occupant(submission(1, Work(cpus_milli=2000))),)), 0.0)
    office.read("n2", board(2), 0.0)
    model = office._scheduler.model
    assert isinstance(model, GreenModel)
    office.round(0.0)
    version = model.power.version
    load = NodeLoad(2000, 0, 0, 0, (), 50_000, 30_000)
    for _ in range(3):
        assert model.power.version == version
        office.merge_report(
            "n1", MeasurementReport("n1", "type", KnowledgeBase("n1", 7).batch().to_bytes(), load)
        )
    assert model.power.version == version + 1
    state = office._scheduler.state
    row = state.tasks.row(1)
    kind = int(state.resources.machine_type[state.machine_row(1)])
    wanted = state.tasks.equivalence[[row]].astype(np.float64)
    assert model.power.watts(state, [kind], wanted, np.array([2.0])).tolist() == [[20.0]]
    rows = ask(office, {"ask": "status"})["nodes"]
    assert isinstance(rows, list)
    assert [entry["watts"] for entry in rows] == [50.0, None]


def test_best_effort_tasks_do_not_fill_a_node_twice(office: SchedulerService) -> None:
    """Runs that were placed since the last measurement count as used, until it contains them."""
    runs = tuple(submission(task, Work(cpus_milli=1000, best_effort=True)) for task in (1, 2, 3))
    here = Constraint("node", Operator.EQUAL, "n1")
    runs = tuple(replace(run, work=replace(run.work, constraints=(here,))) for run in runs)
    office.read("n1", board(1, runs), 0.0)
    office.read("n2", board(2), 0.0)
    loaded(office, "n1", 0.0)
    loaded(office, "n2", 0.0)
    (order,) = office.round(1.0)
    assert order.placements == [(1, "n1"), (2, "n1")]
    assert office.round(3.0) == []
    assert len(office.round(20.0)) == 1, "idle again, as far as the last measurement knows"


def test_best_effort_survives_the_node_to_which_it_was_offered(office: SchedulerService) -> None:
    """A run that came back from a node that then died goes to the other one."""
    spare = submission(1, Work(cpus_milli=1000, best_effort=True))
    office.read("n1", board(1, (spare,)), 0.0)
    office.read("n2", board(2), 0.0)
    loaded(office, "n1", 1.0)
    loaded(office, "n2", 0.0)
    (order,) = office.round(1.0)
    assert order.placements == [(1, "n2")]
    office.record_answer("n1", [1], [], Placed(((1, "no room"),), 1), 1.5)
    office.cluster.remove_node("n2", 2.0)
    office.cluster.tasks[1].row = spare
    (order,) = office.round(3.0)
    assert order.placements == [(1, "n1")]


def test_the_scheduler_learns_what_tasks_use(office: SchedulerService) -> None:
    """The use of a running task that its node reports is in the scheduler's table."""
    row = submission(1, Work(cpus_milli=2000))
    office.read("n1", board(1, tasks=(occupant(row),)), 0.0)
    office.round(0.0)
    loaded(office, "n1", 1.0, (TaskLoad(1, 700, 5, 9), TaskLoad(77, 1, 1, 1)))
    table = office._scheduler.state.tasks
    assert table.usage[table.find(1)].tolist() == [0.7, 5, 9, 0, 0]


LATE_TASKS = range(1 << 40, (1 << 40) + 5)
"""Numbers that are in no other text."""


def at_work(number: int, progress: int | None, age_s: float) -> Occupant:
    """A task of job 7 that runs for some time and has reported a progress in thousandths."""
    row = occupant(submission(number, Work(job=7)))
    return replace(row, progress=progress, age_ms=round(1000 * age_s))


def slow_and_fast() -> tuple[Occupant, ...]:
    """Four tasks of which the first is slow, and one that reports nothing."""
    shares = zip(LATE_TASKS, (100, 800, 800, 800, None), strict=True)
    return tuple(at_work(number, share, 100) for number, share in shares)


CANDIDATE = {"task": f"{LATE_TASKS[0]:012x}", "seconds_left": 900.0}


def test_reported_progress_reaches_the_model_late(office: SchedulerService) -> None:
    """The slow task is worth a copy, and its explanation says how far it is; other users do not see it.

    A coordinator that has just taken over knows for how long the tasks have run.
    """
    assert ask(office, {"ask": "set-model", "model": "late", "parameters": {"cap": "0.5"}})["ok"]
    office.read("n1", board(1, tasks=slow_and_fast()), 0.0)
    office.read("n2", board(2), 0.0)
    office.round(0.0)
    table = office._scheduler.state.tasks
    assert table.progress[[table.row(task) for task in LATE_TASKS[:4]]].tolist() == [0.1, 0.8, 0.8, 0.8]
    assert np.isnan(table.progress[table.row(LATE_TASKS[4])])
    assert ask(office, {"ask": "status"})["worth_copies"] == [CANDIDATE]
    for principal, candidates in (("uid:1", [CANDIDATE]), ("uid:2", [])):
        assert ask(office, {"ask": "status"}, ruler=False, principal=principal)["worth_copies"] == candidates
    lines = str(ask(office, {"ask": "explain", "task": f"job{LATE_TASKS[0]}"})["lines"])
    assert "10% of its work is done; about 900 s are left, and a copy" in lines
    # The next row of the task, in an answer that has changed tasks alone.
    office.read(
        "n1", replace(board(1, tasks=(at_work(LATE_TASKS[0], 995, 110),)), whole=False, version=2), 10.0
    )
    assert ask(office, {"ask": "status"})["worth_copies"] == []


def test_progress_is_kept_when_the_model_changes(office: SchedulerService) -> None:
    """It is the cluster's: a model that is chosen later finds what was reported before."""
    office.read("n1", board(1, tasks=slow_and_fast()), 0.0)
    office.read("n2", board(2), 0.0)
    office.round(0.0)
    assert ask(office, {"ask": "status"})["worth_copies"] == []
    ask(office, {"ask": "set-model", "model": "late", "parameters": {"cap": "0.5"}})
    assert ask(office, {"ask": "status"})["worth_copies"] == [CANDIDATE]


def test_a_copy_runs_away_from_its_original(office: SchedulerService) -> None:
    """Its run names the task by fingerprint; one of a task of another user, or of nobody's, is ordinary."""
    ask(office, {"ask": "set-model", "model": "late", "parameters": {"cap": "0.5"}})
    copy, original = LATE_TASKS[-1] + 1, f"{LATE_TASKS[0]:012x}"
    runs = (
        submission(copy, Work(job=7, copy_of=original)),
        submission(12, Work(copy_of=original), "uid:2"),
        submission(13, Work(copy_of="0a0b")),
    )
    office.read("n1", board(1, runs, slow_and_fast()), 0.0)
    office.read("n2", board(2), 0.0)
    (order,) = office.round(0.0)
    assert dict(order.placements)[copy] == "n2"
    table = office._scheduler.state.tasks
    assert [table.copy_of[table.row(task)] for task in (copy, 12, 13)] == [LATE_TASKS[0], -1, -1]
    assert ask(office, {"ask": "status"})["worth_copies"] == [], "it has a copy"
    assert f"a copy of task {original}" in str(ask(office, {"ask": "explain", "task": f"job{copy}"})["lines"])


def test_a_task_that_is_to_stop_is_explained(office: SchedulerService) -> None:
    """Between the order to stop and the end, the explanation says that."""
    low = submission(1, Work(cpus_milli=2000, restartable=True))
    office.read("n1", board(1, tasks=(occupant(low),)), 0.0)
    office.read("n2", board(2, tasks=(occupant(submission(2, Work(cpus_milli=2000))),)), 0.0)
    high = submission(3, Work(cpus_milli=2000, priority=5))
    office.read("n1", board(1, (high,), (occupant(low),)), 1.0)
    office.round(1.0)
    told = ask(office, {"ask": "explain", "task": "job1"})
    assert "asked it to leave" in str(told["lines"])


def test_an_unknown_question_is_answered(office: SchedulerService) -> None:
    """What is no question, and what is no JSON, gets an answer that says so."""
    assert "status" in str(ask(office, {"ask": "weather"})["error"])
    answer = json.loads(office.answer(Asked(1, "uid:0", ruler=True, question=b"{")))
    assert not answer["ok"]


def test_an_answer_that_is_too_long_says_so(
    office: SchedulerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer is longer than what travels; instead of a silence there is a sentence."""
    office.read("n1", board(1, (submission(1, Work()),)), 0.0)
    monkeypatch.setattr(limits, "ADVICE_BYTES_MAX", 200)
    refused = ask(office, {"ask": "export"})
    assert not refused["ok"]
    assert "at most 200" in str(refused["error"])


def test_reports_are_merged_or_told_of(office: SchedulerService) -> None:
    """A report of a node that says it is another is refused, and told of."""
    office.merge_report("n2", MeasurementReport("n1", "type", KnowledgeBase("n1", 7).batch().to_bytes()))
    office.merge_report("n2", MeasurementReport("n2", "type", b"rubbish"))
    problems = ask(office, {"ask": "status"})["problems"]
    assert isinstance(problems, list)
    assert len(problems) == 2
    assert all("n2" in text for text in problems)


def test_an_unknown_model_is_told_and_another_taken() -> None:
    """A setting that names no model does not stop the scheduling; the status tells which it is, and why."""
    office = SchedulerService(StartOptions(SetUp.CENTRALISED, "nosuch"), "n1", KnowledgeBase("n1", 1), WALL)
    told = ask(office, {"ask": "status"})
    assert told["model"] == "spread"
    assert "nosuch" in str(told["problems"])


def run_two(office: SchedulerService) -> None:
    """On two nodes of two processors each three tasks of one user run, and one of another."""
    tasks = [
        submission(number, Work(cpus_milli=1000), "uid:7" if number < 4 else "uid:8")
        for number in (1, 2, 3, 4)
    ]
    office.read("n1", board(1, tasks=(occupant(tasks[0]), occupant(tasks[1]))), 0.0)
    office.read("n2", board(2, tasks=(occupant(tasks[2]), occupant(tasks[3]))), 0.0)
    office.round(0.0)


def rows(reply: dict[str, object]) -> dict[str, dict[str, object]]:
    """Principals' rows by name."""
    told = reply["principals"]
    assert isinstance(told, list)
    return {row["principal"]: row for row in told}


def test_the_ruler_sees_everybodys_share_and_others_their_own(office: SchedulerService) -> None:
    """Who holds how much is told to the nodes' own user; to anybody else the own line alone."""
    run_two(office)
    office.read("n1", board(1, (submission(9, Work(cpus_milli=1000), "uid:8"),)), 0.0)
    whole = ask(office, {"ask": "shares"})
    assert (whole["fairness"], whole["sharing"]) == ("sdrf", 2)
    by_principal = rows(whole)
    assert (
        by_principal["uid:8"]["share"],
        by_principal["uid:8"]["entitlement"],
        by_principal["uid:8"]["waiting"],
    ) == (
        0.25,
        0.5,
        1,
    )
    own = ask(office, {"ask": "shares"}, ruler=False, principal="uid:8")
    assert list(rows(own)) == ["uid:8"]
    assert own["sharing"] == 2
    assert "uid:7" not in json.dumps(own)


def test_shares_name_the_algorithm_of_the_rates(office: SchedulerService) -> None:
    """The answer about shares says how the last rates were computed, and nothing before there were any."""
    assert ask(office, {"ask": "shares"})["rates_by"] is None
    for second in range(2):
        meters = tuple(Meter(who, Traffic.STORE, second, 10**9) for who in ("uid:1", "uid:2"))
        office.record_traffic("n1", Metered(1, meters, (0, 0, 10**6), 0, b""), float(second))
    assert office.bandwidth(1.0, 5.0)
    by = ask(office, {"ask": "shares"})["rates_by"]
    assert isinstance(by, dict)
    assert (by["algorithm"], by["principals"], by["resources"], by["epsilon"]) == ("edrf", 2, 1, 0)
    assert by["seconds"] == by["exact_s"] > 0


def test_a_quota_is_the_rulers_to_set(office: SchedulerService) -> None:
    """Weights and quotas are set by the nodes' own user, checked by field, and handed on at once."""
    run_two(office)
    told = ask(office, {"ask": "quota", "principal": "uid:7", "weight": 3, "quota": {"cpus": 1.5}})
    assert told["ok"]
    assert office.has_unstored_changes()
    assert rows(told)["uid:7"]["entitlement"] == pytest.approx(0.75)
    shares = office.shares_to_store(1.0)
    assert shares is not None
    assert office.has_unstored_changes(), "until it is stored"
    office.mark_stored()
    assert not office.has_unstored_changes()
    other = SchedulerService(StartOptions(SetUp.CENTRALISED, "spread"), "n2", KnowledgeBase("n2", 1), WALL)
    other.learn(shares, 2.0, commitments=True)
    row = rows(ask(other, {"ask": "shares"}))["uid:7"]
    assert (row["weight"], row["quota"]) == (3.0, {"cpus": 1.5})
    for question in (
        {"ask": "quota"},
        {"ask": "quota", "principal": 7},
        {"ask": "quota", "principal": "uid:7", "weight": -1},
        {"ask": "quota", "principal": "uid:7", "quota": {"gold": 1}},
        {"ask": "quota", "principal": "uid:7", "quota": {"cpus": "many"}},
    ):
        assert not ask(office, question)["ok"], question
    assert not ask(office, {"ask": "quota", "principal": "uid:8"}, ruler=False, principal="uid:8")["ok"]
    assert not office.has_unstored_changes()


def test_shares_that_make_no_sense_are_told_and_change_nothing(office: SchedulerService) -> None:
    """What another coordinator handed on and is damaged stands among the problems."""
    office.learn(b"rubbish", 1.0, commitments=True)
    assert "invalid" in str(ask(office, {"ask": "status"})["problems"])


def test_shares_that_only_fade_are_not_handed_on_again(office: SchedulerService) -> None:
    """While nobody holds anything and nothing is set, there is nothing to tell."""
    assert office.shares_to_store(0.0) is None
    run_two(office)
    assert office.shares_to_store(1.0) is not None
    assert office.shares_to_store(2.0) is not None
    office.read("n1", board(1), 3.0)
    office.read("n2", board(2), 3.0)
    assert office.shares_to_store(3.0) is not None, "once more, for what was held until now"
    assert office.shares_to_store(4.0) is None


def test_settings_have_the_coordinators_words() -> None:
    """What the settings of a node allow for set-up and fairness is what a coordinator knows."""
    assert [mode.value for mode in SchedulingMode] == [set_up.value for set_up in SetUp]
    assert {policy.value for policy in FairnessPolicy} == {rule.value for rule in FairnessRule}


def setting(office: SchedulerService, name: str) -> tuple[object, object]:
    """The value of a setting, and where it comes from."""
    (row,) = [row for row in ask(office, {"ask": "settings"})["settings"] if row["setting"] == name]  # type: ignore[attr-defined] # rows
    return row["value"], row["from"]


def test_settings_apply_from_the_next_round_on(office: SchedulerService) -> None:
    """Without preemption a task of higher priority waits; with it again the other one has to stop."""
    low = submission(1, Work(cpus_milli=2000, restartable=True))
    office.read("n1", board(1, tasks=(occupant(low),)), 0.0)
    office.read("n2", board(2, tasks=(occupant(submission(2, Work(cpus_milli=2000))),)), 0.0)
    assert ask(office, {"ask": "set", "settings": {"preemption": "false"}})["ok"]
    assert setting(office, "preemption") == ("false", "chosen")
    high = submission(3, Work(cpus_milli=2000, priority=5))
    office.read("n1", board(1, (high,), (occupant(low),)), 1.0)
    assert office.round(1.0) == []
    assert ask(office, {"ask": "reset"})["ok"]
    (order,) = office.round(2.0)
    assert order.preempted == [1]


@pytest.mark.parametrize(
    "question",
    [
        {"ask": "set", "settings": {"preemption": "perhaps"}},
        {"ask": "set", "settings": {"preemption": "false", "nosuch": "1"}},
        {"ask": "set", "settings": {"fairness": "sdrf"}},
        {"ask": "set", "settings": {"solver": "nosuch"}},
        {"ask": "set", "settings": {"soft_penalty": "-1"}},
        {"ask": "set", "settings": ["preemption"]},
        {"ask": "set-model", "model": "nosuch"},
        {"ask": "set-model", "model": "coco", "parameters": {"nosuch": "1"}},
        {"ask": "set-model", "model": "spread", "parameters": {"near": "far"}},
    ],
)
def test_a_wrong_choice_changes_nothing(office: SchedulerService, question: dict[str, object]) -> None:
    """It is refused as a whole, and nothing is to be stored."""
    before = ask(office, {"ask": "settings"})
    refused = ask(office, question)
    assert not refused["ok"]
    assert refused["error"]
    assert ask(office, {"ask": "settings"}) == before
    assert not office.has_unstored_changes()


def test_a_choice_outlives_its_coordinator(office: SchedulerService) -> None:
    """Another coordinator takes the stored model, its parameters and the settings over, but no older ones."""
    office.read("n1", board(1, (submission(1, Work()),)), 0.0)
    assert ask(office, {"ask": "set-model", "model": "quincy", "parameters": {"psi": "500"}})["ok"]
    assert ask(office, {"ask": "set", "settings": {"solver": "network_simplex", "fairness": "bounded"}})["ok"]
    stored = office.shares_to_store(1.0)
    assert stored is not None
    office.mark_stored()
    assert not office.has_unstored_changes()
    other = SchedulerService(StartOptions(SetUp.CENTRALISED, "coco"), "n2", KnowledgeBase("n2", 1), WALL + 9)
    other.learn(stored, 0.0, commitments=False)
    assert setting(other, "model") == ("quincy", "chosen")
    assert setting(other, "quincy.psi") == ("500", "chosen")
    assert setting(other, "solver") == ("network_simplex", "chosen")
    assert setting(other, "fairness") == ("bounded", "chosen")
    assert setting(other, "fit") == ("true", "default")
    assert ask(other, {"ask": "reset"})["ok"]
    other.learn(stored, 1.0, commitments=True)
    assert setting(other, "model") == ("coco", "settings of the node")
    reset = other.shares_to_store(2.0)
    assert reset is not None
    office.learn(reset, 3.0, commitments=False)
    assert setting(office, "model") == ("spread", "settings of the node")


def test_a_stored_choice_that_cannot_be_used_is_told_of(office: SchedulerService) -> None:
    """A policy of another version is reported, and the scheduler keeps its own."""
    strange = StoredPolicy("nosuch", (), (), WALL + 1)
    office.learn(encode(StoredShares(1.0, policy=strange)), 1.0, commitments=False)
    assert "nosuch" in str(ask(office, {"ask": "status"})["problems"])
    assert setting(office, "model") == ("spread", "settings of the node")


MINE = derived("trivial", "TrivialModel")


def test_a_model_from_a_file_is_used_when_it_is_open(office: SchedulerService) -> None:
    """Another coordinator schedules by its own model until then, and after a failure."""
    question = {"ask": "set-model", "model": "mine", "parameters": {"waiting": "7"}, "source": MINE}
    chosen = office.model_in(Asked(1, "uid:0", True, json.dumps(question).encode()))
    assert chosen is not None
    assert office.model_in(Asked(1, "uid:0", False, json.dumps(question).encode())) is None
    assert not ask(office, question)["ok"], "nothing was opened"
    model, link = opened(MINE, waiting="7")
    office.offer_model(model)
    assert ask(office, question)["ok"]
    assert setting(office, "model") == ("mine", "chosen")
    assert setting(office, "mine.waiting") == ("7", "chosen")
    stored = office.shares_to_store(1.0)
    assert stored is not None
    other = SchedulerService(StartOptions(SetUp.CENTRALISED, "coco"), "n2", KnowledgeBase("n2", 1), WALL + 9)
    other.learn(stored, 0.0, commitments=False)
    assert setting(other, "model")[0] == "coco"
    wanted = other.model_to_open
    assert wanted is not None
    assert wanted.source == MINE
    again, link_again = opened(MINE, waiting="7")
    other.offer_model(again)
    other.use_offered(wanted, 0.0)
    assert setting(other, "model") == ("mine", "chosen")
    assert other.model_to_open is None
    link_again.replies = [b"nonsense"]
    other.read("n1", board(1, (submission(1, Work()),)), 0.0)
    other.round(1.0)
    assert setting(other, "model")[0] == "coco"
    assert "mine failed" in str(ask(other, {"ask": "status"})["problems"])
    assert link_again.closed
    assert other.model_to_open is None, "it is not opened again by itself"
    assert ask(office, {"ask": "reset"})["ok"]
    assert link.closed


def test_a_coordinator_that_schedules_no_more_ends_its_model(office: SchedulerService) -> None:
    """Another one has a task for it then; this one opens it again when it schedules again."""
    model, link = opened(MINE)
    office.offer_model(model)
    assert ask(office, {"ask": "set-model", "model": "mine", "source": MINE})["ok"]
    mine = Assignment(ALL, ALL, leader="n1")
    office.change_assignment(mine, Assignment(frozenset(), frozenset(), leader="n2"), 1.0)
    assert link.closed
    assert office.model_to_open is not None
    office.change_assignment(Assignment(frozenset(), frozenset(), leader="n2"), mine, 2.0)
    again, _ = opened(MINE)
    office.offer_model(again)
    office.use_offered(office.model_to_open, 2.0)
    assert setting(office, "model") == ("mine", "chosen")


def test_the_blocks_of_a_node_that_left_are_forgotten() -> None:
    """The places of input name no machine on which nothing can be placed any more."""
    knowledge = KnowledgeBase("n1", 1)
    service = SchedulerService(StartOptions(SetUp.CENTRALISED, "spread"), "n1", knowledge, WALL)
    both = Assignment(ALL, ALL, leader="n1")
    service.change_assignment(Assignment(), both, 0.0)
    knowledge.place(b"x", "n1", 7)
    knowledge.place(b"x", "n2", 9)
    service.change_assignment(both, Assignment(frozenset({"n1"}), frozenset({"n1"}), leader="n1"), 1.0)
    assert knowledge.places.of(b"x") == {"n1": 7}


def test_an_offered_model_that_nobody_wants_is_ended(office: SchedulerService) -> None:
    """A refused question leaves no task behind."""
    model, link = opened(MINE)
    office.offer_model(model)
    office.discard_offer()
    assert link.closed
    assert setting(office, "model") == ("spread", "settings of the node")
