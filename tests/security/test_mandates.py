"""A member that was taken over acts for those users alone who signed that: each cell of the page's table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias, cast

import msgspec
import msgspec.inspect
import pytest
from msgspec.structs import replace

from dios import limits
from dios.core.calls import user_records
from dios.core.model.names import (
    SERVICES,
    Secrets,
    group_name,
    home_name,
    internal_name,
    logs_group,
    services_name,
    special_name,
)
from dios.core.model.records import Pending
from dios.core.remote import authority, remote_run
from dios.core.remote.peers import Cluster as ClusterState
from dios.core.step import Step
from dios.errors import Code, NotPermittedError, ProtocolError
from dios.ids import Name, NodeId, ObjectId, Principal, RefId, TaskId
from dios.transport.identity.principals import PrincipalRegister
from dios.wire import dcp, messages
from dios.wire.call_table import CALLS
from dios.wire.dcp_table import REQUESTS
from dios.wire.fields import User
from dios.wire.mandates import (
    EVERY_PURPOSE,
    FOR_CHILDREN,
    MandateTerms,
    Purpose,
    extend,
    make_mandate,
    make_register,
    public_bytes,
    read_mandate,
)
from dios.wire.types import Brand, Buffering, Flag, NameKind, NodeWish, ObjectType, Permission
from tests.support.core.cluster import (
    AUTHORITY,
    MS,
    SECRET,
    Citizen,
    Cluster,
    ClusterNode,
    Parcel,
    RegisterPassed,
    key_digest_of,
    node_key,
)
from tests.support.core.harness import OWNER
from tests.support.core.user_keys import ADMINISTRATOR, ALICE, BOB, enrol, key_of, mandate_for, vouched
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
            return True
        return False

    cluster.drop = watch
    beside = bytes(getattr(body, "size", 0))
    cluster.post(liar, there.node, dcp.Ask(number, number, body, mandates=mandates), beside)
    cluster.settle()
    return answers[0] if answers else None


def caller(principal: Principal) -> dcp.Caller:
    """A task that the liar says to have, of a user."""
    return dcp.Caller(TaskId(77), principal, "f", Brand.LEGACY)


_PLACE: Final = cast("messages.Reference", sample_message(messages.Reference))
Body: TypeAlias = Callable[[Principal, messages.Reference], dcp.RequestBody]


def _receiver(user: Principal) -> dcp.Caller:
    return replace(caller(user), task=TaskId(78))


BODIES: Mapping[type[dcp.Body], Body] = {
    dcp.Forward: lambda user, _: dcp.Forward(caller(user), messages.Create(ObjectType.SHMEM_BLOB, data=b"1")),
    dcp.Resolve: lambda user, _: dcp.Resolve(caller(user), (), 1),
    dcp.Offer: lambda user, held: dcp.Offer(
        caller(user), (dcp.SharedReference(RefId(held.ref), 1),), _receiver(user), NodeId(2)
    ),
    dcp.Delegate: lambda user, held: dcp.Delegate(
        caller(user), messages.Copy(held.ref, 2), _receiver(user), NodeId(2)
    ),
    dcp.Start: lambda user, held: dcp.Start(
        caller(user),
        TaskId(79),
        Name(bytes(32)),
        messages.Run(0, flags=int(Flag.NON_BLOCKING)),
        (),
        dcp.HeldReference(NodeId(1), held),
        (),
        (),
    ),
    dcp.CreateReplica: lambda user, _: dcp.CreateReplica(
        caller(user), None, (), user, ObjectType.SHMEM_BLOB, Buffering.DOUBLE, 1, 1, 0
    ),
    dcp.Rows: lambda user, _: dcp.Rows(caller(user)),
    dcp.KeepOutput: lambda user, _: dcp.KeepOutput(
        user, Name(bytes(32)), logs_group(home_name(SECRET, user)), 1
    ),
    dcp.ReconcileReferences: lambda user, held: dcp.ReconcileReferences(
        1,
        (
            dcp.HeldReferences(
                caller(user), 0, 2**63 - 1, ((RefId(held.ref), ObjectId(held.object), 1, True),)
            ),
        ),
    ),
}
"""A request of each kind that names a principal. The task's reference is one to an object of the user."""


def call_of(call: messages.PlainCall) -> Body:
    """A request with a call."""
    return lambda user, _: dcp.Forward(caller(user), call)


ACTS: Mapping[str, tuple[Body, ...]] = {
    "find, read and create objects": (
        BODIES[dcp.Forward],
        lambda user, held: dcp.Forward(caller(user), messages.ReadOnce(held.ref, 1)),
        BODIES[dcp.Resolve],
        BODIES[dcp.Delegate],
    ),
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


def _reports(parcel: Parcel) -> bool:
    """A report of references: the liar sends none, so that its tasks' records stay."""
    return isinstance(parcel.message, dcp.Ask) and isinstance(parcel.message.body, dcp.ReconcileReferences)


def late(cluster: Cluster, user: Principal) -> tuple[bytes, ...]:
    """The mandate is over, after it was used."""
    data = own_mandate(cluster, user)
    assert isinstance(answer_to(cluster, BODIES[dcp.Rows](user, _PLACE), data), messages.Tasks)
    cluster.drop = _reports
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


REASONS: Mapping[str, str] = {
    "with an extension": "mandate is not for",
    "after the end": "the node's mandate is over",
    "enrolled, no mandate": "the node has no mandate that is signed by an enrolled key",
    "not enrolled, `signed`": "it is not enrolled",
}
"""The words of the refusals of each column."""


def is_refused(answer: object, reason: str) -> bool:
    """The node says that the liar may not act for the user, and why."""
    return (
        isinstance(answer, messages.Failure)
        and answer.code == Code.EPERM
        and "may not act for" in answer.message
        and reason in answer.message
    )


def is_served(body: dcp.RequestBody, answer: object) -> bool:
    """It is an answer that an honest node gets; a rule is asked about a question that has no caller."""
    if isinstance(body, dcp.Forward) and isinstance(body.call, messages.Advise):
        return isinstance(answer, messages.Failure) and "no caller any more" in answer.message
    if isinstance(body, dcp.Forward):
        return isinstance(answer, CALLS[cast("type[messages.PlainCall]", type(body.call))].results)
    return isinstance(answer, REQUESTS[type(body)].results)


def stored(cluster: Cluster, user: Principal, mandates: tuple[bytes, ...] = ()) -> messages.Reference:
    """An object of the user at the first node, made by the liar's task in the user's name."""
    answer = answer_to(cluster, BODIES[dcp.Forward](user, _PLACE), mandates)
    assert isinstance(answer, messages.Created), answer
    return answer.reference


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("column", STANDINGS)
def test_each_cell_of_the_table_of_a_member_that_was_taken_over(act: str, column: str) -> None:
    """It sends raw messages: with the words of the table, each is let in or refused.

    A task of the liar acted for the user before, while it was permitted, and has a reference.
    """
    cells, standing = table(), STANDINGS[column]
    assert cells.keys() == {(row, name) for row in ACTS for name in STANDINGS}
    user = OWNER if "own user" in act else ALICE
    for body in ACTS[act]:
        cluster = Cluster(("r1", "r1", "r1"))
        there = cluster.nodes[0]
        there.session(user)
        held = stored(cluster, user)
        if standing.enrolled:
            enrol(cluster, user)
        state_of(there).here = replace(state_of(there).here, signed=standing.signed)
        mandates = standing.mandates(cluster, user)
        request = body(user, held)
        answer = answer_to(cluster, request, mandates)
        if cells[act, column]:
            assert is_served(request, answer), (request, answer)
        else:
            assert is_refused(answer, REASONS[column]), (request, answer)


@pytest.mark.parametrize("kind", BODIES)
def test_every_request_that_names_a_principal_is_checked(kind: type[dcp.Body]) -> None:
    """An enrolled user is named in each kind in vain, and leaves no record of a task."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    enrol(cluster, ALICE)
    answer = answer_to(cluster, BODIES[kind](ALICE, _PLACE))
    if kind is dcp.ReconcileReferences:
        assert answer == dcp.UnknownReferences((), ())
    else:
        assert is_refused(answer, REASONS["enrolled, no mandate"])
    assert not any(task.principal == ALICE for task in there.core.state.remote_tasks.values())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", BODIES)
def test_no_request_is_made_for_nobody(kind: type[dcp.Body], signed: bool) -> None:  # noqa: FBT001 - a parameter
    """The empty principal is none: no correct node sends it, whatever the setting is."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    enrol(cluster, ALICE)
    state_of(there).here = replace(state_of(there).here, signed=signed)
    with pytest.raises(ProtocolError, match="made for nobody"):
        answer_to(cluster, BODIES[kind](Principal(""), _PLACE))


def _principals_in(kind: object, path: str) -> Iterator[str]:
    """The fields with principals in a type of messages, but for calls, which users make, and rows."""
    match kind:
        case msgspec.inspect.StructType():
            if kind.cls in {*CALLS, messages.Vector, messages.TaskRow}:
                return
            for field in kind.fields:
                yield from _principals_in(field.type, f"{path}.{field.name}")
        case msgspec.inspect.StrType():
            if kind.pattern == _USERS:
                yield path
        case msgspec.inspect.UnionType():
            for choice in kind.types:
                yield from _principals_in(choice, path)
        case msgspec.inspect.VarTupleType():
            yield from _principals_in(kind.item_type, path)
        case msgspec.inspect.TupleType():
            for choice in kind.item_types:
                yield from _principals_in(choice, path)


_USERS: Final = cast("msgspec.inspect.StrType", msgspec.inspect.type_info(User)).pattern


def test_every_field_with_a_principal_has_an_attack_here() -> None:
    """A new field of a request of this type needs a check, and a test that names somebody in it in vain."""
    kinds = {
        name
        for kind in dcp.Body.__subclasses__()
        for name in _principals_in(msgspec.inspect.type_info(kind), kind.__name__)
    }
    as_caller = {
        f"{kind.__name__}.{'principal' if kind is dcp.KeepOutput else 'caller.principal'}"
        for kind in BODIES
        if kind is not dcp.ReconcileReferences
    }
    others = {path for paths in OTHERS.values() for path in paths}
    assert kinds == as_caller | others | {"ReconcileReferences.holdings.caller.principal"}


def refusals(node: ClusterNode) -> list[str]:
    """The details of the records of mandates that did not count."""
    records = [effect for effect in node.effects if getattr(effect, "action", "") == "mandate"]
    return [record.detail for record in records if "that came" in record.detail]  # type: ignore[attr-defined] # records of the audit log


def test_a_stolen_mandate_is_of_no_use_to_another_node_or_key() -> None:
    """It is recorded; the connection, which serves all users, goes on."""
    cluster = Cluster(("r1", "r1"))
    there, liar = cluster.nodes
    enrol(cluster, ALICE)
    for node, digest in ((there.node, key_digest_of(1)), (liar.node, key_digest_of(3))):
        terms = MandateTerms(node, digest, AUTHORITY, ALICE, (), 0)
        now_ms = there.now // MS
        stolen = make_mandate(key_of(ALICE), terms, EVERY_PURPOSE, now_ms, now_ms + 10_000)
        answer = answer_to(cluster, BODIES[dcp.Rows](ALICE, _PLACE), (stolen,))
        assert is_refused(answer, REASONS["enrolled, no mandate"])
        assert "for another node or key" in refusals(there)[-1]
    assert len(refusals(there)) == 2


def test_a_forged_mandate_is_of_no_use() -> None:
    """Its signature is not the user's."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    enrol(cluster, ALICE)
    genuine = mandate_for(cluster.nodes[1], ALICE)
    forged = genuine[:-2] + bytes([genuine[-2] ^ 1]) + genuine[-1:]
    answer = answer_to(cluster, BODIES[dcp.Rows](ALICE, _PLACE), (forged,))
    assert is_refused(answer, REASONS["enrolled, no mandate"])
    assert "signature" in refusals(there)[-1]
    assert isinstance(answer_to(cluster, BODIES[dcp.Rows](ALICE, _PLACE), (genuine,)), messages.Tasks)


def test_a_user_signs_no_mandate_that_cuts_a_node_off() -> None:
    """One for a key that is not the node's is refused where the user's program brings it."""
    cluster = Cluster(("r1", "r1"))
    home = cluster.nodes[0]
    enrol(cluster, ALICE)
    terms = MandateTerms(home.node, b"z" * 32, AUTHORITY, ALICE, (), 0)
    bad = make_mandate(key_of(ALICE), terms, EVERY_PURPOSE, home.now // MS, home.now // MS + 10_000)
    refused = home.session(ALICE).ask(messages.Failure, messages.Vouch(bad))
    assert refused.code == Code.EINVAL
    assert "for another node" in refused.message
    assert not state_of(home).mandates.get(ALICE)


def test_what_a_removed_node_signs_is_of_no_use() -> None:
    """Neither are extensions that it signed before, nor is its mandate where an accomplice has it."""
    cluster = Cluster(("r1", "r1", "r1"))
    there, accomplice, removed = cluster.nodes
    enrol(cluster, ALICE)
    passed_on = extended(cluster, ALICE)
    rows = BODIES[dcp.Rows](ALICE, _PLACE)
    assert isinstance(answer_to(cluster, rows, passed_on), messages.Tasks)
    cluster.drop = lambda _: False
    there.session(OWNER).ask(messages.Nodes, messages.SetNode("n3", NodeWish.FORGET))
    cluster.settle()
    later = extend(
        mandate_for(removed, ALICE), node_key(3), accomplice.node, key_digest_of(2), FOR_CHILDREN, 2**40
    )
    for mandates in ((), passed_on, (later,)):
        answer = answer_to(cluster, rows, mandates)
        assert is_refused(answer, REASONS["enrolled, no mandate"]), answer


def test_nobody_acts_for_a_user_who_is_enrolled_without_a_key() -> None:
    """An administrator locks a user so, where a removal of the only key would open everything again."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE)
    stored(cluster, ALICE, own_mandate(cluster, ALICE))
    cluster.drop = lambda _: False
    locked = make_register(ADMINISTRATOR, AUTHORITY, 2, {str(ALICE): ()})
    cluster.session(cluster.nodes[0]).ask(messages.Done, messages.Enrol(locked.data))
    cluster.settle()
    for mandates in ((), own_mandate(cluster, ALICE)):
        assert is_refused(answer_to(cluster, BODIES[dcp.Rows](ALICE, _PLACE), mandates), "no key of it")


def test_a_member_replaces_no_mandate_by_one_that_cannot_be_extended() -> None:
    """A longer chain with the same purposes and a later end does less: her tasks still start elsewhere."""
    cluster = Cluster(("r1", "r1", "r1"))
    home, liar, victim = cluster.nodes
    enrol(cluster, ALICE)
    session = vouched(victim, ALICE)
    long = mandate_for(liar, ALICE, lasts_ms=2 * limits.MANDATE_MS)
    for _ in range(limits.MANDATE_EXTENSIONS_MAX - 1):
        long = extend(long, node_key(2), liar.node, key_digest_of(2), EVERY_PURPOSE, 2**40)
    long = extend(long, node_key(2), victim.node, key_digest_of(3), EVERY_PURPOSE, 2**40)
    number = state_of(liar).peer(victim.node).next_number
    state_of(liar).peer(victim.node).next_number += 1
    cluster.post(liar, victim.node, dcp.Ask(number, number, dcp.Rows(caller(BOB)), extensions=(long,)))
    cluster.settle()
    assert sorted(len(kept.nodes) for kept in state_of(victim).mandates[ALICE]) == [1, 9]
    program = session.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    session.ask(messages.Created, messages.Run(program, host="n1", flags=int(Flag.NON_BLOCKING)))
    assert [len(kept.nodes) for kept in state_of(home).mandates[ALICE]] == [2]


def test_what_does_not_count_costs_no_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of the greatest length for another cluster, node or unknown key is refused before that."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE)
    checked: list[bytes] = []
    monkeypatch.setattr(authority, "read_mandate", checked.append)
    there = cluster.nodes[0]
    mandates = (mandate_for(there, ALICE), mandate_for(cluster.nodes[1], ALICE, key=key_of("liar")))
    assert is_refused(
        answer_to(cluster, BODIES[dcp.Rows](ALICE, _PLACE), mandates), REASONS["enrolled, no mandate"]
    )
    assert not checked


def test_a_mandate_that_another_key_signed_is_not_enough() -> None:
    """The register knows no key that a liar has made, and one user does not sign for another."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE, BOB)
    for key in (key_of("liar"), key_of(BOB)):
        made_up = mandate_for(cluster.nodes[1], ALICE, key=key)
        answer = answer_to(cluster, BODIES[dcp.Rows](ALICE, _PLACE), (made_up,))
        assert is_refused(answer, REASONS["enrolled, no mandate"])


def test_a_mandate_of_one_user_is_for_no_other() -> None:
    """The liar has Bob's, and names her."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE, BOB)
    mandates = own_mandate(cluster, BOB)
    assert isinstance(answer_to(cluster, BODIES[dcp.Rows](BOB, _PLACE), mandates), messages.Tasks)
    answer = answer_to(cluster, BODIES[dcp.Rows](ALICE, _PLACE), mandates)
    assert is_refused(answer, REASONS["enrolled, no mandate"])


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
    body = replace(cast("dcp.CreateReplica", BODIES[dcp.CreateReplica](ALICE, _PLACE)), caller=caller(BOB))
    answer = answer_to(cluster, body)
    assert isinstance(answer, dcp.ReplicaCreated)
    assert there.core.state.objects[ObjectId(answer.held.reference.object)].owner == BOB


def test_a_register_of_another_signer_changes_nothing(tmp_path: Path) -> None:
    """Who gives the nodes a register of its own enrols nobody, and removes nobody."""
    keys = {str(ALICE): (public_bytes(key_of(ALICE)),)}
    register = PrincipalRegister(tmp_path, AUTHORITY)
    assert register.accept(make_register(ADMINISTRATOR, AUTHORITY, 5, keys).data)
    for data in (
        make_register(key_of("liar"), AUTHORITY, 6, {}).data,
        make_register(key_of(ALICE), AUTHORITY, 7, {str(BOB): (public_bytes(key_of(ALICE)),)}).data,
    ):
        with pytest.raises(NotPermittedError, match="administrator"):
            register.accept(data)
    assert register.accept(make_register(ADMINISTRATOR, AUTHORITY, 4, {}).data) is None
    assert register.present is not None
    assert register.present.keys == keys


# -- principals beside the caller --------------------------------------------------------------------
def _reused(cluster: Cluster, mandates: tuple[bytes, ...], name: Principal) -> None:
    """A task that acted for the user names somebody else after the mandate's end: nothing of it counts."""
    held = stored(cluster, ALICE, mandates)
    late(cluster, ALICE)
    read = dcp.Forward(caller(ALICE), messages.ReadOnce(held.ref, 1))
    assert is_refused(answer_to(cluster, read), REASONS["after the end"])
    for kind in (dcp.Forward, dcp.Delegate, dcp.Offer, dcp.Start, dcp.Resolve, dcp.CreateReplica):
        with pytest.raises(ProtocolError, match="another principal"):
            answer_to(cluster, BODIES[kind](name, held))
    with pytest.raises(ProtocolError, match="another principal"):
        answer_to(cluster, dcp.Forward(caller(name), messages.ReadOnce(held.ref, 1)))


def test_a_task_that_acted_for_a_user_acts_for_no_other() -> None:
    """The record of the task acts for one principal, and each request is checked for the same one."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE)
    _reused(cluster, own_mandate(cluster, ALICE), BOB)


def test_a_task_from_before_the_enrolment_acts_for_no_other() -> None:
    """A task of the nodes' own user does not administer under another name."""
    cluster = Cluster(("r1", "r1"))
    stored(cluster, OWNER)
    enrol(cluster, OWNER)
    for body in (*ACTS["schedule, as the nodes' own user"], *ACTS["find, read and create objects"]):
        with pytest.raises(ProtocolError, match="another principal"):
            answer_to(cluster, body(BOB, _PLACE))
        assert is_refused(answer_to(cluster, body(OWNER, _PLACE)), REASONS["enrolled, no mandate"])


def _service_record(there: ClusterNode) -> tuple[Citizen, messages.Created]:
    """A session of the user at the first node, and the record of its services."""
    session = there.session(ALICE)
    record = session.ask(
        messages.Created,
        messages.Create(ObjectType.DURABLE_BLOB, data=b"of alice", flags=int(Flag.SERVICES)),
    )
    return session, record


_HOME: Final = home_name(SECRET, ALICE)
_SERVICES: Final = services_name(SECRET, ALICE)


@pytest.mark.parametrize("permissions", [int(Permission.ALL), int(Permission.READ)])
@pytest.mark.parametrize("signed", [False, True])
def test_names_that_follow_from_the_secret_find_nothing_of_others(signed: bool, permissions: int) -> None:  # noqa: FBT001 - a parameter
    """A member has the secret, and derives the names of the records that the nodes act on."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    session, record = _service_record(there)
    enrol(cluster, BOB) if signed else enrol(cluster, ALICE)
    state_of(there).here = replace(state_of(there).here, signed=signed)
    body = dcp.Resolve(
        caller(BOB), (internal_name(_SERVICES, _HOME),), 4, permissions, 10**9 if permissions == 1 else 0
    )
    assert answer_to(cluster, body, own_mandate(cluster, BOB)) == dcp.Found(())
    cluster.drop = lambda _: False
    assert session.read(record.reference.ref) == b"of alice"


def test_objects_of_others_are_found_with_a_mandate_or_as_by_a_share_alone() -> None:
    """Who has a mandate of Bob and knows names of hers finds nothing, but reads what a share would show."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    session = there.session(ALICE)
    group = session.ask(messages.Created, messages.Create(ObjectType.GROUP, name_kind=NameKind.RANDOM))
    created = session.ask(
        messages.Created,
        messages.Create(ObjectType.SHMEM_BLOB, data=b"of alice", groups=(group.reference.ref,)),
    )
    enrol(cluster, ALICE, BOB)
    assert group.name is not None
    assert created.name is not None
    names = (internal_name(Name(created.name), Name(group.name)),)
    of_bob = own_mandate(cluster, BOB)
    assert answer_to(cluster, dcp.Resolve(caller(BOB), names, 4), of_bob) == dcp.Found(())
    shared = answer_to(cluster, dcp.Resolve(caller(BOB), names, 4, int(Permission.READ), 10**9))
    assert isinstance(shared, dcp.Found)
    assert [(reference.permissions, bool(reference.expires_ns)) for reference in shared.references] == [
        (Permission.READ, True)
    ]
    both = answer_to(cluster, dcp.Resolve(caller(BOB), names, 4), own_mandate(cluster, ALICE))
    assert isinstance(both, dcp.Found)
    assert len(both.references) == 1


@pytest.mark.parametrize("owner", [ALICE, BOB, Principal("")])
@pytest.mark.parametrize("kind", [dcp.Forward, dcp.Start, dcp.CreateReplica])
def test_nothing_is_put_into_the_groups_of_others(kind: type[dcp.Body], owner: Principal) -> None:
    """Whoever is said to own them: the home group and that of the logs follow from the secret too."""
    sealed = group_name(Secrets(SECRET), bytes(16), ALICE)
    for group in (_HOME, logs_group(_HOME), sealed):
        cluster = Cluster(("r1", "r1"))
        there = cluster.nodes[0]
        enrol(cluster, ALICE)
        body = replace(
            BODIES[kind](BOB, stored(cluster, BOB)),
            groups=(dcp.GroupName(group, owner),),
        )
        if isinstance(body, dcp.CreateReplica):
            body = replace(body, name=_SERVICES, kind=ObjectType.DURABLE_BLOB)
        answer = answer_to(cluster, body)
        if isinstance(answer, dcp.ReplicaCreated):
            copy = there.core.state.objects[ObjectId(answer.held.reference.object)]
            assert (copy.owner, copy.groups) == (BOB, ())
        else:
            assert is_refused(answer, REASONS["enrolled, no mandate"]), answer
        assert group not in there.core.state.groups
        assert not any(user_records.principals(there.core.state, SERVICES))


def test_what_others_have_planted_is_no_record() -> None:
    """Before she was enrolled, a liar made an object under the name of her records: nobody acts on it."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    session = there.session(ALICE)
    body = cast("dcp.CreateReplica", BODIES[dcp.CreateReplica](BOB, _PLACE))
    groups = (dcp.GroupName(_HOME, ALICE),)
    planted = replace(body, name=_SERVICES, groups=groups, kind=ObjectType.DURABLE_BLOB)
    assert isinstance(answer_to(cluster, planted), dcp.ReplicaCreated)
    assert not any(user_records.principals(there.core.state, SERVICES))
    looked = messages.Lookup(special_name(SERVICES), flags=int(Flag.LOCAL_ONLY))
    assert session.ask(messages.References, looked).references == ()


def _asked_copy(cluster: Cluster, user: Principal) -> dcp.Delegate:
    """A task of the first node waits for a copy of its object at the liar's node."""
    there, liar = cluster.nodes[:2]
    session = vouched(there, user)
    created = session.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, host="n2", data=b"x"))
    asked: list[dcp.Delegate] = []

    def watch(parcel: Parcel) -> bool:
        message = parcel.message
        if isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Delegate):
            asked.append(message.body)
            return True
        return parcel.sender == liar.node and bool(asked)

    cluster.drop = watch
    session.send(messages.Copy(created.reference.ref, session.self_ref, host="n1"))
    cluster.settle()
    return asked[0]


def test_a_copy_for_a_task_of_this_node_is_its_own_users() -> None:
    """A liar that is asked for a copy names neither another principal nor another owner with it."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    enrol(cluster, ALICE, BOB)
    task = _asked_copy(cluster, BOB).caller.task
    body = cast("dcp.CreateReplica", BODIES[dcp.CreateReplica](ALICE, _PLACE))
    groups = (dcp.GroupName(_HOME, ALICE),)
    body = replace(
        body, caller=replace(caller(ALICE), task=task), home=there.node, name=_SERVICES, groups=groups
    )
    with pytest.raises(ProtocolError, match="another principal"):
        answer_to(cluster, body)
    answer = answer_to(cluster, replace(body, caller=replace(caller(BOB), task=task)))
    assert isinstance(answer, dcp.ReplicaCreated)
    copy = there.core.state.objects[ObjectId(answer.held.reference.object)]
    assert (copy.owner, copy.groups) == (BOB, ())


@pytest.mark.parametrize("kind", [dcp.Offer, dcp.Delegate])
def test_a_receiver_is_taken_for_a_user_with_a_mandate_alone(kind: type[dcp.Body]) -> None:
    """A receiving task of the liar counts as one of the giver's user until it may be another's."""
    cluster = Cluster(("r1", "r1"))
    enrol(cluster, ALICE)
    body = BODIES[kind](BOB, stored(cluster, BOB))
    body = replace(body, receiver=_receiver(ALICE))
    assert isinstance(answer_to(cluster, body), dcp.Offered)
    record = state_of(cluster.nodes[0]).peer(NodeId(2)).remote_tasks[TaskId(78)]
    assert (record.principal, record.brand) == (BOB, Brand.PURE)


def test_claims_after_a_restart_are_within_mandates() -> None:
    """Who knows the id of her durable object has no right to it by saying that a task of Bob had one."""
    cluster = Cluster(("r1", "r1"))
    there, liar = cluster.nodes
    created = [
        there.session(user).ask(
            messages.Created, messages.Create(ObjectType.DURABLE_BLOB, data=b"of %b" % user.encode())
        )
        for user in (ALICE, BOB)
    ]
    enrol(cluster, ALICE)
    register = state_of(there).register
    there.crash()
    there.take(Parcel(there.node, there.node, there.epoch, RegisterPassed(register), b""))
    cluster.connect(liar, there)
    cluster.connect(there, liar)
    claims = tuple(
        (RefId(4242 + place), ObjectId(answer.reference.object), int(Permission.ALL), True)
        for place, answer in enumerate(created)
    )
    body = dcp.ReconcileReferences(1, (dcp.HeldReferences(caller(BOB), 0, 2**63 - 1, claims),))
    assert answer_to(cluster, body) == dcp.UnknownReferences((RefId(4242),), ())
    assert isinstance(
        answer_to(cluster, dcp.Forward(caller(BOB), messages.ReadOnce(4243, 64))), messages.Buffer
    )


def test_a_run_that_waits_starts_with_a_mandate_alone() -> None:
    """A run that was let in waits for room; when there is some, the user's key is no longer the same."""
    cluster = Cluster(("r1", "r1"))
    there = cluster.nodes[0]
    enrol(cluster, ALICE)
    held = stored(cluster, ALICE, own_mandate(cluster, ALICE))
    start = cast("dcp.Start", BODIES[dcp.Start](ALICE, held))
    remote_task = state_of(there).peer(NodeId(2)).remote_tasks[TaskId(77)]
    row = Pending(remote_task, 99, start.call, {})
    step = Step(there.core.state, there.now)
    enrol(cluster, number=2)
    enrol(cluster, ALICE, number=3)
    state_of(there).peer(NodeId(2)).mandates.clear()
    with pytest.raises(NotPermittedError, match="no mandate that is signed"):
        remote_run.start_for_node(step, state_of(there).peer(NodeId(2)), 99, start, row)


OTHERS: Mapping[object, tuple[str, ...]] = {
    test_a_receiver_is_taken_for_a_user_with_a_mandate_alone: (
        "Offer.receiver.principal",
        "Delegate.receiver.principal",
    ),
    test_nothing_is_put_into_the_groups_of_others: (
        "Forward.groups.owner",
        "Start.groups.owner",
        "CreateReplica.groups.owner",
    ),
    test_the_owner_of_a_copy_is_one_whom_the_node_may_name: ("CreateReplica.owner",),
}
"""The attacks with principals beside those that a request is made for, and the fields that they are in."""
