"""The timeline of a job as SVG: a bar for each started task, in lanes for each node."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.web.observation.jobs import Bar, in_lanes

BARS_MAX: Final = 10_000
_LEFT: Final = 140
_WIDTH: Final = 1_000
_LANE: Final = 14
_TICKS: Final = 5


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
