"""The results of ``map`` in their order, with calls that the test makes."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitTimeoutError
from typing import cast

import pytest

from dios.lib.executor import result_order
from dios.lib.executor.frames import Function
from dios.lib.executor.result_order import MapOptions, OrderedResults

OPTIONS = MapOptions(1, None, 1, None, progress=False)


class Caller:
    """Notes the futures of calls, and makes them if it is told to."""

    def __init__(self, *, answers: int = 1000) -> None:
        self.futures: list[Future[list[object]]] = []
        self.unused: set[OrderedResults[int]] = set()
        self._answers = answers

    def submit(self, called: Function[object], *args: object) -> Future[list[object]]:
        """Make a call, or leave it waiting."""
        future: Future[list[object]] = Future()
        if len(self.futures) < self._answers:
            try:
                future.set_result(cast("list[object]", called(*args)))
            except Exception as error:  # noqa: BLE001 - of the function of a test
                future.set_exception(error)
        self.futures.append(future)
        return future

    def answer(self) -> None:
        """Make the calls that wait, and those that come."""
        self._answers = 1000
        for future in self.futures:
            future.set_result([0, 0.0])

    def results(self, items: Iterable[int], options: MapOptions = OPTIONS) -> OrderedResults[int]:
        """Return the results of a map."""
        return OrderedResults(self.submit, abs, (items,), options, self.unused)

    @property
    def cancelled(self) -> list[bool]:
        """Return for each call whether it was cancelled."""
        return [future.cancelled() for future in self.futures]


def test_calls_end_with_an_iterator_that_was_used_and_dropped() -> None:
    """Nothing else holds it, and no collection of cycles is needed."""
    caller = Caller(answers=1)
    results = caller.results([1, 2, 3])
    assert next(results) == 1
    del results
    assert caller.cancelled == [False, True, True]


@pytest.mark.parametrize("items", [[1, 2, 3], iter([1, 2, 3])], ids=["list", "iterator"])
def test_calls_of_an_unused_iterator_are_made(items: Iterable[int]) -> None:
    """They may be wanted for their effects. The owner reads the rest of an iterator of unknown length."""
    caller = Caller(answers=0)
    caller.results(items, OPTIONS._replace(buffersize=None if isinstance(items, list) else 1))
    assert caller.cancelled == ([False] * 3 if isinstance(items, list) else [False])
    if caller.unused:
        caller.answer()
        caller.unused.pop().submit_rest(keep=False)
    assert caller.cancelled == [False] * 3
    assert not caller.unused


def test_a_closed_iterator_cancels_its_calls_and_ends() -> None:
    """Also if no result was used."""
    caller = Caller(answers=0)
    results = caller.results(iter(range(1000)))
    assert caller.unused == {results}
    results.close()
    assert all(caller.cancelled)
    assert not caller.unused
    assert list(results) == []
    count = len(caller.futures)
    results.submit_rest(keep=False)
    assert len(caller.futures) == count


@pytest.mark.parametrize("keep", [True, False])
def test_the_rest_is_read_no_further_ahead_than_results_are_used(keep: bool) -> None:  # noqa: FBT001 - a parameter
    """Results that may be used afterwards are kept; of the others there are no more than the bound."""
    caller = Caller()
    sizes: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            sizes.append(len(results._pending) if number > 5 else 0)
            sizes.append(sum(not future.done() for future in caller.futures))
            yield number

    results = caller.results(items(), OPTIONS._replace(buffersize=5))
    results.submit_rest(keep=keep)
    assert len(caller.futures) == 50
    assert list(results) == (list(range(50)) if keep else [])
    assert keep or max(sizes) == 4


def test_no_item_is_read_ahead_of_calls_that_have_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator without end waits with its calls, and Ctrl-C ends the reading."""
    caller = Caller(answers=0)
    results = caller.results(itertools.count(), OPTIONS._replace(buffersize=3))
    waits: list[int] = []

    def interrupted(futures: list[Future[object]]) -> None:
        waits.append(len(caller.futures))
        if len(waits) == 4:
            raise KeyboardInterrupt
        futures[0].set_result([0, 0.0])

    monkeypatch.setattr(result_order, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.submit_rest(keep=False)
    assert waits == [3, 4, 5, 6]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("changes", [{}, {"timeout_s": "soon"}], ids=["no iterable", "no time"])
def test_a_map_that_cannot_begin_raises_once(changes: dict[str, object]) -> None:
    """What was not made completely is dropped in silence."""
    items = cast("Iterable[int]", [1] if changes else 5)
    with pytest.raises(TypeError):
        Caller().results(items, OPTIONS._replace(**changes))  # type: ignore[arg-type]
    gc.collect()


def test_the_other_calls_are_cancelled_after_an_exception() -> None:
    """Of a call, of the iterator, or because the time is over; then the results end."""
    caller = Caller(answers=1)
    results = caller.results([-1, 2, 3], OPTIONS._replace(timeout_s=0.0))
    assert next(results) == 1
    with pytest.raises(WaitTimeoutError):
        next(results)
    assert caller.cancelled == [False, True, True]
    assert list(results) == []

    def items() -> Iterator[int]:
        yield from range(4)
        raise OSError("no further items")

    for used in (0, 1):
        caller = Caller(answers=0 if used == 0 else 1)
        options = OPTIONS._replace(buffersize=4 if used else 5)
        with pytest.raises(OSError, match="no further"):
            next(caller.results(items(), options))
        assert caller.cancelled[used:] == [True] * (4 - used)


def test_results_are_not_kept_after_their_use() -> None:
    """The map is not in the set of the unused from the first result on."""
    caller = Caller()
    results = caller.results(iter(range(20)))
    assert caller.unused == {results}
    assert list(results) == list(range(20))
    assert not caller.unused
    assert caller.results(range(3)) not in caller.unused


def halved(number: int, *_others: int) -> int:
    """Return half of an even number."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


def ended(number: int) -> int:
    """Return a number below 2."""
    if number == 2:
        raise StopIteration(number)
    return number


@pytest.mark.parametrize("chunksize", [1, 4, None])
@pytest.mark.parametrize("is_single", [True, False])
def test_the_results_before_an_exception_are_there(chunksize: int | None, is_single: bool) -> None:  # noqa: FBT001 - a parameter
    """Also those of its chunk, whose size the caller may not know; then the map ends."""
    caller = Caller()
    items = [0, 2, 4, 6, 8, 9, 10, 11]
    iterables = (iter(items),) if is_single else (iter(items), items)
    results = OrderedResults(
        caller.submit, halved, iterables, OPTIONS._replace(chunksize=chunksize), caller.unused
    )
    values: list[int] = []
    with pytest.raises(ValueError, match="9 is odd") as caught:
        values.extend(results)
    assert values == [0, 1, 2, 3, 4]
    assert chunksize != 4 or "halved" in str(caught.value.__cause__)
    assert list(results) == []


@pytest.mark.parametrize("chunksize", [1, 4])
def test_a_stop_iteration_of_a_call_does_not_shorten_the_results(chunksize: int) -> None:
    """It is a RuntimeError, as in a generator."""
    caller = Caller()
    results = OrderedResults(
        caller.submit, ended, (range(4),), OPTIONS._replace(chunksize=chunksize), caller.unused
    )
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(results)
