"""Cells with ``await`` outside of a function: they run on one event loop, which stays for further cells."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Final


class CellLoop:
    """The event loop of a session. Tasks that a cell has begun go on while a later cell awaits something."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def run(self, coroutine: Coroutine[object, object, object]) -> object:
        """Run the coroutine of a cell, and return its value. An interrupt cancels it."""
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                # The interrupt came between two steps of the loop.
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task]))
            raise

    def unfinished(self) -> list[str]:
        """Return the names of tasks that have not ended."""
        return sorted(task.get_name() for task in asyncio.all_tasks(self._loop))

    def close(self) -> None:
        """Close the loop, and what it has open."""
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        asyncio.set_event_loop(None)
