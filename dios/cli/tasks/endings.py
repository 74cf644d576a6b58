"""How a task ended, as sentences for people.

Not for: finding out, or its exit status; the node tells the one and ``Status`` the other.
"""

from __future__ import annotations

import signal
from typing import Final

from dios.cli.common.output import plain
from dios.client.ops.status import Status
from dios.wire.types import Brand, Cause

_LAST_LINES: Final = "Last lines:\n"
"""What the node puts between the cause and the console's last lines in a status's detail."""

_TRY: Final = {
    Cause.EXCEPTION: "read the traceback; `dios debug` stops where it was raised",
    Cause.SIGNAL: "run it with --limbo under a debugger, or with `python -X faulthandler`",
    Cause.SANDBOX: "a pure task has no files, sockets, programs or processes of its own: "
    "give it what it needs with --input, or run it with --limbo",
    Cause.MEMORY: "give it more with --memory, or let it work on a part at a time",
    Cause.CPU: "give it more with --cpu-seconds",
    Cause.SPAWN: "`dios-node status` shows what this machine can enforce; the node's log says more",
    Cause.PROTOCOL: "let it use the dios module instead of descriptor 3 itself",
    Cause.PREEMPTED: "run it again, or with a higher --priority; `dios run --restartable` does so by itself",
    Cause.NODE_LOST: "run it again: `dios node ls` shows which nodes there are",
    Cause.NODE: "`dios-node start` starts the node again; durable objects are as they were last acknowledged",
}

# Exceptions that tell of the task's surroundings rather than of a mistake in it.
_NEEDS_THE_SYSTEM: Final = frozenset({"PermissionError", "FileNotFoundError", "OSError", "BlockingIOError"})
_NEEDS_A_PACKAGE: Final = frozenset({"ModuleNotFoundError"})


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def cause_text(task: Status) -> str:
    """State or cause in a few words, for tables."""
    if not task.ended:
        return task.state.name.lower()
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
    }.get(task.cause, "ended")


def _advice(task: Status, first: str) -> str:
    """What to try; ``first`` is the line that names the exception, if one ended the task."""
    if task.cause is not Cause.EXCEPTION:
        return _TRY.get(task.cause, "")
    kind = first.partition(":")[0]
    if kind == "MemoryError":
        return _TRY[Cause.MEMORY]
    if kind in _NEEDS_A_PACKAGE:
        return "install it beside the node, where it was started from, and start the node again"
    if kind in _NEEDS_THE_SYSTEM and task.brand is Brand.PURE:
        return _TRY[Cause.SANDBOX]
    return _TRY[Cause.EXCEPTION]


def _told(task: Status) -> list[str]:
    """What the node says of an end, without the last lines of its console."""
    why = task.detail.partition(_LAST_LINES)[0]
    return [plain(line) for line in why.split("\n") if line.strip()]


def advice_for(task: Status) -> str:
    """What to try about an end; empty where nothing failed."""
    return "" if task.ok or not task.ended else _advice(task, next(iter(_told(task)), ""))


def reason_lines(task: Status) -> list[str]:
    """Why a task ended, in plain words: the cause first, then what the node knows about it."""
    if task.ok:
        return ["its program came to its end, with exit status 0"]
    meaning = {
        Cause.EXITED: f"its program ended itself with exit status {task.exit_code}",
        Cause.EXCEPTION: "an exception that nothing in it handled left its program",
        Cause.SIGNAL: f"the system ended it with {_signal_name(task.signal)}",
        Cause.SANDBOX: "it did what no confined task may do, and the kernel ended it for that",
        Cause.MEMORY: "it needed more memory than its limit",
        Cause.CPU: "it used up its CPU time",
        Cause.KILLED: "somebody ended it: `dios kill`, the end of the command that ran it, or its parent",
        Cause.PROTOCOL: "what it sent to the node was no message",
        Cause.SPAWN: "it could not be started, and ran nothing",
        Cause.NODE: "the node stopped while it ran",
        Cause.NODE_LOST: "the node that it ran on died, or could not be reached for too long",
        Cause.PREEMPTED: "the scheduler gave its place to a task that needed it more",
    }.get(task.cause, cause_text(task))
    return [meaning, *_told(task)]


def explain(task: Status) -> list[str]:
    """What to say about a task that failed, to who has just seen its console: cause and what to try.

    Empty when it did not fail.
    """
    if task.ok:
        return []
    first, *rest = _told(task) or [""]
    name = f"{plain(task.label)} ({task.fingerprint})" if task.label else task.fingerprint
    lines = [f"task {name}: {cause_text(task)}{': ' + first if first else ''}"]
    lines += [f"  {line}" for line in rest]
    advice = _advice(task, first)
    if advice:
        lines.append(f"  try:  {advice}")
    if task.cause is Cause.NODE_LOST:
        # What it wrote, and what it was given, went with its node.
        return lines
    lines.append(f"  logs: dios logs {task.fingerprint}")
    lines.append(f"  more: dios describe {task.fingerprint}, dios debug {task.fingerprint}")
    return lines
