"""The event loop of trio for the async client."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence

import trio

from dios.client.aio.event_loop import Stop, T, Waiter


class TrioWaiter:
    """The place at which one task of trio waits."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Wait for ``wake``."""
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> None:
        """End the wait."""
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)


async def _watch(
    wait: Callable[[socket.socket], Awaitable[None]],
    sock: socket.socket,
    callback: Callable[[], None],
    scope: trio.CancelScope,
) -> None:
    with scope:
        while not scope.cancel_called:
            await wait(sock)
            # The watch may have ended after the socket became readable.
            if not scope.cancel_called:
                callback()


class TrioLoop:
    """The event loop of trio."""

    __slots__ = ()

    waiter = TrioWaiter
    now = staticmethod(trio.current_time)
    checkpoint = staticmethod(trio.lowlevel.checkpoint)
    sleep = staticmethod(trio.sleep)
    wait_readable = staticmethod(trio.lowlevel.wait_readable)

    async def wait_at_most(self, waiter: Waiter, seconds: float) -> None:
        """Wait for ``wake``, or until the time is over."""
        with trio.move_on_after(seconds):
            await waiter.wait()

    def watch_readable(self, sock: socket.socket, callback: Callable[[], None]) -> Stop:
        """Call ``callback`` whenever the socket is readable."""
        scope = trio.CancelScope()
        trio.lowlevel.spawn_system_task(
            _watch, trio.lowlevel.wait_readable, sock, callback, scope, name="dios client"
        )

        def stop() -> None:
            scope.cancel()
            # The socket may stay open through another descriptor, and trio would hear of it for ever.
            trio.lowlevel.notify_closing(sock)

        return stop

    def watch_writable(self, sock: socket.socket, callback: Callable[[], None]) -> Stop:
        """Call ``callback`` whenever the socket is writable."""
        scope = trio.CancelScope()
        trio.lowlevel.spawn_system_task(
            _watch, trio.lowlevel.wait_writable, sock, callback, scope, name="dios client sends"
        )
        return scope.cancel

    async def wait_readable_until(self, fd: int, deadline: float) -> bool:
        """Wait until the descriptor is readable, or until ``deadline``; return False then."""
        with trio.move_on_at(deadline) as scope:
            await trio.lowlevel.wait_readable(fd)
        return not scope.cancelled_caught

    async def in_thread(self, function: Callable[[], T], /) -> T:
        """Run a blocking function in a thread."""
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True)

    async def shielded(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run an async function to its end."""
        with trio.CancelScope(shield=True):
            await function()

    async def first_of(
        self, functions: Sequence[Callable[[], Awaitable[None]]], timeout_s: float | None
    ) -> None:
        """Run async functions at once until the first one ends or the time is over."""
        async with trio.open_nursery() as nursery:
            if timeout_s is not None:
                nursery.cancel_scope.deadline = trio.current_time() + timeout_s

            async def run(function: Callable[[], Awaitable[None]]) -> None:
                await function()
                nursery.cancel_scope.cancel()

            for function in functions:
                nursery.start_soon(run, function)

    def caller(self) -> Callable[[Callable[[], None]], None]:
        """Return a function that runs another one in trio's thread soon; RunFinishedError after its end."""
        return trio.lowlevel.current_trio_token().run_sync_soon
