"""Calls between nodes, in round trips: a system call on a remote object, lookups, starts of tasks.

Reads of many bytes are in ``labs.benchmarks.cluster_reads``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

import dios
from labs.benchmarks.cluster import QUIET, BenchCluster, blobs, lookup_all, processor_ns, running_cluster
from labs.benchmarks.measure import CLIENT_CPU, SERVER_CPU, clock, interleaved, median, once, pin, unpin
from labs.benchmarks.nodes import workspace
from labs.benchmarks.peers.tls_stream import echo_round_trips, ends, tls_echo
from labs.benchmarks.report import Row, Section, judge, number, times

ROUNDS = 10
CALLS = 200
ECHO_BYTES = 100
LOOKUPS = 40
STARTS = 25
THESIS_START_US = 300
_REFILL_SECONDS = 0.1
_QUIET_SECONDS = 0.02
_FIRST_LINE = b"import time; now = time.perf_counter_ns()\nprint(now)\n"


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    _round_trips(section)
    _starts(section)
    for nodes, limit in ((3, 1.5), (16, 2.0)):
        _lookups(section, nodes, limit)


# -- round trips --------------------------------------------------------------------------------------
def _round_trips(section: Section) -> None:
    """Measure with the client and its node on one processor and the other node on another, then unpinned."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(2, **QUIET))
        shown = ends(stack.enter_context(workspace()))
        node = stack.enter_context(cluster.at(0))
        (far,) = lookup_all(node, blobs(stack.enter_context(cluster.at(1)), [b"x"]))
        near = node.create(dios.SHMEM_BLOB, data=b"x", naming=dios.ANONYMOUS)
        calls: dict[str, Callable[[], object]] = {
            "stat": far.stat,
            "read of 1 B": far.read_bytes,
            "local stat": near.stat,
        }
        pinned: dict[str, float] = {}
        for pinning, server in (("pinned", SERVER_CPU), ("anywhere", None)):
            if server is None:
                unpin()
                cluster.spread()
            else:
                pin(CLIENT_CPU)
                cluster.pin([CLIENT_CPU, SERVER_CPU])
            with tls_echo(shown, server) as port:
                taken = _in_turns(calls, lambda port=port: echo_round_trips(shown, port, ECHO_BYTES, CALLS))  # type: ignore[misc]
            for name, value in taken.items():
                section.figure(f"{name}, {pinning}", value, "µs")
            pinned = pinned or taken
        _processor_time(section, cluster, far)
    stat, read, echo = pinned["stat"], pinned["read of 1 B"], pinned["bare trio TLS echo"]
    section.rows.append(
        Row(
            "DCP round trip: stat on another node, blocking client",
            f"{number(stat)} µs; read of 1 B {number(read)} µs",
            f"bare trio TLS echo {number(echo)} µs",
            f"{times(stat / echo)} the echo",
            judge("3 x the echo", stat / echo, 3),
            judge("2 x", stat / echo, 2),
            f"the same call at its own node takes {number(pinned['local stat'])} µs",
        )
    )


def _in_turns(calls: dict[str, Callable[[], object]], echo: Callable[[], list[float]]) -> dict[str, float]:
    """Return the median microseconds of each call, and of the echo, whose client has its own event loop."""
    samples: dict[str, list[float]] = {name: [] for name in (*calls, "bare trio TLS echo")}
    for _ in range(ROUNDS):
        for name, value in interleaved(calls, rounds=1, calls=CALLS).items():
            samples[name].append(value)
        samples["bare trio TLS echo"] += echo()
    return {name: median(taken) for name, taken in samples.items()}


def _processor_time(section: Section, cluster: BenchCluster, far: dios.Reference) -> None:
    """Measure the processor time of a call at each node, which does not depend on other load."""
    count = ROUNDS * CALLS
    before = [processor_ns(pid) for pid in cluster.pids()]
    for _ in range(count):
        far.stat()
    for name, pid, was in zip(("near", "far"), cluster.pids(), before, strict=True):
        section.figure(
            f"stat, processor time of the {name} node", (processor_ns(pid) - was) / count / 1e3, "µs"
        )


# -- lookups ------------------------------------------------------------------------------------------
def _lookups(section: Section, nodes: int, limit: float) -> None:
    """Look up names that are not known yet, each on another node in turn, compared with a stat there."""
    taken: dict[str, list[float]] = {
        name: [] for name in ("stat", "find", "find again", "lookup", "lookup of no name")
    }
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(nodes, **QUIET))
        node = stack.enter_context(cluster.at(0))
        section.figure(f"start of {nodes} nodes until each sees all", cluster.start_seconds, "s")
        others = [stack.enter_context(cluster.at(index)) for index in range(1, nodes)]
        per_node = 2 * LOOKUPS // len(others) + 3
        fresh = [blobs(other, [b"x"] * per_node) for other in others]
        known = [names.pop() for names in fresh]
        kept = lookup_all(node, known)
        for turn in range(LOOKUPS):
            names = fresh[turn % len(fresh)]
            first, second, nothing = names.pop(), names.pop(), os.urandom(32)
            stat = kept[turn % len(kept)].stat
            common = known[turn % len(known)]
            ways: dict[str, Callable[[], list[dios.Reference]]] = {
                "find": lambda second=second: _all([node.find(second)]),  # type: ignore[misc]
                "find again": lambda second=second: _all([node.find(second)]),  # type: ignore[misc]
                "lookup": lambda first=first: node.lookup(first),  # type: ignore[misc]
                "lookup of no name": lambda nothing=nothing: node.lookup(nothing),  # type: ignore[misc]
            }
            for way, look in ways.items():
                _settle(node, common)
                stat()
                taken["stat"].append(once(stat) * 1e6)
                _settle(node, common)
                stat()
                before = clock()
                references = look()
                taken[way].append((clock() - before) / 1e3)
                assert bool(references) == (way != "lookup of no name")
                for reference in references:
                    reference.close()
    found_us = {name: median(values) for name, values in taken.items()}
    for name, value in found_us.items():
        section.figure(f"{name}, {nodes} nodes", value, "µs")
    trip = found_us["stat"]
    ratio = found_us["find"] / trip
    section.rows.append(
        Row(
            f"remote lookup of one reference, {nodes} nodes",
            f"{number(found_us['find'])} µs; repeated {number(found_us['find again'])} µs",
            f"stat there {number(trip)} µs",
            f"{number(ratio)} round trips",
            judge(f"{number(limit)} round trips", ratio, limit),
            note=f"all objects of a name, which every node must answer: {number(found_us['lookup'] / trip)} "
            "round trips",
        )
    )


def _settle(node: dios.Node, known: bytes) -> None:
    """Wait for the last answers of a lookup at every node, and keep the connection busy.

    The lookup uses a known name, which is looked up at its node only.
    """
    time.sleep(_QUIET_SECONDS)
    for _ in range(3):
        for reference in _all([node.find(known)]):
            reference.close()


def _all(references: Sequence[dios.Reference | None]) -> list[dios.Reference]:
    return [reference for reference in references if reference is not None]


# -- starts -------------------------------------------------------------------------------------------
def _starts(section: Section) -> None:
    """Measure from the call to the first line of output, at both nodes, without pauses between calls."""
    first: dict[str, list[float]] = {"n1": [], "n2": []}
    trips: list[float] = []
    with (
        running_cluster(2, pool_size="4", measure="no") as cluster,
        cluster.at(0) as node,
        cluster.at(1) as other,
    ):
        (far,) = lookup_all(node, blobs(other, [b"x"]))
        program = node.create_program(_FIRST_LINE)
        for turn in range(STARTS + 3):
            for host, taken in first.items():
                until = time.monotonic() + _REFILL_SECONDS
                while time.monotonic() < until:
                    trips.append(once(far.stat) * 1e6)
                value = _start(node, program, host)
                if turn >= 3:
                    taken.append(value)
    here, there, trip = median(first["n1"]), median(first["n2"]), median(trips)
    section.figure("pure task at this node, call to first line", here, "µs")
    section.figure("pure task at the other node, call to first line", there, "µs")
    section.figure("stat between the starts", trip, "µs")
    more = there - here
    section.rows.append(
        Row(
            "remote start of a pure task, from the pool: call to first line",
            f"{number(there)} µs",
            f"local start {number(here)} µs; round trip {number(trip)} µs",
            f"local start and {number(more / trip)} round trips",
            judge("local start and 2 round trips", more / trip, 2),
            judge(
                "1 round trip; below 300 µs beyond the local start",
                max(more / trip, more / THESIS_START_US),
                1,
            ),
            f"{number(more)} µs beyond the local start",
        )
    )


def _start(node: dios.Node, program: dios.Reference, host: str) -> float:
    began = clock()
    task = node.run(program, host=host)
    status = task.wait(20)
    if not status.ok:
        raise RuntimeError(f"a task failed: {status.detail}")
    line = int(task.console().read_bytes())
    task.close()
    return (line - began) / 1e3
