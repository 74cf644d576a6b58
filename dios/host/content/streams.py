"""The rings of streams on this node: created at the first attach, closed with the object.

Data does not pass through here, and the core has decided who may attach (thesis §4.7.4).

A SHMEM_STREAM has one ring; tasks attach to both of its ends. A stream with a socket behind it has two rings,
one to read and one to write. A task attaches to one end of each; a backend in the host (a pump) has the other
end. ``local_end`` attaches inside the host on behalf of a task, for example a task of another node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from dios.host.handover import format as form
from dios.ids import ObjectId
from dios.transport.rings.waiting import (
    RingDescriptors,
    RingEnd,
    RingReader,
    RingWriter,
    TakenRing,
    create_ring,
)
from dios.wire.messages import Attached
from dios.wire.types import Mode

_OPPOSITE: Final = {Mode.READ: Mode.WRITE, Mode.WRITE: Mode.READ}


class StreamBackend(Protocol):
    """The host's side of a stream with two rings."""

    def end_attached(self, mode: Mode, end: RingEnd) -> None:
        """Start to serve a direction: a task attached to it. The backend closes ``end``, the opposite end."""

    def end_closed(self, mode: Mode) -> None:
        """Note that no task will attach to a direction any more."""


class Streams:
    """Every open ring by its object, and by direction for streams with one ring per direction."""

    def __init__(self) -> None:
        self._rings: Final[dict[tuple[ObjectId, Mode | None], RingDescriptors]] = {}
        self._closed_modes: Final[dict[ObjectId, set[Mode]]] = {}
        self._backends: Final[dict[ObjectId, StreamBackend]] = {}

    def __len__(self) -> int:
        return len(self._rings)

    def hand_over(self) -> tuple[tuple[form.Ring, ...], tuple[form.ClosedEnds, ...]]:
        """Describe the rings for the successor of this process."""
        rings = tuple(
            form.Ring(target, mode, ring.ring_bytes, *ring.hand_over())
            for (target, mode), ring in self._rings.items()
        )
        closed = tuple(form.ClosedEnds(target, tuple(modes)) for target, modes in self._closed_modes.items())
        return rings, closed

    def take_over(self, rings: Iterable[form.Ring], closed: Iterable[form.ClosedEnds]) -> None:
        """Continue with the rings of the predecessor."""
        for ring in rings:
            taken = TakenRing(ring.writer, ring.reader, ring.write_socket, ring.read_socket, ring.wanting)
            self._rings[ObjectId(ring.object), ring.mode] = RingDescriptors(ring.ring_bytes, taken)
        for ends in closed:
            self._closed_modes[ObjectId(ends.object)] = set(ends.modes)

    def continue_serving(
        self, target: ObjectId, backend: StreamBackend, pumps: Iterable[form.Pump]
    ) -> list[tuple[Mode, RingEnd]]:
        """Set the backend of a stream of the predecessor. Return its ends of the rings that it served."""
        self._backends[target] = backend
        ends: list[tuple[Mode, RingEnd]] = []
        for pump in pumps:
            opposite, ring = _OPPOSITE[pump.mode], self._rings[target, pump.mode]
            end = _end(opposite, ring.own_end(opposite, pump.wakeups), ring.ring_bytes)
            end.take_over(pump.wait_number, pump.rung_for)
            ends.append((pump.mode, end))
        return ends

    def ring_of(self, target: ObjectId, mode: Mode, *, duplex: bool) -> RingDescriptors | None:
        """Return the ring that has an end, or None if it is gone."""
        return self._rings.get((target, mode if duplex else None))

    def attach(
        self, target: ObjectId, mode: Mode, ring_bytes: int, *, duplex: bool = False
    ) -> tuple[Attached, tuple[int, ...]]:
        """Attach to one end. Return the reply and three descriptors, which the caller closes.

        With ``duplex``, each direction has a ring of its own. Raise OutOfMemoryError or OSError.
        """
        key = (target, mode if duplex else None)
        ring = self._rings.get(key)
        if ring is None:
            ring = create_ring(ring_bytes)
            if duplex:
                try:
                    self._notify_backend(target, mode, ring)
                except OSError:
                    ring.close()
                    raise
            else:
                for gone in self._closed_modes.get(target, ()):
                    ring.mark_closed(gone)
            self._rings[key] = ring
        return Attached(ring.ring_bytes), ring.hand_out(mode)

    def local_end(self, target: ObjectId, mode: Mode, ring_bytes: int, *, duplex: bool = False) -> RingEnd:
        """Attach to an end inside the host, which closes it. Raises the errors of ``attach``."""
        attached, fds = self.attach(target, mode, ring_bytes, duplex=duplex)
        return _end(mode, fds, attached.ring_bytes)

    def serve(self, target: ObjectId, backend: StreamBackend) -> None:
        """Set the backend of a stream; it serves the ends attached so backend and later ones."""
        self._backends[target] = backend
        for mode in Mode:
            ring = self._rings.get((target, mode))
            if ring is not None:
                self._notify_backend(target, mode, ring)
            elif mode in self._closed_modes.get(target, ()):
                backend.end_closed(mode)

    def close_end(self, target: ObjectId, mode: Mode, *, notify: bool = True) -> None:
        """Close one end and notify the opposite end, now or later. Free the rings when both are closed.

        Without ``notify``, the code that attached with ``local_end`` closes the ring itself, once everything
        on its way has been written.
        """
        gone = self._closed_modes.setdefault(target, set())
        gone.add(mode)
        taken = False
        for key in ((target, None), (target, mode)):
            ring = self._rings.get(key)
            if ring is not None:
                if notify:
                    ring.mark_closed(mode)
                taken = True
        backend = self._backends.get(target)
        if backend is not None and not taken:
            backend.end_closed(mode)
        if len(gone) == len(Mode) and (backend is not None or (target, None) in self._rings):
            self._free_rings(target)

    def discard(self, target: ObjectId) -> None:
        """Close both ends of a deleted object. Do nothing for an object that is not a stream."""
        for key in _keys(target):
            ring = self._rings.get(key)
            if ring is not None:
                for mode in Mode:
                    ring.mark_closed(mode)
        self._free_rings(target)

    def close(self) -> None:
        """Close all rings, at the node's end."""
        for target, _ in list(self._rings):
            self.discard(target)

    def _notify_backend(self, target: ObjectId, mode: Mode, ring: RingDescriptors) -> None:
        backend = self._backends.get(target)
        if backend is not None:
            opposite = _OPPOSITE[mode]
            backend.end_attached(mode, _end(opposite, ring.hand_out(opposite), ring.ring_bytes))

    def _free_rings(self, target: ObjectId) -> None:
        self._closed_modes.pop(target, None)
        self._backends.pop(target, None)
        for key in _keys(target):
            ring = self._rings.pop(key, None)
            if ring is not None:
                ring.close()


def _keys(target: ObjectId) -> tuple[tuple[ObjectId, Mode | None], ...]:
    return ((target, None), *((target, mode) for mode in Mode))


def _end(mode: Mode, fds: tuple[int, ...], ring_bytes: int) -> RingEnd:
    return RingReader(fds, ring_bytes) if mode is Mode.READ else RingWriter(fds, ring_bytes)
