"""The replicas of listed files whose bytes a keeper has compared with the digest in the list.

The digest of a file never changes, and each physical object has versions of its own. So a replica is compared
once for each version that it has, and again before another replica is destroyed for its sake.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import trio

from dios import limits
from dios.lib.catalogue import Part
from dios.lib.kept.objects import PromisedObject
from dios.lib.kept.replicas import hash_of

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncReference


class Comparison(NamedTuple):
    """The result for one version of a replica: its bytes are ``sound`` if they are those that were put."""

    v_w: int
    sound: bool
    at: float


class Comparisons:
    """The results by object, name and digest, and by replica."""

    def __init__(self) -> None:
        self._known: dict[Part, dict[int, Comparison]] = {}
        self._count = 0

    @property
    def is_full(self) -> bool:
        """True if a further result replaces an older one."""
        return self._count >= limits.KEPT_COMPARED_MAX

    def known(self, part: Part, object_id: int, v_w: int) -> Comparison | None:
        """Return the result for a version of a replica, or None if it was not compared."""
        comparison = self._known.get(part, {}).get(object_id)
        return comparison if comparison is not None and comparison.v_w == v_w else None

    def is_fresh(self, part: Part, object_id: int, v_w: int) -> bool:
        """Return True if this version of a replica was sound not long ago: others need not be kept for it."""
        comparison = self.known(part, object_id, v_w)
        span = limits.KEPT_COMPARED_MS / 1000
        return comparison is not None and comparison.sound and trio.current_time() - comparison.at < span

    async def compare(
        self, part: Part, reference: AsyncReference, pace: Callable[[int], Awaitable[None]]
    ) -> bool:
        """Read a replica, and return True if it has the bytes of the digest; ``pace`` delays each chunk.

        Raises Conflict if it is written meanwhile, DamagedError if its disk has damaged it, and the errors of
        reading.
        """
        v_w = reference.v_w
        sound = (await hash_of(reference, pace)).digest() == part.digest
        self._note(part, reference.object_id, Comparison(v_w, sound, trio.current_time()))
        return sound

    def _note(self, part: Part, object_id: int, result: Comparison) -> None:
        if self.is_full:
            self._count -= len(self._known.pop(next(iter(self._known))))
        there = self._known.setdefault(part, {})
        self._count += object_id not in there
        there[object_id] = result

    def forget_others(self, covered: Mapping[bytes, PromisedObject]) -> None:
        """Forget the results of objects that no list has any more, when there are more than in the lists."""
        if len(self._known) <= len(covered):
            return
        digests = ((part, covered.get(part.name)) for part in self._known)
        listed = [
            part for part, promised in digests if promised is not None and promised.digest == part.digest
        ]
        self._known = {part: self._known[part] for part in listed}
        self._count = sum(map(len, self._known.values()))

    def forget_gone(self, part: Part, object_ids: set[int]) -> None:
        """Forget the replicas of an object that are not among these."""
        there = self._known.get(part, {})
        for object_id in there.keys() - object_ids:
            del there[object_id]
            self._count -= 1
