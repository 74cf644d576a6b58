"""``dios ps``, ``logs``, ``pause``, ``resume`` and ``kill``: what tasks there are, and what becomes of them.

Not for: starting them (``dios.cli.tasks.run``), or how an end is worded (``dios.cli.tasks.endings``).
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Annotated, BinaryIO, Final

import typer

from dios.cli.common.context import opened
from dios.cli.common.output import (
    FAILED,
    JsonOption,
    NodeOption,
    plain,
    reporting,
    say,
    size_text,
    span_text,
    table,
    time_text,
    write_json,
)
from dios.cli.nodes.members import silent
from dios.cli.tasks.endings import cause_text
from dios.client.ops.status import Status
from dios.client.sync.node import Console
from dios.errors import (
    EndOfStreamError,
    InvalidError,
    NoSuchTaskError,
    TimeLimitError,
    UnreachableError,
)

app: Final = typer.Typer(rich_markup_mode=None)

TaskArgument = Annotated[
    str, typer.Argument(metavar="TASK", help="A fingerprint's beginning, a label, or a name.")
]


def pour(console: Console, output: BinaryIO) -> None:
    """Everything from a console to a stream of ours, until it is closed."""
    poured = 0
    with contextlib.suppress(EndOfStreamError):
        while True:
            data = console.receive()
            output.write(data)
            output.flush()
            poured += len(data)
    _tell_lost(console, poured)


def _tell_lost(console: Console, seen: int) -> None:
    if console.size > seen:
        say(f"{size_text(console.size - seen)} of its output are missing: the node did not keep them")


def described(task: Status) -> dict[str, object]:
    """A task for programs."""
    return {
        "fingerprint": task.fingerprint,
        "label": task.label,
        "state": task.state.name.lower(),
        "brand": task.brand.name.lower(),
        "principal": task.principal,
        "pid": task.pid,
        "started": task.started_ns,
        "ended": task.ended_ns,
        "cause": task.cause.name.lower(),
        "exit_status": task.exit_status if task.ended else None,
        "signal": task.signal,
        "detail": task.detail,
        "parent": task.parent,
        "node": task.node,
    }


@app.command(epilog="\b\nExamples:\n  dios ps\n  dios ps --here\n  dios ps --all --json")
def ps(
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Those that ended, too.")] = False,
    here: Annotated[bool, typer.Option("--here", help="Only those on the node that is asked.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List your tasks, on all nodes; in a cluster with the node that each runs on."""
    with reporting("dios ps", as_json=as_json), opened(node) as place:
        found = place.node.tasks(local_only=here)
        known = [task for task in found if everything or not task.ended]
        if as_json:
            write_json([described(task) for task in known])
        elif known:
            # A line of a terminal has room for one of the two; --json has both.
            where = "NODE" if any(task.node for task in known) else "STARTED"
            head = ("TASK", "LABEL", "STATE", "BRAND", "PID", where, "FOR")
            rows = [
                _row(task, task.node if where == "NODE" else time_text(task.started_ns)) for task in known
            ]
            table(head, rows, right=("PID", "FOR"))
        else:
            say("no task runs" + ("" if everything else "; `dios ps --all` shows those that ended"))
        if found.incomplete:
            who = silent(place.node.nodes())
            say(f"{who} did not answer; tasks that run there are not shown: `dios node ls`")


def _row(task: Status, where: str) -> tuple[str, ...]:
    until = task.ended_ns or time.time_ns()
    return (
        task.fingerprint,
        task.label,
        cause_text(task),
        task.brand.name.lower(),
        str(task.pid) if task.pid else "-",
        where,
        span_text(until - task.started_ns),
    )


@app.command(epilog="\b\nExamples:\n  dios logs job.py\n  dios logs 3f9a --follow")
def logs(
    task: TaskArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task ends.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a task wrote, from the beginning of what the node keeps (the last 256 KiB).

    A task that prints waits for who reads along with it, for a second at most. The last 16 KiB of what an
    ended task wrote are kept on disk, on its node and on that of whoever started it: give the task's name, as
    `dios run --detach --json` tells it, to read them when the node knows nothing else of the task any more.
    """
    with reporting("dios logs", as_json=as_json), opened(node) as place:
        try:
            handle, status = place.task(task)
            console = handle.console()
        except (NoSuchTaskError, InvalidError, UnreachableError):
            kept = place.log_of(task)
            if kept is None:
                raise
            _print_kept(task, kept, as_json=as_json)
            return
        if follow and not as_json:
            pour(console, sys.stdout.buffer)
            return
        parts: list[bytes] = []
        with contextlib.suppress(EndOfStreamError, TimeLimitError):
            while True:
                parts.append(console.receive(timeout=0))
        data = b"".join(parts)
        if as_json:
            write_json({**described(status), "console": data.decode(errors="replace")})
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            _tell_lost(console, len(data))


def _print_kept(task: str, data: bytes, *, as_json: bool) -> None:
    if as_json:
        write_json({"task": task, "console": data.decode(errors="replace")})
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@app.command(epilog="\b\nExamples:\n  dios pause job.py\n  dios resume job.py")
def pause(task: TaskArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Suspend a task: it keeps everything it has and does nothing until it is resumed."""
    with reporting("dios pause", as_json=as_json), opened(node) as place:
        handle, status = place.task(task)
        done = handle.pause()
        _tell(status, "paused", done=done, as_json=as_json, otherwise="has ended")
        if not done:
            raise typer.Exit(FAILED)


@app.command(epilog="\b\nExamples:\n  dios resume job.py")
def resume(task: TaskArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Let a paused task run on."""
    with reporting("dios resume", as_json=as_json), opened(node) as place:
        handle, status = place.task(task)
        done = handle.resume()
        otherwise = "has ended" if status.ended else "was not paused"
        _tell(status, "resumed", done=done, as_json=as_json, otherwise=otherwise)
        if not done:
            raise typer.Exit(FAILED)


@app.command(epilog="\b\nExamples:\n  dios kill job.py\n  dios kill 3f9a")
def kill(task: TaskArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """End a task at once. What it committed stays; nothing else of it is left."""
    with reporting("dios kill", as_json=as_json), opened(node) as place:
        handle, status = place.task(task)
        if status.ended:
            # What was asked for holds, so that this is no failure.
            _tell(status, "killed", done=False, as_json=as_json, otherwise="had ended already")
            return
        handle.kill()
        _tell(status, "killed", done=True, as_json=as_json)


def _tell(status: Status, what: str, *, done: bool, as_json: bool, otherwise: str = "") -> None:
    if as_json:
        write_json({"fingerprint": status.fingerprint, "label": status.label, what: done})
    else:
        label = plain(status.label) or "without label"
        say(f"task {label} ({status.fingerprint}) {what if done else otherwise}")
