"""DURABLE_STREAM: acknowledged appends of one writer and of sixteen, compared with LMDB and a synced file.

The disk may acknowledge from its own cache, so only ratios are meaningful.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import lmdb

import dios
from labs.benchmarks.measure import clock, interleaved
from labs.benchmarks.nodes import running_node, workspace
from labs.benchmarks.report import Row, Section, judge, number, times

ENTRY = bytes(100)
WRITERS = 16
EACH = 200
TOGETHER = 20_000


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(workspace())
        bench = stack.enter_context(running_node(None))
        node = stack.enter_context(dios.connect(bench.data, groups=[]))
        group = node.create_group()
        log = node.create_log(groups=[group])
        environment = stack.enter_context(lmdb.open(str(folder / "bare"), map_size=2**30))
        fd = os.open(folder / "file", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        stack.callback(os.close, fd)

        def commit() -> None:
            with environment.begin(write=True) as transaction:
                transaction.put(os.urandom(8), ENTRY)

        def write() -> None:
            os.write(fd, ENTRY)
            os.fdatasync(fd)

        costs = interleaved(
            {"lmdb": commit, "file": write, "dios": lambda: log.append(ENTRY)}, rounds=10, calls=50
        )
        many = _many_writers(bench.data, group.name or b"", log.name or b"")
        began = clock()
        log.append_all([ENTRY] * TOGETHER)
        together = TOGETHER / (clock() - began) * 1e9
        began = clock()
        count = len(list(log))
        read = count / (clock() - began) * 1e9
    lone = 1e6 / costs["lmdb"]
    section.figure("bare LMDB, one synced commit each", lone, "/s")
    section.figure("a file, written and synced", 1e6 / costs["file"], "/s")
    section.figure("appends, one writer", 1e6 / costs["dios"], "/s")
    section.figure("appends, sixteen writers", many, "/s")
    section.figure("appends in vectors, one writer", together, "/s")
    section.figure("entries read", read, "/s")
    section.rows.append(
        Row(
            "log appends of 100 bytes, sixteen writers",
            f"{number(many)} /s",
            f"one writer {number(1e6 / costs['dios'])} /s; bare LMDB, one commit each, {number(lone)} /s",
            f"{times(many / lone)} bare LMDB",
            judge("2 x bare LMDB (group commit)", many / lone, 2, below=False),
        )
    )


def _many_writers(data: Path, group: bytes, name: bytes) -> float:
    ready = threading.Barrier(WRITERS + 1)

    def write() -> None:
        with dios.connect(data, groups=[group]) as node:
            log = node.find(name)
            ready.wait()
            if not isinstance(log, dios.Log):
                raise TypeError("the log was not found")
            for _ in range(EACH):
                log.append(ENTRY)

    threads = [threading.Thread(target=write) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = clock()
    for thread in threads:
        thread.join()
    return WRITERS * EACH / (clock() - began) * 1e9
