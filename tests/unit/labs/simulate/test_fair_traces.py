"""Traces as arrays, made up or read, and what is counted of a mechanism that has played one."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from dios.errors import InvalidError, InvariantError
from labs import limits
from labs.papers.sdrf.tree_replay import replay
from labs.simulate.fairness.google_like import GROUPS, GoogleLike, generate_trace
from labs.simulate.fairness.trace import (
    EVICT,
    FAIL,
    FINISH,
    KILL,
    LOST,
    SCHEDULE,
    SUBMIT,
    UNITS,
    UPDATE_RUNNING,
    FairTrace,
    trace_of_rows,
)
from labs.simulate.fairness.trace_report import (
    compare,
    delta_text,
    low_half,
    reductions,
    run_mechanism,
    without_oversized,
)

SMALL = GoogleLike(users=40, tasks=4_000, days=2.0, seed=3)


class Row(NamedTuple):
    """A row of a trace."""

    time: int
    job: int
    event: int
    user: str = "u"
    number: int = 0
    cpus: float | None = 0.25
    memory: float | None = 0.125


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others() -> None:
    """All arrays are equal to the bit for one seed, and differ for two."""
    first, again, other = (generate_trace(setting) for setting in (SMALL, SMALL, replace(SMALL, seed=4)))
    for name in ("submit_us", "duration_us", "user", "demands"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))


@pytest.mark.parametrize(("users", "tasks"), [(600, 60_000), (40, 4_000), (3, 3), (10, 11)])
def test_groups_have_their_shares_and_everybody_submits_something(users: int, tasks: int) -> None:
    """So many tasks of so many users; few of them have most tasks, as published."""
    trace = generate_trace(GoogleLike(users=users, tasks=tasks, seed=1))
    counts = np.bincount(trace.user, minlength=trace.users)
    assert trace.users == users
    assert counts.sum() == tasks == trace.submit_us.size
    assert counts.min() >= 1
    if users == 600:
        ends = np.cumsum([round(users * group.users) for group in GROUPS])
        begins = [0, *ends[:-1]]
        shares = [counts[a:b].sum() / tasks for a, b in zip(begins, ends, strict=True)]
        assert np.allclose(shares, [group.tasks for group in GROUPS], atol=1e-3)


def test_tasks_come_in_order_within_the_time_and_ask_for_whole_units() -> None:
    """What ``simulate`` takes: sorted submissions before the end, positive lengths, exact sums."""
    trace = generate_trace(SMALL)
    assert (np.diff(trace.submit_us) >= 0).all()
    assert trace.submit_us[0] >= 0
    assert trace.submit_us[-1] <= trace.horizon_us
    assert trace.duration_us.min() >= 1_000_000
    assert trace.duration_us.max() <= trace.horizon_us
    assert (trace.demands == np.rint(trace.demands)).all()
    assert trace.demands.min() >= 1
    held = (trace.demands[:, 0] * trace.duration_us).sum() / trace.horizon_us
    assert trace.usage()[0] == pytest.approx(held)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"users": 2}, "users is 2"),
        ({"tasks": 599}, "tasks is 599"),
        ({"days": 0.0}, "days is 0.0"),
        ({"days": float("nan")}, "days is nan"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_made_up_is_refused_by_name(wrong: dict[str, float], said: str) -> None:
    """The message begins with the name and the value at fault."""
    with pytest.raises(ValueError, match=f"^{said}"):
        GoogleLike(**wrong)  # type: ignore[arg-type] # by name


def test_rows_of_a_trace_become_tasks_and_what_is_left_out_is_counted() -> None:
    """One row for each rule: who runs is kept, who was evicted, never ran or asks for nothing is not."""
    rows = [
        Row(0, 1, SUBMIT, "late"),  # there before the window
        Row(150, 2, SUBMIT, "first"),
        Row(150, 1, SCHEDULE),
        Row(160, 3, SUBMIT),
        Row(161, 3, SCHEDULE),
        Row(162, 3, EVICT),
        Row(163, 4, SUBMIT),
        Row(164, 4, KILL),
        Row(165, 5, SUBMIT, memory=None),
        Row(166, 5, SCHEDULE),
        Row(167, 5, FINISH),
        Row(168, 9, FINISH),
        Row(168, 9, UPDATE_RUNNING),
        Row(170, 2, SCHEDULE),
        Row(180, 2, FAIL),
        Row(190, 2, SUBMIT, "first"),  # again: another task
        Row(195, 2, SCHEDULE),
        Row(195, 2, FINISH),
        Row(196, 6, SUBMIT),
        Row(196, 6, SCHEDULE),
        Row(197, 6, LOST),
    ]
    trace, skipped = trace_of_rows(rows, begin_us=100, until_us=300)
    assert trace.submit_us.tolist() == [0, 50, 90]
    assert trace.duration_us.tolist() == [150, 10, 1]
    assert trace.user.tolist() == [0, 1, 1]
    assert trace.demands.tolist() == [[UNITS / 4, UNITS / 8]] * 3
    assert (trace.horizon_us, trace.users) == (200, 2)
    assert skipped == {
        "evicted or lost": 2,
        "never ran": 1,
        "demands nothing of a resource": 1,
        "event of a task that was not submitted": 1,
    }


def test_without_an_end_a_trace_is_as_long_as_its_rows() -> None:
    """What still runs at the last row runs until then."""
    rows = [Row(100, 1, SUBMIT), Row(110, 1, SCHEDULE), Row(400, 2, SUBMIT)]
    trace, skipped = trace_of_rows(rows, begin_us=100, until_us=None)
    assert trace.duration_us.tolist() == [290]
    assert trace.horizon_us == 300
    assert skipped == {"never ran": 1}


def test_a_trace_of_nothing_and_one_of_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages say that nothing ran, and to take fewer days."""
    with pytest.raises(InvalidError, match="no task"):
        trace_of_rows([Row(1, 1, SUBMIT)], begin_us=0, until_us=5)
    monkeypatch.setattr(limits, "FAIR_TRACE_TASKS_MAX", 1)
    rows = [Row(at, job, event) for job in (1, 2) for at, event in ((1, SUBMIT), (2, SCHEDULE), (3, FINISH))]
    with pytest.raises(InvalidError, match="fewer --days"):
        trace_of_rows(rows, begin_us=0, until_us=5)


def test_waiting_and_completions_are_those_of_each_users_tasks() -> None:
    """Counted once more, task by task."""
    trace = generate_trace(SMALL)
    pool = trace.usage() * 0.7
    plain, other = run_mechanism(trace, pool, None), run_mechanism(trace, pool, 1 - 1e-4)
    for played in (plain, other):
        waits: dict[int, list[float]] = {}
        seen: dict[int, list[float]] = {}
        completed = [0] * trace.users
        for row, user in enumerate(trace.user.tolist()):
            start, submit = int(played.start_us[row]), int(trace.submit_us[row])
            waits.setdefault(user, []).append((start - submit) / 1e6)
            seen.setdefault(user, []).append(max(0, min(start, trace.horizon_us) - submit) / 1e6)
            completed[user] += start + int(trace.duration_us[row]) <= trace.horizon_us
        means = [sum(waits[user]) / len(waits[user]) for user in range(trace.users)]
        assert np.allclose(played.wait_s, means)
        assert np.allclose(played.wait_until_end_s, [np.mean(seen[user]) for user in range(trace.users)])
        assert played.completed.tolist() == completed
    comparison = compare(trace, plain, other)
    assert comparison.wait_users == pytest.approx(other.wait_s.mean() / plain.wait_s.mean() - 1)
    assert comparison.fewer == sum(other.completed < plain.completed)
    assert comparison.each_mean == pytest.approx(-reductions(plain, other).mean())
    assert comparison.wait_users < 0, "SDRF lets users wait less, as published"
    same = compare(trace, plain, plain)
    assert (same.wait_users, same.each_mean, same.fewer, same.more, same.lost_most) == (0, 0, 0, 0, 0)


def test_the_low_half_are_those_whose_tasks_need_least() -> None:
    """Dominant share times time ranks users; who has no task is in no half."""
    trace = FairTrace(
        submit_us=np.zeros(4, np.int64),
        duration_us=np.array([10, 10, 100, 5], np.int64),
        user=np.array([0, 1, 2, 3], np.int64),
        demands=np.array([[4.0, 1.0], [1.0, 4.0], [1.0, 1.0], [1.0, 1.0]]),
        horizon_us=100,
        users=5,
    )
    # Used: (40 + 10 + 100 + 5, 10 + 40 + 100 + 5) / 100; so work is 40, 40, 100, 5 in units of 1.55.
    assert low_half(trace).tolist() == [3, 0]


def test_tasks_that_never_fit_are_taken_out() -> None:
    """Everybody would wait for them."""
    trace = generate_trace(SMALL)
    pool = trace.demands.max(axis=0) - 1
    fit, count = without_oversized(trace, pool)
    assert count > 0
    assert fit.submit_us.size == trace.submit_us.size - count
    assert (fit.demands <= pool).all()
    with pytest.raises(ValueError, match="exceed the capacity"):
        run_mechanism(trace, pool, None)


@pytest.mark.parametrize("rule", ["dominant", "sum"])
@pytest.mark.parametrize("delta", [0.9, 1 - 1e-4])
def test_the_live_tree_agrees_with_every_decision(rule: str, delta: float) -> None:
    """Whoever the simulation chose has the least priority in the tree; nearer to 1 means fewer events."""
    trace = generate_trace(SMALL)
    pool = trace.usage() * 0.6
    played = run_mechanism(trace, pool, delta, rule)
    replayed = replay(trace, pool, played, rule, resort_every=50)
    assert replayed.decisions == trace.submit_us.size
    assert replayed.waiting > 1
    assert replayed.events > 0
    slow = replay(trace, pool, run_mechanism(trace, pool, 1 - 1e-7, rule), rule)
    assert slow.events < replayed.events


def test_a_decision_for_somebody_else_is_found_out() -> None:
    """Decisions of DRF are not those of SDRF: the replay names the instant and both users."""
    trace = generate_trace(SMALL)
    pool = trace.usage() * 0.6
    wrong = replace(run_mechanism(trace, pool, None), delta=1 - 1e-4)
    with pytest.raises(InvariantError, match=r"user \d+ with priority .* was chosen, but user \d+ has"):
        replay(trace, pool, wrong)
    with pytest.raises(ValueError, match="do not change with time"):
        replay(trace, pool, run_mechanism(trace, pool, None))


@pytest.mark.parametrize(
    ("delta", "text"), [(1 - 1e-6, "1 - 1e-6"), (0.9, "1 - 1e-1"), (1 - 2.5e-4, "1 - 2.5e-4")]
)
def test_discount_factors_read_as_in_the_paper(delta: float, text: str) -> None:
    """One minus a power of ten."""
    assert delta_text(delta) == text
