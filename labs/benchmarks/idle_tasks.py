"""Idle pure tasks of one node: memory, processor time of the node and of a start, against their number.

Each task has run its first line and sleeps. ``BENCH_TASKS=1000,5000`` measures other numbers. The machine's
memory counts everything that a task costs: its pages, the kernel's tables, its namespaces and its part of the
daemon.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import dios
from labs.benchmarks.large_stores import exponent, node_run_us
from labs.benchmarks.measure import descendants, median, pss_kib
from labs.benchmarks.nodes import running_node
from labs.benchmarks.report import Goal, Row, Section, judge, number

TASKS: Final = tuple(int(text) for text in os.environ.get("BENCH_TASKS", "50,250,1000").split(","))
_IDLE_S: Final = 5.0
_SETTLE_S: Final = 2.0
_SAMPLED: Final = 50
_FREE_KIB_MIN: Final = 2 << 20
"""With less free memory no more tasks are started: other work on this machine would be killed."""
_PROGRAM: Final = b"import time\nprint('here')\ntime.sleep(100_000)\n"


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    series: dict[str, dict[int, float]] = {}
    with (
        running_node(tasks_max=str(max(TASKS) + 16)) as bench,
        dios.connect(bench.data, groups=[]) as node,
    ):
        time.sleep(_SETTLE_S)
        program = node.create_program(_PROGRAM)
        before = set(descendants(bench.pid))
        tasks: list[dios.Task] = []
        machine, daemon = available_kib(), pss_kib(bench.pid)
        for count in TASKS:
            spent, began, more = node_run_us(bench.pid), time.monotonic(), count - len(tasks)
            while len(tasks) < count and available_kib() > _FREE_KIB_MIN:
                tasks.append(node.run(program, wait=False))
            if len(tasks) < count:
                section.trouble.append(f"memory ended at {len(tasks)} of {count} tasks")
                break
            costs = {
                "duration of a start": ((time.monotonic() - began) / more * 1e3, "ms"),
                "processor time of the daemon for a start": ((node_run_us(bench.pid) - spent) / more, "µs"),
            }
            tasks[-1].console().receive()
            time.sleep(_SETTLE_S)
            own = sorted(set(descendants(bench.pid)) - before)
            sampled = own[:: max(1, len(own) // _SAMPLED)]
            costs |= {
                "memory of a task (PSS)": (median([pss_kib(pid) for pid in sampled]) * 1024 / 1e6, "MB"),
                "memory of the daemon for a task": ((pss_kib(bench.pid) - daemon) * 1.024 / count, "KB"),
                "memory of the machine for a task": ((machine - available_kib()) * 1024 / 1e6 / count, "MB"),
                "processor time of the idle daemon": (_idle_ms_s(bench.pid), "ms/s"),
            }
            for name, (value, unit) in costs.items():
                section.figure(f"{count:,} idle tasks: {name}", value, unit)
                series.setdefault(f"{name}, {unit}", {})[count] = value
            section.figure(f"{count:,} idle tasks: processes", len(own), "")
    goals = {
        "memory of a task (PSS), MB": ("1.5 MB", 1.5),
        "processor time of the idle daemon, ms/s": ("5 ms/s", 5.0),
    }
    for name, costs_of in series.items():
        quantity, _, unit = name.rpartition(", ")
        most = max(costs_of)
        slope = section.figure(f"idle tasks, {quantity}: exponent", exponent(costs_of), "")
        section.rows.append(
            Row(
                f"{most:,} idle pure tasks: {quantity}",
                f"{number(costs_of[most])} {unit}",
                f"tasks: {unit}: " + ", ".join(f"{n:,}: {number(cost)}" for n, cost in costs_of.items()),
                f"n^{number(slope)}",
                judge(goals[name][0], costs_of[most], goals[name][1]) if name in goals else Goal(""),
            )
        )


def _idle_ms_s(pid: int) -> float:
    before, began = node_run_us(pid), time.monotonic()
    time.sleep(_IDLE_S)
    return (node_run_us(pid) - before) / 1e3 / (time.monotonic() - began)


def available_kib() -> int:
    """Return the free memory of the machine in KiB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    return 0
