"""A start that is slow is told from one that hangs by what its processes do, and not by the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dios import limits
from dios.start_watch import ALARM_S, Activity, HangAlarm, StartWatch, activity_of

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


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The alarms that are set, and the signals that end this process, instead of doing so."""
    seen: list[str] = []
    monkeypatch.setattr(signal, "alarm", lambda seconds: seen.append(f"again in {seconds} s"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "kill", lambda _, number: seen.append(signal.Signals(number).name))
    return seen


def test_an_alarm_ends_a_start_that_hangs_and_no_slow_one(ends: list[str]) -> None:
    """The next alarm is set while there is progress, and once without, because the process may be stopped."""
    used = iter([1_000, 2_000, 2_001, 2_500, 2_500, 2_500])
    alarm = HangAlarm(lambda _: Activity(next(used), waits=True))
    for _ in range(5):
        alarm(signal.SIGALRM, None)
    assert ends == [f"again in {ALARM_S} s"] * 5
    alarm(signal.SIGALRM, None)
    assert ends[5] == "SIGALRM"


def test_an_alarm_ends_a_start_that_computes_for_ever(ends: list[str]) -> None:
    """The processor time of a start is bounded."""
    HangAlarm(lambda _: Activity(limits.START_CPU_MS_MAX + 1, waits=True))(signal.SIGALRM, None)
    assert ends[0] == "SIGALRM"
