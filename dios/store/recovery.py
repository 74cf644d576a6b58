"""What a store finds out at its start: its records, what is damaged, and which extents are rubbish.

Not for: serving content. The digests of large contents are checked when they are first opened, so a
start costs one pass over the rows and one over the names of the extents, whatever these hold.
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
    """Decode every row. A damaged one is reported and left where it is, the others are not affected."""
    found = RecoveredRows([], {}, [])
    for key, stored in rows:
        try:
            row = decode_row(object_of(key), stored)
        except DamagedError as error:
            found.damaged.append(error.message)
            found.rows_lost += 1
            continue
        found.records.append(row.record)
        found.content_bytes += row.payload.size
        if row.payload.kind is ContentKind.EXTENT:
            found.named[row.payload.extent] = row
    return found


def collect(found: RecoveredRows, extents: Extents) -> int:
    """Remove the extents that no row names and report the rows whose extent is gone or cut.

    Returns how many were removed. As long as one row cannot be read nothing is removed: an extent might
    be that row's, and somebody may be able to rescue it by hand.
    """
    for extent, row in found.named.items():
        size = extents.size(extent)
        if size is None:
            found.damaged.append(damaged(row.record, "has lost its extent file").message)
        elif size != row.payload.size:
            found.damaged.append(damaged(row.record, f"has an extent file of {size} bytes").message)
    if found.rows_lost:
        return 0
    orphans = [extent for extent in extents.stored() if extent not in found.named]
    extents.remove(orphans)
    return len(orphans)
