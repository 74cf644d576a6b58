"""The futures of an executor: their values are decoded by the thread that asks for them."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from dios.client.ops.notebook_html import properties
from dios.client.tracing.contexts import SpanContext
from dios.forks import give_up_in_child
from dios.lib.executor.errors import InitializerError
from dios.lib.executor.remote_errors import decode_exception
from dios.lib.executor.results.forms import DecodeTimeoutError
from dios.lib.executor.stored_values import StoredBlob
from dios.lib.executor.values import decode_result, decode_stored

T = TypeVar("T")

DECODE_S_MIN: Final = 1.0
"""The least time for decoding a result, so that a timeout of 0 still returns one that is here."""

_forks = [0]


def _count_fork() -> None:
    _forks[0] += 1


give_up_in_child(_count_fork)


class _Undecoded(Exception):  # noqa: N818 - never raised to anybody
    """Stands for the exception of a call until somebody asks for it."""


class InitializerFailure:
    """The bytes of the exception that left an initializer, decoded when a thread asks for the error."""

    def __init__(self, data: bytes, *, trust: bool) -> None:
        self._data: Final = data
        self._trust: Final = trust

    def error(self) -> InitializerError:
        """Return the error of the executor, with the exception of the initializer as its cause."""
        try:
            cause: BaseException = decode_exception(self._data, trust=self._trust)
        except Exception as error:  # noqa: BLE001 - a worker chose the bytes
            cause = error
        failure = InitializerError(f"the initializer failed in a worker: {cause}")
        failure.__cause__ = cause
        return failure


class CallStatus(NamedTuple):
    """The state of a call: waiting, running, cancelled, done or failed."""

    state: str
    place: int = 0
    """The place of a waiting call among those of its executor; 0 if it is not in the queue."""
    waiting: int = 0
    """The number of calls of the executor that wait."""
    reason: str = ""
    """The reason why a call waits."""

    def __str__(self) -> str:
        """Return the status as a text."""
        place = f", place {self.place} of {self.waiting}" if self.place else ""
        return f"{self.state}{place}{f': {self.reason}' if self.reason else ''}"


class CallQueue(Protocol):
    """The executor's side of a future: the calls that wait."""

    def waiting_status(self, future: CallFuture[object]) -> CallStatus:
        """Return the status of a call that waits."""
        ...

    def end_call(self, future: CallFuture[object]) -> None:
        """End a call that runs."""
        ...


def _call_back(
    fn: Callable[[concurrent.futures.Future[T]], object], future: concurrent.futures.Future[T]
) -> None:
    """Call a callback. One that raises SystemExit does not end the thread of the executor."""
    try:
        fn(future)
    except BaseException as error:
        # The library logs exceptions.
        if isinstance(error, Exception) or threading.current_thread() is threading.main_thread():
            raise
        raise RuntimeError(f"a callback of a future raised {error!r}") from error


class CallFuture(concurrent.futures.Future[T]):
    """The result of a call. A hostile worker can delay only who asks for the result that it sent."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self._bytes: bytearray | None = None
        self._blob: StoredBlob | None = None
        self._is_undecoded = False
        self._trust = False
        self._decoding: Final = threading.Lock()
        self._error: BaseException | None = None
        self._failure: InitializerFailure | None = None
        self._made_in: Final = _forks[0]
        self._queue: weakref.ref[CallQueue] | None = None
        self.on_sent: Callable[[], None] | None = None
        """Called once when the call is sent to a worker."""
        self._is_awaited = False
        self.name: Final = name
        """The name of the call, from its options."""
        self.context: SpanContext | None = None
        """The span of the call, if it is traced."""

    def set_running_or_notify_cancel(self) -> bool:
        """Mark the call as sent to a worker; return False if it was cancelled."""
        sent = super().set_running_or_notify_cancel()
        if sent and self.on_sent is not None:
            self.on_sent()
        return sent

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call ``fn(future)`` at the end of the call."""
        # An event loop that awaits this future is the only one to cancel it later.
        self._is_awaited = self._is_awaited or getattr(fn, "__module__", "") == "asyncio.futures"
        super().add_done_callback(lambda future: _call_back(fn, future))

    def cancel(self) -> bool:
        """Cancel a call that waits, and return True. A call that runs goes on, as in the standard library.

        If an event loop awaits it, as with ``loop.run_in_executor``, the call is given up: it ends.
        """
        if super().cancel():
            return True
        if self._is_awaited:
            self.kill()
        return False

    def kill(self) -> None:
        """End the call: cancel one that waits, and end the worker of one that runs.

        ``result`` raises CancelledError or CallEndedError then. Calls that wait for the same worker go to
        others. Nothing happens if the call is done.
        """
        queue = None if self._queue is None else self._queue()
        if not super().cancel() and not self.done() and queue is not None:
            queue.end_call(cast("CallFuture[object]", self))

    def queued_at(self, queue: CallQueue) -> None:
        """Record the queue in which the call waits."""
        self._queue = weakref.ref(queue)

    def status(self) -> CallStatus:
        """Return the state of the call without waiting; of a waiting call also its place and the reason."""
        if self.cancelled():
            return CallStatus("cancelled")
        if self.done():
            is_good = super().exception(0) is None and self._error is None
            return CallStatus("done" if is_good else "failed")
        queue = None if self._queue is None else self._queue()
        if self.running() or queue is None:
            return CallStatus("running" if self.running() else "waiting")
        return queue.waiting_status(cast("CallFuture[object]", self))

    def _repr_html_(self) -> str:
        """Return the state for a notebook; the result is not decoded for it."""
        return properties("Future of a call", (("state", str(self.status())),))

    def finish(self, data: bytearray | StoredBlob, *, failed: bool, trust: bool) -> None:
        """Set the bytes of the result or of the exception, or the blob with the result.

        ``result`` maps the blob.
        """
        if self.done():  # it was ended meanwhile
            return
        if isinstance(data, StoredBlob):
            self._blob = data
        else:
            self._bytes = data
        self._trust, self._is_undecoded = trust, True
        with suppress(concurrent.futures.InvalidStateError):
            if failed:
                self.set_exception(_Undecoded())
            else:
                self.set_result(cast("T", None))

    def fail(self, error: BaseException | InitializerFailure) -> None:
        """Set the exception of a call that no worker can finish."""
        with suppress(concurrent.futures.InvalidStateError):
            if isinstance(error, InitializerFailure):
                self._failure = error
                self.set_exception(_Undecoded())
            else:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the call's value and return it; raise the exception that left the call.

        Raises concurrent.futures.TimeoutError after ``timeout`` seconds, which include the time for decoding
        the value if it is more than a second; the value can be asked for again. Raises CancelledError,
        WorkerEndedError if the worker ended in the call, UntrustedResultError for a value that a worker may
        not send.
        """
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                # Otherwise the frame of this call and the exception would refer to each other.
                self = error = None  # type: ignore[assignment]  # noqa: PLW0642 - see above
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call and return the exception that ``result`` raises, or None."""
        if self._made_in != _forks[0] and not self.done():
            raise RuntimeError(
                "this future belongs to the process that made it, and a forked one cannot wait for it"
            )
        deadline = None if timeout is None else time.monotonic() + max(timeout, DECODE_S_MIN)
        error = super().exception(timeout)
        if not self._decoding.acquire(
            timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())
        ):
            raise concurrent.futures.TimeoutError
        try:
            if self._failure is not None:
                self._error, self._failure = self._failure.error(), None
            elif self._is_undecoded:
                self._decode(deadline, failed=isinstance(error, _Undecoded))
        finally:
            self._decoding.release()
        return error if self._error is None and not isinstance(error, _Undecoded) else self._error

    @property
    def is_undecoded(self) -> bool:
        """Return True if the result is here as its worker sent it, and nobody asked for it."""
        return self._is_undecoded or self._failure is not None

    @property
    def stored(self) -> StoredBlob | None:
        """Return the blob with the result, if it is in one."""
        return self._blob

    def as_sent(self) -> StoredBlob | bytes | None:
        """Return the result of a call as its worker sent it; None if only its value or its error is left."""
        with self._decoding:
            if self._blob is not None:
                return self._blob
            failed = isinstance(super().exception(0), _Undecoded)
            return None if failed or self._bytes is None else bytes(self._bytes)

    def _decode(self, deadline: float | None, *, failed: bool) -> None:
        """Decode the result. Raise TimeoutError after the deadline: then it stays undecoded."""
        try:
            if self._blob is not None:
                stored = decode_stored(self._blob.view(), trust=self._trust, deadline=deadline)
                self._result = cast("T", stored)
            elif self._bytes is not None and failed:
                self._error = decode_exception(self._bytes, trust=self._trust, deadline=deadline)
            elif self._bytes is not None:
                self._result = cast("T", decode_result(self._bytes, trust=self._trust, deadline=deadline))
        except DecodeTimeoutError as late:
            raise concurrent.futures.TimeoutError(str(late)) from None
        except Exception as error:  # noqa: BLE001 - a hostile worker chose the bytes
            self._error = error
        self._bytes, self._is_undecoded = None, False
