"""A bounded number of places for work that lasts, shared among those who want one."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final

import trio

from dios import limits


class _Waiter:
    """A task that waits for a place, and the holders that the place would count for."""

    def __init__(self, holders: tuple[Hashable, ...]) -> None:
        self.holders: Final = holders
        self.granted: Final = trio.Event()


class SharedPlaces:
    """Places of which a holder gets as many as it leaves for others (``limits.may_take``); the rest waits.

    A place may count for several holders, such as a user and a token. Places are granted in the order of the
    requests, except that nobody waits for a holder that has too many.
    """

    def __init__(self, places: int) -> None:
        self._places: Final = places
        self._held: Final[Counter[Hashable]] = Counter()
        self._used = 0
        self._waiting: Final[dict[_Waiter, None]] = {}

    @property
    def used(self) -> int:
        """The number of places that are taken."""
        return self._used

    @asynccontextmanager
    async def place(self, *holders: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        await self.acquire(holders)
        try:
            yield
        finally:
            self.release(holders)

    async def acquire(self, holders: tuple[Hashable, ...]) -> None:
        """Wait for a place and take it."""
        if self._may_take(holders):
            self._take(holders)
            return
        waiter = _Waiter(holders)
        self._waiting[waiter] = None
        try:
            await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set():
                self.release(holders)
            raise
        finally:
            self._waiting.pop(waiter, None)

    def _may_take(self, holders: tuple[Hashable, ...]) -> bool:
        return all(limits.may_take(self._held[holder], self._used, self._places) for holder in holders)

    def _take(self, holders: tuple[Hashable, ...]) -> None:
        self._used += 1
        self._held.update(holders)

    def release(self, holders: tuple[Hashable, ...]) -> None:
        """Give a place back, and grant it to the waiting tasks that may have it."""
        self._used -= 1
        self._held.subtract(holders)
        for holder in holders:
            if not self._held[holder]:
                del self._held[holder]
        for waiter in tuple(self._waiting):
            if self._may_take(waiter.holders):
                del self._waiting[waiter]
                self._take(waiter.holders)
                waiter.granted.set()
