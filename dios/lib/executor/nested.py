"""Nested calls: the executor that a call uses from within its worker.

The worker sends a nested call to the caller, who forwards its bytes to this worker or to another one. While a
call waits for nested ones, its worker makes other nested calls, one above the other, so that no place is
lost. A call that began later never waits for one that began earlier, so this cannot block for ever.
"""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar, cast

from dios.errors import InvalidError
from dios.lib.executor import frames
from dios.lib.executor.archives import Archive
from dios.lib.executor.call_pickles import encode_arguments, pickled_whole
from dios.lib.executor.declared_results import require_sendable
from dios.lib.executor.futures import CallFuture
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.main_module import MainContext

P = ParamSpec("P")
T = TypeVar("T")


class NestedWorker(Protocol):
    """The worker, as its nested calls use it."""

    def submit(self, future: NestedFuture[object], *parts: bytes) -> None:
        """Send a nested call to the caller."""

    def wait_until(self, done: Callable[[], bool], deadline: float | None) -> None:
        """Make the calls that come until ``done`` returns True, or until the deadline."""


class _WaitEvent(threading.Event):
    """The event for which ``concurrent.futures.wait`` waits: the worker makes calls meanwhile."""

    def __init__(self, worker: NestedWorker) -> None:
        super().__init__()
        self._worker: Final = worker

    def wait(self, timeout: float | None = None) -> bool:
        """Make calls until the event is set; return False after ``timeout`` seconds."""
        self._worker.wait_until(self.is_set, _deadline(timeout))
        return self.is_set()


class _Waiters(list[object]):
    """The waiters of a future, whose events let the worker make calls."""

    def __init__(self, worker: NestedWorker) -> None:
        super().__init__()
        self._worker: Final = worker

    def append(self, waiter: object) -> None:
        """Add a waiter."""
        waiter.event = _WaitEvent(self._worker)  # type: ignore[attr-defined]
        super().append(waiter)


class NestedFuture(CallFuture[T]):
    """The result of a nested call. Only the thread of the call that made it can wait for it."""

    def __init__(self, worker: NestedWorker) -> None:
        super().__init__()
        self._worker: Final = worker
        self.bytes_sent = 0
        self._waiters = _Waiters(worker)  # type: ignore[assignment]
        self.set_running_or_notify_cancel()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the nested call and return the exception that ``result`` raises, or None."""
        if not self.done():
            self._worker.wait_until(self.done, _deadline(timeout))
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call ``fn(future)`` at the end. Raise RuntimeError in an event loop, which would wait for ever."""
        if "asyncio" in sys.modules and _in_event_loop():
            raise RuntimeError("a nested call cannot be awaited in an event loop: use its result()")
        super().add_done_callback(fn)


def _in_event_loop() -> bool:
    import asyncio  # noqa: PLC0415 - a worker starts without it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


class _KnownModules(LocalModules):
    """Sends no modules with nested calls: every worker has the local modules of the program already."""

    def add(self, names: object) -> list[Archive]:
        """Return no archives."""
        del names
        return []


class WorkerExecutor(concurrent.futures.Executor):
    """The executor of the caller, for a call in one of its workers. ``shutdown`` does nothing."""

    def __init__(self, worker: NestedWorker, main: MainContext, *, trust: bool) -> None:
        self._worker: Final = worker
        self._trust: Final = trust
        self._pickled: Final = partial(pickled_whole, main=main)
        self._modules: Final = _KnownModules()

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[T]:
        """Send ``fn(*args, **kwargs)`` as a nested call, and return its future at once.

        Raises InvalidError for a function or an argument that cannot be pickled, what ``Executor.submit``
        raises for a function whose result cannot be sent, and RuntimeError in other threads than that of the
        call.
        """
        require_sendable(fn, trust=self._trust)
        function = self._pickled(fn, "the function").data
        arguments, _ = encode_arguments(args, kwargs, self._modules, self._pickled)
        future: NestedFuture[T] = NestedFuture(self._worker)
        self._worker.submit(
            cast("NestedFuture[object]", future), frames.number(len(function)), function, arguments
        )
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - of the base class
        """Do nothing: the executor belongs to the caller."""


_current: list[WorkerExecutor] = []


def enter_worker(worker: NestedWorker, main: MainContext, *, trust: bool) -> None:
    """Make the executor of this worker the result of ``current_executor``."""
    _current.append(WorkerExecutor(worker, main, trust=trust))


def is_in_worker() -> bool:
    """Return True in a worker of an executor."""
    return bool(_current)


def current_executor() -> concurrent.futures.Executor:
    """Return the executor in whose worker this call runs, for nested calls.

    ``submit`` and ``map`` make calls in the same executor, and a call that waits for them gives its place
    back. ``wait`` and ``as_completed`` work; a nested call cannot be cancelled or awaited in an event loop.
    Raises InvalidError outside of a worker.
    """
    if not _current:
        raise InvalidError("this is not a worker of an executor: make one with dios.Executor()")
    return _current[0]
