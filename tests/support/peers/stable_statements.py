"""A small model of belief in members' statements: every set of statements that could be the truth.

A set is *stable* if it contains exactly the statements that it does not refuse itself, and of each signer
only the last of these. ``dios.transport.identity.trust`` keeps one set and changes it as statements arrive;
the model enumerates all subsets, and knows neither an order of arrival nor a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Said:
    """One statement; ``path`` has the ids and keys of its signer and the signer's admitters upwards."""

    data: bytes
    order: tuple[int, bytes]
    path: tuple[tuple[int, bytes], ...]
    removed: frozenset[int]
    kept: frozenset[tuple[int, bytes]]

    @property
    def signer(self) -> int:
        """The signer's id."""
        return self.path[0][0]


Belief: TypeAlias = frozenset[Said]


def refuses(belief: Iterable[Said], path: Sequence[tuple[int, bytes]]) -> bool:
    """Return True if these statements refuse the node with this path."""
    for place, (node, _) in enumerate(path):
        removers = [said for said in belief if node in said.removed]
        if not removers:
            continue
        if place == 0:
            return True
        independent = [said for said in removers if node not in {node_id for node_id, _ in said.path}]
        below = set(path[:place])
        if not any(said.kept & below for said in independent or removers):
            return True
    return False


def is_stable(belief: Belief, pool: Sequence[Said], owner: int) -> bool:
    """Return True if the node ``owner`` can hold exactly these, after it has heard the whole pool."""
    for signer in {said.signer for said in pool}:
        mine = [said for said in pool if said.signer == signer]
        valid = [said for said in mine if signer == owner or not refuses(belief, said.path)]
        last = max(valid, key=lambda said: said.order, default=None)
        if {said for said in belief if said.signer == signer} != ({last} - {None}):
            return False
    return True


def stable_beliefs(pool: Sequence[Said], owner: int) -> list[Belief]:
    """Return all sets of statements that are stable for a node, whose own statement always counts."""
    choices = [
        [None, *(said for said in pool if said.signer == signer)]
        for signer in sorted({said.signer for said in pool})
    ]
    beliefs = (frozenset(said for said in chosen if said) for chosen in itertools.product(*choices))
    return [belief for belief in beliefs if is_stable(belief, pool, owner)]
