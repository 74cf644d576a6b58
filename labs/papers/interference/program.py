"""The workloads of the experiments, as a program that is pinned to a hardware thread.

``python -m labs.papers.interference.program NAME CPU SEED CACHE_BYTES FOLDER``. It prepares its data, prints
``ready``, and then runs for the number of seconds on each line that it reads, and prints the units of work,
the seconds, and the processor seconds. It ends at the end of its input. A unit takes milliseconds.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

Unit = Callable[[], object]
"""Does one unit of a workload."""

_PAGE: Final = bytes(4096)
_REQUESTS: Final = 20


def http(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Serve a static page over TCP on this machine (network-bound)."""
    del rng, cache, folder
    listener = socket.create_server(("127.0.0.1", 0))
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n" + _PAGE

    def serve() -> None:
        connection, _ = listener.accept()
        while connection.recv(4096):
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    client = socket.create_connection(listener.getsockname())

    def unit() -> None:
        for _ in range(_REQUESTS):
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            left = len(answer)
            while left:
                left -= len(client.recv(left))

    return unit


def quicksort(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Sort integers that fit an inner cache."""
    del cache, folder
    values = rng.integers(0, 1 << 40, 50_000)
    return lambda: np.sort(values, kind="quicksort")


def pagerank(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Run a part of PageRank, whose ranks fill half of the last-level cache (memory-bound)."""
    del folder
    vertices = max(1 << 16, cache // 2 // 8)
    ranks = np.full(vertices, 1.0 / vertices)
    edges = rng.integers(0, vertices, 1 << 18)
    return lambda: 0.15 / vertices + 0.85 * float(ranks[edges].sum())


def bopm(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Price an option by a binomial tree of 500 steps, which fits the first cache (processor-bound)."""
    del cache, folder
    strike, up = float(rng.uniform(90, 110)), 1.01
    steps = 500

    def unit() -> float:
        prices = 100.0 * up ** np.arange(-steps, steps + 1, 2.0)
        values = np.maximum(prices - strike, 0.0)
        for _ in range(steps):
            values = 0.5 * (values[1:] + values[:-1])
        return float(values[0])

    return unit


def query(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Join and select rows of a web log (memory-bound)."""
    del folder
    rows = max(1 << 16, cache // 2 // 16)
    pages, ranks = rng.integers(0, 1 << 16, rows), rng.random(1 << 16)
    part = 1 << 17
    state = {"at": 0}

    def unit() -> float:
        at = state["at"] = (state["at"] + part) % max(rows - part, 1)
        joined = ranks[pages[at : at + part]]
        return float(joined[joined > 0.5].sum())

    return unit


def stream(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Copy an array of twice the last-level cache, a part at a time (STREAM, memory-bound)."""
    del rng, folder
    size = max(1 << 22, 2 * cache) // 8
    # Both arrays are written once, so that no page is missing later.
    source, target = np.ones(size), np.ones(size)
    part = 1 << 18
    state = {"at": 0}

    def unit() -> None:
        at = state["at"] = (state["at"] + part) % max(size - part, 1)
        np.copyto(target[at : at + part], source[at : at + part])

    return unit


def integers(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Hash a page again and again (integer operations, in hmmer's place)."""
    del cache, folder
    page = rng.bytes(4096)
    return lambda: [hashlib.blake2b(page).digest() for _ in range(100)]


def floats(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Multiply small matrices without a library of several threads (in gromacs' place)."""
    del cache, folder
    left, other = rng.random((48, 48)), rng.random((48, 48))
    return lambda: np.einsum("ij,jk->ik", left, other)


def disk_write(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Write a mebibyte and wait until it is on the disk (bonnie-wr)."""
    del cache
    data = rng.bytes(1 << 20)
    path = folder / f"written-{os.getpid()}"

    def unit() -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    return unit


def disk_read(rng: np.random.Generator, cache: int, folder: Path) -> Unit:
    """Read a mebibyte of a file that the kernel no longer keeps in memory (bonnie-rd)."""
    del cache
    path = folder / f"read-{os.getpid()}"
    path.write_bytes(rng.bytes(16 << 20))
    os.sync()
    descriptor = os.open(path, os.O_RDONLY)
    state = {"at": 0}

    def unit() -> None:
        at = state["at"] = (state["at"] + (1 << 20)) % (16 << 20)
        os.posix_fadvise(descriptor, at, 1 << 20, os.POSIX_FADV_DONTNEED)
        os.pread(descriptor, 1 << 20, at)

    return unit


WORKLOADS: Final[dict[str, Callable[[np.random.Generator, int, Path], Unit]]] = {
    "http": http,
    "quicksort": quicksort,
    "pagerank": pagerank,
    "bopm": bopm,
    "query": query,
    "stream": stream,
    "integers": integers,
    "floats": floats,
    "disk-read": disk_read,
    "disk-write": disk_write,
}


def main() -> None:
    """Run the workload of the command line for each line of the input."""
    name, cpus, seed, cache, folder = sys.argv[1:]
    os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    unit = WORKLOADS[name](np.random.default_rng(int(seed)), int(cache), Path(folder))
    unit()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        units, before, used = 0, time.perf_counter(), time.process_time()
        until = before + float(line)
        while time.perf_counter() < until:
            unit()
            units += 1
        sys.stdout.write(f"{units} {time.perf_counter() - before} {time.process_time() - used}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
