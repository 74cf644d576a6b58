"""The workers of an executor, and the thread that moves calls and results through their streams.

The thread never waits for one worker or for the node: it writes what fits into a stream and reads what is
there, ``lifecycle`` starts and ends workers, and ``output`` writes what they print. So a worker that stops in
the middle of a result delays nobody else's.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from dios.client.ops.status import Status
from dios.client.plain_text import plain_lines
from dios.client.sync.node import Node, Reference
from dios.errors import Code, DiosError, ProtocolError
from dios.lib.executor import frames
from dios.lib.executor.archives import Archive
from dios.lib.executor.blobs import BUFFER_BYTES_MIN, create_blob
from dios.lib.executor.call_data import (
    CallPreparation,
    NeedsDataError,
    PreparedCall,
    copied,
    pickled_function,
    pickled_small,
    prepare_initializer,
)
from dios.lib.executor.call_options import NO_OPTIONS, CallOptions
from dios.lib.executor.call_pickles import Pickle, encode_arguments, encode_call_function
from dios.lib.executor.call_spans import hand_context
from dios.lib.executor.errors import (
    ActorEndedError,
    CallEndedError,
    CallTimeLimitError,
    NoWorkerError,
    WorkerEndedError,
)
from dios.lib.executor.frames import Function
from dios.lib.executor.futures import CallFuture, CallStatus, InitializerFailure
from dios.lib.executor.lifecycle import (
    Ended,
    Lifecycle,
    LifecycleEvent,
    Refused,
    Started,
    WorkerOptions,
    WorkerTask,
)
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.main_module import qualname_in
from dios.lib.executor.main_names import MainNames
from dios.lib.executor.output import OutputLines, OutputWriter
from dios.lib.executor.references import ValueReference
from dios.lib.executor.remote_errors import describe_exception
from dios.lib.executor.slow_calls import CAP_PART, RunningCall, SlowCalls
from dios.lib.executor.stored_values import DataStore, StoredBlob, close_all_of
from dios.transport.rings.waiting import wait_any
from dios.wire.scheduling import Near
from dios.wire.types import Cause

if TYPE_CHECKING:
    from dios.transport.rings.end import RingEnd

_AHEAD_MAX: Final = 32
"""The largest number of short calls that are sent to one worker before it has answered the first of them."""

_AHEAD_S: Final = 0.002
"""A worker gets the calls that it makes in this time, estimated from its latest ones, before it answers."""

_TOGETHER_BYTES: Final = 64 * 1024
"""Frames up to this size are joined, so that a worker is woken once for all of them."""

_FUNCTIONS_KEPT: Final = 256
_LOST: Final = frozenset({Cause.NODE, Cause.NODE_LOST})
_MOVED: Final = frozenset({Cause.MOVED, Cause.PREEMPTED})
"""Ends of workers that had to leave their node: their calls go elsewhere, and that counts as no failure."""

_DATA_KINDS: Final = frozenset({frames.WANTED, frames.BLANK, frames.STORED, frames.UNREADABLE})

FAILED_STARTS_MAX: Final = 5
"""An executor breaks if its first workers end this number of times in a row before a call has run.

If a node refuses that many starts, the calls that wait fail. The executor stays usable.
"""

REFUSED_STARTS_MAX: Final = 12
"""The same number for refusals that pass by themselves, such as a limit that other tasks have reached: the
calls wait for about two minutes."""

_RETRY_S: Final = (0.05, 30.0)
"""The first and the longest delay after a failed start. It is doubled after each one."""

_LATEST: Final = 64
"""The number of the latest nested calls of a family among which a worker's own ones are searched."""

_DEPTH_FOR_OTHERS: Final = 16
"""A worker with this number of nested calls above each other goes on with its own ones."""

_COPIED_PER_S: Final = 100_000_000
"""The bytes that are assumed to be copied between nodes in a second. A call waits for a worker that is nearer
to its arguments for at most the time of the copy that this saves."""

_NEAR_WAIT_S: Final = 5.0
"""The longest wait of a call for a worker that is nearer to its arguments."""

_TIME_LIMITS_KEPT: Final = 1024
"""The number of time limits that are kept although their calls may have ended."""

_COPY_CHECK_S: Final = 0.1
"""The time between two comparisons of the calls that run with those that have ended."""

_NEAR_CALLS_MAX: Final = 64
"""The number of waiting calls that are considered by where their arguments are."""

_WRONG: Final = frozenset({Code.EINVAL, Code.EPERM})
"""Refusals of what the executor asks for, which another start does not change: they break it."""

_PASSING: Final = frozenset({Code.EAGAIN, Code.ENOMEM, Code.EBUSY, Code.ENOBUFS, Code.ETIMEDOUT, Code.EDQUOT})
"""Refusals that pass by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The number of workers, and the treatment of their calls."""

    workers_max: int
    worker: WorkerOptions
    idle_s: float | None = None
    """A worker that had no call for this time ends, except the last ``idle_kept``; None keeps all."""
    idle_kept: int = 1
    env: dict[bytes, bytes] = field(default_factory=dict)
    """Variables of the environment of the workers."""
    calls_per_worker: int = 0
    """The calls that a worker makes before another one takes its place; 0 for any number."""
    retries: int = 3
    """The repetitions of a nested call whose worker was lost with its node."""
    initializer: tuple[Function[object], tuple[object, ...]] | None = None
    """A function that each worker calls first, and its arguments."""
    copies: tuple[Function[object], ...] = ()
    """Functions whose slow calls are made a second time."""
    actor_starts: int = 0
    """For an actor, the number of workers that may be started one after the other; its calls keep their
    order."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Call:
    """A call that waits for a worker, or runs. ``tries`` counts the workers that were lost while it ran."""

    future: CallFuture[object]
    function: Function[object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    begun: bool = False
    tries: int = 0
    prepared: PreparedCall | None = None
    by_value: bool = False
    copied: bool = False
    """True if a second worker got the call, too; ``answered`` is True when the first of them has answered."""
    answered: bool = False
    near_until: float | None = None
    """The time until which the call waits for a worker that is nearer to its arguments."""
    submitted_ns: int = field(default_factory=time.monotonic_ns)
    options: CallOptions = NO_OPTIONS

    @property
    def blobs(self) -> list[StoredBlob]:
        """Return those of its arguments that are stored in blobs, as far as that is known now."""
        if self.prepared is not None:
            return self.prepared.blobs
        values = (*self.args, *self.kwargs.values())
        blobs = [
            argument.blob if isinstance(argument, ValueReference) else argument.stored
            for argument in values
            if isinstance(argument, ValueReference | CallFuture)
        ]
        return [blob for blob in blobs if blob is not None]

    @property
    def title(self) -> str:
        """Return the words for the call in errors."""
        return f"the call {self.options.name}" if self.options.name else "the call"

    def begin(self) -> bool:
        """Mark the call as sent to a worker; return False if it was cancelled."""
        if not self.begun:
            self.begun = self.future.set_running_or_notify_cancel()
        return self.begun

    def fail(self, error: BaseException | InitializerFailure) -> None:
        """End the call with an exception."""
        if self.begin():
            self.future.fail(error)


@dataclass(slots=True, eq=False)
class NestedCall:
    """A call that a call in the worker ``origin`` submitted, as bytes that are not read here."""

    origin: _Worker
    number: int
    body: bytes
    tries: int = 0

    def begin(self) -> bool:
        """Return False if nobody waits for the call any more."""
        return not self.origin.gone


@dataclass(slots=True, eq=False)
class _Family:
    """A worker with calls of the executor's user, and workers that make nested calls for it only.

    A nested call runs the code that another worker chose. So a worker that made one for another family gets
    no more calls of the user.
    """

    calls: deque[NestedCall] = field(default_factory=deque)


@dataclass(slots=True)
class PoolStatistics:
    """The numbers of calls by their end, of workers, and of repeated calls."""

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    repeated: int = 0
    workers_started: int = 0
    workers_lost: int = 0
    workers_ended: int = 0
    """Workers that ended because they had nothing to do."""
    waiting: int = 0
    running: int = 0
    starting: int = 0
    workers: int = 0
    workers_moved: int = 0
    """Workers that had to leave their node; their calls were made by others."""
    copies: int = 0
    """Slow calls that were made a second time."""
    copies_first: int = 0
    """Copies that ended before the first attempt, which was stopped."""


@dataclass(slots=True, eq=False)
class _Worker:
    task: WorkerTask
    output: OutputLines
    outbox: deque[memoryview] = field(default_factory=deque)
    inbox: frames.FrameBuffer = field(default_factory=lambda: frames.FrameBuffer(frames.RESULT_BYTES_MAX))
    running: dict[int, Call | NestedCall] = field(default_factory=dict)
    functions: set[int] = field(default_factory=set)
    modules: int = 0
    names: int = 0
    held: set[int] = field(default_factory=set)
    blanks: dict[int, Reference] = field(default_factory=dict)
    blanks_asked: int = 0
    ready: bool = False
    gone: bool = False
    family: _Family = field(default_factory=_Family)
    helps: bool = False
    nested: set[int] = field(default_factory=set)
    sent_nested: int = 0
    waits: bool = False
    unanswered: int = 0
    unanswered_bytes: int = 0
    unread_bytes: int = 0
    returned: list[Call] = field(default_factory=list)
    calls_begun: int = 0
    since: float = 0.0
    mean_s: float = 1.0
    error: DiosError | None = None


class _KnownFunction(NamedTuple):
    """A function whose pickle stays the same, and its name in the main module."""

    function: Function[object]
    number: int
    pickle: Pickle
    qualname: str


class _Prepared(NamedTuple):
    """The data of a call is stored and on the node of a worker, or the call failed."""

    call: Call
    result: PreparedCall | BaseException | None


class _InitializerCopied(NamedTuple):
    """The data of the initializer are on the node of a worker that was started, or cannot be there."""

    worker: WorkerTask
    error: BaseException | None


class _Unwanted(NamedTuple):
    """The program ends a call that runs."""

    future: CallFuture[object]


class _Unused(NamedTuple):
    """Blobs that workers have are not used any more."""

    object_ids: list[int]


class _NotGiven(NamedTuple):
    """A worker cannot get a blob."""

    worker: _Worker
    error: DiosError


_Event: TypeAlias = "LifecycleEvent | _Prepared | _InitializerCopied | _Unused | _Unwanted | _NotGiven"

_pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()


class Pool:
    """Workers and their thread. ``submit`` may be called by any thread."""

    def __init__(
        self,
        node: Node,
        options: PoolOptions,
        modules: LocalModules,
        main: MainNames,
        ended: Callable[[], None],
    ) -> None:
        self._options: Final = options
        self._trust: Final = options.worker.trust
        self._modules: Final = modules
        self._main: Final = main
        self._ended: Final = ended
        self._queue: Final[deque[Call]] = deque()
        self._workers: Final[list[_Worker]] = []
        self._leaving: Final[dict[int, _Worker]] = {}
        self._starting = 0
        self._failed_starts = 0
        self._retry_at = 0.0
        self._start_problem = ""
        """The reason of the last start of a worker that failed."""
        self._idle_check_at = math.inf
        self._near_check_at = math.inf
        self._slow_calls: Final = SlowCalls(options.copies)
        self._copies: Final[dict[Call, _Worker]] = {}
        """The copied calls that no worker has answered, and the worker of the first attempt."""
        self._initialized = False
        self._nesting = False
        self._functions: Final[dict[int, _KnownFunction]] = {}
        self._packages: Final[dict[str, StoredBlob]] = {}
        """The blobs with archives of packages, by their digests."""
        self._next_function = 0
        self._next_call = 0
        self._next_worker = 0
        self._closing = False
        self._cancelled = False
        self._forked = False
        self._broken: DiosError | InitializerFailure | None = None
        self._parked: Final[dict[Call, None]] = {}
        self._time_limits: Final[list[tuple[float, int, weakref.ref[Call]]]] = []
        """A heap of the times at which calls end, if they have not ended before."""
        self._time_limits_max = _TIME_LIMITS_KEPT
        self._events: Final[deque[_Event]] = deque()
        self._signalled = False
        self._asleep = False
        self.data: Final = DataStore(node, lambda numbers: self._reported(_Unused(numbers)))
        self._initializer: Final = self._prepared_initializer()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._statistics: Final = PoolStatistics()
        # The end of an executor that was forgotten may be noticed by a thread that has the lock.
        self._lock = threading.RLock()
        self._output: Final = OutputWriter()
        self._lifecycle: Final = Lifecycle(node, options.worker, self._reported)
        self._thread: Final = threading.Thread(target=self._run, name="dios executor", daemon=True)
        self._thread.start()
        _pools.add(self)

    def _prepared_initializer(self) -> PreparedCall | None:
        """Encode the initializer, if there is one. If that fails, end what has begun."""
        if self._options.initializer is None:
            return None
        try:
            self._main.take()
            prepared = prepare_initializer(self.data, self._main, *self._options.initializer)
            self._modules.add(prepared.modules)
        except BaseException:
            self.data.close()
            self._ended()
            raise
        return prepared

    # -- any thread -------------------------------------------------------------------------------
    def submit(self, call: Call) -> None:
        """Queue a call. Raise ``RuntimeError`` if the pool is closing, and the error that broke it."""
        if self._forked:
            raise RuntimeError("this executor belongs to the process that was forked: make a new one here")
        with self._lock:
            if self._broken is not None:
                raise self._broken.error() if isinstance(self._broken, InitializerFailure) else self._broken
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._statistics.submitted += 1
            self._queue.append(call)
            call.future.queued_at(self)
            if call.options.timeout_s is not None:
                limit = call.submitted_ns / 1e9 + call.options.timeout_s
                if len(self._time_limits) >= self._time_limits_max:
                    self._forget_ended_calls()
                heappush(self._time_limits, (limit, self._statistics.submitted, weakref.ref(call)))
        self._wake()

    def _forget_ended_calls(self) -> None:
        """Drop the time limits of calls that have ended."""
        limits = [limit for limit in self._time_limits if (call := limit[2]()) and not call.future.done()]
        heapify(limits)
        self._time_limits[:] = limits
        self._time_limits_max = max(_TIME_LIMITS_KEPT, 2 * len(limits))

    def end_call(self, future: CallFuture[object]) -> None:
        """End a call that runs, for its caller."""
        self._reported(_Unwanted(future))

    def waiting_status(self, future: CallFuture[object]) -> CallStatus:
        """Return the status of a call that waits: its place in the queue, and the reason."""
        queued, parked = tuple(self._queue), tuple(self._parked)
        waiting = len(queued) + len(parked)
        if any(call.future is future for call in parked):
            return CallStatus("waiting", 0, waiting, "its arguments are being stored at the node")
        place = next((at for at, call in enumerate(queued, 1) if call.future is future), 0)
        return CallStatus("waiting", place, waiting, self._why_waiting() if place else "it is being sent")

    def _why_waiting(self) -> str:
        if self._is_held_up():
            return "the arguments of an earlier call are being stored at the node"
        if self._failed_starts and not self._workers:
            return self._start_problem
        if not any(worker.ready for worker in tuple(self._workers)):
            return "the workers are starting"
        return "all workers have calls that come before it"

    def close(self, *, cancel: bool) -> None:
        """Accept no more calls, and end the workers when those that are queued have run."""
        if self._forked:
            return
        with self._lock:
            self._closing = True
            if cancel:
                for call in (*self._queue, *self._parked):
                    call.future.cancel()
                self._cancelled = True
        self._wake()

    @property
    def is_closing(self) -> bool:
        """Return True if no more calls are accepted."""
        return self._closing or self._forked

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the last worker."""
        if not self._forked:
            self._thread.join(timeout)

    def kill(self) -> None:
        """End the workers now; the calls that run fail."""
        if self._forked:
            return
        with self._lock:
            self._closing = True
            self._broken = self._broken or WorkerEndedError("the executor was stopped")
        self._wake()

    def statistics(self) -> PoolStatistics:
        """Return the present numbers."""
        workers = list(self._workers)
        return PoolStatistics(
            self._statistics.submitted,
            self._statistics.completed,
            self._statistics.failed,
            self._statistics.repeated,
            self._statistics.workers_started,
            self._statistics.workers_lost,
            self._statistics.workers_ended,
            len(self._queue) + len(self._parked),
            sum(len(worker.running) for worker in workers),
            self._starting,
            len(workers),
            self._statistics.workers_moved,
            self._statistics.copies,
            self._statistics.copies_first,
        )

    def forked(self) -> None:
        """Make this copy of the pool in a forked process refuse calls: its threads are not there."""
        self._forked = True
        self._lock = threading.RLock()

    def _reported(self, event: _Event) -> None:
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        self._signalled = True
        if self._asleep:
            with self._lock:
                if self._wake_fd >= 0:
                    os.eventfd_write(self._wake_fd, 1)

    # -- the pool's thread ------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while self._broken is None:
                self._signalled = False
                self._handle_events()
                if self._time_limits:
                    self._end_late_calls()
                self._assign()
                if self._options.copies:
                    self._copy_slowest()
                if self._closing and self._is_idle():
                    break
                if time.monotonic() >= self._idle_check_at:
                    self._end_idle()
                self._wait()
        except BaseException as error:  # noqa: BLE001 - every future must end
            broken = WorkerEndedError(f"the executor failed: {error}")
            broken.__cause__ = error
            self._broken = broken
        finally:
            self._end()

    def _is_idle(self) -> bool:
        busy = any(worker.running or worker.family.calls for worker in self._workers)
        # A call that was cancelled may wait for a future that never ends.
        parked = any(not call.future.cancelled() for call in self._parked)
        return not (busy or self._queue or parked or self._leaving)

    def _end(self) -> None:
        with self._lock:
            self._closing = True
        for worker in self._workers:
            self._lifecycle.end(worker.task, kill=self._broken is not None)
        calls = [
            call for holder in (*self._workers, *self._leaving.values()) for call in holder.running.values()
        ]
        for call in dict.fromkeys((*calls, *self._queue, *self._parked)):
            self._fail(call, self._broken or WorkerEndedError("the executor was stopped"))
        self._queue.clear()
        self._parked.clear()
        for worker in (*self._workers, *self._leaving.values()):
            self._output.show(worker.output.end())
        self._workers.clear()
        self.data.close()
        self._lifecycle.close()
        self._output.close()
        with self._lock:
            os.close(self._wake_fd)
            self._wake_fd = -1
        self._ended()

    # -- calls to workers -------------------------------------------------------------------------
    def _assign(self) -> None:
        """Give queued calls to workers that have room for them, and start workers while calls wait."""
        if self._cancelled:
            self._cancelled = False
            for call in [queued for queued in self._queue if queued.future.cancelled()]:
                call.begin()
                self._queue.remove(call)
        skipped = 0  # calls at the front that wait for another worker than the free ones
        self._near_check_at = math.inf
        while len(self._queue) > skipped < _NEAR_CALLS_MAX and not self._is_held_up():
            free = [
                worker
                for worker in self._workers
                if len(worker.running) < self._ahead(worker) and not worker.helps and not worker.unanswered
            ]
            idle = [worker for worker in free if not worker.running]
            if not idle:
                self._start(len(self._queue))
                self._replace_helper()
            chosen = idle or free
            if not chosen:
                break
            prepared = self._queue[skipped].prepared
            if prepared is None or not prepared.blobs:
                target = min(chosen, key=lambda worker: len(worker.running))
                count = max(1, self._ahead(target) - len(target.running))
            else:
                nearest = self._nearest(self._queue[skipped], prepared, free)
                if nearest is None:
                    skipped += 1
                    continue
                target, count = nearest, 1
            for _ in range(count):
                if len(self._queue) <= skipped or self._is_held_up():
                    break
                call = self._queue[skipped]
                del self._queue[skipped]
                self._send(target, call)
            self._flush(target)
        if self._nesting:
            self._assign_nested()

    def _nearest(self, call: Call, prepared: PreparedCall, free: Sequence[_Worker]) -> _Worker | None:
        """Return the free worker to which the fewest bytes must be copied for a call.

        None if fewer must be copied to a busy one, and the call has not yet waited for as long as the
        difference takes to copy.
        """
        missing = {
            node: prepared.missing(node)
            for node in {worker.task.task.node for worker in self._workers if not worker.helps}
        }
        nearest = min(free, key=lambda worker: (missing[worker.task.task.node], len(worker.running)))
        saved = missing[nearest.task.task.node] - min(missing.values())
        if not saved:
            return nearest
        now = time.monotonic()
        if call.near_until is None:
            call.near_until = now + min(_NEAR_WAIT_S, saved / _COPIED_PER_S)
        if now >= call.near_until:
            return nearest
        self._near_check_at = min(self._near_check_at, call.near_until)
        return None

    def _near(self) -> list[Near]:
        """Return the nodes with arguments of the calls that wait, those with the most bytes first."""
        sums: dict[str, int] = {}
        for call in islice(self._queue, _NEAR_CALLS_MAX):
            for blob in call.blobs:
                for node in blob.nodes:
                    sums[node] = sums.get(node, 0) + blob.size
        return [Near(node, sums[node]) for node in sorted(sums, key=lambda name: -sums[name]) if node]

    def _replace_helper(self) -> None:
        """End an idle worker that made nested calls of another one; a new one takes its place."""
        if self._starting or len(self._workers) < self._options.workers_max:
            return
        for worker in self._workers:
            if worker.helps and not worker.running:
                self._remove(worker)
                self._lifecycle.end(worker.task, kill=False)
                self._start(len(self._queue))
                return

    def _assign_nested(self) -> None:
        """Give nested calls to waiting and idle workers of their family, or to idle ones of nobody."""
        for family in {id(worker.family): worker.family for worker in self._workers}.values():
            while family.calls:
                mine = [worker for worker in self._workers if worker.family is family]
                chosen = _for_waiting(family, mine)
                if chosen is None:
                    idle = [worker for worker in mine if not worker.running]
                    if not idle and not self._queue:
                        idle = [
                            worker for worker in self._workers if not worker.helps and self._is_unused(worker)
                        ]
                        if not idle:
                            self._start(len(family.calls))
                    if not idle:
                        break
                    # The oldest call probably takes longest.
                    chosen = idle[0], family.calls.popleft()
                target, call = chosen
                if call.begin():
                    if target.family is not family:
                        target.family, target.helps = family, True
                    self._send_nested(target, call)

    def _is_unused(self, worker: _Worker) -> bool:
        """Return True if a worker has nothing to do."""
        return worker.ready and not (worker.running or worker.unanswered or worker.family.calls)

    def _send_nested(self, target: _Worker, call: NestedCall) -> None:
        self._next_call += 1
        target.running[self._next_call] = call
        target.nested.add(self._next_call)
        target.sent_nested += 1
        target.waits = False
        nested = frames.frame(frames.NESTED, frames.number(self._next_call), call.body)
        target.outbox += map(memoryview, (*self._news(target), nested))
        self._flush(target)

    def _is_held_up(self) -> bool:
        """Return True if calls must wait for an earlier call whose data are not there yet."""
        return bool(self._parked and self._options.actor_starts)

    def _ahead(self, worker: _Worker) -> int:
        """Return how many calls a worker may have: one if calls take long or few wait, 0 after its last."""
        if self._options.calls_per_worker:
            return min(1, self._options.calls_per_worker - worker.calls_begun)
        share = len(self._queue) // (2 * self._options.workers_max)
        by_time = int(_AHEAD_S / max(worker.mean_s, 1e-6))
        return max(1, min(_AHEAD_MAX, share, by_time))

    def _send(self, target: _Worker, call: Call) -> None:
        node = target.task.task.node
        if call.answered:
            return
        if call.future.cancelled():
            call.begin()
            return
        try:
            if call.prepared is None:
                number, definition = self._function(call.function)
                pickled = partial(pickled_small, main=self._main)
                arguments, _ = encode_arguments(call.args, call.kwargs, self._modules, pickled)
            elif not call.prepared.missing(node):
                number, definition = 0, call.prepared.function.message(node)
                arguments = call.prepared.arguments.message(node)
                self._modules.add(call.prepared.modules)
            else:
                raise NeedsDataError  # noqa: TRY301 - the same as for calls that are not prepared
            if not call.begin():
                return
            self._next_call += 1
            # Also if this call cannot be sent.
            target.outbox += map(memoryview, self._news(target))
            parts = []
            if call.future.context is not None:
                parts += hand_context(target.task.task, call.future.context)
            if not number:
                parts.append(
                    frames.frame(
                        frames.CALL_ONCE,
                        frames.number(self._next_call),
                        frames.number(len(definition)),
                        definition,
                        arguments,
                    )
                )
            else:
                if number not in target.functions:
                    target.functions.add(number)
                    parts.append(frames.frame(frames.FUNCTION, frames.number(number), definition))
                parts.append(
                    frames.frame(
                        frames.CALL, frames.number(self._next_call), frames.number(number), arguments
                    )
                )
        except NeedsDataError:
            self._park(call, node)
            return
        except BaseException as error:  # noqa: BLE001 - code of the call's own values runs here
            self._fail(call, error)
            return
        if not target.running:
            target.since = time.monotonic()
        target.calls_begun += 1
        target.running[self._next_call] = call
        target.outbox.append(memoryview(parts[0] if len(parts) == 1 else b"".join(parts)))

    # -- copies of slow calls ---------------------------------------------------------------------
    def _copy_slowest(self) -> None:
        """Give the slowest call to a second worker if it is slow and nothing else waits for a worker."""
        most = max(1, self._options.workers_max // CAP_PART)
        if self._queue or self._parked or self._nesting or self._closing or len(self._copies) >= most:
            return
        now = time.monotonic()
        running: list[RunningCall] = []
        first: list[tuple[_Worker, Call]] = []
        for worker in self._workers:
            call = next(iter(worker.running.values()), None)
            if isinstance(call, Call) and not call.copied and worker.ready:
                running.append(RunningCall(len(first), call.function, call.args, now - worker.since))
                first.append((worker, call))
        number = self._slow_calls.slowest(running)
        if number is None:
            return
        origin, call = first[number]
        idle = [
            candidate for candidate in self._workers if self._is_unused(candidate) and not candidate.helps
        ]
        if not idle:
            self._start(1)
            return
        # Another node is probably not slow for the same reason.
        node = origin.task.task.node
        target = min(idle, key=lambda candidate: candidate.task.task.node == node)
        call.copied = True
        self._copies[call] = origin
        self._statistics.copies += 1
        self._send(target, call)
        self._flush(target)

    def _holders(self, call: Call) -> list[tuple[_Worker, int]]:
        """Return the workers that have a call, and its number there."""
        return [
            (worker, number)
            for worker in self._workers
            for number, held in worker.running.items()
            if held is call
        ]

    def _first_answer(self, worker: _Worker, call: Call) -> None:
        """Stop the other attempts of a call that a worker has answered."""
        call.answered = True
        if self._copies.pop(call, worker) is not worker:
            self._statistics.copies_first += 1
        for other, number in self._holders(call):
            if not other.ready or next(iter(other.running)) != number:
                continue  # it has not begun the call, whose answer is ignored
            del other.running[number]
            self._give_back([other.running.pop(left) for left in list(other.running)])
            self._remove(other)
            self._lifecycle.end(other.task, kill=True)

    def _needs_no_repetition(self, call: Call | NestedCall) -> bool:
        """Return True if a call of a lost worker has ended, or another worker has it."""
        if not isinstance(call, Call) or call.answered:
            return isinstance(call, Call)
        if not call.copied:
            return False
        if self._holders(call) or call in self._queue or call in self._parked:
            return True
        call.copied = False
        self._copies.pop(call, None)
        return False

    def _park(self, call: Call, node: str) -> None:
        """Have the data of a call stored; it returns to the queue when that is done."""
        self._parked[call] = None
        if call.prepared is None:
            arguments = call.args, call.kwargs
            CallPreparation(
                self.data,
                call.function,
                arguments,
                lambda result: self._reported(_Prepared(call, result)),
                main=self._main,
                by_value=call.by_value,
                submitted_ns=call.submitted_ns,
            ).start()
        else:
            call.near_until = None
            copied(self.data, call.prepared, node, lambda error: self._reported(_Prepared(call, error)))

    def _news(self, target: _Worker) -> list[bytes]:
        """Return frames with the packages and the names of the main module that a worker has not got yet."""
        names = self._main.log[target.names :]
        target.names += len(names)
        return [*self._packages_for(target), *filter(None, names)]

    def _packages_for(self, target: _Worker) -> list[bytes]:
        """Return a frame with archives, or nothing.

        A large archive is stored in a blob: workers that start later on its node map it.
        """
        new = self._modules.archives[target.modules :]
        if not new:
            return []
        target.modules += len(new)
        sent = []
        for archive in new:
            blob = self._packages.get(archive.digest)
            stored = None if blob is None else blob.at(target.task.task.node)
            if len(archive.content) < BUFFER_BYTES_MIN or stored is None:
                sent.append(archive)
                if len(archive.content) >= BUFFER_BYTES_MIN:
                    self.data.do(partial(self._store_package, archive, target.task.task.node))
            else:
                sent.append(replace(archive, content=b"", blob=stored.object_id))
        return [frames.frame(frames.MODULES, msgspec.msgpack.encode(sent))]

    def _store_package(self, archive: Archive, node: str) -> None:
        """Store an archive for further workers of a node, in the thread of the store."""
        with contextlib.suppress(DiosError):  # without it, each worker gets the bytes
            blob = self._packages.get(archive.digest)
            if blob is None:
                blob = self.data.keep(create_blob(self.data.node, [archive.content]))
            blob.copy_to(node)
            self._packages[archive.digest] = blob

    def _function(self, function: Function[object]) -> tuple[int, bytes]:
        """Return a function's number and pickle.

        The number is 0 if the pickle is for one call, because the function refers to something that can
        change.
        """
        known = self._functions.get(id(function))
        if (
            known is not None
            and known.function is function
            and self._main.is_current(function, known.qualname, known.pickle.names)
        ):
            return known.number, known.pickle.data
        pickled = partial(pickled_function, main=self._main)
        encoded, is_constant = encode_call_function(function, self._modules, pickled, self._main)
        if not is_constant:
            return 0, encoded.data
        while len(self._functions) >= _FUNCTIONS_KEPT:
            self._forget(self._functions.pop(next(iter(self._functions))).number)
        self._next_function += 1
        qualname = qualname_in(self._main.namespace, function)
        self._functions[id(function)] = _KnownFunction(function, self._next_function, encoded, qualname)
        return self._next_function, encoded.data

    def _forget(self, number: int) -> None:
        for worker in self._workers:
            if number in worker.functions:
                worker.functions.discard(number)
                worker.outbox.append(memoryview(frames.frame(frames.FORGET, frames.number(number))))

    def _flush(self, worker: _Worker) -> None:
        """Write as much as the stream has room for."""
        ring = worker.task.writer
        with contextlib.suppress(DiosError):  # the end of the worker is seen where its results are read
            while worker.outbox:
                room = ring.room
                if not room:
                    return
                together = []
                while worker.outbox and len(worker.outbox[0]) <= min(room, _TOGETHER_BYTES):
                    together.append(worker.outbox.popleft())
                    room -= len(together[-1])
                if together:
                    ring.write(together[0] if len(together) == 1 else b"".join(together))
                else:
                    data = worker.outbox[0]
                    ring.write(data[:room])
                    if len(data) > room:
                        worker.outbox[0] = data[room:]
                    else:
                        worker.outbox.popleft()
            worker.unread_bytes = 0

    # -- waiting ----------------------------------------------------------------------------------
    def _wait(self) -> None:
        self._asleep = True
        try:
            if self._signalled or self._broken is not None:
                return
            rings: list[RingEnd] = [member.task.reader for member in self._workers]
            rings += [member.task.writer for member in self._workers if member.outbox]
            ready, readable = wait_any(rings, self._until_next_step(), [self._wake_fd])
        finally:
            self._asleep = False
        if readable:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        for worker in list(self._workers):
            if worker.gone:
                continue  # a worker before it answered the call that it copied
            if worker.task.reader in ready:
                self._receive(worker)
            if worker.outbox:
                self._flush(worker)

    def _until_next_step(self) -> float | None:
        """Return the seconds until a worker may be started or ended, or None."""
        now = time.monotonic()
        times = [] if self._near_check_at == math.inf else [self._near_check_at]
        if len(self._workers) > self._options.idle_kept and self._options.idle_s is not None:
            times.append(self._idle_check_at)
        if self._options.copies and any(worker.running for worker in self._workers):
            times.append(now + _COPY_CHECK_S)
        with self._lock:
            times += [limit[0] for limit in self._time_limits[:1]]
        if self._retry_at > now and (self._queue or any(worker.family.calls for worker in self._workers)):
            times.append(self._retry_at)
        return max(0.0, min(times) - now) if times else None

    # -- starts and ends of workers ---------------------------------------------------------------
    def _start(self, calls: int) -> None:
        """Start workers for ``calls`` that wait, as far as there are places for them.

        After a failed start they start one at a time.
        """
        if time.monotonic() < self._retry_at:
            return
        unready = sum(not worker.ready for worker in self._leaving.values())
        places = self._options.workers_max - len(self._workers) - self._starting - unready
        if self._options.actor_starts:
            started = self._statistics.workers_started + self._starting
            places = min(places, self._options.actor_starts - started)
        if self._failed_starts:
            calls = min(calls, 1 - unready - sum(not worker.ready for worker in self._workers))
        count = min(places, calls - self._starting)
        near = self._near() if count > 0 and self._options.worker.work is not None else ()
        for _ in range(count):
            self._starting += 1
            self._next_worker += 1
            self._lifecycle.start(self._next_worker, near)

    def _end_late_calls(self) -> None:
        """End the calls whose time limit has passed."""
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._time_limits or self._time_limits[0][0] > now:
                    return
                call = heappop(self._time_limits)[2]()
            if call is not None:
                limit_s = call.options.timeout_s
                self._end_call(call, CallTimeLimitError(f"{call.title} did not end within {limit_s:g} s"))

    def _end_unwanted(self, future: CallFuture[object]) -> None:
        """End the call of a future, wherever it is."""
        workers = (*self._workers, *self._leaving.values())
        running = [call for worker in workers for call in worker.running.values()]
        for call in (*running, *self._queue, *self._parked):
            if isinstance(call, Call) and call.future is future:
                self._end_call(call, CallEndedError(f"{call.title} was ended by the program"))
                return

    def _end_call(self, call: Call, error: CallEndedError) -> None:
        """Fail a call. A worker that makes it is ended, and an answer of another worker is ignored."""
        if call.answered or call.future.done():
            return
        self._fail(call, error)
        call.answered = True
        self._copies.pop(call, None)
        self._parked.pop(call, None)
        call.copied = False
        with contextlib.suppress(ValueError):
            self._queue.remove(call)
        for worker, _ in self._holders(call):
            self._stop_if_unwanted(worker)

    def _stop_if_unwanted(self, worker: _Worker) -> None:
        """End a worker that makes a call which was ended; its other calls go to others."""
        call = next(iter(worker.running.values()), None)
        if not (worker.ready and isinstance(call, Call) and call.answered and not call.copied):
            return
        del worker.running[next(iter(worker.running))]
        waiting = [number for number in worker.running if number not in worker.nested]
        self._give_back([worker.running.pop(number) for number in waiting])
        self._remove(worker)
        self._lifecycle.end(worker.task, kill=True)

    def _end_idle(self) -> None:
        """End the workers that had nothing to do for some time, but not those that are kept."""
        idle_s = self._options.idle_s
        if idle_s is None:
            self._idle_check_at = math.inf
            return
        now = time.monotonic()
        self._idle_check_at = now + idle_s / 2
        for worker in reversed(self._workers.copy()):
            is_spare = not worker.gone and len(self._workers) > self._options.idle_kept
            if is_spare and self._is_unused(worker) and now - worker.since >= idle_s:
                self._remove(worker)
                self._statistics.workers_ended += 1
                self._lifecycle.end(worker.task, kill=False)

    def _handle_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Started):
                self._started(event.worker)
            elif isinstance(event, Refused):
                self._starting -= 1
                self._start_refused(str(event.error), event.error.code, event.error)
            elif isinstance(event, _Prepared):
                self._prepared(event)
            elif isinstance(event, _InitializerCopied):
                self._initializer_copied(event)
            elif isinstance(event, _Unused):
                self._drop(event.object_ids)
            elif isinstance(event, _Unwanted):
                self._end_unwanted(event.future)
            elif isinstance(event, _NotGiven):
                if event.worker in self._workers:
                    self._lost(event.worker, ProtocolError(f"its data cannot be had: {event.error}"))
            elif event.number in self._leaving:
                self._left(self._leaving.pop(event.number), event)

    def _started(self, task: WorkerTask) -> None:
        """Add a worker; before, have the data of the initializer copied to its node if they are not there."""
        initializer, node = self._initializer, task.task.node
        if initializer is not None and initializer.missing(node):
            copied(
                self.data, initializer, node, lambda error: self._reported(_InitializerCopied(task, error))
            )
            return
        self._starting -= 1
        self._statistics.workers_started += 1
        worker = _Worker(task, OutputLines(task.number), since=time.monotonic())
        env = self._options.env
        first = [frames.frame(frames.ENVIRONMENT, msgspec.msgpack.encode(env))] if env else []
        first += self._news(worker)
        first.append(
            frames.frame(
                frames.INITIALIZER, b"" if initializer is None else initializer.function.message(node)
            )
        )
        worker.outbox.append(memoryview(b"".join(first)))
        self._workers.append(worker)
        self._idle_check_at = min(self._idle_check_at, worker.since)
        self._flush(worker)

    def _initializer_copied(self, event: _InitializerCopied) -> None:
        if event.error is None:
            self._started(event.worker)
            return
        self._starting -= 1
        self._lifecycle.end(event.worker, kill=True)
        self._start_refused(f"the arguments of the initializer cannot be copied: {event.error}")

    def _ended_early(self, status: Status | None, reason: str, *, lost: bool) -> None:
        """Note the end of a worker before its first call. Its program is to blame only if it has run."""
        if lost:
            self._start_refused(reason)
            return
        if status is not None and status.cause is Cause.SPAWN:
            self._statistics.workers_started -= 1
            self._start_refused(reason, status.exit_code)
            return
        self._delay_start(f"the workers end before their first call: {reason}")
        if not self._has_workers() and self._failed_starts >= FAILED_STARTS_MAX:
            self._broken = self._no_worker("Remove the cause, and make a new executor")

    def _start_refused(self, reason: str, code: int = 0, error: BaseException | None = None) -> None:
        """Note that a node did not start a worker; after some refusals fail the calls that wait.

        The next call tries again: the node may be able to start workers then.
        """
        self._delay_start(f"no worker can be started: {reason}")
        if self._has_workers():
            return
        if code in _WRONG:
            self._broken = self._no_worker("Remove the cause, and make a new executor", error)
            return
        attempts = REFUSED_STARTS_MAX if code in _PASSING else FAILED_STARTS_MAX
        if code == Code.ENOSYS and self._options.worker.work is None:
            attempts = 1  # the scheduler would choose another node
        if self._failed_starts == FAILED_STARTS_MAX < attempts:
            self._output.show(f"[dios] {plain_lines(self._start_problem)}. The calls wait.\n")
        if self._failed_starts < attempts:
            return
        refused = self._no_worker("Further calls try again", error)
        self._failed_starts, self._retry_at = 0, 0.0
        for call in (*self._queue, *self._parked):
            self._fail(call, refused)
        self._queue.clear()
        self._parked.clear()

    def _delay_start(self, problem: str) -> None:
        """Delay the next start. Starts that were requested together and failed count once."""
        self._start_problem = problem.rstrip(".")
        if time.monotonic() >= self._retry_at:
            self._failed_starts += 1
            delay, delay_max = _RETRY_S
            self._retry_at = time.monotonic() + min(delay_max, delay * 2 ** min(self._failed_starts - 1, 16))

    def _has_workers(self) -> bool:
        """Return True if there is a worker, or one is being started."""
        return bool(self._workers or self._starting)

    def _no_worker(self, advice: str, cause: BaseException | None = None) -> NoWorkerError:
        """Return the error of calls that no worker can run."""
        tries = f" ({self._failed_starts} attempts)" if self._failed_starts > 1 else ""
        error = NoWorkerError(f"{self._start_problem}{tries}. {advice}")
        error.__cause__ = cause
        return error

    def _lost(self, worker: _Worker, error: DiosError) -> None:
        """Take a worker out that ended or broke the rules; its calls that did not run go to others."""
        self._remove(worker)
        self._statistics.workers_lost += 1
        worker.error = error
        # A worker makes its calls in order, so the first is the one that ran, with the nested ones above it.
        waiting = [
            number
            for number in list(worker.running)[1 if worker.ready else 0 :]
            if number not in worker.nested
        ]
        returned = [worker.running.pop(number) for number in waiting]
        self._give_back([call for call in returned if not self._needs_no_repetition(call)])
        self._lifecycle.end(worker.task, kill=isinstance(error, ProtocolError))

    def _remove(self, worker: _Worker) -> None:
        """Take a worker out of the list; its nested calls end."""
        self._workers.remove(worker)
        self._output.show(worker.output.end())
        worker.gone = True
        self.data.do(lambda: close_all_of(worker.blanks))
        for call in [call for call in worker.family.calls if call.origin is worker]:
            worker.family.calls.remove(call)
        self._leaving[worker.task.number] = worker
        for other in self._workers.copy():
            if not other.gone and _is_needless(other, worker):
                self._remove(other)
                self._lifecycle.end(other.task, kill=bool(other.running))

    def _give_back(self, calls: Sequence[Call | NestedCall]) -> None:
        """Put calls back at the front, in their order."""
        for call in reversed(calls):
            if isinstance(call, Call):
                self._queue.appendleft(call)
            elif not call.origin.gone:
                call.origin.family.calls.append(call)

    def _left(self, worker: _Worker, event: Ended) -> None:
        """Repeat or fail the call that ran in a worker that has ended."""
        status = event.status
        violation = isinstance(worker.error, ProtocolError)
        reason = str(worker.error) if violation else _reason(status, worker.error)
        moved = not violation and status is not None and status.cause in _MOVED
        lost = not violation and (status is None or status.cause in _LOST)
        if moved:
            self._statistics.workers_lost -= 1
            self._statistics.workers_moved += 1
        elif not worker.ready:
            self._ended_early(status, reason, lost=lost)
        for call in worker.running.values():
            if self._needs_no_repetition(call):
                continue
            call.tries += not moved
            fingerprint = "" if status is None else status.fingerprint
            kind = ActorEndedError if self._options.actor_starts else WorkerEndedError
            if isinstance(call, Call):
                retries = call.options.retries
                again = call.options.repeats(call.tries, _bases_of(kind))
            else:
                retries, again = self._options.retries, False
            if (moved and not self._options.actor_starts) or (lost and call.tries <= retries) or again:
                self._statistics.repeated += 1
                self._give_back([call])
            else:
                title = call.title if isinstance(call, Call) else "the call"
                self._fail(call, kind(f"the worker ended in {title}: {reason}", fingerprint=fingerprint))
        worker.running.clear()
        starts = self._options.actor_starts
        if starts and self._statistics.workers_started >= starts and self._broken is None:
            self._broken = ActorEndedError(f"the worker of the actor has ended: {reason}")

    # -- results ----------------------------------------------------------------------------------
    def _receive(self, worker: _Worker) -> None:
        try:
            for kind, body in worker.inbox.feed(worker.task.reader.read()):
                self._obey(worker, kind, body)
        except DiosError as error:
            self._lost(worker, error)
        if worker.returned:
            self._give_back(worker.returned)
            worker.returned.clear()
        if not worker.gone:
            self._stop_if_unwanted(worker)
        most = self._options.calls_per_worker
        if most and not worker.gone and worker.calls_begun >= most and self._is_unused(worker):
            self._remove(worker)
            self._statistics.workers_ended += 1
            self._lifecycle.end(worker.task, kill=False)

    def _obey(self, worker: _Worker, kind: int, body: memoryview) -> None:
        """Handle a frame of a worker. Nothing in it is decoded here except numbers."""
        if kind in {frames.RESULT, frames.EXCEPTION}:
            self._answered(worker, body, failed=kind == frames.EXCEPTION)
        elif kind == frames.OUTPUT:
            self._output.show(worker.output.feed(body))
        elif kind == frames.SUBMIT and worker.ready:
            self._submitted(worker, body)
        elif kind == frames.WAITING and worker.ready:
            # If another nested call or answer is under way, the worker says so again when it has read it.
            worker.waits = bool(worker.running) and frames.numbered(body)[0] == worker.sent_nested
        elif kind == frames.RETURNED and worker.ready:
            self._returned(worker, body)
        elif kind == frames.WANTED or (kind in _DATA_KINDS and worker.ready):
            self._obey_data(worker, kind, body)
        elif kind == frames.READY and not worker.ready:
            worker.ready = self._initialized = True
        elif kind == frames.BROKEN and not worker.ready and self._options.initializer:
            # No call has run in this worker, so its initializer has sent this. If it succeeded in another
            # worker, only this worker ends.
            if not self._initialized:
                self._broken = InitializerFailure(bytes(body), trust=self._trust)
        else:
            raise ProtocolError(f"a worker sent a frame of kind {kind}, which it may not send now")

    def _answered(self, worker: _Worker, body: memoryview, *, failed: bool) -> None:
        call, rest = self._ended_call(worker, body, failed=failed)
        if isinstance(call, Call):
            if self._is_late(worker, call) or (failed and self._repeat(call, rest)):
                return
            call.future.finish(bytearray(rest), failed=failed, trust=self._trust)
        else:
            self._answer(call, frames.RAISES if failed else frames.RETURNS, bytes(rest))

    def _repeat(self, call: Call, error: memoryview) -> bool:
        """Make a call again after its exception, if its options say so."""
        if not call.options.retry_on:
            return False
        call.tries += 1
        if not call.options.repeats(call.tries, describe_exception(error).bases):
            return False
        self._statistics.failed -= 1
        self._statistics.repeated += 1
        call.answered = call.copied = False
        if not (self._holders(call) or call in self._queue or call in self._parked):
            self._give_back([call])
        return True

    def _ended_call(
        self, worker: _Worker, body: memoryview, *, failed: bool
    ) -> tuple[Call | NestedCall, memoryview]:
        """Return the call that a worker answers, and the rest of the answer."""
        number, rest = frames.numbered(body)
        call = worker.running.pop(number, None) if worker.ready else None
        if call is None:
            raise ProtocolError("a worker answered a call that it was not given")
        now = time.monotonic()
        late = isinstance(call, Call) and call.answered
        if isinstance(call, Call) and not late and not failed:
            self._slow_calls.ended(call.function, call.args, now - worker.since)
        worker.mean_s = (
            (worker.mean_s + now - worker.since) / 2 if worker.mean_s < 1.0 else now - worker.since
        )
        worker.since = now
        worker.output.renew()
        worker.nested.discard(number)
        worker.waits = False
        self._failed_starts = 0
        if failed and not late:
            self._statistics.failed += 1
        elif not late:
            self._statistics.completed += 1
        return call, rest

    def _is_late(self, worker: _Worker, call: Call) -> bool:
        """Return True if another worker has answered a call before."""
        if call.answered:
            return True
        if call.copied:
            self._first_answer(worker, call)
        return False

    # -- data in blobs ----------------------------------------------------------------------------
    def _prepared(self, event: _Prepared) -> None:
        """Put a call back into the queue, at its head, or end it."""
        call, result = event
        if self._parked.pop(call, self) is self:
            return
        if isinstance(result, BaseException):
            self._fail(call, result)
            return
        call.prepared = result or call.prepared
        self._queue.appendleft(call)

    def _drop(self, object_ids: list[int]) -> None:
        """Report to workers the blobs that are not used any more."""
        for worker in self._workers:
            held = worker.held.intersection(object_ids)
            if held:
                worker.held -= held
                worker.outbox.append(
                    memoryview(frames.frame(frames.DROPPED, msgspec.msgpack.encode(list(held))))
                )
                self._flush(worker)

    def _obey_data(self, worker: _Worker, kind: int, body: memoryview) -> None:
        """Handle a frame of a worker about blobs. It gets those of its calls and initializer, each once."""
        task = worker.task.task
        if kind == frames.WANTED:
            blobs = self._wanted(worker, body)
            self.data.do(lambda: self._give(worker, lambda: self.data.give(task, blobs)))
        elif kind == frames.BLANK:
            if worker.blanks_asked or not worker.running:
                raise ProtocolError("a worker asked for more blobs than it has results")
            worker.blanks_asked += 1
            self.data.do(lambda: self._give(worker, lambda: self.data.give_blank(task, worker.blanks)))
        elif kind == frames.STORED:
            call, rest = self._ended_call(worker, body, failed=False)
            blob = worker.blanks.pop(frames.numbered(rest)[0], None)
            if blob is None or not isinstance(call, Call):
                self._fail(
                    call, WorkerEndedError("the worker named a blob for its result that is not its own")
                )
                raise ProtocolError("a worker named a blob that it was not given")
            worker.blanks_asked -= 1
            if self._is_late(worker, call):
                self.data.do(lambda: close_all_of({blob.object_id: blob}))
            else:
                self.data.do(lambda: self._take_over(blob, call))
        else:
            number, _ = frames.numbered(body)
            call_again = worker.running.get(number)
            if not isinstance(call_again, Call) or call_again.by_value or call_again.prepared is None:
                raise ProtocolError("a worker did not accept a call that it can load")
            del worker.running[number]
            call_again.by_value, call_again.prepared = True, None
            self._park(call_again, task.node)

    def _wanted(self, worker: _Worker, body: memoryview) -> list[Reference]:
        try:
            numbers = msgspec.msgpack.decode(body, type=list[int])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ProtocolError("a worker asked for blobs in an unknown form") from None
        calls = [call.prepared for call in worker.running.values() if isinstance(call, Call)]
        known = {
            reference.object_id: reference
            for prepared in (self._initializer, *calls)
            if prepared is not None
            for reference in prepared.references(worker.task.task.node)
        }
        packages = [blob.at(worker.task.task.node) for blob in list(self._packages.values())]
        known |= {reference.object_id: reference for reference in packages if reference is not None}
        if (
            not known.keys() >= set(numbers)
            or not worker.held.isdisjoint(numbers)
            or len(set(numbers)) != len(numbers)
        ):
            raise ProtocolError("a worker asked for a blob that does not belong to its calls")
        worker.held.update(numbers)
        return [known[number] for number in numbers]

    def _give(self, worker: _Worker, give: Callable[[], None]) -> None:
        try:
            give()
        except DiosError as error:
            self._reported(_NotGiven(worker, error))

    def _take_over(self, blob: Reference, call: Call) -> None:
        try:
            kept = self.data.take_over(blob)
        except DiosError as error:
            call.future.fail(error)
        else:
            call.future.finish(kept, failed=False, trust=self._trust)

    def _fail(self, call: Call | NestedCall, error: BaseException | InitializerFailure) -> None:
        if isinstance(call, Call) and call.answered:
            return
        self._statistics.failed += 1
        if isinstance(call, Call):
            call.fail(error)
        else:
            self._answer(call, frames.LOST, str(error).encode(errors="replace"))

    # -- nested calls -----------------------------------------------------------------------------
    def _submitted(self, worker: _Worker, body: memoryview) -> None:
        """Queue a nested call, or refuse it if it is over a bound."""
        number, rest = frames.numbered(body)
        if frames.numbered(rest)[0] > len(rest):
            raise ProtocolError("a worker sent a nested call whose function is longer than the frame")
        self._nesting = True
        call = NestedCall(worker, number, bytes(rest))
        worker.unanswered += 1
        worker.unanswered_bytes += len(call.body)
        with self._lock:
            self._statistics.submitted += 1
        if worker.unanswered > frames.NESTED_CALLS_MAX or worker.unanswered_bytes > frames.NESTED_BYTES_MAX:
            raise ProtocolError("a worker sent more nested calls than it may have")
        if len(worker.nested) >= frames.NESTED_DEPTH_MAX:
            reason = f"more than {frames.NESTED_DEPTH_MAX} calls wait for nested ones in one worker"
            self._statistics.failed += 1
            self._answer(call, frames.REFUSED, reason.encode())
        else:
            worker.family.calls.append(call)

    def _answer(self, call: NestedCall, outcome: int, data: bytes) -> None:
        """Send the outcome of a nested call to the worker that submitted it."""
        origin = call.origin
        if origin.gone:
            return
        origin.unanswered -= 1
        origin.unanswered_bytes -= len(call.body)
        origin.unread_bytes += len(data)
        if origin.unread_bytes > frames.NESTED_BYTES_MAX:
            outcome = frames.REFUSED
            data = f"results of nested calls over {frames.NESTED_BYTES_MAX:,} bytes were not read".encode()
        origin.sent_nested += 1
        origin.waits = False
        parts = (frames.number(call.number), bytes([outcome]), data)
        origin.outbox.append(memoryview(frames.frame(frames.ANSWER, *parts)))
        self._flush(origin)

    def _returned(self, worker: _Worker, body: memoryview) -> None:
        """Queue a call again that a worker has not begun, because its present call waits."""
        number = frames.numbered(body)[0]
        call = worker.running.get(number)
        if not isinstance(call, Call) or next(iter(worker.running)) == number:
            raise ProtocolError("a worker gave back a call that it had begun, or was not given")
        del worker.running[number]
        worker.returned.append(call)


def _for_waiting(family: _Family, workers: list[_Worker]) -> tuple[_Worker, NestedCall] | None:
    """Take a nested call for a waiting worker of a family: the latest of its own, or else of another one.

    A worker with many calls above each other gets those of others only if all workers wait: then nobody else
    can go on.
    """
    all_wait = all(member.waits or not member.running for member in workers)
    for worker in workers:
        if not worker.waits:
            continue
        latest = range(len(family.calls) - 1, max(-1, len(family.calls) - 1 - _LATEST), -1)
        own = next((place for place in latest if family.calls[place].origin is worker), None)
        if own is not None:
            call = family.calls[own]
            del family.calls[own]
            return worker, call
        if all_wait or len(worker.nested) < _DEPTH_FOR_OTHERS:
            return worker, family.calls.pop()
    return None


def _is_needless(helper: _Worker, gone: _Worker) -> bool:
    """Return True for a worker all calls of which began in a worker that is gone."""
    if not helper.helps or helper.family is not gone.family:
        return False
    if not gone.helps:
        return True
    origins = [call.origin for call in helper.running.values() if isinstance(call, NestedCall)]
    return bool(origins) and all(origin.gone or origin is helper for origin in origins)


def _bases_of(kind: type) -> list[tuple[str, str]]:
    return [(base.__module__, base.__qualname__) for base in kind.__mro__]


def _reason(status: Status | None, error: DiosError | None) -> str:
    if status is None:
        return f"it was lost: {error}"
    if status.cause is Cause.EXITED:
        return f"it left its process with exit code {status.exit_code}"
    return status.detail or f"its task ended ({status.cause.name.lower()})"


def running_pools() -> list[Pool]:
    """Return the pools of this process."""
    return list(_pools)


def _forked() -> None:
    for pool in _pools:
        pool.forked()


os.register_at_fork(after_in_child=_forked)
