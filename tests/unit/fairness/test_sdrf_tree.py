"""SDRF's compiled live tree: against sorting, against the plain one, and in whole traces."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from decimal import Decimal, getcontext, localcontext
from functools import cmp_to_key
from itertools import pairwise

import numpy as np
import pytest

from dios.fairness.live_tree import LiveTree, MissingElementError
from dios.fairness.stateful.priority import Commitment, intersection, priority
from dios.fairness.stateful.user_tree import SdrfTree
from labs.simulate.fairness.simulate import simulate
from labs.simulate.fairness.simulate_by_tree import simulate_by_tree

TAU = 20.0
HISTORIES = 300


Line = tuple[Decimal, Decimal]
"""The end of a line, and its distance from there now."""


def top_of(t: float, user: Commitment, rule: str) -> Line:
    """The highest line of a user."""
    fade = ((Decimal(user.t) - Decimal(t)) / Decimal(user.tau)).exp()
    share, over, owed = ([Decimal(number) for number in row] for row in (user.share, user.over, user.owed))
    lead = max(share) if rule == "dominant" else Decimal(0)
    ends = [lead + o if rule == "dominant" else o + own for own, o in zip(share, over, strict=True)]
    lines = [(end, (c - o) * fade) for end, o, c in zip(ends, over, owed, strict=True)]
    return max(lines, key=cmp_to_key(difference))


def difference(first: Line, other: Line) -> int:
    """1, 0 or -1: a line is higher, equal or lower, now or shortly; sums lose no digit."""
    with localcontext() as context:
        context.prec = 20_000
        value = (first[0] - other[0]) + (first[1] - other[1])
    return int((value or other[1] - first[1]).compare(0))


def drawn_user(rng: random.Random, t: float, resources: int) -> Commitment:
    """A user on a coarse grid, so that priorities tie."""
    share = tuple(rng.randint(0, 4) / 8 for _ in range(resources))
    over = tuple(max(part - 1 / 8, 0.0) for part in share)
    owed = tuple(rng.choice([0.0, rng.randint(0, 8) / 8]) for _ in range(resources))
    return Commitment(t, TAU, share, over, owed)


def lived(seed: int, rule: str) -> int:
    """One random history, compared with sorting after every step; the number of events."""
    getcontext().prec = 60
    rng = random.Random(seed)  # noqa: S311 - a history, no secret
    resources = rng.randint(1, 3)
    tree: SdrfTree[int] = SdrfTree(resources, TAU, priority=rule)
    model: dict[int, Commitment] = {}
    for step in range(40):
        kind = rng.random()
        if kind < 0.45 or not model:
            model[step] = drawn_user(rng, tree.now, resources)
            tree.insert(step, model[step])
        elif kind < 0.6:
            gone = rng.choice(list(model))
            tree.delete(gone)
            del model[gone]
        else:
            tree.update(tree.now + rng.choice([0.0, 0.5, 4.0, 30.0, 600.0, 20_000.0]) * rng.random())
        order = list(tree)
        assert sorted(order) == sorted(model), (seed, step)
        tops = [top_of(tree.now, model[ident], rule) for ident in order]
        for low, high in pairwise(tops):
            assert difference(low, high) <= 0, (seed, step, tops)
        if order:
            assert (tree.minimum(), tree.maximum(), len(tree)) == (order[0], order[-1], len(model)), seed
    return tree.events


@pytest.mark.long
@pytest.mark.parametrize("rule", ["dominant", "sum"])
def test_any_history_leaves_users_sorted(rule: str) -> None:
    """After every insertion, deletion and update the order is that of sorting; exactly."""
    assert sum(lived(seed, rule) for seed in range(HISTORIES)) > HISTORIES


def test_it_keeps_the_order_of_the_plain_live_tree() -> None:
    """With equations 13 and 14 both trees have the same users in the same order, ties aside."""
    for seed in range(60):
        rng = random.Random(seed)  # noqa: S311 - a history, no secret
        plain: LiveTree[int, Commitment] = LiveTree(priority, intersection)
        fast: SdrfTree[int] = SdrfTree(2, TAU, priority="sum")
        for user in range(30):
            t = plain.now + rng.expovariate(1.0)
            plain.update(t)
            fast.update(t)
            owed = (rng.random(), rng.random())
            commitment = Commitment(t, TAU, (rng.random(), rng.random()), (rng.random(), rng.random()), owed)
            plain.insert(user, commitment)
            fast.insert(user, commitment)
            assert list(plain) == list(fast), (seed, user)
        assert 0 < fast.events <= plain.events, seed


def test_a_meeting_is_one_event() -> None:
    """Who owes much and holds little is overtaken once, by nobody else, and that is counted."""
    tree: SdrfTree[str] = SdrfTree(1, 1.0)
    tree.insert("debtor", Commitment(0.0, 1.0, (0.0,), (0.0,), (0.8,)))
    tree.insert("holder", Commitment(0.0, 1.0, (0.4,), (0.0,), (0.0,)))
    assert (list(tree), tree.events) == (["holder", "debtor"], 0)
    tree.update(math.log(2.0) - 1e-6)
    assert (list(tree), tree.events) == (["holder", "debtor"], 0)
    tree.update(math.log(2.0) + 1e-6)
    assert (list(tree), tree.events) == (["debtor", "holder"], 1)
    tree.update(500.0)
    assert (list(tree), tree.events) == (["debtor", "holder"], 1)


@pytest.mark.parametrize("rule", ["dominant", "sum"])
@pytest.mark.parametrize("users", [None, 9])
@pytest.mark.parametrize("delta", [0.5, 0.97, 1 - 1e-6])
def test_a_trace_starts_as_without_the_tree(delta: float, users: int | None, rule: str) -> None:
    """Starts and their order are those of ``simulate``, ties and moved references included."""
    handled = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        tasks, resources = 120, int(rng.integers(1, 4))
        given = (
            rng.integers(0, 60, tasks) * 500_000,
            rng.integers(0, 30, tasks) * 700_000,
            rng.integers(0, 9, tasks),
            rng.integers(0, 6, (tasks, resources)),
            rng.integers(5, 12, resources),
        )
        start, order = simulate(*given, users=users, delta=delta, priority=rule)
        starts, turns, events = simulate_by_tree(*given, users=users, delta=delta, priority=rule)
        assert (starts.tolist(), turns.tolist()) == (start.tolist(), order.tolist()), seed
        handled += events
    assert handled > 0 or delta > 0.99


def test_bad_use_is_refused_and_changes_nothing() -> None:
    """Ids twice or unknown, commitments that do not belong here and time running back are errors."""
    tree: SdrfTree[int] = SdrfTree(1, 1.0)
    for edge in (tree.minimum, tree.maximum):
        with pytest.raises(ValueError, match="empty"):
            edge()
    good = Commitment(0.0, 1.0, (0.5,), (0.0,), (0.25,))
    tree.insert(1, good)
    tree.update(2.0)
    with pytest.raises(ValueError, match="already"):
        tree.insert(1, good)
    for wrong, message in [
        (replace(good, tau=2.0), "tau 2.0"),
        (replace(good, t=3.0), "t 3.0"),
        (replace(good, t=math.nan), "t nan"),
        (Commitment(0.0, 1.0, (0.5, 0.5), (0.0, 0.0), (0.0, 0.0)), r"share has the shape \(2,\)"),
        (replace(good, owed=(math.nan,)), r"owed\[0\] is nan"),
        (replace(good, over=(-1.0,)), r"over\[0\] is -1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            tree.insert(2, wrong)
    with pytest.raises(MissingElementError):
        tree.delete(2)
    for t in (1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"must be finite and not before 2\.0"):
            tree.update(t)
    assert (list(tree), tree.now, 2 in tree, 1 in tree) == ([1], 2.0, False, True)
    for resources, tau, rule, now in [
        (0, 1.0, "sum", 0.0),
        (1, 0.0, "sum", 0.0),
        (1, math.inf, "sum", 0.0),
        (1, 1.0, "least", 0.0),
        (1, 1.0, "sum", math.nan),
    ]:
        with pytest.raises(ValueError, match=r" is .*; "):
            SdrfTree(resources, tau, priority=rule, now=now)
