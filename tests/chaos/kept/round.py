"""A round of kept replicas on real nodes: programs, faults, convergence, and the verdict."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Final

import dios
from dios import limits
from dios.errors import DiosError
from tests.chaos.kept import client
from tests.chaos.kept.client import Program
from tests.chaos.kept.cluster import KeptCluster
from tests.chaos.kept.faults import Faults
from tests.chaos.kept.group import KeptGroup, make_recipient, settled
from tests.chaos.kept.notes import Notes, read_notes
from tests.chaos.kept.plan import Plan
from tests.chaos.kept.verdict import Broken, Finding, Observation, judge, judge_orphans
from tests.support.lab.namespaces import NotHereError

_END_S: Final = limits.CATALOGUE_EDIT_S + 30.0
"""A program whose list others change without a pause is refused after CATALOGUE_EDIT_S."""
_STACKS_S: Final = 2.0
_SHOWN_CALLS: Final = 12
_ORPHANS_S: Final = 10.0
"""The time in which objects that nobody needs must disappear after the promise is kept."""


@dataclass(slots=True)
class Result:
    """The outcome of a round."""

    plan: Plan
    folder: Path
    findings: list[Finding]
    notes: Notes
    faults: Counter[str] = field(default_factory=Counter)
    """The number of faults that were carried out, by kind."""
    seconds: dict[str, float] = field(default_factory=dict)


class Programs:
    """The programs of a round, each a process that was forked from one that has loaded all modules."""

    def __init__(self, folder: Path, make: Callable[[int], Program]) -> None:
        self._context: Final[ForkServerContext] = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([client.__name__])
        self._stop: Final = self._context.Event()
        self._folder: Final = folder
        self._make: Final = make
        self._running: Final[list[ForkServerProcess]] = []
        self._number = 0

    def start(self) -> ForkServerProcess:
        """Start one more program."""
        process = self._context.Process(target=client.main, args=(self._make(self._number), self._stop))
        self._number += 1
        process.start()
        self._running.append(process)
        return process

    def kill(self, number: int) -> None:
        """Kill one of the programs that were started first, and start another one."""
        process = self._running[number]
        process.kill()
        process.join(_END_S)
        self.start()

    def end(self) -> list[str]:
        """Stop all programs; return a line for each that does not end by itself."""
        self._stop.set()
        late = []
        deadline = time.monotonic() + _END_S
        for number, process in enumerate(self._running):
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                late.append(
                    f"program {number + 1} waits for an answer for more than {_END_S:g} s: "
                    f"{self._calls_of(process, number + 1)}"
                )
                process.kill()
                process.join(_END_S)
        return late

    def _calls_of(self, process: ForkServerProcess, number: int) -> str:
        """Return the last calls of a program that does not end."""
        stacks = self._folder / f"{number}{client.STACKS}"
        if process.pid is not None:
            os.kill(process.pid, signal.SIGUSR1)
        settled(lambda: stacks.exists() and bool(stacks.read_text()), _STACKS_S)
        lines = re.findall(r'File "[^"]*/([^/"]+)", line (\d+) in (\w+)', stacks.read_text())
        return " < ".join(f"{file}:{line} {name}" for file, line, name in lines[:_SHOWN_CALLS])

    def notes(self) -> Notes:
        """Return what the programs noted."""
        return read_notes(sorted(self._folder.glob("*.notes")))


class _Laps:
    """The seconds that each part of a round took."""

    def __init__(self) -> None:
        self.seconds: Final[dict[str, float]] = {}
        self._began = time.monotonic()

    def end(self, part: str) -> None:
        """Note the end of a part."""
        now = time.monotonic()
        self.seconds[part], self._began = now - self._began, now


class Rounds:
    """Rounds on one cluster, whose nodes live on, or are followed by others when they are lost."""

    def __init__(
        self, cluster: KeptCluster, folder: Path, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._cluster: Final = cluster
        self._folder: Final = folder
        self._say: Final = say
        folder.mkdir()
        self._recipient: Final = make_recipient(folder)
        self._left: Final[set[str]] = set()
        """Objects that former rounds left over, which are no finding again."""

    def play(self, plan: Plan, name: str, programs_count: int) -> Result:
        """Play one round and return its findings."""
        folder = self._folder / name
        folder.mkdir()
        nodes = self._cluster.nodes
        laps = _Laps()
        group = KeptGroup(name, plan.replicas, len(nodes))
        self._forget_left()
        try:
            group.create(nodes[0].socket)
        except (AssertionError, DiosError) as error:
            laps.end("group")
            finding = Finding(Broken.NODE, f"before all faults: {error}")
            return Result(plan, folder, [finding], Notes(), seconds=laps.seconds)
        laps.end("group")
        programs = Programs(folder, self._maker(plan, name, folder))
        faults = Faults(self._cluster, plan, programs.kill, self._say)
        troubles = self._suffer(programs, programs_count, faults, laps)
        seen = Observation()
        if not any(finding.kind is Broken.NODE for finding in troubles):
            group.wait_kept(nodes[0].socket, seen)
        laps.end("converge")
        notes = programs.notes()
        self._observe(group, notes, seen)
        laps.end("read")
        findings = [*troubles, *judge(notes, seen, group.wanted)]
        group.destroy(nodes[0].socket)
        laps.end("clean")
        return Result(plan, folder, findings, notes, faults.carried_out, laps.seconds)

    def _maker(self, plan: Plan, alias: str, folder: Path) -> Callable[[int], Program]:
        nodes = self._cluster.nodes
        sockets = tuple(str(node.socket) for node in nodes)
        store = folder / "store" if plan.tiers else None

        def make(number: int) -> Program:
            notes = folder / f"{number + 1}.notes"
            home = number % len(nodes)
            return Program(number + 1, home, sockets, alias, str(plan.seed), notes, store, self._recipient)

        return make

    def _suffer(self, programs: Programs, count: int, faults: Faults, laps: _Laps) -> list[Finding]:
        """Let programs work while the faults are carried out; end all of both, and return what failed."""
        cluster = self._cluster
        troubles: list[Finding] = []
        try:
            for _ in range(count):
                programs.start()
            laps.end("begin")
            faults.carry_out()
        except AssertionError as error:
            troubles.append(Finding(Broken.NODE, str(error)))
        laps.end("faults")
        try:
            cluster.wait_whole()
        except (AssertionError, NotHereError) as error:
            troubles.append(Finding(Broken.NODE, str(error)))
        laps.end("heal")
        troubles += [Finding(Broken.UNEXPECTED, text) for text in programs.end()]
        laps.end("answers")
        troubles += [Finding(Broken.NODE, text) for text in cluster.failures]
        cluster.failures.clear()
        return troubles

    def _observe(self, group: KeptGroup, notes: Notes, seen: Observation) -> None:
        def orphans_are_gone() -> bool:
            with contextlib.suppress(DiosError, OSError):
                seen.orphans = {
                    node.name: [mark for mark in group.orphans(node.socket) if mark not in self._left]
                    for node in self._cluster.nodes
                }
            return not judge_orphans(notes, seen.orphans)

        if not settled(orphans_are_gone, _ORPHANS_S if seen.kept else 0.0):
            self._keep_histories()
        self._left.update(mark for marks in seen.orphans.values() for mark in marks)
        for node in self._cluster.nodes:
            seen.reads[node.name] = group.read_all(node.socket, set(notes.operations))

    def _keep_histories(self) -> None:
        """Keep the audit logs and the node logs as they are when objects are left over."""
        for node in self._cluster.nodes:
            kept = self._folder / f"left_over.{time.monotonic_ns()}.{node.name}"
            with contextlib.suppress(OSError):
                shutil.copytree(node.data / "audit", kept)
                shutil.copy(node.log, kept)

    def _forget_left(self) -> None:
        """Leave out the objects of former rounds, whose groups were destroyed as far as nodes answered."""
        for node in self._cluster.nodes:
            with contextlib.suppress(DiosError, OSError):
                self._left.update(stored_objects(node.socket))


def stored_objects(socket: Path) -> set[str]:
    """Return the fingerprints of all durable objects of a node."""
    with dios.connect(str(socket), groups=(), start=False) as node:
        return {str(row["fingerprint"]) for row in node.read_table("objects")}
