"""Turns a step's store operations into jobs of the writer thread, in the order of their tickets.

The difficulty is a partial write: its old content is the result of earlier steps, which may still be on
their way to the disk. Small contents are kept here as bytes until they are current. A job that builds on a
large content, which only the store has, waits until every earlier step has finished; then the store holds
exactly the content that the step saw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dios import limits
from dios.core.effects import AppendLog, ApplyWrite, Outcome, PutObject, StoreOperation, WriteSource
from dios.errors import DiosError, InvalidError
from dios.host.content.buffers import Buffers
from dios.host.content.contents import (
    Content,
    Contents,
    Payloads,
    Source,
    compose_bytes,
    new_size,
    read_from,
    retain_content,
    size_of,
)
from dios.host.content.memories import translate_os_error
from dios.host.loop.persister import ComposedPut, JobStep, LogAppend, Persister, StoreJob
from dios.ids import ObjectId, Ticket
from dios.store.protocol import Drop, FilePayload, InlinePayload, Put


class _WaitingStep(NamedTuple):
    ticket: Ticket
    operations: list[StoreOperation]
    payloads: Payloads
    error: DiosError | None
    step: int


class Staging:
    """The writes that were given to the writer thread and are not current contents yet.

    ``done_before(step)`` returns True if no effect of an earlier step is running in a thread.
    ``has_deferred_volatile()`` returns True while deferred effects will still change volatile contents or
    open buffers.
    """

    def __init__(
        self,
        contents: Contents,
        buffers: Buffers,
        persister: Persister,
        done_before: Callable[[int], bool],
        has_deferred_volatile: Callable[[], bool],
    ) -> None:
        self._contents: Final = contents
        self._buffers: Final = buffers
        self._persister: Final = persister
        self._done_before: Final = done_before
        self._has_deferred_volatile: Final = has_deferred_volatile
        self._versions: Final[dict[ObjectId, deque[bytes | None]]] = {}
        self._waiting: Final[deque[_WaitingStep]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def stage(self, outcome: Outcome, payloads: Payloads, step: int) -> None:
        """Submit a step's operations, now or when the steps before it are done."""
        ticket, operations = outcome.ticket, outcome.persist
        error = _refusal(outcome)
        if self._waiting or (error is None and self._must_wait(operations) and not self._earlier_done(step)):
            self._waiting.append(_WaitingStep(ticket, operations, payloads, error, step))
            return
        self._submit(ticket, operations, payloads, error)

    def pump(self) -> None:
        """Submit the waiting steps whose earlier steps are done now."""
        while self._waiting:
            first = self._waiting[0]
            must_wait = first.error is None and self._must_wait(first.operations)
            if must_wait and not self._earlier_done(first.step):
                return
            self._waiting.popleft()
            self._submit(first.ticket, first.operations, first.payloads, first.error)

    def take(self, target: ObjectId) -> bytes | None:
        """Remove and return the content of the oldest staged write of ``target``; None if it is large."""
        versions = self._versions.get(target)
        if versions is None:
            return None
        version = versions.popleft()
        if not versions:
            del self._versions[target]
        return version

    def is_staged(self, target: ObjectId) -> bool:
        """Return True if a write of the object was staged and is not current yet."""
        return target in self._versions

    def _earlier_done(self, step: int) -> bool:
        # With nothing on its way to the disk, every step that waited for the disk has been carried out. Work
        # of later steps in threads is ignored, so that a task which copies all the time delays nobody.
        return not self._versions and self._persister.backlog == 0 and self._done_before(step)

    # -- whether to wait ----------------------------------------------------------------------------
    def _must_wait(self, operations: list[StoreOperation]) -> bool:
        return any(self._builds_on_earlier(operation) for operation in operations)

    def _builds_on_earlier(self, operation: StoreOperation) -> bool:
        if isinstance(operation, AppendLog):
            return False
        if not isinstance(operation, PutObject):
            return self._latest_is_large(operation.object)
        source = operation.source
        if source is None:
            return False
        if source.buffer and not self._buffers.has(source.buffer, source.length):
            # The effect that opens the buffer is still deferred: the task used its number before the reply.
            return True
        if self._has_deferred_volatile() and (source.buffer or source.content_of):
            return True
        if source.content_of and self._latest_is_large(source.content_of):
            return True
        return self._latest_is_large(operation.record.object, new=operation.new)

    def _latest_is_large(self, target: ObjectId, *, new: bool = False) -> bool:
        versions = self._versions.get(target)
        if versions:
            return versions[-1] is None
        content = self._contents.peek(target)
        if content is None:
            return not new and self._contents.is_stored(target)
        return not isinstance(content, bytes)

    # -- handing on ---------------------------------------------------------------------------------
    def _submit(
        self,
        ticket: Ticket,
        operations: list[StoreOperation],
        payloads: Payloads,
        error: DiosError | None,
    ) -> None:
        kept: list[Content] = []
        changes: list[JobStep] = []
        for operation in operations:
            if isinstance(operation, AppendLog):
                changes.append(_entry(operation, payloads))
            elif not isinstance(operation, PutObject):
                changes.append(Drop(operation.object))
            elif operation.source is None:
                changes.append(Put(operation.record))
            else:
                try:
                    if error is None:
                        changes.append(self._put(operation, operation.source, payloads, kept))
                        continue
                except (DiosError, OSError) as refused:
                    # The buffer could not be opened again after the task got its number (the task committed
                    # without waiting for a reply), or the disk could not read the old bytes. The core has
                    # accepted the write and others may build on it, so it is undone with its followers.
                    error = translate_os_error(refused)
                self._versions.setdefault(operation.record.object, deque()).append(None)
        self._persister.submit(StoreJob(ticket, changes, kept, error))

    def _put(
        self, operation: PutObject, order: WriteSource, payloads: Payloads, kept: list[Content]
    ) -> JobStep:
        record = operation.record
        target = record.object
        base = self._latest(target, new=operation.new)
        source = self._source(order, payloads)
        before = size_of(base) if base is not None else limits.INLINE_BYTES_MAX + 1
        length = order.length if source is None else source.length
        total = new_size(before, order.offset, length, replace=order.replace)
        if (
            total <= limits.INLINE_BYTES_MAX
            and source is not None
            and (base is not None or order.offset == 0)
        ):
            old = b"" if base is None else read_from(base, 0, min(size_of(base), total))
            data = compose_bytes(old, order.offset, source.read(), replace=order.replace)
            self._versions.setdefault(target, deque()).append(data)
            return Put(record, InlinePayload(data))
        self._versions.setdefault(target, deque()).append(None)
        if source is not None:
            kept.append(retain_content(source.content))
            if total == length and not isinstance(source.content, bytes) and source.start == 0:
                return Put(record, FilePayload(source.content.fd, length))
        if base is not None:
            kept.append(retain_content(base))
        return ComposedPut(record, base, order.offset, source, order.content_of, length, order.replace)

    def _latest(self, target: ObjectId, *, new: bool = False) -> Content | None:
        """Return the content of the object before this write, or None if only the store has it."""
        versions = self._versions.get(target)
        if versions:
            return versions[-1]
        content = self._contents.peek(target)
        if content is None and (new or not self._contents.is_stored(target)):
            return b""
        return content

    def _source(self, order: WriteSource, payloads: Payloads) -> Source | None:
        if order.content_of:
            content = self._latest(order.content_of)
            return None if content is None else Source(content, 0, min(order.length, size_of(content)))
        return self._buffers.source(order, payloads.get(order.payload) if order.payload else None)


def _entry(operation: AppendLog, payloads: Payloads) -> LogAppend:
    content = payloads[operation.source.payload]
    return LogAppend(operation.record, operation.position, read_from(content, 0, size_of(content)))


def _refusal(outcome: Outcome) -> DiosError | None:
    """Return the error of a step that cannot be stored: it copies volatile bytes that it also writes."""
    copied = {
        operation.source.content_of
        for operation in outcome.persist
        if isinstance(operation, PutObject) and operation.source is not None and operation.source.content_of
    }
    if copied and any(
        isinstance(effect, ApplyWrite) and not effect.durable and effect.object in copied
        for effect in outcome.after
    ):
        return InvalidError(
            "a vector cannot write an object and also copy it, because its calls must be independent. "
            "Send the copy in a message of its own."
        )
    return None
