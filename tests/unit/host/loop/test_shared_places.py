"""Places that holders share: a greedy one leaves as many as it has, and nobody waits for its work."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.host.loop.shared_places import SharedPlaces


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 40))
def test_a_holder_never_has_more_than_were_free(requests: list[int], places: int) -> None:
    """In any order of requests no place is given twice, and each holder left as many as it took."""
    held: dict[int, int] = {}
    for holder in requests:
        own, used = held.get(holder, 0), sum(held.values())
        if limits.may_take(own, used, places):
            held[holder] = own + 1
        assert sum(held.values()) <= places
    for count in held.values():
        assert count <= places - (sum(held.values()) - count)


@pytest.mark.parametrize(
    ("places", "shares"), [(1, [1]), (4, [2, 1, 1]), (8, [4, 2, 1, 1]), (64, [32, 16, 8])]
)
def test_greedy_holders_get_half_of_the_rest(places: int, shares: list[int]) -> None:
    """The first of several greedy holders gets half, the next one half of the rest, and so on."""
    used = 0
    for share in shares:
        own = 0
        while limits.may_take(own, used, places):
            own, used = own + 1, used + 1
        assert own == share


async def test_a_greedy_holder_waits_and_others_do_not() -> None:
    """Of many requests of one holder half of the places are granted; others pass them, in their order."""
    shared = SharedPlaces(4)
    order: list[str] = []
    ends = {name: trio.Event() for name in ("a", "b", "c", "d")}

    async def work(name: str) -> None:
        async with shared.place(name):
            order.append(name)
            await ends[name].wait()

    async with trio.open_nursery() as nursery:
        for name in "aaaa":
            nursery.start_soon(work, name)
        await trio.testing.wait_all_tasks_blocked()
        for name in "bcd":
            nursery.start_soon(work, name)
            await trio.testing.wait_all_tasks_blocked()
        assert order == ["a", "a", "b", "c"]
        ends["b"].set()
        await trio.testing.wait_all_tasks_blocked()
        assert order[4:] == ["d"], "a place that is free is for who has none"
        assert shared.used == 4
        for end in ends.values():
            end.set()
    assert order[5:] == ["a", "a"]
    assert shared.used == 0


async def test_a_place_counts_for_each_of_its_holders() -> None:
    """A user with many tokens has no more places than a user with one."""
    shared = SharedPlaces(4)
    async with shared.place("user", "token 1"), shared.place("user", "token 2"):
        with trio.move_on_after(0) as refused:
            await shared.acquire(("user", "token 3"))
        assert refused.cancelled_caught
        await shared.acquire(("other", "token 1"))
        shared.release(("other", "token 1"))
    assert shared.used == 0


async def test_a_place_that_is_granted_to_a_cancelled_task_is_given_back() -> None:
    """A task that was cancelled in the moment of its turn keeps no place."""
    shared = SharedPlaces(1)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            await shared.acquire(("a",))
            nursery.start_soon(_wait_and_take, shared, scope_of := trio.CancelScope())
            await trio.testing.wait_all_tasks_blocked()
            shared.release(("a",))
            scope_of.cancel()
        assert not scope.cancelled_caught
    assert shared.used == 0


async def _wait_and_take(shared: SharedPlaces, scope: trio.CancelScope) -> None:
    with scope:
        async with shared.place("b"):
            await trio.sleep_forever()
