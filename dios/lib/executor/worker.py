"""The program of a worker: a pure task that makes the calls of an executor, one after the other."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO, cast

import msgspec

from dios.client.sync.node import Node, connect
from dios.client.tracing import active
from dios.client.tracing.contexts import SpanContext, current, read_traceparent
from dios.errors import ClosedError, EndOfStreamError, InvalidError, LimitError, TimeLimitError
from dios.lib.executor import frames
from dios.lib.executor.archives import Archive
from dios.lib.executor.errors import WorkerEndedError
from dios.lib.executor.frames import Function
from dios.lib.executor.main_module import Definition
from dios.lib.executor.main_worker import WorkerMain, explain
from dios.lib.executor.nested import NestedFuture, enter_worker
from dios.lib.executor.remote_errors import encode_exception
from dios.lib.executor.script import Script
from dios.lib.executor.values import STORED_BYTES_MIN, encode_parts
from dios.lib.executor.worker_data import UnreadableValueError, WorkerData
from dios.transport.rings.reader import RingReader
from dios.transport.rings.writer import RingWriter

MAIN: Final = "from dios.lib.executor.worker import serve\nserve()\n"

CALLS: Final = "calls"
RESULTS: Final = "results"

_OUTPUT_PART: Final = 8192
_SPIN_NS: Final = 200_000
"""The longest spin for the next call. A caller that waits for each result sends it about 0.1 ms later, and to
wake the worker takes as long again."""

_RECURSION: Final = 1000 + 20 * frames.NESTED_DEPTH_MAX
"""The frames of Python that the calls in one worker may use together."""

TRUSTED: Final = "trusted"
"""The argument of a worker whose results are loaded without a check."""

MOVABLE: Final = "movable"
"""The argument of a worker that may be asked to leave its node."""

_LOOK_S: Final = 0.1
"""The least time between two questions whether the worker has to leave."""


def serve() -> None:
    """Run as a worker until the executor closes the stream of calls."""
    node = connect()
    calls = node.input(CALLS)
    results = node.input(RESULTS)
    worker = _Worker(node, calls.reader, results.writer, trust=TRUSTED in node.arguments)  # type: ignore[attr-defined]
    try:
        worker.run(node if MOVABLE in node.arguments else None)
    except (ClosedError, EndOfStreamError):
        return  # the executor needs this worker no more


def _flush(*streams: TextIO) -> None:
    """Write what was printed. A script or a call may have closed the streams, or have set its own."""
    for stream in streams:
        with contextlib.suppress(Exception):
            stream.flush()


def _raising(error: BaseException) -> Function[object]:
    def function(*_args: object, **_kwargs: object) -> object:
        raise error

    return function


class _Output(io.RawIOBase):
    """Standard output and standard error of a worker: bytes go to the executor, which shows them."""

    def __init__(self, worker: _Worker) -> None:
        self._worker: Final = worker
        self.is_muted = False
        """True while the script runs, whose output the program has shown already."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: bytes | memoryview, /) -> int:  # type: ignore[override]  # no other types come
        """Send bytes, and return their number."""
        part = bytes(data[:_OUTPUT_PART])
        if not self.is_muted:
            self._worker.send(frames.OUTPUT, part)
        return len(part)


class _Worker:
    def __init__(self, node: Node, calls: RingReader, results: RingWriter, *, trust: bool) -> None:
        self._trust: Final = trust
        self._main: Final = WorkerMain()
        self._data: Final = WorkerData(
            node,
            lambda numbers: self.send(frames.WANTED, msgspec.msgpack.encode(numbers)),
            lambda: self.send(frames.BLANK),
            self._main,
            trust=trust,
        )
        self._calls: Final = calls
        calls.spin_up_to(_SPIN_NS)
        self._results: Final = results
        self._functions: Final[dict[int, Function[object]]] = {}
        # A thread of a call may print while another one sends.
        self._sending: Final = threading.Lock()
        self._thread: Final = threading.get_ident()
        self._buffer: Final = frames.FrameBuffer()
        self._received: Iterator[tuple[int, memoryview]] = iter(())
        self._futures: Final[dict[int, NestedFuture[object]]] = {}
        self._next_nested = 0
        self._nested_bytes = 0
        self._depth = 0
        self._read_nested = 0
        self._reported_nested = -1
        self._context: SpanContext | None = None
        self._output: Final = _Output(self)
        raw = io.BufferedWriter(self._output, _OUTPUT_PART)  # type: ignore[type-var]  # see write
        self._shown: Final = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)

    def run(self, movable: Node | None) -> None:
        """Make the calls that come; leave the node ``movable`` between two calls if it asks for that."""
        sys.stdout = sys.stderr = self._shown
        enter_worker(self, self._main, trust=self._trust)
        look_at = 0.0
        while True:
            self._obey(*self._next(None))
            _flush(sys.stdout, sys.stderr, self._shown)
            if movable is not None and time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_S
                if movable.wait_move(timeout=0) is not None:
                    # The executor gives the calls that this worker has not begun to others.
                    movable.leave()

    def _next(self, deadline: float | None) -> tuple[int, memoryview]:
        """Wait for the next frame. Raise TimeLimitError after the deadline."""
        while True:
            frame = next(self._received, None)
            if frame is not None:
                return frame
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._received = self._buffer.feed(self._calls.read(0, left))

    def send(self, kind: int, *parts: bytes | memoryview) -> None:
        """Send one frame. Raise ``OverflowError`` if it is longer than the caller accepts."""
        data = frames.frame(kind, *parts, bytes_max=frames.RESULT_BYTES_MAX)
        with self._sending:
            self._results.write(data)

    def _obey(self, kind: int, body: memoryview) -> None:
        if kind == frames.CALL:
            call, rest = frames.numbered(body)
            function, rest = frames.numbered(rest)
            self._call_within(call, self._functions[function], rest)
        elif kind == frames.CALL_ONCE:
            call, rest = frames.numbered(body)
            size, rest = frames.numbered(rest)
            self._call_within(call, rest[:size], rest[size:])
        elif kind == frames.NESTED:
            self._read_nested += 1
            call, rest = frames.numbered(body)
            size, rest = frames.numbered(rest)
            self._depth += 1
            try:
                self._call(call, rest[:size], rest[size:], nested=True)
            finally:
                self._depth -= 1
        elif kind == frames.ANSWER:
            self._read_nested += 1
            self._answered(body)
        elif kind == frames.FUNCTION:
            function, rest = frames.numbered(body)
            self._functions[function] = self._loaded(rest)
        elif kind == frames.FORGET:
            self._functions.pop(frames.numbered(body)[0], None)
        elif kind == frames.MODULES:
            self._data.install(msgspec.msgpack.decode(body, type=list[Archive]))
        elif kind == frames.ENVIRONMENT:
            os.environb.update(msgspec.msgpack.decode(body, type=dict[bytes, bytes]))
            time.tzset()
        elif kind == frames.SCRIPT:
            # The script may keep these streams, as a handler of logs does, and then calls use them, too.
            self._output.is_muted = True
            self._main.run_script(msgspec.msgpack.decode(body, type=Script))
            _flush(sys.stdout, sys.stderr, self._shown)
            self._output.is_muted = False
        elif kind == frames.DEFINE:
            self._main.define(msgspec.msgpack.decode(body, type=Definition))
        elif kind == frames.DROPPED:
            self._data.forget(msgspec.msgpack.decode(body, type=list[int]))
        elif kind == frames.INITIALIZER:
            self._initialize(body)
        elif kind == frames.TRACED:
            self._context = read_traceparent(bytes(body).decode(errors="replace"))

    def _call_within(
        self, number: int, function: Function[object] | memoryview, arguments: memoryview
    ) -> None:
        """Make a call as a part of the span that was given for it, if there is one."""
        context, self._context = self._context, None
        if context is None:
            self._call(number, function, arguments)
            return
        token = current.set(context)
        try:
            with active.span("call"):
                self._call(number, function, arguments)
        finally:
            current.reset(token)

    def _call(
        self,
        number: int,
        function: Function[object] | memoryview,
        arguments: memoryview,
        *,
        nested: bool = False,
    ) -> None:
        answer = frames.number(number)
        try:
            try:
                called = self._loaded(function) if isinstance(function, memoryview) else function
                args, kwargs = self._data.decode_call(arguments)
            except UnreadableValueError:
                self.send(frames.UNREADABLE, answer)
                return
            result = encode_parts(called(*args, **kwargs), trust=self._trust)
            del called, args, kwargs
            if result.size > STORED_BYTES_MIN and not nested:
                stored = self._data.store(result)
                self.send(frames.STORED, answer, frames.number(stored))
                return
            encoded = result.joined()
            if len(encoded) > frames.RESULT_BYTES_MAX - len(answer):
                raise OverflowError(  # noqa: TRY301 - it is the exception of the call
                    f"the result has {len(encoded):,} bytes, over {frames.RESULT_BYTES_MAX:,}: divide it"
                )
        except BaseException as error:
            if isinstance(error, SystemExit) and not self._depth:
                raise
            explain(error)
            self.send(frames.EXCEPTION, answer, encode_exception(error, trust=self._trust))
        else:
            self.send(frames.RESULT, answer, encoded)

    # -- nested calls -----------------------------------------------------------------------------
    def submit(self, future: NestedFuture[object], *parts: bytes) -> None:
        """Send a nested call to the caller; first make others, if too many are not answered."""
        size = sum(map(len, parts))
        if size > frames.NESTED_BYTES_MAX:
            raise InvalidError(f"a nested call of {size:,} bytes is over {frames.NESTED_BYTES_MAX:,}")
        if not self._futures:
            sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION))
        self.wait_until(
            lambda: (
                len(self._futures) < frames.NESTED_CALLS_MAX
                and self._nested_bytes + size <= frames.NESTED_BYTES_MAX
            ),
            None,
        )
        self._next_nested += 1
        self._nested_bytes += size
        future.bytes_sent = size
        self._futures[self._next_nested] = future
        self.send(frames.SUBMIT, frames.number(self._next_nested), *parts)

    def wait_until(self, done: Callable[[], bool], deadline: float | None) -> None:
        """Make nested calls until ``done`` returns True, or until the deadline."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("nested calls are for the thread of the call: other threads cannot use them")
        while not done():
            if self._reported_nested != self._read_nested:
                self._reported_nested = self._read_nested
                self.send(frames.WAITING, frames.number(self._read_nested))
            try:
                kind, body = self._next(deadline)
            except TimeLimitError:
                break
            if kind in {frames.CALL, frames.CALL_ONCE}:
                self._context = None
                self.send(frames.RETURNED, body[:8])
            else:
                self._obey(kind, body)
        self._reported_nested = -1

    def _answered(self, body: memoryview) -> None:
        number, rest = frames.numbered(body)
        future = self._futures.pop(number)
        self._nested_bytes -= future.bytes_sent
        outcome, data = rest[0], bytearray(rest[1:])
        if outcome in {frames.RETURNS, frames.RAISES}:
            future.finish(data, failed=outcome == frames.RAISES, trust=self._trust)
        else:
            kind = WorkerEndedError if outcome == frames.LOST else LimitError
            future.fail(kind(data.decode(errors="replace")))

    def _initialize(self, body: memoryview) -> None:
        """Run the initializer, if there is one, and report that this worker is ready for calls."""
        try:
            if body:
                function, args = cast("tuple[Function[object], tuple[object, ...]]", self._data.decode(body))
                function(*args)
        except Exception as error:  # noqa: BLE001 - the executor reports it
            self.send(frames.BROKEN, encode_exception(error, trust=self._trust))
            raise SystemExit(1) from None
        self.send(frames.READY)

    def _loaded(self, data: memoryview) -> Function[object]:
        """Return a function from its pickle; if that fails, one that raises the exception in each call."""
        try:
            return cast("Function[object]", self._data.decode(data))
        except UnreadableValueError:
            raise
        except BaseException as error:  # noqa: BLE001 - each call of the function reports it
            return _raising(error)
