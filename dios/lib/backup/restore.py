"""Restoring groups of a snapshot: new groups with the same files, because no node lets a user choose a name.

A group becomes visible when all of its files are stored: its alias and its catalogue are written last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from dios import limits
from dios.client.keyring import Keyring, check_alias
from dios.client.sync.node import Group, Node
from dios.errors import DiosError, ExistsError
from dios.ids import Name
from dios.lib.backup.records import FileList, FileRecord, GroupRecord, RecordKind, Snapshot
from dios.lib.backup.repository import Repository
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS, KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tree import directory_entry
from dios.lib.kept.promises import Promises
from dios.lib.packs.chunks import ChunkSource, PackReader, StoredChunk, stored_chunks
from dios.lib.packs.failures import DamagedBackupError

_ENTRIES: Final = msgspec.msgpack.Decoder(
    list[Annotated[bytes, msgspec.Meta(max_length=limits.LOG_ENTRY_BYTES_MAX)]]
)
_APPENDED_TOGETHER: Final = 256
_FILE_BYTES_MAX: Final = limits.BLOB_BYTES_MAX * limits.FILE_PARTS_MAX


@dataclass(slots=True)
class Restored:
    """A group that was restored. ``notices`` describe promises that could not be made again.

    ``damaged`` has the files that the backup does not return, each with the reason.
    """

    alias: str
    files: int
    size: int
    notices: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)


def require_free(keyring: Keyring, node: Node, alias: str) -> None:
    """Raise ExistsError if the keyring uses the alias, with the way out."""
    check_alias(alias)
    name = keyring.groups.get(alias)
    if name is None and CATALOGUE_ALIAS + alias not in keyring.objects:
        return
    if name is not None and node.group(bytes(name)) is not None:
        raise ExistsError(
            f"there is a group {alias!r} already, and nothing of it is overwritten. Restore it as another "
            f"group: --group {alias} --as ANOTHER."
        )
    raise ExistsError(
        f"your keyring has a group {alias!r} that this node does not know. If its cluster is lost, run `dios "
        f"group forget {alias}`, and restore again; or as another group: --group {alias} --as ANOTHER."
    )


def restore_group(
    repository: Repository,
    record: GroupRecord,
    node: Node,
    keyring: Keyring,
    *,
    alias: str,
    in_cluster: bool = False,
    moved: Callable[[int], object] = lambda _: None,
) -> Restored:
    """Store everything of a group in a new group under ``alias``; ``moved`` gets the progress in bytes.

    Files whose bytes are damaged in the backup are left out. Raises ExistsError, DamagedBackupError if the
    list or every file is damaged, and the errors of creating objects. Nothing is visible then.
    """
    require_free(keyring, node, alias)
    listed = repository.files(record)
    with _new_group(node) as group:
        files = GroupFiles(node, group, KeyringCatalogue(node, keyring, alias, group))
        # The group has no alias yet, so that nobody could continue an unfinished file.
        staged = StagedFiles(files, listed=False)
        try:
            damaged = _store(repository.reader, listed, staged, moved)
            entries = _entries(listed, staged, damaged)
            keyring.add(alias, Name(group.name or b""))
            try:
                files.edit(lambda _: entries)
            except BaseException:
                keyring.remove(alias)
                raise
        except BaseException:
            staged.discard()
            raise
    lost = sum(file.size for file in listed.files if file.path in damaged)
    restored = Restored(alias, record.files - len(damaged), record.size - lost, damaged=damaged)
    if in_cluster:
        _promise_again(record, listed, entries, files, keyring, restored)
    elif record.replicas or any(file.replicas for file in listed.files):
        restored.notices.append(
            f"{alias}: the promise of replicas was not made again, because this node is in no cluster"
        )
    return restored


@contextlib.contextmanager
def _new_group(node: Node) -> Iterator[Group]:
    """Create a group, and destroy it if the body fails."""
    group = node.create_group()
    try:
        yield group
    except BaseException:
        with contextlib.suppress(DiosError):
            group.destroy()
        raise


def _store(
    reader: PackReader, listed: FileList, staged: StagedFiles, moved: Callable[[int], object]
) -> dict[str, str]:
    """Store the objects; return the files that are damaged, with the reasons. Raise if all of them are."""
    damaged: dict[str, str] = {}
    stored = 0
    for record in listed.files:
        if record.kind is RecordKind.DIRECTORY:
            continue
        own = staged
        if record.kind is RecordKind.LOG or record.secrecy or record.size > limits.INLINE_BYTES_MAX:
            # A file that is damaged leaves nothing behind, not even the first parts of a large one.
            own = StagedFiles(staged.files, listed=False, secrecy=record.secrecy or None)
        try:
            chunks = stored_chunks(listed.packs, record.chunks)
            if record.kind is RecordKind.LOG:
                _store_log(reader, record, chunks, own)
            else:
                _store_file(reader, record, chunks, own)
                moved(record.size)
        except BaseException as error:
            if own is not staged:
                own.discard()
            if not isinstance(error, DamagedBackupError):
                raise
            damaged[record.path] = error.message
            continue
        stored += 1
        if own is not staged:
            staged.take(own)
    if damaged and not stored:
        raise DamagedBackupError(next(iter(damaged.values())))
    return damaged


def _entries(listed: FileList, staged: StagedFiles, damaged: Mapping[str, str]) -> list[CatalogueEntry]:
    """Return the entries of the new catalogue, with the times of the old one."""
    entries_by_file = {entry.file: entry for entry in staged.stored()}
    return [
        directory_entry(record.path, record.put_ns)
        if record.kind is RecordKind.DIRECTORY
        else msgspec.structs.replace(entries_by_file[record.path], put_ns=record.put_ns)
        for record in listed.files
        if record.path not in damaged
    ]


def _store_file(
    reader: PackReader, record: FileRecord, chunks: list[StoredChunk], staged: StagedFiles
) -> None:
    """Store the bytes of a file, which is staged then. Raises DamagedBackupError."""
    if sum(chunk.size for chunk in chunks) != record.size or record.size > _FILE_BYTES_MAX:
        raise DamagedBackupError(f"{record.path} has another size than its chunks")
    staged.add_source(record.path, ChunkSource(reader, chunks), record.size)


def _store_log(
    reader: PackReader, record: FileRecord, chunks: list[StoredChunk], staged: StagedFiles
) -> None:
    log = staged.files.node.create_log(groups=[staged.files.group], secrecy=record.secrecy or None)
    staged.add_object(record.path, log.name or b"")
    for chunk in chunks:
        try:
            entries = _ENTRIES.decode(reader.read(chunk))
        except msgspec.DecodeError as error:
            raise DamagedBackupError(f"the log {record.path} cannot be read: {error}") from None
        for start in range(0, len(entries), _APPENDED_TOGETHER):
            log.append_all(entries[start : start + _APPENDED_TOGETHER])
    log.close()


def _promise_again(
    record: GroupRecord,
    listed: FileList,
    entries: list[CatalogueEntry],
    files: GroupFiles,
    keyring: Keyring,
    restored: Restored,
) -> None:
    """Make the promises of replicas of the group and of its files again, or record why that failed."""
    alias, promises = restored.alias, Promises(files.node)
    try:
        if record.replicas:
            catalogue = KeyringCatalogue(files.node, keyring, alias, files.group).create()
            promises.keep_group(
                files.group, catalogue, label=alias, replicas=record.replicas, apart=record.apart
            )
        wanted: dict[tuple[int, bool], dict[bytes, str]] = {}
        present = [file_record for file_record in listed.files if file_record.path not in restored.damaged]
        for file, entry in zip(present, entries, strict=True):
            if file.replicas:
                labels = dict.fromkeys(entry.names, file.path[-_LABEL_CHARACTERS:])
                wanted.setdefault((file.replicas, file.apart), {}).update(labels)
        for (replicas, apart), objects in wanted.items():
            promises.keep_objects(files.group, objects, replicas=replicas, apart=apart)
    except DiosError as error:
        restored.notices.append(f"{alias}: the promise of replicas was not made again: {error.message}")


_LABEL_CHARACTERS: Final = 100


def restore_names(snapshot: Snapshot, keyring: Keyring) -> tuple[int, list[str]]:
    """Add the names of a snapshot to the keyring; return their number and the aliases that are taken.

    For a lost keyring whose cluster still lives: the names find the groups and objects that are there.
    """
    added, taken = 0, []
    for alias, name in snapshot.keyring_groups.items():
        if keyring.groups.get(alias) == name:
            continue
        try:
            keyring.add(alias, Name(name))
            added += 1
        except ExistsError:
            taken.append(alias)
    for alias, name in snapshot.keyring_objects.items():
        if alias.removeprefix(CATALOGUE_ALIAS) in taken or keyring.objects.get(alias) == name:
            continue
        try:
            keyring.add(alias, Name(name), section="objects")
            added += 1
        except ExistsError:
            taken.append(alias)
    return added, taken
