"""Processor time of a node for a call, and calls in a second, when many clients call at once.

Each client is a process with one call under way. Redis serves the same number of clients in the same run.
``BENCH_CLIENTS=1,8,64,256`` measures other numbers of clients.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import dios
from labs.benchmarks.large_stores import exponent, node_run_us
from labs.benchmarks.measure import clock, forked
from labs.benchmarks.nodes import running_node, workspace
from labs.benchmarks.peers.redis_server import MissingPeerError, another_client, redis_client
from labs.benchmarks.report import Row, Section, judge, number

CLIENTS: Final = tuple(int(text) for text in os.environ.get("BENCH_CLIENTS", "1,8,64").split(","))
CALLS: Final = 6400
"""Of all clients together."""
_PAYLOAD: Final = bytes(100)
_GOALS: Final = {"stat": 12.0, "read by a call": 15.0, "create": 40.0, "durable create": 60.0}
"""The most microseconds of the node's processor for each call."""
_PEERS: Final = {"stat": "get", "read by a call": "get", "create": "set", "durable create": "set"}

Made = Callable[[], Callable[[], object]]
"""Connects in a client, and returns its call."""


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(running_node())
        spent: Callable[[], float] = partial(node_run_us, bench.pid)
        ours = _all(section, "", {name: partial(_dios, bench.data, name) for name in _GOALS}, spent)
    theirs: dict[str, dict[int, tuple[float, float]]] = {}
    try:
        with workspace() as folder, redis_client(folder, None) as redis:
            redis.set("key", _PAYLOAD)
            calls = {name: partial(_redis, folder, name) for name in ("get", "set")}
            theirs = _all(section, "redis ", calls, lambda: _redis_us(redis.info("cpu")))
    except MissingPeerError as missing:
        section.trouble.append(str(missing))
    for name, by_count in ours.items():
        _row(section, name, by_count, theirs.get(_PEERS[name], {}))


def _row(
    section: Section,
    name: str,
    ours: Mapping[int, tuple[float, float]],
    theirs: Mapping[int, tuple[float, float]],
) -> None:
    most = max(ours)
    costs = {count: cost for count, (cost, _) in ours.items()}
    cost, rate = ours[most]
    slope = section.figure(f"{name}, processor of the node over n clients: exponent", exponent(costs), "")
    peer = "clients: µs: " + ", ".join(f"{count:,}: {number(cost_us)}" for count, cost_us in costs.items())
    if most in theirs:
        spent, others = theirs[most]
        peer += f"; Redis {_PEERS[name].upper()} {number(spent)} µs, {number(others)} /s"
    section.rows.append(
        Row(
            f"{name} by {most:,} clients: processor of the node for each",
            f"{number(cost)} µs, {number(rate)} /s",
            peer,
            f"n^{number(slope)}",
            judge(f"{number(_GOALS[name])} µs", cost, _GOALS[name]),
        )
    )


def _all(
    section: Section, prefix: str, calls: Mapping[str, Made], spent: Callable[[], float]
) -> dict[str, dict[int, tuple[float, float]]]:
    """Return, by call and number of clients, what ``_burst`` returns."""
    bursts: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in calls}
    for count in CLIENTS:
        for name, maker in calls.items():
            cost, rate = bursts[name][count] = _burst(count, maker, spent)
            section.figure(f"{prefix}{name}, {count:,} clients: processor of the server", cost, "µs")
            section.figure(f"{prefix}{name}, {count:,} clients", rate, "/s")
    return bursts


def _burst(count: int, maker: Made, spent: Callable[[], float]) -> tuple[float, float]:
    """Let clients call at once; return the server's microseconds for a call, and the calls in a second."""
    said, say = os.pipe()
    waiting, go = os.pipe()
    per_client = max(CALLS // count, 1)

    def client() -> None:
        os.close(go)
        call = maker()
        os.write(say, b".")
        os.read(waiting, 1)
        for _ in range(per_client):
            call()
        os.write(say, b".")
        signal.pause()

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, said)
        for _ in range(count):
            stack.enter_context(forked(client))
        os.close(say)
        os.close(waiting)
        try:
            _await(said, count)
            before, began = spent(), clock()
        finally:
            os.close(go)
        _await(said, count)
        taken = clock() - began
        return (spent() - before) / (count * per_client), count * per_client * 1e9 / taken


def _await(said: int, count: int) -> None:
    """Wait for a byte of each client."""
    while count:
        got = len(os.read(said, count))
        if not got:
            raise RuntimeError("the clients ended before they had made their calls")
        count -= got


# -- the calls ----------------------------------------------------------------------------------------
def _dios(data: Path, name: str) -> Callable[[], object]:
    node = dios.connect(data, groups=[])
    references: list[dios.Reference] = []
    if name == "create":
        return lambda: references.append(node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=_PAYLOAD))
    if name == "durable create":
        group = node.create_group()
        return lambda: references.append(node.create(dios.DURABLE_BLOB, groups=[group], data=_PAYLOAD))
    blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=_PAYLOAD)
    # A read with EXCL always asks the node; one with ANY repeats what this process has.
    return blob.stat if name == "stat" else lambda: blob.read_bytes(semantics=dios.EXCL)


def _redis(folder: Path, name: str) -> Callable[[], object]:
    client = another_client(folder)
    return (lambda: client.get("key")) if name == "get" else (lambda: client.set("key", _PAYLOAD))


def _redis_us(cpu: Mapping[str, float]) -> float:
    return (cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6
