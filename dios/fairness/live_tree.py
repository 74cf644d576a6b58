"""The live tree: elements in the order of priorities that change with time.

The compiled tree for SDRF's own priority, used on its hot path, is in ``dios.fairness.stateful``.

SDRF paper, section VI-C. The order cannot change between two crossings of neighbours, so nothing is computed
in between; at a crossing only the two elements that meet are inserted again. The tree of elements is a treap
whose nodes also link to their neighbours. The events are a heap in which stale events stay until they are
skipped, and a dictionary finds an element by its id.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

_Id = TypeVar("_Id", bound=Hashable)
_Attribute = TypeVar("_Attribute")

RELATIVE_TOLERANCE = 1e-12
"""Relative to 1 plus their size, priorities nearer than this are ordered by their values shortly afterwards.

Too large a value only costs time.
"""
PROBES = (1.0, 2.0**10, 2.0**20, 2.0**30)
"""Times ahead at which two almost equal priorities that never cross are compared."""
STALE_MAX = 64
"""The least number of stale events at which the heap is cleaned."""


class MissingElementError(KeyError, ValueError):
    """An id that is not in the tree."""


class _Node(Generic[_Id, _Attribute]):
    """An element: its place in the treap, its neighbours, and the number of its event (-1: none)."""

    __slots__ = ("above", "after", "attribute", "before", "event", "id", "left", "rank", "right", "serial")

    def __init__(self, ident: _Id, attribute: _Attribute, serial: int, rank: float) -> None:
        self.id = ident
        self.attribute = attribute
        self.serial = serial
        self.rank = rank
        self.event = -1
        self.clear()

    def clear(self) -> None:
        """Remove all links to other nodes."""
        self.above: _Node[_Id, _Attribute] | None = None
        self.left: _Node[_Id, _Attribute] | None = None
        self.right: _Node[_Id, _Attribute] | None = None
        self.before: _Node[_Id, _Attribute] | None = None
        self.after: _Node[_Id, _Attribute] | None = None


class LiveTree(Generic[_Id, _Attribute]):
    """Elements in the order of ``priority(t, attribute)``, lowest first, while the time ``t`` advances.

    ``priority`` must be continuous in ``t``. ``intersection(t, a, b)`` is equation 14: the time after ``t``
    until the priorities of ``a`` and ``b`` may next be equal, or None for never. A function that returns the
    absolute time also works: the tree uses the earlier reading, and additional events do not change the
    order. Times have any unit. Elements whose priorities stay equal keep the order of their insertion.
    INSERT and DELETE take O(log n), MINIMUM and MAXIMUM O(log n) steps without a comparison, and UPDATE takes
    O(1) without an event.
    """

    def __init__(
        self,
        priority: Callable[[float, _Attribute], float],
        intersection: Callable[[float, _Attribute, _Attribute], float | None],
        now: float = 0.0,
    ) -> None:
        if not math.isfinite(now):
            message = f"now is {now}; it must be finite"
            raise ValueError(message)
        self.events = 0
        """The number of events handled so far, including false ones."""
        self.now = now
        self._priority = priority
        self._intersection = intersection
        self._root: _Node[_Id, _Attribute] | None = None
        self._nodes: dict[_Id, _Node[_Id, _Attribute]] = {}
        self._heap: list[tuple[float, int, _Node[_Id, _Attribute]]] = []
        self._serial = 0
        self._ranks = random.Random(0)  # noqa: S311 - ranks balance a tree and are no secret

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, ident: object) -> bool:
        return ident in self._nodes

    def __iter__(self) -> Iterator[_Id]:
        node = self._end_node(lowest=True) if self._root else None
        while node:
            yield node.id
            node = node.after

    def minimum(self) -> _Id:
        """Return the element with the lowest priority; ``ValueError`` if the tree is empty."""
        return self._end_node(lowest=True).id

    def maximum(self) -> _Id:
        """Return the element with the highest priority; ``ValueError`` if the tree is empty."""
        return self._end_node(lowest=False).id

    def insert(self, id: _Id, attribute: _Attribute) -> None:  # noqa: A002 - a fixed signature
        """INSERT: add an element at the current time.

        Raise ``ValueError`` if the id is already in the tree, if its priority is not finite, or if an
        intersection is not a number. After any exception, also from the two functions, the tree is unchanged.
        """
        if id in self._nodes:
            message = f"element {id!r} is already in the tree; delete it first"
            raise ValueError(message)
        node = _Node(id, attribute, self._serial, self._ranks.random())
        self._insert_node(node)
        self._serial += 1
        self._nodes[id] = node

    def delete(self, id: _Id) -> None:  # noqa: A002 - a fixed signature
        """DELETE: remove an element; raise :class:`MissingElementError` if it is not in the tree.

        After any other exception, from the intersection function, the tree is unchanged.
        """
        node = self._nodes.get(id)
        if node is None:
            message = f"no element {id!r} is in the tree"
            raise MissingElementError(message)
        self._remove_node(node)
        del self._nodes[id]

    def update(self, t: float) -> None:
        """UPDATE: advance the current time to ``t``; ``ValueError`` if ``t`` is before it.

        Neighbours are still compared at the old time while events are removed, so that pairs that become
        neighbours by a removal and have crossed meanwhile are found as well. If one of the two functions
        raises here, or a priority is not finite, the tree can no longer be used.
        """
        if not (math.isfinite(t) and t >= self.now):
            message = f"t is {t}; it must be finite and not before {self.now}"
            raise ValueError(message)
        loose: list[_Node[_Id, _Attribute]] = []
        while self._heap and self._heap[0][0] <= t:
            _, event, node = heapq.heappop(self._heap)
            if node.event != event:
                continue
            self.events += 1
            after = node.after
            self._remove_node(node)
            loose.append(node)
            if after:
                self._remove_node(after)
                loose.append(after)
        self.now = t
        for node in loose:
            self._insert_node(node)

    # --- treap

    def _end_node(self, *, lowest: bool) -> _Node[_Id, _Attribute]:
        node = self._root
        if node is None:
            message = "the tree is empty"
            raise ValueError(message)
        while following := node.left if lowest else node.right:
            node = following
        return node

    def _insert_node(self, node: _Node[_Id, _Attribute]) -> None:
        """Insert a node at its priority now, with the events of its two new pairs.

        The two functions may raise, so they are called before anything changes.
        """
        value = self._priority(self.now, node.attribute)
        if not math.isfinite(value):
            message = f"the priority of element {node.id!r} at {self.now} is {value}; it must be finite"
            raise ValueError(message)
        above, first = None, True
        below, now, priority = self._root, self.now, self._priority
        near = RELATIVE_TOLERANCE * (1.0 + abs(value))
        while below:
            gap = value - priority(now, below.attribute)
            above, first = below, gap < 0.0 if abs(gap) > near else self._precedes(node, gap, below)
            below = below.left if first else below.right
        before, after = (above and above.before, above) if first else (above, above and above.after)
        met_before = self._crossing(before, node) if before else None
        met_after = self._crossing(node, after) if after else None
        node.above, node.before, node.after = above, before, after
        if above is None:
            self._root = node
        elif first:
            above.left = node
        else:
            above.right = node
        while node.above and node.above.rank > node.rank:
            self._rotate_up(node, node.above)
        self._set_event(node, met_after)
        if after:
            after.before = node
        if before:
            before.after = node
            self._set_event(before, met_before)

    def _remove_node(self, node: _Node[_Id, _Attribute]) -> None:
        """Remove a node and its event; its two neighbours get the event of their own crossing."""
        before, after = node.before, node.after
        met = self._crossing(before, after) if before and after else None
        while node.left or node.right:
            lower = (
                node.left
                if not node.right or (node.left and node.left.rank < node.right.rank)
                else node.right
            )
            if lower:
                self._rotate_up(lower, node)
        self._replace_child(node.above, node, None)
        node.event = -1
        node.clear()
        if after:
            after.before = before
        if before:
            before.after = after
            self._set_event(before, met)

    def _rotate_up(self, node: _Node[_Id, _Attribute], above: _Node[_Id, _Attribute]) -> None:
        """Rotate a node above its parent."""
        if above.left is node:
            above.left, inner, node.right = node.right, node.right, above
        else:
            above.right, inner, node.left = node.left, node.left, above
        if inner:
            inner.above = above
        self._replace_child(above.above, above, node)
        above.above = node

    def _replace_child(
        self,
        above: _Node[_Id, _Attribute] | None,
        old: _Node[_Id, _Attribute],
        new: _Node[_Id, _Attribute] | None,
    ) -> None:
        """Replace ``old`` as a child of ``above`` by ``new``."""
        if above is None:
            self._root = new
        elif above.left is old:
            above.left = new
        else:
            above.right = new
        if new:
            new.above = above

    # --- order and events

    def _precedes(self, node: _Node[_Id, _Attribute], gap: float, other: _Node[_Id, _Attribute]) -> bool:
        """Return True if a node belongs before another one with almost the same priority.

        ``gap`` is the difference of the priorities. Rounding may have put the crossing on the wrong side of
        now, so the order until the next crossing decides.
        """
        crossing = self._crossing(node, other)
        instants = [self.now + span for span in PROBES] if crossing is None else [(self.now + crossing) / 2]
        for instant in instants:
            value = self._priority(instant, node.attribute)
            later = value - self._priority(instant, other.attribute)
            if abs(later) > RELATIVE_TOLERANCE * (1.0 + abs(value)):
                return later < 0.0
            gap = later or gap
        return gap < 0.0 if gap else node.serial < other.serial

    def _crossing(self, node: _Node[_Id, _Attribute], after: _Node[_Id, _Attribute]) -> float | None:
        """Return the first time after now at which two elements may meet, or None."""
        crossing = self._intersection(self.now, node.attribute, after.attribute)
        if crossing is None or crossing == math.inf:
            return None
        if math.isnan(crossing):
            message = (
                f"the intersection of elements {node.id!r} and {after.id!r} at {self.now} is not a number"
            )
            raise ValueError(message)
        instants = [instant for instant in (self.now + crossing, crossing) if instant > self.now]
        return min(instants, default=None)

    def _set_event(self, node: _Node[_Id, _Attribute], crossing: float | None) -> None:
        """UPDATEEVENT: set a node's event with its successor to ``crossing``; any older one is stale."""
        node.event = -1
        if crossing is None:
            return
        self._serial += 1
        node.event = self._serial
        heapq.heappush(self._heap, (crossing, self._serial, node))
        if len(self._heap) > STALE_MAX + 4 * len(self._nodes):
            self._heap = [entry for entry in self._heap if entry[2].event == entry[1]]
            heapq.heapify(self._heap)
