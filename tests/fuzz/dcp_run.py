"""``make fuzz``: a long campaign of lies between cores, told as it goes.

    python -m tests.fuzz.dcp_run --messages 1000000 [--seed N]

Not for: real nodes (``run``), or what is said and checked (``dcp``, ``dcp_play``). Each play has its own
seed; one that finds something ends the run with status 1, and is repeated by its seed alone.
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
from tests.fuzz.dcp_play import Play
from tests.fuzz.run import TELL_S, say

MOVES = 400
CHECKED_MOVES = 60


def play(seed: int) -> Play:
    """One play; every third is a short one, before each message of which everything is written down."""
    careful = not seed % 3
    one = Play(Random(seed), checked=1 if careful else 0)  # noqa: S311 - repeatable, nothing secret
    for move in range(CHECKED_MOVES if careful else MOVES):
        one.move()
        if not move % 10:
            check(one.target.core.state)
    for site in one.sites.values():
        check(site.core.state)
    return one


def main() -> int:
    """Do what the arguments say; returns the exit status."""
    parser = argparse.ArgumentParser(description="Lie to cores in the name of a node.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="how many lies to tell at least")
    parser.add_argument("--seed", type=int, default=None, help="the first play's; drawn when not given")
    chosen = parser.parse_args()
    first = seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    began = told = time.monotonic()
    lied = refused = 0
    while lied < chosen.messages:
        try:
            one = play(seed)
        except (Exception, InvariantError):  # noqa: BLE001 - whatever it is, it is the finding
            say(f"\nFINDING in the play of seed {seed}:\n{traceback.format_exc()}")
            say(f"repeat it with\n  make fuzz-nodes SEED={seed} LIES=1")
            return 1
        lied, refused, seed = lied + one.lied, refused + one.refused, seed + 1
        if time.monotonic() - told > TELL_S:
            told = time.monotonic()
            say(f"  {lied:>9,} lies  {lied / (told - began):>7,.0f}/s  {seed - first:>5,} plays", over=True)
    seconds = time.monotonic() - began
    say("")
    say(f"nothing found: {lied:,} lies, {refused:,} refused, {seed - first:,} plays, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
