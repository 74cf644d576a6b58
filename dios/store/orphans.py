"""Finds the stored objects of a stopped node that nobody can reach any more, and removes chosen ones.

A name is known to users and not to the node, so that the node does not know if it is lost. The list shows
fingerprints only, and a person decides. The caller of ``find_orphans`` holds the data directory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct

from dios.core.events import ObjectRecord
from dios.core.model.names import logs_group
from dios.errors import DamagedError, InvalidError
from dios.ids import Name, ObjectId
from dios.store import schema
from dios.store.check import read_index
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import Drop
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType

NO_GROUP = "it is in no group"
NO_SUCH_GROUP = "this node has none of its groups"
NOT_IN_KEYRING = "no keyring has the name of one of its groups"
LOST_GROUP = "no keyring has the name of this group"


class OrphanedObject(Struct, frozen=True):
    """A stored object that cannot be reached, as far as the given keyrings show.

    ``groups`` are the fingerprints of its groups.
    """

    object: ObjectId
    fingerprint: str
    type: ObjectType
    owner: str
    size: int
    groups: tuple[str, ...]
    reason: str


def find_orphans(path: Path, known: Collection[Name], owner: str) -> list[OrphanedObject]:
    """Return the objects in the store at ``path`` that nobody can reach.

    ``known`` are the names of the groups of ``owner`` that are not lost. Objects of other users in groups of
    this node are not listed, because only those users know if they still have the names.
    Raises DamagedError if the store cannot be read completely.
    """
    inventory = read_index(path)
    if not inventory.walked or inventory.damaged_rows:
        raise DamagedError(f"cannot read all of {path}. Run `dios-node check` on it first.")
    groups: set[Name] = set()
    homes: set[Name] = set()
    for record in (row.record for row in inventory.rows.values()):
        if record.type is ObjectType.GROUP and record.name:
            groups.add(Name(record.name))
            if _is_home(record):
                homes.add(Name(record.name))
    groups |= {logs_group(home) for home in homes}
    reachable = homes | {logs_group(home) for home in homes} | set(known)
    orphans = []
    for record in (row.record for row in inventory.rows.values()):
        reason = _reason(record, groups, reachable, owner)
        if reason:
            orphans.append(
                OrphanedObject(
                    ObjectId(record.object),
                    schema.describe(record),
                    record.type,
                    record.owner,
                    record.size,
                    tuple(fingerprint(Name(name)) for name in record.groups),
                    reason,
                )
            )
    return orphans


def _is_home(record: ObjectRecord) -> bool:
    return record.type is ObjectType.GROUP and not record.groups


def _reason(record: ObjectRecord, groups: set[Name], reachable: set[Name], owner: str) -> str:
    """Return the reason why nobody can reach an object; empty if somebody may."""
    if _is_home(record):
        return ""
    inside = {Name(name) for name in record.groups}
    if not inside:
        return NO_GROUP
    if not inside & (groups | reachable):
        return NO_SUCH_GROUP
    if record.owner != owner:
        return ""
    if record.type is ObjectType.GROUP:
        return "" if record.name in reachable else LOST_GROUP
    return "" if inside & reachable else NOT_IN_KEYRING


def chosen_orphans(orphans: Sequence[OrphanedObject], fingerprints: Sequence[str]) -> list[OrphanedObject]:
    """Return the orphans with these fingerprints. Raises InvalidError for one that no orphan has."""
    for text in fingerprints:
        if not any(orphan.fingerprint == text for orphan in orphans):
            raise InvalidError(
                f"no orphaned object has the fingerprint {text!r}. List them without --remove."
            )
    return [orphan for orphan in orphans if orphan.fingerprint in fingerprints]


def remove_orphans(path: Path, orphans: Sequence[OrphanedObject], *, map_bytes: int) -> None:
    """Delete objects from the store of a stopped node for good."""
    store = LmdbStore(path, map_bytes=map_bytes)
    try:
        for _ in store.recover():
            pass
        store.apply([Drop(orphan.object) for orphan in orphans])
    finally:
        store.close()
