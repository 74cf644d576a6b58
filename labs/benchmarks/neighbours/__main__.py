"""Time an innocent client's calls next to each kind of greedy neighbour, and write the table of the results.

The exit status is 1 if a call was answered wrongly, or if a neighbour left something behind.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from pathlib import Path

from labs.benchmarks import report
from labs.benchmarks.neighbours import results
from labs.benchmarks.neighbours.clients import may_change_user
from labs.benchmarks.neighbours.run import CLIENTS, LIMITS, NeighboursRun, chosen
from labs.benchmarks.run import RESULTS, adopt_orphans


def main() -> int:
    """Run with the options of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m labs.benchmarks.neighbours")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds for each kind (default 10)")
    parser.add_argument("--only", default="", help="a comma-separated list of kinds (default: all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for neighbours.md")
    options = parser.parse_args()
    kinds = chosen(options.only)
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = report.begin()
    run = NeighboursRun(options.seconds, functools.partial(print, flush=True))
    rows = run.go(kinds)
    about = results.Circumstances(
        machine.date,
        ", ".join(f"{name} {value}" for name, value in machine.machine.items()),
        options.seconds,
        CLIENTS,
        may_change_user(),
        LIMITS,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "neighbours.md"
    results.save(rows, run.troubles, about, path)
    for text in run.troubles:
        print(f"! {text}")
    print(f"The table is {path}.")
    return 1 if run.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
