"""Sets of replicas that suffice to read the latest value, and to decide the next one.

A decision needs a majority of the members; while the members change, one of those before, too. A value
without promises, which has client 0 in its ballot, needs all members, because another client may have written
such a value to some of them. A reader needs so many that one of them has every decision. Members whose
replicas were destroyed are never asked again: if all living nodes have answered, those that exist suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from dios.lib.replicated_record.frame import ZERO, Value


def is_decided(value: Value, accepted: Collection[int], existing: Collection[int] | None) -> bool:
    """Return True if these replicas, by their object ids, have decided about ``value`` by accepting it.

    ``existing`` are all replicas that there are; None if a node that may have one does not answer.
    """
    if value.ballot != ZERO and not value.ballot[1]:
        return _suffice(value, accepted, existing, lambda size: size)
    return is_majority(value, accepted, existing)


def is_majority(value: Value, given: Collection[int], existing: Collection[int] | None) -> bool:
    """Return True if these replicas can decide about the value after ``value``."""
    return _suffice(value, given, existing, lambda size: size // 2 + 1)


def is_latest(value: Value, read: Collection[int], existing: Collection[int] | None) -> bool:
    """Return True if the latest of these replicas is at least as late as every decision."""
    return _suffice(value, read, existing, lambda size: (size + 1) // 2)


def _suffice(
    value: Value, given: Collection[int], existing: Collection[int] | None, needed: Callable[[int], int]
) -> bool:
    """Return True if there are enough of the members, one at least, and enough of the former ones.

    Former members that are all lost decide nothing any more, and whatever they decided is lost with them.
    """
    members = {member.object_id for member in value.members}
    return not members.isdisjoint(given) and all(
        len(ids.intersection(given)) >= needed(len(ids))
        or (existing is not None and ids.intersection(existing) <= set(given))
        for ids in (members, {member.object_id for member in value.former})
        if ids
    )
