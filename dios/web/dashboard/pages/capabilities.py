"""The page of capabilities: the rights of tasks to objects, and the story of one object in the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.errors import DiosError
from dios.host.audit.log import segments
from dios.host.audit.reader import AuditReader
from dios.web.dashboard import charts
from dios.web.dashboard.layout import heading, table
from dios.web.observation.cluster_view import Row, read_references
from dios.web.observation.session import ClusterSession
from dios.wire.types import Permission

_EDGES_MAX: Final = 400
_STORY_MAX: Final = 500


async def show(session: ClusterSession, mark: str) -> None:
    """Make the content for the task or object with the fingerprint ``mark``, or for all tasks."""
    chosen = ui.input("Fingerprint of a task or an object", value=mark).classes("w-96")
    chosen.on("keydown.enter", lambda: ui.navigate.to(f"/capabilities?of={(chosen.value or '').strip()}"))
    ui.label("References at this node. Objects and tasks appear by their fingerprints, never by names.")
    try:
        rows, problem = await session.call(read_references)
    except (DiosError, OSError) as error:
        rows, problem = [], f"The node does not answer: {error}"
    if problem:
        ui.label(problem).classes("text-warning")
    rows = [row for row in rows if not mark or mark in {row.get("task"), row.get("object")}]
    labels = {task.fingerprint: plain(task.label) for task in session.watcher.view.tasks if task.label}
    _graph(rows, labels)
    table(
        ("task", "object", "rights", "from", "until", "open buffers", "passed on"),
        [
            (
                row.get("task"),
                row.get("object"),
                _rights(row.get("permissions")),
                row.get("provenance"),
                row.get("expires_ns") or "",
                row.get("buffers"),
                row.get("descendants"),
            )
            for row in rows
        ],
        label="references",
    )
    if mark:
        heading("Its story in the audit log")
        story, why = await session.call(lambda node: _story(Path(node.info().node), mark))
        if why:
            ui.label(why).classes("text-warning")
        table(("record", "action", "outcome", "user", "task", "object", "detail"), story, label="audit log")


def _graph(rows: list[Row], labels: dict[str, str]) -> None:
    shown = rows[:_EDGES_MAX]
    if not shown:
        return
    if len(rows) > len(shown):
        ui.label(f"The picture has {len(shown)} of {len(rows)} references.")

    def named(mark: object) -> str:
        text = str(mark)
        return f"{labels[text]} {text[:6]}" if text in labels else text

    tasks = {named(row.get("task")) for row in shown}
    objects = {named(row.get("object")) for row in shown} - tasks
    nodes = [(name, "task") for name in sorted(tasks)] + [(name, "object") for name in sorted(objects)]
    edges = [
        (named(row.get("task")), named(row.get("object")), _rights(row.get("permissions"))) for row in shown
    ]
    ui.echart(charts.graph(nodes, edges)).classes("w-full h-96")


def _rights(value: object) -> str:
    held = Permission(value) if isinstance(value, int) else Permission(0)
    return ", ".join(one.name.lower() for one in Permission if one.name and one in held)


def _story(data: Path, mark: str) -> tuple[list[tuple[object, ...]], str]:
    """Return the newest records about a fingerprint, and the reason why there are none."""
    folder = data / "audit"
    try:
        if not segments(folder):
            return [], "The audit log of the node cannot be read from here."
        found = [
            entry for entry in AuditReader(folder).poll() if mark in {entry.record.task, entry.record.subject}
        ][-_STORY_MAX:]
    except (DiosError, OSError) as error:
        return [], f"The audit log cannot be read: {error}"
    return [
        (
            entry.index,
            plain(entry.record.action),
            plain(entry.record.outcome),
            plain(entry.record.principal),
            entry.record.task,
            entry.record.subject,
            plain(entry.record.detail),
        )
        for entry in found
    ], ""
