"""What a mechanism does to the users of a trace: waiting and completed tasks, beside plain DRF.

For: ``dios fair simulate`` and ``dios.papers``. Not for: deciding (``dios.fairness.simulate``).

How things are counted, fixed before anything was measured:

- A task waits from its submission to its start. All tasks start in the end: the simulation goes on when no
  more come. ``wait_until_end_s`` counts nothing that is waited after the trace's end.
- A user's waiting is the mean over its tasks; the mean over users counts each user once, whatever it
  submitted. Over tasks, each task counts once.
- A task is completed when it finishes before the trace ends.
- The low-demand half are those users whose tasks need the least: dominant share times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dios.fairness.allocation import Floats, Ints
from dios.fairness.simulate import simulate
from dios.fairness.trace import MICRO, FairTrace

DRF: Final = "DRF"
NEVER_WAITED_S: Final = 1e-3
"""Below a millisecond on average nobody waits, and waiting cannot fall."""


@dataclass(frozen=True, eq=False)
class Played:
    """A trace under one mechanism."""

    delta: float | None
    """None: plain DRF."""
    start_us: Ints
    """(T,) when each task starts."""
    order: Ints
    """(T,) rows as they started."""
    wait_s: Floats
    """(U,) each user's mean waiting; not a number for a user without tasks."""
    wait_until_end_s: Floats
    """(U,) the same, where nothing after the trace's end counts."""
    task_wait_s: float
    """The mean over tasks."""
    completed: Ints
    """(U,) tasks that finish before the trace ends."""

    @property
    def name(self) -> str:
        """The mechanism, as tables have it."""
        return DRF if self.delta is None else f"SDRF, {delta_text(self.delta)}"


@dataclass(frozen=True, slots=True)
class Compared:
    """One mechanism beside plain DRF; changes are parts of DRF's value, below 0 where it is less."""

    wait_users_s: float
    wait_users: float
    wait_until_end: float
    wait_tasks_s: float
    wait_tasks: float
    wait_low_s: float
    wait_low: float
    """The low-demand half."""
    each_mean: float
    """The mean of users' own changes, of those who wait under DRF, however long."""
    each_median: float
    fewer: int
    """Users who complete fewer tasks than under DRF."""
    more: int
    lost_most: float
    """The largest part of its DRF completions that a user loses."""
    completed: int
    """Tasks, of all users."""


def delta_text(delta: float) -> str:
    """A discount factor as the paper writes it: ``1 - 1e-6``."""
    mantissa, exponent = f"{1 - delta:.2e}".split("e")
    return f"1 - {float(mantissa):g}e{int(exponent)}"


def fitting(trace: FairTrace, capacity: Floats) -> tuple[FairTrace, int]:
    """The trace without tasks that never fit, which everybody would wait for; and how many those are."""
    fits = np.asarray((trace.demands <= capacity).all(axis=1))
    return (trace if fits.all() else trace.taking(fits)), int((~fits).sum())


def play(trace: FairTrace, capacity: Floats, delta: float | None, priority: str = "dominant") -> Played:
    """Let a mechanism decide when each task starts; ``capacity`` (m,) in the units of the demands."""
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
        raise ValueError(f"{start.size - order.size} tasks never fit; take them out with fitting()")
    wait = (start - trace.submit_us) / MICRO
    # Who comes in the last moment has not waited, rather than less than nothing.
    seen = np.maximum(np.minimum(start, trace.horizon_us) - trace.submit_us, 0) / MICRO
    finished = start + trace.duration_us <= trace.horizon_us
    return Played(
        delta=delta,
        start_us=start,
        order=order,
        wait_s=_by_user(trace, wait),
        wait_until_end_s=_by_user(trace, seen),
        task_wait_s=float(wait.mean()),
        completed=np.bincount(trace.user[finished], minlength=trace.users).astype(np.int64),
    )


def low_half(trace: FairTrace) -> Ints:
    """The users of the low-demand half, among those who have tasks."""
    share = (trace.demands / trace.usage()).max(axis=1) * trace.duration_us
    work = np.bincount(trace.user, share, minlength=trace.users)
    busy = np.flatnonzero(np.bincount(trace.user, minlength=trace.users))
    ranked = busy[np.argsort(work[busy], kind="stable")]
    return ranked[: max(1, ranked.size // 2)]


def reductions(plain: Played, other: Played) -> Floats:
    """How much less each user waits than under DRF, a part of it; only of those who wait under DRF."""
    waits = plain.wait_s > NEVER_WAITED_S
    return 1.0 - other.wait_s[waits] / plain.wait_s[waits]


def compare(trace: FairTrace, plain: Played, other: Played) -> Compared:
    """One mechanism beside plain DRF."""
    low = low_half(trace)
    each = reductions(plain, other)
    before, after = plain.completed, other.completed
    users = float(np.nanmean(other.wait_s))
    low_s = float(other.wait_s[low].mean())
    return Compared(
        wait_users_s=users,
        wait_users=_change(users, float(np.nanmean(plain.wait_s))),
        wait_until_end=_change(
            float(np.nanmean(other.wait_until_end_s)), float(np.nanmean(plain.wait_until_end_s))
        ),
        wait_tasks_s=other.task_wait_s,
        wait_tasks=_change(other.task_wait_s, plain.task_wait_s),
        wait_low_s=low_s,
        wait_low=_change(low_s, float(plain.wait_s[low].mean())),
        each_mean=float(np.mean(-each)) if each.size else 0.0,
        each_median=float(np.median(-each)) if each.size else 0.0,
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


def _change(now: float, before: float) -> float:
    return now / before - 1.0 if before > 0 else 0.0
