"""Real TCP connections: Figures 3.6b, 3.7b and 3.9 of the thesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dios.papers.figures import Cell, Claim, Figure, Sheet
from dios.papers.sprayer.lab.tcp import Throughput
from dios.papers.sprayer.runs import (
    BOTH,
    FAMILY,
    FLOWLET,
    NONE,
    NOTES,
    PARTS,
    RSS,
    SPRAY,
    Fields,
    mean,
    middle_and_ends,
    ratios,
    spread,
    times,
)
from dios.plotting import Lines

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


def _price(found: list[Throughput]) -> tuple[float, float, float]:
    return (
        100 * mean([each.again for each in found]),
        100 * mean([each.late for each in found]),
        mean([each.answers for each in found]),
    )


def _gbits(found: list[Throughput]) -> list[float]:
    return [each.bits_s / 1e9 for each in found]


def _subset(fields: Fields) -> str:
    """Return another way of steering, or an empty text if there is none."""
    return "subset:2" if fields.cores > 2 else ""


def _steers(fields: Fields) -> tuple[str, ...]:
    return (*STEERS, _subset(fields)) if _subset(fields) else STEERS


def _notes(fields: Fields) -> tuple[str, ...]:
    if _subset(fields):
        return TCP_NOTES
    return (*TCP_NOTES, "subset:2 is not measured: with two cores it equals spraying.")


def figure_6b(fields: Fields) -> Figure:
    """Return Figure 3.6b: the throughput of one connection, by the cycles per packet."""
    rows: list[tuple[Cell, ...]] = []
    for cycles in fields.scope.cycles:
        for steer in _steers(fields):
            found = fields.tcps(steer, cycles, 1)
            rows.append((cycles, steer, *middle_and_ends(_gbits(found)), *_price(found)))
    most = max(fields.scope.cycles)
    turns: list[tuple[Cell, ...]] = []
    for steer in _steers(fields):
        found = [fields.tcp(steer, most, 1, seed, first=False) for seed in fields.seeds()]
        turns.append((most, steer, *middle_and_ends(_gbits(found)), *_price(found)))
    columns = ("cycles", "steering", *PARTS, *_PRICE)
    return Figure(
        number="3.6b",
        title="Figure 3.6b: TCP throughput of one connection",
        seed=fields.seed,
        quick=fields.scope.quick,
        setting=fields.setting(),
        sheets=(
            Sheet("Gbit/s", columns, rows),
            Sheet(
                "The same with the workers' default priority: nice, not before everything else",
                columns,
                turns,
            ),
        ),
        claims=tuple(_claims_6b(fields, most)),
        pictures=(
            Lines(
                "3.6b",
                "One connection of TCP",
                "cycles per packet",
                "Gbit/s",
                {
                    steer: (
                        fields.scope.cycles,
                        [mean(_gbits(fields.tcps(steer, each, 1))) for each in fields.scope.cycles],
                    )
                    for steer in _steers(fields)
                },
            ),
        ),
        notes=_notes(fields),
        measured=True,
        family=FAMILY,
        options=fields.options,
    )


def _claims_6b(fields: Fields, most: int) -> list[Claim]:
    where = "section 3.4, Figure 3.6b"
    claims = []
    for steer in _steers(fields)[1:]:
        gain = ratios(*(_gbits(fields.tcps(each, most, 1)) for each in (steer, RSS)))
        published = f"more ({NONE})" if steer == SPRAY else "not measured there"
        what = f"one connection, {most:,} cycles: {steer} compared with RSS"
        claims.append(Claim(where, what, published, times(gain), mean(gain) > 1.0))
    again, late, _ = _price(fields.tcps(SPRAY, most, 1))
    claims.append(
        Claim(
            "section 3, introduction",
            "cost of reordering: resent segments, and segments out of order",
            f"not enough to significantly impair TCP ({NONE})",
            f"{again:.2f} %, {late:.0f} %",
            again < 1.0,
        )
    )
    return claims


def figure_7b(fields: Fields) -> Figure:
    """Return Figure 3.7b: the throughput with the most cycles, by the number of connections."""
    most = max(fields.scope.cycles)
    rows: list[tuple[Cell, ...]] = []
    for flows in fields.scope.flows:
        for steer in _steers(fields):
            found = fields.tcps(steer, most, flows)
            rows.append((flows, steer, *middle_and_ends(_gbits(found)), *_price(found)))
    return Figure(
        number="3.7b",
        title=f"Figure 3.7b: TCP throughput by number of connections, {most:,} cycles",
        seed=fields.seed,
        quick=fields.scope.quick,
        setting=fields.setting(),
        sheets=(Sheet("Gbit/s of all connections", ("flows", "steering", *PARTS, *_PRICE), rows),),
        claims=tuple(_claims_7b(fields, most)),
        pictures=(_by_flows(fields, "3.7b", "Gbit/s", lambda each: each.bits_s / 1e9),),
        notes=_notes(fields),
        measured=True,
        family=FAMILY,
        options=fields.options,
    )


def _claims_7b(fields: Fields, most: int) -> list[Claim]:
    few, many = min(fields.scope.flows), max(fields.scope.flows)
    carried = {
        steer: {flows: _gbits(fields.tcps(steer, most, flows)) for flows in fields.scope.flows}
        for steer in BOTH
    }
    steady = spread([mean(found) for found in carried[SPRAY].values()])
    one, other = (ratios(carried[RSS][flows], carried[SPRAY][flows]) for flows in (few, many))
    ends = {steer: max(spread(each) for each in found.values()) for steer, found in carried.items()}
    where = "section 3.4, Figure 3.7b"
    return [
        Claim(
            where,
            "spraying: range over all numbers of flows",
            f"consistent ({NONE})",
            f"{steady:.0%} of the mean",
            steady < 0.1,
        ),
        Claim(
            where,
            f"RSS compared with spraying, {few} flow",
            f"considerably worse ({NONE})",
            times(one),
            mean(one) < 0.9,
        ),
        Claim(
            where,
            f"RSS compared with spraying, {many} flows",
            f"slightly better ({NONE})",
            times(other),
            1.0 < mean(other) < 1.2,
        ),
        Claim(
            where,
            "range over seeds",
            f"more with RSS ({NONE})",
            f"RSS {ends[RSS]:.0%}, spraying {ends[SPRAY]:.0%}",
            ends[RSS] > ends[SPRAY],
        ),
    ]


def figure_9(fields: Fields) -> Figure:
    """Return Figure 3.9: Jain's index of the connections' throughput."""
    most = max(fields.scope.cycles)
    several = [flows for flows in fields.scope.flows if flows > 1]
    rows: list[tuple[Cell, ...]] = [
        (flows, steer, *middle_and_ends(_fair(fields, steer, flows)))
        for flows in several
        for steer in _steers(fields)
    ]
    lowest = {steer: min(min(_fair(fields, steer, flows)) for flows in several) for steer in BOTH}
    where = "section 3.4, Figure 3.9"
    return Figure(
        number="3.9",
        title=f"Figure 3.9: Jain's index by number of connections, {most:,} cycles",
        seed=fields.seed,
        quick=fields.scope.quick,
        setting=fields.setting(),
        sheets=(
            Sheet("Jain's index: 1 if all have the same throughput", ("flows", "steering", *PARTS), rows),
        ),
        claims=(
            Claim(
                where,
                "spraying: the lowest of all numbers of flows and seeds",
                "close to 1.0",
                f"{lowest[SPRAY]:.3f}",
                lowest[SPRAY] >= 0.95,
            ),
            Claim(
                where,
                "RSS: the lowest",
                f"depends on the flows of each core ({NONE})",
                f"{lowest[RSS]:.3f}",
                lowest[RSS] < lowest[SPRAY],
            ),
        ),
        pictures=(_by_flows(fields, "3.9", "Jain's index", lambda each: each.jain),),
        notes=(*_notes(fields), "The runs are those of Figure 3.7b."),
        measured=True,
        family=FAMILY,
        options=fields.options,
    )


def _fair(fields: Fields, steer: str, flows: int) -> list[float]:
    return [each.jain for each in fields.tcps(steer, max(fields.scope.cycles), flows)]


def _by_flows(fields: Fields, name: str, y: str, of: Callable[[Throughput], float]) -> Lines:
    most, x = max(fields.scope.cycles), fields.scope.flows
    series = {}
    for steer in _steers(fields):
        found = [[of(each) for each in fields.tcps(steer, most, flows)] for flows in x]
        series[steer] = (x, [mean(values) for values in found])
        if steer in BOTH:
            series[f"{steer}, least"] = (x, [min(values) for values in found])
            series[f"{steer}, most"] = (x, [max(values) for values in found])
    return Lines(name, f"{most:,} cycles per packet", "connections", y, series, log_x=True)
