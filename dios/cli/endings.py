"""How a task ended, as an exit status and as sentences for people.

Not for: finding out; the node tells it in a Status.
"""

from __future__ import annotations

import signal
from typing import Final

from dios.client.status import Status
from dios.wire.types import Cause

NOT_STARTED: Final = 126
_BY_SIGNAL: Final = 128
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


def exit_status(task: Status) -> int:
    """The status a shell would give: the program's own, or 128 and the signal that ended it."""
    if task.cause is Cause.EXITED:
        return task.exit_code
    if task.cause is Cause.EXCEPTION:
        return task.exit_code or 1
    if task.cause is Cause.SPAWN:
        return NOT_STARTED
    number = task.signal
    if not number:
        number = {Cause.SANDBOX: signal.SIGSYS, Cause.CPU: signal.SIGXCPU}.get(task.cause, signal.SIGKILL)
    return _BY_SIGNAL + number


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


def explain(task: Status, *, last_lines: bool = True) -> list[str]:
    """What to say about a task that failed: cause, last lines, what to try; empty when it did not.

    ``last_lines`` leaves them out for who has just seen them.
    """
    if task.ok:
        return []
    why, _, last = task.detail.partition(_LAST_LINES)
    first, *rest = [line for line in why.splitlines() if line.strip()] or [""]
    name = f"{task.label} ({task.fingerprint})" if task.label else task.fingerprint
    lines = [f"task {name}: {cause_text(task)}{': ' + first if first else ''}"]
    lines += [f"  {line}" for line in rest]
    if last_lines and last.strip():
        lines.append("  its last lines:")
        lines += [f"    {line}" for line in last.strip("\n").splitlines()]
    if task.cause in _TRY:
        lines.append(f"  try:  {_TRY[task.cause]}")
    lines.append(f"  logs: dios logs {task.fingerprint}")
    return lines
