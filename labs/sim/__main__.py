"""Run the simulator for many seeds: ``python -m labs.sim --seeds 20``.

Each seed prints one line. The run stops at the first seed that fails and prints the command that repeats it.
The seeds are dealt out to one process for each processor, or to as many as --processes says.

Without options, one node runs through crashes and a disk that is full from time to time. With --faults, its
disk fails at random: failed writes and syncs, short writes, a full disk, power cuts with lost, reordered and
torn pages, flipped bits. With --every-operation, each seed is a short run that is repeated once for every
fault at every disk operation. With --cluster, each seed is a whole cluster whose network and nodes fail; with
--cluster --slow, they are slow and do not fail. With --lookups, each seed is a cluster of seven nodes that
restart often, whose clients look up names. With --labels, each seed is a cluster whose objects have secrecy
labels, with the same faults, and no secret may reach a place without its label. With --kept, each seed is a
cluster whose keepers keep replicas of the files that programs put, replace and tier; --programs N fixes their
number. With --queues, each seed is a busy cluster under one of the scheduler's cost models, in which nobody
within his right may wait for ever.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final, NamedTuple

from msgspec import Struct

from dios.errors import InvariantError
from labs.sim.cluster.world import simulate_cluster, simulate_flows, simulate_lookups
from labs.sim.kept.world import simulate_kept
from labs.sim.node.systematic import systematic
from labs.sim.node.world import simulate
from labs.sim.queues.world import simulate_queues

STEPS_DEFAULT = 600
STEPS_SHORT = 100


class _Outcome(Struct):
    """The result of a seed: the line to print, whether it passed, and the number of faults of each kind."""

    line: str
    passed: bool
    faults: Counter[str]


def main() -> int:
    """Run the requested seeds.

    Return the exit status: 0, 1 after a failure (its command is printed), or 130 after Ctrl-C.
    """
    options = _options()
    total: Counter[str] = Counter()
    begun = time.perf_counter()
    seed = options.first
    try:
        for outcome in _outcomes(options):
            if not outcome.passed:
                sys.stdout.write(
                    f"seed {seed} FAILED: {outcome.line}\nrepeat it with: {_repeat(seed, options)}\n"
                )
                return 1
            sys.stdout.write(f"seed {seed}: {outcome.line}\n")
            sys.stdout.flush()
            total.update(outcome.faults)
            seed += 1
    except KeyboardInterrupt:
        sys.stdout.write(f"\nstopped at seed {seed}; continue with --first {seed}\n")
        return 130
    seconds = time.perf_counter() - begun
    sys.stdout.write(
        f"{options.seeds} seeds passed, {options.seeds / seconds:.1f} per second; faults: {_listed(total)}\n"
    )
    return 0


def _outcomes(options: argparse.Namespace) -> Iterator[_Outcome]:
    """Run the seeds, several at a time, and yield their outcomes in the order of the seeds."""
    seeds = range(options.first, options.first + options.seeds)
    if min(options.processes, options.seeds) <= 1:
        yield from (_outcome(seed, options) for seed in seeds)
        return
    # Ctrl-C in a terminal also reaches the processes of the pool, which then end without a word.
    with ProcessPoolExecutor(
        min(options.processes, options.seeds),
        # Not Python 3.14's default, whose processes cannot import what this module defines as `__main__`.
        multiprocessing.get_context("fork"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_DFL),
    ) as pool:
        waiting = [pool.submit(_outcome, seed, options) for seed in seeds]
        try:
            for future in waiting:
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _outcome(seed: int, options: argparse.Namespace) -> _Outcome:
    faults: Counter[str] = Counter()
    try:
        return _Outcome(MODES[options.mode].run(seed, options, faults), passed=True, faults=faults)
    except (AssertionError, InvariantError) as error:
        return _Outcome(str(error), passed=False, faults=faults)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m labs.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="the number of seeds, counted from --first")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--steps",
        type=int,
        help=f"the steps of a run of one node (default {STEPS_DEFAULT}; --every-operation: {STEPS_SHORT})",
    )
    parser.add_argument("--faults", action="store_true", help="let the disk of one node fail at random")
    parser.add_argument("--slow", action="store_true", help="with --cluster: slow, and nothing fails")
    parser.add_argument(
        "--programs", type=int, default=0, help="with --kept: the number of programs (default: 2 to 4)"
    )
    modes = parser.add_mutually_exclusive_group()
    for name, mode in MODES.items():
        if name:
            modes.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=mode.help)
    parser.set_defaults(mode="")
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="the number of seeds that run at the same time (default: one for each processor)",
    )
    options = parser.parse_args()
    for option in ("steps", "faults", "slow", "programs"):
        if getattr(options, option) and option not in MODES[options.mode].options:
            parser.error(f"--{option} has no effect here")
    if options.steps is None:
        options.steps = STEPS_SHORT if options.mode == "every-operation" else STEPS_DEFAULT
    return options


def _seed(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    report = simulate(seed, options.steps, faults=options.faults)
    total.update(report.faults)
    return (
        f"{report.steps} steps, {report.crashes} crashes, {report.promises} durable objects,"
        f" {report.operations} disk operations, {report.direct_reads} reads without a call,"
        f" faults: {_listed(report.faults)}, trace {report.digest[:16]}"
    )


def _every_operation(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    alone = sys.stdout.isatty() and min(options.processes, options.seeds) <= 1

    def progress(done: int, runs: int) -> None:
        if alone and (done % 10 == 0 or done == runs):
            sys.stdout.write(f"\rseed {seed}: run {done} of {runs} ")
            sys.stdout.flush()

    result = systematic(seed, options.steps, progress=progress)
    if alone:
        sys.stdout.write("\r\x1b[K")
    total.update(result.faults)
    return f"{result.operations} disk operations, {result.runs} runs, faults: {_listed(result.faults)}"


def _cluster(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    report = simulate_cluster(seed, slow=options.slow)
    total.update(report.faults)
    return (
        f"{report.nodes} nodes, {report.steps} steps, {report.calls} calls,"
        f" {report.network.get('messages', 0)} messages{', lossy' if report.lossy else ''},"
        f" faults: {_listed(report.faults)}, trace {report.digest[:16]}"
    )


def _lookups(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    del options, total
    return f"{simulate_lookups(seed)} objects were found"


def _labels(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    del options
    report = simulate_flows(seed)
    total.update(report.cluster.faults)
    return (
        f"{report.cluster.nodes} nodes, {report.cluster.calls} calls, {report.learned} answers with a secret,"
        f" {report.confined} writes of a secret that kept its label, {report.released} that were released,"
        f" faults: {_listed(report.cluster.faults)}"
    )


def _kept(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    report = simulate_kept(seed, options.programs)
    total.update(report.faults)
    return (
        f"{report.nodes} nodes, {report.puts} puts, {report.writes} writes, {report.killed} programs killed,"
        f" {report.drops} replicas dropped, {report.restored} objects restored, {report.conflicts} conflicts,"
        f" {report.cautious} more shown, {report.lost} lost with all their disks, {report.leftovers} objects"
        f" left by programs that failed, faults: {_listed(report.faults)}, trace {report.digest[:16]}"
    )


def _queues(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    del options
    report = simulate_queues(seed)
    total.update(report.faults)
    return (
        f"{report.model}, {report.machines} machines, {report.started} tasks started, {report.large} large"
        f" jobs in their time, {report.preempted} stopped, {report.utilisation:.0%} of the processors in use,"
        f" faults: {_listed(report.faults)}, trace {report.digest[:16]}"
    )


def _listed(faults: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(faults.items())) or "none"


class _Mode(NamedTuple):
    """A kind of run: its function, its help, and the further options that it knows."""

    run: Callable[[int, argparse.Namespace, Counter[str]], str]
    help: str = ""
    options: tuple[str, ...] = ()


MODES: Final = {
    "": _Mode(_seed, options=("steps", "faults")),
    "every-operation": _Mode(
        _every_operation, "repeat a short run with each fault at each disk operation", ("steps",)
    ),
    "cluster": _Mode(_cluster, "simulate two to five nodes", ("slow",)),
    "lookups": _Mode(_lookups, "simulate lookups of names in a cluster of seven nodes"),
    "labels": _Mode(_labels, "simulate clusters with secrecy labels, and the flow of secrets"),
    "kept": _Mode(_kept, "simulate files and the keepers of replicas", ("programs",)),
    "queues": _Mode(_queues, "simulate the scheduler's queue"),
}
"""The kinds of runs by their option; without one, a single node is simulated."""


def _repeat(seed: int, options: argparse.Namespace) -> str:
    words = [f"--{options.mode}"] if options.mode else []
    for option in MODES[options.mode].options:
        value = getattr(options, option)
        if value:
            words.append(f"--{option}" if value is True else f"--{option} {value}")
    return " ".join(["python -m labs.sim", *words, f"--first {seed} --seeds 1"])


def _fix_hashes() -> None:
    """Start this program again with fixed hashes of texts, on which the order of sets depends."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "labs.sim", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": "0"})  # noqa: S606 - this program


if __name__ == "__main__":
    _fix_hashes()
    sys.exit(main())
