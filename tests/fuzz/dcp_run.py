"""``make fuzz``: a long campaign of forged messages between cores, with progress.

    python -m tests.fuzz.dcp_run --messages 1000000 [--seed N]

Each run of ``dcp_simulation`` has its own seed; a finding ends the campaign with status 1, and the seed
repeats it. Messages are made in ``dcp``.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback
from random import Random

from dios.core.model.invariants import check
from dios.errors import InvariantError
from tests.fuzz.dcp_simulation import ForgerySimulation
from tests.fuzz.run import TELL_S, say

MOVES = 400
CHECKED_MOVES = 60


def simulate(seed: int) -> ForgerySimulation:
    """Run one seed; every third run is short and compares the state before and after each message."""
    careful = not seed % 3
    simulation = ForgerySimulation(Random(seed), checked=1 if careful else 0)  # noqa: S311 - repeatable, nothing secret
    for move in range(CHECKED_MOVES if careful else MOVES):
        simulation.move()
        if not move % 10:
            check(simulation.target.core.state)
    for site in simulation.sites.values():
        check(site.core.state)
    return simulation


def main() -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(description="Send forged messages to cores in the name of a node.")
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="the minimum number of forged messages"
    )
    parser.add_argument("--seed", type=int, default=None, help="the first seed; random by default")
    chosen = parser.parse_args()
    first = seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    began = told = time.monotonic()
    lied = refused = 0
    while lied < chosen.messages:
        try:
            simulation = simulate(seed)
        except (Exception, InvariantError):  # noqa: BLE001 - whatever it is, it is the finding
            say(f"\nFINDING with seed {seed}:\n{traceback.format_exc()}")
            say(f"repeat it with\n  make fuzz-nodes SEED={seed} LIES=1")
            return 1
        lied, refused, seed = lied + simulation.lied, refused + simulation.refused, seed + 1
        if time.monotonic() - told > TELL_S:
            told = time.monotonic()
            say(f"  {lied:>9,} forged  {lied / (told - began):>7,.0f}/s  {seed - first:>5,} runs", over=True)
    seconds = time.monotonic() - began
    say("")
    say(f"nothing found: {lied:,} forged, {refused:,} refused, {seed - first:,} runs, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
