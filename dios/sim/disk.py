"""A disk in virtual time: batches become durable in order, late, and a crash may tear the last one.

Not for: files. It keeps the promise of ``dios.store.protocol`` (all of a batch or none of it) over a
log of block writes of which a crash keeps any prefix, so that a broken promise would be seen.
"""

from __future__ import annotations

from random import Random
from typing import Final

from blake3 import blake3
from msgspec import Struct

from dios.core.events import ObjectRecord
from dios.ids import ObjectId, Ticket


class Write(Struct, frozen=True):
    """One record with its bytes (None: bytes as they were), or its removal (record None)."""

    object: ObjectId
    record: ObjectRecord | None
    content: bytes | None


class Batch(Struct, frozen=True):
    """What one store transaction holds."""

    ticket: Ticket
    writes: tuple[Write, ...]


class SimDisk:
    """Blocks, then a commit mark with their digest: only a batch whose mark matches is there."""

    def __init__(self, rng: Random) -> None:
        self._rng: Final = rng
        self._log: list[tuple[str, Write | bytes]] = []

    def write(self, batch: Batch) -> None:
        """Write and sync a whole batch."""
        self._log.extend(self._blocks(batch))

    def crash_during(self, batch: Batch) -> bool:
        """Lose power while a batch is written: any prefix of its blocks is kept; True if all were."""
        blocks = self._blocks(batch)
        kept = self._rng.randint(0, len(blocks))
        self._log.extend(blocks[:kept])
        return kept == len(blocks)

    @staticmethod
    def _blocks(batch: Batch) -> list[tuple[str, Write | bytes]]:
        blocks: list[tuple[str, Write | bytes]] = [("block", write) for write in batch.writes]
        return [*blocks, ("commit", _digest(batch.writes))]

    def recover(self) -> tuple[dict[ObjectId, ObjectRecord], dict[ObjectId, bytes]]:
        """What a node finds at its next start; half a batch is dropped for good."""
        records: dict[ObjectId, ObjectRecord] = {}
        contents: dict[ObjectId, bytes] = {}
        open_blocks: list[Write] = []
        sound: list[tuple[str, Write | bytes]] = []
        start = 0
        for index, (kind, value) in enumerate(self._log):
            if isinstance(value, Write):
                open_blocks.append(value)
                continue
            # Blocks of a torn batch may stand before a later one's: its mark counts its own only.
            own = _suffix_with_digest(open_blocks, value)
            if kind == "commit" and own is not None:
                _replay(own, records, contents)
                sound.extend(self._log[index - len(own) : index + 1])
            open_blocks, start = [], index + 1
        del self._log[start:]
        self._log = sound
        return records, contents


def _digest(writes: tuple[Write, ...]) -> bytes:
    state = blake3()
    for write in writes:
        state.update(repr((write.object, write.record)).encode())
        state.update(b"-" if write.content is None else b"+" + write.content)
    return state.digest()


def _suffix_with_digest(blocks: list[Write], digest: bytes) -> list[Write] | None:
    for first in range(len(blocks) + 1):
        own = blocks[first:]
        if _digest(tuple(own)) == digest:
            return own
    return None


def _replay(
    writes: list[Write], records: dict[ObjectId, ObjectRecord], contents: dict[ObjectId, bytes]
) -> None:
    for write in writes:
        if write.record is None:
            records.pop(write.object, None)
            contents.pop(write.object, None)
            continue
        records[write.object] = write.record
        if write.content is not None:
            contents[write.object] = write.content
