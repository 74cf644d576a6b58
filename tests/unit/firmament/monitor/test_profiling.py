"""What is measured of tasks (§6.5.3, Table 6.4)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dios import limits
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.monitor.task_probe import TaskProbe, TaskReading, values
from tests.support.firmament import procfs
from tests.support.firmament.busy_child import BUSY, begin, idle_child, until
from tests.support.firmament.procfs import Shown, Thread
from tests.support.firmament.sysfs import write

SECOND = 1_000_000_000
TICK = SECOND // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a line and then computes for ever."""
    with idle_child() as child:
        yield child


def test_a_task_is_the_sum_of_its_processes(tmp_path: Path) -> None:
    """Sizes, times, faults, bytes and switches of all processes and threads are added up."""
    threads = (Thread(5 * TICK, 3, 1, 2), Thread(7 * TICK, 4, 10, 20))
    procfs.show(tmp_path, Shown(10, minor=1, major=2, pages=3, virtual=4, read=5, written=6, threads=threads))
    procfs.show(tmp_path, Shown(20, minor=1, major=1, pages=1, virtual=1, read=1, written=1, ticks=9))
    assert TaskProbe(tmp_path).read(77, [10, 20]) == TaskReading(
        at_ns=77,
        processes=2,
        threads=3,
        virtual=5,
        resident=4 * PAGE,
        peak=4 * PAGE,
        proportional=None,
        cpu_ns=21 * TICK,
        wait_ns=7,
        minor_faults=2,
        major_faults=3,
        read=6,
        written=7,
        yields=11,
        preemptions=22,
    )


def test_what_is_gone_stays_counted(tmp_path: Path) -> None:
    """A process, or a thread, that ended between two looks has done what it had done; its memory is free."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(10, read=5, threads=(Thread(1000), Thread(500, 50))))
    procfs.show(tmp_path, Shown(20, read=7, threads=(Thread(300),)))
    first = probe.read(1, [10, 20])
    procfs.show(tmp_path, Shown(10, read=6, threads=(Thread(1100),)))
    procfs.hide(tmp_path, 20)
    second = probe.read(2, [10, 20])
    assert (first.cpu_ns, second.cpu_ns) == (1800, 1900)
    assert (first.read, second.read) == (12, 13)
    assert second.wait_ns == 50
    assert (second.processes, second.threads, second.resident) == (1, 1, 10 * PAGE)
    assert second.peak == 20 * PAGE
    procfs.hide(tmp_path, 10)
    last = probe.read(3, [10, 20])
    assert (last.processes, last.cpu_ns, last.read, last.missing) == (0, 1900, 13, ())


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    """What nobody has waited for yet is no process of the task any more, and stays counted."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(10, threads=(Thread(1000),)))
    probe.read(1, [10])
    procfs.show(tmp_path, Shown(10, state="Z", pages=0, threads=(Thread(),)))
    second = probe.read(2, [10])
    assert (second.processes, second.cpu_ns) == (0, 1000)


def test_a_number_that_is_given_again_is_a_stranger(tmp_path: Path) -> None:
    """Another process with the number of one that ended does not count; in a control group it does."""
    group = tmp_path / "group"
    write(group / "cgroup.procs", "10")
    told, grouped = TaskProbe(tmp_path), TaskProbe(tmp_path, group)
    procfs.show(tmp_path, Shown(10, start=100, threads=(Thread(1000),)))
    for probe, pids in ((told, [10]), (grouped, [])):
        assert probe.read(1, pids).cpu_ns == 1000
    procfs.show(tmp_path, Shown(10, start=200, threads=(Thread(70_000),)))
    stranger, member = told.read(2, [10]), grouped.read(2)
    assert (stranger.processes, stranger.cpu_ns) == (0, 1000)
    assert (member.processes, member.cpu_ns) == (1, 71_000)


def test_what_a_task_starts_is_the_task_s(tmp_path: Path) -> None:
    """Children count without being told, also when their parent has ended, and strangers do not."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(10, children=(20,), threads=(Thread(100),)))
    procfs.show(tmp_path, Shown(20, parent=10, children=(30,), threads=(Thread(10),)))
    procfs.show(tmp_path, Shown(30, parent=20, threads=(Thread(1),)))
    first = probe.read(1, [10])
    assert (first.processes, first.cpu_ns) == (3, 111)
    assert replace(probe.read(1, [10, 20, 30]), at_ns=1) == first
    procfs.hide(tmp_path, 20)
    procfs.show(tmp_path, Shown(10, threads=(Thread(100),)))
    procfs.show(tmp_path, Shown(30, threads=(Thread(2),)))
    orphan = probe.read(2, [10])
    assert (orphan.processes, orphan.cpu_ns) == (2, 112)
    procfs.show(tmp_path, Shown(30, start=900, threads=(Thread(5000),)))
    stranger = probe.read(3, [10])
    assert (stranger.processes, stranger.cpu_ns) == (1, 112)
    procfs.show(tmp_path, Shown(10, children=(30,), threads=(Thread(100),)))
    again = probe.read(4, [10])
    assert (again.processes, again.cpu_ns) == (2, 5112)


def test_a_new_child_with_an_old_one_s_number_is_new(tmp_path: Path) -> None:
    """A number that a child had and another child has now is the other's, at the first look already."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(30, children=(20,)))
    procfs.show(tmp_path, Shown(20, parent=30, threads=(Thread(10),)))
    assert probe.read(1, [30]).cpu_ns == 10
    procfs.show(tmp_path, Shown(20, parent=30, start=900, threads=(Thread(7),)))
    second = probe.read(2, [30])
    assert (second.processes, second.cpu_ns) == (2, 17)


def test_a_child_that_was_cut_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had no turn at a look, and whose parent ended meanwhile, is looked at again at the next."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(10, children=(20,)))
    procfs.show(tmp_path, Shown(20, parent=10, threads=(Thread(10),)))
    probe.read(1, [10])
    procfs.show(tmp_path, Shown(10))
    procfs.show(tmp_path, Shown(20, threads=(Thread(15),)))
    monkeypatch.setattr(limits, "PROFILE_PROCESSES_MAX", 1)
    assert probe.read(2, [10]).cpu_ns == 10
    monkeypatch.setattr(limits, "PROFILE_PROCESSES_MAX", 2)
    assert probe.read(3, [10]).cpu_ns == 15


def test_bytes_of_a_child_count_once(tmp_path: Path) -> None:
    """The kernel adds a child's bytes to those of who waits for it: they are not kept beside that."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(10, read=5, children=(20, 30)))
    procfs.show(tmp_path, Shown(20, parent=10, read=100, written=7))
    procfs.show(tmp_path, Shown(30, parent=10, read=1000))
    assert probe.read(1, [10]).read == 1105
    procfs.show(tmp_path, Shown(20, parent=10, state="Z"))
    zombie = probe.read(2, [10])
    assert (zombie.processes, zombie.read, zombie.written) == (2, 1105, 7)
    procfs.hide(tmp_path, 20)
    procfs.show(tmp_path, Shown(10, read=105, written=7, children=(30,)))
    reaped = probe.read(3, [10])
    assert (reaped.read, reaped.written) == (1105, 7)
    procfs.hide(tmp_path, 10)
    procfs.hide(tmp_path, 30)
    assert probe.read(4, [10]).read == 1105


def test_a_thread_with_the_number_of_another_adds_to_it(tmp_path: Path) -> None:
    """Where a thread's time runs backwards it is another thread, and the first one's time stays."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(10, threads=(Thread(100), Thread(9000))))
    probe.read(1, [10])
    procfs.show(tmp_path, Shown(10, threads=(Thread(100), Thread(40))))
    assert probe.read(2, [10]).cpu_ns == 9140


@pytest.mark.parametrize(
    ("name", "text"), [("cpu.stat", "usage_usec 5000\nuser_usec 4000"), ("cpuacct.usage", "5000000")]
)
def test_the_group_s_own_account_counts_the_shortest_lived(tmp_path: Path, name: str, text: str) -> None:
    """Processor time that no look has seen is in the control group's account, in both versions."""
    write(tmp_path / "group/cgroup.procs", "10")
    write(tmp_path / "group" / name, text)
    procfs.show(tmp_path, Shown(10, threads=(Thread(1000),)))
    assert TaskProbe(tmp_path, tmp_path / "group").read(1).cpu_ns == 5_000_000


def test_what_is_closed_to_us_is_said(tmp_path: Path) -> None:
    """A process whose bytes and pages are not shown has zeros there, and the reading says so."""
    procfs.show(tmp_path, Shown(10, read=5))
    (tmp_path / "10/io").unlink()
    (tmp_path / "10/smaps_rollup").unlink()
    reading = TaskProbe(tmp_path).read(1, [10], proportional=True)
    assert (reading.read, reading.proportional) == (0, None)
    assert [reason.partition(":")[0] for reason in reading.missing] == [
        "bytes read and written",
        "proportional memory",
    ]


def test_shared_pages_count_in_part_when_asked(tmp_path: Path) -> None:
    """Proportional memory is the sum over the processes; too much memory to walk through is left out."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(10, pss_kib=30))
    procfs.show(tmp_path, Shown(20, pss_kib=12))
    assert probe.read(1, [10, 20], proportional=True).proportional == 42 * 1024
    procfs.show(tmp_path, Shown(20, pages=limits.PROFILE_PROPORTIONAL_BYTES_MAX // PAGE + 1))
    large = probe.read(2, [10, 20], proportional=True)
    assert large.proportional is None
    assert "too much" in large.missing[0]


def test_the_kernel_s_peak_counts(tmp_path: Path) -> None:
    """Memory that was used and freed between two looks is in the peak."""
    procfs.show(tmp_path, Shown(10, pages=1, peak_kib=9_000))
    assert TaskProbe(tmp_path).read(1, [10]).peak == 9_000 * 1024


def test_a_task_of_too_many_processes_is_cut_and_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound not all are looked at, which is said; one that was seen before stays as it was."""
    probe = TaskProbe(tmp_path)
    for pid in (10, 20, 30):
        procfs.show(tmp_path, Shown(pid, threads=(Thread(100),)))
    assert probe.read(1, [10, 20, 30]).cpu_ns == 300
    monkeypatch.setattr(limits, "PROFILE_PROCESSES_MAX", 2)
    cut = probe.read(2, [10, 20, 30])
    assert cut.cpu_ns == 300
    assert cut.missing == ("the task has too many processes or threads; some were not measured",)
    monkeypatch.setattr(limits, "PROFILE_PROCESSES_MAX", 3)
    assert probe.read(3, [10, 20, 30]).cpu_ns == 300
    assert TaskProbe(tmp_path).read(1, [10, 20, 30]).cpu_ns == 300


def test_a_process_of_too_many_threads_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound not all threads are looked at, which is said."""
    procfs.show(tmp_path, Shown(10, threads=(Thread(100),) * 3))
    monkeypatch.setattr(limits, "PROFILE_THREADS_MAX", 2)
    cut = TaskProbe(tmp_path).read(1, [10])
    assert (cut.threads, cut.cpu_ns, len(cut.missing)) == (2, 200, 1)


def test_a_group_of_too_many_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The members of a control group are bounded like those that are told, and the reading says so."""
    write(tmp_path / "group/cgroup.procs", "10\n20\n30")
    for pid in (10, 20, 30):
        procfs.show(tmp_path, Shown(pid))
    probe = TaskProbe(tmp_path, tmp_path / "group")
    monkeypatch.setattr(limits, "PROFILE_PROCESSES_MAX", 2)
    cut = probe.read(1)
    assert (cut.processes, len(cut.missing)) == (2, 1)
    monkeypatch.setattr(limits, "PROFILE_PROCESSES_MAX", 3)
    whole = probe.read(2)
    assert (whole.processes, whole.missing) == (3, ())


def test_a_number_that_was_taken_back_may_be_told_anew(tmp_path: Path) -> None:
    """A process that the caller names again after it had left it out is one that it knows: it counts."""
    probe = TaskProbe(tmp_path)
    procfs.show(tmp_path, Shown(10, start=1, threads=(Thread(100),)))
    probe.read(1, [10])
    probe.read(2, [])
    procfs.show(tmp_path, Shown(10, start=2, threads=(Thread(40),)))
    assert probe.read(3, [10]).cpu_ns == 140


def test_a_real_process_is_seen_working_and_ending(busy: subprocess.Popen[bytes]) -> None:
    """A child's processor time grows while it computes, and stays when it is dead."""
    probe = TaskProbe()
    before = probe.read(time.monotonic_ns(), [busy.pid])
    assert (before.processes, before.threads) == (1, 1)
    assert 0 < before.resident <= before.peak <= before.virtual
    begin(busy)
    after = before
    for _ in until():
        after = probe.read(time.monotonic_ns(), [busy.pid])
        if after.cpu_ns >= before.cpu_ns + SECOND // 20:
            break
    metrics = values(before, after)
    assert metrics[Metric.CPU_MILLI] > 0
    assert metrics[Metric.STRETCH_MILLI] >= 1000
    busy.kill()
    busy.wait()
    gone = probe.read(time.monotonic_ns(), [busy.pid])
    assert (gone.processes, gone.resident) == (0, 0)
    assert gone.cpu_ns >= after.cpu_ns


def test_waiting_threads_are_seen() -> None:
    """Threads that wait are counted as threads of their process, until it has ended."""
    script = (
        "import sys, threading; wait = threading.Event().wait\n"
        "for _ in range(3): threading.Thread(target=wait, daemon=True).start()\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    probe = TaskProbe()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        assert probe.read(1, [child.pid]).threads == 4
        child.stdin.close()
        for _ in until():
            if probe.read(2, [child.pid]).threads == 0:
                break


def test_a_real_child_of_a_task_is_followed() -> None:
    """A process that the task starts is seen by the next look, and its processor time with it."""
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}], stdin=0)"
    probe = TaskProbe()
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, process_group=0) as parent:
        try:
            first = probe.read(1, [parent.pid])
            for _ in until():
                first = probe.read(1, [parent.pid])
                if first.processes == 2:
                    break
            begin(parent)
            for _ in until():
                if probe.read(2, [parent.pid]).cpu_ns >= first.cpu_ns + SECOND // 20:
                    break
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
    for _ in until():
        if probe.read(3, [parent.pid]).processes == 0:
            break


def test_a_sample_of_a_real_process_makes_a_profile(busy: subprocess.Popen[bytes]) -> None:
    """From the look to the profile: what was measured here can be asked for there."""
    probe = TaskProbe()
    first = probe.read(time.monotonic_ns(), [busy.pid])
    second = probe.read(time.monotonic_ns(), [busy.pid])
    base = KnowledgeBase("n", 1)
    base.add(Sample.of("busy", "type", "here", second.at_ns, values(first, second)))
    profile = base.profile("busy", "type")
    assert profile is not None
    assert profile.mean(Metric.RESIDENT) == second.resident
