"""The index of the rows: it follows from the rows, whatever was written and removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import lmdb
import msgspec
import pytest

from dios import limits
from dios.core.events import ObjectRecord
from dios.core.model.names import internal_name, logs_group
from dios.ids import Name, ObjectId, Principal
from dios.store import row_index, schema
from dios.store.check import Inventory, hold_directory, read_index
from dios.store.findings import FindingKind
from dios.store.lmdb_store import LmdbStore
from dios.store.log_files import LogFrame
from dios.store.protocol import Change, Drop, InlinePayload, Put
from dios.store.repair import repair
from dios.wire.types import Buffering, Deletion, ObjectType

HOME = Name(b"h" * 32)
GROUP = Name(b"g" * 32)
LARGE = bytes(limits.INLINE_VALUE_BYTES_MAX + 1)


def record(
    number: int,
    size: int = 0,
    *,
    kind: ObjectType = ObjectType.DURABLE_BLOB,
    deletion: Deletion = Deletion.IMMEDIATE,
    groups: tuple[Name, ...] = (GROUP,),
    owner: str = "uid:5",
) -> ObjectRecord:
    """A record whose name follows from its number."""
    name = HOME if deletion is Deletion.IMMORTAL else Name(number.to_bytes(32, "little"))
    return ObjectRecord(
        ObjectId(number), name, kind, groups, Principal(owner), deletion, Buffering.DOUBLE, size, 0, 1
    )


def home() -> Put:
    """A home group."""
    return Put(record(1, 32, kind=ObjectType.GROUP, deletion=Deletion.IMMORTAL, groups=()))


def put(number: int, data: bytes = b"value", *, owner: str = "uid:5") -> Put:
    """A dormant object with this content."""
    return Put(record(number, len(data), owner=owner), InlinePayload(data))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    """A store with a home group."""
    opened = LmdbStore(tmp_path / "data")
    opened.recover()
    opened.apply([home()])
    yield opened
    opened.close()


def index_of(path: Path) -> dict[bytes, bytes]:
    """Return every entry of the index of a closed store."""
    with lmdb.open(str(path / "store"), max_dbs=3, readonly=True) as env:
        index = env.open_db(b"index", create=False)
        with env.begin(index) as txn, txn.cursor() as cursor:
            return dict(cursor.iternext())


def forget_index(path: Path) -> None:
    """Make a closed store one that an earlier program has written."""
    with lmdb.open(str(path / "store"), max_dbs=3, map_size=limits.STORE_MAP_BYTES_DEFAULT) as env:
        meta, index = env.open_db(b"meta"), env.open_db(b"index")
        with env.begin(write=True) as txn:
            txn.put(b"schema", schema.encode_schema(1), db=meta)
            txn.drop(index, delete=False)


@pytest.mark.parametrize("seed", range(6))
def test_the_index_follows_from_the_rows(tmp_path: Path, seed: int) -> None:
    """After any changes the index is the one that is built from the rows."""
    rng = Random(seed)  # noqa: S311 - a seed must give the same changes
    path = tmp_path / "data"
    store = LmdbStore(path)
    store.recover()
    store.apply([home()])
    for _ in range(20):
        changes: list[Change] = []
        for _ in range(rng.randrange(1, 6)):
            number = rng.randrange(2, 12)
            data = LARGE if rng.random() < 0.2 else rng.randbytes(rng.randrange(50))
            changes.append(
                Drop(ObjectId(number)) if rng.random() < 0.3 else put(number, data, owner=f"uid:{number % 3}")
            )
        store.apply(changes)
    usage = store.usage()
    store.close()
    before = index_of(path)
    forget_index(path)
    again = LmdbStore(path)
    reports: list[tuple[int, int]] = []
    _, use = again.recover_resident(lambda done, every: reports.append((done, every)))
    assert again.usage() == usage
    assert sum(count for _, count, _ in use.owners) == usage["objects"] - 1
    again.close()
    assert index_of(path) == before
    assert reports[-1] == (usage["objects"], usage["objects"])


def test_a_start_returns_what_the_core_must_know(store: LmdbStore) -> None:
    """Groups, logs, counted and anonymous objects are resident; the others are counted and found by name."""
    log = record(3, groups=(logs_group(HOME),))
    counted = record(4, deletion=Deletion.REFERENCE_COUNTED)
    stream = record(5, kind=ObjectType.DURABLE_STREAM)
    store.apply([Put(log), Put(counted), Put(stream), put(6), put(7)])
    records, use = store.recover_resident()
    assert [stored.object for stored in records] == [1, 3, 4, 5]
    assert use.owners == (("uid:5", 2, 10),)
    assert use.groups == ((GROUP, 2, 10),)
    assert store.usage()["objects"] == 6
    key = internal_name(record(6).name or Name(b""), GROUP)
    assert store.named([key]) == [6]
    assert store.read(ObjectId(6)) == put(6).record
    assert store.read(ObjectId(3)) is None
    store.apply([Drop(ObjectId(6))])
    assert store.named([key]) == []
    assert store.read(ObjectId(6)) is None


def test_a_start_removes_extents_without_a_row(store: LmdbStore, tmp_path: Path) -> None:
    """A file that no row names goes; a file that is missing is reported."""
    store.apply([put(2, LARGE), put(3, LARGE)])
    orphan = tmp_path / "data" / "extents" / "00" / ("0" * 15 + "7")
    orphan.write_bytes(b"left over")
    files = [file for file in (tmp_path / "data" / "extents").glob("*/*") if file != orphan]
    files[0].unlink()
    store.recover_resident()
    assert not orphan.exists()
    assert files[1].exists()
    (said,) = store.damaged
    assert "lost its extent file" in said


def test_a_damaged_row_that_is_replaced_makes_the_next_start_build_the_index(
    store: LmdbStore, tmp_path: Path
) -> None:
    """The entries of a row that cannot be read are not known, so the index is built again."""
    store.apply([put(2), put(3)])
    store.close()
    path = tmp_path / "data"
    with lmdb.open(str(path / "store"), max_dbs=3, map_size=limits.STORE_MAP_BYTES_DEFAULT) as env:
        objects = env.open_db(b"objects")
        with env.begin(objects, write=True) as txn:
            txn.put(schema.key_of(ObjectId(2)), b"rubbish")
    again = LmdbStore(path)
    again.recover_resident()
    assert again.read(ObjectId(2)) is None
    again.apply([put(2, b"other value")])
    again.close()
    third = LmdbStore(path)
    _, use = third.recover_resident()
    third.close()
    assert use.owners == (("uid:5", 2, len(b"other value") + len(b"value")),)


def test_files_stay_while_the_index_lacks_a_row(store: LmdbStore, tmp_path: Path) -> None:
    """The large content and the log of a row that was damaged before the index was built can be rescued."""
    store.apply([put(2, LARGE), put(3), Put(record(4, kind=ObjectType.DURABLE_STREAM))])
    entry = LogFrame(ObjectId(4), 0, b"an entry")
    store.logs.write([entry])
    store.close()
    path = tmp_path / "data"
    forget_index(path)
    with lmdb.open(str(path / "store"), max_dbs=3, map_size=limits.STORE_MAP_BYTES_DEFAULT) as env:
        objects = env.open_db(b"objects")
        with env.begin(objects, write=True) as txn:
            for number in (2, 4):
                txn.put(schema.key_of(ObjectId(number)), b"rubbish")

    def files() -> list[Path]:
        return [file for name in ("extents", "logs") for file in (path / name).glob("??/*")]

    before = files()
    assert len(before) == 2
    for _ in range(2):
        again = LmdbStore(path)
        again.recover_resident()
        again.close()
        assert files() == before


# -- dios-node check ---------------------------------------------------------------------------------
def filled(path: Path) -> None:
    """A closed store with a home, dormant objects, one with an extent, and a resident one."""
    store = LmdbStore(path)
    store.recover()
    counted = record(6, deletion=Deletion.REFERENCE_COUNTED)
    group = msgspec.structs.replace(record(7, 32, kind=ObjectType.GROUP, groups=()), name=GROUP)
    store.apply(
        [home(), Put(group), put(2), put(3, owner="uid:6"), put(4, LARGE), put(5, LARGE * 2), Put(counted)]
    )
    store.close()


def change_index(path: Path, changes: dict[bytes, bytes | None]) -> None:
    """Change entries of the index of a closed store; None removes one."""
    with lmdb.open(str(path / "store"), max_dbs=3, map_size=limits.STORE_MAP_BYTES_DEFAULT) as env:
        index = env.open_db(b"index")
        with env.begin(index, write=True) as txn:
            for key, value in changes.items():
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)


def checked(path: Path) -> Inventory:
    """Check a closed store."""
    with hold_directory(path):
        return read_index(path)


def damages(entries: dict[bytes, bytes]) -> Iterator[tuple[str, str, dict[bytes, bytes | None]]]:
    """Yield each damage of an index: the kind of entry, how it differs, and the change."""
    kinds = {
        row_index.NAME: "names",
        row_index.RESIDENT: "resident objects",
        row_index.EXTENT: "extents",
        row_index.OWNER: "use of owners",
        row_index.GROUP: "use of groups",
        row_index.TOTAL: "total",
    }
    for prefix, kind in kinds.items():
        entry = next(key for key in entries if key.startswith(prefix))
        value = entries[entry]
        yield kind, "1 missing", {entry: None}
        yield kind, "1 wrong", {entry: value + b"?"}
        if value:
            yield kind, "1 wrong", {entry: bytes(len(value))}
            yield kind, "1 wrong", {entry: b""}
        if prefix != row_index.TOTAL:
            strange = bytes(byte ^ 1 for byte in entry[1:])
            yield kind, "1 of no row", {prefix + strange: value}
            yield kind, "1 of no row", {prefix: b"x"}
    first, other = (key for key in entries if key.startswith(row_index.EXTENT))
    yield "extents", "2 wrong", {first: entries[other], other: entries[first]}
    renamed = next(key for key in entries if key.startswith(row_index.NAME))
    yield "names", "1 missing, 1 of no row", {renamed: None, renamed[:1] + bytes(16) + renamed[17:]: b""}
    dormant = renamed[-8:]
    yield "resident objects", "1 of no row", {row_index.RESIDENT + dormant: b""}
    yield "unknown entries", "1 of no row", {b"zebra": b""}


def test_check_finds_and_repairs_each_damage_of_the_index(tmp_path: Path) -> None:
    """Any entry that is missing, wrong or of no row is found, and the repair gives the index of the rows."""
    path = tmp_path / "data"
    filled(path)
    entries = index_of(path)
    assert checked(path).findings == []
    cases = list(damages(entries))
    for kind, how, change in cases:
        change_index(path, change)
        (finding,) = checked(path).findings
        assert finding.kind is FindingKind.INDEX
        assert finding.subject == f"index: {kind}", change
        assert finding.detail.startswith(how), (kind, finding.detail, change)
        change_index(path, {key: entries.get(key) for key in change})
    assert checked(path).findings == []
    for _, _, change in cases:
        change_index(path, change)
    inventory = checked(path)
    with hold_directory(path):
        assert "made the next start build the index of the rows again" in repair(inventory)
    assert checked(path).findings == []
    store = LmdbStore(path)
    store.recover_resident()
    store.close()
    assert index_of(path) == entries


def test_check_finds_an_index_that_is_gone(tmp_path: Path) -> None:
    """An index that is empty, or whose table is missing, is found."""
    path = tmp_path / "data"
    filled(path)
    change_index(path, dict.fromkeys(index_of(path)))
    assert {finding.kind for finding in checked(path).findings} == {FindingKind.INDEX}
    with lmdb.open(str(path / "store"), max_dbs=3, map_size=limits.STORE_MAP_BYTES_DEFAULT) as env:
        index = env.open_db(b"index")
        with env.begin(write=True) as txn:
            txn.drop(index)
    (finding,) = checked(path).findings
    assert finding.detail == "the whole index is missing"


def test_check_says_nothing_of_the_entries_of_a_damaged_row(tmp_path: Path) -> None:
    """A damaged row is one finding; its entries, and the use that it has a part of, are none."""
    path = tmp_path / "data"
    filled(path)
    with lmdb.open(str(path / "store"), max_dbs=3, map_size=limits.STORE_MAP_BYTES_DEFAULT) as env:
        objects = env.open_db(b"objects")
        with env.begin(objects, write=True) as txn:
            txn.put(schema.key_of(ObjectId(2)), b"rubbish")
    (finding,) = checked(path).findings
    assert finding.kind is FindingKind.ROW
