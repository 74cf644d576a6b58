"""The HTML of a page about a job. Every text of others is escaped by ``_text``."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from dios.client.ops.status import Status
from dios.client.plain_text import plain, plain_lines
from dios.web.observation.cluster_view import number, rows
from dios.web.observation.jobs import stages
from dios.web.report.collection import EXPLAINED_MAX, JobReport
from dios.web.report.picture import BARS_MAX, timeline
from dios.wire.types import TaskState

_FAILURES_MAX: Final = 50
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { padding: .15rem .8rem .15rem 0; text-align: left; }
th { font-weight: 600; } thead th { border-bottom: 1px solid; }
pre { white-space: pre-wrap; margin: 0 0 1rem; }
svg { width: 100%; } svg text { font-size: 11px; fill: currentColor; } svg line { stroke: #8886; }
.running { fill: #1976d2; } .exited { fill: #2e7d32; } .failed { fill: #c62828; }
.paused { fill: #b26a00; } .starting, .waiting { fill: #8e9aaf; }
"""


def page_of(report: JobReport) -> str:
    """Return the page as HTML without scripts, which loads nothing."""
    title = f"Job {report.label}"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main><h1>{_text(title)}</h1>",
        _pairs(_facts(report)),
        *(f"<p>{_text(problem)}</p>" for problem in report.view.problems),
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
        _pairs(report.versions),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _text(value: object) -> str:
    return escape(plain(str(value)))


def _lines(lines: Iterable[str]) -> str:
    return f"<pre>{escape(plain_lines(chr(10).join(lines)))}</pre>"


def _pairs(pairs: Mapping[str, object]) -> str:
    cells = [
        f"<tr><th scope=row>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in pairs.items()
    ]
    return f"<table>{''.join(cells)}</table>"


def _table(columns: Sequence[str], cells: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th scope=col>{_text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


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
    return _table(columns, cells)


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
    return _table(("node", "state now", "processors", "tasks", "seconds of tasks", "processor time"), cells)


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
    return "<h2>Shares now</h2>" + _table(("user", "entitled", "holds", "of", "credit"), cells)


def _waiting(report: JobReport) -> str:
    waiting = [task for task in report.tasks if task.state is TaskState.WAITING]
    if not waiting:
        return ""
    parts = ["<h2>Tasks that wait</h2>"]
    for task in waiting[:EXPLAINED_MAX]:
        parts.append(f"<h3>{_text(task.label or task.fingerprint)}</h3>")
        parts.append(_lines(report.explanations.get(task.fingerprint, ("unknown",))))
    if len(waiting) > EXPLAINED_MAX:
        parts.append(f"<p>{len(waiting) - EXPLAINED_MAX} more tasks wait.</p>")
    return "\n".join(parts)


def _failures(tasks: Sequence[Status]) -> str:
    failed = [task for task in tasks if task.ended and not task.ok]
    if not failed:
        return ""
    parts = ["<h2>Tasks that ended badly</h2>"]
    for task in failed[:_FAILURES_MAX]:
        parts.append(f"<h3>{_text(task.label or task.fingerprint)}: {task.cause.name.lower()}</h3>")
        parts.append(_lines([task.detail or "the reason is unknown"]))
    if len(failed) > _FAILURES_MAX:
        parts.append(f"<p>{len(failed) - _FAILURES_MAX} more tasks ended badly.</p>")
    return "\n".join(parts)
