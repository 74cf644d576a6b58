"""Attacks on records of users: start a program or move data in another's name, or as a task of that user."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios.core.model.names import KEPT, SERVICES, special_name
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.types import Brand, Flag, NameKind, ObjectType, Permission, Persistence
from tests.support.core.cluster import Citizen, Cluster

RECORDS = special_name(SERVICES)
CREATE = messages.Create(ObjectType.DURABLE_BLOB, flags=int(Flag.SERVICES), data=b"records")


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes, of which the second lets in limbo tasks."""
    two = Cluster(("r1", "r1"))
    two.nodes[1].let_limbo_in()
    return two


def started(cluster: Cluster, who: Citizen, brand: Brand, *groups: int) -> Citizen:
    """A task of a session, with a program of its own that it may run, on another node than the session."""
    program = who.create(data=b"pass").reference.ref
    handed = (messages.Handed(program, int(Permission.ALL)),)
    call = messages.Run(program, groups, handed, brand=brand, host="n2", flags=int(Flag.NON_BLOCKING))
    who.call(call)
    (task,) = cluster.start_spawned()
    return task


def sees(who: Citizen, name: bytes = RECORDS) -> int:
    """The number of objects that a client finds under a name."""
    answer = who.call(messages.Lookup(name))
    assert isinstance(answer, messages.References)
    return len(answer.references)


@pytest.mark.parametrize(("flag", "number"), [(Flag.SERVICES, SERVICES), (Flag.KEPT, KEPT)])
@pytest.mark.parametrize("brand", [Brand.PURE, Brand.LIMBO])
def test_a_task_reaches_no_record_of_its_own_user(
    cluster: Cluster, brand: Brand, flag: Flag, number: int
) -> None:
    """Not by the special name, nor by creating one, even as a member of the home group on every node."""
    here, there = cluster.nodes
    victim = here.session()
    create = replace(CREATE, flags=int(flag))
    created = victim.call(create)
    assert isinstance(created, messages.Created)
    me = victim.welcome.self_ref.ref
    victim.call(messages.Copy(created.reference.ref, me, persistence=Persistence.DURABLE, host="n2"))
    assert victim.welcome.home is not None
    task = started(cluster, victim, brand, victim.welcome.home.ref)
    assert task.node is there
    assert sees(task, special_name(number)) == 0
    for host in ("", "n1", "n2"):
        assert task.ask(messages.Failure, replace(create, host=host)).code == Code.EPERM


def test_a_task_cannot_choose_the_name(cluster: Cluster) -> None:
    """No creation by a member of the home group makes an object that a session takes for records."""
    here, _ = cluster.nodes
    victim = here.session()
    assert victim.welcome.home is not None
    task = started(cluster, victim, Brand.PURE, victim.welcome.home.ref)
    (home,) = [group.ref for group in task.welcome.groups]
    for kind in (NameKind.RANDOM, NameKind.DETERMINISTIC):
        task.call(messages.Create(ObjectType.DURABLE_BLOB, (home,), kind, data=b"forged"))
    assert sees(victim) == sees(here.session()) == 0


@pytest.mark.parametrize(("flag", "number"), [(Flag.SERVICES, SERVICES), (Flag.KEPT, KEPT)])
def test_another_user_reaches_no_record(cluster: Cluster, flag: Flag, number: int) -> None:
    """Each user has records of their own, and the node's own user does not find those of others either."""
    here, there = cluster.nodes
    create, records = replace(CREATE, flags=int(flag)), special_name(number)
    victim, other, owner = (
        here.session(Principal("uid:2000")),
        there.session(Principal("uid:3000")),
        there.session(),
    )
    created = victim.call(create)
    assert isinstance(created, messages.Created)
    assert created.name is not None
    for attacker in (other, owner):
        assert sees(attacker, records) == sees(attacker, created.name) == 0
    assert isinstance(other.call(create), messages.Created)
    assert sees(victim, records) == sees(other, records) == 1


def test_nobody_gains_the_network_by_a_run(cluster: Cluster) -> None:
    """Only a session that may resolve it gives it: no task of the nodes' own user, and no other session."""
    here, _ = cluster.nodes
    task = started(cluster, here.session(), Brand.LIMBO)
    other = here.session(Principal("uid:3000"))
    program = other.create(data=b"pass").reference.ref
    for who, ref in ((task, task.welcome.inputs[0].ref), (other, program)):
        for host in ("", "n1", "n2"):
            call = messages.Run(ref, host=host, flags=int(Flag.NON_BLOCKING | Flag.WITH_NETWORK))
            assert who.ask(messages.Failure, call).code == Code.EPERM
