"""Takes the steps of a sandbox in the thread of its caller."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar, cast

from dios.client.sync.connection import Connection
from dios.client.sync.node import Node
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
