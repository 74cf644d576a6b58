"""A canonical snapshot of everything a core remembers, to see that a refusal changed nothing.

Not for: comparing two cores' answers; outcomes are compared as they are.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable

from blake3 import blake3
from msgspec import Struct

from dios.core.model.records import HandedReference, Recipe
from dios.core.model.state import State

_LEFT_OUT = frozenset({"entropy", "story", "_deadlines", "_moments"})
"""Entropy is the test's own, and the story is no state. Rows carry their deadlines, references their ends:
heaps only find the first.
"""

_HOLDING_OBJECTS = (Recipe, HandedReference)


class _Walk:
    """A depth-first walk that writes each object once and its number after that."""

    def __init__(self, left_out: frozenset[str]) -> None:
        self._left_out = _LEFT_OUT | left_out
        self.lines: list[str] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []

    def visit(self, value: object) -> None:
        if value is None or isinstance(value, (int, str, bytes, float, enum.Enum)):
            self.lines.append(repr(value))
        elif isinstance(value, dict):
            self._many("dict", [part for entry in value.items() for part in entry])
        elif isinstance(value, (list, tuple, deque)):
            self._many("list", value)
        elif isinstance(value, (set, frozenset)):
            self._many("set", sorted(value, key=repr))
        elif isinstance(value, Struct):
            if isinstance(value, _HOLDING_OBJECTS):
                self._many("struct", [getattr(value, field) for field in value.__struct_fields__])
            else:
                self.lines.append(repr(value))
        else:
            self._object(value)

    def _many(self, kind: str, values: Iterable[object]) -> None:
        self.lines.append(f"{kind}(")
        for value in values:
            self.visit(value)
        self.lines.append(")")

    def _object(self, value: object) -> None:
        known = self._numbers.get(id(value))
        if known is not None:
            self.lines.append(f"@{known}")
            return
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        self.lines.append(f"{type(value).__name__}{{")
        for slot in sorted(type(value).__slots__):  # type: ignore[attr-defined]
            if slot not in self._left_out:
                self.lines.append(f"{slot}=")
                self.visit(getattr(value, slot))
        self.lines.append("}")


def snapshot(state: State, left_out: frozenset[str] = frozenset()) -> list[str]:
    """The whole state as lines, the same for the same state; without the attributes of these names."""
    walk = _Walk(left_out)
    walk.visit(state)
    return walk.lines


def digest(state: State) -> str:
    """The snapshot's BLAKE3 digest."""
    return blake3("\n".join(snapshot(state)).encode()).hexdigest()
