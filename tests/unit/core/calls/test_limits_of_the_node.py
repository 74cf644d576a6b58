"""What all together may use: tasks, and bytes in memory."""

from __future__ import annotations

import pytest

from dios.core.model.accounts import Defaults
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.messages import Bound
from dios.wire.types import Buffering, ObjectType, Resource, Scope
from tests.support.core.harness import Client, Node

OTHER = Principal("uid:2000")


def small_node(**bounds: int) -> Node:
    """A node with limits for all together."""
    return Node(defaults=Defaults(node=tuple(Bound(Resource[word], most) for word, most in bounds.items())))


def create(client: Client, kind: ObjectType, data: bytes) -> object:
    """Try to create an object of these bytes."""
    return client.call(messages.Create(kind, (client.groups[0],), data=data))


def test_principals_share_the_memory() -> None:
    """What one principal has in memory leaves another so much less, and says that the node is full."""
    node = small_node(VOLATILE_BYTES=100)
    session, other = node.session(), node.session(OTHER)
    assert isinstance(create(session, ObjectType.SHMEM_BLOB, bytes(60)), messages.Created)
    assert isinstance(create(other, ObjectType.SHMEM_BLOB, bytes(40)), messages.Created)
    refused = create(other, ObjectType.SHMEM_BLOB, b"x")
    assert isinstance(refused, messages.Failure)
    assert refused.code == Code.EDQUOT
    assert "100 volatile_bytes for this node" in refused.message


def test_what_is_stored_takes_no_memory() -> None:
    """Durable objects are counted in bytes and not in volatile bytes; a buffer to write one is."""
    node = small_node(VOLATILE_BYTES=100)
    session = node.session()
    stored = create(session, ObjectType.DURABLE_BLOB, bytes(300))
    assert isinstance(stored, messages.Created)
    ref = stored.reference.ref
    assert session.refused(messages.AcquireWrite(ref, size=101)) == Code.EDQUOT
    assert session.ask(messages.Buffer, messages.AcquireWrite(ref, size=100)).size == 100
    used = session.ask(messages.LimitRows, messages.ListLimits()).rows[0]
    assert used.scope is Scope.NODE
    assert (used.used[Resource.BYTES], used.used[Resource.VOLATILE_BYTES]) == (400, 100)


@pytest.mark.parametrize("buffering", list(Buffering))
def test_memory_comes_back(buffering: Buffering) -> None:
    """Whatever way bytes in memory came to be, they are free again with the object."""
    node = small_node(VOLATILE_BYTES=100)
    session = node.session()
    for _ in range(3):
        created = session.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, buffering=buffering))
        session.ask(messages.Buffer, messages.AcquireWrite(created.reference.ref, size=100))
        assert session.refused(messages.AcquireWrite(created.reference.ref, size=101)) == Code.EDQUOT
        session.ask(messages.Done, messages.Delete(created.reference.ref))


def test_nobody_sets_the_limits_of_all() -> None:
    """The node's own user sees the node's limits, and cannot set them while it runs."""
    session = small_node(TASKS=1).session()
    bounds = (Bound(Resource.TASKS, 5),)
    assert session.refused(messages.SetLimits(Scope.NODE, bounds)) == Code.EINVAL
