"""The live tree against sorting, on random histories."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from dios.fairness.live_tree import RELATIVE_TOLERANCE, LiveTree, MissingElementError
from dios.fairness.stateful.priority import Commitment, intersection, priority

Line = tuple[float, float]
Crossing = Callable[[float, Line, Line], float | None]

HISTORIES = 1_700
"""Of each of six kinds, so that there are more than 10,000."""
NEAR = 4 * RELATIVE_TOLERANCE
"""The plain tree orders nearer priorities by what follows shortly."""


def height(t: float, line: Line) -> float:
    """A straight line."""
    return line[0] + line[1] * t


def ahead(t: float, a: Line, b: Line) -> float | None:
    """How long until two lines meet."""
    if a[1] == b[1]:
        return None
    span = (b[0] - a[0]) / (a[1] - b[1]) - t
    return span if span > 0 else None


def instant(t: float, a: Line, b: Line) -> float | None:
    """When two lines meet."""
    span = ahead(t, a, b)
    return None if span is None else t + span


def decay(t: float, line: Line) -> float:
    """What falls towards its first number."""
    return line[0] + line[1] * math.exp(-t)


def decays_meet(t: float, a: Line, b: Line) -> float | None:
    """How long until two decaying ones meet: they may never."""
    if a[1] == b[1] or not (a[0] - b[0]) / (b[1] - a[1]) > 0:
        return None
    span = -math.log((a[0] - b[0]) / (b[1] - a[1])) - t
    return span if span > 0 else None


def lived(seed: int, height_of: Callable[[float, Line], float], crossing: Crossing, *, whole: bool) -> None:
    """Live one random history and compare with sorting after every step."""
    rng = random.Random(seed)  # noqa: S311 - a history, no secret
    now = 0.0
    tree: LiveTree[int, Line] = LiveTree(height_of, crossing, now)
    model: dict[int, Line] = {}
    for step in range(40):
        kind = rng.random()
        if kind < 0.45 or not model:
            line = (
                (rng.randint(-4, 4), rng.randint(-2, 2))
                if whole
                else (rng.uniform(-4, 4), rng.uniform(-2, 2))
            )
            tree.insert(step, line)
            model[step] = line
        elif kind < 0.6:
            gone = rng.choice(list(model))
            tree.delete(gone)
            del model[gone]
        else:
            now += rng.choice([0, 1, 2, 5]) / 4 if whole else rng.expovariate(2.0)
            tree.update(now)
        order = list(tree)
        values = [height_of(now, model[ident]) for ident in order]
        assert sorted(order) == sorted(model), (seed, step)
        for low, high in pairwise(values):
            assert low <= high + NEAR * (1 + abs(high)), (seed, step, values)
        if whole and height_of is height:
            # Heights are quarters and exact: who is equal now stands as it will, then as it came.
            expected = sorted(model, key=lambda ident: (height(now, model[ident]), model[ident][1], ident))
            assert order == expected, (seed, step)
        assert len(tree) == len(model), (seed, step)
        if order:
            assert (tree.minimum(), tree.maximum()) == (order[0], order[-1]), (seed, step)


@pytest.mark.parametrize("whole", [True, False], ids=["ties", "general"])
@pytest.mark.parametrize(
    ("height_of", "crossing"),
    [(height, ahead), (height, instant), (decay, decays_meet)],
    ids=["lines", "lines by instant", "decays"],
)
def test_any_history_leaves_the_elements_sorted(
    height_of: Callable[[float, Line], float], crossing: Crossing, *, whole: bool
) -> None:
    """After every insertion, deletion and update the order is that of sorting, equal priorities included."""
    for seed in range(HISTORIES):
        lived(seed, height_of, crossing, whole=whole)


def test_users_stay_sorted_by_their_priority_in_sdrf() -> None:
    """With equations 13 and 14 the tree keeps users in order while commitments build up and fade."""
    for seed in range(30):
        rng = random.Random(seed)  # noqa: S311 - a history, no secret
        tree: LiveTree[int, Commitment] = LiveTree(priority, intersection)
        users: dict[int, Commitment] = {}
        for step in range(60):
            t = tree.now + rng.expovariate(1.0)
            tree.update(t)
            user = rng.randrange(12)
            share = tuple(rng.randint(0, 4) / 8 for _ in range(3))
            over = tuple(max(part - 1 / 8, 0.0) for part in share)
            owed = tuple(rng.choice([0.0, rng.random()]) for _ in range(3))
            if user in users:
                tree.delete(user)
                was = users[user]
                fade = math.exp(-(t - was.t) / was.tau)
                owed = tuple(o + (c - o) * fade for o, c in zip(was.over, was.owed, strict=True))
            users[user] = Commitment(t, 20.0, share, over, owed)
            tree.insert(user, users[user])
            values = [priority(t, users[name]) for name in tree]
            for low, high in pairwise(values):
                assert low <= high + NEAR * (1 + abs(high)), (seed, step, values)
        assert tree.events > 0, seed


def test_two_that_meet_and_part_change_places() -> None:
    """Lines that meet exactly at an update stand in the order of their futures."""
    tree: LiveTree[str, Line] = LiveTree(height, ahead)
    tree.insert("rising", (0.0, 1.0))
    tree.insert("level", (2.0, 0.0))
    assert list(tree) == ["rising", "level"]
    tree.update(2.0)
    tree.update(2.5)
    assert (list(tree), tree.events) == (["level", "rising"], 1)


def test_equal_ones_that_part_later_were_in_order_all_along() -> None:
    """Elements inserted at the very instant of their crossing stand as they will be."""
    tree: LiveTree[str, Line] = LiveTree(height, ahead)
    tree.insert("rising", (1.0, 1.0))
    tree.insert("falling", (1.0, -1.0))
    assert list(tree) == ["falling", "rising"]
    tree.update(3.0)
    assert (list(tree), tree.events) == (["falling", "rising"], 0)


def test_elements_that_stay_equal_keep_their_order() -> None:
    """Elements with the same attribute stand in the order of their insertion."""
    tree: LiveTree[int, Line] = LiveTree(height, ahead)
    for ident in (3, 1, 2):
        tree.insert(ident, (1.0, 1.0))
    tree.update(7.0)
    assert list(tree) == [3, 1, 2]


def test_bad_use_is_refused_and_changes_nothing() -> None:
    """An id twice, an unknown id, time running back and a priority that is no number are errors."""
    tree: LiveTree[int, Line] = LiveTree(height, ahead)
    with pytest.raises(ValueError, match="empty"):
        tree.minimum()
    tree.insert(1, (1.0, 0.0))
    tree.update(2.0)
    with pytest.raises(ValueError, match="already"):
        tree.insert(1, (0.0, 0.0))
    with pytest.raises(MissingElementError):
        tree.delete(2)
    for t in (1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"must be finite and not before 2\.0"):
            tree.update(t)
    with pytest.raises(ValueError, match="priority of element 5"):
        tree.insert(5, (math.nan, 0.0))
    with pytest.raises(ValueError, match="now is nan; it must be finite"):
        LiveTree(height, ahead, math.nan)
    assert (list(tree), tree.now, 5 in tree) == ([1], 2.0, False)


@pytest.mark.parametrize("others", ["low", "high", "low high"])
def test_a_function_that_fails_changes_nothing(others: str) -> None:
    """Where an intersection is not a number, insert and delete raise, and the tree is as it was before."""
    low, middle, high = (0.0, 0.0), (2.0, 0.0), (4.0, -0.5)
    wrong: set[tuple[Line, Line]] = set()

    def meet(t: float, a: Line, b: Line) -> float | None:
        return math.nan if (a, b) in wrong else ahead(t, a, b)

    tree: LiveTree[str, Line] = LiveTree(height, meet)
    before = others.split()
    for name in before:
        tree.insert(name, {"low": low, "high": high}[name])
    wrong |= {(low, middle), (middle, high), (low, high)}
    with pytest.raises(ValueError, match=r"'middle'.* is not a number"):
        tree.insert(id="middle", attribute=middle)
    assert (list(tree), len(tree), "middle" in tree) == (before, len(before), False)
    wrong -= {(low, middle), (middle, high)}
    tree.insert("middle", middle)
    if len(before) == 2:
        with pytest.raises(ValueError, match="'low' and 'high'"):
            tree.delete(id="middle")
    wrong.clear()
    order = [name for name in ("low", "middle", "high") if name in {*before, "middle"}]
    assert list(tree) == order
    tree.update(6.0)
    assert list(tree) == [name for name in ("low", "high", "middle") if name in order]
