"""The event loop of asyncio for the async client; other loops of its interface, like uvloop, work too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from dios.client.aio.event_loop import Stop, T, Waiter
from dios.errors import InvalidError


class AsyncioWaiter:
    """The place at which one task of asyncio waits."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: Final = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Wait for ``wake``."""
        await self._future

    def wake(self) -> None:
        """End the wait."""
        if not self._future.done():
            self._future.set_result(None)


class AsyncioLoop:
    """The running event loop of asyncio; RuntimeError if there is none."""

    __slots__ = ("_loop", "_waited")

    waiter = AsyncioWaiter

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._waited: Final[set[int]] = set()
        """The descriptors at which a task waits: asyncio would silently forget the first of two."""

    async def wait_at_most(self, waiter: Waiter, seconds: float) -> None:
        """Wait for ``wake``, or until the time is over."""
        timer = self._loop.call_later(seconds, waiter.wake)
        try:
            await waiter.wait()
        finally:
            timer.cancel()

    def watch_readable(self, sock: socket.socket, callback: Callable[[], None]) -> Stop:
        """Call ``callback`` whenever the socket is readable."""
        fd = sock.fileno()
        self._loop.add_reader(fd, callback)
        return lambda: _ignore(self._loop.remove_reader(fd))

    def watch_writable(self, sock: socket.socket, callback: Callable[[], None]) -> Stop:
        """Call ``callback`` whenever the socket is writable."""
        fd = sock.fileno()
        self._loop.add_writer(fd, callback)
        return lambda: _ignore(self._loop.remove_writer(fd))

    async def wait_readable(self, fd: int, /) -> None:
        """Wait until the descriptor is readable."""
        await self._wait(fd, self._loop.create_future())

    async def wait_readable_until(self, fd: int, deadline: float) -> bool:
        """Wait until the descriptor is readable, or until ``deadline``; return False then."""
        future: asyncio.Future[bool] = self._loop.create_future()
        timer = self._loop.call_at(deadline, _settle, future, False)
        try:
            return await self._wait(fd, future)
        finally:
            timer.cancel()

    async def _wait(self, fd: int, future: asyncio.Future[bool]) -> bool:
        if fd in self._waited:
            raise InvalidError("another task waits at this end already. Let one task use it at a time.")
        self._waited.add(fd)
        self._loop.add_reader(fd, _settle, future, True)
        try:
            return await future
        finally:
            self._waited.discard(fd)
            self._loop.remove_reader(fd)

    def now(self) -> float:
        """Return the loop's time in seconds."""
        return self._loop.time()

    async def checkpoint(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)

    async def sleep(self, seconds: float, /) -> None:
        """Wait for ``seconds``."""
        await asyncio.sleep(seconds)

    async def in_thread(self, function: Callable[[], T], /) -> T:
        """Run a blocking function in a thread."""
        return await asyncio.to_thread(function)

    async def shielded(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run an async function to its end; a cancellation of the caller is raised after it."""
        task = asyncio.ensure_future(_completed(function))
        cancellation: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancellation = error
        if cancellation is None:
            task.result()
            return
        if not task.cancelled():
            task.exception()  # asyncio reports an exception that nothing looked at
        raise cancellation

    async def first_of(
        self, functions: Sequence[Callable[[], Awaitable[None]]], timeout_s: float | None
    ) -> None:
        """Run async functions at once until the first one ends or the time is over."""
        tasks = [asyncio.ensure_future(_completed(function)) for function in functions]
        if not tasks:
            return
        try:
            done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    def caller(self) -> Callable[[Callable[[], None]], None]:
        """Return a function that runs another one in the loop's thread soon; RuntimeError after its end."""
        return lambda function: _ignore(self._loop.call_soon_threadsafe(function))


async def _completed(function: Callable[[], Awaitable[None]]) -> None:
    await function()


def _settle(future: asyncio.Future[bool], result: bool) -> None:  # noqa: FBT001 - the future's result
    if not future.done():
        future.set_result(result)


def _ignore(_: object) -> None:
    """Drop a result."""
