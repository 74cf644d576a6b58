"""How a task ended, as sentences for people.

Not for: finding out, or its exit status; the node tells the one and ``Status`` the other.
"""

from __future__ import annotations

import signal
from typing import Final

from dios.cli.output import plain
from dios.client.status import Status
from dios.wire.types import Brand, Cause

_LAST_LINES: Final = "Last lines:\n"
"""What the node puts between the cause and the console's last lines in a status's detail."""

_TRY: Final = {
    Cause.EXCEPTION: "read the traceback above; `dios run --limbo` runs it outside the sandbox, to compare",
    Cause.SIGNAL: "run it with --limbo under a debugger, or with `python -X faulthandler`",
    Cause.SANDBOX: "a pure task has no files, sockets, programs or processes of its own: "
    "give it what it needs with --input, or run it with --limbo",
    Cause.MEMORY: "give it more with --memory, or let it work on a part at a time",
    Cause.CPU: "give it more with --cpu-seconds",
    Cause.SPAWN: "`dios-node status` shows what this machine can enforce; the node's log says more",
    Cause.PROTOCOL: "let it use the dios module instead of descriptor 3 itself",
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


def explain(task: Status) -> list[str]:
    """What to say about a task that failed, to who has just seen its console: cause and what to try.

    Empty when it did not fail.
    """
    if task.ok:
        return []
    why = task.detail.partition(_LAST_LINES)[0]
    first, *rest = [plain(line) for line in why.split("\n") if line.strip()] or [""]
    name = f"{plain(task.label)} ({task.fingerprint})" if task.label else task.fingerprint
    lines = [f"task {name}: {cause_text(task)}{': ' + first if first else ''}"]
    lines += [f"  {line}" for line in rest]
    advice = _advice(task, first)
    if advice:
        lines.append(f"  try:  {advice}")
    lines.append(f"  logs: dios logs {task.fingerprint}")
    return lines
