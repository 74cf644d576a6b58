"""Calls under control: time limits, ends of single calls, repetitions, needs, lazy maps, fresh workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import itertools
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import dios
from dios.errors import InvalidError
from dios.lib.executor import shared_executors
from dios.lib.executor.errors import CallEndedError, CallTimeLimitError, WorkerEndedError
from dios.lib.executor.futures import CallFuture
from dios.lib.executor.pool import running_pools
from dios.lib.executor.result_order import OrderedResults
from dios.limits import MIB
from tests.support.node.running_node import RunningNode, wait_until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("control") / "data", {})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def executor(node: RunningNode) -> Iterator[dios.Executor]:
    """An executor with one worker, which runs."""
    with dios.Executor(1, node=node.place) as executor:
        executor.submit(os.getpid).result(60)
        yield executor


def forever() -> None:
    """Never return."""
    while True:
        time.sleep(1)


tries = 0


def fails_twice(kind: type[Exception]) -> int:
    """Raise at the first two calls in a worker."""
    global tries
    tries += 1
    if tries <= 2:
        raise kind(f"try {tries}")
    return tries


class LocalError(OSError):
    """An exception of this module."""


# -- ends of calls ----------------------------------------------------------------------------------
def test_a_time_limit_ends_a_call_that_runs_or_waits(executor: dios.Executor) -> None:
    """Its worker is ended, and so the calls behind it go on; one that waits for too long never begins."""
    limited = executor.with_options(timeout=0.3, name="sums")
    running, waiting = limited.submit(forever), limited.submit(pow, 2, 3)
    behind = executor.submit(pow, 2, 4)
    for future in (running, waiting):
        with pytest.raises(CallTimeLimitError, match=r"the call sums did not end within 0\.3 s"):
            future.result(60)
    assert isinstance(running.exception(), TimeoutError)
    assert behind.result(60) == 16
    assert executor.with_options(timeout=60).submit(pow, 2, 5).result(60) == 32
    assert executor.stats().workers_lost == 0


def test_calls_behind_an_ended_one_in_its_worker_are_not_lost(executor: dios.Executor) -> None:
    """Short calls are sent ahead; those that are ended there are not made, and the others are."""
    for _ in range(200):
        executor.submit(pow, 1, 1)
    limited = executor.with_options(timeout=0.5)
    first = limited.submit(forever)
    others = [executor.submit(pow, 2, number) for number in range(40)]
    late = [limited.submit(forever) for _ in range(3)]
    assert isinstance(first.exception(60), CallTimeLimitError)
    assert [future.result(60) for future in others] == [2**number for number in range(40)]
    assert all(isinstance(future.exception(60), CallTimeLimitError) for future in late)
    assert executor.submit(pow, 2, 3).result(60) == 8


def test_the_program_ends_one_call(executor: dios.Executor) -> None:
    """``kill`` ends the worker of a call that runs, cancels one that waits, and leaves one that is done."""
    running = executor.submit(forever)
    wait_until(lambda: running.status().state == "running", "the call runs")
    waiting, other = executor.submit(pow, 2, 3), executor.submit(pow, 2, 4)
    waiting.kill()
    assert waiting.cancelled()
    assert not running.cancel()
    assert not running.done()
    running.kill()
    with pytest.raises(CallEndedError, match="ended by the program"):
        running.result(60)
    assert other.result(60) == 16
    other.kill()
    assert other.result() == 16


def test_an_event_loop_gives_a_call_up(executor: dios.Executor) -> None:
    """A call whose awaiting task is cancelled, or times out, frees its worker for the next one."""

    async def given_up() -> int:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.run_in_executor(executor, forever), 0.5)
        return await asyncio.wait_for(loop.run_in_executor(executor, pow, 2, 3), 60)

    assert asyncio.run(given_up()) == 8


# -- repetitions ------------------------------------------------------------------------------------
def test_a_call_is_made_again_after_some_exceptions(node: RunningNode) -> None:
    """After those of ``retry_on`` or of classes below them, and not more often than ``retries`` says."""
    for kind, retries, is_good in ((ValueError, 2, True), (ValueError, 1, False), (KeyError, 5, False)):
        with dios.Executor(1, node=node.place, retries=retries, retry_on=ValueError) as executor:
            future = executor.submit(fails_twice, kind)
            assert (future.exception(60) is None) is is_good
            assert executor.stats().repeated == (0 if kind is KeyError else min(retries, 2))
            assert executor.stats().failed == (not is_good)
    with dios.Executor(1, node=node.place) as executor:
        view = executor.with_options(retries=2, retry_on=(OSError, KeyError))
        assert view.submit(fails_twice, LocalError).result(60) == 3
        assert view.with_options(name="x").submit(fails_twice, KeyError).result(60) == 4


def test_a_call_whose_worker_ends_is_made_again_if_asked(node: RunningNode) -> None:
    """The end of a worker is an error like others."""
    with dios.Executor(1, node=node.place) as executor:
        future = executor.with_options(retries=2, retry_on=WorkerEndedError, name="x").submit(os._exit, 3)
        with pytest.raises(WorkerEndedError, match=r"ended in the call x: .* exit code 3"):
            future.result(120)
        assert executor.stats().repeated == 2


def test_options_out_of_range_are_refused(executor: dios.Executor) -> None:
    """Before a call is made."""
    for options in ({"timeout": 0}, {"retries": -1}, {"cpus": 0}, {"memory": "1 B"}):
        with pytest.raises(InvalidError):
            executor.with_options(**options)
    with pytest.raises(TypeError, match="class of exceptions"):
        executor.with_options(retry_on=("ValueError",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_tasks_per_child"):
        dios.Executor(1, max_tasks_per_child=0)


# -- needs ------------------------------------------------------------------------------------------
def test_calls_with_needs_have_workers_of_their_own(executor: dios.Executor) -> None:
    """A memory limit holds for them alone; calls with the same needs share the workers."""
    small = executor.with_options(memory=256 * MIB)
    with pytest.raises(MemoryError):
        small.submit(bytearray, 512 * MIB).result(60)
    assert executor.submit(len, bytes(8)).result(60) == 8
    first = small.submit(os.getpid).result(60)
    assert executor.with_options(memory="256 MiB").submit(os.getpid).result(60) == first
    assert executor.stats().workers == 2
    assert list(executor.with_options(cpus=2).map(abs, [-1, -2])) == [1, 2]


# -- map --------------------------------------------------------------------------------------------
def counted(items: Iterator[int], seen: list[int]) -> Iterator[int]:
    """Yield items, and note each."""
    for number in items:
        seen.append(number)
        yield number


def test_map_reads_an_iterator_as_its_results_are_used(executor: dios.Executor) -> None:
    """An endless one gives its first results, and no more than ``buffersize`` items are ahead of them."""
    seen: list[int] = []
    results = executor.map(abs, counted(itertools.count(), seen))
    assert list(itertools.islice(results, 100)) == list(range(100))
    assert len(seen) < 10_000
    for size in (1, 5):
        seen = []
        results = executor.map(abs, counted(itertools.count(), seen), buffersize=size)
        for number in range(30):
            assert len(seen) <= number + size
            assert next(results) == number
    assert list(executor.map(pow, iter(range(500)), itertools.repeat(2), chunksize=7)) == [
        number * number for number in range(500)
    ]
    with pytest.raises(ValueError, match="buffersize"):
        executor.map(abs, [1], buffersize=0)


def test_a_map_whose_results_nobody_wants_is_made_nevertheless(node: RunningNode) -> None:
    """The rest of its iterator is read at the end of the executor, unless a part of its results was used."""
    seen: list[int] = []
    used: list[int] = []
    with dios.Executor(1, node=node.place) as executor:
        executor.map(abs, counted(iter(range(300)), seen))
        next(executor.map(abs, counted(itertools.count(), used)))
        assert len(seen) < 300
    assert len(seen) == 300
    assert executor.stats().completed >= 1
    with dios.Executor(1, node=node.place) as executor:
        kept = executor.map(abs, iter(range(300)), buffersize=5)
    assert list(kept) == list(range(300))


def test_a_time_limit_holds_for_each_item(executor: dios.Executor) -> None:
    """Each is a call of its own."""
    results = executor.with_options(timeout=1).map(time.sleep, [0, 60])
    assert next(results) is None
    with pytest.raises(CallTimeLimitError):
        next(results)


# -- workers ----------------------------------------------------------------------------------------
def call_number() -> int:
    """Return the number of this call in its worker."""
    global tries
    tries += 1
    return tries


def test_a_worker_ends_after_some_calls(node: RunningNode) -> None:
    """Another one takes its place, and no call is lost."""
    with dios.Executor(1, node=node.place, max_tasks_per_child=2) as executor:
        futures = [executor.submit(call_number) for _ in range(5)]
        assert [future.result(120) for future in futures] == [1, 2, 1, 2, 1]
        assert executor.stats().workers_lost == 0


def test_variables_reach_the_environment_of_workers(node: RunningNode) -> None:
    """Before the initializer runs, with the time zone."""
    with dios.Executor(
        1,
        node=node.place,
        env={"NAME": "value", "TZ": "Asia/Tokyo", "RAW": "\udcff"},
        initializer=os.getenv,
        initargs=("NAME",),
    ) as executor:
        assert executor.submit(os.getenv, "NAME").result(60) == "value"
        assert executor.submit(os.getenvb, b"RAW").result(60) == b"\xff"
        assert executor.submit(time.strftime, "%Z").result(60) == "JST"


def test_workers_are_terminated_as_in_the_standard_library(node: RunningNode) -> None:
    """``terminate_workers`` ends calls that run; later ones are refused."""
    executor = dios.Executor(1, node=node.place)
    future = executor.submit(forever)
    wait_until(lambda: future.status().state == "running", "the call runs")
    executor.terminate_workers()
    assert isinstance(future.exception(60), WorkerEndedError)
    with pytest.raises((RuntimeError, concurrent.futures.BrokenExecutor, dios.DiosError)):
        executor.submit(forever)


# -- shared executors -------------------------------------------------------------------------------
def test_executors_with_the_same_arguments_are_one(node: RunningNode) -> None:
    """Its workers stay for the next use. The one that was not used for the longest time is not kept."""
    first = dios.shared_executor(1, node=node.place, env={"A": "1"})
    worker = first.submit(os.getenv, "A").result(60), first.stats().workers_started
    assert dios.shared_executor(1, node=node.place, env={"A": "1"}) is first
    others = [dios.shared_executor(1, node=node.place, env={"A": name}) for name in "23"]
    assert not first.is_ended, "it has a user"
    assert first.submit(os.getenv, "A").result(60) == "1"
    again = dios.shared_executor(1, node=node.place, env={"A": "1"})
    assert again is not first
    assert (again.submit(os.getenv, "A").result(60), again.stats().workers_started) == worker == ("1", 1)
    first_pool = weakref.ref(first._pool)
    del first
    wait_until(lambda: (pool := first_pool()) is None or pool.is_closing, "the first one ends")
    with pytest.raises(InvalidError, match="cannot be shared"):
        dios.shared_executor(1, node=node.place, initargs=({1},))
    shared_executors.forget_shared(again)
    assert dios.shared_executor(1, node=node.place, env={"A": "1"}) is not again
    assert again.submit(os.getenv, "A").result(60) == "1"
    for executor in (*others, again):
        executor.shutdown()
    assert dios.shared_executor(1, node=node.place) is not dios.shared_executor(2, node=node.place)


def test_a_shared_executor_is_kept_while_it_is_used(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a call runs, and for a while afterwards. Its user has it for longer, and nothing else does."""
    monkeypatch.setattr(shared_executors, "_IDLE_S", 1000.0)
    shared = dios.shared_executor(1, node=node.place, env={"A": "idle"})
    kept = next(reversed(shared_executors._kept.values()))
    kept.used_s -= 2000
    future = shared.submit(forever)
    shared_executors._forget_if_idle(kept)
    assert shared_executors._kept[kept.key] is kept
    future.kill()
    wait_until(lambda: not shared.is_busy, "the call has ended")
    shared_executors._forget_if_idle(kept)
    assert kept.key not in shared_executors._kept
    assert shared.submit(pow, 2, 3).result(60) == 8
    again = dios.shared_executor(1, node=node.place, env={"A": "idle"})
    shared_executors._forget_if_idle(kept)
    assert shared_executors._kept[kept.key].executor is again
    again.shutdown()
    shared_executors._forget_if_idle(shared_executors._kept[kept.key])
    assert kept.key not in shared_executors._kept


def test_the_timers_of_shared_executors_end_with_them(node: RunningNode) -> None:
    """An executor that was ended, or is not kept, leaves none."""
    timers = []
    for name in "1234":
        shared = dios.shared_executor(1, node=node.place, env={"T": name})
        timers.append(next(reversed(shared_executors._kept.values())).timer)
        shared.shutdown()
    dios.shared_executor(1, node=node.place, env={"T": "4"})
    for timer in timers:
        assert timer is not None
    assert [timer.finished.is_set() for timer in timers if timer] == [True, True, False, True]


def test_a_forked_process_shares_executors_of_its_own(node: RunningNode) -> None:
    """The lock may be held at the moment of the fork."""
    with shared_executors._lock:
        child = os.fork()
        if not child:
            os._exit(
                0 if shared_executors._lock.acquire(blocking=False) and not shared_executors._kept else 1
            )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- ends of executors ------------------------------------------------------------------------------
def test_an_actor_outlives_the_calls_of_a_worker(node: RunningNode) -> None:
    """Its state would be lost with its worker."""
    with dios.Executor(1, node=node.place, max_tasks_per_child=2) as executor:
        actor = executor.actor(list)
        for number in range(5):
            actor.append.submit(number).result(60)
        assert actor.copy.submit().result(60) == [0, 1, 2, 3, 4]


def test_a_forgotten_executor_ends_also_the_workers_of_calls_with_needs(node: RunningNode) -> None:
    """And a call with needs is refused after the end."""
    executor = dios.Executor(1, node=node.place)
    view = executor.with_options(memory=300 * MIB)
    assert view.submit(pow, 2, 3).result(60) == 8
    pools = [weakref.ref(pool) for pool in executor._all_pools()]
    assert len(pools) == 2
    del executor, view
    gc.collect()
    wait_until(lambda: all((pool := ref()) is None or pool.is_closing for ref in pools), "they end")
    ended = dios.Executor(1, node=node.place)
    ended.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        ended.with_options(memory=300 * MIB).submit(pow, 2, 3)
    assert len(ended._all_pools()) == 1


def test_threads_share_the_workers_of_calls_with_needs(node: RunningNode) -> None:
    """Calls with the same needs that begin together have one pool."""
    with dios.Executor(1, node=node.place) as executor:
        view = executor.with_options(memory=300 * MIB)
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            futures = list(threads.map(lambda number: view.submit(pow, 2, number), range(8)))
        assert [future.result(60) for future in futures] == [2**number for number in range(8)]
        own = {id(pool) for pool in running_pools() if pool._main is executor._main}
        assert own == {id(pool) for pool in executor._all_pools()}


def fails_after(count: int) -> Iterator[int]:
    """Yield some numbers, and raise."""
    yield from range(count)
    raise OSError("no further items")


def test_an_executor_ends_although_an_iterator_fails_then(node: RunningNode) -> None:
    """Other maps whose results nobody wants are made, and the error is raised."""
    seen: list[int] = []
    executor = dios.Executor(1, node=node.place)
    executor.map(abs, fails_after(100))
    executor.map(abs, counted(iter(range(300)), seen))
    executor.map(abs, fails_after(100))
    with pytest.raises(OSError, match="no further items"):
        executor.shutdown()
    assert executor.is_ended
    assert len(seen) == 300
    assert executor.stats().completed > 0
    executor.shutdown()
    left = dios.Executor(1, node=node.place)
    left.map(abs, fails_after(100))
    left.__exit__(KeyError, KeyError(), None)
    assert left.is_ended, "the exception of the body leaves the block"


def test_an_iterator_with_some_used_results_cancels_the_others_when_it_is_dropped(
    node: RunningNode,
) -> None:
    """Their calls do not begin. With more of them waiting, a worker whose calls were short may have two."""
    with dios.Executor(1, node=node.place) as executor:
        results = cast("OrderedResults[None]", executor.map(time.sleep, [0] + [1000] * 3, chunksize=1))
        assert next(results) is None
        begun, *others = [future for future, _ in results._pending]
        try:
            wait_until(begun.running, "the second call runs")
            del results
            assert all(future.cancelled() for future in others)
        finally:
            for future in (begun, *others):
                cast("CallFuture[object]", future).kill()
        assert executor.submit(pow, 2, 3).result(60) == 8


def test_calls_for_their_effects_are_made_at_the_end_of_the_program(
    tmp_path: Path, node: RunningNode
) -> None:
    """Those of a list; an iterator, which may have no end, is read no further without a shutdown."""
    program = (
        "import dios, time\n"
        "def items():\n"
        "    number = 0\n"
        "    while number < 10_000:\n"
        "        yield number\n"
        "        number += 1\n"
        "    print('read', flush=True)\n"
        "executors = [dios.Executor(1) for _ in range(2)]\n"
        "executors[0].map(time.sleep, [0, 0])\n"
        "executors[1].map(abs, items())\n"
        "future = executors[0].submit(time.time)\n"
        "future.add_done_callback(lambda future: print('done', flush=True))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "DIOS_NODE": node.place},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stdout.split() == ["done"], run.stderr


@pytest.mark.parametrize(
    "options",
    [
        {"env": {"A": 1}},
        {"env": {"A=B": "1"}},
        {"env": {"A": "a\0b"}},
        {"retries": -1},
        {"retries": "2"},
        {"retry_on": 3},
        {"retry_on": ["ValueError"]},
        {"timeout": "2"},
        {"timeout": 0},
    ],
    ids=str,
)
def test_wrong_options_are_refused_before_a_node_is_opened(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the option."""
    monkeypatch.setattr("dios.lib.executor.executor.connect_or_start", None)
    with pytest.raises((InvalidError, TypeError), match=next(iter(options))):
        dios.Executor(1, **options)  # type: ignore[arg-type]
