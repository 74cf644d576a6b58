"""A node that writes the times of the steps of each start of a task to a file, for benchmarks alone."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from dios.host.loop.effector import Effector
from dios.host.process import task_host
from dios.node import daemon
from dios.wire import messages
from dios.wire.codec import decode_request
from labs.benchmarks.nodes import STARTS
from labs.benchmarks.step_marks import after, before

if TYPE_CHECKING:
    from dios.core.effects import Answer
    from dios.wire.messages import Request

P = ParamSpec("P")
T = TypeVar("T")

_marks: Final[list[tuple[str, int]]] = []


def _mark(name: str) -> None:
    _marks.append((name, time.perf_counter_ns()))


def _decoded(body: bytes) -> Request:
    request = decode_request(body)
    if isinstance(request.call, messages.Run):
        _marks.clear()
        _mark("client and socket")
    return request


def _answered(function: Callable[[Effector, Answer], None]) -> Callable[[Effector, Answer], None]:
    """Return the function that sends an answer, which marks the end of a Welcome."""

    @functools.wraps(function)
    def call(effector: Effector, effect: Answer) -> None:
        function(effector, effect)
        if isinstance(effect.result, messages.Welcome):
            _mark("Welcome")

    return call


def _written(name: str, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Return the function of a whole task, which writes the marks at its end."""

    @functools.wraps(function)
    async def call(*args: P.args, **options: P.kwargs) -> T:
        _mark(name)
        try:
            return await function(*args, **options)
        finally:
            _write()

    return call


def _write() -> None:
    with Path(os.environ[STARTS]).open("a") as file:
        file.write(json.dumps(_marks) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Wrap the steps, and run the daemon."""
    host = task_host.TaskHost
    vars(task_host).update(decode_request=_decoded)
    for owner, function, wrapped in (
        (host, "spawn", before(partial(_mark, "step of the core"), host.spawn)),
        (host, "_begin", after(partial(_mark, "process"), vars(host)["_begin"])),
        (host, "_run_task", _written("scheduler tick", vars(host)["_run_task"])),
        (Effector, "_answer", _answered(vars(Effector)["_answer"])),
    ):
        setattr(owner, function, wrapped)
    return daemon.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
