"""Takes the steps of a sandbox in the thread of its caller."""

from __future__ import annotations

import contextlib
import inspect
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

from dios.client.sync.connection import Connection
from dios.client.sync.node import Node
from dios.errors import TimeLimitError
from dios.lib.sandbox.steps import Call, Read, Step, Steps, Wait
from dios.transport.rings.waiting import wait_any

T = TypeVar("T")


def finish(node: Callable[[], Node], steps: Steps[T]) -> T:
    """Take steps to their end, by calls to what ``node`` returns then.

    An exception between two of them, such as Ctrl-C, goes to the next one.
    """
    done: object = None
    error: BaseException | None = None
    while True:
        try:
            # Two loops, so that a signal between two steps arrives in the try statement, too.
            while True:
                step = steps.send(done) if error is None else steps.throw(error)
                error, done = None, None
                done = _taken(node, step)
        except StopIteration as end:
            return cast("T", end.value)
        except BaseException as raised:
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                raise
            error = raised


@contextlib.contextmanager
def held(locks: Iterable[threading.Lock], timeout: object) -> Iterator[object]:
    """Hold the locks of streams for a block, and yield the time that is left of ``timeout``.

    Raise TimeLimitError if other threads use the streams for so long. What is no time is for the operation
    to refuse.
    """
    is_time = isinstance(timeout, int | float) and 0 <= timeout < math.inf
    deadline = time.monotonic() + cast("float", timeout) if is_time else math.inf
    with contextlib.ExitStack() as stack:
        for lock in locks:
            if not lock.acquire(blocking=False):
                left_s = max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
                if not lock.acquire(timeout=left_s):
                    raise TimeLimitError("another thread uses the same stream of the sandbox")
                timeout = timeout if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
            stack.callback(lock.release)
        yield timeout


def _taken(node: Callable[[], Node], step: Step) -> object:
    if isinstance(step, Call):
        return cast("Connection", node().link).run(step.operation)
    if isinstance(step, Read):
        return step.reader.read(0, step.timeout_s)
    if isinstance(step, Wait):
        wait_any(step.ends, step.timeout_s)
    else:
        step.writer.write(step.data, step.timeout_s)
    return None
