"""The pages of objects: files as a treemap, objects in use, waiting calls, and the replicas of one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nicegui import ui

from dios.client.plain_text import plain
from dios.client.sync.node import Node
from dios.errors import DiosError
from dios.web.dashboard import charts
from dios.web.dashboard.layout import GROUP_SECRECY, SECRECY, fill, heading, link_column, note, poll, table
from dios.web.observation.objects import (
    FOR_OWNER_ONLY,
    LiveObject,
    Replica,
    StoredFile,
    Wait,
    broken_promise,
    read_files,
    read_objects,
    read_replicas,
    read_waits,
)
from dios.web.observation.session import ClusterSession

_SHOWN_MAX: Final = 2_000
_LIVE_S: Final = 2.0
_LIVE_COLUMNS: Final = (
    "object", "file", "type", "persistence", "bytes", "reads", "writes", "open reads", "open writes",
    "references", "waiting calls", SECRECY,
)  # fmt: skip
_WAIT_COLUMNS: Final = ("task", "call", "object", "file", "waits for", "because")
_REPLICA_COLUMNS: Final = (
    "node", "rack", "persistence", "bytes", "reads", "writes", "open reads", "open writes", SECRECY,
)  # fmt: skip


async def show(session: ClusterSession, _: str = "") -> None:
    """Make the content; files are read when the page is opened and when the user asks again."""
    ui.label("Files of the groups in your keyring. Objects without a file are not listed here.")
    body = ui.column().classes("w-full")
    paths: dict[str, str] = {}

    async def load() -> None:
        body.clear()
        try:
            files, problems = await session.call(read_files)
        except (DiosError, OSError) as error:
            files, problems = [], [f"The node does not answer: {plain(str(error))}"]
        paths.clear()
        paths.update({file.fingerprint: f"{file.group}/{file.path}" for file in files})
        with body:
            for problem in problems:
                note(problem)
            _files(files)

    ui.button("read again", on_click=load).props("flat no-caps")
    await load()
    _live(session, paths)


def _files(files: list[StoredFile]) -> None:
    if not files:
        ui.label("There are no files yet: dios put FILE --group GROUP stores one.")
        return
    groups: dict[str, list[tuple[str, int]]] = {}
    for file in files[:_SHOWN_MAX]:
        groups.setdefault(file.group, []).append((file.path, file.size))
    ui.echart(charts.treemap(groups)).classes("w-full h-96").props('role="img" aria-label="files by size"')
    rows = [(file.group, file.path, file.size, file.fingerprint, file.group_secrecy) for file in files]
    columns = ("group", "file", "bytes", "object", GROUP_SECRECY)
    link_column(table(columns, rows, label="files"), "object", "/objects/")


# -- objects in use, and waiting calls --------------------------------------------------------------
def _live(session: ClusterSession, paths: Mapping[str, str]) -> None:
    heading("Objects in use at the asked node")
    ui.label(
        "Their versions are the numbers of committed reads and writes. Objects of other nodes are not here."
    )
    why = note("")
    objects = table(_LIVE_COLUMNS, (), label="objects in use")
    link_column(objects, "object", "/objects/")
    heading("Waiting calls, and the tasks that can end the wait")
    none = ui.label("No call waits.")
    waiting = table(_WAIT_COLUMNS, (), label="calls that wait")
    for column in ("task", "waits for"):
        link_column(waiting, column, "/capabilities?of=")
    link_column(waiting, "object", "/objects/")

    async def update() -> None:
        try:
            live, problem, waits = await session.call(_read)
        except (DiosError, OSError) as error:
            live, problem, waits = [], f"The node does not answer: {plain(str(error))}", []
        why.text = problem
        none.set_visibility(not waits and problem != FOR_OWNER_ONLY)
        fill(objects, _LIVE_COLUMNS, [_live_row(entry, paths) for entry in live])
        fill(waiting, _WAIT_COLUMNS, [row for wait in waits for row in _wait_rows(wait, paths)])

    poll(update, _LIVE_S)


def _read(node: Node) -> tuple[list[LiveObject], str, list[Wait]]:
    live, problem = read_objects(node)
    return live, problem, read_waits(node)


def _live_row(entry: LiveObject, paths: Mapping[str, str]) -> tuple[object, ...]:
    return (entry.fingerprint, paths.get(entry.fingerprint, ""), *entry[1:])


def _wait_rows(wait: Wait, paths: Mapping[str, str]) -> list[tuple[object, ...]]:
    path = paths.get(wait.object, "")
    return [(wait.task, wait.call, wait.object, path, mark, wait.reason) for mark in (wait.awaited or ("",))]


# -- one object -------------------------------------------------------------------------------------
async def show_one(session: ClusterSession, mark: str) -> None:
    """Make the page of the object with this fingerprint."""
    ui.link("all objects", "/objects")
    heading(f"Object {plain(mark)}")
    ui.link("its references and its story", f"/capabilities?of={mark}")
    try:
        file, replicas, problems = await session.call(lambda node: _read_one(node, mark))
    except (DiosError, OSError) as error:
        file, replicas, problems = None, [], [f"The node does not answer: {plain(str(error))}"]
    for problem in problems:
        note(problem)
    if file is not None:
        ui.label(f"File {file.path} of group {file.group}")
    if replicas:
        heading("Replicas")
        ui.label(
            "Each is an object of its own with its own versions: the numbers of committed reads and writes. "
            "The first is the nearest."
        )
        table(_REPLICA_COLUMNS, replicas, label="replicas")
    await _waits_for(session, mark)


def _read_one(node: Node, mark: str) -> tuple[StoredFile | None, list[Replica], list[str]]:
    files, problems = read_files(node)
    file = next((candidate for candidate in files if candidate.fingerprint == mark), None)
    if file is None:
        return (
            None,
            [],
            [*problems, "It is no file of your groups, so that its replicas cannot be looked up."],
        )
    replicas, problem = read_replicas(node, file.name)
    return file, replicas, [text for text in (problem, broken_promise(node, mark)) if text]


async def _waits_for(session: ClusterSession, mark: str) -> None:
    try:
        live, problem, waits = await session.call(_read)
    except (DiosError, OSError):
        return  # the page says so already
    heading("At the asked node")
    if problem:
        note(problem)
    here = [entry for entry in live if entry.fingerprint == mark]
    if here:
        table(_LIVE_COLUMNS, [_live_row(entry, {}) for entry in here], label="the object in use")
    elif not problem:
        ui.label("It is not in use there.")
    rows = [row for wait in waits if wait.object == mark for row in _wait_rows(wait, {})]
    if rows:
        heading("Calls that wait for it")
        table(_WAIT_COLUMNS, rows, label="calls that wait for it")
