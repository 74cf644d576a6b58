"""Sealed tokens in the core: who issues, who redeems, and what a revocation takes back (ADR 0101)."""

from __future__ import annotations

import msgspec
import pytest

from dios.core import effects
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.sealed_tokens import (
    OnlyHolder,
    OnlyPath,
    OnlyRights,
    OnlyUntil,
    SealedToken,
    TokenGrant,
    attenuate,
    encode_grant,
    encode_token,
    seal_grant,
)
from dios.wire.types import Flag, NodeWish, ObjectType, Permission
from tests.support.core.cluster import Cluster
from tests.support.core.harness import OWNER, Client, Node

READER = Principal("uid:2000")
FOREIGN = b"\x07" * 32
HOUR_NS = 3_600_000_000_000


class Scene:
    """A group with an object at the first of two nodes, and a token for it."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.first, self.second = self.cluster.nodes[:2]
        self.issuer = self.cluster.session(self.first)
        home = self.issuer.welcome.home
        assert home is not None
        created = self.issuer.ask(messages.Created, messages.Create(ObjectType.GROUP, (home.ref,)))
        self.own, group = created.reference.ref, created.name or b""
        self.stored = self.issuer.ask(
            messages.Created, messages.Create(ObjectType.DURABLE_BLOB, (self.own,), data=b"kept")
        )
        self.grant = TokenGrant(
            FOREIGN, group, bytes(32), b"\x04" * 32, OWNER, 3, self.issuer.node.now + HOUR_NS, "papers"
        )
        self.record = self.issuer.ask(messages.Created, self.issuing())
        self.token = seal_grant(self.record.name or b"", self.grant)

    def issuing(self, **changed: object) -> messages.IssueToken:
        """The call that issues the token, with some fields of the grant changed."""
        return messages.IssueToken(self.own, encode_grant(msgspec.structs.replace(self.grant, **changed)))

    def read(self, session: Client, call: messages.RedeemToken) -> messages.Reference:
        """Redeem a token, and find the object by it."""
        (group,) = session.ask(messages.References, call).references
        wanted = messages.Lookup(self.stored.name or b"", group.ref)
        (reference,) = session.ask(messages.References, wanted).references
        return reference


def redeeming(token: SealedToken, cluster: bytes = b"", user: str = "") -> messages.RedeemToken:
    """The call that redeems a token."""
    return messages.RedeemToken(encode_token(token), cluster, user)


def denied(session: Client, call: messages.PlainCall, code: Code = Code.EPERM) -> str:
    """The message of a refusal with this code."""
    answer = session.call(call)
    assert isinstance(answer, messages.Failure), answer
    assert answer.code == code
    return answer.message


@pytest.fixture
def scene() -> Scene:
    """A fresh cluster."""
    return Scene()


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_token_that_was_narrowed_offline_reads_and_nothing_else(scene: Scene, place: str) -> None:
    """On the node of the record and on another one, any user of the cluster reads for that time."""
    session = getattr(scene, place).session(READER)
    end_ns = scene.issuer.node.now + HOUR_NS // 2
    reference = scene.read(session, redeeming(attenuate(scene.token, OnlyRights(1), OnlyUntil(end_ns))))
    assert reference.permissions == Permission.READ
    assert 0 < reference.expires_ns <= end_ns + HOUR_NS // 100
    assert session.call(messages.ReadOnce(reference.ref)) is not None
    assert denied(session, messages.WriteOnce(reference.ref, data=b"x"))
    assert denied(session, messages.Copy(reference.ref, session.self_ref))


def test_a_revoked_token_is_refused_and_what_it_opened_is_taken_back(scene: Scene) -> None:
    """The record's destruction ends all tokens of the grant on every node."""
    session = scene.second.session(READER)
    reference = scene.read(session, redeeming(scene.token))
    scene.issuer.ask(messages.Done, messages.Delete(scene.record.reference.ref, int(Flag.DESTROY)))
    scene.cluster.advance(100)
    assert denied(session, messages.ReadOnce(reference.ref), Code.EBADF)
    assert "revoked" in denied(session, redeeming(attenuate(scene.token, OnlyRights(1))))
    assert not session.node.core.state.share_holders


def test_forged_late_and_foreign_tokens_are_refused(scene: Scene) -> None:
    """The node finds a wrong seal, a caveat that does not hold, and a foreign holder that nobody may name."""
    session = scene.second.session(READER)
    narrow = attenuate(scene.token, OnlyUntil(scene.issuer.node.now - 1), OnlyRights(1))
    assert "is over" in denied(session, redeeming(narrow))
    widened = SealedToken(narrow.grant, narrow.caveats[1:], narrow.seal)
    assert "seal" in denied(session, redeeming(widened))
    abroad = attenuate(scene.token, OnlyHolder(FOREIGN, "uid:7"))
    assert "the issuing cluster presented it" in denied(session, redeeming(abroad))
    assert "the node itself" in denied(session, redeeming(abroad, FOREIGN, "uid:7"))
    assert "border" in denied(session, redeeming(attenuate(scene.token, OnlyPath("a"))))
    denied(session, messages.RedeemToken(b"junk"), Code.EINVAL)


def test_the_nodes_own_user_redeems_for_a_holder(scene: Scene) -> None:
    """This is the border of the node, which has authenticated the foreign cluster and checks paths."""
    border = scene.first.session(OWNER)
    abroad = attenuate(scene.token, OnlyHolder(FOREIGN, "uid:7"), OnlyPath("a"))
    assert scene.read(border, redeeming(abroad, FOREIGN, "uid:7")).permissions == Permission.READ
    for cluster, user in ((FOREIGN, "uid:8"), (b"\x08" * 32, "uid:7"), (b"", "uid:7")):
        assert "presented it" in denied(border, redeeming(abroad, cluster, user))


def test_only_a_member_issues_in_its_own_name(scene: Scene) -> None:
    """Another group, another issuer, further rights and times that cannot be are refused; so is a reader."""
    issuer, now = scene.issuer, scene.issuer.node.now
    for changed, code in (
        ({"issuer": READER}, Code.EPERM), ({"group": bytes(32)}, Code.EINVAL), ({"rights": 2}, Code.EINVAL),
        ({"expires_ns": now}, Code.EINVAL), ({"expires_ns": now + 400 * 24 * HOUR_NS}, Code.EINVAL),
    ):  # fmt: skip
        denied(issuer, scene.issuing(**changed), code)
    session = scene.second.session(READER)
    (group,) = session.ask(messages.References, redeeming(scene.token)).references
    grant = msgspec.structs.replace(scene.grant, issuer=READER)
    denied(session, messages.IssueToken(group.ref, encode_grant(grant)))
    task = issuer.run(groups=(scene.own,))
    denied(task, messages.IssueToken(task.groups[0], encode_grant(scene.grant)))
    denied(task, redeeming(scene.token))


def test_a_node_without_a_cluster_has_no_tokens(scene: Scene) -> None:
    """Nothing seals there."""
    session = Node().session()
    home = session.welcome.home
    assert home is not None
    assert "no cluster" in denied(session, messages.IssueToken(home.ref, b""), Code.EINVAL)
    assert "no cluster" in denied(session, redeeming(scene.token), Code.EINVAL)


def test_redeeming_and_refusing_are_recorded(scene: Scene) -> None:
    """The audit log has the holder and the mark of the token, and neither a name nor a seal."""
    border = scene.first.session(OWNER)
    details = []
    for token, outcome in ((scene.token, "verified"), (attenuate(scene.token, OnlyHolder(b"")), "denied")):
        border.call(redeeming(token, FOREIGN, "uid:7"))
        records = [effect for effect in scene.first.outcome.after if isinstance(effect, effects.Audit)]
        details += [
            record.detail for record in records if (record.action, record.outcome) == ("redeem", outcome)
        ]
    assert len(details) == 2
    assert all("uid:7 of cluster 0707070707070707" in detail for detail in details)
    secrets = (scene.grant.group, scene.token.seal, scene.record.name or b"")
    assert not any(secret.hex() in detail for detail in details for secret in secrets)


def test_a_token_outlives_the_secret_that_sealed_it(scene: Scene) -> None:
    """Those of before a change stay valid, and so do their records; new ones have the new seal."""
    operator = scene.cluster.session(scene.first)
    operator.ask(messages.Nodes, messages.SetNode("n1", NodeWish.ROTATE))
    scene.cluster.settle()
    later = scene.issuer.ask(messages.Created, scene.issuing())
    assert later.name != scene.record.name
    for token in (scene.token, seal_grant(later.name or b"", scene.grant)):
        for node in (scene.first, scene.second):
            assert scene.read(node.session(READER), redeeming(token)).permissions == Permission.READ
    scene.issuer.ask(messages.Done, messages.Delete(scene.record.reference.ref, int(Flag.DESTROY)))
    scene.cluster.settle()
    assert "withdrawn" in denied(scene.second.session(READER), redeeming(scene.token))
