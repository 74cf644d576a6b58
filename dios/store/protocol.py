"""What the host asks of a store, and what every store promises.

Not for: how. ``lmdb_store`` and ``memory_store`` pass one contract suite (``tests/contract``).
All methods but ``close`` may block on a disk; the host calls ``apply`` from one writer thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from dios.core.events import ObjectRecord
from dios.ids import ObjectId


class InlinePayload(Struct, frozen=True):
    """The whole new content, as bytes (any size; a store puts large ones into extents)."""

    data: bytes | memoryview


class FilePayload(Struct, frozen=True):
    """The whole new content: the first ``size`` bytes of an open file or memfd, which stays the caller's."""

    fd: int
    size: int


Payload: TypeAlias = InlinePayload | FilePayload


class Put(Struct, frozen=True):
    """Insert or replace a record; with ``payload`` also the content, both or neither."""

    record: ObjectRecord
    payload: Payload | None = None


class Drop(Struct, frozen=True):
    """Remove a record and its content; nothing if there is none."""

    object: ObjectId


Change: TypeAlias = Put | Drop


class InlineContent(Struct, frozen=True):
    """A small value, whole, its digest checked."""

    data: bytes


class ExtentContent(Struct, frozen=True):
    """A large value: a read-only descriptor of exactly this version, which the caller must close.

    It stays readable after the object is replaced or dropped.
    """

    fd: int
    size: int


Content: TypeAlias = InlineContent | ExtentContent


class Store(Protocol):
    """A flat, durable object store (thesis §3.6)."""

    def recover(self) -> Iterator[ObjectRecord]:
        """Every record that was acknowledged before; first call after opening, collects orphans."""
        ...

    def apply(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, or none: returns only after they would survive a power cut.

        Raises NoSpaceError on a full disk or map, DamagedError when the device fails; nothing has
        changed then.
        """
        ...

    def open_content(self, object_id: ObjectId) -> Content:
        """The current content of an object; empty InlineContent when it has none.

        Raises BadReferenceError for an unknown object, DamagedError (with a fingerprint) when the
        bytes do not match their BLAKE3 digest: a damaged value is never served.
        """
        ...

    def usage(self) -> dict[str, int]:
        """Counts: ``objects``, ``bytes``, ``extents``."""
        ...

    def close(self) -> None:
        """Release every resource; open ExtentContent descriptors stay valid."""
        ...
