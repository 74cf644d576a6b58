"""``make month MINUTES=60``: play the month, and write its timeline. The exit status is 1 for lost data."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from labs.benchmarks.month import plan
from labs.benchmarks.month.plan import DAYS, EVENTS, Month
from labs.benchmarks.month.site import NODES, RACKS, Site
from labs.benchmarks.month.verdict import judge
from labs.benchmarks.month.work import ACKNOWLEDGED, REPLICAS, Users
from labs.benchmarks.run import RESULTS, adopt_orphans

_GRACE_DAYS: Final = 0.2


def say(text: str) -> None:
    """Print one line of progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Run with the options of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m labs.benchmarks.month")
    parser.add_argument("--minutes", type=float, default=60, help="the length of the month (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of the files and of who reads them")
    parser.add_argument("--report", type=Path, default=RESULTS / "month.md", help="the file of the timeline")
    options = parser.parse_args()
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    day_s = 60 * options.minutes / DAYS
    settings = {
        "coordinator": "off",
        "accept_weaker_sandbox": "yes",
        "pool_size": "0",
        "replica_grace": f"{max(1, round(day_s * _GRACE_DAYS))}s",
    }
    folder = Path(tempfile.mkdtemp(prefix="dios-month-"))
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    problem = ""
    figures: list[tuple[str, str]] = []
    with Site(folder, settings) as site:
        users = Users(site, options.seed)
        users.prepare()
        month = Month(site, users, day_s)
        users.begin()
        try:
            _play(month)
            month.until(DAYS)
            users.end()
            say("the month is over; checking everything")
            figures = judge(month)
        except KeyboardInterrupt:
            problem = "interrupted"
        except Exception as error:  # noqa: BLE001 - the timeline so far is worth as much
            problem = f"{type(error).__name__}: {error}"
        users.end()
    for label, value in figures:
        say(f"  {label}: {value}")
    if not figures:
        figures = [(kind, f"{count:,}") for kind, count in sorted(users.counts.items())]
    options.report.write_text(_page(options.minutes, options.seed, month, figures, problem))
    for why, count in users.refusals.most_common(5):
        say(f"  refused {count} times: {why}")
    if problem:
        say(f"failed: {problem}")
        say(f"the nodes' data is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _play(month: Month) -> None:
    for day, event in EVENTS:
        month.until(day)
        known = len(month.rows)
        event(month)
        for row in month.rows[known:]:
            say(_line(row))


def _line(row: plan.Row) -> str:
    whole = "" if row.whole_s is None else f"; whole after {row.whole_s:.0f} s"
    note = f" ({row.note})" if row.note else ""
    return f"day {row.day:.1f}: {row.event}{whole}{note}"


def _page(minutes: float, seed: int, month: Month, figures: list[tuple[str, str]], problem: str) -> str:
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs"
    rows = "\n".join(
        f"| {row.day:.1f} | {row.event} | {row.commands or '-'} | {row.on_one_machine or '-'} | "
        f"{'-' if row.whole_s is None else f'{row.whole_s:.0f} s'} | {row.note} |"
        for row in month.rows
    )
    results = "\n".join(f"| {label} | {value} |" for label, value in figures)
    outcome = f"**Failed:** {problem}" if problem else "Every promise was kept."
    return f"""# A month in {minutes:g} minutes

`make month MINUTES={minutes:g} SEED={seed}` on {machine}, Python {platform.python_version()}, on
{time.strftime("%Y-%m-%d")}. {outcome}

{NODES} nodes in {RACKS} racks on one machine. A user puts files into a group with {REPLICAS} replicas
of each file in different racks, and each put is acknowledged by {ACKNOWLEDGED} disks; one in five
replaces a file. Others read files, run jobs on them, and have a service with two replicas. A day has
{month.day_s:.0f} seconds. *Commands* are those that a person types for the event; a node that lost its
power is started by its machine. *Whole* is the time until every promise is kept again, except for
the file that is being put.

| day | event | commands | on one machine | whole after | |
|---:|---|---:|---:|---:|---|
{rows}

| | |
|---|---|
{results}
"""


if __name__ == "__main__":
    sys.exit(main())
