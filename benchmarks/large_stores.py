"""Costs against the size of a store: large blobs next to a small call, and nodes with many durable objects.

An exponent is the slope of a line through the logarithms of size and cost: 0 is flat, 1 is linear.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

import dios
from benchmarks.measure import clock, interleaved
from benchmarks.nodes import node_in, running_node, workspace
from benchmarks.report import Row, Section, judge, number, times
from dios.core.events import ObjectRecord
from dios.ids import Name, ObjectId, Principal
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import InlinePayload, Put
from dios.wire.types import Buffering, Deletion, ObjectType

MEGABYTE: Final = 1 << 20
BLOBS: Final = tuple(int(text) for text in os.environ.get("BENCH_BLOBS_MB", "64,256,1024").split(","))
OBJECTS: Final = tuple(
    int(text) for text in os.environ.get("BENCH_OBJECTS", "10000,100000,1000000").split(",")
)
VALUE_BYTES: Final = 100
_BATCH: Final = 10_000
_CREATES: Final = 200


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
                for what, wait, echoed, taken in _disturbances(bench.data, kind, size * MEGABYTE):
                    name = f"{what} of a {kind.name.lower()}"
                    waits.setdefault(name, {})[size] = wait * 1e3
                    section.figure(f"{name} of {size} MB: longest wait of a stat", wait * 1e3, "ms")
                    section.figure(f"{name} of {size} MB: longest wait of a bare echo", echoed * 1e3, "ms")
                    section.figure(f"{name} of {size} MB: duration", taken, "s")
                    bare[size] = max(bare.get(size, 0), echoed * 1e3)
    for name, costs in waits.items():
        section.figure(f"{name}: exponent of the wait", exponent(costs), "")
    section.rows.append(
        Row(
            "longest wait of a stat while another client uses a large blob",
            f"{number(max(max(costs.values()) for costs in waits.values()))} ms",
            f"a bare echo between two processes meanwhile: {number(max(bare.values()))} ms; stat: "
            + "; ".join(f"{name} {number(costs[max(costs)])} ms" for name, costs in waits.items()),
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
            found: list[str] = []

            def wait(found: list[str] = found, quiet: threading.Event = quiet) -> None:
                commands.put(1)
                found.append(results.get())
                quiet.set()

            waiter = threading.Thread(target=wait)
            began = clock()
            waiter.start()
            worst = {"stat": 0, "echo": 0}
            taken = 0
            # What is freed after the answer counts as well.
            while not taken or clock() - began < taken + 300_000_000:
                for what, call in (("stat", small.stat), ("echo", lambda: (near.send(b"x"), near.recv(1)))):
                    before = clock()
                    call()
                    worst[what] = max(worst[what], clock() - before)
                time.sleep(0.0002)
                if not taken and quiet.is_set():
                    taken = clock() - began
            waiter.join()
            yield found[0], worst["stat"] / 1e9, worst["echo"] / 1e9, taken / 1e9
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
    for what in ("write", "replace"):
        with blob.write(size, dios.EXCL, blank=True, replace=True) as request:
            for start in range(0, size, MEGABYTE):
                request.view[start : start + MEGABYTE] = block
        yield what
    with blob.read(dios.ANY) as request:
        sum(request.view[::4096][:1000])
    yield "read"
    blob.delete()
    yield "delete"


# -- many objects -----------------------------------------------------------------------------------
def _many_objects(section: Section) -> None:
    cpu: dict[int, float] = {}
    memory: dict[int, float] = {}
    lookups: dict[int, float] = {}
    creates: dict[int, float] = {}
    durable: dict[int, float] = {}
    for count in (0, *OBJECTS):
        with workspace() as folder, contextlib.ExitStack() as stack:
            with node_in(folder) as bench, dios.connect(bench.data, groups=[]) as node:
                group = node.create_group()
                assert group.name is not None
            names = fill(folder / "node", group.name, count)
            bench = stack.enter_context(node_in(folder))
            cpu[count] = section.figure(f"start with {count:,} objects: processor", _own_cpu(bench.pid), "s")
            memory[count] = section.figure(f"start with {count:,} objects: memory", _rss_mb(bench.pid), "MB")
            section.figure(f"start with {count:,} objects: duration", bench.start_seconds, "s")
            with dios.connect(bench.data, groups=[group.name]) as node:
                own = node.find(group.name)
                assert own is not None
                found = interleaved(_calls(node, own, names), rounds=10, calls=_CREATES)
                began = _own_cpu(bench.pid)
                for _ in range(4 * _CREATES):
                    node.create(dios.DURABLE_BLOB, groups=[own], data=bytes(VALUE_BYTES)).close()
                durable[count] = (_own_cpu(bench.pid) - began) / (4 * _CREATES) * 1e6
            lookups[count], creates[count] = found["lookup"], found["create"]
            for what, value in (*found.items(), ("durable create: processor of the node", durable[count])):
                section.figure(f"{what} with {count:,} objects", value, "µs")
            section.figure(f"memory with {count:,} objects after these calls", _rss_mb(bench.pid), "MB")
    most = max(OBJECTS)
    for what, costs, unit in (
        ("start: processor", cpu, "s"),
        ("start: memory", memory, "MB"),
        ("lookup", lookups, "µs"),
        ("durable create", creates, "µs"),
    ):
        slope = exponent({count: costs[count] for count in OBJECTS})
        section.figure(f"{what}: exponent", slope, "")
        each = ", ".join(f"{count:,}: {number(costs[count])}" for count in (0, *OBJECTS))
        section.rows.append(
            Row(
                f"{most:,} durable objects, {what}",
                f"{number(costs[most])} {unit}",
                f"objects: {unit}: {each}",
                f"{times(costs[most] / costs[0])} an empty node, exponent {number(slope)}",
                {
                    "start: processor": judge("1 s", costs[most], 1),
                    "start: memory": judge("150 MB", costs[most], 150),
                }.get(what)
                or judge("1.3 x an empty node", costs[most] / costs[0], 1.3),
            )
        )


def fill(data: Path, group: bytes, count: int) -> list[bytes]:
    """Write objects into the store of a stopped node; return some of their names."""
    names: list[bytes] = []
    store = LmdbStore(data)
    try:
        list(store.recover())
        made = 0
        while made < count:
            changes = []
            for _ in range(min(_BATCH, count - made)):
                name = Name(os.urandom(32))
                number_of_object = int.from_bytes(os.urandom(8), "big") >> 1 or 1
                record = ObjectRecord(
                    ObjectId(number_of_object),
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
                if not made % max(1, count // 5000):
                    names.append(bytes(name))
                made += 1
            store.apply(changes)
    finally:
        store.close()
    return names


def _calls(node: dios.Node, group: dios.Reference, names: list[bytes]) -> dict[str, Callable[[], object]]:
    if not names:
        names = [
            bytes(node.create(dios.DURABLE_BLOB, groups=[group], data=bytes(VALUE_BYTES)).name or b"")
            for _ in range(_CREATES)
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


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024 / 1e6
    return float("nan")
