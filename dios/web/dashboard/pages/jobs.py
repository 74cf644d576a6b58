"""The page of jobs: tasks with the same parent, with their progress, slow tasks and repetitions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Final

from nicegui import ui

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.web.dashboard.layout import follow
from dios.web.observation.cluster_view import ClusterView
from dios.web.observation.jobs import stages
from dios.web.observation.session import ClusterSession

_JOBS_MAX: Final = 50
_SLOW: Final = 2.0
"""A running task is called slow after this multiple of the median time of the ended tasks of its job."""


def show(session: ClusterSession) -> None:
    """Make the content."""
    ui.label("Tasks of one parent: those of MapReduce, of an executor, or of a program of yours.")
    follow(session, _jobs)


def _jobs(view: ClusterView) -> None:
    by_parent: dict[str, list[Status]] = {}
    for task in view.tasks:
        if task.parent:
            by_parent.setdefault(task.parent, []).append(task)
    newest = sorted(by_parent.items(), key=lambda job: max(one.started_ns for one in job[1]), reverse=True)
    labels = {task.fingerprint: plain(task.label) for task in view.tasks}
    if not newest:
        ui.label("No task has started others.")
    for parent, tasks in newest[:_JOBS_MAX]:
        with ui.card().classes("w-full"):
            ui.link(labels.get(parent) or parent, f"/tasks/{parent}").classes("text-bold")
            for stage, members in stages(tasks).items():
                _stage(stage, members)


def _stage(stage: str, tasks: Sequence[Status]) -> None:
    now = time.time_ns()
    ended = [task for task in tasks if task.ended]
    times = [task.ended_ns - task.started_ns for task in ended if task.ok and task.started_ns]
    usual = statistics.median(times) if times else 0
    slow = [task for task in tasks if not task.ended and usual and now - task.started_ns > _SLOW * usual]
    done = len(ended) + sum(task.progress or 0 for task in tasks if not task.ended)
    failed = sum(not task.ok for task in ended)
    words = f"{stage}: {len(ended)} of {len(tasks)} ended"
    words += f", {failed} badly" if failed else ""
    words += f", {sum(task.restarts for task in tasks)} repeated" if any(t.restarts for t in tasks) else ""
    words += f", usually {usual / 1e9:.2f} s" if usual else ""
    ui.label(words)
    ui.linear_progress(done / len(tasks), show_value=False).props('aria-label="progress"')
    for task in slow[:5]:
        ui.link(f"slow: {plain(task.label) or task.fingerprint}", f"/tasks/{task.fingerprint}")
