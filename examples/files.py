"""Use files of a group with pandas, pyarrow, Polars, DuckDB and Dask: ``python examples/files.py``.

It needs a running node, and a group in your keyring: ``dios group create analytics``. Another group is the
argument. Libraries that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import sys

import fsspec


def installed(name: str) -> bool:
    """Return True if a library is installed, and print that it is missing otherwise."""
    available = importlib.util.find_spec(name) is not None
    if not available:
        print(f"{name}: not installed")
    return available


def with_pandas(folder: str) -> None:
    """Write a table as Parquet and as CSV."""
    import pandas as pd

    frame = pd.DataFrame({"city": ["Berlin", "Rome", "Oslo"] * 1000, "degrees": range(3000)})
    frame.to_parquet(f"dios://{folder}/weather.parquet")
    frame.to_csv(f"dios://{folder}/weather.csv", index=False)
    print("pandas:", len(pd.read_csv(f"dios://{folder}/weather.csv")), "rows")


def with_pyarrow(folder: str) -> None:
    """Divide the table into a directory for each city."""
    from pyarrow import dataset

    files = fsspec.filesystem("dios")
    weather = dataset.dataset(f"{folder}/weather.parquet", filesystem=files)
    dataset.write_dataset(
        weather,
        f"{folder}/by-city",
        filesystem=files,
        format="parquet",
        partitioning=["city"],
        existing_data_behavior="overwrite_or_ignore",
    )
    print(
        "pyarrow:", *sorted(path.rpartition("/")[2] for path in files.ls(f"{folder}/by-city", detail=False))
    )


def with_polars(folder: str) -> None:
    """Read one table and write another."""
    import polars as pl

    files = fsspec.filesystem("dios")
    with files.open(f"{folder}/weather.parquet") as file:
        frame = pl.read_parquet(file)
    with files.open(f"{folder}/warm.parquet", "wb") as file:
        frame.filter(pl.col("degrees") >= 2000).write_parquet(file)
    print("polars:", files.size(f"{folder}/warm.parquet") < files.size(f"{folder}/weather.parquet"))


def with_duckdb(folder: str) -> None:
    """Ask a question in SQL, and store the answer."""
    import duckdb

    database = duckdb.connect()
    database.register_filesystem(fsspec.filesystem("dios"))
    weather = database.read_parquet(f"dios://{folder}/weather.parquet")
    most = weather.aggregate("city, max(degrees) AS most", "city").order("city")
    most.write_csv(f"dios://{folder}/most.csv")
    print("duckdb:", fsspec.filesystem("dios").cat(f"{folder}/most.csv").decode().split())


def with_dask(folder: str) -> None:
    """Read all files of a directory, and write the parts of a frame."""
    import dask.dataframe

    frame = dask.dataframe.read_parquet(f"dios://{folder}/by-city/*/*.parquet")
    total = int(frame.degrees.sum().compute(scheduler="threads"))
    frame.to_csv(f"dios://{folder}/parts/*.csv", compute_kwargs={"scheduler": "threads"})
    print("dask:", total, len(fsspec.filesystem("dios").ls(f"{folder}/parts")))


def main() -> None:
    """Run each part."""
    folder = f"{sys.argv[1] if len(sys.argv) > 1 else 'analytics'}/example"
    parts = {
        "pandas": with_pandas,
        "pyarrow": with_pyarrow,
        "polars": with_polars,
        "duckdb": with_duckdb,
        "dask": with_dask,
    }
    for name, part in parts.items():
        if installed(name):
            part(folder)
    files = fsspec.filesystem("dios")
    print(len(files.find(folder)), "files,", files.du(folder), "bytes")
    files.rm(folder, recursive=True)


if __name__ == "__main__":
    main()
