"""The figures of tasks, users and nodes, declared once for the terminal, the dashboard and reports.

Every text is without control characters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from dios.client.ops.status import Status
from dios.client.plain_text import plain, plain_lines
from dios.web.observation.cluster_view import Row, number

Value: TypeAlias = str | float

_GIB: Final = 2**30


class TaskFigure(NamedTuple):
    """A figure: its value at a time in nanoseconds, by which tasks are sorted, and the form of a number.

    A number below 0 is unknown.
    """

    value: Callable[[Status, int], Value]
    form: str = ""

    def text(self, task: Status, now_ns: int) -> str:
        """Return the value as text, empty if it is unknown."""
        value = self.value(task, now_ns)
        if isinstance(value, str):
            return value
        return "" if value < 0 else format(value, self.form)


def state_of(task: Status) -> str:
    """Return the state of a task, or how it ended, as a word."""
    if not task.ended:
        return "moving" if task.leave_ns else task.state.name.lower()
    return "exited" if task.ok else task.cause.name.lower()


def seconds_of(task: Status, now_ns: int) -> float:
    """Return the seconds for which a task has run until its end or ``now_ns``; -1 before its start."""
    return max(0, (task.ended_ns or now_ns) - task.started_ns) / 1e9 if task.started_ns else -1.0


def _tags(task: Status, _: int) -> str:
    return plain(" ".join(task.secrecy))


def _started(task: Status, _: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(task.started_ns / 1e9)) if task.started_ns else ""


TASK_FIGURES: Final = {
    "task": TaskFigure(lambda task, _: task.fingerprint),
    "title": TaskFigure(lambda task, _: plain(task.label)),
    "state": TaskFigure(lambda task, _: state_of(task)),
    "exit status": TaskFigure(lambda task, _: str(task.exit_status) if task.ended else ""),
    "why": TaskFigure(lambda task, _: plain_lines(task.detail)),
    "brand": TaskFigure(lambda task, _: task.brand.name.lower()),
    "user": TaskFigure(lambda task, _: plain(task.principal)),
    "node": TaskFigure(lambda task, _: plain(task.node)),
    "parent": TaskFigure(lambda task, _: task.parent),
    "started": TaskFigure(_started),
    "seconds": TaskFigure(seconds_of, ".1f"),
    "done": TaskFigure(lambda task, _: -1.0 if task.progress is None or task.ended else task.progress, ".0%"),
    "moves, restarts": TaskFigure(lambda task, _: f"{task.moves}, {task.restarts}"),
    "secrecy": TaskFigure(_tags),
    "has read": TaskFigure(_tags),
}


def texts_of(task: Status, names: Iterable[str], now_ns: int) -> list[str]:
    """Return the texts of the figures with these names."""
    return [TASK_FIGURES[name].text(task, now_ns) for name in names]


SHARE_FIGURES: Final[Mapping[str, Callable[[Row], object]]] = {
    "user": lambda row: plain(str(row.get("principal"))),
    "weight": lambda row: row.get("weight"),
    "entitled": lambda row: f"{number(row.get('entitlement')):.1%}",
    "holds": lambda row: f"{number(row.get('share')):.1%}",
    "of": lambda row: plain(str(row.get("resource"))),
    "commitment": lambda row: f"{number(row.get('commitment')):.4g}",
    "credit": lambda row: f"{number(row.get('credit')):.4g}",
    "running": lambda row: row.get("running"),
    "waiting": lambda row: row.get("waiting"),
}
"""The figures of a user, from the scheduler's row."""


class Amount(NamedTuple):
    """A part of a resource of a node, in ``unit``."""

    name: str
    used: float
    most: float
    unit: str

    def __str__(self) -> str:
        """Return the amounts."""
        return f"{self.used:.3g} of {self.most:.3g}{self.unit}"


def amounts_of(row: Row, kind: str) -> list[Amount]:
    """Return what of a node's processors and memory is "set aside" or "used", as far as its row says."""
    suffix = kind.replace(" ", "_")
    resources = (("processors", "cpus", "cpus", 1, ""), ("memory", "memory", "memory_bytes", _GIB, " GiB"))
    return [
        Amount(f"{name} {kind}", number(row.get(f"{key}_{suffix}")) / per, number(row.get(whole)) / per, unit)
        for name, key, whole, per, unit in resources
        if row.get(f"{key}_{suffix}") is not None
    ]
