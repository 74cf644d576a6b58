"""The page of capabilities: the rights of tasks to objects, and the story of one object in the audit log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.errors import DiosError
from dios.web.dashboard import charts
from dios.web.dashboard.layout import (
    SECRECY,
    attempt,
    button_column,
    confirmed,
    heading,
    link_column,
    note,
    table,
)
from dios.web.observation.references import HeldReference, read_references, read_story, retire
from dios.web.observation.session import ClusterSession

_EDGES_MAX: Final = 400
_TAGS_MAX: Final = 3
"""Tags of a secrecy label next to a vertex of the picture."""
_LOGGED_S: Final = 0.3
"""The audit log has the record of a retirement after a tenth of a second."""
_COLUMNS: Final = (
    "task", "object", "rights", "from", "valid until", "open requests", "passed on", SECRECY,
)  # fmt: skip


async def show(session: ClusterSession, mark: str) -> None:
    """Make the content for the task or object with the fingerprint ``mark``, or for all tasks."""
    chosen = ui.input("Fingerprint of a task or an object", value=mark).classes("w-96 max-w-full")
    chosen.on("keydown.enter", lambda: ui.navigate.to(f"/capabilities?of={(chosen.value or '').strip()}"))
    ui.label(
        "References at the asked node. Objects and tasks appear by their fingerprints, never by names. "
        "References to objects of another node are complete on that node only: dios ui --node NAME."
    )
    body = ui.column().classes("w-full items-stretch")
    await _load(session, mark, body)


async def _load(session: ClusterSession, mark: str, body: ui.column) -> None:
    """Read the references again, and show them in the place of those before."""
    try:
        rows, problem = await session.call(read_references)
    except (DiosError, OSError) as error:
        rows, problem = [], f"The node does not answer: {plain(str(error))}"
    rows = [row for row in rows if not mark or mark in {row.task, row.object, row.giver}]
    tasks = session.watcher.view.tasks
    labels = {task.fingerprint: plain(task.label) for task in tasks if task.label}
    read = {task.fingerprint: plain(" ".join(task.secrecy)) for task in tasks if task.secrecy}
    # The node's table has no labels of tasks, because they change.
    rows = [row._replace(secrecy=read.get(row.object, row.secrecy)) for row in rows]
    body.clear()
    with body:
        if problem:
            note(problem)
        _graph(rows, labels, read)
        _table(session, mark, body, rows)
        if mark:
            _retire_all(session, mark, body, [row for row in rows if row.object == mark])
            await _story(session, mark, labels)


# -- the references ---------------------------------------------------------------------------------
def _graph(rows: Sequence[HeldReference], labels: Mapping[str, str], read: Mapping[str, str]) -> None:
    shown = rows[:_EDGES_MAX]
    if not shown:
        return
    if len(rows) > len(shown):
        ui.label(f"The picture has {len(shown)} of {len(rows)} references.")
    nodes, edges = graph_of(shown, labels, read)
    ui.echart(charts.graph(nodes, edges)).classes("w-full h-96").props('role="img" aria-label="references"')


def graph_of(
    rows: Sequence[HeldReference], labels: Mapping[str, str], read: Mapping[str, str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """Return the vertices of the graph with their categories, and its edges with their texts.

    ``labels`` are those of tasks, and ``read`` the tags of what they have read, by fingerprint. Tasks and
    objects with a secrecy label are categories of their own, and have the first tags in their names.
    """
    tags_by_mark = {row.object: row.secrecy for row in rows if row.secrecy} | dict(read)
    secrecy = {mark: tags.split() for mark, tags in tags_by_mark.items()}

    def named(mark: str) -> str:
        name = f"{labels[mark]} {mark[:6]}" if mark in labels else mark
        tags = secrecy.get(mark, ())
        more = f" +{len(tags) - _TAGS_MAX}" if len(tags) > _TAGS_MAX else ""
        return f"{name} ({', '.join(tags[:_TAGS_MAX])}{more})" if tags else name

    tasks = {row.task for row in rows} | {row.giver for row in rows if row.giver}
    objects = {row.object for row in rows} - tasks
    nodes = {
        named(mark): f"{kind} with a label" if mark in secrecy else kind
        for kind, marks in (("task", tasks), ("object", objects))
        for mark in sorted(marks, key=lambda vertex: (vertex in secrecy, named(vertex)))
    }
    edges = [(named(row.task), named(row.object), row.rights) for row in rows]
    edges += [(named(row.giver), named(row.task), "gave a reference") for row in rows if row.giver]
    return list(nodes.items()), edges


def until(until_ns: int, now_ns: int) -> str:
    """Return when a reference ends, as a time and the seconds until then."""
    if not until_ns:
        return "its holder ends"
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(until_ns / 1e9))
    return f"{moment} (in {max(0, until_ns - now_ns) / 1e9:.0f} s)"


def _table(session: ClusterSession, mark: str, body: ui.column, rows: Sequence[HeldReference]) -> None:
    now = time.time_ns()
    shown = table(
        (*_COLUMNS, "retire"),
        [
            (
                row.task,
                row.object,
                row.rights,
                f"delegated by {row.giver}" if row.giver else row.provenance,
                until(row.until_ns, now),
                row.requests,
                row.passed_on,
                row.secrecy,
                "retire" if row.is_delegated else "",
            )
            for row in rows
        ],
        label="references",
    )
    link_column(shown, "task", "/capabilities?of=")
    link_column(shown, "object", "/capabilities?of=")
    button_column(shown, "retire", lambda place: _retire(session, mark, body, rows[place]))


def _retire_all(session: ClusterSession, mark: str, body: ui.column, rows: Sequence[HeldReference]) -> None:
    if any(row.is_delegated for row in rows):
        ui.button(
            "retire all delegated references to it", on_click=partial(_retire, session, mark, body, None)
        ).props("flat color=negative no-caps")


async def _retire(session: ClusterSession, mark: str, body: ui.column, row: HeldReference | None) -> None:
    """Retire one reference, or without a row all to the object of this page, after a question."""
    target, holder = (mark, "") if row is None else (row.object, row.task)
    whose = f"of task {holder}" if holder else "of all tasks"
    question = (
        f"Take back the delegated references {whose} to {plain(target)}, and those that were delegated from "
        "them? Programs that use them get errors. Bytes that they have read stay with them."
    )
    if await confirmed(question):
        tasks = session.watcher.view.tasks
        await attempt(
            lambda: session.call(lambda node: retire(node, tasks, target, holder)), "references taken back"
        )
        await asyncio.sleep(_LOGGED_S)
        await _load(session, mark, body)


# -- the story --------------------------------------------------------------------------------------
async def _story(session: ClusterSession, mark: str, labels: Mapping[str, str]) -> None:
    heading("Its story in the audit log of the asked node")
    try:
        lines, problem = await session.call(lambda node: read_story(Path(node.info().node), mark, labels))
    except (DiosError, OSError) as error:
        lines, problem = [], f"The node does not answer: {plain(str(error))}"
    if problem:
        note(problem)
    table(
        ("time", "event", "user", "record"),
        [
            (
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time_ns / 1e9)),
                line.text + (" (refused)" if line.refused else ""),
                line.user,
                line.record,
            )
            for line in lines
        ],
        label="story",
    )
