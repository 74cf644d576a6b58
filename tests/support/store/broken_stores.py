"""The model store with one rule of its algorithm broken, each as somebody might.

Not for: being right. ``tests/sim/test_faults.py`` shows that the checker finds every one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dios.ids import ObjectId
from dios.store import schema
from dios.store.protocol import Change, Put
from dios.store.schema import ContentKind, ObjectRow
from labs.sim.disk.device import File
from labs.sim.disk.model_extents import ModelExtents
from labs.sim.disk.model_store import ModelStore, Snapshot


class NoSyncBeforeMeta(ModelStore):
    """The meta page goes to the disk while the rows may still be on their way."""

    def _sync_rows(self) -> None:
        pass


class FailedSyncIgnored(ModelStore):
    """A sync that fails is taken for one that works."""

    def _sync_rows(self) -> None:
        with contextlib.suppress(OSError):
            super()._sync_rows()


class FailedSyncRepeated(ModelStore):
    """After a sync that failed the next one is believed, though it no longer knows of the lost pages."""

    def _sync_rows(self) -> None:
        try:
            super()._sync_rows()
        except OSError:
            super()._sync_rows()


class MetaNotSynced(ModelStore):
    """The commit is acknowledged before its meta page is on the disk."""

    def _write_meta(self, snapshot: Snapshot) -> None:
        page = self._meta_page(snapshot.number)
        self._device.write(self._file, page * self._device.page_bytes, self.meta(snapshot))


class OneMetaPage(ModelStore):
    """Every commit writes over the only valid meta page."""

    def _meta_page(self, number: int) -> int:
        del number
        return 0


class NoCopyOnWrite(ModelStore):
    """A transaction writes over pages that the last commit still needs."""

    def _protected(self) -> set[int]:
        return {0, 1}


class _ExtentsNotSynced(ModelExtents):
    def _sync(self, file: File) -> None:
        pass


class ExtentsNotSynced(ModelStore):
    """A row names an extent whose bytes may not be on the disk."""

    extents_type = _ExtentsNotSynced


class _FolderNotSynced(ModelExtents):
    def _sync_folder(self) -> None:
        pass


class FolderNotSynced(ModelStore):
    """A row names an extent whose directory entry may not be on the disk."""

    extents_type = _FolderNotSynced


class RemovesTooEarly(ModelStore):
    """An extent that is replaced goes before the commit that replaces it."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Remove first, commit afterwards."""
        for change in changes:
            stored = self._peek(change.record.object) if isinstance(change, Put) else None
            if stored is not None and isinstance(change, Put) and change.payload is not None:
                payload = schema.decode_row(change.record.object, stored).payload
                if payload.kind is ContentKind.EXTENT:
                    self._extents.remove([payload.extent])
        super().apply(changes)


class KeepsRefused(ModelStore):
    """The changes of a batch that was refused are in memory all the same."""

    def _commit(self, dirty: dict[ObjectId, bytes | None], *, may_grow: bool) -> None:
        before = self._now
        try:
            super()._commit(dirty, may_grow=may_grow)
        except OSError:
            rows = {target: run for target, run in before.rows.items() if target not in dirty}
            self._now = before._replace(rows=rows)
            raise


class ServesDamaged(ModelStore):
    """The digest of a content is not looked at."""

    def _checked(self, row: ObjectRow, data: bytes) -> bytes:
        del row
        return data
