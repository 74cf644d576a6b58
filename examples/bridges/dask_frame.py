"""dask.dataframe with its tasks in sandboxed tasks: python examples/bridges/dask_frame.py."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import pandas as pd

import dios


def main() -> None:
    """Print the mean of a column for each group of a table in four parts."""
    cities = pd.DataFrame({"city": ["Berlin", "Oslo", "Rome"] * 1000, "degrees": range(3000)})
    table = dd.from_pandas(cities, npartitions=4)  # type: ignore[no-untyped-call]
    with dios.Executor(2) as executor, dask.config.set(scheduler=executor):
        means = table.groupby("city").degrees.mean().compute()
        print({city: float(mean) for city, mean in sorted(means.items())})


if __name__ == "__main__":
    main()
