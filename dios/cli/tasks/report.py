"""The command ``dios report``: one page about a job as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.json_rows import TaskRow
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    progress,
    reporting,
    say,
    size_text,
    write_file,
    write_json,
)
from dios.cli.tasks.control import described
from dios.errors import ExistsError
from dios.web.report.collection import collect
from dios.web.report.page import page_of

app: Final = CommandApplication()


@app.callback()
def _group() -> None:
    """Hold the command by its name."""


class ReportRow(TypedDict):
    """A written page, with the first task of the job and all its tasks."""

    file: str
    job: str
    tasks: list[TaskRow]


@app.command(epilog="\b\nExamples:\n  dios report count.py\n  dios report 3f9a -o monday.html --force")
def report(
    job: Annotated[
        str,
        typer.Argument(metavar="TASK", help="The first task: the beginning of a fingerprint, or a title."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a page about a job: a task and all tasks that it started, and that these started.

    It has a timeline, stages, nodes, cost, shares, versions, and an explanation: what took longest, and why
    tasks wait, are where they are, or ended badly. The page is one file of HTML without scripts, which needs
    no network and can be sent to others: it has labels, reasons and the names of nodes and users. Make it
    soon after the end, before the nodes forget the tasks.
    """
    with reporting("dios report", as_json=as_json):
        if output.exists() and not force:
            raise ExistsError(f"cannot write {output}: it exists. Add --force, or choose another -o FILE.")
        with opened(node) as place, progress("reading the job") as show:
            collected = collect(place.node, job, show)
        page = page_of(collected)
        write_file(output, page, is_new=not force)
        if as_json:
            row: ReportRow = {
                "file": str(output),
                "job": collected.mark,
                "tasks": [described(task) for task in collected.tasks],
            }
            write_json(row)
            return
        say(f"{output}: tasks: {len(collected.tasks)}, {size_text(output.stat().st_size)}")
