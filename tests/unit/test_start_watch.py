"""A start that is slow is told from one that hangs by what its processes do, and not by the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from dios import limits
from dios.start_watch import Activity, StartWatch, activity_of

QUIET = limits.START_QUIET_MAX


def looks(*activities: Activity) -> list[bool]:
    """The answers of a watch that sees these activities one after the other."""
    seen = iter(activities)
    watch = StartWatch(1, lambda _: next(seen))
    return [watch.hangs() for _ in activities]


def test_a_start_hangs_when_its_processes_do_nothing_for_some_looks_in_a_row() -> None:
    """A single tick of processor time between them is progress."""
    idle = [Activity(5, waits=False)] * QUIET
    assert looks(Activity(5, waits=False), *idle)[-2:] == [False, True]
    assert not any(looks(*idle, *[Activity(6, waits=False)] * QUIET))


def test_a_start_that_gets_no_processor_does_not_hang() -> None:
    """A process that wants to go on, or is stopped, has not failed."""
    assert not any(looks(*[Activity(5, waits=True)] * (3 * QUIET)))


def test_a_start_that_computes_for_ever_hangs_unless_it_reports_progress() -> None:
    """The limit is one of processor time, and counts from the last report."""
    used = [0]
    watch = StartWatch(1, lambda _: Activity(used[0], waits=True))
    assert not watch.hangs()
    for _ in range(3):
        used[0] += limits.START_CPU_MS_MAX
        assert not watch.hangs()
        watch.progressed()
    used[0] += limits.START_CPU_MS_MAX + 1
    assert watch.hangs()


def test_the_activity_is_that_of_the_process_and_its_children() -> None:
    """One that sleeps is quiet; with a stopped child, in a session of its own, it wants to go on."""
    program = """
import os, signal
while not sum(os.times()[:2]):
    pass
if not os.fork():
    os.setsid()
    os.kill(os.getpid(), signal.SIGSTOP)
print(os.waitpid(-1, os.WUNTRACED)[0], flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        activity = activity_of(leader.pid)
        os.kill(child, signal.SIGKILL)
        leader.kill()
    assert activity.waits
    assert activity.cpu_ms > 0
    assert activity_of(leader.pid) == Activity(0, waits=False)
