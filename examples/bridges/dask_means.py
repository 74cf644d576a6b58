"""Dask with its tasks in sandboxed tasks: python examples/bridges/dask_means.py."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db

import dios


def main() -> None:
    """Print the mean of an array in blocks, and the sum of the squares of a bag."""
    numbers = da.arange(1_000_000, chunks=250_000)
    bag = db.from_sequence(range(100), npartitions=4)  # type: ignore[no-untyped-call]
    with dios.Executor(2) as executor, dask.config.set(scheduler=executor):
        print(numbers.mean().compute(), bag.map(lambda number: number**2).sum().compute())


if __name__ == "__main__":
    main()
