"""What is counted by processor and kernel, and why not (§6.5.3)."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios import limits
from dios.firmament.knowledge.samples import Metric
from dios.firmament.monitor.counters import Counter, TaskCounters, open_counter, reason, survey
from dios.host.machine.procfs import names
from tests.support.firmament.busy_child import PATIENCE_S, begin, idle_child, until

SECOND = 1_000_000_000
TICK = SECOND // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a line and then computes for ever."""
    with idle_child() as child:
        yield child


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
        reading = counters.read()
    reasons = survey()
    for counter in Counter:
        assert (counter in reading.values) != (counter in reading.reasons), counter
        # On a busy processor a counter may be had and never run.
        assert reasons[counter] in {"", reading.reasons.get(counter)}, counter
        assert not reasons[counter] or reasons[counter].startswith(f"{counter.name.lower()}: E"), counter


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
        reading = counters.read()
    assert reading.values == {Counter.CYCLES: 800}
    assert reading.shares == {Counter.CYCLES: 0.25}
    assert all(closed(fd) for fd in opener.opened)


def test_a_counter_that_never_ran_is_no_zero(tmp_path: Path) -> None:
    """Where others had the processor's counters all the time, nothing is known."""
    opener = Opener({Counter.CYCLES: (0, 4000, 0)}, {})
    with TaskCounters(task_of(tmp_path, 5), [Counter.CYCLES], tmp_path, opener) as counters:
        reading = counters.read()
    assert reading.values == {}
    assert "in use by other programs" in reading.reasons[Counter.CYCLES]


def test_without_the_right_to_see_the_kernel_s_part_there_is_the_other(tmp_path: Path) -> None:
    """Refused for the kernel's part, a counter is opened for the program's own, and the reading says so."""
    opener = Opener({Counter.CYCLES: (7, 10, 10)}, {5: errno.EACCES})
    with TaskCounters(task_of(tmp_path, 5), [Counter.CYCLES], tmp_path, opener) as counters:
        reading = counters.read()
    assert reading.user_only
    assert reading.values == {Counter.CYCLES: 7}


def test_a_counter_that_some_threads_refuse_is_none(tmp_path: Path) -> None:
    """Part of a task's threads would be a wrong number: the counter is closed, with the reason."""
    opener = Opener({Counter.CYCLES: (7, 10, 10)}, {6: errno.EMFILE})
    with TaskCounters(task_of(tmp_path, 5, 6), [Counter.CYCLES], tmp_path, opener) as counters:
        reading = counters.read()
        assert [closed(fd) for fd in opener.opened] == [True]
    assert reading.values == {}
    assert reading.reasons[Counter.CYCLES] == "cycles: EMFILE: too many open files"


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


def test_a_survey_asks_once_for_each_counter() -> None:
    """However many threads this process has, a survey takes one descriptor at a time."""
    opener = Opener(dict.fromkeys(Counter, (1, 1, 1)), {})
    assert survey(opener) == dict.fromkeys(Counter, "")
    assert opener.asked == [(counter, 0, False) for counter in Counter]
    assert all(closed(fd) for fd in opener.opened)
    assert survey(Opener({}, {0: errno.ENOSYS}))[Counter.CYCLES].startswith("cycles: ENOSYS")


def test_a_survey_leaves_nothing_open() -> None:
    """Asking what there is takes no descriptor for good, and names every counter."""
    before = len(names(Path("/proc/self/fd")))
    reasons = survey()
    assert set(reasons) == set(Counter)
    assert len(names(Path("/proc/self/fd"))) == before
