"""The start of a store: its records, the damage, and the extents to remove.

A start costs one pass over the rows and one over the names of the extents, because digests of large contents
are checked when they are first opened.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dios.core.events import ObjectRecord
from dios.errors import DamagedError
from dios.store.extents import Extents
from dios.store.schema import ContentKind, ObjectRow, damaged, decode_row, object_of


class RecoveredRows(Struct):
    """The result of one pass over the rows."""

    records: list[ObjectRecord]
    named: dict[int, ObjectRow]
    damaged: list[str]
    content_bytes: int = 0
    rows_lost: int = 0


def read_rows(rows: Iterable[tuple[bytes | memoryview, bytes | memoryview]]) -> RecoveredRows:
    """Decode every row. A damaged row is reported and left in place; other rows are not affected."""
    recovered = RecoveredRows([], {}, [])
    for key, stored in rows:
        try:
            row = decode_row(object_of(key), stored)
        except DamagedError as error:
            recovered.damaged.append(error.message)
            recovered.rows_lost += 1
            continue
        recovered.records.append(row.record)
        recovered.content_bytes += row.payload.size
        if row.payload.kind is ContentKind.EXTENT:
            recovered.named[row.payload.extent] = row
    return recovered


def collect(recovered: RecoveredRows, extents: Extents) -> int:
    """Remove the extents that no row names, and report the rows whose extent is missing or truncated.

    Returns the number of removed extents. Nothing is removed while a row cannot be read: an extent could
    belong to that row, and could still be rescued by hand.
    """
    for extent, row in recovered.named.items():
        size = extents.size(extent)
        if size is None:
            recovered.damaged.append(damaged(row.record, "has lost its extent file").message)
        elif size != row.payload.size:
            recovered.damaged.append(damaged(row.record, f"has an extent file of {size} bytes").message)
    if recovered.rows_lost:
        return 0
    orphans = [extent for extent in extents.stored() if extent not in recovered.named]
    extents.remove(orphans)
    return len(orphans)
