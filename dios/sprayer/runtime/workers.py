"""A network function on all cores of an engine: tables, rings, threads and statistics.

The loop of each worker is in ``worker_kernels.py``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np

from dios.limits import (
    SPRAYER_BATCH,
    SPRAYER_CORES_MAX,
    SPRAYER_EXPIRY_STEP,
    SPRAYER_RING,
    SPRAYER_WAITING,
    SPRAYER_WAITING_BYTES,
)
from dios.sprayer.compile.compile_handlers import CompiledHandlers, compile_handlers
from dios.sprayer.engine import Engine
from dios.sprayer.flows import flow_table
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.network_function import NetworkFunction, checked_quic_ports
from dios.sprayer.packets.neighbours import networks_of
from dios.sprayer.packets.packet import CAUSES, PACKET, verdicts
from dios.sprayer.runtime.progress import make_watched
from dios.sprayer.runtime.worker_kernels import (
    COUNTER_NAMES,
    COUNTERS,
    LINE,
    NOW,
    STOP,
    WAITING,
    Worker,
    drop_waiting,
    work,
)

TICK_S: Final = 0.25
"""The interval at which workers receive the time, in seconds."""
_MANAGED_S: Final = 1.0
"""The maximum time that ``stop`` waits for ``manage``, in seconds."""
LOCAL_TURNS: Final = 2**62

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """The statistics of one core, or of all cores together."""

    counts: dict[str, int]
    """``received``, ``sent``, …: see ``COUNTER_NAMES``."""
    causes: dict[str, int]
    """Frames by cause: dropped, or forwarded without a handler."""
    flows: dict[str, int]
    """``held`` now, ``expired``, and failed calls: table full, flow of another core, entry in change."""

    @property
    def dropped(self) -> int:
        """Frames that were not sent."""
        return self.counts["received"] - self.counts["sent"]


def jain(shares: list[int]) -> float:
    """Return Jain's fairness index of some shares: 1 if all are equal, 1 / N if one of N has everything."""
    total, squares = sum(shares), sum(share * share for share in shares)
    return total * total / (len(shares) * squares) if squares else 1.0


class _Manager:
    """Calls a function's ``manage`` in a daemon thread, one call at a time."""

    def __init__(self, function: NetworkFunction | None) -> None:
        self._function: Final = function
        self._wanted: Final = type(function).manage is not NetworkFunction.manage if function else False
        self._thread: threading.Thread | None = None
        self._said = ""

    def once(self) -> None:
        """Call ``manage`` now."""
        if self._function is None or not self._wanted:
            return
        try:
            self._function.manage()
        except Exception as error:  # noqa: BLE001 - packets continue whatever fails
            said = f"{type(error).__name__}: {error}"
            if said != self._said:
                _log.warning("%s.manage: %s", type(self._function).__name__, said)
            self._said = said
        else:
            self._said = ""

    def begin(self) -> None:
        """Call ``manage`` in a thread, unless a call is still running."""
        if self._wanted and not (self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=self.once, name="manage", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Wait for a running call, for a limited time."""
        if self._thread:
            self._thread.join(_MANAGED_S)


class Workers:
    """One worker for each core of an engine. Without a function everything is forwarded.

    Run turns with ``turn`` and ``drain``, or use it as a context manager: then each worker has a thread until
    the end. ``seed`` is the seed of the hash, secret by default; ``now`` is a fixed time in seconds instead
    of the clock; ``journal`` is the number of flow changes to record for each core, for tests. Raises
    :class:`~dios.sprayer.network_function.HandlerError` for handlers that cannot be compiled.
    """

    def __init__(
        self,
        function: NetworkFunction | None,
        engine: Engine,
        *,
        seed: int | None = None,
        journal: int = 0,
        now: int | None = None,
    ) -> None:
        cores = engine.cores
        if not 0 < cores <= SPRAYER_CORES_MAX:
            raise ValueError(f"{cores} cores: choose from 1 to {SPRAYER_CORES_MAX}")
        self.function: Final = function
        self.engine = engine
        self.cores: Final = cores
        self.control: Final = np.zeros(LINE, np.int64)
        self.counters: Final = np.zeros((cores, COUNTERS), np.int64)
        number = secrets.randbits(64) if seed is None else seed
        self.seed: Final = np.array([number], np.uint64)
        self._clock: Final = now is None
        self.set_time(int(time.monotonic()) + 1 if now is None else now)
        if function is not None:
            function.prepare(cores)
        self._manager: Final = _Manager(function)
        self._manager.once()
        self.flows: Final = make_tables(function or NetworkFunction(), cores, self.seed, journal)
        self._rings: Final = np.zeros(cores * cores * SPRAYER_RING, PACKET)
        self._returned: Final = np.zeros(cores * cores * SPRAYER_RING, np.int32)
        self._marks: Final = np.zeros((4, cores * cores * LINE), np.int64)
        self.watched: Final = make_watched(cores)
        self._owned: Final = networks_of(function.own_networks() if function else ())
        self._hardware: Final = np.zeros(2, np.uint64)
        self._quic_ports: Final = np.array(
            checked_quic_ports(function.quic_ports if function else ()), np.int64
        )
        self._handlers: Final[list[CompiledHandlers]] = []
        self.workers: Final = [self._worker(core) for core in range(cores)]
        self._threads: list[threading.Thread] = []
        self.handled: Final = [0] * cores
        """The packets that each thread received or took over, after it has ended."""

    def _worker(self, core: int) -> Worker:
        function, engine, flows = self.function, self.engine, self.flows[core]
        connection, regular = np.zeros(2 * SPRAYER_BATCH, PACKET), np.zeros(SPRAYER_BATCH, PACKET)
        now = np.zeros(1, np.int64)
        if function is not None:
            self._handlers.append(compile_handlers(function, flows, connection, regular, now))
        handler = self._handlers[-1] if self._handlers else None
        stateless = function is None or function.stateless
        waits = SPRAYER_WAITING if function is not None and function.takes_fragments and not stateless else 0
        copies = waits if engine.frees_in_order else 0
        return Worker(
            core=core,
            cores=self.cores,
            handler=handler.address if handler else 0,
            handler_context=handler.context.ctypes.data if handler else 0,
            receive=engine.receive,
            transmit=engine.transmit,
            release=engine.release,
            engine_context=engine.context(core),
            stateless=int(stateless),
            gathers=int(function is not None and function.writes_each_packet),
            by_inside_end=int(function is not None and function.by_inside_end),
            quic_ports=self._quic_ports,
            watched=self.watched[core],
            owned=self._owned,
            hardware=self._hardware,
            places=flows.words.size // self.cores,
            words_at=flows.words.ctypes.data,
            table_at=flows.table.ctypes.data,
            seen_at=flows.seen.ctypes.data + core * flows.words.size * 4,
            row_bytes=flows.table.itemsize,
            seed=self.seed,
            now=now,
            rules=verdicts(
                stateless=stateless,
                fragments=function is not None and function.takes_fragments,
                protocols=function is not None and function.takes_protocols,
            ),
            connection=connection,
            regular=regular,
            passing=np.zeros(SPRAYER_BATCH, PACKET),
            frames=np.zeros(2 * SPRAYER_BATCH, np.int64),
            rings=self._rings,
            heads=self._marks[0],
            tails=self._marks[1],
            returned=self._returned,
            back_heads=self._marks[2],
            back_tails=self._marks[3],
            filling=np.zeros(self.cores, np.int64),
            waiting=np.zeros(waits, PACKET),
            waiting_bytes=np.zeros(copies * SPRAYER_WAITING_BYTES, np.uint8),
            waiting_marks=np.zeros(LINE, np.int64),
            pace=np.zeros(1, np.int64),
            counters=self.counters[core],
            control=self.control,
        )

    def change_engine(self, engine: Engine) -> None:
        """Continue with another engine that has the same number of cores, while no thread runs.

        Flow tables stay. The previous engine must have no frames left.
        """
        for core, worker in enumerate(self.workers):
            self.workers[core] = worker._replace(
                receive=engine.receive,
                transmit=engine.transmit,
                release=engine.release,
                engine_context=engine.context(core),
            )
        self.engine = engine

    def set_time(self, seconds: int) -> None:
        """Set ``flows.now`` of handlers from their next batch on, in seconds."""
        self.control[NOW] = seconds

    def turn(self, core: int, turns: int = 1) -> int:
        """Run turns of one core in this thread; return the number of packets received or taken over."""
        return work(self.workers[core], turns)

    def drain(self, choose: Callable[[int], int] | None = None) -> None:
        """Run turns until nothing is left, with an engine that never waits.

        ``choose`` selects the core of the next turn, given the number of cores; by default they take turns.
        """
        idle = 0
        count = 0
        # A packet that waits has had its chance when nothing else is left.
        while idle < 2 * self.cores + 1:
            core = choose(self.cores) if choose else count % self.cores
            count += 1
            if self.turn(core):
                idle = 0
            elif all(not self.turn(worker) for worker in range(self.cores)):
                idle += 1
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        """Drop the packets that wait, while no thread runs."""
        for worker in self.workers:
            if worker.waiting_marks[WAITING]:
                drop_waiting(worker)

    def expire_flows(self, part: float = 1.0) -> None:
        """Remove expired flows in a part of each table, with an engine that has no frames left."""
        places = self.flows[0].words.size // self.cores
        for core in range(self.cores):
            self.turn(core, -(-int(places * min(part, 1.0)) // SPRAYER_EXPIRY_STEP))

    def start(self) -> None:
        """Start a thread for each core."""
        if self._threads:
            raise RuntimeError("these workers are running: stop them first")
        self.control[STOP] = 0
        self._threads = [
            threading.Thread(target=self._run, args=(core,), name=f"worker {core}")
            for core in range(self.cores)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, core: int) -> None:
        self.handled[core] = work(self.workers[core], LOCAL_TURNS)

    def use_realtime_priority(self) -> None:
        """Give the threads realtime priority on their processors (SCHED_FIFO). Raises ``OSError``."""
        for thread in self._threads:
            os.sched_setscheduler(thread.native_id or 0, os.SCHED_FIFO, os.sched_param(1))

    def processor_times(self) -> list[float]:
        """Return the seconds of processor time of each running thread, by core; 0 without a thread."""
        times = [0.0] * self.cores
        for core, thread in enumerate(self._threads):
            with contextlib.suppress(OSError):
                times[core] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
        return times

    def tick(self) -> None:
        """Wait for ``TICK_S``, update the time unless it is fixed, and start ``manage``."""
        time.sleep(TICK_S)
        if self._clock:
            self.set_time(int(time.monotonic()) + 1)
        self._manager.begin()

    def stop(self) -> None:
        """Stop each worker after its turn, and wait for that."""
        self.control[STOP] = 1
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._drop_waiting()
        self._manager.end()
        self.control[STOP] = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def waiting(self, core: int) -> int:
        """Return the number of packets that were handed over to a core and not received yet."""
        rings = (np.arange(self.cores) * self.cores + core) * LINE
        return int((self._marks[0][rings] - self._marks[1][rings]).sum())

    def statistics(self, core: int | None = None) -> Statistics:
        """Return the current statistics of one core, or of all together; workers may be running."""
        which = slice(None) if core is None else slice(core, core + 1)
        sums = self.counters[which].sum(axis=0).tolist()
        books = np.sum([flows.books for flows in self.flows[which]], axis=0)
        names = ("held", "full", "foreign", "busy", "expired")
        counts = dict(zip(COUNTER_NAMES, sums[len(CAUSES) :], strict=False))
        counts["deepest"] = int(self.counters[which, len(CAUSES) + COUNTER_NAMES.index("deepest")].max())
        return Statistics(
            counts=counts,
            causes={cause.name: sums[place] for place, cause in enumerate(CAUSES) if place},
            flows={name: int(books[place]) for place, name in enumerate(names)},
        )


def make_tables(function: NetworkFunction, cores: int, seed: flow_table.Words, journal: int) -> list[Flows]:
    """Return the flow tables of all cores, one view for each."""
    entry = flow_table.entry_type(list(function.entry))
    places = flow_table.slots_for(1 if function.stateless else function.flows_max)
    words = np.zeros(cores * places, np.uint64)
    table = np.zeros(cores * places, flow_table.table_type(entry))
    seen = np.zeros(cores * cores * places, np.uint32)
    tables = []
    for core in range(cores):
        books = np.zeros(flow_table.FLOW_COUNTERS, np.int64)
        books[flow_table.PENDING] = -1
        tables.append(
            Flows(
                core=core,
                cores=cores,
                now=0,
                flows_max=function.flows_max,
                idle=function.idle_s,
                seed=seed,
                words=words,
                table=table,
                seen=seen,
                copies=np.zeros(flow_table.COPIES + 1, entry),
                books=books,
                entries=np.zeros(2 * SPRAYER_BATCH, entry),
                hits=np.zeros(2 * SPRAYER_BATCH, np.uint8),
                by_source=int(function.by_inside_end),
                journal=np.zeros(journal, np.uint64),
            )
        )
    return tables
