"""Shares of groups: one other principal reads, for a time, until the share is withdrawn (ADR 0082)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dios.core import events
from dios.core.model.names import share_name
from dios.errors import Code
from dios.ids import Name, Principal
from dios.wire import dcp, messages
from dios.wire.types import Flag, ObjectType, Permission
from tests.support.core.cluster import Cluster, ClusterNode
from tests.support.core.harness import OWNER, Client, Node

READER = Principal("uid:2000")
THIEF = Principal("uid:3000")
NONCE = bytes(range(32))
HOUR_NS = 3_600_000_000_000


class Scene:
    """A group with an object, shared with a reader, whose session is on this or on another node."""

    def __init__(self, issuer: Client, session: Callable[[Principal], Client]) -> None:
        self.issuer = issuer
        self.session = session
        home = issuer.welcome.home
        assert home is not None
        created = issuer.ask(messages.Created, messages.Create(ObjectType.GROUP, (home.ref,)))
        self.own, self.group = created.reference.ref, created.name or b""
        self.stored = issuer.ask(
            messages.Created, messages.Create(ObjectType.DURABLE_BLOB, (self.own,), data=b"kept")
        )
        self.stream = issuer.ask(messages.Created, messages.Create(ObjectType.SHMEM_STREAM, (self.own,)))
        self.end_ns = issuer.node.now + HOUR_NS
        self.record = issuer.ask(messages.Created, messages.ShareGroup(self.own, NONCE, READER, self.end_ns))

    def accepting(self, **changed: object) -> messages.AcceptShare:
        """The call that accepts the share, with some fields changed."""
        fields: dict[str, object] = {
            "group": self.group, "nonce": NONCE, "issuer": OWNER, "expires_ns": self.end_ns,
        }  # fmt: skip
        return messages.AcceptShare(**(fields | changed))  # type: ignore[arg-type]

    def reader(self) -> tuple[Client, int]:
        """A session of the reader that has accepted the share, and its reference to the group."""
        session = self.session(READER)
        (shown,) = session.ask(messages.References, self.accepting()).references
        return session, shown.ref

    def find(self, session: Client, group: int, name: bytes | None = None) -> tuple[messages.Reference, ...]:
        """A lookup in the shared group."""
        wanted = messages.Lookup(name or self.stored.name or b"", group)
        return session.ask(messages.References, wanted).references


@pytest.fixture(params=["one node", "two nodes"])
def scene(request: pytest.FixtureRequest) -> Scene:
    """On one node without a cluster, and with the reader on another node than everything else."""
    if request.param == "one node":
        node = Node()
        return Scene(node.session(), node.session)
    cluster = Cluster()
    first, two = cluster.nodes[:2]
    return Scene(cluster.session(first), two.session)


def test_the_reader_reads_and_nothing_else(scene: Scene) -> None:
    """The reference has the right to read alone and an end; what is no data is not found by a share."""
    session, group = scene.reader()
    (reference,) = scene.find(session, group)
    assert reference.permissions == Permission.READ
    assert reference.expires_ns > 0
    assert session.call(messages.ReadOnce(reference.ref)) is not None
    assert scene.find(session, group, scene.stream.name) == ()
    for call in (
        messages.WriteOnce(reference.ref, data=b"x"),
        messages.Delete(reference.ref, int(Flag.DESTROY)),
        messages.Copy(reference.ref, session.self_ref),
        messages.Create(ObjectType.DURABLE_BLOB, (group,)),
        messages.ShareGroup(group, NONCE, THIEF, scene.end_ns),
        messages.Delete(group, int(Flag.DESTROY)),
    ):
        answer = session.call(call)
        assert isinstance(answer, messages.Failure), call
        assert answer.code == Code.EPERM, call
    session.ask(messages.Done, messages.Delete(reference.ref))
    assert scene.find(session, group), "without the right only the handle goes"


@pytest.mark.parametrize(
    ("thief", "changed"),
    [
        (THIEF, {}),
        (READER, {"nonce": bytes(32)}),
        (READER, {"group": bytes(32)}),
        (READER, {"issuer": THIEF}),
        (READER, {"later": 1}),
    ],
)
def test_a_grant_is_worth_nothing_to_others_or_changed(
    scene: Scene, thief: Principal, changed: dict[str, object]
) -> None:
    """Another principal, and a reader who changes a field such as the end, get the same refusal."""
    fields = {"expires_ns": scene.end_ns + 1} if "later" in changed else changed
    session = scene.session(thief)
    answer = session.call(scene.accepting(**fields))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EPERM
    assert not session.node.core.state.share_holders


def test_a_withdrawn_share_ends_at_once(scene: Scene) -> None:
    """What was found is taken back, nothing is found any more, and the grant is refused from then on."""
    session, group = scene.reader()
    (reference,) = scene.find(session, group)
    scene.issuer.ask(messages.Done, messages.Delete(scene.record.reference.ref, int(Flag.DESTROY)))
    _settle(scene)
    for call in (messages.ReadOnce(reference.ref), messages.Lookup(scene.stored.name or b"", group)):
        answer = session.call(call)
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.EBADF
    again = scene.session(READER).call(scene.accepting())
    assert isinstance(again, messages.Failure)
    assert again.code == Code.EPERM
    assert not session.node.core.state.share_holders


def test_a_share_ends_by_its_time(scene: Scene) -> None:
    """After the end the references are gone, and the grant is refused."""
    session, group = scene.reader()
    (reference,) = scene.find(session, group)
    _advance(scene, HOUR_NS + 1)
    answer = session.call(messages.ReadOnce(reference.ref))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EBADF
    late = session.call(scene.accepting())
    assert isinstance(late, messages.Failure)
    assert late.code == Code.EPERM


def test_a_share_ends_with_the_handle_of_the_group_or_the_session(scene: Scene) -> None:
    """A session that ends leaves no trace; one that accepts again continues with the new share."""
    session, group = scene.reader()
    assert scene.find(session, group)
    (again,) = session.ask(messages.References, scene.accepting()).references
    assert scene.find(session, again.ref)
    node = session.node
    node.end(session.task)
    _settle(scene)
    assert not node.core.state.share_holders


def test_only_a_members_process_shares(scene: Scene) -> None:
    """A session that only has a reference, an end that is past or too far, and nobody are refused."""
    issuer = scene.issuer
    for call in (
        messages.ShareGroup(scene.own, NONCE, "", scene.end_ns),
        messages.ShareGroup(scene.own, NONCE, READER, issuer.node.now),
        messages.ShareGroup(scene.own, NONCE, READER, issuer.node.now + 400 * 24 * HOUR_NS),
        messages.ShareGroup(issuer.self_ref, NONCE, READER, scene.end_ns),
    ):
        answer = issuer.call(call)
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.EINVAL


def test_a_task_neither_shares_nor_accepts() -> None:
    """Memberships of a task are fixed when it starts, and shares are no way around that."""
    node = Node()
    scene = Scene(node.session(), node.session)
    task = scene.issuer.run(groups=(scene.own,))
    assert task.refused(scene.accepting()) == Code.EPERM
    assert task.refused(messages.ShareGroup(task.groups[0], NONCE, READER, scene.end_ns)) == Code.EPERM


def test_a_node_that_ignores_the_bounds_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """References of a node of an earlier release, which have every right and no end, are not taken."""
    cluster = Cluster()
    first, two = cluster.nodes[:2]
    scene = Scene(cluster.session(first), two.session)
    session, group = scene.reader()
    plain = dcp.Resolve

    def earlier(caller: dcp.Caller, names: object, limit: int, *bounds: int) -> dcp.Resolve:
        del bounds
        return plain(caller, names, limit)  # type: ignore[arg-type]

    monkeypatch.setattr(dcp, "Resolve", earlier)
    assert scene.find(session, group) == ()
    monkeypatch.undo()
    assert scene.find(session, group) != ()


def test_the_name_of_a_record_binds_everything() -> None:
    """The frozen vector; each field changes the name."""
    fields = (NONCE, bytes(32), "uid:1", 7)
    name = share_name(*fields)
    assert name == Name(bytes.fromhex(FROZEN))
    others = [
        (bytes(32), *fields[1:]),
        (NONCE, NONCE, "uid:1", 7),
        (*fields[:2], "uid:11", 7),
        (*fields[:3], 8),
    ]
    assert len({name, *(share_name(*other) for other in others)}) == 5


FROZEN = "ae82d87fea23f6869d1e662fb9f56fdd25d3cb1f55ceb854b994808fda077a8d"


def _settle(scene: Scene) -> None:
    """Deliver all messages between nodes."""
    _advance(scene, 0)


def _advance(scene: Scene, span_ns: int) -> None:
    """Let time pass on all nodes."""
    node = scene.issuer.node
    if isinstance(node, ClusterNode):
        cluster = node.cluster
        for machine in cluster.nodes:
            machine.drift += span_ns
        cluster.advance(100)
        return
    node.now += span_ns
    node.step(events.TimerFired(node.now))
