"""``python -m dios.sim --seeds 20``: run seeds, print a line for each, stop at the first that fails.

With --faults the disk fails at random: writes and syncs that fail, short writes, a full disk, power cuts
with lost, reordered and torn pages, flipped bits. With --every-operation each seed is a short life that is
run once for every fault at every operation of its disk. With --cluster each seed is a whole cluster, whose
network and nodes fail. A failure prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from dios.errors import InvariantError
from dios.sim.cluster.world import simulate_cluster
from dios.sim.node.systematic import systematic
from dios.sim.node.world import simulate

STEPS_DEFAULT = 600
STEPS_SHORT = 100


def main() -> int:
    """Run the seeds asked for; exit status 1 with the command that repeats a failure, 130 after Ctrl-C."""
    options = _options()
    total: Counter[str] = Counter()
    run = _cluster if options.cluster else _every_operation if options.every else _seed
    begun = time.perf_counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            line = run(seed, options, total)
        except (AssertionError, InvariantError) as error:
            sys.stdout.write(f"seed {seed} FAILED: {error}\nrepeat it with: {_repeat(seed, options)}\n")
            return 1
        except KeyboardInterrupt:
            sys.stdout.write(f"\nstopped at seed {seed}; go on with --first {seed}\n")
            return 130
        sys.stdout.write(f"seed {seed}: {line}\n")
    seconds = time.perf_counter() - begun
    sys.stdout.write(
        f"{options.seeds} seeds kept every promise, {options.seeds / seconds:.1f} a second;"
        f" faults: {_listed(total)}\n"
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dios.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds, counted from --first")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--steps",
        type=int,
        help=f"moments in each run (default {STEPS_DEFAULT}, with --every-operation {STEPS_SHORT})",
    )
    parser.add_argument("--faults", action="store_true", help="let the disk fail at random operations")
    parser.add_argument(
        "--every-operation", dest="every", action="store_true", help="each fault at each operation in turn"
    )
    parser.add_argument("--cluster", action="store_true", help="two to five nodes; --steps are ignored")
    options = parser.parse_args()
    if options.steps is None:
        options.steps = STEPS_SHORT if options.every else STEPS_DEFAULT
    return options


def _seed(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    report = simulate(seed, options.steps, faults=options.faults)
    total.update(report.faults)
    return (
        f"{report.steps} steps, {report.crashes} crashes, {report.promises} durable objects,"
        f" {report.operations} disk operations, faults: {_listed(report.faults)}, trace {report.digest[:16]}"
    )


def _every_operation(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    def progress(done: int, runs: int) -> None:
        if sys.stdout.isatty() and (done % 10 == 0 or done == runs):
            sys.stdout.write(f"\rseed {seed}: run {done} of {runs} ")
            sys.stdout.flush()

    result = systematic(seed, options.steps, progress=progress)
    if sys.stdout.isatty():
        sys.stdout.write("\r\x1b[K")
    total.update(result.faults)
    return f"{result.operations} disk operations, {result.runs} runs, faults: {_listed(result.faults)}"


def _cluster(seed: int, options: argparse.Namespace, total: Counter[str]) -> str:
    del options
    report = simulate_cluster(seed)
    total.update(report.mischief)
    return (
        f"{report.nodes} nodes, {report.steps} steps, {report.calls} calls,"
        f" {report.network.get('messages', 0)} messages{', lossy' if report.lossy else ''},"
        f" faults: {_listed(report.mischief)}, trace {report.digest[:16]}"
    )


def _listed(faults: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(faults.items())) or "none"


def _repeat(seed: int, options: argparse.Namespace) -> str:
    if options.cluster:
        return f"python -m dios.sim --cluster --first {seed} --seeds 1"
    flags = (" --faults" if options.faults else "") + (" --every-operation" if options.every else "")
    return f"python -m dios.sim --first {seed} --seeds 1 --steps {options.steps}{flags}"


if __name__ == "__main__":
    sys.exit(main())
