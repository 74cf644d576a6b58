"""The leases of schedulers: how long one may leave runs waiting, and for how long it is barred then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.core.model.scheduler_leases import LeasedScheduler, holding, is_barred, progressed, renewed
from dios.ids import NodeId

MS = 1_000_000
SEEN = 1_000_000 * MS
A, B = NodeId(1), NodeId(2)


@given(
    lost=st.integers(0, 40),
    since=st.integers(0, 10**6),
    fits=st.integers(0, 10**6),
    hold=st.integers(0, 10**6),
    waited_ms=st.integers(0, 2 * limits.SCHEDULER_HOLD_MS_MAX),
    kept=st.booleans(),
)
def test_the_time_that_a_scheduler_costs_is_bounded(
    lost: int, since: int, fits: int, hold: int, waited_ms: int, *, kept: bool
) -> None:
    """Without a reason it is SCHEDULER_PROGRESS_MS; with one SCHEDULER_HOLD_MS_MAX, less after each loss."""
    now = SEEN + waited_ms * MS
    scheduler = LeasedScheduler(A, SEEN - since * MS, now, SEEN + hold * MS, lost=lost)
    late = scheduler.is_late(SEEN - fits * MS, now, kept=kept)
    waited_ms += min(since, fits)
    if waited_ms < limits.SCHEDULER_PROGRESS_MS:
        assert not late
    if now >= scheduler.hold_until and waited_ms >= limits.SCHEDULER_PROGRESS_MS:
        assert late
    if waited_ms >= limits.SCHEDULER_HOLD_MS_MAX and not kept:
        assert late
    if lost > 10 and waited_ms >= limits.SCHEDULER_PROGRESS_MS and not kept:
        assert late
    if kept and now < scheduler.hold_until:
        assert not late


@pytest.mark.parametrize("lost", [0, 1, 5, 60])
def test_a_scheduler_is_barred_for_longer_each_time(lost: int) -> None:
    """The time doubles up to a bound, and its last reason is forgotten."""
    scheduler = LeasedScheduler(A, 0, 0, SEEN, lost=lost).barred(SEEN)
    expected = min(limits.SCHEDULER_BARRED_MS << lost, limits.SCHEDULER_BARRED_MS_MAX)
    assert scheduler.barred_until == SEEN + expected * MS
    assert (scheduler.lost, scheduler.hold_until) == (lost + 1, 0)
    assert is_barred((scheduler,), A, scheduler.barred_until - 1)
    assert not is_barred((scheduler,), A, scheduler.barred_until)
    assert not is_barred((scheduler,), B, SEEN)


def test_progress_and_reasons_are_of_one_scheduler() -> None:
    """A placement of one does not count for another, and neither does a reason."""
    both = renewed(renewed((), A, SEEN), B, SEEN)
    moved = {scheduler.node: scheduler.since for scheduler in progressed(both, B, SEEN + 5)}
    assert moved == {A: SEEN, B: SEEN + 5}
    held = {scheduler.node: scheduler.hold_until for scheduler in holding(both, A, SEEN + 9)}
    assert held == {A: SEEN + 9, B: 0}


def test_asking_again_does_not_begin_anew_but_coming_back_does() -> None:
    """Only a placement, an absence, or the end of a bar starts the time of a scheduler from the beginning."""
    first = renewed((), A, SEEN)
    (asked,) = renewed(first, A, SEEN + limits.QUEUE_LEASE_MS * MS)
    assert asked.since == SEEN
    gone = SEEN + 2 * (limits.QUEUE_LEASE_MS + limits.QUEUE_WAIT_MS_MAX) * MS
    (back,) = renewed(first, A, gone)
    assert back.since == gone
    out = first[0].barred(SEEN)
    (tries,) = renewed((out,), A, out.barred_until)
    assert (tries.since, tries.lost) == (out.barred_until, 1)


def test_a_loss_is_forgiven_after_a_day_and_not_by_absence() -> None:
    """One that stays away for a while has its earlier losses all the same."""
    (scheduler,) = renewed((), A, SEEN)
    out = scheduler.barred(SEEN)
    forgiven = out.barred_until + limits.SCHEDULER_FORGIVEN_MS * MS
    assert renewed((out,), A, forgiven)[0].lost == 1
    assert renewed((out,), A, forgiven + 1)[0].lost == 0
    assert {leased.node for leased in renewed((out,), B, forgiven)} == {A, B}
    assert {leased.node for leased in renewed((out,), B, forgiven + 1)} == {B}
