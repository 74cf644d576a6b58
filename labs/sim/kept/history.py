"""The truth about the objects of a run: every write and the write before it, which the keepers never see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final


@dataclass(slots=True)
class History:
    """The writes of all objects; a write is a number, and its parent is the write whose bytes it replaced."""

    parents: dict[int, int | None] = field(default_factory=dict)
    acknowledged: dict[bytes, set[int]] = field(default_factory=dict)
    """The acknowledged writes by object; without those that no disk has any more."""
    lost: int = 0
    """The acknowledged writes that were lost with the last disk that had them."""
    _same: Final[dict[tuple[int, bytes], int]] = field(default_factory=dict)

    def begin(self) -> int:
        """Return the write that creates an object."""
        self.parents[len(self.parents)] = None
        return len(self.parents) - 1

    def after(self, parent: int, data: bytes) -> int:
        """Return the write of these bytes over ``parent``: the same one for all replicas that had it."""
        write = self._same.get((parent, data))
        if write is None:
            write = self._same[parent, data] = len(self.parents)
            self.parents[write] = parent
        return write

    def acknowledge(self, name: bytes, write: int) -> None:
        """Note that a user has the acknowledgement of this write."""
        self.acknowledged.setdefault(name, set()).add(write)

    def has(self, write: int, other: int) -> bool:
        """Return True if ``write`` is ``other``, or was made over it."""
        at: int | None = write
        while at is not None and at != other:
            at = self.parents[at]
        return at == other

    def heads(self, writes: Iterable[int]) -> set[int]:
        """Return the writes over which none of the others was made: more than one are a conflict."""
        every = set(writes)
        return {write for write in every if not any(two != write and self.has(two, write) for two in every)}

    def forget_lost(self, name: bytes, living: Iterable[int]) -> None:
        """Excuse acknowledged writes that no living disk has, because the last one was lost for ever."""
        gone = self.missing(name, living)
        self.lost += len(gone)
        self.acknowledged.get(name, set()).difference_update(gone)

    def missing(self, name: bytes, living: Iterable[int]) -> list[int]:
        """Return the acknowledged writes of an object that no living disk has, nor a later one."""
        have = list(living)
        known = sorted(self.acknowledged.get(name, set()))
        return [write for write in known if not any(self.has(survivor, write) for survivor in have)]
