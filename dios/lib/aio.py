"""The async versions of the libraries that wait: the mutex, guarded blobs and the clock.

``dios.lib.mutex`` and ``dios.lib.clock`` describe them. Blocking tasks never load this module.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Self, TypeVar, cast

from dios.client.aio.connection import AsyncConnection
from dios.client.aio.node import AsyncReference
from dios.client.ops.attributes import HasLink
from dios.client.session import Operation
from dios.errors import Busy, Conflict, DiosError, TimeLimitError
from dios.lib.clock import ClockOps, Stamp
from dios.lib.mutex import GuardedOps, MutexOps
from dios.lib.retrying import Pauses

T = TypeVar("T")


async def insist(owner: HasLink, attempt: Callable[[], Operation[T]], timeout: float | None = None) -> T:  # noqa: ASYNC109 - the same time limit as on the blocking face
    """Repeat the attempt until it succeeds; TimeLimitError after ``timeout`` seconds."""
    pauses = Pauses(timeout)
    connection = cast("AsyncConnection", owner.link)
    while True:
        try:
            return await connection.run(attempt())
        except (Busy, Conflict) as conflict:
            pause = pauses.after(conflict)
        await connection.loop.sleep(pause)


class AsyncMutex(MutexOps):
    """``async with AsyncMutex(reference) as mutex:``; each async task that wants the lock needs its own."""

    def __init__(self, lock: AsyncReference, *, lease: float = 30.0, timeout: float | None = None) -> None:
        super().__init__(lock, lease=lease, timeout=timeout)

    async def acquire(self) -> int:
        """Wait for the lock and take it; return the fencing token. TimeLimitError after ``timeout``."""
        return await insist(self, self.take_op, self.timeout)

    async def try_acquire(self) -> bool:
        """Take the lock if it is free now; return True if it was taken."""
        try:
            await insist(self, self.take_op, 0)
        except TimeLimitError:
            return False
        return True

    async def renew(self) -> None:
        """Start the lease again; LockLostError if another task has the lock."""
        await insist(self, self.renew_op, self.lease)

    async def release(self) -> None:
        """Release the lock; LockLostError if it was lost before."""
        await insist(self, self.release_op, self.lease)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.release()
            return
        # A cancelled holder releases it too, and the error of the body is the one to report.
        with suppress(DiosError):
            await cast("AsyncConnection", self.link).loop.shielded(self.release)


class AsyncGuarded(GuardedOps):
    """A blob that refuses writers whose lock was taken over."""

    async def write(self, data: bytes, token: int) -> None:
        """Replace the content; LockLostError for a token that is older than the last writer's."""
        await insist(self, lambda: self.write_op(data, token), self.timeout)

    async def read(self) -> bytes:
        """Return the content of the last writer."""
        return await insist(self, self.read_op, self.timeout)


class AsyncLamportClock(ClockOps):
    """A Lamport clock in its own blob."""

    async def tick(self) -> Stamp:
        """Return the stamp of an event of this task."""
        return await insist(self, self.advance_op, self.timeout)

    async def observe(self, stamp: Stamp) -> Stamp:
        """Return the stamp of the reception of ``stamp``."""
        return await insist(self, lambda: self.advance_op(stamp.time), self.timeout)
