"""Progressive filling: who may have the next free slot, again and again, until none is left.

For: fairness by admission (Choosy, H-DRF; Table 8.6). Pure: it is told who waits and what is free.
Not for: which machine an admitted task gets; the solver finds that.
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
    """Which pools they may use: an index of ``Pools.allowed``."""
    tasks: deque[int]
    """Rows."""
    demands: deque[Floats]


@dataclass
class Pools:
    """Free slots, by sets of machines that the same tasks may use."""

    free: list[int]
    allowed: list[list[int]]
    """By signature: its pools, the one that the fewest others may use first."""
    room: Floats
    """What is not reserved in the whole cluster, shape (D,); infinity where nothing is known."""

    def take(self, signature: int, demand: Floats) -> None:
        """Take a slot that others miss least, and what the task asks for."""
        pool = next(pool for pool in self.allowed[signature] if self.free[pool] > 0)
        self.free[pool] -= 1
        self.room = self.room - demand

    def has(self, signature: int, demand: Floats) -> bool:
        """Whether there is a slot, and enough in the whole cluster; the scheduler checks machines."""
        some = any(self.free[pool] > 0 for pool in self.allowed[signature])
        return some and all(want <= left for want, left in zip(demand, self.room, strict=True))


class Shares(Protocol):
    """Who has how much."""

    def next_of(self, candidates: Iterable[str]) -> str:
        """Whose turn it is among principals with a task that could start."""
        ...

    def give(self, principal: str, demand: Floats) -> None:
        """A principal gets a task."""
        ...


def fill(waiting: Sequence[WaitingTasks], pools: Pools, shares: Shares, most: int) -> list[int]:
    """Rows of the tasks that are admitted, in the order of their admission; at most ``most``."""
    admitted: list[int] = []
    while len(admitted) < most:
        ready = [each for each in waiting if each.tasks and pools.has(each.signature, each.demands[0])]
        if not ready:
            break
        chosen = shares.next_of({each.principal: None for each in ready})
        mine = min((each for each in ready if each.principal == chosen), key=lambda each: each.tasks[0])
        demand = mine.demands.popleft()
        pools.take(mine.signature, demand)
        shares.give(chosen, demand)
        admitted.append(mine.tasks.popleft())
    return admitted


class SlotShares:
    """Max-min over slots (Choosy): whoever has the fewest is next."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}

    def next_of(self, candidates: Iterable[str]) -> str:
        """The fewest slots; of equals the first by name."""
        return min(candidates, key=lambda each: (self.slots.get(each, 0), each))

    def give(self, principal: str, demand: Floats) -> None:
        """One slot more."""
        self.slots[principal] = self.slots.get(principal, 0) + 1


@dataclass
class _PoolNode:
    """A principal, or all principals below a prefix of their names."""

    usage: Floats
    children: dict[str, _PoolNode] = field(default_factory=dict)


class DominantShares:
    """Hierarchical dominant resource fairness (H-DRF): principals are paths, such as "org/team/user".

    From the root down the child with the least dominant share is taken, among those that have a candidate.
    Before its vectors are added up, each child is rescaled to the least share among its siblings: without
    that a branch whose users want different resources would look richer than each of them is.

    Args:
        total: what the cluster has in each resource, shape (D,); 0 is not counted.
    """

    def __init__(self, total: Floats) -> None:
        self._total = total
        self._root = _PoolNode(total * 0)

    def give(self, principal: str, demand: Floats) -> None:
        """A leaf uses more."""
        node = self._root
        for part in principal.split("/"):
            node = node.children.setdefault(part, _PoolNode(self._total * 0))
        node.usage = node.usage + demand

    def next_of(self, candidates: Iterable[str]) -> str:
        """From the root down, the branch with the least share."""
        left = [name.split("/") for name in candidates]
        node, depth = self._root, 0
        while len(left) > 1:
            here = next((each for each in left if len(each) == depth), None)
            if here is not None:
                return "/".join(here)
            wanted = sorted({each[depth] for each in left})
            chosen = min(wanted, key=lambda part: (self._share_below(node, part), part))
            left = [each for each in left if each[depth] == chosen]
            node = node.children.get(chosen, _PoolNode(self._total * 0))
            depth += 1
        return "/".join(left[0])

    def _share_below(self, node: _PoolNode, part: str) -> float:
        child = node.children.get(part)
        return self.share(self._vector(child)) if child is not None else 0.0

    def share(self, usage: Floats) -> float:
        """The dominant share of a vector."""
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
