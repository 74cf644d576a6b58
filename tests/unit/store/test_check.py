"""What a check of a stopped store finds, and what its repair does about it."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import msgspec
import pytest

from dios.core.events import ObjectRecord
from dios.errors import DiosError, InvalidError
from dios.ids import Name, ObjectId
from dios.store import check, schema
from dios.store.check import LOST_AND_FOUND, Inventory, hold_directory, read_index, verify_contents
from dios.store.extents import Extents
from dios.store.findings import MEANINGS, FindingKind, FindingLevel
from dios.store.lmdb_store import LmdbStore
from dios.store.log_files import LogFiles, LogFrame
from dios.store.protocol import Put
from dios.store.repair import repair
from dios.store.schema import ObjectRow
from dios.wire.types import Deletion, ObjectType
from tests.support.store.records import content, put, record

GROUP = Name(b"g" * 32)
LARGE = bytes(range(256)) * 256
SMALL = b"a small value"


def group(number: int, name: Name = GROUP, deletion: Deletion = Deletion.IMMEDIATE) -> Put:
    """A Put of a group."""
    plain = record(number, size=32)
    return Put(msgspec.structs.replace(plain, name=name, type=ObjectType.GROUP, groups=(), deletion=deletion))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A closed store with a group, two small objects and two large ones."""
    store = LmdbStore(tmp_path / "data")
    store.recover()
    store.apply([group(9), put(1, SMALL), put(2, LARGE), put(3, LARGE[::-1]), put(4, SMALL * 2)])
    store.close()
    return tmp_path / "data"


def look(data: Path) -> Inventory:
    """Check the whole store."""
    with hold_directory(data):
        inventory = read_index(data)
        verify_contents(inventory, lambda _: None)
    return inventory


def kinds(inventory: Inventory) -> list[FindingKind]:
    """The kinds of what was found, in order."""
    return [finding.kind for finding in inventory.findings]


def mended(data: Path, inventory: Inventory) -> Inventory:
    """Repair, and check again."""
    with hold_directory(data):
        assert repair(inventory), "something was to be repaired"
    return look(data)


def rewrite(data: Path, key: bytes, value: bytes | None, table: bytes = b"objects") -> None:
    """Put a value into the database behind the store's back; None removes it."""
    with lmdb.open(str(data / "store"), max_dbs=2) as env:
        db = env.open_db(table)
        with env.begin(db, write=True) as txn:
            if value is None:
                txn.delete(key)
            else:
                txn.put(key, value)


def rewrite_record(data: Path, number: int, **changes: object) -> None:
    """Change what a sound row says of its object."""
    rewrite_row(
        data, number, lambda row: ObjectRow(msgspec.structs.replace(row.record, **changes), row.payload)
    )


def rewrite_row(data: Path, number: int, change: object) -> None:
    """Put another sound row in place of one."""
    assert callable(change)
    key = schema.key_of(ObjectId(number))
    with lmdb.open(str(data / "store"), max_dbs=2) as env, env.begin(env.open_db(b"objects")) as txn:
        stored = txn.get(key)
    assert stored is not None
    row = change(schema.decode_row(ObjectId(number), stored))
    rewrite(data, key, schema.encode_row(row, schema.inline_part(stored)))


def extent_of(data: Path, number: int) -> Path:
    """The file of a large object."""
    row = look(data).rows[schema.key_of(ObjectId(number))]
    return data / "extents" / Extents.name(row.payload.extent)


def records_of(data: Path) -> list[ObjectRecord]:
    """What a node would start with."""
    store = LmdbStore(data)
    try:
        return list(store.recover())
    finally:
        store.close()


def test_a_sound_store_has_no_findings(data: Path) -> None:
    """Nothing is found in a sound store, everything is counted, and nothing in it changes."""
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.name != "lock"}
    inventory = look(data)
    assert inventory.findings == []
    assert (len(inventory.rows), inventory.extents) == (5, 2)
    assert inventory.content_bytes == 2 * len(LARGE) + 3 * len(SMALL)
    assert before == {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.name != "lock"}


def test_a_store_in_use_is_refused(data: Path) -> None:
    """While somebody has the store the check is refused, and names who."""
    store = LmdbStore(data)
    try:
        with pytest.raises(DiosError, match=str(os.getpid())), hold_directory(data):
            pass
    finally:
        store.close()


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    """A directory without a store is refused and left as it was."""
    with pytest.raises(InvalidError, match="--data"), hold_directory(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_flipped_bit_of_an_extent_is_found(data: Path) -> None:
    """An extent that does not match its digest is told by its object's fingerprint, and is not moved."""
    file = extent_of(data, 2)
    file.chmod(0o600)
    with file.open("r+b") as opened:
        opened.seek(5000)
        opened.write(b"\xff\x00")
    inventory = look(data)
    assert kinds(inventory) == [FindingKind.CONTENT]
    assert inventory.findings[0].subject == schema.describe(record(2))
    with hold_directory(data):
        assert repair(inventory) == []
    assert file.exists()


def test_a_flipped_bit_of_an_inline_value_is_found(data: Path) -> None:
    """A small value that does not match its digest is told, though its row is sound."""
    key = schema.key_of(ObjectId(1))
    rewrite(
        data, key, schema.encode_row(ObjectRow(record(1, size=13), schema.inline_payload(SMALL)), b"A" * 13)
    )
    assert kinds(look(data)) == [FindingKind.CONTENT]


def test_a_cut_extent_and_a_lost_one_are_found(data: Path) -> None:
    """A file of another length and one that is gone are told, the lost one with the digest it must have."""
    cut = extent_of(data, 2)
    cut.chmod(0o600)
    os.truncate(cut, 100)
    cut.chmod(0o400)
    extent_of(data, 3).unlink()
    findings = {finding.kind: finding for finding in look(data).findings}
    assert "100 bytes" in findings[FindingKind.CONTENT].detail
    payload = look(data).rows[schema.key_of(ObjectId(3))].payload
    assert payload.digest.hex() in findings[FindingKind.EXTENT_LOST].detail


def test_an_orphan_is_moved_and_not_removed(data: Path) -> None:
    """A file that no row names goes to lost+found with its bytes; the second check is clean."""
    (data / "extents" / "ab" / "ab00000000000001").write_bytes(b"old version")
    inventory = look(data)
    assert kinds(inventory) == [FindingKind.ORPHAN]
    assert inventory.findings[0].level is FindingLevel.LEFTOVER
    assert mended(data, inventory).findings == []
    assert (data / LOST_AND_FOUND / "extents" / "ab00000000000001").read_bytes() == b"old version"


def test_a_file_that_is_no_extent_is_left_alone(data: Path) -> None:
    """A file whose name is no extent's is told, and no repair touches it."""
    (data / "extents" / "ab" / "notes.txt").write_text("mine")
    inventory = look(data)
    assert kinds(inventory) == [FindingKind.STRANGER]
    with hold_directory(data):
        assert repair(inventory) == []
    assert (data / "extents" / "ab" / "notes.txt").exists()


def test_a_damaged_row_is_moved_with_its_file(data: Path) -> None:
    """A row that fails its check goes to lost+found as it is, and so does the file it may have named."""
    key, file = schema.key_of(ObjectId(2)), extent_of(data, 2)
    with lmdb.open(str(data / "store"), max_dbs=2) as env, env.begin(env.open_db(b"objects")) as txn:
        stored = bytearray(txn.get(key) or b"")
    stored[30] ^= 1
    rewrite(data, key, bytes(stored))
    inventory = look(data)
    assert kinds(inventory) == [FindingKind.ROW, FindingKind.ORPHAN]
    assert mended(data, inventory).findings == []
    assert (data / LOST_AND_FOUND / "rows" / f"{key.hex()}.row").read_bytes() == bytes(stored)
    assert (data / LOST_AND_FOUND / "extents" / file.name).read_bytes() == LARGE
    assert [stored.object for stored in records_of(data)] == [1, 3, 4, 9]


def test_a_lost_schema_is_written_again(data: Path) -> None:
    """The schema version is written again when every row can be read, and the store opens as before."""
    before = records_of(data)
    rewrite(data, b"schema", None, b"meta")
    with pytest.raises(DiosError, match="--repair"):
        LmdbStore(data)
    inventory = look(data)
    assert kinds(inventory) == [FindingKind.SCHEMA_LOST]
    assert mended(data, inventory).findings == []
    assert records_of(data) == before


def test_rows_of_an_unknown_format_are_not_moved(data: Path) -> None:
    """Without a schema version, rows that cannot be read may be a newer program's: nothing is changed."""
    rewrite(data, b"schema", None, b"meta")
    rewrite(data, schema.key_of(ObjectId(2)), b"\x02something newer, which this program cannot read")
    inventory = look(data)
    assert set(kinds(inventory)) == {FindingKind.SCHEMA_LOST, FindingKind.ROW, FindingKind.ORPHAN}
    with hold_directory(data):
        assert repair(inventory) == []
    assert look(data).findings == inventory.findings


def test_a_newer_schema_is_told_and_left_alone(data: Path) -> None:
    """A store of a newer program is told as that, and no repair touches it."""
    rewrite(data, b"schema", schema.encode_schema(schema.SCHEMA_LABELLED_WITHOUT_INDEX + 1), b"meta")
    inventory = look(data)
    assert kinds(inventory) == [FindingKind.SCHEMA_NEWER]
    with hold_directory(data):
        assert repair(inventory) == []


def test_a_shared_file_becomes_two(data: Path) -> None:
    """Two objects that name one file get one each, and deleting the one keeps the other."""
    shared = look(data).rows[schema.key_of(ObjectId(2))].payload
    rewrite_row(data, 3, lambda row: ObjectRow(row.record, shared))
    inventory = look(data)
    assert kinds(inventory).count(FindingKind.EXTENT_SHARED) == 2
    # The file that object 3 had before belongs to nobody now.
    assert mended(data, inventory).findings == []
    store = LmdbStore(data)
    try:
        store.recover()
        store.apply([put(2, SMALL)])
        assert content(store, 3) == LARGE
    finally:
        store.close()


@pytest.mark.parametrize("number", [1, 2])
def test_a_wrong_size_is_corrected(data: Path, number: int) -> None:
    """A record that tells another size than its whole content has is corrected, for small and large."""
    rewrite_record(data, number, size=7)
    inventory = look(data)
    assert kinds(inventory) == [FindingKind.SIZE]
    assert mended(data, inventory).findings == []
    sizes = {stored.object: stored.size for stored in records_of(data)}
    assert sizes[ObjectId(number)] == {1: len(SMALL), 2: len(LARGE)}[number]


def test_two_homes_of_one_user_are_told(data: Path) -> None:
    """Two home groups of one user are damage; homes of two users are none."""
    store = LmdbStore(data)
    store.recover()
    store.apply([group(20, Name(b"h" * 32), Deletion.IMMORTAL)])
    store.close()
    assert look(data).findings == []
    store = LmdbStore(data)
    store.recover()
    store.apply([group(21, Name(b"i" * 32), Deletion.IMMORTAL)])
    store.close()
    assert kinds(look(data)) == [FindingKind.HOME_TWICE]


def test_what_nobody_can_reach_is_told_and_kept(data: Path) -> None:
    """Objects whose groups are all gone, and those without a name, are told, and no repair removes them."""
    rewrite_record(data, 1, groups=(Name(b"x" * 32), Name(b"y" * 32)))
    rewrite_record(data, 2, name=None)
    rewrite_record(data, 3, groups=(Name(b"x" * 32), GROUP))
    inventory = look(data)
    assert sorted(kinds(inventory)) == [FindingKind.UNNAMED, FindingKind.UNREACHABLE]
    assert all(finding.level is not FindingLevel.DAMAGE for finding in inventory.findings)
    with hold_directory(data):
        assert repair(inventory) == []


def test_many_findings_of_a_kind_are_counted(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report does not grow with the damage: some findings of each kind are kept, and all are counted."""
    monkeypatch.setattr(check, "FINDINGS_PER_KIND_MAX", 2)
    for number in (1, 2, 3, 4):
        rewrite_record(data, number, groups=(Name(b"x" * 32),))
    rewrite_record(data, 1, name=None)
    inventory = look(data)
    assert sorted(kinds(inventory)) == [FindingKind.UNNAMED, *[FindingKind.UNREACHABLE] * 2]
    assert inventory.counts == {FindingKind.UNNAMED: 1, FindingKind.UNREACHABLE: 3}


@pytest.mark.parametrize("pages", [2, 5])
def test_a_cut_database_is_told(data: Path, pages: int) -> None:
    """A database that lost its end is damage, it ends no process, and a node refuses it in words."""
    os.truncate(data / "store" / "data.mdb", pages * 4096)
    inventory = look(data)
    assert kinds(inventory) == [FindingKind.DATABASE]
    with hold_directory(data):
        assert repair(inventory) == []
    with pytest.raises(DiosError, match=r"docs/recovery\.md"):
        LmdbStore(data)


def test_a_damaged_page_of_the_database_is_told(data: Path) -> None:
    """A page that holds something else is damage, and is not walked."""
    file = data / "store" / "data.mdb"
    whole = bytearray(file.read_bytes())
    page = whole.index(SMALL) // 4096
    whole[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(bytes(whole))
    if not _has_verifier():
        pytest.skip("the installed lmdb has no pass over pages")
    assert kinds(look(data)) == [FindingKind.DATABASE]


def _has_verifier() -> bool:
    try:
        import lmdb.verify as _  # noqa: F401 - whether it is there
    except ImportError:
        return False
    return True


def test_every_kind_is_explained() -> None:
    """Each kind of finding has its meaning, and its section in docs/recovery.md."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "recovery.md").read_text()
    assert set(MEANINGS) == set(FindingKind)
    missing = [kind for kind in FindingKind if f"`{kind}`" not in page]
    assert not missing, missing


def log(size: int) -> Put:
    """A Put of a log of that length."""
    plain = record(0x77, size=size)
    return Put(msgspec.structs.replace(plain, type=ObjectType.DURABLE_STREAM, groups=(GROUP,)))


@pytest.fixture
def logged(data: Path) -> Path:
    """The same store with a log of two entries."""
    store = LmdbStore(data)
    store.recover()
    store.logs.write([LogFrame(ObjectId(0x77), 0, b"one"), LogFrame(ObjectId(0x77), 15, b"two")])
    store.apply([log(30)])
    store.close()
    return data


def test_sound_logs_are_no_finding(logged: Path) -> None:
    """A log whose entries are all there is whole, and its bytes are counted."""
    inventory = look(logged)
    assert kinds(inventory) == []
    assert inventory.content_bytes == 2 * len(LARGE) + 3 * len(SMALL) + 30


@pytest.mark.parametrize(("place", "said"), [(2, "position 0"), (20, "position 15"), (29, "position 15")])
def test_a_damaged_entry_is_found(logged: Path, place: int, said: str) -> None:
    """A changed byte anywhere in a log is told with the entry that it is in."""
    file = logged / "logs" / "77" / f"{0x77:016x}"
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    (finding,) = look(logged).findings
    assert finding.kind is FindingKind.CONTENT
    assert said in finding.detail


def test_what_is_missing_of_a_log_is_found(logged: Path) -> None:
    """A log file that lost acknowledged bytes, or is gone, is damage."""
    file = logged / "logs" / "77" / f"{0x77:016x}"
    os.truncate(file, 15)
    assert kinds(look(logged)) == [FindingKind.CONTENT]
    file.unlink()
    assert kinds(look(logged)) == [FindingKind.CONTENT]


def test_what_is_too_much_of_a_log_is_left_over(logged: Path) -> None:
    """A torn tail, and a log that no object names, are what a crash leaves; the next start removes them."""
    with (logged / "logs" / "77" / f"{0x77:016x}").open("ab") as file:
        file.write(b"torn")
    store = LogFiles(logged / "logs")
    store.write([LogFrame(ObjectId(5), 0, b"nobody's")])
    store.close()
    inventory = look(logged)
    assert kinds(inventory) == [FindingKind.ORPHAN, FindingKind.ORPHAN]
    assert all(finding.level is FindingLevel.LEFTOVER for finding in inventory.findings)
    again = LmdbStore(logged)
    again.recover()
    again.close()
    assert kinds(look(logged)) == []
