"""Remote reads: one at a time, in vectors, pipelined; compared with Ray's second node and a bare TLS stream.

Ten readers of one large object are compared with the same readers of a node that keeps no versions. Repeated
reads of 64 KB are measured with kept versions as well, and those of 4 KB and 64 KB under leases. All other
reads are measured without them, so that each brings its bytes.

Calls without data are in ``labs.benchmarks.cluster_calls``. A MB is a million bytes, 4 KB are 4096.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from dios.limits import KIB, MIB
from dios.wire.messages import PlainCall, ReadOnce
from labs.benchmarks.cluster import (
    QUIET,
    BenchCluster,
    Pipeline,
    blobs,
    bytes_of,
    lookup_all,
    processor_ns,
    running_cluster,
)
from labs.benchmarks.measure import clock, median, once
from labs.benchmarks.nodes import workspace
from labs.benchmarks.peers.ray_cluster import RayNodes, ray_cluster
from labs.benchmarks.peers.redis_server import MissingPeerError
from labs.benchmarks.peers.tls_stream import (
    BulkClient,
    Ends,
    at_once,
    echo_round_trips,
    ends,
    tls_bulk,
    tls_echo,
)
from labs.benchmarks.report import Row, Section, judge, number, times

IN_FLIGHT = 16
SIZES = {"100 B": 100, "4 KB": 4 * KIB, "64 KB": 64 * KIB, "2 MB": 2 * MIB}
TIMES = {"100 B": 1500, "4 KB": 1500, "64 KB": 400, "2 MB": 60}
STREAM_BYTES = 128 * MIB
ROUNDS = 5
ECHO_TRIPS = 200
READERS = 10
SHARED_BYTES = 100_000_000
SHARED_ROUNDS = 3
NAN = float("nan")

Rates = dict[str, dict[str, float]]
"""MB per second, by size, then by the way to read."""


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    ours = _ours(section)
    kept, separate = _ten_readers(section, "kept"), _ten_readers(section, "not kept", remote_cache_bytes="0")
    ray, shared = _ray(section)
    for size, rates in ours.items():
        for way, value in {**rates, **ray.get(size, {})}.items():
            section.figure(f"{size}, {way}", value, "MB/s")
    _rows(section, ours, ray)
    _kept_row(section, ours["64 KB"])
    for size in ("4 KB", "64 KB"):
        _leased_row(section, size)
    _shared_row(section, kept, separate, shared)


# -- ours and bare TLS, in turns ----------------------------------------------------------------------
def _ours(section: Section) -> Rates:
    rates: Rates = {}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(2, **QUIET, remote_cache_bytes="0"))
        other = stack.enter_context(cluster.at(1))
        shown = ends(stack.enter_context(workspace()))
        port, echo_port = stack.enter_context(tls_bulk(shown)), stack.enter_context(tls_echo(shown, None))
        pipe = Pipeline(cluster.local.nodes[0].socket)
        stack.callback(pipe.node.close)
        for name, size in SIZES.items():
            contents = [os.urandom(size) for _ in range(IN_FLIGHT)]
            references = lookup_all(pipe.node, blobs(other, contents))
            calls: list[PlainCall] = [ReadOnce(reference.ref) for reference in references]
            assert [reference.read_bytes() for reference in references] == contents
            ways = _ways(pipe, calls, size, shown, port, stack)
            rates[name] = _in_turns(ways, size, TIMES[name])
            if name == "4 KB":
                _echo_row(
                    section,
                    ways["one at a time"],
                    lambda: echo_round_trips(shown, echo_port, 4 * KIB, ECHO_TRIPS),
                )
            _processor_time(section, cluster, pipe, calls, name)
            for blob in references:
                blob.delete()
    return rates


def _ways(
    pipe: Pipeline, calls: Sequence[PlainCall], size: int, shown: Ends, port: int, stack: contextlib.ExitStack
) -> dict[str, Callable[[], int]]:
    """Return the ways to read bytes; each returns the number of bytes that it has read."""
    bare = [BulkClient(shown, port, size) for _ in range(2)]
    for client in bare:
        stack.callback(client.close)
    place = 0

    def read_singly() -> int:
        nonlocal place
        place = (place + 1) % len(calls)
        return pipe.reads([calls[place]])

    def two_streams() -> int:
        at_once([lambda client=client: client.fetch(STREAM_BYTES // 2) for client in bare])  # type: ignore[misc]
        return STREAM_BYTES

    ways: dict[str, Callable[[], int]] = {
        "one at a time": read_singly,
        "vector of 16": lambda: sum(bytes_of(answer) for answer in pipe.node.vector(calls)),
        "16 pipelined": lambda: pipe.reads(calls),
        "bare TLS, one at a time": lambda: bare[0].fetch(size),
        "bare TLS, 16 asked for at once": lambda: bare[0].fetch_many(size, IN_FLIGHT),
    }
    if size >= 64 * KIB:
        ways["bare TLS, one stream"] = lambda: bare[0].fetch(STREAM_BYTES)
        ways["bare TLS, two streams"] = two_streams
    return ways


def _in_turns(ways: dict[str, Callable[[], int]], size: int, count: int) -> dict[str, float]:
    """Return the median MB per second of each way."""
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(ROUNDS + 1):
        for way, read in ways.items():
            taken: list[float] = []
            left = count * size // ROUNDS
            while left > 0:
                before = clock()
                got = read()
                taken.append(got / (clock() - before) * 1e3)
                left -= got
            if turn:
                rates[way] += taken
    return {way: median(values) for way, values in rates.items()}


def _echo_row(section: Section, read: Callable[[], int], echo: Callable[[], list[float]]) -> None:
    """Compare reads of 4 KB with round trips of as many bytes over bare TLS on trio, in turns."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(ROUNDS):
        ours += [once(read) * 1e6 for _ in range(ECHO_TRIPS)]
        bare += echo()
    own, other = median(ours), median(bare)
    section.rows.append(
        Row(
            "remote read of 4 KB, against an echo",
            f"{number(own)} µs",
            f"bare TLS echo on trio {number(other)} µs",
            f"{times(own / other)} the echo",
            judge("4 x the echo", own / other, 4, below=True),
            judge("2 x the echo", own / other, 2, below=True),
            "a read has four wake-ups, the echo two",
        )
    )


def _processor_time(
    section: Section, cluster: BenchCluster, pipe: Pipeline, calls: Sequence[PlainCall], name: str
) -> None:
    """Measure the processor time of a read at each node, which does not depend on other load."""
    for way, groups in (("one at a time", [[call] for call in calls]), ("16 pipelined", [list(calls)])):
        turns = max(1, TIMES[name] // len(calls))
        before = [processor_ns(pid) for pid in cluster.pids()]
        for _ in range(turns):
            for group in groups:
                pipe.reads(group)
        for who, pid, was in zip(("near", "far"), cluster.pids(), before, strict=True):
            spent = (processor_ns(pid) - was) / turns / len(calls) / 1e3
            section.figure(f"{name}, {way}, processor time of the {who} node", spent, "µs each")


# -- repeated reads -----------------------------------------------------------------------------------
def _kept_row(section: Section, fresh: dict[str, float]) -> None:
    """Measure repeated reads of 64 KB whose version the asking node has kept."""
    size = SIZES["64 KB"]
    with running_cluster(2, **QUIET, leases="no") as cluster, cluster.at(1) as other:
        pipe = Pipeline(cluster.local.nodes[0].socket)
        with contextlib.closing(pipe.node):
            references = lookup_all(pipe.node, blobs(other, [os.urandom(size) for _ in range(IN_FLIGHT)]))
            calls: list[PlainCall] = [ReadOnce(reference.ref) for reference in references]
            pipe.reads(calls)
            before = _received(pipe)
            read = [partial(pipe.reads, [call]) for call in calls]
            taken = [once(read[turn % IN_FLIGHT]) for turn in range(TIMES["64 KB"])]
            brought = (_received(pipe) - before) / size
    rate = size / median(taken) / 1e6
    section.figure("64 KB, kept, one at a time", rate, "MB/s")
    bare = fresh["bare TLS, one at a time"]
    section.rows.append(
        Row(
            "repeated remote read of 64 KB, version kept",
            f"{number(rate)} MB/s",
            f"with its bytes {number(fresh['one at a time'])} MB/s; bare TLS {number(bare)} MB/s",
            f"{times(rate / bare)} bare TLS",
            judge("1.2 x with its bytes", rate / fresh["one at a time"], 1.2, below=False),
            judge("0.6 of bare TLS", rate / bare, 0.6, below=False),
            f"bytes of {number(brought)} reads came in {TIMES['64 KB']} reads",
        )
    )


class RepeatedReads(NamedTuple):
    """The median microseconds of a repeated read, and the processor time of both nodes for it."""

    taken_us: float
    spent_us: float


def _leased_row(section: Section, name: str) -> None:
    """Compare repeated reads under leases with those that the object's node confirms."""
    found_with = {leases: _repeated(SIZES[name], leases) for leases in ("no", "yes")}
    without, under = found_with["no"], found_with["yes"]
    for leases, reads in found_with.items():
        section.figure(f"{name}, repeated, leases {leases}", reads.taken_us, "µs")
        section.figure(f"{name}, repeated, leases {leases}, processor time", reads.spent_us, "µs each")
    section.rows.append(
        Row(
            f"repeated remote read of {name}, under a lease",
            f"{number(under.taken_us)} µs",
            f"without leases {number(without.taken_us)} µs",
            f"{times(under.taken_us / without.taken_us)} the time",
            judge("0.5 x the time", under.taken_us / without.taken_us, 0.5, below=True),
            judge("0.4 x the time", under.taken_us / without.taken_us, 0.4, below=True),
            f"processor time {number(under.spent_us)} and {number(without.spent_us)} µs",
        )
    )


def _repeated(size: int, leases: str) -> RepeatedReads:
    with running_cluster(2, **QUIET, leases=leases) as cluster, cluster.at(1) as other:
        pipe = Pipeline(cluster.local.nodes[0].socket)
        with contextlib.closing(pipe.node):
            calls: list[PlainCall] = [
                ReadOnce(reference.ref)
                for reference in lookup_all(pipe.node, blobs(other, [os.urandom(size)]))
            ]
            for _ in range(3):
                pipe.reads(calls)
            before = [processor_ns(pid) for pid in cluster.pids()]
            taken = [once(partial(pipe.reads, calls)) for _ in range(TIMES["4 KB"])]
            spent = sum(processor_ns(pid) - was for pid, was in zip(cluster.pids(), before, strict=True))
    return RepeatedReads(median(taken) * 1e6, spent / TIMES["4 KB"] / 1e3)


# -- ten readers of one object ------------------------------------------------------------------------
class SharedReads(NamedTuple):
    """The seconds and the received bytes of ten reads of one object: all at once, or one after another."""

    at_once_s: float
    in_turn_s: float
    at_once_bytes: float
    in_turn_bytes: float


def _ten_readers(section: Section, way: str, **settings: str) -> SharedReads:
    """Measure ten connections of one node that read a large object of the other, a fresh one each time."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    received: dict[bool, list[float]] = {False: [], True: []}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(2, **QUIET, **settings))
        other = stack.enter_context(cluster.at(1))
        pipes = [Pipeline(cluster.local.nodes[0].socket) for _ in range(READERS)]
        for pipe in pipes:
            stack.callback(pipe.node.close)
        for _ in range(SHARED_ROUNDS):
            for together in (True, False):
                names = blobs(other, [os.urandom(SHARED_BYTES)])
                references = [lookup_all(pipe.node, names)[0] for pipe in pipes]
                reads = [
                    partial(pipe.reads, [ReadOnce(reference.ref)])
                    for pipe, reference in zip(pipes, references, strict=True)
                ]
                before = _received(pipes[0])
                seconds[together].append(once(partial(_read_all, reads, together=together)))
                received[together].append(_received(pipes[0]) - before)
                references[0].delete()
    shared = SharedReads(
        median(seconds[True]), median(seconds[False]), median(received[True]), median(received[False])
    )
    for name, value, unit in zip(shared._fields, shared, ("s", "s", "bytes", "bytes"), strict=True):
        section.figure(
            f"{READERS} reads of 100 MB, {way}, {name.rsplit('_', 1)[0].replace('_', ' ')}", value, unit
        )
    return shared


def _read_all(reads: Sequence[Callable[[], int]], *, together: bool) -> None:
    with ThreadPoolExecutor(READERS if together else 1) as threads:
        assert list(threads.map(lambda read: read(), reads)) == [SHARED_BYTES] * READERS


def _received(pipe: Pipeline) -> int:
    return pipe.node.info().counts["peer_bytes_received"]


def _shared_row(section: Section, kept: SharedReads, separate: SharedReads, ray_s: float) -> None:
    transfers = max(kept.at_once_bytes, kept.in_turn_bytes) / SHARED_BYTES
    section.rows.append(
        Row(
            f"{READERS} readers of one node, one object of 100 MB of another node",
            f"{number(kept.at_once_s * 1e3)} ms at once, {number(kept.in_turn_s * 1e3)} ms in turn; "
            f"{number(transfers)} x 100 MB received",
            f"each with its own transfer: {number(separate.at_once_s * 1e3)} ms at once, "
            f"{number(separate.in_turn_s * 1e3)} ms in turn; "
            f"{number(separate.at_once_bytes / SHARED_BYTES)} x 100 MB received; "
            f"Ray {number(ray_s * 1e3)} ms at once",
            f"{times(separate.at_once_s / kept.at_once_s)} at once, "
            f"{times(separate.in_turn_s / kept.in_turn_s)} in turn",
            judge("1.1 transfers", transfers, 1.1, below=True),
            judge("5 x separate transfers", separate.at_once_s / kept.at_once_s, 5, below=False),
        )
    )


# -- Ray ----------------------------------------------------------------------------------------------
def _ray(section: Section) -> tuple[Rates, float]:
    rates: Rates = {}
    shared = NAN
    try:
        with ray_cluster() as nodes:
            section.figure("start of two Ray nodes", nodes.start_seconds, "s")
            for name, count in (("4 KB", 96), ("64 KB", 96), ("2 MB", 32)):
                rates[name] = _ray_rates(nodes, SIZES[name], count)
            shared = _ray_readers(nodes)
            section.figure(f"{READERS} reads of 100 MB, Ray, at once", shared, "s")
    except MissingPeerError as missing:
        section.trouble.append(str(missing))
    return rates, shared


def _ray_readers(nodes: RayNodes) -> float:
    """Return the seconds of ten processes of one node that read the same array of the other at once."""
    readers = nodes.readers(READERS)
    nodes.read_all(readers, *nodes.fresh(MIB, 1, array=True))
    taken: list[float] = []
    for _ in range(SHARED_ROUNDS):
        (reference,) = nodes.fresh(SHARED_BYTES, 1, array=True)
        taken.append(once(partial(nodes.read_all, readers, reference)))
    return median(taken)


def _ray_rates(nodes: RayNodes, size: int, count: int) -> dict[str, float]:
    array = size >= MIB
    ray = nodes.ray
    for reference in nodes.fresh(size, 4, array=array):
        ray.get(reference)
    alone = [once(lambda ref=far: ray.get(ref)) for far in nodes.fresh(size, count, array=array)]  # type: ignore[misc]
    together: list[float] = []
    for _ in range(max(2, count // IN_FLIGHT)):
        fresh = nodes.fresh(size, IN_FLIGHT, array=array)
        together.append(once(lambda fresh=fresh: ray.get(fresh)) / IN_FLIGHT)  # type: ignore[misc]
    return {
        "Ray, one at a time": size / median(alone) / 1e6,
        "Ray, 16 at once": size / median(together) / 1e6,
    }


# -- the result ---------------------------------------------------------------------------------------
def _rows(section: Section, ours: Rates, ray: Rates) -> None:
    mine, theirs = ours["4 KB"], ray.get("4 KB", {})
    alone, together = theirs.get("Ray, one at a time", NAN), theirs.get("Ray, 16 at once", NAN)
    single, flying = mine["one at a time"], min(mine["vector of 16"], mine["16 pipelined"])
    section.rows += [
        Row(
            "remote read of 4 KB, one at a time",
            f"{number(4096 / single)} µs, {number(single)} MB/s",
            f"Ray {number(4096 / alone)} µs, {number(alone)} MB/s",
            f"{times(single / alone)} Ray",
            judge("10 x Ray", single / alone, 10, below=False),
            judge("25 x Ray", single / alone, 25, below=False),
            f"a bare TLS stream, one thread at each end: {number(mine['bare TLS, one at a time'])} MB/s",
        ),
        Row(
            "remote read of 4 KB, 16 in flight",
            f"{number(mine['vector of 16'])} MB/s in vectors, {number(mine['16 pipelined'])} pipelined",
            f"Ray {number(together)} MB/s",
            f"{times(flying / together)} Ray (the slower of ours)",
            judge("10 x Ray", flying / together, 10, below=False),
            judge("20 x Ray", flying / together, 20, below=False),
        ),
    ]
    for name, least, wanted in (("64 KB", 8.0, 0.6), ("2 MB", 1.2, 0.9)):
        rates, peer = ours[name], ray.get(name, {}).get("Ray, one at a time", NAN)
        rate, bare = rates["one at a time"], rates["bare TLS, one at a time"]
        section.rows.append(
            Row(
                f"remote read of {name}, one at a time",
                f"{number(rate)} MB/s",
                f"Ray {number(peer)} MB/s; bare TLS {number(bare)} MB/s, "
                f"{number(rates['bare TLS, one stream'])} in one request",
                f"{times(rate / peer)} Ray, {times(rate / bare)} bare TLS",
                judge(f"{number(least)} x Ray", rate / peer, least, below=False),
                judge(f"{number(wanted)} of bare TLS", rate / bare, wanted, below=False),
                f"16 in flight: {number(rates['16 pipelined'])} MB/s; bare TLS on two streams "
                f"{number(rates['bare TLS, two streams'])} MB/s",
            )
        )
