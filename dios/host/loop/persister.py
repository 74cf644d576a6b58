"""The writer thread: makes store operations durable, those of many callers in one commit (§3.6).

``dios.host.loop.staging`` makes the jobs; the driver handles the effects that wait for them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeAlias

import trio

from dios import limits
from dios.core.events import ObjectRecord
from dios.errors import DiosError, OutOfMemoryError
from dios.host.content.contents import (
    Content,
    Contents,
    Source,
    compose_memory,
    new_size,
    release_content,
    size_of,
)
from dios.host.content.memories import ContentMemory, translate_os_error
from dios.host.loop.commit_results import CommitResult, commit_batch
from dios.ids import ObjectId, Ticket
from dios.store.log_files import LogFrame, LogStore, MemoryLogs
from dios.store.protocol import Change, FilePayload, Put, Store
from dios.transport.memory import memfd


class ComposedPut(NamedTuple):
    """A large content that the writer thread must compose before it stores it.

    If ``base`` or ``source`` is None, the thread reads that content from the store.
    """

    record: ObjectRecord
    base: Content | None
    offset: int
    source: Source | None
    source_object: ObjectId
    length: int
    replace: bool


class LogAppend(NamedTuple):
    """One more entry of a log, with the new record of the log."""

    record: ObjectRecord
    position: int
    data: bytes


JobStep: TypeAlias = Change | ComposedPut | LogAppend


class StoreJob(NamedTuple):
    """The operations of one ticket, and the contents that must stay open until they are done.

    A job with ``error`` fails at its place in the order, without being tried.
    """

    ticket: Ticket
    changes: list[JobStep]
    kept: list[Content]
    error: DiosError | None = None


def _last_records(steps: Sequence[JobStep]) -> list[Change | ComposedPut]:
    """Return the steps for the database. Of several appends to one log, only the last record is written."""
    last = {step.record.object: step for step in steps if isinstance(step, LogAppend)}
    records: list[Change | ComposedPut] = []
    for step in steps:
        if not isinstance(step, LogAppend):
            records.append(step)
        elif last[step.record.object] is step:
            records.append(Put(step.record))
    return records


class FailureProcessed(NamedTuple):
    """The core has processed a failure and undone everything up to the ticket ``issued``."""

    issued: Ticket


class CommitFigures(NamedTuple):
    """The work of the writer thread since the start of the node."""

    commits: int = 0
    jobs: int = 0
    """The number of jobs in these commits. One commit takes all jobs that wait."""
    failures: int = 0
    """The number of ranges of jobs that failed."""
    busy_ns: int = 0


class Persister:
    """The one thread that writes to the store.

    ``settled`` is called in the event loop with consecutive ranges of tickets in order, and returns the last
    ticket that the core has issued. Jobs arrive in the order of their tickets. When a job fails, all jobs
    fail that the core issued before it learned of the failure, because they build on changes that did not
    take place (ADR 0007). Those jobs are dropped without a result of their own.
    """

    def __init__(
        self,
        store: Store,
        contents: Contents,
        settled: Callable[[list[CommitResult]], Ticket],
        logs: LogStore | None = None,
    ) -> None:
        self._store: Final = store
        self._logs: Final = MemoryLogs() if logs is None else logs
        self._contents: Final = contents
        self._settled: Final = settled
        self._queue: Final[SimpleQueue[StoreJob | FailureProcessed | None]] = SimpleQueue()
        self._failed = False  # used by the writer thread only, like the next attribute
        self._undone_to = Ticket(0)
        self._token: Final = trio.lowlevel.current_trio_token()
        self._thread: Final = threading.Thread(target=self._work, name="store writer", daemon=True)
        self._spare: Final[list[int]] = []
        self._backlog = 0
        self._room = trio.Event()
        self._room.set()
        self._empty = trio.Event()
        self.figures = CommitFigures()
        """Replaced by the writer thread after each commit."""
        self._defect: BaseException | None = None
        self._broken: Final = trio.Event()
        self._keep_spare()
        self._thread.start()

    @property
    def backlog(self) -> int:
        """The number of jobs whose results have not been reported."""
        return self._backlog

    def submit(self, job: StoreJob) -> None:
        """Queue a job for the writer thread."""
        self._backlog += 1
        if self._backlog >= limits.STORE_QUEUE_MAX and self._room.is_set():
            self._room = trio.Event()
        self._queue.put(job)

    async def wait_for_room(self) -> None:
        """Wait until fewer than STORE_QUEUE_MAX jobs are queued."""
        await self._room.wait()

    async def watch(self) -> None:
        """Raise an unexpected error of the writer thread, because a node that cannot store must end.

        Everything that was acknowledged is on disk, so that the next start loses nothing.
        """
        await self._broken.wait()
        if self._defect is not None:
            raise self._defect

    async def aclose(self) -> None:
        """Write the queued jobs, then end the thread."""
        self._queue.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)
            # The thread's last report is still in the event loop's queue.
            if self._backlog and self._defect is None:
                self._empty = trio.Event()
                await self._empty.wait()

    # -- in the writer thread -----------------------------------------------------------------------
    def _work(self) -> None:
        try:
            self._write_all()
        except BaseException as error:  # noqa: BLE001 - swallowed here, it would leave every caller waiting
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._break, error)
        finally:
            memfd.close_all(self._spare)

    def _write_all(self) -> None:
        while True:
            batch, behind = self._next_batch()
            if batch:
                results = self._write(batch)
                # After a crash of the event loop nobody reads results; what is durable stays durable.
                with contextlib.suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._report, batch, results)
            if isinstance(behind, FailureProcessed):
                self._failed, self._undone_to = False, behind.issued
            elif behind is None:
                return

    def _next_batch(self) -> tuple[list[StoreJob], StoreJob | FailureProcessed | None]:
        """Wait for a job, then take all queued jobs. Also return the item that ended the batch."""
        batch: list[StoreJob] = []
        item = self._queue.get()
        while isinstance(item, StoreJob):
            batch.append(item)
            if len(batch) == limits.STORE_BATCH_MAX:
                break
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
        return batch, item

    def _write(self, batch: list[StoreJob]) -> list[CommitResult]:
        batch = [] if self._failed else [job for job in batch if job.ticket > self._undone_to]
        begun = time.monotonic_ns()
        results = commit_batch(batch, self._apply)
        past, failed = self.figures, sum(result.error is not None for result in results)
        self.figures = CommitFigures(
            past.commits + bool(batch),
            past.jobs + len(batch),
            past.failures + failed,
            past.busy_ns + time.monotonic_ns() - begun,
        )
        self._failed = self._failed or any(result.error is not None for result in results)
        return results

    def _apply(self, batch: Sequence[StoreJob]) -> DiosError | None:
        error = self._try(batch)
        if not isinstance(error, OutOfMemoryError) or not self._spare:
            return error
        # Free the spare descriptors: a task that exhausts descriptors must not fail the changes of others.
        memfd.close_all(self._spare)
        self._spare.clear()
        try:
            return self._try(batch)
        finally:
            self._keep_spare()

    def _keep_spare(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare) < limits.STORE_SPARE_DESCRIPTORS:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _try(self, batch: Sequence[StoreJob]) -> DiosError | None:
        temporary: list[int] = []
        refused = next((job.error for job in batch if job.error is not None), None)
        if refused is not None:
            return refused
        try:
            steps = [step for job in batch for step in job.changes]
            entries = [
                LogFrame(step.record.object, step.position, step.data)
                for step in steps
                if isinstance(step, LogAppend)
            ]
            if entries:
                # Before their records: readers find the new entries only through the lengths in the records.
                self._logs.write(entries)
            self._store.apply(
                [
                    self._composed(step, temporary) if isinstance(step, ComposedPut) else step
                    for step in _last_records(steps)
                ]
            )
        except DiosError as error:
            return error
        except OSError as error:
            return translate_os_error(error)
        finally:
            for fd in temporary:
                os.close(fd)
        return None

    def _composed(self, step: ComposedPut, temporary: list[int]) -> Put:
        """Compose a large content in a memory of its own, reading what the store holds now."""
        opened: list[Content] = []
        try:
            base = step.base
            if base is None:
                base = self._contents.fetch(step.record.object)
                opened.append(base)
            source = step.source
            if source is None:
                content = self._contents.fetch(step.source_object)
                opened.append(content)
                source = Source(content, 0, min(step.length, size_of(content)))
            total = new_size(size_of(base), step.offset, source.length, replace=step.replace)
            fd = memfd.create_memory(total, "to be stored")
            temporary.append(fd)
            compose_memory(ContentMemory(fd, total), base, step.offset, source, replace=step.replace)
            return Put(step.record, FilePayload(fd, total))
        finally:
            for content in opened:
                # Opened in this function and shared with nobody, so that this thread may count its users.
                release_content(content)

    # -- in the loop --------------------------------------------------------------------------------
    def _break(self, error: BaseException) -> None:
        self._defect = error
        self._broken.set()
        self._empty.set()

    def _report(self, batch: list[StoreJob], results: list[CommitResult]) -> None:
        self._backlog -= len(batch)
        if self._backlog < limits.STORE_QUEUE_MAX:
            self._room.set()
        for job in batch:
            for content in job.kept:
                release_content(content)
        if not self._backlog:
            self._empty.set()
        issued = self._settled(results)
        if any(result.error is not None for result in results):
            self._queue.put(FailureProcessed(issued))
