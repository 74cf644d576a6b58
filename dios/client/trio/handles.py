"""What every handle of the face on trio is made of: driving an operation, requests, and references.

Not for: what the methods do, which both faces share, or single kinds of object (``dios.client.trio.node``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

import trio

from dios.client.ops.attributes import HasLink
from dios.client.ops.handles import ReferenceOps
from dios.client.ops.requests import ReadOps, RequestOps, WriteOps
from dios.client.ops.streams import StreamOps
from dios.client.session import Operation
from dios.client.trio.connection import AsyncConnection
from dios.errors import DiosError
from dios.wire.types import Semantics

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Self

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=HasLink)


async def drive(owner: HasLink, operation: Operation[T]) -> T:
    """Drive an operation over its owner's connection."""
    return await cast("AsyncConnection", owner.link).run(operation)


def awaited(op: Callable[Concatenate[H, P], Operation[T]]) -> Callable[Concatenate[H, P], Awaitable[T]]:
    """The coroutine method for an operation, under its name without ``_op``."""

    @functools.wraps(op)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast("AsyncConnection", self.link).run(op(self, *args, **kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = op.__qualname__.removesuffix("_op")
    return method


# -- I/O requests -----------------------------------------------------------------------------------
class AsyncRequest(RequestOps):
    """An I/O request: ``async with`` acquires it, commits it on a normal exit and releases it always.

    Awaiting it instead acquires it, and leaves the rest to the program.
    """

    __slots__ = ()

    release = awaited(RequestOps.release_op)

    async def _begin(self) -> Self:
        await drive(self, self.acquire_op())
        return self

    def __await__(self) -> Generator[object, None, Self]:
        return self._begin().__await__()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await drive(self, self.finish_op())
            return
        # The body's own error is the one to be told; the buffer goes back even when it was cancelled.
        with contextlib.suppress(DiosError), trio.CancelScope(shield=True):
            await drive(self, self.release_op())


class AsyncReadRequest(AsyncRequest, ReadOps):
    """A read: look at ``view``, then ``commit`` says whether it was valid."""

    __slots__ = ()

    commit = awaited(ReadOps.commit_op)
    reacquire = awaited(ReadOps.reacquire_op)
    finish = awaited(ReadOps.finish_op)


class AsyncWriteRequest(AsyncRequest, WriteOps):
    """A write: fill ``view``, then ``commit`` makes it the object's bytes if nothing came between."""

    __slots__ = ()

    commit = awaited(WriteOps.commit_op)
    reacquire = awaited(WriteOps.reacquire_op)
    finish = awaited(WriteOps.finish_op)


# -- handles ----------------------------------------------------------------------------------------
class AsyncReference(ReferenceOps["AsyncReference"]):
    """A reference to an object; an ``async with`` body closes the handle at its end."""

    __slots__ = ()

    def read(
        self, semantics: Semantics = Semantics.ANY, *, size: int = 0, offset: int = 0
    ) -> AsyncReadRequest:
        """A request to read ``size`` bytes (0: all) from ``offset`` on, for ``async with``."""
        return AsyncReadRequest(self, size, offset, semantics)

    def write(
        self,
        size: int = 0,
        semantics: Semantics = Semantics.MRSW,
        *,
        offset: int = 0,
        blank: bool = False,
        replace: bool = False,
    ) -> AsyncWriteRequest:
        """A request to write ``size`` bytes (0: as many as there are) from ``offset`` on, for
        ``async with``; ``blank`` and ``replace`` as in the blocking face.
        """
        return AsyncWriteRequest(self, size, offset, semantics, blank=blank, replace=replace)

    read_bytes = awaited(ReferenceOps["AsyncReference"].read_bytes_op)
    write_bytes = awaited(ReferenceOps["AsyncReference"].write_bytes_op)
    stat = awaited(ReferenceOps["AsyncReference"].stat_op)
    close = awaited(ReferenceOps["AsyncReference"].close_op)
    delete = awaited(ReferenceOps["AsyncReference"].delete_op)
    destroy = awaited(ReferenceOps["AsyncReference"].destroy_op)
    delegate = awaited(ReferenceOps["AsyncReference"].delegate_op)
    retire = awaited(ReferenceOps["AsyncReference"].retire_op)
    copy = awaited(ReferenceOps["AsyncReference"].copy_op)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.close()


class AsyncStreamEnds(StreamOps, AsyncReference):
    """The ends of a stream, attached at their first use."""

    __slots__ = ()

    writer = awaited(StreamOps.writer_op)
    reader = awaited(StreamOps.reader_op)
