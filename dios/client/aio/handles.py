"""The base classes of the async client's handles: operations, requests and references.

``dios.client.ops`` has the operations, ``dios.client.aio.node`` the classes for each type of object.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from dios.client.aio.connection import AsyncConnection
from dios.client.aio.event_loop import EventLoop
from dios.client.ops.arrays import ContentOps
from dios.client.ops.attributes import HasLink
from dios.client.ops.handles import ReferenceOps
from dios.client.ops.requests import ReadOps, RequestOps, WriteOps
from dios.client.ops.streams import StreamOps
from dios.client.session import Operation
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
    """Run an operation over its owner's connection."""
    return await cast("AsyncConnection", owner.link).run(operation)


def loop_of(owner: HasLink) -> EventLoop:
    """Return the event loop of an owner's connection."""
    return cast("AsyncConnection", owner.link).loop


def awaited(
    op: Callable[Concatenate[H, P], Operation[T]],
) -> Callable[Concatenate[H, P], Coroutine[object, object, T]]:
    """Return the coroutine method for an operation, with its name without ``_op``."""

    @functools.wraps(op)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast("AsyncConnection", self.link).run(op(self, *args, **kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = op.__qualname__.removesuffix("_op")
    return method


# -- I/O requests -----------------------------------------------------------------------------------
class AsyncRequest(RequestOps):
    """An I/O request: ``async with`` acquires it, commits it after a normal exit and always releases it.

    ``await`` only acquires it.
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
        # The error of the body is the one to report; the buffer is released even after a cancellation.
        with contextlib.suppress(DiosError):
            await loop_of(self).shielded(functools.partial(drive, self, self.release_op()))


class AsyncReadRequest(AsyncRequest, ReadOps):
    """A read request: read ``view``, then ``commit`` checks that it was valid."""

    __slots__ = ()

    commit = awaited(ReadOps.commit_op)
    reacquire = awaited(ReadOps.reacquire_op)
    finish = awaited(ReadOps.finish_op)


class AsyncWriteRequest(AsyncRequest, WriteOps):
    """A write request: fill ``view``, then ``commit`` makes it the object's content."""

    __slots__ = ()

    commit = awaited(WriteOps.commit_op)
    reacquire = awaited(WriteOps.reacquire_op)
    finish = awaited(WriteOps.finish_op)


# -- handles ----------------------------------------------------------------------------------------
class AsyncReference(ReferenceOps["AsyncReference"], ContentOps):
    """A reference to an object; an ``async with`` body closes the handle at its end."""

    __slots__ = ()

    def read(
        self, semantics: Semantics = Semantics.ANY, *, size: int = 0, offset: int = 0
    ) -> AsyncReadRequest:
        """Return a request to read ``size`` bytes (0: all) from ``offset`` on, for ``async with``."""
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
        """Return a request to write ``size`` bytes (0: the object's size) from ``offset`` on.

        The buffer contains the object's bytes unless it is ``blank``. With ``replace`` the object ends where
        the written range ends.
        """
        return AsyncWriteRequest(self, size, offset, semantics, blank=blank, replace=replace)

    def begin_write_op(
        self,
        size: int = 0,
        semantics: Semantics = Semantics.MRSW,
        *,
        offset: int = 0,
        blank: bool = False,
        replace: bool = False,
    ) -> Operation[AsyncWriteRequest]:
        """Acquire a request to write and return it; ``write`` has the parameters."""
        request = AsyncWriteRequest(self, size, offset, semantics, blank=blank, replace=replace)
        yield from request.acquire_op()
        return request

    begin_write = awaited(begin_write_op)

    read_bytes = awaited(ReferenceOps["AsyncReference"].read_bytes_op)
    view_bytes = awaited(ContentOps.view_bytes_op)
    open = awaited(ContentOps.open_op)
    numpy = awaited(ContentOps.numpy_op)
    arrow = awaited(ContentOps.arrow_op)
    write_bytes = awaited(ReferenceOps["AsyncReference"].write_bytes_op)
    stat = awaited(ReferenceOps["AsyncReference"].stat_op)
    close = awaited(ReferenceOps["AsyncReference"].close_op)
    delete = awaited(ReferenceOps["AsyncReference"].delete_op)
    destroy = awaited(ReferenceOps["AsyncReference"].destroy_op)
    delegate = awaited(ReferenceOps["AsyncReference"].delegate_op)
    move = awaited(ReferenceOps["AsyncReference"].move_op)
    retire = awaited(ReferenceOps["AsyncReference"].retire_op)
    copy = awaited(ReferenceOps["AsyncReference"].copy_op)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await loop_of(self).shielded(self.close)


class AsyncStreamEnds(StreamOps, AsyncReference):
    """The ends of a stream, attached at their first use."""

    __slots__ = ()

    writer = awaited(StreamOps.writer_op)
    reader = awaited(StreamOps.reader_op)
