"""Waiting times and completed tasks of a trace's users under a mechanism, compared with plain DRF.

Definitions, fixed before any measurement:

- A task waits from its submission to its start. All tasks start in the end, because the simulation continues
  after the last arrival. ``wait_until_end_s`` does not count waiting after the trace's end.
- A user's waiting is the mean over its tasks. The mean over users counts each user once, whatever it
  submitted. The mean over tasks counts each task once.
- A task is completed if it finishes before the trace ends.
- The low-demand half are the users whose tasks need the least: dominant share times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dios.fairness.allocation import Floats, Ints
from labs.simulate.fairness.simulate import simulate
from labs.simulate.fairness.trace import MICRO, FairTrace

DRF: Final = "DRF"
NEVER_WAITED_S: Final = 1e-3
"""A mean waiting below this counts as none, so that it cannot be reduced."""


@dataclass(frozen=True, eq=False)
class MechanismResult:
    """The result of a trace under one mechanism."""

    delta: float | None
    """None: plain DRF."""
    start_us: Ints
    """(T,) the start of each task."""
    order: Ints
    """(T,) rows in the order in which they started."""
    wait_s: Floats
    """(U,) each user's mean waiting; nan for a user without tasks."""
    wait_until_end_s: Floats
    """(U,) the same without waiting after the trace's end."""
    task_wait_s: float
    """The mean over tasks."""
    completed: Ints
    """(U,) tasks that finish before the trace ends."""

    @property
    def name(self) -> str:
        """The mechanism's name in tables."""
        return DRF if self.delta is None else f"SDRF, {delta_text(self.delta)}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One mechanism compared with plain DRF; changes are fractions of DRF's value, negative for less."""

    wait_users_s: float
    wait_users: float
    wait_until_end: float
    wait_tasks_s: float
    wait_tasks: float
    wait_low_s: float
    wait_low: float
    """The low-demand half."""
    each_mean: float
    """The mean of the users' own changes, over all users who wait under DRF."""
    each_median: float
    fewer: int
    """The number of users who complete fewer tasks than under DRF."""
    more: int
    lost_most: float
    """The largest fraction of its DRF completions that a user loses."""
    completed: int
    """The number of completed tasks of all users."""


def delta_text(delta: float) -> str:
    """Return a discount factor in the paper's notation: ``1 - 1e-6``."""
    mantissa, exponent = f"{1 - delta:.2e}".split("e")
    return f"1 - {float(mantissa):g}e{int(exponent)}"


def without_oversized(trace: FairTrace, capacity: Floats) -> tuple[FairTrace, int]:
    """Return the trace without tasks that exceed the capacity (everybody would wait), and their number."""
    fits = np.asarray((trace.demands <= capacity).all(axis=1))
    return (trace if fits.all() else trace.select(fits)), int((~fits).sum())


def run_mechanism(
    trace: FairTrace, capacity: Floats, delta: float | None, priority: str = "dominant"
) -> MechanismResult:
    """Simulate a trace under a mechanism; ``capacity`` (m,) has the units of the demands."""
    start, order = simulate(
        trace.submit_us,
        trace.duration_us,
        trace.user,
        trace.demands,
        capacity,
        users=trace.users,
        delta=delta,
        priority=priority,
    )
    if order.size != start.size:
        raise ValueError(
            f"{start.size - order.size} tasks exceed the capacity and never start; remove them with fitting()"
        )
    wait = (start - trace.submit_us) / MICRO
    # A task that is submitted in the last moments waits at least 0.
    seen = np.maximum(np.minimum(start, trace.horizon_us) - trace.submit_us, 0) / MICRO
    finished = start + trace.duration_us <= trace.horizon_us
    return MechanismResult(
        delta=delta,
        start_us=start,
        order=order,
        wait_s=_by_user(trace, wait),
        wait_until_end_s=_by_user(trace, seen),
        task_wait_s=float(wait.mean()),
        completed=np.bincount(trace.user[finished], minlength=trace.users).astype(np.int64),
    )


def low_half(trace: FairTrace) -> Ints:
    """Return the users of the low-demand half, among users with tasks."""
    share = (trace.demands / trace.usage()).max(axis=1) * trace.duration_us
    work = np.bincount(trace.user, share, minlength=trace.users)
    busy = np.flatnonzero(np.bincount(trace.user, minlength=trace.users))
    ranked = busy[np.argsort(work[busy], kind="stable")]
    return ranked[: max(1, ranked.size // 2)]


def reductions(plain: MechanismResult, other: MechanismResult) -> Floats:
    """Return the relative reduction of waiting for each user who waits under DRF."""
    waits = plain.wait_s > NEVER_WAITED_S
    return 1.0 - other.wait_s[waits] / plain.wait_s[waits]


def compare(trace: FairTrace, plain: MechanismResult, other: MechanismResult) -> Comparison:
    """Return the comparison of one mechanism with plain DRF."""
    low = low_half(trace)
    per_user = reductions(plain, other)
    before, after = plain.completed, other.completed
    users = float(np.nanmean(other.wait_s))
    low_s = float(other.wait_s[low].mean())
    return Comparison(
        wait_users_s=users,
        wait_users=_relative_change(users, float(np.nanmean(plain.wait_s))),
        wait_until_end=_relative_change(
            float(np.nanmean(other.wait_until_end_s)), float(np.nanmean(plain.wait_until_end_s))
        ),
        wait_tasks_s=other.task_wait_s,
        wait_tasks=_relative_change(other.task_wait_s, plain.task_wait_s),
        wait_low_s=low_s,
        wait_low=_relative_change(low_s, float(plain.wait_s[low].mean())),
        each_mean=float(np.mean(-per_user)) if per_user.size else 0.0,
        each_median=float(np.median(-per_user)) if per_user.size else 0.0,
        fewer=int((after < before).sum()),
        more=int((after > before).sum()),
        lost_most=float(np.max((before - after) / np.maximum(before, 1), initial=0.0)),
        completed=int(after.sum()),
    )


def _by_user(trace: FairTrace, values: Floats) -> Floats:
    counts = np.bincount(trace.user, minlength=trace.users)
    sums = np.bincount(trace.user, values, minlength=trace.users)
    means: Floats = np.divide(sums, counts, out=np.full(trace.users, np.nan), where=counts > 0)
    return means


def _relative_change(now: float, before: float) -> float:
    return now / before - 1.0 if before > 0 else 0.0
