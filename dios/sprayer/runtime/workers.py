"""A network function on all cores of an engine: tables, rings and threads, and what was counted.

Not for: what workers do (``worker_kernels.py``).
"""

from __future__ import annotations

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

from dios.limits import SPRAYER_BATCH, SPRAYER_CORES_MAX, SPRAYER_EXPIRY_STEP, SPRAYER_RING
from dios.sprayer.compile.compile_handlers import Handler, compile_handlers
from dios.sprayer.engine import Engine
from dios.sprayer.flows import flow_table
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import CAUSES, PACKET, rules
from dios.sprayer.runtime.worker_kernels import COUNTER_NAMES, COUNTERS, LINE, NOW, STOP, Worker, work

TICK_S: Final = 0.25
"""So often workers are told the time."""
_MANAGED_S: Final = 1.0
"""So long the end waits for ``manage``."""
LOCAL_TURNS: Final = 2**62

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """What one core, or all together, did."""

    counts: dict[str, int]
    """``received``, ``sent``, …: see ``COUNTER_NAMES``."""
    causes: dict[str, int]
    """Frames by cause: dropped, or forwarded past the handlers as its rule says."""
    flows: dict[str, int]
    """``held`` now, ``expired``, and calls that found no room, another core's flow, or a change going on."""

    @property
    def dropped(self) -> int:
        """Frames that did not go out."""
        return self.counts["received"] - self.counts["sent"]


def jain(shares: list[int]) -> float:
    """Jain's fairness index of what each got: 1 for the same for all, 1 / N for all to one of N."""
    total, squares = sum(shares), sum(share * share for share in shares)
    return total * total / (len(shares) * squares) if squares else 1.0


class _Manager:
    """Calls a function's ``manage``, one call at a time, in a thread that nobody waits for."""

    def __init__(self, function: NetworkFunction | None) -> None:
        self._function: Final = function
        self._wanted: Final = type(function).manage is not NetworkFunction.manage if function else False
        self._thread: threading.Thread | None = None
        self._said = ""

    def once(self) -> None:
        """Call it now."""
        if self._function is None or not self._wanted:
            return
        try:
            self._function.manage()
        except Exception as error:  # noqa: BLE001 - whatever it is, packets go on
            said = f"{type(error).__name__}: {error}"
            if said != self._said:
                _log.warning("%s.manage: %s", type(self._function).__name__, said)
            self._said = said
        else:
            self._said = ""

    def begin(self) -> None:
        """Call it in a thread, unless it is still at it."""
        if self._wanted and not (self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=self.once, name="manage", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Wait for it, but not for long."""
        if self._thread:
            self._thread.join(_MANAGED_S)


class Workers:
    """One worker for each core of an engine, with a function of their own or none, which forwards everything.

    Take turns by ``turn`` and ``drain``, or use it as a context: then each has a thread until the end.
    ``seed`` is that of the hash, secret unless it is given; ``now`` the time, if it is not the clock's; so
    many changes of flows are noted for each core as ``journal`` says.
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
        self.tell_time(int(time.monotonic()) + 1 if now is None else now)
        if function is not None:
            function.prepare(cores)
        self._manager: Final = _Manager(function)
        self._manager.once()
        self.flows: Final = make_tables(function or NetworkFunction(), cores, self.seed, journal)
        self._rings: Final = np.zeros(cores * cores * SPRAYER_RING, PACKET)
        self._returned: Final = np.zeros(cores * cores * SPRAYER_RING, np.int32)
        self._marks: Final = np.zeros((4, cores * cores * LINE), np.int64)
        self._handlers: Final[list[Handler]] = []
        self.workers: Final = [self._worker(core) for core in range(cores)]
        self._threads: list[threading.Thread] = []
        self.handled: Final = [0] * cores
        """Packets that each thread received or took over, once it ended."""

    def _worker(self, core: int) -> Worker:
        function, engine, flows = self.function, self.engine, self.flows[core]
        connection, regular = np.zeros(2 * SPRAYER_BATCH, PACKET), np.zeros(SPRAYER_BATCH, PACKET)
        now = np.zeros(1, np.int64)
        if function is not None:
            self._handlers.append(compile_handlers(function, flows, connection, regular, now))
        handler = self._handlers[-1] if self._handlers else None
        stateless = function is None or function.stateless
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
            places=flows.words.size // self.cores,
            words_at=flows.words.ctypes.data,
            table_at=flows.table.ctypes.data,
            seen_at=flows.seen.ctypes.data + core * flows.words.size * 4,
            row_bytes=flows.table.itemsize,
            seed=self.seed,
            now=now,
            rules=rules(stateless=stateless),
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
            pace=np.zeros(1, np.int64),
            counters=self.counters[core],
            control=self.control,
        )

    def change_engine(self, engine: Engine) -> None:
        """Go on with the frames of another engine of as many cores, while no thread runs.

        What was kept of flows stays. Nothing may be left of the engine before.
        """
        for core, worker in enumerate(self.workers):
            self.workers[core] = worker._replace(
                receive=engine.receive,
                transmit=engine.transmit,
                release=engine.release,
                engine_context=engine.context(core),
            )
        self.engine = engine

    def tell_time(self, seconds: int) -> None:
        """What handlers read as ``flows.now`` from their next batch on."""
        self.control[NOW] = seconds

    def turn(self, core: int, turns: int = 1) -> int:
        """Let one core take turns in this thread; how many packets it received or took over."""
        return work(self.workers[core], turns)

    def drain(self, choose: Callable[[int], int] | None = None) -> None:
        """Take turns until nothing is left, with an engine that never waits.

        ``choose`` gives the core whose turn it is, of so many; otherwise they take turns one after the other.
        """
        idle = 0
        count = 0
        while idle < 2 * self.cores + 1:
            core = choose(self.cores) if choose else count % self.cores
            count += 1
            if self.turn(core):
                idle = 0
            elif all(not self.turn(each) for each in range(self.cores)):
                idle += 1

    def tend(self, part: float = 1.0) -> None:
        """Look for flows that are over in a part of each table, with an engine that has nothing left."""
        places = self.flows[0].words.size // self.cores
        for core in range(self.cores):
            self.turn(core, -(-int(places * min(part, 1.0)) // SPRAYER_EXPIRY_STEP))

    def start(self) -> None:
        """Give each core a thread, and the time to all."""
        if self._threads:
            raise RuntimeError("these workers run already: stop them first")
        self.control[STOP] = 0
        self._threads = [
            threading.Thread(target=self._run, args=(core,), name=f"worker {core}")
            for core in range(self.cores)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, core: int) -> None:
        self.handled[core] = work(self.workers[core], LOCAL_TURNS)

    def go_first(self) -> None:
        """Let the threads go before all ordinary ones on their processors (SCHED_FIFO). ``OSError``."""
        for thread in self._threads:
            os.sched_setscheduler(thread.native_id or 0, os.SCHED_FIFO, os.sched_param(1))

    def tick(self) -> None:
        """Wait for ``TICK_S``, tell workers the time, unless it was given, and begin ``manage``."""
        time.sleep(TICK_S)
        if self._clock:
            self.tell_time(int(time.monotonic()) + 1)
        self._manager.begin()

    def stop(self) -> None:
        """Let each end its turn, and wait for that."""
        self.control[STOP] = 1
        for thread in self._threads:
            thread.join()
        self._threads = []
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
        """Packets that others handed over to a core, and that it did not take yet."""
        rings = (np.arange(self.cores) * self.cores + core) * LINE
        return int((self._marks[0][rings] - self._marks[1][rings]).sum())

    def statistics(self, core: int | None = None) -> Statistics:
        """What one core, or all together, did until now; others may be at it."""
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
    """The tables of all cores, as each of them sees them."""
    entry = flow_table.entry_type(list(function.entry))
    places = flow_table.places_for(1 if function.stateless else function.flows_max)
    words = np.zeros(cores * places, np.uint64)
    table = np.zeros(cores * places, flow_table.table_type(entry))
    seen = np.zeros(cores * cores * places, np.uint32)
    found = []
    for core in range(cores):
        books = np.zeros(flow_table.BOOKS, np.int64)
        books[flow_table.PENDING] = -1
        found.append(
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
                found=np.zeros(2 * SPRAYER_BATCH, np.uint8),
                journal=np.zeros(journal, np.uint64),
            )
        )
    return found
