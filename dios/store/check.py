"""Reads every byte of a stopped node's store and reports what is wrong, without changing anything.

The caller holds the data directory, so that no node uses the store meanwhile. ``repair`` changes the store,
and ``dios.node.check`` checks the node's other files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import lmdb

from dios import limits
from dios.core.events import ObjectRecord
from dios.core.model.names import logs_group
from dios.errors import DamagedError, InvalidError, NotSupportedError
from dios.ids import Name
from dios.store import environment, schema
from dios.store.directory import lock_directory, require_own_directory
from dios.store.environment import translate_errors
from dios.store.extents import Extents, digest_of_file
from dios.store.findings import FindingKind, StoreFinding
from dios.store.index_check import IndexFinding, index_differences
from dios.store.log_files import LogFiles, log_problem
from dios.store.row_index import sound_rows
from dios.store.schema import ObjectRow
from dios.wire.types import Deletion, ObjectType

LOST_AND_FOUND: Final = "lost+found"
_REPAIR_SCHEMA: Final = "write it again, if every row can be read"
_REPAIR_INDEX: Final = "the next start builds it again from the rows"
FINDINGS_PER_KIND_MAX: Final = 1_000
"""The findings of one kind that are kept; further ones are counted."""

_PROBLEMS_SHOWN: Final = 5
_FILES_AT_ONCE: Final = 64


class StoredRows:
    """The sound rows of a stopped node's store, read again each time: memory does not grow with them."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: bytes) -> ObjectRow:
        with self._reading() as (txn, objects):
            return schema.decode_row(schema.object_of(key), txn.get(key, b"", db=objects))

    def note(self) -> None:
        """Count one more sound row."""
        self._count += 1

    def items(self) -> Iterator[tuple[bytes, ObjectRow]]:
        """Yield each key and row, in the order of keys."""
        if self._count:
            with self._reading() as (txn, objects), txn.cursor(objects) as cursor:
                yield from sound_rows(cursor)

    def with_extents(self) -> Iterator[tuple[bytes, ObjectRow]]:
        """Yield each key and row that names an extent."""
        return ((key, row) for key, row in self.items() if row.payload.kind is schema.ContentKind.EXTENT)

    def values(self) -> Iterator[ObjectRow]:
        """Yield each row, in the order of keys."""
        return (row for _, row in self.items())

    @contextmanager
    def _reading(self) -> Iterator[tuple[lmdb.Transaction[bytes], lmdb._Database]]:
        with translate_errors(self._path), environment.open_for_reading(self._path) as env:
            objects = env.open_db(environment.OBJECTS, create=False)
            with env.begin() as txn:
                yield txn, objects


class Inventory:
    """The content of the index: the sound rows, and the findings about everything else."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.rows: Final = StoredRows(path)
        self.content_bytes = 0
        """The number of bytes of all contents together."""
        self.extents = 0
        """The number of rows that name an extent."""
        self.damaged_rows: list[bytes] = []
        self.findings: list[StoreFinding] = []
        self.counts: Counter[FindingKind] = Counter()
        """The number of findings of each kind, also of those that are not kept."""
        self.schema_lost = False
        self.index_differs = False
        self.walked = False
        """True once the whole index was read."""
        self.orphans: list[int] = []
        self.resized: list[bytes] = []
        """Keys of rows whose record has a size that differs from their sound content."""
        self.shared: list[bytes] = []
        """Keys of rows that name an extent which an earlier row names."""

    def add(self, kind: FindingKind, subject: str, detail: str, repair: str = "") -> None:
        """Add a finding, or only count it if there are many of its kind."""
        self.counts[kind] += 1
        if self.counts[kind] <= FINDINGS_PER_KIND_MAX:
            self.findings.append(StoreFinding(kind, subject, detail, repair))


@contextmanager
def hold_directory(path: Path) -> Iterator[None]:
    """Hold the data directory ``path`` for a ``with`` body, so that no node starts on it.

    Raises InvalidError if there is no store in it, DiosError with the process if a node runs on it.
    """
    if not environment.holds_store(path):
        raise InvalidError(f"{path} has no node's store. Name the data directory of a node with --data.")
    require_own_directory(path)
    with translate_errors(path):
        fd = lock_directory(path, for_reading=True)
    try:
        yield
    finally:
        os.close(fd)


def read_index(path: Path) -> Inventory:
    """Read and check every row of the index; ``verify_contents`` reads the contents.

    The caller holds the directory. Damage becomes a finding; DiosError is raised only if the system
    refuses to read.
    """
    inventory = Inventory(path)
    problems = environment.structure_problems(path)
    if problems:
        more = f" (and {len(problems) - _PROBLEMS_SHOWN} more)" if len(problems) > _PROBLEMS_SHOWN else ""
        inventory.add(FindingKind.DATABASE, "store/data.mdb", "; ".join(problems[:_PROBLEMS_SHOWN]) + more)
        return inventory
    try:
        with translate_errors(path):
            env = environment.open_for_reading(path)
            try:
                _read_tables(env, inventory)
            finally:
                env.close()
    except DamagedError as error:
        inventory.add(FindingKind.DATABASE, "store/data.mdb", error.message)
    except NotSupportedError as error:
        inventory.add(FindingKind.SCHEMA_NEWER, "store/data.mdb", error.message)
    return inventory


def verify_contents(inventory: Inventory, progress: Callable[[int], None]) -> None:
    """Compare every content with its digest, and the extents with the rows; ``inventory`` gets the findings.

    ``progress`` is called with the number of bytes that were read since its last call.
    """
    if not inventory.walked:
        return
    extents = Extents(inventory.path / "extents")
    large = inventory.rows.with_extents() if inventory.extents else iter(())
    with ThreadPoolExecutor(limits.STORE_WORKERS_MAX, thread_name_prefix="dios-check") as workers:
        while part := list(islice(large, _FILES_AT_ONCE)):
            results = workers.map(lambda row: _extent_problem(extents, row), [row for _, row in part])
            for (key, row), problem in zip(part, results, strict=True):
                _report_extent(inventory, key, row, problem)
                progress(row.payload.size)
    extents.close()
    _read_logs(inventory, progress)
    _compare_files(inventory, extents)
    _check_records(inventory)


def _read_tables(env: lmdb.Environment, inventory: Inventory) -> None:
    try:
        meta = env.open_db(environment.META, create=False)
        objects = env.open_db(environment.OBJECTS, create=False)
    except lmdb.NotFoundError:
        # The first start of the node was interrupted, and nothing was ever stored.
        inventory.walked = True
        return
    version = 0
    with env.begin(meta) as txn:
        try:
            version = environment.read_schema(env, txn, meta, inventory.path)
            inventory.schema_lost = not version
        except DamagedError as error:
            inventory.schema_lost = True
            inventory.add(FindingKind.SCHEMA_LOST, "store/data.mdb", error.message, _REPAIR_SCHEMA)
    with env.begin(objects) as txn, txn.cursor() as cursor:
        for key, stored in cursor.iternext():
            _read_row(inventory, key, stored)
    inventory.walked = True
    # The next start builds the index of a store of an earlier version.
    if schema.has_index(version):
        _compare_index(env, objects, inventory)


def _compare_index(env: lmdb.Environment, objects: lmdb._Database, inventory: Inventory) -> None:
    try:
        index = env.open_db(environment.INDEX, create=False)
    except lmdb.NotFoundError:
        differences = [IndexFinding("everything", "the whole index is missing")]
    else:
        with env.begin() as txn:
            differences = index_differences(txn, objects, index)
    for difference in differences:
        inventory.add(FindingKind.INDEX, f"index: {difference.kind}", difference.detail, _REPAIR_INDEX)
    inventory.index_differs = bool(differences)


def _read_row(inventory: Inventory, key: bytes, stored: bytes) -> None:
    try:
        row = schema.decode_row(schema.object_of(key), stored)
    except DamagedError as error:
        inventory.damaged_rows.append(key)
        inventory.add(FindingKind.ROW, f"row {key.hex()}", error.message, f"move it to {LOST_AND_FOUND}/rows")
        return
    inventory.rows.note()
    inventory.content_bytes += row.payload.size
    if row.record.type is ObjectType.DURABLE_STREAM:
        inventory.content_bytes += row.record.size
    if row.payload.kind is schema.ContentKind.EXTENT:
        inventory.extents += 1
        return
    try:
        schema.check_inline(row, bytes(schema.inline_part(stored)))
    except DamagedError:
        inventory.add(
            FindingKind.CONTENT,
            schema.describe(row.record),
            f"{row.payload.size} bytes in the index do not match their digest",
        )
    else:
        _compare_size(inventory, key, row)


def _extent_problem(extents: Extents, row: ObjectRow) -> str | None:
    """Return the fault of the extent of a row; None if it is sound, "" if it does not exist."""
    try:
        fd = extents.open(row.payload.extent)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be opened ({error.strerror})"
    try:
        size = os.fstat(fd).st_size
        if size != row.payload.size:
            return f"has {size} bytes instead of {row.payload.size}"
        if digest_of_file(fd, size) != row.payload.digest:
            return "does not match its BLAKE3 digest"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    finally:
        os.close(fd)
    return None


def _report_extent(inventory: Inventory, key: bytes, row: ObjectRow, problem: str | None) -> None:
    if problem is None:
        _compare_size(inventory, key, row)
        return
    file = Extents.name(row.payload.extent)
    if problem:
        inventory.add(FindingKind.CONTENT, schema.describe(row.record), f"extents/{file} {problem}")
    else:
        inventory.add(
            FindingKind.EXTENT_LOST,
            schema.describe(row.record),
            f"extents/{file} of {row.payload.size} bytes, BLAKE3 {row.payload.digest.hex()}",
        )


def _read_logs(inventory: Inventory, progress: Callable[[int], None]) -> None:
    """Check every entry of every log up to the length in its row, and report files without a row."""
    logs = LogFiles(inventory.path / "logs")
    known = set()
    with translate_errors(inventory.path):
        for row in inventory.rows.values():
            if row.record.type is ObjectType.DURABLE_STREAM:
                known.add(row.record.object)
                problem = log_problem(logs, row.record)
                if problem:
                    place = f"logs/{LogFiles.name(row.record.object)}"
                    inventory.add(FindingKind.CONTENT, schema.describe(row.record), f"{place} {problem}")
                elif logs.size(row.record.object) > row.record.size:
                    more = logs.size(row.record.object) - row.record.size
                    said = f"{more} bytes after the last acknowledged entry"
                    inventory.add(FindingKind.ORPHAN, schema.describe(row.record), said)
                progress(row.record.size)
        for target in logs.stored():
            if target not in known:
                inventory.add(
                    FindingKind.ORPHAN, f"logs/{LogFiles.name(target)}", f"{logs.size(target)} bytes"
                )
    logs.close()


def _compare_size(inventory: Inventory, key: bytes, row: ObjectRow) -> None:
    if row.record.type is ObjectType.DURABLE_BLOB and row.record.size != row.payload.size:
        inventory.resized.append(key)
        inventory.add(
            FindingKind.SIZE,
            schema.describe(row.record),
            f"the row has a size of {row.record.size} bytes, {row.payload.size} bytes are stored",
            "set the size to that of the stored bytes",
        )


def _compare_files(inventory: Inventory, extents: Extents) -> None:
    rows = inventory.rows.with_extents() if inventory.extents else ()
    counted = Counter(row.payload.extent for _, row in rows)
    shared = {extent for extent, rows in counted.items() if rows > 1}
    first: set[int] = set()
    for key, row in inventory.rows.with_extents() if shared else ():
        extent = row.payload.extent
        if extent in shared:
            if extent in first:
                inventory.shared.append(key)
            first.add(extent)
            inventory.add(
                FindingKind.EXTENT_SHARED,
                schema.describe(row.record),
                f"extents/{Extents.name(extent)}",
                "give each object its own file",
            )
    known = set()
    for extent in extents.stored():
        known.add(Extents.name(extent))
        if extent not in counted:
            inventory.orphans.append(extent)
            inventory.add(
                FindingKind.ORPHAN,
                f"extents/{Extents.name(extent)}",
                f"{extents.size(extent) or 0} bytes",
                f"move it to {LOST_AND_FOUND}/extents",
            )
    for file in sorted((inventory.path / "extents").rglob("*")):
        name = str(file.relative_to(inventory.path / "extents"))
        if not file.is_dir() and name not in known:
            inventory.add(FindingKind.STRANGER, f"extents/{name}", "this is not the name of an extent")


def _check_records(inventory: Inventory) -> None:
    """Check the records together: groups must exist, and each user has one home."""
    groups: set[Name] = set()
    homes: dict[str, ObjectRecord] = {}
    member = (inventory.path / "identity").exists()
    for record in (row.record for row in inventory.rows.values()):
        if record.type is not ObjectType.GROUP or record.name is None:
            continue
        groups.add(record.name)
        if record.deletion is Deletion.IMMORTAL:
            groups.add(logs_group(record.name))
            if record.owner in homes:
                other = schema.describe(homes[record.owner])
                inventory.add(
                    FindingKind.HOME_TWICE, schema.describe(record), f"{record.owner} also has {other}"
                )
            homes[record.owner] = record
    for record in (row.record for row in inventory.rows.values()):
        if record.name is None:
            inventory.add(
                FindingKind.UNNAMED, schema.describe(record), "the next start of the node removes it"
            )
        elif member:
            continue  # its groups may exist on other nodes only
        elif record.type is not ObjectType.GROUP and not groups.intersection(record.groups):
            inventory.add(
                FindingKind.UNREACHABLE,
                schema.describe(record),
                f"{record.size} bytes of {record.owner}, in {len(record.groups)} groups that do not exist",
            )
