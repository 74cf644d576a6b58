"""The disks of files: how many have one and were promised to, further replicas, and the check of their bytes.

Versions and nodes only claim: the digest in the catalogue decides which replica has the bytes of the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from blake3 import blake3

from dios import limits
from dios.client.ops.cluster import Member
from dios.client.sync.connection import Connection
from dios.client.sync.node import Group, Node, Reference
from dios.errors import DiosError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, Part
from dios.lib.closing import close_all
from dios.lib.counters import show_counters
from dios.lib.kept.decisions import Copied, KeptWish, Place, next_steps
from dios.lib.kept.records import KeptPromise
from dios.lib.kept.versions import CREATED
from dios.wire.nametext import fingerprint
from dios.wire.node_roles import NodeRight
from dios.wire.types import ObjectType, Persistence, Semantics

_LOOKUPS_AT_ONCE: Final = 256
_DURABLE: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.DURABLE_STREAM})


def promised_disks(promises: Iterable[KeptPromise], group: Group, entry: CatalogueEntry) -> int:
    """Return the number of nodes that shall have a file by these promises of its user; 1 without one."""
    return _promised(_numbers(promises), group, entry) or 1


def attainable_disks(members: Iterable[Member]) -> int:
    """Return the number of nodes that may store a new file: the keepers, and this node."""
    return max(1, sum(member.here or member.may(NodeRight.KEEP) for member in members))


def _numbers(promises: Iterable[KeptPromise]) -> dict[tuple[str, bool], int]:
    return {(promise.key, promise.is_single): promise.replicas for promise in promises}


def _promised(numbers: Mapping[tuple[str, bool], int], group: Group, entry: CatalogueEntry) -> int:
    of_group = numbers.get((group.fingerprint, False), 0)
    return max((numbers.get((fingerprint(name), True), of_group) for name in entry.local_names), default=0)


class FileDisks(NamedTuple):
    """The number of nodes with each object of a file, 0 of a tiered one; and that promised, or None."""

    disks: int
    promised: int | None


def file_disks(
    node: Node, group: Group, entries: Sequence[CatalogueEntry], promises: Iterable[KeptPromise]
) -> list[FileDisks]:
    """Return the numbers for each of these files. No byte is read, so a damaged replica counts.

    The nodes that do not answer do not count. Raises the errors of looking up.
    """
    numbers = _numbers(promises)
    names = list(dict.fromkeys(name for entry in entries for name in entry.names))
    disks: dict[bytes, int] = {}
    for start in range(0, len(names), _LOOKUPS_AT_ONCE):
        disks |= _count_disks(node, group, names[start : start + _LOOKUPS_AT_ONCE])
    return [
        FileDisks(
            min((disks[name] for name in entry.names), default=0),
            _promised(numbers, group, entry) or None,
        )
        for entry in entries
    ]


def _count_disks(node: Node, group: Group, names: Sequence[bytes]) -> dict[bytes, int]:
    """Return the number of nodes with a durable replica of each name."""
    with node.batch() as batch:
        asked = {name: batch.add(node.lookup, name, group=group) for name in names}
    lookups = [(name, pending.result()) for name, pending in asked.items()]
    # In a message with others a lookup does not wait for the other nodes of a cluster.
    lookups += [(name, node.lookup(name, group=group)) for name, given in lookups if given.incomplete]
    nodes: dict[bytes, set[str]] = {name: set() for name in names}
    with node.batch() as batch:
        for name, given in lookups:
            nodes[name] |= {replica.node for replica in given if replica.type in _DURABLE}
            for reference in given:
                batch.add(reference.close)
    return {name: len(there) for name, there in nodes.items()}


def has_kept_copies(node: Node, group: Group, entry: CatalogueEntry, disks: int) -> bool:
    """Return True if every object of a file is on this number of nodes with the bytes that were put.

    All replicas are read. One of an object whose digest is not known, and one that cannot be read, counts
    for nothing. Raises the errors of looking up.
    """
    parts = entry.parts() if entry.in_parts else (Part(entry.name, entry.digest),)
    return all(_nodes_with(node, group, part, disks) >= disks for part in parts)


def _nodes_with(node: Node, group: Group, part: Part, enough: int) -> int:
    """Return ``enough`` if this number of nodes has the bytes of a part, else a smaller number."""
    if not part.digest:
        return 0
    sound: set[str] = set()
    replicas = node.lookup(part.name, group=group)
    try:
        if len({reference.node for reference in replicas}) < enough:
            return 0
        for replica in replicas:
            if len(sound) < enough and replica.node not in sound and digest_of(replica) == part.digest:
                sound.add(replica.node)
    finally:
        close_all(replicas)
    return len(sound)


def digest_of(replica: Reference) -> bytes:
    """Return the digest of the bytes of a durable replica; none of another object, or if a read fails."""
    if replica.type is not ObjectType.DURABLE_BLOB:
        return b""
    digest = blake3()
    try:
        show_counters(replica)
        for at in range(0, replica.size, limits.KEPT_CHUNK_BYTES):
            want = min(replica.size - at, limits.KEPT_CHUNK_BYTES)
            with replica.read(Semantics.MRSW, size=want, offset=at) as request:
                digest.update(request.view[:want])
    except DiosError:
        return b""
    return digest.digest()


# -- further replicas -------------------------------------------------------------------------------
def present_places(node: Node, refused: Collection[str]) -> list[Place]:
    """Return the nodes on which replicas can be, but for those that have ``refused`` one."""
    return [
        Place(
            member.name,
            member.rack,
            usable=member.usable,
            draining=not member.keeps,
            refused=member.name in refused,
        )
        for member in node.nodes()
    ]


def further_places(places: Sequence[Place], taken: Collection[str], disks: int, *, key: str) -> Sequence[str]:
    """Return the names of the nodes for the replicas that are missing to ``disks``, or for as many as can be.

    ``taken`` are the nodes that have a replica.
    """
    copies = [Copied(number, name, CREATED) for number, name in enumerate(sorted(taken))]
    return next_steps(KeptWish(disks, apart=True), copies, places, key=key).targets


def next_place(
    node: Node, taken: Collection[str], disks: int, refused: Collection[str], *, key: str
) -> str | None:
    """Return the name of a node for the next of ``disks`` replicas; None if no further node can take one."""
    targets = further_places(present_places(node, refused), taken, disks, key=key)
    return targets[0] if targets else None


def copy_all(node: Node, group: Group, stored: Sequence[Reference], disks: int) -> None:
    """Make replicas of new objects, each of which is on one disk, many at a time.

    Raises UnreachableError if too few nodes take one of them.
    """
    if disks < 2:
        return
    places = present_places(node, ())
    again: list[Reference] = []
    wanted: list[tuple[Reference, str]] = []
    for reference in stored:
        targets = further_places(places, [reference.node], disks, key=reference.fingerprint)
        again += [reference] if len(targets) < disks - 1 else []
        wanted += [(reference, place) for place in targets]
    copies = (source.copy_op(host=place, persistence=Persistence.DURABLE) for source, place in wanted)
    outcomes = cast("Connection", node.link).run_each(copies)
    with node.batch() as batch:
        for (reference, _), copied in zip(wanted, outcomes, strict=True):
            if isinstance(copied, DiosError):
                again.append(reference)
            else:
                batch.add(copied.close)
    for reference in again:
        hold_on(node, group, reference.name or b"", disks)


def hold_on(node: Node, group: Group, name: bytes, disks: int, digest: bytes = b"") -> None:
    """Make replicas of an object until it is on the disks of this number of nodes.

    Replicas that were there before count if their bytes have the ``digest``; any does without one. Copies
    that are made now have the bytes of one of these, because the nodes check them on the way. A log stays in
    one place. Raises UnreachableError, with the reason of each node that refused, if too few nodes take it.
    """
    replicas = node.lookup(name, group=group)
    try:
        durable = [reference for reference in replicas if reference.type is ObjectType.DURABLE_BLOB]
        if any(reference.type is ObjectType.DURABLE_STREAM for reference in replicas):
            return  # a log is in one place
        few = len(durable) == 1 or not digest
        sound = {reference.node: reference for reference in durable if few or digest_of(reference) == digest}
        mark = fingerprint(name)
        refusals = {
            reference.node: "its replica has other bytes"
            for reference in durable
            if reference.node not in sound
        }
        while len(sound) < disks:
            place = next_place(node, sound, disks, refusals, key=mark) if sound else None
            if place is None:
                why = "; ".join(f"{at}: {reason}" for at, reason in refusals.items())
                raise UnreachableError(
                    f"{len(sound)} of {disks} disks took {mark} ({why or 'no further node can take it'})"
                )
            source = next(iter(sound.values()))
            try:
                with source.copy(host=place, persistence=Persistence.DURABLE):
                    sound[place] = source
            except DiosError as error:
                refusals[place] = error.message
    finally:
        close_all(replicas)
