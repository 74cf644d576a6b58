"""A store on a simulated disk, by the algorithm of ``dios.store.lmdb_store``: a model to break.

Not for: a node. Its point is that every write, sync and power cut of the real algorithm is there to be
failed, one by one.

Faithful: the rows are the real ones (``dios.store.schema``) and are read back by the real code; small
contents stand behind their row, large ones in extents that are created, allocated, written, synced, their
folder synced, their digest read back, and only then named by a row; a transaction writes changed rows and
index to free pages only, syncs, and then writes through one of two meta pages in turn, whose transaction
number comes last and which has no check value; the larger number counts. After a meta page that could not
be written the old one is put back without a sync, and the store refuses everything until it is opened
again, as LMDB does. Old extents go after that, those that no row names at the next start. A full map is
refused before anything is written and grows for removals alone.

Not faithful: the tree is one flat index that each transaction writes anew, and the list of free pages is
counted from the last snapshots instead of stored; extents lie in one folder instead of 256; there is no
lock file and no schema version. The tree has no check value in LMDB either, so that no bit is flipped there.
What is read through the map cannot fail by EIO: there the process would end.
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
from dios.sim.disk.device import Device, File
from dios.sim.disk.model_extents import ModelExtents
from dios.store import schema
from dios.store.memory_store import sealed_content, whole_payload
from dios.store.protocol import Change, Content, Drop, InlineContent, Put
from dios.store.recovery import read_rows
from dios.store.schema import Kind, Row

_META: Final = struct.Struct("<QQQQ")
_ENTRY: Final = struct.Struct("<QII")
_MAGIC: Final = 0x42444D4C4D4953
_METAS: Final = 2


class Run(NamedTuple):
    """``size`` bytes that begin with page ``first``."""

    first: int
    size: int


class Snapshot(NamedTuple):
    """What one committed transaction made: its number, its index, and where each row lies."""

    number: int
    tree: Run
    rows: dict[ObjectId, Run]


class ModelStore:
    """A ``Store`` whose every operation can fail; see ``dios.store.protocol`` (§3.6).

    ``inline_bytes`` is the largest content beside its row, ``map_pages`` bounds rows and index. Opening
    one reads the disk, and raises DamagedError where that fails.
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
        """Whether a commit failed half-way: what became of it is known at the next opening."""
        self.damaged: list[str] = []
        self._bytes = 0
        with _translated():
            self._file: Final = self._data_file()
            self._now = self._before = self._newest()

    # -- the store protocol -------------------------------------------------------------------------
    def recover(self) -> Iterator[ObjectRecord]:
        """Every record, in the order of object ids; extents that no row names are removed."""
        self._refuse_in_panic()
        rows = [(schema.key_of(target), self._stored(run)) for target, run in sorted(self._now.rows.items())]
        found = read_rows(rows)
        for extent, row in found.named.items():
            size = self._extents.size(extent)
            if size != row.payload.size:
                found.damaged.append(schema.damaged(row.record, f"has an extent of {size} bytes").message)
        if not found.rows_lost:
            self._extents.remove([extent for extent in self._extents.stored() if extent not in found.named])
        self.damaged = found.damaged
        self._bytes = found.content_bytes
        self._ready = True
        return iter(found.records)

    def apply(self, changes: Sequence[Change]) -> None:
        """Make all changes durable in one transaction, or none."""
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
        """The current content, its digest checked."""
        data = self.content(object_id)
        return InlineContent(data) if len(data) <= self._inline_bytes else sealed_content(data)

    def content(self, object_id: ObjectId) -> bytes:
        """The same as bytes, for whoever needs no descriptor."""
        self._check()
        with self._lock, _translated():
            run = self._now.rows.get(object_id)
            if run is None:
                raise BadReferenceError(f"the store has no {schema.object_text(object_id)}")
            stored = self._stored(run)
            row = schema.decode_row(object_id, stored)
            if row.payload.kind is not Kind.EXTENT:
                return self._checked(row, bytes(schema.inline_part(stored)))
            return self._checked(row, self._large(row))

    def usage(self) -> dict[str, int]:
        """How many objects, bytes of content and extents there are."""
        self._check()
        extents = len(self._extents.stored())
        return {"objects": len(self._now.rows), "bytes": self._bytes, "extents": extents}

    def records(self) -> dict[ObjectId, ObjectRecord | None]:
        """Every record of the last commit, None for a damaged row; for whoever compares."""
        found: dict[ObjectId, ObjectRecord | None] = {}
        for target, run in self._now.rows.items():
            try:
                found[target] = schema.decode_row(target, self._stored(run)).record
            except DamagedError:
                found[target] = None
        return found

    def close(self) -> None:
        """Nothing works any more."""
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
            prepared[place] = (schema.Payload(Kind.EXTENT, len(data), digest, extent), b"")
        return prepared, [extent for extent, _ in written]

    def _large(self, row: Row) -> bytes:
        try:
            return self._extents.read(row.payload.extent, row.payload.size)
        except FileNotFoundError:
            raise schema.damaged(row.record, "has lost its extent file") from None

    def _checked(self, row: Row, data: bytes) -> bytes:
        return schema.check_inline(row, data)

    # -- a transaction ------------------------------------------------------------------------------
    def _transact(
        self, changes: Sequence[Change], prepared: list[tuple[schema.Payload, bytes] | None]
    ) -> tuple[list[int], int]:
        """Commit; the extents that no row names any more, and by how many bytes the contents grew."""
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
                dirty[target] = schema.encode_row(Row(change.record, content[0]), content[1])
            elif old is not None:
                kept = schema.decode_row(target, old).payload
                dirty[target] = schema.encode_row(Row(change.record, kept), schema.inline_part(old))
            else:
                dirty[target] = schema.encode_row(Row(change.record, schema.NO_PAYLOAD))
        self._commit(dirty, may_grow=all(isinstance(change, Drop) for change in changes))
        return freed, growth

    def _commit(self, dirty: dict[ObjectId, bytes | None], *, may_grow: bool) -> None:
        """Copy on write: rows and index to free pages, sync, then the meta page."""
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
        """The pages that must stay as they are: a power cut may bring back either snapshot."""
        return self._pages_of(self._now) | self._pages_of(self._before)

    def _pages_of(self, snapshot: Snapshot) -> set[int]:
        found = set(range(_METAS))
        for run in (snapshot.tree, *snapshot.rows.values()):
            found.update(self._pages(run))
        return found

    def _pages(self, run: Run) -> range:
        return range(run.first, run.first - (-run.size // self._device.page_bytes))

    def _place(self, data: bytes, taken: set[int], *, may_grow: bool) -> Run:
        run = Run(_METAS, len(data))
        while True:
            hit = next((page for page in reversed(self._pages(run)) if page in taken), None)
            if hit is None:
                break
            run = Run(hit + 1, len(data))
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
        """The bytes of a snapshot's meta page."""
        return _META.pack(_MAGIC, *snapshot.tree, snapshot.number)

    def _write_meta(self, snapshot: Snapshot) -> None:
        offset = self._meta_page(snapshot.number) * self._device.page_bytes
        old = self._device.peek(self._file, offset, _META.size)
        try:
            self._device.write_through(self._file, offset, self.meta(snapshot))
        except OSError as error:
            # Readers see the new page all the same, and must not. Whether it is on the disk nobody knows.
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
        # An empty store is made in peace: that a node must survive its very first second is no promise.
        with self._device.at_rest():
            file = self._device.create("data")
            self._device.allocate(file, self._device.page_bytes * _METAS)
            for number in range(_METAS):
                page = number * self._device.page_bytes
                self._device.write_through(file, page, self.meta(Snapshot(number, Run(_METAS, 0), {})))
            self._device.sync(file)
            self._device.sync_folder("")
        return file

    def _newest(self) -> Snapshot:
        metas = [self._read_meta(page) for page in range(_METAS)]
        # The older one may be torn: what it names is not looked at.
        number, tree = max(metas)
        self._require_inside(tree)
        if tree.size % _ENTRY.size:
            raise DamagedError("the store's tree is cut off")
        index = self._device.peek(self._file, tree.first * self._device.page_bytes, tree.size)
        rows = {ObjectId(target): Run(first, size) for target, first, size in _ENTRY.iter_unpack(index)}
        for run in rows.values():
            self._require_inside(run)
        return Snapshot(number, tree, rows)

    def _read_meta(self, page: int) -> tuple[int, Run]:
        data = self._device.read_unchecked(self._file, page * self._device.page_bytes, _META.size)
        found: tuple[int, int, int, int] = _META.unpack(data)
        magic, first, size, number = found
        if magic != _MAGIC:
            raise DamagedError("the store has lost a meta page")
        return number, Run(first, size)

    def _require_inside(self, run: Run) -> None:
        # A broken store's pages may say anything; LMDB would follow them and die.
        if self._pages(run).stop > self._map_pages:
            raise DamagedError("the store's tree leads outside of its map")

    def _stored(self, run: Run) -> bytes:
        return self._device.read_mapped(self._file, run.first * self._device.page_bytes, run.size)

    def _peek(self, target: ObjectId) -> bytes | None:
        run = self._now.rows.get(target)
        if run is None:
            return None
        return self._device.peek(self._file, run.first * self._device.page_bytes, run.size)


def _forget(target: ObjectId, stored: bytes | None, freed: list[int]) -> int:
    """Note the extent of a row that goes; the bytes of its content."""
    if stored is None:
        return 0
    try:
        payload = schema.decode_row(target, stored).payload
    except DamagedError:
        return 0
    if payload.kind is Kind.EXTENT:
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
