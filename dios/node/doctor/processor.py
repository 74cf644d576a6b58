"""Tests that a daemon has its turn while tasks compute: its share of the processors, and its time slice.

They are those of the daemon that runs. If none runs, a process of its own tries to get them, and ends.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dios import limits
from dios.errors import DiosError
from dios.host.confinement import cgroups, linux_calls
from dios.node import daemon
from dios.node.doctor.finding import DoctorFinding, DoctorTest
from dios.node.settings import load

_TRY_S: Final = 20.0
_UNKNOWN: Final = "not known: the attempt did not end in time, because the machine is busy"
_AGAIN: Final = "optional: run this again when the machine is quieter"
_NICE: Final = re.compile(r"nice (-?[0-9]+)")
_TRY_SHARE: Final = "from dios.node.machine import come_before_tasks as go; raise SystemExit(not go())"
_TRY_SLICE: Final = f"""
from dios.host.confinement import linux_calls
linux_calls.set_time_slice(0, {limits.DAEMON_SLICE_NS})
raise SystemExit(linux_calls.time_slice(0) != {limits.DAEMON_SLICE_NS})
"""


_SHARE: Final = DoctorTest(
    "daemon share",
    "calls are answered while many tasks compute: the daemon has more of the processors than each",
)
_SLICE: Final = DoctorTest(
    "daemon slice",
    "a call waits for the end of no task's slice: the daemon has short slices, and early turns",
)


def examine_processor(
    data: Path, proc: Path = Path("/proc"), tries: Callable[[str], bool | None] | None = None
) -> list[DoctorFinding]:
    """Test the daemon that runs in ``data``, or what one would get here.

    ``tries`` runs a program in a process that leads a session, and returns True if it succeeds,
    None if that is not known.
    """
    tries = tries or _succeeds
    pid = _running(data)
    return [_share(pid, proc, tries), _slice(pid, tries)]


def _running(data: Path) -> int:
    """Return the process id of the daemon in ``data``, or 0."""
    try:
        process = daemon.find(load(data).socket)
    except DiosError:
        return 0
    return 0 if process is None else process.pid


def _share(pid: int, proc: Path, tries: Callable[[str], bool | None]) -> DoctorFinding:
    if cgroups.has_processor_group(proc / "self"):
        detail = "control groups divide the processors, and the daemon counts as one process"
        advice = "optional: give the daemon a higher priority (Nice=-10 in a unit of systemd)"
        return _SHARE.result(detail, advice)
    if not cgroups.is_autogroup_on(proc / "self"):
        detail = "the kernel's groups of sessions (autogroup) are off, so the daemon has that of a thread"
        return _SHARE.result(detail, "optional: sysctl kernel.sched_autogroup_enabled=1")
    nice = _nice_of(pid, proc) if pid else None
    if nice is not None:
        detail = f"the session of the daemon {pid} has the nice value {nice}"
        advice = "" if nice < 0 else f"optional: as root, write -10 to /proc/{pid}/autogroup"
        return _SHARE.result(detail, advice)
    succeeds = tries(_TRY_SHARE)
    if succeeds is None:
        return _SHARE.result(_UNKNOWN, _AGAIN)
    if succeeds:
        return _SHARE.result("nine times that of a task that computes (autogroup)")
    detail = "that of a task: this user may not raise the priority of a session (autogroup)"
    return _SHARE.result(detail, "optional: as root, write -10 to /proc/PID/autogroup")


def _nice_of(pid: int, proc: Path) -> int | None:
    try:
        match = _NICE.search((proc / str(pid) / "autogroup").read_text())
    except OSError:
        return None
    return int(match[1]) if match else None


def _slice(pid: int, tries: Callable[[str], bool | None]) -> DoctorFinding:
    wanted = limits.DAEMON_SLICE_NS
    if pid and (slice_ns := _slice_of(pid)):
        detail = f"that of the daemon {pid} is {slice_ns / 1e6:.1f} ms"
        advice = "" if slice_ns <= wanted else "optional: run Linux 6.12 or newer"
        return _SLICE.result(detail, advice)
    succeeds = tries(_TRY_SLICE)
    if succeeds is None:
        return _SLICE.result(_UNKNOWN, _AGAIN)
    if succeeds:
        return _SLICE.result(f"{wanted / 1e6:.1f} ms")
    detail = "that of the kernel, which keeps no other one"
    return _SLICE.result(detail, "optional: run Linux 6.12 or newer")


def _slice_of(pid: int) -> int:
    try:
        return linux_calls.time_slice(pid)
    except OSError:
        return 0


def _succeeds(program: str) -> bool | None:
    """Return True if a program succeeds, None if it does not end: the machine may be busy."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            capture_output=True,
            start_new_session=True,
            timeout=_TRY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.returncode == 0
