"""Waiting for the futures of an executor, on the event loop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from dios.client.aio.running_loop import running_loop

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


async def result(future: Future[T]) -> T:
    """Wait for a future of an executor and return its result, or raise its exception.

    If the caller is cancelled, so is the future, unless its call runs already.
    """
    if not future.done():
        loop = running_loop()
        waiter = loop.waiter()
        call_soon = loop.caller()

        def wake(_: Future[T]) -> None:
            # The loop may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                call_soon(waiter.wake)

        future.add_done_callback(wake)
        try:
            await waiter.wait()
        except BaseException:
            future.cancel()
            raise
    return future.result()
