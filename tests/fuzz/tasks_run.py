"""``make fuzz-tasks``: plays of hostile tasks with real memory and descriptors, with progress.

    python -m tests.fuzz.tasks_run --plays 1000 [--seed N] [--play NAME] [--steps N]

A finding ends the campaign with status 1 and names the seed that repeats it. The plays and the checks after
each are in ``tests.support.security.hostile_tasks``.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.fuzz.run import TELL_S, say
from tests.support.security.hostile_tasks import PLAYS, open_stage

PLAYS_PER_NODE: Final = 200


def main() -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(description="Run hostile tasks with real memory on a real node.")
    parser.add_argument("--plays", type=int, default=1_000, help="the number of plays")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; random by default")
    parser.add_argument("--play", choices=PLAYS, default="", help="this play alone")
    parser.add_argument("--steps", type=int, default=300, help="the acts of each task")
    chosen = parser.parse_args()
    seed = secrets.randbits(24) if chosen.seed is None else chosen.seed
    began = shown = time.monotonic()
    ends: Counter[str] = Counter()
    done = calls = 0
    name = ""
    try:
        while done < chosen.plays:
            with (
                tempfile.TemporaryDirectory(prefix="dios-tasks-") as folder,
                open_stage(Path(folder)) as stage,
            ):
                for _ in range(min(PLAYS_PER_NODE, chosen.plays - done)):
                    name = chosen.play or PLAYS[seed % len(PLAYS)]
                    played = stage.play(name, seed, chosen.steps, tasks=1 + seed // len(PLAYS) % 4)
                    ends.update(played.ends)
                    done, seed, calls = done + 1, seed + 1, calls + played.neighbour_calls
                    if time.monotonic() - shown > TELL_S:
                        shown = time.monotonic()
                        say(f"  {done:>6,} plays  {calls:>9,} calls of the neighbour", over=True)
                stage.stops(lingering=3, seed=seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        notes = "\n".join(getattr(error, "__notes__", ()))
        say(f"\nFINDING: play {name}, seed {seed}: {type(error).__name__}: {error}\n{notes}")
        say(f"repeat it with\n  make fuzz-tasks PLAYS=1 SEED={seed} PLAY={name}")
        return 1
    told = ", ".join(f"{count:,} {cause.lower()}" for cause, count in ends.most_common())
    say(
        f"\nnothing found: {done:,} plays of {sum(ends.values()):,} tasks, {calls:,} calls of the neighbour, "
    )
    say(f"{time.monotonic() - began:.0f} s; ends: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
