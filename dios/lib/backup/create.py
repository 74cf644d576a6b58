"""Making a snapshot: what is new in the groups is stored in packs, then the snapshot that names everything.

A run that breaks off leaves packs that no snapshot names, and every earlier snapshot as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from dios import limits
from dios.client.keyring import Keyring
from dios.client.sync.node import Log, Reference
from dios.errors import (
    BadReferenceError,
    Busy,
    Conflict,
    DamagedError,
    DiosError,
    InvalidError,
    NotPermittedError,
    NotSupportedError,
    StaleError,
    UnreachableError,
)
from dios.lib.backup import records
from dios.lib.backup.records import FileList, FileRecord, GroupRecord, RecordKind, Snapshot
from dios.lib.backup.repository import (
    ReadSnapshot,
    Repository,
    create_repository,
    open_repository,
    rollback_sign,
)
from dios.lib.catalogue import CatalogueEntry
from dios.lib.counters import show_counters
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.group_list import BATCH_OBJECTS
from dios.lib.files.paths import stored_path
from dios.lib.files.tree import FileTree
from dios.lib.kept.promises import KeptStatus
from dios.lib.packs.chunks import CHUNK_BYTES, PackNumbers, PackWriter, StoredChunk, pack_ids, stored_chunks
from dios.lib.packs.configuration import BACKUP, new_key, read_config
from dios.lib.packs.failures import DamagedBackupError, TargetError
from dios.lib.packs.keys import PrivateKey, Recipient
from dios.lib.packs.targets import Target
from dios.lib.packs.tier_store import stored_pieces
from dios.lib.packs.writer_state import StateFile, WriterState
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType

_BASES_MAX: Final = 16
"""The snapshots that are searched for the last one of each group."""
_LOG_CHUNK_BYTES: Final = 1 * limits.MIB
_LEFT_OUT_SHOWN_MAX: Final = 1_000
_LOOKS_MAX: Final = 3
"""Times that a catalogue is read again for files that were replaced while they were read."""
_UNREADABLE: Final = (
    BadReferenceError,
    Busy,
    Conflict,
    DamagedError,
    NotPermittedError,
    NotSupportedError,
    StaleError,
    UnreachableError,
)
"""Errors of one file or catalogue. All others end the run: of the target, of the connection, of limits."""
_BLOBS: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB, ObjectType.PRIVMEM_BLOB})


class Source(NamedTuple):
    """A group to store."""

    alias: str
    name: bytes
    files: GroupFiles

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"Source({self.alias!r})"


@dataclass(slots=True)
class Created:
    """The outcome of a run."""

    sequence: int = 0
    time_ns: int = 0
    files: int = 0
    size: int = 0
    read_bytes: int = 0
    """The bytes that were read from nodes, because they were new or could have changed."""
    stored_bytes: int = 0
    """The bytes of the packs that were stored."""
    left_out: list[str] = field(default_factory=list)
    """The files and groups that could not be read, each with the reason; at most 1,000 of them."""
    left_out_count: int = 0

    def leave_out(self, subject: str, why: str) -> None:
        """Record that something is not in the snapshot."""
        self.left_out_count += 1
        if len(self.left_out) < _LEFT_OUT_SHOWN_MAX:
            self.left_out.append(f"{subject}: {why}")


class _Base:
    """The contents of earlier snapshots: chunks by digest, and files by group and name."""

    def __init__(
        self, repository: Repository, sources: Iterable[Source], newest: Iterable[ReadSnapshot]
    ) -> None:
        self.chunks: Final[dict[bytes, StoredChunk]] = {}
        self._files: Final[dict[bytes, dict[bytes, tuple[FileRecord, list[StoredChunk]]]]] = {}
        self._packs: Final = pack_ids(repository.target)
        missing = {source.name: source.alias for source in sources}
        # A restored group has another name, and the same files.
        aliases = set(missing.values())
        for snapshot, _ in islice(newest, _BASES_MAX):
            for group in snapshot.groups:
                if group.name not in missing and group.alias not in aliases:
                    continue
                try:
                    listed = repository.files(group)
                except DamagedBackupError:
                    # An older snapshot may have an intact list. Without one everything is stored again.
                    continue
                missing.pop(group.name, None)
                aliases.discard(group.alias)
                self._enter(group, listed)
            if not missing:
                return

    def _enter(self, group: GroupRecord, listed: FileList) -> None:
        known = self._files[group.name] = {}
        for chunk in stored_chunks(group.packs, group.chunks):
            self.chunks.setdefault(chunk.digest, chunk)
        for record in listed.files:
            chunks = stored_chunks(listed.packs, record.chunks)
            # A chunk whose pack was lost is stored again.
            present = [chunk for chunk in chunks if chunk.pack in self._packs]
            self.chunks.update((chunk.digest, chunk) for chunk in present)
            if len(present) == len(chunks):
                known[record.name] = (record, chunks)

    def add_packs(self, chunks: Iterable[StoredChunk]) -> None:
        """Add what a run that broke off has stored."""
        for chunk in chunks:
            if chunk.pack in self._packs:
                self.chunks.setdefault(chunk.digest, chunk)

    def unchanged(
        self, group: bytes, read: tuple[int, int], name: bytes, size: int
    ) -> list[StoredChunk] | None:
        """Return the chunks of a file if its object has the version that was stored, else None.

        ``read`` is the id and the version of the object, of a file in parts those of its first part, which
        no other file has.
        """
        record, chunks = self._files.get(group, {}).get(name, (None, []))
        if record is None or record.kind is not RecordKind.FILE or record.size != size:
            return None
        same = (record.object_id, record.version) == read
        return chunks if same else None


class _Promised(NamedTuple):
    replicas: int = 0
    apart: bool = False


class _Run:
    """One run: its writer, and what it found."""

    def __init__(
        self,
        repository: Repository,
        base: _Base,
        promises: Sequence[KeptStatus],
        moved: Callable[[int], object],
        stored: Callable[[list[StoredChunk]], object],
    ) -> None:
        self.base: Final = base
        self.writer: Final = PackWriter(
            repository.target, repository.key, base.chunks, compress=repository.compress, stored=stored
        )
        self.promised: Final[Mapping[tuple[str, bool], _Promised]] = {
            (promise.key, promise.is_single): _Promised(promise.replicas, promise.apart)
            for promise in promises
        }
        self.moved: Final = moved
        self.outcome: Final = Created()

    def group(self, source: Source) -> GroupRecord | None:
        """Store the files of a group and their list. None, recorded as left out, if it cannot be read."""
        try:
            tree = FileTree(source.files.entries())
        except _UNREADABLE as error:
            self.outcome.leave_out(source.alias, error.message)
            return None
        numbers = PackNumbers()
        files = [
            FileRecord(RecordKind.DIRECTORY, path, b"", 0, entry.put_ns, 0, 0, ())
            for path, entry in tree.explicit_directories.items()
            if path
        ]
        files += self._files(source, tree, numbers)
        listed = records.encode(FileList(records.FORMAT_VERSION, numbers.packs, tuple(files)))
        own = PackNumbers()
        places = own.places(self.writer.add_all(listed))
        kept = self.promised.get((fingerprint(source.name), False), _Promised())
        count = sum(record.kind is not RecordKind.DIRECTORY for record in files)
        size = sum(record.size for record in files)
        self.outcome.files += count
        self.outcome.size += size
        return GroupRecord(
            source.alias, source.name, count, size, kept.replicas, kept.apart, own.packs, places
        )

    def _files(self, source: Source, tree: FileTree, numbers: PackNumbers) -> Iterator[FileRecord]:
        """Yield the records of files and logs, whose bytes are stored then."""
        entries = list(tree.files.values())
        for looks_left in reversed(range(_LOOKS_MAX)):
            lost: dict[str, tuple[CatalogueEntry, str]] = {}
            yield from self._read_files(source, entries, numbers, lost)
            if not lost:
                return
            try:
                files = FileTree(source.files.entries()).files
            except _UNREADABLE:
                files = tree.files
            entries = []
            for path, (entry, why) in lost.items():
                present = files.get(path)
                if present is not None and present.name != entry.name and looks_left:
                    entries.append(present)
                elif present is not None:
                    self.outcome.leave_out(f"{source.alias}/{path}", why)

    def _read_files(
        self,
        source: Source,
        entries: Iterable[CatalogueEntry],
        numbers: PackNumbers,
        lost: dict[str, tuple[CatalogueEntry, str]],
    ) -> Iterator[FileRecord]:
        """Yield the records of these entries. Those that cannot be read are ``lost``, with the reason."""
        waiting = iter(entries)
        while some := list(islice(waiting, BATCH_OBJECTS)):
            for entry in some:
                if entry.tiered:
                    record = self._tiered_file(entry, source, numbers, lost)
                    if record is not None:
                        yield record
            for entry, reference, why in _looked_up(
                source, [candidate for candidate in some if not candidate.tiered]
            ):
                path = stored_path(entry.file)
                record = None
                if reference is None:
                    lost[path] = (entry, why)
                else:
                    try:
                        with reference:
                            record = self._file(source, path, entry, reference, numbers)
                    except _UNREADABLE as error:
                        lost[path] = (entry, error.message)
                if path in lost and entry.in_store:
                    # It was brought back, and its objects were lost.
                    del lost[path]
                    record = self._tiered_file(entry, source, numbers, lost)
                if record is not None:
                    yield record

    def _tiered_file(
        self,
        entry: CatalogueEntry,
        source: Source,
        numbers: PackNumbers,
        lost: dict[str, tuple[CatalogueEntry, str]],
    ) -> FileRecord | None:
        """Store the bytes of a tiered file, from its store; None if it is ``lost``, with the reason.

        The random mark of the bytes stands for the object: the next run does not read them again.
        """
        path, mark = stored_path(entry.file), _mark_number(entry)
        chunks = self.base.unchanged(source.name, (mark, 0), entry.name, entry.size)
        if chunks is None:
            try:
                chunks = [
                    chunk
                    for piece in stored_pieces(source.files.group, entry)
                    for chunk in self._add_blob(piece)
                ]
            except (DamagedBackupError, InvalidError, OSError, TargetError) as error:
                why = error.message if isinstance(error, DiosError) else str(error)
                lost[path] = (entry, f"it is tiered, and its bytes cannot be read: {why}")
                return None
        self.moved(entry.size)
        return FileRecord(
            RecordKind.FILE, path, entry.name, entry.size, entry.put_ns, mark, 0, numbers.places(chunks)
        )

    def _file(
        self, source: Source, path: str, entry: CatalogueEntry, reference: Reference, numbers: PackNumbers
    ) -> FileRecord | None:
        if reference.type in _BLOBS:
            show_counters(reference)
        kind, size = RecordKind.FILE, reference.size
        # Taken before the bytes are read: those of a later version are read again the next time.
        object_id, version = reference.object_id, reference.v_w
        chunks: list[StoredChunk] | None
        if isinstance(reference, Log):
            kind = RecordKind.LOG
            chunks = self._read_log(reference)
            size = sum(chunk.size for chunk in chunks)
        elif reference.type not in _BLOBS:
            self.outcome.leave_out(f"{source.alias}/{path}", f"a {reference.type.name} is not stored")
            return None
        else:
            size = entry.size if entry.digest else reference.size
            chunks = self.base.unchanged(source.name, (object_id, version), entry.name, size)
            if chunks is None:
                chunks = self._read_file(source, entry, reference)
                size = sum(chunk.size for chunk in chunks)
            self.moved(size)
        kept = self.promised.get((fingerprint(entry.name), True), _Promised())
        return FileRecord(
            kind,
            path,
            entry.name,
            size,
            entry.put_ns,
            object_id,
            version,
            numbers.places(chunks),
            kept.replicas,
            kept.apart,
            tuple(reference.secrecy),
        )

    def _read_file(self, source: Source, entry: CatalogueEntry, reference: Reference) -> list[StoredChunk]:
        """Store the bytes of a sound replica. Without a digest, those of ``reference`` are read."""
        if not entry.digest:
            return self._add_blob(reference.view_bytes()) if reference.size else []
        if not entry.in_parts:
            return self._add_blob(self._sound_view(source, entry, reference))
        try:
            return [chunk for view in source.files.parts(entry).checked() for chunk in self._add_blob(view)]
        except FileNotFoundError:
            raise StaleError("it was replaced or removed meanwhile") from None

    @staticmethod
    def _sound_view(source: Source, entry: CatalogueEntry, reference: Reference) -> memoryview:
        """Return the bytes of ``reference``, or those of another replica if they are not the right ones."""
        with suppress(DiosError):
            view = reference.view_bytes()
            if blake3(view).digest() == entry.digest:
                return view
        return source.files.replicas(entry).checked_view()

    def _add_blob(self, view: memoryview) -> list[StoredChunk]:
        self.outcome.read_bytes += view.nbytes
        # Copied before the digest is made: the bytes of an object with RAW buffering change under a view.
        return [
            self.writer.add(bytes(view[start : start + CHUNK_BYTES]))
            for start in range(0, view.nbytes, CHUNK_BYTES)
        ]

    def _read_log(self, log: Log) -> list[StoredChunk]:
        """Store the entries. The chunks of entries that were stored before are the same ones."""
        chunks: list[StoredChunk] = []
        waiting: list[bytes] = []
        waiting_bytes = 0
        for entry in log.entries():
            waiting.append(entry.data)
            waiting_bytes += len(entry.data) + limits.LOG_HEAD_BYTES
            if waiting_bytes >= _LOG_CHUNK_BYTES:
                chunks.append(self._add_entries(waiting))
                waiting, waiting_bytes = [], 0
        if waiting:
            chunks.append(self._add_entries(waiting))
        return chunks

    def _add_entries(self, entries: list[bytes]) -> StoredChunk:
        data = msgspec.msgpack.encode(entries)
        self.outcome.read_bytes += len(data)
        return self.writer.add(data)


def _mark_number(entry: CatalogueEntry) -> int:
    return int.from_bytes(entry.tier.mark[:8], "big") if entry.tier else 0


def _looked_up(
    source: Source, entries: list[CatalogueEntry]
) -> Iterator[tuple[CatalogueEntry, Reference | None, str]]:
    """Yield each entry with a reference to its object, or with the reason why there is none."""
    node, group = source.files.node, source.files.group
    with node.batch() as batch:
        asked = [batch.add(node.lookup, entry.name, group=group, limit=1) for entry in entries]
    for entry, pending in zip(entries, asked, strict=True):
        try:
            references = pending.result()
            if not references and references.incomplete:
                # In a message with others a lookup does not wait for the other nodes of a cluster.
                references = node.lookup(entry.name, group=group, limit=1)
        except _UNREADABLE as error:
            yield entry, None, error.message
            continue
        why = "its node does not answer" if references.incomplete else "its object was destroyed"
        yield entry, references[0] if references else None, why


class Writer:
    """A backup that this machine makes: its repository, and the state that the machine keeps of it.

    The caller holds the lock of the state from before this object is made until after its last use.
    """

    def __init__(
        self,
        target: Target,
        *,
        recipient: Recipient | None = None,
        key: PrivateKey | None = None,
        accept_rollback: bool = False,
    ) -> None:
        """Open the backup in ``target``, or begin one for ``recipient``.

        A machine that did not make the backup needs ``key`` once. Raises InvalidError, TargetError,
        OSError, and DamagedBackupError if the target is older than this machine knows it, which
        ``accept_rollback`` permits.
        """
        self._state_file: Final = StateFile(target.place)
        state = self._state_file.load()
        config = read_config(target, BACKUP)
        if config is None and (state is None or not state.sequence or accept_rollback):
            self.repository = self._begin(target, recipient)
            return
        if config is not None and recipient is not None and recipient.public != config.recipient:
            raise InvalidError(
                f"the backup in {target.place} is for another recipient. Leave --recipient out, or choose "
                "another target."
            )
        self.repository = open_repository(target, key)
        same = state is not None and state.repository == self.repository.key.repository
        self._after = state.sequence if state is not None and same else 0
        newest = next(self.repository.readable([]), None)
        sign = rollback_sign(self.repository, newest)
        if sign and not accept_rollback:
            raise DamagedBackupError(
                f"{target.place} was rolled back: {sign}. Find out who changed it. --accept-rollback "
                "continues with what is there."
            )
        if not same:
            self._state_file.save(WriterState(self.repository.key.repository, self.repository.key.key))

    def _begin(self, target: Target, recipient: Recipient | None) -> Repository:
        if recipient is None:
            raise InvalidError(
                f"there is no backup in {target.place} yet. Begin it with --recipient FILE; `dios backup "
                "keygen` makes the file."
            )
        key = new_key()
        self._after = 0
        # First, so that no backup is begun whose key this machine does not have.
        self._state_file.save(WriterState(key.repository, key.key))
        return create_repository(target, recipient, key)

    def create(
        self,
        sources: Sequence[Source],
        keyring: Keyring,
        *,
        promises: Sequence[KeptStatus] = (),
        moved: Callable[[int], object] = lambda _: None,
    ) -> Created:
        """Store a snapshot of these groups and of the keyring's names; ``moved`` gets the progress in bytes.

        Files that cannot be read are left out, and reported. Raises TargetError, OSError, LimitError.
        """
        repository = self.repository
        newest = repository.readable([])
        first = next(newest, None)
        base = _Base(repository, sources, newest if first is None else chain([first], newest))
        base.add_packs(self._state_file.stored_packs())
        run = _Run(repository, base, promises, moved, self._state_file.add_pack)
        groups = [record for source in sources if (record := run.group(source)) is not None]
        run.writer.flush()
        outcome = run.outcome
        outcome.sequence = max([self._after, *repository.sequences()]) + 1
        outcome.time_ns = time.time_ns()
        outcome.stored_bytes = run.writer.stored_bytes
        digest = repository.write(
            Snapshot(
                records.FORMAT_VERSION,
                repository.key.repository,
                outcome.sequence,
                outcome.time_ns,
                b"" if first is None else first.digest,
                outcome.left_out_count,
                tuple(groups),
                {alias: bytes(name) for alias, name in keyring.groups.items()},
                {alias: bytes(name) for alias, name in keyring.objects.items()},
            )
        )
        self._after = outcome.sequence
        key = repository.key
        self._state_file.save(WriterState(key.repository, key.key, outcome.sequence, outcome.time_ns, digest))
        self._state_file.remove_packs()
        return outcome
