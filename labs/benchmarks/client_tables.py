"""Costs of a client against the streams of a select call, and against the names of a keyring.

An exponent is the slope of a line through the logarithms of number and cost: 0 is flat, 1 is linear.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import dios
from dios.client.keyring import Keyring
from dios.ids import Name
from labs.benchmarks.large_stores import exponent, node_run_us
from labs.benchmarks.nodes import BenchNode, running_node, workspace
from labs.benchmarks.report import Row, Section, judge, number

STREAMS: Final = (10, 100, 1000)
NAMES: Final = (100, 1000, 10_000)
_CALLS: Final = 50


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    with running_node() as bench:
        _select(section, bench)
    with workspace() as folder:
        _keyring(section, folder)


def _select(section: Section, bench: BenchNode) -> None:
    client: dict[int, float] = {}
    daemon: dict[int, float] = {}
    with dios.connect(bench.data, groups=[]) as node:
        streams = [node.create(dios.SHMEM_STREAM) for _ in range(max(STREAMS))]
        node.select(streams, timeout=0)
        for count in STREAMS:
            some = streams[:count]
            before = node_run_us(bench.pid)
            # A wait that ends at once: every stream is checked, announced, and checked again.
            client[count] = _processor_us(partial(node.select, some, timeout=0.0001)) / 1e3
            daemon[count] = (node_run_us(bench.pid) - before) / _CALLS / 1e3
    _row(section, "select that waits, over n streams: processor of the client", client, "0.5 ms", 0.5)
    _row(section, "select that waits, over n streams: processor of the node", daemon, "0.5 ms", 0.5)


def _keyring(section: Section, folder: Path) -> None:
    loads: dict[int, float] = {}
    adds: dict[int, float] = {}
    for count in NAMES:
        path = folder / f"keyring{count}.toml"
        keyring = Keyring(path)
        for place in range(count - _CALLS):
            keyring.add(f"group{place}", Name(os.urandom(32)))
        loads[count] = _processor_us(partial(Keyring.load, path)) / 1e3
        adds[count] = _processor_us(partial(_add, Keyring.load(path))) / 1e3
    _row(section, "load a keyring of n names: processor", loads, "5 ms", 5)
    _row(section, "add a name to a keyring of n names: processor", adds, "2 ms", 2)


def _add(keyring: Keyring) -> None:
    name = Name(os.urandom(32))
    keyring.add(f"new{name.hex()[:32]}", name)


def _processor_us(call: Callable[[], object]) -> float:
    """Return the median of the microseconds of processor of this process for one call."""
    taken: list[int] = []
    for _ in range(_CALLS):
        before = time.process_time_ns()
        call()
        taken.append(time.process_time_ns() - before)
    return statistics.median(taken) / 1e3


def _row(section: Section, subject: str, costs: dict[int, float], goal: str, most: float) -> None:
    for count, cost in costs.items():
        section.figure(f"{subject}, n = {count:,}", cost, "ms")
    slope = section.figure(f"{subject}: exponent", exponent(costs), "")
    count = max(costs)
    costs_text = ", ".join(f"{n:,}: {number(cost)}" for n, cost in costs.items())
    section.rows.append(
        Row(
            subject,
            f"{number(costs[count])} ms",
            f"n: ms: {costs_text}",
            f"n^{number(slope)}",
            judge(goal, costs[count], most),
        )
    )
