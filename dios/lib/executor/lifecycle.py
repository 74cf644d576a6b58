"""Starts and ends the workers of an executor in a thread of its own: these steps wait for the node.

The thread of the pool requests these steps and gets an event at their end, so it never waits itself.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from dios.client.ops.attributes import Handed
from dios.client.ops.status import Status
from dios.client.program import Program, encode_program
from dios.client.sync.node import Node, Reference, Stream, Task
from dios.client.tracing.contexts import current
from dios.errors import DiosError
from dios.lib.executor import worker
from dios.limits import WORK_NEAR_MAX
from dios.transport.rings.reader import RingReader
from dios.transport.rings.writer import RingWriter

if TYPE_CHECKING:
    from dios.wire.messages import Limits, Near, Work

_RING_BYTES: Final = 1024 * 1024

_END_WAIT_S: Final = 5.0
"""A worker that has not ended by itself after this time is killed; after twice this time it is given up."""

_CHECK_S: Final = (0.002, 0.1)
"""The first and the longest pause between two looks at a worker that ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The way in which workers are started."""

    groups: tuple[Reference, ...] = ()
    inputs: tuple[Handed, ...] = ()
    host: str = ""
    work: Work | None = None
    limits: Limits | None = None
    trust: bool = False
    label: str = "worker"
    template: str = ""


@dataclass(slots=True, eq=False)
class WorkerTask:
    """The task of a worker, and the near ends of its streams."""

    number: int
    task: Task
    calls: Stream
    results: Stream
    writer: RingWriter
    reader: RingReader


class Started(NamedTuple):
    """A worker was started."""

    worker: WorkerTask


class Refused(NamedTuple):
    """The node did not start a worker."""

    number: int
    error: DiosError


class Ended(NamedTuple):
    """A worker ended; the status is None if the node does not know it."""

    number: int
    status: Status | None


LifecycleEvent: TypeAlias = "Started | Refused | Ended"


@dataclass(slots=True, eq=False)
class _Ending:
    worker: WorkerTask
    deadline: float
    killed: bool


class Lifecycle:
    """The thread that starts and ends workers. ``report`` is called by it for each event."""

    def __init__(self, node: Node, options: WorkerOptions, report: Callable[[LifecycleEvent], None]) -> None:
        self._node: Final = node
        self._options: Final = options
        self._context: Final = current.get()
        """The span in which the executor was made; its workers start as parts of it."""
        self._report: Final = report
        self._jobs: Final[queue.SimpleQueue[Callable[[], None] | None]] = queue.SimpleQueue()
        self._started_workers: Final[dict[int, WorkerTask]] = {}
        self._ending: Final[list[_Ending]] = []
        self._closing = False
        self._closed = False
        self._lock: Final = threading.Lock()
        self._program: Reference | None = None
        self._thread: Final = threading.Thread(target=self._run, name="dios executor workers", daemon=True)
        self._thread.start()

    # -- the thread of the pool -------------------------------------------------------------------
    def start(self, number: int, near: Sequence[Near] = ()) -> None:
        """Start a worker; ``Started`` or ``Refused`` follows.

        A start that waits for the scheduler has a thread of its own, so that it delays no other step. The
        scheduler prefers the nodes of ``near``, which have arguments of calls that wait.
        """
        if self._options.work is None:
            self._jobs.put(lambda: self._start(number))
        else:
            name = "dios executor start"
            work = replace(self._options.work, near=(*self._options.work.near, *near)[:WORK_NEAR_MAX])
            threading.Thread(target=self._start, args=(number, work), name=name, daemon=True).start()

    def end(self, worker_task: WorkerTask, *, kill: bool) -> None:
        """End a worker, which leaves by itself if it is not killed; ``Ended`` follows."""
        self._jobs.put(lambda: self._end(worker_task, kill=kill))

    def close(self) -> bool:
        """End after all present jobs. Return False if the node does not answer in time."""
        self._closing = True
        self._jobs.put(None)
        self._thread.join(3 * _END_WAIT_S)
        return not self._thread.is_alive()

    # -- its own thread ---------------------------------------------------------------------------
    def _run(self) -> None:
        pause, pause_max = _CHECK_S
        closed = False
        while not closed or self._ending:
            try:
                job = self._jobs.get(timeout=pause if self._ending else None)
            except queue.Empty:
                pause = min(2 * pause, pause_max)
            else:
                pause = _CHECK_S[0]
                if job is None:
                    closed = True
                    with self._lock:
                        self._closed = True
                    # The pool did not see these: they were started while it closed.
                    for worker_task in list(self._started_workers.values()):
                        self._end(worker_task, kill=True)
                else:
                    job()
            for ending in list(self._ending):
                self._check(ending)
        if self._program is not None:
            with contextlib.suppress(DiosError):
                self._program.close()

    def _start(self, number: int, work: Work | None = None) -> None:
        if self._closing:
            return
        current.set(self._context)
        try:
            started = self._started(number, work)
        except DiosError as error:
            self._report(Refused(number, error))
            return
        with self._lock:
            late = self._closed
            if not late:
                self._started_workers[number] = started
        if late:
            _discard(started.task, (started.calls, started.results, started.task))
        else:
            self._report(Started(started))

    def _started(self, number: int, work: Work | None) -> WorkerTask:
        node, options = self._node, self._options
        with self._lock:
            if self._program is None:
                self._program = node.create_program(encode_program(Program(worker.MAIN)))
        opened: list[Reference] = []
        task: Task | None = None
        try:
            calls = node.create_stream(ring_bytes=_RING_BYTES, host=options.host)
            opened.append(calls)
            results = node.create_stream(ring_bytes=_RING_BYTES)
            opened.append(results)
            task = node.run(
                self._program,
                groups=options.groups,
                inputs={
                    worker.CALLS: calls.restrict("read"),
                    worker.RESULTS: results.restrict("write"),
                    **{reference.label: reference for reference in options.inputs},
                },
                args=(
                    *((worker.TRUSTED,) if options.trust else ()),
                    *((worker.MOVABLE,) if work is not None and work.grace_ms else ()),
                ),
                label=options.label,
                limits=options.limits,
                host=options.host,
                local=not options.host and work is None,
                work=work,
                template=options.template,
            )
            opened.append(task)
            return WorkerTask(number, task, calls, results, calls.writer, results.reader)
        except DiosError:
            _discard(task, opened)
            raise

    def _end(self, worker_task: WorkerTask, *, kill: bool) -> None:
        del self._started_workers[worker_task.number]
        if kill:
            with contextlib.suppress(DiosError):
                worker_task.task.kill()
        for stream in (worker_task.calls, worker_task.results):
            with contextlib.suppress(DiosError):
                stream.close()
        ending = _Ending(worker_task, time.monotonic() + _END_WAIT_S, kill)
        self._ending.append(ending)

    def _check(self, ending: _Ending) -> None:
        status: Status | None = None
        try:
            status = ending.worker.task.status()
            if not status.ended:
                status = None
                if time.monotonic() < ending.deadline:
                    return
                if not ending.killed:
                    ending.killed = True
                    ending.deadline += _END_WAIT_S
                    ending.worker.task.kill()
                    return
        except DiosError:
            pass  # the node does not know the task any more, or does not answer
        self._ending.remove(ending)
        with contextlib.suppress(DiosError):
            ending.worker.task.close()
        self._report(Ended(ending.worker.number, status))


def _discard(task: Task | None, opened: Iterable[Reference]) -> None:
    """End a task that nobody uses, and close references."""
    with contextlib.suppress(DiosError):
        if task is not None:
            task.kill()
    for reference in opened:
        with contextlib.suppress(DiosError):
            reference.close()
