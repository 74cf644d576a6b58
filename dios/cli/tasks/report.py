"""The command ``dios report``: one page about a job as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.options import argument, option
from dios.cli.common.output import progress, size_text, write_file
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.tasks.task_row import TaskRow
from dios.errors import ExistsError
from dios.web.report.collection import collect
from dios.web.report.page import page_of

app: Final = CommandApplication()


class ReportRow(Row):
    """A written page, with the first task of the job and all its tasks."""

    file: str
    job: str
    tasks: list[TaskRow]


@app.command(examples="dios report count.py\ndios report 3f9a -o monday.html --force", json=ReportRow)
def report(
    job: str = argument("TASK", "The first task: the beginning of a fingerprint, or a title."),
    output: Path = option("-o --output FILE", "The page to write.", default=Path("report.html")),
    *,
    force: bool = option("--force", "Write over a file that exists."),
    common: CommonOptions,
) -> None:
    """Write a page about a job: a task and all tasks that it started, and that these started.

    It has a timeline, stages, nodes, cost, shares, versions, and an explanation: what took longest, and why
    tasks wait, are where they are, or ended badly. The page is one file of HTML without scripts, which needs
    no network and can be sent to others: it has labels, reasons and the names of nodes and users. Make it
    soon after the end, before the nodes forget the tasks.
    """
    if output.exists() and not force:
        raise ExistsError(f"cannot write {output}: it exists. Add --force, or choose another -o FILE.")
    with opened(common.node) as place, progress("reading the job") as show:
        collected = collect(place.node, job, show)
    page = page_of(collected)
    write_file(output, page, is_new=not force)
    tasks = [TaskRow.of_task(task) for task in collected.tasks]
    common.print_row(
        ReportRow(str(output), collected.mark, tasks),
        f"{output}: tasks: {len(tasks)}, {size_text(output.stat().st_size)}",
    )
