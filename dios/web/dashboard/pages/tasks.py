"""The pages of all tasks and of one task: a timeline, output, explanations, and commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlencode

from nicegui import events, ui

from dios.client.ops.status import Status
from dios.client.plain_text import plain, plain_lines
from dios.client.sync.node import Task
from dios.web.dashboard import charts
from dios.web.dashboard.layout import (
    SECRECY,
    UPDATE_S,
    attempt,
    confirmed,
    follow,
    heading,
    hide_unused,
    link_column,
    poll,
    table,
)
from dios.web.observation.cluster_view import ClusterView
from dios.web.observation.figures import TASK_FIGURES, seconds_of, texts_of
from dios.web.observation.session import ClusterSession
from dios.web.observation.watcher import find_task
from dios.wire.types import TaskState

_COLUMNS: Final = ("task", "title", "state", "node", "started", "seconds", "done", "why", SECRECY)
_FACTS: Final = (
    "task", "title", "state", "exit status", "why", "brand", "user", "node", "parent", "moves, restarts",
    "has read",
)  # fmt: skip
_BARS_MAX: Final = 10_000
_ROWS_MAX: Final = 500
_AGAIN_S: Final = 5.0
"""Seconds after which the times of running tasks are sent again."""
_EXPLAINED_MAX: Final = 10
_POSSIBLE: Final = {
    TaskState.STARTING: ("kill",),
    TaskState.RUNNING: ("pause", "kill"),
    TaskState.PAUSED: ("resume", "kill"),
    TaskState.WAITING: ("kill",),
}
"""The commands that a task in this state can be given."""
_WHY_MAX: Final = 200
_ZOOMS: Final = (
    ("zoom_in", "zoom in", 0.5, 0.0),
    ("zoom_out", "zoom out", 2.0, 0.0),
    ("chevron_left", "earlier", 1.0, -0.5),
    ("chevron_right", "later", 1.0, 0.5),
    ("zoom_out_map", "all of the time", 1e9, 0.0),
)


class _Timeline:
    """The chart, which gets bars only if they have changed, and the present time otherwise."""

    def __init__(self) -> None:
        self._chart: Final = ui.echart(charts.timeline((), 0), on_point_click=_open).classes("w-full h-80")
        self._sent = 0
        with ui.row().classes("w-full items-center gap-1"):
            for icon, name, part, by in _ZOOMS:
                button = ui.button(icon=icon, on_click=partial(self._zoom, part, by)).props(
                    f'flat dense aria-label="{name}"'
                )
                with button:
                    ui.tooltip(name)
            for word, colour in charts.LEGEND.items():
                ui.element("span").classes("inline-block w-3 h-3 q-ml-sm").style(f"background:{colour}")
                ui.label(word).classes("text-caption")
        ui.label("Zoom also with Ctrl and the wheel, drag to pan, and click a bar to open its task.").classes(
            "text-caption"
        )

    def show(self, tasks: Sequence[Status], now_ns: int) -> bool:
        """Show these tasks; return True if they are others than before, or in other states."""
        state = hash(
            tuple((task.fingerprint, task.state, task.cause, task.node, task.progress) for task in tasks)
        )
        ui.run_javascript(f"window.diosNow = {now_ns // 1_000_000}")
        if state == self._sent:
            end = {"xAxis": {"max": now_ns // 1_000_000}}
            self._chart.run_chart_method("setOption", end)
            return False
        self._sent = state
        options = charts.timeline(tasks[-_BARS_MAX:], now_ns)
        for part in ("xAxis", "yAxis", "series"):
            self._chart.options[part] = options[part]
        self._chart.update()
        return True

    def _zoom(self, part: float, by: float) -> None:
        ui.run_javascript(f"diosZoom({self._chart.id}, {part}, {by})")


def show(session: ClusterSession, word: str = "") -> None:
    """Make the content: the timeline, and a table of the tasks in which the search finds ``word``."""
    sought = ui.input("Search: label, fingerprint, node, state, cause or reason", value=word).classes(
        "w-full"
    )
    sought.props("clearable")
    bars = _Timeline()
    count = ui.label().props('role="status"')
    task_table = table(_COLUMNS, (), label="tasks")
    link_column(task_table, "task", "/tasks/")
    reasons: dict[str, str] = {}
    filled_s = 0.0

    def update(view: ClusterView) -> None:
        nonlocal filled_s
        tasks = _matching(view.tasks, (sought.value or "").lower())
        now = time.monotonic()
        if not bars.show(tasks, time.time_ns()) and now - filled_s < _AGAIN_S:
            return
        filled_s = now
        bounded = "" if len(tasks) <= _ROWS_MAX else f"; the table has the newest {_ROWS_MAX}"
        bounded += "" if len(tasks) <= _BARS_MAX else f", the picture the newest {_BARS_MAX}"
        count.text = f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}{bounded}"
        task_table.rows[:] = [
            {"id": task.fingerprint, **dict(zip(_COLUMNS, _row(task, reasons), strict=True))}
            for task in _in_order(tasks)
        ]
        hide_unused(task_table)
        task_table.update()

    async def explain() -> None:
        nonlocal filled_s
        tasks = _matching(session.watcher.view.tasks, (sought.value or "").lower())
        waiting = [task for task in reversed(tasks) if task.state is TaskState.WAITING]
        explained = {
            task.fingerprint: await _first_reason(session, task) for task in waiting[:_EXPLAINED_MAX]
        }
        if explained != reasons:
            reasons.clear()
            reasons.update(explained)
            filled_s = 0.0
            update(session.watcher.view)

    searched = word

    def seek() -> None:
        nonlocal searched
        if (sought.value or "") == searched:
            return
        searched = sought.value or ""
        target = "/tasks" + (f"?{urlencode({'q': sought.value})}" if sought.value else "")
        ui.run_javascript(f"history.replaceState(history.state, '', {json.dumps(target)})")
        update(session.watcher.view)

    poll(explain, _AGAIN_S)
    follow(session, update)
    ui.timer(UPDATE_S, seek)


def _in_order(tasks: Sequence[Status]) -> list[Status]:
    """Return the rows of the table: tasks that wait come first, then the newest."""
    newest = tasks[::-1]
    waiting = [task for task in newest if task.state is TaskState.WAITING]
    return [*waiting, *(task for task in newest if task.state is not TaskState.WAITING)][:_ROWS_MAX]


def _open(event: events.EChartPointClickEventArguments) -> None:
    if isinstance(event.value, list):
        ui.navigate.to(f"/tasks/{event.value[5]}")


def _matching(tasks: Sequence[Status], word: str) -> list[Status]:
    return [
        task
        for task in tasks
        if not word
        or any(
            word in text.lower()
            for text in (
                task.label, task.fingerprint, task.node, task.state.name, task.cause.name, task.detail
            )
        )
    ]  # fmt: skip


def _row(task: Status, reasons: Mapping[str, str]) -> tuple[object, ...]:
    now_ns = time.time_ns()
    why = reasons.get(task.fingerprint, "") if task.state is TaskState.WAITING else ""
    why = why or TASK_FIGURES["why"].text(task, now_ns).partition("\n")[0]
    cells: dict[str, object] = dict(zip(_COLUMNS, texts_of(task, _COLUMNS, now_ns), strict=True))
    # A table sorts numbers by their values.
    cells["seconds"] = round(seconds_of(task, now_ns), 1) if task.started_ns else ""
    cells["why"] = why if len(why) <= _WHY_MAX else f"{why[:_WHY_MAX]}…"
    return tuple(cells.values())


def show_one(session: ClusterSession, mark: str) -> None:
    """Make the page of the task with this fingerprint."""
    ui.link("all tasks", "/tasks")
    follow(session, partial(_facts, mark))
    with ui.row():
        buttons = {
            name: ui.button(name, on_click=partial(_act, session, mark, name, action)).props("flat")
            for name, action in (("pause", Task.pause), ("resume", Task.resume), ("kill", Task.kill))
        }
    heading("Why it waits, or why it is there")
    reasons = ui.label().classes("whitespace-pre-wrap font-mono")
    heading("Output")
    follows = ui.switch("follow the end", value=True)
    with (
        ui.element("div").classes("w-full max-h-96 overflow-auto").props('tabindex="0" role="region"') as part
    ):
        output = ui.label().classes("whitespace-pre-wrap font-mono").props('role="log" aria-label="output"')
    part.props('aria-label="output, scrollable"')

    async def update() -> None:
        task = find_task(session.watcher.view, mark)
        if task is None:
            return
        for name, button in buttons.items():
            button.set_visibility(name in _POSSIBLE.get(task.state, ()))
        reasons.text = await _reasons(session, task)
        text = "It has not started."
        if task.state is not TaskState.WAITING:
            text = await session.output(task) or "It has written nothing."
        if text != output.text:
            output.text = text
            if follows.value:
                ui.run_javascript(f"const e = getElement({part.id}); e.scrollTop = e.scrollHeight")

    ui.timer(2.0, update)
    ui.timer(0.1, update, once=True)


async def _first_reason(session: ClusterSession, task: Status) -> str:
    return (await _reasons(session, task)).partition("\n")[0]


async def _reasons(session: ClusterSession, task: Status) -> str:
    if task.ended:
        return "It has ended."
    answer = await session.ask({"ask": "explain", "task": task.fingerprint})
    lines = answer.get("lines")
    if isinstance(lines, list):
        return plain_lines("\n".join(map(str, lines)))
    if task.state is TaskState.WAITING and task.detail:
        return plain_lines(task.detail)
    return f"Unknown: {plain(str(answer.get('error', 'the answer is malformed')))}"


def _facts(mark: str, view: ClusterView) -> None:
    task = find_task(view, mark)
    if task is None:
        ui.label(f"The cluster knows no task {plain(mark)} of yours.")
        return
    with ui.grid(columns="auto 1fr").classes("gap-x-4"):
        for name, value in zip(_FACTS, texts_of(task, _FACTS, time.time_ns()), strict=True):
            if value:
                ui.label(name).classes("text-caption")
                ui.label(value).classes("whitespace-pre-wrap")
    ui.link("its references", f"/capabilities?of={task.fingerprint}")


async def _act(session: ClusterSession, mark: str, name: str, action: Callable[[Task], object]) -> None:
    task = find_task(session.watcher.view, mark)
    if task is None or (name == "kill" and not await confirmed(f"Kill {plain(task.label) or mark}?")):
        return
    await attempt(lambda: session.act_on_task(task, action))
