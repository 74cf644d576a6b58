"""Environments in the core: who may name one, give its archive, and remove some."""

from __future__ import annotations

import pytest

from dios.core import effects
from dios.errors import Code
from dios.ids import ObjectId, Principal
from dios.wire import messages
from dios.wire.environments import CONTENT, name_for
from dios.wire.types import Brand, Flag, NameKind, ObjectType, Permission
from tests.support.core.harness import Client, Node

NAME = name_for("0123456789" * 4)


@pytest.fixture
def user() -> Client:
    """A session of the node's own user."""
    return Node().session()


def archive_of(user: Client, *, secrecy: tuple[str, ...] = ()) -> int:
    """A reference to a blob."""
    call: messages.AnyCall = messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x")
    if secrecy:
        call = messages.CreateLabelled(
            ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x", secrecy=secrecy
        )
    return user.ask(messages.Created, call).reference.ref


def run(user: Client, archive: int = 0, template: str = NAME, **changes: object) -> messages.Run:
    """The call that starts a task in an environment."""
    rights = changes.pop("rights", int(Permission.READ))
    inputs = (messages.Handed(archive, rights, CONTENT),) if archive else ()  # type: ignore[arg-type]  # a number
    program = user.create(data=b"pass").reference.ref
    return messages.Run(program, inputs=inputs, template=template, **changes)  # type: ignore[arg-type]  # its fields


def spawned(user: Client) -> effects.Spawn:
    """The last order to start a process."""
    return next(effect for effect in reversed(user.node.effects) if isinstance(effect, effects.Spawn))


def test_a_task_starts_in_an_environment_with_its_archive(user: Client) -> None:
    """The host learns the name, and the object with the archive if one is given."""
    archive = archive_of(user)
    user.send(run(user, archive))
    assert (spawned(user).template, spawned(user).archive) == (NAME, ObjectId(user.stat(archive).object))
    user.send(run(user))
    assert (spawned(user).template, spawned(user).archive) == (NAME, ObjectId(0))
    user.send(run(user, archive, template=""))
    assert (spawned(user).template, spawned(user).archive) == ("", ObjectId(0))


def test_what_is_no_environment_is_refused(user: Client) -> None:
    """A name without a digest, a task outside the sandbox, and one that shall be forked."""
    assert user.refused(run(user, template="environment:x")) == Code.EINVAL
    assert user.refused(run(user, brand=Brand.LIMBO)) == Code.EINVAL
    assert user.refused(run(user, flags=int(Flag.FORKABLE))) == Code.EINVAL


def test_a_pure_task_may_use_an_environment_and_add_none(user: Client) -> None:
    """Hostile code cannot leave files on the node."""
    task = user.run()
    assert task.refused(run(task, archive_of(task))) == Code.EPERM
    task.send(run(task))
    assert spawned(user).template == NAME


def test_an_archive_must_be_readable_and_have_no_label(user: Client) -> None:
    """What is labelled would be shown to tasks without the label."""
    assert user.refused(run(user, archive_of(user), rights=int(Permission.WRITE))) == Code.EPERM
    assert user.refused(run(user, archive_of(user, secrecy=("payroll",)))) == Code.EPERM


def test_only_the_nodes_own_user_removes_environments(user: Client) -> None:
    """Others, and pure tasks, are refused; the order is in the audit log."""
    call = messages.PruneEnvironments("", 5)
    assert user.ask(messages.Done, call) == messages.Done()
    assert effects.PruneEnvironments("", 5) in user.node.effects
    audited = [effect for effect in user.node.effects if isinstance(effect, effects.Audit)]
    assert audited[-1].action == "prune"
    assert user.node.session(Principal("uid:4242")).refused(call) == Code.EPERM
    assert user.run().refused(call) == Code.EPERM
