"""Descriptors of the node are counted with those for whom it opens them, and refused beforehand."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core.model.accounts import Defaults
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.messages import Bound
from dios.wire.types import Buffering, Flag, Mode, ObjectType, Resource, Scope
from tests.support.core.harness import Client, Node

OTHER = Principal("uid:2000")
LARGE = limits.INLINE_BYTES_MAX + 1


def node_with(*, node: int, principal: int) -> Node:
    """A node with these numbers of descriptors for all objects, and for those of one principal."""
    return Node(
        defaults=Defaults(
            node=(Bound(Resource.DESCRIPTORS, node),), principal=(Bound(Resource.DESCRIPTORS, principal),)
        )
    )


def used(client: Client, scope: Scope = Scope.NODE) -> int:
    """The descriptors in use, of the node or of the first principal."""
    rows = client.ask(messages.LimitRows, messages.ListLimits()).rows
    return next(row.used[Resource.DESCRIPTORS] for row in rows if row.scope is scope)


@pytest.mark.parametrize(
    ("kind", "buffering", "size", "descriptors"),
    [
        (ObjectType.SHMEM_BLOB, Buffering.DOUBLE, 10, 0),
        (ObjectType.SHMEM_BLOB, Buffering.DOUBLE, limits.INLINE_BYTES_MAX, 0),
        (ObjectType.SHMEM_BLOB, Buffering.DOUBLE, LARGE, limits.MEMORY_DESCRIPTORS),
        (ObjectType.SHMEM_BLOB, Buffering.RAW, 10, limits.MEMORY_DESCRIPTORS),
        (ObjectType.DURABLE_BLOB, Buffering.DOUBLE, LARGE, 0),
    ],
)
def test_an_object_is_counted_by_what_it_needs(
    node: Node, kind: ObjectType, buffering: Buffering, size: int, descriptors: int
) -> None:
    """Large bytes in memory and raw memory have descriptors; small and stored bytes have none."""
    session = node.session()
    before = used(session)
    created = session.ask(messages.Created, messages.Create(kind, (session.groups[0],), buffering=buffering))
    session.ask(messages.Committed, messages.WriteOnce(created.reference.ref, bytes(size)))
    assert used(session) == before + descriptors
    session.ask(messages.Done, messages.Delete(created.reference.ref, int(Flag.DESTROY)))
    assert used(session) == before


def test_a_stream_is_counted_whether_or_not_it_is_attached(node: Node) -> None:
    """The descriptors of its ring are set aside when it is created, so that attaching never fails."""
    session = node.session()
    before = used(session)
    created = session.ask(messages.Created, messages.Create(ObjectType.SHMEM_STREAM, (session.groups[0],)))
    assert used(session) >= before + limits.STREAM_DESCRIPTORS
    session.ask(messages.Done, messages.Delete(created.reference.ref, int(Flag.DESTROY)))
    assert used(session) == before


def test_a_stream_with_both_ends_attached_needs_fewer(node: Node) -> None:
    """The memories of its ring are with its ends then, whatever end came first and however it ends."""
    session = node.session()
    before = used(session)
    for first, second in ((Mode.READ, Mode.WRITE), (Mode.WRITE, Mode.READ)):
        created = session.ask(messages.Created, messages.Create(ObjectType.SHMEM_STREAM))
        session.call(messages.Attach(created.reference.ref, first))
        assert used(session) == before + limits.STREAM_DESCRIPTORS
        session.call(messages.Attach(created.reference.ref, second))
        assert used(session) == before + limits.STREAM_DESCRIPTORS_ATTACHED
        session.ask(messages.Done, messages.Delete(created.reference.ref, int(Flag.DESTROY)))
        assert used(session) == before


def test_one_principal_leaves_descriptors_to_others() -> None:
    """Streams end at the principal's bound, with its name; another principal goes on to that of the node."""
    node = node_with(node=100, principal=60)
    session, other = node.session(), node.session(OTHER)
    create = messages.Create(ObjectType.SHMEM_STREAM)
    count = 0
    while not isinstance(answer := session.call(create), messages.Failure):
        count += 1
    assert answer.code == Code.EDQUOT
    assert "60 of the node's descriptors for uid:1000" in answer.message
    assert 0 < count <= 60 // limits.STREAM_DESCRIPTORS
    others = 0
    while not isinstance(answer := other.call(create), messages.Failure):
        others += 1
    assert others
    assert "this node" in answer.message or "uid:2000" in answer.message
    assert used(session) <= 100 + limits.MEMORY_DESCRIPTORS


def test_bytes_that_grow_in_steps_are_counted_too() -> None:
    """Many small objects do not become many large ones without room for their descriptors."""
    node = node_with(node=2 * limits.MEMORY_DESCRIPTORS, principal=1000)
    session = node.session()
    half = bytes(limits.INLINE_BYTES_MAX // 2 + 1)
    refs = [
        session.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, data=half)).reference.ref
        for _ in range(3)
    ]
    for ref in refs[:2]:
        session.ask(messages.Committed, messages.WriteOnce(ref, half, len(half)))
    assert session.refused(messages.WriteOnce(refs[2], half, len(half))) == Code.EDQUOT
    session.ask(messages.Committed, messages.WriteOnce(refs[2], b"x"))


def test_a_reader_of_stored_bytes_pays_for_its_open_file() -> None:
    """A buffer on a large stored object has a file, counted with its task until the release."""
    node = node_with(node=1000, principal=1)
    session = node.session()
    refs = []
    for _ in range(2):
        created = session.ask(
            messages.Created, messages.Create(ObjectType.DURABLE_BLOB, (session.groups[0],))
        )
        for start in range(0, LARGE, limits.INLINE_BYTES_MAX):
            data = bytes(min(limits.INLINE_BYTES_MAX, LARGE - start))
            session.ask(messages.Committed, messages.WriteOnce(created.reference.ref, data, start))
        refs.append(created.reference.ref)
    buffer = session.ask(messages.Buffer, messages.AcquireRead(refs[0])).buffer
    assert session.refused(messages.AcquireRead(refs[1])) == Code.EDQUOT
    session.ask(messages.Done, messages.ReleaseRead(refs[0], buffer))
    session.ask(messages.Buffer, messages.AcquireRead(refs[1]))
