"""What is measured of tasks and of the machine (§6.5.3, Table 6.4)."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sched_procfs as made
from sched_procfs import Shown, Thread
from sched_sysfs import write

from dios import limits
from dios.firmament.counters import (
    Counter,
    CounterReading,
    TaskCounters,
    open_counter,
    reason,
    survey,
)
from dios.firmament.descriptors import FinalReport
from dios.firmament.knowledge import KnowledgeBase
from dios.firmament.load import read_machine, use
from dios.firmament.procfs import names
from dios.firmament.profiling import TABLE_6_4, TaskProbe, TaskReading, unmeasured, values
from dios.firmament.samples import Metric, Sample, of_report

SECOND = 1_000_000_000
TICK = SECOND // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE_S = 30
BUSY = "import sys; sys.stdin.readline(); [sum(range(1000)) for _ in iter(int, 1)]"


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a line and then computes for ever."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def begin(child: subprocess.Popen[bytes]) -> None:
    """Let it compute."""
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()


def until(seconds: float = PATIENCE_S) -> Iterator[None]:
    """Turns of a loop that waits for something, until it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.005)
    pytest.fail(f"it did not happen within {seconds} s")


# -- tasks, on files made by hand ------------------------------------------------------------------------


def test_a_task_is_the_sum_of_its_processes(tmp_path: Path) -> None:
    """Sizes, times, faults, bytes and switches of all processes and threads are added up."""
    threads = (Thread(5 * TICK, 3, 1, 2), Thread(7 * TICK, 4, 10, 20))
    made.show(tmp_path, Shown(10, minor=1, major=2, pages=3, virtual=4, read=5, written=6, threads=threads))
    made.show(tmp_path, Shown(20, minor=1, major=1, pages=1, virtual=1, read=1, written=1, ticks=9))
    assert TaskProbe(tmp_path).look(77, [10, 20]) == TaskReading(
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
    made.show(tmp_path, Shown(10, read=5, threads=(Thread(1000), Thread(500, 50))))
    made.show(tmp_path, Shown(20, read=7, threads=(Thread(300),)))
    first = probe.look(1, [10, 20])
    made.show(tmp_path, Shown(10, read=6, threads=(Thread(1100),)))
    made.hide(tmp_path, 20)
    second = probe.look(2, [10, 20])
    assert (first.cpu_ns, second.cpu_ns) == (1800, 1900)
    assert (first.read, second.read) == (12, 13)
    assert second.wait_ns == 50
    assert (second.processes, second.threads, second.resident) == (1, 1, 10 * PAGE)
    assert second.peak == 20 * PAGE
    made.hide(tmp_path, 10)
    last = probe.look(3, [10, 20])
    assert (last.processes, last.cpu_ns, last.read, last.missing) == (0, 1900, 13, ())


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    """What nobody has waited for yet is no process of the task any more, and stays counted."""
    probe = TaskProbe(tmp_path)
    made.show(tmp_path, Shown(10, threads=(Thread(1000),)))
    probe.look(1, [10])
    made.show(tmp_path, Shown(10, state="Z", pages=0, threads=(Thread(),)))
    second = probe.look(2, [10])
    assert (second.processes, second.cpu_ns) == (0, 1000)


def test_a_number_that_is_given_again_is_a_stranger(tmp_path: Path) -> None:
    """Another process with the number of one that ended does not count; in a control group it does."""
    group = tmp_path / "group"
    write(group / "cgroup.procs", "10")
    told, grouped = TaskProbe(tmp_path), TaskProbe(tmp_path, group)
    made.show(tmp_path, Shown(10, start=100, threads=(Thread(1000),)))
    for probe, pids in ((told, [10]), (grouped, [])):
        assert probe.look(1, pids).cpu_ns == 1000
    made.show(tmp_path, Shown(10, start=200, threads=(Thread(70_000),)))
    stranger, member = told.look(2, [10]), grouped.look(2)
    assert (stranger.processes, stranger.cpu_ns) == (0, 1000)
    assert (member.processes, member.cpu_ns) == (1, 71_000)


def test_a_thread_with_the_number_of_another_adds_to_it(tmp_path: Path) -> None:
    """Where a thread's time runs backwards it is another thread, and the first one's time stays."""
    probe = TaskProbe(tmp_path)
    made.show(tmp_path, Shown(10, threads=(Thread(100), Thread(9000))))
    probe.look(1, [10])
    made.show(tmp_path, Shown(10, threads=(Thread(100), Thread(40))))
    assert probe.look(2, [10]).cpu_ns == 9140


@pytest.mark.parametrize(
    ("name", "text"), [("cpu.stat", "usage_usec 5000\nuser_usec 4000"), ("cpuacct.usage", "5000000")]
)
def test_the_group_s_own_account_counts_the_shortest_lived(tmp_path: Path, name: str, text: str) -> None:
    """Processor time that no look has seen is in the control group's account, in both versions."""
    write(tmp_path / "group/cgroup.procs", "10")
    write(tmp_path / "group" / name, text)
    made.show(tmp_path, Shown(10, threads=(Thread(1000),)))
    assert TaskProbe(tmp_path, tmp_path / "group").look(1).cpu_ns == 5_000_000


def test_what_is_closed_to_us_is_said(tmp_path: Path) -> None:
    """A process whose bytes and pages are not shown has zeros there, and the reading says so."""
    made.show(tmp_path, Shown(10, read=5))
    (tmp_path / "10/io").unlink()
    (tmp_path / "10/smaps_rollup").unlink()
    reading = TaskProbe(tmp_path).look(1, [10], proportional=True)
    assert (reading.read, reading.proportional) == (0, None)
    assert [each.partition(":")[0] for each in reading.missing] == [
        "bytes read and written",
        "proportional memory",
    ]


def test_shared_pages_count_in_part_when_asked(tmp_path: Path) -> None:
    """Proportional memory is the sum over the processes; too much memory to walk through is left out."""
    probe = TaskProbe(tmp_path)
    made.show(tmp_path, Shown(10, pss_kib=30))
    made.show(tmp_path, Shown(20, pss_kib=12))
    assert probe.look(1, [10, 20], proportional=True).proportional == 42 * 1024
    made.show(tmp_path, Shown(20, pages=limits.PROFILE_PROPORTIONAL_BYTES_MAX // PAGE + 1))
    large = probe.look(2, [10, 20], proportional=True)
    assert large.proportional is None
    assert "too much" in large.missing[0]


def test_the_kernel_s_peak_counts(tmp_path: Path) -> None:
    """Memory that was used and freed between two looks is in the peak."""
    made.show(tmp_path, Shown(10, pages=1, peak_kib=9_000))
    assert TaskProbe(tmp_path).look(1, [10]).peak == 9_000 * 1024


def test_a_task_of_too_many_processes_is_cut_and_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound not all are looked at, which is said; one that was seen before stays as it was."""
    probe = TaskProbe(tmp_path)
    for pid in (10, 20, 30):
        made.show(tmp_path, Shown(pid, threads=(Thread(100),)))
    assert probe.look(1, [10, 20, 30]).cpu_ns == 300
    monkeypatch.setattr(limits, "PROFILE_PROCESSES_MAX", 2)
    cut = probe.look(2, [10, 20, 30])
    assert cut.cpu_ns == 300
    assert cut.missing == ("the task has more processes or threads than are looked at",)
    monkeypatch.setattr(limits, "PROFILE_PROCESSES_MAX", 3)
    assert probe.look(3, [10, 20, 30]).cpu_ns == 300
    assert TaskProbe(tmp_path).look(1, [10, 20, 30]).cpu_ns == 300


# -- values of samples -----------------------------------------------------------------------------------


def reading(at_ns: int, **changed: int) -> TaskReading:
    """A reading with little in it, and these fields."""
    fields: dict[str, int] = {
        name: 0 for name in TaskReading.__slots__ if name not in {"proportional", "missing"}
    }
    fields |= {"at_ns": at_ns, "virtual": 9, "resident": 8} | changed
    return TaskReading(**fields, proportional=None, missing=())


def test_two_looks_make_rates() -> None:
    """Counts are those between the looks, rates are by the time between, sizes are the last ones."""
    found = values(
        reading(SECOND, cpu_ns=SECOND, read=100, yields=3),
        reading(3 * SECOND, cpu_ns=2 * SECOND, wait_ns=SECOND, read=1100, written=10, yields=5),
    )
    assert found[Metric.CPU_MILLI] == 500
    assert found[Metric.CPU_NS] == SECOND
    assert found[Metric.STRETCH_MILLI] == 2000
    assert (found[Metric.READ_S], found[Metric.WRITTEN_S], found[Metric.YIELDS]) == (500, 5, 2)
    assert (found[Metric.VIRTUAL], found[Metric.RESIDENT]) == (9, 8)
    assert Metric.PROPORTIONAL not in found
    assert Metric.PS_PER_INSTRUCTION not in found


def test_counters_have_the_last_word() -> None:
    """Of what procfs and a counter both know the counter's value is taken, and ratios come from counters."""
    before = CounterReading({Counter.INSTRUCTIONS: 1000, Counter.TASK_CLOCK: 0, Counter.LLC_MISSES: 5})
    after = CounterReading(
        {Counter.INSTRUCTIONS: 2_001_000, Counter.TASK_CLOCK: 700, Counter.LLC_MISSES: 1005}
    )
    found = values(reading(0, cpu_ns=0), reading(1000, cpu_ns=600), after, before)
    assert found[Metric.CPU_NS] == 700
    assert found[Metric.CPU_MILLI] == 700
    assert found[Metric.IPMA] == 2000
    assert found[Metric.MAI_MICRO] == 500
    assert Metric.CPI_MILLI not in found


def test_looks_in_the_wrong_order_are_refused() -> None:
    """A second look that is not later raises, rather than dividing by it."""
    for at_ns in (5, 4):
        with pytest.raises(ValueError, match="must be later"):
            values(reading(5), reading(at_ns))


def test_what_runs_backwards_is_nothing() -> None:
    """A count that is smaller than before makes no negative value."""
    found = values(reading(1, cpu_ns=9, read=9, yields=9), reading(2))
    assert min(found.values()) == 0


def test_each_row_of_table_6_4_is_measured_or_has_a_reason() -> None:
    """On this machine every metric of the thesis is in a task's values, or named with why it is not."""
    reasons = survey()
    refused = unmeasured(reasons)
    assert len(TABLE_6_4) == 12
    probe, pids = TaskProbe(), [os.getpid()]
    with TaskCounters(pids) as counters:
        first = probe.look(time.monotonic_ns(), pids)
        second = probe.look(time.monotonic_ns(), pids)
        found = values(first, second, counters.read()) | of_report(FinalReport(1.0))
    for row in TABLE_6_4:
        assert (row.metric in found) != (row.name in refused), (row, refused.get(row.name))
    assert all(why for why in refused.values())


def test_rows_that_need_a_refused_counter_name_it() -> None:
    """CPI needs cycles and instructions: refused cycles are the reason against CPI, and not against MAI."""
    refused = unmeasured({Counter.CYCLES: "cycles: EPERM: not permitted"})
    assert set(refused) == {"Total cycles", "Cycles per instruction (CPI)"}
    assert unmeasured(dict.fromkeys(Counter, "")) == {}


# -- real processes --------------------------------------------------------------------------------------


def test_a_real_process_is_seen_working_and_ending(busy: subprocess.Popen[bytes]) -> None:
    """A child's processor time grows while it computes, and stays when it is dead."""
    probe = TaskProbe()
    before = probe.look(time.monotonic_ns(), [busy.pid])
    assert (before.processes, before.threads) == (1, 1)
    assert 0 < before.resident <= before.peak <= before.virtual
    begin(busy)
    after = before
    for _ in until():
        after = probe.look(time.monotonic_ns(), [busy.pid])
        if after.cpu_ns >= before.cpu_ns + SECOND // 20:
            break
    found = values(before, after)
    assert found[Metric.CPU_MILLI] > 0
    assert found[Metric.STRETCH_MILLI] >= 1000
    busy.kill()
    busy.wait()
    gone = probe.look(time.monotonic_ns(), [busy.pid])
    assert (gone.processes, gone.resident) == (0, 0)
    assert gone.cpu_ns >= after.cpu_ns


def test_our_own_threads_are_seen() -> None:
    """Threads that wait are counted as threads of their process."""
    stop, started = threading.Event(), threading.Barrier(4)

    def body() -> None:
        started.wait(PATIENCE_S)
        stop.wait(PATIENCE_S)

    probe = TaskProbe()
    idle = probe.look(1, [os.getpid()]).threads
    workers = [threading.Thread(target=body) for _ in range(3)]
    for worker in workers:
        worker.start()
    started.wait(PATIENCE_S)
    assert probe.look(2, [os.getpid()]).threads == idle + 3
    stop.set()
    for worker in workers:
        worker.join()
    for _ in until():
        if probe.look(3, [os.getpid()]).threads == idle:
            break


def test_a_sample_of_a_real_process_makes_a_profile(busy: subprocess.Popen[bytes]) -> None:
    """From the look to the profile: what was measured here can be asked for there."""
    probe = TaskProbe()
    first = probe.look(time.monotonic_ns(), [busy.pid])
    second = probe.look(time.monotonic_ns(), [busy.pid])
    base = KnowledgeBase("n", 1)
    base.add(Sample.of("busy", "type", "here", second.at_ns, values(first, second)))
    profile = base.profile("busy", "type")
    assert profile is not None
    assert profile.mean(Metric.RESIDENT) == second.resident


# -- counters --------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> None:
    """Skips where not even the kernel's own counters may be had."""
    try:
        os.close(open_counter(Counter.TASK_CLOCK, 0, user_only=True))
    except OSError as error:
        pytest.skip(f"perf_event_open: {errno.errorcode.get(error.errno or 0)}")


@pytest.mark.usefixtures("clock")
def test_a_real_process_is_counted(busy: subprocess.Popen[bytes]) -> None:
    """The kernel's clock of a child grows while it computes, and can be read after its death."""
    with TaskCounters([busy.pid], [Counter.TASK_CLOCK]) as counters:
        begin(busy)
        for _ in until():
            if counters.read().values[Counter.TASK_CLOCK] >= SECOND // 50:
                break
        busy.kill()
        busy.wait()
        last = counters.read()
        assert last.metrics()[Metric.CPU_NS] >= SECOND // 50
        assert last.shares[Counter.TASK_CLOCK] == 1.0


@pytest.mark.usefixtures("clock")
def test_what_a_task_starts_is_counted_too() -> None:
    """A process that was started after the counter was opened counts with the one that started it."""
    burn = "import time\nwhile time.process_time() < 0.1: pass"
    script = f"import subprocess, sys; sys.stdin.readline(); subprocess.run([sys.executable, '-c', {burn!r}])"
    with (
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as parent,
        TaskCounters([parent.pid], [Counter.TASK_CLOCK]) as counters,
    ):
        begin(parent)
        parent.wait(PATIENCE_S)
        assert counters.read().values[Counter.TASK_CLOCK] >= SECOND // 10


def test_every_counter_of_this_machine_counts_or_has_a_reason() -> None:
    """No counter is silent: it has a value, or a reason that begins with its name and the errno."""
    with TaskCounters([os.getpid()]) as counters:
        found = counters.read()
    reasons = survey()
    for counter in Counter:
        assert (counter in found.values) != (counter in found.reasons), counter
        assert reasons[counter] == found.reasons.get(counter, ""), counter


class Opener:
    """Opens files that read as counters do, or refuses as told; (value, wanted, running) by counter."""

    def __init__(self, readings: dict[Counter, tuple[int, int, int]], refusals: dict[int, int]) -> None:
        self.readings = readings
        self.refusals = refusals
        self.asked: list[tuple[Counter, int, bool]] = []
        self.opened: list[int] = []

    def __call__(self, counter: Counter, thread: int, user_only: bool) -> int:  # noqa: FBT001 - an Open
        """A descriptor, or the refusal for this thread."""
        self.asked.append((counter, thread, user_only))
        code = self.refusals.get(thread, 0)
        if code and not (user_only and code in {errno.EACCES, errno.EPERM}):
            raise OSError(code, os.strerror(code))
        fd = os.memfd_create("counter")
        self.opened.append(fd)
        os.pwrite(fd, struct.pack("=QQQ", *self.readings[counter]), 0)
        return fd


def closed(fd: int) -> bool:
    """Whether a descriptor is closed."""
    try:
        os.fstat(fd)
    except OSError as error:
        return error.errno == errno.EBADF
    return False


def task_of(proc: Path, *threads: int) -> list[int]:
    """A process with these threads."""
    for thread in threads:
        (proc / f"{threads[0]}/task/{thread}").mkdir(parents=True)
    return [threads[0]]


def test_a_counter_that_shared_the_processor_s_is_scaled(tmp_path: Path) -> None:
    """A value counted in a quarter of the time is multiplied by four, and the share is told."""
    opener = Opener({Counter.CYCLES: (100, 4000, 1000)}, {})
    with TaskCounters(task_of(tmp_path, 5, 6), [Counter.CYCLES], tmp_path, opener) as counters:
        found = counters.read()
    assert found.values == {Counter.CYCLES: 800}
    assert found.shares == {Counter.CYCLES: 0.25}
    assert all(closed(fd) for fd in opener.opened)


def test_a_counter_that_never_ran_is_no_zero(tmp_path: Path) -> None:
    """Where others had the processor's counters all the time, nothing is known."""
    opener = Opener({Counter.CYCLES: (0, 4000, 0)}, {})
    with TaskCounters(task_of(tmp_path, 5), [Counter.CYCLES], tmp_path, opener) as counters:
        found = counters.read()
    assert found.values == {}
    assert "taken by others" in found.reasons[Counter.CYCLES]


def test_without_the_right_to_see_the_kernel_s_part_there_is_the_other(tmp_path: Path) -> None:
    """Refused for the kernel's part, a counter is opened for the program's own, and the reading says so."""
    opener = Opener({Counter.CYCLES: (7, 10, 10)}, {5: errno.EACCES})
    with TaskCounters(task_of(tmp_path, 5), [Counter.CYCLES], tmp_path, opener) as counters:
        found = counters.read()
    assert found.user_only
    assert found.values == {Counter.CYCLES: 7}


def test_a_counter_that_some_threads_refuse_is_none(tmp_path: Path) -> None:
    """Part of a task's threads would be a wrong number: the counter is closed, with the reason."""
    opener = Opener({Counter.CYCLES: (7, 10, 10)}, {6: errno.EMFILE})
    with TaskCounters(task_of(tmp_path, 5, 6), [Counter.CYCLES], tmp_path, opener) as counters:
        found = counters.read()
        assert [closed(fd) for fd in opener.opened] == [True]
    assert found.values == {}
    assert found.reasons[Counter.CYCLES] == "cycles: EMFILE: too many open files"


def test_a_thread_that_ended_meanwhile_is_left_out(tmp_path: Path) -> None:
    """ESRCH is the end of a thread; the others are counted, and without any the task has ended."""
    opener = Opener({Counter.CYCLES: (7, 10, 10)}, {6: errno.ESRCH})
    with TaskCounters(task_of(tmp_path, 5, 6), [Counter.CYCLES], tmp_path, opener) as counters:
        assert counters.read().values == {Counter.CYCLES: 7}
    with TaskCounters(task_of(tmp_path / "b", 6), [Counter.CYCLES], tmp_path / "b", opener) as counters:
        assert counters.read().reasons == {Counter.CYCLES: "the task has ended"}
    with TaskCounters([99], [Counter.CYCLES], tmp_path, opener) as counters:
        assert counters.read().reasons == {Counter.CYCLES: "the task has no processes"}


def test_descriptors_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of very many threads gets no counters rather than all of the node's descriptors."""
    monkeypatch.setattr(limits, "COUNTER_DESCRIPTORS_MAX", 3)
    opener = Opener({Counter.CYCLES: (7, 10, 10)}, {})
    with TaskCounters(task_of(tmp_path, 5, 6, 7, 8), [Counter.CYCLES], tmp_path, opener) as counters:
        assert "over 3" in counters.read().reasons[Counter.CYCLES]
    assert len(opener.opened) == 3
    assert all(closed(fd) for fd in opener.opened)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOENT, "ENOENT: the processor"),
        (errno.EOPNOTSUPP, "the processor"),
        (errno.EACCES, "EACCES: not permitted: give CAP_PERFMON"),
        (errno.EPERM, "perf_event_paranoid"),
        (errno.ENOSYS, "ENOSYS: this kernel"),
        (errno.EINVAL, "EINVAL: Invalid"),
    ],
)
def test_a_refusal_says_what_it_is_and_what_would_help(code: int, words: str) -> None:
    """The reason has the counter's name, the errno and a sentence."""
    assert reason(Counter.LLC_MISSES, code).startswith("llc_misses: ")
    assert words in reason(Counter.LLC_MISSES, code)


def test_a_survey_leaves_nothing_open() -> None:
    """Asking what there is takes no descriptor for good, and names every counter."""
    before = len(names(Path("/proc/self/fd")))
    found = survey()
    assert set(found) == set(Counter)
    assert len(names(Path("/proc/self/fd"))) == before


# -- the machine -----------------------------------------------------------------------------------------


def test_a_machine_s_use_comes_from_two_readings(tmp_path: Path) -> None:
    """Shares of processors, disks and links are those of the time between; whole disks count once."""
    made.show_machine(tmp_path, busy=100, idle=100)
    first = read_machine(SECOND, tmp_path / "proc", tmp_path / "sys")
    made.show_machine(tmp_path, busy=150, idle=140, stolen=10, sectors=500, link=1000)
    second = read_machine(2 * SECOND, tmp_path / "proc", tmp_path / "sys")
    found = use(first, second)
    assert found.cpu == pytest.approx(0.6)
    assert found.stolen == pytest.approx(0.1)
    assert found.memory == pytest.approx(0.75)
    assert found.disk == 500 * 512 * 2
    assert found.disk_busy == pytest.approx(0.5)
    assert found.network == 2000
    assert found.waiting == {"cpu": pytest.approx(0.05)}
    assert second.load == (1.5, 0.75, 0.25)
    assert (second.running, second.switches, second.swap_used) == (3, 55, 30 * 1024)
    assert second.pressure["cpu"].some_10s == pytest.approx(0.125)


def test_a_machine_that_shows_nothing_is_all_zeros(tmp_path: Path) -> None:
    """Where a container hides procfs, readings and shares are zeros, and nothing is divided by them."""
    first, second = (read_machine(at, tmp_path, tmp_path) for at in (1, 2))
    assert second.memory == second.read == second.running == 0
    assert second.pressure == {}
    found = use(first, second)
    assert (found.cpu, found.memory, found.disk, found.waiting) == (0.0, 0.0, 0.0, {})
    with pytest.raises(ValueError, match="must be later"):
        use(second, first)


def test_this_machine_is_read() -> None:
    """Here memory, processors and load are there, and every share is one."""
    first = read_machine(0)
    second = read_machine(SECOND)
    assert 0 < second.available <= second.memory
    assert sum(second.cpu_ticks) > 0
    found = use(first, second)
    for share in (found.cpu, found.stolen, found.memory, found.disk_busy, *found.waiting.values()):
        assert 0 <= share <= 1
