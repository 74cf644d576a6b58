"""loky's own tests of its executors, from its source distribution, run against ``dios.Executor``.

Its wheel has no tests, so they are downloaded. ``NOT_APPLICABLE`` lists the cases that are left out, with
the reasons. Another test runs these alone, and all of them still fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.node.running_node import RunningNode
from tests.support.published import suites

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1800)]

_CASES: Final = Path(suites.__file__).with_name("loky_cases.py")

_PROCESSES: Final = "it looks at ``_processes``, the processes of loky's executor"
_MANAGER: Final = "it looks at ``_executor_manager_thread``, a thread of loky's executor"
_KILL: Final = "it gives ``shutdown`` the argument ``kill_workers``, which is a method here"
_SIGNAL: Final = (
    "it sends its own process a signal, which does nothing to the first process of a sandbox's namespace"
)

NOT_APPLICABLE: Final = {
    **dict.fromkeys(
        (
            "test_processes_terminate",
            "test_processes_terminate_on_executor_gc",
            "test_processes_crash_handling_after_executor_gc",
            "test_context_manager_shutdown",
            "test_shutdown_no_wait",
            "test_killed_child",
            "test_deadlock_kill",
            *(f"test_crash_races[{count}]" for count in (1, 2, 5, 13)),
        ),
        _PROCESSES,
    ),
    **dict.fromkeys(
        (
            "test_del_shutdown",
            "test_shutdown_deadlock_pickle",
            "test_manager_thread_crash_breaks_executor",
            "test_feeder_error_hook_crash_breaks_executor",
        ),
        _MANAGER,
    ),
    **dict.fromkeys(
        (
            "test_interpreter_shutdown",
            "test_shutdown_and_kill_workers",
            "test_max_depth[True]",
            "test_max_depth[False]",
        ),
        _KILL,
    ),
    **dict.fromkeys(
        (
            f"{test}[{case}-WorkerEndedError-None]"
            for test in ("test_crashes", "test_in_callback_submit_with_crash")
            for case in ("id-args5", "crash-args6", "return_instance-args10")
        ),
        _SIGNAL,
    ),
    "test_killed_child_with_cancelled_work_items": "it looks at ``_running_work_items``, a queue of loky's"
    " executor",
    "test_hang_issue39205": "it expects the output of a call on standard output: workers' output goes to"
    " standard error, with the number of the worker",
    "test_traceback": "it expects the class of loky's own cause of an exception",
    "test_worker_timeout": "it expects that no idle worker stays: one does",
    "test_serialization": "it gives loky's arguments ``job_reducers`` and ``result_reducers``",
    "test_memory_leak_protection": "it expects a new worker at a size: a memory limit ends it here",
    "test_exited_child": "it expects that the executor is broken after the end of one worker",
    "test_informative_error_when_fail_at_unpickle": "it expects that an argument that cannot be loaded breaks"
    " the executor: its error is that of the call",
}
"""The cases that do not apply, and why. One with arguments of 2.2 GB is left out for its memory."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of the runs: one node for both, and loky with its tests."""
    folder = tmp_path_factory.mktemp("loky")
    source = suites.unpacked_source("loky==3.7.0", folder)
    # This project has a package of the same name.
    (source / "tests").rename(source / "loky_tests")
    running = RunningNode(folder / "data", {})
    yield {"DIOS_NODE": running.place, "PYTHONPATH": str(source)}
    running.stop()


def test_calls_end_as_with_loky(tmp_path: Path, environment: dict[str, str]) -> None:
    """All cases that apply pass."""
    arguments = [str(_CASES), "-m", "not high_memory"]
    outcomes = suites.outcomes_of(arguments, tmp_path, environment=environment, without=NOT_APPLICABLE)
    assert not outcomes.failed
    assert len(outcomes.passed) > len(NOT_APPLICABLE)


def test_the_cases_that_are_left_out_fail(tmp_path: Path, environment: dict[str, str]) -> None:
    """A case that passes belongs to the others."""
    outcomes = suites.outcomes_of([str(_CASES)], tmp_path, environment=environment, only=NOT_APPLICABLE)
    assert outcomes.failed.keys() == NOT_APPLICABLE.keys()
    assert not outcomes.passed
