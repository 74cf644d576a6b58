"""The node's hold on the rings of streams: made at the first attach, ended with the object.

Not for: data, which never passes through here, or who may attach: the core has decided (thesis §4.7.4).

A SHMEM_STREAM has one ring, whose ends are taken by tasks. A stream with a socket behind it has two, one to
read and one to write; a task takes one end of each, and the *far side*, a pump of the host, the other.
Inside the host, ``local_end`` takes an end in the place of a task, as for a task of another node.
"""

from __future__ import annotations

from typing import Final, Protocol

from dios.ids import ObjectId
from dios.transport.rings.waiting import RingDescriptors, RingEnd, RingReader, RingWriter, create_ring
from dios.wire.messages import Attached
from dios.wire.types import Mode

_OPPOSITE: Final = {Mode.READ: Mode.WRITE, Mode.WRITE: Mode.READ}


class FarSide(Protocol):
    """What is behind the rings of a stream in both directions."""

    def taken(self, mode: Mode, end: RingEnd) -> None:
        """Somebody reads or writes from now on; ``end`` is the opposite one, and the far side's to close."""
        ...

    def left(self, mode: Mode) -> None:
        """Nobody ever will."""
        ...


class Streams:
    """Every open ring by its object, and by its direction where the object has one for each."""

    def __init__(self) -> None:
        self._rings: Final[dict[tuple[ObjectId, Mode | None], RingDescriptors]] = {}
        self._gone: Final[dict[ObjectId, set[Mode]]] = {}
        self._far: Final[dict[ObjectId, FarSide]] = {}

    def __len__(self) -> int:
        return len(self._rings)

    def attach(
        self, target: ObjectId, mode: Mode, ring_bytes: int, *, duplex: bool = False
    ) -> tuple[Attached, tuple[int, ...]]:
        """One end's reply and four descriptors for it, which the caller closes; raises OutOfMemoryError,
        OSError. ``duplex``: reading and writing have a ring each.
        """
        key = (target, mode if duplex else None)
        ring = self._rings.get(key)
        if ring is None:
            ring = create_ring(ring_bytes)
            if duplex:
                try:
                    self._tell(target, mode, ring)
                except OSError:
                    ring.close()
                    raise
            else:
                for gone in self._gone.get(target, ()):
                    ring.mark_closed(gone)
            self._rings[key] = ring
        return Attached(ring.ring_bytes), ring.hand_out(mode)

    def local_end(self, target: ObjectId, mode: Mode, ring_bytes: int, *, duplex: bool = False) -> RingEnd:
        """The same end for use inside the host, which closes it; errors as of ``attach``."""
        attached, fds = self.attach(target, mode, ring_bytes, duplex=duplex)
        return _end(mode, fds, attached.ring_bytes)

    def serve(self, target: ObjectId, far: FarSide) -> None:
        """From now on ``far`` is behind the rings of a stream, those that are taken and those to come."""
        self._far[target] = far
        for mode in Mode:
            ring = self._rings.get((target, mode))
            if ring is not None:
                self._tell(target, mode, ring)
            elif mode in self._gone.get(target, ()):
                far.left(mode)

    def close_end(self, target: ObjectId, mode: Mode, *, tell: bool = True) -> None:
        """Tell the other end, now or when it comes; with both gone the rings are let go.

        Without ``tell`` whoever took it by ``local_end`` closes it, when all that is on its way is written.
        """
        gone = self._gone.setdefault(target, set())
        gone.add(mode)
        taken = False
        for key in ((target, None), (target, mode)):
            ring = self._rings.get(key)
            if ring is not None:
                if tell:
                    ring.mark_closed(mode)
                taken = True
        far = self._far.get(target)
        if far is not None and not taken:
            far.left(mode)
        if len(gone) == len(Mode) and (far is not None or (target, None) in self._rings):
            self._let_go(target)

    def discard(self, target: ObjectId) -> None:
        """The object is gone: both ends learn of it. Nothing for what is no stream."""
        for key in _keys(target):
            ring = self._rings.get(key)
            if ring is not None:
                for mode in Mode:
                    ring.mark_closed(mode)
        self._let_go(target)

    def close(self) -> None:
        """At the node's end."""
        for target, _ in list(self._rings):
            self.discard(target)

    def _tell(self, target: ObjectId, mode: Mode, ring: RingDescriptors) -> None:
        far = self._far.get(target)
        if far is not None:
            opposite = _OPPOSITE[mode]
            far.taken(mode, _end(opposite, ring.hand_out(opposite), ring.ring_bytes))

    def _let_go(self, target: ObjectId) -> None:
        self._gone.pop(target, None)
        self._far.pop(target, None)
        for key in _keys(target):
            ring = self._rings.pop(key, None)
            if ring is not None:
                ring.close()


def _keys(target: ObjectId) -> tuple[tuple[ObjectId, Mode | None], ...]:
    return ((target, None), *((target, mode) for mode in Mode))


def _end(mode: Mode, fds: tuple[int, ...], ring_bytes: int) -> RingEnd:
    return RingReader(fds, ring_bytes) if mode is Mode.READ else RingWriter(fds, ring_bytes)
