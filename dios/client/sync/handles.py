"""The base classes of the blocking client's handles: operations, requests and references.

``dios.client.ops`` has the operations, ``dios.client.sync.node`` the classes for each type of object.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar, cast

from dios.client.ops.arrays import ContentOps
from dios.client.ops.attributes import HasLink
from dios.client.ops.handles import ReferenceOps
from dios.client.ops.requests import ReadOps, RequestOps, WriteOps
from dios.client.ops.streams import StreamOps
from dios.client.session import Operation
from dios.client.sync.connection import Connection
from dios.errors import DiosError
from dios.transport.rings.waiting import RingReader, RingWriter
from dios.wire.types import Semantics

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
H = TypeVar("H", bound=HasLink)

_ANY: Final = Semantics.ANY


def drive(owner: HasLink, operation: Operation[T]) -> T:
    """Run an operation over its owner's connection."""
    return cast("Connection", owner.link).run(operation)


def blocking(op: Callable[Concatenate[H, P], Operation[T]]) -> Callable[Concatenate[H, P], T]:
    """Return the blocking method for an operation, with its name without ``_op``."""

    @functools.wraps(op)
    def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("Connection", self.link).run(op(self, *args, **kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = op.__qualname__.removesuffix("_op")
    return method


def _in_place_of(op: Callable[Q, object]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a method that is written out the name, the text and the operation that ``blocking`` would."""

    def named(method: Callable[P, T]) -> Callable[P, T]:
        functools.update_wrapper(method, op)
        method.__name__ = op.__name__.removesuffix("_op")
        method.__qualname__ = op.__qualname__.removesuffix("_op")
        return method

    return named


# -- I/O requests -----------------------------------------------------------------------------------
class BlockingRequest(RequestOps):
    """An I/O request as a ``with`` body: committed after a normal exit, and released after every exit."""

    __slots__ = ()

    release = blocking(RequestOps.release_op)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            drive(self, self.finish_op())
            return
        # The error of the body is the one to report; if the node is gone, everything is released.
        with contextlib.suppress(DiosError):
            drive(self, self.release_op())


class ReadRequest(BlockingRequest, ReadOps):
    """A read request: read ``view``, then ``commit`` checks that it was valid."""

    __slots__ = ()

    commit = blocking(ReadOps.commit_op)
    reacquire = blocking(ReadOps.reacquire_op)
    finish = blocking(ReadOps.finish_op)


class WriteRequest(BlockingRequest, WriteOps):
    """A write request: fill ``view``, then ``commit`` makes it the object's content."""

    __slots__ = ()

    commit = blocking(WriteOps.commit_op)
    reacquire = blocking(WriteOps.reacquire_op)
    finish = blocking(WriteOps.finish_op)


# -- handles ----------------------------------------------------------------------------------------
class Reference(ReferenceOps["Reference"], ContentOps):
    """A reference to an object; a ``with`` body closes the handle at its end."""

    __slots__ = ()

    def read(self, semantics: Semantics = Semantics.ANY, *, size: int = 0, offset: int = 0) -> ReadRequest:
        """Acquire a request to read ``size`` bytes (0: all) from ``offset`` on; Busy if not admitted."""
        request = ReadRequest(self, size, offset, semantics)
        drive(self, request.acquire_op())
        return request

    def write(
        self,
        size: int = 0,
        semantics: Semantics = Semantics.MRSW,
        *,
        offset: int = 0,
        blank: bool = False,
        replace: bool = False,
    ) -> WriteRequest:
        """Acquire a request to write ``size`` bytes (0: the object's size) from ``offset`` on.

        The buffer contains the object's bytes unless it is ``blank``. With ``replace`` the object ends where
        the written range ends. Raises Busy if the request is not admitted.
        """
        return drive(self, self.begin_write_op(size, semantics, offset=offset, blank=blank, replace=replace))

    def begin_write_op(
        self,
        size: int = 0,
        semantics: Semantics = Semantics.MRSW,
        *,
        offset: int = 0,
        blank: bool = False,
        replace: bool = False,
    ) -> Operation[WriteRequest]:
        """Acquire a request to write and return it, also within a batch; ``write`` has the parameters."""
        request = WriteRequest(self, size, offset, semantics, blank=blank, replace=replace)
        yield from request.acquire_op()
        return request

    begin_write = blocking(begin_write_op)

    # These two are operations like the others below, but look first whether they need any.
    @_in_place_of(ReferenceOps["Reference"].read_bytes_op)
    def read_bytes(self, size: int = 0, offset: int = 0, semantics: Semantics = Semantics.ANY) -> bytes:
        kept = self._kept
        if kept is not None and not size and not offset and semantics is _ANY:
            whole = kept.take()
            if whole is not None:
                return whole if type(whole) is bytes else bytes(whole)
        return drive(self, self.read_bytes_op(size, offset, semantics))

    @_in_place_of(ContentOps.view_bytes_op)
    def view_bytes(self, size: int = 0, offset: int = 0) -> memoryview:
        kept = self._kept
        if kept is not None and not size and not offset:
            whole = kept.take()
            if whole is not None:
                return memoryview(whole)
        return drive(self, self.view_bytes_op(size, offset))

    open = blocking(ContentOps.open_op)
    numpy = blocking(ContentOps.numpy_op)
    arrow = blocking(ContentOps.arrow_op)
    write_bytes = blocking(ReferenceOps["Reference"].write_bytes_op)
    stat = blocking(ReferenceOps["Reference"].stat_op)
    close = blocking(ReferenceOps["Reference"].close_op)
    delete = blocking(ReferenceOps["Reference"].delete_op)
    destroy = blocking(ReferenceOps["Reference"].destroy_op)
    delegate = blocking(ReferenceOps["Reference"].delegate_op)
    move = blocking(ReferenceOps["Reference"].move_op)
    retire = blocking(ReferenceOps["Reference"].retire_op)
    copy = blocking(ReferenceOps["Reference"].copy_op)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StreamEnds(StreamOps, Reference):
    """The ends of a stream, attached at their first use."""

    __slots__ = ()

    @property
    def writer(self) -> RingWriter:
        """Return the writing end, attached if necessary."""
        return self._writer if self._writer is not None else drive(self, self.writer_op())

    @property
    def reader(self) -> RingReader:
        """Return the reading end, attached if necessary."""
        return self._reader if self._reader is not None else drive(self, self.reader_op())
