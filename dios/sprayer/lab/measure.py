"""How fast a network function is, in what order frames leave it, and after how long.

For: ``dios repro sprayer`` and benchmarks. Not for: connections of a real TCP (``tcp.py``), or what is sent
(``traffic.py``).

Between cables the sender, the workers and the sink share the processors of this machine, so each figure
tells what workers did with a second of the processor beside what they did in a second.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.sprayer.lab.cables import LEFT_LINK, RIGHT_LINK, Cables
from dios.sprayer.lab.frames import ABOVE, Frames
from dios.sprayer.lab.spaces import NotHereError
from dios.sprayer.lab.traffic import SENDER, Sender, Sink, made
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.worker_kernels import RECEIVED
from dios.sprayer.workers import Workers

SHORT: Final = 64
"""Bytes of the frames of the thesis."""
SHORT_BURST: Final = 64
LONG: Final = 1514
LONG_BURST: Final = 32
WARM_S: Final = 0.15
WORKER: Final = "worker "
"""How names of workers' threads begin."""
_FIRST: Final = 1
AGAIN: Final = 2**40


class Setting(NamedTuple):
    """What is sent through what."""

    cores: int = 2
    steer: str = "spray"
    flows: int = 1
    length: int = SHORT
    seed: int = 1
    seconds: float = 1.0


class Rate(NamedTuple):
    """What was forwarded."""

    frames_s: float
    each: list[float]
    """Frames a second that each core received."""
    worker_cpus: float
    """Processors that workers used."""
    sender_cpus: float
    lost: float
    """The part of what was sent that did not come."""

    @property
    def per_cpu_s(self) -> float:
        """Frames for each second of the processor that workers used."""
        return self.frames_s / self.worker_cpus if self.worker_cpus else 0.0


class Order(NamedTuple):
    """In what order frames came that were sent in order."""

    late: float
    """The part that came after one that was sent later."""
    late_by_three: float
    """The part that came after three or more such."""
    lost: float


class Delay(NamedTuple):
    """From sending to coming, in microseconds."""

    median: float
    p99: float
    lost: float


def in_memory(function: NetworkFunction, setting: Setting) -> Rate:
    """The workers alone, each with frames that are there already, over and over.

    RSS gives each flow to a core that the seed draws; spraying goes by the low bits of the checksum.
    """
    frames = Frames(setting.flows, setting.length, setting.seed, target=RIGHT_LINK, source=LEFT_LINK)
    turns = np.arange(len(frames.messages)) % setting.flows
    if setting.steer == "rss":
        drawn = np.random.default_rng(setting.seed).integers(0, setting.cores, setting.flows)
        cores = drawn[turns]
    else:
        cores = frames.checksums % setting.cores
    opening = MemoryEngine([each.tobytes()[ABOVE:] for each in frames.opening], setting.cores, room=0)
    texts = [each.tobytes()[ABOVE:] for each in frames.messages]
    workers = Workers(function, opening, seed=setting.seed)
    workers.drain()
    workers.change_engine(MemoryEngine(texts, setting.cores, steer=cores, room=0, again=AGAIN))
    with workers:
        time.sleep(WARM_S)
        clocks = _clocks()
        before, spent, begun = workers.counters[:, RECEIVED].copy(), _spent(clocks), time.monotonic()
        time.sleep(setting.seconds)
        span = time.monotonic() - begun
        after, used = workers.counters[:, RECEIVED] - before, _spent(clocks)
    # Whoever gets nothing looks for it all the time, which is no work.
    names = [f"{WORKER}{core}" for core in np.flatnonzero(after)]
    busy = sum(used[name] - spent[name] for name in names)
    return Rate(float(after.sum()) / span, [float(each) / span for each in after], busy / span, 0.0, 0.0)


@contextlib.contextmanager
def _running(
    cables: Cables, function: NetworkFunction | None, setting: Setting, burst: int
) -> Iterator[tuple[Workers, Sender]]:
    """A function between the cables, and a sender whose flows are open."""
    frames = made(setting.flows, setting.length, setting.seed, burst=burst)
    with (
        cables.engine(setting.cores, setting.steer, secret=setting.seed) as engine,
        Sender(cables.left, frames) as sender,
    ):
        workers = Workers(function, engine, seed=setting.seed)
        workers.turn(0, 0)  # what is compiled at the first turn is compiled now
        with workers:
            go_first()
            before = workers.counters[:, RECEIVED].sum()
            sender.open_flows()
            late = time.monotonic() + WARM_S
            while workers.counters[:, RECEIVED].sum() - before < setting.flows and time.monotonic() < late:
                time.sleep(WARM_S / 100)
            yield workers, sender


def forwarding(cables: Cables, function: NetworkFunction | None, setting: Setting) -> Rate:
    """As much as the workers take from a sender that keeps each core busy and loses nothing."""
    burst = SHORT_BURST if setting.length < LONG // 2 else LONG_BURST
    with _running(cables, function, setting, burst) as (workers, sender):
        counters = workers.counters[:, RECEIVED]
        cores = sender.cores_of(counters)
        with sender.running(cores=cores, counters=counters) as sent:
            time.sleep(WARM_S)
            clocks = _clocks()
            before = sent(), cables.arrived(), counters.copy(), _spent(clocks), time.monotonic()
            time.sleep(setting.seconds)
            span = time.monotonic() - before[4]
            given, come = sent() - before[0], cables.arrived() - before[1]
            each, used = counters - before[2], _spent(clocks)
    cpus = {name: (used[name] - before[3][name]) / span for name in used}
    sender_cpus = cpus.pop(SENDER)
    # What was on its way at one of both ends is no loss.
    lost = max(0.0, 1.0 - come / given) if given and workers.statistics().dropped else 0.0
    return Rate(come / span, [float(one) / span for one in each], sum(cpus.values()), sender_cpus, lost)


def order(cables: Cables, function: NetworkFunction | None, setting: Setting, rate: int) -> Order:
    """What becomes of the order of frames that come so many a second."""
    with (
        _running(cables, function, setting, 1) as (_, sender),
        Sink(cables, sender) as sink,
        sender.running(rate=rate) as sent,
    ):
        time.sleep(WARM_S)
        before = sent()
        sink.clear()
        time.sleep(setting.seconds)
        given, taken, late, more = sent() - before, sink.taken, sink.late, sink.late_by_three
    lost = max(0.0, 1.0 - taken / given) if given else 0.0
    return Order(late / max(taken, 1), more / max(taken, 1), lost)


def delay(cables: Cables, function: NetworkFunction | None, setting: Setting, rate: int) -> Delay:
    """How long frames take, of which so many a second are sent one by one."""
    with (
        _running(cables, function, setting, 1) as (_, sender),
        Sink(cables, sender, delays=int(rate * setting.seconds * 1.5) + 1) as sink,
        sender.running(rate=rate, batch=1, stamped=True) as sent,
    ):
        time.sleep(WARM_S)
        before = sent()
        sink.clear()
        time.sleep(setting.seconds)
        found, given = sink.delays_us(), sent() - before
    if not len(found):
        raise NotHereError(f"none of {given} frames came through")
    lost = max(0.0, 1.0 - len(found) / given) if given else 0.0
    return Delay(float(np.median(found)), percentile(found, 99), lost)


def percentile(values: npt.NDArray[np.float64], at: float) -> float:
    """A percentile (0 to 100)."""
    return float(np.percentile(values, at))


def go_first() -> None:
    """Let workers that run go before everything else on their processors, as if those were theirs alone.

    A worker that waits for its turn behind a sender holds half of a flow back, and a TCP sends it again.
    Where that may not be done, they take turns.
    """
    for thread in threading.enumerate():
        if thread.native_id is not None and thread.name.startswith(WORKER):
            with contextlib.suppress(OSError):
                os.sched_setscheduler(thread.native_id, os.SCHED_FIFO, os.sched_param(_FIRST))


def _clocks() -> dict[str, int]:
    """The processor clock of each worker and of the sender, by thread's name."""
    return {
        thread.name: time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if thread.ident is not None and (thread.name.startswith(WORKER) or thread.name == SENDER)
    }


def _spent(clocks: dict[str, int]) -> dict[str, float]:
    return {name: time.clock_gettime(clock) for name, clock in clocks.items()}
