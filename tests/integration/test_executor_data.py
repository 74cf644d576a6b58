"""Data of ``dios.Executor``: values in blobs, ``dios.put``, futures as arguments, and actors."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import gc
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import pytest

import dios
from dios.lib.executor import blobs, stored_values
from dios.lib.executor.errors import ActorEndedError, WorkerEndedError
from tests.support.node.running_node import RunningNode, wait_until

T = TypeVar("T")

LARGE = 1_000_000
"""The numbers in an array that travels in a blob in both directions."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("data") / "data", {})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def executor(node: RunningNode) -> Iterator[dios.Executor]:
    """An executor with two workers, which both run."""
    with dios.Executor(2, node=node.place) as executor:
        for future in [executor.submit(time.sleep, 0.2) for _ in range(4)]:
            future.result(60)
        wait_until(lambda: executor.stats().workers == 2, "both run")
        yield executor


def objects_of(place: str) -> int:
    """Return the number of objects that the caller's user has on a node."""
    with dios.connect(place) as node:
        (mine,) = [usage for usage in node.limits() if usage.scope is dios.Scope.PRINCIPAL]
        return mine.used[dios.Resource.OBJECTS]


def settle(executor: dios.Executor) -> None:
    """Return when the blobs that nobody uses now are dropped."""
    gc.collect()
    done = threading.Event()
    executor._pool.data.do(done.set)
    assert done.wait(60)


def is_writable(array: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Return True if the array may be changed."""
    return array.flags.writeable


def total(*arrays: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the sum of arrays."""
    return float(sum(array.sum() for array in arrays))


# -- large buffers ------------------------------------------------------------------------------------
def test_a_large_argument_is_stored_once_and_read_only(node: RunningNode, executor: dios.Executor) -> None:
    """All calls with the same array use one blob; a change of the array in between is seen."""
    array = np.ones(LARGE)
    assert executor.submit(total, array[:1]).result() == 1  # the packages of this module are stored now
    settle(executor)
    before = objects_of(node.place)
    futures = [executor.submit(total, array) for _ in range(8)]
    assert [future.result() for future in futures] == [LARGE] * 8
    assert objects_of(node.place) == before + 1
    assert not executor.submit(is_writable, array).result()
    array[0] = 5
    assert executor.submit(total, array).result() == LARGE + 4
    assert executor.submit(total, array[: LARGE // 2]).result() == LARGE // 2 + 4
    del array
    gc.collect()
    wait_until(lambda: objects_of(node.place) <= before, "the blobs are dropped")


def test_calls_that_wait_together_share_one_comparison(
    executor: dios.Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array is compared with its blob once for all calls submitted before, and again for a later one."""
    compared = []

    def are_equal(address: int, other: int, size: int) -> bool:
        compared.append(size)
        return blobs.are_equal(address, other, size)

    monkeypatch.setattr(stored_values, "are_equal", are_equal)
    array = np.ones(LARGE)
    assert executor.submit(total, array).result() == LARGE
    assert not compared
    opened = threading.Event()

    def held_up() -> None:
        opened.wait()

    executor._pool.data.do(held_up)
    futures = [executor.submit(total, array) for _ in range(8)]
    array[0] = 5
    opened.set()
    assert [future.result() for future in futures] == [LARGE + 4] * 8
    assert compared == [array.nbytes]
    executor.submit(total, array).result()
    assert compared == [array.nbytes] * 2


def test_a_large_result_is_writable_and_outlives_the_executor(node: RunningNode) -> None:
    """A result over 1 MiB is mapped when it is asked for, and belongs to the caller alone."""
    with dios.Executor(1, node=node.place) as executor:
        future = executor.submit(np.ones, LARGE)
        array = future.result(60)
        array[0] = 3
        assert executor.submit(total, future).result(60) == LARGE
        late = executor.submit(np.ones, LARGE)
        text = executor.submit(str.ljust, "x", 3_000_000)
        failed = executor.submit(lambda: np.ones(LARGE) / np.ones(3))
    assert array.sum() == LARGE + 2
    assert late.result(60).sum() == LARGE
    assert len(text.result(60)) == 3_000_000
    with pytest.raises(ValueError, match="broadcast"):
        failed.result(60)


def test_blobs_of_results_are_dropped_with_their_futures(node: RunningNode, executor: dios.Executor) -> None:
    """A result that nobody refers to any more leaves no object on the node."""
    executor.submit(np.ones, LARGE).result(60)
    gc.collect()
    before = objects_of(node.place)
    futures = [executor.submit(np.ones, LARGE) for _ in range(4)]
    assert [future.result(60).size for future in futures] == [LARGE] * 4
    assert objects_of(node.place) >= before + 4
    futures.clear()
    wait_until(lambda: objects_of(node.place) <= before + 1, "the blobs are dropped")


def test_large_cells_of_a_closure_are_stored_as_well(executor: dios.Executor) -> None:
    """A function that refers to a large array does not carry it in each call."""
    array = np.ones(LARGE)
    assert executor.submit(lambda: total(array)).result(60) == LARGE


def measured(*values: bytes | bytearray | dict[str, list[bytes]]) -> list[tuple[str, object]]:
    """Return the types of values, with their bytes."""
    return [
        (type(value).__name__, bytes(value) if not isinstance(value, dict) else value["key"][0])
        for value in values
    ]


def test_large_bytes_are_stored_as_well(node: RunningNode, executor: dios.Executor) -> None:
    """``bytes`` at any depth travel in a blob, once for all calls while they live, and stay ``bytes``."""
    content = bytes(range(256)) * 4096
    settle(executor)
    before = objects_of(node.place)
    expected = [("bytes", content), ("bytearray", content), ("dict", content)]
    futures = [executor.submit(measured, content, bytearray(content), {"key": [content]}) for _ in range(4)]
    assert [future.result(60) for future in futures] == [expected] * 4
    futures.clear()
    sizes = [executor.submit(len, content) for _ in range(8)]
    assert [future.result(60) for future in sizes] == [len(content)] * 8
    # One blob has the bytes; those of a bytearray, which can change, are gone with its call.
    settle(executor)
    assert objects_of(node.place) == before + 1
    assert executor.submit(functools.partial(len, content)).result(60) == len(content)
    result = executor.submit(lambda: {"key": (bytes(3_000_000), bytearray(2_000_000))}).result(60)
    assert result == {"key": (bytes(3_000_000), bytearray(2_000_000))}
    assert [type(element) for element in result["key"]] == [bytes, bytearray]
    del content, expected, sizes, result
    wait_until(lambda: objects_of(node.place) <= before, "the bytes are dropped")


# -- references and futures ---------------------------------------------------------------------------
def test_a_put_value_is_an_argument_of_any_number_of_calls(executor: dios.Executor) -> None:
    """A reference becomes its value, at any depth; ``get`` returns it; both leave the original alone."""
    array = np.arange(LARGE, dtype=np.float64)
    reference = executor.put({"array": array, "other": array + 1})
    fetched = dios.get(reference)
    assert np.array_equal(fetched["other"], array + 1)
    assert not fetched["array"].flags.writeable
    array[0] = 7
    assert (
        executor.submit(lambda value: total(value["array"]), reference).result(60) == fetched["array"].sum()
    )
    assert (
        executor.submit(lambda values: [sorted(mapping) for mapping in values], [reference] * 2).result(60)
        == [["array", "other"]] * 2
    )
    assert dios.get(executor.submit(abs, -1)) == 1


def test_put_without_an_executor_is_refused(executor: dios.Executor) -> None:
    """The module's ``put`` uses the latest open executor; what is no reference cannot be got."""
    assert dios.get(dios.put([1])) == [1]
    with pytest.raises(dios.InvalidError, match="no reference"):
        dios.get(1)  # type: ignore[arg-type]
    with pytest.raises(dios.InvalidError, match="cannot be sent"):
        executor.put(threading.Lock())
    for value in (executor.put(1), executor.submit(abs, -1)):
        with pytest.raises(dios.InvalidError, match="put the value of that"):
            executor.put([value])


def test_a_reference_of_another_executor_is_sent_by_value(node: RunningNode, executor: dios.Executor) -> None:
    """References and futures of other executors work; so do futures of threads."""
    with dios.Executor(1, node=node.place) as other:
        reference, future = other.put(np.ones(LARGE)), other.submit(np.ones, LARGE)
        assert executor.submit(total, reference, future).result(60) == 2 * LARGE
    assert executor.submit(total, reference, future).result(60) == 2 * LARGE


def test_a_call_waits_for_the_futures_among_its_arguments(executor: dios.Executor) -> None:
    """Chains of calls need no waiting in the caller; small and large results go on."""

    def increased(value: int) -> int:
        return later(value) + 1

    future = executor.submit(increased, 0)
    for _ in range(5):
        future = executor.submit(increased, future)
    assert future.result(60) == 6
    parts = [executor.submit(np.full, LARGE, number) for number in range(4)]
    assert executor.submit(lambda arrays: total(*arrays), parts).result(60) == 6 * LARGE
    assert all(part.is_undecoded for part in parts)


@dataclasses.dataclass
class Pair:
    """Two values in an object."""

    left: object
    right: object


def flattened(value: object) -> list[object]:
    """Return the arrays and numbers in a value."""
    if isinstance(value, Pair):
        return [*flattened(value.left), *flattened(value.right)]
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return [part for element in value for part in flattened(element)]
    return [float(value.sum()) if isinstance(value, np.ndarray) else value]


def test_references_and_futures_are_found_at_any_depth(executor: dios.Executor) -> None:
    """In dicts, lists, objects, partial functions, closures and named arguments they become their values."""
    reference = executor.put(np.ones(LARGE))
    large, small = executor.submit(np.ones, 2 * LARGE), executor.submit(later, 3)
    nested = {"a": [reference, (small,)], "b": Pair([{"c": large}], small)}
    expected = [LARGE, 3, 2 * LARGE, 3]
    assert executor.submit(flattened, nested).result(60) == expected
    assert executor.submit(functools.partial(flattened, nested)).result(60) == expected
    assert executor.submit(lambda: flattened(nested)).result(60) == expected
    assert executor.submit(flattened, value=[nested]).result(60) == expected
    assert list(executor.map(flattened, [nested, [small]])) == [expected, [3]]


def test_a_failed_future_fails_the_calls_that_need_it(executor: dios.Executor) -> None:
    """The exception of the first call is that of those after it; cancelled ones are errors, too."""
    failed = executor.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        executor.submit(abs, executor.submit(abs, failed)).result(60)
    waiting = executor.submit(abs, concurrent.futures.Future[int]())
    needs_it = executor.submit(abs, waiting)
    assert waiting.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        needs_it.result(60)


def test_a_cancelled_call_keeps_no_executor(node: RunningNode) -> None:
    """Also if it waits for a future that never ends."""
    with dios.Executor(1, node=node.place) as executor:
        future = executor.submit(abs, concurrent.futures.Future[int]())
        assert executor.submit(abs, -1).result(60) == 1
        assert future.cancel()
    assert future.cancelled()


@dataclasses.dataclass
class Point:
    """A record of the caller that workers do not know by name."""

    x: int


def test_a_result_that_only_the_caller_knows_goes_on_by_value(executor: dios.Executor) -> None:
    """A record of the program is decoded by the caller, and sent like any argument."""
    first = executor.submit(Point, 4)
    assert executor.submit(lambda point: point.x + 1, first).result(60) == 5
    large = executor.submit(lambda: (Point(4), np.ones(LARGE)))
    assert executor.submit(lambda pair: pair[0].x + pair[1].sum(), large).result(60) == LARGE + 4


def later(value: T) -> T:
    """Return the value after a moment."""
    deadline = time.monotonic() + 0.05
    while time.monotonic() < deadline:
        pass
    return value


# -- actors -------------------------------------------------------------------------------------------
class Counter:
    """Counts, and remembers the order of calls."""

    def __init__(self, start: int, *, step: int = 1) -> None:
        self.value = start
        self.step = step
        self.seen: list[object] = []

    def add(self, argument: object = None) -> int:
        """Count once."""
        self.seen.append(argument)
        self.value += self.step
        return self.value

    def order(self) -> list[object]:
        """Return what was counted."""
        return self.seen

    def leave(self) -> None:
        """End the process."""
        import os

        os._exit(3)


def test_an_actor_keeps_its_state_and_the_order_of_calls(executor: dios.Executor) -> None:
    """Calls run one after the other, also behind one that waits for a future."""
    counter = executor.actor(Counter, 5, step=2)
    assert [counter.add.submit(number).result(60) for number in range(3)] == [7, 9, 11]
    slow = executor.submit(later, "slow")
    futures = [counter.add.submit(slow), *(counter.add.submit(number) for number in range(50))]
    assert [future.result(60) for future in futures] == list(range(13, 13 + 2 * 51, 2))
    assert counter.order.submit().result(60) == [0, 1, 2, "slow", *range(50)]
    with pytest.raises(AttributeError):
        counter.missing.submit().result(60)
    with pytest.raises(AttributeError):
        _ = counter._private
    with pytest.raises(TypeError, match="argument"):
        counter.add.submit(1, 2).result(60)


class Table:
    """Keeps what it is made of."""

    def __init__(self, *columns: object, **others: object) -> None:
        self.columns = [*columns, *others.values()]

    def describe(self) -> list[tuple[str, int, bool]]:
        """Return the type and the size of each column, and if it may be changed."""
        return [
            (
                type(column).__name__,
                len(column),  # type: ignore[arg-type]
                column.flags.writeable if isinstance(column, np.ndarray) else True,
            )
            for column in self.columns
        ]


def test_large_arguments_of_an_actor_and_an_initializer_are_stored(
    node: RunningNode, executor: dios.Executor
) -> None:
    """They lie in a blob that all workers read, also after a restart; references and futures have values."""
    array, content = np.ones(LARGE), bytes(200_000)
    reference, future = executor.put(array), executor.submit(np.ones, LARGE)
    table = executor.actor(Table, array, content, reference, last=future, max_restarts=1)
    expected = [
        ("ndarray", LARGE, False),
        ("bytes", 200_000, True),
        ("ndarray", LARGE, False),
        ("ndarray", LARGE, False),
    ]
    assert table.describe.submit().result(60) == expected
    with pytest.raises(WorkerEndedError):
        executor.actor(Counter, 0).leave.submit().result(60)
    before = objects_of(node.place)

    def keep(values: object) -> None:
        import builtins

        builtins.kept = values  # type: ignore[attr-defined]

    def kept() -> tuple[int, bool]:
        import builtins

        return len(builtins.kept), builtins.kept.flags.writeable  # type: ignore[attr-defined]

    with dios.Executor(2, node=node.place, initializer=keep, initargs=(array,)) as other:
        assert [future.result(60) for future in [other.submit(kept) for _ in range(4)]] == [
            (LARGE, False)
        ] * 4
    with pytest.raises(dios.InvalidError, match="cannot be sent"):
        dios.Executor(1, node=node.place, initializer=keep, initargs=(threading.Lock(),))
    failed = executor.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        executor.actor(Table, failed)
    assert table.describe.submit().result(60) == expected
    assert objects_of(node.place) <= before


def test_an_actor_that_is_gone_says_so(executor: dios.Executor) -> None:
    """Its calls fail with the reason; with restarts a new object takes its place."""
    counter = executor.actor(Counter, 0)
    ended = counter.leave.submit()
    waiting = counter.add.submit()
    for future in (ended, waiting):
        with pytest.raises(ActorEndedError, match="exit code"):
            future.result(60)
    with pytest.raises(ActorEndedError):
        wait_until(lambda: counter.add.submit() is None, "it refuses")
    again = executor.actor(Counter, 10, max_restarts=1)
    assert again.add.submit().result(60) == 11
    with pytest.raises(WorkerEndedError):
        again.leave.submit().result(60)
    assert again.add.submit().result(60) == 11
    with pytest.raises(dios.InvalidError):
        executor.actor(Counter, 1, max_restarts=-1)


def test_an_actor_that_cannot_be_made_says_why(executor: dios.Executor) -> None:
    """The exception of its class is the cause of the error of each call."""
    counter = executor.actor(lambda: 1 // 0)
    with pytest.raises(dios.DiosError, match="division") as caught:
        counter.add.submit().result(60)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_actor_ends_with_its_handle_and_its_executor(node: RunningNode) -> None:
    """No worker is left when nobody can call it."""
    before = len(node.descendants())
    with dios.Executor(1, node=node.place) as executor:
        counter = executor.actor(Counter, 0)
        future = counter.add.submit()
        del counter
        gc.collect()
        assert future.result(60) == 1
        kept = executor.actor(Counter, 0)
        last = kept.add.submit()
    assert last.result(0) == 1
    with pytest.raises(RuntimeError):
        kept.add.submit()
    wait_until(lambda: len(node.descendants()) <= before + 2, "the workers have ended")
