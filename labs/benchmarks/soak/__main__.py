"""The soak test, ``make soak MINUTES=30``: one node under mixed load with random kills, checked for growth.

The exit status is 1 if something grew, was wrong, or was left behind. Ctrl-C ends the run in order and judges
the points so far.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Final

from dios.host.audit.reader import verify
from dios.limits import ENDED_TASKS_KEPT
from dios.store.lmdb_store import LmdbStore
from labs.benchmarks import report
from labs.benchmarks.measure import descendants
from labs.benchmarks.nodes import BenchNode, node_in, workspace
from labs.benchmarks.run import RESULTS, adopt_orphans
from labs.benchmarks.soak import report as soak_report
from labs.benchmarks.soak.run import POOL, SoakOptions, SoakRun
from labs.benchmarks.soak.sampler import group_folders
from labs.benchmarks.soak.verdict import Soak, judge

_SAY_EVERY_S: Final = 30.0


class _ProgressLine:
    """A progress line that is rewritten on a terminal, and printed every half minute elsewhere."""

    def __init__(self) -> None:
        self._tty: Final = sys.stdout.isatty()
        self._began: Final = time.monotonic()
        self._last = float("-inf")

    def __call__(self, text: str) -> None:
        """Show a text; a text with a line end is always printed."""
        passed = time.monotonic() - self._began
        line = f"{passed / 60:5.1f} min  {text}"
        if text.endswith("\n"):
            print(("\r\033[K" if self._tty else "") + line, end="", flush=True)
        elif self._tty:
            width = os.get_terminal_size().columns
            print(f"\r\033[K{line[: width - 1]}", end="", flush=True)
        elif passed - self._last >= _SAY_EVERY_S:
            self._last = passed
            print(line, flush=True)


def main() -> int:
    """Run a soak with the options of the command line."""
    plan, out = _arguments()
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    say = _ProgressLine()
    machine = report.begin()
    with workspace() as folder:
        soak = _soak(plan, folder, say, machine)
    print(flush=True)
    why = soak_report.save(soak, out)
    for finding in soak.findings:
        if finding.grows:
            print(f"! {finding.series.name}: {finding.text}")
    print(f"{soak_report.verdict(soak)} The table is {out / 'soak.md'}." + (f" ({why})" if why else ""))
    return 0 if soak.good else 1


def _arguments() -> tuple[SoakOptions, Path]:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m labs.benchmarks.soak")
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="duration in minutes (default 30)")
    add("--interval", type=float, default=60.0, help="seconds of load between quiet points (default 60)")
    add("--clients", type=int, default=32, help="number of client processes (default 32)")
    add("--tasks", type=int, default=200, help="number of tasks that all clients keep running (default 200)")
    add("--rate", type=float, default=5.0, help="operations per second of each client (default 5)")
    add("--client-kills", type=float, default=0.3, help="clients killed per second (default 0.3)")
    add("--task-kills", type=float, default=2.0, help="tasks killed per second (default 2)")
    add(
        "--prime",
        type=int,
        default=ENDED_TASKS_KEPT + 100,
        help="number of short tasks before the load, which fill the node's memory of ended tasks",
    )
    add("--out", type=Path, default=RESULTS, help="the folder for soak.md, soak.json and soak.png")
    options = parser.parse_args()
    plan = SoakOptions(
        options.minutes * 60,
        options.interval,
        options.clients,
        options.tasks,
        options.rate,
        options.client_kills,
        options.task_kills,
        options.prime,
    )
    return plan, options.out


def _soak(plan: SoakOptions, folder: Path, say: _ProgressLine, machine: report.Report) -> Soak:
    temporary = folder / "tmp"
    temporary.mkdir()
    os.environ["TMPDIR"] = str(temporary)
    complete = False
    with node_in(folder, pool_size=str(POOL), accept_weaker_sandbox="yes", log_format="json") as node:
        run = SoakRun(plan, node, folder, say)
        try:
            run.prepare()
            run.go()
            complete = True
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            say("stopped; one more quiet point follows, then the verdict\n")
        except Exception:  # noqa: BLE001 - any error becomes part of the verdict
            run.troubles.add("the run", traceback.format_exc(limit=-6))
        seconds = run.passed_s
        try:
            run.finish()
        except Exception:  # noqa: BLE001 - any error becomes part of the verdict
            run.report(["the run's end: " + traceback.format_exc(limit=-6).replace("\n", " | ")])
        finally:
            run.end_clients()
        tree = [node.pid, *descendants(node.pid)]
        groups = group_folders(node.pid)
    run.report([*run.troubles.new(), *_check_leftovers(node, tree, groups, temporary)])
    return Soak(
        date=machine.date,
        machine=machine.machine,
        versions={name: machine.versions[name] for name in ("dios", "trio", "msgspec", "lmdb")},
        load={
            "clients": plan.clients,
            "tasks wanted": plan.tasks,
            "operations a second of a client, at most": plan.rate,
            "client kills a second": plan.client_kills,
            "task kills a second": plan.task_kills,
            "seconds between quiet points": plan.interval_s,
        },
        seconds=seconds,
        complete=complete,
        operations=run.table.done(),
        disturbances=dict(sorted(run.disturbances.items())),
        endings=dict(run.sampler.endings.most_common()),
        log=dict(run.sampler.log_messages.most_common()),
        findings=judge(run.points),
        troubles=run.trouble_lines,
        points=run.points,
    )


def _check_leftovers(node: BenchNode, tree: list[int], groups: list[Path], temporary: Path) -> list[str]:
    """Return the problems after the node has ended: anything left behind, and damaged files."""
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in tree if _is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    leftovers = [f"left behind: {len(alive)} processes of the node"] if alive else []
    for path in groups:
        if path.exists():
            leftovers.append(f"left behind: the control group {path.name}")
            for folder in (*path.glob("task-*"), path):
                with contextlib.suppress(OSError):
                    folder.rmdir()
    leftovers += [f"left behind: {path.name} among the temporary files" for path in temporary.iterdir()]
    left = [name for name in ("node.sock", "node.pid") if (node.data / name).exists()]
    leftovers += [f"left behind: {name}" for name in left]
    audit = verify(node.data / "audit")
    leftovers += [] if audit.ok else [f"the audit log is damaged: {audit.problem}"]
    files = {path.name for path in (node.data / "extents").glob("*/*")}
    store = LmdbStore(node.data)
    try:
        list(store.recover())
        damaged, named = list(store.damaged), store.usage()["extents"]
    finally:
        store.close()
    leftovers += [f"the store is damaged: {text}" for text in damaged]
    leftovers += (
        [f"left behind: {len(files)} extent files for {named} extents"] if len(files) != named else []
    )
    return leftovers


def _is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


if __name__ == "__main__":
    sys.exit(main())
