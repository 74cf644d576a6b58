"""Sentences about how a task ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from dios.cli.common.output import size_text
from dios.cli.common.rows import Row
from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.wire.types import Brand, Cause, TaskState

if TYPE_CHECKING:
    from dios.client.sync.node import Task
    from dios.lib.movable import MovableRun, TaskEnd

_LAST_LINES: Final = "Last lines:\n"
"""The node's separator between the cause and the last lines of the console in a status's detail."""

_TRY: Final = {
    Cause.EXCEPTION: "read the traceback; `dios debug` stops at the exception",
    Cause.SIGNAL: "run it with --limbo under a debugger, or with `python -X faulthandler`",
    Cause.SANDBOX: "a pure task has no files, sockets, programs or processes of its own: "
    "give it what it needs with --input, or run it with --limbo",
    Cause.MEMORY: "give it more with --memory, or let it process less data at a time",
    Cause.CPU: "give it more with --cpu-seconds",
    Cause.SPAWN: "`dios-node status` shows what this machine can enforce; see also the node's log",
    Cause.PROTOCOL: "let it use the dios module instead of descriptor 3 directly",
    Cause.PREEMPTED: "run it again, or with a higher --priority; `dios run --restartable` does so by itself",
    Cause.MOVED: "run it again with `dios run`, or dios.lib.movable, which continue from the saved state",
    Cause.TIME: "give it more with --time",
    Cause.DEPENDENCY: "start it again, after a run that succeeds, or with --after-any",
    Cause.NODE_LOST: "run it again; `dios node ls` lists the nodes",
    Cause.NODE: "start the node again and run it again; acknowledged durable objects are kept",
}

# Exceptions that are often caused by the sandbox and not by an error in the task.
_NEEDS_THE_SYSTEM: Final = frozenset({"PermissionError", "FileNotFoundError", "OSError", "BlockingIOError"})
_NEEDS_A_PACKAGE: Final = frozenset({"ModuleNotFoundError"})


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def cause_text(task: Status) -> str:
    """Return the state or cause in a few words, for tables."""
    if task.state is TaskState.WAITING and task.detail.startswith("place "):
        return f"waiting, {task.detail.partition(' in ')[0]}"
    if not task.ended:
        done = "" if task.progress is None else f", {task.progress:.0%}"
        return ("moving" if task.leave_ns else task.state.name.lower()) + done
    if task.cause is Cause.EXITED:
        return f"exited {task.exit_code}"
    if task.cause is Cause.SIGNAL:
        return f"died of {_signal_name(task.signal)}"
    return {
        Cause.EXCEPTION: "exception",
        Cause.SANDBOX: "stopped by the sandbox",
        Cause.MEMORY: "over its memory limit",
        Cause.CPU: "over its CPU limit",
        Cause.KILLED: "killed",
        Cause.PROTOCOL: "broke the protocol",
        Cause.SPAWN: "never started",
        Cause.NODE: "the node shut down",
        Cause.NODE_LOST: "its node was lost",
        Cause.PREEMPTED: "preempted",
        Cause.MOVED: "moved",
        Cause.TIME: "over its time",
        Cause.DEPENDENCY: "never began",
    }.get(task.cause, "ended")


def _advice(task: Status, first: str) -> str:
    """Return advice; ``first`` is the line that names the exception, if one ended the task."""
    if task.cause is not Cause.EXCEPTION:
        return _TRY.get(task.cause, "")
    kind = first.partition(":")[0]
    if kind == "MemoryError":
        return _TRY[Cause.MEMORY]
    if kind in _NEEDS_A_PACKAGE:
        return (
            "add the package with --packages, or install it for the Python that runs the node, and restart "
            "the node"
        )
    if kind in _NEEDS_THE_SYSTEM and task.brand is Brand.PURE:
        return _TRY[Cause.SANDBOX]
    return _TRY[Cause.EXCEPTION]


def _explanation_lines(task: Status) -> list[str]:
    """Return the node's explanation of an end, without the last lines of the console."""
    why = task.detail.partition(_LAST_LINES)[0]
    return [plain(line) for line in why.split("\n") if line.strip()]


def advice_for(task: Status) -> str:
    """Return advice about an end; empty if the task did not fail."""
    return "" if task.ok or not task.ended else _advice(task, next(iter(_explanation_lines(task)), ""))


def reason_lines(task: Status) -> list[str]:
    """Return the reasons why a task ended: the cause first, then the node's explanation."""
    if task.ok:
        return ["its program ended normally, with exit status 0"]
    meaning = {
        Cause.EXITED: f"its program ended with exit status {task.exit_code}",
        Cause.EXCEPTION: "an unhandled exception ended its program",
        Cause.SIGNAL: f"{_signal_name(task.signal)} ended it",
        Cause.SANDBOX: "it did something that a confined task may not do, and the kernel ended it",
        Cause.MEMORY: "it needed more memory than its limit",
        Cause.CPU: "it used up its limit of CPU time",
        Cause.KILLED: "it was killed: by `dios kill`, the end of the command that ran it, or its parent",
        Cause.PROTOCOL: "it sent an invalid message to the node",
        Cause.SPAWN: "it could not be started",
        Cause.NODE: "the node stopped while the task ran",
        Cause.NODE_LOST: "its node died, or could not be reached for too long",
        Cause.PREEMPTED: "it had to leave its node, and was stopped",
        Cause.MOVED: "it had to leave its node, and left it with its state saved",
        Cause.TIME: "it ran for longer than --time allows, and its node ended it",
        Cause.DEPENDENCY: "it never began, because a run before it did not end as it has to",
    }.get(task.cause, cause_text(task))
    return [meaning, *_explanation_lines(task)]


def explain(task: Status) -> list[str]:
    """Return the lines to show after a failed task's output: cause and advice.

    Empty if it did not fail.
    """
    if task.ok:
        return []
    first, *rest = _explanation_lines(task) or [""]
    name = f"{plain(task.label)} ({task.fingerprint})" if task.label else task.fingerprint
    lines = [f"task {name}: {cause_text(task)}{': ' + first if first else ''}"]
    lines += [f"  {line}" for line in rest]
    advice = _advice(task, first)
    if advice:
        lines.append(f"  try:  {advice}")
    if task.cause is Cause.NODE_LOST:
        # The task's output and inputs were lost with its node.
        return lines
    lines.append(f"  logs: dios logs {task.fingerprint}")
    lines.append(f"  more: dios describe {task.fingerprint}, dios debug {task.fingerprint}")
    return lines


def sentence_of_move(ended: Status, end: TaskEnd, following: Task) -> str:
    """Return the report that a run goes on with another task."""
    reason = end.reason or cause_text(ended)
    kept = f"from its checkpoint of {size_text(end.kept_bytes)}" if end.kept_bytes else "from its beginning"
    location = f"on {following.node} " if following.node else ""
    left = f"task {ended.fingerprint} has left {end.node or 'its node'} ({reason})"
    return f"{left}; the run continues {location}{kept}"


class EndRow(Row):
    """The end of an earlier task of a run that was moved or restarted."""

    node: str
    cause: str
    reason: str
    kept_bytes: int


def ends_of(run: MovableRun) -> list[EndRow]:
    """Return the ends of the earlier tasks of a run, for JSON."""
    return [EndRow.of(end) for end in run.history]
