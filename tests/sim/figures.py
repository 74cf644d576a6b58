"""Print the figures of results/membership.md: ``python tests/sim/figures.py --seeds 100 --hours 2``.

``test_membership.py`` checks the guarantees with fewer seeds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support" / "programs"))

from dios.wire.types import NodeStatus
from labs.sim.event_queue import S
from tests.support.core.membership_faults import heal_everything, stable, times_of_death, unlucky
from tests.support.core.membership_world import GossipWorld


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def deaths(seeds: int) -> None:
    """Print the time until the first and the last node has detected a death."""
    say("nodes  how     loss  first (median)  last (median)  last (max), seconds")
    for size in (2, 3, 16):
        for how in ("kill", "freeze"):
            for loss in (0.0, 0.05):
                firsts: list[float] = []
                lasts: list[float] = []
                for seed in range(seeds):
                    world = stable(size, seed, loss=loss)
                    times = times_of_death(world, world.rng.choice(world.ids()), how)
                    firsts.append(min(times) / S)
                    lasts.append(max(times) / S)
                say(
                    f"{size:5}  {how:6}  {loss:4.0%}  {median(firsts):14.2f}  {median(lasts):13.2f}"
                    f"  {max(lasts):10.2f}"
                )


def peace(hours: float) -> None:
    """Print the false deaths when only messages are lost."""
    say("nodes  loss  hours  false deaths  suspicions     messages of a node per second")
    for size, loss in ((2, 0.05), (3, 0.05), (16, 0.05), (2, 0.2), (3, 0.2), (16, 0.2)):
        world = stable(size, 1, loss=loss)
        mark, before = len(world.seen), world.messages
        # Large clusters get a shorter time, because the number of pings counts.
        span = hours * 3 / (size + 1)
        world.run(int(span * 3600 * S))
        suspicions = sum(seen.change.member.status is NodeStatus.SUSPECT for seen in world.seen[mark:])
        rate = (world.messages - before) / size / span / 3600
        say(f"{size:5}  {loss:4.0%}  {span:5.2f}  {len(world.deaths()):12}  {suspicions:15}  {rate:.1f}")


def luck(seeds: int) -> None:
    """Print the time after random faults until all tables are correct."""
    took: list[float] = []
    failed: list[int] = []
    for seed in range(seeds):
        world = unlucky(1 + seed % 16, seed)
        heal_everything(world)
        since = world.now
        if not world.converges(60 * S):
            failed.append(seed)
        took.append((world.now - since) / S)
    took.sort()
    at_99 = took[int(0.99 * len(took))]
    say(
        f"{seeds} seeds with faults: correct after {median(took):.1f} s (median), {at_99:.1f} s (99 %), "
        f"{took[-1]:.1f} s (max); never correct: {failed or 'none'}"
    )


def lonely(seeds: int) -> None:
    """Print the runs of a minute with a false death around a node that only one neighbour can reach."""
    say("nodes  loss  runs with a false death while a node has lost all its neighbours but one")
    for size in (3, 6, 16):
        for loss in (0.0, 0.05):
            bad = 0
            for seed in range(seeds):
                world: GossipWorld = stable(size, seed, loss=loss)
                node, _, *others = world.ids()
                world.part([node], others)
                world.run(60 * S)
                bad += bool(world.deaths())
            say(f"{size:5}  {loss:4.0%}  {bad} of {seeds}")


def main() -> None:
    """Print all figures in order."""
    parser = argparse.ArgumentParser(description="The figures of labs/benchmarks/results/membership.md.")
    parser.add_argument("--seeds", type=int, default=20, help="runs for each line")
    parser.add_argument("--hours", type=float, default=0.2, help="virtual hours without faults for two nodes")
    asked = parser.parse_args()
    since = perf_counter()
    deaths(asked.seeds)
    peace(asked.hours)
    lonely(max(2, asked.seeds // 5))
    luck(4 * asked.seeds)
    say(f"in {perf_counter() - since:.0f} s")


if __name__ == "__main__":
    main()
