"""Print the costs of clusters against their number of nodes: ``python -m dios.sim.scale --nodes 3 10 30``."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from time import perf_counter

from msgspec import Struct

from dios.sim.event_queue import S
from dios.sim.scale.members import Costs, MemberWorld

QUIET_NS = 120 * S
IDLE_NS = 30 * S
PATIENCE_NS = 300 * S
PHASES = ("join", "idle", "a rack fails", "the rack returns", "a partition", "it heals")


class Phase(Struct, frozen=True):
    """The cost of one phase for each node, and the seconds until all live views were true."""

    nodes: int
    name: str
    seconds: float
    messages: float
    bytes: float
    steps: float
    dials: float
    connections: float
    false_deaths: int


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _phase(world: MemberWorld, name: str, seconds: float | None, costs: Costs, deaths: int) -> Phase:
    nodes = len(world.ids)
    return Phase(
        nodes,
        name,
        math.nan if seconds is None else seconds,
        costs.messages / nodes,
        costs.bytes / nodes,
        costs.steps / nodes,
        costs.dials / nodes,
        world.connections() / nodes,
        deaths,
    )


def _until_true(world: MemberWorld) -> tuple[float | None, Costs]:
    before, world.costs = world.costs, Costs()
    took = world.settle(PATIENCE_NS)
    found, world.costs = world.costs, before
    return None if took is None else took / S, found


def _deaths(world: MemberWorld, except_for: Iterable[int] = ()) -> int:
    """Return how many times a living node was declared dead since the last call."""
    gone = set(except_for)
    found = sum(count for node, count in world.dead.items() if node not in gone)
    world.dead.clear()
    return found


def phases(size: int, seed: int) -> list[Phase]:
    """Run a cluster through everything, and return what each phase cost."""
    world = MemberWorld(size, seed)
    found: list[Phase] = []
    span = max(2, size // 50) * S
    world.start_all(span)
    joined = world.measure(span)
    took, rest = _until_true(world)
    for name in ("messages", "bytes", "steps", "dials"):
        setattr(joined, name, getattr(joined, name) + getattr(rest, name))
    found.append(_phase(world, "join", took, joined, _deaths(world)))

    world.run(QUIET_NS)
    found.append(_phase(world, "idle", 0.0, world.measure(IDLE_NS), _deaths(world)))
    rack = [node for node in world.ids if world.machines[node].row.rack == "r0"][: max(1, size // 3)]
    world.kill(rack)
    took, costs = _until_true(world)
    found.append(_phase(world, "a rack fails", took, costs, _deaths(world, rack)))
    for node in rack:
        world.start(node, world.rng.sample([one for one in world.ids if one not in rack], 1))
    took, costs = _until_true(world)
    found.append(_phase(world, "the rack returns", took, costs, _deaths(world)))

    world.run(QUIET_NS // 2)
    half = world.ids[: size // 2]
    _deaths(world)
    world.part(half, 1)
    took, costs = _until_true(world)
    found.append(_phase(world, "a partition", took, costs, 0))
    world.dead.clear()
    world.heal()
    took, costs = _until_true(world)
    found.append(_phase(world, "it heals", took, costs, _deaths(world)))
    return found


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the exponent of n in the power law that fits best, by least squares of the logarithms."""
    logs = [(math.log(n), math.log(max(cost, 1e-9))) for n, cost in points]
    middle_x = sum(x for x, _ in logs) / len(logs)
    middle_y = sum(y for _, y in logs) / len(logs)
    spread = sum((x - middle_x) ** 2 for x, _ in logs)
    return sum((x - middle_x) * (y - middle_y) for x, y in logs) / spread


def main() -> None:
    """Print one table for each phase, and the exponents."""
    parser = argparse.ArgumentParser(description="Costs of simulated clusters against their number of nodes.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 10, 30, 100, 300, 1000])
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rows: list[Phase] = []
    for size in asked.nodes:
        began = perf_counter()
        rows += phases(size, asked.seed)
        sys.stderr.write(f"{size} nodes took {perf_counter() - began:.0f} s\n")
    for name in PHASES:
        _print(name, [row for row in rows if row.name == name])


def _print(name: str, rows: Sequence[Phase]) -> None:
    per = IDLE_NS / S if name == "idle" else 1.0
    unit = " and second" if name == "idle" else ""
    say(f"\n### {name[0].upper()}{name[1:]}\n")
    say(
        f"| nodes | until all views are true, s | messages per node{unit} | bytes | steps | connections made"
        " | open per node | living declared dead |"
    )
    say("|---|---|---|---|---|---|---|---|")
    for row in rows:
        say(
            f"| {row.nodes:,} | {row.seconds:.1f} | {row.messages / per:,.2f} | {row.bytes / per:,.0f}"
            f" | {row.steps / per:,.2f} | {row.dials / per:,.2f} | {row.connections:.1f}"
            f" | {row.false_deaths} |"
        )
    if len(rows) > 1:
        fitted = {
            column: exponent([(row.nodes, float(getattr(row, column))) for row in rows])
            for column in ("messages", "bytes", "steps")
        }
        say("\nExponents of n: " + ", ".join(f"{column} {power:.2f}" for column, power in fitted.items()))


if __name__ == "__main__":
    main()
