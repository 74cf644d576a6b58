"""The preparation of a worker for joblib, without importing joblib."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from dios.lib.executor.frames import Function


class WorkerEnvironment:
    """Environment variables that are set in a worker when it loads this object.

    As the first argument of the initializer they are set before joblib is imported for the others.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerEnvironment) and other._variables == self._variables

    def __hash__(self) -> int:
        return hash(frozenset(self._variables.items()))

    def __reduce__(self) -> tuple[Callable[[dict[str, str]], WorkerEnvironment], tuple[dict[str, str]]]:
        return _set_environment, (self._variables,)


def _set_environment(variables: dict[str, str]) -> WorkerEnvironment:
    # joblib looks for no semaphores and processes then, which a sandboxed task has not.
    os.environ.update(variables, JOBLIB_MULTIPROCESSING="0")
    return WorkerEnvironment(variables)


def prepare_worker(
    _environment: WorkerEnvironment, initializer: Function[object] | None, *arguments: object
) -> None:
    """Call the program's own initializer; the environment is already set."""
    if initializer is not None:
        initializer(*arguments)
