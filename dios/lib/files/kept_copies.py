"""The promised number of replicas of a file, and the check of their bytes before something else is destroyed.

Versions and nodes only claim: the digest in the catalogue decides which replica has the bytes of the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from blake3 import blake3

from dios import limits
from dios.client.sync.node import Group, Node, Reference
from dios.errors import DiosError
from dios.lib.catalogue import CatalogueEntry, Part
from dios.lib.kept.records import KeptPromise
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Semantics


def promised_disks(promises: Iterable[KeptPromise], group: Group, entry: CatalogueEntry) -> int:
    """Return the number of nodes that shall have a file by these promises of its user; 1 without one."""
    numbers = {(one.key, one.is_single): one.replicas for one in promises}
    of_group = numbers.get((group.fingerprint, False), 1)
    return max((numbers.get((fingerprint(name), True), of_group) for name in entry.local_names), default=1)


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
    found = node.lookup(part.name, group=group)
    try:
        if len({one.node for one in found}) < enough:
            return 0
        for one in found:
            if len(sound) < enough and one.node not in sound and digest_of(one) == part.digest:
                sound.add(one.node)
    finally:
        for one in found:
            with suppress(DiosError):
                one.close()
    return len(sound)


def digest_of(one: Reference) -> bytes:
    """Return the digest of the bytes of a durable replica; none of another object, or if a read fails."""
    if one.type is not ObjectType.DURABLE_BLOB:
        return b""
    digest = blake3()
    try:
        for at in range(0, one.size, limits.KEPT_CHUNK_BYTES):
            want = min(one.size - at, limits.KEPT_CHUNK_BYTES)
            with one.read(Semantics.MRSW, size=want, offset=at) as request:
                digest.update(request.view[:want])
    except DiosError:
        return b""
    return digest.digest()
