"""From a step's store operations to jobs of the writer thread, in the order of their tickets.

Not for: writing (``dios.host.loop.persister``). The hard part is that "the old content" of a partial write is
what earlier steps made of it, which may still be on its way to the disk.

Small contents are known here as bytes at once. Over a large one, which only the store can give, a job
waits until every earlier step is wholly done: then the store holds exactly what the step saw.
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
    keep,
    new_size,
    read_from,
    size_of,
)
from dios.host.content.memories import translated
from dios.host.loop.persister import Append, Composed, Job, Persister, Step
from dios.ids import ObjectId, Ticket
from dios.store.protocol import Drop, FilePayload, InlinePayload, Put


class _Waiting(NamedTuple):
    ticket: Ticket
    operations: list[StoreOperation]
    payloads: Payloads
    error: DiosError | None
    step: int


class Staging:
    """What was handed to the writer thread and is not yet the current content.

    ``done_before`` says of a step's number that no effect of an earlier one is being carried out in a
    thread; ``tangled`` that some are held which change contents or buffers.
    """

    def __init__(
        self,
        contents: Contents,
        buffers: Buffers,
        persister: Persister,
        done_before: Callable[[int], bool],
        tangled: Callable[[], bool],
    ) -> None:
        self._contents: Final = contents
        self._buffers: Final = buffers
        self._persister: Final = persister
        self._done_before: Final = done_before
        self._tangled: Final = tangled
        self._versions: Final[dict[ObjectId, deque[bytes | None]]] = {}
        self._waiting: Final[deque[_Waiting]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def stage(self, outcome: Outcome, payloads: Payloads, step: int) -> None:
        """Hand a step's operations on, now or when the steps before it are done."""
        ticket, operations = outcome.ticket, outcome.persist
        error = _refusal(outcome)
        if self._waiting or (error is None and self._must_wait(operations) and not self._earlier_done(step)):
            self._waiting.append(_Waiting(ticket, operations, payloads, error, step))
            return
        self._submit(ticket, operations, payloads, error)

    def pump(self) -> None:
        """Earlier steps may be done now: hand on what waited for them."""
        while self._waiting:
            first = self._waiting[0]
            must_wait = first.error is None and self._must_wait(first.operations)
            if must_wait and not self._earlier_done(first.step):
                return
            self._waiting.popleft()
            self._submit(first.ticket, first.operations, first.payloads, first.error)

    def take(self, target: ObjectId) -> bytes | None:
        """The content that the oldest write of ``target`` not yet taken has made; None for a large one."""
        versions = self._versions.get(target)
        if versions is None:
            return None
        version = versions.popleft()
        if not versions:
            del self._versions[target]
        return version

    def is_staged(self, target: ObjectId) -> bool:
        """Whether a write of the object was handed on and is not current yet."""
        return target in self._versions

    def _earlier_done(self, step: int) -> bool:
        # A step that waited for the disk has been carried out when nothing is on its way there. What later
        # steps do in threads is no matter: somebody who keeps copying must not keep others waiting.
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
            # Its own opening is still held: a task may use a buffer's number before it was told of it.
            return True
        if self._tangled() and (source.buffer or source.content_of):
            return True
        if source.content_of and self._latest_is_large(source.content_of):
            return True
        return self._latest_is_large(operation.record.object)

    def _latest_is_large(self, target: ObjectId) -> bool:
        versions = self._versions.get(target)
        if versions:
            return versions[-1] is None
        content = self._contents.peek(target)
        return self._contents.is_stored(target) if content is None else not isinstance(content, bytes)

    # -- handing on ---------------------------------------------------------------------------------
    def _submit(
        self,
        ticket: Ticket,
        operations: list[StoreOperation],
        payloads: Payloads,
        error: DiosError | None,
    ) -> None:
        kept: list[Content] = []
        changes: list[Step] = []
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
                    # The buffer could not be made again after its task was told of it (its next commit came
                    # with no word awaited), or the disk gives no old bytes. The core has taken the write and
                    # others may build on it, so that it is undone with what came after (ADR 0007).
                    error = translated(refused)
                self._versions.setdefault(operation.record.object, deque()).append(None)
        self._persister.submit(Job(ticket, changes, kept, error))

    def _put(self, operation: PutObject, order: WriteSource, payloads: Payloads, kept: list[Content]) -> Step:
        record = operation.record
        target = record.object
        base = self._latest(target)
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
            kept.append(keep(source.content))
            if total == length and not isinstance(source.content, bytes) and source.start == 0:
                return Put(record, FilePayload(source.content.fd, length))
        if base is not None:
            kept.append(keep(base))
        return Composed(record, base, order.offset, source, order.content_of, length, order.replace)

    def _latest(self, target: ObjectId) -> Content | None:
        """What the object will hold before this write; None for what only the store can give."""
        versions = self._versions.get(target)
        if versions:
            return versions[-1]
        content = self._contents.peek(target)
        if content is None and not self._contents.is_stored(target):
            return b""
        return content

    def _source(self, order: WriteSource, payloads: Payloads) -> Source | None:
        if order.content_of:
            content = self._latest(order.content_of)
            return None if content is None else Source(content, 0, min(order.length, size_of(content)))
        return self._buffers.source(order, payloads.get(order.payload) if order.payload else None)


def _entry(operation: AppendLog, payloads: Payloads) -> Append:
    content = payloads[operation.source.payload]
    return Append(operation.record, operation.position, read_from(content, 0, size_of(content)))


def _refusal(outcome: Outcome) -> DiosError | None:
    """Why a step cannot be stored: it copies volatile bytes that it writes itself, only afterwards."""
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
            "the calls of a vector must be independent; copy the object in a message of its own"
        )
    return None
