"""The pages of all tasks and of one task: a timeline, output, explanations, and commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from nicegui import events, ui

from dios.client.ops.status import Status
from dios.client.plain_text import plain, plain_lines
from dios.client.sync.node import Task
from dios.web.dashboard import charts
from dios.web.dashboard.layout import attempt, confirmed, follow, heading, link_column, table
from dios.web.observation.cluster_view import ClusterView
from dios.web.observation.session import ClusterSession
from dios.web.observation.watcher import find_task
from dios.wire.types import TaskState

_COLUMNS: Final = ("task", "label", "state", "cause", "node", "seconds", "done")
_BARS_MAX: Final = 10_000
_ROWS_MAX: Final = 1_000


def show(session: ClusterSession) -> None:
    """Make the content: the timeline, and a table of the tasks that the search finds."""
    sought = ui.input("Search: label, fingerprint, node, state or cause").classes("w-full").props("clearable")
    bars = ui.echart(charts.timeline((), 0), on_point_click=_open).classes("w-full h-80")
    count = ui.label()
    found = table(_COLUMNS, (), label="tasks")
    link_column(found, "task", "/tasks/")

    def update(view: ClusterView) -> None:
        tasks = _matching(view.tasks, (sought.value or "").lower())
        options = charts.timeline(tasks[-_BARS_MAX:], time.time_ns())
        bars.options["yAxis"] = options["yAxis"]
        bars.options["series"] = options["series"]
        bars.update()
        count.text = f"{len(tasks)} tasks; the table has the newest {min(len(tasks), _ROWS_MAX)}"
        found.rows[:] = [
            {"id": task.fingerprint, **dict(zip(_COLUMNS, _row(task), strict=True))}
            for task in reversed(tasks[-_ROWS_MAX:])
        ]
        found.update()

    follow(session, update)
    sought.on_value_change(lambda: update(session.watcher.view))


def _open(event: events.EChartPointClickEventArguments) -> None:
    if isinstance(event.value, list):
        ui.navigate.to(f"/tasks/{event.value[3]}")


def _matching(tasks: Sequence[Status], word: str) -> list[Status]:
    return [
        task
        for task in tasks
        if not word
        or any(
            word in text.lower()
            for text in (task.label, task.fingerprint, task.node, task.state.name, task.cause.name)
        )
    ]


def _row(task: Status) -> tuple[object, ...]:
    end = task.ended_ns or time.time_ns()
    return (
        task.fingerprint,
        plain(task.label),
        task.state.name.lower(),
        task.cause.name.lower() if task.ended else "",
        plain(task.node),
        round((end - task.started_ns) / 1e9, 1) if task.started_ns else "",
        "" if task.progress is None else f"{task.progress:.0%}",
    )


def show_one(session: ClusterSession, mark: str) -> None:
    """Make the page of the task with this fingerprint."""
    ui.link("all tasks", "/tasks")
    follow(session, partial(_facts, mark))
    with ui.row():
        for name, action in (("pause", Task.pause), ("resume", Task.resume), ("kill", Task.kill)):
            ui.button(name, on_click=partial(_act, session, mark, name, action)).props("flat")
    heading("Why it waits, or why it is there")
    reasons = ui.label().classes("whitespace-pre-wrap font-mono")
    heading("Output")
    output = ui.label().classes("whitespace-pre-wrap font-mono").props('role="log" aria-label="output"')

    async def update() -> None:
        task = find_task(session.watcher.view, mark)
        if task is None:
            return
        reasons.text = await _reasons(session, task)
        if task.state is TaskState.WAITING:
            output.text = "It has not started."
        else:
            output.text = await session.output(task) or "It has written nothing."

    ui.timer(2.0, update)
    ui.timer(0.1, update, once=True)


async def _reasons(session: ClusterSession, task: Status) -> str:
    if task.ended:
        return "It has ended."
    found = await session.ask({"ask": "explain", "task": task.fingerprint})
    lines = found.get("lines")
    if isinstance(lines, list):
        return plain_lines("\n".join(map(str, lines)))
    if task.state is TaskState.WAITING and task.detail:
        return plain_lines(task.detail)
    return f"Unknown: {plain(str(found.get('error', 'the answer is malformed')))}"


def _facts(mark: str, view: ClusterView) -> None:
    task = find_task(view, mark)
    if task is None:
        ui.label(f"The cluster knows no task {plain(mark)} of yours.")
        return
    with ui.grid(columns="auto 1fr").classes("gap-x-4"):
        for name, value in (
            ("task", task.fingerprint),
            ("label", plain(task.label)),
            ("state", task.state.name.lower()),
            ("ended by", task.cause.name.lower() if task.ended else ""),
            ("exit status", task.exit_status if task.ended else ""),
            ("why", plain_lines(task.detail)),
            ("brand", task.brand.name.lower()),
            ("user", plain(task.principal)),
            ("node", plain(task.node)),
            ("parent", task.parent),
            ("moves, restarts", f"{task.moves}, {task.restarts}"),
        ):
            if value != "":
                ui.label(name).classes("text-caption")
                ui.label(str(value)).classes("whitespace-pre-wrap")
    ui.link("its references", f"/capabilities?of={task.fingerprint}")


async def _act(session: ClusterSession, mark: str, name: str, action: Callable[[Task], object]) -> None:
    task = find_task(session.watcher.view, mark)
    if task is None or (name == "kill" and not await confirmed(f"Kill {plain(task.label) or mark}?")):
        return
    await attempt(lambda: session.act_on_task(task, action))
