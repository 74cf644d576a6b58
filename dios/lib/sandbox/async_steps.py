"""Takes the steps of a sandbox on an event loop, and makes async tasks take turns."""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, TypeVar, cast

from dios.client.aio import rings
from dios.client.aio.connection import AsyncConnection
from dios.client.aio.event_loop import EventLoop, Waiter
from dios.client.aio.running_loop import running_loop
from dios.client.sync.node import Node
from dios.errors import TimeLimitError
from dios.lib.sandbox.steps import Call, Read, Step, Steps, Wait
from dios.transport.rings.end import RingEnd
from dios.transport.rings.waiting import is_ready

T = TypeVar("T")


async def finish(
    loop: EventLoop, node: Callable[[], Node], steps: Steps[T], error: BaseException | None = None
) -> T:
    """Take steps to their end, by calls to what ``node`` returns then.

    After a cancellation the others are taken without a further one.
    """
    done: object = None
    while True:
        try:
            step = steps.send(done) if error is None else steps.throw(error)
        except StopIteration as end:
            return cast("T", end.value)
        error, done = None, None
        try:
            done = await _taken(loop, node, step)
        except Exception as raised:  # noqa: BLE001 - the steps know what to do with it
            error = raised
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as cancelled:
            await _shielded(loop, node, steps, cancelled)
            raise


async def _shielded(
    loop: EventLoop, node: Callable[[], Node], steps: Steps[T], cancelled: BaseException
) -> None:
    async def rest() -> None:
        try:
            await finish(loop, node, steps, cancelled)
        except BaseException as raised:
            if raised is not cancelled:
                raise

    await loop.shielded(rest)


async def _taken(loop: EventLoop, node: Callable[[], Node], step: Step) -> object:
    if isinstance(step, Call):
        return await cast("AsyncConnection", node().link).run(step.operation)
    if isinstance(step, Read):
        return await rings.read(loop, step.reader, 0, step.timeout_s)
    if isinstance(step, Wait):
        await _wait_any(loop, step.ends, step.timeout_s)
        return None
    # An order is written completely or, while there is no room, in parts; both are one step.
    await rings.run_steps(loop, step.writer, step.writer.write_steps(step.data), step.timeout_s)
    return None


async def _wait_any(loop: EventLoop, ends: Sequence[RingEnd], timeout_s: float | None) -> None:
    """Wait until one of the ends can move a byte, or the time is over."""
    await loop.checkpoint()
    deadline = None if timeout_s is None else loop.now() + timeout_s
    # One descriptor that is readable when one of those of the ends is.
    with select.epoll() as poll:
        for end in ends:
            poll.register(end.fileno(), select.EPOLLIN)
        while not any(map(is_ready, ends)):
            armed: list[RingEnd] = []
            try:
                for end in ends:
                    if not end.arm():
                        break
                    armed.append(end)
                else:
                    if deadline is None:
                        await loop.wait_readable(poll.fileno())
                    elif not await loop.wait_readable_until(poll.fileno(), deadline):
                        return
            finally:
                for end in armed:
                    end.disarm()


@contextlib.asynccontextmanager
async def held(turns: Iterable[Turn], timeout: object) -> AsyncIterator[object]:  # noqa: ASYNC109 - of the block's call
    """Take the turns of streams for a block, and yield the time that is left of ``timeout``.

    Raise TimeLimitError if other tasks use the streams for so long. What is no time is for the operation to
    refuse.
    """
    is_time = isinstance(timeout, int | float) and 0 <= timeout < math.inf
    deadline = time.monotonic() + cast("float", timeout) if is_time else None
    async with contextlib.AsyncExitStack() as stack:
        for turn in turns:
            if turn.is_taken and deadline is not None:
                await turn.take(max(0.0, deadline - time.monotonic()))
                timeout = max(0.0, deadline - time.monotonic())
            else:
                await turn.take(None)
            stack.push_async_exit(turn)
        yield timeout


class Turn:
    """A lock for the async tasks of one loop, which get it in the order in which they came."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: Final[deque[Waiter]] = deque()

    @property
    def is_taken(self) -> bool:
        """True while an async task has the turn."""
        return self._taken

    async def __aenter__(self) -> None:
        await self.take(None)

    async def take(self, limit_s: float | None) -> None:
        """Wait for the turn. Raise TimeLimitError if it does not come within ``limit_s`` seconds."""
        if not self._taken:
            self._taken = True
            return
        loop = running_loop()
        waiter = loop.waiter()
        self._waiting.append(waiter)
        try:
            if limit_s is None:
                await waiter.wait()
            else:
                await loop.wait_at_most(waiter, limit_s)
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self._pass_on()  # the turn came together with the cancellation
            raise
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            raise TimeLimitError("another async task uses the same stream of the sandbox")

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().wake()
        else:
            self._taken = False
