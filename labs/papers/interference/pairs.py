"""Matrices of pairs of workloads, by what their hardware threads share (Figure 2.6)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from dios.firmament.descriptors import Interference
from labs.papers.figures import Figure, FigureTable, ProgressCallback, PublishedClaim
from labs.papers.interference.measure import Load, Speed, WorkloadData, run_together
from labs.papers.interference.places import Place, Sharing
from labs.papers.interference.runs import InterferenceRuns, setting_text
from labs.papers.judgements import judged
from labs.plotting import Matrix

APPLICATIONS: Final = ("http", "quicksort", "pagerank", "bopm", "query", "stream")
"""Table 2.3's five applications, small, and STREAM."""
CLASS_PROGRAMS: Final = {
    Interference.TURTLE: "bopm",
    Interference.SHEEP: "quicksort",
    Interference.RABBIT: "pagerank",
    Interference.DEVIL: "stream",
}
"""The workload that stands for each of CoCo's classes (thesis section 7.3), in their order."""


class PairMatrix(NamedTuple):
    """Slow-downs of the workload of a row next to that of a column; 1 is undisturbed."""

    sharing: Sharing
    place: Place
    names: tuple[str, ...]
    slow_downs: list[list[float]]


def measure_pairs(
    bench: WorkloadData,
    kind: Sharing,
    place: Place,
    names: Sequence[str],
    seconds: float,
    rounds: int,
    progress: ProgressCallback,
) -> PairMatrix:
    """Return the matrix of all pairs of ``names`` on one pair of hardware threads.

    Each workload also runs alone, before the pairs. On two hardware threads the time is processor time, which
    programs on other processors do not lengthen; on one it is the time that passes, half of which the
    neighbour takes.
    """
    alone = {
        name: _speed(kind, run_together(bench, [Load(name, (place.first,))], seconds, rounds)[0])
        for name in names
    }
    matrix: list[list[float]] = []
    for mine in names:
        progress(f"pairs, {kind}: {mine}")
        row = []
        for other in names:
            loads = [Load(mine, (place.first,)), Load(other, (place.second,))]
            row.append(alone[mine] / _speed(kind, run_together(bench, loads, seconds, rounds)[0]))
        matrix.append(row)
    return PairMatrix(kind, place, tuple(names), matrix)


def _speed(kind: Sharing, speeds: Sequence[Speed]) -> float:
    values = [speed.per_second if kind is Sharing.THREAD else speed.per_cpu_second for speed in speeds]
    return max(statistics.median(values), 1e-9)


def figure_6(runs: InterferenceRuns) -> Figure:
    """Return Figure 2.6: a matrix for each kind of sharing that this machine has."""
    scope = runs.scope
    names = APPLICATIONS[: scope.applications]
    matrices = [
        measure_pairs(runs.bench, kind, place, names, scope.seconds, scope.rounds, runs.progress)
        for kind, place in runs.places.items()
    ]
    return runs.figure(
        "2.6",
        "Figure 2.6: pairs of workloads, normalised run time",
        [
            FigureTable(
                f"Run time of the row next to the column, sharing {matrix.sharing} "
                f"(processors {matrix.place.first} and {matrix.place.second})",
                ("", *matrix.names),
                [(name, *row) for name, row in zip(matrix.names, matrix.slow_downs, strict=True)],
            )
            for matrix in matrices
        ],
        _claims(matrices),
        [
            Matrix(
                f"2.6-{matrix.sharing.name.lower().replace('_', '-')}",
                f"Normalised run time, sharing {matrix.sharing}",
                "next to",
                matrix.names,
                matrix.names,
                matrix.slow_downs,
            )
            for matrix in matrices
        ],
        (
            *runs.lacks,
            (
                "nginx, GraphChi, Spark and the data of LiveJournal are replaced by small programs of the "
                "same kind, whose data have the size of this machine's caches."
            ),
            (
                "On two processors the run time is processor time, so that other programs of the machine "
                "disturb less. On one processor it is the time that passes: two equal workloads have 2."
            ),
            setting_text(scope.seconds, scope.rounds),
        ),
    )


def _claims(matrices: Sequence[PairMatrix]) -> list[PublishedClaim]:
    far = [matrix for matrix in matrices if matrix.sharing is not Sharing.THREAD]
    claims = []
    if far:
        worst = max(max(map(max, matrix.slow_downs)) for matrix in far)
        claims.append(
            PublishedClaim(
                "section 2.1.3, Figure 2.6",
                "the worst pair on two processors",
                "up to 2.13 x",
                f"{worst:.2f} x",
                judged(worst, 1.9, 2.4, none=1.02),
            )
        )
        rows: dict[str, list[float]] = {}
        for pair_matrix in far:
            for name, row in zip(pair_matrix.names, pair_matrix.slow_downs, strict=True):
                rows.setdefault(name, []).extend(row)
        if "bopm" in rows and "pagerank" in rows:
            gap = statistics.mean(rows["pagerank"]) - statistics.mean(rows["bopm"])
            claims.append(
                PublishedClaim(
                    "section 2.1.3",
                    "PageRank compared with option pricing: mean slow-down, difference",
                    "memory-bound work suffers more",
                    f"{gap:+.2f}",
                    judged(gap, 0, float("inf"), none=0.0),
                )
            )
    if len(far) > 1:
        means = [statistics.mean(value for row in matrix.slow_downs for value in row) for matrix in far]
        claims.append(
            PublishedClaim(
                "section 2.1.3",
                f"mean slow-down: sharing {far[-1].sharing} compared with {far[0].sharing}",
                "interference grows with shared levels",
                f"{means[-1] / means[0]:.2f} x",
                judged(means[-1] / means[0], 1, float("inf"), none=1.0),
            )
        )
    return claims
