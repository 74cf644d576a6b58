"""The arguments of an executor, without a node."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from concurrent.futures import Future

import msgspec
import pytest

from dios.errors import InvalidError
from dios.lib.executor import frames
from dios.lib.executor.executor import Executor, checked_variables
from dios.lib.executor.frames import Function
from dios.lib.executor.result_order import MapOptions, OrderedResults
from dios.lib.executor.worker import _Worker


def test_variables_of_any_bytes_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a system are bytes; text that no system has is refused where the executor is made."""
    monkeypatch.setenv("RAW_\udcfe", "before")
    variables = {"RAW_\udcfe": "\udcff", "ä": "ö"}
    monkeypatch.setenv("ä", "before")
    body = memoryview(msgspec.msgpack.encode(checked_variables(variables)))
    object.__new__(_Worker)._obey(frames.ENVIRONMENT, body)
    assert {name: os.environ[name] for name in variables} == variables
    with pytest.raises(InvalidError, match="surrogates"):
        checked_variables({"A": "\ud800"})


@pytest.mark.parametrize("is_held", [True, False])
def test_results_of_an_unused_map_are_kept_for_its_holder_alone(is_held: bool) -> None:  # noqa: FBT001 - a parameter
    """The end of an executor reads an iterator; if nothing refers to the map, memory does not grow."""
    sizes: list[int] = []
    references: list[weakref.ref[OrderedResults[int]]] = []

    def submit(called: Function[object], *args: object) -> Future[list[object]]:
        future: Future[list[object]] = Future()
        future.set_result(called(*args))  # type: ignore[arg-type]  # of a function of map_calls
        return future

    def items() -> Iterator[int]:
        for number in range(50):
            results = references[0]() if references else None
            sizes.append(0 if results is None else len(results._pending))
            del results
            yield number

    executor = object.__new__(Executor)
    unused: set[OrderedResults[int]] = set()
    vars(executor)["_unused_maps"] = unused
    options = MapOptions(1, None, 1, 5, progress=False)
    held = [OrderedResults(submit, abs, (items(),), options, unused)]
    references.append(weakref.ref(held[0]))
    if not is_held:
        held.clear()
    assert executor._submit_rest() is None
    assert len(sizes) == 50
    assert [list(results) for results in held] == [list(range(50))] * is_held
    assert (max(sizes) == 4) is not is_held
