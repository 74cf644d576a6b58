"""Versions of replicas: which one is current, which ones are behind, and which ones conflict.

Replicas of an object begin with the bytes and the version of the one that they were copied from. From then on
each has a history of its own, in which its version only grows. The keeper notes the states in which it sees
each replica. A replica is behind another one if the other one had its state before. Two replicas conflict if
the notes do not show that one of them is behind the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, NamedTuple, TypeAlias

from msgspec import Meta

from dios import limits
from dios.wire.fields import U63


class VersionState(NamedTuple):
    """A version of an object with the digest of its bytes, which is empty for the bytes that were put."""

    v_w: U63
    digest: Annotated[bytes, Meta(max_length=limits.KEPT_DIGEST_BYTES)]


class Seen(NamedTuple):
    """A state in which a replica, a physical object, was seen."""

    v_w: U63
    digest: Annotated[bytes, Meta(max_length=limits.KEPT_DIGEST_BYTES)]
    object_id: U63


SeenVersions: TypeAlias = Mapping[str, tuple[Seen, ...]]

CREATED = VersionState(0, b"")
"""The state of an object that was not written since its creation."""


def is_behind(state: VersionState, other: VersionState, seen: Collection[Seen]) -> bool:
    """Return True if ``other`` is known to come from ``state``, by the histories of replicas."""
    if state.v_w >= other.v_w:
        return False
    if not state.digest:
        return True  # the bytes that were put
    reached, open_states = {state}, [state]
    while open_states:
        at = open_states.pop()
        there = {
            seen_version.object_id for seen_version in seen if (seen_version.v_w, seen_version.digest) == at
        }
        for version in seen:
            seen_state = VersionState(version.v_w, version.digest)
            if version.object_id in there and version.v_w > at.v_w and seen_state not in reached:
                reached.add(seen_state)
                open_states.append(seen_state)
    return other in reached


def latest(states: Iterable[VersionState], seen: Collection[Seen]) -> list[VersionState]:
    """Return the states that are behind no other one: one if the replicas agree, more if they conflict."""
    every = sorted(set(states))
    return [state for state in every if not any(is_behind(state, other, seen) for other in every)]


def is_beyond_repair(
    object_id: int, v_w: int, states: Collection[VersionState], seen: Collection[Seen]
) -> bool:
    """Return True if a damaged replica has an earlier version, and no sound one has its bytes."""
    known = {version.digest for version in seen if (version.object_id, version.v_w) == (object_id, v_w)}
    same = [state for state in states if state.v_w == v_w and (not known or state.digest in known)]
    return not same and any(state.v_w > v_w for state in states)


def noted(seen: Collection[Seen], states: Mapping[int, VersionState]) -> tuple[Seen, ...]:
    """Return the seen versions with the present states of replicas by object id, bounded by ``trimmed``.

    The bytes that were put are not noted, because every state comes from them.
    """
    now = {Seen(*state, object_id) for object_id, state in states.items() if state.digest}
    return trimmed({*seen, *now})


def trimmed(seen: Iterable[Seen]) -> tuple[Seen, ...]:
    """Return at most KEPT_SEEN_MAX seen versions, in order.

    The last state in which each replica was seen remains, with all replicas that had it: a node that is away
    comes back with that state, however often the others were written meanwhile. The newest others follow.
    """
    ordered = sorted(set(seen))
    last = {version.object_id: (version.v_w, version.digest) for version in ordered}
    ends = set(last.values())
    kept = [version for version in ordered if (version.v_w, version.digest) in ends][
        -limits.KEPT_SEEN_MAX // 2 :
    ]
    others = [version for version in ordered if version not in kept]
    surplus = max(len(ordered) - limits.KEPT_SEEN_MAX, 0)
    return tuple(sorted(kept + others[surplus:]))
