"""The interface between the host and a store, and the guarantees of every store.

``lmdb_store`` and the simulator's store in memory pass one contract suite (``tests/contract``). All methods
but ``close`` may block on a disk; the host calls ``apply`` from one writer thread.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from dios.core.events import ObjectRecord
from dios.ids import ObjectId


class InlinePayload(Struct, frozen=True):
    """The whole new content as bytes, of any size; a store puts large ones into extents."""

    data: bytes | memoryview


class FilePayload(Struct, frozen=True):
    """The whole new content: the first ``size`` bytes of an open file or memfd, which the caller owns."""

    fd: int
    size: int


Payload: TypeAlias = InlinePayload | FilePayload


class Put(Struct, frozen=True):
    """Insert or replace a record; with ``payload`` also the content, both or neither."""

    record: ObjectRecord
    payload: Payload | None = None


class Drop(Struct, frozen=True):
    """Remove a record and its content, if it exists."""

    object: ObjectId


Change: TypeAlias = Put | Drop


class InlineContent(Struct, frozen=True):
    """A small value, complete and checked against its digest."""

    data: bytes


class ExtentContent(Struct, frozen=True):
    """A large value: a read-only descriptor of exactly this version, which the caller must close.

    It stays readable after the object is replaced or dropped.
    """

    fd: int
    size: int


Content: TypeAlias = InlineContent | ExtentContent


class ContentState(enum.Enum):
    """The state of an object in the store: no row, a content to read at once, or one to be checked first."""

    ABSENT = 0
    READY = 1
    UNCHECKED = 2


class Store(Protocol):
    """A flat, durable object store (thesis §3.6)."""

    def recover(self) -> Iterator[ObjectRecord]:
        """Yield every acknowledged record and remove orphans; must be called first after opening."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, or none: it returns only when they would survive a power cut.

        Raises NoSpaceError if the disk or the map is full, DamagedError if the device fails; then nothing
        has changed.
        """

    def open_content(self, object_id: ObjectId) -> Content:
        """Return the current content of an object; an empty InlineContent if it has none.

        Raises BadReferenceError for an unknown object, and DamagedError with a fingerprint if the bytes
        do not match their BLAKE3 digest: a damaged value is never returned.
        """

    def state_of(self, object_id: ObjectId) -> ContentState:
        """Return the state of an object in the store; this takes microseconds."""

    def usage(self) -> dict[str, int]:
        """Return the counts ``objects``, ``bytes`` and ``extents``."""

    def close(self) -> None:
        """Release every resource; open descriptors of ExtentContent stay valid."""
