"""The page of objects: a treemap of files by group and size, and the details of an object."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.client.sync.node import Node
from dios.errors import DiosError, NotPermittedError
from dios.web.dashboard import charts
from dios.web.dashboard.layout import heading, table
from dios.web.observation.cluster_view import StoredFile, read_files
from dios.web.observation.session import ClusterSession

_SHOWN_MAX: Final = 2_000


async def show(session: ClusterSession) -> None:
    """Make the content; files are read when the page is opened and when the user asks again."""
    ui.label("Files of the groups in your keyring. Objects without a file are not listed.")
    body = ui.column().classes("w-full")

    async def load() -> None:
        body.clear()
        try:
            files, problems = await session.call(read_files)
            waiting = await session.call(_waiting)
        except (DiosError, OSError) as error:
            files, problems, waiting = [], [f"The node does not answer: {error}"], []
        with body:
            for problem in problems:
                ui.label(problem).classes("text-warning")
            _files(files)
            heading("Calls that wait")
            if waiting:
                table(("task", "call", "objects", "progress"), waiting, label="calls that wait")
            else:
                ui.label("None, or they belong to other users.")

    ui.button("read again", on_click=load).props("flat")
    await load()


def _files(files: list[StoredFile]) -> None:
    if not files:
        ui.label("There are no files yet: dios put FILE --group GROUP stores one.")
        return
    groups: dict[str, list[tuple[str, int]]] = {}
    for file in files[:_SHOWN_MAX]:
        groups.setdefault(file.group, []).append((file.path, file.size))
    ui.echart(charts.treemap(groups)).classes("w-full h-96")
    rows = [(file.group, file.path, file.size, file.fingerprint) for file in files]
    table(("group", "file", "bytes", "object"), rows, label="files")


def _waiting(node: Node) -> list[tuple[object, ...]]:
    try:
        rows = node.read_table("waiting")
    except NotPermittedError:
        return []
    return [(row["task"], plain(str(row["call"])), row["watched"], row["progress"]) for row in rows[:1_000]]
