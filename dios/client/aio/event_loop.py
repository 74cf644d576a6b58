"""The interface through which the async client uses the event loop that it runs on, asyncio or trio.

``asyncio_loop`` and ``trio_loop`` implement it. The client uses few features of a loop, so that both can have
them with the same meaning: callbacks for a socket, a wait for a descriptor, a parked call, and a function
that is not interrupted.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Stop: TypeAlias = Callable[[], None]
"""Ends a watch. The watch of readable bytes is the last one to end, before the socket is closed."""


class Waiter(Protocol):
    """The place at which one async task waits until something wakes it."""

    async def wait(self) -> None:
        """Wait for ``wake``. A cancelled wait ends it, and a later ``wake`` does nothing."""

    def wake(self) -> None:
        """End the wait; called from the same thread, after ``wait`` has begun."""


class EventLoop(Protocol):
    """The event loop of a connection."""

    def waiter(self) -> Waiter:
        """Return a place for one wait."""

    async def wait_at_most(self, waiter: Waiter, seconds: float) -> None:
        """Wait for ``wake``, or until the time is over."""

    def watch_readable(self, sock: socket.socket, callback: Callable[[], None]) -> Stop:
        """Call ``callback`` whenever the socket is readable, until the returned function is called."""

    def watch_writable(self, sock: socket.socket, callback: Callable[[], None]) -> Stop:
        """Call ``callback`` whenever the socket is writable, until the returned function is called."""

    def wait_readable(self, fd: int, /) -> Awaitable[object]:
        """Wait until the descriptor is readable; for one task at a time."""

    async def wait_readable_until(self, fd: int, deadline: float) -> bool:
        """Wait until the descriptor is readable, or until ``deadline`` by ``now``; return False then."""

    def now(self) -> float:
        """Return the loop's time in seconds."""

    def checkpoint(self) -> Awaitable[None]:
        """Let other tasks run, and be cancelled here if the caller was cancelled."""

    def sleep(self, seconds: float, /) -> Awaitable[None]:
        """Wait for ``seconds``."""

    async def in_thread(self, function: Callable[[], T], /) -> T:
        """Run a blocking function in a thread; a cancelled caller does not wait for its end."""

    async def shielded(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run an async function to its end, even if the caller is cancelled meanwhile."""

    async def first_of(
        self, functions: Sequence[Callable[[], Awaitable[None]]], timeout_s: float | None
    ) -> None:
        """Run async functions at once until the first one ends or the time is over; cancel the others."""

    def caller(self) -> Callable[[Callable[[], None]], None]:
        """Return a function that any thread may call, to run a function in the loop's thread soon."""
