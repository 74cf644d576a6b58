"""The default steering: by what the machine and the traffic are, measured at the start and while running.

Spraying pays where one core is full and other processors are idle. Elsewhere it only lets packets overtake
each other, which TCP takes for losses. So steering begins with ``rss``. When a worker is nearly always busy
and processors are idle, ``flowlet`` is tried for two seconds, and stays if it carries more. ``spray`` is
tried after it only if senders repeated next to nothing meanwhile: a connection that was sprayed and could
not bear it stays slow for many seconds, whatever steers it then. What stays is compared with ``rss`` again
from time to time, and given up when one core suffices. Payload that TCP sends again does not count.
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
HARMED: Final = 0.8
"""A tried steering that carries less than this part of the best is given up at once."""
REPEATED: Final = 0.002
"""The part of the payload that ``flowlet`` may make senders repeat if ``spray`` is to be tried, too."""
_SETTLE: Final = 1
"""Samples after a change that do not count: packets under way still overtake each other."""
_COUNTED: Final = 3
_PAUSE: Final = 32
"""Samples between a trial that failed, or a steering that stays, and the next trial; doubled each time."""


class SteeringSample(NamedTuple):
    """What a stretch of time showed: the rate of bytes, and how busy the processors were."""

    carried: float
    """Bytes per second, without payload that was sent again."""
    busy: tuple[float, ...]
    """The part of the time that each worker used a processor."""
    idle: float
    """Idle processors, of those that workers may use."""
    repeated: float = 0.0
    """The part of the carried bytes that was sent again, which ``carried`` does not have."""


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
        self._pause = 0
        """Samples with ``steer`` before the next trial; it doubles while trials change nothing."""
        self._before = "rss"
        """The steering before the present trial."""
        self._against = ""
        """The best steering of the present trial, with which ``steer`` is compared; empty without a trial."""
        self._most = 0.0
        """What it carried."""

    def observe(self, sample: SteeringSample) -> str:
        """Add a sample; return the steering to use from now on."""
        if not self._possible:
            return self.steer
        self._age += 1
        if self._age <= _SETTLE:
            return self.steer
        self._samples = [*self._samples, sample][-_COUNTED:]
        if self._against and sample.carried < HARMED * self._most:
            self._judge(sample)
        elif len(self._samples) == _COUNTED:
            mean = _mean(self._samples)
            if self._against:
                self._judge(mean)
            elif self.steer == "rss":
                self._consider(mean)
            else:
                self._reconsider(mean)
        return self.steer

    def _consider(self, mean: SteeringSample) -> None:
        """Begin a trial if a worker is full and processors are idle."""
        full = min(max(sample.busy) for sample in self._samples)
        idle = min(sample.idle for sample in self._samples)
        if full < FULL:
            self.why = f"the busiest worker uses {full:.2f} of its processor"
        elif idle < IDLE:
            self.why = f"a worker is full, but only {idle:.2f} processors are idle"
        elif self._age > self._pause:
            self._before = "rss"
            self._try("flowlet", mean, f"a worker is full and {idle:.2f} processors are idle: trial")

    def _reconsider(self, mean: SteeringSample) -> None:
        """Return to rss if one core suffices; compare with it in time, or when much less is carried."""
        used = sum(mean.busy)
        if used < SUFFICES:
            self._pause = 0
            self._change("rss", f"workers use {used:.2f} of a processor: one core suffices")
        elif self._age > (_PAUSE if mean.carried < HARMED * self._most else self._pause):
            self._before = self.steer
            self._try("rss", mean, f"comparing with {self.steer}")

    def _try(self, steer: str, best: SteeringSample, why: str) -> None:
        """Compare another steering with the present one, which carried ``best``."""
        self._against, self._most = self.steer, best.carried
        self._change(steer, why)

    def _judge(self, mean: SteeringSample) -> None:
        """Compare what was carried with the best so far; try spraying, or end the trial."""
        tried, best, most = self.steer, self._against, self._most
        # In doubt the steering that keeps the order better.
        if mean.carried > (most / GAIN if tried == "rss" else most * GAIN):
            best, most = tried, mean.carried
        bears = mean.carried >= HARMED * most and mean.repeated < REPEATED
        if tried == "flowlet" and bears:
            self._against, self._most = best, most
            self._change("spray", f"trial; so far {best} carries most, and next to nothing is sent again")
            return
        self._against, self._most = "", most
        again = best == self._before
        self._pause = min(max(2 * self._pause, _PAUSE), SPRAYER_STEER_PAUSE_MAX) if again else _PAUSE
        self._change(best, f"it carried most in a trial: {8e-9 * most:.3g} Gbit/s")

    def _change(self, steer: str, why: str) -> None:
        self.why = why
        if steer != self.steer:
            self.steer, self._age, self._samples = steer, 0, []
        else:
            self._age = _SETTLE


def _mean(samples: list[SteeringSample]) -> SteeringSample:
    count = len(samples)
    return SteeringSample(
        sum(sample.carried for sample in samples) / count,
        tuple(sum(parts) / count for parts in zip(*(sample.busy for sample in samples), strict=True)),
        sum(sample.idle for sample in samples) / count,
        sum(sample.repeated for sample in samples) / count,
    )


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
        carried = now[1] - before[1]
        idle = (now[3] - before[3]) / span
        return SteeringSample((carried - again) / span, busy, idle, again / max(carried, 1))


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
