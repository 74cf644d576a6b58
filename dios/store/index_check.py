"""Compares the index of the rows with the rows of a stopped node's store, one row at a time.

``dios.store.row_index`` keeps the index. The rows are right: a repair builds the index from them again.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

import lmdb

from dios.errors import DamagedError
from dios.store import row_index, schema
from dios.store.schema import ObjectRow

_KINDS: Final = {
    row_index.NAME: "names",
    row_index.RESIDENT: "resident objects",
    row_index.EXTENT: "extents",
    row_index.OWNER: "use of owners",
    row_index.GROUP: "use of groups",
    row_index.TOTAL: "total",
}
_OF_ONE_ROW: Final = frozenset({row_index.NAME, row_index.RESIDENT, row_index.EXTENT})
_KEY_BYTES: Final = 8
_SHOWN_BYTES: Final = 25


class IndexFinding(NamedTuple):
    """The entries of one kind that differ from the rows."""

    kind: str
    detail: str


class _Differences:
    """Counts the differences of each kind, and remembers the key of the first."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._first: dict[str, bytes] = {}
        self.wrong: set[bytes] = set()

    def add(self, entry: bytes, how: str) -> None:
        """Count the difference of one entry."""
        kind = _KINDS.get(entry[:1], "unknown entries")
        counts = self._counts.setdefault(kind, {})
        counts[how] = counts.get(how, 0) + 1
        self._first.setdefault(kind, entry)
        if how == "wrong":
            self.wrong.add(entry)

    def as_list(self) -> list[IndexFinding]:
        """Return a sentence for each kind."""
        return [
            IndexFinding(
                kind,
                ", ".join(f"{count} {how}" for how, count in counts.items())
                + f"; the first is {self._first[kind][:_SHOWN_BYTES].hex()}",
            )
            for kind, counts in self._counts.items()
        ]


def index_differences(
    txn: lmdb.Transaction[bytes], objects: lmdb._Database, index: lmdb._Database
) -> list[IndexFinding]:
    """Return what differs between the index and the rows; empty if the index follows from the rows.

    Entries of damaged rows are left out: the check of the rows reports those.
    """
    return _Comparison(txn, objects, index).differences()


class _Comparison:
    """One comparison, in one transaction."""

    def __init__(self, txn: lmdb.Transaction[bytes], objects: lmdb._Database, index: lmdb._Database) -> None:
        self._txn: Final = txn
        self._objects: Final = objects
        self._index: Final = index
        self._found: Final = _Differences()
        with txn.cursor(objects) as cursor:
            self._log_groups: Final = row_index.log_groups_of(
                row.record for _, row in row_index.sound_rows(cursor)
            )

    def differences(self) -> list[IndexFinding]:
        """Compare everything."""
        use = row_index.IndexChanges(self._log_groups)
        rows = matching = 0
        with self._txn.cursor(self._objects) as cursor:
            for _, row in row_index.sound_rows(cursor):
                rows += 1
                use.count(row)
                matching += self._compare_row(row)
        # A damaged row has a part of the use, which nobody knows.
        whole = rows == self._txn.stat(self._objects)["entries"]
        wanted = use.entries_of_use()
        for entry, value in wanted.items():
            stored = self._txn.get(entry, db=self._index)
            matching += stored == value
            if whole and stored != value:
                self._found.add(entry, "missing" if stored is None else "wrong")
        if self._txn.stat(self._index)["entries"] != matching:
            self._find_surplus(wanted, whole=whole)
        return self._found.as_list()

    def _compare_row(self, row: ObjectRow) -> int:
        """Compare the entries of a row; return how many are as they must be."""
        matching = 0
        for entry, value in row_index.entries_of(row, self._log_groups).items():
            stored = self._txn.get(entry, db=self._index)
            matching += stored == value
            if stored is None:
                self._found.add(entry, "missing")
            elif stored != value and not self._has_row(entry, stored):
                # Two rows that name one extent have one entry; the check of the files reports them.
                self._found.add(entry, "wrong")
        return matching

    def _find_surplus(self, wanted: Container[bytes], *, whole: bool) -> None:
        """Look for entries that no row has."""
        with self._txn.cursor(self._index) as cursor:
            for entry, value in cursor.iternext():
                if entry[:1] in _OF_ONE_ROW:
                    surplus = not self._has_row(entry, value)
                elif _KINDS.get(entry[:1]) is None:
                    surplus = True
                else:
                    surplus = whole and entry not in wanted and any(value)
                if surplus and entry not in self._found.wrong:
                    self._found.add(entry, "of no row")

    def _has_row(self, entry: bytes, value: bytes) -> bool:
        """Return True if the entry is one of the row that it names, or if that row is damaged."""
        key = value[:_KEY_BYTES] if entry.startswith(row_index.EXTENT) else entry[-_KEY_BYTES:]
        stored = self._txn.get(key, db=self._objects) if len(key) == _KEY_BYTES else None
        try:
            row = None if stored is None else schema.decode_row(schema.object_of(key), stored)
        except DamagedError:
            return True
        return row is not None and row_index.entries_of(row, self._log_groups).get(entry) == value
