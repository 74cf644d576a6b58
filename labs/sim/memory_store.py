"""A store in memory with every guarantee but durability, for tests and simulation.

It passes the same contract suite as the durable store.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from dios import limits
from dios.core.events import ObjectRecord
from dios.errors import BadReferenceError, InvalidError, NoSpaceError
from dios.ids import ObjectId
from dios.store.extents import read_exactly, write_exactly
from dios.store.protocol import (
    Change,
    Content,
    ContentState,
    Drop,
    ExtentContent,
    FilePayload,
    InlineContent,
    Payload,
)

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_Entry: TypeAlias = tuple[ObjectRecord, bytes]


class MemoryStore:
    """A ``Store`` whose objects live as long as it does; ``capacity_bytes`` bounds their content."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._objects: dict[ObjectId, _Entry] = {}
        self._bytes = 0
        self._ready = False
        self._unchecked: set[ObjectId] = set()
        self.damaged: list[str] = []
        """Always empty: memory is assumed to be sound."""

    def recover(self) -> Iterator[ObjectRecord]:
        """Yield every record, in the order of object ids."""
        self._ready = True
        self._unchecked = {
            target for target, (_, data) in self._objects.items() if len(data) > limits.INLINE_VALUE_BYTES_MAX
        }
        return iter([self._objects[object_id][0] for object_id in sorted(self._objects)])

    def apply(self, changes: Sequence[Change]) -> None:
        """Make all changes or none."""
        self._check()
        staged: dict[ObjectId, _Entry | None] = {}
        for change in changes:
            if isinstance(change, Drop):
                staged[change.object] = None
                continue
            object_id = change.record.object
            if change.payload is not None:
                data = whole_payload(change.payload)
            else:
                old = staged[object_id] if object_id in staged else self._objects.get(object_id)
                data = b"" if old is None else old[1]
            staged[object_id] = (change.record, data)
        after = self._bytes + sum(
            (0 if new is None else len(new[1])) - self._size(object_id) for object_id, new in staged.items()
        )
        grows = any(new is not None for new in staged.values())
        if self._capacity_bytes is not None and grows and after > self._capacity_bytes:
            raise NoSpaceError(f"the store is full ({self._capacity_bytes} bytes). Remove objects.")
        self._bytes = after
        for object_id, new in staged.items():
            self._unchecked.discard(object_id)
            if new is None:
                self._objects.pop(object_id, None)
            else:
                self._objects[object_id] = new

    def open_content(self, object_id: ObjectId) -> Content:
        """Return the current content; a large one as a sealed memfd of its own."""
        self._check()
        try:
            data = self._objects[object_id][1]
        except KeyError:
            raise BadReferenceError(f"the store has no object {object_id:016x}") from None
        self._unchecked.discard(object_id)
        if len(data) <= limits.INLINE_VALUE_BYTES_MAX:
            return InlineContent(data)
        return sealed_content(data)

    def state_of(self, object_id: ObjectId) -> ContentState:
        """Return the state of an object in the store."""
        if object_id not in self._objects:
            return ContentState.ABSENT
        return ContentState.UNCHECKED if object_id in self._unchecked else ContentState.READY

    def usage(self) -> dict[str, int]:
        """Return the number of objects, bytes of content, and large contents."""
        self._check()
        large = sum(len(data) > limits.INLINE_VALUE_BYTES_MAX for _, data in self._objects.values())
        return {"objects": len(self._objects), "bytes": self._bytes, "extents": large}

    def close(self) -> None:
        """Remove everything."""
        self._objects = {}
        self._bytes = 0
        self._ready = False

    def _size(self, object_id: ObjectId) -> int:
        entry = self._objects.get(object_id)
        return 0 if entry is None else len(entry[1])

    def _check(self) -> None:
        if not self._ready:
            raise InvalidError("the store is closed, or recover() was not called yet")


def whole_payload(payload: Payload) -> bytes:
    """Return all bytes of a payload; InvalidError if its file cannot be read or is shorter."""
    if not isinstance(payload, FilePayload):
        return bytes(payload.data)
    try:
        return read_exactly(payload.fd, payload.size)
    except OSError as error:
        raise InvalidError(f"cannot read the file to store ({error.strerror})") from error


def sealed_content(data: bytes) -> ExtentContent:
    """Return a large content in a sealed memory of its own, for a store without files."""
    fd = os.memfd_create("dios-value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        write_exactly(fd, data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return ExtentContent(fd, len(data))
