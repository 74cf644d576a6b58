"""Rings as a node hands them out, and other tasks' ends of them, for tests of streams."""

from __future__ import annotations

from dios.transport.rings.waiting import RingDescriptors, RingReader, RingWriter, create_ring
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.types import Mode


class Rings:
    """One ring for each reference, and the far end of each."""

    def __init__(self) -> None:
        self.rings: dict[int, RingDescriptors] = {}
        self.far: list[RingReader | RingWriter] = []
        self.select: AnyResult | None = messages.Selected(-1)

    def script(self, call: AnyCall) -> AnyResult | tuple[AnyResult, list[int]] | None:
        """Attaches, and answers select as told."""
        if isinstance(call, messages.Attach):
            ring = self.of(call.ref)
            return messages.Attached(ring.ring_bytes), list(ring.hand_out(call.mode))
        if isinstance(call, messages.Select):
            return self.select
        return messages.Done(1)

    def of(self, ref: int) -> RingDescriptors:
        """The ring of a reference."""
        if ref not in self.rings:
            self.rings[ref] = create_ring(4096)
        return self.rings[ref]

    def writer(self, ref: int) -> RingWriter:
        """Another task's writing end."""
        ring = self.of(ref)
        end = RingWriter(ring.hand_out(Mode.WRITE), ring.ring_bytes)
        self.far.append(end)
        return end

    def reader(self, ref: int) -> RingReader:
        """Another task's reading end."""
        ring = self.of(ref)
        end = RingReader(ring.hand_out(Mode.READ), ring.ring_bytes)
        self.far.append(end)
        return end

    def close(self) -> None:
        """Let go of everything."""
        for end in self.far:
            end.close()
        for ring in self.rings.values():
            ring.close()
