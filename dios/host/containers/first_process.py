"""The program with the number 1 in a container: it starts the task, and removes processes that ended.

The kernel gives it every process whose parent has ended, and ends all processes of the container with it.
The task itself is its child, so that signals have their ordinary effects there.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import site
import sys
from collections.abc import Callable
from typing import Final, TypedDict

from dios.host.containers.entry_points import STATUS, run_entry_point

TASK_SOCKET: Final = 3
REPORT: Final = 4
"""The pipe for the wait status of the task."""

STANDARD: Final = (0, 1, 2)
"""The places of the DIOS socket, the report and the console if a runtime passes on no others."""

_ABOVE_TASKS: Final = 10

TRIAL_BYTES: Final = b"shared"
"""The trial of a runtime writes this."""

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
    """The environment variables and the working directory of the task, and the folders of its modules.

    ``links`` are links in folders of the kernel, by their places. ``machine`` is the version of the machine's
    kernel if the container must have another one, else "".
    """

    paths: list[str]
    variables: list[str]
    folder: str
    links: dict[str, str]
    machine: str


def main(order: Order, entry: str) -> None:
    """Run a task until it ends, and report its wait status; an empty ``entry`` is a trial.

    Nothing runs if the runtime has left out a part of the confinement: it may have been built without that.
    """
    gap = _gap_of_kernel(order["machine"]) if order["machine"] else _gap_of_this_process()
    if gap:
        sys.stderr.write(f"the container is not confined: {gap}\n")
        os._exit(1)
    if not entry:
        os._exit(_try_shared_memory() if order["machine"] else 0)
    report = _place_standard_descriptors() if order["machine"] else _moved(REPORT)
    pid = os.fork()
    if pid:
        # The kernel spares this process signals without a handler, and Python has one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(TASK_SOCKET)
        status = _wait(pid)
        os.write(report, STATUS.pack(status))
        os._exit(0)
    os.close(report)
    os.set_inheritable(TASK_SOCKET, False)
    for variable in order["variables"]:
        name, _, value = variable.partition("=")
        os.environ[name] = value
    for path, target in order["links"].items():
        os.symlink(target, path)  # noqa: PTH211 - the same
    try:
        os.chdir(order["folder"])
    except OSError as error:
        sys.stderr.write(f"the working directory of the image cannot be entered: {error}\n")
        os._exit(1)
    # Its module runs in no first process, because it would look for files of users.
    site.setquit()
    sys.argv[:] = ["dios-task"]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    module, _, attribute = entry.partition(":")
    function: Callable[[], int | None] = getattr(importlib.import_module(module), attribute)
    run_entry_point(function)


def _place_standard_descriptors() -> int:
    """Put the descriptors in their places that came as ``STANDARD``, and return that of the report."""
    socket, report, console = STANDARD
    moved = _moved(report)
    os.dup2(socket, TASK_SOCKET)
    os.dup2(console, report)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, socket)
    os.close(null)
    return moved


def _moved(number: int) -> int:
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE_TASKS)
    os.close(number)
    return moved


def _gap_of_this_process() -> str:
    with open(_STATUS, encoding="utf-8") as file:  # noqa: PTH123 - as little as possible is loaded here
        return gap_of(file.read())


def _gap_of_kernel(machine: str) -> str:
    """Return the reason if this process makes the calls of the machine's kernel, of that version, or ""."""
    return "its kernel is that of the machine" if kernel_version() == machine else ""


def kernel_version() -> str:
    """Return the release and the version of the kernel of this process."""
    return " ".join(os.uname()[2:4])


def _try_shared_memory() -> int:
    """Write to memory that comes through the socket, as the node gives it to sessions; return an exit status.

    Another kernel may take no descriptors, or give memory of its own.
    """
    import mmap  # noqa: PLC0415 - for a trial alone
    import socket  # noqa: PLC0415 - the same

    with socket.socket(fileno=STANDARD[0]) as connection:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        sys.stderr.write("it gives a container no descriptors: use a release of 2022 or later\n")
        return 1
    with mmap.mmap(descriptors[0], mmap.PAGESIZE) as memory:
        memory[: len(TRIAL_BYTES)] = TRIAL_BYTES
    return 0


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
            return status
