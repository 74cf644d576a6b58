"""Waiting times of packets follow from two samples of one run, and no text of a function is harmful."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.sprayer.runtime.statistics_socket import serve_statistics
from dios.web.observation.functions import FunctionHistory, FunctionSample, read_functions, sample_of


def _sample(seconds: float, packets: int, queue: int) -> FunctionSample:
    core = {"core": 0, "packets": packets, "queue": queue, "dropped": {"policy": 2}, "flows": {"held": 3}}
    return sample_of(
        {"seconds": seconds, "function": "<b>\x1b[2J", "cores": [core], "dropped": {"\u202e": 1}}
    )


def test_the_wait_follows_from_queue_and_rate() -> None:
    """20 waiting packets at 1,000 packets in a second are 20 ms; one sample or no packets give nothing."""
    history = FunctionHistory()
    history.add({"f": _sample(1.0, 0, 10)})
    assert history.rate("f", 0) == (None, None)
    history.add({"f": _sample(3.0, 2_000, 30)})
    rate, wait = history.rate("f", 0)
    assert rate == 1000.0
    assert wait == pytest.approx(0.02)
    assert history.lines("f", 100.0) == {"core 0": [(103.0, 1000.0)]}
    history.add({"f": _sample(0.5, 5, 0)})
    assert len(history.samples("f")) == 1, "it began again"
    history.add({"f": _sample(1.5, 5, 4)})
    assert history.rate("f", 0) == (0.0, None)
    history.add({})
    assert not history.samples("f")


def test_a_report_is_read_from_the_socket_and_is_harmless(tmp_path: Path) -> None:
    """Functions that answer are read; a malformed report gives zeros, and texts are harmless."""
    assert sample_of({"cores": [{"core": "x", "dropped": 5}, 7], "dropped": []}).cores[0].packets == 0
    with serve_statistics("f", lambda: {"seconds": 2.0, "function": "\x1b"}, tmp_path):
        (tmp_path / "gone.sock").touch()
        functions, silent = read_functions(tmp_path)
    assert (functions["f"].at_s, functions["f"].function, silent) == (2.0, "\\x1b", 1)
    assert next(iter(_sample(1.0, 0, 0).dropped)).isprintable()
