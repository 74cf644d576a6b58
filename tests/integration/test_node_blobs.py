"""Blobs of a real daemon, in bare frames: their bytes, whole and in part, and who can change them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest

from dios import limits
from dios.errors import Code
from dios.wire import messages
from dios.wire.messages import Buffer, Committed, Created, Failure, Mapping, References
from dios.wire.page import read_slot
from dios.wire.types import AcquireIov, Buffering, Flag, ObjectType, Persistence, Semantics
from tests.support.node.raw_client import (
    LARGE,
    NodeProcess,
    RawClient,
    bytes_of,
    create,
    pattern,
    read,
    write,
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests that only talk to it."""
    started = NodeProcess(tmp_path_factory.mktemp("node") / "data", pool_size="1")
    yield started
    assert started.stop() == 0


@pytest.fixture
def client(node: NodeProcess) -> Iterator[RawClient]:
    """A session on it."""
    with node.client() as connected:
        yield connected


@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB, ObjectType.PRIVMEM_BLOB])
@pytest.mark.parametrize("size", [0, 100, limits.INLINE_BYTES_MAX + 1, LARGE])
def test_blob_holds_what_was_written(client: RawClient, kind: ObjectType, size: int) -> None:
    """A blob of any kind and size gives back the bytes written, also in part."""
    ref = create(client, kind, b"old" if size else b"").reference.ref
    data = pattern(size)
    if size:
        write(client, ref, data, flags=int(Flag.REPLACE))
    assert read(client, ref) == data
    assert read(client, ref, size // 2, 10) == data[size // 2 :][:10]


@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB])
@pytest.mark.parametrize("before", [10, limits.INLINE_BYTES_MAX - 3, LARGE])
@pytest.mark.parametrize("length", [7, limits.INLINE_BYTES_MAX + 9])
@pytest.mark.parametrize("replace", [False, True])
def test_partial_writes(client: RawClient, kind: ObjectType, before: int, length: int, replace: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A write in the middle keeps what it does not cover, unless it replaces the rest."""
    old, new = pattern(before), pattern(length, seed=7)
    ref = create(client, kind).reference.ref
    write(client, ref, old)
    offset = before // 2
    write(client, ref, new, offset, int(Flag.REPLACE) if replace else 0)
    tail = b"" if replace else old[offset + length :]
    assert read(client, ref) == old[:offset] + new + tail


def test_write_is_prefilled(client: RawClient) -> None:
    """A buffer acquired for writing holds the object's bytes, small and large."""
    for size in (50, LARGE):
        ref = create(client, ObjectType.SHMEM_BLOB).reference.ref
        data = pattern(size)
        write(client, ref, data)
        buffer = client.ask(messages.AcquireWrite(ref), Buffer)
        assert buffer.size == size
        assert bytes_of(client, buffer) == data


def test_content_is_immutable(client: RawClient) -> None:
    """A reader's memory cannot be written by any descriptor, and stays as it is when the object changes."""
    ref = create(client, ObjectType.SHMEM_BLOB).reference.ref
    write(client, ref, pattern(LARGE))
    first = client.ask(messages.AcquireRead(ref), Buffer)
    fd = client.fds[-1]
    with pytest.raises(OSError, match=r"permitted|denied|Bad file"):
        os.pwrite(fd, b"evil", 0)
    with pytest.raises(OSError, match=r"permitted|denied"):
        mmap.mmap(fd, first.length)
    write(client, ref, pattern(LARGE, seed=9))
    assert os.pread(fd, LARGE, 0) == pattern(LARGE)
    assert read(client, ref) == pattern(LARGE, seed=9)


def test_still_mapped_shadow_is_copied(client: RawClient) -> None:
    """A writer that keeps its mapping after the commit cannot change what it committed."""
    ref = create(client, ObjectType.SHMEM_BLOB).reference.ref
    buffer = client.ask(messages.AcquireWrite(ref, LARGE, flags=int(Flag.BLANK)), Buffer)
    with mmap.mmap(client.fds[-1], buffer.length) as mapping:
        mapping[:] = pattern(LARGE)
        client.ask(messages.CommitWrite(ref, buffer.buffer), Committed)
        mapping[:4] = b"evil"
        assert read(client, ref) == pattern(LARGE)
        again = client.ask(
            messages.AcquireWrite(
                ref, LARGE, iov=AcquireIov.REUSE, buffer=buffer.buffer, flags=int(Flag.BLANK)
            ),
            Buffer,
        )
        assert again.mapping is Mapping.NONE
        client.ask(messages.CommitWrite(ref, buffer.buffer), Committed)
    assert read(client, ref)[:4] == b"evil"


def test_reread_needs_no_bytes(client: RawClient) -> None:
    """Re-acquiring a read buffer sends nothing while the object is the same, and the new one after."""
    ref = create(client, ObjectType.SHMEM_BLOB).reference.ref
    write(client, ref, pattern(LARGE))
    first = client.ask(messages.AcquireRead(ref), Buffer)
    same = client.ask(messages.CommitAcquireRead(ref, first.buffer), Buffer)
    assert (same.mapping, same.data) == (Mapping.NONE, None)
    write(client, ref, pattern(LARGE, seed=3))
    fresh = client.ask(messages.CommitAcquireRead(ref, first.buffer), Buffer)
    assert bytes_of(client, fresh) == pattern(LARGE, seed=3)


def test_raw_blob_is_shared_memory(node: NodeProcess, client: RawClient) -> None:
    """Writers of a raw blob share one memory; a reader sees it live and cannot write it."""
    assert client.welcome.home is not None
    created = client.ask(
        messages.Create(ObjectType.SHMEM_BLOB, (client.welcome.home.ref,), buffering=Buffering.RAW), Created
    )
    assert created.name is not None
    acquired = client.ask(messages.AcquireWrite(created.reference.ref, LARGE), Buffer)
    with mmap.mmap(client.fds[-1], acquired.length) as mapping, node.client() as other:
        references = other.ask(messages.Lookup(created.name), References).references
        two = other.ask(messages.AcquireWrite(references[0].ref, LARGE), Buffer)
        with mmap.mmap(other.fds[-1], two.length) as theirs:
            mapping[:5] = b"hello"
            assert theirs[:5] == b"hello"
        client.ask(messages.CommitWrite(created.reference.ref, acquired.buffer), Committed)
        seen = other.ask(messages.AcquireRead(references[0].ref), Buffer)
        assert os.pread(other.fds[-1], 5, seen.start) == b"hello"
        with pytest.raises(OSError, match=r"permitted|denied|Bad file"):
            os.pwrite(other.fds[-1], b"evil", 0)


def test_copy_changes_persistence(client: RawClient) -> None:
    """A copy with other persistence has the same bytes, in both directions, small and large."""
    for size in (20, LARGE):
        for kind, wanted in ((ObjectType.SHMEM_BLOB, 1), (ObjectType.DURABLE_BLOB, 0)):
            ref = create(client, kind).reference.ref
            write(client, ref, pattern(size))
            call = messages.Copy(ref, client.welcome.self_ref.ref, persistence=Persistence(wanted))
            copied = client.ask(call, References).references[0]
            assert copied.persistence == wanted
            assert read(client, copied.ref) == pattern(size)


def test_vector_over_a_reply(client: RawClient) -> None:
    """A vector whose bytes do not fit one reply gives the rest by descriptor, or refuses those parts."""
    ref = create(client, ObjectType.SHMEM_BLOB, pattern(limits.INLINE_BYTES_MAX)).reference.ref
    calls = tuple(messages.ReadOnce(ref, semantics=Semantics.ANY) for _ in range(200))
    results = client.ask(messages.Vector(calls), messages.Results).results
    assert len(results) == 200
    inline = [part for part in results if isinstance(part, Buffer) and part.data is not None]
    assert len(inline) > 40
    assert all(part.data == pattern(limits.INLINE_BYTES_MAX) for part in inline)
    refused = [part for part in results if isinstance(part, Failure)]
    assert all(part.code == Code.EFBIG for part in refused)


def test_versions_are_live_on_the_page(client: RawClient) -> None:
    """The page shows a commit by the time its reply is there."""
    reference = create(client, ObjectType.DURABLE_BLOB, b"abc").reference
    page = mmap.mmap(client.page_fd, limits.PUBLIC_PAGE_BYTES, prot=mmap.PROT_READ)
    with page, memoryview(page) as view:
        before = read_slot(view, reference.slot)
        client.ask(messages.WriteOnce(reference.ref, b"abcdef"), Committed)
        after = read_slot(view, reference.slot)
        client.ask(messages.Delete(reference.ref), messages.Done)
        gone = read_slot(view, reference.slot)
    assert (before.size, after.size, after.v_w) == (3, 6, before.v_w + 1)
    assert not gone.used
