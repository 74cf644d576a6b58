"""The checker of the chaos suite accepts what is linearizable, and refuses what is not."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.chaos.history import Action, History, Operation, Outcome
from tests.chaos.linearizability import violation

READ, WRITE, INCREMENT = Action.READ, Action.WRITE, Action.INCREMENT


def history(*rows: tuple[Action, int, int, int | None]) -> list[Operation]:
    """Operations on one key: action, value, call, answer."""
    return [
        Operation("key", action, value, called, returned=returned) for action, value, called, returned in rows
    ]


GOOD = {
    "nothing": history(),
    "one after another": history((WRITE, 1, 0, 1), (READ, 1, 2, 3), (WRITE, 2, 4, 5), (READ, 2, 6, 7)),
    "a read during a write sees either": history((WRITE, 1, 0, 5), (READ, 0, 1, 2), (READ, 1, 3, 4)),
    "overlapping writes in either order": history((WRITE, 1, 0, 9), (WRITE, 2, 1, 8), (READ, 1, 10, 11)),
    "an unknown write that was made": history((WRITE, 1, 0, None), (READ, 1, 2, 3)),
    "an unknown write that was not made": history((WRITE, 1, 0, None), (READ, 0, 2, 3)),
    "an unknown write that is made late": history((WRITE, 1, 0, None), (READ, 0, 2, 3), (READ, 1, 4, 5)),
    "increments": history((INCREMENT, 1, 0, 1), (INCREMENT, 2, 2, 3), (READ, 2, 4, 5)),
    "an unknown increment, proved by the next": history((INCREMENT, 1, 0, None), (INCREMENT, 2, 2, 3)),
    "one of two unknown increments": history(
        (INCREMENT, 1, 0, None), (INCREMENT, 1, 1, None), (INCREMENT, 2, 2, 3), (READ, 2, 4, 5)
    ),
    "an unknown increment before a known one": history(
        (INCREMENT, 1, 0, None), (INCREMENT, 1, 1, 2), (READ, 1, 3, 4)
    ),
}

BAD = {
    "a lost write": history((WRITE, 1, 0, 1), (READ, 0, 2, 3)),
    "a value that was never written": history((WRITE, 1, 0, 1), (READ, 7, 2, 3)),
    "an old value after a new one": history(
        (WRITE, 1, 0, 1), (WRITE, 2, 2, 3), (READ, 2, 4, 5), (READ, 1, 6, 7)
    ),
    "two readers that see two orders": history(
        (WRITE, 1, 0, 9), (WRITE, 2, 1, 9), (READ, 1, 10, 11), (READ, 2, 12, 13)
    ),
    "a read of the future": history((READ, 1, 0, 1), (WRITE, 1, 2, 3)),
    "an unknown write that is undone": history((WRITE, 1, 0, None), (READ, 1, 1, 2), (READ, 0, 3, 4)),
    "an unknown write that is made twice": history(
        (WRITE, 1, 0, None), (READ, 1, 1, 2), (WRITE, 2, 3, 4), (READ, 2, 5, 6), (READ, 1, 7, 8)
    ),
    "a lost increment": history((INCREMENT, 1, 0, 1), (INCREMENT, 1, 2, 3)),
    "a lost increment, seen by a read": history((INCREMENT, 1, 0, 1), (READ, 0, 2, 3)),
    "an increment that was said to have failed": history((INCREMENT, 1, 0, 1), (INCREMENT, 3, 2, 3)),
    "an unknown increment that is made twice": history((INCREMENT, 1, 0, None), (READ, 2, 1, 2)),
    "a counter that goes back": history((INCREMENT, 1, 0, None), (READ, 1, 1, 2), (READ, 0, 3, 4)),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_linearizable_is_accepted(name: str) -> None:
    """An order of these operations explains every answer."""
    assert violation(GOOD[name]) is None


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_linearizable_is_refused(name: str) -> None:
    """No order of these operations explains every answer."""
    assert violation(BAD[name]) is not None


def brute_force(operations: list[Operation]) -> bool:
    """Try every order, and for each operation of unknown outcome that it happened and that it did not."""
    known = [operation for operation in operations if operation.returned is not None]
    unknown = [operation for operation in operations if operation.returned is None]
    for count in range(len(unknown) + 1):
        for effective in itertools.combinations(unknown, count):
            if any(_explains(order) for order in itertools.permutations([*known, *effective])):
                return True
    return False


def _explains(order: tuple[Operation, ...]) -> bool:
    value = 0
    for place, operation in enumerate(order):
        if any(
            later.returned is not None and later.returned < operation.called for later in order[place + 1 :]
        ):
            return False
        if operation.action is READ and operation.value != value:
            return False
        if operation.action is INCREMENT and operation.value != value + 1:
            return False
        value = operation.value
    return True


@pytest.mark.parametrize("kind", [WRITE, INCREMENT])
def test_the_checker_agrees_with_trying_every_order(kind: Action) -> None:
    """Of small random histories it says the same as a search through all orders, both ways."""
    said = set()
    for seed in range(400):
        rng = random.Random(seed)  # noqa: S311 - it guards nothing
        moments = list(range(12))
        rng.shuffle(moments)
        operations = []
        for number in range(rng.randint(2, 5)):
            called, returned = sorted((moments.pop(), moments.pop()))
            action = rng.choice((READ, kind))
            value = number + 1 if action is WRITE else rng.randint(0, 3) + (action is INCREMENT)
            lost = action is not READ and rng.random() < 0.4
            operations.append(Operation("key", action, value, called, returned=None if lost else returned))
        expected = brute_force(operations)
        assert (violation(operations) is None) is expected, (seed, operations)
        said.add(expected)
    assert said == {True, False}


def test_a_long_history_is_checked_quickly() -> None:
    """Thousands of operations of five clients, some of unknown outcome, need few configurations."""
    operations = []
    for value, moment in enumerate(range(0, 20_000, 10), 1):
        unknown = moment % 70 == 0
        operations.append(Operation("key", WRITE, value, moment, returned=None if unknown else moment + 14))
        operations.append(Operation("key", READ, value, moment + 15, returned=moment + 19))
    assert violation(operations) is None
    assert violation([*operations, Operation("key", READ, 3, 30_000, returned=30_001)]) is not None


def test_failed_operations_are_no_part_of_a_history() -> None:
    """An operation that failed is left out, so that its effect is a violation; so are unanswered reads."""
    kept = History()
    failed = kept.begin("key", WRITE, "client", 7)
    lost = kept.begin("key", READ, "client")
    kept.end(failed, Outcome.FAILED)
    kept.end(lost, Outcome.UNKNOWN)
    read = kept.begin("key", READ, "client")
    read.value = 7
    kept.end(read, Outcome.DONE)
    assert kept.operations["key"] == [replace(read)]
    assert violation(kept.operations["key"]) is not None
    assert kept.size == 3
