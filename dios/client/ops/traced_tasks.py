"""The calls around a traced task: a blob for its spans before its start, which is read after its end."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING

from dios import limits
from dios.client.buffers import memory_of
from dios.client.ops.status import Status
from dios.client.session import Answer, Operation, expect, expect_buffer
from dios.client.tracing.contexts import current
from dios.errors import DiosError
from dios.wire import messages
from dios.wire.types import NameKind, ObjectType, Permission

if TYPE_CHECKING:
    from dios.client.tracing.started_tasks import StartedTask


def begin_op(label: str, outputs: tuple[messages.Handed, ...]) -> Operation[StartedTask | None]:
    """Begin the span of a task. Return None if it is not recorded, or has no room for another output."""
    if len(outputs) >= limits.ARGUMENTS_MAX:
        return None
    from dios.client.tracing.started_tasks import StartedTask, begin_span  # noqa: PLC0415 - rarely needed

    span = begin_span(label)
    if span is None:
        return None
    create = messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS)
    created = expect(messages.Created, (yield create))
    return StartedTask(span, label, created.reference.ref)


def output_of(started: StartedTask) -> messages.Handed:
    """Return the output into which a task writes its spans."""
    return messages.Handed(started.blob, int(Permission.WRITE), started.output_label)


def within_op(started: StartedTask, call: messages.Run) -> Operation[Answer]:
    """Make the call that starts the task, as a part of the task's span."""
    token = current.set(started.span.context)
    try:
        return (yield call)
    finally:
        current.reset(token)


def drop_op(started: StartedTask) -> Operation[None]:
    """Release the blob of a task that did not start, and record its span."""
    started.end(b"", "", failed=True)
    with suppress(DiosError):
        yield messages.Delete(started.blob)


def end_op(tasks: MutableMapping[str, StartedTask], status: Status) -> Operation[None]:
    """Record the spans of a task if it has ended now, and release its blob. A lost blob has no spans."""
    started = tasks.pop(status.fingerprint, None)
    if started is None:
        return
    data = b""
    with suppress(DiosError):
        read = messages.ReadOnce(started.blob, limits.TASK_SPANS_BYTES_MAX + 1)
        result, fd = expect_buffer((yield read))
        memory = memory_of(result, fd, writable=False)
        try:
            data = memory.read()
        finally:
            memory.close()
    started.end(data, status.node, failed=not status.ok)
    with suppress(DiosError):
        yield messages.Delete(started.blob)
