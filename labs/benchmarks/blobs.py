"""Large objects: the first view of 64 MB, and writes on fresh and on reused pages, compared with Ray.

Small objects are in ``labs.benchmarks.calls``. A GB is a thousand million bytes.
"""

from __future__ import annotations

import contextlib
import time

import dios
from labs.benchmarks.measure import clock, median, once
from labs.benchmarks.nodes import running_node
from labs.benchmarks.peers.ray_session import Ray, ray_session
from labs.benchmarks.peers.redis_server import MissingPeerError
from labs.benchmarks.report import Row, Section, judge, number, times

SIZE = 64 * 1024 * 1024
TURNS = 7
_AGAIN = 9
_REPEATS = 101
_RAY_FREES_SECONDS = 0.2
NAN = float("nan")
_WRITES = ("write, fresh pages", "write through a view, fresh pages", "write again through the same buffer")
_READS = ("read view, first", "read view, by calls", "read view and every byte of it", "view_bytes, repeated")


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    data = bytes(bytearray(b"0123456789abcdef" * (SIZE // 16)))
    speed = section.figure("copy into memory with pages, for comparison", _memory_speed(data), "GB/s")
    durations = _ours(data)
    for name, values in durations.items():
        if name.startswith("write"):
            section.figure(name, SIZE / median(values) / 1e9, "GB/s")
        else:
            section.figure(name, median(values) * 1e6, "µs")
    ray_fresh, ray_again, ray_first, ray_later = _ray(section, data)
    section.figure("ray.put on fresh pages", ray_fresh, "GB/s")
    section.figure("ray.put on reused pages", ray_again, "GB/s")
    section.figure("ray.get, first", ray_first, "µs")
    section.figure("ray.get, repeated", ray_later, "µs")
    first, calls, later = (median(durations[_READS[index]]) * 1e6 for index in (0, 1, 3))
    section.rows.append(
        Row(
            "64 MB blob: first read view",
            f"{number(first)} µs; {number(calls)} once more",
            f"ray.get {number(ray_first)} µs; {number(ray_later)} repeated",
            f"{times(ray_first / first)} faster",
            judge("300 µs", first, 300),
            judge("100 µs", first, 100),
        )
    )
    section.rows.append(
        Row(
            "64 MB blob: repeated view_bytes, without a call",
            f"{number(later)} µs; {number(calls)} by a read request's two calls",
            f"ray.get, repeated {number(ray_later)} µs",
            f"{times(ray_later / later)} faster",
            judge("3 µs", later, 3),
            judge("20 x faster than by calls", calls / later, 20, below=False),
        )
    )
    put, view, again = (SIZE / median(durations[name]) / 1e9 for name in _WRITES)
    section.rows.append(
        Row(
            "64 MB blob: write on fresh pages",
            f"{number(put)} GB/s (write_bytes); {number(view)} through a view",
            f"ray.put {number(ray_fresh)} GB/s",
            times(put / ray_fresh),
            judge("1.2 GB/s", put, 1.2, below=False),
        )
    )
    section.rows.append(
        Row(
            "64 MB blob: write on reused pages",
            f"{number(again)} GB/s (the same buffer, acquired again)",
            f"ray.put {number(ray_again)} GB/s",
            times(again / ray_again),
            judge("5 GB/s", again, 5, below=False),
            judge("memory speed", again, 0.8 * speed, below=False),
            f"memory speed: 80 % of a copy into memory with pages, which reaches {number(speed)} GB/s",
        )
    )


def _memory_speed(data: bytes) -> float:
    target = memoryview(bytearray(SIZE))
    target[:] = data
    taken: list[float] = []
    for _ in range(TURNS):
        before = clock()
        target[:] = data
        taken.append((clock() - before) / 1e9)
    return SIZE / median(taken) / 1e9


def _ours(data: bytes) -> dict[str, list[float]]:
    """Return the seconds of each kind of access."""
    durations: dict[str, list[float]] = {name: [] for name in (*_WRITES, *_READS)}
    for _ in range(TURNS):
        # A new node each time, because the free pages of an old node would make a fresh write faster.
        with running_node() as bench, dios.connect(bench.data, groups=[]) as writer:
            group = writer.create_group()
            blob = writer.create(dios.SHMEM_BLOB, groups=[group])
            durations[_WRITES[0]].append(once(lambda blob=blob: blob.write_bytes(data)))  # type: ignore[misc]
            other = writer.create(dios.SHMEM_BLOB, groups=[group])
            before = clock()
            with other.write(SIZE, dios.EXCL, blank=True, replace=True) as request:
                request.view[:] = data
            durations[_WRITES[1]].append((clock() - before) / 1e9)
            durations[_WRITES[2]].append(_again(writer, data))
            assert group.name is not None
            assert blob.name is not None
            with dios.connect(bench.data, groups=[group.name]) as reader:
                reference = reader.find(blob.name)
                assert reference is not None
                _reads(reference, data, durations)
    return durations


def _reads(reference: dios.Reference, data: bytes, durations: dict[str, list[float]]) -> None:
    first, by_calls, whole, repeated = _READS
    durations[first].append(_read_view(reference, data))
    # A request for large memory always asks the node, at its beginning and at its commit.
    durations[by_calls].append(median([_read_view(reference, data) for _ in range(_REPEATS)]))
    durations[whole].append(_read_view(reference, data, whole=True))
    # The process keeps a whole view for the next ones.
    assert reference.view_bytes()[-1] == data[-1]
    durations[repeated].append(median([once(lambda: reference.view_bytes()[-1]) for _ in range(_REPEATS)]))


def _read_view(reference: dios.Reference, data: bytes, *, whole: bool = False) -> float:
    """Return the seconds from the beginning of a read to its end, with its last byte or every byte read."""
    before = clock()
    with reference.read(dios.ANY) as request:
        if whole:
            assert bytes(request.view[:16]) == data[:16]
            hash(request.view)
        last = request.view[-1]
    taken = (clock() - before) / 1e9
    assert last == data[-1]
    return taken


def _again(node: dios.Node, data: bytes) -> float:
    """Return the seconds of one more write through the same buffer: acquire, fill, commit."""
    taken: list[float] = []
    blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
    with blob.write(SIZE, dios.EXCL, blank=True, replace=True) as request:
        request.view[:] = data
        for _ in range(_AGAIN):
            before = clock()
            request.reacquire()
            request.view[:] = data
            taken.append((clock() - before) / 1e9)
    blob.delete()
    # The first writes use pages that nobody has touched yet, here and in the node.
    return median(taken[_AGAIN // 3 :])


def _ray(section: Section, data: bytes) -> tuple[float, float, float, float]:
    try:
        import numpy as np
    except ImportError:
        section.trouble.append("numpy is not installed (pip install numpy)")
        return NAN, NAN, NAN, NAN
    array = np.frombuffer(data, dtype=np.uint8)
    fresh: list[float] = []
    again: list[float] = []
    first: list[float] = []
    later: list[float] = []
    with contextlib.suppress(MissingPeerError), ray_session(2_000_000_000) as (ray, _):
        # The pages of the store are fresh until it has been filled once.
        held = [_put(ray, array, fresh) for _ in range(TURNS)]
        for reference in held:
            for taken in (first, later):
                before = clock()
                ray.get(reference)
                taken.append((clock() - before) / 1e3)
        held.clear()
        for _ in range(2 * TURNS):
            # Ray learns after a moment that the last object is not in use, and can reuse its pages.
            time.sleep(_RAY_FREES_SECONDS)
            _put(ray, array, again)
        again = again[TURNS:]
        return SIZE / median(fresh) / 1e9, SIZE / median(again) / 1e9, median(first), median(later)
    section.trouble.append("ray is not installed (pip install ray)")
    return NAN, NAN, NAN, NAN


def _put(ray: Ray, array: object, taken: list[float]) -> object:
    before = clock()
    reference = ray.put(array)
    taken.append((clock() - before) / 1e9)
    return reference
