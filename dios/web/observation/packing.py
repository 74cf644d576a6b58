"""Admitted jobs over time: their demands and guarantees as curves, and what is used while somebody looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dios.client.plain_text import plain
from dios.web.observation.cluster_view import Row, number, rows

PROCESSORS: Final = "processors"
MEMORY: Final = "memory"
TRAFFIC: Final = "guaranteed traffic"
UNITS: Final[Mapping[str, str]] = {PROCESSORS: "processors", MEMORY: "GiB", TRAFFIC: "MB/s"}
SAMPLES_MAX: Final = 600
POINTS_MAX: Final = 2_000
_AHEAD_S: Final = 60.0
"""A job without an end is drawn until this time after now, or until the end of the last other one."""
_DIVISORS: Final = {PROCESSORS: 1.0, MEMORY: float(2**30), TRAFFIC: 1e6}
_COLUMNS: Final = {PROCESSORS: 1, MEMORY: 2}

Steps = list[tuple[float, float]]


class Demands(NamedTuple):
    """Amounts by job at the same times, in seconds since 1970, and the capacity; 0 if it is unknown."""

    times: Sequence[float]
    by_job: Mapping[str, Sequence[float]]
    capacity: float


def demands(answer: Row, resource: str, node: str = "") -> Demands:
    """Return the curves of an answer to ``timeline``, of one node or of all."""
    now = number(answer.get("now_s"))
    changes: dict[str, list[Steps]] = {}
    for job in rows(answer, "jobs"):
        name = f"{plain(str(job.get('job')))} ({plain(str(job.get('principal')))})"
        changes.setdefault(name, []).extend(_steps_of(job, resource, node))
    times = {now, now + _AHEAD_S}
    times.update(at for series in changes.values() for steps in series for at, _ in steps)
    ordered = sorted(times)[:POINTS_MAX]
    return Demands(
        ordered,
        {
            name: [sum(_at(steps, at) for steps in series) for at in ordered]
            for name, series in changes.items()
        },
        _capacity(answer, resource, node),
    )


def _steps_of(job: Row, resource: str, node: str) -> list[Steps]:
    if resource == TRAFFIC:
        edges = [
            edge
            for edge in rows(job, "edges")
            if edge.get("source_node") != edge.get("target_node") and node in {"", edge.get("source_node")}
        ]
        return [_steps(edge, 1, resource) for edge in edges]
    return [
        _steps(member, _COLUMNS[resource], resource)
        for member in rows(job, "members")
        if node in {"", member.get("node")}
    ]


def _steps(row: Row, column: int, resource: str) -> Steps:
    """Return (time, amount) of the changes; malformed ones are left out."""
    changes = row.get("steps")
    return [
        (number(step[0]), number(step[column]) / _DIVISORS[resource])
        for step in (changes if isinstance(changes, list) else ())
        if isinstance(step, list) and len(step) > column
    ]


def _at(steps: Steps, at: float) -> float:
    """Return the amount at a time."""
    amount = 0.0
    for begin, value in steps:
        if begin > at:
            break
        amount = value
    return amount


def _capacity(answer: Row, resource: str, node: str) -> float:
    if resource == TRAFFIC:
        return 0.0
    key = "cpus" if resource == PROCESSORS else "memory_bytes"
    return sum(
        number(row.get(key)) / _DIVISORS[resource]
        for row in rows(answer, "nodes")
        if node in {"", row.get("node")}
    )


class UsedOverTime:
    """The measured use while somebody looked; nodes measure processors and memory for all their tasks."""

    def __init__(self) -> None:
        self._past: Final[deque[tuple[float, Mapping[tuple[str, str], float]]]] = deque(maxlen=SAMPLES_MAX)

    def add(self, answer: Row, nodes: Mapping[str, Row]) -> None:
        """Add a sample: the traffic of an answer to ``timeline``, and the scheduler's rows of nodes."""
        amounts: dict[tuple[str, str], float] = {}
        for job in rows(answer, "jobs"):
            for edge in rows(job, "edges"):
                if edge.get("source_node") != edge.get("target_node"):
                    key = (TRAFFIC, str(edge.get("source_node")))
                    amounts[key] = amounts.get(key, 0.0) + number(edge.get("moving_bytes_s")) / 1e6
        for name, row in nodes.items():
            for resource, field in ((PROCESSORS, "cpus_used"), (MEMORY, "memory_used")):
                if row.get(field) is not None:
                    amounts[resource, name] = number(row.get(field)) / _DIVISORS[resource]
        self._past.append((number(answer.get("now_s")), amounts))

    def line(self, resource: str, node: str = "") -> Steps:
        """Return (time, amount) of one node or of all; moments without a measurement are left out."""
        points: Steps = []
        for at, amounts in self._past:
            fitting = [
                value for (kind, name), value in amounts.items() if kind == resource and node in {"", name}
            ]
            if fitting:
                points.append((at, sum(fitting)))
        return points
