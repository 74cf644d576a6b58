"""A member that was taken over acts for those users alone who signed that: each cell of the page's table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias, cast

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core.remote.peers import Cluster as ClusterState
from dios.errors import Code, NotPermittedError, ProtocolError
from dios.ids import Name, NodeId, ObjectId, Principal, RefId, TaskId
from dios.transport.identity.principals import PrincipalRegister
from dios.wire import dcp, messages
from dios.wire.dcp_table import REQUESTS, RequestFlag
from dios.wire.mandates import (
    EVERY_PURPOSE,
    FOR_CHILDREN,
    Purpose,
    extend,
    make_register,
    public_bytes,
    read_mandate,
)
from dios.wire.types import Brand, Buffering, NodeWish, ObjectType
from tests.support.core.cluster import (
    AUTHORITY,
    MS,
    Cluster,
    ClusterNode,
    Parcel,
    key_digest_of,
    node_key,
)
from tests.support.core.harness import OWNER
from tests.support.core.user_keys import ADMINISTRATOR, ALICE, BOB, enrol, key_of, mandate_for
from tests.support.wire.descriptions import sample_message

PAGE = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text()


def state_of(node: ClusterNode) -> ClusterState:
    """What a node knows of its cluster."""
    state = node.core.state.cluster
    assert state is not None
    return state


def answer_to(cluster: Cluster, body: dcp.RequestBody, mandates: tuple[bytes, ...] = ()) -> object:
    """The answer of the first node to a raw request of the second, which is a liar's."""
    there, liar = cluster.nodes[:2]
    peer = state_of(liar).peer(there.node)
    number, peer.next_number = peer.next_number, peer.next_number + 1
    answers: list[dcp.Answer] = []

    def watch(parcel: Parcel) -> bool:
        message = parcel.message
        if isinstance(message, dcp.PeerReply) and message.number == number:
            answers.append(message.result)
        return bool(answers)

    cluster.drop = watch
    cluster.post(liar, there.node, dcp.Ask(number, number, body, mandates=mandates))
    cluster.settle()
    return answers[0] if answers else None


def caller(principal: Principal) -> dcp.Caller:
    """A task that the liar says to have, of a user."""
    return dcp.Caller(TaskId(77), principal, "f", Brand.LEGACY)


HELD: Final = cast("dcp.HeldReference", sample_message(dcp.HeldReference))
Body: TypeAlias = Callable[[Principal], dcp.RequestBody]
BODIES: Mapping[type[dcp.Body], Body] = {
    dcp.Forward: lambda user: dcp.Forward(caller(user), messages.Create(ObjectType.SHMEM_BLOB, data=b"1")),
    dcp.Resolve: lambda user: dcp.Resolve(caller(user), (), 1),
    dcp.Offer: lambda user: dcp.Offer(caller(user), (), replace(caller(user), task=TaskId(78)), NodeId(2)),
    dcp.Delegate: lambda user: dcp.Delegate(
        caller(user), messages.Copy(1, 2), replace(caller(user), task=TaskId(78)), NodeId(2)
    ),
    dcp.Start: lambda user: dcp.Start(
        caller(user), TaskId(79), Name(bytes(32)), messages.Run(0), (), HELD, (), ()
    ),
    dcp.CreateReplica: lambda user: dcp.CreateReplica(
        caller(user), None, (), user, ObjectType.SHMEM_BLOB, Buffering.DOUBLE, 1, 1, 0
    ),
    dcp.Rows: lambda user: dcp.Rows(caller(user)),
    dcp.KeepOutput: lambda user: dcp.KeepOutput(user, Name(bytes(32)), Name(bytes(32)), 0),
}
"""A request of each kind that names a principal, but for the report of references."""


def call_of(call: messages.PlainCall) -> Body:
    """A request with a call."""
    return lambda user: dcp.Forward(caller(user), call)


ACTS: Mapping[str, tuple[Body, ...]] = {
    "find, read and create objects": (BODIES[dcp.Forward], BODIES[dcp.Resolve], BODIES[dcp.Delegate]),
    "start tasks, hand them references": (BODIES[dcp.Start], BODIES[dcp.Offer]),
    "make copies": (BODIES[dcp.CreateReplica],),
    "list tasks, store logs": (BODIES[dcp.Rows], BODIES[dcp.KeepOutput]),
    "schedule, as the nodes' own user": (
        call_of(messages.ReadQueue("n1")),
        call_of(messages.Place("n1", (messages.Placement(1, "n2"),))),
        call_of(messages.SetAdmission("n1", ())),
        call_of(messages.Govern("n1")),
        call_of(messages.Advise("n1", 1, b"")),
    ),
    "label, drain and remove nodes, as the nodes' own user": (
        call_of(messages.LabelNode("n1", (("gpu", "yes"),))),
        call_of(messages.SetNode("n1", NodeWish.DRAIN)),
        call_of(messages.SetNode("n3", NodeWish.FORGET)),
    ),
}


def no_mandate(_: Cluster, user: Principal) -> tuple[bytes, ...]:
    """The liar has nothing of the user."""
    del user
    return ()


def own_mandate(cluster: Cluster, user: Principal) -> tuple[bytes, ...]:
    """The user's program is connected with the liar's node."""
    return (mandate_for(cluster.nodes[1], user),)


def extended(cluster: Cluster, user: Principal) -> tuple[bytes, ...]:
    """A task of the user, whose program is connected with the third node, is on the liar's node."""
    whole = mandate_for(cluster.nodes[2], user)
    return (extend(whole, node_key(3), 2, key_digest_of(2), FOR_CHILDREN, 2**40),)


def late(cluster: Cluster, user: Principal) -> tuple[bytes, ...]:
    """The mandate is over."""
    data = own_mandate(cluster, user)
    cluster.now += (limits.MANDATE_MS + limits.MANDATE_SKEW_MS) * MS
    for node in cluster.nodes:
        node.now = cluster.now
    cluster.advance(100)
    for node in cluster.nodes:
        for other in cluster.nodes:
            if node is not other:
                cluster.connect(node, other)
    cluster.settle()
    return data


class Standing:
    """The place of a user among the columns of the table."""

    def __init__(
        self,
        mandates: Callable[[Cluster, Principal], tuple[bytes, ...]],
        *,
        enrolled: bool = True,
        signed: bool = False,
    ) -> None:
        self.mandates = mandates
        self.enrolled = enrolled
        self.signed = signed


STANDINGS: Mapping[str, Standing] = {
    "with a mandate": Standing(own_mandate),
    "with an extension": Standing(extended),
    "after the end": Standing(late),
    "enrolled, no mandate": Standing(no_mandate),
    "not enrolled": Standing(no_mandate, enrolled=False),
    "not enrolled, `signed`": Standing(no_mandate, enrolled=False, signed=True),
}


def table() -> dict[tuple[str, str], bool]:
    """The table of the page: True where the act is possible."""
    head, rows = re.search(r"\| act at another node \|(.*)\n.*\n((?: *\|.*\n)+)", PAGE).groups()  # type: ignore[union-attr] # it is there
    columns = [cell.strip() for cell in head.strip("| \n").split("|")]
    cells: dict[tuple[str, str], bool] = {}
    for row in rows.strip().splitlines():
        act, *values = (cell.strip() for cell in row.strip("| \n").split("|"))
        cells.update({(act, column): value == "yes" for column, value in zip(columns, values, strict=True)})
    return cells


def is_refused(answer: object) -> bool:
    """The node says that the liar may not act for the user; all else is decided as for honest nodes."""
    return (
        isinstance(answer, messages.Failure)
        and answer.code == Code.EPERM
        and "may not act for" in answer.message
    )


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("column", STANDINGS)
def test_each_cell_of_the_table_of_a_member_that_was_taken_over(act: str, column: str) -> None:
    """It sends raw messages: with the words of the table, each is let in or refused."""
    cells, standing = table(), STANDINGS[column]
    assert cells.keys() == {(row, name) for row in ACTS for name in STANDINGS}
    user = OWNER if "own user" in act else ALICE
    for body in ACTS[act]:
        cluster = Cluster(("r1", "r1", "r1"))
        there = cluster.nodes[0]
        if standing.enrolled:
            enrol(cluster, user)
        state_of(there).here = replace(state_of(there).here, signed=standing.signed)
        mandates = standing.mandates(cluster, user)
        answer = answer_to(cluster, body(user), mandates)
        assert is_refused(answer) is not cells[act, column], (body(user), answer)


@pytest.mark.parametrize(
    "kind", [kind for kind, row in REQUESTS.items() if row.purpose or row.flags & RequestFlag.FORWARDED]
)
def test_every_request_that_names_a_principal_is_checked(kind: type[dcp.Body]) -> None:
    """An enrolled user is named in each kind in vain, and leaves no record of a task."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    enrol(cluster, ALICE)
    if kind is dcp.ReconcileReferences:
        holdings = (dcp.HeldReferences(caller(ALICE), RefId(0), RefId(1), ()),)
        answer_to(cluster, dcp.ReconcileReferences(1, holdings))
    else:
        assert is_refused(answer_to(cluster, BODIES[kind](ALICE)))
    assert not any(task.principal == ALICE for task in there.core.state.remote_tasks.values())


def test_a_stolen_mandate_of_another_node_ends_the_connection() -> None:
    """The mandate that she gave the first node is of no use to the second."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE)
    with pytest.raises(ProtocolError, match="for another node"):
        answer_to(cluster, BODIES[dcp.Rows](ALICE), (mandate_for(cluster.nodes[0], ALICE),))


def test_a_forged_mandate_ends_the_connection() -> None:
    """Its signature is not the user's: no correct node sends it."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE)
    genuine = mandate_for(cluster.nodes[1], ALICE)
    forged = genuine[:-2] + bytes([genuine[-2] ^ 1]) + genuine[-1:]
    with pytest.raises(ProtocolError, match="signature"):
        answer_to(cluster, BODIES[dcp.Rows](ALICE), (forged,))
    assert isinstance(answer_to(cluster, BODIES[dcp.Rows](ALICE), (genuine,)), messages.Tasks)


def test_a_mandate_that_another_key_signed_is_not_enough() -> None:
    """The register knows no key that a liar has made, and one user does not sign for another."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE, BOB)
    for key in (key_of("liar"), key_of(BOB)):
        made_up = mandate_for(cluster.nodes[1], ALICE, key=key)
        assert is_refused(answer_to(cluster, BODIES[dcp.Rows](ALICE), (made_up,)))


def test_a_mandate_of_one_user_is_for_no_other() -> None:
    """The liar has Bob's, and names her."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE, BOB)
    mandates = own_mandate(cluster, BOB)
    assert isinstance(answer_to(cluster, BODIES[dcp.Rows](BOB), mandates), messages.Tasks)
    assert is_refused(answer_to(cluster, BODIES[dcp.Rows](ALICE), mandates))


def test_a_node_widens_no_extension() -> None:
    """What a node adds to a mandate takes away: purposes, and time."""
    cluster = Cluster(("r1", "r1", "r1"))
    home, second, third = cluster.nodes
    narrow = mandate_for(home, ALICE, purposes=Purpose.OBJECTS)
    data = extend(narrow, node_key(1), second.node, key_digest_of(2), EVERY_PURPOSE, 2**40)
    mandate = read_mandate(data)
    assert (mandate.node, mandate.purposes) == (second.node, Purpose.OBJECTS)
    assert mandate.end_ms == read_mandate(narrow).end_ms
    with pytest.raises(ProtocolError, match="not signed by the node"):
        read_mandate(extend(data, node_key(3), third.node, key_digest_of(3), EVERY_PURPOSE, 1))


def test_the_owner_of_a_copy_is_one_whom_the_node_may_name() -> None:
    """A member stores nothing in the name of an enrolled user by a copy that it makes for another."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    enrol(cluster, ALICE)
    body = replace(cast("dcp.CreateReplica", BODIES[dcp.CreateReplica](ALICE)), caller=caller(BOB))
    answer = answer_to(cluster, body)
    assert isinstance(answer, dcp.ReplicaCreated)
    assert there.core.state.objects[ObjectId(answer.held.reference.object)].owner == BOB


async def test_a_register_of_another_signer_changes_nothing(tmp_path: Path) -> None:
    """Who gives the nodes a register of its own enrols nobody, and removes nobody."""
    keys = {str(ALICE): (public_bytes(key_of(ALICE)),)}
    register = PrincipalRegister(tmp_path, AUTHORITY)
    assert await register.accept(make_register(ADMINISTRATOR, AUTHORITY, 5, keys).data)
    for data in (
        make_register(key_of("liar"), AUTHORITY, 6, {}).data,
        make_register(key_of(ALICE), AUTHORITY, 7, {str(BOB): (public_bytes(key_of(ALICE)),)}).data,
    ):
        with pytest.raises(NotPermittedError, match="administrator"):
            await register.accept(data)
    assert await register.accept(make_register(ADMINISTRATOR, AUTHORITY, 4, {}).data) is None
    assert register.stored is not None
    assert register.stored.keys == keys
