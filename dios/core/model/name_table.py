"""The node's name table: internal name to physical objects (thesis §4.3.2). It is never exposed to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from dios import limits
from dios.core.model.names import internal_name
from dios.core.model.records import PhysicalObject
from dios.ids import InternalName


class NameTable:
    """One hash table for the whole node; an entry holds local physical objects in creation order."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[InternalName, dict[int, PhysicalObject]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def insert(self, target: PhysicalObject) -> None:
        """Map one internal name for each of the object's groups; an anonymous object gets none."""
        if target.name is None:
            return
        for group in target.groups:
            self._entries.setdefault(internal_name(target.name, group), {})[target.id] = target

    def remove(self, target: PhysicalObject) -> None:
        """Unmap the object; a name without objects leaves the table."""
        if target.name is None:
            return
        for group in target.groups:
            key = internal_name(target.name, group)
            entry = self._entries.get(key)
            if entry is not None and entry.pop(target.id, None) is not None and not entry:
                del self._entries[key]

    def find(self, key: InternalName) -> tuple[PhysicalObject, ...]:
        """Return the physical objects mapped under an internal name."""
        return tuple(self._entries.get(key, {}).values())

    def find_all(self, keys: Iterable[InternalName]) -> Iterator[PhysicalObject]:
        """Yield the physical objects mapped under any of these names, at most a bound."""
        found = (self._entries.get(key, {}).values() for key in keys)
        return islice(chain.from_iterable(found), limits.LOOKUP_REFERENCES_MAX**2)

    def items(self) -> list[tuple[InternalName, tuple[PhysicalObject, ...]]]:
        """Return all entries."""
        return [(key, tuple(entry.values())) for key, entry in self._entries.items()]
