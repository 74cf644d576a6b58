"""The pauses between attempts to make processes in advance."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

from dios import limits
from dios.host.process.failure_pause import FailurePause


async def test_pauses_begin_after_some_failures_double_and_end(autojump_clock: MockClock) -> None:
    """No number of failures is the last one; a success begins anew."""
    del autojump_clock
    pause, waits = FailurePause(), []
    for _ in range(limits.POOL_FAILURES_MAX - 1):
        pause.failed()
        assert pause.is_over
        assert pause.end == math.inf
    for _ in range(10):
        pause.failed()
        assert not pause.is_over
        waits.append(pause.end - trio.current_time())
        await trio.sleep_until(pause.end)
        assert pause.is_over
    assert waits[:3] == pytest.approx([1, 2, 4])
    assert waits[-1] == pytest.approx(limits.POOL_RETRY_MS_MAX / 1000)
    pause.succeeded()
    pause.failed()
    assert pause.is_over
