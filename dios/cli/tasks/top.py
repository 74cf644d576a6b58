"""The command ``dios top``: a live overview of the cluster in a terminal, or a table of it."""

from __future__ import annotations

import os
import sys
import time
from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import option
from dios.cli.common.output import say, table, write_json, write_line
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.common.spellings import OLD_COLUMNS
from dios.cli.tasks.task_row import TaskRow
from dios.client.keyring import Keyring
from dios.client.ops.cluster import Member
from dios.client.sync.node import Node, connect
from dios.errors import InvalidError
from dios.web.observation.cluster_view import ClusterView, number, read_view
from dios.web.terminal.overview import (
    NODE_COLUMNS,
    TASK_COLUMNS,
    chosen_tasks,
    headline,
    node_cells,
    task_cells,
)

app: Final = CommandApplication()


class NodeOverviewRow(Row):
    """A node, with what is set aside there; null if no scheduler answers."""

    node: str
    state: str
    draining: bool
    fitness: str
    tasks: int
    cpus: float | None
    cpus_set_aside: float | None
    memory_bytes: float | None
    memory_set_aside: float | None


class OverviewRow(Row):
    """The cluster at one moment; ``problems`` are sentences about what could not be read."""

    nodes: list[NodeOverviewRow]
    tasks: list[TaskRow]
    problems: list[str]


@app.command(
    examples="dios top\ndios top --sort node\ndios top --once\ndios top --all --json | jq '.tasks[].label'",
    json=OverviewRow,
)
def top(
    *,
    once: bool = option("--once", "Print a table and end."),
    everything: bool = option("-a --all", "Also show ended tasks."),
    sort: str = option("--sort COLUMN", f"One of {', '.join(TASK_COLUMNS).lower()}.", default="seconds"),
    common: CommonOptions,
) -> None:
    """Show nodes and your tasks, as you may see them, and control the tasks with the keys of htop.

    \b
    F1 ?    help          F9 k       kill, after a question
    F3 /    search        p r        pause, resume
    F4 \\    filter        Space U    tag, remove all tags
    F5 t    tree          u          tasks of one user
    F6 >    sort          a          ended tasks, too
    T N     by time, task Z          hold the display
    I       invert        F10 q      quit

    It asks the node at most twice a second. With --once or --json, without a terminal, and on a terminal that
    cannot move its cursor (TERM=dumb), it prints the same data once.
    """  # noqa: D301 - \b is typer's mark for lines to keep, and needs no raw string
    column = OLD_COLUMNS.get(sort.lower(), sort).upper()
    if column not in TASK_COLUMNS:
        raise InvalidError(
            f"cannot sort by {sort!r}: there is no such column. Choose one of "
            f"{', '.join(TASK_COLUMNS).lower()}."
        )
    with opened(common.node) as place:
        if once or common.as_json or not _can_draw():
            _print(read_view(place.node), column, everything=everything, as_json=common.as_json)
            return
    _run(common.node, column, everything=everything)


def _can_draw() -> bool:
    """Return True if input and output are a terminal on which a screen can be drawn."""
    if os.environ.get("TERM", "") in {"", "dumb", "unknown"}:
        return False
    return sys.stdout.isatty() and sys.stdin.isatty()


def _print(view: ClusterView, column: str, *, everything: bool, as_json: bool) -> None:
    now = time.time_ns()
    tasks = chosen_tasks(view.tasks, now, column, reverse=False, ended=everything)
    if as_json:
        nodes = [
            NodeOverviewRow.of(member, node=member.name, state=member.status, **_reserved(view, member))
            for member in view.nodes
        ]
        write_json(OverviewRow(nodes, [TaskRow.of_task(task) for task in tasks], list(view.problems)))
        return
    for problem in view.problems:
        say(problem)
    write_line(headline(view))
    if view.nodes:
        write_line("")
        table(NODE_COLUMNS, node_cells(view), right=("TASKS",))
    if tasks:
        write_line("")
        table(list(TASK_COLUMNS), (task_cells(task, now) for task in tasks), right=("SECONDS", "DONE"))


def _reserved(view: ClusterView, member: Member) -> dict[str, float | None]:
    row = view.rows_of_nodes.get(member.name)
    names = ("cpus", "cpus_set_aside", "memory_bytes", "memory_set_aside")
    return {name: None if row is None else number(row.get(name)) for name in names}


def _run(node: str | None, column: str, *, everything: bool) -> None:
    with needing_extra("tui", "live overviews"):
        from dios.web.terminal.application import TopApplication  # noqa: PLC0415 - needs an extra
    from dios.web.observation.session import ClusterSession  # noqa: PLC0415 - only for this

    def session() -> Node:
        return connect(node, groups=tuple(Keyring.load().presented())[:1], label="top", start=False)

    shared = ClusterSession(session)
    shared.watcher.add_viewer()
    try:
        TopApplication(lambda: shared.watcher.view, shared.act_on_task, column=column, ended=everything).run()
    finally:
        shared.close()
