"""A QUIC connection that is sprayed behind its handshake, which the thesis proposes in section 3.5."""

from __future__ import annotations

from math import inf
from typing import Final

from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import OURS, judged
from labs.papers.sprayer.lab import tcp
from labs.papers.sprayer.lab.quic import QuicTransfer
from labs.papers.sprayer.runs import (
    BOTH,
    FAMILY,
    NONE,
    NOTES,
    PARTS,
    SPRAY,
    SprayerRuns,
    mean,
    middle_and_ends,
)
from labs.plotting import Matrix

_WHERE: Final = "section 3.5"
_NOTES: Final = (
    *NOTES,
    (
        "aioquic sends one stream from left to right. It is Python, so the ends are slower than the function "
        "and bits per second say little about steering. Packet numbers are encrypted: the receiver itself "
        "reports packets that arrive after a later one, and the sender those that it takes for lost, in its "
        "log. Cables lose nothing unless a ring is full, so those are spurious."
    ),
    (
        "The kernel sprays packets of UDP port 443 with a short header by two encrypted bytes. In the second "
        "table the client changes its port during the transfer: the balancer finds its server by the "
        "connection id, and the other listed server does not exist."
    ),
)


def _percent(transfers: list[QuicTransfer]) -> tuple[float, float, float]:
    return (
        100 * mean([transfer.late for transfer in transfers]),
        100 * mean([transfer.late_by_three for transfer in transfers]),
        100 * mean([transfer.lost for transfer in transfers]),
    )


def figure_quic(runs: SprayerRuns) -> Figure:
    """Return the table of one QUIC connection by steering, and of one whose client moves."""
    most = max(runs.scope.cycles)
    rows: list[tuple[Cell, ...]] = []
    for steer in BOTH:
        transfers = runs.quics(steer, most)
        rows.append(
            (steer, *middle_and_ends([transfer.bits_s / 1e6 for transfer in transfers]), *_percent(transfers))
        )
    moves: list[tuple[Cell, ...]] = []
    for steer in BOTH:
        for seed in runs.seeds():
            moved = runs.moved_quic(steer, seed)
            migrated = moved.counters["migrated"]
            moves.append((steer, seed, moved.moved, migrated, "yes" if moved.whole else "no"))
    return Figure(
        number="quic",
        title=f"Section 3.5: one QUIC connection, {most:,} cycles",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=(
            FigureTable(
                "Mbit/s of one connection, and the order of its packets",
                ("steering", *PARTS, "late %", "late by three %", "taken for lost %"),
                rows,
            ),
            FigureTable(
                "A client that changes its port, behind a balancer",
                ("steering", "seed", "changes", "found by id", "whole"),
                moves,
            ),
        ),
        claims=tuple(_claims(runs, most)),
        pictures=(
            Matrix(
                "quic",
                "One connection of QUIC: percent of packets",
                "",
                ("late", "late by three", "taken for lost"),
                BOTH,
                [_percent(runs.quics(steer, most)) for steer in BOTH],
            ),
        ),
        notes=_NOTES,
        measured=True,
        family=FAMILY,
        options=runs.options,
    )


def _claims(runs: SprayerRuns, most: int) -> list[PublishedClaim]:
    late, _, lost = _percent(runs.quics(SPRAY, most))
    moved = [runs.moved_quic(SPRAY, seed) for seed in runs.seeds()]
    kept = sum(transfer.whole and transfer.moved == transfer.counters["migrated"] for transfer in moved)
    claims = [
        PublishedClaim(
            _WHERE,
            "transfers of a client that changes its port, sprayed, which end whole at the same server",
            "not measured there",
            f"{kept} of {len(moved)}",
            OURS,
        )
    ]
    published = f"more resilient to reordering than TCP ({NONE})"
    if tcp.missing():
        return [
            PublishedClaim(_WHERE, "QUIC, sprayed: taken for lost", published, f"{lost:.2f} %", OURS),
            *claims,
        ]
    again = 100 * mean([throughput.again for throughput in runs.tcps(SPRAY, most, 1)])
    return [
        PublishedClaim(
            _WHERE,
            "packets that the sender takes for lost, sprayed: QUIC and TCP",
            published,
            f"QUIC {lost:.2f} % ({late:.0f} % late), TCP {again:.2f} %",
            judged(again - lost, 0, inf, none=0.0),
        ),
        *claims,
    ]
