"""The spans of a call of an executor, from its submission to its result."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from dios.client.sync.node import Task
from dios.client.tracing import active
from dios.client.tracing.contexts import SpanContext
from dios.lib.executor import frames
from dios.lib.executor.futures import CallFuture

T = TypeVar("T")


def trace_call(future: CallFuture[T], function: object) -> None:
    """Record a call that is about to be submitted: the whole, its wait for a worker, and its time there.

    The time in a worker includes the ways of its arguments and its result.
    """
    name = future.name or getattr(function, "__qualname__", None) or type(function).__name__
    whole = active.begin(f"executor: {name}")
    if whole is None:
        return
    future.context = whole.context
    part = active.begin("waits for a worker", whole)

    def sent() -> None:
        nonlocal part
        active.end(part)
        part = active.begin("in a worker", whole)

    def done(ended: Future[T]) -> None:
        failed = ended.cancelled() or not ended_well(ended)
        active.end(part, failed=failed)
        active.end(whole, failed=failed)

    future.on_sent = sent
    future.add_done_callback(done)


def hand_context(task: Task, context: SpanContext) -> list[bytes]:
    """Return the frame that gives the context of a call to its worker; none if the worker is not traced."""
    started = task.traced
    if started is None:
        return []
    started.hand(context)
    return [frames.frame(frames.TRACED, context.traceparent.encode())]


def ended_well(ended: Future[T]) -> bool:
    """Return True if a call that has ended has a result. The result is not decoded."""
    return isinstance(ended, CallFuture) and ended.status().state == "done"
