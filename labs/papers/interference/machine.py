"""The speeds of this machine (Figure 2.4), and its caches and hardware threads (Figure 2.5)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dios.host.machine.machine_tree import Part
from dios.limits import MIB
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.interference.measure import Load, Speed, run_together
from labs.papers.interference.places import Sharing
from labs.papers.interference.runs import InterferenceRuns, setting_text
from labs.papers.judgements import OURS, judged

_UNITS: Final = {
    "integers": ("hmmer: integer operations, one thread", 0.4, "MB hashed/s"),
    "floats": ("gromacs: floating point, one thread", 2 * 48**3 / 1e6, "million operations/s"),
    "stream": ("STREAM: copies beyond the caches, one thread", 4.0, "MiB copied/s"),
    "disk-read": ("bonnie-rd: reads of a file", 1.0, "MiB/s"),
    "disk-write": ("bonnie-wr: synchronous writes", 1.0, "MiB/s"),
    "http": ("iperf: pages of 4 KiB over TCP on this machine", 20 * 4096 * 8 / 1e6, "Mbit/s"),
}
"""By workload: the thesis' benchmark, the amount of a unit of work, and the unit of measurement."""
_MEASURED_BY_CPU: Final = {"integers", "floats", "stream"}


def figure_4(runs: InterferenceRuns) -> Figure:
    """Return Figure 2.4 for this machine: absolute numbers, to compare with those of other machines."""
    scope = runs.scope
    first = runs.processors[:1]
    rows: list[tuple[Cell, ...]] = []
    speeds_by_name: dict[str, Sequence[Speed]] = {}
    for name, (title, amount, unit) in _UNITS.items():
        runs.progress(f"2.4: {name}")
        speeds_by_name[name] = run_together(runs.bench, [Load(name, first)], scope.seconds, scope.rounds)[0]
        rows.append((title, amount * _speed(name, speeds_by_name[name]), unit))
    runs.progress("2.4: all threads")
    loads = [Load("stream", (cpu,)) for cpu in runs.processors]
    every = run_together(runs.bench, loads, scope.seconds, scope.rounds)
    together = 4.0 * sum(_speed("stream", speeds) for speeds in every)
    rows.append(("NUMA-STREAM: copies on all threads", together, "MiB copied/s"))
    cpu_share = statistics.median(speed.per_second / speed.per_cpu_second for speed in speeds_by_name["http"])
    rows += [
        ("iperf-cpu: processors busy meanwhile, both ends", cpu_share, "processors"),
        ("BogoMips", _bogomips(), ""),
    ]
    gain = together / (4.0 * _speed("stream", speeds_by_name["stream"]))
    return runs.figure(
        "2.4",
        "Figure 2.4: speeds of this machine",
        (FigureTable("Micro-benchmarks", ("benchmark", "result", "unit"), rows),),
        (
            PublishedClaim(
                "section 2.1.2, Figure 2.4",
                "speeds of machine types compared with the oldest",
                "50 % less to 100 % more",
                "one machine; compare its file with that of another one",
                judged([], 0.5, 2.0),
            ),
            PublishedClaim(
                "section 2.1.2",
                "copies on all threads compared with one",
                "machines with several memory controllers have up to 2 x",
                f"{gain:.2f} x with {len(runs.processors)} threads",
                OURS,
            ),
        ),
        (),
        (
            "SPEC CPU2006, bonnie++ and iperf are replaced by small loops of the same kind.",
            (
                "Numbers of one thread are per second of processor time, so that other programs of the "
                "machine disturb less; those of disks and TCP are per second."
            ),
            setting_text(scope.seconds, scope.rounds),
        ),
    )


def _speed(name: str, speeds: Sequence[Speed]) -> float:
    by_cpu = name in _MEASURED_BY_CPU
    return statistics.median(speed.per_cpu_second if by_cpu else speed.per_second for speed in speeds)


def _bogomips() -> float:
    """Return the kernel's number for the first processor; 0 if it has none."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == "bogomips":
            return float(value)
    return 0.0


def figure_5(runs: InterferenceRuns) -> Figure:
    """Return Figure 2.5 for this machine: its tree of sockets, caches, cores and threads."""
    elements = list(runs.topology.tree.walk())
    rows: list[tuple[Cell, ...]] = [
        (
            element.name,
            ",".join(map(str, element.cpus)),
            element.size / MIB if element.part is Part.CACHE else "",
        )
        for element in elements
        if element.part is not Part.MACHINE
    ]
    shared: list[tuple[Cell, ...]] = [
        (
            str(kind),
            f"{runs.places[kind].first} and {runs.places[kind].second}" if kind in runs.places else "none",
        )
        for kind in Sharing
    ]
    caches = max((len(element.cpus) for element in elements if element.part is Part.CACHE), default=0)
    return runs.figure(
        "2.5",
        "Figure 2.5: caches and threads of this machine",
        (
            FigureTable("Parts, from the outside to the inside", ("part", "processors", "MiB"), rows),
            FigureTable("Pairs of processors, by what they share", ("shared", "processors"), shared),
        ),
        (
            PublishedClaim(
                "section 2.1.3, Figure 2.5",
                "processors that share the largest cache",
                "6 (Opteron 4234) and 12 (Xeon E5-2420)",
                str(caches),
                OURS,
            ),
        ),
        (),
        (*runs.lacks, *runs.topology.missing),
    )
