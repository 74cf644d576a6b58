"""``python -m dios.sim --seeds 20``: run seeds, print a line for each, stop at the first that fails."""

from __future__ import annotations

import argparse
import sys

from dios.errors import InvariantError
from dios.sim.world import simulate


def main() -> int:
    """Run the seeds asked for; exit status 1 with the command that repeats a failure."""
    parser = argparse.ArgumentParser(prog="python -m dios.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds, counted from --first")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=600, help="moments in each run")
    options = parser.parse_args()
    for seed in range(options.first, options.first + options.seeds):
        try:
            report = simulate(seed, options.steps)
        except (AssertionError, InvariantError) as error:
            repeat = f"python -m dios.sim --first {seed} --seeds 1 --steps {options.steps}"
            sys.stdout.write(f"seed {seed} FAILED: {error}\nrepeat it with: {repeat}\n")
            return 1
        sys.stdout.write(
            f"seed {seed}: {report.steps} steps, {report.crashes} crashes, {report.failures} failed syncs,"
            f" {report.promises} durable objects, trace {report.digest[:16]}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
