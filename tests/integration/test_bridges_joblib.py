"""joblib's own tests of backends, from the installed package, run against the backend "dios".

Each test that joblib has for its backend of processes, loky, runs with the backend of this project in its
place. ``NOT_APPLICABLE`` lists the cases that are left out, with the reasons.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import joblib
import joblib.parallel
import joblib.test.test_parallel as upstream
import pytest

from dios.bridges.joblib import DiosBackend
from tests.support.node.running_node import RunningNode

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("default")]

_THEIRS: Final = "loky"
_OURS: Final = "dios"

_MANAGER: Final = "its calls speak to a server of multiprocessing, and a sandboxed task has no sockets"
_FILES: Final = "large arguments are sent as blobs, not as files of arrays"
_THREADS: Final = "it expects threads for a Parallel within a call, which runs in the call here"

_DEFAULT: Final = "it expects one worker by default; this backend has one for each processor"

NOT_APPLICABLE: Final = {
    "test_parallel_pickling": "what cannot be sent is an InvalidError with a sentence of this project",
    "test_dispatch_multiprocessing": _MANAGER,
    "test_initializer_context": _MANAGER,
    "test_initializer_parallel": _MANAGER,
    "test_initializer_reused": _MANAGER,
    "test_initializer_not_reused": _MANAGER,
    "test_auto_memmap_on_arrays_from_generator": _FILES,
    "test_memmapping_leaks": _FILES,
    "test_nested_parallelism_limit": _THREADS,
    "test_nested_backend_in_sequential[parallel_config-dios-None]": _DEFAULT,
    "test_nested_backend_in_sequential[parallel_backend-dios-None]": _DEFAULT,
    "test_loky_reuse_workers": "it looks at loky's own executor, which no call uses here",
    "test_parallel_with_interactively_defined_bound_method_loky": "it expects the names of loky's processes"
    " on standard error",
}
"""The cases that do not apply, and why."""


class _InPlaceOfLoky(DiosBackend):
    """The backend under loky's name, which is joblib's default and has its number of workers."""

    default_n_jobs = 1


def _ours(value: object) -> object:
    """Return the value of a parameter with this project's backend in place of loky."""
    if isinstance(value, joblib.parallel.LokyBackend):
        return DiosBackend()
    return _OURS if value == _THEIRS else value


def _program(text: str) -> str:
    """Return the text of a program with this project's backend in place of loky."""
    return text.replace("from joblib", "import dios.bridges.joblib\nfrom joblib", 1).replace(
        f'"{_THEIRS}"', f'"{_OURS}"'
    )


def _of_processes(names: list[str], row: object) -> bool:
    """Return True if the backends of a row of parameters are loky, or if it has none."""
    values = row if len(names) > 1 else (row,)
    backends = [
        value
        for name, value in zip(names, cast("tuple[object, ...]", values), strict=True)
        if "backend" in name
    ]
    return all(backend == _THEIRS or type(backend) is joblib.parallel.LokyBackend for backend in backends)


def _adapted(mark: pytest.Mark) -> pytest.Mark | None:
    """Return a mark for the backend of this project, or None if no row of its parameters is left."""
    if mark.name != "parametrize":
        return mark
    names, rows, *rest = mark.args
    named = [name.strip() for name in names.split(",")]
    if not any("backend" in name for name in named):
        return mark
    left = [row for row in rows if _of_processes(named, row)]
    if "error" in named:  # of a second Parallel, with which loky shares its workers
        left = [(backend, False) for backend, _ in left]
    parameters = [tuple(map(_ours, row)) if len(named) > 1 else _ours(row) for row in left]
    chosen: pytest.Mark = getattr(pytest.mark, mark.name)(names, parameters, *rest).mark
    return chosen if parameters else None


def _collected() -> Iterator[tuple[str, Callable[..., object]]]:  # type: ignore[explicit-any]
    """Yield copies of joblib's test functions, whose marks are ours."""
    for name, function in vars(upstream).items():
        if not name.startswith("test_") or not isinstance(function, types.FunctionType):
            continue
        marks = [_adapted(mark) for mark in getattr(function, "pytestmark", [])]
        if None in marks:
            continue
        clone = types.FunctionType(
            function.__code__, vars(upstream), name, function.__defaults__, function.__closure__
        )
        clone.__dict__.update(vars(function), pytestmark=marks)
        yield name, clone


globals().update(_collected())


@pytest.fixture(scope="module", autouse=True)
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One node for all of the cases, which their scripts find as well."""
    running = RunningNode(tmp_path_factory.mktemp("joblib") / "data", {})
    os.environ["DIOS_NODE"] = running.place
    yield
    del os.environ["DIOS_NODE"]
    running.stop()


@pytest.fixture(autouse=True)
def adapted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a case out, or put the backend of this project where joblib's own would be used."""
    reason = NOT_APPLICABLE.get(request.node.name) or NOT_APPLICABLE.get(request.node.originalname)
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setitem(joblib.parallel.BACKENDS, _THEIRS, _InPlaceOfLoky)
    monkeypatch.setattr(upstream, "LokyBackend", _InPlaceOfLoky)
    # A worker's KeyboardInterrupt does not interrupt the caller: it is a RuntimeError there.
    monkeypatch.setattr(upstream, "KeyboardInterrupt", RuntimeError, raising=False)
    check = upstream.check_subprocess_call

    def check_with_ours(command: list[str], **expected: object) -> None:
        """Run a program of a test with the backend of this project."""
        if command[1] == "-c":
            command = [*command[:2], _program(command[2])]
        else:
            program = Path(command[1])
            program.write_text(_program(program.read_text()))
        check(command, **{**expected, "timeout": 60})

    monkeypatch.setattr(upstream, "check_subprocess_call", check_with_ours)
