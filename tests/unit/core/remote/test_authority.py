"""A node acts for enrolled principals at other nodes with their mandates alone, for others as before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core import effects, events
from dios.core.remote.peers import Cluster as ClusterState
from dios.errors import Code
from dios.ids import NodeId
from dios.wire import dcp, messages
from dios.wire.mandates import FOR_CHILDREN, Purpose
from dios.wire.types import Flag, NameKind, ObjectType
from tests.support.core.cluster import (
    MS,
    Citizen,
    Cluster,
    ClusterNode,
    Parcel,
    RegisterPassed,
)
from tests.support.core.harness import OWNER
from tests.support.core.user_keys import ALICE, BOB, enrol, key_of, mandate_for, vouched


def state_of(node: ClusterNode) -> ClusterState:
    """What a node knows of its cluster."""
    state = node.core.state.cluster
    assert state is not None
    return state


def stored_by(session: Citizen) -> messages.Created:
    """An object of a session."""
    return session.create(ObjectType.SHMEM_BLOB, data=b"of alice")


def found_by(session: Citizen, name: bytes) -> object:
    """The answer to a lookup of an object that is on another node."""
    return session.call(messages.Lookup(name))


def test_without_a_register_nobody_needs_a_mandate() -> None:
    """A cluster of yesterday goes on: no request carries a mandate, and each is served."""
    cluster = Cluster(("r1", "r1"))
    there, here = cluster.nodes
    created = stored_by(there.session(ALICE))
    assert isinstance(found_by(here.session(ALICE), created.name or b""), messages.References)
    assert not state_of(here).peer(there.node).presented


def test_an_enrolled_principal_needs_a_mandate_and_others_do_not() -> None:
    """Who is enrolled is protected, whoever else is not: the home node alone names the principal."""
    cluster = Cluster(("r1", "r1"))
    there, here = cluster.nodes
    of_alice, of_bob = stored_by(there.session(ALICE)), stored_by(there.session(BOB))
    enrol(cluster, ALICE)
    answer = found_by(here.session(ALICE), of_alice.name or b"")
    assert isinstance(answer, messages.References)
    assert not answer.references
    created = here.session(ALICE).call(messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1"))
    assert isinstance(created, messages.Failure)
    assert created.code == Code.EPERM
    assert "dios user vouch n2" in created.message
    by_bob = found_by(here.session(BOB), of_bob.name or b"")
    assert isinstance(by_bob, messages.References)
    assert by_bob.references
    by_alice = found_by(vouched(here, ALICE), of_alice.name or b"")
    assert isinstance(by_alice, messages.References)
    assert by_alice.references


def test_a_refusal_is_recorded() -> None:
    """The record names the node, the principal and the reason."""
    cluster = Cluster(("r1", "r1"))
    there, here = cluster.nodes
    enrol(cluster, ALICE)
    here.session(ALICE).call(messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1"))
    records = [effect for effect in there.effects if getattr(effect, "action", "") == "mandate"]
    assert [(record.outcome, record.subject) for record in records] == [("denied", "n2")]  # type: ignore[attr-defined] # records of the audit log
    assert ALICE in records[0].detail  # type: ignore[attr-defined] # the same


def test_mandates_travel_once() -> None:
    """Requests after the first answer carry nothing, and so do those of other sessions of the same user."""
    cluster = Cluster(("r1", "r1"))
    here = cluster.nodes[1]
    enrol(cluster, ALICE)
    session = vouched(here, ALICE)
    carried: list[int] = []

    def watch(parcel: object) -> bool:
        message = getattr(parcel, "message", None)
        if isinstance(message, dcp.Ask):
            carried.append(len(message.mandates))
        return False

    cluster.drop = watch
    created = session.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1"))
    assert carried == [1]
    session.read(created.reference.ref)
    here.session(ALICE).call(messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1"))
    assert set(carried[1:]) == {0}


def test_a_node_that_has_restarted_gets_mandates_again() -> None:
    """It has forgotten them, and the register comes from its disk."""
    cluster = Cluster(("r1", "r1"))
    there, here = cluster.nodes
    enrol(cluster, ALICE)
    session = vouched(here, ALICE)
    create = messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1")
    session.ask(messages.Created, create)
    register = state_of(there).register
    there.crash()
    there.take(Parcel(there.node, there.node, there.epoch, RegisterPassed(register), b""))
    cluster.connect(here, there)
    cluster.connect(there, here)
    session.ask(messages.Created, create)


def test_a_mandate_ends_and_is_renewed() -> None:
    """After its end and the tolerated skew of clocks the node is refused, until the user signs again."""
    cluster = Cluster(("r1", "r1"))
    here = cluster.nodes[1]
    enrol(cluster, ALICE)
    session = vouched(here, ALICE, lasts_ms=10_000)
    create = messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1")
    session.ask(messages.Created, create)
    _pass(cluster, 10_000 + limits.MANDATE_SKEW_MS - 1_000)
    session.ask(messages.Created, create)
    _pass(cluster, 2_000)
    refused = session.ask(messages.Failure, create)
    assert refused.code == Code.EPERM
    session.ask(messages.Done, messages.Vouch(mandate_for(here, ALICE)))
    session.ask(messages.Created, create)


def _pass(cluster: Cluster, milliseconds: int) -> None:
    cluster.now += milliseconds * MS
    for node in cluster.nodes:
        node.now = cluster.now + node.drift
    cluster.advance(100)


@pytest.mark.parametrize("drift_ms", [-240_000, 240_000])
def test_clocks_may_differ_by_minutes(drift_ms: int) -> None:
    """A mandate by the clock of the home node counts at a node whose clock is four minutes off."""
    cluster = Cluster(("r1", "r1"), drifts={1: drift_ms * MS})
    here = cluster.nodes[1]
    enrol(cluster, ALICE)
    session = vouched(here, ALICE)
    session.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1"))


def test_purposes_are_kept() -> None:
    """A mandate for tasks alone finds and creates no objects."""
    cluster = Cluster(("r1", "r1"))
    here = cluster.nodes[1]
    enrol(cluster, ALICE)
    session = here.session(ALICE)
    mandate = mandate_for(here, ALICE, purposes=Purpose.TASKS)
    session.ask(messages.Done, messages.Vouch(mandate))
    refused = session.ask(messages.Failure, messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1"))
    assert "not for objects" in refused.message


def test_the_nodes_own_user_needs_the_purpose_to_administer() -> None:
    """Once enrolled, root and the nodes' own user administer other nodes with their mandates alone."""
    cluster = Cluster(("r1", "r1"))
    here = cluster.nodes[1]
    drain = messages.LabelNode("n1", (("gpu", "yes"),))
    enrol(cluster, OWNER)
    session = here.session(OWNER)
    assert session.ask(messages.Failure, drain).code == Code.EPERM
    session.ask(messages.Done, messages.Vouch(mandate_for(here, OWNER, purposes=FOR_CHILDREN)))
    assert "administration" in session.ask(messages.Failure, drain).message
    session.ask(messages.Done, messages.Vouch(mandate_for(here, OWNER)))
    session.ask(messages.Nodes, drain)


def _started(cluster: Cluster, session: Citizen, node: str, time_ms: int = 0) -> Citizen:
    """A task of a session on another node."""
    program = session.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    work = messages.Work(time_ms=time_ms)
    session.ask(messages.Created, messages.Run(program, host=node, flags=int(Flag.NON_BLOCKING), work=work))
    cluster.settle()
    return cluster.start_spawned()[-1]


def test_a_child_on_another_node_acts_with_a_narrower_mandate() -> None:
    """The node of a child gets an extension for tasks, until the child's time is over, and no more."""
    cluster = Cluster(("r1", "r1", "r1"))
    home, second, third = cluster.nodes
    enrol(cluster, ALICE)
    session = vouched(home, ALICE)
    created = third.session(ALICE).create(ObjectType.SHMEM_BLOB, data=b"of alice")
    answer = found_by(session, created.name or b"")
    assert isinstance(answer, messages.References)
    program = session.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    run = messages.Run(
        program,
        inputs=(messages.Handed(answer.references[0].ref, int(answer.references[0].permissions)),),
        host="n2",
        flags=int(Flag.NON_BLOCKING),
        work=messages.Work(time_ms=60_000),
    )
    session.ask(messages.Created, run)
    child = cluster.start_spawned()[-1]
    (mandate,) = state_of(second).mandates[ALICE]
    (own,) = state_of(home).mandates[ALICE]
    assert mandate.purposes == FOR_CHILDREN != own.purposes
    assert mandate.node == second.node
    assert mandate.end_ms < own.end_ms
    assert child.read(child.welcome.inputs[0].ref) == b"of alice"
    cluster.check()


def test_a_node_that_is_only_asked_for_objects_gets_nothing() -> None:
    """It cannot act for those whose objects it holds."""
    cluster = Cluster(("r1", "r1"))
    there, here = cluster.nodes
    enrol(cluster, ALICE)
    vouched(here, ALICE).ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1"))
    assert ALICE not in state_of(there).mandates


def test_children_get_renewed_extensions() -> None:
    """A user who signs again renews the mandates of the nodes of the children, and of their children."""
    cluster = Cluster(("r1", "r1", "r1"))
    home, second, _ = cluster.nodes
    enrol(cluster, ALICE)
    session = vouched(home, ALICE, lasts_ms=10_000)
    _started(cluster, session, "n2")
    (before,) = state_of(second).mandates[ALICE]
    session.ask(messages.Done, messages.Vouch(mandate_for(home, ALICE)))
    cluster.settle()
    assert max(mandate.end_ms for mandate in state_of(second).mandates[ALICE]) > before.end_ms


def test_an_extension_that_the_host_could_not_sign_goes_with_the_next_request() -> None:
    """Whether the host says so before the node has answered or after; the mandate itself stays sent."""
    for is_early in (True, False):
        cluster = Cluster(("r1", "r1", "r1"))
        home, second, _ = cluster.nodes
        enrol(cluster, ALICE)
        session = vouched(home, ALICE)
        program = session.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
        run = messages.Run(program, host="n2", flags=int(Flag.NON_BLOCKING))
        peer = state_of(home).peer(second.node)
        session.send(run)
        (sent,) = [
            effect for effect in home.effects if isinstance(effect, effects.Send) and effect.extensions
        ]
        key = sent.extensions[0].key
        failed = events.ExtensionsFailed(home.now, second.node, (key,))
        if is_early:
            home.step(failed)
        cluster.settle()
        assert (key in peer.presented) is not is_early
        if not is_early:
            home.step(failed)
        own = {mandate.data for mandate in state_of(home).mandates[ALICE]}
        assert own == set(peer.presented)
        home.effects.clear()
        session.send(run)
        assert any(isinstance(effect, effects.Send) and effect.extensions for effect in home.effects)
        home.step(events.ExtensionsFailed(home.now, NodeId(77), (key,)))


def test_a_copy_on_a_third_node_is_made_with_a_mandate_for_copies() -> None:
    """The node of the original makes it in the user's name, and may do nothing else in that name."""
    cluster = Cluster(("r1", "r1", "r1"))
    home, second, third = cluster.nodes
    enrol(cluster, ALICE)
    session = vouched(home, ALICE)
    created = session.ask(
        messages.Created, messages.Create(ObjectType.SHMEM_BLOB, host="n2", data=b"original")
    )
    answer = session.call(messages.Copy(created.reference.ref, session.self_ref, host="n3"))
    assert isinstance(answer, messages.References), answer
    assert session.read(answer.references[0].ref) == b"original"
    assert {mandate.purposes for mandate in state_of(third).peer(second.node).mandates[ALICE]} == {
        Purpose.COPIES
    }


def test_a_mandate_for_another_node_or_key_is_refused() -> None:
    """A node takes only mandates that name it, and that the enrolled key has signed."""
    cluster = Cluster(("r1", "r1"))
    there, here = cluster.nodes
    enrol(cluster, ALICE)
    session = here.session(ALICE)
    for mandate in (
        mandate_for(there, ALICE),
        mandate_for(here, ALICE, key=key_of(BOB)),
        mandate_for(here, BOB),
        mandate_for(here, ALICE, lasts_ms=limits.MANDATE_MS_MAX + 1),
        mandate_for(here, ALICE)[:-1],
    ):
        assert session.ask(messages.Failure, messages.Vouch(mandate)).code == Code.EINVAL


def test_a_register_without_a_principal_ends_its_need() -> None:
    """An administrator who removes a principal returns it to the state before: its mandates are unused."""
    cluster = Cluster(("r1", "r1"))
    here = cluster.nodes[1]
    enrol(cluster, ALICE)
    create = messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1")
    here.session(ALICE).ask(messages.Failure, create)
    enrol(cluster, BOB, number=2)
    here.session(ALICE).ask(messages.Created, create)


def test_where_all_principals_must_be_enrolled_others_are_refused() -> None:
    """With the setting "signed", a principal without a key is named by nobody."""
    cluster = Cluster(("r1", "r1"))
    there, here = cluster.nodes
    state = state_of(there)
    state.here = replace(state.here, signed=True)
    refused = here.session(BOB).ask(
        messages.Failure, messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1")
    )
    assert "dios user add" in refused.message
    enrol(cluster, BOB)
    vouched(here, BOB).ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, host="n1", data=b"1"))


def test_a_program_learns_what_to_sign() -> None:
    """The Welcome of an enrolled user has the terms of a mandate for the node, and its present end."""
    cluster = Cluster(("r1", "r1"))
    here = cluster.nodes[0]
    assert here.session(ALICE).welcome.mandate is None
    enrol(cluster, ALICE)
    terms = here.session(ALICE).welcome.mandate
    assert terms is not None
    assert (terms.node, terms.principal, terms.end_ms) == (here.node, ALICE, 0)
    vouched(here, ALICE)
    renewed = here.session(ALICE).welcome.mandate
    assert renewed is not None
    assert renewed.end_ms > terms.now_ms
    assert here.session(BOB).welcome.mandate is None
