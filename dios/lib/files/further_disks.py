"""Further durable replicas of files: for puts that several disks acknowledge."""

from __future__ import annotations

from contextlib import suppress

from blake3 import blake3

from dios import limits
from dios.client.sync.node import Group, Node, Reference
from dios.errors import DiosError, UnreachableError
from dios.lib.files.placing import next_place
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Persistence


def hold_on(node: Node, group: Group, name: bytes, disks: int, digest: bytes = b"") -> None:
    """Make replicas of an object until it is on the disks of this number of nodes.

    Replicas that were there before count if their bytes have the ``digest``. Copies that are made now have
    the bytes of one of these, because the nodes check them on the way. Raises UnreachableError, with the
    reason of each node that refused, if too few nodes take it.
    """
    found = node.lookup(name, group=group)
    try:
        durable = [one for one in found if one.type is ObjectType.DURABLE_BLOB]
        sound = {one.node: one for one in durable if len(durable) == 1 or has_digest(one, digest)}
        mark = fingerprint(name)
        refusals = {one.node: "its replica has other bytes" for one in durable if one.node not in sound}
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
        for one in found:
            with suppress(DiosError):
                one.close()


def has_digest(replica: Reference, digest: bytes) -> bool:
    """Return True if the bytes of a replica have this digest; False if they cannot be read.

    Without a digest each replica that can be read counts.
    """
    hasher = blake3()
    try:
        for at in range(0, max(replica.size, 1), limits.KEPT_CHUNK_BYTES):
            hasher.update(replica.read_bytes(limits.KEPT_CHUNK_BYTES, at))
    except DiosError:
        return False
    return not digest or hasher.digest() == digest
