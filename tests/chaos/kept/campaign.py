"""Many kept rounds, on clusters of several sizes; a cluster that is broken or worn is replaced."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.kept.cluster import KeptCluster
from tests.chaos.kept.plan import Kind, planned
from tests.chaos.kept.round import Result, Rounds
from tests.chaos.kept.verdict import Broken

_SHOWN: Final = 8


class Wish(NamedTuple):
    """The rounds to play: round number i has the seed ``seed + i``."""

    seed: int
    rounds: int
    nodes: tuple[int, ...]
    programs: tuple[int, ...]
    only: tuple[Kind, ...] | None = None
    """The kinds of faults, all without it."""

    def of_round(self, number: int) -> tuple[int, int]:
        """Return the numbers of nodes and programs of a round; clusters of one size follow each other."""
        nodes = self.nodes[number * len(self.nodes) // self.rounds]
        return nodes, self.programs[number % len(self.programs)]

    def again(self, number: int) -> str:
        """Return the command that plays one round again."""
        nodes, programs = self.of_round(number)
        return f"make chaos KEPT=1 ROUNDS=1 SEED={self.seed + number} NODES={nodes} PROGRAMS={programs}" + (
            "" if self.only is None else f' FAULTS="{",".join(self.only) or "none"}"'
        )


@dataclass(slots=True)
class Tally:
    """The figures of many rounds."""

    rounds: int = 0
    broken: int = 0
    clusters: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    """The number of rounds with each kind of finding."""

    def add(self, result: Result) -> None:
        """Count a round."""
        took = sum(result.seconds.values())
        self.rounds += 1
        self.broken += bool(result.findings)
        self.seconds += took
        self.slowest_s = max(self.slowest_s, took)
        self.faults.update(result.faults)
        self.calls += result.notes.counts
        self.acknowledged += sum(
            count
            for (operation, outcome), count in result.notes.counts.items()
            if outcome == "done" and operation != "read"
        )
        self.findings.update({str(finding.kind) for finding in result.findings})


def play(folder: Path, wish: Wish, enough: Callable[[], bool], say: Callable[[str], None]) -> Tally:
    """Play rounds until all are played, or ``enough``; say every finding with the command that repeats it."""
    tally = Tally()
    with contextlib.ExitStack() as stack:
        cluster: KeptCluster | None = None
        rounds: Rounds | None = None
        for number in range(wish.rounds):
            if enough():
                break
            nodes, programs = wish.of_round(number)
            if cluster is None or rounds is None or cluster.is_worn or nodes != len(cluster.nodes):
                stack.close()
                place = folder / f"cluster{tally.clusters}"
                place.mkdir()
                tally.clusters += 1
                cluster = stack.enter_context(KeptCluster(place / "nodes", nodes, say=say))
                rounds = Rounds(cluster, place / "rounds", say)
            seed = wish.seed + number
            plan = planned(
                seed,
                nodes=nodes,
                programs=programs,
                can_cut=cluster.can_cut,
                has_machinery=cluster.has_machinery,
                only=wish.only,
            )
            say(f"round {number + 1}: seed {seed}, {nodes} nodes, {programs} programs, {plan}")
            result = rounds.play(plan, f"r{number}", programs)
            tally.add(result)
            say(_line(result))
            for finding in result.findings[:_SHOWN]:
                say(f"  BROKEN {finding}")
            if len(result.findings) > _SHOWN:
                say(f"  and {len(result.findings) - _SHOWN} more")
            if result.findings:
                say(f"  again: {wish.again(number)}")
            else:
                shutil.rmtree(result.folder)
            if any(finding.kind is Broken.NODE for finding in result.findings):
                rounds = None
    return tally


def _line(result: Result) -> str:
    parts = ", ".join(f"{part} {took:.1f}" for part, took in result.seconds.items())
    calls = Counter[str]()
    for (_, outcome), count in result.notes.counts.items():
        calls[outcome] += count
    answers = ", ".join(f"{count} {outcome}" for outcome, count in sorted(calls.items()))
    return f"  {sum(result.seconds.values()):.1f} s ({parts}); {answers}"


def figures(tally: Tally) -> list[tuple[str, str]]:
    """Return the figures as rows: what, and how many."""
    count = max(1, tally.rounds)
    rows = [
        ("rounds", f"{tally.rounds}"),
        ("clusters", f"{tally.clusters}"),
        ("seconds for each round", f"{tally.seconds / count:.1f} (longest {tally.slowest_s:.1f})"),
        ("acknowledged changes", f"{tally.acknowledged:,}"),
    ]
    rows += [(f"faults: {kind}", f"{number:,}") for kind, number in sorted(tally.faults.items())]
    operations = sorted({operation for operation, _ in tally.calls})
    for operation in operations:
        said = {
            outcome: number for (other, outcome), number in sorted(tally.calls.items()) if other == operation
        }
        rows.append((operation, ", ".join(f"{number:,} {outcome}" for outcome, number in said.items())))
    rows.append(("rounds with broken promises", f"{tally.broken}"))
    rows += [(f"rounds with: {kind}", f"{number}") for kind, number in sorted(tally.findings.items())]
    return rows
