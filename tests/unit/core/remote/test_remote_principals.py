"""Claims about for whom a node thinks that a task of another acts."""

from __future__ import annotations

from dios.ids import Principal
from dios.wire import messages
from dios.wire.types import Brand, ObjectType, Resource
from tests.support.core.cluster import Cluster, record_of
from tests.support.core.harness import OWNER, Client

OTHER = Principal("uid:2000")


def test_what_is_given_is_counted_with_the_receivers_principal_once_that_is_known() -> None:
    """A session of the first node gives a task of the third, which is another principal's, an object of the
    second: as soon as that task makes a call there, everything it holds is its own principal's.
    """
    cluster = Cluster()
    here, holder, far = cluster.nodes
    giver = cluster.session(here)
    created = cluster.session(holder).create(ObjectType.SHMEM_BLOB, data=b"given")
    reply = cluster.call(giver, messages.Lookup(created.name or b""))
    assert isinstance(reply, messages.References)
    stranger = far.session(OTHER)
    # Somebody of the giver's own principal, beside the stranger, has a reference to that task to hand on.
    between = far.session(OWNER)
    tasks = far.core.state.tasks
    itself = tasks[stranger.task].table.get(stranger.self_ref)
    passed = far.core.state.add_reference(
        tasks[between.task], itself.object, itself.permissions, itself.provenance
    )
    cluster.call(between, messages.Copy(passed.id, _task_ref(cluster, between, giver)))
    told = giver.event()
    assert isinstance(told, messages.Delegated)
    assert isinstance(
        cluster.call(giver, messages.Copy(reply.references[0].ref, told.reference.ref, 1)), messages.Done
    )
    deputy = record_of(stranger, holder)
    assert deputy.guessed
    assert deputy.brand is Brand.PURE
    given = stranger.given()
    assert isinstance(cluster.call(stranger, messages.ReadOnce(given.ref)), messages.Buffer)
    assert (deputy.principal, deputy.guessed) == (OTHER, False)
    assert holder.core.state.account_of(OTHER).used[Resource.REFERENCES] == len(deputy.table)
    cluster.check()


def _task_ref(cluster: Cluster, asker: Client, wanted: Client) -> int:
    """A reference of ``asker`` to the task that ``wanted`` is, by its name."""
    name = wanted.node.core.state.tasks[wanted.task].object.name
    reply = cluster.call(asker, messages.Lookup(bytes(name or b"")))
    assert isinstance(reply, messages.References)
    return reply.references[0].ref
