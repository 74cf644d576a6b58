"""Aggregate Parquet files in two stages with Polars in sandboxed tasks, or with Polars alone.

``python examples/parquet_aggregation.py --megabytes 1000`` writes Parquet files of sales as dios://sales/…,
adds up each file in a call, and combines the sums in another one. ``--compare`` does the same with Polars in
this process on the same files. ``--json`` prints the seconds as JSON. It needs a running node: ``dios-node
start``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import fsspec
import polars as pl

import dios

ALIAS = "sales"
SHOPS = 10_000
ROWS_PER_MEGABYTE = 103_000
PART_MEGABYTES = 32


class Seconds(NamedTuple):
    """The duration of an aggregation, and the processor time of its queries."""

    wall: float
    processor: float


def make_part(number: int, megabytes: float) -> pl.DataFrame:
    """Return random sales, of about ``megabytes`` MB as Parquet."""
    count = int(megabytes * ROWS_PER_MEGABYTE)
    rows = pl.int_range(count, eager=True)
    shops = (rows.hash(number) % SHOPS).cast(pl.Int32)
    cents = (rows.hash(number + 1) % 2**53).cast(pl.Float64) / 2**40
    cities = pl.Series(["Berlin", "Oslo", "Rome", "Lima"]).gather(rows.hash(number + 2) % 4)
    return pl.DataFrame({"shop": shops, "city": cities, "cents": cents})


def sums(sales: pl.LazyFrame) -> pl.LazyFrame:
    """Return the sum, the largest value and the number of the sales of each shop and city."""
    return sales.group_by("shop", "city").agg(
        pl.col("cents").sum(), largest=pl.col("cents").max(), count=pl.len()
    )


def combined(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the total of each city and its largest sale."""
    return (
        pl.concat(parts)
        .group_by("city")
        .agg(pl.col("cents").sum().round(2), pl.col("largest").max().round(2), pl.col("count").sum())
        .sort("city")
    )


def sums_of_file(path: str) -> tuple[pl.DataFrame, float]:
    """Run the first stage in a worker: map a file, and add up its sales. Return the processor time, too."""
    began = time.process_time()
    view = fsspec.filesystem("dios").view(path)
    return sums(pl.scan_parquet(io.BytesIO(view))).collect(), time.process_time() - began


def combined_parts(*parts: tuple[pl.DataFrame, float]) -> tuple[pl.DataFrame, float]:
    """Run the second stage in a worker."""
    began = time.process_time()
    return combined([part for part, _ in parts]), time.process_time() - began


def in_tasks(executor: dios.Executor, paths: list[str]) -> tuple[pl.DataFrame, Seconds]:
    """Aggregate files of a node in the workers of an executor."""
    began = time.perf_counter()
    parts = [executor.submit(sums_of_file, path) for path in paths]
    total = executor.submit(combined_parts, *parts)
    result, processor = total.result()
    wall = time.perf_counter() - began
    return result, Seconds(wall, processor + sum(part.result()[1] for part in parts))


def in_this_process(directory: Path) -> tuple[pl.DataFrame, Seconds]:
    """Aggregate local files with Polars alone, which uses all processors."""
    began, processor = time.perf_counter(), time.process_time()
    result = combined([sums(pl.scan_parquet(directory / "*.parquet")).collect()])
    return result, Seconds(time.perf_counter() - began, time.process_time() - processor)


def make_group(place: str | None) -> None:
    """Put a group for the files into the keyring, if there is none."""
    keyring = dios.Keyring.load()
    if ALIAS not in keyring.groups:
        with dios.connect(place, groups=[]) as node:
            keyring.add(ALIAS, dios.parse_name(dios.format_name(node.create_group().name or b"")))


def measure(
    place: str | None = None, *, megabytes: float = 16, workers: int = 2, compare: bool = True
) -> dict[str, Seconds]:
    """Aggregate files of a node in tasks, and return the seconds of the second of two rounds.

    ``compare`` adds Polars alone, in two rounds as well, and raises RuntimeError if the results differ.
    """
    make_group(place)
    files = fsspec.filesystem("dios", node=place)
    parts = max(2 * workers, round(megabytes / PART_MEGABYTES))
    seconds = {}
    with tempfile.TemporaryDirectory() as local:
        for number in range(parts):
            make_part(number, megabytes / parts).write_parquet(Path(local) / f"{number}.parquet")
        files.put(f"{local}/", f"{ALIAS}/parts/", recursive=True)
        paths = sorted(files.ls(f"{ALIAS}/parts", detail=False))
        # Polars in a worker has one thread: there are as many workers as processors.
        limited = ("POLARS_MAX_THREADS", "1")
        with dios.Executor(
            workers, node=place, files=[ALIAS], initializer=os.putenv, initargs=limited
        ) as executor:
            in_tasks(executor, paths)
            result, seconds["tasks"] = in_tasks(executor, paths)
        if compare:
            in_this_process(Path(local))
            alone, seconds["polars"] = in_this_process(Path(local))
            if not result.equals(alone):
                raise RuntimeError(f"the results differ: {result} {alone}")
    files.rm(f"{ALIAS}/parts", recursive=True)
    return seconds


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--node", help="data directory or socket of a node; the configured one otherwise")
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--compare", action="store_true", help="do the same with Polars alone")
    parser.add_argument("--json", action="store_true", help="print the seconds as JSON")
    given = parser.parse_args()
    timings = measure(given.node, megabytes=given.megabytes, workers=given.workers, compare=given.compare)
    if given.json:
        print(json.dumps({name: seconds._asdict() for name, seconds in timings.items()}))
        return
    for name, seconds in timings.items():
        print(f"{name:8} {seconds.wall:.3f} s, {seconds.processor:.3f} s of processors in queries")


if __name__ == "__main__":
    main()
