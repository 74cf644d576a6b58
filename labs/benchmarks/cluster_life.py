"""The start of a local cluster, the costs of an idle node, and the time to detect that a node is gone.

The effect of a lost node on running work is in ``labs.benchmarks.cluster_work``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from dios.node import local_cluster
from dios.wire.types import NodeStatus
from labs.benchmarks.cluster import BenchCluster, reap, running_cluster, writing_compiled
from labs.benchmarks.measure import clock, descendants, median, once, tree_cpu_seconds, tree_pss_mb
from labs.benchmarks.nodes import private_environment, workspace
from labs.benchmarks.peers.ray_cluster import ray_cluster
from labs.benchmarks.peers.redis_server import MissingPeerError
from labs.benchmarks.report import Row, Section, judge, number, times

NODES = 3
STARTS = 5
DEATHS = 5
VICTIM = 2
_SETTLE_SECONDS = 1.5
_IDLE_SECONDS = 10.0
_LOOK_SECONDS = 0.004
_NOTICE_SECONDS_MAX = 15.0
_PROGRAM: Final = str(Path(sys.executable).with_name("dios"))
NAN = float("nan")


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    _up(section)
    with running_cluster(NODES) as cluster:
        killed = [_noticed(cluster, signal.SIGKILL) for _ in range(DEATHS)]
        frozen = [_noticed(cluster, signal.SIGSTOP) for _ in range(DEATHS)]
    for failure, taken, limit in (("killed", killed, 1.0), ("frozen", frozen, 3.0)):
        suspected = section.figure(
            f"{failure} node, first suspicion, median", median([doubt for doubt, _ in taken]), "s"
        )
        sure = section.figure(
            f"{failure} node, declared dead, median", median([dead for _, dead in taken]), "s"
        )
        worst = section.figure(f"{failure} node, declared dead, slowest", max(dead for _, dead in taken), "s")
        section.rows.append(
            Row(
                f"time to detect a {failure} node",
                f"{number(sure)} s, slowest {number(worst)} s",
                "",
                "",
                judge(f"{number(limit)} s", worst, limit),
                note=f"{DEATHS} runs, until the last node reports it; suspected after {number(suspected)} s",
            )
        )


# -- start and memory ---------------------------------------------------------------------------------
def _up(section: Section) -> None:
    starts: list[float] = []
    memory: list[float] = []
    idle = NAN
    for turn in range(STARTS + 1):
        with workspace() as folder, private_environment(folder), writing_compiled():
            chosen = ["--dir", str(folder / "cluster")]
            pids: list[int] = []
            try:
                taken = once(lambda chosen=chosen: _dios("up", "--nodes", str(NODES), *chosen))  # type: ignore[misc]
                pids = [
                    int((folder / "cluster" / f"n{index + 1}" / "node.pid").read_text())
                    for index in range(NODES)
                ]
                if turn:
                    starts.append(taken)
                if turn == STARTS:
                    time.sleep(_SETTLE_SECONDS)
                    memory = [tree_pss_mb(pid) for pid in pids]
                    idle = _idle_ms_s(pids) / NODES
            finally:
                _dios("down", *chosen)
                for pid in pids:
                    reap(pid)
    ready, most = median(starts), max(memory)
    section.figure(f"dios up --nodes {NODES}", ready, "s")
    section.figure("largest idle node of three with its pool, PSS", most, "MB")
    section.figure("an idle node of three, processor time", idle, "ms/s")
    ray_start, ray_memory, ray_idle = _ray(section)
    section.rows += [
        Row(
            f"`dios up --nodes {NODES}` to ready",
            f"{number(ready)} s",
            f"{NODES} Ray nodes {number(ray_start)} s",
            f"{times(ray_start / ready)} faster",
            judge("3 s", ready, 3),
            judge("1.5 s", ready, 1.5),
        ),
        Row(
            "memory (PSS) of each idle node",
            f"{number(most)} MB, with the pool's waiting children",
            f"Ray {number(ray_memory)} MB",
            f"{times(ray_memory / most)} less",
            judge("80 MB", most, 80),
            judge("50 MB", most, 50),
        ),
        Row(
            "processor time of each idle node",
            f"{number(idle)} ms/s",
            f"Ray {number(ray_idle)} ms/s",
            f"{times(ray_idle / idle)} less",
            judge("5 ms/s", idle, 5),
        ),
    ]


def _dios(*arguments: str) -> None:
    subprocess.run([_PROGRAM, *arguments], check=True, capture_output=True)


def _idle_ms_s(pids: list[int]) -> float:
    """Return the processor time of idle trees of processes, in milliseconds for each second."""
    before, began = sum(map(tree_cpu_seconds, pids)), clock()
    time.sleep(_IDLE_SECONDS)
    return (sum(map(tree_cpu_seconds, pids)) - before) * 1e12 / (clock() - began)


def _ray(section: Section) -> tuple[float, float, float]:
    before = tree_pss_mb(os.getpid())
    try:
        with ray_cluster(NODES) as nodes:
            time.sleep(_SETTLE_SECONDS)
            node_mb = (tree_pss_mb(os.getpid()) - before) / NODES
            section.figure("idle Ray cluster, processes", len(descendants(os.getpid())), "")
            section.figure(f"start of {NODES} Ray nodes", nodes.start_seconds, "s")
            section.figure("an idle Ray node of three, PSS", node_mb, "MB")
            idle = _idle_ms_s([os.getpid()]) / NODES
            section.figure("an idle Ray node of three, processor time", idle, "ms/s")
            return nodes.start_seconds, node_mb, idle
    except MissingPeerError as missing:
        section.trouble.append(str(missing))
        return NAN, NAN, NAN


# -- failure detection --------------------------------------------------------------------------------
def _noticed(cluster: BenchCluster, end: signal.Signals) -> tuple[float, float]:
    """Return the seconds until the last node suspects, and until it is sure; restore the cluster."""
    pid = cluster.pid(VICTIM)
    seen: list[tuple[float, float]] = []
    ready = threading.Barrier(NODES)
    watchers = [
        threading.Thread(target=_watch, args=(cluster, number, ready, seen))
        for number in range(NODES)
        if number != VICTIM
    ]
    for watcher in watchers:
        watcher.start()
    ready.wait(_NOTICE_SECONDS_MAX)
    began = clock()
    os.kill(pid, end)
    try:
        for watcher in watchers:
            watcher.join()
    finally:
        if end is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
        else:
            reap(pid)
    local_cluster.start(cluster.local)
    doubts, deaths = zip(*seen, strict=True)
    return (max(doubts) - began) / 1e9, (max(deaths) - began) / 1e9


def _watch(
    cluster: BenchCluster, number: int, ready: threading.Barrier, seen: list[tuple[float, float]]
) -> None:
    """Ask one node for the status of the victim until it is dead."""
    name = cluster.local.nodes[VICTIM].name
    doubt = NAN
    with cluster.at(number) as node:
        ready.wait(_NOTICE_SECONDS_MAX)
        until = time.monotonic() + _NOTICE_SECONDS_MAX
        while time.monotonic() < until:
            (status,) = (member.status for member in node.nodes() if member.name == name)
            if status is not NodeStatus.ALIVE and doubt != doubt:  # noqa: PLR0124 - NaN
                doubt = clock()
            if status in {NodeStatus.DEAD, NodeStatus.LEFT}:
                seen.append((doubt, clock()))
                return
            time.sleep(_LOOK_SECONDS)
    seen.append((NAN, NAN))
