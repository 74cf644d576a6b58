"""The index of the rows, which lets a start read few rows and a lookup read one.

A row is *resident* if the core needs it from the start on; all others are *dormant*. The core reads a dormant
row when its object is named (``dios.core.model.rows``). The index is a table of the same database and changes
in the same transactions. It is derived: ``rebuild`` makes it from the rows. ``docs/formats.md``
describes its keys.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, NamedTuple

import lmdb
from blake3 import blake3

from dios.core.events import DormantUse, ObjectRecord
from dios.core.model.names import internal_name, logs_group
from dios.core.model.rows import is_dormant
from dios.errors import DamagedError
from dios.ids import InternalName, Name, ObjectId, Principal
from dios.store import schema
from dios.store.schema import ContentKind, ObjectRow
from dios.wire.types import Deletion, ObjectType

NAME: Final = b"n"
RESIDENT: Final = b"r"
EXTENT: Final = b"x"
OWNER: Final = b"o"
GROUP: Final = b"g"
TOTAL: Final = b"t"
_NAME_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
_KEY_BYTES: Final = 8
_ID: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")
_REBUILT_AT_ONCE: Final = 20_000


class NamedExtent(NamedTuple):
    """An extent that a row names: its id, the key of the row, and its size in bytes."""

    extent: int
    key: bytes
    size: int


class IndexChanges:
    """The changes that a transaction makes in the index; they are written at its end.

    ``log_groups`` are the groups of the principals' logs, whose objects are resident.
    """

    def __init__(self, log_groups: set[Name]) -> None:
        self._log_groups: Final = log_groups
        self._entries: Final[dict[bytes, bytes | None]] = {}
        self._uses: Final[dict[bytes, tuple[str, list[int]]]] = {}
        self._total: Final = [0, 0]
        self.is_incomplete = False
        """True if a damaged row was replaced, whose entries are unknown: the next start builds the index."""

    def replace(self, old: ObjectRow | None, new: ObjectRow | None) -> None:
        """Note that a transaction replaces a row by another; None is no row."""
        if old is not None:
            self.count(old, -1)
        if new is not None:
            self.count(new)
        before = {} if old is None else entries_of(old, self._log_groups)
        after = {} if new is None else entries_of(new, self._log_groups)
        for key in before.keys() - after.keys():
            self._entries[key] = None
        for key, value in after.items():
            if before.get(key) != value:
                self._entries[key] = value
        if new is not None:
            self._log_groups.update(log_groups_of((new.record,)))

    def entries_of_use(self) -> dict[bytes, bytes]:
        """Return the entries of use and the total, as changes of an empty index make them."""
        entries = {
            key: _PAIR.pack(objects, size) + owner.encode()
            for key, (owner, (objects, size)) in self._uses.items()
            if objects > 0
        }
        return entries | ({TOTAL: _PAIR.pack(*self._total)} if any(self._total) else {})

    def write(self, txn: lmdb.Transaction[bytes], index: lmdb._Database) -> None:
        """Write the changes in a transaction."""
        for key, value in self._entries.items():
            if value is None:
                txn.delete(key, db=index)
            else:
                txn.put(key, value, db=index)
        for key, (owner, change) in self._uses.items():
            stored = txn.get(key, db=index)
            objects, size = (0, 0) if stored is None else _PAIR.unpack_from(stored)
            objects, size = objects + change[0], size + change[1]
            if objects > 0:
                txn.put(key, _PAIR.pack(objects, max(size, 0)) + owner.encode(), db=index)
            elif stored is not None:
                txn.delete(key, db=index)
        if any(self._total):
            before = read_total(txn, index)
            after = [max(amount + change, 0) for amount, change in zip(before, self._total, strict=True)]
            txn.put(TOTAL, _PAIR.pack(*after), db=index)

    def count(self, row: ObjectRow, sign: int = 1) -> None:
        """Add a row to the use and the total, or take it away."""
        record = row.record
        self._total[0] += sign * row.payload.size
        self._total[1] += sign * (row.payload.kind is ContentKind.EXTENT)
        if is_dormant(record, self._log_groups):
            self._use(_owner_key(record.owner), record.owner, sign, record.size)
            for group in record.groups:
                self._use(GROUP + group, "", sign, record.size)

    def _use(self, key: bytes, owner: str, sign: int, size: int) -> None:
        change = self._uses.setdefault(key, (owner, [0, 0]))[1]
        change[0] += sign
        change[1] += sign * size


def entries_of(row: ObjectRow, log_groups: Container[Name]) -> dict[bytes, bytes]:
    """Return the entries of one row. The entries of use and the total are of many rows."""
    record, payload = row.record, row.payload
    key = _ID.pack(record.object)
    entries: dict[bytes, bytes] = {}
    if payload.kind is ContentKind.EXTENT:
        entries[EXTENT + _ID.pack(payload.extent)] = key + _ID.pack(payload.size)
    if record.name is not None and is_dormant(record, log_groups):
        for group in record.groups:
            entries[_name_key(internal_name(record.name, group)) + key] = b""
    else:
        entries[RESIDENT + key] = b""
    return entries


def _owner_key(owner: str) -> bytes:
    return OWNER + blake3(owner.encode()).digest(_DIGEST_BYTES)


def _name_key(name: InternalName) -> bytes:
    return NAME + name[:_NAME_BYTES]


# -- reading ----------------------------------------------------------------------------------------
def _with_prefix(
    txn: lmdb.Transaction[bytes], index: lmdb._Database, prefix: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rest of each key with this prefix, and its value."""
    with txn.cursor(index) as cursor:
        more = cursor.set_range(prefix)
        while more and (key := cursor.key()).startswith(prefix):
            yield key[len(prefix) :], cursor.value()
            more = cursor.next()


def named(txn: lmdb.Transaction[bytes], index: lmdb._Database, name: InternalName) -> list[ObjectId]:
    """Return the dormant objects with this internal name, in the order of their ids."""
    # Different names may begin with the same bytes, so that the caller compares the record.
    return [ObjectId(_ID.unpack(key)[0]) for key, _ in _with_prefix(txn, index, _name_key(name))]


def resident_keys(txn: lmdb.Transaction[bytes], index: lmdb._Database) -> list[bytes]:
    """Return the keys of all rows that the core needs from the start on."""
    return [key for key, _ in _with_prefix(txn, index, RESIDENT)]


def named_extents(txn: lmdb.Transaction[bytes], index: lmdb._Database) -> Iterator[NamedExtent]:
    """Yield every extent that a row names."""
    for key, value in _with_prefix(txn, index, EXTENT):
        yield NamedExtent(_ID.unpack(key)[0], value[:_KEY_BYTES], _ID.unpack(value[_KEY_BYTES:])[0])


def read_total(txn: lmdb.Transaction[bytes], index: lmdb._Database) -> tuple[int, int]:
    """Return the bytes of all contents and the number of extents."""
    stored = txn.get(TOTAL, db=index)
    if stored is None:
        return 0, 0
    total: tuple[int, int] = _PAIR.unpack(stored)
    return total


def dormant_use(txn: lmdb.Transaction[bytes], index: lmdb._Database) -> DormantUse:
    """Return the numbers and bytes of dormant objects, by owner and by group."""
    owners = [
        (Principal(value[_PAIR.size :].decode()), *_PAIR.unpack_from(value))
        for _, value in _with_prefix(txn, index, OWNER)
    ]
    groups = [(Name(key), *_PAIR.unpack(value)) for key, value in _with_prefix(txn, index, GROUP)]
    return DormantUse(tuple(owners), tuple(groups))


# -- building ---------------------------------------------------------------------------------------
def log_groups_of(records: Iterable[ObjectRecord]) -> set[Name]:
    """Return the groups of the principals' logs."""
    return {
        logs_group(record.name)
        for record in records
        if record.type is ObjectType.GROUP
        and record.deletion is Deletion.IMMORTAL
        and record.name is not None
    }


def rebuild(
    env: lmdb.Environment,
    objects: lmdb._Database,
    index: lmdb._Database,
    progress: Callable[[int, int], None],
) -> None:
    """Build the index from all rows, in several transactions. Damaged rows are left out.

    ``progress`` is called with the number of rows in the index and of all rows.
    """
    with env.begin(write=True) as txn:
        txn.drop(index, delete=False)
    with env.begin(objects) as txn, txn.cursor() as cursor:
        homes = log_groups_of(row.record for _, row in sound_rows(cursor))
        every = txn.stat(objects)["entries"]
    start = b""
    done = 0
    while True:
        changes = IndexChanges(homes)
        count = 0
        with env.begin(objects) as txn, txn.cursor() as cursor:
            for key, row in sound_rows(cursor, start):
                changes.replace(None, row)
                start = key + b"\0"
                count += 1
                if count >= _REBUILT_AT_ONCE:
                    break
        with env.begin(write=True) as txn:
            changes.write(txn, index)
        done += count
        progress(done, every)
        if count < _REBUILT_AT_ONCE:
            return


def sound_rows(cursor: lmdb.Cursor[bytes], start: bytes = b"") -> Iterator[tuple[bytes, ObjectRow]]:
    """Yield the sound rows from a key on."""
    more = cursor.set_range(start)
    while more:
        key, stored = cursor.item()
        with contextlib.suppress(DamagedError):
            yield key, schema.decode_row(schema.object_of(key), stored)
        more = cursor.next()
