"""The number of workers of ``dios.Executor``, which follows the calls that wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

import dios
from dios.errors import InvalidError
from tests.support.node.running_node import RunningNode, wait_until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("executor") / "data", {"pool_size": "2"})
    yield running
    running.stop()


def test_a_burst_starts_all_workers_at_once(node: RunningNode) -> None:
    """All workers of a burst are requested before the first call has ended; a further call waits."""
    executor = dios.Executor(3, node=node.place)
    try:
        futures = [executor.submit(time.sleep, 600) for _ in range(4)]
        wait_until(lambda: executor.stats().starting + executor.stats().workers == 3, "three are requested")
        wait_until(lambda: executor.stats().running == 3, "three calls run")
        stats = executor.stats()
        assert (stats.workers, stats.starting, stats.waiting, stats.completed) == (3, 0, 1, 0)
        assert not any(future.done() for future in futures)
    finally:
        executor.__exit__(KeyboardInterrupt, None, None)


def test_calls_one_after_the_other_start_one_worker(node: RunningNode) -> None:
    """A caller that waits for each result needs no second worker, although more are permitted."""
    with dios.Executor(8, node=node.place) as executor:
        assert [executor.submit(abs, -number).result(60) for number in range(200)] == list(range(200))
        stats = executor.stats()
        assert (stats.workers, stats.workers_started) == (1, 1)


def test_idle_workers_end_except_the_last_one(node: RunningNode) -> None:
    """Workers end after their idle time and start again for the next burst; no call fails."""
    with dios.Executor(3, node=node.place, idle_timeout=0.2) as executor:
        for bursts in (1, 2):
            futures = [executor.submit(time.sleep, 0.3) for _ in range(6)]
            assert [future.result(60) for future in futures] == [None] * 6
            wait_until(lambda: executor.stats().workers == 1, "one worker is left")
            stats = executor.stats()
            assert stats.workers_ended == stats.workers_started - 1 >= bursts
            assert (stats.workers_lost, stats.failed) == (0, 0)
        assert executor.submit(abs, -1).result(60) == 1


def test_workers_stay_without_an_idle_time(node: RunningNode) -> None:
    """With None nothing ends before the executor; other times than positive ones are refused."""
    with dios.Executor(2, node=node.place, idle_timeout=None) as executor:
        for future in [executor.submit(time.sleep, 0.3) for _ in range(2)]:
            future.result(60)
        assert executor.stats().workers == 2
    for time_s in (0, -1, float("nan")):
        with pytest.raises(InvalidError, match="idle_timeout"):
            dios.Executor(1, node=node.place, idle_timeout=time_s)


def wait_briefly(number: int) -> int:
    """Return a number after a moment."""
    time.sleep(0.05)
    return number


@pytest.mark.parametrize("size", [1, 8 << 20])
def test_a_call_that_hangs_is_made_a_second_time(node: RunningNode, size: int) -> None:
    """The copy's result counts, also a large one in a blob, and the worker that hung is ended."""

    def hanging_call(number: int) -> bytes:
        return bytes(size if number == 6 else 1)

    with (
        dios.Executor(2, node=node.place, copies=[hanging_call]) as executor,
        dios.connect(node.place) as session,
    ):
        assert [len(executor.submit(hanging_call, number).result(60)) for number in range(6)] == [1] * 6
        (worker,) = [row for row in session.tasks() if row.label == "worker" and not row.ended]
        os.kill(worker.pid, signal.SIGSTOP)
        assert len(executor.submit(hanging_call, 6).result(60)) == size
        stats = executor.stats()
        assert (stats.copies, stats.copies_first, stats.workers_lost) == (1, 1, 0)
        assert (stats.submitted, stats.completed, stats.failed, stats.repeated) == (7, 7, 0, 0)
        # The calls go on in the worker that is left.
        assert len(executor.submit(hanging_call, 7).result(60)) == 1
        wait_until(lambda: all(row.ended for row in session.tasks() if row.pid == worker.pid), "it is ended")
