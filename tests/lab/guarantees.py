"""``make lab GUARANTEES=1``: tasks with guarantees beside a greedy user on a thin link, second by second.

Not for: deciding guarantees, which is the coordinator's; here a few lines tell them, once a second. It writes
what it found beside the other results. Exit status 0 when every second kept what was guaranteed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

import dios
from dios.client.aio.node import AsyncNode, AsyncTask
from dios.wire.messages import Guarantee
from dios.wire.types import Traffic
from labs.benchmarks.report import now
from tests.lab.rates import CAPACITY, GREEDY, GREEDY_BYTES, GREEDY_CONNECTIONS, LINK_MBIT, reader, shape
from tests.support.lab.daemons import DaemonProgram, clusters_are_here, wait_agreement
from tests.support.lab.machines import Lab, Machine
from tests.support.lab.namespaces import NotHereError

RESULT: Final = Path(__file__).resolve().parents[2] / "labs" / "benchmarks" / "results" / "guarantees.md"
ME: Final = f"uid:{os.geteuid()}"
MB: Final = 1_000_000
SMALL: Final = 4003
"""A second greedy user, who reads what fits inside messages."""
SMALL_CONNECTIONS: Final = 6
SMALL_BYTES: Final = 24_000
LEASE_MS: Final = 5_000
TELL_S: Final = 1.0
LOOK_S: Final = 0.02
SETTLE_S: Final = 3.0
PHASE_S: Final = 4
TASK: Final = b"""
import json, time, dios
node = dios.connect()
blob = node.inputs[0]
for begin, end, size, every_s in json.loads(node.arguments[0]):
    due = begin
    while (now := time.time()) < end:
        if due > now:
            time.sleep(due - now)
        due = max(due, now) + every_s
        with blob.read(size=size) as request:
            assert len(request.view) == size
"""


@dataclass(frozen=True)
class Part:
    """What a task does and may count on for ``PHASE_S`` seconds; it reads so many bytes at a time."""

    guarantee: int = 0
    reads: int = 0
    every_s: float = 0.0

    def least(self) -> float:
        """What it must get: the smaller of its guarantee and its demand."""
        if not self.reads:
            return 0.0
        return min(self.guarantee, self.reads / self.every_s if self.every_s else float("inf"))


ALWAYS: Final = 4 << 20
PLAN: Final = {
    "steps": (
        Part(3 * MB, ALWAYS),
        Part(5 * MB, ALWAYS),
        Part(2 * MB, ALWAYS),
        Part(5 * MB),
        Part(5 * MB, ALWAYS),
    ),
    "modest": (
        Part(3 * MB, MB, 0.5),
        Part(3 * MB),
        Part(3 * MB, MB, 0.5),
        Part(3 * MB, ALWAYS),
        Part(),
    ),
}
"""Two tasks, each of them with one phase after another; both have weight 0: what is lent is not theirs."""


USERS: Final = {f"uid:{GREEDY}": "greedy", f"uid:{SMALL}": "small"}


@dataclass
class Found:
    """What was moved for each over time: seconds since the beginning, and bytes."""

    times: list[float] = field(default_factory=list)
    moved: dict[str, list[int]] = field(default_factory=dict)

    def between(self, who: str, begin: float, end: float) -> float:
        """Bytes a second in between."""
        rows = self.moved[who]
        first, last = (max(0, bisect_right(self.times, at) - 1) for at in (begin, end))
        return (rows[last] - rows[first]) / (self.times[last] - self.times[first])

    def link(self, begin: float, end: float) -> float:
        """The same of all together."""
        return sum(self.between(who, begin, end) for who in self.moved)

    def back_ms(self, who: str, begin: float, rate: float) -> float:
        """How long after ``begin`` it first had so much over a tenth of a second, that tenth not counted."""
        for at in self.times:
            if begin <= at < self.times[-1] - 0.2 and self.between(who, at, at + 0.1) >= 0.95 * rate:
                return (at - begin) * 1000
        return float("inf")


async def look(node: AsyncNode, traffic: Traffic, names: dict[int, str]) -> dict[str, int]:
    """What the node has moved for each task, and for the greedy users."""
    moved = dict.fromkeys((*names.values(), *USERS.values()), 0)
    for meter in (await node.govern()).meters:
        who = names.get(meter.task) or USERS.get(meter.principal, "")
        if meter.traffic is traffic and who:
            moved[who] += meter.moved
    return moved


async def watch(place: str, traffic: Traffic, names: dict[int, str], began: float, observed: Found) -> None:
    """Look again and again."""
    async with dios.open_node(place, groups=()) as node:
        observed.moved.update({name: [] for name in (*PLAN, *USERS.values())})
        while True:
            moved = await look(node, traffic, names)
            observed.times.append(time.time() - began)
            for name, rows in observed.moved.items():
                rows.append(moved[name])
            await trio.sleep(LOOK_S)


async def tell(place: str, hosts: tuple[str, ...], names: dict[int, str], began: float) -> None:
    """Tell both nodes each second what is guaranteed in the seconds that come."""
    async with dios.open_node(place, groups=()) as node:
        while True:
            passed = time.time() - began
            told = []
            for task, name in names.items():
                steps = [
                    (max(0, round((at * PHASE_S - passed) * 1000)), part.guarantee)
                    for at, part in enumerate(PLAN[name])
                    if (at + 1) * PHASE_S > passed and at * PHASE_S - passed < LEASE_MS / 1000
                ]
                told.append(Guarantee(ME, 0, task, 0, tuple(steps)))
            for host in hosts:
                await node.govern(host, guarantees=told, lease_ms=LEASE_MS)
            await trio.sleep(TELL_S)


async def begun(
    node: AsyncNode, host: str, target: str, began: float
) -> tuple[dict[int, str], dict[str, AsyncTask]]:
    """Start the tasks on a node, to read of another; their names by their ids, and they by their names."""
    tasks: dict[str, AsyncTask] = {}
    for name, parts in PLAN.items():
        plan = [
            (began + at * PHASE_S, began + (at + 1) * PHASE_S, part.reads, part.every_s)
            for at, part in enumerate(parts)
            if part.reads
        ]
        assert node.home is not None
        blob = await node.create(dios.SHMEM_BLOB, groups=[node.home], data=bytes(ALWAYS), host=target)
        tasks[name] = await node.run(
            TASK, inputs=[blob.restrict("read")], args=[json.dumps(plan)], label=name, host=host
        )
    rows = (await node.board(host)).tasks
    return {row.id: row.label for row in rows if row.label in tasks}, tasks


async def played(here: Machine, there: Machine, users: list[subprocess.Popen[str]]) -> dict[str, Found]:
    """All phases; what the sending node and the receiving one saw."""
    seconds = PHASE_S * max(map(len, PLAN.values()))
    began = time.time() + SETTLE_S
    for process in users:
        assert process.stdin is not None
        process.stdin.write(f"{SETTLE_S + seconds + 1}\n")
        process.stdin.flush()
    observed = {"sent": Found(), "received": Found()}
    async with dios.open_node(str(here.socket)) as node, trio.open_nursery() as nursery:
        names, tasks = await begun(node, here.name, there.name, began)
        nursery.start_soon(tell, str(there.socket), (here.name, there.name), names, began)
        nursery.start_soon(watch, str(there.socket), Traffic.OUT, names, began, observed["sent"])
        nursery.start_soon(watch, str(here.socket), Traffic.IN, names, began, observed["received"])
        for name, task in tasks.items():
            status = await task.wait(timeout=SETTLE_S + seconds + 30)
            said = b"".join([part async for part in await task.console()])
            assert status.exit_code == 0, f"{name}: {said.decode()}"
        await trio.sleep(max(0.0, began + seconds + 0.5 - time.time()))
        nursery.cancel_scope.cancel()
    for process in users:
        assert process.stdout is not None
        await trio.to_thread.run_sync(process.stdout.readline)
    return observed


def carried_out(folder: Path) -> dict[str, Found]:
    """Two nodes, a greedy user, and the tasks; raises NotHereError."""
    clusters_are_here()
    folder.chmod(0o755)
    program = DaemonProgram(
        **{"pool-size": "2", "allowed-uids": f"{GREEDY},{SMALL}", "link-rate": str(CAPACITY)},
        coordinator="off",
    )
    with Lab(folder, program, 2) as lab, contextlib.ExitStack() as stack:
        here, there = lab.nodes
        shape(there)
        lab.start()
        wait_agreement(lab)
        users = [
            stack.enter_context(reader(here, there, GREEDY, GREEDY_CONNECTIONS, GREEDY_BYTES, 0)),
            stack.enter_context(reader(here, there, SMALL, SMALL_CONNECTIONS, SMALL_BYTES, 0)),
        ]
        return trio.run(partial(played, here, there, users))


def seconds_of(name: str) -> Iterator[tuple[int, Part]]:
    """The seconds in which a task has a demand, but the first of each phase, in which it changes."""
    for at, part in enumerate(PLAN[name]):
        if part.reads:
            for second in range(1, PHASE_S):
                yield at * PHASE_S + second, part


def kept(observed: Found) -> list[str]:
    """What was not kept, in words; a second is let off by 5 %."""
    wrong = []
    for name in PLAN:
        for second, part in seconds_of(name):
            rate = observed.between(name, second, second + 1)
            if rate < 0.95 * part.least():
                wrong.append(f"second {second}: {name} got {rate / MB:.2f} of {part.least() / MB:.2f} MB/s")
    for second in range(1, PHASE_S * max(map(len, PLAN.values()))):
        rate = observed.link(second, second + 1)
        if rate > 1.05 * CAPACITY:
            wrong.append(f"second {second}: {rate / MB:.2f} MB/s are over what the link carries")
        if rate < 0.9 * CAPACITY:
            wrong.append(f"second {second}: {rate / MB:.2f} MB/s, with the greedy user hungry")
    return wrong


def report(observed: dict[str, Found], load: float) -> str:
    """The page."""
    sent, came = observed["sent"], observed["received"]
    text = (
        f"`make lab GUARANTEES=1`, {now()}, on Linux {platform.release()}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}, load {load:.1f} before it began. Two nodes in network namespaces, and "
        f"a link of {LINK_MBIT} Mbit/s from the second to the first, of which {CAPACITY / MB:.0f} MB/s are "
        f"told to be there ([guarantees](../../docs/shares.md)). A greedy user has {GREEDY_CONNECTIONS} "
        f"connections that read {GREEDY_BYTES >> 20} MiB each, time after time; another, `small`, has "
        f"{SMALL_CONNECTIONS} that read {SMALL_BYTES / 1000:.0f} kB, inside messages, which are counted "
        "by the node that sends alone. Two tasks, `steps` and "
        f"`modest`, read too, in phases of {PHASE_S} s; their guarantees have weight 0, so they have no part "
        "in what is left. All figures are MB/s over one second, as counted by the node that sends; in "
        "brackets by the one that receives."
    )
    lines = ["# Guarantees beside greedy users", "", text, ""]
    lines += [
        "| second | steps: guarantee, wants | got | modest: guarantee, wants | got | greedy | small | link |"
    ]
    lines += ["|---:|---|---:|---|---:|---:|---:|---:|"]
    for second in range(PHASE_S * max(map(len, PLAN.values()))):
        row = [str(second)]
        for name, parts in PLAN.items():
            part = parts[second // PHASE_S]
            wants = "nothing"
            if part.reads:
                wants = f"{part.reads / part.every_s / MB:.1f}" if part.every_s else "all"
            row.append(f"{part.guarantee / MB:.0f}, {wants}")
            row.append(_both(sent, came, second, lambda side, at, name=name: side.between(name, at, at + 1)))  # type: ignore[misc]
        row.append(_both(sent, came, second, lambda side, at: side.between("greedy", at, at + 1)))
        row.append(f"{sent.between('small', second, second + 1) / MB:.2f}")
        row.append(f"{sent.link(second, second + 1) / MB:.2f}")
        lines.append(f"| {' | '.join(row)} |")
    back = sent.back_ms("steps", 4 * PHASE_S, PLAN["steps"][4].guarantee)
    wrong = kept(sent)
    lines += ["", f"Taken back: `steps`, idle for {PHASE_S} s, has its guarantee again {back:.0f} ms after"]
    lines[-1] += f" it begins to read (looked at every {LOOK_S * 1000:.0f} ms)."
    lines += ["", "Not kept: " + ("; ".join(wrong) if wrong else "nothing") + "."]
    return "\n".join(lines) + "\n"


def _both(sent: Found, came: Found, second: int, rate: Callable[[Found, float], float]) -> str:
    return f"{rate(sent, second) / MB:.2f} ({rate(came, second) / MB:.2f})"


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="make lab GUARANTEES=1")
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="dios-lab-") as folder:
        try:
            observed = carried_out(Path(folder))
        except NotHereError as error:
            sys.stdout.write(f"the lab cannot be built here: {error}\n")
            return 1
    text = report(observed, load)
    chosen.out.write_text(text)
    sys.stdout.write(text)
    return 1 if kept(observed["sent"]) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
