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


class Order(TypedDict):
    """The environment variables and the working directory of the task, and the folders of its modules."""

    paths: list[str]
    variables: list[str]
    folder: str


def main(order: Order, entry: str) -> None:
    """Run a task until it ends, and end with its status; an empty ``entry`` ends at once."""
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


def _wait(pid: int) -> int:
    while True:
        ended, status = os.wait()
        if ended == pid:
            return exit_of_container(status)
