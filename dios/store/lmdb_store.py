"""The durable store: rows in LMDB, large contents in extent files.

``docs/formats.md`` describes the files. ``environment`` opens the database; the host's writer thread
groups the changes of many callers into one ``apply``.

The order of writes makes it safe. Extents are written and synced under names that no row has; one synced
LMDB transaction names them and forgets the old ones; then the old files are removed. A crash before the
transaction leaves new files without a row, a crash after it old files without a row; the next ``recover``
removes both.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import lmdb

from dios import limits
from dios.core.events import DormantUse, ObjectRecord
from dios.core.model.rows import IDLE_OBJECTS_MAX, is_dormant
from dios.errors import (
    BadReferenceError,
    DamagedError,
    InvalidError,
)
from dios.ids import InternalName, Name, ObjectId
from dios.store import environment, row_index, schema
from dios.store.directory import lock_directory, make_directory
from dios.store.environment import translate_errors
from dios.store.extents import Extents, Release, WrittenExtent, digest_of_file, read_exactly
from dios.store.log_files import LogFiles
from dios.store.protocol import (
    Change,
    Content,
    ContentState,
    Drop,
    ExtentContent,
    FilePayload,
    InlineContent,
    InlinePayload,
    Payload,
    Put,
)
from dios.store.recovery import collect, read_rows
from dios.store.schema import ContentKind, ObjectRow
from dios.wire.types import ObjectType

_NEW: Final = -1

_log: Final = logging.getLogger(__name__)

_Prepared: TypeAlias = tuple[schema.Payload, bytes | memoryview] | None
"""The prepared payload of a change: its description, and its bytes if they are stored in the row."""


class _Tally:
    """The changes of the totals by a transaction; applied when it is committed."""

    def __init__(self) -> None:
        self.objects = 0
        self.bytes = 0
        self.extents = 0
        self.freed: list[int] = []
        self.logs: list[ObjectId] = []

    def came(self, payload: schema.Payload) -> None:
        self.bytes += payload.size
        self.extents += payload.kind is ContentKind.EXTENT

    def went(self, payload: schema.Payload) -> None:
        self.bytes -= payload.size
        if payload.kind is ContentKind.EXTENT:
            self.extents -= 1
            self.freed.append(payload.extent)


class LmdbStore:
    """A ``Store`` in a directory; ``dios.store.protocol`` has the guarantees of each method (§3.6).

    ``path`` is created if it is missing. ``map_bytes`` bounds rows and small contents together, not the
    extents. ``release`` closes removed extents, see ``Extents``. Raises DiosError if another process has the
    directory, NotSupportedError if a newer program wrote it, DamagedError if it is not a store. ``recover``
    must be called first. One thread at a time may
    call ``apply``; any thread may call ``open_content`` and ``usage``. The process must not fork a child
    that keeps the store open.
    """

    idle_max: int | None = IDLE_OBJECTS_MAX
    """The number of objects without references that the core keeps in memory."""

    def __init__(
        self,
        path: Path,
        *,
        map_bytes: int = limits.STORE_MAP_BYTES_DEFAULT,
        release: Release = lambda fd, _: os.close(fd),
    ) -> None:
        self._path: Final = path
        self.damaged: list[str] = []
        """The damage that ``recover`` found: one sentence for each object, by fingerprint."""
        self._map_bytes = map_bytes
        # The time of the last change of each extent that is known to be sound; _NEW if it was just written.
        self._verified: Final[dict[int, int]] = {}
        # No read transaction may be open while the map moves; see _grow.
        self._map_lock: Final = threading.Lock()
        # One thread at a time writes: the map may move between the transactions of ``apply``.
        self._write_lock: Final = threading.Lock()
        self._counts: _Tally | None = None
        self._log_groups: set[Name] = set()
        self._extents: Final = Extents(path / environment.EXTENTS, release)
        self.logs: Final = LogFiles(path / "logs")
        """The logs of the store; the rows of the database have their lengths."""
        with translate_errors(self._path):
            make_directory(path)
            self._lock_fd = lock_directory(path)
        try:
            with translate_errors(self._path):
                self._extents.prepare()
                self._env: Final = environment.open_environment(path, map_bytes=map_bytes)
        except BaseException:
            os.close(self._lock_fd)
            raise
        try:
            with translate_errors(self._path):
                self._meta: Final = self._env.open_db(environment.META)
                self._is_labelled = False
                self._has_index = self._check_schema()
                self._objects: Final = self._env.open_db(environment.OBJECTS)
                self._index: Final = self._env.open_db(environment.INDEX)
        except BaseException:
            self.close()
            raise

    def recover(self) -> Iterator[ObjectRecord]:
        """Yield every record, in the order of object ids, and remove extents that no row names.

        A damaged row is reported in ``damaged`` and left out.
        """
        with translate_errors(self._path), self._map_lock:
            self._make_index()
            with self._env.begin(self._objects, None, False, True) as txn, txn.cursor() as cursor:
                recovered = read_rows(cursor.iternext())
                objects = txn.stat(self._objects)["entries"]
            collect(recovered, self._extents)
        counts = _Tally()
        counts.objects = objects
        counts.bytes = recovered.content_bytes
        counts.extents = len(recovered.named)
        self._counts = counts
        self._log_groups = row_index.log_groups_of(recovered.records)
        with translate_errors(self._path):
            recovered.damaged += self.logs.settle(recovered.records, complete=not recovered.rows_lost)
        self.damaged = recovered.damaged
        return iter(recovered.records)

    def recover_resident(
        self, progress: Callable[[int, int], None] = lambda _, __: None
    ) -> tuple[list[ObjectRecord], DormantUse]:
        """Do as ``recover``, but return only the resident records, and the use of all others.

        ``named`` and ``read`` return the others. The costs follow from the number of resident objects and of
        large contents. Damaged rows of other objects are reported when they are read. A store without an
        index gets one; ``progress`` is called with the number of rows in it and of all rows. No file is
        removed if the index lacks rows, because they could not be read when it was built.
        """
        with translate_errors(self._path), self._map_lock:
            self._make_index(progress)
            with self._env.begin() as txn:
                keys = row_index.resident_keys(txn, self._index)
                rows = [(key, txn.get(key, db=self._objects)) for key in keys]
                recovered = read_rows((key, stored) for key, stored in rows if stored is not None)
                use = row_index.dormant_use(txn, self._index)
                extents = list(row_index.named_extents(txn, self._index))
                lost = self._lost_extents(txn, extents)
                objects = txn.stat(self._objects)["entries"]
                content_bytes, extent_count = row_index.read_total(txn, self._index)
            has_all_rows = len(keys) + sum(count for _, count, _ in use.owners) >= objects
            if has_all_rows:
                known = {entry.extent for entry in extents}
                self._extents.remove([extent for extent in self._extents.stored() if extent not in known])
        counts = _Tally()
        counts.objects, counts.bytes, counts.extents = objects, content_bytes, extent_count
        self._counts = counts
        self._log_groups = row_index.log_groups_of(recovered.records)
        with translate_errors(self._path):
            logs = self.logs.settle(recovered.records, complete=has_all_rows and not recovered.rows_lost)
        self.damaged = recovered.damaged + lost + logs
        return recovered.records, use

    def _lost_extents(
        self, txn: lmdb.Transaction[bytes], extents: Iterable[row_index.NamedExtent]
    ) -> list[str]:
        """Return a sentence for each extent whose file is missing or has another size."""
        lost: list[str] = []
        for entry in extents:
            size = self._extents.size(entry.extent)
            if size != entry.size:
                reason = "has lost its extent file" if size is None else f"has an extent file of {size} bytes"
                row = _readable(schema.object_of(entry.key), txn.get(entry.key, db=self._objects) or b"")
                if row is not None:
                    lost.append(schema.damaged(row.record, reason).message)
        return lost

    def _make_index(self, progress: Callable[[int, int], None] = lambda _, __: None) -> None:
        """Build the index from the rows, if an earlier program or a repair has left the store without one."""
        if self._has_index:
            return
        row_index.rebuild(self._env, self._objects, self._index, progress)
        with self._env.begin(db=self._meta, write=True) as txn:
            txn.put(
                environment.SCHEMA_KEY,
                schema.encode_schema(schema.version_for(labelled=self._is_labelled, index=True)),
            )
        self._has_index = True

    # -- rows that are read when they are needed ---------------------------------------------------------
    def named(self, names: Sequence[InternalName]) -> list[ObjectId]:
        """Return the objects with dormant rows under these names."""
        with translate_errors(self._path, in_service=True), self._map_lock, self._env.begin() as txn:
            return [target for name in names for target in row_index.named(txn, self._index, name)]

    def read(self, target: ObjectId) -> ObjectRecord | None:
        """Return the record of a dormant row, or None; damage is reported in the log."""
        with translate_errors(self._path, in_service=True), self._map_lock, self._env.begin() as txn:
            stored = txn.get(schema.key_of(target), db=self._objects)
        if stored is None:
            return None
        try:
            record = schema.decode_row(target, stored).record
        except DamagedError as error:
            _log.error("a stored object is damaged", extra={"what": error.message})
            return None
        return record if is_dormant(record, self._log_groups) else None

    def state_of(self, object_id: ObjectId) -> ContentState:
        """Return whether the store has a content of an object, and whether it must be checked first."""
        with (
            translate_errors(self._path, in_service=True),
            self._map_lock,
            self._env.begin(self._objects, None, False, True) as txn,
        ):
            view = txn.get(schema.key_of(object_id))
            if view is None:
                return ContentState.ABSENT
            if len(schema.inline_part(view)):
                return ContentState.READY
            stored = bytes(view)
        row = _readable(object_id, stored)
        if row is None or row.payload.kind is not ContentKind.EXTENT:
            return ContentState.READY
        return ContentState.READY if row.payload.extent in self._verified else ContentState.UNCHECKED

    def apply(self, changes: Sequence[Change]) -> None:
        """Make all changes durable in one transaction, or none."""
        counts = self._ready()
        if not changes:
            return
        with translate_errors(self._path, in_service=True):
            prepared, written = self._prepare(changes)
            new = [extent.extent for extent in written]
            try:
                with self._write_lock:
                    tally = self._transact_with_room(changes, prepared)
            except BaseException as error:
                if environment.has_stopped(self._env):
                    # The last page may be on the disk. The next start reads whether it is; until then
                    # its extents must stay.
                    raise environment.stopped_error(error) from error
                self._extents.remove(new)
                raise
        counts.objects += tally.objects
        counts.bytes += tally.bytes
        counts.extents += tally.extents
        self._verified.update(dict.fromkeys(new, _NEW))
        for extent in tally.freed:
            self._verified.pop(extent, None)
        self._extents.remove(tally.freed)
        self.logs.remove(tally.logs)

    def open_content(self, object_id: ObjectId) -> Content:
        """Return the current content, checked: an extent after each start, and when its file was changed."""
        self._ready()
        key = schema.key_of(object_id)
        lost = 0
        with translate_errors(self._path, in_service=True):
            while True:
                with self._map_lock, self._env.begin(db=self._objects) as txn:
                    stored = txn.get(key)
                if stored is None:
                    raise BadReferenceError(f"the store has no {schema.object_text(object_id)}")
                row = schema.decode_row(object_id, stored)
                if row.payload.kind is not ContentKind.EXTENT:
                    return InlineContent(schema.check_inline(row, bytes(schema.inline_part(stored))))
                try:
                    return self._open_extent(row)
                except FileNotFoundError:
                    # If the object was replaced since its row was read, it has another row now.
                    if row.payload.extent == lost:
                        raise schema.damaged(row.record, "has lost its extent file") from None
                    lost = row.payload.extent

    # -- scrubbing ---------------------------------------------------------------------------------------
    def next_stored(self, after: ObjectId | None) -> tuple[ObjectId, bytes] | None:
        """Return the first object whose id is larger than ``after``, and its row as it is stored."""
        first = schema.key_of(ObjectId(0 if after is None else after + 1))
        with (
            translate_errors(self._path, in_service=True),
            self._map_lock,
            self._env.begin(self._objects) as txn,
            txn.cursor() as cursor,
        ):
            if not cursor.set_range(first):
                return None
            key, stored = cursor.item()
        return schema.object_of(key), stored

    def stored(self, target: ObjectId) -> bytes | None:
        """Return the row of an object as it is stored, or None."""
        with (
            translate_errors(self._path, in_service=True),
            self._map_lock,
            self._env.begin(self._objects) as txn,
        ):
            return txn.get(schema.key_of(target))

    def open_extent(self, extent: int) -> int:
        """Return a new descriptor of an extent, whose content is not checked. Raise OSError."""
        return self._extents.open(extent)

    def distrust(self, extent: int) -> None:
        """Check an extent again when it is opened next, because it was found damaged."""
        self._verified.pop(extent, None)

    def restore(self, row: ObjectRow, payload: Payload) -> bool:
        """Replace a damaged content by the same bytes from elsewhere, durably; the record does not change.

        ``payload`` is compared with the digest of ``row``: raise InvalidError if it is another content.
        Return False, with nothing changed, if the object was written or dropped since ``row`` was read.
        Any thread may call it.
        """
        self._ready()
        with translate_errors(self._path, in_service=True):
            prepared, written = self._prepare([Put(row.record, payload)])
            new = [extent.extent for extent in written]
            try:
                with self._write_lock:
                    freed = self._replace_content(row, prepared[0])
            except BaseException as error:
                if environment.has_stopped(self._env):
                    raise environment.stopped_error(error) from error
                self._extents.remove(new)
                raise
        if freed is None:
            self._extents.remove(new)
            return False
        self._verified.update(dict.fromkeys(new, _NEW))
        for extent in freed:
            self._verified.pop(extent, None)
        self._extents.remove(freed)
        return True

    def _replace_content(self, row: ObjectRow, content: _Prepared) -> list[int] | None:
        """Write a row with other bytes of the same digest. Return the extents that it named before."""
        if content is None or (content[0].size, content[0].digest) != (row.payload.size, row.payload.digest):
            raise InvalidError(f"these are not the bytes of {schema.describe(row.record)}")
        tally = _Tally()
        index = row_index.IndexChanges(self._log_groups)
        key = schema.key_of(row.record.object)
        with self._env.begin(db=self._objects, write=True) as txn:
            stored = txn.get(key)
            present = None if stored is None else _readable(row.record.object, stored)
            if present is None or present.payload != row.payload:
                return None
            _put(txn, present.record, content, tally, index)
            index.write(txn, self._index)
        return tally.freed

    def usage(self) -> dict[str, int]:
        """Return the number of objects, bytes of content, and extent files."""
        counts = self._ready()
        return {"objects": counts.objects, "bytes": counts.bytes, "extents": counts.extents}

    def close(self) -> None:
        """Close the database and free the directory; a second call does nothing."""
        if self._lock_fd < 0:
            return
        self._counts = None
        self._extents.close()
        self.logs.close()
        self._env.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _ready(self) -> _Tally:
        if self._counts is None:
            raise InvalidError("the store is closed, or recover() was not called yet")
        return self._counts

    def _check_schema(self) -> bool:
        """Check the schema version; return True if the store has an index."""
        with self._env.begin(db=self._meta, write=True) as txn:
            version = environment.read_schema(self._env, txn, self._meta, self._path)
            if not version:
                txn.put(environment.SCHEMA_KEY, schema.encode_schema(schema.SCHEMA_VERSION))
        self._is_labelled = schema.is_labelled(version)
        return not version or schema.has_index(version)

    def _prepare(self, changes: Sequence[Change]) -> tuple[list[_Prepared], list[WrittenExtent]]:
        prepared: list[_Prepared] = []
        large: list[Payload] = []
        places: list[int] = []
        for change in changes:
            payload = change.payload if isinstance(change, Put) else None
            if payload is None:
                prepared.append(None)
            elif _size(payload) <= limits.INLINE_VALUE_BYTES_MAX:
                data = (
                    read_exactly(payload.fd, payload.size)
                    if isinstance(payload, FilePayload)
                    else payload.data
                )
                prepared.append((schema.inline_payload(data), data))
            else:
                places.append(len(prepared))
                large.append(payload)
                prepared.append(None)
        written = self._extents.write_all(large) if large else []
        for place, new in zip(places, written, strict=True):
            prepared[place] = (schema.Payload(ContentKind.EXTENT, new.size, new.digest, new.extent), b"")
        return prepared, written

    def _transact_with_room(self, changes: Sequence[Change], prepared: list[_Prepared]) -> _Tally:
        # LMDB copies the pages that it changes, so even a deletion needs room: nothing could be removed
        # from a full map. The map grows for that, and only for that.
        while True:
            try:
                return self._transact(changes, prepared)
            except lmdb.MapFullError:
                if any(isinstance(change, Put) for change in changes):
                    raise
                self._map_bytes += limits.STORE_MAP_GROWTH_BYTES
                with self._map_lock:
                    self._env.set_mapsize(self._map_bytes)

    def _transact(self, changes: Sequence[Change], prepared: list[_Prepared]) -> _Tally:
        tally = _Tally()
        index = row_index.IndexChanges(self._log_groups)
        txn = self._env.begin(db=self._objects, write=True)
        try:
            for change, content in zip(changes, prepared, strict=True):
                if isinstance(change, Drop):
                    _drop(txn, change.object, tally, index)
                else:
                    _put(txn, change.record, content, tally, index)
            index.write(txn, self._index)
            labelled = self._is_labelled or any(
                not isinstance(change, Drop) and change.record.secrecy for change in changes
            )
            if index.is_incomplete or labelled is not self._is_labelled:
                # Without an index, the next start builds it again.
                whole = self._has_index and not index.is_incomplete
                version = schema.version_for(labelled=labelled, index=whole)
                txn.put(environment.SCHEMA_KEY, schema.encode_schema(version), db=self._meta)
            txn.commit()
            self._is_labelled = labelled
            if index.is_incomplete:
                self._has_index = False
        except BaseException:
            txn.abort()
            raise
        return tally

    def _open_extent(self, row: ObjectRow) -> ExtentContent:
        payload = row.payload
        fd = self._extents.open(payload.extent)
        try:
            # This store never writes to it again: a later change is by another program, or a restored copy.
            changed = os.fstat(fd).st_ctime_ns
            known = self._verified.get(payload.extent)
            if known not in {changed, _NEW}:
                _verify(fd, row)
            if known != changed:
                self._verified[payload.extent] = changed
        except BaseException:
            os.close(fd)
            raise
        return ExtentContent(fd, payload.size)


def _verify(fd: int, row: ObjectRow) -> None:
    try:
        whole = os.fstat(fd).st_size == row.payload.size
        sound = whole and digest_of_file(fd, row.payload.size) == row.payload.digest
    except OSError as error:
        raise schema.damaged(row.record, f"cannot be read ({error.strerror})") from error
    if not sound:
        raise schema.damaged(row.record)


def _size(payload: Payload) -> int:
    return len(payload.data) if isinstance(payload, InlinePayload) else payload.size


def _drop(
    txn: lmdb.Transaction[bytes], object_id: ObjectId, tally: _Tally, index: row_index.IndexChanges
) -> None:
    key = schema.key_of(object_id)
    stored = txn.get(key)
    if stored is None:
        return
    old = _readable(object_id, stored)
    if old is not None:
        tally.went(old.payload)
        if old.record.type is ObjectType.DURABLE_STREAM:
            tally.logs.append(object_id)
        index.replace(old, None)
    else:
        index.is_incomplete = True
    txn.delete(key)
    tally.objects -= 1


def _put(
    txn: lmdb.Transaction[bytes],
    record: ObjectRecord,
    content: _Prepared,
    tally: _Tally,
    index: row_index.IndexChanges,
) -> None:
    key = schema.key_of(record.object)
    stored = txn.get(key)
    inline: bytes | memoryview
    old: ObjectRow | None = None
    if content is not None:
        payload, inline = content
        old = None if stored is None else _readable(record.object, stored)
        if old is not None:
            tally.went(old.payload)
        tally.came(payload)
    elif stored is not None:
        # Only the record is new. For a damaged row this fails, because its content would be lost silently.
        old = schema.decode_row(record.object, stored)
        payload, inline = old.payload, schema.inline_part(stored)
    else:
        payload, inline = schema.NO_PAYLOAD, b""
    tally.objects += stored is None
    index.is_incomplete = index.is_incomplete or (stored is not None and old is None)
    new = ObjectRow(record, payload)
    index.replace(old, new)
    row = schema.encode_row(new, inline)
    if stored is not None:
        # A row that this transaction wrote would keep its pages, more than a smaller one needs. The check
        # of the database's pages takes those for damage.
        txn.delete(key)
    txn.put(key, row)


def _readable(object_id: ObjectId, stored: bytes) -> ObjectRow | None:
    # A damaged row may be replaced or dropped; the next start finds the extent that it named.
    try:
        return schema.decode_row(object_id, stored)
    except DamagedError:
        return None
