"""``make fuzz-nodes``: lies of a member to three real nodes, over real connections, with progress.

    python -m tests.fuzz.members_run --lies 100000 [--seed N] [--play NAME] [--jobs N] [--report FILE]

Each play has its own seed, a member of its own, and a check of the honest nodes before and after its removal
(``tests.support.security.hostile_member``). A finding ends the campaign with status 1 and names the seed that
repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from tests.fuzz.run import TELL_S, say
from tests.support.security.hostile_member.campaign import FoundError, Played, name_of, play
from tests.support.security.hostile_member.honest_nodes import HonestNodes, honest_nodes
from tests.support.security.hostile_member.plays import PLAYS
from tests.support.security.hostile_member.turncoat import play_turncoat

LIES_PER_PLAY: Final = 600
PLAYS_PER_CLUSTER: Final = 60
CALLS_OF_A_TURNCOAT: Final = 25
TURNCOAT: Final = "turncoat"
SEEDS: Final = 1 << 32
"""The distance between the seeds of two processes."""
_stop: Event | None = None


def main() -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(description="Lie to three real nodes in the name of a member.")
    parser.add_argument("--lies", type=int, default=100_000, help="the minimum number of lies")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; random by default")
    parser.add_argument("--jobs", type=int, default=2, help="the number of clusters at a time")
    parser.add_argument("--play", choices=[*sorted(PLAYS), TURNCOAT], default="", help="this play alone")
    parser.add_argument(
        "--report", type=Path, default=None, help="write the counts to this file, as Markdown"
    )
    chosen = parser.parse_args()
    seed = secrets.randbits(24) if chosen.seed is None else chosen.seed
    began = time.monotonic()
    done: list[Played] = []
    # With a first seed, the plays are repeated one after the other, as they were.
    jobs = chosen.jobs if chosen.seed is None else 1
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(stop,)) as pool:
        lies = -(-chosen.lies // jobs)
        started = [pool.submit(campaign, lies, seed + job * SEEDS, chosen.play) for job in range(jobs)]
        findings = []
        for ended in as_completed(started):
            played, finding = ended.result()
            done += played
            if finding:
                stop.set()
                findings.append(finding)
    say("")
    for finding in findings:
        say(f"FINDING: {finding}")
    if findings:
        return 1
    report = told(done, time.monotonic() - began, jobs)
    say(report)
    if chosen.report is not None:
        chosen.report.write_text(report)
    return 0


def _begin(stop: Event) -> None:
    """Prepare a process of the campaign."""
    global _stop
    _stop = stop
    os.environ["DIOS_COORDINATOR"] = "off"


def campaign(lies: int, seed: int, name: str) -> tuple[list[Played], str]:
    """Play on fresh clusters, one after the other; return the plays, and the words for a finding or none."""
    began = time.monotonic()
    done: list[Played] = []
    with tempfile.TemporaryDirectory(prefix="dios-members-") as folder:
        cluster = 0
        while sum(played.lies for played in done) < lies and not (_stop is not None and _stop.is_set()):
            cluster += 1
            place = Path(folder) / str(cluster)
            place.mkdir()
            try:
                with honest_nodes(place) as nodes:
                    seed = _on_one_cluster(nodes, seed, lies, name, place, done, began)
            except FoundError as error:
                repeat = f"make fuzz-members LIES=1 SEED={error.seed} PLAY={error.play}"
                return done, f"{error}\nrepeat it with\n  {repeat}"
    return done, ""


def _on_one_cluster(
    nodes: HonestNodes, seed: int, lies: int, name: str, folder: Path, done: list[Played], began: float
) -> int:
    """Play on one cluster until there are enough lies, or for some plays; return the next seed."""
    shown = time.monotonic()
    for _ in range(PLAYS_PER_CLUSTER):
        if _stop is not None and _stop.is_set():
            break
        if name == TURNCOAT:
            done.append(play_turncoat(nodes, seed, CALLS_OF_A_TURNCOAT, folder))
        else:
            done.append(play(nodes, seed, LIES_PER_PLAY, folder, name or name_of(seed)))
        seed += 1
        count = sum(played.lies for played in done)
        if time.monotonic() - shown > TELL_S:
            shown = time.monotonic()
            say(f"  {count:>9,} lies  {count / (shown - began):>6,.0f}/s  {len(done):>5,} plays", over=True)
        if count >= lies:
            break
    return seed


def told(done: list[Played], seconds: float, jobs: int) -> str:
    """Return the counts of a campaign as a page."""
    lies: Counter[str] = Counter()
    plays: Counter[str] = Counter()
    for played in done:
        lies[played.name] += played.lies
        plays[played.name] += 1
    rows = [f"| {name} | {plays[name]:,} | {lies[name]:,} |" for name in sorted(lies)]
    return "\n".join(
        [
            "# A hostile member before three real nodes",
            "",
            "Each play is by a new member, which is removed afterwards. Before and after that the honest",
            "nodes agreed with each other, served their users, and gave nothing away (`make fuzz-members`).",
            "",
            f"{sum(lies.values()):,} lies in {len(done):,} plays, {seconds:,.0f} s,",
            f"{sum(lies.values()) / seconds:,.0f} a second on {jobs} clusters at a time.",
            "",
            "| play | plays | lies |",
            "|---|---:|---:|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
