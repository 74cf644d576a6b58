"""The warm-up of a session: it obeys a few orders of nobody, before there is a task.

A template does it once, so that the interpreter adapts the code of a session in memory that all its sessions
share. A prepared process of the template does it again, and has its own copies of the pages that a session
writes to. The warm-up has no effect: it uses no socket, and leaves the state of the interpreter unchanged.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import signal
import sys
import warnings
from typing import TYPE_CHECKING, Final, Self, cast

import msgspec

from dios.client import warm_up
from dios.errors import EndOfStreamError
from dios.lib.executor import frames
from dios.lib.sandbox import protocol
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.failures import CELL
from dios.lib.sandbox.protocol import Begin, Order, RunCell, SessionTask
from dios.lib.sandbox.session import obey, place_inputs

if TYPE_CHECKING:
    from dios.client.session import Operation
    from dios.client.sync.node import Node

_TURNS_OF_TEMPLATE: Final = 10
"""The interpreter adapts a function after eight calls."""

_CELLS: Final = ("import sys\nprint(end='')\n1 + 1", "text = 'a'\ntext")


def _orders() -> tuple[bytes, ...]:
    tasks: list[Begin | SessionTask] = [Begin(SandboxBounds()), *map(RunCell, _CELLS)]
    return tuple(
        frames.frame(protocol.ORDER, msgspec.msgpack.encode(Order(number, task)))
        for number, task in enumerate(tasks, 1)
    )


_ORDERS: Final = _orders()
"""Encoded once, in memory that the sessions share."""


class _Stage:
    """A node whose streams have these orders, and take every answer."""

    inputs = ()
    arguments = ()

    def __init__(self) -> None:
        self._orders = list(_ORDERS)

    @property
    def link(self) -> Self:
        """The connection."""
        return self

    def run(self, operation: Operation[None]) -> None:
        """Run an operation that makes no call."""
        with contextlib.suppress(StopIteration):
            next(operation)

    def input(self, _label: str) -> Self:
        """Return the stream of a label."""
        return self

    def reader_op(self) -> Operation[Self]:
        """Return the end of the session."""
        return self
        yield  # type: ignore[unreachable] # it is a generator like the operation of a stream

    writer_op = reader_op

    def read(self) -> bytes:
        """Return the next order. Raise EndOfStreamError after the last."""
        if not self._orders:
            raise EndOfStreamError("the rehearsal is over")
        return self._orders.pop(0)

    def write(self, data: bytes) -> None:
        """Take a part of an answer."""

    def receive(self) -> bytes:
        """Raise EndOfStreamError: nothing interrupts."""
        raise EndOfStreamError("the rehearsal is over")


def rehearse_in_template() -> None:
    """Let the interpreter adapt the code of tasks and sessions. No thread is started."""
    for _ in range(_TURNS_OF_TEMPLATE):
        warm_up.rehearse()
        _rehearse(listens=False)


def rehearse() -> None:
    """Write to the pages to which a session writes."""
    _rehearse(listens=True)
    # Nothing of it stays in the session. The objects of the template are frozen, so this takes no time.
    gc.collect()


def _rehearse(*, listens: bool) -> None:
    streams = sys.stdin, sys.stdout, sys.stderr
    main, filters, variables = sys.modules["__main__"], warnings.filters[:], dict(os.environ)
    handler = signal.getsignal(signal.SIGINT)
    known = set(linecache.cache)
    try:
        node = cast("Node", _Stage())
        place_inputs(node)
        with contextlib.suppress(EndOfStreamError):
            obey(node, listens=listens)
    finally:
        sys.modules["__main__"] = main
        sys.stdin, sys.stdout, sys.stderr = streams
        warnings.filters[:] = filters  # type: ignore[index] # a list at run time
        signal.signal(signal.SIGINT, handler)
        for name in set(os.environ) - set(variables):
            del os.environ[name]
        os.environ.update(variables)
        for file in [file for file in linecache.cache if file.startswith(CELL) and file not in known]:
            del linecache.cache[file]
