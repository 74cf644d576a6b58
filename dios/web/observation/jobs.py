"""The tasks of a job: those that a task started, their stages, and lanes for their bars."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.errors import InvalidError
from dios.wire.types import TaskState

SLOW: Final = 2.0
"""A running task is called slow after this multiple of the median time of the ended tasks of its stage."""
_LISTED_MAX: Final = 10
_NS: Final = 1e9


class Bar(NamedTuple):
    """A started task in a lane of its node; lanes are counted from 0, and ``end_ns`` is now if it runs."""

    node: str
    lane: int
    task: Status
    end_ns: int


def in_lanes(tasks: Sequence[Status], now_ns: int) -> Iterator[Bar]:
    """Yield a bar for each started task; bars in one lane of a node do not overlap."""
    busy: dict[str, list[tuple[int, int]]] = {}
    free: dict[str, list[int]] = {}
    for task in sorted(
        (status for status in tasks if status.started_ns), key=lambda status: (status.node, status.started_ns)
    ):
        node = plain(task.node) or "here"
        running, idle = busy.setdefault(node, []), free.setdefault(node, [])
        while running and running[0][0] <= task.started_ns:
            heappush(idle, heappop(running)[1])
        lane = heappop(idle) if idle else len(running)
        end = task.ended_ns or now_ns
        heappush(running, (end, lane))
        yield Bar(node, lane, task, end)


def stages(tasks: Sequence[Status]) -> Mapping[str, list[Status]]:
    """Return the tasks by stage: their label without the number at its end."""
    groups: dict[str, list[Status]] = {}
    for task in tasks:
        groups.setdefault(plain(task.label).rstrip("0123456789 -") or "tasks", []).append(task)
    return groups


class JobPart(NamedTuple):
    """A stage of a job as text: ``done`` is its finished share, from 0 to 1.

    ``slow`` and ``failed`` are pairs of a task's fingerprint and a line of text.
    """

    name: str
    tasks: Sequence[Status]
    text: str
    done: float
    slow: Sequence[tuple[str, str]]
    failed: Sequence[tuple[str, str]]


def jobs_of(tasks: Sequence[Status]) -> list[tuple[str, list[Status]]]:
    """Return the parents with the tasks that they started, the newest first."""
    by_parent: dict[str, list[Status]] = {}
    for task in tasks:
        if task.parent:
            by_parent.setdefault(task.parent, []).append(task)
    return sorted(
        by_parent.items(), key=lambda job: max(member.started_ns for member in job[1]), reverse=True
    )


def stages_of(tasks: Sequence[Status], seconds_left: Mapping[str, float], now_ns: int) -> list[JobPart]:
    """Return the stages of a job; ``seconds_left`` are predictions for tasks by fingerprint."""
    return [_stage(name, members, seconds_left, now_ns) for name, members in stages(tasks).items()]


def _stage(name: str, tasks: Sequence[Status], seconds_left: Mapping[str, float], now_ns: int) -> JobPart:
    ended = [task for task in tasks if task.ended]
    running = [task for task in tasks if not task.ended and task.state is not TaskState.WAITING]
    times = [task.ended_ns - task.started_ns for task in ended if task.ok and task.started_ns]
    usual = statistics.median(times) if times else 0
    bad = [task for task in ended if not task.ok]
    slow = [
        task
        for task in running
        if task.fingerprint in seconds_left or (usual and now_ns - task.started_ns > SLOW * usual)
    ]
    nodes = Counter(plain(task.node) for task in running if task.node)
    parts = [f"{name}: {len(ended)} of {len(tasks)} ended"]
    parts += [f"{len(bad)} badly"] if bad else []
    parts += [f"{count} started again"] if (count := repetitions(tasks)) else []
    parts += [f"{count} moved"] if (count := sum(task.moves for task in tasks)) else []
    parts += [f"usually {usual / _NS:.2f} s"] if usual else []
    parts += (
        ["running on " + " ".join(f"{node} ({many})" for node, many in sorted(nodes.items()))]
        if nodes
        else []
    )
    silent = sum(task.progress is None for task in running)
    parts += [f"{silent} without reports of progress"] if silent else []
    return JobPart(
        name,
        tasks,
        ", ".join(parts),
        (len(ended) + sum(task.progress or 0.0 for task in running)) / len(tasks),
        [(task.fingerprint, _slow(task, usual, seconds_left, now_ns)) for task in slow],
        [
            (task.fingerprint, f"failed: {_name(task)} on {plain(task.node)}, {task.cause.name.lower()}")
            for task in bad
        ],
    )


def repetitions(tasks: Sequence[Status]) -> int:
    """Return the number of repeated starts: restarts by nodes, and further tasks with a numbered label."""
    labels = Counter(task.label for task in tasks if task.label[-1:].isdecimal())
    return sum(task.restarts for task in tasks) + sum(count - 1 for count in labels.values())


def _slow(task: Status, usual: float, seconds_left: Mapping[str, float], now_ns: int) -> str:
    runs_ns = now_ns - task.started_ns
    words = f"slow: {_name(task)} on {plain(task.node)} for {runs_ns / _NS:.1f} s"
    words += f", {runs_ns / usual:.1f} times the usual" if usual else ""
    left = seconds_left.get(task.fingerprint)
    return words if left is None else f"{words}, about {left:.0f} s left"


def _name(task: Status) -> str:
    return plain(task.label) or task.fingerprint


def job_tasks(tasks: Sequence[Status], text: str) -> tuple[str, list[Status]]:
    """Return the fingerprint of the task that ``text`` means, and this task with all that it started.

    ``text`` is the beginning of a fingerprint, or a label, of which the newest task is chosen. A node may
    have forgotten the first task, which is then only known as a parent.

    Raises:
        InvalidError: no task fits, or several.
    """
    marks = {mark for task in tasks for mark in (task.fingerprint, task.parent) if mark}
    fitting = sorted(mark for mark in marks if text and mark.startswith(text.lower()))
    if not fitting:
        labelled = [task for task in tasks if text and task.label == text]
        fitting = [max(labelled, key=lambda task: task.started_ns).fingerprint] if labelled else []
    if not fitting:
        raise InvalidError(f"there is no task {text!r}. `dios ps --all` lists your tasks.")
    if len(fitting) > 1:
        listed = ", ".join(fitting[:_LISTED_MAX])
        raise InvalidError(f"{text!r} matches {len(fitting)} tasks: {listed}. Give more of the fingerprint.")
    children: dict[str, list[Status]] = {}
    for task in tasks:
        children.setdefault(task.parent, []).append(task)
    mark = fitting[0]
    chosen = {task.fingerprint: task for task in tasks if task.fingerprint == mark}
    waiting = [mark]
    while waiting:
        for task in children.get(waiting.pop(), ()):
            if task.fingerprint not in chosen:
                chosen[task.fingerprint] = task
                waiting.append(task.fingerprint)
    return mark, sorted(chosen.values(), key=lambda task: (task.started_ns, task.fingerprint))
