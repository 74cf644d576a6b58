"""MapReduce by workers and nodes, compared with one process and with pools of processes (Figure 5.5)."""

from __future__ import annotations

import multiprocessing
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import dios
from dios.errors import DiosError
from dios.lib import mapreduce
from labs.papers.dios.clusters import running_nodes
from labs.papers.dios.peer_tasks import add_up, count_range
from labs.papers.dios.runs import DiosRuns, seconds
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import OURS, judged
from labs.plotting import Lines

LETTERS: Final = 5
WORDS_IN_LINE: Final = 10
PARTS_OF_UNIQUE: Final = 51
"""Each word occurs this often on average, as in the thesis (51.2 million words, a million of them unique)."""
ONE_PROCESS: Final = "one process, a Counter"
EXECUTOR: Final = "concurrent.futures"
POOL: Final = "multiprocessing.Pool"
_BATCH: Final = 100_000
_JOB: Final = b"""
def map_keys(line):
    return line.split()

combine = reduce = sum
"""

Counted = tuple[int, int]
"""The number of words and of different words."""


def write_text(path: Path, words: int, seed: int) -> None:
    """Write ``words`` words of five letters, ten per line; the same seed gives the same bytes."""
    rng = random.Random(seed)  # noqa: S311 - data that anybody can make again, no secret
    known: dict[str, None] = {}
    while len(known) < max(1, words // PARTS_OF_UNIQUE):
        known["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=LETTERS))] = None
    vocabulary = list(known)
    with path.open("w", encoding="ascii") as file:
        for begin in range(0, words, _BATCH):
            drawn = rng.choices(vocabulary, k=min(_BATCH, words - begin))
            for at in range(0, len(drawn), WORDS_IN_LINE):
                file.write(" ".join(drawn[at : at + WORDS_IN_LINE]) + "\n")


def figure_5(runs: DiosRuns) -> Figure:
    """Return Figure 5.5: the time of WordCount by workers on one node, and by nodes."""
    scope, workers = runs.scope, tuple(dict.fromkeys((1, runs.processors)))
    taken: dict[tuple[str, int, int], list[float]] = {}
    places: dict[int, int] = {}
    notes: tuple[str, ...] = ()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dios-repro-")))
        text = folder / "text"
        runs.progress(f"5.5: a text of {scope.words:,} words")
        write_text(text, scope.words, runs.seed)
        wanted = _one_process(text)
        for count in scope.job_nodes:
            # The scheduler places the tasks of a job on several nodes; on one it has nothing to decide.
            settings = {"coordinator": "off"} if count == 1 else {}
            with running_nodes(count, **settings) as nodes, nodes.connect(0) as node:
                for number in workers if count == 1 else (max(count, runs.processors),):
                    runs.progress(f"5.5: {count} nodes, {number} workers")
                    key = ("DIOS", count, number)
                    taken[key] = []
                    for _ in range(scope.job_repetitions):
                        used_nodes: set[str] = set()
                        taken[key].append(_job(node, text, number, wanted, used_nodes))
                        places[count] = max(places.get(count, 0), len(used_nodes))
                notes = nodes.notes
        others: dict[str, Callable[[int], Counted]] = {
            EXECUTOR: lambda number: _executor(text, number),
            POOL: lambda number: _pool(text, number),
        }
        taken[ONE_PROCESS, 1, 1] = [seconds(lambda: _one_process(text)) for _ in range(scope.job_repetitions)]
        for name, count_with in others.items():
            for number in workers:
                runs.progress(f"5.5: {name}, {number} workers")
                work = _checked(count_with, number, wanted)
                taken[name, 1, number] = [seconds(work) for _ in range(scope.job_repetitions)]
    megabytes = scope.words * (LETTERS + 1) / 1e6
    rows: list[tuple[Cell, ...]] = [
        (way, count, number, statistics.median(spans), min(spans), max(spans))
        for (way, count, number), spans in taken.items()
    ]
    return runs.figure(
        "5.5",
        f"Figure 5.5: WordCount of {megabytes:,.1f} MB",
        (
            FigureTable("Seconds", ("way", "nodes", "workers", "median", "least", "most"), rows),
            FigureTable(
                "Nodes on which tasks of the job ran",
                ("nodes", "with tasks"),
                list(places.items()),
            ),
        ),
        _claims(taken, workers),
        _pictures(taken, scope.job_nodes, workers),
        (
            *notes,
            (
                f"The text has {scope.words:,} words instead of 51.2 million, as often repeated as in the "
                "thesis; Wikipedia's text is not used. Functions are plain Python on all sides, and the "
                "tasks of DIOS are sandboxed."
            ),
            (
                f"All nodes share {runs.processors} processors here, so that further nodes can only add "
                "coordination. The thesis' machines have twelve threads each."
            ),
            "Metis and Spark are not measured: one is C on many cores, the other needs a Java machine.",
        ),
    )


def _checked(count_with: Callable[[int], Counted], number: int, wanted: Counted) -> Callable[[], None]:
    def work() -> None:
        if (counted := count_with(number)) != wanted:
            raise DiosError(f"a peer counted {counted} words instead of {wanted}")

    return work


def _job(node: dios.Node, text: Path, workers: int, wanted: Counted, used_nodes: set[str]) -> float:
    """Return the seconds of one job, and add the nodes of its tasks to ``used_nodes``."""
    results: list[mapreduce.JobResult] = []

    def work() -> None:
        results.append(mapreduce.run(node, _JOB, inputs=[text], reducers=workers, workers=workers))

    taken = seconds(work)
    with results[0] as result:
        counts = [int(str(count)) for _, count in result]
        used_nodes |= {report.status.node for report in result.tasks}
    if (sum(counts), len(counts)) != wanted:
        raise DiosError(f"the job counted {sum(counts)} words instead of {wanted[0]}")
    return taken


def _one_process(text: Path) -> Counted:
    counts: Counter[bytes] = Counter()
    with text.open("rb") as file:
        for line in file:
            counts.update(line.split())
    return counts.total(), len(counts)


def _ranges(text: Path, parts: int) -> list[tuple[str, int, int]]:
    size = text.stat().st_size
    return [(str(text), size * at // parts, size * (at + 1) // parts) for at in range(parts)]


def _executor(text: Path, workers: int) -> Counted:
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(count_range, *part) for part in _ranges(text, workers)]
        return add_up([future.result() for future in futures])


def _pool(text: Path, workers: int) -> Counted:
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return add_up(pool.starmap(count_range, _ranges(text, workers)))


def _claims(taken: dict[tuple[str, int, int], list[float]], workers: tuple[int, ...]) -> list[PublishedClaim]:
    middle = {key: statistics.median(spans) for key, spans in taken.items()}
    most = max(workers)
    alone, together = middle["DIOS", 1, min(workers)], middle["DIOS", 1, most]
    best = min(middle[name, 1, number] for name in (EXECUTOR, POOL) for number in workers)
    claims = [
        PublishedClaim(
            "section 5.3, Figure 5.5a",
            f"{most} workers compared with one, on one node",
            "scales to the cores of a machine",
            f"{alone / together:.2f} x as fast",
            judged(alone / together, 0.75 * most, most, none=1.0),
        ),
        PublishedClaim(
            "section 5.3, Figure 5.5a",
            "time on one node compared with the best other way on one machine",
            "competitive with Metis",
            f"{together / best:.2f} x ({together:.2f} s by {best:.2f} s)",
            judged(together / best, 0.8, 1.25, none=float("inf")),
        ),
    ]
    for (way, count, number), span in middle.items():
        if way == "DIOS" and count > 1:
            claims.append(
                PublishedClaim(
                    "section 5.3",
                    f"{count} nodes on one machine, {number} workers, compared with one node",
                    "",
                    f"{span / together:.2f} x the time",
                    OURS,
                )
            )
    return claims


def _pictures(
    taken: dict[tuple[str, int, int], list[float]], counts: tuple[int, ...], workers: tuple[int, ...]
) -> tuple[Lines, ...]:
    middle = {key: statistics.median(spans) for key, spans in taken.items()}
    lines = {
        f"{way}, one node": (workers, [middle[way, 1, number] for number in workers])
        for way in ("DIOS", EXECUTOR, POOL)
    }
    pictures = [Lines("5.5a", "WordCount on one machine", "workers", "seconds", lines)]
    if len(counts) > 1:
        best = [min(t for (way, at, _), t in middle.items() if way == "DIOS" and at == n) for n in counts]
        pictures.append(
            Lines("5.5b", "WordCount by nodes on one machine", "nodes", "seconds", {"DIOS": (counts, best)})
        )
    return tuple(pictures)
