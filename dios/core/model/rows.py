"""Rows in the store that the core reads when a call names them (decision 0041).

An object that nobody refers to, and whose row says everything about it, is *dormant*: the core has no record
of it in memory. The host gives the core a ``RowSource``, as it gives it entropy. The answers of a source
follow from the core's own earlier outcomes: the core asks about an object only if no change of it is on its
way to the store.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final, Protocol

from dios.core.events import ObjectRecord
from dios.ids import InternalName, Name, ObjectId
from dios.wire.types import Deletion, ObjectType

IDLE_OBJECTS_MAX: Final = 4_096
"""Objects without references that a node keeps in memory, about 2 KB each."""


class RowSource(Protocol):
    """The dormant rows of the store. Reading one takes microseconds and never waits for a writer."""

    @property
    def idle_max(self) -> int | None:
        """The number of objects without references that stay in memory; None if none may become dormant."""

    def named(self, names: Sequence[InternalName]) -> Iterable[ObjectId]:
        """Return the objects with dormant rows under these names, in the order of the names and ids."""

    def read(self, target: ObjectId) -> ObjectRecord | None:
        """Return the record in a dormant row; None if there is none, or if the row is damaged."""


class NoRows:
    """A source without rows: the core gets every record at its start and keeps it."""

    __slots__ = ()

    idle_max: int | None = None

    def named(self, names: Sequence[InternalName]) -> Iterable[ObjectId]:
        """Return nothing."""
        del names
        return ()

    def read(self, target: ObjectId) -> ObjectRecord | None:
        """Return None."""
        del target
        return None


def is_dormant(record: ObjectRecord, log_groups: Container[Name]) -> bool:
    """Return True if the row of an object without references says everything about it.

    Groups give meaning to other rows, logs and counted objects have an end that the core must watch for,
    and nothing can name an anonymous object.
    """
    return (
        record.type is ObjectType.DURABLE_BLOB
        and record.name is not None
        and record.deletion is Deletion.IMMEDIATE
        and bool(record.groups)
        and not any(group in log_groups for group in record.groups)
    )
