"""The HTML of a page about a job."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.web.observation.cluster_view import rows
from dios.web.observation.figures import SHARE_FIGURES, seconds_of
from dios.web.observation.jobs import Bar, in_lanes, stages
from dios.web.report.collection import EXPLAINED_MAX, JobReport
from dios.web.report.html_page import pairs, preformatted, table, text, whole_page
from dios.wire.types import TaskState

BARS_MAX: Final = 10_000
_LEFT: Final = 140
_WIDTH: Final = 1_000
_LANE: Final = 14
_TICKS: Final = 5
_FAILURES_MAX: Final = 50
_STAGES_MAX: Final = 50
_MIB: Final = 2**20
_GIB: Final = 2**30


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
        "<h2>Cost</h2>",
        pairs(_cost(report)),
        "<h2>Shares now</h2>",
        _shares(report),
        "<h2>Explanation</h2>",
        *(f"<p>{text(sentence)}</p>" for sentence in _sentences(report)),
        _explained(report, TaskState.WAITING, "Tasks that wait"),
        _explained(report, TaskState.RUNNING, "Tasks that run"),
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
    facts: dict[str, object] = {
        "first task": report.mark,
        "users": ", ".join(sorted({task.principal for task in report.tasks})),
        "state": f"{len(ended)} of {len(report.tasks)} tasks have ended, {failed} of them badly",
    }
    if started:
        facts["began"] = _time(min(started))
        facts["time"] = f"{(until - min(started)) / 1e9:.2f} s"
    facts["processor time"] = _processor_time(report, report.tasks)
    facts["moves, restarts"] = (
        f"{sum(task.moves for task in report.tasks)}, {sum(task.restarts for task in report.tasks)}"
    )
    tags = sorted({tag for task in report.tasks for tag in task.secrecy})
    if tags:
        facts["tags of what it has read"] = ", ".join(tags)
    facts["this page"] = f"made {_time(report.made_ns)}"
    return facts


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
        times = [seconds_of(task, 0) for task in ended if task.ok and task.started_ns]
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
        busy = sum(seconds_of(task, report.made_ns) for task in tasks)
        state = "" if member is None else member.status.name.lower()
        cpus = "" if member is None else member.cpus
        cells.append((name or "here", state, cpus, len(tasks), f"{busy:.2f}", _processor_time(report, tasks)))
    return table(("node", "state now", "processors", "tasks", "seconds of tasks", "processor time"), cells)


def _shares(report: JobReport) -> str:
    principals = rows(report.view.shares, "principals")
    if not principals:
        reason = report.view.shares.get("error", "no scheduler answers")
        return f"<p>{text(f'Unknown: {reason}')}</p>"
    columns = ("user", "entitled", "holds", "of", "credit")
    return table(columns, [[SHARE_FIGURES[column](row) for column in columns] for row in principals])


def _cost(report: JobReport) -> dict[str, object]:
    """Return what the job has used: time of tasks, processor time, memory, and work that was lost."""
    spans = [(task, seconds_of(task, report.made_ns)) for task in report.tasks if task.started_ns]
    facts: dict[str, object] = {
        "time of tasks": f"{sum(length for _, length in spans):.2f} s",
        "processor time": _processor_time(report, report.tasks),
        "time of tasks that ended badly": (
            f"{sum(length for task, length in spans if task.ended and not task.ok):.2f} s"
        ),
    }
    peaks = report.memory_bytes
    if peaks:
        largest = max(peaks, key=lambda mark: peaks[mark])
        labels = {task.fingerprint: task.label for task in report.tasks}
        facts["largest memory of a task"] = f"{peaks[largest] / _MIB:.1f} MiB: {labels[largest] or largest}"
        held = sum(peaks.get(task.fingerprint, 0) / _GIB * length for task, length in spans)
        facts["memory over time, at most"] = f"{held:.3f} GiB for 1 s"
    return facts


def _sentences(report: JobReport) -> list[str]:
    """Return why the job took its time: when no task ran, the slowest task of each stage, and repeats."""
    started = [task for task in report.tasks if task.started_ns]
    if not started:
        return ["No task has started."]
    covered, until = 0, 0
    for task in sorted(started, key=lambda task: task.started_ns):
        end = task.ended_ns or report.made_ns
        covered += max(0, end - max(task.started_ns, until))
        until = max(until, end)
    whole = until - min(task.started_ns for task in started)
    total = sum(seconds_of(task, report.made_ns) for task in started)
    first = (
        f"From the start of the first task to the end of the last one it took {whole / 1e9:.2f} s. Tasks ran "
        f"in {covered / 1e9:.2f} s of this time, {total:.2f} s in all."
    )
    sentences = [first]
    for stage, tasks in list(stages(report.tasks).items())[:_STAGES_MAX]:
        times = {task.fingerprint: seconds_of(task, report.made_ns) for task in tasks if task.started_ns}
        slow = max(
            (task for task in tasks if task.started_ns), key=lambda t: times[t.fingerprint], default=None
        )
        if slow is not None:
            median = statistics.median(times.values())
            ratio = f", {times[slow.fingerprint] / median:.1f} times the median" if median > 0 else ""
            sentences.append(
                f"The longest task of stage {stage} is {slow.label or slow.fingerprint} on "
                f"{slow.node or 'this node'}: {times[slow.fingerprint]:.2f} s{ratio}."
            )
    again = [task for task in report.tasks if task.moves or task.restarts][:_STAGES_MAX]
    sentences += [
        f"{task.label or task.fingerprint} was moved {task.moves} times, restarted {task.restarts} times."
        for task in again
    ]
    return sentences


def _explained(report: JobReport, state: TaskState, heading: str) -> str:
    """Return the reasons of the scheduler for the tasks in a state; nothing if there are none."""
    tasks = [task for task in report.tasks if task.state is state]
    if not tasks:
        return ""
    parts = [f"<h3>{heading}</h3>"]
    for task in tasks[:EXPLAINED_MAX]:
        parts.append(f"<h4>{text(task.label or task.fingerprint)}</h4>")
        parts.append(preformatted(report.explanations.get(task.fingerprint, ("unknown",))))
    if len(tasks) > EXPLAINED_MAX:
        parts.append(f"<p>There are {len(tasks) - EXPLAINED_MAX} more.</p>")
    return "\n".join(parts)


def _failures(tasks: Sequence[Status]) -> str:
    failed = [task for task in tasks if task.ended and not task.ok]
    if not failed:
        return ""
    parts = ["<h3>Tasks that ended badly</h3>"]
    for task in failed[:_FAILURES_MAX]:
        parts.append(f"<h4>{text(task.label or task.fingerprint)}: {task.cause.name.lower()}</h4>")
        parts.append(preformatted([task.detail or "the reason is unknown"]))
    if len(failed) > _FAILURES_MAX:
        parts.append(f"<p>{len(failed) - _FAILURES_MAX} more tasks ended badly.</p>")
    return "\n".join(parts)


def timeline(tasks: Sequence[Status], now_ns: int) -> str:
    """Return the timeline of the newest BARS_MAX tasks; empty if none has started."""
    bars = list(in_lanes(tasks[-BARS_MAX:], now_ns))
    if not bars:
        return ""
    began = min(bar.task.started_ns for bar in bars)
    span = max(1, max(bar.end_ns for bar in bars) - began)
    rows = {place: row for row, place in enumerate(sorted({(bar.node, bar.lane) for bar in bars}))}
    bottom = len(rows) * _LANE + 4
    parts = [
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 60} {bottom + 18}" role="img" aria-label="timeline of tasks">'
    ]
    parts += [_tick(tick, span, bottom) for tick in range(_TICKS + 1)]
    parts += [
        f'<text x="0" y="{row * _LANE + 11}">{escape(node[:20])}</text>'
        for (node, lane), row in rows.items()
        if not lane
    ]
    parts += [_bar(bar, rows[bar.node, bar.lane], began, span) for bar in bars]
    return "\n".join([*parts, "</svg>"])


def word_of(task: Status) -> str:
    """Return the state of a task, or the cause of its end, as a word that is a class of the page's style."""
    if not task.ended:
        return task.state.name.lower()
    return "exited" if task.ok else "failed"


def _tick(tick: int, span: int, bottom: int) -> str:
    across = _LEFT + tick * _WIDTH // _TICKS
    seconds = span * tick / _TICKS / 1e9
    return (
        f'<line x1="{across}" x2="{across}" y1="0" y2="{bottom}"/>'
        f'<text x="{across}" y="{bottom + 13}">{seconds:.3g} s</text>'
    )


def _bar(bar: Bar, row: int, began: int, span: int) -> str:
    task = bar.task
    start = _LEFT + (task.started_ns - began) * _WIDTH / span
    width = max((bar.end_ns - task.started_ns) * _WIDTH / span, 1.0)
    end = task.cause.name.lower() if task.ended else task.state.name.lower()
    title = f"{plain(task.label) or task.fingerprint}: {end}, {(bar.end_ns - task.started_ns) / 1e9:.2f} s"
    title += f", has read {plain(', '.join(task.secrecy))}" if task.secrecy else ""
    return (
        f'<rect class="{word_of(task)}" x="{start:.1f}" y="{row * _LANE + 2}" width="{width:.1f}" '
        f'height="{_LANE - 3}"><title>{escape(title)}</title></rect>'
    )
