"""Calls of functions: ``dios.Executor`` beside the pools of the standard library, loky, Dask and Ray.

All run with two workers. DIOS and ``ProcessPoolExecutor`` take turns, because single figures of either differ
by a factor of two from one second to the next; the others follow one after the other.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import numpy as np

import dios
from labs.benchmarks import executor_tables
from labs.benchmarks.executor_calls import compute, nothing, ones, total
from labs.benchmarks.measure import clock, descendants, median, once, pss_kib
from labs.benchmarks.nodes import private_environment, running_node, workspace
from labs.benchmarks.peers.ray_session import Ray, Remote, ray_session
from labs.benchmarks.peers.redis_server import MissingPeerError
from labs.benchmarks.report import Row, Section, judge, number, times

WORKERS = 2
ROUND_TRIPS = 300
BURST = 10_000
SLOW_BURST = 2_000
TURNS = 7
ITEMS = 1_000_000
CHUNKS = (1_000, 5_000, 20_000)
ARRAY = 100_000_000 // 8
ARRAY_CALLS = 8
STARTS = 7
TABLE_TURNS = 3
RAY_STORE_BYTES = 1_000_000_000
NAN = float("nan")


class Pool(Protocol):
    """What the measured executors have in common."""

    def submit(self, function: Callable[..., object], /, *args: object) -> Result: ...  # type: ignore[explicit-any]  # noqa: D102


class Result(Protocol):
    """A future."""

    def result(self) -> object: ...  # noqa: D102 - the standard library's


class Figures(NamedTuple):
    """The measurements of one executor; NaN for those that were not made."""

    call_s: float = NAN
    rate: float = NAN
    argument_s: float = NAN
    result_s: float = NAN
    worker_mb: float = NAN


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    for part in (_run_calls, _run_starts, _run_tables):
        try:
            part(section)
        except Exception as error:  # noqa: BLE001 - the other parts go on
            traceback.print_exc()
            section.trouble.append(f"{part.__name__}: {type(error).__name__}: {error}".splitlines()[0])


# -- calls --------------------------------------------------------------------------------------------
def _run_calls(section: Section) -> None:
    with running_node(pool_size="2") as bench, dios.connect(bench.data, groups=[]) as node:
        with (
            concurrent.futures.ProcessPoolExecutor(WORKERS) as pool,
            dios.Executor(WORKERS, node=node) as executor,
        ):
            ours, theirs = _in_turns(executor, pool)
            mapped = min(once(lambda: _mapped(executor.map(nothing, range(ITEMS)))) for _ in range(2))
            best = min(
                once(lambda size=size: _mapped(pool.map(nothing, range(ITEMS), chunksize=size)))  # type: ignore[misc]
                for size in CHUNKS
            )
        with dios.Executor(WORKERS, node=node) as executor:
            alone = _worker_memory(executor, bench.pid)
    with (
        running_node(pool_size="2", preload="numpy") as bench,
        dios.connect(bench.data, groups=[]) as node,
        dios.Executor(WORKERS, node=node) as executor,
    ):
        ours = ours._replace(worker_mb=_worker_memory(executor, bench.pid))
    with concurrent.futures.ProcessPoolExecutor(WORKERS) as pool:
        theirs = theirs._replace(worker_mb=_worker_memory(pool, os.getpid()))
    peers = {
        "ProcessPoolExecutor": theirs,
        "loky": _peer(section, _loky, BURST, arrays=True),
        "Dask": _peer(section, _dask, SLOW_BURST, arrays=False),
        "Ray": _ray(section),
    }
    for name, figures in {"DIOS": ours, **peers}.items():
        section.figure(f"{name}: no-op call", figures.call_s * 1e6, "µs")
        section.figure(f"{name}: no-op calls at once", figures.rate, "/s")
        section.figure(f"{name}: 100 MB argument of {ARRAY_CALLS} calls", figures.argument_s, "s")
        section.figure(f"{name}: 100 MB result", figures.result_s, "s")
        section.figure(f"{name}: worker with numpy, PSS", figures.worker_mb, "MB")
    section.figure("DIOS: worker with numpy of its own, PSS", alone, "MB")
    section.figure(f"DIOS: map of {ITEMS:,} items", mapped, "s")
    section.figure(f"ProcessPoolExecutor: map of {ITEMS:,} items, best chunks", best, "s")
    _call_rows(section, ours, peers)
    section.rows.append(
        Row(
            f"map of {ITEMS:,} items",
            f"{number(mapped)} s, chunks chosen by itself",
            f"ProcessPoolExecutor {number(best)} s with its best chunks",
            times(best / mapped),
            judge("1 x", best / mapped, 1, below=False),
            judge("1.3 x", best / mapped, 1.3, below=False),
        )
    )
    _array_rows(section, ours, peers)
    section.rows.append(
        Row(
            "memory of a warm worker with numpy imported (PSS)",
            f"{number(ours.worker_mb)} MB, numpy shared; {number(alone)} MB, numpy of its own",
            _listed(peers, lambda peer: f"{number(peer.worker_mb)} MB"),
            "",
            judge("12 MB", ours.worker_mb, 12),
            judge("6 MB", ours.worker_mb, 6),
            "shared: by the node's setting preload, or on the private node of a program that uses numpy; "
            "the workers of ProcessPoolExecutor are forks of a program that has numpy loaded",
        )
    )


def _call_rows(section: Section, ours: Figures, peers: Mapping[str, Figures]) -> None:
    theirs = peers["ProcessPoolExecutor"]
    section.rows.append(
        Row(
            "no-op call, submit to result, one at a time",
            f"{number(ours.call_s * 1e6)} µs",
            _listed(peers, lambda peer: f"{number(peer.call_s * 1e6)} µs"),
            f"{times(theirs.call_s / ours.call_s)} faster than ProcessPoolExecutor",
            judge("its time", ours.call_s, theirs.call_s),
            judge("half of it", ours.call_s, theirs.call_s / 2),
        )
    )
    for name, least, wanted in (("ProcessPoolExecutor", 2.5, 5), ("Ray", 15, 30), ("Dask", 50, 100)):
        ratio = ours.rate / peers[name].rate
        section.rows.append(
            Row(
                f"{BURST:,} no-op calls submitted at once, compared with {name}",
                f"{ours.rate:,.0f} calls/s",
                f"{name} {number(peers[name].rate)} calls/s",
                times(ratio),
                judge(f"{least} x", ratio, least, below=False),
                judge(f"{wanted} x", ratio, wanted, below=False),
                "" if name == "ProcessPoolExecutor" else f"{name}: {SLOW_BURST:,} calls",
            )
        )


def _array_rows(section: Section, ours: Figures, peers: Mapping[str, Figures]) -> None:
    theirs, ray = peers["ProcessPoolExecutor"], peers["Ray"]
    for subject, own, other, of_ray, least, wanted, text, note in (
        (
            f"a 100 MB array as argument of {ARRAY_CALLS} calls",
            *(ours.argument_s, theirs.argument_s, ray.argument_s, 10, 1.3, "1.3 x Ray"),
            "Ray: ray.put once, and the reference as argument; DIOS: the array itself",
        ),
        ("a result of 100 MB", ours.result_s, theirs.result_s, ray.result_s, 3, 1, "Ray", ""),
    ):
        section.rows.append(
            Row(
                subject,
                f"{number(own)} s",
                f"ProcessPoolExecutor {number(other)} s, Ray {number(of_ray)} s",
                f"{times(other / own)} ProcessPoolExecutor, {times(of_ray / own)} Ray",
                judge(f"{least} x ProcessPoolExecutor", other / own, least, below=False),
                judge(text, of_ray / own, wanted, below=False),
                note,
            )
        )


def _listed(peers: Mapping[str, Figures], text: Callable[[Figures], str]) -> str:
    return ", ".join(
        f"{name} {text(peer)}" for name, peer in peers.items() if not text(peer).startswith("not measured")
    )


def _in_turns(*pools: Pool) -> list[Figures]:
    """Return the medians of each pool's figures, measured in turns."""
    figures: list[list[Figures]] = [[] for _ in pools]
    for _ in range(TURNS):
        for pool, pool_figures in zip(pools, figures, strict=True):
            pool_figures.append(_calls(pool, BURST)._replace(**_arrays(pool)))
    return [Figures(*(median(list(column)) for column in zip(*rounds, strict=True))) for rounds in figures]


def _calls(pool: Pool, count: int) -> Figures:
    """Return the seconds of one call, and the calls per second of many; the workers run before."""
    for future in [pool.submit(nothing, index) for index in range(200)]:
        future.result()
    single = []
    for number_ in range(ROUND_TRIPS):
        began = clock()
        pool.submit(nothing, number_).result()
        single.append((clock() - began) / 1e9)
    rates = []
    for _ in range(2):
        began = clock()
        futures = [pool.submit(nothing, index) for index in range(count)]
        if [future.result() for future in futures] != list(range(count)):
            raise RuntimeError("the results are wrong")
        rates.append(count / ((clock() - began) / 1e9))
    return Figures(median(single), max(rates))


def _mapped(results: Iterator[object]) -> None:
    if sum(cast("Iterator[int]", results)) != ITEMS * (ITEMS - 1) // 2:
        raise RuntimeError("the results are wrong")


def _arrays(pool: Pool) -> dict[str, float]:
    """Return the seconds of calls with a large argument, and of one with a large result."""
    values = np.ones(ARRAY)

    def argument() -> None:
        for future in [pool.submit(total, values) for _ in range(ARRAY_CALLS)]:
            if future.result() != ARRAY:
                raise RuntimeError("the result is wrong")

    # Each worker imports numpy first.
    for future in [pool.submit(compute, 0.2) for _ in range(2 * WORKERS)]:
        future.result()
    return {
        "argument_s": once(argument),
        "result_s": min(once(lambda: pool.submit(ones, ARRAY).result()) for _ in range(2)),
    }


def _worker_memory(pool: Pool, root: int) -> float:
    """Return the mean memory of the workers of a pool, all of which have used numpy, in MB.

    The workers are those processes below ``root`` that have most: others wait, or fork them.
    """
    for _ in range(3):
        for future in [pool.submit(compute, 0.2) for _ in range(2 * WORKERS)]:
            future.result()
    pids = descendants(root)
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    used = sorted(pss_kib(pid) for pid in pids if pid not in parents)[-WORKERS:]
    return sum(used) * 1024 / 1e6 / WORKERS


# -- starts -------------------------------------------------------------------------------------------
def _run_starts(section: Section) -> None:
    with running_node(pool_size="2") as bench:
        running = _starts("node", {"DIOS_NODE": str(bench.data)})
    with workspace() as folder, private_environment(folder):
        private = _starts("node", {})
        processes = _starts("processes", {})
    for setup, spans in (
        ("node running", running),
        ("private node", private),
        ("ProcessPoolExecutor", processes),
    ):
        section.figure(f"start of an executor, {setup}: imports", spans[0] * 1000, "ms")
        section.figure(f"start of an executor, {setup}: opening to first result", spans[1] * 1000, "ms")
    for setup, spans, least, wanted in (
        ("a node running", running, 0.06, 0.02),
        ("no node running", private, 0.5, 0.3),
    ):
        section.rows.append(
            Row(
                f"start of an executor to its first result, {setup}",
                f"{number(spans[1] * 1000)} ms",
                f"ProcessPoolExecutor {number(processes[1] * 1000)} ms",
                "",
                judge(f"{least * 1000:.0f} ms", spans[1], least),
                judge(f"{wanted * 1000:.0f} ms", spans[1], wanted),
                f"in a fresh process, without its imports: {number(spans[0] * 1000)} ms, "
                f"ProcessPoolExecutor {number(processes[0] * 1000)} ms",
            )
        )


def _starts(setup: str, extra: Mapping[str, str]) -> tuple[float, float]:
    """Return the medians of the seconds of imports, and from the opening of an executor to a result."""
    # Modules that cannot be written are compiled at each start.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    taken: list[list[float]] = []
    for _ in range(1 + STARTS):
        done = subprocess.run(
            [sys.executable, "-m", "labs.benchmarks.executor_start", setup],
            env={**environment, **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        taken.append(json.loads(done.stdout))
    return median([start[0] for start in taken[1:]]), median([start[1] for start in taken[1:]])


# -- tables -------------------------------------------------------------------------------------------
def _run_tables(section: Section) -> None:
    try:
        importlib.import_module("polars")
    except ImportError as error:
        section.trouble.append(str(error))
        return
    with workspace() as folder, running_node(pool_size="2") as bench:
        paths = executor_tables.write_files(folder)
        size = sum(path.stat().st_size for path in paths)
        with (
            dios.connect(bench.data, groups=[]) as node,
            dios.Executor(
                WORKERS, node=node, initializer=os.putenv, initargs=("POLARS_MAX_THREADS", "1")
            ) as executor,
        ):
            parts = [executor.put(np.fromfile(path, np.uint8)) for path in paths]
            plain, calls = [], []
            for turn in range(1 + TABLE_TURNS):
                before = clock()
                expected = executor_tables.plain(paths)
                between = clock()
                tally = executor_tables.in_calls(executor, parts)
                after = clock()
                if tally["rows"].to_list() != expected["rows"].to_list():
                    raise RuntimeError("the results are wrong")
                if turn:
                    plain.append((between - before) / 1e9)
                    calls.append((after - between) / 1e9)
    ratio = median([mine / theirs for mine, theirs in zip(calls, plain, strict=True)])
    section.figure("aggregation, Polars alone", median(plain), "s")
    section.figure("aggregation, Polars in calls", median(calls), "s")
    section.rows.append(
        Row(
            f"{size / 1e9:.1f} GB of Parquet, aggregation in two stages with Polars",
            f"{number(median(calls))} s in {WORKERS} workers",
            f"Polars alone {number(median(plain))} s",
            f"{times(ratio)} its time",
            judge("1.2 x", ratio, 1.2),
            judge("1.05 x", ratio, 1.05),
            "the files are on the node, and on the disk for Polars alone, in its cache; in turns; "
            "a worker has one thread",
        )
    )


# -- alternatives -------------------------------------------------------------------------------------
def _peer(
    section: Section,
    opened: Callable[[], contextlib.AbstractContextManager[Pool]],
    count: int,
    *,
    arrays: bool,
) -> Figures:
    try:
        with opened() as pool:
            figures = _calls(pool, count)
            if arrays:
                figures = figures._replace(worker_mb=_worker_memory(pool, os.getpid()), **_arrays(pool))
            return figures
    except ImportError as error:
        section.trouble.append(str(error))
        return Figures()


@contextlib.contextmanager
def _loky() -> Iterator[Pool]:
    loky = importlib.import_module("loky")
    with loky.ProcessPoolExecutor(WORKERS) as pool:
        yield pool


@contextlib.contextmanager
def _dask() -> Iterator[Pool]:
    distributed = importlib.import_module("distributed")
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with (
        distributed.LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor(pure=False) as pool,
    ):
        yield pool


class _RayPool:
    def __init__(self, ray: Ray) -> None:
        self._ray = ray
        self._functions: dict[object, Remote] = {}

    def submit(self, function: object, /, *args: object) -> Result:
        known = self._functions.get(function)
        if known is None:
            known = self._ray.remote(cast("Callable[[], object]", function))
            self._functions[function] = known
        return _RayResult(self._ray, known.remote(*args))


class _RayResult:
    def __init__(self, ray: Ray, reference: object) -> None:
        self._ray = ray
        self._reference = reference

    def result(self) -> object:
        return self._ray.get(self._reference)


def _ray(section: Section) -> Figures:
    try:
        with ray_session(RAY_STORE_BYTES) as (ray, _):
            pool = _RayPool(ray)
            figures = _calls(pool, SLOW_BURST)
            values = np.ones(ARRAY)
            for future in [pool.submit(compute, 0.2) for _ in range(2 * WORKERS)]:
                future.result()

            def argument() -> None:
                reference = ray.put(values)
                for future in [pool.submit(total, reference) for _ in range(ARRAY_CALLS)]:
                    if future.result() != ARRAY:
                        raise RuntimeError("the result is wrong")

            return figures._replace(
                argument_s=once(argument),
                result_s=min(once(lambda: pool.submit(ones, ARRAY).result()) for _ in range(2)),
            )
    except MissingPeerError as error:
        section.trouble.append(str(error))
        return Figures()
