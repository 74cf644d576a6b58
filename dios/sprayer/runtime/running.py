"""A network function between interfaces of this machine, from start to end.

For: ``run`` in programs, and ``dios nf run``. Not for: trying one without interfaces (``pcap.py``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from dios.errors import InvalidError, NotPermittedError
from dios.limits import SPRAYER_PLACES
from dios.sprayer.linux.af_packet import AfPacketEngine, between, processors
from dios.sprayer.linux.af_xdp import AfXdpEngine
from dios.sprayer.linux.engine_terms import steered
from dios.sprayer.linux.packet_socket import interface
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import CAUSES, DROP
from dios.sprayer.runtime.statistics_socket import Told, telling
from dios.sprayer.runtime.workers import Statistics, Workers, jain


def run(
    function: NetworkFunction,
    inside: str | Sequence[str],
    outside: str | Sequence[str],
    *,
    cores: int | None = None,
    steer: str = "spray",
    places: int = SPRAYER_PLACES,
    engine: str = "af_packet",
    realtime: bool = False,
    name: str = "",
    ready: Callable[[str], None] | None = None,
) -> Told:
    """Run a function between two interfaces until SIGINT or SIGTERM; what it did, as ``report`` has it.

    With several ``inside`` and ``outside``, which are pairs then, between all of them. ``cores`` is by
    default one for each processor that this process may use; ``steer`` is ``spray``, ``direct``, ``rss``,
    ``flowlet`` or ``subset:2``; ``places`` so many frames are held for each core and interface at most;
    ``engine`` is ``af_packet`` or ``af_xdp``. With ``realtime`` workers go before all else on their
    processors, which waits then while there are packets, nineteen twentieths of the time at most. ``name``
    is that for ``dios nf stats``; ``ready`` is told it once frames go through.

    It wants root, or CAP_NET_ADMIN and CAP_NET_RAW; offloads of the interfaces are off meanwhile, and are
    as they were afterwards. Raises InvalidError for what cannot be, NotPermittedError, Busy for interfaces
    or names in use, HandlerError for handlers that cannot be compiled.
    """
    pairs = _pairs(inside, outside)
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    name = name or "-".join(each for pair in pairs for each in pair)
    steered(steer)
    numbers = [interface(each).index for pair in pairs for each in pair]
    # Compiled before any interface is touched: it may take a while, and may fail.
    # What steers and what designates is one hash, so that by flows nothing crosses between cores.
    secret = secrets.randbits(64)
    workers = Workers(function, MemoryEngine([], cores), seed=secret)
    workers.turn(0, 0)
    about: Told = {
        "name": name,
        "function": type(function).__name__,
        "pid": os.getpid(),
        "steer": steer,
        "engine": engine,
        "pairs": [list(pair) for pair in pairs],
    }
    made = between(pairs, cores, how=engine, steer=steer, places=places, pin=processors(cores), secret=secret)
    with _signalled() as stopped, made as interfaces:
        workers.change_engine(interfaces)
        tell = _teller(about, workers, interfaces)
        with telling(name, tell):
            with workers:
                if realtime:
                    _go_first(workers)
                if ready:
                    ready(name)
                while not stopped.is_set():
                    workers.tick()
                    _still_there(pairs, numbers)
            return tell()


def _teller(about: Told, workers: Workers, engine: AfPacketEngine | AfXdpEngine) -> Callable[[], Told]:
    """What says what was done until now, whichever thread asks."""
    begun = time.monotonic()
    lock = threading.Lock()

    def tell() -> Told:
        with lock:
            return {**about, "seconds": round(time.monotonic() - begun, 3), **report(workers, engine)}

    return tell


def report(workers: Workers, engine: AfPacketEngine | AfXdpEngine) -> Told:
    """What each core did since the start, and all together.

    ``packets`` are what a core handled: received, and taken over, without what it handed over; ``jain`` is
    Jain's index of these over cores. ``queue`` is what waits for a core now, at interfaces and from others.
    ``dropped`` are by cause; ``no_place`` in it is a full ring of an interface.
    """
    cores: list[Told] = []
    packets: list[int] = []
    causes: dict[str, int] = {}
    for core in range(workers.cores):
        found, below = workers.statistics(core), engine.statistics(core)
        counts = found.counts
        handled = counts["received"] + counts["taken_over"] - counts["handed_over"]
        dropped = _dropped(found, workers.function)
        if below.no_place:
            dropped["no_place"] = below.no_place
        for cause, count in dropped.items():
            causes[cause] = causes.get(cause, 0) + count
        packets.append(handled)
        cores.append(
            {
                "core": core,
                "packets": handled,
                **counts,
                "dropped": dropped,
                "queue": workers.waiting(core) + engine.waiting(core),
                "flows": found.flows,
                "interfaces": asdict(below),
            }
        )
    return {
        "cores": cores,
        "packets": sum(packets),
        "dropped": causes,
        "jain": round(jain(packets), 6),
        "counters": {} if workers.function is None else workers.function.totals(),
    }


def summary(found: Statistics, function: NetworkFunction | None) -> Told:
    """What all cores did together, where there are no interfaces: counts, drops by cause, and counters."""
    return {
        "counts": found.counts,
        "dropped": _dropped(found, function),
        "flows": found.flows,
        "counters": {} if function is None else function.totals(),
    }


def _dropped(found: Statistics, function: NetworkFunction | None) -> dict[str, int]:
    """How many frames were dropped, by cause; others that are odd go on past the handlers."""
    stateless = function is None or function.stateless
    rules = {cause.name: cause.stateless if stateless else cause.stateful for cause in CAUSES}
    return {cause: count for cause, count in found.causes.items() if count and rules[cause] == DROP}


@contextlib.contextmanager
def _signalled() -> Iterator[threading.Event]:
    """An event that is set by SIGINT and SIGTERM, where this is the main thread."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda _number, _frame: stopped.set())
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pairs(inside: str | Sequence[str], outside: str | Sequence[str]) -> list[tuple[str, str]]:
    first = [inside] if isinstance(inside, str) else list(inside)
    second = [outside] if isinstance(outside, str) else list(outside)
    if len(first) != len(second):
        raise InvalidError(
            f"{len(first)} interfaces inside and {len(second)} outside: these are pairs, give as many of both"
        )
    return list(zip(first, second, strict=True))


def _go_first(workers: Workers) -> None:
    try:
        workers.go_first()
    except OSError as error:
        raise NotPermittedError(
            f"workers cannot go before all else ({error.strerror}): it wants CAP_SYS_NICE"
        ) from None


def _still_there(pairs: Sequence[tuple[str, str]], numbers: Sequence[int]) -> None:
    """InvalidError if an interface is gone, of which sockets say nothing but that there are no frames."""
    for name, number in zip((each for pair in pairs for each in pair), numbers, strict=True):
        try:
            found = socket.if_nametoindex(name)
        except OSError:
            found = 0
        if found != number:
            raise InvalidError(f"interface {name!r} is gone, or another one has its name now")
