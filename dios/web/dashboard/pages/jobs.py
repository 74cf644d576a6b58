"""The page of jobs: tasks with the same parent, with progress, slow tasks, repetitions and bytes."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.web.dashboard.layout import fill, follow, note, poll, table
from dios.web.observation.cluster_view import ClusterView
from dios.web.observation.jobs import JobPart, jobs_of, stages_of
from dios.web.observation.session import ClusterSession
from dios.web.observation.task_use import TaskUse, read_use, sums_of

_JOBS_MAX: Final = 50
_LISTED_MAX: Final = 5
_USE_S: Final = 5.0
_USE_COLUMNS: Final = (
    "stage", "processor s", "largest memory MB", "MB given", "MB of results", "known tasks",
)  # fmt: skip


def show(session: ClusterSession, _: str = "") -> None:
    """Make the content."""
    ui.label("Tasks of one parent: those of MapReduce, of an executor, or of a program of yours.")
    nothing = ui.label("No task has started others.")
    body = ui.column().classes("w-full items-stretch")
    parts: dict[str, _Job] = {}

    def update(view: ClusterView) -> None:
        jobs = dict(jobs_of(view.tasks)[:_JOBS_MAX])
        nothing.set_visibility(not jobs)
        for parent in parts.keys() - jobs.keys():
            body.remove(parts.pop(parent).card)
        labels = {task.fingerprint: plain(task.label) for task in view.tasks}
        for parent in reversed([candidate for candidate in jobs if candidate not in parts]):
            with body:
                parts[parent] = _Job(session, parent, labels.get(parent))
            parts[parent].card.move(body, 0)
        for parent, tasks in jobs.items():
            parts[parent].show(stages_of(tasks, view.seconds_left, time.time_ns()))

    async def use() -> None:
        for part in list(parts.values()):
            await part.update_use()

    follow(session, update)
    poll(use, _USE_S)


class _Job:
    """The part of the page about one job; its use is read only while it is open."""

    def __init__(self, session: ClusterSession, parent: str, title: str | None) -> None:
        self._session: Final = session
        self._stages: list[JobPart] = []
        self._parts: Final[dict[str, _PartLines]] = {}
        self._known: Final[dict[str, TaskUse | None]] = {}
        with ui.card().classes("w-full") as self.card:
            if title is None:
                ui.label(f"Started by the program or session {parent}").classes("text-bold")
            else:
                ui.link(title or parent, f"/tasks/{parent}").classes("text-bold")
            self._body: Final = ui.column().classes("w-full items-stretch")
            with ui.expansion("Bytes, processor time and memory").classes("w-full") as self._more:
                self._use: Final = table(_USE_COLUMNS, (), label="use of stages")
                self._problem: Final = note("")
                ui.label(
                    "MB given is the size of the objects that tasks got at their start, of which each may "
                    "use a part, and MB of results that of the objects they may write. Nodes do not count "
                    "the bytes that a task moves within these objects or through streams. Processor time and "
                    "memory are those of ended tasks that their nodes still know."
                ).classes("text-caption")
        self._more.on_value_change(self.update_use)

    def show(self, stages: list[JobPart]) -> None:
        """Show the present state."""
        self._stages = stages
        for stage in stages:
            if stage.name not in self._parts:
                with self._body:
                    self._parts[stage.name] = _PartLines()
            self._parts[stage.name].show(stage)

    async def update_use(self) -> None:
        """Read the use of the newest tasks, if the part is open; ended tasks are read once."""
        if not self._more.value:
            return
        tasks = [task for stage in self._stages for task in stage.tasks]
        self._problem.text = await read_use(self._session, tasks, self._known)
        rows = [
            (
                stage.name,
                f"{used.cpu_s:.2f}",
                f"{used.peak_bytes / 1e6:.1f}",
                f"{used.given_bytes / 1e6:.2f}",
                f"{used.result_bytes / 1e6:.2f}",
                f"{used.known} of {len(stage.tasks)}",
            )
            for stage in self._stages
            for used in [sums_of(stage.tasks, self._known)]
        ]
        fill(self._use, _USE_COLUMNS, rows)


class _PartLines:
    """The lines about one stage."""

    def __init__(self) -> None:
        self._words: Final = ui.label()
        self._bar: Final = ui.linear_progress(0, show_value=False).props('aria-label="progress"')
        self._list: Final = ui.column().classes("gap-0")
        self._listed: list[tuple[str, str]] = []

    def show(self, stage: JobPart) -> None:
        """Show the present state, with new links only if they have changed."""
        self._words.text = stage.text
        self._bar.value = round(stage.done, 3)
        listed = [*stage.slow[:_LISTED_MAX], *stage.failed[:_LISTED_MAX]]
        if listed != self._listed:
            self._listed = listed
            self._list.clear()
            with self._list:
                for mark, text in listed:
                    ui.link(text, f"/tasks/{mark}").classes("text-caption")
