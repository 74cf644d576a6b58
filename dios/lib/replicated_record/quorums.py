"""Sets of replicas that suffice to read the latest value, and to decide the next one.

A decision needs a majority of the members; while the members change, one of those before, too. A reader needs
so many that one of them has every decision. Members whose replicas were destroyed are never asked again: if
all living nodes have answered, the members that still exist suffice together.
"""

from __future__ import annotations

from collections.abc import Collection

from dios.lib.replicated_record.frame import Member, Value


def is_decided(value: Value, accepted: Collection[int], existing: Collection[int] | None) -> bool:
    """Return True if these replicas, by their object ids, decide about ``value``.

    ``existing`` are all replicas that there are; None if a node that may have one does not answer.
    """
    return all(_suffices(group, accepted, existing, len(group) // 2 + 1) for group in value.groups)


def is_latest(value: Value, read: Collection[int], existing: Collection[int] | None) -> bool:
    """Return True if the latest of these replicas is at least as late as every decision."""
    return all(_suffices(group, read, existing, (len(group) + 1) // 2) for group in value.groups)


def _suffices(
    group: Collection[Member], given: Collection[int], existing: Collection[int] | None, needed: int
) -> bool:
    ids = {member.object_id for member in group}
    count = len(ids.intersection(given))
    if count >= needed:
        return True
    return existing is not None and count > 0 and ids.intersection(existing) <= set(given)
