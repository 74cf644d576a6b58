"""A round of the chaos suite: a cluster, its clients, a plan of faults, and the verdict."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.chaos.cluster import NODES, ChaosCluster, Fault, planned
from tests.chaos.history import Outcome
from tests.chaos.verdict import judge
from tests.chaos.workload import Load, count_words

QUIET_CALLS = 30


class Tally(NamedTuple):
    """The figures of a run."""

    seconds: float
    faults: Counter[str]
    calls: Counter[tuple[str, Outcome]]
    longest: int
    jobs: int


def play(
    folder: Path, seed: int, enough: Callable[[int], bool], report: Callable[[str], None] = lambda _: None
) -> Tally:
    """Let clients work on a cluster whose nodes fail, until ``enough(faults so far)``; check everything.

    Raises AssertionError if a promise was broken.
    """
    began = time.monotonic()
    faults: Counter[str] = Counter()
    with ChaosCluster(folder) as cluster:
        idle = cluster.counts()
        load = Load(cluster, seed)
        load.begin()
        try:
            for number, fault in enumerate(planned(seed)):
                if enough(number) or load.troubles:
                    break
                load.wait_calls(fault.calls)
                report(_described(number, fault, cluster))
                cluster.suffer(fault)
                faults[fault.kind] += 1
            load.wait_calls(QUIET_CALLS)
        finally:
            load.end()
        cluster.wait_agreed()
        if not load.troubles:
            cluster.wait_counts(idle, "the nodes hold nothing for the clients that are gone")
        report("checking the records")
        judge(cluster, load)
        for number in range(NODES):
            count_words(cluster, number)
            cluster.wait_counts(idle, "a job leaves nothing")
        cluster.stop()
    longest = max(map(len, load.history.operations.values()))
    return Tally(time.monotonic() - began, faults, load.history.counts, longest, NODES)


def _described(number: int, fault: Fault, cluster: ChaosCluster) -> str:
    return f"fault {number + 1}: {fault.kind} {cluster.nodes[fault.node].name} for {fault.lasting_s:g} s"


def figures(tally: Tally) -> list[tuple[str, str]]:
    """Return the figures of a run as rows: what, and how many."""
    rows = [("seconds", f"{tally.seconds:.0f}")]
    rows += [(f"nodes: {kind}", str(count)) for kind, count in sorted(tally.faults.items())]
    for operation, group in itertools.groupby(sorted(tally.calls.items()), key=lambda row: row[0][0]):
        said = {outcome: count for (_, outcome), count in group}
        rows.append(
            (operation, ", ".join(f"{said[outcome]:,} {outcome}" for outcome in Outcome if outcome in said))
        )
    rows.append(("longest history of a key", f"{tally.longest:,}"))
    rows.append(("jobs after which nothing was left", str(tally.jobs)))
    return rows
