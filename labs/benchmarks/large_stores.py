"""Costs against the size of a store: large blobs next to a small call, and nodes with many durable objects.

An exponent is the slope of a line through the logarithms of size and cost: 0 is flat, 1 is linear.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

import lmdb
import numpy as np

import dios
from dios.core.events import ObjectRecord
from dios.ids import Name, ObjectId, Principal
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import InlinePayload, Put
from dios.wire.types import Buffering, Deletion, ObjectType
from labs.benchmarks.measure import clock, interleaved
from labs.benchmarks.nodes import node_in, running_node, workspace
from labs.benchmarks.report import Row, Section, judge, number, times

MEGABYTE: Final = 1 << 20
BLOBS: Final = tuple(int(text) for text in os.environ.get("BENCH_BLOBS_MB", "64,256,1024").split(","))
OBJECTS: Final = tuple(
    int(text) for text in os.environ.get("BENCH_OBJECTS", "10000,100000,1000000").split(",")
)
VALUE_BYTES: Final = 100
_BATCH: Final = 10_000
_CALLS: Final = 200
_TURNS: Final = 5


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    _large_blobs(section)
    _many_objects(section)


def exponent(costs: dict[int, float]) -> float:
    """Return the slope of the line through the logarithms of sizes and costs."""
    if len(costs) < 2 or min(costs.values()) <= 0:
        return float("nan")
    return float(np.polyfit(np.log(list(costs)), np.log(list(costs.values())), 1)[0])


# -- large blobs ------------------------------------------------------------------------------------
def _large_blobs(section: Section) -> None:
    waits: dict[str, dict[int, float]] = {}
    bare: dict[int, float] = {}
    with running_node() as bench:
        for size in BLOBS:
            for kind in (dios.SHMEM_BLOB, dios.DURABLE_BLOB):
                for usage, wait, echoed, taken in _disturbances(bench.data, kind, size * MEGABYTE):
                    name = f"{usage} of a {kind.name.lower()}"
                    waits.setdefault(name, {})[size] = wait * 1e3
                    section.figure(f"{name} of {size} MB: longest wait of a stat", wait * 1e3, "ms")
                    section.figure(f"{name} of {size} MB: longest wait of a bare echo", echoed * 1e3, "ms")
                    section.figure(f"{name} of {size} MB: duration", taken, "s")
                    bare[size] = max(bare.get(size, 0), echoed * 1e3)
    for name, costs in waits.items():
        section.figure(f"longest wait of a stat, {name}: exponent", exponent(costs), "")
    slopes = [exponent(costs) for costs in waits.values()]
    section.rows.append(
        Row(
            "longest wait of a stat while another client uses a large blob",
            f"{number(max(max(costs.values()) for costs in waits.values()))} ms",
            f"a bare echo between two processes meanwhile: {number(max(bare.values()))} ms; stat: "
            + "; ".join(f"{name} {number(costs[max(costs)])} ms" for name, costs in waits.items()),
            f"MB^{number(min(slopes))} to MB^{number(max(slopes))}",
            least=judge("5 ms at any size", max(max(costs.values()) for costs in waits.values()), 5),
        )
    )


def _disturbances(data: Path, kind: ObjectType, size: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield each kind of use of a large blob, its longest waits of a stat and of an echo, and its seconds.

    The echo between two bare processes shows the waits for a processor.
    """
    # A process of its own: the work of the writer's interpreter must not delay the innocent client.
    context = multiprocessing.get_context("fork")
    commands, results = context.SimpleQueue(), context.SimpleQueue()

    def work() -> None:
        with dios.connect(data, groups=[]) as node:
            steps = _uses(node, kind, size)
            results.put("")
            while commands.get():
                results.put(next(steps))
        os._exit(0)

    child = context.Process(target=work, daemon=True)
    child.start()
    results.get()
    near, far = socket.socketpair()
    echo = context.Process(target=_echo, args=(far,), daemon=True)
    echo.start()
    with near, dios.connect(data, groups=[]) as innocent:
        small = innocent.create(dios.SHMEM_BLOB, groups=[innocent.create_group()], data=b"x")
        for _ in range(100):
            small.stat()
        for _ in range(4):
            quiet = threading.Event()
            usages: list[str] = []

            def wait(received: list[str] = usages, quiet: threading.Event = quiet) -> None:
                commands.put(1)
                received.append(results.get())
                quiet.set()

            waiter = threading.Thread(target=wait)
            began = clock()
            waiter.start()
            worst = {"stat": 0, "echo": 0}
            taken = 0
            # What is freed after the answer counts as well.
            while not taken or clock() - began < taken + 300_000_000:
                for call_name, call in (
                    ("stat", small.stat),
                    ("echo", lambda: (near.send(b"x"), near.recv(1))),
                ):
                    before = clock()
                    call()
                    worst[call_name] = max(worst[call_name], clock() - before)
                time.sleep(0.0002)
                if not taken and quiet.is_set():
                    taken = clock() - began
            waiter.join()
            yield usages[0], worst["stat"] / 1e9, worst["echo"] / 1e9, taken / 1e9
    commands.put(0)
    child.join()
    echo.kill()
    echo.join()


def _echo(far: socket.socket) -> None:
    while data := far.recv(1):
        far.send(data)


def _uses(node: dios.Node, kind: ObjectType, size: int) -> Iterator[str]:
    group = node.create_group()
    blob = node.create(kind, groups=[group])
    block = bytes(bytearray(b"0123456789abcdef" * (MEGABYTE // 16)))
    for usage in ("write", "replace"):
        with blob.write(size, dios.EXCL, blank=True, replace=True) as request:
            for start in range(0, size, MEGABYTE):
                request.view[start : start + MEGABYTE] = block
        yield usage
    with blob.read(dios.ANY) as request:
        sum(request.view[::4096][:1000])
    yield "read"
    blob.delete()
    yield "delete"


# -- many objects -----------------------------------------------------------------------------------
def _many_objects(section: Section) -> None:
    cpu: dict[int, float] = {}
    memory: dict[int, float] = {}
    calls: dict[str, Callable[[], object]] = {}
    pids: dict[int, int] = {}
    counts = (0, *OBJECTS)
    with contextlib.ExitStack() as stack:
        folders = {count: stack.enter_context(workspace()) for count in counts}
        filled = {count: _filled(folder, count) for count, folder in folders.items()}
        for count, folder in folders.items():
            bench = stack.enter_context(node_in(folder))
            group, names = filled[count]
            pids[count] = bench.pid
            cpu[count] = section.figure(f"start with {count:,} objects: processor", _own_cpu(bench.pid), "s")
            memory[count] = section.figure(f"start with {count:,} objects: memory", _rss_mb(bench.pid), "MB")
            section.figure(f"start with {count:,} objects: duration", bench.start_seconds, "s")
            node = stack.enter_context(dios.connect(bench.data, groups=[group]))
            own = node.find(group)
            assert own is not None
            calls |= {
                f"{operation} with {count:,}": call for operation, call in _calls(node, own, names).items()
            }
        # All nodes take turns, so that other work on this machine disturbs them alike.
        medians = interleaved(calls, rounds=10, calls=_CALLS)
        for name, value in medians.items():
            section.figure(f"{name} objects", value, "µs")
        spent = {operation: _processor_times(calls, pids, operation) for operation in ("lookup", "create")}
        for count, pid in pids.items():
            for subject in ("lookup", "create"):
                name = f"{subject} with {count:,} objects: processor of the node"
                section.figure(name, spent[subject][count], "µs")
            section.figure(f"memory with {count:,} objects after these calls", _rss_mb(pid), "MB")
            memory[count] = max(memory[count], _rss_mb(pid))
    lookups = {count: medians[f"lookup with {count:,}"] for count in counts}
    creates = {count: medians[f"create with {count:,}"] for count in counts}
    most = max(OBJECTS)
    for subject, costs, unit in (
        ("start: processor", cpu, "s"),
        ("memory after a start and calls", memory, "MB"),
        ("lookup", lookups, "µs"),
        ("durable create", creates, "µs"),
        ("lookup: processor of the node", spent["lookup"], "µs"),
        ("durable create: processor of the node", spent["create"], "µs"),
    ):
        slope = exponent({count: costs[count] for count in OBJECTS})
        section.figure(f"{subject}: exponent", slope, "")
        costs_text = ", ".join(f"{count:,}: {number(costs[count])}" for count in counts)
        section.rows.append(
            Row(
                f"{most:,} durable objects, {subject}",
                f"{number(costs[most])} {unit}",
                f"objects: {unit}: {costs_text}",
                f"{times(costs[most] / costs[0])} an empty node, exponent {number(slope)}",
                {
                    "start: processor": judge("1 s", costs[most], 1),
                    "memory after a start and calls": judge(
                        *(("150 MB", costs[most], 150) if most <= 1_000_000 else ("300 MB", costs[most], 300))
                    ),
                }.get(subject)
                or judge("1.3 x an empty node", costs[most] / costs[0], 1.3),
            )
        )


def _filled(folder: Path, count: int) -> tuple[bytes, list[bytes]]:
    """Make a store with objects in one group; return the names of the group and of some objects."""
    with node_in(folder) as bench, dios.connect(bench.data, groups=[]) as node:
        group = node.create_group().name
    assert group is not None
    return group, fill(folder / "node", group, count)


def _processor_times(
    calls: dict[str, Callable[[], object]], pids: dict[int, int], operation: str
) -> dict[int, float]:
    """Return the microseconds of processor of each node for one call."""
    spent = dict.fromkeys(pids, 0.0)
    for _ in range(_TURNS):
        for count, pid in pids.items():
            before = node_run_us(pid)
            for _ in range(_CALLS):
                calls[f"{operation} with {count:,}"]()
            spent[count] += node_run_us(pid) - before
    return {count: total / (_TURNS * _CALLS) for count, total in spent.items()}


def fill(data: Path, group: bytes, count: int) -> list[bytes]:
    """Write objects into the store of a stopped node; return some of their names."""
    names: list[bytes] = []
    # Each commit would write most pages of a large table again, and wait for the disk.
    with mock.patch.object(lmdb, "open", partial(lmdb.open, sync=False, writemap=True)):
        store = LmdbStore(data)
    try:
        list(store.recover())
        identifiers = _ascending(count)
        for start in range(0, count, _BATCH):
            changes = []
            for index in range(start, min(start + _BATCH, count)):
                name = Name(os.urandom(32))
                record = ObjectRecord(
                    ObjectId(next(identifiers)),
                    name,
                    ObjectType.DURABLE_BLOB,
                    (Name(group),),
                    Principal(f"uid:{os.geteuid()}"),
                    Deletion.IMMEDIATE,
                    Buffering.DOUBLE,
                    VALUE_BYTES,
                    0,
                    1,
                )
                changes.append(Put(record, InlinePayload(bytes(name) + bytes(VALUE_BYTES - len(name)))))
                if not index % max(1, count // 5000):
                    names.append(bytes(name))
            store.apply(changes)
    finally:
        store.close()
    os.sync()
    return names


def _ascending(count: int) -> Iterator[int]:
    """Yield random ids in their order: a table is filled quickest from its beginning to its end."""
    widest = 2**63 // (count + 1)
    position = 0
    for _ in range(count):
        position += random.randrange(1, widest)  # noqa: S311 - not a secret
        yield position


def _calls(node: dios.Node, group: dios.Reference, names: list[bytes]) -> dict[str, Callable[[], object]]:
    if not names:
        names = [
            bytes(node.create(dios.DURABLE_BLOB, groups=[group], data=bytes(VALUE_BYTES)).name or b"")
            for _ in range(_CALLS)
        ]
    turns = _endless(names)

    def lookup() -> None:
        reference = node.find(next(turns))
        if reference is None:
            raise RuntimeError("an object has disappeared")
        reference.close()

    def create() -> None:
        node.create(dios.DURABLE_BLOB, groups=[group], data=bytes(VALUE_BYTES)).close()

    return {"lookup": lookup, "create": create}


def _endless(names: list[bytes]) -> Iterator[bytes]:
    while True:
        yield from names


def _own_cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def node_run_us(pid: int) -> float:
    """Return the microseconds for which the threads of a process have run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e3


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024 / 1e6
    return float("nan")
