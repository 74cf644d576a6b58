"""Measurement of network functions: their rate, the order of the frames that leave, and the delay.

Between veth pairs, the sender, the workers and the sink share the processors of this machine. So each result
also gives the rate per second of processor time of the workers.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from dios.sprayer.linux.af_packet import AfPacketEngine
from dios.sprayer.linux.af_xdp import AfXdpEngine
from dios.sprayer.linux.engine_options import AUTO
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.runtime.auto_steering import steering_automatically
from dios.sprayer.runtime.worker_kernels import RECEIVED
from dios.sprayer.runtime.workers import Workers
from labs.papers.sprayer.lab.frames import ABOVE, Frames, Numbers
from labs.papers.sprayer.lab.namespaces import NotHereError
from labs.papers.sprayer.lab.traffic import SENDER, SINK, FrameSender, FrameSink, frames_to_right
from labs.papers.sprayer.lab.veth_pairs import LEFT_LINK, RIGHT_LINK, VethPairs

SHORT: Final = 64
"""The length of the thesis' frames in bytes."""
SHORT_BURST: Final = 64
LONG: Final = 1514
LONG_BURST: Final = 32
WARM_S: Final = 0.15
WORKER: Final = "worker "
"""The beginning of the names of workers' threads."""
_FIRST: Final = 1
AGAIN: Final = 2**40


class MeasurementSetting(NamedTuple):
    """The traffic and the network function's configuration."""

    cores: int = 2
    steer: str = "spray"
    flows: int = 1
    length: int = SHORT
    seed: int = 1
    seconds: float = 1.0
    how: str = "af_packet"
    """``af_packet`` or ``af_xdp``."""


class ForwardingRate(NamedTuple):
    """The measured forwarding rate."""

    frames_s: float
    per_core: list[float]
    """Frames per second that each core received."""
    worker_cpus: float
    """Processors that the workers used."""
    sender_cpus: float
    lost: float
    """The fraction of sent frames that did not arrive."""

    @property
    def per_cpu_s(self) -> float:
        """Frames per second of processor time of the workers."""
        return self.frames_s / self.worker_cpus if self.worker_cpus else 0.0


class _Snapshot(NamedTuple):
    """The counters at one time."""

    at: float
    sent: int
    come: int
    received: Numbers
    spent: dict[str, float]


class FrameDelays(NamedTuple):
    """The delays and the order of frames that were sent one by one."""

    frames_s: float
    """Frames sent per second: the requested rate if the sender could keep it."""
    median: float
    """The median time from sending to arrival, in microseconds."""
    p99: float
    late: float
    """The fraction that arrived after a later frame."""
    late_by_three: float
    """The fraction that arrived after three or more later frames."""
    lost: float


def in_memory(function: NetworkFunction, setting: MeasurementSetting) -> ForwardingRate:
    """Measure the workers alone; each processes the same frames in memory repeatedly.

    With RSS the seed draws a core for each flow; with spraying the low bits of the checksum choose it.
    """
    frames = Frames(setting.flows, setting.length, setting.seed, target=RIGHT_LINK, source=LEFT_LINK)
    turns = np.arange(len(frames.messages)) % setting.flows
    if setting.steer == "rss":
        drawn = np.random.default_rng(setting.seed).integers(0, setting.cores, setting.flows)
        cores = drawn[turns]
    else:
        cores = frames.checksums % setting.cores
    opening = MemoryEngine([frame.tobytes()[ABOVE:] for frame in frames.opening], setting.cores, room=0)
    texts = [message.tobytes()[ABOVE:] for message in frames.messages]
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
    # Workers without frames poll all the time, which is not counted as work.
    names = [f"{WORKER}{core}" for core in np.flatnonzero(after)]
    busy = sum(used[name] - spent[name] for name in names)
    return ForwardingRate(
        float(after.sum()) / span, [float(count) / span for count in after], busy / span, 0.0, 0.0
    )


@contextlib.contextmanager
def _running(
    veth_pairs: VethPairs, function: NetworkFunction | None, setting: MeasurementSetting, burst: int
) -> Iterator[tuple[Workers, FrameSender]]:
    """Run a function between the cables, with a sender whose flows are open."""
    frames = frames_to_right(setting.flows, setting.length, setting.seed, burst=burst)
    with (
        veth_pairs.engine(setting.cores, setting.steer, secret=setting.seed, how=setting.how) as engine,
        FrameSender(veth_pairs.left, frames) as sender,
    ):
        workers = Workers(function, engine, seed=setting.seed)
        workers.turn(0, 0)  # compile now what the first turn would compile
        with workers:
            before = workers.counters[:, RECEIVED].sum()
            sender.open_flows()
            late = time.monotonic() + WARM_S
            while workers.counters[:, RECEIVED].sum() - before < setting.flows and time.monotonic() < late:
                time.sleep(WARM_S / 100)
            with contextlib.ExitStack() as stack:
                if setting.steer == AUTO:
                    stack.enter_context(steering_automatically(workers, engine))
                yield workers, sender


def forwarding(
    veth_pairs: VethPairs, function: NetworkFunction | None, setting: MeasurementSetting
) -> ForwardingRate:
    """Measure the rate of the workers with a sender that keeps each core busy and loses nothing."""
    burst = SHORT_BURST if setting.length < LONG // 2 else LONG_BURST
    with _running(veth_pairs, function, setting, burst) as (workers, sender):
        counters = workers.counters[:, RECEIVED]
        cores = sender.cores_of(counters)
        rate = measure_arrivals(veth_pairs, sender, counters, setting.seconds, cores)
        return rate._replace(lost=_lost(workers))


def _lost(workers: Workers) -> float:
    """Return the fraction of frames without room: in rings of sockets, between cores, or going out."""
    totals = workers.statistics()
    lost = sum(totals.causes[name] for name in ("ring_full", "not_sent"))
    if isinstance(workers.engine, (AfPacketEngine, AfXdpEngine)):
        lost += sum(workers.engine.statistics(core).no_place for core in range(workers.cores))
    return lost / max(totals.counts["received"], 1)


def measure_arrivals(
    veth_pairs: VethPairs,
    sender: FrameSender,
    counters: Numbers | None,
    seconds: float,
    cores: Sequence[int] = (),
) -> ForwardingRate:
    """Measure the frames that arrive on the right; the sender follows ``counters``, or sends all it can.

    ``counters`` (cores,) are those of the threads whose names begin with ``WORKER``; ``cores`` is as in
    ``FrameSender.running``.
    """
    with _watching(), sender.running(cores=cores, counters=counters) as sent:
        go_first(alike=True)
        time.sleep(WARM_S)
        clocks = _clocks()
        per_core = np.zeros(1, np.int64) if counters is None else counters
        before = _Snapshot(time.monotonic(), sent(), veth_pairs.arrived(), per_core.copy(), _spent(clocks))
        time.sleep(seconds)
        after = _Snapshot(time.monotonic(), sent(), veth_pairs.arrived(), per_core.copy(), _spent(clocks))
    span, given, come = after.at - before.at, after.sent - before.sent, after.come - before.come
    cpus = {name: (after.spent[name] - before.spent[name]) / span for name in clocks}
    sender_cpus = cpus.pop(SENDER)
    # Frames in transit at either end are not lost, and a window loses none.
    lost = 1.0 - come / given if counters is None and given > come else 0.0
    received = [float(count) / span for count in after.received - before.received]
    return ForwardingRate(come / span, received, sum(cpus.values()), sender_cpus, lost)


def delay(
    veth_pairs: VethPairs, function: NetworkFunction | None, setting: MeasurementSetting, rate: int
) -> FrameDelays:
    """Measure the delay and the order of frames that are sent one by one, ``rate`` per second."""
    with (
        _watching(),
        _running(veth_pairs, function, setting, 1) as (_, sender),
        FrameSink(veth_pairs, sender, delays=int(rate * setting.seconds * 1.5) + 1) as sink,
        sender.running(rate=rate, batch=1, stamped=True) as sent,
    ):
        go_first()
        time.sleep(WARM_S)
        before, begun = sent(), time.monotonic()
        sink.clear()
        time.sleep(setting.seconds)
        span = time.monotonic() - begun
        given, come, late, more, delays = (
            sent() - before,
            sink.arrived,
            sink.late,
            sink.late_by_three,
            sink.delays_us(),
        )
    if not come or not len(delays):
        raise NotHereError(f"none of {given} frames arrived")
    lost = max(0.0, 1.0 - come / given) if given else 0.0
    return FrameDelays(
        frames_s=given / span,
        median=float(np.median(delays)),
        p99=float(np.percentile(delays, 99)),
        late=late / come,
        late_by_three=more / come,
        lost=lost,
    )


def go_first(*, alike: bool = False) -> None:
    """Give running loops priority over everything else: workers and sink over a sender, or all ``alike``.

    A worker that is delayed by other work delays half of a flow; a sender that is delayed by workers sends
    less than requested. Loops of the same priority keep their processor until they wait for something,
    because waking a loop for each frame would cost much. Without the permission all take turns.
    """
    for thread in threading.enumerate():
        if thread.native_id is not None and thread.name.startswith((WORKER, SENDER, SINK)):
            ahead = thread.name != SENDER and not alike
            with contextlib.suppress(OSError):
                os.sched_setscheduler(thread.native_id, os.SCHED_FIFO, os.sched_param(_FIRST + ahead))


@contextlib.contextmanager
def _watching() -> Iterator[None]:
    """Give this thread priority over those loops, so that all numbers that it reads are of one moment."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIRST + 2))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _clocks() -> dict[str, int]:
    """Return the processor clock of each worker and of the sender, by the thread's name."""
    return {
        thread.name: time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if thread.ident is not None and (thread.name.startswith(WORKER) or thread.name == SENDER)
    }


def _spent(clocks: dict[str, int]) -> dict[str, float]:
    return {name: time.clock_gettime(clock) for name, clock in clocks.items()}
