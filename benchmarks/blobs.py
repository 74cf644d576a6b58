"""Big objects: the first view of 64 MB, writing it on fresh and on re-used pages, beside Ray.

Not for: small objects (``benchmarks.calls``). A GB is a thousand million bytes.
"""

from __future__ import annotations

import contextlib

import dios
from benchmarks.measure import clock, median
from benchmarks.nodes import running_node
from benchmarks.peers.ray_session import Ray, ray_session
from benchmarks.peers.redis_server import MissingPeerError
from benchmarks.report import Row, Section, judge, number, times

SIZE = 64 * 1024 * 1024
TURNS = 7
NAN = float("nan")


def run(section: Section) -> None:
    """Measure and judge."""
    data = bytes(bytearray(b"0123456789abcdef" * (SIZE // 16)))
    fresh, again, first, later, whole = _ours(data)
    section.figure("write on fresh pages", fresh, "GB/s")
    section.figure("write on re-used pages (reacquire)", again, "GB/s")
    section.figure("first read view", first, "µs")
    section.figure("read view once more", later, "µs")
    section.figure("copy into memory at hand, for comparison", _memory_speed(data), "GB/s")
    section.figure("first read view and a sum over it", whole, "µs")
    ray_fresh, ray_again, ray_first, ray_later = _ray(section, data)
    section.rows.append(
        Row(
            "64 MB blob: first read view",
            f"{number(first)} µs; {number(later)} once more",
            f"ray.get {number(ray_first)} µs; {number(ray_later)} once more",
            f"{times(ray_first / first)} faster",
            judge("300 µs", first, 300),
            judge("100 µs", first, 100),
        )
    )
    section.rows.append(
        Row(
            "64 MB blob: write on fresh pages",
            f"{number(fresh)} GB/s",
            f"ray.put {number(ray_fresh)} GB/s",
            times(fresh / ray_fresh),
            judge("1.2 GB/s", fresh, 1.2, below=False),
        )
    )
    section.rows.append(
        Row(
            "64 MB blob: write on re-used pages",
            f"{number(again)} GB/s",
            f"ray.put {number(ray_again)} GB/s",
            times(again / ray_again),
            judge("5 GB/s", again, 5, below=False),
            judge("memory speed", again, 0.8 * _memory_speed(data), below=False),
            "memory speed: 80 % of a copy into memory that has its pages",
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


def _ours(data: bytes) -> tuple[float, float, float, float, float]:
    """GB/s on fresh and re-used pages; µs of the first view, of a later one, and of one that is used."""
    fresh: list[float] = []
    again: list[float] = []
    first: list[float] = []
    later: list[float] = []
    used: list[float] = []
    for _ in range(TURNS):
        # A new node each time: an old one has pages at hand that a fresh write would profit from.
        with running_node() as bench, dios.connect(bench.data, groups=[]) as writer:
            group = writer.create_group()
            blob = writer.create(dios.SHMEM_BLOB, groups=[group])
            before = clock()
            with blob.write(SIZE, dios.EXCL, blank=True, replace=True) as request:
                request.view[:] = data
            fresh.append((clock() - before) / 1e9)
            again.append(_again(writer, data))
            assert group.name is not None
            assert blob.name is not None
            with dios.connect(bench.data, groups=[group.name]) as reader:
                found = reader.find(blob.name)
                assert found is not None
                for taken in (first, later):
                    before = clock()
                    with found.read(dios.ANY) as view:
                        last = view.view[-1]
                        taken.append((clock() - before) / 1e3)
                    assert last == data[-1]
                before = clock()
                with found.read(dios.ANY) as view:
                    bytes(view.view)
                    used.append((clock() - before) / 1e3)
    return SIZE / median(fresh) / 1e9, SIZE / median(again) / 1e9, median(first), median(later), median(used)


def _again(node: dios.Node, data: bytes) -> float:
    """The seconds of one more write through the same buffer: acquired anew, filled, committed."""
    taken: list[float] = []
    blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
    with blob.write(SIZE, dios.EXCL, blank=True, replace=True) as request:
        request.view[:] = data
        for _ in range(5):
            before = clock()
            request.reacquire()
            request.view[:] = data
            taken.append((clock() - before) / 1e9)
    blob.delete()
    return median(taken[1:])


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
        # The store's pages are fresh until it has been filled once.
        held = [_put(ray, array, fresh) for _ in range(TURNS)]
        for reference in held:
            for taken in (first, later):
                before = clock()
                ray.get(reference)
                taken.append((clock() - before) / 1e3)
        held.clear()
        for _ in range(TURNS):
            _put(ray, array, again)
        return SIZE / median(fresh) / 1e9, SIZE / median(again) / 1e9, median(first), median(later)
    section.trouble.append("ray is not installed (pip install ray)")
    return NAN, NAN, NAN, NAN


def _put(ray: Ray, array: object, taken: list[float]) -> object:
    before = clock()
    reference = ray.put(array)
    taken.append((clock() - before) / 1e9)
    return reference
