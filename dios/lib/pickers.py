"""Reference pickers: the choice among several replicas of an object by public attributes (thesis §4.5.2).

A picker is a function from references to one of them; an application with another policy writes its own.
``Node.lookup`` finds the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from dios.client.ops.attributes import Handle
from dios.errors import InvalidError
from dios.wire.types import Persistence

R = TypeVar("R", bound=Handle)

_IN_MEMORY: Final = Persistence.VOLATILE


def pick_input(references: Sequence[R]) -> R:
    """Return a replica by the policy of Listing 4.3: in memory before on disk, then the nearest.

    Raises InvalidError if there is none.
    """
    return _best(references, lambda reference: (reference.persistence is not _IN_MEMORY, reference.proximity))


def pick_closest(references: Sequence[R]) -> R:
    """Return the nearest replica, preferably in memory; InvalidError if there is none."""
    return _best(references, lambda reference: (reference.proximity, reference.persistence is not _IN_MEMORY))


def pick_durable(references: Sequence[R]) -> R:
    """Return the nearest durable replica, else the nearest; InvalidError if there is none."""
    return _best(references, lambda reference: (reference.persistence is _IN_MEMORY, reference.proximity))


def pick_apart(references: Sequence[R], chosen: Collection[Handle]) -> R:
    """Return the replica that shares the fewest fault domains with those already ``chosen``.

    That is a replica on another node, in the rack with the fewest of them; then the nearest, preferably in
    memory. Nodes without a rack count as one rack. Raises InvalidError if there is none.
    """

    def rank(reference: R) -> tuple[int, ...]:
        same_rack = sum(other.rack == reference.rack for other in chosen)
        same_node = sum((other.rack, other.node) == (reference.rack, reference.node) for other in chosen)
        return (
            same_node > 0,
            same_rack,
            same_node,
            reference.proximity,
            reference.persistence is not _IN_MEMORY,
        )

    return _best(references, rank)


def spread(references: Sequence[R], count: int) -> list[R]:
    """Return at most ``count`` replicas that share the fewest fault domains, the nearest first."""
    left = list(references)
    chosen: list[R] = []
    while left and len(chosen) < count:
        chosen.append(pick_apart(left, chosen))
        left.remove(chosen[-1])
    return chosen


def _best(references: Sequence[R], rank: Callable[[R], tuple[int, ...]]) -> R:
    if not references:
        raise InvalidError("there is no replica to choose: the name is unknown here, or in another group")
    return min(references, key=rank)
