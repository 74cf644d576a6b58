"""What every store promises (``dios/store/protocol.py``), asked of all that there are."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from dios import limits
from dios.core.events import ObjectRecord
from dios.errors import BadReferenceError, InvalidError, NoSpaceError
from dios.ids import Name, ObjectId, Principal
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import Drop, FilePayload, InlineContent, InlinePayload, Put, Store
from dios.wire.types import Buffering, Deletion, ObjectType
from labs.sim.disk.device import Device
from labs.sim.disk.model_store import ModelStore
from labs.sim.memory_store import MemoryStore
from tests.support.store.records import content, extent, put, record

SMALL = b"a small value"
LARGE = bytes(range(256)) * 1024
OTHER = b"other" * 20_000
MAP_BYTES = 64 * limits.MIB
ROOM_BYTES = 2 * limits.MIB

Opener = Callable[[int], Store]


def fill(store: Store, value: bytes) -> int:
    """Put objects 0, 1, 2… until the store is full; how many there are then."""
    for number in range(ROOM_BYTES // len(value) + 1):
        try:
            store.apply([put(number, value)])
        except NoSpaceError:
            return number
    pytest.fail("a store took more than it has room for")


@pytest.fixture(params=["lmdb", "memory", "model"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens a fresh store with room for so many bytes; every store is closed at the end."""
    stores: list[Store] = []

    def start(room_bytes: int) -> Store:
        store: Store
        if request.param == "lmdb":
            store = LmdbStore(tmp_path / f"data{len(stores)}", map_bytes=room_bytes)
        elif request.param == "model":
            device = Device(Random(1))  # noqa: S311 - a simulation repeats itself
            store = ModelStore(device, Random(2), map_pages=room_bytes // device.page_bytes)  # noqa: S311 - likewise
        else:
            store = MemoryStore(capacity_bytes=room_bytes)
        stores.append(store)
        return store

    yield start
    for store in stores:
        store.close()


@pytest.fixture
def store(opener: Opener) -> Store:
    """A fresh store, recovered."""
    store = opener(MAP_BYTES)
    assert list(store.recover()) == []
    return store


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    """An open file that holds LARGE and some more."""
    path = tmp_path / "source"
    path.write_bytes(LARGE + b"and more")
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_recover_yields_every_record_in_the_order_of_object_ids(store: Store) -> None:
    """Recover yields exactly the records that were put, ordered by object id."""
    store.apply([put(3, SMALL), put(1, LARGE), Put(record(2))])
    assert list(store.recover()) == [record(1, size=len(LARGE)), record(2), record(3, size=len(SMALL))]


def test_a_record_keeps_every_field(store: Store) -> None:
    """An object without a name, in many groups, with huge counters comes back as it was."""
    odd = ObjectRecord(
        ObjectId(2**63 - 1),
        None,
        ObjectType.GROUP,
        tuple(Name(bytes([i]) * 32) for i in range(limits.GROUPS_PER_CALL_MAX)),
        Principal("node"),
        Deletion.REFERENCE_COUNTED,
        Buffering.RAW,
        limits.BLOB_BYTES_MAX,
        limits.COUNTER_MAX - 1,
        limits.COUNTER_MAX,
    )
    store.apply([Put(odd)])
    assert list(store.recover()) == [odd]


@pytest.mark.parametrize(
    "size", [0, 1, limits.INLINE_VALUE_BYTES_MAX, limits.INLINE_VALUE_BYTES_MAX + 1, 3_000_000]
)
def test_content_comes_back_whole_at_every_size(store: Store, size: int) -> None:
    """What was put is what is read, around the limit between inline and extent."""
    data = (b"0123456789abcdef!" * (size // 17 + 1))[:size]
    store.apply([put(1, data)])
    assert content(store, 1) == data


def test_small_content_is_inline_and_large_an_extent(store: Store) -> None:
    """The kind of content follows the size alone."""
    store.apply(
        [put(1, b"x" * limits.INLINE_VALUE_BYTES_MAX), put(2, b"x" * (limits.INLINE_VALUE_BYTES_MAX + 1))]
    )
    assert isinstance(store.open_content(ObjectId(1)), InlineContent)
    os.close(extent(store, 2).fd)


def test_memory_views_are_payloads_too(store: Store) -> None:
    """A payload may be a view of somebody's memory, which is copied."""
    memory = bytearray(LARGE)
    store.apply(
        [
            Put(record(1), InlinePayload(memoryview(memory)[:100])),
            Put(record(2), InlinePayload(memoryview(memory))),
        ]
    )
    memory[:] = bytes(len(memory))
    assert content(store, 1) == LARGE[:100]
    assert content(store, 2) == LARGE


@pytest.mark.parametrize("size", [0, 100, len(LARGE)])
def test_a_file_payload_is_the_first_bytes_of_the_file(store: Store, source: int, size: int) -> None:
    """The first ``size`` bytes are stored, the file's position and the descriptor are left alone."""
    os.lseek(source, 7, os.SEEK_SET)
    store.apply([Put(record(1), FilePayload(source, size))])
    assert content(store, 1) == LARGE[:size]
    assert os.lseek(source, 0, os.SEEK_CUR) == 7


def test_a_sealed_memfd_is_a_payload(store: Store) -> None:
    """The bytes of a memfd are stored."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    try:
        os.write(fd, LARGE)
        store.apply([Put(record(1), FilePayload(fd, len(LARGE)))])
    finally:
        os.close(fd)
    assert content(store, 1) == LARGE


@pytest.mark.parametrize("first", [SMALL, LARGE])
@pytest.mark.parametrize("second", [SMALL[::-1], OTHER])
def test_replacing_changes_record_and_content_together(store: Store, first: bytes, second: bytes) -> None:
    """After a second Put only its record and content are there."""
    store.apply([put(1, first)])
    store.apply([put(1, second, v_w=2)])
    assert list(store.recover()) == [record(1, size=len(second), v_w=2)]
    assert content(store, 1) == second


@pytest.mark.parametrize("data", [b"", SMALL, LARGE])
def test_a_put_without_payload_keeps_the_content(store: Store, data: bytes) -> None:
    """A record alone can be replaced."""
    store.apply([put(1, data)])
    store.apply([Put(record(1, v_w=9))])
    assert list(store.recover()) == [record(1, v_w=9)]
    assert content(store, 1) == data


def test_an_object_without_content_reads_as_empty(store: Store) -> None:
    """A Put without payload of a new object gives empty InlineContent."""
    store.apply([Put(record(1))])
    assert store.open_content(ObjectId(1)) == InlineContent(b"")


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_a_dropped_object_is_unknown(store: Store, data: bytes) -> None:
    """After Drop neither record nor content is there."""
    store.apply([put(1, data), put(2, data)])
    store.apply([Drop(ObjectId(1))])
    assert [recovered.object for recovered in store.recover()] == [2]
    with pytest.raises(BadReferenceError):
        store.open_content(ObjectId(1))


def test_dropping_what_is_not_there_is_nothing(store: Store) -> None:
    """Drop of an unknown object changes nothing and is no error."""
    store.apply([put(1, SMALL)])
    store.apply([Drop(ObjectId(7))])
    assert store.usage() == {"objects": 1, "bytes": len(SMALL), "extents": 0}


def test_an_empty_batch_is_nothing(store: Store) -> None:
    """Apply of no changes is no error."""
    store.apply([])
    assert store.usage() == {"objects": 0, "bytes": 0, "extents": 0}


def test_changes_of_one_batch_happen_in_their_order(store: Store) -> None:
    """Later changes of a batch see earlier ones: put, drop, put again, replace the record alone."""
    store.apply(
        [
            put(1, LARGE),
            Drop(ObjectId(1)),
            put(1, OTHER),
            Put(record(1, v_w=5)),
            put(2, SMALL),
            put(2, LARGE),
            put(3, LARGE),
            Drop(ObjectId(3)),
        ]
    )
    assert content(store, 1) == OTHER
    assert content(store, 2) == LARGE
    assert [(recovered.object, recovered.v_w) for recovered in store.recover()] == [(1, 5), (2, 1)]
    assert store.usage() == {"objects": 2, "bytes": len(OTHER) + len(LARGE), "extents": 2}


@pytest.mark.parametrize("change", [put(1, OTHER), put(1, SMALL), Drop(ObjectId(1))])
def test_open_content_stays_readable_and_the_same(store: Store, change: Put | Drop) -> None:
    """An ExtentContent shows its version after the object was replaced or dropped, and the store closed."""
    store.apply([put(1, LARGE)])
    opened = extent(store, 1)
    try:
        store.apply([change])
        assert os.pread(opened.fd, opened.size + 1, 0) == LARGE
        store.close()
        assert os.pread(opened.fd, opened.size + 1, 0) == LARGE
    finally:
        os.close(opened.fd)


def test_open_content_cannot_be_written(store: Store) -> None:
    """Nobody changes a stored version through the descriptor that was handed out."""
    store.apply([put(1, LARGE)])
    opened = extent(store, 1)
    try:
        with pytest.raises(OSError, match=r"Errno (1|9|22|26)\b"):
            os.pwrite(opened.fd, b"x", 0)
        with pytest.raises(OSError, match=r"Errno (1|9|22|26)\b"):
            os.ftruncate(opened.fd, 0)
    finally:
        os.close(opened.fd)
    assert content(store, 1) == LARGE


def test_each_open_content_is_a_descriptor_of_its_own(store: Store) -> None:
    """Closing one descriptor, or moving its position, does not disturb another one."""
    store.apply([put(1, LARGE)])
    first, second = extent(store, 1), extent(store, 1)
    os.lseek(first.fd, 100, os.SEEK_SET)
    os.close(first.fd)
    assert os.read(second.fd, 10) == LARGE[:10]
    os.close(second.fd)


def test_a_batch_with_a_bad_source_changes_nothing(store: Store, source: int) -> None:
    """When one payload cannot be read, no change of the batch is made and no space is lost."""
    store.apply([put(1, LARGE), put(2, SMALL)])
    before = store.usage()
    too_long = FilePayload(source, len(LARGE) + 1000)
    for bad in (
        too_long,
        FilePayload(source, len(LARGE) * 100),
        FilePayload(999_999, len(LARGE)),
        FilePayload(999_999, 5),
    ):
        with pytest.raises(InvalidError):
            store.apply([put(1, OTHER), Drop(ObjectId(2)), put(3, OTHER), Put(record(4), bad), put(5, SMALL)])
        assert store.usage() == before
    assert [recovered.object for recovered in store.recover()] == [1, 2]
    assert content(store, 1) == LARGE
    assert content(store, 2) == SMALL


def test_a_full_store_says_so_and_changes_nothing(opener: Opener) -> None:
    """NoSpaceError leaves every object as it was; reading and removing go on, and make room."""
    store = opener(ROOM_BYTES)
    assert list(store.recover()) == []
    value = b"v" * limits.INLINE_VALUE_BYTES_MAX
    held = fill(store, value)
    before = store.usage()
    assert before["objects"] == held > 0
    with pytest.raises(NoSpaceError):
        store.apply(
            [Put(record(0, v_w=7), InlinePayload(b"small")), *(put(n, value) for n in range(1000, 1200))]
        )
    assert store.usage() == before
    assert [recovered.v_w for recovered in store.recover()] == [1] * held
    assert all(content(store, number) == value for number in range(held))
    for number in range(held // 2):
        store.apply([Drop(ObjectId(number))])
    store.apply([put(1000, value)])
    assert content(store, 1000) == value


def test_usage_counts_objects_bytes_and_extents(store: Store) -> None:
    """Usage follows puts, replacements and drops, and recover finds the same."""
    store.apply([put(1, SMALL), put(2, LARGE), Put(record(3))])
    assert store.usage() == {"objects": 3, "bytes": len(SMALL) + len(LARGE), "extents": 1}
    store.apply([put(1, OTHER), put(2, SMALL)])
    assert store.usage() == {"objects": 3, "bytes": len(SMALL) + len(OTHER), "extents": 1}
    store.apply([Drop(ObjectId(1)), Drop(ObjectId(3))])
    expected = {"objects": 1, "bytes": len(SMALL), "extents": 0}
    assert store.usage() == expected
    store.recover()
    assert store.usage() == expected


def test_nothing_works_before_recover_or_after_close(opener: Opener) -> None:
    """Apply, open_content and usage refuse until recover was called, and again after close."""
    store = opener(MAP_BYTES)
    for _ in range(2):
        with pytest.raises(InvalidError):
            store.apply([put(1, SMALL)])
        with pytest.raises(InvalidError):
            store.open_content(ObjectId(1))
        with pytest.raises(InvalidError):
            store.usage()
        store.close()
    store.close()


def test_readers_in_other_threads_see_whole_versions(store: Store) -> None:
    """A reader beside the writer gets one version or the next, never a mixture or an error."""
    versions = {LARGE, OTHER, SMALL}
    store.apply([put(1, LARGE)])
    done = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not done.is_set():
            try:
                if content(store, 1) not in versions:
                    wrong.append("a mixture")
            except Exception as error:  # noqa: BLE001 - whatever it is, the test must show it
                wrong.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(15):
        for data in versions:
            store.apply([put(1, data)])
    done.set()
    reader.join()
    assert not wrong
