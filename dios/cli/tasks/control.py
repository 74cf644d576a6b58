"""``dios logs``, ``pause``, ``resume`` and ``kill``: control tasks.

``dios.cli.tasks.run`` starts them, and ``dios.cli.tasks.listing`` lists them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import sys
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument, option
from dios.cli.common.output import FAILED, BytesOutput, bytes_output, say, size_text
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.tasks.endings import explain
from dios.cli.tasks.task_row import TaskRow
from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.client.sync.node import Console, Task
from dios.errors import (
    EndOfStreamError,
    InvalidError,
    NoSuchTaskError,
    UnreachableError,
)
from dios.lib.task_output import newest_output

app: Final = CommandApplication()

TASK_ARGUMENT: Final[str] = argument("TASK", "The beginning of a fingerprint, a title, or a name.")


def pour(console: Console, output: BytesOutput) -> None:
    """Copy a console to a stream until the console is closed."""
    poured = 0
    with contextlib.suppress(EndOfStreamError):
        while True:
            data = console.receive()
            output.write(data)
            output.flush()
            poured += len(data)
    _say_lost(console, poured)


def _say_lost(console: Console, seen: int) -> None:
    if console.size > seen:
        say(f"{size_text(console.size - seen)} of its output are missing: the node did not keep them")


class LoggedTaskRow(TaskRow, kw_only=True):
    """A task, and its output as text."""

    console: str


class StoredConsoleRow(Row):
    """The stored output of a task that its node has forgotten."""

    task: str
    console: str


class PausedRow(Row):
    """A task to suspend: ``paused`` is False if it had ended."""

    fingerprint: str
    label: str
    paused: bool


class ResumedRow(Row):
    """A task to continue: ``resumed`` is False if it had ended or was not paused."""

    fingerprint: str
    label: str
    resumed: bool


class KilledRow(Row):
    """A task to end: ``killed`` is False if it had ended already."""

    fingerprint: str
    label: str
    killed: bool


@app.command(
    examples="dios logs job.py\ndios logs 3f9a --follow\n"
    "dios logs sweep.7               (an element of an array)",
    json=(LoggedTaskRow, StoredConsoleRow),
)
def logs(
    task: str = TASK_ARGUMENT,
    *,
    follow: bool = option("-f --follow", "Continue until the task ends."),
    common: CommonOptions,
) -> None:
    """Print the output of a task, as far as the node keeps it (the last 256 KiB).

    On a terminal, control characters are shown escaped; a file or pipe gets the bytes as they are.

    A task that prints waits up to a second for its readers. The last 16 KiB of an ended task's output are
    stored on its node and on the node of the task or user that started it. When the node has forgotten the
    task, give its name to read them; `dios run --detach --json` shows the name.
    """
    with opened(common.node) as place:
        try:
            handle, status = place.task(task)
            console = handle.console()
        except (NoSuchTaskError, InvalidError, UnreachableError):
            kept = place.log_of(task) or _output_of_job(place, task)
            if kept is None:
                raise
            row = StoredConsoleRow(task, kept.decode(errors="replace"))
            if not common.as_json:
                _print_bytes(kept)
            common.print_row(row)
            return
        if follow and not common.as_json:
            pour(console, bytes_output(sys.stdout))
            return
        data = newest_output(console)
        if not common.as_json:
            _print_bytes(data)
            _say_lost(console, len(data))
        common.print_row(
            LoggedTaskRow.of_task(status, console=data.decode(errors="replace")),
            *(explain(status)[:1] if status.ended else ()),
        )


def _output_of_job(place: CommandContext, job: str) -> bytes | None:
    """Return the stored output of a kept job that has ended, or of an element; None if there is none."""
    # Imported late, because most tasks are no kept jobs.
    from dios.lib.supervised.kept_jobs import KeptJobs  # noqa: PLC0415 - see above

    with contextlib.suppress(InvalidError, UnreachableError):
        return KeptJobs(place.node).output(job) or None
    return None


def _print_bytes(data: bytes) -> None:
    output = bytes_output(sys.stdout)
    output.write(data)
    output.flush()


@app.command(examples="dios pause job.py\ndios resume job.py", json=PausedRow)
def pause(task: str = TASK_ARGUMENT, *, common: CommonOptions) -> None:
    """Suspend a task: it keeps its state and does nothing until it is resumed."""
    with opened(common.node) as place:
        handle, status = place.task(task)
        done = handle.pause()
        common.print_row(
            PausedRow(status.fingerprint, status.label, done),
            _outcome(status, "paused" if done else "has ended"),
        )
        if not done:
            raise typer.Exit(FAILED)


@app.command(examples="dios resume job.py", json=ResumedRow)
def resume(task: str = TASK_ARGUMENT, *, common: CommonOptions) -> None:
    """Continue a paused task."""
    with opened(common.node) as place:
        handle, status = place.task(task)
        done = handle.resume()
        otherwise = "has ended" if status.ended else "was not paused"
        common.print_row(
            ResumedRow(status.fingerprint, status.label, done),
            _outcome(status, "resumed" if done else otherwise),
        )
        if not done:
            raise typer.Exit(FAILED)


@app.command(
    examples="dios kill job.py\ndios kill 3f9a 77c0\ndios kill --title 'train-*'\n"
    "dios kill --group analytics",
    json=[KilledRow],
)
def kill(
    tasks: list[str] | None = argument("[TASK]...", "The beginnings of fingerprints, titles, or names."),
    *,
    title: str = option("--title TITLE", "Running tasks with this title; * is any text."),
    group: str = option("-g --group ALIAS", "Running tasks that are members of it."),
    common: CommonOptions,
) -> None:
    """End tasks at once. Their committed data stay.

    With --title and --group, the tasks to which both apply. All names are looked up before a task is ended.
    """
    with opened(common.node) as place:
        if not tasks and not title and not group:
            raise InvalidError("give the tasks to end, or choose them with --title or --group")
        chosen = {status.fingerprint: (handle, status) for handle, status in map(place.task, tasks or ())}
        if title or group:
            chosen |= _chosen(place, title, group)
        ended = [(status, _end(handle, status)) for handle, status in chosen.values()]
        common.print_row(
            [KilledRow(status.fingerprint, status.label, done) for status, done in ended],
            *(_outcome(status, "killed" if done else "had ended already") for status, done in ended),
            *(() if ended else ("no running task was chosen",)),
        )


def _end(handle: Task, status: Status) -> bool:
    """End a task; return False if it has ended, which is no failure."""
    if status.ended:
        return False
    handle.kill()
    return True


def _chosen(place: CommandContext, title: str, group: str) -> dict[str, tuple[Task, Status]]:
    """Return the running tasks with a title, and in a group."""
    mark = place.group(group).fingerprint if group else ""
    chosen: dict[str, tuple[Task, Status]] = {}
    for row in place.node.tasks():
        if row.ended or row.name is None or (title and not fnmatch.fnmatchcase(row.label, title)):
            continue
        handle = place.node.find(row.name)
        if not isinstance(handle, Task) or (mark and mark not in place.node.describe(handle).groups):
            continue
        chosen[row.fingerprint] = (handle, row)
    return chosen


def _outcome(status: Status, outcome: str) -> str:
    return f"task {plain(status.label) or 'without title'} ({status.fingerprint}) {outcome}"
