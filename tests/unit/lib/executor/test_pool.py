"""The pool of an executor without a node: the test makes the steps of its thread, and answers for workers."""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from dios.client.sync.node import Node
from dios.errors import ClosedError
from dios.lib.executor import frames, pool
from dios.lib.executor.call_options import NO_OPTIONS, OptionChanges
from dios.lib.executor.errors import CallEndedError
from dios.lib.executor.frames import Function
from dios.lib.executor.futures import CallFuture
from dios.lib.executor.lifecycle import Ended, Started, WorkerOptions, WorkerTask
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.main_names import MainNames
from dios.lib.executor.pool import Call, Pool, PoolOptions, _Worker
from dios.lib.executor.remote_errors import encode_exception
from dios.lib.executor.values import encode_parts


class FakeLifecycle:
    """Starts nothing, and lists the workers that were ended."""

    def __init__(self, *_arguments: object) -> None:
        self.ended: list[tuple[int, bool]] = []

    def start(self, _number: int, _near: object = ()) -> None:
        """Leave the start to the test."""

    def end(self, task: WorkerTask, *, kill: bool) -> None:
        """List a worker."""
        self.ended.append((task.number, kill))


class Driver:
    """A pool, and the workers that the test plays."""

    def __init__(self, **options: object) -> None:
        names = MainNames(LocalModules())
        given = {"workers_max": 8, "worker": WorkerOptions(), **options}
        self.pool = Pool(cast("Node", None), PoolOptions(**given), LocalModules(), names, lambda: None)  # type: ignore[arg-type]
        self.lifecycle = cast("FakeLifecycle", self.pool._lifecycle)
        self._started = 0

    def start(self) -> _Worker:
        """Start a worker that is ready."""
        self._started += 1
        writer = SimpleNamespace(room=1 << 20, write=len)
        task = SimpleNamespace(
            number=self._started, task=SimpleNamespace(node="n1", traced=None), writer=writer
        )
        self.pool._reported(Started(cast("WorkerTask", task)))
        self.pool._handle_events()
        worker = self.pool._workers[-1]
        self.pool._obey(worker, frames.READY, memoryview(b""))
        return worker

    def submit(self, **options: object) -> Call:
        """Submit a call."""
        changes = cast("OptionChanges", options)
        call = Call(CallFuture(), pow, (2, 3), {}, options=NO_OPTIONS.changed(changes))
        self.pool.submit(call)
        return call

    def answer(self, worker: _Worker, answer: object) -> None:
        """Answer the call that a worker has."""
        number = frames.number(list(worker.running)[-1])
        if isinstance(answer, Exception):
            self.pool._obey(
                worker, frames.EXCEPTION, memoryview(number + encode_exception(answer, trust=False))
            )
        else:
            self.pool._obey(
                worker, frames.RESULT, memoryview(number + encode_parts(answer, trust=False).joined())
            )

    def nest(self, worker: _Worker) -> None:
        """Submit a nested call in a worker, and give it to another one."""
        body = frames.number(1) + frames.number(0)
        self.pool._obey(worker, frames.SUBMIT, memoryview(body))
        self.pool._assign()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Function[Driver]]:
    """Return a function that makes pools, which are closed after the test."""
    monkeypatch.setattr(pool, "Lifecycle", FakeLifecycle)
    monkeypatch.setattr(Pool, "_run", lambda _pool: None)
    drivers: list[Driver] = []

    def make(**options: object) -> Driver:
        drivers.append(Driver(**options))
        return drivers[-1]

    yield make
    for used in drivers:
        used.pool.data.close()
        os.close(used.pool._wake_fd)
        used.pool._wake_fd = -1


def test_a_copied_call_is_made_again_after_its_exception(driver: Function[Driver]) -> None:
    """Its first attempt raises what ``retry_on`` names: the copy is stopped, and another attempt answers."""
    here = driver(copies=(pow,))
    first, second = here.start(), here.start()
    call = here.submit(retries=1, retry_on=ValueError)
    here.pool._assign()
    (origin,) = [worker for worker in (first, second) if worker.running]
    copy = second if origin is first else first
    call.copied = True
    here.pool._copies[call] = origin
    here.pool._send(copy, call)
    here.answer(origin, ValueError("once"))
    assert here.lifecycle.ended == [(copy.task.number, True)]
    here.pool._assign()
    here.answer(origin, 8)
    assert call.future.result(0) == 8
    assert here.pool.statistics().repeated == 1


def test_nested_calls_end_with_the_call_that_began_them(driver: Function[Driver]) -> None:
    """The workers that make them for nobody else are killed, also over several steps; others go on."""
    here = driver()
    main, other = here.start(), here.start()
    calls = [here.submit(), here.submit()]
    here.pool._assign()
    helper = here.start()
    here.nest(main)
    assert helper.helps
    further = here.start()
    here.nest(helper)
    stranger = here.start()
    here.nest(other)
    assert [bool(worker.running) for worker in (helper, further, stranger)] == [True] * 3
    ended = next(call for call in calls if call in main.running.values())
    ended.future.kill()
    here.pool._handle_events()
    assert isinstance(ended.future.exception(0), CallEndedError)
    assert here.pool._workers == [other, stranger]
    assert sorted(here.lifecycle.ended) == sorted(
        (worker.task.number, True) for worker in (main, helper, further)
    )


def test_nested_calls_of_a_lost_helper_end_and_its_family_goes_on(driver: Function[Driver]) -> None:
    """A worker that makes nothing else is killed; the call that waits for the helper gets its error."""
    here = driver()
    main = here.start()
    here.submit()
    here.pool._assign()
    helper = here.start()
    here.nest(main)
    further = here.start()
    here.nest(helper)
    idle = here.start()
    here.pool._lost(helper, ClosedError("gone"))
    assert here.pool._workers == [main, idle]
    assert (further.task.number, True) in here.lifecycle.ended


def test_a_call_can_be_ended_while_its_worker_leaves(driver: Function[Driver]) -> None:
    """It is not made again when the end of the worker is known."""
    here = driver()
    worker = here.start()
    call = here.submit(retries=3)
    here.pool._assign()
    here.pool._lost(worker, ClosedError("the node does not answer"))
    call.future.kill()
    here.pool._handle_events()
    with pytest.raises(CallEndedError, match="ended by the program"):
        call.future.result(0)
    here.pool._reported(Ended(worker.task.number, None))
    here.pool._handle_events()
    assert (here.pool.statistics().waiting, here.pool.statistics().repeated) == (0, 0)
    assert here.pool.statistics().failed == 1


@pytest.mark.parametrize("kept", [0, 1])
def test_idle_workers_end_except_those_that_are_kept(driver: Function[Driver], kept: int) -> None:
    """An executor keeps one; the workers of calls with needs reserve what others could use."""
    here = driver(idle_s=30.0, idle_kept=kept)
    for worker in (here.start(), here.start()):
        worker.since = time.monotonic() - 31
    assert here.pool._until_next_step() is not None
    here.pool._end_idle()
    assert len(here.pool._workers) == kept
    assert here.pool._until_next_step() is None


def test_time_limits_of_calls_that_ended_are_dropped(driver: Function[Driver]) -> None:
    """Those of calls that wait stay."""
    here = driver()
    waiting = here.submit(timeout=1000)
    for _ in range(3 * pool._TIME_LIMITS_KEPT):
        call = here.submit(timeout=1000)
        here.pool._queue.remove(call)
        call.future.cancel()
    limits = here.pool._time_limits
    assert len(limits) <= pool._TIME_LIMITS_KEPT + 1
    assert any(limit[2]() is waiting for limit in limits)
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.future.result(0)
