"""The output of a task so far, as its node keeps it."""

from __future__ import annotations

import contextlib
from typing import Final

from dios.client.sync.node import Console
from dios.errors import EndOfStreamError, TimeLimitError
from dios.limits import CONSOLE_TAIL_BYTES

_READ_MAX: Final = 4 * CONSOLE_TAIL_BYTES


def newest_output(console: Console) -> bytes:
    """Return the last bytes that were printed, at most CONSOLE_TAIL_BYTES, without waiting for more.

    A task that prints meanwhile does not keep this function busy: at most 1 MiB is read. ``console`` is a
    reference of which nothing was read before. Raise UnreachableError if its node does not answer.
    """
    data = b""
    read = 0
    with contextlib.suppress(EndOfStreamError, TimeLimitError):
        while read < _READ_MAX:
            part = console.receive(timeout=0)
            read += len(part)
            data = (data + part)[-CONSOLE_TAIL_BYTES:]
    return data
