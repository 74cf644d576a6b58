"""The HTML of a page about a job."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from dios.client.ops.status import Status
from dios.web.observation.cluster_view import number, rows
from dios.web.observation.jobs import stages
from dios.web.report.collection import EXPLAINED_MAX, JobReport
from dios.web.report.html_page import pairs, preformatted, table, text, whole_page
from dios.web.report.picture import BARS_MAX, timeline
from dios.wire.types import TaskState

_FAILURES_MAX: Final = 50


def page_of(report: JobReport) -> str:
    """Return the page as HTML without scripts, which loads nothing."""
    title = f"Job {report.label}"
    parts = [
        pairs(_facts(report)),
        *(f"<p>{text(problem)}</p>" for problem in report.view.problems),
        "<h2>Timeline</h2>",
        timeline(report.tasks, report.made_ns) or "<p>No task has started.</p>",
        f"<p>Only the newest {BARS_MAX} tasks are shown.</p>" if len(report.tasks) > BARS_MAX else "",
        "<h2>Stages</h2>",
        _stages(report),
        "<h2>Nodes</h2>",
        _nodes(report),
        _shares(report),
        _waiting(report),
        _failures(report.tasks),
        "<h2>Versions</h2>",
        pairs(report.versions),
    ]
    return whole_page(title, parts)


def _facts(report: JobReport) -> dict[str, object]:
    started = [task.started_ns for task in report.tasks if task.started_ns]
    ended = [task for task in report.tasks if task.ended]
    until = report.made_ns if len(ended) < len(report.tasks) else max(task.ended_ns for task in ended)
    failed = sum(not task.ok for task in ended)
    found: dict[str, object] = {
        "first task": report.mark,
        "users": ", ".join(sorted({task.principal for task in report.tasks})),
        "state": f"{len(ended)} of {len(report.tasks)} tasks have ended, {failed} of them badly",
    }
    if started:
        found["began"] = _time(min(started))
        found["time"] = f"{(until - min(started)) / 1e9:.2f} s"
    found["processor time"] = _processor_time(report, report.tasks)
    found["moves, restarts"] = (
        f"{sum(task.moves for task in report.tasks)}, {sum(task.restarts for task in report.tasks)}"
    )
    found["this page"] = f"made {_time(report.made_ns)}"
    return found


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _processor_time(report: JobReport, tasks: Sequence[Status]) -> str:
    known = [report.cpu_ms[task.fingerprint] for task in tasks if task.fingerprint in report.cpu_ms]
    words = f"{sum(known) / 1e3:.2f} s"
    return words if len(known) == len(tasks) else f"{words} of {len(known)} tasks; of the others unknown"


def _stages(report: JobReport) -> str:
    cells = []
    for stage, tasks in stages(report.tasks).items():
        ended = [task for task in tasks if task.ended]
        times = [(task.ended_ns - task.started_ns) / 1e9 for task in ended if task.ok and task.started_ns]
        cells.append(
            (
                stage,
                len(tasks),
                len(ended),
                sum(not task.ok for task in ended),
                sum(task.restarts for task in tasks),
                f"{statistics.median(times):.2f}" if times else "",
                f"{max(times):.2f}" if times else "",
                _processor_time(report, tasks),
            )
        )
    columns = ("stage", "tasks", "ended", "badly", "repeated", "median s", "longest s", "processor time")
    return table(columns, cells)


def _nodes(report: JobReport) -> str:
    by_node: dict[str, list[Status]] = {}
    for task in report.tasks:
        if task.started_ns:
            by_node.setdefault(task.node, []).append(task)
    members = {member.name: member for member in report.view.nodes}
    cells = []
    for name, tasks in sorted(by_node.items()):
        member = members.get(name)
        busy = sum((task.ended_ns or report.made_ns) - task.started_ns for task in tasks) / 1e9
        state = "" if member is None else member.status.name.lower()
        cpus = "" if member is None else member.cpus
        cells.append((name or "here", state, cpus, len(tasks), f"{busy:.2f}", _processor_time(report, tasks)))
    return table(("node", "state now", "processors", "tasks", "seconds of tasks", "processor time"), cells)


def _shares(report: JobReport) -> str:
    found = rows(report.view.shares, "principals")
    if not found:
        return ""
    cells = [
        (
            row.get("principal"),
            f"{number(row.get('entitlement')):.1%}",
            f"{number(row.get('share')):.1%}",
            row.get("resource"),
            f"{number(row.get('credit')):.4g}",
        )
        for row in found
    ]
    return "<h2>Shares now</h2>" + table(("user", "entitled", "holds", "of", "credit"), cells)


def _waiting(report: JobReport) -> str:
    waiting = [task for task in report.tasks if task.state is TaskState.WAITING]
    if not waiting:
        return ""
    parts = ["<h2>Tasks that wait</h2>"]
    for task in waiting[:EXPLAINED_MAX]:
        parts.append(f"<h3>{text(task.label or task.fingerprint)}</h3>")
        parts.append(preformatted(report.explanations.get(task.fingerprint, ("unknown",))))
    if len(waiting) > EXPLAINED_MAX:
        parts.append(f"<p>{len(waiting) - EXPLAINED_MAX} more tasks wait.</p>")
    return "\n".join(parts)


def _failures(tasks: Sequence[Status]) -> str:
    failed = [task for task in tasks if task.ended and not task.ok]
    if not failed:
        return ""
    parts = ["<h2>Tasks that ended badly</h2>"]
    for task in failed[:_FAILURES_MAX]:
        parts.append(f"<h3>{text(task.label or task.fingerprint)}: {task.cause.name.lower()}</h3>")
        parts.append(preformatted([task.detail or "the reason is unknown"]))
    if len(failed) > _FAILURES_MAX:
        parts.append(f"<p>{len(failed) - _FAILURES_MAX} more tasks ended badly.</p>")
    return "\n".join(parts)
