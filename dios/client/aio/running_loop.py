"""The choice of the event loop; a program loads the module of its own loop only."""

from __future__ import annotations

import contextlib
import sys

from dios.client.aio.event_loop import EventLoop
from dios.errors import InvalidError


def running_loop() -> EventLoop:
    """Return the event loop that the caller runs on; InvalidError if it is neither asyncio nor trio."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        from dios.client.aio.trio_loop import TrioLoop  # noqa: PLC0415 - for programs on trio only

        return TrioLoop()
    if "asyncio" in sys.modules:
        from dios.client.aio.asyncio_loop import AsyncioLoop  # noqa: PLC0415 - for programs on asyncio

        with contextlib.suppress(RuntimeError):
            return AsyncioLoop()
    raise InvalidError(
        "no event loop of asyncio or trio runs here. Use the blocking client, `with dios.connect() as node:`."
    )
