"""A plugin of pytest for Dask's tests: every named scheduler is an executor of this project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final

import dask
import dask.base
import dask.local
import dask.multiprocessing
import dask.threaded
import pytest

import dios
import dios.bridges.dask

_WORKERS: Final = 2
_executors: Final[list[dios.Executor]] = []


def _submit(function: Callable[..., object], *args: object, **kwargs: object) -> Future[object]:  # type: ignore[explicit-any]
    if not _executors:
        _executors.append(dios.Executor(_WORKERS, idle_timeout=None))
    return _executors[0].submit(function, *args, **kwargs)


def _get(graph: object, keys: object, **options: object) -> object:
    for name in ("num_workers", "pool"):
        options.pop(name, None)
    answer: object = dask.local.get_async(_submit, _WORKERS, graph, keys, **options)  # type: ignore[no-untyped-call]
    return answer


dask.base.named_schedulers.update(dict.fromkeys(dask.base.named_schedulers, _get))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def on_executor() -> Iterator[None]:
    """Compute with the executor where a test names no scheduler."""
    with dask.config.set(scheduler=_get):
        yield


def pytest_unconfigure() -> None:
    """End the workers."""
    for executor in _executors:
        executor.shutdown()
