"""The faces on trio of the libraries that wait: the mutex, guarded blobs and the clock.

Not for: what they do (``dios.lib.mutex``, ``dios.lib.clock``); tasks that block never load this.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar, cast

import trio

from dios.client.ops.attributes import HasLink
from dios.client.session import Operation
from dios.client.trio.connection import AsyncConnection
from dios.client.trio.node import AsyncReference
from dios.errors import Busy, Conflict, DiosError, TimeLimitError
from dios.lib.clock import ClockOps, Stamp
from dios.lib.mutex import GuardedOps, MutexOps
from dios.lib.retrying import Pauses

T = TypeVar("T")


async def insist(owner: HasLink, attempt: Callable[[], Operation[T]], timeout: float | None = None) -> T:  # noqa: ASYNC109 - the same time limit as on the blocking face
    """Make the attempt until it holds, at most ``timeout`` seconds long (TimeLimitError)."""
    pauses = Pauses(timeout)
    connection = cast("AsyncConnection", owner.link)
    while True:
        try:
            return await connection.run(attempt())
        except (Busy, Conflict) as conflict:
            pause = pauses.after(conflict)
        await trio.sleep(pause)


class AsyncMutex(MutexOps):
    """``async with AsyncMutex(reference) as mutex:``; one for each task of trio's that wants the lock."""

    def __init__(self, lock: AsyncReference, *, lease: float = 30.0, timeout: float | None = None) -> None:
        super().__init__(lock, lease=lease, timeout=timeout)

    async def acquire(self) -> int:
        """Wait for the lock and take it; answers the fencing token. TimeLimitError after ``timeout``."""
        return await insist(self, self.take_op, self.timeout)

    async def try_acquire(self) -> bool:
        """Take the lock if that is possible now."""
        try:
            await insist(self, self.take_op, 0)
        except TimeLimitError:
            return False
        return True

    async def renew(self) -> None:
        """Begin the lease anew; LockLostError when somebody else has the lock."""
        await insist(self, self.renew_op, self.lease)

    async def release(self) -> None:
        """Let go; LockLostError when it was lost before."""
        await insist(self, self.release_op, self.lease)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.release()
            return
        # Also a cancelled holder lets go, and the body's own error is the one to be told.
        with suppress(DiosError), trio.CancelScope(shield=True):
            await self.release()


class AsyncGuarded(GuardedOps):
    """A blob that refuses overtaken writers."""

    async def write(self, data: bytes, token: int) -> None:
        """Replace the content; LockLostError for a token that is older than the last writer's."""
        await insist(self, lambda: self.write_op(data, token), self.timeout)

    async def read(self) -> bytes:
        """The content as its last writer left it."""
        return await insist(self, self.read_op, self.timeout)


class AsyncLamportClock(ClockOps):
    """A clock in a blob of its own."""

    async def tick(self) -> Stamp:
        """The stamp of an event of one's own."""
        return await insist(self, self.advance_op, self.timeout)

    async def observe(self, stamp: Stamp) -> Stamp:
        """The stamp of learning what happened at ``stamp``."""
        return await insist(self, lambda: self.advance_op(stamp.time), self.timeout)
