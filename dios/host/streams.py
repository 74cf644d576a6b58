"""The node's hold on the rings of SHMEM_STREAM objects: made at the first attach, ended with the object.

Not for: data, which never passes the node, or who may attach: the core has decided (thesis §4.7.4).
"""

from __future__ import annotations

from typing import Final

from dios.ids import ObjectId
from dios.transport.rings import RingDescriptors, create_ring
from dios.wire.messages import Attached
from dios.wire.types import Mode


class Streams:
    """Every open ring by its object."""

    def __init__(self) -> None:
        self._rings: Final[dict[ObjectId, RingDescriptors]] = {}
        self._gone: Final[dict[ObjectId, set[Mode]]] = {}

    def __len__(self) -> int:
        return len(self._rings)

    def attach(self, target: ObjectId, mode: Mode, ring_bytes: int) -> tuple[Attached, tuple[int, ...]]:
        """One end's reply and four descriptors for it, which the caller closes; raises OutOfMemoryError,
        OSError.
        """
        ring = self._rings.get(target)
        if ring is None:
            ring = self._rings[target] = create_ring(ring_bytes)
            for gone in self._gone.get(target, ()):
                ring.mark_closed(gone)
        return Attached(ring.ring_bytes), ring.hand_out(mode)

    def close_end(self, target: ObjectId, mode: Mode) -> None:
        """Tell the other end, now or when it comes; with both gone the ring is let go."""
        gone = self._gone.setdefault(target, set())
        gone.add(mode)
        ring = self._rings.get(target)
        if ring is not None:
            ring.mark_closed(mode)
        if len(gone) == len(Mode):
            self._let_go(target)

    def discard(self, target: ObjectId) -> None:
        """The object is gone: both ends learn of it. Nothing for what is no stream."""
        ring = self._rings.get(target)
        if ring is not None:
            for mode in Mode:
                ring.mark_closed(mode)
        self._let_go(target)

    def close(self) -> None:
        """At the node's end."""
        for target in list(self._rings):
            self.discard(target)

    def _let_go(self, target: ObjectId) -> None:
        self._gone.pop(target, None)
        ring = self._rings.pop(target, None)
        if ring is not None:
            ring.close()
