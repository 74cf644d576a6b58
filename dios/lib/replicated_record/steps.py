"""The operations on replicas that the protocol asks for; ``blocking`` and ``asynchronous`` carry them out.

The protocol is a generator that yields steps and is sent their results. The operations of a step are
independent: they are carried out together, and each has a result of its own, which may be an error.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from dios.client.ops.attributes import Handle
from dios.errors import Busy, Conflict, DiosError, UnreachableError
from dios.lib.replicated_record.frame import Member
from dios.wire.types import ObjectType

T = TypeVar("T")
H = TypeVar("H", bound=Handle)


class Sighting(NamedTuple):
    """The replicas that were found, the nearest first, with the version of each object.

    ``complete`` is True if every node that is known has answered just now. A node that has started alone
    knows no other one: ``known`` are the nodes that are known to live or to be removed, None if the user says
    so of all.
    """

    replicas: tuple[Member, ...]
    versions: Mapping[int, int]
    complete: bool
    known: frozenset[str] | None = None

    @property
    def existing(self) -> set[int] | None:
        """The object ids of all replicas that there are; None if a node did not answer."""
        return {member.object_id for member in self.replicas} if self.complete else None


class Held(NamedTuple):
    """A replica that nobody else can change: the version of the object, and its first bytes."""

    v_w: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Look:
    """Find the replicas; a sighting that is not ``fresh`` may be an earlier one."""

    fresh: bool


@dataclass(frozen=True, slots=True)
class ReadReplicas:
    """Read at most this number of bytes of each replica (0: all), by its object id."""

    sizes: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class HoldReplicas:
    """Begin to write at most ``size`` bytes to each replica, so that nobody else writes it meanwhile.

    The results have as many of the present bytes, unless ``blank``.
    """

    object_ids: tuple[int, ...]
    size: int
    blank: bool = False


class Committed(NamedTuple):
    """A replica that was written: its version after that, and if it is held still."""

    v_w: int
    is_held: bool


@dataclass(frozen=True, slots=True)
class CommitReplicas:
    """Make these bytes the first ones of replicas that are held, and release them.

    With ``hold`` they are held on, where that is possible, for a second commit of as many bytes at most.
    """

    data: Mapping[int, bytes]
    hold: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseReplicas:
    """Release replicas that are held, unchanged."""

    object_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait before the next attempt, because another client was faster."""

    conflict: Busy | Conflict


Step: TypeAlias = Look | ReadReplicas | HoldReplicas | CommitReplicas | ReleaseReplicas | Wait

Results: TypeAlias = dict[int, T | DiosError]

Steps: TypeAlias = Generator[Step, object, T]


def replicas_by_id(references: Iterable[H]) -> dict[int, H]:
    """Return the durable replicas among these references by object id, the nearest first."""
    blobs = [blob for blob in references if blob.type is ObjectType.DURABLE_BLOB and not blob.zombie]
    return {blob.object_id: blob for blob in sorted(blobs, key=lambda blob: (blob.proximity, blob.object_id))}


def sighting(references: Collection[Handle], known: frozenset[str] | None, *, complete: bool) -> Sighting:
    """Return the sighting of these replicas."""
    members = tuple(Member(reference.object_id, reference.node) for reference in references)
    versions = {reference.object_id: reference.v_w for reference in references}
    return Sighting(members, versions, complete, known)


def not_found(object_ids: Iterable[int], there: Container[int]) -> Results[T]:
    """Return the errors of the replicas that were not found at the last look."""
    error = UnreachableError("a replica was not found", call="lookup")
    return {object_id: error for object_id in object_ids if object_id not in there}
