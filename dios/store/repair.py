"""Repairs the store of a stopped node without losing anything that was acknowledged.

``check`` finds the damage. Nothing is deleted: damaged and unused files are moved to ``lost+found`` in the
data directory. Copies are made and synced first, then one transaction changes the index, then files are
renamed. An interrupted repair has done a part of the work, and the next one does the rest.
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


def repair(inventory: Inventory, *, map_bytes: int = limits.STORE_MAP_BYTES_DEFAULT) -> list[str]:
    """Repair the findings about a store whose directory the caller holds; return a sentence per change.

    Raises NoSpaceError or DamagedError if the disk fails; earlier changes stay.
    """
    if not inventory.walked:
        return []
    done: list[str] = []
    with translate_errors(inventory.path):
        # Rows that cannot be read in a store of unknown format may be sound, and of a newer format.
        unknown = inventory.schema_lost and inventory.damaged_rows
        rows_change = inventory.damaged_rows or inventory.resized or inventory.shared
        if not unknown and (rows_change or inventory.schema_lost or inventory.index_differs):
            rows = {key: inventory.rows[key] for key in (*inventory.resized, *inventory.shared)}
            env = environment.open_environment(inventory.path, map_bytes=map_bytes)
            try:
                _repair_index(env, inventory, rows, done)
            finally:
                env.close()
        if not unknown:
            _move_orphans(inventory, done)
    return done


def _repair_index(
    env: lmdb.Environment, inventory: Inventory, rows: dict[bytes, ObjectRow], done: list[str]
) -> None:
    meta = env.open_db(environment.META)
    objects = env.open_db(environment.OBJECTS)
    with env.begin(objects) as txn:
        for key in inventory.damaged_rows:
            file = _set_aside(inventory.path, "rows", f"{key.hex()}.row", txn.get(key) or b"")
            done.append(f"moved the damaged row {key.hex()} to {file}")
    twins = {key: _twin(inventory.path, rows[key].payload.extent) for key in inventory.shared}
    with env.begin(objects, write=True) as txn:
        for key in inventory.damaged_rows:
            txn.delete(key)
        for key in inventory.resized:
            row = rows[key]
            record = msgspec.structs.replace(row.record, size=row.payload.size)
            _rewrite(txn, key, ObjectRow(record, row.payload))
            done.append(f"corrected the size of {schema.describe(record)} to {record.size} bytes")
        for key, extent in twins.items():
            row = rows[key]
            _rewrite(txn, key, ObjectRow(row.record, msgspec.structs.replace(row.payload, extent=extent)))
            done.append(f"gave {schema.describe(row.record)} its own file")
        # The next start builds the index from the rows.
        labelled = any(row.record.secrecy for _, row in rows.items())
        version = schema.version_for(labelled=labelled, index=False)
        txn.put(environment.SCHEMA_KEY, schema.encode_schema(version), db=meta)
        if inventory.index_differs:
            done.append("made the next start build the index of the rows again")
        if inventory.schema_lost:
            done.append(f"wrote the schema version {version}, which every row has")


def _rewrite(txn: lmdb.Transaction[bytes], key: bytes, row: ObjectRow) -> None:
    stored = txn.get(key)
    if stored is None:
        raise DamagedError(
            f"cannot repair {schema.describe(row.record)}: its row has disappeared. Run the check again."
        )
    txn.put(key, schema.encode_row(row, schema.inline_part(stored)))


def _twin(path: Path, extent: int) -> int:
    """Return a second name for the file of an extent; extents are never written again."""
    folder = path / "extents"
    extents = Extents(folder)
    while True:
        fresh = (extent & ~((1 << 56) - 1)) | int.from_bytes(os.urandom(7), "big")
        try:
            (folder / Extents.name(fresh)).hardlink_to(extents.path(extent))
        except FileExistsError:
            continue
        sync_folder((folder / Extents.name(fresh)).parent)
        return fresh


def _move_orphans(inventory: Inventory, done: list[str]) -> None:
    if not inventory.orphans:
        return
    target = inventory.path / LOST_AND_FOUND / "extents"
    make_directory(target)
    folders: set[Path] = {target}
    for extent in inventory.orphans:
        source = inventory.path / "extents" / Extents.name(extent)
        # Ids are random: a file of this name in the target is the same file from an earlier repair.
        source.rename(target / source.name)
        folders.add(source.parent)
    for folder in folders:
        sync_folder(folder)
    count = len(inventory.orphans)
    files = "1 file" if count == 1 else f"{count} files"
    done.append(f"moved {files} without an object to {LOST_AND_FOUND}/extents")


def _set_aside(path: Path, kind: str, name: str, data: bytes) -> str:
    """Write ``data`` durably below lost+found, next to files with the same name."""
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
