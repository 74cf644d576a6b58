"""The knowledge of a leading keeper about the objects and replicas that it has looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import trio

from dios import limits
from dios.errors import ClosedError, DamagedError, DiosError
from dios.lib.catalogue import Part
from dios.lib.kept import replicas
from dios.lib.kept.comparisons import Comparisons
from dios.lib.kept.decisions import Copied
from dios.lib.kept.notes import WaitingNote
from dios.lib.kept.objects import LookOrder
from dios.lib.kept.records import KeptPromise, ShortObject
from dios.lib.kept.versions import CREATED, Seen, VersionState
from dios.wire.types import Semantics

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncReference


class FoundReplicas(NamedTuple):
    """The durable replicas of an object that were found, by object id.

    ``unsound`` ones have other bytes than those that were put. Those on ``damaged`` nodes cannot be read, nor
    can the ``outdated`` ones, which are of an earlier version than all others.
    """

    copies: dict[int, tuple[Copied, AsyncReference]]
    unsound: dict[int, tuple[Copied, AsyncReference]]
    damaged: set[str]
    outdated: dict[int, tuple[Copied, AsyncReference]]


@dataclass(slots=True)
class Leading:
    """The knowledge of a leading keeper, which a next leader finds again by looking."""

    order: LookOrder = field(default_factory=LookOrder)
    digests: replicas.Digests = field(default_factory=replicas.Digests)
    comparisons: Comparisons = field(default_factory=Comparisons)
    promises: dict[str, KeptPromise] = field(default_factory=dict)
    listed: dict[str, tuple[frozenset[tuple[int, int]], tuple[Part, ...]]] = field(default_factory=dict)
    """The objects of each promise, with the ids and versions of the catalogue's replicas at that time."""
    notes: dict[str, tuple[WaitingNote, ...]] = field(default_factory=dict)
    """The notes of former files, by promise."""
    ending: set[bytes] = field(default_factory=set)
    """The objects of former files that are being destroyed, and are not copied any more."""
    awaited: set[bytes] = field(default_factory=set)
    """The objects for which notes wait."""
    kept: set[bytes] = field(default_factory=set)
    """Those that had the promised replicas, with compared bytes, when they were looked at last."""
    strays: dict[int, float] = field(default_factory=dict)
    """Replicas of lists that are no members, with the time at which they are destroyed."""
    groups: dict[bytes, AsyncGroup | None] = field(default_factory=dict)
    short: dict[bytes, ShortObject] = field(default_factory=dict)
    removed: dict[bytes, ShortObject] = field(default_factory=dict)
    """The objects of which a replica with other bytes was removed lately."""
    copying: set[tuple[bytes, str]] = field(default_factory=set)
    refused: dict[str, tuple[float, str]] = field(default_factory=dict)
    damaged: dict[int, float] = field(default_factory=dict)
    """Replicas whose bytes their disk has damaged, with the time until which they do not count."""
    unverified: dict[bytes, str] = field(default_factory=dict)
    """The objects with replicas whose bytes were not compared yet, in their order, with their promises."""
    urgent: dict[bytes, None] = field(default_factory=dict)
    """Those for whose sake replicas or former files are to be destroyed."""
    comparing: set[bytes] = field(default_factory=set)
    tasks: Counter[str] = field(default_factory=Counter)
    """The tasks that compare and that carry out notes."""
    ended_turn: int = 0
    ended_at: float = float("-inf")
    """The next group without a promise whose notes are looked at, and when the last one was."""
    not_before: float = float("-inf")
    compares_not_before: float = float("-inf")
    seen: dict[str, tuple[Seen, ...]] = field(default_factory=dict)
    """The versions that were seen since the last round."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why the list of a promise cannot be read, by promise."""
    unread: set[str] | None = None
    """The promises of groups that exist whose lists could not be read; None before the first attempt."""
    leaving: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Objects with replicas on draining nodes: the number of these replicas, and their bytes."""

    # -- bytes --------------------------------------------------------------------------------------
    def compared(self, part: Part, references: Iterable[AsyncReference]) -> FoundReplicas:
        """Return the replicas of an object with a digest: their bytes decide, whatever their versions."""
        there = FoundReplicas({}, {}, set(), {})
        for reference in filter(replicas.is_durable_blob, references):
            v_w = reference.v_w
            result = self.comparisons.known(part, reference.object_id, v_w)
            copied = Copied(reference.object_id, reference.node, CREATED, v_w, verified=result is not None)
            if self.is_damaged(reference.object_id):
                there.damaged.add(reference.node)
            elif result is not None and not result.sound:
                there.unsound[reference.object_id] = copied, reference
            else:
                there.copies[reference.object_id] = copied, reference
        return there

    async def is_sound(
        self, part: Part, reference: AsyncReference, pace: Callable[[int], Awaitable[None]]
    ) -> bool:
        """Compare the bytes of a replica, and return True if they are those that were put.

        One that cannot be read now is not sound, and is compared again later.
        """
        try:
            return await self.comparisons.compare(part, reference, pace)
        except ClosedError:
            raise
        except DamagedError:
            self._note_damage(reference.object_id)
        except DiosError:
            pass
        return False

    def next_doubt(self) -> bytes | None:
        """Return an object to compare, and move it to the end of those that wait."""
        if self.urgent:
            return next(iter(self.urgent))
        if not self.unverified or self.comparisons.is_full:
            return None
        name = next(iter(self.unverified))
        self.unverified[name] = self.unverified.pop(name)
        return name

    def note_removed(self, name: bytes, row: ShortObject) -> None:
        """Show for some time that a replica with other bytes was removed."""
        self.removed.pop(name, None)
        if len(self.removed) >= limits.KEPT_SHOWN_MAX:
            del self.removed[next(iter(self.removed))]
        self.removed[name] = row

    def shown(self, now_s: int) -> dict[bytes, ShortObject]:
        """Return the objects to report, conflicts first; ``now_s`` is the time in seconds since 1970."""
        span = limits.KEPT_REMOVED_SHOWN_MS // 1000
        self.removed = {name: row for name, row in self.removed.items() if row.since > now_s - span}
        rows = self.short | {name: row for name, row in self.removed.items() if name not in self.short}
        return dict(sorted(rows.items(), key=lambda item: not item[1].conflict))

    # -- damage -------------------------------------------------------------------------------------
    async def state(self, reference: AsyncReference, *, written: bool) -> VersionState | None:
        """Return what the version of a replica says of its bytes, or None if they are damaged."""
        if self.is_damaged(reference.object_id):
            return None
        try:
            return await self.digests.state(reference, written=written)
        except DamagedError:
            self._note_damage(reference.object_id)
            return None

    async def are_readable(self, several: Sequence[AsyncReference]) -> bool:
        """Return True if each of these replicas can be read, so that others may be dropped."""
        sound = True
        for reference in several:
            try:
                async with reference.read(Semantics.MRSW, size=min(reference.size, 1)):
                    pass
            except DamagedError:
                self._note_damage(reference.object_id)
                sound = False
        return sound

    def is_damaged(self, object_id: int) -> bool:
        """Return True if a replica could not be read a moment ago."""
        return self.damaged.get(object_id, float("-inf")) > trio.current_time()

    def _note_damage(self, object_id: int) -> None:
        """Leave a damaged replica out for some time, in which its node may repair it."""
        self.damaged.pop(object_id, None)
        if len(self.damaged) >= limits.KEPT_DAMAGED_MAX:
            del self.damaged[next(iter(self.damaged))]
        self.damaged[object_id] = trio.current_time() + limits.KEPT_DAMAGED_MS / 1000
