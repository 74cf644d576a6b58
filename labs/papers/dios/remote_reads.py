"""Reads of another node's object by size (Figure 5.4), and calls and lookups by number of nodes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import dios
from labs.papers.dios.clusters import Nodes, home_of, known, running_nodes
from labs.papers.dios.messages import connected
from labs.papers.dios.redis_peer import REDIS, RedisServer, redis_if_present, redis_note
from labs.papers.dios.runs import TIME_COLUMNS, DiosRuns, microseconds, size_text, time_cells
from labs.papers.dios.senders import LENGTH
from labs.papers.figures import Figure, FigureTable, PublishedClaim
from labs.papers.judgements import OURS, about, judged
from labs.plotting import Lines

_AT_REDIS: Final = "GET of a new name at Redis"
TWO, ONE, BARE = "two round trips, as published", "one round trip", "bare TCP"
_KEY: Final = "object"
_BYTES_MAX: Final = 200_000_000
_PUBLISHED_MBIT_S: Final = {4 << 10: 16.0, 2 << 20: 3300.0}


def figure_4(runs: DiosRuns) -> Figure:
    """Return Figure 5.4: the throughput of reads of a remote object, one after the other, by size."""
    scope = runs.scope
    with ExitStack() as stack:
        redis = stack.enter_context(redis_if_present())
        measured = (TWO, ONE, BARE) if redis is None else (TWO, ONE, BARE, REDIS)
        taken: dict[str, dict[int, list[float]]] = {way: {} for way in measured}
        # Kept copies would answer all reads but the first.
        nodes = stack.enter_context(
            running_nodes(2, coordinator="off", pool_size="0", remote_cache_bytes="0")
        )
        node, other = (stack.enter_context(nodes.connect(at)) for at in range(2))
        fetch = _bare(stack)
        for size in scope.read_sizes:
            runs.progress(f"5.4: {size_text(size)}")
            data = os.urandom(size)
            far = _far(node, other, data)
            count = max(5, min(scope.reads, _BYTES_MAX // size))
            ways: dict[str, Callable[[], object]] = {
                TWO: lambda far=far: _read(far),  # type: ignore[misc]
                ONE: far.read_bytes,
                BARE: lambda size=size: fetch(size),  # type: ignore[misc]
            }
            if redis is not None:
                redis.client.set(_KEY, data)
                ways[REDIS] = partial(redis.client.get, _KEY)
            for way, work in ways.items():
                work()
                taken[way][size] = microseconds(work, count)
            far.close()
    sizes = scope.read_sizes
    rates = {
        way: [8 * size / statistics.median(spans[size]) for size in sizes] for way, spans in taken.items()
    }
    rows = [
        (size_text(size), way, rates[way][at], *time_cells(taken[way][size]))
        for at, size in enumerate(sizes)
        for way in taken
    ]
    return runs.figure(
        "5.4",
        "Figure 5.4: reads of a remote object, one at a time, by size",
        (
            FigureTable(
                "Megabits per second at the median, and microseconds of a read",
                ("size", "way", "Mbit/s", *TIME_COLUMNS),
                rows,
            ),
        ),
        _read_claims(taken[TWO], dict(zip(sizes, rates[TWO], strict=True)), rates),
        (
            Lines(
                "5.4",
                "Reads of a remote object, one at a time",
                "bytes of a read",
                "Mbit/s",
                {way: (sizes, speeds) for way, speeds in rates.items()},
                log_x=True,
            ),
        ),
        (
            *nodes.notes,
            (
                "Two nodes on one machine, connected by TCP with TLS 1.3 over its loopback; the thesis has a "
                "network of 10 Gbit/s, without encryption. The bare peer has neither TLS nor rights."
            ),
            (
                "The object is a blob; the thesis reads a stream. Its acquire and commit are two calls, as "
                "in the first way. The second way is the compound call that it proposes (section 5.2.3)."
            ),
            (
                "Redis has neither TLS nor rights here, and its socket is a Unix socket. Ray's reads of "
                "another node and bare TLS are not measured here, but in the benchmark `cluster_reads`."
            ),
            *redis_note(),
        ),
    )


def _far(node: dios.Node, other: dios.Node, data: bytes) -> dios.Reference:
    """Return a reference at ``node`` to a new object of ``other``."""
    created = other.create(dios.SHMEM_BLOB, data=data, groups=[home_of(other)])
    (reference,) = node.lookup(known(created.name))
    return reference


def _read(reference: dios.Reference) -> int:
    """Acquire and commit, as two calls; return the number of bytes."""
    with reference.read() as request:
        size = len(bytes(request.view))
        request.commit()
    return size


def _bare(stack: ExitStack) -> Callable[[int], int]:
    """Return a function that asks another process for a number of bytes over TCP and reads them."""
    near, far = connected()
    stack.callback(near.close)
    command = [sys.executable, "-m", "labs.papers.dios.senders", "answer", str(far.fileno()), "0", "0", "0"]
    process = subprocess.Popen(command, pass_fds=(far.fileno(),))
    far.close()
    stack.callback(process.wait)
    stack.callback(near.close)
    file = near.makefile("rb")
    stack.callback(file.close)

    def fetch(size: int) -> int:
        near.sendall(LENGTH.pack(size))
        return len(file.read(size))

    return fetch


def _read_claims(
    taken: dict[int, list[float]], rates: dict[int, float], all_rates: dict[str, list[float]]
) -> list[PublishedClaim]:
    sizes = sorted(taken)
    request = statistics.median(taken[sizes[0]])
    claims = [
        PublishedClaim(
            "section 5.2.3, Figure 5.4",
            f"time of a request of {size_text(sizes[0])}",
            "300 to 400 µs",
            f"{request:.0f} µs",
            judged(request, 300, 400, none=float("inf")),
        )
    ]
    claims += [
        PublishedClaim(
            "section 5.2.3",
            f"throughput of reads of {size_text(size)}",
            f"about {_PUBLISHED_MBIT_S[size]:,.0f} Mbit/s",
            f"{rates[size]:,.0f} Mbit/s",
            judged(rates[size], *about(_PUBLISHED_MBIT_S[size]), none=0.0),
        )
        for size in sizes
        if size in _PUBLISHED_MBIT_S
    ]
    growth = rates[sizes[-1]] / rates[sizes[0]]
    saved = statistics.median(
        single / other for single, other in zip(all_rates[ONE], all_rates[TWO], strict=True)
    )
    claims += [
        PublishedClaim(
            "section 5.2.3",
            f"throughput at {size_text(sizes[-1])} compared with {size_text(sizes[0])}",
            "about 200 x",
            f"{growth:.0f} x",
            judged(growth, 180, 230, none=1.0),
        ),
        PublishedClaim(
            "section 5.2.3",
            "one round trip compared with two, throughput, median of sizes",
            "round trips can be halved",
            f"{saved:.2f} x",
            judged(saved, 1, 2, none=1.0),
        ),
    ]
    if REDIS in all_rates:
        over = [own / other for own, other in zip(all_rates[ONE], all_rates[REDIS], strict=True)]
        claims.append(
            PublishedClaim(
                "today",
                "one round trip compared with a GET of Redis, throughput",
                "",
                f"from {min(over):.2f} x to {max(over):.2f} x",
                OURS,
            )
        )
    return claims


def figure_nodes(runs: DiosRuns) -> Figure:
    """Return the time of remote calls and lookups by number of nodes, which the thesis does not measure."""
    by_count: dict[int, dict[str, list[float]]] = {}
    notes: tuple[str, ...] = ()
    for count in runs.scope.nodes:
        runs.progress(f"nodes: {count}")
        with running_nodes(count, coordinator="off", pool_size="0") as nodes, redis_if_present() as redis:
            by_count[count] = _by_nodes(nodes, count, runs.scope.lookups, redis)
            notes = nodes.notes
    ways = tuple(next(iter(by_count.values())))
    rows = [(count, way, *time_cells(by_count[count][way])) for count in by_count for way in ways]
    counts = tuple(by_count)
    middle = {way: [statistics.median(by_count[count][way]) for count in counts] for way in ways}
    few, many = counts[0], counts[-1]
    claims = [
        PublishedClaim(
            "today",
            f"{way}: {many} nodes compared with {few}",
            "",
            f"{middle[way][-1] / middle[way][0]:.2f} x",
            OURS,
        )
        for way in ways
        if way != _AT_REDIS
    ]
    return runs.figure(
        "nodes",
        "Remote calls and lookups, by number of nodes",
        (FigureTable("Microseconds", ("nodes", "call", *TIME_COLUMNS), rows),),
        claims,
        (
            Lines(
                "nodes",
                "Remote calls and lookups, median",
                "nodes",
                "microseconds",
                {way: (counts, middle[way]) for way in ways},
            ),
        ),
        (
            *notes,
            (
                f"All nodes share the {runs.processors} processors of this machine and answer a "
                "question in turns. On machines of their own they answer at the same time."
            ),
            (
                "Redis is one server that has all names, whatever the number of nodes, and checks no rights. "
                "Stores of names on several machines, such as etcd, are not measured."
            ),
            *redis_note(),
        ),
    )


def _by_nodes(nodes: Nodes, count: int, lookups: int, redis: RedisServer | None) -> dict[str, list[float]]:
    """Return the microseconds of calls to other nodes in turn; each lookup has a new name."""
    stat, find, lookup, nothing = "stat", "find of a new name", "lookup of all replicas", "lookup of no name"
    calls = (stat, find, lookup, nothing) if redis is None else (stat, find, lookup, nothing, _AT_REDIS)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    with ExitStack() as stack:
        node = stack.enter_context(nodes.connect(0))
        others = [stack.enter_context(nodes.connect(at)) for at in range(1, count)]
        for turn in range(lookups + 1):
            other = others[turn % len(others)]
            home = home_of(other)
            first, second = (
                known(other.create(dios.SHMEM_BLOB, data=b"x", groups=[home]).name) for _ in range(2)
            )
            unknown = os.urandom(32)
            handles: list[dios.Reference] = []

            def keep(references: list[dios.Reference], handles: list[dios.Reference] = handles) -> None:
                handles += references

            ways: dict[str, Callable[[], object]] = {
                find: lambda name=first, keep=keep: keep(node.lookup(name, limit=1)),  # type: ignore[misc]
                lookup: lambda name=second, keep=keep: keep(node.lookup(name)),  # type: ignore[misc]
                nothing: lambda name=unknown: node.lookup(name),  # type: ignore[misc]
            }
            if redis is not None:
                redis.client.set(first.hex(), b"x")
                ways[_AT_REDIS] = partial(redis.client.get, first.hex())
            for way, work in ways.items():
                value = microseconds(work, 1)[0]
                if turn:
                    taken[way].append(value)
            values = microseconds(handles[0].stat, 5)
            if turn:
                taken[stat] += values
            for handle in handles:
                handle.close()
    return taken
