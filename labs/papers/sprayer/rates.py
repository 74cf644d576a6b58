"""Processed frames per second: Figures 3.6a and 3.7a of the thesis."""

from __future__ import annotations

from math import inf
from typing import Final

from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import about, judged
from labs.papers.sprayer.prediction import fitted, prediction_picture, prediction_sheet
from labs.papers.sprayer.runs import (
    BOTH,
    FAMILY,
    MEMORY,
    NAMESPACES,
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

_NIC_MPPS: Final = 10.0


def figure_6a(runs: SprayerRuns) -> Figure:
    """Return Figure 3.6a: the rate of one flow, by the cycles per packet."""
    rows: list[tuple[Cell, ...]] = []
    for place in runs.places():
        for cycles in runs.scope.cycles:
            pair = [runs.rates(place, steer, cycles, 1) for steer in BOTH]
            for steer, rates in zip(BOTH, pair, strict=True):
                measurements = [runs.rate(place, steer, cycles, 1, seed) for seed in runs.seeds()]
                rows.append(
                    (
                        place,
                        cycles,
                        steer,
                        *(float(value) / 1e3 for value in middle_and_ends(rates)),
                        mean(ratios(rates, pair[0])),
                        mean([measurement.per_cpu_s for measurement in measurements]) / 1e3,
                        mean([measurement.worker_cpus for measurement in measurements]),
                        mean([measurement.sender_cpus for measurement in measurements]),
                        100 * max(measurement.lost for measurement in measurements),
                    )
                )
    columns = (
        "place",
        "cycles",
        "steering",
        *PARTS,
        "x RSS",
        "per CPU second",
        "workers",
        "sender",
        "lost %",
    )
    sheet = FigureTable(
        "Thousand frames of 64 bytes per second; processors of workers and sender", columns, rows
    )
    return Figure(
        number="3.6a",
        title="Figure 3.6a: processing rate of one flow",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=(sheet,),
        claims=tuple(_claims_6a(runs)),
        pictures=tuple(_picture_6a(runs, place) for place in runs.places()),
        notes=NOTES,
        measured=True,
        family=FAMILY,
        options=runs.options,
    )


def _claims_6a(runs: SprayerRuns) -> list[PublishedClaim]:
    most = max(runs.scope.cycles)
    claims = []
    for place in runs.places():
        gain = ratios(*(runs.rates(place, steer, most, 1) for steer in (SPRAY, RSS)))
        claims.append(
            PublishedClaim(
                "section 3.4, Figure 3.6a",
                f"one flow, {most:,} cycles, {place}: spraying compared with RSS",
                f"significantly more, with 8 cores ({NONE})",
                f"{times(gain)} with {runs.cores} cores",
                judged(gain, 1, inf, none=1.0),
            )
        )
        quickest = [rate / 1e6 for rate in runs.rates(place, SPRAY, 0, 1)]
        claims.append(
            PublishedClaim(
                "section 3.4",
                f"spraying at 0 cycles, {place}, million frames per second",
                f"about {_NIC_MPPS:g}, the limit of the card",
                f"{mean(quickest):.2f}",
                judged(quickest, *about(_NIC_MPPS), none=0.0),
            )
        )
        per_core_rates = [runs.rate(place, SPRAY, most, 1, seed).per_core for seed in runs.seeds()]
        least = min(min(core_rates) / max(sum(core_rates), 1.0) for core_rates in per_core_rates)
        claims.append(
            PublishedClaim(
                "section 3.7",
                f"one flow uses every core, {place}: the least share of a core",
                "the entire capacity",
                f"{least:.1%} of all frames",
                judged(least, 0.8 / runs.cores, 1 / runs.cores, none=0.0),
            )
        )
    return claims


def _picture_6a(runs: SprayerRuns, place: str) -> Lines:
    # At 0 cycles the rate in memory is so high that it would hide the others.
    x = [cycles for cycles in runs.scope.cycles if cycles or place != MEMORY]
    series = {steer: (x, [mean(runs.rates(place, steer, cycles, 1)) / 1e3 for cycles in x]) for steer in BOTH}
    name = "3.6a-memory" if place == MEMORY else "3.6a"
    return Lines(
        name, f"One flow of frames of 64 bytes, {place}", "cycles per frame", "thousand per second", series
    )


def figure_7a(runs: SprayerRuns) -> Figure:
    """Return Figure 3.7a: the rate with the most cycles, by the number of flows."""
    most = max(runs.scope.cycles)
    rows: list[tuple[Cell, ...]] = []
    for place in runs.places():
        for flows in runs.scope.flows:
            for steer in BOTH:
                rates = runs.rates(place, steer, most, flows)
                measurements = [runs.rate(place, steer, most, flows, seed) for seed in runs.seeds()]
                cells = (float(value) / 1e3 for value in middle_and_ends(rates))
                per_cpu = mean([measurement.per_cpu_s for measurement in measurements]) / 1e3
                idle = sum(
                    1
                    for rate in measurements
                    for core_rate in rate.per_core
                    if core_rate < 0.01 * rate.frames_s
                )
                rows.append((place, flows, steer, *cells, per_cpu, idle / len(measurements)))
    columns = ("place", "flows", "steering", *PARTS, "per CPU second", "idle cores")
    models = {}
    for place in runs.places():
        alone, sprayed = (
            mean([runs.rate(place, steer, most, 1, seed).per_cpu_s for seed in runs.seeds()])
            for steer in BOTH
        )
        models[place] = fitted(alone, runs.cores * sprayed, runs.cores)
    place = NAMESPACES if runs.veth_pairs else MEMORY
    return Figure(
        number="3.7a",
        title=f"Figure 3.7a: processing rate by number of flows, {most:,} cycles",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=(
            FigureTable("Thousand frames of 64 bytes per second", columns, rows),
            prediction_sheet(models, runs.cores, runs.scope.flows),
        ),
        claims=tuple(claim for place in runs.places() for claim in _claims_7a(runs, place, most)),
        pictures=(
            _picture_7a(runs, most),
            prediction_picture(models[place], place, runs.scope.flows),
        ),
        notes=NOTES,
        measured=True,
        family=FAMILY,
        options=runs.options,
    )


def _claims_7a(runs: SprayerRuns, place: str, most: int) -> list[PublishedClaim]:
    few, many = min(runs.scope.flows), max(runs.scope.flows)
    by_flows = {
        steer: {flows: runs.rates(place, steer, most, flows) for flows in runs.scope.flows} for steer in BOTH
    }
    steady = spread([mean(rates) for rates in by_flows[SPRAY].values()])
    at_few, other = (ratios(by_flows[RSS][flows], by_flows[SPRAY][flows]) for flows in (few, many))
    ends = {
        steer: max(spread(rates) for rates in flow_rates.values()) for steer, flow_rates in by_flows.items()
    }
    passage = "section 3.4, Figure 3.7a"
    return [
        PublishedClaim(
            passage,
            f"spraying, {place}: range over all numbers of flows",
            f"consistent ({NONE})",
            f"{steady:.1%} of the mean",
            judged(steady, 0, 0.1),
        ),
        PublishedClaim(
            passage,
            f"RSS compared with spraying, {few} flow, {place}",
            f"considerably worse ({NONE})",
            times(at_few),
            judged(at_few, 0, 0.9, none=1.0),
        ),
        PublishedClaim(
            passage,
            f"RSS compared with spraying, {many} flows, {place}",
            f"similar ({NONE})",
            times(other),
            judged(other, 0.9, 1.1),
        ),
        PublishedClaim(
            passage,
            f"range over seeds, {place}",
            f"more with RSS ({NONE})",
            f"RSS {ends[RSS]:.0%}, spraying {ends[SPRAY]:.0%}",
            judged(ends[RSS] - ends[SPRAY], 0, inf, none=0.0),
        ),
    ]


def _picture_7a(runs: SprayerRuns, most: int) -> Lines:
    place = NAMESPACES if runs.veth_pairs else MEMORY
    x = runs.scope.flows
    series = {}
    for steer in BOTH:
        samples = [runs.rates(place, steer, most, flows) for flows in x]
        for name, of in (("mean", mean), ("least", min), ("most", max)):
            series[f"{steer}, {name}"] = (x, [of(rates) / 1e3 for rates in samples])
    return Lines("3.7a", f"{most:,} cycles, {place}", "flows", "thousand per second", series, log_x=True)
