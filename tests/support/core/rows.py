"""Rows in a dictionary, as a source of dormant rows for a core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dios.core.events import DormantUse, ObjectRecord
from dios.core.model.names import internal_name, logs_group
from dios.core.model.rows import is_dormant
from dios.ids import InternalName, Name, ObjectId, Principal
from dios.wire.types import Deletion, ObjectType


class DictRows:
    """A row source over the records that a node has stored."""

    def __init__(self, stored: Mapping[int, ObjectRecord], idle_max: int) -> None:
        self.stored = stored
        self.idle_max: int | None = idle_max
        self.reads = 0

    @property
    def log_groups(self) -> set[Name]:
        """The groups of logs."""
        return {
            logs_group(record.name)
            for record in self.stored.values()
            if record.type is ObjectType.GROUP and record.deletion is Deletion.IMMORTAL and record.name
        }

    def dormant(self) -> list[ObjectRecord]:
        """Return the dormant records."""
        groups = self.log_groups
        return [record for _, record in sorted(self.stored.items()) if is_dormant(record, groups)]

    def named(self, names: Sequence[InternalName]) -> list[ObjectId]:
        """Return the objects under these names."""
        return [
            record.object
            for name in names
            for record in self.dormant()
            if any(internal_name(record.name or Name(b""), group) == name for group in record.groups)
        ]

    def read(self, target: ObjectId) -> ObjectRecord | None:
        """Return a dormant record."""
        self.reads += 1
        return next((record for record in self.dormant() if record.object == target), None)

    def resident(self) -> tuple[ObjectRecord, ...]:
        """Return all other records."""
        asleep = {record.object for record in self.dormant()}
        return tuple(record for record in self.stored.values() if record.object not in asleep)

    def use(self) -> DormantUse:
        """Return the numbers and bytes of the dormant records."""
        owners: dict[Principal, list[int]] = {}
        groups: dict[Name, list[int]] = {}
        for record in self.dormant():
            for counts in (
                owners.setdefault(record.owner, [0, 0]),
                *(groups.setdefault(name, [0, 0]) for name in record.groups),
            ):
                counts[0] += 1
                counts[1] += record.size
        return DormantUse(
            tuple((name, *counts) for name, counts in owners.items()),  # type: ignore[misc] # two counts
            tuple((name, *counts) for name, counts in groups.items()),  # type: ignore[misc] # the same
        )
