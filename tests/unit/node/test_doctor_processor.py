"""What ``dios doctor`` says about the daemon's part of the processors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dios import limits
from dios.host.confinement import cgroups, linux_calls
from dios.node import daemon
from dios.node.daemon import DaemonProcess
from dios.node.doctor import processor
from dios.node.doctor.processor import examine_processor
from dios.node.machine import come_before_tasks


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a kernel with groups of sessions, and without control groups for processors."""
    monkeypatch.setattr(cgroups, "has_processor_group", lambda _: False)
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text("1\n")
    return tmp_path


def runs_as(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """Let a daemon run in every data directory."""
    monkeypatch.setattr(daemon, "find", lambda path: DaemonProcess(pid, path))


def test_a_daemon_that_may_try_has_both(proc: Path) -> None:
    """Where the attempts succeed nothing is advised; where they fail, the user and the kernel are named."""
    share, slices = examine_processor(proc, proc, lambda _: True)
    assert (share.advice, slices.advice) == ("", "")
    assert "nine times" in share.detail
    share, slices = examine_processor(proc, proc, lambda _: False)
    assert "this user may not" in share.detail
    assert "Linux 6.12" in slices.advice


def test_an_attempt_that_does_not_end_says_nothing_about_the_machine(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the answer is not known, and the advice blames neither the user nor the kernel."""
    monkeypatch.setattr(processor, "_TRY_S", 0.0)
    for test in examine_processor(proc, proc):
        assert "not known" in test.detail
        assert "again" in test.advice


@pytest.mark.parametrize(("nice", "advised"), [("-10", False), ("0", True)])
def test_a_daemon_that_runs_is_asked(
    proc: Path, monkeypatch: pytest.MonkeyPatch, nice: str, *, advised: bool
) -> None:
    """The share and the slice are those of the process; nothing is tried."""
    tried: list[str] = []
    runs_as(monkeypatch, 41)
    (proc / "41").mkdir()
    (proc / "41/autogroup").write_text(f"/autogroup-7 nice {nice}\n")
    slice_ns = limits.DAEMON_SLICE_NS * (30 if advised else 1)
    monkeypatch.setattr(linux_calls, "time_slice", lambda _: slice_ns)

    def tries(program: str) -> bool:
        tried.append(program)
        return True

    checks = examine_processor(proc, proc, tries)
    assert [bool(check.advice) for check in checks] == [advised, advised]
    assert all("daemon 41" in check.detail for check in checks)
    assert not tried


def test_a_kernel_that_divides_otherwise_is_named(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without groups of sessions, or under control groups, the nice value of a session has no effect."""
    (proc / "sys/kernel/sched_autogroup_enabled").write_text("0\n")
    assert "autogroup_enabled=1" in examine_processor(proc, proc, lambda _: True)[0].advice
    monkeypatch.setattr(cgroups, "has_processor_group", lambda _: True)
    assert "control groups" in examine_processor(proc, proc, lambda _: True)[0].detail


def test_the_attempts_are_those_of_a_daemon(tmp_path: Path) -> None:
    """The attempts change nothing of this process, and succeed where a process like a daemon succeeds."""
    before = Path("/proc/self/autogroup")
    share_before = before.read_text() if before.exists() else ""
    share, slices = examine_processor(tmp_path)
    assert (before.read_text() if before.exists() else "") == share_before
    pid = os.fork()
    if not pid:
        os.setsid()
        short = limits.DAEMON_SLICE_NS
        try:
            linux_calls.set_time_slice(0, short)
            has_slice = linux_calls.time_slice(0) == short
        except OSError:
            has_slice = False
        os._exit(come_before_tasks() + 2 * has_slice)
    done = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if cgroups.is_autogroup_on() and not cgroups.has_processor_group():
        assert (share.advice == "") is bool(done & 1)
    assert (slices.advice == "") is bool(done & 2)
