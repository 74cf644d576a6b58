"""The bursts: each makes all its calls at once, and checks that nothing is lost, refused, or done twice."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import trio

import dios
from dios.client.aio.handles import AsyncReference
from dios.client.aio.node import AsyncNode, open_node
from dios.errors import DiosError
from dios.wire.types import Brand, NameKind, ObjectType
from labs.benchmarks.cluster import BenchCluster
from labs.benchmarks.load.watch import NODES, Neighbour, ProcessorTime

_SESSION_RUNS: Final = 100
_SESSION_OBJECTS: Final = 2_000
_OPEN_CALLS: Final = 64
_FIRST: Final = 3
_PROGRAM: Final = b"""\
import sys
with open(sys.argv[1], "a") as record:
    record.write(sys.argv[2] + "\\n")
"""
_LONG: Final = b"import time\ntime.sleep(3600)\n"
Say: TypeAlias = Callable[[str], object]


@dataclass
class Burst:
    """What became of a burst: counts, the milliseconds until each was done, and the neighbour's calls."""

    name: str
    wanted: int
    times: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    seconds: float = 0.0
    used: ProcessorTime = field(default_factory=ProcessorTime)
    neighbour: Neighbour = field(default_factory=Neighbour)

    @property
    def is_good(self) -> bool:
        """Return True if everything was done once."""
        return not (self.lost or self.twice or self.refused or self.neighbour.refused)

    @asynccontextmanager
    async def watched(self, cluster: BenchCluster, coordinator: int, say: Say) -> AsyncIterator[trio.Nursery]:
        """Time the burst, with a neighbour on the second node; what it starts ends with the body."""
        async with trio.open_nursery() as outer:
            await outer.start(self.neighbour.work, cluster, 1)
            before, began = ProcessorTime.read(cluster, coordinator), time.perf_counter()
            outer.start_soon(self._report, say)
            async with trio.open_nursery() as inner:
                yield inner
            self.seconds = time.perf_counter() - began
            self.used = ProcessorTime.read(cluster, coordinator).since(before)
            outer.cancel_scope.cancel()

    async def _report(self, say: Say) -> None:
        while True:
            await trio.sleep(2.0)
            say(f"  {self.name}: {len(self.times)} of {self.wanted}, {sum(self.refused.values())} refused")

    async def attempt(self, doing: Callable[[], Awaitable[object]]) -> bool:
        """Time one part of the burst, or record why it was refused."""
        began = time.perf_counter()
        try:
            await doing()
        except DiosError as error:
            self.refused[str(error)] += 1
            return False
        self.times.append((time.perf_counter() - began) * 1000)
        return True


@asynccontextmanager
async def _session(cluster: BenchCluster, number: int) -> AsyncIterator[AsyncNode]:
    async with open_node(cluster.local.nodes[number % NODES].socket, groups=()) as node:
        yield node


async def _blob(node: AsyncNode, data: bytes) -> AsyncReference:
    return await node.create(ObjectType.SHMEM_BLOB, data=data, naming=NameKind.ANONYMOUS)


async def runs(cluster: BenchCluster, coordinator: int, count: int, *, record: Path, say: Say) -> Burst:
    """Submit trivial runs, all at once; each leaves its number in ``record``."""
    burst = Burst("trivial runs", count)

    async def run_one(node: AsyncNode, program: AsyncReference, number: int) -> None:
        async def run() -> None:
            task = await node.run(program, args=[str(record), str(number)], brand=Brand.LIMBO, label="load")
            status = await task.wait()
            if status.exit_code != 0:
                burst.refused[f"the task failed: {status.detail}"] += 1

        await burst.attempt(run)

    async def some(first: int) -> None:
        async with _session(cluster, first // _SESSION_RUNS) as node:
            program = await node.create_program(_PROGRAM)
            async with trio.open_nursery() as nursery:
                for number in range(first, min(count, first + _SESSION_RUNS)):
                    nursery.start_soon(run_one, node, program, number)

    async with burst.watched(cluster, coordinator, say) as nursery:
        for first in range(0, count, _SESSION_RUNS):
            nursery.start_soon(some, first)
    written = Counter((await trio.Path(record).read_text()).split())
    burst.lost = count - len(written)
    burst.twice = sum(times - 1 for times in written.values())
    return burst


async def first_of_many(cluster: BenchCluster, coordinator: int, count: int, *, cpus: int, say: Say) -> Burst:
    """Submit runs of which each fills a node, and wait until the first three run; withdraw the others."""
    wanted = min(_FIRST, count)
    burst = Burst(f"first {wanted} of {count} runs with needs", wanted)
    enough = trio.Event()

    async def submit(node: AsyncNode, program: AsyncReference) -> None:
        work = dios.work(cpus=cpus)
        await burst.attempt(lambda: node.run(program, work=work, brand=Brand.LIMBO, label="long"))
        if len(burst.times) >= wanted or burst.refused:
            enough.set()

    async def some(first: int, done: trio.Event) -> None:
        async with _session(cluster, 0) as node:
            program = await node.create_program(_LONG)
            async with trio.open_nursery() as nursery:
                for _ in range(first, min(count, first + _SESSION_RUNS)):
                    nursery.start_soon(submit, node, program)
                await done.wait()
                nursery.cancel_scope.cancel()

    done = trio.Event()
    async with burst.watched(cluster, coordinator, say) as nursery:
        for first in range(0, count, _SESSION_RUNS):
            nursery.start_soon(some, first, done)
        await enough.wait()
        done.set()
    burst.lost = max(0, wanted - len(burst.times))
    return burst


async def clients(cluster: BenchCluster, coordinator: int, count: int, *, say: Say) -> Burst:
    """Let clients come, each with an object that it writes and reads, and stay until the last has come."""
    burst = Burst("clients", count)
    whole = trio.Event()

    async def client(number: int) -> None:
        async def work() -> None:
            async with _session(cluster, number) as node:
                data = f"client {number}".encode()
                own = await _blob(node, data)
                burst.lost += await own.read_bytes() != data
                burst.wanted -= 1
                if burst.wanted == 0:
                    whole.set()
                await whole.wait()

        if not await burst.attempt(work):
            burst.wanted -= 1
            if burst.wanted == 0:
                whole.set()

    async with burst.watched(cluster, coordinator, say) as nursery:
        for number in range(count):
            nursery.start_soon(client, number)
    burst.wanted = count
    return burst


async def _each(numbers: Iterable[int], doing: Callable[[int], Awaitable[None]]) -> None:
    """Do something for each number, some at a time."""
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await doing(number)

    async with trio.open_nursery() as nursery:
        for _ in range(_OPEN_CALLS):
            nursery.start_soon(work)


async def objects(cluster: BenchCluster, coordinator: int, count: int, *, say: Say) -> Burst:
    """Create objects on all nodes, and read every one of them back once all exist."""
    burst = Burst("objects", count)

    async def some(first: int) -> None:
        async with _session(cluster, first // _SESSION_OBJECTS) as node:
            numbers = range(first, min(count, first + _SESSION_OBJECTS))
            references: dict[int, AsyncReference] = {}

            async def create(number: int) -> None:
                async def make() -> None:
                    references[number] = await _blob(node, f"object {number}".encode())

                await burst.attempt(make)

            async def read(number: int) -> None:
                burst.lost += await references[number].read_bytes() != f"object {number}".encode()

            await _each(numbers, create)
            await _each(tuple(references), read)
            burst.lost += len(numbers) - len(references)

    async with burst.watched(cluster, coordinator, say) as nursery:
        for first in range(0, count, _SESSION_OBJECTS):
            nursery.start_soon(some, first)
    return burst


def percentile(values: list[float], part: float) -> float:
    """Return a percentile of unsorted values; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else math.nan
