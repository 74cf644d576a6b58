"""The choice of hardware threads for tasks."""

from __future__ import annotations

from dios.core.calls.threads import choose_threads, flat
from dios.wire.messages import ThreadPlace

TWO_SOCKETS = tuple(
    ThreadPlace(number, number % 8, number % 2, number % 2, number % 2) for number in range(16)
)
"""Two sockets with one cache each: the even and the odd threads. A core has the threads n and n + 8."""


def test_the_threads_of_a_core_and_of_a_cache_stay_together() -> None:
    """Two threads are one core, and four are two cores of one cache."""
    assert choose_threads(TWO_SOCKETS, range(16), 2) == (0, 8)
    assert choose_threads(TWO_SOCKETS, range(16), 4) == (0, 2, 8, 10)


def test_a_whole_core_comes_before_a_half_one() -> None:
    """A core of which another task has a thread is divided only without need of a whole one."""
    assert choose_threads(TWO_SOCKETS, set(range(16)) - {0}, 2) == (2, 10)
    assert choose_threads(TWO_SOCKETS, {8, 2, 10}, 2) == (2, 10)
    assert choose_threads(TWO_SOCKETS, {8, 2, 10}, 3) == (2, 8, 10)


def test_the_smallest_sufficient_cache_is_filled_first() -> None:
    """A task for which two caches have room goes to the fuller one, and the other stays whole."""
    assert choose_threads(TWO_SOCKETS, {1, 9, *range(0, 16, 2)}, 2) == (1, 9)
    assert choose_threads(TWO_SOCKETS, {1, 9, *range(0, 16, 2)}, 4) == (0, 2, 8, 10)


def test_named_threads_come_first_if_they_are_free() -> None:
    """A named thread brings its core, and one that is taken or unknown is ignored."""
    assert choose_threads(TWO_SOCKETS, range(16), 2, (5,)) == (5, 13)
    assert choose_threads(TWO_SOCKETS, range(15), 1, (15, 99, 6)) == (6,)


def test_fewer_free_threads_are_all_chosen() -> None:
    """The result is shorter if there are not enough."""
    assert choose_threads(flat((1, 3)), {1, 3}, 3) == (1, 3)
    assert choose_threads((), {1}, 1) == ()
