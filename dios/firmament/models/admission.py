"""Progressive filling: give free slots to principals one at a time until no slot or no task is left.

Fairness by admission uses it (Choosy, H-DRF; Table 8.6). It reads only its arguments. The solver chooses the
machine of an admitted task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dios.firmament.cluster.columns import Floats


@dataclass
class WaitingTasks:
    """Tasks of one principal with the same constraints, the oldest first."""

    principal: str
    signature: int
    """The index in ``Pools.allowed`` of the pools that the tasks may use."""
    tasks: deque[int]
    """Rows of the tasks."""
    demands: deque[Floats]
    """The demand of each task, in the same order."""


@dataclass
class Pools:
    """The free slots, grouped by sets of machines that the same tasks may use."""

    free: list[int]
    """The number of free slots of each pool."""
    allowed: list[list[int]]
    """The pools of each signature; the pool that the fewest other signatures may use comes first."""
    room: Floats
    """The unreserved capacity of the whole cluster, shape (D,); infinity for an unknown capacity."""

    def take(self, signature: int, demand: Floats) -> None:
        """Take a slot of the pool that the fewest others may use, and the demand from the cluster's room."""
        pool = next(pool for pool in self.allowed[signature] if self.free[pool] > 0)
        self.free[pool] -= 1
        self.room = self.room - demand

    def can_take(self, signature: int, demand: Floats) -> bool:
        """Return True if there is a slot, and room for the demand in the whole cluster.

        The scheduler checks each machine's room.
        """
        some = any(self.free[pool] > 0 for pool in self.allowed[signature])
        return some and all(want <= left for want, left in zip(demand, self.room, strict=True))


class Shares(Protocol):
    """The resources that each principal has, and the order of the principals that follows from them."""

    def choose(self, candidates: Iterable[str]) -> str:
        """Return the next principal to receive a slot; each candidate has a task that could start."""

    def add(self, principal: str, demand: Floats) -> None:
        """Record that a principal receives a task."""


def fill(waiting: Sequence[WaitingTasks], pools: Pools, shares: Shares, limit: int) -> list[int]:
    """Return the rows of the admitted tasks in the order of their admission; at most ``limit``."""
    admitted: list[int] = []
    while len(admitted) < limit:
        ready = [
            group for group in waiting if group.tasks and pools.can_take(group.signature, group.demands[0])
        ]
        if not ready:
            break
        chosen = shares.choose({group.principal: None for group in ready})
        mine = min((group for group in ready if group.principal == chosen), key=lambda group: group.tasks[0])
        demand = mine.demands.popleft()
        pools.take(mine.signature, demand)
        shares.add(chosen, demand)
        admitted.append(mine.tasks.popleft())
    return admitted


class SlotShares:
    """Max-min fairness over slots (Choosy): the principal with the fewest slots is next."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}

    def choose(self, candidates: Iterable[str]) -> str:
        """Return the principal with the fewest slots; among equals, the first by name."""
        return min(candidates, key=lambda candidate: (self.slots.get(candidate, 0), candidate))

    def add(self, principal: str, demand: Floats) -> None:
        """Count one more slot."""
        self.slots[principal] = self.slots.get(principal, 0) + 1


@dataclass
class _PoolNode:
    """A principal, or all principals below a prefix of their names."""

    usage: Floats
    children: dict[str, _PoolNode] = field(default_factory=dict)


class DominantShares:
    """Hierarchical dominant resource fairness (H-DRF): principals are paths, such as "org/team/user".

    At each level, starting at the root, the child with the least dominant share is chosen among the children
    with a candidate. Each child's vector is rescaled to the least share among its siblings before the vectors
    are added up. Without rescaling, a branch whose users want different resources would seem to have a larger
    share than each of its users.

    Args:
        total: the cluster's capacity of each resource, shape (D,); a capacity of 0 is not counted.
    """

    def __init__(self, total: Floats) -> None:
        self._total = total
        self._root = _PoolNode(total * 0)

    def add(self, principal: str, demand: Floats) -> None:
        """Add a demand to the usage of a principal."""
        node = self._root
        for part in principal.split("/"):
            node = node.children.setdefault(part, _PoolNode(self._total * 0))
        node.usage = node.usage + demand

    def choose(self, candidates: Iterable[str]) -> str:
        """Return the candidate that is reached by the branch with the least share at each level."""
        left = [name.split("/") for name in candidates]
        node, depth = self._root, 0
        while len(left) > 1:
            here = next((path for path in left if len(path) == depth), None)
            if here is not None:
                return "/".join(here)
            wanted = sorted({path[depth] for path in left})
            chosen = min(wanted, key=lambda part: (self._share_below(node, part), part))
            left = [path for path in left if path[depth] == chosen]
            node = node.children.get(chosen, _PoolNode(self._total * 0))
            depth += 1
        return "/".join(left[0])

    def _share_below(self, node: _PoolNode, part: str) -> float:
        child = node.children.get(part)
        return self.share(self._vector(child)) if child is not None else 0.0

    def share(self, usage: Floats) -> float:
        """Return the dominant share of a vector."""
        return max(
            (float(used / has) for used, has in zip(usage, self._total, strict=True) if has > 0), default=0.0
        )

    def _vector(self, node: _PoolNode) -> Floats:
        if not node.children:
            return node.usage
        vectors = [self._vector(child) for child in node.children.values()]
        shares = [self.share(vector) for vector in vectors]
        least = min((share for share in shares if share > 0), default=0.0)
        total = node.usage
        for vector, share in zip(vectors, shares, strict=True):
            if share > 0:
                total = total + vector * (least / share)
        return total
