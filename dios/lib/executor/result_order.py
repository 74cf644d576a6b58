"""``Executor.map``: items go to workers in chunks, and their results come back in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, wait
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar, cast

from dios.lib.executor import map_calls
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.frames import Function
from dios.lib.executor.progress import Progress
from dios.lib.executor.remote_errors import decode_exception

T = TypeVar("T")

Submit = Callable[[Function[object], Function[object], list[object], bool], "Future[list[object]]"]
"""Submits a function of ``map_calls`` with its arguments."""

_CHUNK_S: Final = 0.02
"""The calls of one chunk take about this time together."""

_SUBMITTED_MAX: Final = 1_000_000
"""Iterables with more items are read like iterators, of which nobody knows the length."""

_CHUNK_ITEMS_MAX: Final = 1024
"""The most items of a chunk from an iterator."""

_CHUNKS_AHEAD: Final = 4
"""The chunks of an iterator for each worker that are submitted before their results are used."""

_TRIED: Final = (1, 64)
"""The sizes of the first two chunks: the second one is measured."""
_ALL_TRIED: Final = sum(_TRIED)


class MapOptions(NamedTuple):
    """The arguments of ``map`` besides its function and its iterables."""

    workers: int
    timeout_s: float | None
    chunksize: int | None
    buffersize: int | None
    progress: bool
    trust: bool = False
    """True if exceptions are loaded without a check."""


class OrderedResults(Iterator[T], Generic[T]):
    """The results of ``map``, in the order of the items.

    Of iterables with a length all items are submitted at once, up to a million. Others are read as their
    results are used, ``buffersize`` items ahead or some chunks for each worker. Until the first result is
    used, such a map is in ``unused``: its calls may be wanted for their effects alone. Afterwards, its calls
    are cancelled when it is dropped.
    """

    _is_used = False

    def __init__(
        self,
        submit: Submit,
        fn: Function[T],
        iterables: tuple[Iterable[object], ...],
        options: MapOptions,
        unused: set[OrderedResults[T]],
    ) -> None:
        self._submit: Final = submit
        self._fn: Final = fn
        self._options: Final = options
        self._deadline: Final = None if options.timeout_s is None else time.monotonic() + options.timeout_s
        # Items are encoded faster than tuples of one.
        self._is_single: Final = len(iterables) == 1
        items = iter(iterables[0]) if self._is_single else zip(*iterables, strict=False)
        self._items: Iterator[object] = items
        self._pending: Final[deque[tuple[Future[list[object]], int]]] = deque()
        self._ahead = 0
        self._size = options.chunksize or 1
        self._values: Final[list[object]] = []
        """The results that are here, the next one last."""
        self._error: BaseException | None = None
        """The exception of the call after those of the results that are here."""
        self._unused: Final = unused
        self._progress: Progress | None = None
        total = None
        lengths = [len(iterable) for iterable in iterables if isinstance(iterable, Sized)]
        try:
            if options.buffersize is None and min(lengths, default=_SUBMITTED_MAX + 1) <= _SUBMITTED_MAX:
                total = self._submit_all(list(items))
            else:
                self._fill()
                unused.add(self)
        except BaseException:
            self.close()
            raise
        if options.progress:
            self._progress = Progress(total)

    def __next__(self) -> T:
        """Return the next result. Raise what its call raised."""
        self._is_used = True
        self._unused.discard(self)
        try:
            while not self._values:
                self._receive()
            self._ahead -= 1
            self._fill()
        except BaseException:
            self.close()
            self._error = None
            raise
        return cast("T", self._values.pop())

    def __del__(self) -> None:
        if self._is_used:
            self.close()

    def close(self) -> None:
        """Cancel the calls whose results were not used."""
        self._unused.discard(self)
        self._items = iter(())
        self._values.clear()
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        while self._pending:
            self._pending.pop()[0].cancel()

    def submit_rest(self, *, keep: bool) -> None:
        """Submit all items, if nobody has asked for a result: the calls are made for their effects.

        Return when all calls have ended. The iterator is read as far ahead of them as of results that are
        used. With ``keep`` the results can be used afterwards.
        """
        self._unused.discard(self)
        ended = 0
        while not self._is_used:
            self._fill()
            if ended == len(self._pending):
                return
            future, count = self._pending[ended]
            wait([future])
            self._ahead -= count
            if keep:
                ended += 1
            else:
                self._pending.popleft()

    # -- items to calls -----------------------------------------------------------------------------
    def _submit_chunk(self, part: list[object]) -> Future[list[object]]:
        called = map_calls.with_items if self._is_single else map_calls.with_tuples
        future = self._submit(called, self._fn, part, self._options.trust)
        self._pending.append((future, len(part)))
        self._ahead += len(part)
        return future

    def _submit_all(self, items: list[object]) -> int:
        """Submit a known number of items; without a given size, measure the second chunk for the others."""
        place, workers = 0, self._options.workers
        measured = self._options.chunksize is None and len(items) > _ALL_TRIED * workers
        for size in _TRIED if measured else ():
            part = items[place : place + size]
            future = self._submit_chunk(part)
            place += len(part)
            if future.exception() is None and size == _TRIED[-1]:
                most = max(1, (len(items) - place) // (4 * workers))
                seconds = cast("float", future.result()[-1])
                self._size = min(most, _size_for(seconds / size)) if seconds != map_calls.FAILED else 1
        for start in range(place, len(items), self._size):
            self._submit_chunk(items[start : start + self._size])
        return len(items)

    def _submit_next(self, size: int) -> bool:
        """Submit the next chunk of an iterator. Return False at its end."""
        part = list(islice(self._items, size))
        if part:
            self._submit_chunk(part)
        return bool(part)

    def _fill(self) -> None:
        """Submit items of the iterator as far as its results may be behind."""
        workers, buffersize = self._options.workers, self._options.buffersize
        size = self._size if buffersize is None else min(self._size, max(1, buffersize // (2 * workers)))
        most = buffersize or size * _CHUNKS_AHEAD * workers
        while self._ahead + size <= most and self._submit_next(size):
            pass

    # -- results --------------------------------------------------------------------------------------
    def _receive(self) -> None:
        """Wait for the results of the next chunk. Raise StopIteration if there is none."""
        if self._error is not None:
            raise _plain_error(self._error)
        if not self._pending:
            raise StopIteration
        future, count = self._pending.popleft()
        left = None if self._deadline is None else self._deadline - time.monotonic()
        try:
            values = future.result(left)
        except BaseException as error:
            future.cancel()
            if isinstance(error, StopIteration):
                raise _plain_error(error) from error
            raise
        finally:
            # Otherwise the frame of this call and the exception would refer to each other.
            del future
        seconds = cast("float", values.pop())
        if seconds == map_calls.FAILED:
            encoded = values.pop()
            if not isinstance(encoded, bytes):
                raise UntrustedResultError("the worker sent no exception of a call: make the calls again")
            self._error = decode_exception(encoded, trust=self._options.trust, deadline=self._deadline)
            count = len(values)
        elif self._options.chunksize is None:
            self._size = min(_CHUNK_ITEMS_MAX, _size_for(seconds / count))
        if self._progress is not None:
            self._progress.add(count)
        self._values[:] = reversed(values)


def _plain_error(error: BaseException) -> BaseException:
    """Return an exception of a call; for StopIteration, which would end the results, a RuntimeError."""
    if not isinstance(error, StopIteration):
        return error
    replaced = RuntimeError("a call of map raised StopIteration")
    replaced.__cause__ = error
    return replaced


def _size_for(seconds: float) -> int:
    """Return the number of items that take about the time of a chunk, if one takes some seconds."""
    return max(1, int(_CHUNK_S / max(seconds, 1e-7)))
