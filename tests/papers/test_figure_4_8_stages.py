"""Figure 4.8: every order of acquire, commit, re-acquire and release up to a length, by a small automaton."""

from __future__ import annotations

import itertools

import pytest

from dios.errors import Code
from dios.wire import messages
from dios.wire.types import AcquireIov, Buffering, Flag, Mode, ObjectType, Semantics
from tests.support.core.harness import Client, Node
from tests.support.core.snapshot import snapshot

STEPS = ("commit", "re-acquire", "release", "commit and release")
LENGTH = 4

# What the figure allows: stage and step to the next stage. Whatever is not here is refused.
ALLOWED = {
    ("acquired", "commit"): "committed",
    ("acquired", "release"): "released",  # the request is aborted (§4.7; semantics, I/O requests)
    ("acquired", "commit and release"): "released",
    ("committed", "commit"): "committed",
    ("committed", "re-acquire"): "acquired",
    ("committed", "release"): "released",
}


def call_for(step: str, mode: Mode, ref: int, buffer: int) -> messages.AnyCall:
    """The call of a step."""
    reading = mode is Mode.READ
    if step == "commit":
        return messages.CommitRead(ref, buffer) if reading else messages.CommitWrite(ref, buffer)
    if step == "re-acquire":
        acquire = messages.AcquireRead if reading else messages.AcquireWrite
        return acquire(ref, iov=AcquireIov.REUSE, buffer=buffer, semantics=Semantics.EXCL)
    flags = int(Flag.RELEASE_COMMIT) if step == "commit and release" else 0
    release = messages.ReleaseRead if reading else messages.ReleaseWrite
    return release(ref, buffer, flags=flags)


def acquire(client: Client, mode: Mode, ref: int) -> int:
    """A request alone on its object."""
    kind = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
    return client.ask(messages.Buffer, kind(ref, semantics=Semantics.EXCL)).buffer


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB, ObjectType.PRIVMEM_BLOB])
def test_every_order(node: Node, mode: Mode, kind: ObjectType) -> None:
    """Each order of four steps (of three for two types) goes as drawn, or is refused and changes nothing."""
    client = node.session()
    ref = client.create(kind, data=b"abc").reference.ref
    for order in itertools.product(STEPS, repeat=LENGTH if kind is ObjectType.SHMEM_BLOB else LENGTH - 1):
        buffer, stage, commits = acquire(client, mode, ref), "acquired", 0
        before = client.counters(ref)
        for step in order:
            call = call_for(step, mode, ref, buffer)
            following = ALLOWED.get((stage, step))
            if following is None:
                expected = Code.EBADF if stage == "released" else Code.EINVAL
                assert client.refused(call) == expected, (order, stage, step)
                continue
            assert not isinstance(client.call(call), messages.Failure), (order, stage, step)
            commits += "commit" in step
            stage = following
        a_r, a_w, v_r, v_w = client.counters(ref)
        assert (a_r + a_w) == (1 if stage == "acquired" else 0)
        assert (v_r + v_w) - (before[2] + before[3]) == commits
        if stage != "released":
            client.ask(messages.Done, call_for("release", mode, ref, buffer))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("step", STEPS)
def test_nothing_before_the_acquire(node: Node, mode: Mode, step: str) -> None:
    """A request starts with its acquire: on a buffer that never was, every other step is refused."""
    client = node.session()
    ref = client.create(data=b"abc").reference.ref
    assert client.refused(call_for(step, mode, ref, 12_345)) == Code.EBADF


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("step", STEPS)
def test_the_other_direction_is_refused(node: Node, mode: Mode, step: str) -> None:
    """A buffer acquired to read is no write's, and the other way round."""
    client = node.session()
    ref = client.create(data=b"abc").reference.ref
    buffer = acquire(client, mode, ref)
    if step == "re-acquire":
        client.call(call_for("commit", mode, ref, buffer))
    assert client.refused(call_for(step, Mode(1 - mode), ref, buffer)) == Code.EINVAL


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("step", STEPS)
def test_another_references_buffer(node: Node, mode: Mode, step: str) -> None:
    """Without TAKE, BORROW or MOVE a buffer serves the reference it is associated with only."""
    client = node.session()
    ref, other = (client.create(data=b"abc").reference.ref for _ in range(2))
    buffer = acquire(client, mode, ref)
    if step == "re-acquire":
        client.call(call_for("commit", mode, ref, buffer))
    assert client.refused(call_for(step, mode, other, buffer)) == Code.EBADF


def test_commit_after_a_failed_one(node: Node) -> None:
    """After a failed commit the buffer may be committed again in vain, and re-acquired."""
    client, other = node.session(), node.session()
    created = client.create(data=b"abc")
    ref = created.reference.ref
    buffer = acquire(client, Mode.WRITE, ref)
    other.call(messages.WriteOnce(other.lookup(created.name)[0].ref, b"x"))
    client.conflicts(messages.CommitWrite(ref, buffer))
    client.conflicts(messages.CommitWrite(ref, buffer))
    client.call(call_for("re-acquire", Mode.WRITE, ref, buffer))
    client.ask(messages.Committed, messages.CommitWrite(ref, buffer))


def test_listing_4_5(node: Node) -> None:
    """Listing 4.5: an update under EXCL re-acquires the same buffer until its commit holds."""
    client, other = node.session(), node.session()
    created = client.create(data=b"value")
    ref, others = created.reference.ref, other.lookup(created.name)[0].ref
    tries, buffer = 0, 0
    while True:
        tries += 1
        iov = AcquireIov.REUSE if buffer else AcquireIov.CREATE
        call = messages.AcquireWrite(ref, 5, semantics=Semantics.EXCL, iov=iov, buffer=buffer)
        buffer = client.ask(messages.Buffer, call).buffer
        if tries < 4:  # three times somebody is in between
            other.call(messages.ReadOnce(others))
        if isinstance(client.call(messages.CommitWrite(ref, buffer)), messages.Committed):
            break
    client.ask(messages.Done, messages.ReleaseWrite(ref, buffer))
    assert tries == 4
    assert client.counters(ref) == (0, 0, 3, 1)


def test_listing_4_6(node: Node) -> None:
    """Listing 4.6: a size and a data buffer are re-used over many reads; too small a one is replaced."""
    client = node.session()
    chunks = [b"a" * 10, b"b" * 5, b"c" * 40]
    ref = client.create(data=b"".join(len(chunk).to_bytes(8, "little") + chunk for chunk in chunks))
    position, size_buffer, data_buffer, room, opened = 0, 0, 0, 0, set()

    def read(size: int, buffer: int) -> int:
        iov = AcquireIov.REUSE if buffer else AcquireIov.CREATE
        call = messages.AcquireRead(ref.reference.ref, size, position, iov=iov, buffer=buffer)
        acquired = client.ask(messages.Buffer, call)
        assert acquired.size == size
        client.ask(messages.Committed, messages.CommitRead(ref.reference.ref, acquired.buffer))
        opened.add(acquired.buffer)
        return acquired.buffer

    for chunk in chunks:
        size_buffer = read(8, size_buffer)
        position += 8
        if data_buffer and len(chunk) > room:
            client.call(messages.ReleaseRead(ref.reference.ref, data_buffer))
            data_buffer = 0
        data_buffer = read(len(chunk), data_buffer)
        room = max(room, len(chunk))
        position += len(chunk)
    assert len(opened) == 3


def test_mutex_of_section_4_7(node: Node) -> None:
    """§4.7, Higher-level abstractions: an EXCL read and an EXCL write with equal versions make a lock."""
    first, second = node.session(), node.session()
    created = first.create(data=b"0")

    def try_lock(client: Client, ref: int) -> bool:
        call = messages.ReadOnce(ref, semantics=Semantics.EXCL)
        seen = client.ask(messages.Buffer, call)
        write = client.ask(messages.Buffer, messages.AcquireWrite(ref, semantics=Semantics.EXCL))
        same = (write.v_r, write.v_w) == (seen.v_r, seen.v_w)
        held = same and isinstance(client.call(messages.CommitWrite(ref, write.buffer)), messages.Committed)
        client.call(messages.ReleaseWrite(ref, write.buffer))
        return held

    assert try_lock(first, created.reference.ref)
    other = second.lookup(created.name)[0].ref
    write = second.ask(messages.Buffer, messages.AcquireWrite(other, semantics=Semantics.EXCL))
    assert first.refused(messages.ReadOnce(created.reference.ref, semantics=Semantics.EXCL)) == Code.EBUSY
    second.call(messages.ReleaseWrite(other, write.buffer))
    assert try_lock(second, other)


def test_stages_of_raw_memory(node: Node) -> None:
    """Figure 4.8 holds for raw memory; there, giving up a write marks the object dirty."""
    client = node.session()
    call = messages.Create(ObjectType.SHMEM_BLOB, buffering=Buffering.RAW, data=b"abc")
    ref = client.ask(messages.Created, call).reference.ref
    buffer = acquire(client, Mode.WRITE, ref)
    before = snapshot(node.core.state)
    assert before
    client.ask(messages.Committed, messages.CommitWrite(ref, buffer))
    client.call(call_for("re-acquire", Mode.WRITE, ref, buffer))
    client.ask(messages.Done, messages.ReleaseWrite(ref, buffer))
    target = node.core.state.objects[client.stat(ref).object]  # type: ignore[index]
    assert target.dirty == 1
