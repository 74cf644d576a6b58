"""Finds out which mechanisms this machine has to confine a pure task, by trying each in a child process.

The probe runs in an interpreter of its own, because some mechanisms cannot be undone, and because a daemon
with threads must not fork.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dios import limits
from dios.errors import NotSupportedError
from dios.host.sandbox.notifications import FORKS

NEEDED_FOR_PURE: Final = (
    *("user", "pid", "mount", "net", "ipc", "uts"),
    *("no_new_privs", "landlock", "seccomp", "memfd_seals", "pidfd"),
)
LOST_WITHOUT: Final[Mapping[str, str]] = {
    "cgroup_memory": (
        f"a hostile pure task can exceed its memory limit for {limits.TASK_MEMORY_WATCH_MS} ms, until the "
        "node reads its memory again, and the kernel can keep as much again for its sockets, pipes and "
        "event queues; the limit of a limbo task holds for each of its processes alone"
    ),
    "cgroup_pids": "a limit of threads and processes does not hold for limbo tasks",
    FORKS: "sessions of a sandbox cannot be forked",
    "passrights": (
        "a user's program can send the node a socket whose closing waits (SO_LINGER), which delays the node; "
        "the ends of a stream can do the same to each other"
    ),
}
"""The optional mechanisms, each with what does not hold without it."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism: whether it is available here, a detail, and whether a pure task needs it."""

    available: bool
    detail: str
    needed_for_pure: bool


def probe() -> dict[str, Mechanism]:
    """Try every mechanism once and return the results by name; this takes tens of milliseconds.

    It blocks: a daemon calls it before its event loop runs, or in a thread. A missing mechanism is never an
    error. If the interpreter cannot be started, all mechanisms count as missing.
    """
    package = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - runs before pathlib is wanted
    root = package.removesuffix("/dios/host/sandbox")
    code = f"import sys; sys.path.insert(0, sys.argv[1]); from {__name__} import main; main()"
    command = [sys.executable, "-I", "-S", "-c", code, root]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=True,
            timeout=limits.SANDBOX_PROBE_MS_MAX / 1000,
            env={},
            cwd="/",
        )
        found: dict[str, list[str]] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        found = {}
        missing = f"the probe failed: {error}"
    else:
        missing = "not tried"
    return {
        name: Mechanism(*_read(found.get(name, ["", missing])), needed_for_pure=name in NEEDED_FOR_PURE)
        for name in (*NEEDED_FOR_PURE, *LOST_WITHOUT)
    }


def _read(row: list[str]) -> tuple[bool, str]:
    return row[0] == "yes", row[1]


def missing_for_pure(mechanisms: Mapping[str, Mechanism]) -> str:
    """Return the reasons why this machine cannot confine pure tasks as one line, or "" if it can."""
    return "; ".join(
        f"{name}: {m.detail}" for name, m in mechanisms.items() if m.needed_for_pure and not m.available
    )


def require_pure(mechanisms: Mapping[str, Mechanism]) -> None:
    """Raise ``NotSupportedError`` with the reasons if this machine cannot confine pure tasks."""
    missing = missing_for_pure(mechanisms)
    if missing:
        raise NotSupportedError(
            f"this machine cannot confine pure tasks ({missing}). "
            "Run limbo tasks, or accept a weaker sandbox explicitly."
        )


# -- in the probe's own interpreter ---------------------------------------------------------------
def main() -> None:
    """Try each mechanism in a fork and write the results to standard output as JSON."""
    # Imported here, because the daemon imports this module and does not need ctypes.
    from dios.host.sandbox import probing  # noqa: PLC0415

    found = {name: _in_child(attempt) for name, attempt in probing.attempts().items()}
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()


def _in_child(attempt: Callable[[], str]) -> tuple[str, str]:
    """Run one attempt in a fork. Return "yes" or "", and a detail."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _attempt_and_end(attempt, write_end)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        return "", f"the attempt was ended by {signal.Signals(-status).name}"
    return ("yes" if status == 0 else ""), text


def _attempt_and_end(attempt: Callable[[], str], write_end: int) -> None:
    status, text = 1, ""
    try:
        text, status = attempt(), 0
    except OSError as error:
        text = str(error.strerror or error)
    except Exception as error:  # noqa: BLE001 - a probe reports whatever goes wrong
        text = f"{type(error).__name__}: {error}"
    finally:
        os.write(write_end, text.encode()[: limits.TEXT_BYTES_MAX])
        os._exit(status)
