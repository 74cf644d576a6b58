"""Real TCP connections: Figures 3.6b, 3.7b and 3.9 of the thesis."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import OURS, judged
from labs.papers.sprayer.lab.tcp import Throughput
from labs.papers.sprayer.runs import (
    BOTH,
    FAMILY,
    FLOWLET,
    NONE,
    NOTES,
    PARTS,
    RSS,
    SPRAY,
    SprayerRuns,
    mean,
    middle_and_ends,
    ratios,
    spread,
    times,
)
from labs.plotting import Lines

STEERS: Final = (*BOTH, FLOWLET)
_PRICE: Final = ("resent %", "out of order %", "answers")

TCP_NOTES: Final = (
    *NOTES,
    (
        "iperf3 sends from left to right with the TCP of Linux, untuned. Resent is the sender's RetransSegs "
        "relative to all segments that it sent. Out of order are segments that waited at the receiver for "
        "an earlier one (TCPOFOQueue). Answers are the receiver's segments for each arriving one; each of "
        "them takes its cycles, too."
    ),
)


def _price(throughputs: list[Throughput]) -> tuple[float, float, float]:
    return (
        100 * mean([throughput.again for throughput in throughputs]),
        100 * mean([throughput.late for throughput in throughputs]),
        mean([throughput.answers for throughput in throughputs]),
    )


def _gbits(throughputs: list[Throughput]) -> list[float]:
    return [throughput.bits_s / 1e9 for throughput in throughputs]


def _subset(runs: SprayerRuns) -> str:
    """Return another way of steering, or an empty text if there is none."""
    return "subset:2" if runs.cores > 2 else ""


def _steers(runs: SprayerRuns) -> tuple[str, ...]:
    return (*STEERS, _subset(runs)) if _subset(runs) else STEERS


def _notes(runs: SprayerRuns) -> tuple[str, ...]:
    if _subset(runs):
        return TCP_NOTES
    return (*TCP_NOTES, "subset:2 is not measured: with two cores it equals spraying.")


def figure_6b(runs: SprayerRuns) -> Figure:
    """Return Figure 3.6b: the throughput of one connection, by the cycles per packet."""
    rows: list[tuple[Cell, ...]] = []
    for cycles in runs.scope.cycles:
        for steer in _steers(runs):
            throughputs = runs.tcps(steer, cycles, 1)
            rows.append((cycles, steer, *middle_and_ends(_gbits(throughputs)), *_price(throughputs)))
    most = max(runs.scope.cycles)
    turns: list[tuple[Cell, ...]] = []
    for steer in _steers(runs):
        throughputs = [runs.tcp(steer, most, 1, seed, first=False) for seed in runs.seeds()]
        turns.append((most, steer, *middle_and_ends(_gbits(throughputs)), *_price(throughputs)))
    columns = ("cycles", "steering", *PARTS, *_PRICE)
    return Figure(
        number="3.6b",
        title="Figure 3.6b: TCP throughput of one connection",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=(
            FigureTable("Gbit/s", columns, rows),
            FigureTable(
                "The same with the workers' default priority: nice, not before everything else",
                columns,
                turns,
            ),
        ),
        claims=tuple(_claims_6b(runs, most)),
        pictures=(
            Lines(
                "3.6b",
                "One connection of TCP",
                "cycles per packet",
                "Gbit/s",
                {
                    steer: (
                        runs.scope.cycles,
                        [mean(_gbits(runs.tcps(steer, per_packet, 1))) for per_packet in runs.scope.cycles],
                    )
                    for steer in _steers(runs)
                },
            ),
        ),
        notes=_notes(runs),
        measured=True,
        family=FAMILY,
        options=runs.options,
    )


def _claims_6b(runs: SprayerRuns, most: int) -> list[PublishedClaim]:
    passage = "section 3.4, Figure 3.6b"
    claims = []
    for steer in _steers(runs)[1:]:
        gain = ratios(*(_gbits(runs.tcps(steering, most, 1)) for steering in (steer, RSS)))
        published = f"more ({NONE})" if steer == SPRAY else "not measured there"
        subject = f"one connection, {most:,} cycles: {steer} compared with RSS"
        claims.append(
            PublishedClaim(
                passage,
                subject,
                published,
                times(gain),
                judged(gain, 1, inf, none=1.0) if steer == SPRAY else OURS,
            )
        )
    again, late, _ = _price(runs.tcps(SPRAY, most, 1))
    claims.append(
        PublishedClaim(
            "section 3, introduction",
            "cost of reordering: resent segments, and segments out of order",
            f"not enough to significantly impair TCP ({NONE})",
            f"{again:.2f} %, {late:.0f} %",
            judged(again, 0, 1),
        )
    )
    return claims


def figure_7b(runs: SprayerRuns) -> Figure:
    """Return Figure 3.7b: the throughput with the most cycles, by the number of connections."""
    most = max(runs.scope.cycles)
    rows: list[tuple[Cell, ...]] = []
    for flows in runs.scope.flows:
        for steer in _steers(runs):
            throughputs = runs.tcps(steer, most, flows)
            rows.append((flows, steer, *middle_and_ends(_gbits(throughputs)), *_price(throughputs)))
    return Figure(
        number="3.7b",
        title=f"Figure 3.7b: TCP throughput by number of connections, {most:,} cycles",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=(FigureTable("Gbit/s of all connections", ("flows", "steering", *PARTS, *_PRICE), rows),),
        claims=tuple(_claims_7b(runs, most)),
        pictures=(_by_flows(runs, "3.7b", "Gbit/s", lambda throughput: throughput.bits_s / 1e9),),
        notes=_notes(runs),
        measured=True,
        family=FAMILY,
        options=runs.options,
    )


def _claims_7b(runs: SprayerRuns, most: int) -> list[PublishedClaim]:
    few, many = min(runs.scope.flows), max(runs.scope.flows)
    carried = {
        steer: {flows: _gbits(runs.tcps(steer, most, flows)) for flows in runs.scope.flows} for steer in BOTH
    }
    steady = spread([mean(gbits) for gbits in carried[SPRAY].values()])
    at_few, other = (ratios(carried[RSS][flows], carried[SPRAY][flows]) for flows in (few, many))
    ends = {steer: max(spread(gbits) for gbits in by_flows.values()) for steer, by_flows in carried.items()}
    passage = "section 3.4, Figure 3.7b"
    return [
        PublishedClaim(
            passage,
            "spraying: range over all numbers of flows",
            f"consistent ({NONE})",
            f"{steady:.0%} of the mean",
            judged(steady, 0, 0.1),
        ),
        PublishedClaim(
            passage,
            f"RSS compared with spraying, {few} flow",
            f"considerably worse ({NONE})",
            times(at_few),
            judged(at_few, 0, 0.9, none=1.0),
        ),
        PublishedClaim(
            passage,
            f"RSS compared with spraying, {many} flows",
            f"slightly better ({NONE})",
            times(other),
            judged(other, 1, 1.2, none=1.0),
        ),
        PublishedClaim(
            passage,
            "range over seeds",
            f"more with RSS ({NONE})",
            f"RSS {ends[RSS]:.0%}, spraying {ends[SPRAY]:.0%}",
            judged(ends[RSS] - ends[SPRAY], 0, inf, none=0.0),
        ),
    ]


def figure_9(runs: SprayerRuns) -> Figure:
    """Return Figure 3.9: Jain's index of the connections' throughput."""
    most = max(runs.scope.cycles)
    several = [flows for flows in runs.scope.flows if flows > 1]
    rows: list[tuple[Cell, ...]] = [
        (flows, steer, *middle_and_ends(_fair(runs, steer, flows)))
        for flows in several
        for steer in _steers(runs)
    ]
    lowest = {steer: min(min(_fair(runs, steer, flows)) for flows in several) for steer in BOTH}
    passage = "section 3.4, Figure 3.9"
    return Figure(
        number="3.9",
        title=f"Figure 3.9: Jain's index by number of connections, {most:,} cycles",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=(
            FigureTable(
                "Jain's index: 1 if all have the same throughput", ("flows", "steering", *PARTS), rows
            ),
        ),
        claims=(
            PublishedClaim(
                passage,
                "spraying: the lowest of all numbers of flows and seeds",
                "close to 1.0",
                f"{lowest[SPRAY]:.3f}",
                judged(lowest[SPRAY], 0.95, 1, none=0.0),
            ),
            PublishedClaim(
                passage,
                "RSS: the lowest",
                f"depends on the flows of each core ({NONE})",
                f"{lowest[RSS]:.3f}",
                judged(lowest[SPRAY] - lowest[RSS], 0, inf, none=0.0),
            ),
        ),
        pictures=(_by_flows(runs, "3.9", "Jain's index", lambda throughput: throughput.jain),),
        notes=(*_notes(runs), "The runs are those of Figure 3.7b."),
        measured=True,
        family=FAMILY,
        options=runs.options,
    )


def _fair(runs: SprayerRuns, steer: str, flows: int) -> list[float]:
    return [throughput.jain for throughput in runs.tcps(steer, max(runs.scope.cycles), flows)]


def _by_flows(runs: SprayerRuns, name: str, y: str, of: Callable[[Throughput], float]) -> Lines:
    most, x = max(runs.scope.cycles), runs.scope.flows
    series = {}
    for steer in _steers(runs):
        samples = [[of(throughput) for throughput in runs.tcps(steer, most, flows)] for flows in x]
        series[steer] = (x, [mean(values) for values in samples])
        if steer in BOTH:
            series[f"{steer}, least"] = (x, [min(values) for values in samples])
            series[f"{steer}, most"] = (x, [max(values) for values in samples])
    return Lines(name, f"{most:,} cycles per packet", "connections", y, series, log_x=True)
