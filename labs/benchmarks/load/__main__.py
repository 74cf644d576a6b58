"""Put bursts on a cluster of three nodes, and write the table of the results.

The exit status is 1 if anything was lost, refused, or done twice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from labs.benchmarks import report
from labs.benchmarks.cluster import BenchCluster, running_cluster
from labs.benchmarks.load import phases
from labs.benchmarks.load.phases import Burst, Say
from labs.benchmarks.load.results import BurstResult, circumstances, save
from labs.benchmarks.load.watch import NODES, wait_until_scheduled
from labs.benchmarks.nodes import workspace
from labs.benchmarks.run import RESULTS, adopt_orphans

_SETTINGS: Final = {"coordinator": "on", "accept_weaker_sandbox": "yes", "limbo_from_nodes": "yes"}


class _Phase(Protocol):
    """A burst with some of its arguments."""

    def __call__(self, cluster: BenchCluster, coordinator: int, count: int, *, say: Say) -> Awaitable[Burst]:
        """Make the burst."""


def main() -> int:
    """Run with the options of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m labs.benchmarks.load")
    parser.add_argument("--runs", type=int, default=1_000, help="trivial runs (default 1000)")
    parser.add_argument("--needs", type=int, default=100, help="queued runs with needs (default 100)")
    parser.add_argument("--clients", type=int, default=300, help="clients at a time (default 300)")
    parser.add_argument("--objects", type=int, default=10_000, help="objects (default 10000)")
    parser.add_argument("--busy", action="store_true", help="repeat it with all processors busy")
    parser.add_argument("--report", type=Path, default=RESULTS / "load.md", help="the file of the table")
    options = parser.parse_args()
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = report.begin()
    counts = f"RUNS={options.runs} NEEDS={options.needs} CLIENTS={options.clients} OBJECTS={options.objects}"
    command = f"make load {counts}{' BUSY=1' if options.busy else ''}"
    facts = ", ".join(f"{name} {it}" for name, it in machine.machine.items())
    about = circumstances(command, machine.date, facts)
    say = partial(print, file=sys.stderr, flush=True)
    rows: list[BurstResult] = []
    troubles: list[str] = []
    with running_cluster(NODES, **_SETTINGS) as cluster, workspace() as folder:
        coordinator = wait_until_scheduled(cluster)
        for load in ["quiet", *(["busy"] if options.busy else [])]:
            record = folder / f"record-{load}"
            bursts: list[tuple[int, _Phase]] = [
                (options.runs, partial(phases.runs, record=record)),
                (options.needs, partial(phases.first_of_many, cpus=_processors())),
                (options.clients, phases.clients),
                (options.objects, phases.objects),
            ]
            with _busy() if load == "busy" else contextlib.nullcontext():
                for count, phase in bursts:
                    if not count:
                        continue
                    burst = trio.run(partial(phase, cluster, coordinator, count, say=say))
                    rows.append(BurstResult.of(burst, load))
                    say(rows[-1].line())
                    troubles += _troubles(burst, load)
    save(rows, troubles, about, options.report)
    for text in troubles:
        say(f"! {text}")
    print(f"The table is {options.report}.")
    return 1 if troubles else 0


def _troubles(burst: Burst, load: str) -> list[str]:
    if burst.is_good:
        return []
    troubles = [f"{burst.name}, {load}: {burst.lost} lost, {burst.twice} done twice"]
    troubles += [
        f"{burst.name}, {load}: {count} refused: {why}" for why, count in burst.refused.most_common(5)
    ]
    return troubles + [f"the neighbour, {load}: {why}" for why in burst.neighbour.refused[:5]]


def _processors() -> int:
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Give every processor a program that only computes."""
    line = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(line, start_new_session=True) for _ in range(_processors())]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
