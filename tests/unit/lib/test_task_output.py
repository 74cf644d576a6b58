"""The last part of a task's output."""

from __future__ import annotations

from typing import cast

from dios.client.sync.node import Console
from dios.errors import TimeLimitError
from dios.lib.task_output import newest_output
from dios.limits import CONSOLE_TAIL_BYTES


class Printing:
    """The console of a task that has printed some parts, and goes on if ``forever``."""

    def __init__(self, *parts: bytes, forever: bool = False) -> None:
        self._parts = list(parts)
        self._forever = forever
        self.count = 0

    def receive(self, timeout: float | None = None) -> bytes:
        """Return the next part."""
        assert timeout == 0
        self.count += 1
        if self._parts:
            return self._parts.pop(0)
        if self._forever:
            return b"%05d" % self.count * 10_000
        raise TimeLimitError("nothing was printed in time")


def test_the_last_bytes_are_shown_and_not_the_first() -> None:
    """What was printed before the last 256 KiB is dropped, however it is cut into parts."""
    part = bytes(range(256)) * 128
    console = Printing(b"first", b"", *[part] * 9, b"last")
    tail = newest_output(cast("Console", console))
    assert len(tail) == CONSOLE_TAIL_BYTES
    assert tail == (part * 9 + b"last")[-CONSOLE_TAIL_BYTES:]
    assert newest_output(cast("Console", Printing(b"a", b"", b"b"))) == b"ab"


def test_a_task_that_prints_without_end_is_left_at_some_point() -> None:
    """At most 1 MiB is read, and the newest of it is returned."""
    console = Printing(forever=True)
    tail = newest_output(cast("Console", console))
    assert console.count == 21
    assert tail.endswith(b"00021")
