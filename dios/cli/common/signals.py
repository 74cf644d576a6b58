"""Signals that end a command as exceptions, for commands that must not leave a task behind.

Not for: Ctrl-C, which is Python's own KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

_BY_SIGNAL: Final = 128
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """This command was told to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status: Final = _BY_SIGNAL + number


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise Stopped for what would end this command and leave its task behind."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        raise Stopped(number)

    # One that is ignored stays so: whoever types nohup wants the task to go on.
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in _ENDING:
            signal.signal(number, before[number])
