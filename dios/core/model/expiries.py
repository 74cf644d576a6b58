"""The references that expire, by time. ``dios.core.calls.retirement`` takes them back."""

from __future__ import annotations

import heapq
from typing import TypeAlias

from dios import limits
from dios.core.model.records import Reference
from dios.ids import RefId, TaskId

_Key: TypeAlias = tuple[TaskId, RefId]


def _key(reference: Reference) -> _Key:
    # Another node chose the ids of references to its objects, so that these ids need not be unique here.
    return reference.task.id, reference.id


class ExpiryTable:
    """The references with an end, ordered by the moment of their end."""

    __slots__ = ("_living", "_moments")

    def __init__(self) -> None:
        self._living: dict[_Key, Reference] = {}
        self._moments: list[tuple[int, _Key]] = []

    def add(self, reference: Reference) -> None:
        """Add a reference that expires."""
        self._living[_key(reference)] = reference
        heapq.heappush(self._moments, (reference.expires_ns, _key(reference)))
        if len(self._moments) > 2 * len(self._living) + limits.STALE_TIMERS_MAX:
            self._moments = [entry for entry in self._moments if entry[1] in self._living]
            heapq.heapify(self._moments)

    def forget(self, reference: Reference) -> None:
        """Remove a reference that is gone already."""
        self._living.pop(_key(reference), None)

    def next(self) -> int | None:
        """Return the moment at which the next reference expires, or None."""
        while self._moments and self._moments[0][1] not in self._living:
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else None

    def due(self, now: int) -> Reference | None:
        """Return the reference that expired first, or None; it stays in the table until it is removed."""
        moment = self.next()
        return None if moment is None or moment > now else self._living[self._moments[0][1]]
