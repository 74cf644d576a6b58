"""The compiled live tree of SDRF's users as a class: the interface of ``LiveTree`` for one priority.

``simulate_by_tree`` runs whole traces faster, without Python between two decisions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import numpy as np

from dios.fairness.allocation import checked_numbers
from dios.fairness.live_tree import MissingElementError
from dios.fairness.stateful.input_checks import MODES
from dios.fairness.stateful.kernels import (
    SUM,
    activate,
    add_to_slope,
    advance_clock,
    deactivate,
    grown_user_table,
    new_clock,
    next_user,
    set_faded_slope,
)
from dios.fairness.stateful.priority import Commitment
from dios.fairness.stateful.user_table import AFTER, EVENTS, FIRST, RIGHT, ROOT, empty_user_table

_Id = TypeVar("_Id", bound=Hashable)

INITIAL_ROOM = 16
"""The initial number of users with room; it doubles when needed."""


class SdrfTree(Generic[_Id]):
    """Users in the order of SDRF's priority, lowest first, while time advances; see ``LiveTree``.

    ``resources`` is the number of resources of each :class:`Commitment`, ``tau`` the common time constant.
    ``priority`` "dominant" is the dominant share plus the dominant commitment (equation 10), "sum" the
    largest sum of a share and its commitment (equation 13). Users with equal priorities have the order that
    follows shortly afterwards; users whose priorities stay equal have an arbitrary order.
    """

    def __init__(self, resources: int, tau: float, *, priority: str = "dominant", now: float = 0.0) -> None:
        if resources < 1:
            raise ValueError(f"resources is {resources}; it must be at least 1")
        if not (math.isfinite(tau) and tau > 0):
            raise ValueError(f"tau is {tau}; it must be positive and finite")
        if priority not in MODES:
            raise ValueError(f"priority is {priority!r}; choose one of {', '.join(sorted(MODES))}")
        if not math.isfinite(now):
            raise ValueError(f"now is {now}; it must be finite")
        self.now = now
        self._tau, self._mode = tau, MODES[priority]
        self._clock = new_clock(now)
        self._table = empty_user_table(np.ones(resources), INITIAL_ROOM, 0)
        self._ids: dict[int, _Id] = {}
        self._free = list(range(INITIAL_ROOM))[::-1]
        self._rows: dict[_Id, int] = {}

    @property
    def events(self) -> int:
        """The number of events handled so far, including false ones."""
        return int(self._table.tree.state[EVENTS])

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, ident: object) -> bool:
        return ident in self._rows

    def __iter__(self) -> Iterator[_Id]:
        row = int(self._table.tree.state[FIRST])
        while row >= 0:
            yield self._id_of(row)
            row = int(self._table.tree.link[row, AFTER])

    def minimum(self) -> _Id:
        """Return the user with the lowest priority; ``ValueError`` if the tree is empty."""
        return self._id_of(int(self._table.tree.state[FIRST]))

    def maximum(self) -> _Id:
        """Return the user with the highest priority; ``ValueError`` if the tree is empty."""
        row = below = int(self._table.tree.state[ROOT])
        while below >= 0:
            row, below = below, int(self._table.tree.link[below, RIGHT])
        return self._id_of(row)

    def insert(self, id: _Id, attribute: Commitment) -> None:  # noqa: A002 - as LiveTree has it
        """INSERT: add a user at the current time, which must not be before the commitment's ``t``.

        Raise ``ValueError`` if the id is already in the tree, or if the commitment has another number of
        resources, another tau, a later time or an invalid amount. The tree is then unchanged.
        """
        if id in self._rows:
            raise ValueError(f"element {id!r} is already in the tree; delete it first")
        if attribute.tau != self._tau or not attribute.t <= self.now:
            raise ValueError(
                f"attribute has tau {attribute.tau} and t {attribute.t}; "
                f"tau must be {self._tau} and t must not be after {self.now}"
            )
        shape = (self._table.capacity.size,)
        share, over, owed = (
            checked_numbers(name, getattr(attribute, name), shape) for name in ("share", "over", "owed")
        )
        if not self._free:
            self._grow()
        row = self._free.pop()
        table, g = self._table, float(self._clock[1])
        table.lead[row] = 0.0 if self._mode == SUM else share.max()
        table.over[row] = over
        table.level[row] = share + over if self._mode == SUM else over
        past = self.now - attribute.t
        table.base[row] = owed
        table.changed[row] = table.instant[0] if past == 0.0 else -1
        for r, distance in enumerate((owed - over).tolist()):
            set_faded_slope(table, row, r, distance if past else 0.0, past, self._tau, g)
            if past == 0.0:
                # Two terms, as after a change of what the user holds at this instant.
                add_to_slope(table, row, r, float(owed[r]) / g)
                add_to_slope(table, row, r, -float(over[r]) / g)
        self._ids[row], self._rows[id] = id, row
        activate(table, len(self._rows) - 1, row, share, g)

    def delete(self, id: _Id) -> None:  # noqa: A002 - as LiveTree has it
        """DELETE: remove a user; raise :class:`MissingElementError` if it is not in the tree."""
        if id not in self._rows:
            raise MissingElementError(f"no element {id!r} is in the tree")
        row = self._rows.pop(id)
        deactivate(self._table, len(self._rows) + 1, row, float(self._clock[1]))
        del self._ids[row]
        self._free.append(row)

    def update(self, t: float) -> None:
        """UPDATE: advance the current time to ``t``; ``ValueError`` if ``t`` is before it."""
        if not (math.isfinite(t) and t >= self.now):
            raise ValueError(f"t is {t}; it must be finite and not before {self.now}")
        self.now = t
        advance_clock(self._table, self._table.lead.size, self._clock, float(t), self._tau)
        next_user(self._table, len(self._rows), float(self._clock[1]))

    def _id_of(self, row: int) -> _Id:
        if row < 0:
            raise ValueError("the tree is empty")
        return self._ids[row]

    def _grow(self) -> None:
        before = self._table.lead.size
        self._table = grown_user_table(self._table, 2 * before, float(self._clock[1]))
        self._free = list(range(before, 2 * before))[::-1]
