"""The choice of the call that an executor makes a second time."""

from __future__ import annotations

from dios.lib.executor import map_calls
from dios.lib.executor.slow_calls import RunningCall, SlowCalls


def resize(name: object) -> object:
    """Do nothing."""
    return name


def other(name: object) -> object:
    """Do nothing."""
    return name


def usual() -> SlowCalls:
    """Return the calls of ``resize``, which take 1 to 2 s."""
    slow = SlowCalls([resize])
    for at in range(8):
        slow.ended(resize, (at,), 1 + at / 7)
        slow.ended(other, (at,), 1 + at / 7)
    return slow


def test_the_slowest_of_the_declared_functions_is_chosen() -> None:
    """A call is slow after twice the usual time; calls of other functions never are."""
    calls = [
        RunningCall(1, resize, (), 2.9),
        RunningCall(2, resize, (), 4.0),
        RunningCall(3, resize, (), 5.0),
        RunningCall(4, other, (), 100.0),
    ]
    assert usual().slowest(calls) == 3
    assert usual().slowest(calls[:1]) is None
    assert usual().slowest(calls[3:]) is None


def test_without_calls_that_ended_nothing_is_slow() -> None:
    """Nothing is known about the usual time before some calls have ended."""
    assert SlowCalls([resize]).slowest([RunningCall(1, resize, (), 1000.0)]) is None


def test_short_calls_are_never_slow() -> None:
    """A delay of some milliseconds is no reason for a second attempt."""
    slow = SlowCalls([resize])
    for at in range(8):
        slow.ended(resize, (at,), 0.001)
    assert slow.slowest([RunningCall(1, resize, (), 0.4)]) is None
    assert slow.slowest([RunningCall(1, resize, (), 0.6)]) == 1


def test_chunks_of_map_count_for_their_items() -> None:
    """A chunk of ten items may take ten times as long as a call."""
    slow = usual()
    chunk = (resize, list(range(10)))
    assert slow.slowest([RunningCall(1, map_calls.with_items, chunk, 25.0)]) is None
    assert slow.slowest([RunningCall(1, map_calls.with_items, chunk, 35.0)]) == 1


def test_bound_methods_are_recognised() -> None:
    """A method of the same object is the same function each time that it is named."""
    text = "a b"
    slow = SlowCalls([text.split])
    for _ in range(4):
        slow.ended(text.split, (), 1.0)
    assert slow.slowest([RunningCall(1, text.split, (), 3.0)]) == 1
