from __future__ import annotations

from collections.abc import Callable

import pytest

from dios.core.effects import Outcome, Spawn
from dios.core.events import Called, Disconnected, SessionOpened, TaskEnded, TimerFired
from dios.host.loop.fair_queue import FairQueue, TaskPrincipals
from dios.ids import ObjectId, Principal, TaskId, Ticket
from dios.wire.messages import Limits, Run, Stat
from dios.wire.types import Brand, Cause

NOTHING = Outcome([], [], Ticket(0), Ticket(0), None)
GREEDY, NEIGHBOUR = Principal("uid:1"), Principal("uid:2")


def started(child: TaskId, principal: Principal) -> Outcome:
    """What the core says when a task is started."""
    spawn = Spawn(child, Brand.PURE, "", ObjectId(1), Limits(), principal)
    return Outcome([], [spawn], Ticket(0), Ticket(0), None)


@pytest.fixture
def owners() -> TaskPrincipals:
    """Sessions 1 and 2 of two principals; the first has started task 11, and that one 12."""
    principals = TaskPrincipals()
    principals.note(SessionOpened(0, TaskId(1), 1, GREEDY, (), "", 1), NOTHING)
    principals.note(SessionOpened(0, TaskId(2), 1, NEIGHBOUR, (), "", 2), NOTHING)
    principals.note(Called(0, TaskId(1), 2, Run(1)), started(TaskId(11), GREEDY))
    principals.note(Called(0, TaskId(11), 2, Run(1)), started(TaskId(12), GREEDY))
    return principals


def beginner(begun: list[str], name: str) -> Callable[[], None]:
    """Notes that it is its turn."""
    return lambda: begun.append(name)


def test_children_act_for_who_started_them(owners: TaskPrincipals) -> None:
    """A task has the principal of the session at its root, until it ends, whichever event began it."""
    assert owners.of(TaskId(12)) == GREEDY
    owners.note(Called(0, TaskId(2), 2, Stat(1)), started(TaskId(13), GREEDY))
    owners.note(TimerFired(0), started(TaskId(14), GREEDY))
    assert owners.of(TaskId(13)) == owners.of(TaskId(14)) == GREEDY
    assert owners.of(TaskId(15)) == Principal("")
    for task in (11, 12, 13, 14):
        owners.note(TaskEnded(0, TaskId(task), Cause.EXITED), NOTHING)
    for task in (1, 2):
        owners.note(Disconnected(0, TaskId(task), ""), NOTHING)
    assert len(owners) == 0


def test_a_neighbour_waits_for_one_of_each_principal(owners: TaskPrincipals) -> None:
    """However many tasks of one principal ask for how many turns, another one's is next."""
    turns = FairQueue(owners, at_once=1)
    begun: list[str] = []
    for task in (1, 11, 12):
        for number in range(3):
            turns.request_turn(TaskId(task), beginner(begun, f"{task}-{number}"))
    turns.request_turn(TaskId(2), beginner(begun, "neighbour"))
    assert begun == ["1-0"]
    turns.end_turn(TaskId(1))
    assert begun[1:] == ["neighbour"]
    turns.request_turn(TaskId(2), beginner(begun, "neighbour's second"))
    turns.end_turn(TaskId(2))
    assert begun[2:] == ["11-0"]
    turns.end_turn(TaskId(11))
    assert begun[3:] == ["neighbour's second"]


def test_tasks_of_a_principal_take_turns(owners: TaskPrincipals) -> None:
    """Tasks of one principal get their turns one after another, each its own in order."""
    turns = FairQueue(owners, at_once=1)
    begun: list[str] = []
    for number in range(2):
        for task in (1, 11, 12):
            turns.request_turn(TaskId(task), beginner(begun, f"{task}-{number}"))
    for task in (1, 11, 12, 1, 11, 12):
        turns.end_turn(TaskId(task))
    assert begun == ["1-0", "11-0", "12-0", "1-1", "11-1", "12-1"]


def test_a_task_has_one_turn_at_a_time(owners: TaskPrincipals) -> None:
    """Where several run at once, a task still has one; nobody is left waiting while there is room."""
    turns = FairQueue(owners, at_once=2)
    begun: list[str] = []
    for number in range(3):
        turns.request_turn(TaskId(1), beginner(begun, f"1-{number}"))
    assert begun == ["1-0"]
    turns.request_turn(TaskId(11), beginner(begun, "11"))
    turns.request_turn(TaskId(2), beginner(begun, "2"))
    assert begun == ["1-0", "11"]
    turns.end_turn(TaskId(1))
    assert begun[2:] == ["2"]
    for task in (11, 2, 1, 1):
        turns.end_turn(TaskId(task))
    assert begun[3:] == ["1-1", "1-2"]


def test_who_has_a_rate_keeps_nobody_waiting(owners: TaskPrincipals) -> None:
    """A paced principal has one turn, beside those of the others, and never theirs."""
    paced = {GREEDY}
    turns = FairQueue(owners, at_once=2, at_most=4, paced=paced.__contains__)
    begun: list[str] = []
    for task in (1, 11, 12, 2):
        turns.request_turn(TaskId(task), beginner(begun, str(task)))
    assert begun == ["1", "2"]
    turns.end_turn(TaskId(1))
    assert begun == ["1", "2", "11"]


def test_who_is_given_a_rate_gives_its_turns_back(owners: TaskPrincipals) -> None:
    """Two turns that a principal had when it was given a rate are the others' again, at once."""
    paced: set[Principal] = set()
    turns = FairQueue(owners, at_once=2, at_most=4, paced=paced.__contains__)
    begun: list[str] = []
    for task in (1, 11, 12, 2):
        turns.request_turn(TaskId(task), beginner(begun, str(task)))
    assert begun == ["1", "11"]
    paced.add(GREEDY)
    turns.start_ready()
    assert begun == ["1", "11", "2"]
    paced.clear()
    turns.start_ready()
    assert begun == ["1", "11", "2"], "three are under way"
    turns.end_turn(TaskId(1))
    turns.end_turn(TaskId(11))
    assert begun == ["1", "11", "2", "12"]


def test_turns_have_a_bound_with_rates_too() -> None:
    """Of however many principals with a rate there are so many turns at most; the next comes with an end."""
    owners = TaskPrincipals()
    for number in range(1, 8):
        owners.add(TaskId(number), f"uid:{number}")
    turns = FairQueue(owners, at_once=2, at_most=5, paced=lambda _: True)
    begun: list[str] = []
    for task in range(1, 8):
        turns.request_turn(TaskId(task), beginner(begun, str(task)))
    assert begun == ["1", "2", "3", "4", "5"]
    turns.end_turn(TaskId(3))
    assert begun == ["1", "2", "3", "4", "5", "6"]
