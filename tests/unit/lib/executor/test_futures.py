"""Futures of calls: what their callbacks raise."""

from __future__ import annotations

import concurrent.futures
import logging
import threading

import pytest

from dios.lib.executor.futures import CallFuture


@pytest.mark.parametrize("error", [ValueError(1), SystemExit(2), KeyboardInterrupt()])
def test_a_callback_ends_no_thread_of_an_executor(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """What it raises is logged, and the callbacks after it are called."""
    future: CallFuture[int] = CallFuture()
    called: list[object] = []

    def raising(_future: object) -> None:
        raise error

    def finish() -> None:
        future.fail(LookupError(3))
        called.append("the thread goes on")

    future.add_done_callback(raising)
    future.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR):
        thread = threading.Thread(target=finish)
        thread.start()
        thread.join()
    assert called == [future, "the thread goes on"]
    assert repr(error) in caplog.text or "ValueError: 1" in caplog.text


def test_an_interrupt_in_the_main_thread_is_raised_there() -> None:
    """A callback of a future that is done already runs in the thread that adds it."""
    future: concurrent.futures.Future[int] = CallFuture()
    future.set_result(1)

    def interrupted(_future: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        future.add_done_callback(interrupted)
