"""The trial of a new program: it is bounded by what the program does, and not by the time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from trio.testing import MockClock

from dios import limits, start_watch
from dios.node import continuation
from dios.start_watch import Activity

STOPS = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('tried')"]


@pytest.fixture
def descriptor() -> Iterator[int]:
    """A descriptor that the program inherits."""
    number = os.eventfd(0)
    yield number
    os.close(number)


async def test_a_trial_that_gets_no_processor_is_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, descriptor: int
) -> None:
    """However much time passes, a program that is stopped has not failed."""
    del autojump_clock
    looks: list[int] = []

    def activity(pid: int) -> Activity:
        looks.append(pid)
        with suppress(ProcessLookupError):  # it has ended since it goes on
            os.kill(pid, signal.SIGCONT if len(looks) >= 2 * limits.START_QUIET_MAX else signal.SIGSTOP)
        return Activity(0, waits=True)

    monkeypatch.setattr(start_watch, "activity_of", activity)
    done = await continuation._tried(STOPS, descriptor)
    assert done is not None
    assert done.stdout == b"tried\n"


async def test_a_trial_that_hangs_is_ended(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, descriptor: int
) -> None:
    """A program that does nothing at many looks in a row is not waited for."""
    del autojump_clock
    monkeypatch.setattr(start_watch, "activity_of", lambda _: Activity(0, waits=False))
    assert await continuation._tried(STOPS, descriptor) is None
