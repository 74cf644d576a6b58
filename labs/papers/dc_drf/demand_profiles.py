"""All demand profiles: Algorithm 1's rounds and time (Figure 3), and DC-DRF's accuracy (Figure 7)."""

from __future__ import annotations

from math import inf
from typing import Final

import numpy as np

from labs.papers.dc_drf.algorithm_1 import extrapolate, run
from labs.papers.dc_drf.clouds import FAMILY, MAIN, PAPER, PROFILES, Cloud, Clouds, Distance, exact_s
from labs.papers.dc_drf.deadlines import NOTES, steady_state
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import about, judged
from labs.plotting import Lines

RATIO: Final = 10
"""Tenants for each resource, as in the paper's datacenter."""
RATIOS: Final = (1, 10)
PAPER_SIZE: Final = 1_000_000 * 100_000
"""The paper's tenants times resources; Algorithm 1's time is in proportion to that."""
DEADLINE: Final = 0.8
"""The deadline as a fraction of the time of all rounds with epsilon 0: right of the knee, but too short."""


def figure_3(clouds: Clouds) -> Figure:
    """Return Figure 3: rounds and time of Algorithm 1, compared with the exact solution by events."""
    by_profile: list[tuple[Cell, ...]] = []
    timed_rounds = clouds.timed_rounds()
    main = clouds.cloud(MAIN)
    levels, spent = extrapolate(main.demands, main.exact.share, timed_rounds)
    rounds, seconds = levels.size, float(spent[-1])
    for profile in PROFILES:
        cloud = clouds.cloud(profile)
        clouds.progress(f"{profile}: some rounds of Algorithm 1")
        glance = run(cloud.demands, clouds.size.timeout_short_s)
        levels, spent = extrapolate(cloud.demands, cloud.exact.share, glance)
        count, whole = levels.size, float(spent[-1])
        by_profile.append(
            (
                *(profile, int(cloud.demands[2].size), count, whole, f"{glance.levels.size / count:.0%}"),
                *(cloud.exact_s, whole / cloud.exact_s),
            )
        )
    by_size = _growth(clouds)
    time_text = f"{seconds:.3g} s {'measured' if timed_rounds.finished else 'extrapolated'}"
    scale = PAPER_SIZE / (clouds.size.tenants * clouds.size.resources)
    if scale > 1:
        time_text += f"; scaled by {scale:g} to the paper's size: {seconds * scale:.0f} s"
    slopes = {ratio: _slope([(row[0], row[3]) for row in by_size if row[1] == ratio]) for ratio in RATIOS}
    return Figure(
        number="3",
        title="Figure 3: conventional DRF: rounds and time by profile, and scalability",
        seed=clouds.seed,
        quick=clouds.size.quick,
        setting=(*clouds.setting(), ("time", "CPU time of one thread")),
        sheets=(
            FigureTable(
                "By profile",
                (
                    *("profile", "demands", "rounds", "Algorithm 1, s", "rounds timed"),
                    *("exact by events, s", "speed-up"),
                ),
                by_profile,
            ),
            FigureTable(
                "By size, profile G0",
                ("resources", "tenants : resources", "rounds", "Algorithm 1, s", "exact by events, s"),
                [tuple(row) for row in by_size],
            ),
        ),
        claims=_claims_3((time_text, seconds * scale), slopes, rounds, (main.exact_s, seconds)),
        pictures=_pictures(by_size),
        notes=(*NOTES[:1], *_NOTES_3),
        measured=True,
        family=FAMILY,
        options=clouds.size.options,
        source=PAPER,
    )


_NOTES_3: Final = (
    (
        "Algorithm 1 is compiled, runs on one thread, and sums all demands in every round. If it is not "
        "timed as a whole, the rest is extrapolated from its first rounds by the demands of the tenants that "
        "are still active, which follow from the exact result. That favours it: scattered rows take up to "
        "twice as long as consecutive ones with 100,000 tenants."
    ),
)


def _pictures(by_size: list[tuple[int, int, int, float, float]]) -> tuple[Lines, ...]:
    return (
        Lines(
            *("3", "Algorithm 1 by size, G0", "resources", "log10 of seconds"),
            {
                f"{ratio} tenants for each resource": (
                    [row[0] for row in by_size if row[1] == ratio],
                    [float(np.log10(row[3])) for row in by_size if row[1] == ratio],
                )
                for ratio in RATIOS
            },
            log_x=True,
        ),
    )


def _claims_3(
    time_text: tuple[str, float], slopes: dict[int, float], rounds: int, exact: tuple[float, float]
) -> tuple[PublishedClaim, ...]:
    return (
        PublishedClaim(
            "section 2.3, Figure 3",
            "Algorithm 1 at datacenter scale, G0",
            "765 s (1,000,000 x 100,000)",
            f"{time_text[0]}, {rounds:,} rounds",
            judged(time_text[1], *about(765), none=0.0),
        ),
        PublishedClaim(
            "section 2.3, Figure 3",
            "time grows faster than the number of resources",
            "non-linear",
            ", ".join(f"power {slope:.1f} at {ratio}:1" for ratio, slope in slopes.items()),
            judged(list(slopes.values()), 1, inf, none=1.0, every=True),
        ),
        PublishedClaim(
            "section 1",
            "exact shares need prohibitive time at this scale",
            "minutes",
            f"{exact[0]:.3g} s by events, {exact[1] / exact[0]:.0f} times faster",
            judged(exact[0], 60, inf, none=60.0),
        ),
    )


def _growth(clouds: Clouds) -> list[tuple[int, int, int, float, float]]:
    """Return (resources, tenants for each, rounds, seconds of Algorithm 1, seconds of exact by events)."""
    rows = []
    for ratio in RATIOS:
        for resources in clouds.size.scaling:
            cloud = clouds.generate(MAIN, resources * ratio, resources)
            timed_rounds = run(cloud.demands, clouds.size.timeout_short_s)
            levels, spent = extrapolate(cloud.demands, cloud.exact.share, timed_rounds)
            rows.append((resources, ratio, levels.size, float(spent[-1]), cloud.exact_s))
    return rows


def _slope(points: list[tuple[int, float]]) -> float:
    """Return the exponent with which the second number grows with the first."""
    x, y = (np.log(np.array(column, np.float64)) for column in zip(*points, strict=True))
    return float(np.polyfit(x, y, 1)[0])


def figure_7(clouds: Clouds) -> Figure:
    """Return Figure 7: rounds and deviation of DC-DRF with a deadline that is too short for exact shares."""
    rows: list[tuple[Cell, ...]] = []
    parts: list[float] = []
    distances: list[Distance] = []
    for profile in PROFILES:
        cloud: Cloud = clouds.cloud(profile)
        state = steady_state(clouds, cloud, DEADLINE * exact_s(cloud.demands, 1), threads=1)
        distance = cloud.distance(state.share)
        parts.append(state.rounds / cloud.exact.rounds)
        distances.append(distance)
        rows.append(
            (
                *(profile, state.deadline_s * 1000, state.epsilon, cloud.exact.rounds, state.rounds),
                *(parts[-1], distance.deviation, distance.utilisation, distance.worst),
            )
        )
    return Figure(
        number="7",
        title="Figure 7: DC-DRF performance and fairness by demand profile",
        seed=clouds.seed,
        quick=clouds.size.quick,
        setting=(
            *clouds.setting(),
            ("deadline", f"{DEADLINE:.0%} of the time of all rounds with epsilon 0, CPU time of one thread"),
        ),
        sheets=(
            FigureTable(
                "Compared with exact shares",
                (
                    *("profile", "deadline, ms", "epsilon", "rounds, exact", "rounds", "fraction of exact"),
                    *("deviation", "utilisation", "worst shortfall"),
                ),
                rows,
            ),
        ),
        claims=_claims_7(parts, distances),
        notes=NOTES,
        measured=True,
        family=FAMILY,
        options=clouds.size.options,
        source=PAPER,
    )


def _claims_7(parts: list[float], distances: list[Distance]) -> tuple[PublishedClaim, ...]:
    deviations = [distance.deviation for distance in distances]
    utilisations = [distance.utilisation for distance in distances]
    return (
        PublishedClaim(
            "section 5.2, Figure 7",
            "rounds fall by an order of magnitude",
            "10 times in all profiles",
            f"{1 / max(parts):.0f} to {1 / min(parts):.0f} times",
            judged([1 / part for part in parts], 5, 20, none=1.0),
        ),
        PublishedClaim(
            "section 5.2, Figure 7",
            "the standard deviation stays very low",
            "very low",
            f"{min(deviations):.2g} to {max(deviations):.2g}",
            judged(deviations, 0, 0.02, every=True),
        ),
        PublishedClaim(
            "section 5.3",
            "utilisation is near that of exact shares",
            "near-optimal",
            f"{min(utilisations):.3f} to {max(utilisations):.3f}",
            judged(utilisations, 0.99, 1.01, none=0.0, every=True),
        ),
    )
