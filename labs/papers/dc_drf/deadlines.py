"""DC-DRF and Algorithm 1 under various deadlines: Figures 8, 9 and 10 of the DC-DRF paper."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

import numpy as np

from dios.fairness.allocation import Allocation, Floats
from dios.fairness.dc_drf.allocator import DcDrf
from labs.papers.dc_drf.algorithm_1 import RoundTimes, extrapolate
from labs.papers.dc_drf.clouds import FAMILY, MAIN, PAPER, Cloud, Clouds, Distance, clock_for, exact_s
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import judged, judged_count
from labs.plotting import Lines

PARTS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0)
"""Deadlines as fractions of the time of all rounds on one thread with epsilon 0."""
PARALLEL, SINGLE, STOPPED, ONE_ROUND = "DC-DRF", "sDC-DRF", "pEDRF", "pEDRF-1"
FAIR: Final = 0.02
"""The largest standard deviation that counts as small."""

NOTES: Final = (
    (
        "Deadlines are not the paper's 1 to 12 seconds: these sizes and this code need less time. The "
        "relation of a deadline to the time for exact shares is what matters."
    ),
    (
        "Deviation: the standard deviation over tenants of the allocation as a fraction of the exact one. "
        "Shortfall: the fraction of its exact allocation that a tenant lacks. The paper gives no formulas."
    ),
)


class SteadyState(NamedTuple):
    """The result of DC-DRF after some intervals."""

    deadline_s: float
    epsilon: float
    rounds: int
    share: Floats
    late: int
    """The number of intervals in the second half that did not complete."""
    seconds: float
    """The median time of an interval in the second half."""


def steady_state(clouds: Clouds, cloud: Cloud, deadline_s: float, *, threads: int | None) -> SteadyState:
    """Run control intervals on unchanged demands; return the completed one with the median epsilon.

    The deadline is in CPU time with one thread, otherwise in real time.
    """
    clouds.progress(f"DC-DRF, deadline {deadline_s * 1000:.0f} ms, {threads or 'all'} threads")
    clock = clock_for(threads)
    sharing = DcDrf(cloud.demands, deadline_s=deadline_s, threads=threads, clock=clock)
    last, late, spans = sharing.interval(), 0, []
    ended: list[Allocation] = []
    for number in range(clouds.size.intervals):
        began = clock()
        last = sharing.interval()
        if number >= clouds.size.intervals // 2:
            spans.append(clock() - began)
            late += not last.completed
            ended += [last] if last.completed else []
    # The search moves up and down, so the median of its values is more reliable than the last one.
    middle = sorted(ended or [last], key=lambda allocation: allocation.epsilon)[len(ended) // 2]
    return SteadyState(deadline_s, middle.epsilon, middle.rounds, middle.share, late, float(np.median(spans)))


def figure_8(clouds: Clouds) -> Figure:
    """Return Figure 8: utilisation, fairness and epsilon by deadline, for the paper's four configurations."""
    cloud = clouds.cloud(MAIN)
    least = whole = exact_s(cloud.demands, 1)
    rows: list[tuple[Cell, ...]] = []
    points_by_name: dict[str, list[tuple[float, Distance, float]]] = {PARALLEL: [], SINGLE: []}
    for part in PARTS:
        for name, threads in ((PARALLEL, None), (SINGLE, 1)):
            state = steady_state(clouds, cloud, part * whole, threads=threads)
            distance = cloud.distance(state.share)
            points_by_name[name].append((state.deadline_s, distance, state.epsilon))
            least = min(least, state.seconds)
            rows.append(
                (
                    *(name, state.deadline_s * 1000, part, state.epsilon, state.rounds, *distance),
                    *(state.late, state.seconds * 1000),
                )
            )
    stopped = _stopped(clouds, cloud)
    return Figure(
        number="8",
        title="Figures 8, 9 and 10: utilisation, fairness and epsilon by deadline, profile G0",
        seed=clouds.seed,
        quick=clouds.size.quick,
        setting=(
            *clouds.setting(),
            ("DC-DRF", "all CPUs, deadlines in real time"),
            ("sDC-DRF", "one thread, deadlines in CPU time"),
            ("intervals", f"{clouds.size.intervals} for each deadline"),
            ("exact rounds", f"{whole * 1000:.0f} ms on one thread, {cloud.exact.rounds:,} rounds"),
        ),
        sheets=_sheets(rows, stopped),
        claims=_claims(points_by_name, stopped),
        pictures=_pictures(points_by_name),
        notes=(
            *NOTES,
            (
                f"An interval of one round takes {least / whole:.0%} of one with all rounds: later rounds "
                "only remove tenants. A deadline between the two has little room."
            ),
            (
                "Real time includes other load on the machine, CPU time does not. If the machine was loaded, "
                "comparing rows of DC-DRF and sDC-DRF says little about threads."
            ),
            (
                "late: the number of intervals in the second half that the deadline ended. Writing the "
                "amounts comes after the deadline and is part of the interval's time."
            ),
            (
                "pEDRF is Algorithm 1, on one thread here and on 48 cores in the paper. Its levels are the "
                "exact ones, cut off where it was stopped; times beyond the measured ones are extrapolated."
            ),
        ),
        measured=True,
        family=FAMILY,
        options=clouds.size.options,
        source=PAPER,
    )


def _sheets(rows: list[tuple[Cell, ...]], stopped: list[tuple[Cell, ...]]) -> tuple[FigureTable, ...]:
    return (
        FigureTable(
            "DC-DRF and sDC-DRF compared with exact shares",
            (
                *("configuration", "deadline, ms", "of exact time", "epsilon", "rounds", "utilisation"),
                *("deviation", "worst shortfall", "0.1 % shortfall", "late", "interval, ms"),
            ),
            rows,
        ),
        FigureTable(
            "Algorithm 1 stopped early, one thread",
            (
                *("configuration", "CPU time, s", "of its own time", "rounds", "utilisation"),
                *("deviation", "worst shortfall", "0.1 % shortfall"),
            ),
            stopped,
        ),
    )


def _stopped(clouds: Clouds, cloud: Cloud) -> list[tuple[Cell, ...]]:
    """Return rows of Algorithm 1 stopped after one round, and after fractions of its time."""
    points: RoundTimes = clouds.timed_rounds()
    z = cloud.exact.share
    levels, spent = extrapolate(cloud.demands, z, points)
    whole = float(spent[-1])
    rows: list[tuple[Cell, ...]] = []
    for name, at in [(ONE_ROUND, 0)] + [
        (STOPPED, min(int(np.searchsorted(spent, part * whole)), levels.size - 1))
        for part in (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
    ]:
        distance = cloud.distance(np.minimum(z, levels[at]))
        rows.append((name, float(spent[at]), float(spent[at] / whole), at + 1, *distance))
    return rows


def _claims(
    points_by_name: dict[str, list[tuple[float, Distance, float]]], stopped: list[tuple[Cell, ...]]
) -> tuple[PublishedClaim, ...]:
    parallel = points_by_name[PARALLEL]
    knees = {
        name: next((at for at, point in enumerate(points) if point[1].utilisation > 0.99), len(PARTS) - 1)
        for name, points in points_by_name.items()
    }
    first = min(knees.values())
    right = [points[first][1].deviation for name, points in points_by_name.items() if knees[name] == first]
    utilisation = float(stopped[0][4])
    return (
        PublishedClaim(
            "section 5.3, Figure 8",
            "DC-DRF is near-optimal right of the knee",
            "near 1",
            ", ".join(
                f"{name} over 0.99 from {PARTS[at]:g} times the exact time on" for name, at in knees.items()
            ),
            # A deadline as long as the time for exact shares would prove nothing.
            judged(PARTS[first], 0, 1, none=1.0),
        ),
        PublishedClaim(
            "section 5.3, Figure 8",
            "one round of Algorithm 1 performs poorly",
            "poor",
            f"utilisation {utilisation:.2f}",
            judged(utilisation, 0, 0.9, none=1.0),
        ),
        PublishedClaim(
            "section 5.4, Figure 9",
            "the standard deviation is small right of the knee",
            "small",
            f"{max(right):.2g} where utilisation is first over 0.99",
            judged(right, 0, FAIR, every=True),
        ),
        PublishedClaim(
            "section 5.4, Figure 9",
            "the deviation of pEDRF exceeds that of pEDRF-1 at first, and falls to zero",
            "yes",
            " -> ".join(f"{float(row[5]):.2g}" for row in stopped),
            judged(
                min(
                    max(float(row[5]) for row in stopped[1:-1]) - float(stopped[0][5]),
                    float(stopped[0][5]) - float(stopped[-1][5]),
                ),
                0,
                inf,
                none=0.0,
            ),
        ),
        *_claims_threads(parallel, points_by_name[SINGLE]),
    )


def _claims_threads(
    parallel: list[tuple[float, Distance, float]], single: list[tuple[float, Distance, float]]
) -> tuple[PublishedClaim, ...]:
    tight = [
        (a, b) for (_, a, _), (_, b, _) in zip(parallel, single, strict=True) if max(a.worst, b.worst) > 0.01
    ]
    better = sum(a.worst <= b.worst for a, b in tight)
    steep = [point[2] for point in parallel]
    return (
        PublishedClaim(
            "section 5.4, Figure 9",
            "the greatest shortfall is smaller with all CPUs than with one",
            "substantially",
            f"at {better} of {len(tight)} deadlines too short for exact shares",
            judged_count(better, len(tight)),
        ),
        PublishedClaim(
            "section 5.5, Figure 10",
            "epsilon falls steeply, then hardly",
            "a knee, then a plateau",
            " ".join(f"{epsilon:.1g}" for epsilon in steep),
            judged(steep[-1] / steep[0] if steep[0] else 0.0, 0, 0.01, none=1.0),
        ),
        PublishedClaim(
            "section 5.5, Figure 10",
            "epsilon is two orders lower with all CPUs than with one",
            "100 times lower",
            " ".join(f"{a[2]:.1g}/{b[2]:.1g}" for a, b in zip(parallel, single, strict=True)),
            judged(
                [a[2] / b[2] for a, b in zip(parallel, single, strict=True) if b[2]],
                1 / 300,
                1 / 30,
                none=1.0,
            ),
        ),
    )


def _pictures(points_by_name: dict[str, list[tuple[float, Distance, float]]]) -> tuple[Lines, ...]:
    def lines(name: str, title: str, y: str, at: int) -> Lines:
        return Lines(
            *(name, title, "deadline, ms", y),
            {
                config: ([1000 * point[0] for point in points], [float(point[1][at]) for point in points])
                for config, points in points_by_name.items()
            },
        )

    epsilon = {
        config: ([1000 * point[0] for point in points], [point[2] for point in points])
        for config, points in points_by_name.items()
    }
    return (
        lines("8", "Utilisation compared with exact shares", "utilisation", 0),
        lines("9a", "Standard deviation from exact shares", "deviation", 1),
        lines("9b", "Greatest shortfall", "shortfall", 2),
        Lines("10", "Epsilon by deadline", "deadline, ms", "epsilon", epsilon),
    )
