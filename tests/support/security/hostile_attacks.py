"""What a hostile node tries, by its row in docs/threat-model.md: each attack returns True if it succeeded.

An attack sets up honest nodes, and one with a certificate for the roles of a column. That node then turns
hostile: its program does what it likes, with its own key, certificate and the cluster's secret. In the column
of removed nodes it was an authority, and is removed first.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias, cast

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from dios import limits
from dios.core.calls import user_records
from dios.core.model.names import SERVICES, home_name, internal_name, logs_group, services_name
from dios.core.remote.peers import Cluster as ClusterState
from dios.errors import Code, DiosError, NotPermittedError, ProtocolError
from dios.host.audit import signing
from dios.host.audit.heads import AuditHead
from dios.host.peers.connection_protocols import RemoteIdentity
from dios.host.peers.heads import HeadKeeper, _Arrived
from dios.host.peers.link import PeerSession
from dios.ids import Name, NodeId, ObjectId, Principal, RefId, TaskId
from dios.transport.identity import certificates, joining, renewal, statements, tokens
from dios.transport.identity.identity import Identity, admit_here, create_cluster, known_of, load_own
from dios.transport.identity.principals import PrincipalRegister
from dios.transport.identity.trusted_clusters import TrustedCluster
from dios.transport.tcp.border import BorderListener, call_border
from dios.transport.tcp.tls import bind
from dios.wire import dcp, gossip, messages
from dios.wire.admission import Holding, Quota
from dios.wire.dcp_frames import AuditHeads
from dios.wire.dcp_table import PURPOSES
from dios.wire.mandates import (
    EVERY_PURPOSE,
    MandateTerms,
    Purpose,
    make_mandate,
    make_register,
    public_bytes,
)
from dios.wire.node_roles import ROLE_WORDS, NodeRole, roles_of
from dios.wire.types import (
    Brand,
    Buffering,
    Fitness,
    Flag,
    NameKind,
    NodeStatus,
    NodeWish,
    ObjectType,
    Persistence,
)
from tests.support.core.cluster import (
    AUTHORITY,
    MS,
    SECRET,
    Citizen,
    ClusterNode,
    Parcel,
    key_digest_of,
)
from tests.support.core.harness import OWNER
from tests.support.core.user_keys import ADMINISTRATOR, ALICE, BOB, enrol, key_of, vouched
from tests.support.peers.connections import HERE, LIMIT_S, listening
from tests.support.security.hostile_scene import Scene

REMOVED: Final = "removed"
COLUMNS: Final = (REMOVED, *reversed(ROLE_WORDS))
"""The hostile nodes: one that was removed, and one for each role."""

_S_MS: Final = 1_000
_DAY_MS: Final = 24 * 3600 * _S_MS

Attack: TypeAlias = Callable[[str, Path], bool | Awaitable[bool]]


def role_in(column: str) -> NodeRole:
    """The roles of the node of a column; a removed one had all rights."""
    return NodeRole.AUTHORITY if column == REMOVED else roles_of(column)


class Play(Scene):
    """A cluster of cores whose third node turns hostile."""

    def __init__(self, column: str, drift_ms: int = 0) -> None:
        super().__init__(role_in(column), drift_ms)
        self.is_removed = column == REMOVED

    def hold_leases(self) -> None:
        """Let nodes get leases on small objects, as hosts that send few bytes inside answers do."""
        for node in self.cluster.nodes:
            node.inline_bytes = 1_000

    @property
    def state(self) -> ClusterState:
        """What the target knows of the cluster."""
        state = self.target.core.state.cluster
        assert state is not None
        return state

    def turn(self) -> None:
        """The third node turns hostile; its own program checks nothing any more."""
        state = self.villain.core.state.cluster
        assert state is not None
        state.here = replace(state.here, roles="")
        if self.is_removed:
            self.mine.call(messages.SetNode("n3", NodeWish.FORGET))
            self.cluster.settle()

    def named(self, principal: str, task: int = 77) -> dcp.Caller:
        """A task that the villain says to have, of a user."""
        return dcp.Caller(TaskId(task), principal, "0" * 12, Brand.LEGACY)

    def gets(self, body: dcp.RequestBody, beside: bytes = b"", mandates: tuple[bytes, ...] = ()) -> bool:
        """Return True if a raw request is served."""
        answer = self.answer(body, beside, mandates)
        return answer is not None and not isinstance(answer, messages.Failure)

    def is_let_in(self, body: dcp.RequestBody) -> bool:
        """Return True if a raw request is decided as one of an honest node, which may ask in vain."""
        answer = self.answer(body)
        return answer is not None and not (isinstance(answer, messages.Failure) and answer.code == Code.EPERM)

    def answer(
        self, body: dcp.RequestBody, beside: bytes = b"", mandates: tuple[bytes, ...] = ()
    ) -> dcp.Answer | None:
        """Return the answer to a raw request; None if it costs the connection, or there is none yet."""
        self.number += 1
        answers: list[dcp.Answer] = []

        def watch(parcel: Parcel) -> bool:
            reply = parcel.message
            if parcel.to == self.villain.node and isinstance(reply, dcp.PeerReply):
                answers.extend([reply.result] if reply.number == self.number else [])
                return reply.number == self.number
            return False

        self.cluster.drop = watch
        asked = dcp.Ask(self.number, 0, body, mandates=mandates)
        self.cluster.wire.append(
            Parcel(self.villain.node, self.target.node, self.villain.epoch, asked, beside)
        )
        try:
            self.cluster.settle()
        except ProtocolError:
            self.cluster.wire.clear()
            return None
        finally:
            self.cluster.drop = lambda _: False
        return answers[0] if answers else None

    def all_or_none(self, bodies: Sequence[dcp.RequestBody]) -> bool:
        """Return True if all raw requests are let in, False if none is."""
        served = [self.is_let_in(body) for body in bodies]
        assert len(set(served)) == 1, f"some are served: {served}"
        return served[0]

    def row(self, node: ClusterNode) -> gossip.MemberRow | None:
        """The row that the target has of a node."""
        return self.state.membership.members.get(node.node)

    def listed(self) -> Mapping[int, messages.NodeRow]:
        """The nodes as the target shows them to its programs."""
        return {row.node: row for row in self.mine.ask(messages.Nodes, messages.ListNodes()).nodes}

    def own_row(self, **lies: object) -> gossip.MemberRow:
        """The villain's own row, with lies in it."""
        state = self.villain.core.state.cluster
        assert state is not None
        own = state.membership.own
        return replace(own, version=own.version + 1, **lies)

    def say_of_itself(self, **lies: object) -> None:
        """The villain sends its own row with lies."""
        self.say(dcp.Gossip(gossip.encode(gossip.News(self.own_row(**lies)))))


def mandate(node: int, principal: Principal, now_ms: int, lasts_ms: int, purposes: Purpose) -> bytes:
    """A mandate of a user for a node."""
    key = key_of(principal)
    terms = MandateTerms(
        NodeId(node), key_digest_of(node), AUTHORITY, principal, (public_bytes(key),), now_ms
    )
    return make_mandate(key, terms, purposes, now_ms, now_ms + lasts_ms)


def _create(play: Play, user: str) -> dcp.Forward:
    return dcp.Forward(play.named(user), messages.Create(ObjectType.SHMEM_BLOB, data=b"1"))


def _replica(play: Play, user: str) -> dcp.CreateReplica:
    kind = ObjectType.SHMEM_BLOB
    return dcp.CreateReplica(play.named(user, 78), None, (), user, kind, Buffering.DOUBLE, 0, 0, 0)


def _acts(play: Play, user: str) -> list[dcp.RequestBody]:
    return [dcp.Resolve(play.named(user), (), 1), _create(play, user), _replica(play, user)]


# -- principals and mandates ----------------------------------------------------------------------------
def act_for_a_user_without_a_key(column: str, _: Path) -> bool:
    """It names a user who is not enrolled."""
    play = Play(column)
    enrol(play.cluster, ALICE)
    play.turn()
    return play.all_or_none(_acts(play, BOB))


def act_for_an_enrolled_user(column: str, _: Path) -> bool:
    """It names a user who has given it no mandate."""
    play = Play(column)
    enrol(play.cluster, ALICE)
    play.turn()
    return play.all_or_none(_acts(play, ALICE))


def _with(mandates: Callable[[Play], bytes]) -> Attack:
    def attack(column: str, _: Path) -> bool:
        play = Play(column)
        enrol(play.cluster, ALICE)
        data = mandates(play)
        play.turn()
        served = [
            play.gets(replace(body, caller=play.named(ALICE, 80 + number)), mandates=(data,))
            for number, body in enumerate(_acts(play, ALICE))
        ]
        assert len(set(served)) == 1, served
        return served[0]

    return attack


def _now_ms(play: Play) -> int:
    return play.target.now // MS


def outlive_a_mandate(column: str, _: Path) -> bool:
    """Its clock is a day behind, and it uses a mandate after the end, for a new task and for an old one."""
    play = Play(column, -_DAY_MS)
    enrol(play.cluster, ALICE)
    data = mandate(3, ALICE, _now_ms(play), _S_MS, EVERY_PURPOSE)
    assert play.gets(dcp.Resolve(play.named(ALICE), (), 1), mandates=(data,))
    play.turn()
    play.cluster.advance(limits.MANDATE_SKEW_MS + 2 * _S_MS, 1_000)
    return any(play.gets(dcp.Resolve(play.named(ALICE, task), (), 1), mandates=(data,)) for task in (77, 78))


async def enrol_and_lock(column: str, folder: Path) -> bool:
    """It signs a register of its own, and asks for another one in the name of the nodes' own user.

    Nodes pass registers on, so that the role of the one that sends it decides nothing.
    """
    play = Play(column)
    enrol(play.cluster, ALICE)
    play.turn()
    number = 9
    keys = {str(BOB): (public_bytes(key_of("liar")),)}
    forged = make_register(key_of("liar"), AUTHORITY, number, keys).data
    await trio.Path(folder).mkdir(exist_ok=True)
    stored = PrincipalRegister(folder, AUTHORITY)
    stored.accept(make_register(ADMINISTRATOR, AUTHORITY, 1, {}).data)
    with suppress(NotPermittedError):
        stored.accept(forged)
    own = dcp.Forward(play.named(OWNER), cast("messages.PlainCall", messages.Enrol(forged)))
    is_served = play.gets(own)
    return is_served or stored.is_known(forged) or play.state.enrolled.keys() != {ALICE}


# -- time -----------------------------------------------------------------------------------------------
def show_a_false_clock(column: str, _: Path) -> bool:
    """Its clock is an hour ahead: `dios node ls` shows that for its own row."""
    play = Play(column, 3600 * _S_MS)
    play.turn()
    play.cluster.advance(5 * _S_MS)
    row = play.listed().get(play.villain.node)
    assert (friend := play.listed()[play.friend.node].clock) is None or abs(friend.offset_ns) < MS
    return row is not None and row.clock is not None and row.clock.offset_ns > 3_000 * 1_000 * MS


def outlive_a_lent_reference(column: str, _: Path) -> bool:
    """Its clock is a day behind, and it reads through a reference after its time."""
    play = Play(column, -_DAY_MS)
    blob = play.mine.create(data=b"for a while").reference
    program = play.mine.create(data=b"pass").reference
    handed = messages.Handed(blob.ref, 1, "in", 500 * MS)
    run = messages.Run(program.ref, host="n3", inputs=(handed,), flags=int(Flag.NON_BLOCKING))
    play.mine.ask(messages.Created, run)
    (task,) = play.cluster.start_spawned()
    (given,) = task.welcome.inputs
    assert task.read(given.ref) == b"for a while"
    play.turn()
    play.cluster.advance(_S_MS)
    return play.gets(dcp.Forward(play.caller(task), messages.ReadOnce(given.ref)))


# -- schedule and administration ------------------------------------------------------------------------
def _calls_for(play: Play, purpose: Purpose, calls: Sequence[messages.PlainCall]) -> bool:
    kinds = {type(call) for call in calls}
    wanted = {kind for kind, needed in PURPOSES.items() if needed is purpose}
    assert kinds == wanted, f"no attack makes these calls: {kinds ^ wanted}"
    return play.all_or_none([dcp.Forward(play.named(OWNER), call) for call in calls])


def schedule_for_others(column: str, _: Path) -> bool:
    """It makes each call of a scheduler in the name of the nodes' own user."""
    play = Play(column)
    play.turn()
    return _calls_for(
        play,
        Purpose.SCHEDULING,
        (
            messages.ReadQueue("n1", attend=True),
            messages.Place("n1", (messages.Placement(1, "n2"),)),
            messages.KeepRooms("n1", ()),
            messages.SetAdmission("n1", ()),
            messages.Govern("n1"),
            messages.Advise("n1", 1, b""),
        ),
    )


def be_taken_for_a_scheduler(column: str, _: Path) -> bool:
    """It says that it has a coordinator: the smallest one leads, and the others leave the queues to it.

    It says the same of a node that does not exist, which nobody believes of anybody.
    """
    play = Play(column)
    play.turn()
    ghost = replace(play.own_row(coordinated=True), node=NodeId(99), name="n99")
    play.cluster.cut |= {frozenset({node.node, ghost.node}) for node in play.cluster.nodes}
    play.gossip(ghost)
    play.say_of_itself(coordinated=True)
    coordinated = {row.node for row in play.listed().values() if row.coordinated}
    return bool(coordinated & {play.villain.node, ghost.node})


def administer_others(column: str, _: Path) -> bool:
    """It labels and drains another node in the name of the nodes' own user."""
    play = Play(column)
    play.turn()
    return play.all_or_none(
        [
            dcp.Forward(play.named(OWNER), call)
            for call in (
                messages.LabelNode("n1", (("gpu", "yes"),)),
                messages.SetNode("n1", NodeWish.DRAIN),
                messages.SetNode("n1", NodeWish.UNDRAIN),
            )
        ]
    )


def _starts(play: Play, user: str, *, scheduled: bool, tasks: int) -> int:
    """Start tasks at the target in the name of a user; return the number that it takes."""
    program = replace(play.villains.create(data=b"evil").reference, ref=RefId(4_712))
    before = len(play.target.core.state.tasks)
    for number in range(tasks):
        call = messages.Run(0, brand=Brand.PURE, flags=int(Flag.NON_BLOCKING))
        held = dcp.HeldReference(play.villain.node, replace(program, ref=RefId(5_000 + number)))
        child, name = TaskId(6_000 + number), Name(bytes([number]) * 32)
        play.answer(dcp.Start(play.named(user), child, name, call, (), held, (), (), scheduled=scheduled))
    return len(play.target.core.state.tasks) - before


def _with_quota(column: str, elsewhere: int) -> Play:
    """The quota of a user who is not enrolled: two tasks, some of which are elsewhere."""
    play = Play(column)
    quota = Quota(str(BOB), tasks=2, elsewhere=Holding(tasks=elsewhere))
    play.mine.ask(messages.Done, messages.SetAdmission("n1", (quota,)))
    play.turn()
    return play


def pass_a_quota_on_one_node(column: str, _: Path) -> bool:
    """It starts more tasks on one node than the quota has, and says that the scheduler placed them."""
    return _starts(_with_quota(column, 0), BOB, scheduled=True, tasks=4) > 2


def pass_a_quota_over_the_cluster(column: str, _: Path) -> bool:
    """All of the quota is in use elsewhere: it says that the scheduler counted that, and placed the run."""
    assert not _starts(_with_quota(column, 2), BOB, scheduled=False, tasks=1)
    return _starts(_with_quota(column, 2), BOB, scheduled=True, tasks=1) > 0


# -- load and membership --------------------------------------------------------------------------------
def lie_about_its_own_load(column: str, _: Path) -> bool:
    """It says that it is idle and has every label."""
    play = Play(column)
    play.turn()
    play.say_of_itself(load=gossip.Load(0, 4_096, 2**40), labels="gpu=yes")
    row = play.row(play.villain)
    return row is not None and row.load.cpus == 4_096


def lie_about_the_load_of_another(column: str, _: Path) -> bool:
    """It says that another node drains, is unfit, or has other labels; and looks if that lasts."""
    play = Play(column)
    play.turn()
    true = play.row(play.friend)
    assert true is not None
    for lie in (
        {"load": gossip.Load(999, 1, 1)},
        {"draining": True},
        {"labels": "gpu=no"},
        {"fitness": Fitness.UNFIT},
        {"coordinated": True},
        {"barred": (play.target.node,)},
        {"rack": "r9"},
        {"address": "10.9.9.9:1"},
        {"name": "n9"},
        {"version": limits.COUNTER_MAX},
        {"incarnation": limits.COUNTER_MAX, "status": NodeStatus.SUSPECT},
    ):
        row = play.row(play.friend)
        assert row is not None
        play.gossip(replace(row, **{"version": row.version + 9, **lie}))
    play.cluster.advance(3 * _S_MS)
    row = play.row(play.friend)
    assert row is not None
    counted = {"version": row.version, "incarnation": row.incarnation, "load": row.load}
    return replace(true, **counted) != row or row.load.tasks == 999


def declare_a_node_dead(column: str, _: Path) -> bool:
    """It says that a living node is dead, and that it has left."""
    play = Play(column)
    play.turn()
    for status in (NodeStatus.DEAD, NodeStatus.LEFT):
        row = play.row(play.friend)
        assert row is not None
        play.gossip(replace(row, status=status, incarnation=row.incarnation + 1))
        if (row := play.row(play.friend)) is None or row.status not in {NodeStatus.ALIVE, NodeStatus.SUSPECT}:
            return True
        play.cluster.advance(3 * _S_MS)
        if (row := play.row(play.friend)) is None or row.status is not NodeStatus.ALIVE:
            return True
    return False


# -- the audit log --------------------------------------------------------------------------------------
def _identities(column: str, folder: Path) -> tuple[Identity, Identity, Identity]:
    """The target, which is an authority, its friend, and the villain, which they know and removed."""
    target = create_cluster(folder / "n1", name="n1")
    friend = admit_here(target, folder / "n2", name="n2", role=NodeRole.AUTHORITY)
    villain = admit_here(target, folder / "n3", name="n3", role=role_in(column))
    for node in (target, friend, villain):
        for other in (target, friend, villain):
            node.trust.note(known_of(other.cards))
    return target, friend, villain


def forge_the_head_of_a_log(column: str, folder: Path) -> bool:
    """It returns heads of the target's log that the target did not sign, and sends those of a third node.

    The log of a node is its own, so that no role has a part in it.
    """
    target, friend, villain = _identities(column, folder)
    keeper = HeadKeeper(
        target.node, target.card.key, folder / "heads", cast("trio.Nursery", None), lambda *_: None
    )
    forged = [
        signing.sign(AuditHead(node.node, 9, 0, 9, bytes(32), 1, b"", b""), villain.key())
        for node in (target, friend)
    ]
    peer = cast("RemoteIdentity", None)
    try:
        keeper.receive(villain.node, peer, cast("PeerSession", None), AuditHeads((forged[1].line,)))
    except ProtocolError:
        is_taken = False
    else:
        is_taken = True
    findings = keeper._store(
        _Arrived(cast("PeerSession", None), "n3", villain.card.key, {target.node: [forged[0]]})
    )
    return is_taken or bool(findings.returned) or findings.reason is None


# -- catalogues and replicas ----------------------------------------------------------------------------
def _grouped(play: Play, at: ClusterNode, user: Principal) -> tuple[Citizen, bytes, messages.Created]:
    """A session of a user, the name of a group, and an object in it."""
    session = at.session(user)
    group = session.ask(messages.Created, messages.Create(ObjectType.GROUP, name_kind=NameKind.RANDOM))
    created = session.ask(
        messages.Created,
        messages.Create(ObjectType.SHMEM_BLOB, data=b"true list", groups=(group.reference.ref,)),
    )
    assert group.name is not None
    play.cluster.settle()
    return session, bytes(group.name), created


def show_its_own_list(column: str, _: Path) -> bool:
    """A user of the target looks up a name: the villain answers with an object of its own."""
    play = Play(column)
    enrol(play.cluster, ALICE)
    _session, group, created = _grouped(play, play.villain, ALICE)
    name = created.name
    assert name is not None
    reader = vouched(play.target, ALICE, (Name(group),))
    play.turn()
    seq = reader.send(messages.Lookup(Name(name), flags=int(Flag.NONE)))
    answer = play.cluster.wait(reader, seq)
    return isinstance(answer, messages.References) and bool(answer.references)


def change_the_list_of_another(column: str, _: Path) -> bool:
    """It knows the names of an enrolled user's group and list, and of her records, and writes to them."""
    play = Play(column)
    session, group, created = _grouped(play, play.target, ALICE)
    flags = int(Flag.SERVICES)
    session.ask(messages.Created, messages.Create(ObjectType.DURABLE_BLOB, data=b"of alice", flags=flags))
    enrol(play.cluster, ALICE)
    play.turn()
    assert created.name is not None
    home = home_name(SECRET, ALICE)
    names = (
        internal_name(Name(created.name), Name(group)),
        internal_name(services_name(SECRET, ALICE), home),
    )
    planted = replace(
        _replica(play, BOB),
        name=services_name(SECRET, ALICE),
        groups=(dcp.GroupName(home, ALICE),),
        kind=ObjectType.DURABLE_BLOB,
    )
    play.gets(planted)
    records = list(user_records.principals(play.target.core.state, SERVICES))
    assert records in ([ALICE], [])
    play.number += 1
    answer = play.ask(dcp.Resolve(play.named(BOB, 90), names, 4))
    is_shown = isinstance(answer, dcp.Found) and bool(answer.references)
    written = play.gets(
        dcp.Forward(play.named(BOB, 90), messages.WriteOnce(created.reference.ref, b"false list"))
    )
    return is_shown or written or session.read(created.reference.ref) != b"true list"


def hold_durable_copies(column: str, _: Path) -> bool:
    """It asks the node of an object for a durable copy on itself, in the name of a user without a key.

    And a user of that node creates a durable object there.
    """
    play = Play(column)
    name = play.mine.create(data=b"kept").name
    (reference,) = play.villains.lookup(name)
    play.turn()
    create = messages.Create(ObjectType.DURABLE_BLOB, host="n3", data=b"kept")
    is_created = isinstance(play.cluster.call(play.mine, create), messages.Created)
    call = messages.Copy(reference.ref, play.villains.self_ref, host="n3", persistence=Persistence.DURABLE)
    if play.is_removed:
        asked = dcp.Delegate(play.caller(play.villains), call, play.caller(play.villains), play.villain.node)
        return is_created or play.gets(asked)
    answer = play.cluster.wait(play.villains, play.villains.send(call))
    if isinstance(answer, messages.Failure):
        assert "has the role" in answer.message, answer
    assert is_created is not isinstance(answer, messages.Failure)
    return is_created


def describe_the_replica_of_another(column: str, _: Path) -> bool:
    """It publishes counters of a third node's object, and hands a task a false description of it."""
    play = Play(column)
    theirs = play.friends.create(data=b"theirs")
    (held,) = play.mine.lookup(theirs.name)
    play.cluster.settle()
    play.turn()
    thing = ObjectId(theirs.reference.object)
    play.say(dcp.Published(thing, 7_777, 9, 9, 0, 0, 0, zombie=True, order=2**40))
    program = replace(play.villains.create(data=b"evil").reference, ref=RefId(4_712))
    false = replace(theirs.reference, ref=RefId(4_720), size=7_777, v_w=9)
    play.gets(
        dcp.Start(
            play.caller(play.villains),
            TaskId(4_713),
            Name(bytes(range(32))),
            messages.Run(0, brand=Brand.PURE),
            (),
            dcp.HeldReference(play.villain.node, program),
            (dcp.HeldReference(play.friend.node, false),),
            (),
        )
    )
    shown = play.target.core.state.tasks[play.mine.task].table.get(held.ref).object
    return shown.zombie or (shown.size, shown.v_w) != (held.size, held.v_w)


# -- groups ---------------------------------------------------------------------------------------------
def own_the_group_of_another(column: str, _: Path) -> bool:
    """It says that a group of a user is a stranger's, who then presents its name to the target."""
    play = Play(column)
    stranger = Principal("uid:31337")
    _session, group, _created = _grouped(play, play.friend, ALICE)
    play.turn()
    create = messages.Create(ObjectType.SHMEM_BLOB, data=b"x")
    play.gets(dcp.Forward(play.named(stranger), create, (dcp.GroupName(Name(group), stranger),)))
    thief = play.target.session(stranger, (Name(group),))
    return Name(group) in play.target.core.state.tasks[thief.task].memberships


def destroy_groups_of_the_secret(column: str, _: Path) -> bool:
    """It says that home groups and groups of logs were destroyed, whose names follow from the secret."""
    play = Play(column)
    session = play.friend.session(ALICE)
    home = session.welcome.home
    assert home is not None
    kind = ObjectType.SHMEM_BLOB
    early = session.ask(messages.Created, messages.Create(kind, (home.ref,), host="n1", data=b"early"))
    play.turn()
    for user in (ALICE, BOB, OWNER):
        for name in (home_name(SECRET, user), logs_group(home_name(SECRET, user))):
            play.gets(dcp.Disband(name))
    if not session.lookup(early.name) or session.read(early.reference.ref) != b"early":
        return True
    for user in (ALICE, BOB):
        later = play.friend.session(user)
        home = later.welcome.home
        assert home is not None
        created = messages.Create(kind, (home.ref,), host="n1", data=b"later")
        if isinstance(later.call(created), messages.Failure):
            return True
    return False


def destroy_a_group_by_its_name(column: str, _: Path) -> bool:
    """It knows the random name of a group, and says that it was destroyed."""
    play = Play(column)
    session, group, created = _grouped(play, play.target, ALICE)
    play.turn()
    play.gets(dcp.Disband(Name(group)))
    return not session.lookup(created.name)


# -- leases ---------------------------------------------------------------------------------------------
def end_the_leases_of_another(column: str, _: Path) -> bool:
    """It calls back leases on a third node's object, and grants itself some that nobody asked for."""
    play = Play(column)
    play.hold_leases()
    name = play.friends.create(data=b"often read").name
    (held,) = play.mine.lookup(name)
    for _number in range(4):
        play.mine.read(held.ref)

    def ends() -> dict[tuple[int, int], int]:
        return {key: lease.ends for key, lease in play.state.leases.held.items()}

    before = ends()
    assert any(before.values())
    play.turn()
    play.gets(dcp.CallBack(ObjectId(held.object)))
    try:
        play.say(dcp.Leased(2**50))
    except ProtocolError:
        play.cluster.wire.clear()
    return ends() != before


def _write_under_a_lease(column: str, wait_ms: int) -> bool:
    """It keeps a lease on the target's object and returns it to nobody: and looks if a write waits."""
    play = Play(column)
    play.hold_leases()
    mine = play.mine.create(data=b"often read")
    (held,) = play.villains.lookup(mine.name)
    for _ in range(4):
        play.villains.read(held.ref)
    play.turn()
    play.cluster.drop = lambda parcel: parcel.sender == play.villain.node
    seq = play.mine.send(messages.WriteOnce(mine.reference.ref, b"new"))
    play.cluster.settle()
    for _ in range(wait_ms // 100):
        if play.mine.answer(seq) is not None:
            return False
        play.cluster.advance(100)
    return play.mine.answer(seq) is None


def delay_a_write_by_a_lease(column: str, _: Path) -> bool:
    """Until the lease ends."""
    return _write_under_a_lease(column, 500)


def stop_a_write_by_a_lease(column: str, _: Path) -> bool:
    """For longer than a lease lasts."""
    return _write_under_a_lease(column, limits.LEASE_GRANTED_MS + _S_MS)


# -- admission, renewal and revocation ------------------------------------------------------------------
def _forged(node: Identity, role: NodeRole = NodeRole.MEMBER) -> tuple[bytes, ...]:
    """A chain that a changed program of this node makes: it signs with its key whatever its role says."""
    key = Ed25519PrivateKey.generate().public_key()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_room", lambda _: 1)
        forged = certificates.make_node(99, "n9", key, node.chain[0], node.key(), role=role)
    return (forged, *node.chain)


async def _turned(column: str, folder: Path) -> tuple[Identity, Identity, Identity]:
    target, friend, villain = _identities(column, folder)
    if column == REMOVED:
        await target.trust.remove(villain.node)
    return target, friend, villain


async def admit_a_machine(column: str, folder: Path) -> bool:
    """It signs a new node, and hands it the secret."""
    target, _, villain = await _turned(column, folder)
    chain = _forged(villain)
    try:
        certificates.check_signatures(chain)
        return not target.trust.refusal(certificates.cards_of(chain))
    except ProtocolError:
        return False


async def raise_its_role(column: str, folder: Path) -> bool:
    """It signs itself a certificate with its own id and key and the role of an authority."""
    target, _, villain = await _turned(column, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_room", lambda _: 1)
        own = certificates.make_node(
            villain.node,
            "n3",
            villain.key().public_key(),
            villain.chain[0],
            villain.key(),
            role=NodeRole.AUTHORITY,
        )
    chain = (own, *villain.chain)
    try:
        certificates.check_signatures(chain)
        return not target.trust.refusal(certificates.cards_of(chain))
    except ProtocolError:
        return False


async def renew_a_certificate(column: str, folder: Path) -> bool:
    """A member asks it for its next certificate, and uses what it gets."""
    target, _, villain = await _turned(column, folder)
    member = admit_here(target, folder / "n4", name="n4")
    villain.trust.note(known_of(member.cards))
    member.trust.note(known_of(villain.cards))
    if column == REMOVED:
        await member.trust.remove(villain.node)
    async with listening(villain) as (listener, nursery):

        async def serve() -> None:
            with suppress(DiosError, trio.EndOfChannel):
                await renewal.serve(villain, await listener.accept())

        nursery.start_soon(serve)
        try:
            return (await renewal.ask(listener.address, member)).signer == "n3"
        except DiosError:
            return False


async def remove_a_node(column: str, folder: Path) -> bool:
    """It signs a statement that removes an honest node."""
    target, friend, villain = await _turned(column, folder)
    removed, kept = {int(friend.node): 0}, {int(villain.node): villain.card.key}
    data = statements.make(villain.chain, villain.key(), 1, removed, kept).data
    try:
        await target.trust.accept(data)
    except ProtocolError:
        return False
    return friend.node in target.trust.revoked


async def undo_its_removal(column: str, folder: Path) -> bool:
    """It is removed, signs that it keeps itself, and comes back with its own and with a new certificate."""
    target, friend, villain = _identities(column, folder)
    removal = await friend.trust.remove(villain.node)
    await target.trust.accept(removal)
    kept = {int(villain.node): villain.card.key}
    data = statements.make(villain.chain, villain.key(), 2**40, {}, kept).data
    with suppress(ProtocolError):
        await target.trust.accept(data)
    chains = [villain.chain, _forged(villain)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "check_signatures", lambda _: None)
        own = []
        for chain in chains:
            try:
                own.append(not target.trust.refusal(certificates.cards_of(chain)))
            except ProtocolError:
                own.append(False)
    return any(own)


# -- limbo, borders -------------------------------------------------------------------------------------
def _limbo(column: str, *, let_in: bool) -> bool:
    play = Play(column)
    if let_in:
        play.target.let_limbo_in()
    play.turn()
    program = replace(play.villains.create(data=b"evil").reference, ref=RefId(4_712))
    held = dcp.HeldReference(play.villain.node, program)
    play.gets(
        dcp.Start(
            play.caller(play.villains),
            TaskId(4_713),
            Name(bytes(range(32))),
            messages.Run(0, brand=Brand.LIMBO),
            (),
            held,
            (),
            (),
        )
    )
    return TaskId(4_713) in play.target.core.state.tasks


def start_limbo_tasks(column: str, _: Path) -> bool:
    """It starts a program outside the sandbox in the name of the nodes' own user."""
    return _limbo(column, let_in=False)


def start_limbo_tasks_where_let_in(column: str, _: Path) -> bool:
    """The same where `limbo_from_nodes` lets them in."""
    return _limbo(column, let_in=True)


class _Open:
    """A bound that admits everybody."""

    def admits(self, address: str) -> bool:
        return bool(address)

    def passed(self, address: str) -> None:
        assert address


async def speak_at_a_border(column: str, folder: Path) -> bool:
    """It calls the border of a cluster that trusts its own, and listens where that one calls."""
    _, _, villain = await _turned(column, folder)
    abroad = create_cluster(folder / "abroad", name="abroad")
    outcomes = [
        await _passes(villain, abroad),
        await _passes(abroad, villain),
    ]
    assert len(set(outcomes)) == 1, outcomes
    return outcomes[0]


async def _passes(caller: Identity, listener: Identity) -> bool:
    """Return True if a caller passes the handshake of a border of another cluster, and accepts it."""
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            trusted = {caller.cluster: TrustedCluster(caller.name, caller.chain[-1], "")}
            port = BorderListener(
                await bind(HERE), listener, lambda: trusted, nursery, lambda *_: None, _Open()
            )
            there = TrustedCluster(listener.name, listener.chain[-1], port.address)
            try:
                (await call_border(caller, there, nursery)).close()
            except NotPermittedError as error:
                return "has the role" not in error.message
            else:
                return True
            finally:
                port.close()
                nursery.cancel_scope.cancel()


async def invite_to_another(column: str, folder: Path) -> bool:
    """It makes an invitation, whatever its role says, and a machine goes to the target with it."""
    target, _, villain = await _turned(column, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_room", lambda _: 1)
        invitation = tokens.issue(villain)
    async with listening(target) as (listener, nursery):

        async def serve() -> None:
            with suppress(DiosError, trio.EndOfChannel):
                await joining.admit(target, await listener.accept())

        nursery.start_soon(serve)
        with pytest.MonkeyPatch.context() as patch:
            # The machine is the attacker's, too: it goes to another node than its invitation says, and shows
            # the certificates above it.
            patch.setattr(joining, "signer_of", lambda _: (int(target.node), "n1"))
            patch.setattr(
                joining,
                "load_own",
                lambda context, chain, key: load_own(context, [*chain, *villain.chain[:-1]], key),
            )
            try:
                await joining.join(listener.address, invitation, name="n9", directory=folder / "n9")
            except DiosError:
                return False
    return True


ATTACKS: Final[Mapping[str, Attack]] = {
    "act for a user who is not enrolled": act_for_a_user_without_a_key,
    "act for an enrolled user without a mandate": act_for_an_enrolled_user,
    "use a mandate that names another node": _with(
        lambda play: mandate(2, ALICE, _now_ms(play), _DAY_MS, EVERY_PURPOSE)
    ),
    "use a mandate of one user for another": _with(
        lambda play: mandate(3, BOB, _now_ms(play), _DAY_MS, EVERY_PURPOSE)
    ),
    "use a mandate for what it is not for": _with(
        lambda play: mandate(3, ALICE, _now_ms(play), _DAY_MS, Purpose.SCHEDULING)
    ),
    "use a mandate after its end, with a clock that is behind": outlive_a_mandate,
    "enrol users, or remove them from the register": enrol_and_lock,
    "show a false time of its own clock": show_a_false_clock,
    "use a lent reference after its end, with a clock that is behind": outlive_a_lent_reference,
    "schedule for other nodes": schedule_for_others,
    "be expected to schedule for other nodes": be_taken_for_a_scheduler,
    "pass the quota of a user on one node": pass_a_quota_on_one_node,
    "pass the quota of a user over several nodes": pass_a_quota_over_the_cluster,
    "label and drain other nodes": administer_others,
    "state its own load and labels wrongly": lie_about_its_own_load,
    "state those of another node so that it lasts": lie_about_the_load_of_another,
    "have a living node taken for dead": declare_a_node_dead,
    "forge or replace the kept head of another node's log": forge_the_head_of_a_log,
    "answer a look-up with its own list": show_its_own_list,
    "change the list or records of an enrolled user elsewhere": change_the_list_of_another,
    "get durable copies from other nodes": hold_durable_copies,
    "change what others see of a third node's replica": describe_the_replica_of_another,
    "make a stranger the owner of a group": own_the_group_of_another,
    "destroy groups whose names follow from the secret": destroy_groups_of_the_secret,
    "destroy a group whose random name it knows": destroy_a_group_by_its_name,
    "end or forge leases between other nodes": end_the_leases_of_another,
    "delay a write until its lease on the object ends": delay_a_write_by_a_lease,
    "delay a write for longer": stop_a_write_by_a_lease,
    "admit a machine": admit_a_machine,
    "have an authority admit a machine by an invitation of its own": invite_to_another,
    "give itself another role": raise_its_role,
    "renew certificates": renew_a_certificate,
    "remove another node": remove_a_node,
    "undo its own removal": undo_its_removal,
    "start limbo tasks elsewhere": start_limbo_tasks,
    "start limbo tasks where they are let in": start_limbo_tasks_where_let_in,
    "speak at the border of a trusted cluster": speak_at_a_border,
}
"""The attack of each row of the table."""


async def succeeds(attempt: str, column: str, folder: Path) -> bool:
    """Carry out an attack."""
    outcome = ATTACKS[attempt](column, folder)
    return await outcome if inspect.isawaitable(outcome) else outcome
