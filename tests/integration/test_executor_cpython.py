"""CPython's own tests of executors, from the interpreter's test package, run against ``dios.Executor``.

On Debian the package ``libpython3.11-testsuite`` has them. ``NOT_APPLICABLE`` lists the cases that are left
out, with the reasons.
"""

from __future__ import annotations

import importlib
import os
import pickle
import unittest
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final, cast

import pytest

import dios
from dios.lib.executor.errors import WorkerEndedError
from tests.support.node.running_node import RunningNode

pytestmark = pytest.mark.extended

_PACKAGE: Final = "test.test_concurrent_futures"
_PARTS: Final = (
    "",
    ".executor",
    ".util",
    ".test_shutdown",
    ".test_wait",
    ".test_as_completed",
    ".test_init",
    ".test_deadlock",
)

_CRASH: Final = (
    "it sends its own process a signal, which does nothing to the first process of a sandbox's namespace"
)
_UNPICKLE: Final = "results are not loaded by their own pickle methods"
_EXIT: Final = "a call that raises SystemExit ends its worker: its error is WorkerEndedError"

NOT_APPLICABLE: Final = {
    "test_interpreter_shutdown": "it expects the output of a call on standard output: workers' output goes to"
    " standard error, with the number of the worker",
    "test_hang_gh83386": "it expects the output of a call on standard output, too",
    "test_cancel_futures": "it expects that a call begins before the executor is shut down: workers start"
    " when the first calls wait",
    "test_crash_at_task_unpickle": _CRASH,
    "test_crash_during_func_exec_on_worker": _CRASH,
    "test_crash_during_result_pickle_on_worker": _CRASH,
    "test_shutdown_deadlock": _CRASH,
    "test_exit_during_func_exec_on_worker": _EXIT,
    "test_exit_during_result_pickle_on_worker": _EXIT,
    "test_error_during_result_unpickle_in_result_handler": _UNPICKLE,
    "test_exit_during_result_unpickle_in_result_handler": _UNPICKLE,
    "test_shutdown_deadlock_pickle": "it joins a private thread of ProcessPoolExecutor",
}
"""The cases that do not apply, and why. Those that CPython has only for its own pools use their private
attributes, or count processes of multiprocessing."""


def _modules() -> list[ModuleType]:
    """Return the modules of the tests: one until Python 3.11, a package since then."""
    modules = []
    for part in _PARTS:
        try:
            modules.append(importlib.import_module(_PACKAGE + part))
        except (ImportError, unittest.SkipTest) as error:
            if not part:
                pytest.skip(
                    f"the interpreter's test package is not installed: {error}", allow_module_level=True
                )
    return modules


_FROM: Final = _modules()


def _case(name: str) -> type[unittest.TestCase]:
    return next(
        cast("type[unittest.TestCase]", getattr(module, name)) for module in _FROM if hasattr(module, name)
    )


class _NodeExecutor(dios.Executor):
    """An executor on the node of these tests, which ignores the context of multiprocessing."""

    place = ""

    def __init__(self, max_workers: int | None = None, **options: object) -> None:
        options.pop("mp_context", None)
        super().__init__(max_workers, node=self.place, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One node for all of the cases, which the scripts of some find as well."""
    running = RunningNode(tmp_path_factory.mktemp("cpython") / "data", {})
    _NodeExecutor.place = os.environ["DIOS_NODE"] = running.place
    yield
    del os.environ["DIOS_NODE"]
    running.stop()


@pytest.fixture(autouse=True)
def adapted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a case out, or let it see the names of this project where it names those of the library."""
    reason = NOT_APPLICABLE.get(request.node.name)
    if reason is not None:
        pytest.skip(reason)

    def scripted(run: Callable[..., object]) -> Callable[..., object]:  # type: ignore[explicit-any]
        def run_adapted(*args: str, **options: object) -> object:
            library = f"from concurrent.futures import {_NodeExecutor.__name__}"
            ours = f"from dios import Executor as {_NodeExecutor.__name__}"
            return run(*(argument.replace(library, ours) for argument in args), **options)

        return run_adapted

    for module in _FROM:
        if hasattr(module, "assert_python_ok"):
            monkeypatch.setattr(module, "assert_python_ok", scripted(module.assert_python_ok))
        # A worker that ends fails its call alone, and what cannot be loaded is an error of the call.
        if hasattr(module, "BrokenProcessPool"):
            monkeypatch.setattr(module, "BrokenProcessPool", (WorkerEndedError, pickle.UnpicklingError))
        if hasattr(module, "PicklingError"):
            monkeypatch.setattr(module, "PicklingError", (pickle.PicklingError, dios.InvalidError))


class _Ours:
    executor_type = _NodeExecutor
    worker_count = 3

    def get_context(self) -> None:
        """Return nothing: workers are not processes of multiprocessing."""


def _made(name: str, **attributes: object) -> type[unittest.TestCase]:
    bases = tuple(_case(base) for base in (name, "ExecutorMixin", "BaseTestCase"))
    case: type[unittest.TestCase] = type(name, (_Ours, *bases), {"__module__": __name__, **attributes})
    return case


TestShutdown = _made("ExecutorShutdownTest")
TestWait = _made("WaitTests")
TestAsCompleted = _made("AsCompletedTests")
TestExecutor = _made(
    "ExecutorTest", executor_kwargs={"trust": True}
)  # it returns objects of a class of its own
TestDeadlock = _made("ExecutorDeadlockTest")
TestInitializer = _made("InitializerMixin")
