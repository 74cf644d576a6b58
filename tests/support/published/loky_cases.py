"""The tests of loky for its executors, on ``dios.Executor``. pytest runs this file as a suite.

They lie in ``loky_tests``, the folder of tests of loky's source under another name.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Final

import pytest
from loky_tests import _executor_mixin as events  # type: ignore[import-not-found] # see above
from loky_tests import _test_process_executor as upstream
from loky_tests import test_reusable_executor as reusable

import dios
from dios.lib.executor.errors import WorkerEndedError

_PAUSE_S: Final = 1.0


class _Pause:
    """The event of a case in its workers: it waits for a moment, and its caller sets no event there."""

    def wait(self, timeout: float = _PAUSE_S) -> bool:
        """Wait, for at most some seconds."""
        time.sleep(min(timeout, _PAUSE_S))
        return True


def _begin() -> None:
    events._test_event = _Pause()


class Executor(dios.Executor):
    """An executor that takes the arguments of loky's, as far as they have a meaning here."""

    def __init__(self, max_workers: int | None = None, **options: object) -> None:
        options.pop("context", None)
        options["idle_timeout"] = options.pop("timeout", None)
        super().__init__(max_workers, trust=True, **options)  # type: ignore[arg-type]


def _shared(max_workers: int | None = None, timeout: float | None = None) -> dios.Executor:
    """Return the executor that is kept for the same arguments, as loky's reusable one."""
    return dios.shared_executor(max_workers, trust=True)


def _scripted(run: Callable[..., object]) -> Callable[..., object]:  # type: ignore[explicit-any]
    """Return a function that runs the script of a case with an executor of this project."""

    def run_adapted(command: list[str], **options: object) -> object:
        library = f"from loky.process_executor import {Executor.__name__}"
        adapted = [
            part.replace(library, "from dios import Executor").replace(", context=context", "")
            for part in command
        ]
        return run(adapted, **options)

    return run_adapted


_ERRORS: Final = {reusable.TerminatedWorkerError: WorkerEndedError, reusable.BrokenProcessPool: Exception}
"""The errors of this project. A worker that ends fails its call alone, and what cannot be loaded is an error
of the call."""


def _adapted_case(case: tuple[object, ...]) -> tuple[object, ...]:
    """Return a case of a call that goes wrong, with the error of this project."""
    function, arguments, error, _ = case
    if function is id and error is pickle.PicklingError:
        error = dios.InvalidError
    elif function is reusable.exit or arguments == (reusable.ExitAtPickle,):
        error = (WorkerEndedError, TypeError)
    elif arguments == (reusable.ExitAtUnpickle,):
        error = SystemExit
    else:
        error = _ERRORS.get(error, error)
    return function, arguments, error, None


reusable.TestExecutorDeadLock.crash_cases[:] = map(_adapted_case, reusable.TestExecutorDeadLock.crash_cases)
reusable.get_reusable_executor = _shared
reusable.filter_match = upstream.filter_match = lambda _: None
upstream.TerminatedWorkerError = WorkerEndedError
upstream.PicklingError = reusable.PicklingError = dios.InvalidError
upstream.ShutdownExecutorError = RuntimeError
upstream.check_subprocess_call = _scripted(upstream.check_subprocess_call)


class _Context:
    """The context of processes of a case."""

    def get_start_method(self) -> str:
        """Return the name of loky's own kind."""
        return "loky"


class _Mixin:
    """An executor for each case, and its end afterwards."""

    executor_type = Executor
    worker_count = 5
    context = _Context()

    @pytest.fixture(autouse=True)
    def opened(self) -> Iterator[None]:
        """Open it."""
        events._test_event = Event()
        self.executor = Executor(self.worker_count, initializer=_begin)
        self.executor.submit(id, None).result()
        yield
        self.executor.kill_workers()


class TestShutdown(_Mixin, upstream.ExecutorShutdownTest):  # type: ignore[misc] # loky has no types
    """The end of an executor."""


class TestWait(_Mixin, upstream.WaitTests):  # type: ignore[misc]
    """``wait``."""


class TestAsCompleted(_Mixin, upstream.AsCompletedTests):  # type: ignore[misc]
    """``as_completed``."""


class TestExecutor(_Mixin, upstream.ExecutorTest):  # type: ignore[misc]
    """Calls."""


class TestShared(reusable.TestExecutorDeadLock):  # type: ignore[misc]
    """Calls that end their worker, or cannot be sent."""

    setup_method = teardown_method = teardown_class = lambda *_: None
