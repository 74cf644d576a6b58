"""Turns SIGTERM and SIGHUP into exceptions, for commands that must end their task first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

_BY_SIGNAL: Final = 128
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal ended this command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status: Final = _BY_SIGNAL + number


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise Stopped for signals that would end this command and leave its task running.

    Signals reach the main thread only, so that this does nothing in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        raise Stopped(number)

    # An ignored signal stays ignored: with nohup the task should go on.
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in _ENDING:
            signal.signal(number, before[number])
