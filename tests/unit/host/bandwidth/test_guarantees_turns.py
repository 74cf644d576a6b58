"""Turns of whom something is promised: beside all others', and no more than there are."""

from __future__ import annotations

from collections.abc import Callable

from dios.host.bandwidth.accounts import Account, TaskAccount
from dios.host.loop.fair_queue import FairQueue
from dios.ids import TaskId


class Tasks:
    """Tasks under 10 have accounts of their own."""

    def of(self, task: TaskId) -> Account:
        """Its account."""
        return TaskAccount("uid:1", task) if task < 10 else f"uid:{task}"


def is_promised(account: Account) -> bool:
    """Whether a guarantee names it."""
    return isinstance(account, TaskAccount)


def turn_requester(begun: list[int], promised_most: int) -> Callable[[int], None]:
    """Turns in which all are paced, three at most of those without a promise; what asks for one."""
    turns = FairQueue(
        Tasks(),
        at_once=2,
        at_most=3,
        paced=lambda _: True,
        promised=is_promised,
        promised_most=promised_most,
    )
    return lambda task: turns.request_turn(TaskId(task), lambda: begun.append(task))


def test_who_has_a_promise_takes_nobodys_turn_and_waits_for_none() -> None:
    """Others who have all of their turns keep it from nothing, nor does it keep them."""
    begun: list[int] = []
    ask = turn_requester(begun, 5)
    for task in (11, 12, 1, 2, 3, 13, 14, 4):
        ask(task)
    assert begun == [11, 12, 1, 2, 3, 13, 4]


def test_promises_have_a_bound() -> None:
    """Over it a task waits for one of its like; others go on."""
    begun: list[int] = []
    ask = turn_requester(begun, 2)
    for task in (1, 2, 3, 11):
        ask(task)
    assert begun == [1, 2, 11]
