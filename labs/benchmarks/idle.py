"""An idle node: its start-up time and its memory.

Memory is proportional (PSS), of all processes of the node, including the waiting children of its pool.
"""

from __future__ import annotations

import os
import time

from labs.benchmarks.measure import descendants, median, pss_kib, tree_pss_mb
from labs.benchmarks.nodes import running_node
from labs.benchmarks.peers.ray_session import ray_session
from labs.benchmarks.peers.redis_server import MissingPeerError
from labs.benchmarks.report import Row, Section, judge, number, times

STARTS = 5
_SETTLE_SECONDS = 1.0


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    starts: list[float] = []
    memory = daemon = lean = float("nan")
    for turn in range(STARTS + 1):
        with running_node() as bench:
            if turn:
                starts.append(bench.start_seconds)
            if turn == STARTS:
                time.sleep(_SETTLE_SECONDS)
                memory = tree_pss_mb(bench.pid)
                daemon = pss_kib(bench.pid) * 1024 / 1e6
                section.figure("processes of an idle node", len(descendants(bench.pid)) + 1, "")
    with running_node(pool_size="0") as bench:
        time.sleep(_SETTLE_SECONDS)
        lean = tree_pss_mb(bench.pid)
    start = section.figure("node start to ready", median(starts), "s")
    section.figure("daemon, PSS", daemon, "MB")
    section.figure("daemon and zygote without a pool, PSS", lean, "MB")
    section.figure("daemon, zygote and the pool's waiting children, PSS", memory, "MB")
    ray_start, ray_memory = _ray(section)
    section.rows.append(
        Row(
            "idle node: start to ready",
            f"{number(start * 1000)} ms",
            f"ray.init {number(ray_start * 1000)} ms",
            f"{times(ray_start / start)} faster",
            judge("0.6 s", start, 0.6),
            judge("0.3 s", start, 0.3),
        )
    )
    section.rows.append(
        Row(
            "idle node: memory (PSS) with the zygote",
            f"{number(lean)} MB; {number(memory)} MB with the pool's waiting children",
            f"Ray {number(ray_memory)} MB",
            f"{times(ray_memory / memory)} less",
            judge("70 MB", memory, 70),
            judge("45 MB", memory, 45),
            "judged including the waiting children",
        )
    )


def _ray(section: Section) -> tuple[float, float]:
    before = pss_kib(os.getpid()) * 1024 / 1e6
    try:
        with ray_session() as (_, seconds):
            time.sleep(_SETTLE_SECONDS)
            memory = tree_pss_mb(os.getpid()) - before
            count = len(descendants(os.getpid()))
    except MissingPeerError as missing:
        section.trouble.append(str(missing))
        return float("nan"), float("nan")
    section.figure("ray.init", seconds, "s")
    section.figure("idle Ray, PSS", memory, "MB")
    section.figure("idle Ray, processes", count, "")
    return seconds, memory
