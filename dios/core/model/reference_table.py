"""A task's private table of references (thesis §4.5, §4.9): a hash table keyed by random ids.

Not for: rights. A reference stands in exactly one table; what is not in the caller's table is EBADF.
"""

from __future__ import annotations

from collections.abc import Iterator

from dios import limits
from dios.core.model.objects import PhysicalObject
from dios.core.model.references import Reference
from dios.errors import BadReferenceError, LimitError
from dios.ids import RefId


class ReferenceTable:
    """References by id, and the free slots of the task's public page."""

    __slots__ = ("_free", "_next_slot", "_references")

    def __init__(self) -> None:
        self._references: dict[int, Reference] = {}
        self._free: list[int] = []
        self._next_slot = 0

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[Reference]:
        return iter(list(self._references.values()))

    def __contains__(self, ref_id: int) -> bool:
        return ref_id in self._references

    def require_room(self, count: int = 1) -> None:
        """Refuse before anything changes when ``count`` more references would not fit."""
        if len(self._references) + count > limits.REFERENCES_PER_TASK_MAX:
            raise LimitError(
                f"the task holds {len(self._references)} of at most {limits.REFERENCES_PER_TASK_MAX}"
                " references; delete some first"
            )

    def take_slot(self) -> int:
        """A free slot of the public page; slots are re-used, ids never."""
        if self._free:
            return self._free.pop()
        slot = self._next_slot
        self._next_slot += 1
        return slot

    def insert(self, reference: Reference) -> None:
        """Add a fresh reference."""
        self._references[reference.id] = reference

    def get(self, ref_id: int) -> Reference:
        """The caller's own reference; raises BadReferenceError for all others alike."""
        reference = self._references.get(ref_id)
        if reference is None:
            raise BadReferenceError("no such reference in this task; it was deleted, or is another task's")
        return reference

    def find(self, ref_id: int) -> Reference | None:
        """The caller's own reference, or None."""
        return self._references.get(ref_id)

    def holding(self, target: PhysicalObject) -> list[Reference]:
        """The references to one object."""
        return [reference for reference in self._references.values() if reference.object is target]

    def remove(self, ref_id: RefId) -> None:
        """Forget a reference and free its slot."""
        reference = self._references.pop(ref_id)
        self._free.append(reference.slot)
