"""The promised number of replicas of a file, the number of disks that have it, and the check of their bytes.

Versions and nodes only claim: the digest in the catalogue decides which replica has the bytes of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from blake3 import blake3

from dios import limits
from dios.client.sync.node import Group, Node, Reference
from dios.errors import DiosError
from dios.lib.catalogue import CatalogueEntry, Part
from dios.lib.closing import close_all
from dios.lib.kept.records import KeptPromise
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Semantics

_LOOKUPS_AT_ONCE: Final = 256
_DURABLE: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.DURABLE_STREAM})


def promised_disks(promises: Iterable[KeptPromise], group: Group, entry: CatalogueEntry) -> int:
    """Return the number of nodes that shall have a file by these promises of its user; 1 without one."""
    return _promised(_numbers(promises), group, entry) or 1


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
        for at in range(0, replica.size, limits.KEPT_CHUNK_BYTES):
            want = min(replica.size - at, limits.KEPT_CHUNK_BYTES)
            with replica.read(Semantics.MRSW, size=want, offset=at) as request:
                digest.update(request.view[:want])
    except DiosError:
        return b""
    return digest.digest()
