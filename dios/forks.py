"""Registers what a process does after a fork, and spares the children of a zygote that work.

Modules with connections register the handlers that give up the parent's. The handlers of ``threading`` and
``logging`` replace locks that another thread may hold at the moment of the fork. A zygote has one thread,
which holds no such lock, and no connection: the handlers changed nothing, and cost each child 170 page
faults. All other handlers run, and at every other fork these run as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

_Handler = Callable[[], object]

_OF_THREADS: Final = frozenset({"threading", "logging"})
_register: Final = os.register_at_fork
_alone = False


def alone(value: bool) -> None:  # noqa: FBT001 - called around each fork, so without a keyword
    """Say that this process has one thread and no connection at the forks until the next call."""
    global _alone
    _alone = value


def give_up_in_child(handler: _Handler) -> None:
    """Call ``handler`` in the child of each fork, if the parent may have connections."""
    _register(after_in_child=_spared(handler))


def watch_threads() -> None:
    """Let ``alone`` concern the handlers of threads and logs as well: call it before they are imported."""

    def register(**handlers: _Handler) -> None:
        _register(
            **{
                when: _spared(handler) if getattr(handler, "__module__", "") in _OF_THREADS else handler
                for when, handler in handlers.items()
            }
        )

    os.register_at_fork = register  # type: ignore[assignment] # it passes all arguments on


def _spared(handler: _Handler) -> _Handler:
    def run() -> None:
        if not _alone:
            handler()

    return run
