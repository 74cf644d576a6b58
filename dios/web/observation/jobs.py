"""The tasks of a job: those that a task started, their stages, and lanes for their bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.errors import InvalidError

_LISTED_MAX: Final = 10


class Bar(NamedTuple):
    """A started task in a lane of its node; lanes are counted from 0, and ``end_ns`` is now if it runs."""

    node: str
    lane: int
    task: Status
    end_ns: int


def in_lanes(tasks: Sequence[Status], now_ns: int) -> Iterator[Bar]:
    """Yield a bar for each started task; bars in one lane of a node do not overlap."""
    lanes: dict[str, list[int]] = {}
    for task in sorted((one for one in tasks if one.started_ns), key=lambda one: (one.node, one.started_ns)):
        node = plain(task.node) or "here"
        ends = lanes.setdefault(node, [])
        end = task.ended_ns or now_ns
        lane = next((place for place, until in enumerate(ends) if until <= task.started_ns), len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = end
        yield Bar(node, lane, task, end)


def stages(tasks: Sequence[Status]) -> Mapping[str, list[Status]]:
    """Return the tasks by stage: their label without the number at its end."""
    found: dict[str, list[Status]] = {}
    for task in tasks:
        found.setdefault(plain(task.label).rstrip("0123456789 -") or "tasks", []).append(task)
    return found


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
    found = {task.fingerprint: task for task in tasks if task.fingerprint == mark}
    waiting = [mark]
    while waiting:
        for task in children.get(waiting.pop(), ()):
            if task.fingerprint not in found:
                found[task.fingerprint] = task
                waiting.append(task.fingerprint)
    return mark, sorted(found.values(), key=lambda task: (task.started_ns, task.fingerprint))
