"""``make lab RATES=1``: a greedy user and a modest one on a thin link, without rates and with them.

Not for: deciding rates, which is the coordinator's; here a few lines tell them, once a second. It writes what
it found beside the other results. Exit status 0 when the modest one got with rates what it wanted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

import dios
from dios.client.aio.node import AsyncNode
from dios.wire.messages import Rate
from dios.wire.types import Traffic
from labs.benchmarks.report import now
from tests.support.lab.daemons import DaemonProgram, clusters_are_here, wait_agreement
from tests.support.lab.machines import Lab, Machine
from tests.support.lab.namespaces import NotHereError, killed_with_parent, run
from tests.support.node.running_node import wait_until

RESULT: Final = Path(__file__).resolve().parents[2] / "labs" / "benchmarks" / "results" / "rates.md"
READER: Final = Path(__file__).resolve().parents[1] / "support" / "programs" / "lab_reader.py"
GREEDY, MODEST = 4001, 4002
"""Users of the machine; nobody need know them."""
LINK_MBIT: Final = 80
CAPACITY: Final = 9_000_000
"""Bytes a second of contents that are told to fit on the link, a little less than do."""
GREEDY_CONNECTIONS: Final = 4
GREEDY_BYTES: Final = 16 << 20
MODEST_BYTES: Final = 1 << 20
MODEST_EVERY_MS: Final = 350
MODEST_WANTS: Final = MODEST_BYTES * 1000 / MODEST_EVERY_MS
LEASE_MS: Final = 5_000
CONTROL_S: Final = 1.0
USE_KEPT: Final = 4
SETTLE_S: Final = 4.0
"""Before it is measured: a coordinator looks once a second, and tells rates of what it saw before."""
PHASES: Final = ("without rates", "with rates", "after the lease")
COORDINATED: Final = "by the coordinator"
LOADED_S: Final = 300
"""The first time its kernels are compiled, a coordinator takes a minute of processor time to begin."""


@dataclass
class Phase:
    """What was moved in so many seconds, in bytes a second, and how long the modest one's readings took."""

    seconds: float
    greedy: float
    modest: float
    times_ms: list[float]
    told: list[int] = field(default_factory=list)
    """The greedy one's rate, as it was told each second."""


@contextlib.contextmanager
def reader(machine: Machine, host: Machine, uid: int, *arguments: int) -> Iterator[subprocess.Popen[str]]:
    """A user's process on a machine that reads from ``host``; ends with its standard input."""
    words = [str(word) for word in (sys.executable, READER, machine.socket, host.name, *arguments)]
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    process = subprocess.Popen(
        killed_with_parent(machine.space.inside(*user, *words)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=machine.environment(),
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n", "the user's process could not begin"
        yield process
        process.stdin.close()
        process.wait(30)
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


async def moved(node: AsyncNode) -> dict[str, int]:
    """What the node has sent for each, since it started."""
    answer = await node.govern()
    return {meter.principal: meter.moved for meter in answer.meters if meter.traffic is Traffic.OUT}


async def govern(node: AsyncNode, told: list[int]) -> None:
    """Tell rates each second: half of the link for each, and to the greedy one what the other leaves.

    That is by the most it moved in one of the last seconds: one that is slowed down leaves nothing by that.
    """
    before = await moved(node)
    used: deque[float] = deque((CAPACITY / 2,), maxlen=USE_KEPT)
    while True:
        after = await moved(node)
        told.append(round(CAPACITY / 2 + max(0.0, CAPACITY / 2 - max(used))))
        before, passed = after, after.get(f"uid:{MODEST}", 0) - before.get(f"uid:{MODEST}", 0)
        used.append(passed / CONTROL_S)
        rates = (
            Rate(f"uid:{GREEDY}", Traffic.OUT, told[-1]),
            Rate(f"uid:{MODEST}", Traffic.OUT, CAPACITY // 2),
        )
        await node.govern(rates=rates, lease_ms=LEASE_MS)
        await trio.sleep(CONTROL_S)


async def phase(
    place: str, readers: tuple[subprocess.Popen[str], subprocess.Popen[str]], seconds: float, *, ruled: bool
) -> Phase:
    """Let both read so long."""
    told: list[int] = []
    async with dios.open_node(place, groups=()) as node, trio.open_nursery() as nursery:
        if ruled:
            nursery.start_soon(govern, node, told)
        for process in readers:
            assert process.stdin is not None
            process.stdin.write(f"{SETTLE_S + seconds + 1}\n")
            process.stdin.flush()
        await trio.sleep(SETTLE_S)
        before, began, told_before = await moved(node), time.monotonic(), len(told)
        await trio.sleep(seconds)
        after, passed = await moved(node), time.monotonic() - began
        told = told[max(0, told_before - 1) :]
        lines: list[str] = []
        for process in readers:
            assert process.stdout is not None
            lines.append(await trio.to_thread.run_sync(process.stdout.readline))
        nursery.cancel_scope.cancel()
    rate = {
        uid: (after.get(f"uid:{uid}", 0) - before.get(f"uid:{uid}", 0)) / passed for uid in (GREEDY, MODEST)
    }
    return Phase(passed, rate[GREEDY], rate[MODEST], json.loads(lines[1]), told)


def shape(machine: Machine) -> None:
    """Let a machine's cable carry so much and no more; raises NotHereError where the kernel cannot."""
    words = f"tc qdisc add dev eth0 root tbf rate {LINK_MBIT}mbit burst 64kb latency 50ms"
    run(machine.space.inside(*words.split()))


Reading = Callable[[bool], Phase]


@contextlib.contextmanager
def site(folder: Path, seconds: float, coordinator: str) -> Iterator[tuple[Machine, Reading]]:
    """Two nodes and two users who read of the second; what they read, with rates told here or without."""
    clusters_are_here()
    folder.mkdir()
    folder.chmod(0o755)
    program = DaemonProgram(
        **{"pool-size": "0", "allowed-uids": f"{GREEDY},{MODEST}", "link-rate": str(CAPACITY)},
        coordinator=coordinator,
    )
    with Lab(folder, program, 2) as lab, contextlib.ExitStack() as stack:
        here, there = lab.nodes
        shape(there)
        lab.start()
        wait_agreement(lab)
        readers = (
            stack.enter_context(reader(here, there, GREEDY, GREEDY_CONNECTIONS, GREEDY_BYTES, 0)),
            stack.enter_context(reader(here, there, MODEST, 1, MODEST_BYTES, MODEST_EVERY_MS)),
        )
        yield there, lambda ruled: trio.run(partial(phase, str(there.socket), readers, seconds, ruled=ruled))


def carried_out(folder: Path, seconds: float) -> dict[str, Phase]:
    """Two nodes, two users, and each phase one after another; raises NotHereError."""
    folder.chmod(0o755)
    phases: dict[str, Phase] = {}
    with site(folder / "without", seconds, "off") as (_, read):
        for name in PHASES:
            ruled = name == "with rates"
            phases[name] = read(ruled)
            if ruled:
                time.sleep(LEASE_MS / 1000)
    with site(folder / "with", seconds, "on") as (there, read):
        wait_until(lambda: scheduled(str(there.socket)), "a coordinator governs", LOADED_S)
        phases[COORDINATED] = read(False)
    return phases


def scheduled(place: str) -> bool:
    """Whether somebody schedules for a node."""
    with dios.connect(place, groups=()) as node, contextlib.suppress(dios.DiosError):
        return bool(json.loads(node.ask_scheduler(b'{"ask": "shares"}'))["ok"])
    return False


def report(phases: dict[str, Phase], load: float) -> str:
    """The page."""
    text = (
        f"`make lab RATES=1`, {now()}, on Linux {platform.release()}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}, load {load:.1f} before it began. Two nodes in network namespaces, and "
        f"a link of {LINK_MBIT} Mbit/s from the second to the first ([rates](../../docs/shares.md)). A "
        "greedy "
        f"user has {GREEDY_CONNECTIONS} connections that read {GREEDY_BYTES >> 20} MiB each, one time after "
        f"another; a modest one reads {MODEST_BYTES >> 20} MiB every {MODEST_EVERY_MS} ms: "
        f"{MODEST_WANTS / 1e6:.1f} MB/s, less than half of the {CAPACITY / 1e6:.1f} MB/s that are told to be "
        "there. With rates, a few lines tell them once a second by `Govern`: half for each, and to the "
        f"greedy one what the other leaves. The lease is {LEASE_MS} ms. At last nobody tells rates but the "
        "coordinator of a cluster, by EDRF over what the nodes measure."
    )
    lines = [
        f"# A greedy user and a modest one on {LINK_MBIT} Mbit/s",
        "",
        text,
        "",
        "| | seconds | greedy, MB/s | told | modest, MB/s | of what it wants | its readings: median, worst |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, timed_phase in phases.items():
        told = f"{statistics.mean(timed_phase.told) / 1e6:.2f}" if timed_phase.told else "none"
        times = sorted(timed_phase.times_ms)
        lines.append(
            f"| {name} | {timed_phase.seconds:.1f} | {timed_phase.greedy / 1e6:.2f} | {told} | "
            f"{timed_phase.modest / 1e6:.2f} | "
            f"{timed_phase.modest / MODEST_WANTS:.0%} | {statistics.median(times):.0f} ms, "
            f"{times[-1]:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="make lab RATES=1")
    parser.add_argument("--seconds", type=float, default=20, help="of each phase")
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="dios-lab-") as folder:
        try:
            phases = carried_out(Path(folder), chosen.seconds)
        except NotHereError as error:
            sys.stdout.write(f"the lab cannot be built here: {error}\n")
            return 1
    text = report(phases, load)
    chosen.out.write_text(text)
    sys.stdout.write(text)
    kept = min(phases["with rates"].modest, phases[COORDINATED].modest)
    return 0 if kept > 0.9 * MODEST_WANTS else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
