"""A program that opens an executor and makes one call; the benchmark ``executor`` runs it in fresh processes.

It prints the seconds of its imports, and those from the opening to the first result, as JSON. Its argument is
``node`` (the default node runs, or else a private one is started) or ``processes`` (the standard library's).
"""

from __future__ import annotations

import json
import sys
import time


def nothing(value: int) -> int:
    """Return the argument."""
    return value


def _with_dios() -> tuple[float, float]:
    began = time.perf_counter()
    from dios import Executor

    imported = time.perf_counter()
    with Executor(2) as executor:
        executor.submit(nothing, 1).result()
        return imported - began, time.perf_counter() - imported


def _with_processes() -> tuple[float, float]:
    began = time.perf_counter()
    from concurrent.futures import ProcessPoolExecutor

    imported = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        pool.submit(nothing, 1).result()
        return imported - began, time.perf_counter() - imported


if __name__ == "__main__":
    print(json.dumps(_with_processes() if sys.argv[1] == "processes" else _with_dios()))
