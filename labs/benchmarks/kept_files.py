"""Files of groups on three nodes, by two installations of DIOS in turns (``make kept-bench``).

``python -m labs.benchmarks.kept_files --old PYTHON --new PYTHON`` compares the installations of two
interpreters: of releases, or of two checkouts. ``kept_files_work`` is the work, in a fresh
cluster for each round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from labs.benchmarks import kept_files_work, report
from labs.benchmarks.kept_files_work import Sizes
from labs.benchmarks.measure import median
from labs.benchmarks.nodes import workspace
from labs.benchmarks.report import number

WHOLE: Final = Sizes(small=10_000, large_mb=1_000, single=50, started=9, tiered=200, opened=500, edits=50)
SHORT: Final = Sizes(small=1_000, large_mb=100, single=20, started=3, tiered=20, opened=100, edits=20)
_SECONDS_MAX: Final = 3_600


def figures(python: str, sizes: Sizes) -> dict[str, float]:
    """Return the figures of one round of an installation."""
    with workspace() as folder:
        line = [python, "-P", kept_files_work.__file__, str(folder), json.dumps(sizes._asdict())]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, timeout=_SECONDS_MAX)
    values: dict[str, float] = json.loads(done.stdout)
    return values


def text_of(rounds: Mapping[str, Sequence[dict[str, float]]]) -> str:
    """Return the page with the medians of both installations, and their ratios."""
    machine = report.begin().machine
    count = len(rounds["new"])
    lines = [
        "# Files of groups: before and after",
        "",
        f"{report.now()}. {', '.join(f'{key} {value}' for key, value in machine.items())}.",
        "",
        f"`make kept-bench` writes this page. Rounds in turns, each on three fresh nodes: {count}. The",
        "figures are medians, the least and the greatest. By default a put acknowledges the promised number",
        "of disks; up to commit 7493d173 it was a single disk.",
        "",
        "| figure | unit | old | new | new/old |",
        "|---|---|---|---|---|",
    ]
    values: dict[str, defaultdict[str, list[float]]] = {}
    for side, measurements in rounds.items():
        values[side] = defaultdict(list)
        for measurement in measurements:
            for name, value in measurement.items():
                values[side][name].append(value)
    for name, new in values["new"].items():
        old = values["old"][name]
        figure, _, unit = name.rpartition(", ")
        lines.append(
            f"| {figure} | {unit} | {_shown(old)} | {_shown(new)} | {number(median(new) / median(old))} |"
        )
    return "\n".join([*lines, ""])


def _shown(values: list[float]) -> str:
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def main() -> int:
    """Measure in turns, and print or write the page."""
    parser = argparse.ArgumentParser(description="Compare files of groups by two installations of DIOS.")
    parser.add_argument("--old", required=True, help="the interpreter of the old installation")
    parser.add_argument("--new", default=sys.executable, help="that of the new one (default: this one)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each")
    parser.add_argument("--short", action="store_true", help="with a tenth of the files, in minutes")
    parser.add_argument("--report", type=Path, help="file of the page (default: print it)")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    for turn in range(options.rounds):
        for side, python in (("old", options.old), ("new", options.new)):
            sys.stderr.write(f"round {turn + 1}, {side}\n")
            rounds[side].append(figures(python, SHORT if options.short else WHOLE))
    text = text_of(rounds)
    if options.report:
        options.report.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
