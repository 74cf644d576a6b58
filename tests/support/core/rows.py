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
            logs_group(one.name)
            for one in self.stored.values()
            if one.type is ObjectType.GROUP and one.deletion is Deletion.IMMORTAL and one.name
        }

    def dormant(self) -> list[ObjectRecord]:
        """Return the dormant records."""
        groups = self.log_groups
        return [one for _, one in sorted(self.stored.items()) if is_dormant(one, groups)]

    def named(self, names: Sequence[InternalName]) -> list[ObjectId]:
        """Return the objects under these names."""
        return [
            one.object
            for name in names
            for one in self.dormant()
            if any(internal_name(one.name or Name(b""), group) == name for group in one.groups)
        ]

    def read(self, target: ObjectId) -> ObjectRecord | None:
        """Return a dormant record."""
        self.reads += 1
        return next((one for one in self.dormant() if one.object == target), None)

    def resident(self) -> tuple[ObjectRecord, ...]:
        """Return all other records."""
        asleep = {one.object for one in self.dormant()}
        return tuple(one for one in self.stored.values() if one.object not in asleep)

    def use(self) -> DormantUse:
        """Return the numbers and bytes of the dormant records."""
        owners: dict[Principal, list[int]] = {}
        groups: dict[Name, list[int]] = {}
        for one in self.dormant():
            for counts in (
                owners.setdefault(one.owner, [0, 0]),
                *(groups.setdefault(name, [0, 0]) for name in one.groups),
            ):
                counts[0] += 1
                counts[1] += one.size
        return DormantUse(
            tuple((name, *counts) for name, counts in owners.items()),  # type: ignore[misc] # two counts
            tuple((name, *counts) for name, counts in groups.items()),  # type: ignore[misc] # the same
        )
