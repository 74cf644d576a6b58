"""The program with the number 1 in a container: it starts the task, and removes processes that ended.

The kernel gives it every process whose parent has ended, and ends all processes of the container with it.
The task itself is its child, so that signals have their ordinary effects there.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Final, TypedDict

from dios.host.containers.entry_points import exit_of_container, run_entry_point

TASK_SOCKET: Final = 3

CAPABILITIES: Final = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
}
"""The capabilities of a container, with the kernel's numbers: for its own user namespace alone. A package
manager needs these."""

_PERMITTED: Final = sum(1 << number for number in CAPABILITIES.values())
_STATUS: Final = "/proc/self/status"


class Order(TypedDict):
    """The environment variables and the working directory of the task, and the folders of its modules."""

    paths: list[str]
    variables: list[str]
    folder: str


def main(order: Order, entry: str) -> None:
    """Run a task until it ends, and end with its status; an empty ``entry`` ends at once.

    Nothing runs if the runtime has left out a part of the confinement: it may have been built without that.
    """
    with open(_STATUS, encoding="utf-8") as file:  # noqa: PTH123 - as little as possible is loaded here
        gap = gap_of(file.read())
    if gap:
        sys.stderr.write(f"the container is not confined: {gap}\n")
        os._exit(1)
    if not entry:
        os._exit(0)
    pid = os.fork()
    if pid:
        # The kernel spares this process signals without a handler, and Python has one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(TASK_SOCKET)
        os._exit(_wait(pid))
    os.set_inheritable(TASK_SOCKET, False)
    for variable in order["variables"]:
        name, _, value = variable.partition("=")
        os.environ[name] = value
    try:
        os.chdir(order["folder"])
    except OSError as error:
        sys.stderr.write(f"the working directory of the image cannot be entered: {error}\n")
        os._exit(1)
    sys.argv[:] = ["dios-task"]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    module, _, attribute = entry.partition(":")
    function: Callable[[], int | None] = getattr(importlib.import_module(module), attribute)
    run_entry_point(function)


def gap_of(status: str) -> str:
    """Return the first part of the confinement that a process lacks by its ``status``, or ""."""
    parts = (line.partition(":") for line in status.splitlines())
    rows = {name: value.strip() for name, _, value in parts}
    if rows.get("Seccomp") != "2":
        return "it has no filter of system calls"
    if rows.get("NoNewPrivs") != "1":
        return "it can gain privileges"
    if any(int(rows.get(name, "f"), 16) & ~_PERMITTED for name in ("CapPrm", "CapEff", "CapBnd")):
        return "it has further capabilities"
    return ""


def _wait(pid: int) -> int:
    while True:
        ended, status = os.wait()
        if ended == pid:
            return exit_of_container(status)
