"""Reference pickers: which of several replicas of an object to use, by public attributes (thesis §4.5.2).

Not for: finding the replicas (``Node.lookup``), or I/O on them. A picker is a plain function from references
to one of them; an application with another policy writes its own.
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
    """The policy of Listing 4.3: what is in memory before what is on disk, wherever it is; then the nearest.

    Raises InvalidError when there is none.
    """
    return _best(references, lambda reference: (reference.persistence is not _IN_MEMORY, reference.proximity))


def pick_closest(references: Sequence[R]) -> R:
    """The nearest replica; of equally near ones, one in memory. Raises InvalidError when there is none."""
    return _best(references, lambda reference: (reference.proximity, reference.persistence is not _IN_MEMORY))


def pick_durable(references: Sequence[R]) -> R:
    """A replica that survives restarts before one that does not; then the nearest. InvalidError for none."""
    return _best(references, lambda reference: (reference.persistence is _IN_MEMORY, reference.proximity))


def pick_apart(references: Sequence[R], chosen: Collection[Handle]) -> R:
    """The replica that shares the fewest fault domains with those already ``chosen``: one on another node, in
    the rack that has the fewest of them; then the nearest, and one in memory.

    Nodes that were told no rack count as being in one rack together. Raises InvalidError when there is none.
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
    """At most ``count`` replicas that share as few fault domains as can be, the nearest first."""
    left = list(references)
    chosen: list[R] = []
    while left and len(chosen) < count:
        chosen.append(pick_apart(left, chosen))
        left.remove(chosen[-1])
    return chosen


def _best(references: Sequence[R], rank: Callable[[R], tuple[int, ...]]) -> R:
    if not references:
        raise InvalidError("no replica to pick from: the name is unknown here, or in another group")
    return min(references, key=rank)
