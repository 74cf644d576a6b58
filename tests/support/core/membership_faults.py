"""Seeded misfortunes for a ``GossipWorld``, and the times it takes to see a death.

Not for: what must hold then (``tests/sim/test_membership.py``).
"""

from __future__ import annotations

from random import Random
from typing import Final

from dios.ids import NodeId
from dios.wire.types import NodeStatus
from labs.sim.event_queue import MS, S
from tests.support.core.membership_world import GossipWorld

KINDS: Final = ("kill", "start", "freeze", "thaw", "part", "one way", "break", "heal", "leave")


def stable(size: int, seed: int, *, loss: float = 0.0, closes_dead: bool = False) -> GossipWorld:
    """A cluster in which everybody knows everybody, after a random time of peace."""
    world = GossipWorld(size, seed, loss=loss, closes_dead=closes_dead)
    world.start_all()
    assert world.converges(20 * S), world.differences()
    world.run(5 * S + world.rng.randrange(5 * S))
    return world


def unlucky(size: int, seed: int) -> GossipWorld:
    """A cluster to which a random number of random things has happened, up to this moment."""
    rng = Random(f"chaos {size} {seed}")  # noqa: S311 - a simulation repeats itself
    world = GossipWorld(
        size,
        seed,
        loss=rng.choice((0.0, 0.05, 0.2)),
        delay_ms=rng.choice(((0.2, 5.0), (1.0, 50.0), (20.0, 150.0))),
        doubled=rng.choice((0.0, 0.05)),
        late=rng.choice((0.0, 0.02)),
        drift=rng.choice((0.0, 0.01, 0.05)),
        closes_dead=rng.random() < 0.5,
    )
    world.start_all()
    world.run(rng.randrange(5 * S))
    for _ in range(rng.randrange(3, 15)):
        _misfortune(world, rng)
        world.run(rng.randrange(rng.choice((100 * MS, S, 5 * S, 30 * S))))
    return world


def _misfortune(world: GossipWorld, rng: Random) -> None:
    ids = world.ids()
    node = rng.choice(ids)
    runs, frozen = world.nodes[node].membership is not None, world.nodes[node].frozen
    kind = rng.choice(KINDS)
    if kind == "start" and not runs:
        world.start(node)
    elif kind == "kill" and runs:
        world.kill(node)
    elif kind == "leave" and runs and not frozen:
        world.leave(node)
    elif kind == "freeze" and runs:
        world.freeze(node)
    elif kind == "thaw" and frozen:
        world.thaw(node)
    elif kind == "heal":
        world.heal()
    elif kind in {"part", "one way", "break"}:
        side = rng.sample(ids, rng.randrange(len(ids) + 1))
        other = [other for other in ids if other not in side]
        if kind == "break":
            world.break_links(side, other)
        else:
            world.part(side, other, both_ways=kind == "part")


def heal_everything(world: GossipWorld) -> None:
    """Links are whole and processes go on; the killed stay killed."""
    world.heal()
    for node in world.ids():
        if world.nodes[node].frozen:
            world.thaw(node)


def times_of_death(world: GossipWorld, victim: NodeId, how: str) -> list[int]:
    """Kill or freeze one: nanoseconds until each other declared it dead."""
    since, mark = world.now, len(world.seen)
    if how == "kill":
        world.kill(victim)
    else:
        world.freeze(victim)
    world.run(5 * S)
    return [
        seen.at_ns - since
        for seen in world.seen[mark:]
        if seen.change.member.node == victim and seen.change.member.status is NodeStatus.DEAD
    ]
