"""Running a network function between interfaces of this machine.

It is used by programs through ``run`` and by ``dios nf run``. To try a function without interfaces, use
``dios.sprayer.pcap``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Final

from dios.errors import Conflict, DiosError, InvalidError, NotPermittedError
from dios.limits import SPRAYER_PLACES
from dios.sprayer.linux.af_packet import AfPacketEngine, open_engine, processors
from dios.sprayer.linux.af_xdp import AfXdpEngine
from dios.sprayer.linux.engine_options import AUTO, parse_steering
from dios.sprayer.linux.packet_socket import interface
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import CAUSES, DROP
from dios.sprayer.runtime.auto_steering import AutoSteering, steering_automatically
from dios.sprayer.runtime.reports import (
    CoreReport,
    CoresReport,
    FunctionReport,
    ReplayReport,
    RunningReport,
)
from dios.sprayer.runtime.shared_state import SharedState
from dios.sprayer.runtime.statistics_socket import serve_statistics
from dios.sprayer.runtime.workers import Statistics, Workers, jain

_log: Final = logging.getLogger(__name__)


def run(
    function: NetworkFunction,
    inside: str | Sequence[str],
    outside: str | Sequence[str],
    *,
    cores: int | None = None,
    steer: str = AUTO,
    places: int = SPRAYER_PLACES,
    engine: str = "af_packet",
    realtime: bool = False,
    name: str = "",
    shared: SharedState | None = None,
    ready: Callable[[str], None] | None = None,
) -> RunningReport:
    """Run a function between two interfaces until SIGINT or SIGTERM; return its ``report``.

    ``inside`` and ``outside`` can have several interfaces each, which form pairs. ``cores`` is by default the
    number of processors that this process may use; ``steer`` is ``auto``, ``spray``, ``direct``, ``rss``,
    ``flowlet`` or ``subset:2``; ``places`` is the maximum number of frames for each core and interface;
    ``engine`` is ``af_packet`` or ``af_xdp``. With ``realtime`` workers have priority over all other threads
    on their processors, for at most nineteen twentieths of the time. ``name`` is the name for
    ``dios nf stats``; ``ready`` is called with it when frames are processed. With ``shared`` the function
    waits until this host owns it, and continues the flows of the host before it.

    It needs root, or CAP_NET_ADMIN and CAP_NET_RAW. Offloads of the interfaces are switched off and restored
    at the end. Raises InvalidError for invalid arguments, NotPermittedError, Busy for interfaces or names in
    use, HandlerError for handlers that cannot be compiled, and Conflict if another host took over.
    """
    pairs = _pairs(inside, outside)
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    name = name or "-".join(port for pair in pairs for port in pair)
    parse_steering(steer)
    numbers = [interface(port).index for pair in pairs for port in pair]
    # Compiled before any interface is changed, because it may take long and may fail.
    # Steering and designated cores use one hash, so frames that are steered by flow need no handover.
    secret = secrets.randbits(64)
    if shared is not None:
        shared.check(function, cores)
    workers = Workers(function, MemoryEngine([], cores), seed=secret)
    workers.turn(0, 0)
    about: FunctionReport = {
        "name": name,
        "function": type(function).__name__,
        "pid": os.getpid(),
        "steer": steer,
        "engine": engine,
        "pairs": [list(pair) for pair in pairs],
    }
    with _stop_on_signal() as stopped:
        if shared is not None and not shared.wait_for_turn(stopped):
            return {
                **about,
                "seconds": 0.0,
                "cores": [],
                "packets": 0,
                "dropped": {},
                "jain": 1.0,
                "counters": {},
                "alerts": [],
            }
        if shared is not None:
            secret = shared.settle(function, cores, secret)
            workers.seed[0] = secret
        opened = open_engine(
            pairs,
            cores,
            how=engine,
            steer=steer,
            places=places,
            pin=processors(cores),
            secret=secret,
            quic_ports=function.quic_ports,
        )
        with opened as interfaces:
            workers.change_engine(interfaces)
            choices: list[AutoSteering] = []
            get_statistics = _statistics_reader(about, workers, interfaces, choices)
            with serve_statistics(name, get_statistics), _sharing(shared, workers, stopped):
                with workers, contextlib.ExitStack() as stack:
                    if steer == AUTO:
                        choices.append(stack.enter_context(steering_automatically(workers, interfaces)))
                    if realtime:
                        _use_realtime_priority(workers)
                    if ready:
                        ready(name)
                    while not stopped.is_set():
                        workers.tick()
                        _check_interfaces(pairs, numbers)
                return get_statistics()


@contextlib.contextmanager
def _sharing(shared: SharedState | None, workers: Workers, stopped: threading.Event) -> Iterator[None]:
    """Continue the flows of the former owner, and write them for the next; the workers stop within.

    Raises Conflict at the end if another host took the function over.
    """
    if shared is None:
        yield
        return
    count = shared.take_over(workers)
    if count:
        _log.info("continuing with %d flows of another host", count)
    ended, lost = threading.Event(), threading.Event()

    def stop() -> None:
        lost.set()
        stopped.set()

    thread = threading.Thread(target=shared.keep, args=(workers, ended, stop), name="sharing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if not lost.is_set():
            with contextlib.suppress(DiosError):
                shared.write_changes(workers)
                shared.release()
    if lost.is_set():
        raise Conflict(
            f"{shared.host} stopped: another host took the function over, or the shared state could not be "
            "written in time. Start it again to wait for its turn"
        )


def _statistics_reader(
    about: FunctionReport,
    workers: Workers,
    engine: AfPacketEngine | AfXdpEngine,
    choices: Sequence[AutoSteering],
) -> Callable[[], RunningReport]:
    """Return a function that returns the current statistics; it may be called from any thread."""
    begun = time.monotonic()
    lock = threading.Lock()

    def get_statistics() -> RunningReport:
        with lock:
            if choices:
                about["steer"], about["why"] = f"{AUTO}: {choices[0].steer}", choices[0].why
            return {**about, "seconds": round(time.monotonic() - begun, 3), **report(workers, engine)}

    return get_statistics


def report(workers: Workers, engine: AfPacketEngine | AfXdpEngine) -> CoresReport:
    """Return the statistics of each core and of all cores together.

    ``packets`` is the number of packets that a core handled: received and taken over, without those handed
    over. ``jain`` is Jain's index of these numbers over the cores. ``queue`` is the number of packets that
    wait for a core now, at interfaces and from other cores. ``dropped`` is by cause; its ``no_place`` counts
    frames that found the ring of an interface full, its ``cut`` frames that were longer than a place there.
    """
    cores: list[CoreReport] = []
    packets: list[int] = []
    causes: dict[str, int] = {}
    for core in range(workers.cores):
        statistics, below = workers.statistics(core), engine.statistics(core)
        counts = statistics.counts
        handled = counts["received"] + counts["taken_over"] - counts["handed_over"]
        dropped = _dropped(statistics, workers.function)
        for cause, count in (("no_place", below.no_place), ("cut", below.cut)):
            if count:
                dropped[cause] = count
        for cause, count in dropped.items():
            causes[cause] = causes.get(cause, 0) + count
        packets.append(handled)
        cores.append(
            {
                "core": core,
                "packets": handled,
                "received": counts["received"],
                "sent": counts["sent"],
                "connection_packets": counts["connection_packets"],
                "regular_packets": counts["regular_packets"],
                "handed_over": counts["handed_over"],
                "taken_over": counts["taken_over"],
                "deepest": counts["deepest"],
                "turns": counts["turns"],
                "idle_turns": counts["idle_turns"],
                "bytes": counts["bytes"],
                "dropped": dropped,
                "queue": workers.waiting(core) + engine.waiting(core),
                "flows": statistics.flows,
                "interfaces": asdict(below),
            }
        )
    return {
        "cores": cores,
        "packets": sum(packets),
        "dropped": causes,
        "jain": round(jain(packets), 6),
        "counters": {} if workers.function is None else workers.function.totals(),
        "alerts": [] if workers.function is None else workers.function.recent_alerts(),
    }


def summary(statistics: Statistics, function: NetworkFunction | None) -> ReplayReport:
    """Return the statistics of all cores for an engine without interfaces: counts, drops and counters."""
    return {
        "counts": statistics.counts,
        "dropped": _dropped(statistics, function),
        "flows": statistics.flows,
        "counters": {} if function is None else function.totals(),
        "alerts": [] if function is None else function.recent_alerts(),
    }


def _dropped(statistics: Statistics, function: NetworkFunction | None) -> dict[str, int]:
    """Return the number of dropped frames by cause, without causes whose frames pass the handlers by."""
    stateless = function is None or function.stateless
    rules = {cause.name: cause.stateless if stateless else cause.stateful for cause in CAUSES}
    return {cause: count for cause, count in statistics.causes.items() if count and rules[cause] == DROP}


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Return an event that SIGINT and SIGTERM set, if this is the main thread."""
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
            f"{len(first)} interfaces inside and {len(second)} outside: they form pairs, so give equally many"
        )
    return list(zip(first, second, strict=True))


def _use_realtime_priority(workers: Workers) -> None:
    try:
        workers.use_realtime_priority()
    except OSError as error:
        raise NotPermittedError(
            f"cannot give workers realtime priority ({error.strerror}): it needs CAP_SYS_NICE"
        ) from None


def _check_interfaces(pairs: Sequence[tuple[str, str]], numbers: Sequence[int]) -> None:
    """Raise InvalidError if an interface is gone; its sockets only report that there are no frames."""
    for name, number in zip((port for pair in pairs for port in pair), numbers, strict=True):
        try:
            index = socket.if_nametoindex(name)
        except OSError:
            index = 0
        if index != number:
            raise InvalidError(f"interface {name!r} was removed or replaced; start the function again")
