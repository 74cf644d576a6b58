"""Creation of objects, one at a time, compared with the system calls of Linux (Figure 5.1)."""

from __future__ import annotations

import mmap
import os
import socket
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import dios
from labs.papers.dios.clusters import running_nodes
from labs.papers.dios.runs import TIME_COLUMNS, DiosRuns, clock, time_cells
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import about, judged
from labs.plotting import Boxes

ANONYMOUS, RANDOM, DETERMINISTIC = "anonymous", "random", "deterministic"
_NAMINGS: Final = {
    ANONYMOUS: dios.ANONYMOUS,
    RANDOM: dios.RANDOM,
    DETERMINISTIC: dios.DETERMINISTIC,
}
DURABLE, UDP, STREAM, MEMORY = "DURABLE_BLOB", "UDP_STREAM", "SHMEM_STREAM", "PRIVMEM_BLOB"
_LINUX: Final = {
    MEMORY: "mmap of a page",
    DURABLE: "open with O_CREAT, and fsync",
    STREAM: "pipe",
    UDP: "socket and bind",
}
"""The nearest system calls of Linux, by type; the thesis compares with these, without the fsync."""


def figure_1(runs: DiosRuns) -> Figure:
    """Return Figure 5.1: the time to create an object, by naming and by type."""
    with ExitStack() as stack:
        nodes = stack.enter_context(running_nodes(1, coordinator="off", pool_size="0"))
        node = stack.enter_context(nodes.connect(0))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dios-repro-")))
        runs.progress("5.1: names")
        names = _names(node, runs.scope.creations)
        runs.progress("5.1: types")
        ours = _types(node, runs.scope.creations)
        linux = _linux(folder, runs.scope.creations)
    return runs.figure(
        "5.1",
        f"Figure 5.1: creation of {runs.scope.creations:,} objects, microseconds for each",
        (
            FigureTable(
                "By naming, microseconds", ("naming", *TIME_COLUMNS), [_row(*pair) for pair in names.items()]
            ),
            FigureTable(
                "By type, microseconds",
                ("object", *TIME_COLUMNS),
                [_row(*pair) for pair in (*ours.items(), *linux.items())],
            ),
        ),
        _claims(names, ours, linux),
        (
            Boxes(
                "5.1a",
                "Creation by naming",
                "microseconds",
                {name: {"DIOS": taken} for name, taken in names.items()},
            ),
            Boxes(
                "5.1b",
                "Creation by type",
                "microseconds",
                {
                    kind: {"DIOS, anonymous": taken, "Linux": linux[_LINUX[kind]]}
                    for kind, taken in ours.items()
                },
                log=True,
            ),
        ),
        (
            *nodes.notes,
            (
                "The thesis' call enters a kernel; here a Python client sends a message to the node's "
                "process and waits for the answer, about two switches between processes. Ratios to bare "
                "system calls are therefore larger."
            ),
            (
                "A DURABLE_BLOB is on the disk when the call returns, in a store with checksums. The thesis' "
                "is a file that was opened, so it is compared with a file that was synchronised."
            ),
            "There is no NOOP object; a blob without content takes its place in the comparison of names.",
        ),
    )


def _row(name: str, taken: list[float]) -> tuple[Cell, ...]:
    return (name, *time_cells(taken))


def _names(node: dios.Node, count: int) -> dict[str, list[float]]:
    """Return the microseconds of each creation, by naming; the namings take turns."""
    group = node.create_group()
    taken: dict[str, list[float]] = {name: [] for name in _NAMINGS}
    for turn in range(count + 1):
        for name, naming in _NAMINGS.items():
            groups = () if naming is dios.ANONYMOUS else (group,)
            before = clock()
            reference = node.create(dios.PRIVMEM_BLOB, groups=groups, naming=naming)
            value = (clock() - before) / 1e3
            reference.delete()
            if turn:
                taken[name].append(value)
    return taken


def _types(node: dios.Node, count: int) -> dict[str, list[float]]:
    """Return the microseconds of each creation, by type, in turns; deletion is not measured."""
    ways: dict[str, Callable[[], dios.Reference]] = {
        MEMORY: lambda: node.create(dios.PRIVMEM_BLOB, naming=dios.ANONYMOUS),
        DURABLE: lambda: node.create(dios.DURABLE_BLOB, naming=dios.ANONYMOUS),
        STREAM: node.create_stream,
        UDP: lambda: node.bind_udp("127.0.0.1:0"),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(count + 1):
        for name, create in ways.items():
            before = clock()
            reference = create()
            value = (clock() - before) / 1e3
            reference.delete()
            if turn:
                taken[name].append(value)
    return taken


def _linux(folder: Path, count: int) -> dict[str, list[float]]:
    """Return the microseconds of the system calls of Linux, from Python."""
    taken: dict[str, list[float]] = {name: [] for name in _LINUX.values()}
    for number in range(count):
        before = clock()
        page = mmap.mmap(-1, mmap.PAGESIZE)
        taken[_LINUX[MEMORY]].append((clock() - before) / 1e3)
        page.close()
        before = clock()
        file = os.open(folder / str(number), os.O_CREAT | os.O_WRONLY, 0o600)
        os.fsync(file)
        taken[_LINUX[DURABLE]].append((clock() - before) / 1e3)
        os.close(file)
        before = clock()
        ends = os.pipe()
        taken[_LINUX[STREAM]].append((clock() - before) / 1e3)
        for end in ends:
            os.close(end)
        before = clock()
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind(("127.0.0.1", 0))
        taken[_LINUX[UDP]].append((clock() - before) / 1e3)
        bound.close()
    return taken


def _claims(
    names: dict[str, list[float]], ours: dict[str, list[float]], linux: dict[str, list[float]]
) -> list[PublishedClaim]:
    middle = {name: statistics.median(taken) for name, taken in (names | ours | linux).items()}
    naming = middle[DETERMINISTIC] / middle[ANONYMOUS]
    slowest = max(middle[name] for name in (MEMORY, STREAM))
    claims = [
        PublishedClaim(
            "section 5.2.1, Figure 5.1a",
            "deterministic names compared with anonymous objects, median",
            "7.5 µs by 4 µs: 1.9 x",
            f"{middle[DETERMINISTIC]:.0f} µs by {middle[ANONYMOUS]:.0f} µs: {naming:.2f} x",
            judged(naming, *about(7.5 / 4), none=1.0),
        ),
        PublishedClaim(
            "section 5.2.1, Figure 5.1b",
            "UDP_STREAM compared with the slowest other type in memory",
            "about 800 µs, far slower",
            f"{middle[UDP]:.0f} µs by {slowest:.0f} µs: {middle[UDP] / slowest:.2f} x",
            judged(middle[UDP] / slowest, 2, float("inf"), none=1.0),
        ),
    ]
    for name in ours:
        ratio = middle[name] / middle[_LINUX[name]]
        claims.append(
            PublishedClaim(
                "section 5.2.1",
                f"anonymous {name} compared with {_LINUX[name]}, median",
                "about 2 x",
                f"{ratio:.1f} x ({middle[name]:.0f} µs by {middle[_LINUX[name]]:.1f} µs)",
                judged(ratio, *about(2.0)),
            )
        )
    return claims
