"""The word count over three nodes of this machine, compared with one node, and with one node killed midway.

Other systems are compared in ``labs.benchmarks.wordcount``. The number of worker processes is the same in all
cases: two mappers, two reducers.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from dios.errors import DiosError
from dios.lib import mapreduce
from dios.lib.mapreduce import JobProgress, Role
from labs.benchmarks.cluster import BenchCluster, reap, running_cluster
from labs.benchmarks.measure import median
from labs.benchmarks.metis import WORDS, write_words
from labs.benchmarks.peers.words import Clocked, Found
from labs.benchmarks.report import Row, Section, judge, number, times
from labs.benchmarks.wordcount import FOLDER, MAP_KEYS, SHARE, Contender, Outcome, apart

NODES = 3
TURNS = 2
SPLITS = 8
MOMENT = 0.5
_LABEL = {"mapper": "a mapper", "reducer": "a reducer"}
NAN = float("nan")


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    FOLDER.mkdir(exist_ok=True)
    count = int(WORDS * SHARE) // 10 * 10
    path = FOLDER / f"words-{count}.txt"
    write_words(path, words=count)
    outcomes_by_nodes: dict[int, list[Outcome]] = {1: [], NODES: []}
    for _ in range(TURNS):
        for nodes, outcomes in outcomes_by_nodes.items():
            outcome = apart(over(nodes), path)
            print(f"    {nodes} nodes: {outcome}", flush=True)
            if outcome.trouble or outcome.words != count:
                section.trouble.append(
                    f"{nodes} nodes: {outcome.trouble or f'{outcome.words} words of {count}'}"
                )
            outcomes.append(outcome)
    walls = {nodes: median([job.wall for job in outcomes]) for nodes, outcomes in outcomes_by_nodes.items()}
    cpus = {nodes: median([job.cpu for job in outcomes]) for nodes, outcomes in outcomes_by_nodes.items()}
    for nodes in outcomes_by_nodes:
        section.figure(f"word count over {nodes} nodes, wall", walls[nodes], "s")
        section.figure(f"word count over {nodes} nodes, processor", cpus[nodes], "s")
    ratio = walls[NODES] / walls[1]
    section.rows.append(
        Row(
            f"word count over {NODES} nodes, two mappers at a time",
            f"{number(walls[NODES])} s, {number(cpus[NODES])} s of processor",
            f"one node {number(walls[1])} s, {number(cpus[1])} s of processor",
            times(ratio),
            judge("1.25 x", ratio, 1.25),
            judge("1.1 x", ratio, 1.1),
        )
    )
    for role, splits in (("mapper", None), ("mapper", SPLITS), ("reducer", SPLITS)):
        _killed(section, path, count, role, splits)


def over(nodes: int) -> Contender:
    """Return the job of ``labs.benchmarks.wordcount`` on ``nodes`` nodes, controlled at the first."""

    def run_job(path: Path, clocked: Clocked) -> Found:
        with running_cluster(nodes) as cluster, cluster.at(0) as node:
            # Start the clock when the waiting children of the pools are ready.
            time.sleep(0.5)
            with clocked():
                result = mapreduce.run(node, MAP_KEYS, inputs=[path], reducers=2, workers=2)
            with result:
                counts = [int(str(count)) for _, count in result]
            return sum(counts), len(counts)

    return run_job


# -- a node dies --------------------------------------------------------------------------------------
def _killed(section: Section, path: Path, count: int, role: str, splits: int | None) -> None:
    """Kill the node of a task with a role when half of the input is mapped; measure the repeated work."""
    with running_cluster(NODES) as cluster, cluster.at(0) as node:
        time.sleep(0.5)
        victim = _Victim(cluster, role)
        before = time.monotonic()
        result = mapreduce.run(
            node, MAP_KEYS, inputs=[path], reducers=2, workers=2, splits=splits, progress=victim.strike
        )
        taken = time.monotonic() - before
        with result:
            right = sum(int(str(occurrences)) for _, occurrences in result) == count
        if victim.killed is None:
            section.trouble.append(
                f"no {role} ran on another node than the first when half of the input was mapped"
            )
            return
        mapped = sum(report.input_bytes for report in result.tasks if report.role is Role.MAPPER)
    twice = mapped / path.stat().st_size - 1
    cut = "as many mappers as processes" if splits is None else f"{splits} mappers"
    section.figure(f"word count with the node of {_LABEL[role]} killed, {cut}, wall", taken, "s")
    section.figure(f"the same, share of input mapped twice ({victim.told})", 100 * twice, "%")
    if not right:
        section.trouble.append(f"the counts are wrong after the node of {_LABEL[role]} was killed")
    section.rows.append(
        Row(
            f"word count of {cut}, node of {_LABEL[role]} killed midway: repeated work",
            f"{number(100 * twice)} %",
            "",
            "",
            judge("under 20 %, counts right", twice if right else NAN, 0.2),
            note=f"input mapped again; killed when {number(100 * victim.share)} % was mapped; {victim.told}",
        )
    )


class _Victim:
    """The node that is killed, once."""

    def __init__(self, cluster: BenchCluster, role: str) -> None:
        self._cluster = cluster
        self._role = role
        self.killed: int | None = None
        self.share = 0.0
        self.told = ""

    def strike(self, progress: JobProgress) -> None:
        """Kill the node of such a task at the right time, unless it is the first node."""
        if self.killed is not None or progress.bytes_done < MOMENT * progress.bytes_total:
            return
        names = [member.name for member in self._cluster.local.nodes]
        with self._cluster.at(0) as node:
            try:
                tasks = [task for task in node.tasks() if not task.ended]
            except DiosError:
                return
        there = {task.node for task in tasks if f" {self._role} " in f" {task.label} "} - {"", names[0]}
        if not there:
            return
        name = min(there)
        self.killed = names.index(name)
        self.share = progress.bytes_done / progress.bytes_total
        ran = sorted(task.label.partition(" ")[2] for task in tasks if task.node == name)
        self.told = f"it ran {', '.join(ran)}"
        pid = self._cluster.pid(self.killed)
        os.kill(pid, signal.SIGKILL)
        reap(pid)
