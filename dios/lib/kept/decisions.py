"""The next steps for the replicas of one object: a function of the promise, the replicas and the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from blake3 import blake3

from dios.lib.kept.versions import Seen, VersionState, latest


class Place(NamedTuple):
    """A node on which replicas can be. It is ``away`` while it does not answer and may come back soon."""

    name: str
    rack: str
    usable: bool = True
    draining: bool = False
    away: bool = False
    refused: bool = False
    """It refused a copy a moment ago: its disk is full, or the user's limits there are reached."""

    @property
    def domain(self) -> str:
        """Return the fault domain: the rack, or the node itself if it is in none."""
        return f"rack {self.rack}" if self.rack else f"node {self.name}"


class Copied(NamedTuple):
    """A durable replica that was found; ``v_w`` is its version at that time.

    ``state`` is what its version says of its bytes. It is the same for all replicas of an object whose digest
    is known: their bytes decide, and ``verified`` ones were compared with the digest.
    """

    object_id: int
    node: str
    state: VersionState
    v_w: int = 0
    verified: bool = False


class KeptWish(NamedTuple):
    """The part of a promise that decides about places."""

    replicas: int
    apart: bool = False


class KeptSteps(NamedTuple):
    """The next steps: nodes to copy ``source`` to, and replicas to drop.

    ``current`` is the number of nodes that have the current version; ``short`` is how many are missing, those
    on nodes that are away included. In a ``conflict`` nothing is copied and nothing is dropped. The replicas
    that stay need not be verified: the caller compares their bytes before it drops others.
    """

    source: Copied | None = None
    targets: tuple[str, ...] = ()
    drop: tuple[Copied, ...] = ()
    current: int = 0
    short: int = 0
    conflict: tuple[Copied, ...] = ()
    reason: str = ""


def next_steps(
    wish: KeptWish,
    copies: Sequence[Copied],
    places: Collection[Place],
    *,
    key: str,
    seen: Collection[Seen] = (),
    unsound: Sequence[Copied] = (),
    whole: bool = True,
) -> KeptSteps:
    """Return the next steps for an object; ``key`` spreads objects over nodes that are equally good.

    ``unsound`` replicas have other bytes than those that were put. They count for nothing, and are dropped
    when there are enough others. ``whole`` is False if a replica may exist that was not found; then nothing
    is dropped.
    """
    nodes = {place.name: place for place in places if place.usable}
    there = [copied for copied in copies if copied.node in nodes]
    if not there:
        return KeptSteps(short=wish.replicas, reason="no replica can be reached")
    heads = latest((copied.state for copied in there), seen)
    if len(heads) > 1:
        conflict = tuple(sorted(copied for copied in there if copied.state in heads))
        count = max(len({copied.node for copied in there if copied.state == head}) for head in heads)
        return KeptSteps(
            current=count,
            short=max(wish.replicas - count, 0),
            conflict=conflict,
            reason="replicas have different versions, and nothing shows which is later",
        )
    current = sorted(copied for copied in there if copied.state == heads[0])
    staying = [copied for copied in current if not nodes[copied.node].draining]
    homes = {copied.node for copied in staying}
    away = sum(place.away for place in places)
    targets = _targets(wish, [nodes[name] for name in sorted(homes)], nodes, key, away)
    drop: tuple[Copied, ...] = ()
    settled = whole and not away and not targets
    possible = sum(not place.draining for place in nodes.values())
    if settled and len(homes) >= min(wish.replicas, possible) and homes:
        behind = tuple(
            copied for copied in (*there, *unsound) if copied not in current and copied.node in nodes
        )
        leaving = (
            tuple(copied for copied in current if copied not in staying)
            if len(homes) >= wish.replicas
            else ()
        )
        drop = _surplus(wish, staying, nodes) + behind + leaving
    held = {copied.node for copied in current}
    short = max(wish.replicas - len(held), 0)
    return KeptSteps(
        min(staying or current, key=lambda copied: (not copied.verified, copied)),
        targets,
        drop,
        len(held),
        short,
        reason=_reason(short, away, possible, wish, nodes.values()),
    )


def _targets(
    wish: KeptWish, homes: Sequence[Place], nodes: dict[str, Place], key: str, away: int
) -> tuple[str, ...]:
    """Return the nodes for further replicas, each in the domain with the fewest."""
    domains = Counter(place.domain for place in homes)
    taken = {place.name for place in homes}
    missing = wish.replicas - len(homes) - away
    if wish.apart and missing <= 0 and not away:
        # One more, in a further domain. When it is there, one of the domain with two is surplus.
        free = {place.domain for place in nodes.values() if not place.draining and not place.refused}
        crowded = len(domains) < min(wish.replicas, len(domains.keys() | free))
        missing = 1 if crowded else 0
    targets: list[str] = []
    order = sorted(nodes, key=lambda name: blake3(f"{key} {name}".encode()).digest())
    for _ in range(max(missing, 0)):
        free_places = [
            place
            for place in nodes.values()
            if place.name not in taken and not place.draining and not place.refused
        ]
        if not free_places:
            break
        best = min(free_places, key=lambda place: (domains[place.domain], order.index(place.name)))
        targets.append(best.name)
        taken.add(best.name)
        domains[best.domain] += 1
    return tuple(targets)


def _surplus(wish: KeptWish, staying: Sequence[Copied], nodes: dict[str, Place]) -> tuple[Copied, ...]:
    """Return replicas beyond the promise: second ones of a node, then those of the fullest domains.

    The order is the same for every node that decides, so that two of them never drop the last ones.
    """
    left = list(staying)
    surplus: list[Copied] = []
    while len(left) > wish.replicas or len({copied.node for copied in left}) < len(left):
        on_node = Counter(copied.node for copied in left)
        in_domain = Counter(nodes[copied.node].domain for copied in left)

        ranks = {
            copied: (
                on_node[copied.node] > 1,
                wish.apart * in_domain[nodes[copied.node].domain],
                copied.object_id,
            )
            for copied in left
        }
        gone = max(left, key=ranks.__getitem__)
        left.remove(gone)
        surplus.append(gone)
    return tuple(surplus)


def _reason(short: int, away: int, possible: int, wish: KeptWish, places: Collection[Place]) -> str:
    if not short:
        return ""
    if away:
        return f"{away} nodes are away" if away > 1 else "a node is away"
    if possible < wish.replicas:
        return f"{possible} of the nodes can have replicas"
    if any(place.refused for place in places):
        return "nodes refuse copies"
    return "copies are being made"
