"""Tasks of many users over time as arrays: what ``simulate`` plays, made of a trace's rows or made up.

Not for: reading files. The rows of the 2011 Google trace come from whoever reads them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dios import limits
from dios.errors import InvalidError
from dios.fairness.allocation import Floats, Ints

MICRO: Final = 1_000_000
DAY_US: Final = 86_400 * MICRO


class FairTrace(NamedTuple):
    """Tasks (T) in order of submission."""

    submit_us: Ints
    """(T,) microseconds since the beginning."""
    duration_us: Ints
    """(T,) microseconds."""
    user: Ints
    """(T,) 0 to ``users`` - 1."""
    demands: Floats
    """(T, m) raw units."""
    horizon_us: int
    """How long the trace is; tasks come until then."""
    users: int

    def usage(self) -> Floats:
        """(m,) the mean of what all tasks hold together, would none of them wait (the paper's R)."""
        amounts: Floats = (self.demands * self.duration_us[:, None]).sum(axis=0)
        return amounts / self.horizon_us

    def taking(self, kept: npt.NDArray[np.bool_]) -> FairTrace:
        """The tasks that are marked, of the same users."""
        return self._replace(
            submit_us=self.submit_us[kept],
            duration_us=self.duration_us[kept],
            user=self.user[kept],
            demands=self.demands[kept],
        )


class TaskRow(Protocol):
    """A row of the 2011 trace's task_events, or what says the same."""

    @property
    def time(self) -> int:
        """Microseconds; the window begins at ten minutes."""

    @property
    def job(self) -> int:
        """The job's number."""

    @property
    def number(self) -> int:
        """The task's index in its job."""

    @property
    def event(self) -> int:
        """What happened, by the trace's code."""

    @property
    def user(self) -> str:
        """Who submitted it."""

    @property
    def cpus(self) -> float | None:
        """Asked for, a fraction of the largest machine."""

    @property
    def memory(self) -> float | None:
        """Likewise."""


SUBMIT, SCHEDULE, EVICT, FAIL, FINISH, KILL, LOST, UPDATE_PENDING, UPDATE_RUNNING = range(9)
"""Codes of the trace."""
UNITS: Final = 2**20
"""A fraction of the largest machine in whole numbers: the trace has about six digits."""


@dataclass(slots=True)
class _Open:
    """A task that was submitted and has not ended."""

    submitted: int
    user: int
    cpus: float
    memory: float
    scheduled: int = -1


@dataclass(slots=True)
class _Columns:
    """Tasks that ended, in little memory: months of the trace have tens of millions."""

    submit: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))
    user: array[int] = field(default_factory=lambda: array("q"))
    cpus: array[float] = field(default_factory=lambda: array("d"))
    memory: array[float] = field(default_factory=lambda: array("d"))

    def add(self, task: _Open, until: int) -> None:
        if len(self.submit) >= limits.FAIR_TRACE_TASKS_MAX:
            raise InvalidError(
                f"the trace has more than {limits.FAIR_TRACE_TASKS_MAX} tasks; take fewer --days of it"
            )
        self.submit.append(task.submitted)
        # No simulation has tasks that end when they begin.
        self.duration.append(max(1, until - task.scheduled))
        self.user.append(task.user)
        self.cpus.append(task.cpus)
        self.memory.append(task.memory)


def trace_of_rows(
    rows: Iterable[TaskRow], *, begin_us: int, until_us: int | None
) -> tuple[FairTrace, Counter[str]]:
    """The 2011 trace as the SDRF paper reads it (section VII), and what was left out, by why.

    A task asks for the CPU and memory of its submission and runs as long as it ran in the trace, whether it
    finished, failed or was killed. Left out are tasks that demand none of one of the two, that were evicted
    or lost, that were killed before they ran, or whose beginning is not in the rows. Whoever still runs at
    ``until_us`` (None: the last row) runs until then. One that failed or was evicted and comes again is
    another task. ``begin_us`` is the time zero; what was there before was submitted at that moment.

    Raises ``InvalidError`` where nothing remains, or more than ``limits.FAIR_TRACE_TASKS_MAX`` tasks do.
    """
    tasks: dict[tuple[int, int], _Open] = {}
    users: dict[str, int] = {}
    left_out: Counter[str] = Counter()
    columns = _Columns()
    latest = 0
    for row in rows:
        key, event = (row.job, row.number), row.event
        at = max(0, row.time - begin_us)
        latest = max(latest, at)
        if event == SUBMIT:
            if key in tasks:
                left_out["submitted again before an end"] += 1
            user = users.setdefault(row.user, len(users))
            tasks[key] = _Open(at, user, row.cpus or 0.0, row.memory or 0.0)
            continue
        task = tasks.get(key)
        if task is None:
            if event not in {UPDATE_PENDING, UPDATE_RUNNING}:
                left_out["event of a task that was not submitted"] += 1
        elif event == SCHEDULE:
            task.scheduled = at
        elif event in {EVICT, FAIL, FINISH, KILL, LOST}:
            del tasks[key]
            _end(task, event, at, columns, left_out)
    end = latest if until_us is None else until_us - begin_us
    for task in tasks.values():
        _end(task, FINISH, end, columns, left_out)
    return _sorted(columns, max(1, end)), left_out


def _end(task: _Open, event: int, at: int, columns: _Columns, left_out: Counter[str]) -> None:
    """Take a task into the columns, or say why not."""
    if event in {EVICT, LOST}:
        left_out["evicted or lost"] += 1
    elif task.scheduled < 0 or at < task.scheduled:
        left_out["never ran"] += 1
    elif not (task.cpus > 0 and task.memory > 0):
        left_out["demands nothing of a resource"] += 1
    else:
        columns.add(task, at)


def _sorted(columns: _Columns, horizon_us: int) -> FairTrace:
    """The columns in order of submission, users numbered as they first come."""
    if not columns.submit:
        raise InvalidError("no task of the trace can be simulated: none ran and demanded CPU and memory")
    submit, duration, user = (
        np.frombuffer(column, np.int64) for column in (columns.submit, columns.duration, columns.user)
    )
    demands = np.stack([np.frombuffer(column) for column in (columns.cpus, columns.memory)], axis=1)
    order = np.argsort(submit, kind="stable")
    who, index = np.unique(user[order], return_inverse=True)
    return FairTrace(
        submit_us=submit[order],
        duration_us=duration[order],
        user=index.astype(np.int64),
        demands=np.maximum(np.rint(demands[order] * UNITS), 1.0),
        horizon_us=horizon_us,
        users=int(who.size),
    )
