"""The order in which nodes are asked if they live, the open probes, and the probes made for others.

Every node is asked once in each round of a random order, so that the time until a dead node is asked is
bounded (SWIM's round-robin probing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from dios import limits
from dios.ids import NodeId

_NUMBER_BYTES: Final = 6  # the first number is random, so that answers to an earlier life fit none


class Probe(Struct):
    """An open question to a node; ``relayed`` once others were asked to ask it, too."""

    number: int
    until_ns: int
    relayed: bool = False


class Errand(Struct, frozen=True):
    """A question asked for another node, and its number there."""

    asker: NodeId
    number: int
    target: NodeId
    until_ns: int


class Probes:
    """The open questions of one node."""

    __slots__ = ("_entropy", "_errands", "_number", "_order", "open")

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy: Final = entropy
        self._number = int.from_bytes(entropy(_NUMBER_BYTES), "big")
        self._order: list[NodeId] = []
        self._errands: Final[dict[int, Errand]] = {}
        self.open: Final[dict[NodeId, Probe]] = {}

    def number(self) -> int:
        """A number that no other question of this node has."""
        self._number += 1
        return self._number

    def pick(self, nodes: Sequence[NodeId], count: int) -> list[NodeId]:
        """Up to ``count`` of these nodes at random, each once."""
        rest = list(nodes)
        chosen: list[NodeId] = []
        while rest and len(chosen) < count:
            place = int.from_bytes(self._entropy(4), "big") % len(rest)
            rest[place], rest[-1] = rest[-1], rest[place]
            chosen.append(rest.pop())
        return chosen

    def next(self, alive: Sequence[NodeId], count: int) -> list[NodeId]:
        """The next up to ``count`` nodes of the round, each once."""
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

    def take_errand(self, asker: NodeId, number: int, target: NodeId, until_ns: int) -> int:
        """Note a question that is asked for another; return its own number."""
        own = self.number()
        self._errands[own] = Errand(asker, number, target, until_ns)
        if len(self._errands) > limits.GOSSIP_RELAYED_MAX:
            del self._errands[next(iter(self._errands))]
        return own

    def errand_done(self, number: int, target: NodeId, now: int) -> Errand | None:
        """For whom this answer of ``target`` is, if it is for another and comes in time."""
        errand = self._errands.pop(number, None)
        if errand is None or errand.target != target or errand.until_ns < now:
            return None
        return errand
