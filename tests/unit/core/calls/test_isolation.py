"""The kernel of a pure task in the core: what may ask for gVisor, and that the host learns of it."""

from __future__ import annotations

import pytest

from dios.core import effects
from dios.errors import Code
from dios.wire import messages
from dios.wire.environments import name_for
from dios.wire.types import Brand, Flag, Isolation
from tests.support.core.harness import Client, Node


@pytest.fixture
def user() -> Client:
    """A session of the node's own user."""
    return Node().session()


def run(user: Client, **changes: object) -> messages.Run:
    """The call that starts a task in gVisor."""
    flags = int(Flag.GVISOR) | int(changes.pop("flags", 0))  # type: ignore[call-overload]  # a number
    program = user.create(data=b"pass").reference.ref
    return messages.Run(program, flags=flags, **changes)  # type: ignore[arg-type]  # its fields


def spawned(user: Client) -> effects.Spawn:
    """The last order to start a process."""
    return next(effect for effect in reversed(user.node.effects) if isinstance(effect, effects.Spawn))


@pytest.mark.parametrize("template", ["", name_for("0123456789" * 4)])
def test_the_host_learns_the_isolation(user: Client, template: str) -> None:
    """Without an environment and in one; other tasks have the kernel of the machine."""
    user.send(run(user, template=template))
    assert spawned(user).isolation is Isolation.GVISOR
    user.send(messages.Run(user.create(data=b"pass").reference.ref, template=template))
    assert spawned(user).isolation is Isolation.KERNEL


def test_what_cannot_be_in_gvisor_is_refused(user: Client) -> None:
    """A task outside the sandbox, one of a template, and one that shall be forked: nothing is started."""
    for call in (
        run(user, brand=Brand.LIMBO),
        run(user, template="data"),
        run(user, flags=int(Flag.FORKABLE)),
    ):
        assert user.refused(call) == Code.EINVAL
    assert not [effect for effect in user.node.effects if isinstance(effect, effects.Spawn)]


def test_a_repeated_task_keeps_its_isolation(user: Client) -> None:
    """It is not given anew, and is that of the first run."""
    created = user.ask(messages.Created, run(user, flags=int(Flag.NON_BLOCKING)))
    assert user.refused(messages.Run(0, like=created.reference.ref, flags=int(Flag.GVISOR))) == Code.EINVAL
    user.send(messages.Run(0, like=created.reference.ref))
    assert spawned(user).isolation is Isolation.GVISOR
