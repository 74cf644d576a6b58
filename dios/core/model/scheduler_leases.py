"""The schedulers that attend a submission queue, and the leases that they lose without progress.

A scheduler keeps its lease while runs start that it has placed. If it leaves a run unplaced that the node
itself could start, without a reason for SCHEDULER_PROGRESS_MS or with one for SCHEDULER_HOLD_MS_MAX, it is
barred for a time that doubles. Reasons of a scheduler that was barred hold for a quarter of the time before.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dios import limits
from dios.ids import NodeId

_MS: Final = 1_000_000
_GONE_NS: Final = (limits.QUEUE_WAIT_MS_MAX + limits.QUEUE_LEASE_MS) * _MS
_FORGIVEN_NS: Final = limits.SCHEDULER_FORGIVEN_MS * _MS


class LeasedScheduler(Struct, frozen=True):
    """A scheduler, by its node, which is 0 for this node itself.

    ``since`` is the time of the last start of a run that it placed, or of the beginning of its attendance.
    ``lost`` counts the leases that it has lost.
    """

    node: NodeId
    since: int
    asked: int
    hold_until: int = 0
    lost: int = 0
    barred_until: int = 0

    def is_late(self, fits_since: int, now: int, *, kept: bool) -> bool:
        """Return True if it should have placed a run that fits on its node since ``fits_since``.

        With ``kept``, the node itself sees the run for which it keeps the room.
        """
        if now < self.hold_until:
            allowed_ms = limits.SCHEDULER_HOLD_MS_MAX >> 2 * self.lost
            if kept:
                return False
        else:
            allowed_ms = 0
        allowed_ms = max(allowed_ms, limits.SCHEDULER_PROGRESS_MS)
        return now - max(self.since, fits_since) >= allowed_ms * _MS

    def barred(self, now: int) -> LeasedScheduler:
        """Return it without a lease."""
        barred_ms = min(limits.SCHEDULER_BARRED_MS << self.lost, limits.SCHEDULER_BARRED_MS_MAX)
        return replace(self, lost=self.lost + 1, hold_until=0, barred_until=now + barred_ms * _MS)


Schedulers: TypeAlias = tuple[LeasedScheduler, ...]


def is_barred(schedulers: Schedulers, node: NodeId, now: int) -> bool:
    """Return True if the scheduler of a node has lost its lease."""
    return any(known.node == node and now < known.barred_until for known in schedulers)


def renewed(schedulers: Schedulers, node: NodeId, now: int) -> Schedulers:
    """Return the schedulers after that of a node has asked; those that were forgiven are left out."""
    others = [known for known in schedulers if known.node != node and not _is_forgotten(known, now)]
    before = next((known for known in schedulers if known.node == node), None)
    if before is None or _is_forgotten(before, now):
        before = LeasedScheduler(node, now, now)
    elif now - before.asked > _GONE_NS or before.asked < before.barred_until <= now:
        # Its time begins again after an absence, or when it may try again.
        before = replace(before, since=now, hold_until=0)
    return (*others, replace(before, asked=now))


def progressed(schedulers: Schedulers, node: NodeId, now: int) -> Schedulers:
    """Return the schedulers after a run has started that the scheduler of a node placed."""
    return tuple(replace(known, since=now) if known.node == node else known for known in schedulers)


def holding(schedulers: Schedulers, node: NodeId, until: int) -> Schedulers:
    """Return the schedulers after that of a node has stated a reason not to place runs."""
    return tuple(replace(known, hold_until=until) if known.node == node else known for known in schedulers)


def _is_forgotten(known: LeasedScheduler, now: int) -> bool:
    quiet = now - known.asked > _GONE_NS
    return now - known.barred_until > _FORGIVEN_NS if known.lost else quiet
