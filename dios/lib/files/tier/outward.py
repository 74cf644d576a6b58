"""Moving files into a store: mark, store, verify, switch the entries, destroy the local objects.

Each step is visible in the catalogue before the next one begins, so a kill at any point leaves the file
readable, here or there, and the next run finishes. Bytes are read back from the store before local ones go,
and the changed list is on as many disks as its group was promised. A file that was brought back and has not
left the store yet is not stored again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from blake3 import blake3

from dios import limits
from dios.errors import DamagedError, DiosError, InvalidError, NotPermittedError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, Tiered
from dios.lib.files.disks import promised_disks
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.group_list import BATCH_OBJECTS, destroy
from dios.lib.files.paths import stored_path
from dios.lib.files.sources import CHUNK_BYTES
from dios.lib.files.tier.entries import came_back, finish, release, stored_again, switch
from dios.lib.kept.promises import Promises
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.tier_store import TierStore, new_mark
from dios.wire.types import ObjectType, Permission

_PORTION_BYTES: Final = 1 * limits.GIB
_BLOBS: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB, ObjectType.PRIVMEM_BLOB})
_REFUSALS: Final = (
    DamagedBackupError,
    DamagedError,
    FileNotFoundError,
    InvalidError,
    NotPermittedError,
    UnreachableError,
)
"""The errors after which a file stays as it is, and the others are moved."""


@dataclass(slots=True)
class Moved:
    """The files that were moved, those that were in a store before, and those that stay, with the reasons."""

    moved: list[CatalogueEntry] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def chosen(files: GroupFiles, *, older_ns: int | None, larger: int | None, now_ns: int) -> list[str]:
    """Return the paths of the local files that were put at least ``older_ns`` ago and have ``larger`` bytes.

    Files that an earlier run has not finished are among them, whatever their age and size.
    """
    return [
        path
        for path, entry in files.tree().files.items()
        if _is_unfinished(entry)
        or (
            not entry.tiered
            and entry.size
            and (older_ns is None or entry.put_ns <= now_ns - older_ns)
            and (larger is None or entry.size >= larger)
        )
    ]


def _is_unfinished(entry: CatalogueEntry) -> bool:
    """Return True if a run broke off, so that local objects or bytes in the store are of no use."""
    tier = entry.tier
    return tier is not None and (tier.left or not tier.stored) and (tier.stored or not tier.manifest)


def tier_out(
    files: GroupFiles, store: TierStore, paths: Iterable[str], moved: Callable[[int], object] = lambda _: None
) -> Moved:
    """Move files into the store of their group, in portions; ``moved`` gets the progress in bytes.

    Files that cannot be moved stay as they are, and are in the outcome with the reason. Raises TargetError,
    OSError, DamagedBackupError if the store does not return what it got, and the errors of the catalogue.
    """
    if files.secrecy:
        raise NotPermittedError(
            f"the group is labelled {', '.join(files.secrecy)}, and nothing that has a label leaves the "
            "cluster for a store. Nothing was changed."
        )
    outcome = Moved()
    for portion in _portions(files, list(paths)):
        _tier_portion(files, store, portion, outcome, moved)
    release(files, came_back(files, store.place))
    return outcome


def _portions(files: GroupFiles, paths: Sequence[str]) -> Iterator[list[CatalogueEntry]]:
    """Yield the files in portions that change the catalogue together."""
    portion: list[CatalogueEntry] = []
    size = 0
    for path in paths:
        entry = files.entry(path)
        portion.append(entry)
        size += entry.size
        if size >= _PORTION_BYTES or len(portion) == BATCH_OBJECTS:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _tier_portion(
    files: GroupFiles,
    store: TierStore,
    portion: Sequence[CatalogueEntry],
    outcome: Moved,
    moved: Callable[[int], object],
) -> None:
    begun: dict[CatalogueEntry, CatalogueEntry] = {}
    again: dict[CatalogueEntry, CatalogueEntry] = {}
    leftover: list[CatalogueEntry] = []
    for given in portion:
        path = stored_path(given.file)
        if given.tiered:
            outcome.before.append(path)
            leftover.append(given)
            continue
        try:
            if given.in_store and given.tier is not None and given.tier.place == store.place:
                _require_returned(store, given)
                again[given] = stored_again(given)
                moved(given.size)
                continue
            entry = finish(files, given)
            _require_movable(files, entry)
        except _REFUSALS as error:
            outcome.refused[path] = error.message if isinstance(error, DiosError) else str(error.strerror)
            continue
        begun[entry] = msgspec.structs.replace(entry, tier=Tiered(store.place, new_mark(), stored=False))
    marked = switch(files, begun)
    stored: dict[CatalogueEntry, CatalogueEntry] = {}
    for entry in marked:
        try:
            stored[entry] = _stored(files, store, entry, moved)
        except (DamagedError, UnreachableError, FileNotFoundError) as error:
            outcome.refused[stored_path(entry.file)] = (
                error.message if isinstance(error, DiosError) else str(error.strerror)
            )
            finish(files, entry)
    # The store may have vanished meanwhile, and another folder may have taken the bytes in its place.
    store.require_present()
    switched = switch(files, {**stored, **again})
    for entry in (*stored.values(), *again.values()):
        if entry not in switched and entry.tier is not None:
            outcome.refused[stored_path(entry.file)] = "it was replaced, moved or removed meanwhile"
    for entry in stored.values():
        if entry not in switched and entry.tier is not None:
            store.remove(entry.tier.mark, entry.size)
    outcome.moved += switched
    _destroy_local(files, [*switched, *leftover])


def _require_movable(files: GroupFiles, entry: CatalogueEntry) -> None:
    """Raise if a file has no bytes, is a log, has a label, may not be destroyed, or cannot be found.

    A file that another store has, because its promise is not met, is not movable, either.
    """
    if entry.in_store and entry.tier is not None:
        raise InvalidError(
            f"it was brought back from {entry.tier.place}, which has it until its promise of replicas is met"
        )
    if not entry.size:
        raise InvalidError("it has no bytes that a store could keep")
    for name in entry.names:
        references = files.node.lookup(name, group=files.group, limit=1)
        if not references:
            raise UnreachableError(
                "its node does not answer" if references.incomplete else "its object was destroyed",
                call="lookup",
            )
        with references[0] as reference:
            if reference.type not in _BLOBS:
                raise InvalidError(f"it is a {reference.type.name}, not a file")
            if reference.secrecy:
                raise NotPermittedError(
                    f"it is labelled {', '.join(reference.secrecy)}, and nothing that has a label leaves the "
                    "cluster for a store"
                )
            if not reference.permissions & Permission.DELETE:
                raise NotPermittedError("your reference lacks the right to delete the local bytes")


def _stored(
    files: GroupFiles, store: TierStore, entry: CatalogueEntry, moved: Callable[[int], object]
) -> CatalogueEntry:
    """Store the bytes of a marked file, read them back, and return the entry that says so.

    Raises DamagedError if the local bytes are not those that were put, and DamagedBackupError if the store
    does not return what it got.
    """
    mark = entry.tier.mark if entry.tier else new_mark()
    whole, size = blake3(), 0

    def pieces() -> Iterator[memoryview]:
        nonlocal size
        for view in _local_views(files, entry):
            for start in range(0, view.nbytes, CHUNK_BYTES):
                piece = view[start : start + CHUNK_BYTES]
                # Copied before the digest is made: the bytes of an object with RAW buffering change.
                data = bytes(piece)
                whole.update(data)
                size += len(data)
                yield memoryview(data)
                moved(len(data))

    manifest = store.put(mark, pieces())
    digest = whole.digest()
    if size != entry.size or (entry.digest and digest != entry.digest):
        raise DamagedError("its bytes are not those that were put. Restore it from a replica or a backup")
    tier = Tiered(store.place, mark, stored=True, left=True, manifest=manifest)
    after = msgspec.structs.replace(entry, digest=digest, tier=tier)
    _require_returned(store, after)
    return after


def _require_returned(store: TierStore, entry: CatalogueEntry) -> None:
    """Raise DamagedBackupError if the store does not return the bytes of a file that it got."""
    reader, chunks = store.chunks(entry)
    returned = blake3()
    for chunk in chunks:
        returned.update(reader.read(chunk))
    if returned.digest() != entry.digest:
        raise DamagedBackupError(
            f"{store.place} does not return the bytes of {entry.file} that it got. The file stays local."
        )


def _local_views(files: GroupFiles, entry: CatalogueEntry) -> Iterator[memoryview]:
    if entry.in_parts:
        yield from files.parts(entry).checked()
    else:
        yield files.view(stored_path(entry.file))


def _destroy_local(files: GroupFiles, entries: Iterable[CatalogueEntry]) -> None:
    """Destroy the local objects of stored files, and note it where no node is left that may have some."""
    left = [entry for entry in entries if entry.tier is not None and entry.tier.left]
    if not left:
        return
    try:
        promises = Promises(files.node).known()
        files.hold_list(max(promised_disks(promises, files.group, entry) for entry in left))
    except UnreachableError:
        # A later run destroys the objects: with the loss of few disks an older list could be the last one.
        return
    names = [name for entry in left for name in entry.local_names]
    outcomes = destroy(files.node, names, copied=files.is_replicated)
    cleared: dict[CatalogueEntry, CatalogueEntry] = {}
    for entry in left:
        if entry.tier is not None and all(outcomes[name].complete for name in entry.local_names):
            tier = msgspec.structs.replace(entry.tier, left=False)
            cleared[entry] = msgspec.structs.replace(entry, part_bytes=0, packed_parts=b"", tier=tier)
    switch(files, cleared)
