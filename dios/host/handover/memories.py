"""The memories that a node hands over. Several parts share one: an object, its buffers, waiting calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dios.host.content.memories import ContentMemory
from dios.host.handover import format as form


class MemoryTable:
    """The memories found so far. Each is in the table once."""

    def __init__(self) -> None:
        self._places: Final[dict[int, int]] = {}
        self.memories: Final[list[ContentMemory]] = []

    def note(self, content: bytes | ContentMemory) -> form.Bytes:
        """Return the description of a content, whose memory is in the table from now on."""
        if isinstance(content, bytes):
            return form.Bytes(-1, content)
        place = self._places.get(id(content))
        if place is None:
            place = self._places[id(content)] = len(self.memories)
            self.memories.append(content)
        return form.Bytes(place)

    def hand_over(self) -> tuple[form.Memory, ...]:
        """Return the description of every memory."""
        return tuple(memory.hand_over() for memory in self.memories)


class TakenMemories:
    """The memories of a predecessor, each with a user until ``release``."""

    def __init__(self, memories: Sequence[form.Memory]) -> None:
        self._memories: Final = [ContentMemory.taken_over(memory) for memory in memories]

    def content(self, described: form.Bytes) -> bytes | ContentMemory:
        """Return a content with one more user."""
        return described.data if described.memory < 0 else self._memories[described.memory].retain()

    def release(self) -> None:
        """Remove the first user of each memory: only those that are used stay open."""
        for memory in self._memories:
            memory.release()
