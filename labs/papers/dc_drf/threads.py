"""DC-DRF on several threads, and its configurations: Figures 5 and 6 of the DC-DRF paper.

Times are processor time along the longest path: that of the steps on one thread, and in each step with tiles
that of the thread that worked longest. It is the time of an interval on processors that do nothing else, and
other load on the machine hardly changes it.
"""

from __future__ import annotations

import os
import time
from math import inf
from typing import Final, NamedTuple

from dios.fairness.dc_drf.allocator import DcDrf
from labs.papers.dc_drf.clouds import FAMILY, MAIN, PAPER, Clouds
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import judged
from labs.plotting import Lines
from labs.simulate.fairness.generate_demands import Csr

PROFILES: Final = ("U0", MAIN)
"""The profiles with the most and the fewest demands of a tenant that is large."""
PREDICTED: Final = (4, 8, 16, 24, 48)
"""The paper's machines have up to 48 cores."""
TURNS: Final = 7
"""Intervals of each configuration, in turns; the fastest counts."""
PRECISIONS: Final = {"f": "float32", "d": "float64"}
"""The paper's letters."""


class IntervalTime(NamedTuple):
    """The time of one interval, in seconds."""

    path_s: float
    """Processor time along the longest path."""
    alone_s: float
    """The part of it in steps on one thread."""
    tiled_s: float
    """The processor time of all threads in tiles."""
    real_s: float

    def predicted(self, cores: int) -> float:
        """Return the path with ``cores`` threads if tiles divide evenly and memory keeps up (Amdahl)."""
        return self.alone_s + self.tiled_s / cores


Times = dict[tuple[int, str], IntervalTime]
"""By number of threads and letter of the precision."""


def measure(demands: Csr, threads: tuple[int, ...], precisions: tuple[str, ...]) -> Times:
    """Return the time of an exact interval with new demands in the same places, for each configuration.

    ``precisions`` are letters of ``PRECISIONS``.
    """
    sharings = {
        (count, letter): DcDrf(demands, deadline_s=3600.0, threads=count, dtype=PRECISIONS[letter])
        for letter in precisions
        for count in threads
    }
    times: Times = {}
    for _ in range(TURNS):
        for key, sharing in sharings.items():
            began, real = time.process_time(), time.perf_counter()
            sharing.interval(demands)
            spent, real_s = time.process_time() - began, time.perf_counter() - real
            tiles = sharing.tile_times
            alone = max(spent - tiles.tiled_s, 0.0)
            interval = IntervalTime(alone + tiles.longest_s, alone, tiles.tiled_s, real_s)
            if key not in times or interval.path_s < times[key].path_s:
                times[key] = interval
    return times


def thread_counts() -> tuple[int, ...]:
    """Return 1, 2, 4 and so on, up to the processors of this process; at least 1 and 2."""
    most = max(2, len(os.sched_getaffinity(0)))
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return tuple(counts) if counts[-1] == most else (*counts, most)


def figure_5(clouds: Clouds) -> Figure:
    """Return Figure 5: the time of an interval by number of threads, and a prediction for more cores."""
    counts = thread_counts()
    rows: list[tuple[Cell, ...]] = []
    predicted: list[tuple[Cell, ...]] = []
    gains: list[float] = []
    parts: list[float] = []
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for profile in PROFILES:
        demands = clouds.cloud(profile).demands
        clouds.progress(f"{profile}: intervals on {', '.join(map(str, counts))} threads")
        times = measure(demands, counts, ("f",))
        single = times[1, "f"]
        parts.append(single.tiled_s / single.path_s)
        for count in counts:
            interval = times[count, "f"]
            gains += [single.path_s / interval.path_s] if count == counts[-1] else []
            rows.append(
                (
                    *(profile, count, interval.path_s * 1e3, interval.alone_s * 1e3, interval.tiled_s * 1e3),
                    *(interval.real_s * 1e3, single.path_s / interval.path_s),
                )
            )
        for cores in PREDICTED:
            path = single.predicted(cores)
            predicted.append((profile, cores, path * 1e3, single.path_s / path))
        lines[profile] = (list(counts), [times[count, "f"].path_s * 1e3 for count in counts])
        lines[f"{profile}, predicted"] = (
            [1, *PREDICTED],
            [single.predicted(cores) * 1e3 for cores in (1, *PREDICTED)],
        )
    columns = (
        "profile",
        "threads",
        "path, ms",
        "on one thread, ms",
        "in tiles, ms",
        "real, ms",
        "x one thread",
    )
    return Figure(
        number="5",
        title="Figure 5: time of an interval by number of threads",
        seed=clouds.seed,
        quick=clouds.size.quick,
        setting=(*clouds.setting(), ("threads", ", ".join(map(str, counts))), ("precision", "float32")),
        sheets=(
            FigureTable("New demands in the same places, epsilon 0", columns, rows),
            FigureTable(
                "PREDICTION for more cores, not measured",
                ("profile", "cores", "path, ms", "x one thread"),
                predicted,
            ),
        ),
        claims=_claims_5(gains, parts, counts[-1]),
        pictures=(
            Lines("5", "Time of an interval; lines with the word are PREDICTIONS", "threads", "ms", lines),
        ),
        notes=_NOTES,
        measured=True,
        family=FAMILY,
        options=clouds.size.options,
        source=PAPER,
    )


_NOTES: Final = (
    (
        "path: processor time of the steps on one thread, and in each step with tiles that of the thread "
        "that worked longest. real: the elapsed time of the same interval, next to all other programs."
    ),
    (
        "The paper divides every round over the threads. Here a round touches only the tenants that leave, "
        "so most rounds are shorter than the time to wake a thread, and stay on one. Tiles are used to read "
        "and scale the demands, for rounds with many tenants, and to write the amounts."
    ),
    (
        "The prediction divides the time in tiles evenly (Amdahl's law). It knows nothing of shared caches "
        "and memory bandwidth, by which the paper explains its own losses: it is an upper bound of the gain."
    ),
    (
        "The right part of Figure 5 needs several NUMA nodes. The vector instructions of Figure 6 are chosen "
        "by the compiler here, and threads are not bound to halves of cores: only precision and threads vary."
    ),
)


def _claims_5(gains: list[float], parts: list[float], threads: int) -> tuple[PublishedClaim, ...]:
    return (
        PublishedClaim(
            "section 4.5, Figure 5",
            "direction: more cores reduce the time of an interval",
            "a clear decrease",
            f"{min(gains):.2f} to {max(gains):.2f} times faster with {threads} threads",
            judged(gains, 1, inf, none=1.0, every=True),
        ),
        PublishedClaim(
            "section 4.5, Figure 5",
            f"size: the gain of {threads} threads is a large part of {threads}",
            "CPU-bound with few cores",
            f"{min(gains):.2f} to {max(gains):.2f} times; {min(parts):.0%} to {max(parts):.0%} in tiles",
            judged(gains, 0.8 * threads, threads, none=1.0, every=True),
        ),
        PublishedClaim(
            "section 4.5, Figure 5",
            "the gain is less than the number of cores",
            "sublinear",
            f"{max(gains) / threads:.0%} of linear",
            judged([gain / threads for gain in gains], 0, 1, every=True),
        ),
    )


def figure_6(clouds: Clouds) -> Figure:
    """Return Figure 6: configurations of precision and threads, by time."""
    counts = thread_counts()
    cloud = clouds.cloud(MAIN)
    clouds.progress(f"{MAIN}: precisions and threads")
    times = measure(cloud.demands, counts, tuple(PRECISIONS))
    ranked = sorted(times.items(), key=lambda pair: -pair[1].path_s)
    slowest = ranked[0][1].path_s
    ratios = [times[count, "d"].path_s / times[count, "f"].path_s for count in counts]
    fastest = ranked[-1][0]
    return Figure(
        number="6",
        title="Figure 6: configurations ranked by time",
        seed=clouds.seed,
        quick=clouds.size.quick,
        setting=(*clouds.setting(), ("profile", MAIN)),
        sheets=(
            FigureTable(
                "Slowest first; single (f) or double (d) precision of the rows",
                ("precision", "threads", "path, ms", "real, ms", "x slowest"),
                [
                    (letter, count, interval.path_s * 1e3, interval.real_s * 1e3, slowest / interval.path_s)
                    for (count, letter), interval in ranked
                ],
            ),
        ),
        claims=(
            PublishedClaim(
                "section 4.4, Figure 6",
                "direction: single precision is faster than double",
                "consistently",
                ", ".join(
                    f"{ratio:.2f} times with {count} threads"
                    for count, ratio in zip(counts, ratios, strict=True)
                ),
                judged(ratios, 1, inf, none=1.0, every=True),
            ),
            PublishedClaim(
                "section 4.8",
                "single precision with all cores is the fastest configuration",
                "32 bits, all cores",
                f"{PRECISIONS[fastest[1]]}, {fastest[0]} threads",
                judged(1.0 if fastest == (counts[-1], "f") else 0.0, 1, 1, none=0.0),
            ),
        ),
        notes=_NOTES,
        measured=True,
        family=FAMILY,
        options=clouds.size.options,
        source=PAPER,
    )
