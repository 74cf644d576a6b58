from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import msgspec
import pytest

from dios import limits
from dios.errors import DamagedError, DiosError, NoSpaceError, NotSupportedError
from dios.ids import ObjectId
from dios.store import lmdb_store, schema
from dios.store.environment import structure_problems
from dios.store.extents import digest_of_file
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import Drop, FilePayload, Put
from tests.support.store.records import content, descriptors, extent, put, record

SMALL = b"a small value"
LARGE = bytes(range(256)) * 1024
FINGERPRINT_1 = schema.describe(record(1))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a store."""
    return tmp_path / "data"


@pytest.fixture
def opened(data: Path) -> Iterator[Callable[[], LmdbStore]]:
    """Opens the store and recovers it; one that was opened before is closed first."""
    stores: list[LmdbStore] = []

    def start() -> LmdbStore:
        for old in stores:
            old.close()
        stores.append(LmdbStore(data))
        stores[-1].recover()
        return stores[-1]

    yield start
    for store in stores:
        store.close()


def extent_files(data: Path) -> list[Path]:
    """Every extent file of a store."""
    return [path for path in (data / "extents").glob("*/*") if path.is_file()]


def edit(data: Path, database: bytes, change: Callable[[lmdb.Transaction[bytes]], object]) -> None:
    """Change a closed store behind its back."""
    with lmdb.open(str(data / "store"), max_dbs=2, map_size=limits.STORE_MAP_BYTES_DEFAULT) as env:
        objects = env.open_db(database)
        with env.begin(db=objects, write=True) as txn:
            change(txn)


def flip(path: Path, place: int) -> None:
    """Change one bit of a file that may only be read."""
    path.chmod(0o600)
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)
    path.chmod(0o400)


def test_everything_is_there_after_reopening(opened: Callable[[], LmdbStore]) -> None:
    """A store that is closed and opened again holds the same records, contents and counts."""
    store = opened()
    store.apply([put(1, LARGE), put(2, SMALL), Put(record(3)), put(4, LARGE)])
    store.apply([Drop(ObjectId(4)), Put(record(1, v_w=2))])
    usage = store.usage()
    store = opened()
    assert list(store.recover()) == [record(1, v_w=2), record(2, size=len(SMALL)), record(3)]
    assert [content(store, number) for number in (1, 2, 3)] == [LARGE, SMALL, b""]
    assert store.usage() == usage == {"objects": 3, "bytes": len(LARGE) + len(SMALL), "extents": 1}
    assert store.damaged == []


def test_pages_given_back_before_they_were_written_are_no_damage(opened: Callable[[], LmdbStore]) -> None:
    """A store whose last transaction stored and dropped a value opens again, though its file is shorter."""
    opened().apply([put(1, bytes(16 * limits.KIB)), Drop(ObjectId(1))])
    assert not list(opened().recover())


def test_a_row_replaced_in_its_own_transaction_leaves_sound_pages(
    opened: Callable[[], LmdbStore], data: Path
) -> None:
    """A large row that is replaced by a small one in one transaction is no damage to the pages' checker."""
    opened().apply([put(1, bytes(5_000)), put(1, b"")])
    assert structure_problems(data) == []


def test_superseded_extents_are_removed(opened: Callable[[], LmdbStore], data: Path) -> None:
    """Replacing, dropping and superseding in one batch leave only the extents of current versions."""
    store = opened()
    store.apply([put(1, LARGE), put(2, LARGE), put(3, LARGE), put(3, LARGE[::-1])])
    store.apply([put(1, LARGE[::-1]), Drop(ObjectId(2)), Put(record(3, v_w=2))])
    assert len(extent_files(data)) == 2 == store.usage()["extents"]


def test_orphans_are_collected(opened: Callable[[], LmdbStore], data: Path) -> None:
    """Extents that no row names are removed at the start; named ones and foreign files stay."""
    store = opened()
    store.apply([put(1, LARGE)])
    (named,) = extent_files(data)
    orphan = data / "extents" / "ab" / "ab00000000000001"
    foreign = data / "extents" / "ab" / "notes.txt"
    orphan.write_bytes(b"half an ext")
    foreign.write_text("mine")
    opened()
    assert sorted(extent_files(data)) == sorted([named, foreign])


def test_a_flipped_bit_in_an_extent_is_found_at_the_first_opening(
    opened: Callable[[], LmdbStore], data: Path
) -> None:
    """A damaged extent is never served; the error holds the fingerprint, other objects are unharmed."""
    store = opened()
    store.apply([put(1, LARGE), put(2, SMALL)])
    flip(extent_files(data)[0], len(LARGE) - 1)
    store = opened()
    for _ in range(2):
        with pytest.raises(DamagedError, match=FINGERPRINT_1) as caught:
            store.open_content(ObjectId(1))
        assert FINGERPRINT_1 in caught.value.message
    assert content(store, 2) == SMALL
    store.apply([put(1, LARGE)])
    assert content(store, 1) == LARGE


def test_an_extent_is_checked_again_when_its_file_was_changed(
    opened: Callable[[], LmdbStore], data: Path
) -> None:
    """A file that is changed after it was found whole is refused when it is opened next."""
    opened().apply([put(1, LARGE)])
    store = opened()
    os.close(extent(store, 1).fd)
    (file,) = extent_files(data)
    flip(file, 0)
    with pytest.raises(DamagedError):
        store.open_content(ObjectId(1))
    flip(file, 0)
    assert content(store, 1) == LARGE


def test_an_unchanged_extent_is_read_once_after_a_start(
    opened: Callable[[], LmdbStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found whole is opened again without reading it; what was just written is not read at all."""
    hashed: list[int] = []

    def digest(fd: int, size: int) -> bytes | None:
        hashed.append(size)
        return digest_of_file(fd, size)

    monkeypatch.setattr(lmdb_store, "digest_of_file", digest)
    opened().apply([put(1, LARGE)])
    store = opened()
    for _ in range(3):
        assert content(store, 1) == LARGE
    store.apply([put(2, LARGE[::-1])])
    for _ in range(3):
        assert content(store, 2) == LARGE[::-1]
    assert hashed == [len(LARGE)]


@pytest.mark.parametrize("harm", ["gone", "cut", "longer"])
def test_a_lost_or_cut_extent_is_reported_at_the_start(
    opened: Callable[[], LmdbStore], data: Path, harm: str
) -> None:
    """Recover names the object by fingerprint, yields its record all the same, and opening it fails."""
    opened().apply([put(1, LARGE)])
    (path,) = extent_files(data)
    path.chmod(0o600)
    if harm == "gone":
        path.unlink()
    else:
        os.truncate(path, len(LARGE) + (1 if harm == "longer" else -1))
    store = opened()
    assert len(store.damaged) == 1
    assert FINGERPRINT_1 in store.damaged[0]
    assert list(store.recover()) == [record(1, size=len(LARGE))]
    with pytest.raises(DamagedError, match=FINGERPRINT_1):
        store.open_content(ObjectId(1))
    store.apply([Drop(ObjectId(1))])
    assert extent_files(data) == []


def test_a_flipped_bit_in_an_inline_value_is_found(opened: Callable[[], LmdbStore], data: Path) -> None:
    """A damaged inline value is never served, and named by fingerprint."""
    opened().apply([put(1, SMALL), put(2, SMALL)])
    opened().close()

    def harm(txn: lmdb.Transaction[bytes]) -> None:
        stored = bytearray(txn.get(schema.key_of(ObjectId(1))) or b"")
        stored[-1] ^= 1
        txn.put(schema.key_of(ObjectId(1)), bytes(stored))

    edit(data, b"objects", harm)
    store = opened()
    with pytest.raises(DamagedError, match=FINGERPRINT_1):
        store.open_content(ObjectId(1))
    assert content(store, 2) == SMALL


def test_a_damaged_row_is_reported_and_left_out(opened: Callable[[], LmdbStore], data: Path) -> None:
    """A row that fails its check does not stop the start, and no extent is removed meanwhile."""
    opened().apply([put(1, LARGE), put(2, SMALL)])
    opened().close()

    def harm(txn: lmdb.Transaction[bytes]) -> None:
        stored = bytearray(txn.get(schema.key_of(ObjectId(1))) or b"")
        stored[40] ^= 1
        txn.put(schema.key_of(ObjectId(1)), bytes(stored))

    edit(data, b"objects", harm)
    store = opened()
    assert [recovered.object for recovered in store.recover()] == [2]
    assert ["object 0000000000000001" in line for line in store.damaged] == [True]
    assert len(extent_files(data)) == 1
    with pytest.raises(DamagedError, match="0000000000000001"):
        store.open_content(ObjectId(1))
    with pytest.raises(DamagedError):
        store.apply([Put(record(1)), put(3, SMALL)])
    assert store.usage()["objects"] == 2
    store.apply([put(1, SMALL)])
    assert content(store, 1) == SMALL
    store = opened()
    assert store.damaged == []
    assert extent_files(data) == []


def test_a_newer_schema_is_refused(opened: Callable[[], LmdbStore], data: Path) -> None:
    """A store of a later program is not touched; the error says what to do."""
    opened().close()
    edit(
        data,
        b"meta",
        lambda txn: txn.put(b"schema", schema.encode_schema(schema.SCHEMA_LABELLED_WITHOUT_INDEX + 1)),
    )
    with pytest.raises(NotSupportedError, match=r"schema version 5.*newer program.*the-store-on-disk"):
        LmdbStore(data)
    edit(data, b"meta", lambda txn: txn.put(b"schema", schema.encode_schema(1)))
    opened()


@pytest.mark.parametrize("stored", [None, b"", b"12345"])
def test_a_lost_schema_is_damage(opened: Callable[[], LmdbStore], data: Path, stored: bytes | None) -> None:
    """A store without a legible schema version is not taken for an empty one."""
    opened().apply([put(1, SMALL)])
    opened().close()
    edit(data, b"meta", lambda txn: txn.delete(b"schema") if stored is None else txn.put(b"schema", stored))
    with pytest.raises(DamagedError, match="schema version"):
        LmdbStore(data)


def test_what_is_no_database_is_damage(data: Path) -> None:
    """Rubbish in place of the database is an error of ours, and the directory is free again."""
    (data / "store").mkdir(parents=True)
    (data / "store" / "data.mdb").write_bytes(b"rubbish " * 1024)
    for _ in range(2):
        with pytest.raises(DamagedError):
            LmdbStore(data)


def test_a_path_that_is_a_file_is_our_error(tmp_path: Path) -> None:
    """A directory that cannot be made is reported as DiosError."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DiosError):
        LmdbStore(tmp_path / "file" / "data")


def test_nobody_else_may_read_the_store(opened: Callable[[], LmdbStore], data: Path) -> None:
    """The database holds names, which are secrets: all files are the owner's alone."""
    opened().apply([put(1, LARGE), put(2, SMALL)])
    files = [path for path in data.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"data.mdb", "lock"}
    assert [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_full_map_leaves_no_extent_behind(data: Path) -> None:
    """Extents of a batch that the database has no room for are removed."""
    store = LmdbStore(data, map_bytes=limits.MIB)
    try:
        store.recover()
        store.apply([put(1, LARGE)])
        files = extent_files(data)
        small = b"s" * limits.INLINE_VALUE_BYTES_MAX
        with pytest.raises(NoSpaceError):
            store.apply([put(2, LARGE), put(1, LARGE[::-1]), *(put(n, small) for n in range(10, 100))])
        assert extent_files(data) == files
        assert content(store, 1) == LARGE
        assert store.usage() == {"objects": 1, "bytes": len(LARGE), "extents": 1}
    finally:
        store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={4 * limits.MIB}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_changes_nothing(small_disk: Path) -> None:
    """When an extent does not fit the disk the batch is refused, its space comes back, reading goes on."""
    store = LmdbStore(small_disk / "data")
    try:
        store.recover()
        store.apply([put(1, LARGE)])
        memory = os.memfd_create("big", os.MFD_CLOEXEC)
        os.truncate(memory, 8 * limits.MIB)
        for _ in range(3):
            with pytest.raises(NoSpaceError):
                store.apply(
                    [put(2, LARGE), put(1, SMALL), Put(record(3), FilePayload(memory, 8 * limits.MIB))]
                )
        os.close(memory)
        assert store.usage() == {"objects": 1, "bytes": len(LARGE), "extents": 1}
        assert len(extent_files(small_disk / "data")) == 1
        assert content(store, 1) == LARGE
        store.apply([put(2, LARGE), put(1, SMALL)])
        assert (content(store, 1), content(store, 2)) == (SMALL, LARGE)
    finally:
        store.close()


def test_no_descriptor_is_left_behind(data: Path) -> None:
    """Opening, using, failing and closing a store leaves the process with the descriptors it had."""
    before = descriptors()
    for _ in range(3):
        store = LmdbStore(data)
        store.recover()
        store.apply([put(1, LARGE), put(2, SMALL)])
        assert content(store, 1) == LARGE
        store.close()
    assert descriptors() == before


def test_a_store_with_a_labelled_object_is_closed_to_earlier_programs(
    opened: Callable[[], LmdbStore], data: Path
) -> None:
    """An earlier program would show the object without its label, so the schema version tells it to stop."""
    store = opened()
    store.apply([Put(record(1)), Put(msgspec.structs.replace(record(2), secrecy=("uid:1000/payroll",)))])
    store.close()
    seen: list[bytes | None] = []
    edit(data, b"meta", lambda txn: seen.append(txn.get(b"schema")))
    assert seen == [schema.encode_schema(schema.SCHEMA_LABELLED)]
    again = opened()
    assert [recovered.secrecy for recovered in again.recover()] == [(), ("uid:1000/payroll",)]
