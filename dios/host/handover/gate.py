"""A gate that stops the readers of connections and consoles, before the node's program is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio


class Gate:
    """The readers run in scopes of the gate. Closing it interrupts them wherever they wait.

    A reader waits only where it has noted everything that it received. So nothing is lost: it keeps the rest,
    and goes on when the gate is open again.
    """

    def __init__(self) -> None:
        self._scopes: Final[set[trio.CancelScope]] = set()
        self._opened: trio.Event | None = None

    @property
    def readers(self) -> int:
        """The number of readers that have not stopped."""
        return len(self._scopes)

    @contextmanager
    def passing(self, ended: trio.Event | None = None) -> Iterator[trio.CancelScope]:
        """Run the block until the gate closes; ``cancelled_caught`` of the scope is True then.

        The gate does not stop a reader whose source has ``ended``.
        """
        with trio.CancelScope() as scope:
            if ended is not None and ended.is_set():
                yield scope
                return
            self._scopes.add(scope)
            if self._opened is not None:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    async def wait_open(self, ended: trio.Event | None = None) -> None:
        """Wait until the gate is open, or the source of the reader has ``ended``."""
        if self._opened is None:
            return
        if ended is None:
            await self._opened.wait()
            return
        async with trio.open_nursery() as nursery:
            for event in (self._opened, ended):
                nursery.start_soon(_cancel_after, event, nursery.cancel_scope)

    def close(self) -> None:
        """Stop all readers, and those that come later."""
        if self._opened is None:
            self._opened = trio.Event()
        for scope in tuple(self._scopes):
            scope.cancel()

    def open(self) -> None:
        """Let the readers go on."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.set()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
