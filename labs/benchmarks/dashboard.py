"""The processor time that a viewer of the dashboard costs the nodes of a cluster of three with idle tasks.

``python -m labs.benchmarks.dashboard --tasks 5000`` starts the cluster and the tasks, measures the nodes with
a headless browser at each page, and then without a viewer. ``--report FILE`` writes the table.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import dios
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from labs.benchmarks.idle_tasks import available_kib
from labs.benchmarks.measure import cpu_seconds
from tests.support.web.dashboard import Cluster, Pages, dashboard_of

PAGES: Final = ("/", "/tasks", "/objects", "/shares", "/jobs")
GOAL: Final = 3.0
"""Percent of a processor of the asked node, for each viewer."""

NO_VIEWER: Final = "no viewer"
_PROGRAM: Final = b"import time\ntime.sleep(100_000)\n"
_SETTLE_S: Final = 10.0
_FREE_KIB_MIN: Final = 4 << 20
"""With less free memory no more tasks are started: other work on this machine would be killed."""


@contextmanager
def cluster_with_tasks(folder: Path, count: int) -> Iterator[tuple[LocalCluster, str, int]]:
    """Start three nodes with idle tasks; yield the cluster, a task's fingerprint, and the number of tasks."""
    environment = Cluster(folder).environment
    os.environ.update(environment)
    settings = {"coordinator": "off", "tasks_max": str(count // 3 + 64)}
    cluster = local_cluster.make(folder / "cluster", nodes=3, settings=settings)
    local_cluster.start(cluster)
    try:
        with dios.connect(str(cluster.nodes[0].socket), groups=()) as node:
            program = node.create_program(_PROGRAM)
            tasks: list[dios.Task] = []
            while len(tasks) < count and available_kib() > _FREE_KIB_MIN:
                host = cluster.nodes[len(tasks) % 3].name
                tasks.append(node.run(program, host=host, wait=False))
            yield cluster, tasks[0].fingerprint, len(tasks)
    finally:
        local_cluster.stop(cluster)


def percent_of_nodes(cluster: LocalCluster, seconds: float) -> list[float]:
    """Return the percent of a processor that each node's daemon uses, the asked one first."""
    running = cluster.running()
    pids = [running[node.name].pid for node in cluster.nodes]
    before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return [(cpu_seconds(pid) - first) / took * 100 for pid, first in zip(pids, before, strict=True)]


def measured(
    cluster: LocalCluster, pages: Pages, paths: Sequence[str], seconds: float
) -> dict[str, list[float]]:
    """Return the percents of each page."""
    rows = {}
    for path in paths:
        pages.open(path)
        time.sleep(_SETTLE_S)
        rows[path] = percent_of_nodes(cluster, seconds)
        sys.stderr.write(f"{path}: {rows[path]}\n")
    return rows


def text_of(rows: dict[str, list[float]], count: int, seconds: float) -> str:
    """Return the table."""
    without = rows[NO_VIEWER]
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    lines = [
        "# The cost of a viewer of the dashboard",
        "",
        f"Three nodes of one machine have {count:,} idle tasks together. A headless browser shows one page",
        f"for {seconds:.0f} s, read from the first node. The numbers are percents of a processor that a",
        "node's daemon uses. The goal is that a viewer adds less than 3 percent to the asked node.",
        "`make dashboard-cost` writes this page.",
        "",
        f"Measured {when}; processors: {os.cpu_count()}, load: {os.getloadavg()[0]:.1f}.",
        "",
        "| page | asked node | others | added to the asked node | under 3 % |",
        "|---|---|---|---|---|",
    ]
    for name, percents in rows.items():
        added = percents[0] - without[0]
        others = ", ".join(f"{percent:.2f}" for percent in percents[1:])
        judged = "" if name == NO_VIEWER else ("yes" if added < GOAL else "**no**")
        lines.append(f"| {name} | {percents[0]:.2f} | {others} | {added:.2f} | {judged} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description="Measure the cost of a viewer of the dashboard.")
    parser.add_argument("--tasks", type=int, default=5_000, help="number of idle tasks")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of each measurement")
    parser.add_argument("--report", type=Path, help="file of the table (default: print it)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dios-bench-") as name:
        folder = Path(name)
        with cluster_with_tasks(folder, options.tasks) as (cluster, mark, count):
            sys.stderr.write(f"{count} tasks run\n")
            commands = Cluster(folder)
            commands.environment["DIOS_NODE"] = str(cluster.nodes[0].socket)
            with dashboard_of(commands, folder / "browser") as pages:
                paths = (*PAGES, f"/tasks/{mark}")
                rows = measured(cluster, pages, paths, options.seconds)
            commands.wait_all()
            # At the end, when nothing is left of the work of starting the tasks.
            time.sleep(_SETTLE_S)
            rows = {NO_VIEWER: percent_of_nodes(cluster, options.seconds), **rows}
            text = text_of(rows, count, options.seconds).replace(f"/tasks/{mark}", "/tasks/TASK")
    if options.report:
        options.report.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
