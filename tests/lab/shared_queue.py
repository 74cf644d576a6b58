"""``make lab QUEUE=1``: three users with runs of mixed sizes on two nodes, for MINUTES (30).

A stream of small runs asks for more than the cluster has, one user wants a whole node from time to time, and
one submits runs of both sizes. Whoever has nothing and waits must start within the longest run and a margin.
Exit status 0 when all did.

Not for: the order among users, which ``python -m labs.sim --queues`` checks under all cost models.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import trio

import dios
from dios.client.aio.node import AsyncNode, open_node
from labs.benchmarks.report import now
from tests.support.node.command_user import Person
from tests.support.node.other_users import as_user
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import is_attended

RESULT: Final = Path(__file__).resolve().parents[2] / "labs" / "benchmarks" / "results" / "shared-queue.md"
NODE_CPUS: Final = len(os.sched_getaffinity(0))
STREAM, LARGE, MIXED = 65_528, 65_527, 65_526
"""Users of the machine; nobody need know them."""
LONGEST_S: Final = 20
MARGIN_S: Final = 15.0
"""A round of the scheduler, two starts, and what a busy machine adds."""
STREAM_PAUSE_S: Final = 0.7 * LONGEST_S / (2 * NODE_CPUS)
STREAM_AT_ONCE: Final = 16 * NODE_CPUS
"""Runs of the stream that wait or run, so that all of them end some minutes after the last one."""
LARGE_PAUSE_S: Final = 5.0
MIXED_AT_ONCE: Final = 3
LOADED_S: Final = 900
"""The first time its kernels are compiled, a coordinator takes a minute of processor time to begin."""
T = TypeVar("T")

PROGRAM: Final = b"import sys, time\ntime.sleep(float(sys.argv[1]))\n"


class Start(msgspec.Struct, frozen=True):
    """A run that started: its user's role, its processors, and the seconds that it waited."""

    role: str
    cpus: int
    waited: float


class User:
    """A user who submits runs until a moment, and notes when each starts."""

    def __init__(self, socket: Path, until: float, notes: Path, role: str) -> None:
        self._socket: Final = socket
        self._until: Final = until
        self._notes: Final = notes
        self._role: Final = role
        self._random: Final = random.Random(role)  # noqa: S311 - the sizes of runs

    def live(self) -> None:
        """Play the role."""
        trio.run({"stream": self._stream, "large": self._large, "mixed": self._mixed}[self._role])

    async def _run(self, node: AsyncNode, cpus: int, seconds: float, bound: float) -> None:
        asked = time.monotonic()
        work = dios.work(cpus=cpus, time=bound)
        task = await _patiently(lambda: node.run(PROGRAM, args=[str(seconds)], label=self._role, work=work))
        start = Start(self._role, cpus, time.monotonic() - asked)
        with self._notes.open("ab") as file:
            file.write(msgspec.json.encode(start) + b"\n")
        await _patiently(lambda: task.wait())  # noqa: PLW0108 - it takes an optional time

    async def _stream(self) -> None:
        """Small runs that together ask for more than there is."""
        room = trio.Semaphore(STREAM_AT_ONCE)

        async def small(node: AsyncNode) -> None:
            seconds = self._random.uniform(LONGEST_S / 2, LONGEST_S - 2)
            await self._run(node, 1, seconds, LONGEST_S)
            room.release()

        async with open_node(self._socket, groups=()) as node, trio.open_nursery() as nursery:
            while time.monotonic() < self._until:
                await room.acquire()
                nursery.start_soon(small, node)
                await trio.sleep(STREAM_PAUSE_S)

    async def _large(self) -> None:
        """One run that needs a whole node, one time after another."""
        async with open_node(self._socket, groups=()) as node:
            while time.monotonic() < self._until:
                await self._run(node, NODE_CPUS, LONGEST_S / 2, LONGEST_S)
                await trio.sleep(LARGE_PAUSE_S)

    async def _mixed(self) -> None:
        """Runs of both sizes, a few at a time, whose ends nobody knows before."""

        async def some(node: AsyncNode) -> None:
            while time.monotonic() < self._until:
                cpus = self._random.choice((1, 1, NODE_CPUS))
                await self._run(node, cpus, self._random.uniform(3, LONGEST_S - 2), 0)

        async with open_node(self._socket, groups=()) as node, trio.open_nursery() as nursery:
            for _ in range(MIXED_AT_ONCE):
                nursery.start_soon(some, node)


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that gets no answer in time, as on a busy machine."""
    while True:
        try:
            return await call()
        except dios.UnreachableError:
            await trio.sleep(1)


def carried_out(folder: Path, minutes: float) -> tuple[list[Start], int]:
    """Let the users work; return what started, and the number of users whose runs did not all end."""
    home, nodes, notes = folder / "home", folder / "nodes", folder / "notes"
    home.mkdir()
    notes.mkdir(mode=0o777)
    notes.chmod(0o777)
    someone = Person(home)
    del someone.environment["DIOS_COORDINATOR"]
    users = {"stream": STREAM, "large": LARGE, "mixed": MIXED}
    allowed = ",".join(map(str, users.values()))
    someone.types(f"dios up --nodes 2 --keep --dir {nodes} --pool-size 1 --allowed-uids {allowed}")
    try:
        for place in (nodes, nodes / "n1"):
            place.chmod(0o711)
        wait_until(lambda: is_attended(someone), "both nodes are attended to", LOADED_S)
        until = time.monotonic() + 60 * minutes
        socket = nodes / "n1" / "node.sock"
        children = {
            role: as_user(uid, User(socket, until, notes / role, role).live) for role, uid in users.items()
        }
        ends = _waited(children, until + 60 * LONGEST_S)
    finally:
        someone.types(f"dios down --dir {nodes}")
    lines = [line for file in notes.iterdir() for line in file.read_bytes().splitlines()]
    return [msgspec.json.decode(line, type=Start) for line in lines], ends


def _waited(children: dict[str, int], until: float) -> int:
    """Wait for the ends of users; return the number of those who failed or did not end."""
    bad = 0
    left = dict(children)
    shown = time.monotonic()
    while left and time.monotonic() < until:
        for role, pid in list(left.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del left[role]
                bad += status != 0
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            sys.stdout.write(f"{(until - shown - 60 * LONGEST_S) / 60:.0f} minutes are left\n")
            sys.stdout.flush()
        time.sleep(0.5)
    for pid in left.values():
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return bad + len(left)


def late(starts: Iterable[Start]) -> list[Start]:
    """Return the runs of the user within his right that waited too long."""
    return [start for start in starts if start.role == "large" and start.waited > LONGEST_S + MARGIN_S]


def report(starts: list[Start], minutes: float, failed: int) -> str:
    """The page."""
    text = (
        f"`make lab QUEUE=1`, {now()}, on Linux {platform.release()}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}, {minutes:g} minutes under the default settings. The stream asks for "
        f"more than there is in runs of one processor. *large* holds nothing and wants a whole node, and "
        f"must start within the longest run of {LONGEST_S} s and {MARGIN_S:g} s. *mixed* has {MIXED_AT_ONCE} "
        "runs of both sizes, and says of none when it ends."
    )
    lines = [
        f"# Three users on two nodes of {NODE_CPUS} processors",
        "",
        text,
        "",
        "| user | processors | runs | median wait, s | 99th percentile | longest |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for role, cpus in sorted({(start.role, start.cpus) for start in starts}):
        waits = sorted(start.waited for start in starts if (start.role, start.cpus) == (role, cpus))
        high = waits[min(len(waits) - 1, int(0.99 * len(waits)))]
        figures = " | ".join(f"{wait:.1f}" for wait in (statistics.median(waits), high, waits[-1]))
        lines.append(f"| {role} | {cpus} | {len(waits)} | {figures} |")
    verdict = f"Of *large*, {len(late(starts))} runs waited longer than they may."
    lines += ["", f"{verdict} The runs of {3 - failed} of 3 users all ended."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="make lab QUEUE=1")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    if os.getuid():
        sys.stdout.write("only root can become other users\n")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="dios-lab-"))
    folder.chmod(0o711)
    try:
        starts, failed = carried_out(folder, chosen.minutes)
    finally:
        shutil.rmtree(folder)
    text = report(starts, chosen.minutes, failed)
    chosen.out.write_text(text)
    sys.stdout.write(text)
    return 1 if failed or late(starts) or not starts else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
