"""Runs of workloads on chosen hardware threads, alone and next to others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from dios.errors import DiosError


class Load(NamedTuple):
    """A workload, and the processors on which it may run."""

    name: str
    cpus: tuple[int, ...]


class Speed(NamedTuple):
    """The speed of a workload in one run."""

    per_second: float
    """Units of work per second."""
    per_cpu_second: float
    """Units of work per second of processor time, which other programs on other processors do not lower."""


class WorkloadData(NamedTuple):
    """The seed of the data, the size of the last-level cache in bytes, and a folder on the disk."""

    seed: int
    cache: int
    folder: Path


@contextlib.contextmanager
def started(bench: WorkloadData, loads: Sequence[Load]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the programs of workloads and wait until each is ready; they end with the context."""
    # A library of several threads would leave the thread to which the program is pinned.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ExitStack() as stack:
        programs = []
        for number, load in enumerate(loads):
            command = [sys.executable, "-m", "labs.papers.interference.program", load.name]
            command += [",".join(map(str, load.cpus)), str(bench.seed + number), str(bench.cache)]
            program = subprocess.Popen(
                [*command, str(bench.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            programs.append(stack.enter_context(program))
            stack.callback(program.kill)
        for load, program in zip(loads, programs, strict=True):
            if _line(program) != "ready":
                raise DiosError(f"the workload {load.name} did not start; its error is above")
        yield programs


def run_together(
    bench: WorkloadData, loads: Sequence[Load], seconds: float, rounds: int = 1
) -> list[list[Speed]]:
    """Return the speeds of workloads that run at once, by workload and round."""
    with started(bench, loads) as programs:
        speeds_by_load: list[list[Speed]] = [[] for _ in loads]
        for _ in range(rounds):
            for program in programs:
                _tell(program, f"{seconds}\n")
            for speeds, program in zip(speeds_by_load, programs, strict=True):
                units, taken, used = map(float, _line(program).split())
                speeds.append(Speed(units / taken, units / max(used, 1e-9)))
        return speeds_by_load


def _tell(program: subprocess.Popen[str], line: str) -> None:
    if program.stdin is None:
        raise AssertionError("the program has a pipe as its input")
    program.stdin.write(line)
    program.stdin.flush()


def _line(program: subprocess.Popen[str]) -> str:
    if program.stdout is None:
        raise AssertionError("the program has a pipe as its output")
    return program.stdout.readline().strip()
