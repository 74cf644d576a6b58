"""Repairs what can be repaired in a stopped node's store without losing anything that was acknowledged.

Not for: finding damage (``check``). Nothing is deleted: what is in the way is moved to ``lost+found`` in the
data directory, copies first and synced, then one transaction of the index, then renames. Ended at any moment
it has done a part of its work, and the next one does the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import lmdb
import msgspec

from dios import limits
from dios.errors import DamagedError
from dios.store import environment, schema
from dios.store.check import LOST_AND_FOUND, Inventory
from dios.store.directory import make_directory
from dios.store.environment import translate_errors
from dios.store.extents import Extents, sync_folder, write_exactly
from dios.store.schema import ObjectRow

_READ_ONLY: Final = 0o400


def repair(found: Inventory, *, map_bytes: int = limits.STORE_MAP_BYTES_DEFAULT) -> list[str]:
    """Repair what ``found`` says of a store whose directory the caller holds; one sentence for each change.

    Raises NoSpaceError, DamagedError when the disk refuses; what was done until then stays.
    """
    if not found.walked:
        return []
    done: list[str] = []
    with translate_errors(found.path):
        # Rows that cannot be read under a format that is not known may be whole, and newer.
        unknown = found.schema_lost and found.damaged_rows
        if not unknown and (found.damaged_rows or found.resized or found.schema_lost or found.shared):
            env = environment.open_environment(found.path, map_bytes=map_bytes)
            try:
                _repair_index(env, found, done)
            finally:
                env.close()
        if not unknown:
            _move_orphans(found, done)
    return done


def _repair_index(env: lmdb.Environment, found: Inventory, done: list[str]) -> None:
    meta = env.open_db(environment.META)
    objects = env.open_db(environment.OBJECTS)
    with env.begin(objects) as txn:
        for key in found.damaged_rows:
            file = _set_aside(found.path, "rows", f"{key.hex()}.row", txn.get(key) or b"")
            done.append(f"moved the damaged row {key.hex()} to {file}")
    twins = {key: _twin(found, key) for key in found.shared}
    with env.begin(objects, write=True) as txn:
        for key in found.damaged_rows:
            txn.delete(key)
        for key in found.resized:
            row = found.rows[key]
            record = msgspec.structs.replace(row.record, size=row.payload.size)
            _rewrite(txn, key, ObjectRow(record, row.payload))
            done.append(f"corrected the size of {schema.describe(record)} to {record.size} bytes")
        for key, extent in twins.items():
            row = found.rows[key]
            _rewrite(txn, key, ObjectRow(row.record, msgspec.structs.replace(row.payload, extent=extent)))
            done.append(f"gave {schema.describe(row.record)} a file of its own")
        if found.schema_lost:
            txn.put(environment.SCHEMA_KEY, schema.encode_schema(schema.SCHEMA_VERSION), db=meta)
            done.append(f"wrote the schema version {schema.SCHEMA_VERSION}: every row is of it")


def _rewrite(txn: lmdb.Transaction[bytes], key: bytes, row: ObjectRow) -> None:
    stored = txn.get(key)
    if stored is None:
        raise DamagedError(f"{schema.describe(row.record)} has gone from the index meanwhile")
    txn.put(key, schema.encode_row(row, schema.inline_part(stored)))


def _twin(found: Inventory, key: bytes) -> int:
    """A second name for the file of a row's extent, which is never written again."""
    folder = found.path / "extents"
    extents = Extents(folder)
    extent = found.rows[key].payload.extent
    while True:
        fresh = (extent & ~((1 << 56) - 1)) | int.from_bytes(os.urandom(7), "big")
        try:
            (folder / Extents.name(fresh)).hardlink_to(extents.path(extent))
        except FileExistsError:
            continue
        sync_folder((folder / Extents.name(fresh)).parent)
        return fresh


def _move_orphans(found: Inventory, done: list[str]) -> None:
    if not found.orphans:
        return
    target = found.path / LOST_AND_FOUND / "extents"
    make_directory(target)
    folders: set[Path] = {target}
    for extent in found.orphans:
        source = found.path / "extents" / Extents.name(extent)
        # Random ids: what is there under this name already is the same file, moved before.
        source.rename(target / source.name)
        folders.add(source.parent)
    for folder in folders:
        sync_folder(folder)
    count = len(found.orphans)
    files = "1 file" if count == 1 else f"{count} files"
    done.append(f"moved {files} that no object names to {LOST_AND_FOUND}/extents")


def _set_aside(path: Path, kind: str, name: str, data: bytes) -> str:
    """Keep ``data`` durably below lost+found, beside what is there under that name already."""
    folder = path / LOST_AND_FOUND / kind
    make_directory(folder)
    number = 0
    while True:
        file = folder / (f"{name}.{number}" if number else name)
        try:
            fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _READ_ONLY)
        except FileExistsError:
            number += 1
            continue
        try:
            write_exactly(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(folder)
        return str(file.relative_to(path))
