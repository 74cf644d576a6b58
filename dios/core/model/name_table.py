"""The node's name table: internal name to physical objects (thesis §4.3.2). It is never exposed to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from dios import limits
from dios.core.model.names import internal_name
from dios.core.model.records import PhysicalObject
from dios.ids import InternalName, Name

PARTS: Final = 256
"""The parts of the table. Internal names are digests, so that a part has one name in 256."""


class NameChange(NamedTuple):
    """An internal name that the node has from now on, or has no longer, and its external name."""

    internal: InternalName
    external: Name
    is_added: bool


class NameTable:
    """One table for the whole node; an entry holds local physical objects in creation order.

    It has PARTS hash tables, so that its names can be listed in slices. While ``is_noting`` is True, the
    index of names reads from ``changes`` which names came and went.
    """

    __slots__ = ("_parts", "changes", "is_noting")

    def __init__(self) -> None:
        self._parts: Final[tuple[dict[InternalName, dict[int, PhysicalObject]], ...]] = tuple(
            {} for _ in range(PARTS)
        )
        self.is_noting = False
        self.changes: list[NameChange] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def insert(self, target: PhysicalObject, *, is_stored: bool = False) -> None:
        """Map one internal name for each of the object's groups; an anonymous object gets none.

        An object that ``is_stored`` had these names before, as a row of the store.
        """
        if target.name is None:
            return
        for group in target.groups:
            key = internal_name(target.name, group)
            entry = self._parts[key[0]].setdefault(key, {})
            if self.is_noting and not entry and not is_stored:
                self.changes.append(NameChange(key, target.name, is_added=True))
            entry[target.id] = target

    def remove(self, target: PhysicalObject, *, is_stored: bool = False) -> None:
        """Unmap the object; a name without objects leaves the table.

        An object that ``is_stored`` keeps its names, as a row of the store.
        """
        if target.name is None:
            return
        for group in target.groups:
            key = internal_name(target.name, group)
            part = self._parts[key[0]]
            entry = part.get(key)
            if entry is not None and entry.pop(target.id, None) is not None and not entry:
                del part[key]
                if self.is_noting and not is_stored:
                    self.changes.append(NameChange(key, target.name, is_added=False))

    def keys(self, part: int) -> list[InternalName]:
        """Return the internal names in one of the PARTS parts of the table."""
        return list(self._parts[part])

    def external(self, key: InternalName) -> Name | None:
        """Return the external name behind an internal one; None if no object has it."""
        entry = self._parts[key[0]].get(key)
        return None if not entry else next(iter(entry.values())).name

    def find(self, key: InternalName) -> tuple[PhysicalObject, ...]:
        """Return the physical objects mapped under an internal name."""
        return tuple(self._parts[key[0]].get(key, {}).values())

    def find_all(self, keys: Iterable[InternalName]) -> Iterator[PhysicalObject]:
        """Yield the physical objects mapped under any of these names, at most a bound."""
        matches = (self._parts[key[0]].get(key, {}).values() for key in keys)
        return islice(chain.from_iterable(matches), limits.LOOKUP_REFERENCES_MAX**2)

    def items(self) -> list[tuple[InternalName, tuple[PhysicalObject, ...]]]:
        """Return all entries."""
        return [(key, tuple(entry.values())) for part in self._parts for key, entry in part.items()]
