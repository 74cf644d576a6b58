"""Limits and counts over a restart, and when the store refuses."""

from __future__ import annotations

import pytest

from dios.core import events
from dios.core.events import ObjectRecord
from dios.core.model.accounts import Defaults
from dios.errors import Code
from dios.ids import Principal, Ticket
from dios.wire import messages
from dios.wire.messages import Bound
from dios.wire.types import ObjectType, Resource, Scope
from tests.support.core.harness import OWNER, Client, Node
from tests.support.core.limits import SCOPES, Office, anonymous, over

OTHER = Principal("uid:7")


def restarted(before: Node, *, backwards: bool = False, defaults: Defaults | None = None) -> Node:
    """The next life of a node, from what its store holds."""
    records = list(before.stored.values())
    node = Node(seed=1, defaults=defaults)
    node.step(events.Recovered(node.now, tuple(records[::-1] if backwards else records)))
    return node


def durable(client: Client, group: int, size: int = 10) -> messages.Created:
    """A durable object in a group."""
    return client.create(ObjectType.DURABLE_BLOB, groups=(group,), data=b"x" * size)


def principal(client: Client) -> messages.LimitRow:
    """The principal's account."""
    owner = client.node.core.state.tasks[client.task].principal
    rows = client.ask(messages.LimitRows, messages.ListLimits()).rows
    return next(row for row in rows if (row.scope, row.subject) == (Scope.PRINCIPAL, owner))


def settle(node: Node) -> Ticket:
    """Everything so far is durable; the next ticket."""
    following = Ticket(node.core.state.next_ticket)
    node.step(events.Persisted(node.now, Ticket(following - 1)))
    return following


def fail(node: Node, first: Ticket) -> None:
    """Nothing since that ticket took place."""
    last = Ticket(node.core.state.next_ticket - 1)
    assert last >= first
    node.step(events.PersistFailed(node.now, first, last, int(Code.ENOSPC), "full"))


# -- restart ----------------------------------------------------------------------------------------
def test_durable_objects_count_again() -> None:
    """After a restart what is durable counts with its principal and its groups, and nothing else does."""
    first = Office(Node())
    durable(first.worker, first.worker.groups[0], 30)
    durable(first.admin, first.group_ref, 5)
    first.worker.create(data=b"volatile")
    node = restarted(first.node)
    client = node.session(groups=(first.group_name,))
    rows = client.ask(messages.LimitRows, messages.ListLimits()).rows
    group = next(row for row in rows if row.subject == first.group_print)
    assert (group.used[Resource.OBJECTS], group.used[Resource.BYTES]) == (2, 35)
    assert principal(client).used[Resource.BYTES] == 35
    assert principal(client).used[Resource.OBJECTS] == 3  # and the group
    durable(client, client.groups[1], 1)
    assert principal(client).used[Resource.BYTES] == 36


@pytest.mark.parametrize("backwards", [False, True])
def test_set_limits_hold_after_a_restart(*, backwards: bool) -> None:
    """Limits that were set for a principal and for a durable group hold in the node's next life."""
    first = Office(Node())
    durable(first.admin, first.group_ref)
    first.row(Scope.GROUP, Bound(Resource.OBJECTS, 2))
    first.row(Scope.PRINCIPAL, Bound(Resource.OBJECTS, 3))
    first.row(Scope.PRINCIPAL, Bound(Resource.BYTES, 0), principal=OTHER)
    node = restarted(first.node, backwards=backwards)
    client = node.session(groups=(first.group_name,))
    durable(client, client.groups[1])
    over(client, messages.Create(ObjectType.SHMEM_BLOB, (client.groups[1],), data=b""))
    over(client, anonymous())
    over(node.session(OTHER), anonymous(b"x"))


@pytest.mark.parametrize("backwards", [False, True])
def test_groups_in_groups_count_again(*, backwards: bool) -> None:
    """A group counts with the one it is in, in whatever order the store tells of them."""
    first = Office(Node())
    group = first.group_ref
    for _ in range(3):
        group = first.admin.create(ObjectType.GROUP, groups=(first.group_ref, group)).reference.ref
    node = restarted(first.node, backwards=backwards)
    client = node.session(groups=(first.group_name,))
    rows = client.ask(messages.LimitRows, messages.ListLimits()).rows
    (outer,) = [row for row in rows if row.subject == first.group_print]
    assert outer.used[Resource.OBJECTS] == 3


def test_set_limits_go_before_defaults() -> None:
    """Other settings at the next start do not undo what was set for one principal, lifted limits included."""
    first = Office(Node())
    first.row(Scope.PRINCIPAL, Bound(Resource.OBJECTS, None), Bound(Resource.BYTES, 20))
    narrow = Defaults(principal=tuple(Bound(resource, 5) for resource in (Resource.OBJECTS, Resource.BYTES)))
    node = restarted(first.node, defaults=narrow)
    bounds = principal(node.session()).limits
    assert (bounds[Resource.OBJECTS], bounds[Resource.BYTES]) == (None, 20)
    assert principal(node.session(OTHER)).limits[Resource.OBJECTS] == 5


# -- the store refuses ------------------------------------------------------------------------------
def test_failed_creation_is_not_counted() -> None:
    """An object that the store refused is counted with nobody, though its handle is still there."""
    office = Office(Node())
    first = settle(office.node)
    before = {scope: office.shown(scope).used for scope in SCOPES}
    created = durable(office.worker, office.worker.groups[0])
    fail(office.node, first)
    assert office.used(Scope.GROUP, Resource.BYTES) == before[Scope.GROUP][Resource.BYTES]
    office.worker.ask(messages.Done, messages.Delete(created.reference.ref))
    assert {scope: office.shown(scope).used for scope in SCOPES} == before


def test_failed_growth_goes_back() -> None:
    """An object whose write the store refused counts as it was before."""
    office = Office(Node())
    ref = durable(office.worker, office.worker.groups[0]).reference.ref
    first = settle(office.node)
    before = office.shown(Scope.TASK).used
    office.worker.ask(messages.Committed, messages.WriteOnce(ref, b"y" * 500))
    fail(office.node, first)
    assert office.shown(Scope.TASK).used == before


def test_failed_deletion_counts_again_with_the_same() -> None:
    """What could not be deleted counts with the task that made it, and with its group, as before."""
    office = Office(Node())
    created = durable(office.worker, office.worker.groups[0])
    first = settle(office.node)
    before = {scope: office.shown(scope).used for scope in SCOPES}
    office.worker.ask(messages.Done, messages.Delete(created.reference.ref))
    fail(office.node, first)
    after = {scope: list(office.shown(scope).used) for scope in SCOPES}
    for scope in SCOPES:
        after[scope][Resource.REFERENCES] += 1  # the handle is gone for good
        assert tuple(after[scope]) == before[scope]


def test_a_group_that_comes_back_has_its_counts_and_limits() -> None:
    """Deleting a group and failing to gets nobody another count or another limit."""
    office = Office(Node())
    durable(office.worker, office.worker.groups[0])
    office.row(Scope.GROUP, Bound(Resource.OBJECTS, 1))
    first = settle(office.node)
    office.admin.ask(messages.Done, messages.Delete(office.group_ref, 256))
    fail(office.node, first)
    again = office.node.session(groups=(office.group_name,))
    over(again, messages.Create(ObjectType.SHMEM_BLOB, (again.groups[1],), data=b""))


@pytest.mark.parametrize("scope", [Scope.GROUP, Scope.PRINCIPAL])
def test_limits_not_stored_do_not_hold(scope: Scope) -> None:
    """A limit that the store refused is what it was before, set or not."""
    office = Office(Node())
    for value in (None, 50):
        office.row(scope, Bound(Resource.OBJECTS, value))
        first = settle(office.node)
        office.row(scope, Bound(Resource.OBJECTS, 0), Bound(Resource.BYTES, 0))
        fail(office.node, first)
        bounds = office.shown(scope).limits
        assert (bounds[Resource.OBJECTS], bounds[Resource.BYTES]) == (value, None)


def test_limits_go_with_the_home_that_was_not_stored() -> None:
    """Limits of a principal whose home group the store refused hold for nobody."""
    office = Office(Node())
    first = settle(office.node)
    office.row(Scope.PRINCIPAL, Bound(Resource.OBJECTS, 0), principal=OTHER)
    fail(office.node, first)
    assert office.shown(Scope.PRINCIPAL, principal=OTHER).limits[Resource.OBJECTS] is None
    office.node.session(OTHER).ask(messages.Created, anonymous())


def test_records_of_limits_are_of_their_own_group() -> None:
    """Limits of a principal stand in its home's record, those of a group in its own, a task's in none."""
    office = Office(Node())
    office.row(Scope.PRINCIPAL, Bound(Resource.OBJECTS, 50))
    office.row(Scope.GROUP, Bound(Resource.BYTES, 60))
    office.row(Scope.TASK, Bound(Resource.TASKS, 5))
    records: dict[bool, ObjectRecord] = {
        record.name == office.group_name: record for record in office.node.stored.values()
    }
    assert len(records) == len(office.node.stored) == 2
    assert records[False].limits == (Bound(Resource.OBJECTS, 50),)
    assert records[True].limits == (Bound(Resource.BYTES, 60),)
    assert records[False].owner == OWNER
