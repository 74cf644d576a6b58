from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.errors import DamagedError
from dios.host.content.contents import Contents, Source, compose_bytes, compose_memory, new_size
from dios.host.content.memories import ContentMemory
from dios.ids import ObjectId
from dios.store.protocol import InlinePayload, Put
from dios.transport.memory.pool import MemoryPool
from labs.sim.memory_store import MemoryStore
from tests.support.host.harness import open_descriptors, record

LARGE = limits.INLINE_BYTES_MAX + 100


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """An empty store."""
    memory_store = MemoryStore()
    list(memory_store.recover())
    yield memory_store
    memory_store.close()


@pytest.fixture
def contents(store: MemoryStore) -> Iterator[Contents]:
    """Contents over it; every descriptor is given back."""
    before = open_descriptors()
    pool = MemoryPool()
    new_contents = Contents(store, pool)
    yield new_contents
    new_contents.close()
    pool.close()
    assert open_descriptors() == before


def stored(store: MemoryStore, number: int, data: bytes) -> ObjectId:
    """An object that only the store holds."""
    store.apply([Put(record(number, len(data)), InlinePayload(data))])
    return ObjectId(number)


def whole(contents: Contents, target: ObjectId) -> bytes:
    """All bytes of the current content."""
    content = contents.current(target)
    return content if isinstance(content, bytes) else content.read(0, content.size)


def test_unknown_object_is_empty(contents: Contents) -> None:
    """An object without content has no bytes."""
    assert contents.current(ObjectId(5)) == b""


@pytest.mark.parametrize("size", [0, 10, LARGE])
def test_stored_content_is_opened_when_asked_for(store: MemoryStore, contents: Contents, size: int) -> None:
    """What the store holds is the content, small or large; only large ones are slow, and only once."""
    target = stored(store, 1, b"x" * size)
    store.recover()
    assert contents.is_stored(target)
    assert contents.is_slow(target) is (size > limits.INLINE_BYTES_MAX)
    assert whole(contents, target) == b"x" * size
    assert not contents.is_slow(target)


def test_cached_contents_are_bounded(
    store: MemoryStore, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durable contents are forgotten when they take too much, and opened again when asked for."""
    monkeypatch.setattr(limits, "CONTENT_CACHE_BYTES", 600)
    targets = [stored(store, number, b"%010d" % number) for number in range(1, 6)]
    for target in targets:
        contents.current(target)
    assert [contents.is_stored(target) for target in targets] == [True, True, True, False, False]
    assert whole(contents, targets[0]) == b"%010d" % 1


def test_staged_contents_stay(
    store: MemoryStore, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A content with a newer version on its way to the disk is not forgotten: the store may be ahead."""
    monkeypatch.setattr(limits, "CONTENT_CACHE_BYTES", 300)
    first, second = stored(store, 1, b"x" * 10), stored(store, 2, b"y" * 10)
    contents.in_use = lambda target: target == first
    contents.current(first)
    contents.current(second)
    assert not contents.is_stored(first)


def test_a_stored_content_is_opened_again(store: MemoryStore, contents: Contents) -> None:
    """It leaves the memory; one with a newer version on its way to the disk, and a volatile one, stay."""
    first, second, volatile = stored(store, 1, b"x" * LARGE), stored(store, 2, b"y" * LARGE), ObjectId(3)
    contents.in_use = lambda target: target == second
    contents.set(volatile, b"z")
    for target in (first, second, volatile):
        contents.current(target)
        contents.reopen(target)
    assert [contents.is_stored(target) for target in (first, second)] == [True, False]
    assert contents.peek(volatile) == b"z"
    assert whole(contents, first) == b"x" * LARGE


def test_raw_memory_keeps_its_bytes_and_grows(contents: Contents) -> None:
    """A content that becomes raw keeps its bytes; growing adds zeros; a reader cannot write it."""
    contents.set(ObjectId(1), b"hello")
    former = contents.raw(ObjectId(1), 10)
    assert contents.raw(ObjectId(1), 7) is former
    memory = contents.raw(ObjectId(1), 20)
    assert memory is not former
    assert memory.read(0, 20) == b"hello" + bytes(15)
    reader = memory.reader_fd()
    with pytest.raises(OSError, match=r"descriptor|permitted"):
        os.pwrite(reader, b"x", 0)
    os.close(reader)


def test_missing_bytes_are_damage(contents: Contents) -> None:
    """Reading more than there is says so."""
    version = ContentMemory.version(100, contents.pool).filled(b"x" * 100)
    with pytest.raises(DamagedError):
        version.read(4090, 10)
    version.release()


def test_adopted_shadow_is_frozen(contents: Contents) -> None:
    """A shadow that nobody maps any more becomes immutable; one of another length does not."""
    shadow = ContentMemory.shadow(100)
    assert not shadow.adopt(50)
    assert shadow.adopt(100)
    with pytest.raises(OSError, match=r"permitted"):
        os.pwrite(shadow.fd, b"x", 0)
    shadow.release()


def test_versions_are_recycled_only_when_unseen(contents: Contents) -> None:
    """A version's pages serve again only if its descriptor was never handed out."""
    unseen = ContentMemory.version(LARGE, contents.pool)
    unseen.release()
    assert contents.pool.free_bytes > 0
    seen = ContentMemory.version(LARGE, contents.pool)
    os.close(seen.reader_fd())
    seen.release()
    assert contents.pool.free_bytes == 0


def expected(base: bytes, offset: int, data: bytes, *, replace: bool) -> bytes:
    """What a write makes of the bytes, said plainly."""
    out = bytearray(base[:offset].ljust(offset, b"\0"))
    out += data
    if not replace:
        out += base[offset + len(data) :]
    return bytes(out)


@given(
    base=st.binary(max_size=60), data=st.binary(max_size=60), place=st.integers(0, 60), replace=st.booleans()
)
def test_compositions_agree(base: bytes, data: bytes, place: int, replace: bool) -> None:  # noqa: FBT001 - drawn
    """A write over bytes, and one over memory, make what the model says."""
    offset = min(place, len(base))
    wanted = expected(base, offset, data, replace=replace)
    assert compose_bytes(base, offset, data, replace=replace) == wanted
    total = new_size(len(base), offset, len(data), replace=replace)
    assert total == len(wanted)
    if not total:
        return
    target, under = ContentMemory.shadow(total), ContentMemory.shadow(max(len(base), 1)).filled(base)
    under.size = len(base)
    try:
        compose_memory(target, under, offset, Source(data, 0, len(data)), replace=replace)
        assert target.read(0, total) == wanted
    finally:
        target.release()
        under.release()


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used-before"])
def test_a_version_of_holes_is_zero(contents: Contents, used: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A composed version has zeros where its base has holes and behind it, also on pages used before."""
    total = 3 * limits.MIB
    if used:
        ContentMemory.version(total, contents.pool).filled(b"\xff" * total).release()
    base = ContentMemory.shadow(2 * limits.MIB)
    base.fill(limits.MIB, b"x" * 9, 0, 9)
    version = ContentMemory.version(total, contents.pool)
    assert (contents.pool.reused == 1) is used
    compose_memory(version, base, total - 3, Source(b"new", 0, 3), replace=False)
    expected = bytearray(total)
    expected[limits.MIB : limits.MIB + 9] = b"x" * 9
    expected[-3:] = b"new"
    assert version.read(0, total) == expected
    if not used:
        assert os.fstat(version.fd).st_blocks * 512 < limits.MIB, "holes cost pages"
    version.release()
    base.release()
