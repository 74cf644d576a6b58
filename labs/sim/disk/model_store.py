"""A model of ``dios.store.lmdb_store`` on a simulated disk, in which every disk operation can fail.

It has every write, sync and power cut of the real algorithm, so that they can be failed one by one.

The model is faithful in these points. The rows are the real ones (``dios.store.schema``) and are read back by
the real code. Small contents follow their row. Large contents are in extents, which are created, allocated,
written, synced, their folder synced and their digest read back before a row names them. A transaction writes
changed rows and the index to free pages only, syncs, and then writes through one of two meta pages in turn.
The transaction number is the last field of a meta page, which has no checksum; the page with the larger
number is current. If a meta page cannot be written, the old page is restored without a sync and the store
refuses everything until it is opened again, as LMDB does. Old extents are removed after the commit, extents
without a row at the next start. A full map is refused before anything is written; it grows only for removals.

The model differs in these points. The tree is one flat index that each transaction writes again completely.
The free pages are computed from the last snapshots instead of being stored. Extents are in one folder instead
of 256. There is no lock file and no schema version. The tree has no checksum in LMDB either, so no bit is
flipped there. Reads through the map cannot fail with EIO, because a real process would end there.
"""

from __future__ import annotations

import contextlib
import errno
import struct
import threading
from collections.abc import Iterator, Sequence
from random import Random
from typing import ClassVar, Final, NamedTuple

from dios import limits
from dios.core.events import ObjectRecord
from dios.errors import BadReferenceError, DamagedError, DiosError, InvalidError, NoSpaceError
from dios.ids import ObjectId
from dios.store import schema
from dios.store.protocol import Change, Content, ContentState, Drop, InlineContent, Put
from dios.store.recovery import read_rows
from dios.store.schema import ContentKind, ObjectRow
from labs.sim.disk.device import Device, File
from labs.sim.disk.model_extents import ModelExtents
from labs.sim.memory_store import sealed_content, whole_payload

_META: Final = struct.Struct("<QQQQ")
_ENTRY: Final = struct.Struct("<QII")
_MAGIC: Final = 0x42444D4C4D4953
_METAS: Final = 2


class PageRange(NamedTuple):
    """A range of ``size`` bytes that begins with page ``first``."""

    first: int
    size: int


class Snapshot(NamedTuple):
    """The result of one committed transaction: its number, its index, and the place of each row."""

    number: int
    tree: PageRange
    rows: dict[ObjectId, PageRange]


class ModelStore:
    """A ``Store`` whose every operation can fail; see ``dios.store.protocol`` (§3.6).

    ``inline_bytes`` is the size of the largest content that is stored with its row, ``map_pages`` the bound
    for rows and index. The constructor reads the disk, and raises DamagedError if that fails.
    """

    extents_type: ClassVar[type[ModelExtents]] = ModelExtents

    def __init__(
        self,
        device: Device,
        rng: Random,
        *,
        map_pages: int = 1 << 14,
        inline_bytes: int = limits.INLINE_VALUE_BYTES_MAX,
    ) -> None:
        self._device: Final = device
        self._map_pages = map_pages
        self._inline_bytes: Final = inline_bytes
        self._lock: Final = threading.Lock()
        self._extents: Final = self.extents_type(device, rng)
        self._ready = False
        self.panicked = False
        """True after a commit failed half-way: its result is known after the store is opened again."""
        self.damaged: list[str] = []
        self._bytes = 0
        with _translated():
            self._file: Final = self._data_file()
            self._now = self._before = self._newest()

    # -- the store protocol -------------------------------------------------------------------------
    def recover(self) -> Iterator[ObjectRecord]:
        """Return every record in the order of object ids, and remove extents that no row names."""
        self._refuse_in_panic()
        rows = [(schema.key_of(target), self._stored(run)) for target, run in sorted(self._now.rows.items())]
        scan = read_rows(rows)
        for extent, row in scan.named.items():
            size = self._extents.size(extent)
            if size != row.payload.size:
                scan.damaged.append(schema.damaged(row.record, f"has an extent of {size} bytes").message)
        if not scan.rows_lost:
            self._extents.remove([extent for extent in self._extents.stored() if extent not in scan.named])
        self.damaged = scan.damaged
        self._bytes = scan.content_bytes
        self._ready = True
        return iter(scan.records)

    def apply(self, changes: Sequence[Change]) -> None:
        """Make all changes durable in one transaction, or none of them."""
        self._check()
        if not changes:
            return
        with self._lock, _translated():
            prepared, new = self._prepare(changes)
            try:
                freed, growth = self._transact(changes, prepared)
            except BaseException:
                if not self.panicked:
                    self._extents.remove(new)
                raise
        self._bytes += growth
        self._extents.remove(freed)

    def open_content(self, object_id: ObjectId) -> Content:
        """Return the current content after checking its digest."""
        data = self.content(object_id)
        return InlineContent(data) if len(data) <= self._inline_bytes else sealed_content(data)

    def content(self, object_id: ObjectId) -> bytes:
        """Return the current content as bytes."""
        self._check()
        with self._lock, _translated():
            run = self._now.rows.get(object_id)
            if run is None:
                raise BadReferenceError(f"the store has no {schema.object_text(object_id)}")
            stored = self._stored(run)
            row = schema.decode_row(object_id, stored)
            if row.payload.kind is not ContentKind.EXTENT:
                return self._checked(row, bytes(schema.inline_part(stored)))
            return self._checked(row, self._large(row))

    def state_of(self, object_id: ObjectId) -> ContentState:
        """Return the state of an object in the store; every read checks its content."""
        return ContentState.READY if object_id in self._now.rows else ContentState.ABSENT

    def usage(self) -> dict[str, int]:
        """Return the number of objects, bytes of content and extents."""
        self._check()
        extents = len(self._extents.stored())
        return {"objects": len(self._now.rows), "bytes": self._bytes, "extents": extents}

    def records(self) -> dict[ObjectId, ObjectRecord | None]:
        """Return every record of the last commit, None for a damaged row."""
        records: dict[ObjectId, ObjectRecord | None] = {}
        for target, run in self._now.rows.items():
            try:
                records[target] = schema.decode_row(target, self._stored(run)).record
            except DamagedError:
                records[target] = None
        return records

    def close(self) -> None:
        """Refuse all further calls."""
        self._ready = False

    def _check(self) -> None:
        if not self._ready:
            raise InvalidError("the store is closed, or recover() was not called yet")
        self._refuse_in_panic()

    def _refuse_in_panic(self) -> None:
        if self.panicked:
            raise DamagedError("the store failed half-way through a commit: open it again")

    # -- contents -----------------------------------------------------------------------------------
    def _prepare(
        self, changes: Sequence[Change]
    ) -> tuple[list[tuple[schema.Payload, bytes] | None], list[int]]:
        prepared: list[tuple[schema.Payload, bytes] | None] = []
        large: list[tuple[int, bytes]] = []
        for change in changes:
            payload = change.payload if isinstance(change, Put) else None
            data = None if payload is None else whole_payload(payload)
            if data is None or len(data) <= self._inline_bytes:
                prepared.append(None if data is None else (schema.inline_payload(data), data))
            else:
                large.append((len(prepared), data))
                prepared.append(None)
        written = self._extents.write_all([data for _, data in large]) if large else []
        for (place, data), (extent, digest) in zip(large, written, strict=True):
            prepared[place] = (schema.Payload(ContentKind.EXTENT, len(data), digest, extent), b"")
        return prepared, [extent for extent, _ in written]

    def _large(self, row: ObjectRow) -> bytes:
        try:
            return self._extents.read(row.payload.extent, row.payload.size)
        except FileNotFoundError:
            raise schema.damaged(row.record, "has lost its extent file") from None

    def _checked(self, row: ObjectRow, data: bytes) -> bytes:
        return schema.check_inline(row, data)

    # -- a transaction ------------------------------------------------------------------------------
    def _transact(
        self, changes: Sequence[Change], prepared: list[tuple[schema.Payload, bytes] | None]
    ) -> tuple[list[int], int]:
        """Commit; return the extents that no row names any more, and the growth of the contents in bytes."""
        dirty: dict[ObjectId, bytes | None] = {}
        freed: list[int] = []
        growth = 0
        for change, content in zip(changes, prepared, strict=True):
            target = change.object if isinstance(change, Drop) else change.record.object
            old = dirty[target] if target in dirty else self._peek(target)
            if isinstance(change, Drop) or content is not None:
                growth -= _forget(target, old, freed)
            if isinstance(change, Drop):
                dirty[target] = None
            elif content is not None:
                growth += content[0].size
                dirty[target] = schema.encode_row(ObjectRow(change.record, content[0]), content[1])
            elif old is not None:
                kept = schema.decode_row(target, old).payload
                dirty[target] = schema.encode_row(ObjectRow(change.record, kept), schema.inline_part(old))
            else:
                dirty[target] = schema.encode_row(ObjectRow(change.record, schema.NO_PAYLOAD))
        self._commit(dirty, may_grow=all(isinstance(change, Drop) for change in changes))
        return freed, growth

    def _commit(self, dirty: dict[ObjectId, bytes | None], *, may_grow: bool) -> None:
        """Write rows and index to free pages (copy on write), sync, then write the meta page."""
        taken = self._protected()
        rows = dict(self._now.rows)
        writes: list[tuple[int, bytes]] = []
        for target, stored in dirty.items():
            rows.pop(target, None)
            if stored is not None:
                rows[target] = self._place(stored, taken, may_grow=may_grow)
                writes.append((rows[target].first, stored))
        index = b"".join(_ENTRY.pack(target, *run) for target, run in sorted(rows.items()))
        place = self._place(index, taken, may_grow=may_grow)
        writes.append((place.first, index))
        for first, data in sorted(writes):
            if self._device.write(self._file, first * self._device.page_bytes, data) != len(data):
                raise OSError(errno.EIO, "short write")
        self._sync_rows()
        committed = Snapshot(self._now.number + 1, place, rows)
        self._write_meta(committed)
        self._before, self._now = self._now, committed

    def _protected(self) -> set[int]:
        """Return the pages that must not change: a power cut may bring back either snapshot."""
        return self._pages_of(self._now) | self._pages_of(self._before)

    def _pages_of(self, snapshot: Snapshot) -> set[int]:
        pages = set(range(_METAS))
        for run in (snapshot.tree, *snapshot.rows.values()):
            pages.update(self._pages(run))
        return pages

    def _pages(self, run: PageRange) -> range:
        return range(run.first, run.first - (-run.size // self._device.page_bytes))

    def _place(self, data: bytes, taken: set[int], *, may_grow: bool) -> PageRange:
        run = PageRange(_METAS, len(data))
        while True:
            hit = next((page for page in reversed(self._pages(run)) if page in taken), None)
            if hit is None:
                break
            run = PageRange(hit + 1, len(data))
        pages = self._pages(run)
        if pages.stop > self._map_pages:
            if not may_grow:
                raise NoSpaceError("the store's map is full: remove objects or give it more room")
            self._map_pages = pages.stop
        taken.update(pages)
        return run

    def _sync_rows(self) -> None:
        self._device.sync(self._file)

    def _meta_page(self, number: int) -> int:
        return number % _METAS

    @staticmethod
    def meta(snapshot: Snapshot) -> bytes:
        """Return the bytes of a snapshot's meta page."""
        return _META.pack(_MAGIC, *snapshot.tree, snapshot.number)

    def _write_meta(self, snapshot: Snapshot) -> None:
        offset = self._meta_page(snapshot.number) * self._device.page_bytes
        old = self._device.peek(self._file, offset, _META.size)
        try:
            self._device.write_through(self._file, offset, self.meta(snapshot))
        except OSError as error:
            # Readers see the new page although it may not be on the disk, so no read is allowed any more.
            self.panicked = True
            with contextlib.suppress(OSError):
                self._device.write(self._file, offset, old)
            raise DamagedError(f"the store stopped in the middle of a commit ({error.strerror})") from error

    # -- reading ------------------------------------------------------------------------------------
    def _data_file(self) -> File:
        try:
            return self._device.open("data")
        except FileNotFoundError:
            return self._format()

    def _format(self) -> File:
        # No promise covers a crash while an empty store is being formatted, so nothing fails here.
        with self._device.at_rest():
            file = self._device.create("data")
            self._device.allocate(file, self._device.page_bytes * _METAS)
            for number in range(_METAS):
                page = number * self._device.page_bytes
                self._device.write_through(file, page, self.meta(Snapshot(number, PageRange(_METAS, 0), {})))
            self._device.sync(file)
            self._device.sync_folder("")
        return file

    def _newest(self) -> Snapshot:
        metas = [self._read_meta(page) for page in range(_METAS)]
        # The older meta page may be torn, so its contents are not checked.
        number, tree = max(metas)
        self._require_inside(tree)
        if tree.size % _ENTRY.size:
            raise DamagedError("the store's tree is cut off")
        index = self._device.peek(self._file, tree.first * self._device.page_bytes, tree.size)
        rows = {ObjectId(target): PageRange(first, size) for target, first, size in _ENTRY.iter_unpack(index)}
        for run in rows.values():
            self._require_inside(run)
        return Snapshot(number, tree, rows)

    def _read_meta(self, page: int) -> tuple[int, PageRange]:
        data = self._device.read_unchecked(self._file, page * self._device.page_bytes, _META.size)
        meta: tuple[int, int, int, int] = _META.unpack(data)
        magic, first, size, number = meta
        if magic != _MAGIC:
            raise DamagedError("the store has lost a meta page")
        return number, PageRange(first, size)

    def _require_inside(self, run: PageRange) -> None:
        # Damaged pages may contain anything; LMDB would follow them and crash.
        if self._pages(run).stop > self._map_pages:
            raise DamagedError("the store's tree leads outside of its map")

    def _stored(self, run: PageRange) -> bytes:
        return self._device.read_mapped(self._file, run.first * self._device.page_bytes, run.size)

    def _peek(self, target: ObjectId) -> bytes | None:
        run = self._now.rows.get(target)
        if run is None:
            return None
        return self._device.peek(self._file, run.first * self._device.page_bytes, run.size)


def _forget(target: ObjectId, stored: bytes | None, freed: list[int]) -> int:
    """Record the extent of a row that is removed; return the size of its content in bytes."""
    if stored is None:
        return 0
    try:
        payload = schema.decode_row(target, stored).payload
    except DamagedError:
        return 0
    if payload.kind is ContentKind.EXTENT:
        freed.append(payload.extent)
    return payload.size


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _dios_error(error) from error


def _dios_error(error: OSError) -> DiosError:
    if error.errno == errno.ENOSPC:
        return NoSpaceError("the store is full: remove objects or give it more room")
    return DamagedError(f"the store's device failed ({error.strerror})")
