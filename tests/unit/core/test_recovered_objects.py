"""Durable objects after the restart of a killed node: those that nothing refers to are collected."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import events
from dios.wire import messages
from dios.wire.types import Deletion, ObjectType
from tests.support.core.cluster import Citizen, Cluster
from tests.support.core.harness import Client, Node

GRACE_MS = limits.REMOTE_TASK_GRACE_MS


def create(client: Client, deletion: Deletion | None) -> messages.Created:
    """A durable object with a name."""
    group = (client.groups[0],)
    call = messages.Create(ObjectType.DURABLE_BLOB, group, deletion=deletion, data=b"content")
    return client.ask(messages.Created, call)


@pytest.mark.parametrize("deletion", [None, Deletion.REFERENCE_COUNTED])
def test_a_counted_object_goes_with_its_node(node: Node, deletion: Deletion | None) -> None:
    """On a node alone nobody can have a reference from before a kill: only what is not counted stays."""
    created = create(node.session(), deletion)
    again = Node(1)
    again.stored = dict(node.stored)
    again.step(events.Recovered(again.now, tuple(node.stored.values())))
    stays = deletion is None
    assert (created.reference.object in again.core.state.objects) is stays
    assert (created.reference.object in again.stored) is stays


@pytest.mark.parametrize("held", [True, False])
def test_a_counted_object_stays_for_references_of_other_nodes(*, held: bool) -> None:
    """In a cluster it is collected after the grace period, unless a task of another node refers to it."""
    cluster = Cluster(("r1", "r1"))
    here, there = cluster.nodes
    created = create(cluster.session(here), Deletion.REFERENCE_COUNTED)
    reader: Citizen = cluster.session(there)
    (reference,) = reader.lookup(created.name)
    if not held:
        # Its creator's session keeps it until the kill.
        reader.ask(messages.Done, messages.Delete(reference.ref))
        cluster.settle()
    here.crash()
    cluster.connect(here, there)
    cluster.connect(there, here)
    cluster.settle()
    cluster.advance(GRACE_MS // 2, 500)
    assert created.reference.object in here.core.state.objects
    cluster.advance(GRACE_MS, 500)
    assert (created.reference.object in here.core.state.objects) is held
    assert (created.reference.object in here.stored) is held
    if held:
        assert reader.read(reference.ref) == b"content"
        reader.ask(messages.Done, messages.Delete(reference.ref))
        cluster.settle()
        cluster.advance(1_000, 100)
        assert created.reference.object not in here.core.state.objects
