"""Tasks of many users over time as arrays, built from the rows of the 2011 Google trace.

Reading the trace's files is left to the caller, who passes the rows.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from dios.fairness.allocation import Floats, Ints
from labs import limits

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
    """The length of the trace; tasks arrive until then."""
    users: int

    def usage(self) -> Floats:
        """Return the mean amounts (m,) that all tasks would hold if none of them waited (the paper's R)."""
        amounts: Floats = (self.demands * self.duration_us[:, None]).sum(axis=0)
        return amounts / self.horizon_us

    def select(self, kept: npt.NDArray[np.bool_]) -> FairTrace:
        """Return the trace with the marked tasks only; the users stay the same."""
        return self._replace(
            submit_us=self.submit_us[kept],
            duration_us=self.duration_us[kept],
            user=self.user[kept],
            demands=self.demands[kept],
        )


class TraceRow(Protocol):
    """A row of the 2011 trace's task_events, or an object with the same attributes."""

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
        """The trace's code of the event."""

    @property
    def user(self) -> str:
        """The user who submitted the task."""

    @property
    def cpus(self) -> float | None:
        """The requested CPU, as a fraction of the largest machine."""

    @property
    def memory(self) -> float | None:
        """The requested memory, as a fraction of the largest machine."""


SUBMIT, SCHEDULE, EVICT, FAIL, FINISH, KILL, LOST, UPDATE_PENDING, UPDATE_RUNNING = range(9)
"""Event codes of the trace."""
UNITS: Final = 2**20
"""Demands are whole numbers of 1/2**20 of the largest machine: the trace has about six digits."""


@dataclass(slots=True)
class _OpenTask:
    """A task that was submitted and has not ended yet."""

    submitted: int
    user: int
    cpus: float
    memory: float
    scheduled: int = -1


@dataclass(slots=True)
class _TraceColumns:
    """Columns of the tasks that ended, kept compact: months of the trace have tens of millions."""

    submit: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))
    user: array[int] = field(default_factory=lambda: array("q"))
    cpus: array[float] = field(default_factory=lambda: array("d"))
    memory: array[float] = field(default_factory=lambda: array("d"))

    def add(self, task: _OpenTask, until: int) -> None:
        if len(self.submit) >= limits.FAIR_TRACE_TASKS_MAX:
            raise InvalidError(
                f"the trace has more than {limits.FAIR_TRACE_TASKS_MAX} tasks; use fewer --days of it"
            )
        self.submit.append(task.submitted)
        # The simulation needs durations above 0.
        self.duration.append(max(1, until - task.scheduled))
        self.user.append(task.user)
        self.cpus.append(task.cpus)
        self.memory.append(task.memory)


def trace_of_rows(
    rows: Iterable[TraceRow], *, begin_us: int, until_us: int | None
) -> tuple[FairTrace, Counter[str]]:
    """Convert rows of the 2011 trace as the SDRF paper does (section VII); also count skipped rows by reason.

    A task demands the CPU and memory of its submission and runs as long as it ran in the trace, even if it
    failed or was killed. Tasks are skipped if they demand no CPU or no memory, were evicted or lost, were
    killed before they ran, or were submitted before the first row. Tasks still running at ``until_us``
    (None: at the last row) end then. A task that failed or was evicted and is submitted again counts as a
    new task. ``begin_us`` becomes time 0; events before it count as at time 0.

    Raises ``InvalidError`` if no task is left, or if there are more than ``limits.FAIR_TRACE_TASKS_MAX``.
    """
    tasks: dict[tuple[int, int], _OpenTask] = {}
    users: dict[str, int] = {}
    skipped: Counter[str] = Counter()
    columns = _TraceColumns()
    latest = 0
    for row in rows:
        key, event = (row.job, row.number), row.event
        at = max(0, row.time - begin_us)
        latest = max(latest, at)
        if event == SUBMIT:
            if key in tasks:
                skipped["submitted again before an end"] += 1
            user = users.setdefault(row.user, len(users))
            tasks[key] = _OpenTask(at, user, row.cpus or 0.0, row.memory or 0.0)
            continue
        task = tasks.get(key)
        if task is None:
            if event not in {UPDATE_PENDING, UPDATE_RUNNING}:
                skipped["event of a task that was not submitted"] += 1
        elif event == SCHEDULE:
            task.scheduled = at
        elif event in {EVICT, FAIL, FINISH, KILL, LOST}:
            del tasks[key]
            _record_end(task, event, at, columns, skipped)
    end = latest if until_us is None else until_us - begin_us
    for task in tasks.values():
        _record_end(task, FINISH, end, columns, skipped)
    return _sorted_trace(columns, max(1, end)), skipped


def _record_end(task: _OpenTask, event: int, at: int, columns: _TraceColumns, skipped: Counter[str]) -> None:
    """Add a task to the columns, or count the reason why not."""
    if event in {EVICT, LOST}:
        skipped["evicted or lost"] += 1
    elif task.scheduled < 0 or at < task.scheduled:
        skipped["never ran"] += 1
    elif not (task.cpus > 0 and task.memory > 0):
        skipped["demands nothing of a resource"] += 1
    else:
        columns.add(task, at)


def _sorted_trace(columns: _TraceColumns, horizon_us: int) -> FairTrace:
    """Return the columns in order of submission, with users numbered by their first task."""
    if not columns.submit:
        raise InvalidError("no task of the trace can be simulated: no task ran and demanded CPU and memory")
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
