"""Word count of 307 MB as a MapReduce job of sandboxed tasks, compared with the usual alternatives.

Each contender runs in a process of its own, with the node or Ray that it starts; processor time and memory
are those of its process tree.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

import dios
from dios.lib import mapreduce
from dios.limits import JOB_BLOCK_BYTES_DEFAULT
from labs.benchmarks.measure import PeakMemory, clock, tree_cpu_seconds
from labs.benchmarks.metis import LETTERS, UNIQUE, WORDS, write_words
from labs.benchmarks.nodes import running_node
from labs.benchmarks.peers import words
from labs.benchmarks.peers.redis_server import MissingPeerError
from labs.benchmarks.peers.words import Clocked, Found
from labs.benchmarks.report import Row, Section, judge, number, times

NAN: Final = float("nan")
FOLDER: Final = Path(__file__).resolve().parents[2] / ".demo"
"""The folder in which the text remains between runs; `make clean` removes it."""

SHARE: Final = float(os.environ.get("BENCH_SHARE", "1"))
"""The share of the text that is counted; for trying the section out."""

_MAP: Final = b"""
def map(line):
    for word in line.split():
        yield word, 1

combine = reduce = sum
"""

MAP_KEYS: Final = b"""
def map_keys(line):
    return line.split()

combine = reduce = sum
"""

_MAP_BLOCK: Final = Path(__file__).resolve().parents[2] / "examples" / "wordcount_numpy.py"
_BLOCK_BYTES: Final = 512 << 20


class Outcome(msgspec.Struct, frozen=True):
    """The cost of one contender; ``trouble`` is the reason if it could not run."""

    words: int = 0
    unique: int = 0
    wall: float = NAN
    cpu: float = NAN
    peak_mb: float = NAN
    trouble: str = ""


@dataclass(slots=True)
class _Stopwatch:
    wall: float = NAN
    cpu: float = NAN

    @contextlib.contextmanager
    def clocked(self) -> Iterator[None]:
        """Measure wall time and processor time of this process and its descendants in this context."""
        cpu, wall = tree_cpu_seconds(os.getpid()), clock()
        yield
        self.wall = (clock() - wall) / 1e9
        self.cpu = tree_cpu_seconds(os.getpid()) - cpu


Contender: TypeAlias = Callable[[Path, Clocked], Found]


def apart(contender: Contender, path: Path) -> Outcome:
    """Run a contender in a process of its own."""
    near, far = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(near)
        try:
            os.write(far, msgspec.msgpack.encode(_measured(contender, path)))
        finally:
            os._exit(0)
    os.close(far)
    with os.fdopen(near, "rb") as answers, PeakMemory(pid) as memory:
        answer = answers.read()
    os.waitpid(pid, 0)
    if not answer:
        return Outcome(trouble="it ended without a result")
    return msgspec.structs.replace(msgspec.msgpack.decode(answer, type=Outcome), peak_mb=memory.peak_mb)


def _measured(contender: Contender, path: Path) -> Outcome:
    watch = _Stopwatch()
    try:
        totals = contender(path, watch.clocked)
    except MissingPeerError as missing:
        return Outcome(trouble=str(missing))
    except Exception as error:  # noqa: BLE001 - whatever it is, the report says so
        return Outcome(trouble=f"{type(error).__name__}: {error}".splitlines()[0])
    return Outcome(*totals, watch.wall, watch.cpu)


def ours(job: bytes | Path, *, block_bytes: int = JOB_BLOCK_BYTES_DEFAULT, preload: str = "") -> Contender:
    """Return our job on a node of its own: two mappers at a time and two reducers, all sandboxed."""

    def run_job(path: Path, clocked: Clocked) -> Found:
        with running_node(None, preload=preload) as bench, dios.connect(bench.data, groups=[]) as node:
            # The waiting children are ready before the clock starts; starts are measured in another section.
            time.sleep(0.5)
            with clocked():
                result = mapreduce.run(
                    node, job, inputs=[path], reducers=2, workers=2, block_bytes=block_bytes
                )
            with result:
                counts = [int(str(count)) for _, count in result]
            return sum(counts), len(counts)

    return run_job


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    FOLDER.mkdir(exist_ok=True)
    count = int(WORDS * SHARE) // 10 * 10
    path = FOLDER / f"words-{count}.txt"
    section.figure("text", write_words(path, words=count) / 1e6, "MB")
    section.figure("words of the text", count, "")
    section.figure("different words", UNIQUE, "")
    assert path.stat().st_size == count * (LETTERS + 1)
    contenders: dict[str, Contender] = {
        "dios, map_keys": ours(MAP_KEYS),
        "ray": words.ray,
        "counter": words.counter,
        "dios, map": ours(_MAP),
        "duckdb": words.duckdb,
        "polars": words.polars,
        "multiprocessing": words.pool,
    }
    if importlib.util.find_spec("numpy") is not None:
        contenders["dios, block"] = ours(_MAP_BLOCK, block_bytes=_BLOCK_BYTES, preload="numpy")
    outcomes: dict[str, Outcome] = {}
    for name, contender in contenders.items():
        outcome = outcomes[name] = apart(contender, path)
        section.figure(f"{name}, wall", outcome.wall, "s")
        section.figure(f"{name}, processor", outcome.cpu, "s")
        section.figure(f"{name}, peak PSS", outcome.peak_mb, "MB")
        print(f"    {name}: {outcome}", flush=True)
        if outcome.trouble:
            section.trouble.append(f"{name}: {outcome.trouble}")
        elif outcome.words != count:
            section.trouble.append(f"{name} counted {outcome.words} words of {count}")
    _rows(section, outcomes)


def _rows(section: Section, outcomes: dict[str, Outcome]) -> None:
    missing = Outcome()
    mine, record, block = (outcomes.get(f"dios, {kind}", missing) for kind in ("map_keys", "map", "block"))
    peer, single, duck = (outcomes.get(name, missing) for name in ("ray", "counter", "duckdb"))
    goal = mine.wall / peer.wall
    section.rows += [
        Row(
            "word count, 307 MB, plain Python functions, 2 processes: wall time",
            f"{number(mine.wall)} s (map_keys); {number(record.wall)} s (map, a generator)",
            f"Ray {number(peer.wall)} s; Counter, one process, {number(single.wall)} s",
            f"{times(goal)} Ray, {times(mine.wall / single.wall)} the Counter",
            judge("Ray's wall time", mine.wall, peer.wall),
            judge("16 s of the Counter's 28.7", mine.wall / single.wall, 16 / 28.7),
            "start-up is not counted on either side: Ray's is in the row of an idle node",
        ),
        Row(
            "the same: processor time",
            f"{number(mine.cpu)} s (map_keys); {number(record.cpu)} s (map)",
            f"Ray {number(peer.cpu)} s; Counter {number(single.cpu)} s",
            f"{times(mine.cpu / peer.cpu)} Ray",
            judge("80 % of Ray's", mine.cpu / peer.cpu, 0.8),
        ),
        Row(
            "the same: peak memory (PSS) of everything",
            f"{number(mine.peak_mb)} MB (map_keys); {number(record.peak_mb)} MB (map)",
            f"Ray {number(peer.peak_mb)} MB; Counter {number(single.peak_mb)} MB",
            f"{times(mine.peak_mb / peer.peak_mb)} Ray",
            judge("half of Ray's", mine.peak_mb / peer.peak_mb, 0.5),
        ),
        Row(
            "the same with a block function on numpy",
            f"{number(block.wall)} s; {number(block.cpu)} s of processor",
            f"DuckDB {number(duck.wall)} s; Polars {number(outcomes.get('polars', missing).wall)} s",
            f"{times(mine.wall / block.wall)} faster than map_keys, {times(block.wall / duck.wall)} DuckDB",
            judge("3 x faster than plain Python", mine.wall / block.wall, 3, below=False),
            judge("within 2 x of DuckDB", block.wall / duck.wall, 2),
        ),
    ]
