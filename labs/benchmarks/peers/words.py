"""Counting words without DIOS: with a Counter, Ray, a process pool, DuckDB and Polars.

Every contender counts the words of one file, and returns the number of words and of different words. Start-up
that is not part of the job is outside of ``clocked``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeAlias, cast
from zlib import crc32

from labs.benchmarks.peers.ray_session import Remote, ray_session
from labs.benchmarks.peers.redis_server import MissingPeerError

Found: TypeAlias = tuple[int, int]
"""The number of words, and the number of different words."""

Clocked: TypeAlias = Callable[[], AbstractContextManager[object]]
"""A function that returns the context manager for the job itself."""

Part: TypeAlias = dict[bytes, int]
PARTS = 2


# -- the functions of a user ----------------------------------------------------------------------------
def lines_of(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield the lines that begin in a range of a file."""
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        place = file.tell()
        for line in file:
            if place >= end:
                return
            place += len(line)
            yield line


def count_part(path: str, start: int, end: int) -> tuple[Part, ...]:
    """Count the words of one range, divided by the reducer that adds them up."""
    counts: Counter[bytes] = Counter()
    for line in lines_of(Path(path), start, end):
        counts.update(line.split())
    parts: tuple[Part, ...] = tuple({} for _ in range(PARTS))
    for word, count in counts.items():
        parts[crc32(word) % PARTS][word] = count
    return parts


def add_up(*parts: Part) -> Part:
    """Add up the counts of the same words."""
    total: Counter[bytes] = Counter()
    for part in parts:
        for word, count in part.items():
            total[word] += count
    return dict(total)


def ranges(path: Path, parts: int) -> list[tuple[int, int]]:
    """Return equal ranges of a file."""
    size = path.stat().st_size
    return [(size * number // parts, size * (number + 1) // parts) for number in range(parts)]


def size_of(part: Part) -> Found:
    """Return the numbers to compare."""
    return sum(part.values()), len(part)


# -- the contenders ---------------------------------------------------------------------------------------
def counter(path: Path, clocked: Clocked) -> Found:
    """Count in one process with one Counter."""
    with clocked():
        counts: Counter[bytes] = Counter()
        for line in lines_of(path, 0, path.stat().st_size):
            counts.update(line.split())
    return size_of(counts)


def pool(path: Path, clocked: Clocked) -> Found:
    """Count in two processes of the standard library, with two map and two reduce tasks."""
    with clocked(), ProcessPoolExecutor(PARTS) as executor:
        pieces = ranges(path, PARTS)
        mapped = list(executor.map(count_part, [str(path)] * PARTS, *zip(*pieces, strict=True)))
        reduced = list(executor.map(add_up, *mapped))
    sizes = [size_of(part) for part in reduced]
    return sum(size[0] for size in sizes), sum(size[1] for size in sizes)


def ray(path: Path, clocked: Clocked) -> Found:
    """Count in two map and two reduce tasks of Ray on two processors; the result stays in its store."""
    with ray_session(2_000_000_000) as (library, _):
        mapper = library.remote(cast("Callable[[], object]", count_part)).options(num_returns=PARTS)
        reducer = library.remote(cast("Callable[[], object]", add_up))
        # A worker for each processor is ready before the clock starts; starts are measured in another
        # section.
        library.get([library.remote(_nothing).remote() for _ in range(PARTS)])
        done = library.remote(cast("Callable[[], object]", _unique))
        with clocked():
            reduced = _ray_job(mapper, reducer, path)
            library.get([done.remote(part) for part in reduced])
        sizes = [size_of(cast("Part", library.get(part))) for part in reduced]
    return sum(size[0] for size in sizes), sum(size[1] for size in sizes)


def _nothing() -> None:
    """Do nothing, so that a worker is started."""


def _unique(part: Part) -> int:
    return len(part)


def _ray_job(mapper: Remote, reducer: Remote, path: Path) -> list[object]:
    mapped = [
        cast("list[object]", mapper.remote(str(path), start, end)) for start, end in ranges(path, PARTS)
    ]
    return [reducer.remote(*column) for column in zip(*mapped, strict=True)]


class _Answer(Protocol):
    def fetchone(self) -> tuple[int, int]: ...


class _Duck(Protocol):
    def execute(self, query: str, parameters: list[str]) -> _Answer: ...


_DUCK_QUERY = """
SELECT sum(n), count(*) FROM (
    SELECT word, count(*) AS n FROM (
        SELECT unnest(string_split(line, ' ')) AS word
        FROM read_csv(?, columns = {'line': 'VARCHAR'}, delim = '\t', header = false, quote = '', escape = '')
    ) GROUP BY word)
"""


def duckdb(path: Path, clocked: Clocked) -> Found:
    """Count with one query of DuckDB on two threads."""
    try:
        import duckdb as library
    except ImportError:
        raise MissingPeerError("duckdb is not installed (pip install duckdb)") from None
    connection = cast("_Duck", library.connect(config={"threads": PARTS}))
    with clocked():
        words, unique = connection.execute(_DUCK_QUERY, [str(path)]).fetchone()
    return int(words), int(unique)


def polars(path: Path, clocked: Clocked) -> Found:
    """Count with one expression of Polars on two threads."""
    os.environ["POLARS_MAX_THREADS"] = str(PARTS)
    try:
        import polars as pl
    except ImportError:
        raise MissingPeerError("polars is not installed (pip install polars)") from None
    with clocked():
        lines = pl.scan_csv(
            path, has_header=False, separator="\t", quote_char=None, new_columns=["line"], infer_schema=False
        )
        words = lines.select(pl.col("line").str.split(" ").explode().alias("word"))
        counted = words.group_by("word").len().collect(engine="streaming")
    return int(counted["len"].sum()), len(counted)
