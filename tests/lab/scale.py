"""``make lab SCALE=1``: many nodes on one machine, objects on each, lookups all the time: nothing may grow.

Not for: speed, which ``make bench`` compares with other systems; or hours, which ``make soak`` runs. It
writes what it found beside the other results. Exit status 0 when nothing grew and nothing was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import dios
from labs.benchmarks.measure import pss_kib, tree_pss_mb
from labs.benchmarks.report import now
from labs.benchmarks.soak.verdict import GROWTH_SHARE, slope
from tests.support.lab.daemons import (
    ANSWER_SECONDS,
    PORT,
    DaemonProgram,
    clusters_are_here,
    person,
    wait_agreement,
    within,
)
from tests.support.lab.machines import Lab
from tests.support.lab.namespaces import NotHereError

RESULT: Final = Path(__file__).resolve().parents[2] / "labs" / "benchmarks" / "results" / "lab.md"
BATCH: Final = 100
OBJECT_BYTES: Final = 100
SAMPLE_S: Final = 3.0
WARM_UP_SHARE: Final = 1 / 2
"""The memories of answers and the caches of names fill first, each up to its bound."""
CLIENTS: Final = 4
DESCRIPTORS_SLACK: Final = 2


@dataclass
class Run:
    """What was asked for, and what was seen."""

    nodes: int
    objects: int
    rate: int
    seconds: float
    start_s: float = 0.0
    fill_s: float = 0.0
    times_ms: list[float] = field(default_factory=list)
    missed: int = 0
    incomplete: int = 0
    memory_mb: list[tuple[float, float]] = field(default_factory=list)
    """Minutes, and the sum over all daemons."""
    descriptors: list[int] = field(default_factory=list)
    load: float = 0.0
    """The machine's load average before anything was started: what else it had to do."""
    whole_mb: float = 0.0
    """The memory of everything at the end: daemons, zygotes, waiting tasks."""

    @property
    def judged(self) -> list[tuple[float, float]]:
        """The samples after caches have filled."""
        return self.memory_mb[int(len(self.memory_mb) * WARM_UP_SHARE) :]

    @property
    def troubles(self) -> list[str]:
        """What did not hold."""
        problems = []
        judged = self.judged
        minutes = judged[-1][0] - judged[0][0]
        allowed = GROWTH_SHARE * statistics.median(value for _, value in judged)
        if slope(judged) * minutes > allowed:
            problems.append(f"memory grew by {slope(judged):.2f} MB a minute")
        late = self.descriptors[int(len(self.descriptors) * WARM_UP_SHARE) :]
        if late[-1] - late[0] > DESCRIPTORS_SLACK:
            problems.append(f"descriptors grew from {late[0]} to {late[-1]}")
        if self.missed:
            problems.append(f"{self.missed} lookups did not find their object")
        if len(self.times_ms) < 0.95 * self.rate * self.seconds:
            problems.append(
                f"only {len(self.times_ms)} lookups of {self.rate * self.seconds:g} were made in time"
            )
        return problems


def say(text: str) -> None:
    """A line for the person."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def fill(session: dios.Node, count: int) -> list[bytes]:
    """Create durable objects in the home group, many in a message; their names."""
    assert session.home is not None
    names: list[bytes] = []
    for start in range(0, count, BATCH):
        with session.batch() as batch:
            calls = [
                batch.add(session.create, dios.DURABLE_BLOB, groups=[session.home], data=bytes(OBJECT_BYTES))
                for _ in range(min(BATCH, count - start))
            ]
        for pending in calls:
            handle = pending.result()
            assert handle.name is not None
            names.append(handle.name)
            handle.close()
    return names


def look_up(sessions: list[dios.Node], names: list[bytes], run: Run, seed: int, began: float) -> None:
    """One client: look names up at its share of the rate, any name at any of its nodes, until time is up."""
    chance = random.Random(seed)  # noqa: S311 - which names are asked for shall be repeatable
    number = 0
    while (passed := time.monotonic() - began) < run.seconds:
        if (early := number * CLIENTS / run.rate - passed) > 0:
            time.sleep(early)
        session = chance.choice(sessions)
        name = chance.choice(names)
        started = time.monotonic_ns()
        handles = session.lookup(name, group=session.home, limit=1)
        run.times_ms.append((time.monotonic_ns() - started) / 1e6)
        number += 1
        run.missed += not handles
        run.incomplete += handles.incomplete
        for handle in handles:
            handle.close()


def watch(lab: Lab, run: Run, began: float) -> None:
    """Look at all daemons now and then, until time is up."""
    while (passed := time.monotonic() - began) < run.seconds:
        memory = sum(pss_kib(machine.pid) for machine in lab.nodes) * 1024 / 1e6
        run.memory_mb.append((passed / 60, memory))
        run.descriptors.append(sum(_descriptors(machine.pid) for machine in lab.nodes))
        seen = f"{memory:.1f} MB, {run.descriptors[-1]} descriptors"
        say(f"  {passed:3.0f} s  {len(run.times_ms)} lookups, {seen}")
        time.sleep(SAMPLE_S)


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def report(run: Run) -> str:
    """The page."""
    times = sorted(run.times_ms)
    judged = run.judged
    per_node = run.memory_mb[-1][1] / run.nodes
    rows = [
        ("nodes, each with its own address", f"{run.nodes}, started and agreed in {run.start_s:.1f} s"),
        ("durable objects on each", f"{run.objects:,}, made in {run.fill_s:.1f} s in all"),
        ("lookups", f"{len(times):,} in {run.seconds:g} s, any name at any node"),
        ("not found; said to be incomplete", f"{run.missed}; {run.incomplete}"),
        (
            "time of a lookup, median; 99 of 100",
            f"{times[len(times) // 2]:.2f} ms; {times[-len(times) // 100]:.2f} ms",
        ),
        ("memory of a daemon (PSS), mean", f"{per_node:.1f} MB"),
        (
            "memory of all daemons, half-way; at the end",
            f"{judged[0][1]:.1f} MB; {judged[-1][1]:.1f} MB",
        ),
        ("slope over the second half", f"{slope(judged):+.2f} MB a minute for all together"),
        ("memory of everything, zygotes and waiting tasks too", f"{run.whole_mb:.0f} MB"),
        ("descriptors of all daemons, first; last", f"{run.descriptors[0]:,}; {run.descriptors[-1]:,}"),
        ("load of the machine before it began", f"{run.load:.1f} on {len(_cpus())} CPUs"),
        ("verdict", "; ".join(run.troubles) or "nothing grew, nothing was missed"),
    ]
    text = (
        f"`make lab SCALE=1`, {now()}, on Linux {platform.release()}, {len(_cpus())} CPUs, Python "
        f"{platform.python_version()}. Real daemons in network namespaces "
        f"([the lab](../../docs/testing.md#the-test-lab)). {CLIENTS} clients, with a session at each "
        f"node, look up {run.rate} names a second. All nodes share this machine's "
        "CPUs, so the times say little about a cluster's. In the first half the memories of "
        "answers and the caches of names fill, each up to its bound; the second half is judged."
    )
    head = [f"# {run.nodes} nodes on one machine", "", text, "", "| | |", "|---|---|"]
    return "\n".join([*head, *(f"| {name} | {value} |" for name, value in rows)]) + "\n"


def _cpus() -> list[str]:
    return [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")]


def carried_out(run: Run, folder: Path) -> None:
    """Start, fill, look up; raises NotHereError."""
    clusters_are_here()
    with Lab(folder, DaemonProgram(**{"pool-size": "0"}), run.nodes) as lab, contextlib.ExitStack() as stack:
        began = time.monotonic()
        lab.start()
        wait_agreement(lab)
        run.start_s = time.monotonic() - began
        say(f"{run.nodes} nodes agree after {run.start_s:.1f} s, port {PORT}")
        sessions = [stack.enter_context(person(machine)) for machine in lab.nodes]
        began = time.monotonic()
        names: list[bytes] = []
        for session in sessions:
            names += within(ANSWER_SECONDS, partial(fill, session, run.objects))
        run.fill_s = time.monotonic() - began
        say(f"{len(names):,} objects after {run.fill_s:.1f} s")
        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [
                pool.submit(look_up, sessions[number::CLIENTS], names, run, number, began)
                for number in range(CLIENTS)
            ]
            watch(lab, run, began)
            for client in clients:
                client.result()
        run.whole_mb = sum(tree_pss_mb(machine.pid) for machine in lab.nodes)


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="make lab SCALE=1")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120, help="the second half is judged")
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    run = Run(chosen.nodes, chosen.objects, chosen.rate, chosen.seconds, load=os.getloadavg()[0])
    with tempfile.TemporaryDirectory(prefix="dios-lab-") as folder:
        try:
            carried_out(run, Path(folder))
        except NotHereError as error:
            say(f"the lab cannot be built here: {error}")
            return 1
    text = report(run)
    chosen.out.write_text(text)
    say(text)
    return 1 if run.troubles else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
