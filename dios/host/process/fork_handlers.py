"""Spares the children of a zygote those fork handlers that do nothing for them.

The handlers of ``threading`` and ``logging`` replace locks that another thread may hold at the moment of the
fork, and those of ``dios.client`` and ``dios.lib`` give up the connections of the parent. A zygote has one
thread, which holds none of these locks, and no connection. The handlers changed nothing but cost each child
170 page faults. All other handlers run, and at every other fork these run as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

_Handler = Callable[[], object]

_FOR_THREADS_AND_CONNECTIONS: Final = frozenset(
    {
        "threading",
        "logging",
        "dios.client.page",
        "dios.client.sync.connection",
        "dios.client.sync.node",
        "dios.lib.executor.futures",
    }
)
"""The modules whose handlers do nothing in a child of a process with one thread and without a connection."""

_register: Final = os.register_at_fork
_alone = False


def watch() -> None:
    """Let ``alone`` concern the handlers that are registered from now on: call it before other imports."""
    os.register_at_fork = _register_spared  # type: ignore[assignment] # it passes all arguments on


def alone(value: bool) -> None:  # noqa: FBT001 - called around each fork, so without a keyword
    """Say that this process has one thread and no connection at the forks until the next call."""
    global _alone
    _alone = value


def _register_spared(**handlers: _Handler) -> None:
    _register(**{when: _spared(handler) for when, handler in handlers.items()})


def _spared(handler: _Handler) -> _Handler:
    if getattr(handler, "__module__", "") not in _FOR_THREADS_AND_CONNECTIONS:
        return handler

    def run() -> None:
        if not _alone:
            handler()

    return run
