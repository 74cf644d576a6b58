"""The live tree: elements whose priorities change with time, kept in order by watching neighbours cross.

Not for: the hot path of SDRF, which ``dios.fairness.stateful.kernels`` compiles for its own priority.

SDRF paper, section VI-C. Between two crossings of neighbours the order cannot change, so nothing is
computed; at a crossing only the two that meet are put in anew. The tree of elements is a treap whose
nodes also know their neighbours, the events are a heap in which stale ones are left to be skipped, and a
dictionary finds an element by its id.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

_Id = TypeVar("_Id", bound=Hashable)
_Attribute = TypeVar("_Attribute")

NEAR = 1e-12
"""Priorities nearer than this, relative to one plus their size, are told apart by what follows.

It costs only time when it is too large: the order shortly after is right as well.
"""
PROBES = (1.0, 2.0**10, 2.0**20, 2.0**30)
"""How far ahead to look at two near priorities that will never cross."""
STALE_MAX = 64
"""Stale events to keep at least, before the heap is cleaned."""


class MissingElementError(KeyError, ValueError):
    """No element has this id."""


class _Node(Generic[_Id, _Attribute]):
    """One element: its place in the treap, its neighbours, and its event (-1: none)."""

    __slots__ = ("above", "after", "attribute", "before", "event", "id", "left", "rank", "right", "serial")

    def __init__(self, ident: _Id, attribute: _Attribute, serial: int, rank: float) -> None:
        self.id = ident
        self.attribute = attribute
        self.serial = serial
        self.rank = rank
        self.event = -1
        self.clear()

    def clear(self) -> None:
        """Stand alone."""
        self.above: _Node[_Id, _Attribute] | None = None
        self.left: _Node[_Id, _Attribute] | None = None
        self.right: _Node[_Id, _Attribute] | None = None
        self.before: _Node[_Id, _Attribute] | None = None
        self.after: _Node[_Id, _Attribute] | None = None


class LiveTree(Generic[_Id, _Attribute]):
    """Elements in order of ``priority(t, attribute)``, lowest first, while ``t`` moves on.

    ``priority`` is continuous in ``t``. ``intersection(t, a, b)`` is equation 14: how long after ``t`` the
    priorities of ``a`` and ``b`` may next meet, or None for never. A function that returns the instant
    itself serves too: an event is set for the earlier reading, and one too many does not change the order.
    Times have any unit, the same everywhere. Elements whose priorities stay equal keep the order in which
    they were inserted. INSERT and DELETE take O(log n), MINIMUM and MAXIMUM O(log n) steps without any
    comparison, UPDATE O(1) without an event.
    """

    def __init__(
        self,
        priority: Callable[[float, _Attribute], float],
        intersection: Callable[[float, _Attribute, _Attribute], float | None],
        now: float = 0.0,
    ) -> None:
        if not math.isfinite(now):
            message = f"now is {now}; a live tree begins at a finite time"
            raise ValueError(message)
        self.events = 0
        """Events that were handled until now, false ones among them."""
        self.now = now
        self._priority = priority
        self._intersection = intersection
        self._root: _Node[_Id, _Attribute] | None = None
        self._nodes: dict[_Id, _Node[_Id, _Attribute]] = {}
        self._heap: list[tuple[float, int, _Node[_Id, _Attribute]]] = []
        self._serial = 0
        self._ranks = random.Random(0)  # noqa: S311 - ranks balance a tree; nobody guesses them to gain anything

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, ident: object) -> bool:
        return ident in self._nodes

    def __iter__(self) -> Iterator[_Id]:
        node = self._edge(lowest=True) if self._root else None
        while node:
            yield node.id
            node = node.after

    def minimum(self) -> _Id:
        """The element with the lowest priority; ``ValueError`` where there is none."""
        return self._edge(lowest=True).id

    def maximum(self) -> _Id:
        """The element with the highest priority; ``ValueError`` where there is none."""
        return self._edge(lowest=False).id

    def insert(self, id: _Id, attribute: _Attribute) -> None:  # noqa: A002 - a fixed signature
        """INSERT: put an element in at the current time.

        ``ValueError`` where the id is in already, its priority now is not finite or an intersection is not a
        number. Whatever is raised, by the two functions as well: nothing has changed then.
        """
        if id in self._nodes:
            message = f"element {id!r} is in the tree already; delete it first"
            raise ValueError(message)
        node = _Node(id, attribute, self._serial, self._ranks.random())
        self._place(node)
        self._serial += 1
        self._nodes[id] = node

    def delete(self, id: _Id) -> None:  # noqa: A002 - a fixed signature
        """DELETE: take an element out; :class:`MissingElementError` where there is none.

        Whatever else is raised, by the function that tells intersections: nothing has changed then.
        """
        node = self._nodes.get(id)
        if node is None:
            message = f"no element {id!r} is in the tree"
            raise MissingElementError(message)
        self._remove(node)
        del self._nodes[id]

    def update(self, t: float) -> None:
        """UPDATE: move the current time to ``t``; ``ValueError`` where it would run back.

        Neighbours are compared from the old time on while the events are taken out, so that a pair that
        becomes neighbours by a removal and has crossed on the way is found as well. Where one of the two
        functions raises here, or a priority is not finite, the tree is of no use any more.
        """
        if not (math.isfinite(t) and t >= self.now):
            message = f"time runs on: {t} after {self.now}"
            raise ValueError(message)
        loose: list[_Node[_Id, _Attribute]] = []
        while self._heap and self._heap[0][0] <= t:
            _, event, node = heapq.heappop(self._heap)
            if node.event != event:
                continue
            self.events += 1
            after = node.after
            self._remove(node)
            loose.append(node)
            if after:
                self._remove(after)
                loose.append(after)
        self.now = t
        for node in loose:
            self._place(node)

    # --- the tree of elements

    def _edge(self, *, lowest: bool) -> _Node[_Id, _Attribute]:
        node = self._root
        if node is None:
            message = "the tree is empty"
            raise ValueError(message)
        while following := node.left if lowest else node.right:
            node = following
        return node

    def _place(self, node: _Node[_Id, _Attribute]) -> None:
        """Put a node where its priority belongs now, with the crossings of its two new pairs.

        The two functions are called before anything changes, for they may raise.
        """
        value = self._priority(self.now, node.attribute)
        if not math.isfinite(value):
            message = f"the priority of element {node.id!r} at {self.now} is {value}"
            raise ValueError(message)
        above, first = None, True
        below, now, priority = self._root, self.now, self._priority
        near = NEAR * (1.0 + abs(value))
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
            self._lift(node, node.above)
        self._watch(node, met_after)
        if after:
            after.before = node
        if before:
            before.after = node
            self._watch(before, met_before)

    def _remove(self, node: _Node[_Id, _Attribute]) -> None:
        """Take a node out, with its event; those who become neighbours get the event of their crossing."""
        before, after = node.before, node.after
        met = self._crossing(before, after) if before and after else None
        while node.left or node.right:
            lower = (
                node.left
                if not node.right or (node.left and node.left.rank < node.right.rank)
                else node.right
            )
            if lower:
                self._lift(lower, node)
        self._hang(node.above, node, None)
        node.event = -1
        node.clear()
        if after:
            after.before = before
        if before:
            before.after = after
            self._watch(before, met)

    def _lift(self, node: _Node[_Id, _Attribute], above: _Node[_Id, _Attribute]) -> None:
        """Rotate a node over the one above it."""
        if above.left is node:
            above.left, inner, node.right = node.right, node.right, above
        else:
            above.right, inner, node.left = node.left, node.left, above
        if inner:
            inner.above = above
        self._hang(above.above, above, node)
        above.above = node

    def _hang(
        self,
        above: _Node[_Id, _Attribute] | None,
        old: _Node[_Id, _Attribute],
        new: _Node[_Id, _Attribute] | None,
    ) -> None:
        """Put ``new`` where ``old`` hung."""
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
        """Whether a node stands before another one that it meets here, ``gap`` below or above it.

        Rounding may have put the crossing on the wrong side of now. What counts is who is lower until they
        may meet again.
        """
        crossing = self._crossing(node, other)
        instants = [self.now + span for span in PROBES] if crossing is None else [(self.now + crossing) / 2]
        for instant in instants:
            value = self._priority(instant, node.attribute)
            later = value - self._priority(instant, other.attribute)
            if abs(later) > NEAR * (1.0 + abs(value)):
                return later < 0.0
            gap = later or gap
        return gap < 0.0 if gap else node.serial < other.serial

    def _crossing(self, node: _Node[_Id, _Attribute], after: _Node[_Id, _Attribute]) -> float | None:
        """The first instant after now when two elements may meet, or None."""
        found = self._intersection(self.now, node.attribute, after.attribute)
        if found is None or found == math.inf:
            return None
        if math.isnan(found):
            message = (
                f"the intersection of elements {node.id!r} and {after.id!r} at {self.now} is not a number"
            )
            raise ValueError(message)
        instants = [instant for instant in (self.now + found, found) if instant > self.now]
        return min(instants, default=None)

    def _watch(self, node: _Node[_Id, _Attribute], crossing: float | None) -> None:
        """UPDATEEVENT: the event of a node with the one after it is at ``crossing``; any older is stale."""
        node.event = -1
        if crossing is None:
            return
        self._serial += 1
        node.event = self._serial
        heapq.heappush(self._heap, (crossing, self._serial, node))
        if len(self._heap) > STALE_MAX + 4 * len(self._nodes):
            self._heap = [entry for entry in self._heap if entry[2].event == entry[1]]
            heapq.heapify(self._heap)
