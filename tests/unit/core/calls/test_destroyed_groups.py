"""What is left of a group that was destroyed, and what rights on a task mean."""

from __future__ import annotations

import pytest

from dios.errors import Code
from dios.wire import messages
from dios.wire.types import Flag, ObjectType, Permission
from tests.support.core.harness import Client, Node


def group_of(session: Client) -> messages.Reference:
    """A fresh group of the session's."""
    return session.ask(messages.Created, messages.Create(ObjectType.GROUP)).reference


def test_no_name_is_found_in_a_destroyed_group(node: Node) -> None:
    """A member finds what stands in its group, and nothing more once the group is destroyed."""
    session = node.session()
    group = group_of(session)
    created = session.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, (group.ref,), data=b"x"))
    assert created.name is not None
    look = messages.Lookup(created.name)
    assert session.ask(messages.References, look).references
    session.ask(messages.Done, messages.Delete(group.ref, int(Flag.DESTROY)))
    assert not session.ask(messages.References, look).references


def test_whoever_makes_and_destroys_groups_remembers_none(node: Node) -> None:
    """A session that made and destroyed a hundred groups is a member of as many as before."""
    session = node.session()
    task = node.core.state.tasks[session.task]
    before = dict(task.memberships)
    for _ in range(100):
        session.ask(messages.Done, messages.Delete(group_of(session).ref, int(Flag.DESTROY)))
    assert task.memberships == before
    assert set(node.core.state.members) == set(before)


@pytest.mark.parametrize("rights", [Permission.ALL & ~Permission.WRITE, Permission.READ])
def test_who_may_not_write_to_a_task_hands_it_nothing(node: Node, rights: Permission) -> None:
    """Delegating to a task needs the right to write on the reference to it."""
    giver, taker = node.session(), node.session()
    taker.ask(messages.Done, messages.Copy(taker.self_ref, give_way(giver, taker), int(rights)))
    event = next(iter(node.core.state.tasks[giver.task].events))
    assert isinstance(event, messages.Delegated)
    gift = giver.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, data=b"x")).reference
    assert giver.refused(messages.Copy(gift.ref, event.reference.ref)) == Code.EPERM


def give_way(giver: Client, taker: Client) -> int:
    """The taker's reference to the giver's task, found by its name as people of one home do."""
    references = taker.ask(messages.References, messages.Lookup(giver.welcome.name)).references
    return references[0].ref
