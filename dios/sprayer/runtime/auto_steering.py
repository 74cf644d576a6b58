"""The default steering: by what the machine and the traffic are, measured at the start and while running.

Spraying pays where one core is full and other processors are idle. Elsewhere it only lets packets overtake
each other, which TCP takes for losses. So steering begins with ``rss``. When a worker is nearly always busy
and processors are idle, ``spray`` and ``flowlet`` are tried for a moment each, and the one that carries more
stays. It is compared with ``rss`` again from time to time, and given up when one core suffices. Payload that
TCP sends again does not count.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dios.limits import SPRAYER_STEER_PAUSE_MAX
from dios.sprayer.linux.af_packet import AfPacketEngine
from dios.sprayer.linux.af_xdp import AfXdpEngine
from dios.sprayer.runtime.progress import ProgressMeter
from dios.sprayer.runtime.worker_kernels import PERIOD
from dios.sprayer.runtime.workers import Workers

_log: Final = logging.getLogger(__name__)

SAMPLE_S: Final = 0.5
FULL: Final = 0.85
"""A worker that is busy for this part of the time is full."""
IDLE: Final = 0.3
"""Idle processors from which spreading one flow can gain anything."""
GAIN: Final = 1.05
"""A tried steering stays if it carries at least this many times as much."""
SUFFICES: Final = 0.6
"""All workers together use less than this part of a processor: one core suffices."""
TRIALS: Final = ("spray", "flowlet")
_SETTLE: Final = 1
"""Samples after a change that do not count: packets under way still overtake each other."""
_COUNTED: Final = 2
_PAUSE: Final = 16
"""Samples between a trial that failed and the next; doubled each time."""
_AGAIN: Final = 120
"""Samples until a steering that stays is compared with rss again."""


class SteeringSample(NamedTuple):
    """What a stretch of time showed: the rate of bytes, and how busy the processors were."""

    carried: float
    """Bytes per second, without payload that was sent again."""
    busy: tuple[float, ...]
    """The part of the time that each worker used a processor."""
    idle: float
    """Idle processors, of those that workers may use."""


class AutoSteering:
    """The choice of the steering: ``steer`` now, and ``why``. It reads no clock and changes no engine."""

    def __init__(self, cores: int, processors: int, *, gathers: bool = False) -> None:
        self.steer = "rss"
        self._possible: Final = cores > 1 and processors > 1 and not gathers
        self.why = (
            f"{cores} workers on {processors} processors, none of them full"
            if self._possible
            else f"{cores} workers on {processors} processors: a flow cannot gain from spreading"
        )
        if gathers:
            self.why = "the function changes a flow's state with each packet, so one core has the flow"
        self._samples: list[SteeringSample] = []
        """Samples with the present steering, without the first."""
        self._age = 0
        self._pause = self._next_pause = 0
        self._best = ("", 0.0)
        """The steering that stays so far, and what it carried; empty without a trial."""
        self._left: list[str] = []
        """The steerings of the present trial that were not tried yet."""

    def observe(self, sample: SteeringSample) -> str:
        """Add a sample; return the steering to use from now on."""
        if not self._possible:
            return self.steer
        self._age += 1
        if self._age <= _SETTLE:
            return self.steer
        self._samples = [*self._samples, sample][-_COUNTED:]
        if len(self._samples) < _COUNTED:
            return self.steer
        carried = sum(each.carried for each in self._samples) / _COUNTED
        if self._best[0]:
            self._judge(carried)
        elif self.steer == "rss":
            self._consider(carried)
        elif sum(sample.busy) < SUFFICES:
            self._change("rss", f"workers use {sum(sample.busy):.2f} of a processor: one core suffices")
        elif self._age > _AGAIN:
            self._best, self._left = (self.steer, carried), []
            self._change("rss", f"comparing with {self.steer}")
        return self.steer

    def _consider(self, carried: float) -> None:
        """Begin a trial if a worker is full and processors are idle."""
        self._pause -= 1
        full = min(max(each.busy) for each in self._samples)
        idle = min(each.idle for each in self._samples)
        if full < FULL:
            self.why = f"the busiest worker uses {full:.2f} of its processor"
        elif idle < IDLE:
            self.why = f"a worker is full, but only {idle:.2f} processors are idle"
        elif self._pause < 0:
            self._best, self._left = ("rss", carried), list(TRIALS)
            self._change(self._left.pop(0), f"a worker is full and {idle:.2f} processors are idle: trial")

    def _judge(self, carried: float) -> None:
        """Compare what was carried with the best so far; try the next, or end the trial."""
        name, most = self._best
        # In doubt rss, which keeps the order.
        need = most * GAIN if name == "rss" else most / GAIN if self.steer == "rss" else most
        if carried > need:
            self._best = (self.steer, carried)
        if self._left:
            self._change(self._left.pop(0), f"trial; so far {self._best[0]} carries most")
            return
        name, most = self._best
        self._best = ("", 0.0)
        if name == "rss":
            self._next_pause = min(max(2 * self._next_pause, _PAUSE), SPRAYER_STEER_PAUSE_MAX)
            self._pause = self._next_pause
        else:
            self._next_pause = 0
        self._change(name, f"it carried most in a trial: {8e-9 * most:.3g} Gbit/s")

    def _change(self, steer: str, why: str) -> None:
        self.why = why
        if steer != self.steer:
            self.steer, self._age, self._samples = steer, 0, []
        else:
            self._age = _SETTLE


class _Meter:
    """Takes samples of running workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers: Final = workers
        self._allowed: Final = os.sched_getaffinity(0)
        self._progress: Final = ProgressMeter()
        self._period = workers.control[PERIOD] = 1
        self._before = self._read()

    def _read(self) -> tuple[float, int, list[float], float]:
        carried = self._workers.statistics().counts["bytes"]
        return time.monotonic(), carried, self._workers.processor_times(), idle_seconds(self._allowed)

    def sample(self) -> SteeringSample:
        """Return the sample since the last one."""
        before, now = self._before, self._read()
        self._before = now
        span = max(now[0] - before[0], 1e-6)
        again = self._progress.repeated(self._workers.watched, self._period)
        self._period += 1
        self._workers.control[PERIOD] = self._period
        busy = tuple((late - early) / span for early, late in zip(before[2], now[2], strict=True))
        return SteeringSample((now[1] - before[1] - again) / span, busy, (now[3] - before[3]) / span)


def idle_seconds(allowed: set[int], stat: Path = Path("/proc/stat")) -> float:
    """Return the seconds for which processors were idle since the start of the machine; 0 if unknown."""
    ticks = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in stat.read_text().splitlines():
            words = line.split()
            if words[0].startswith("cpu") and words[0] != "cpu" and int(words[0][3:]) in allowed:
                ticks += int(words[4])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def steering_automatically(workers: Workers, engine: AfPacketEngine | AfXdpEngine) -> Iterator[AutoSteering]:
    """Choose the steering of an engine while its workers run; yield the choice."""
    gathers = workers.function is not None and workers.function.writes_each_packet
    choice = AutoSteering(workers.cores, len(os.sched_getaffinity(0)), gathers=gathers)
    ended = threading.Event()

    def keep() -> None:
        meter, steer = _Meter(workers), choice.steer
        while not ended.wait(SAMPLE_S):
            wanted = choice.observe(meter.sample())
            if wanted != steer:
                try:
                    engine.change_steering(wanted)
                except OSError as error:
                    _log.warning("cannot change the steering", extra={"why": str(error)})
                    return
                _log.info("steering by %s: %s", wanted, choice.why)
                steer = wanted

    thread = threading.Thread(target=keep, name="steering", daemon=True)
    thread.start()
    try:
        yield choice
    finally:
        ended.set()
        thread.join()
