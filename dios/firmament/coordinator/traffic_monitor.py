"""The moments at which a coordinator reads the meters of its nodes: often if they are busy, else rarely.

It also finds out if principals may compete for bandwidth, without the flow scheduler and its libraries.
"""

from __future__ import annotations

from typing import Final

from dios.wire.messages import Metered

CONTROL_S: Final = 1.0
"""The control interval of rates, at a node with traffic."""
_HURRY_S: Final = 0.5
"""The least time between two readings of a node's meters."""
_QUIET_S_MAX: Final = 5.0
_QUIET_S_EACH: Final = 0.25
"""A quiet node's meters are read at intervals of up to this time for each governed node, within bounds."""
_QUIET_S_LONGEST: Final = 30.0
_BYTES_S_MIN: Final = 64 * 1024
"""A principal that moves less than this does not compete for a link."""


class TrafficMonitor:
    """The last meters of each node, and the time at which they are read again."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self._moved: dict[str, tuple[float, dict[str, int]]] = {}
        self._active: dict[str, frozenset[str]] = {}

    def keep(self, names: frozenset[str]) -> None:
        """Forget all nodes but these; the meters of a new node are read at once."""
        for table in (self._due, self._pause_s, self._moved, self._active):
            for name in table.keys() - names:
                del table[name]
        for name in names - self._due.keys():
            self._due[name] = 0.0

    def hurry(self, names: frozenset[str] | set[str]) -> None:
        """Read the meters of these nodes soon, because something has changed there.

        That is at once, unless they were read a moment ago: while many tasks start, there is always a change.
        """
        for name in names & self._due.keys():
            last = self._moved.get(name)
            self._due[name] = min(self._due[name], 0.0 if last is None else last[0] + _HURRY_S)
            self._pause_s.pop(name, None)

    def due(self, now: float) -> set[str]:
        """Return the nodes whose meters should be read now."""
        return {name for name, at in self._due.items() if at <= now}

    def next_due(self) -> float | None:
        """Return the earliest time at which a node's meters should be read, or None without nodes."""
        return min(self._due.values(), default=None)

    def postpone(self, name: str, now: float) -> None:
        """Read the meters of a node again after a control interval, unless they come before."""
        if name in self._due:
            self._due[name] = now + CONTROL_S

    def record(self, name: str, metered: Metered, now: float, *, limited: bool) -> None:
        """Record meters, and choose the time of the next ones; ``limited`` if rates hold at the node."""
        if name not in self._due:
            return
        totals: dict[str, int] = {}
        waiting: dict[str, int] = {}
        for meter in metered.meters:
            totals[meter.principal] = totals.get(meter.principal, 0) + meter.moved
            waiting[meter.principal] = waiting.get(meter.principal, 0) + meter.waiting
        at, before = self._moved.get(name, (now, totals))
        span = max(now - at, CONTROL_S / 2)
        self._moved[name] = now, totals
        self._active[name] = frozenset(
            who
            for who, total in totals.items()
            if max(0, total - before.get(who, 0)) + waiting[who] > _BYTES_S_MIN * span
        )
        if limited or self._active[name]:
            self._pause_s[name] = CONTROL_S
        else:
            longest = min(_QUIET_S_LONGEST, max(_QUIET_S_MAX, _QUIET_S_EACH * len(self._due)))
            self._pause_s[name] = min(2 * self._pause_s.get(name, CONTROL_S / 2), longest)
        self._due[name] = now + self._pause_s[name]

    @property
    def competing(self) -> bool:
        """Return True if several principals moved many bytes lately, so that rates may be needed."""
        return len({who for active in self._active.values() for who in active}) > 1
