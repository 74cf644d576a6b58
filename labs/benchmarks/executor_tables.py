"""The aggregation of a table in Parquet files, in two stages: by one process with Polars, and in calls.

The first stage reads a file and aggregates its rows for each key; the second one joins the results.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

import dios

if TYPE_CHECKING:
    import polars as pl

    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

FILES: Final = 8
ROWS_OF_FILE: Final = 6_500_000
KEYS: Final = 10_000


def write_files(folder: Path, rows: int = ROWS_OF_FILE) -> list[Path]:
    """Write the table; return its files, which have 1 GB together."""
    import polars as pl

    paths = []
    for number in range(FILES):
        random = np.random.default_rng(number)
        frame = pl.DataFrame(
            {
                "key": random.integers(0, KEYS, rows, dtype=np.int32),
                "value": random.random(rows),
                "weight": random.random(rows),
            }
        )
        paths.append(folder / f"part-{number}.parquet")
        frame.write_parquet(paths[-1])
    return paths


def plain(paths: list[Path]) -> pl.DataFrame:
    """Aggregate all files in this process, with all of its threads."""
    import polars as pl

    return pl.scan_parquet(paths).group_by("key").agg(_aggregates()).sort("key").collect()


def in_calls(executor: dios.Executor, parts: list[dios.ValueReference[Bytes]]) -> pl.DataFrame:
    """Aggregate each part in a call, and the results in another."""
    firsts = [executor.submit(_first_stage, part) for part in parts]
    return executor.submit(_second_stage, *firsts).result()


def _first_stage(content: Bytes) -> pl.DataFrame:
    import polars as pl

    return pl.scan_parquet(io.BytesIO(content.tobytes())).group_by("key").agg(_aggregates()).collect()


def _second_stage(*parts: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    return (
        pl.concat(parts)
        .group_by("key")
        .agg(pl.col("rows").sum(), pl.col("total").sum(), pl.col("most").max())
        .sort("key")
    )


def _aggregates() -> list[pl.Expr]:
    import polars as pl

    return [
        pl.len().alias("rows"),
        (pl.col("value") * pl.col("weight")).sum().alias("total"),
        pl.col("value").max().alias("most"),
    ]
