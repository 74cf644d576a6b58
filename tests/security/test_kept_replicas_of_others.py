"""Attacks with promises of replicas: let the keeper read, copy or drop for another user, or fill their nodes.

A keeper is a session of its user. So these attacks are what such a session, with any record, could try.
"""

from __future__ import annotations

import pytest

from dios.core.model.names import KEPT, special_name
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.messages import Bound
from dios.wire.types import Flag, ObjectType, Persistence, Resource, Scope
from tests.support.core.cluster import Citizen, Cluster

VICTIM, ATTACKER = Principal("uid:2000"), Principal("uid:3000")


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes."""
    return Cluster(("r1", "r2"))


def kept_file(who: Citizen) -> tuple[bytes, bytes]:
    """A group and a durable object in it; their names."""
    assert who.welcome.home is not None
    group = who.create(ObjectType.GROUP, groups=(who.welcome.home.ref,))
    created = who.create(ObjectType.DURABLE_BLOB, groups=(group.reference.ref,), data=b"secret")
    assert group.name is not None
    assert created.name is not None
    return group.name, created.name


def copied(who: Citizen, ref: int, host: str = "n2") -> messages.Copy:
    """The call with which a keeper copies."""
    return messages.Copy(ref, who.welcome.self_ref.ref, persistence=Persistence.DURABLE, host=host)


def test_a_keeper_finds_nothing_in_a_group_of_another_user(cluster: Cluster) -> None:
    """Also if its user learned all names and recorded them: the group is of another principal."""
    here, there = cluster.nodes
    group, name = kept_file(here.session(VICTIM))
    for node in (here, there):
        keeper = node.session(ATTACKER)
        assert keeper.ask(messages.References, messages.Present((group,))).references == ()
        for looked in (name, group, special_name(KEPT)):
            assert keeper.ask(messages.References, messages.Lookup(looked)).references == ()
    mine = there.session(VICTIM)
    (shown,) = mine.ask(messages.References, messages.Present((group,))).references
    assert len(mine.ask(messages.References, messages.Lookup(name, shown.ref)).references) == 1


def test_a_keeper_fills_no_node_beyond_the_limits_of_its_user_there(cluster: Cluster) -> None:
    """Each replica counts with the user on the node where it is made, and one too many is refused there."""
    here, there = cluster.nodes
    keeper = here.session(ATTACKER)
    group, name = kept_file(keeper)
    assert group
    (reference,) = keeper.ask(messages.References, messages.Lookup(name)).references
    assert isinstance(keeper.call(copied(keeper, reference.ref)), messages.References)
    used = there.core.state.principals[ATTACKER].used[Resource.BYTES]
    assert used == len(b"secret")
    bounds = (Bound(Resource.BYTES, used),)
    there.session().ask(messages.LimitRows, messages.SetLimits(Scope.PRINCIPAL, bounds, principal=ATTACKER))
    assert keeper.refused(copied(keeper, reference.ref)) == Code.EDQUOT
    assert there.core.state.principals[ATTACKER].used[Resource.BYTES] == used


def test_a_record_of_one_user_is_no_record_of_another(cluster: Cluster) -> None:
    """Each node starts a keeper for the users in its own table, and each such session sees its own record."""
    here, there = cluster.nodes
    attacker, victim = here.session(ATTACKER), here.session(VICTIM)
    create = messages.Create(ObjectType.DURABLE_BLOB, flags=int(Flag.KEPT), data=b"records")
    created = attacker.call(create)
    assert isinstance(created, messages.Created)
    attacker.call(copied(attacker, created.reference.ref))
    for node in (here, there):
        rows = node.session().ask(messages.TableRows, messages.ReadTable("kept")).rows
        assert rows == ((ATTACKER,),)
        answer = node.session(VICTIM).ask(messages.References, messages.Lookup(special_name(KEPT)))
        assert answer.references == ()
    assert victim.ask(messages.References, messages.Lookup(special_name(KEPT))).references == ()
