"""The order in which nodes are probed, the open probes, and the probes made for other nodes.

Every node is probed once in each round of a random order, which bounds the time until a dead node is probed
(SWIM's round-robin probing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from dios import limits
from dios.ids import NodeId

_NUMBER_BYTES: Final = 6  # the first number is random, so that answers to an earlier process match none


class Probe(Struct):
    """An open probe of a node; ``relayed`` once other nodes probe it, too."""

    number: int
    until_ns: int
    relayed: bool = False


class RelayedProbe(Struct, frozen=True):
    """A probe made for another node, and its number there."""

    asker: NodeId
    number: int
    target: NodeId
    until_ns: int


class Probes:
    """The open probes of one node."""

    __slots__ = ("_entropy", "_number", "_order", "_relayed", "open")

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy: Final = entropy
        self._number = int.from_bytes(entropy(_NUMBER_BYTES), "big")
        self._order: list[NodeId] = []
        self._relayed: Final[dict[int, RelayedProbe]] = {}
        self.open: Final[dict[NodeId, Probe]] = {}

    def number(self) -> int:
        """Return a number that no other probe of this node has."""
        self._number += 1
        return self._number

    def draw(self, below: int) -> int:
        """Return a random number below ``below``."""
        return int.from_bytes(self._entropy(4), "big") % below

    def pick(self, nodes: Sequence[NodeId], count: int) -> list[NodeId]:
        """Return up to ``count`` of these nodes, chosen at random without repetition."""
        rest = list(nodes)
        chosen: list[NodeId] = []
        while rest and len(chosen) < count:
            place = self.draw(len(rest))
            rest[place], rest[-1] = rest[-1], rest[place]
            chosen.append(rest.pop())
        return chosen

    def next(self, alive: Sequence[NodeId], count: int) -> list[NodeId]:
        """Return the next nodes of the round, at most ``count``, without repetition."""
        here = set(alive)
        count = min(count, len(here))
        chosen: list[NodeId] = []
        put_back: list[NodeId] = []
        while len(chosen) < count:
            if not self._order:
                self._order = self.pick(alive, len(alive))
            node = self._order.pop()
            if node in chosen:
                put_back.append(node)
            elif node in here:
                chosen.append(node)
        self._order += put_back
        return chosen

    def add_relayed(self, asker: NodeId, number: int, target: NodeId, until_ns: int) -> int:
        """Note a probe that is made for another node; return its number on this node."""
        own = self.number()
        self._relayed[own] = RelayedProbe(asker, number, target, until_ns)
        if len(self._relayed) > limits.GOSSIP_RELAYED_MAX:
            del self._relayed[next(iter(self._relayed))]
        return own

    def finish_relayed(self, number: int, target: NodeId, now: int) -> RelayedProbe | None:
        """Return the probe for another node that this answer of ``target`` belongs to, if it is in time."""
        relayed_probe = self._relayed.pop(number, None)
        if relayed_probe is None or relayed_probe.target != target or relayed_probe.until_ns < now:
            return None
        return relayed_probe
