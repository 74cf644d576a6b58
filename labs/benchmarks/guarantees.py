"""The cost of bandwidth guarantees: two tasks that read from another node, with and without guarantees.

They read continuously in one run, while guarantees are set and removed in turns; the rate of the sending node
counts. In one case the link is configured much faster than the machine, so that no transfer is delayed; in
the other case it is not configured, and the measured bandwidth of the link is shared.

``tests/lab/guarantees.py`` tests that guarantees are kept.
"""

from __future__ import annotations

import json
import time
from typing import Final

import trio

import dios
from dios.client.aio.node import AsyncNode
from dios.limits import MIB
from dios.wire.messages import Guarantee
from dios.wire.types import Traffic
from labs.benchmarks.cluster import BenchCluster, running_cluster
from labs.benchmarks.measure import median
from labs.benchmarks.report import Row, Section, judge, number, times

TASKS: Final = 2
READ_BYTES: Final = 16 * MIB
TURNS: Final = 12
TURN_S: Final = 1.0
SETTLE_S: Final = 0.3
"""The pause after a change of guarantees, while running transfers change their connections."""
LEASE_MS: Final = 60_000
LEAST, WANTED = 0.9, 0.97
READER: Final = b"""
import dios
node = dios.connect()
blob, end = node.inputs
while not end.read_bytes():
    for _ in range(8):
        with blob.read() as request:
            assert len(request.view) == blob.size
"""
LINKS: Final = {"a link of 64 GiB/s": "64GiB", "a link with measured bandwidth": "auto"}


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    for name, rate in LINKS.items():
        with running_cluster(2, pool_size=str(TASKS), link_rate=rate) as cluster:
            free, held, ratio = trio.run(_in_turns, cluster)
        section.figure(f"two tasks read 16 MiB each, no guarantees; {name}", free, "MB/s")
        section.figure(f"the same with guarantees; {name}", held, "MB/s")
        section.rows.append(
            Row(
                f"data path with guarantees, {name}",
                f"{number(held)} MB/s",
                f"without {number(free)} MB/s",
                times(ratio),
                judge(f"{LEAST} x without", ratio, LEAST, below=False),
                judge(f"{WANTED} x without", ratio, WANTED, below=False),
            )
        )


async def _in_turns(cluster: BenchCluster) -> tuple[float, float, float]:
    """Return the median MB per second without and with guarantees, and the median ratio of adjacent turns."""
    here, there = cluster.local.nodes
    async with dios.open_node(str(here.socket)) as node, dios.open_node(str(there.socket)) as other:
        assert node.home is not None
        end = await node.create(dios.SHMEM_BLOB, groups=[node.home], data=b"")
        tasks = []
        for task in range(TASKS):
            blob = await node.create(
                dios.SHMEM_BLOB, groups=[node.home], data=bytes(READ_BYTES), host=there.name
            )
            inputs = [blob.restrict("read"), end.restrict("read")]
            tasks.append(await node.run(READER, inputs=inputs, label=f"reader {task}", host=here.name))
        told = [
            Guarantee(row.principal, 0, row.id, 500, ((0, 10_000_000),))
            for row in (await node.board()).tasks
            if row.label.startswith("reader")
        ]
        assert len(told) == TASKS, json.dumps([row.label for row in (await node.board()).tasks])
        await _rate(other, ())
        rates: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(TURNS):
            for held in (False, True) if turn % 2 else (True, False):
                rates[held].append(await _rate(other, told if held else ()))
        await end.write_bytes(b"end")
        for reader in tasks:
            assert (await reader.wait(timeout=60)).exit_code == 0
    ratios = [held / free for free, held in zip(rates[False], rates[True], strict=True)]
    return median(rates[False]), median(rates[True]), median(ratios)


async def _rate(node: AsyncNode, told: list[Guarantee] | tuple[()]) -> float:
    """Return the MB per second that the node sends in one turn."""
    await node.govern(guarantees=told, lease_ms=LEASE_MS)
    await trio.sleep(SETTLE_S)
    began, before = time.monotonic(), await _moved(node)
    await trio.sleep(TURN_S)
    return (await _moved(node) - before) / (time.monotonic() - began) / 1e6


async def _moved(node: AsyncNode) -> int:
    return sum(meter.moved for meter in (await node.govern()).meters if meter.traffic is Traffic.OUT)
