"""A session that presents groups of its keyring after its Hello (ADR 0003)."""

from __future__ import annotations

import pytest

from dios import limits
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.types import ObjectType
from tests.support.core.harness import OWNER, Client, Node

OTHER = Principal("uid:7777")


def group_with_object(session: Client) -> tuple[bytes, bytes]:
    """A lasting group of the session's principal with an object in it: the names of both."""
    home = session.welcome.home
    assert home is not None
    group = session.create(ObjectType.GROUP, groups=(home.ref,))
    created = session.create(ObjectType.DURABLE_BLOB, groups=(group.reference.ref,), data=b"kept")
    assert group.name is not None
    assert created.name is not None
    return group.name, created.name


def present(session: Client, *names: bytes) -> tuple[messages.Reference, ...]:
    """Present groups; the references to those of which the session is a member now."""
    return session.ask(messages.References, messages.Present(names)).references


def test_a_session_enters_the_groups_that_it_presents(node: Node) -> None:
    """It resolves nothing in a group before, and everything after; other names add nothing."""
    group, name = group_with_object(node.session())
    session = node.session()
    assert session.lookup(name) == ()
    (shown,) = present(session, group, bytes(range(32)))
    assert shown.type is ObjectType.GROUP
    (reference,) = session.lookup(name)
    assert session.stat(reference.ref).size == len(b"kept")
    assert session.lookup(name, shown.ref)
    assert len(present(session, group, group)) == 1


def test_the_name_of_anothers_group_is_like_one_that_does_not_exist(node: Node) -> None:
    """The owner must be the principal of the session."""
    group, name = group_with_object(node.session())
    stranger = node.session(OTHER)
    assert present(stranger, group) == present(stranger, bytes(range(32))) == ()
    assert stranger.lookup(name) == ()


def test_the_memberships_of_a_task_stay_as_they_are(node: Node) -> None:
    """Only sessions present groups: a task cannot enter the group whose name it learned."""
    owner = node.session(OWNER)
    group, _ = group_with_object(owner)
    assert owner.run().refused(messages.Present((group,))) == Code.EPERM


def test_a_session_has_a_bounded_number_of_groups(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also names that do not exist count, so that the refusal reveals nothing."""
    monkeypatch.setattr(limits, "MEMBERSHIPS_PER_TASK_MAX", 20)
    session = node.session()
    task = node.core.state.tasks[session.task]
    while len(task.memberships) < limits.MEMBERSHIPS_PER_TASK_MAX - 1:
        session.create(ObjectType.GROUP)
    names = tuple(bytes([number]) * 32 for number in (1, 2))
    assert session.refused(messages.Present(names)) == Code.EDQUOT
    assert present(session, names[0]) == ()
