"""Pairs of hardware threads, by what they share, and the kinds of pairs that a machine does not have."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

from dios.host.machine.machine_tree import Element, Part


class Sharing(StrEnum):
    """The nearest thing that two workloads share, from far to near."""

    MEMORY = "other sockets"
    PACKAGE = "one socket, no cache"
    LAST_LEVEL = "the last-level cache"
    INNER_CACHE = "an inner cache"
    CORE = "a core (two hardware threads)"
    THREAD = "a hardware thread"


class Place(NamedTuple):
    """A pair of hardware threads for two workloads."""

    first: int
    second: int


def places(tree: Element, allowed: AbstractSet[int]) -> dict[Sharing, Place]:
    """Return one pair for each kind of sharing that the ``allowed`` processors have, from far to near."""
    by_sharing: dict[Sharing, Place] = {}
    cpus = sorted(set(tree.cpus) & allowed)
    for first, second in combinations(cpus, 2):
        by_sharing.setdefault(sharing(tree, first, second), Place(first, second))
    if cpus:
        by_sharing[Sharing.THREAD] = Place(cpus[0], cpus[0])
    return {kind: by_sharing[kind] for kind in Sharing if kind in by_sharing}


def sharing(tree: Element, first: int, second: int) -> Sharing:
    """Return the nearest thing that two processors share."""
    if first == second:
        return Sharing.THREAD
    last = max((element.number for element in tree.walk() if element.part is Part.CACHE), default=0)
    common = [element for element in tree.walk() if {first, second} <= set(element.cpus)]
    parts = {element.part for element in common}
    if Part.CORE in parts:
        return Sharing.CORE
    levels = {element.number for element in common if element.part is Part.CACHE}
    if any(level < last for level in levels):
        return Sharing.INNER_CACHE
    if levels:
        return Sharing.LAST_LEVEL
    return Sharing.PACKAGE if Part.PACKAGE in parts else Sharing.MEMORY


def lacks(available: AbstractSet[Sharing]) -> list[str]:
    """Return a sentence for each kind of sharing that a machine does not have."""
    return [
        f"No two of its processors share {kind} and nothing nearer."
        if kind is not Sharing.MEMORY
        else "All its processors are in one socket, so that no pair is on two sockets."
        for kind in Sharing
        if kind not in available
    ]


def last_level_bytes(tree: Element) -> int:
    """Return the size of the largest cache, 0 if it is unknown."""
    return max((element.size for element in tree.walk() if element.part is Part.CACHE), default=0)
