"""Run the benchmark sections, each in a process of its own, and write the results (``make bench``).

``ONLY=calls,streams`` runs some sections and keeps the last results of the others.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

import msgspec

from labs.benchmarks import report
from labs.benchmarks.measure import descendants
from labs.benchmarks.nodes import DISK, workspace
from labs.benchmarks.report import Section

RESULTS: Final = Path(__file__).resolve().parent / "results"
SECTIONS: Final = "labs.benchmarks"
"""The package with a module for each section."""
SECONDS_MAX: Final = {
    "idle": 60,
    "calls": 100,
    "durable": 60,
    "blobs": 80,
    "streams": 100,
    "network": 60,
    "logs": 60,
    "tasks": 100,
    "executor": 900,
    "security": 100,
    "covert": 60,
    "wordcount": 420,
    "node_count": 900,
    "cluster_calls": 180,
    "cluster_reads": 180,
    "cluster_life": 180,
    "cluster_work": 600,
    "firmament_solvers": 900,
    "firmament_round": 600,
    "fairness": 900,
    "packer": 600,
    "guarantees": 300,
    "sprayer": 900,
    "files": 240,
    "sandbox": 420,
    "large_stores": 900,
    "client_tables": 200,
    "many_clients": 300,
    "idle_tasks": 1200,
    "long_queues": 600,
    "contended": 300,
    "services": 240,
}
"""The sections in order, and the seconds after which a section is killed."""

ON_REQUEST: Final = frozenset({"idle_tasks", "contended", "services"})
"""The sections that run only by name: they take the memory or the processors of the whole machine."""

PAGES: Final = {
    "one-machine": tuple(
        name
        for name in SECONDS_MAX
        if not name.startswith(
            (
                "cluster_",
                "firmament_",
                "fairness",
                "packer",
                "guarantees",
                "sprayer",
                "files",
                "executor",
                "sandbox",
                "covert",
                "large_stores",
                "client_tables",
                "many_clients",
                "node_count",
                "long_queues",
                "idle_tasks",
                "contended",
                "services",
            )
        )
    ),
    "many-machines": tuple(name for name in SECONDS_MAX if name.startswith("cluster_")),
    "firmament-solvers": ("firmament_solvers",),
    "firmament-rounds": ("firmament_round",),
    "fairness": ("fairness",),
    "packer": ("packer",),
    "guarantees-path": ("guarantees",),
    "sprayer": ("sprayer",),
    "files": ("files",),
    "executor": ("executor",),
    "sandbox": ("sandbox",),
    "covert": ("covert",),
    "scale": ("large_stores", "client_tables", "many_clients", "node_count", "idle_tasks"),
    "contended": ("contended",),
    "services": ("services",),
    "long-queues": ("long_queues",),
}
"""The result files, and the sections of each."""

_PR_SET_CHILD_SUBREAPER: Final = 36


def main() -> int:
    """Run the sections named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        default="",
        help="sections, separated by commas: cluster (all of them), " + ", ".join(SECONDS_MAX),
    )
    parser.add_argument("--section", default="", help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="the folder for the results, as .md and .json"
    )
    options = parser.parse_args()
    if options.section:
        return run_here(options.section, options.out)
    chosen = [name for name in options.only.replace(" ", "").split(",") if name]
    chosen = chosen or [name for name in SECONDS_MAX if name not in ON_REQUEST]
    for group, page in (("cluster", "many-machines"), ("scale", "scale")):
        if group in chosen:
            chosen += PAGES[page]
            chosen.remove(group)
    unknown = [name for name in chosen if name not in SECONDS_MAX]
    if unknown:
        parser.error(f"unknown section {', '.join(unknown)}; choose from cluster, {', '.join(SECONDS_MAX)}")
    adopt_orphans()
    for page, sections in PAGES.items():
        if any(name in chosen for name in sections):
            _fill(options.out / f"{page}.md", sections, chosen)
    return 0


def _fill(markdown: Path, sections: Sequence[str], chosen: Sequence[str]) -> None:
    """Run the chosen sections of a page; keep the last results of the others."""
    filled = report.begin()
    json = markdown.with_suffix(".json")
    before = report.load(json)
    kept = {} if before is None else {section.name: section for section in before.sections}
    for name in sections:
        if name in chosen:
            kept[name] = run_apart(name)
            _show(kept[name])
        filled.sections = [kept[key] for key in sections if key in kept]
        report.save(filled, markdown, json)
    print(report.as_markdown(filled).partition("\n## ")[0])


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that they can be found and killed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _show(section: Section) -> None:
    for row in section.rows:
        print(f"    {row.subject}: {row.ours} | {row.peer} | {row.ratio}", flush=True)
    for text in section.trouble:
        print(f"    ! {text}", flush=True)


def run_apart(name: str) -> Section:
    """Run one section in a process of its own with a time limit; leave no process behind."""
    print(f"{time.strftime('%H:%M:%S')} {name} (at most {SECONDS_MAX[name]} s)", flush=True)
    began = time.monotonic()
    with workspace() as folder:
        out = folder / "section.json"
        command = [sys.executable, "-m", "labs.benchmarks.run", "--section", name, "--out", str(out)]
        own = {**os.environ, DISK: str(folder)}
        child = subprocess.Popen(command, start_new_session=True, cwd=RESULTS.parents[2], env=own)
        trouble = ""
        try:
            status = child.wait(SECONDS_MAX[name])
            if status:
                trouble = f"the section's process ended with status {status}"
        except subprocess.TimeoutExpired:
            trouble = f"stopped after {SECONDS_MAX[name]} s"
        finally:
            end_all()
            child.wait()
        try:
            section = msgspec.json.decode(out.read_bytes(), type=Section)
        except (OSError, msgspec.DecodeError):
            section = Section(name)
    if trouble:
        section.trouble.append(trouble)
    section.seconds, section.date = time.monotonic() - began, report.now()
    return section


def end_all() -> None:
    """Kill the remaining descendants of this process."""
    deadline = time.monotonic() + 10
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def run_here(name: str, out: Path) -> int:
    """Run a section in this process; write the results even if it fails half-way."""
    section = Section(name)
    module = importlib.import_module(f"{SECTIONS}.{name}")
    run = cast("Callable[[Section], None]", module.run)
    try:
        run(section)
    except Exception as error:  # noqa: BLE001 - any error becomes part of the report
        traceback.print_exc()
        section.trouble.append(f"{type(error).__name__}: {error}".splitlines()[0])
    out.write_bytes(msgspec.json.encode(section))
    return 0


if __name__ == "__main__":
    sys.exit(main())
