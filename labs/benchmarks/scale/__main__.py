"""Print the costs of clusters by number of nodes: ``python -m labs.benchmarks.scale --nodes 3 10``."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import json

from labs.benchmarks.scale.phases import Phase, Report, run_size

SIZES: Final = (3, 10, 30, 100, 300, 1000)
TASKS_EACH: Final = 100
_HEAD: Final = (
    "| nodes | took, s | messages per {per} | bytes | steps | time of steps, ms | connections made"
    " | open, median | open, most | messages to the busiest node |"
)
RESULTS: Final = Path(__file__).parents[1] / "results"


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the exponent of n in the power law that fits best, by least squares of the logarithms."""
    logs = [(math.log(n), math.log(max(cost, 1e-9))) for n, cost in points]
    middle_x = sum(x for x, _ in logs) / len(logs)
    middle_y = sum(y for _, y in logs) / len(logs)
    spread = sum((x - middle_x) ** 2 for x, _ in logs)
    return sum((x - middle_x) * (y - middle_y) for x, y in logs) / spread


def tables(reports: Sequence[Report]) -> str:
    """Return the tables of all phases as Markdown."""
    lines: list[str] = []
    for name in [phase.name for phase in reports[0].phases]:
        rows = [phase for report in reports for phase in report.phases if phase.name == name]
        lines += _phase(name, rows)
    lines += ["", "## The coordinator", ""]
    heads = list(reports[0].rounds)
    lines += [f"| nodes | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for report in reports:
        cells = [report.rounds.get(head, math.nan) for head in heads]
        values = " | ".join(f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in cells)
        lines.append(f"| {report.nodes:,} | {values} |")
    lines += ["", "## Answers", ""]
    for report in reports:
        lines.append(
            f"- {report.nodes:,} nodes ({report.took_s:,.0f} s of processor): {'; '.join(report.notes)}."
        )
    return "\n".join(lines) + "\n"


def _phase(name: str, rows: Sequence[Phase]) -> list[str]:
    per = rows[0].per
    lines = [
        "",
        f"### {name[0].upper()}{name[1:]}",
        "",
        _HEAD.format(per=per),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.nodes:,} | {row.seconds:,.1f} | {row.messages:,.2f} | {row.bytes:,.0f} | {row.steps:,.2f}"
        f" | {row.step_us / 1000:,.2f} | {row.dials:,.2f} | {row.connections} | {row.connections_max}"
        f" | {row.busiest:,.0f} |"
        for row in rows
    ]
    if len(rows) > 1:
        fits = ", ".join(
            f"{column} {exponent([(row.nodes, float(getattr(row, column))) for row in rows]):.2f}"
            for column in ("messages", "bytes", "steps")
        )
        large = [row for row in rows if row.nodes >= 100]
        if len(large) > 1:
            fits += "; from 100 nodes on: " + ", ".join(
                f"{column} {exponent([(row.nodes, float(getattr(row, column))) for row in large]):.2f}"
                for column in ("messages", "bytes", "steps")
            )
        lines += ["", f"Exponents of n: {fits}. Most messages at {rows[-1].nodes:,} nodes: {rows[-1].kinds}."]
    return lines


def main() -> None:
    """Run all sizes, and print the tables after each."""
    parser = argparse.ArgumentParser(description="Costs of simulated clusters against their number of nodes.")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--tasks", type=int, default=TASKS_EACH, help="tasks for each node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=RESULTS / "sim-scale.json", help="file of all figures")
    parser.add_argument("--print", action="store_true", help="only print the tables of the file")
    asked = parser.parse_args()
    reports: dict[int, Report] = {}
    if asked.keep.exists():
        reports = {report.nodes: report for report in json.decode(asked.keep.read_bytes(), type=list[Report])}
    for size in () if asked.print else asked.nodes:
        reports[size] = run_size(size, asked.seed, size * asked.tasks)
        reports = dict(sorted(reports.items()))
        asked.keep.write_bytes(json.format(json.encode(list(reports.values())), indent=1) + b"\n")
    sys.stdout.write(tables(list(reports.values())))


if __name__ == "__main__":
    main()
