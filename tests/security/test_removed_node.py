"""A hostile node that was removed and has all its old files, with the help of a user of the cluster.

It has the first secret and the others of before its removal, its key, its certificate, and names of groups
that it knew. It has no connection; its accomplice has a session on each node.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios.core.model.names import (
    Secrets,
    group_name,
    home_name,
    is_signed,
    kept_name,
    logs_group,
    services_name,
)
from dios.errors import Code, NotPermittedError
from dios.ids import Name, Principal
from dios.limits import NAME_BYTES
from dios.transport.identity import generations
from dios.transport.tcp import announce
from dios.transport.tcp.announce import AnnouncedNode
from dios.transport.tcp.tls import dial
from dios.wire import messages
from dios.wire.node_roles import NodeRole
from dios.wire.sealed_tokens import (
    OnlyHolder,
    OnlyRights,
    SealedToken,
    TokenGrant,
    attenuate,
    encode_grant,
    encode_token,
    record_name,
    seal_grant,
)
from dios.wire.types import Flag, NodeWish, ObjectType, Permission
from tests.support.core.cluster import SECRET, Citizen, Cluster, ClusterNode
from tests.support.peers.connections import Refusals, listening, make_cluster

ALICE = Principal("uid:2000")
MALLORY = Principal("uid:6666")
FOREIGN = b"\x07" * 32
HOUR_NS = 3_600_000_000_000


# -- its own connections --------------------------------------------------------------------------------
async def test_it_announces_nothing(tmp_path: Path) -> None:
    """Neither itself, nor a member whose key it does not have, nor with the secrets that it has."""
    member, third, bad = make_cluster(tmp_path, "n1 n2 n3")
    await member.generations.rotate(exactly=True)
    voice = AnnouncedNode(member.cluster, bad.key(), bad.node, "10.0.0.3:7400")
    is_member = member.trust.is_member
    assert announce.decode(announce.encode(voice), member.cluster, is_member) is not None
    await member.trust.remove(bad.node)
    others = [third.node, member.node, bad.node]
    keys = [bad.key(), *map(Ed25519PrivateKey.from_private_bytes, (bad.secret, *member.generations.secrets))]
    for node in others:
        for key in keys:
            datagram = announce.encode(voice._replace(node=node, key=key))
            assert announce.decode(datagram, member.cluster, is_member) is None


async def test_it_connects_nowhere_and_gets_no_secret(tmp_path: Path) -> None:
    """Its certificate is refused, and nobody sends it the next secret."""
    member, bad = make_cluster(tmp_path)
    await member.trust.remove(bad.node)
    await member.generations.rotate(exactly=True)
    assert not member.generations.may_have(bad.node)
    refusals = Refusals()
    async with listening(member, refused=refusals) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="n2 was revoked"):
            await dial(listener.address, bad, nursery)
        assert any("n2 was revoked" in reason for reason in await refusals.wait())


async def test_its_own_generations_count_nowhere(tmp_path: Path) -> None:
    """A member that passes one on brings nobody to seal with a secret that the removed authority knows."""
    member, bad = make_cluster(tmp_path, role=NodeRole.AUTHORITY)
    await member.trust.remove(bad.node)
    await member.generations.rotate(exactly=True)
    before = member.generations.secrets
    for number in (1, 2, 3, 1_000):
        forged = generations.make(bad.chain, bad.key(), number, [*before, b"k" * 32], set())
        assert not await member.generations.accept(forged.data)
    assert member.generations.secrets == before


# -- an accomplice ------------------------------------------------------------------------------------
class Scene(NamedTuple):
    """A cluster of two nodes after two changes of its secret; ``old`` is all that the removed node has."""

    cluster: Cluster
    old: Secrets
    alice: Citizen
    token: SealedToken
    """A token of before, which the accomplice has got narrowed, and ``record`` is hers of it."""
    grant: TokenGrant
    record: int

    @property
    def nodes(self) -> list[ClusterNode]:
        """The nodes that are left."""
        return self.cluster.nodes[:2]


def issue(alice: Citizen, group: messages.Created, mark: int) -> tuple[TokenGrant, SealedToken, int]:
    """A token of hers for a group, and her reference to its record."""
    ends_ns = alice.node.now + HOUR_NS
    grant = TokenGrant(FOREIGN, group.name or b"", bytes(32), bytes([mark]) * 32, ALICE, 3, ends_ns, "papers")
    record = alice.ask(messages.Created, messages.IssueToken(group.reference.ref, encode_grant(grant)))
    return grant, seal_grant(record.name or b"", grant), record.reference.ref


@pytest.fixture
def scene() -> Iterator[Scene]:
    """The third node is removed after the first change, and does not get the second one."""
    cluster = Cluster()
    operator = cluster.session(cluster.nodes[0])
    operator.ask(messages.Nodes, messages.SetNode("n1", NodeWish.ROTATE))
    cluster.settle()
    alice = cluster.nodes[0].session(ALICE)
    grant, token, record = issue(alice, alice.create(ObjectType.GROUP, groups=()), 1)
    operator.ask(messages.Nodes, messages.SetNode("n3", NodeWish.FORGET))
    operator.ask(messages.Nodes, messages.SetNode("n1", NodeWish.ROTATE))
    cluster.settle()
    bad = cluster.nodes[2]
    old = bad.core.state.secrets
    assert len(old.later) == 1
    assert len(cluster.nodes[0].core.state.later_secrets) == 2
    yield Scene(cluster, old, alice, token, grant, record)
    cluster.check()


def forged_groups(old: Secrets, owner: Principal) -> list[bytes]:
    """Names that the removed node can make: with each of its secrets, and with all marks of them."""
    random = bytes(range(NAME_BYTES // 2))
    return [
        group_name(Secrets(old.first), random, owner),
        group_name(Secrets(old.first, old.later), random, owner),
        group_name(Secrets(old.first, (SECRET,)), random, owner),
    ]


def derived(old: Secrets) -> list[bytes]:
    """The names of her things that follow from the first secret, which never changes."""
    home = home_name(old.first, ALICE)
    return [home, logs_group(home), services_name(old.first, ALICE), kept_name(old.first, ALICE)]


def test_it_seals_nothing_with_the_present_secret(scene: Scene) -> None:
    """A seal that only the present secret makes is not among those that it can make."""
    present = scene.nodes[0].core.state.secrets
    new = scene.alice.create(ObjectType.GROUP, groups=()).name or b""
    assert is_signed(present, new, ALICE)
    assert not is_signed(scene.old, new, ALICE)
    for name in forged_groups(scene.old, ALICE):
        assert (
            name[NAME_BYTES // 2 :] != group_name(present, name[: NAME_BYTES // 2], ALICE)[NAME_BYTES // 2 :]
        )


@pytest.mark.parametrize("place", [0, 1])
def test_forged_and_known_names_open_nothing_of_hers(scene: Scene, place: int) -> None:
    """Not for a user who presents them at the connection or later, looks them up, or shares them."""
    node = scene.nodes[place]
    names = [*forged_groups(scene.old, ALICE), *derived(scene.old), scene.grant.group]
    mallory = node.session(MALLORY, tuple(names))
    assert len(mallory.groups) == 1
    answer = mallory.call(messages.Present(tuple(names)))
    assert answer == messages.References(())
    for name in names:
        assert mallory.lookup(name) == ()
        for issuer in (ALICE, MALLORY):
            accept = messages.AcceptShare(name, bytes(32), issuer, mallory.node.now + HOUR_NS)
            refused = mallory.call(accept)
            assert isinstance(refused, messages.Failure)
            assert refused.code == Code.EPERM
    scene.cluster.settle()
    for other in scene.nodes:
        members = other.core.state.members
        assert not any(mallory.task in members.get(Name(name), {}) for name in names)


def test_a_forged_group_of_the_accomplice_is_a_new_empty_one(scene: Scene) -> None:
    """The user for whom it was made presents it, and could as well have made one: nothing is gained."""
    for name in forged_groups(scene.old, MALLORY)[:2]:
        mallory = scene.nodes[1].session(MALLORY, (name,))
        assert len(mallory.groups) == 2
        inside = mallory.create(groups=(mallory.groups[1],), data=b"mine").name or b""
        for other in (ALICE, Principal("uid:7777")):
            stranger = scene.nodes[1].session(other, (name,))
            assert len(stranger.groups) == 1
            assert stranger.lookup(inside) == ()


def redeemed(scene: Scene, token: SealedToken) -> messages.AnyResult | None:
    """The answer to the accomplice who redeems a token."""
    answer = scene.nodes[1].session(MALLORY).call(messages.RedeemToken(encode_token(token)))
    assert isinstance(answer, messages.References | messages.Failure)
    return answer


def test_it_makes_no_token_and_widens_no_new_one(scene: Scene) -> None:
    """A grant that nobody recorded is refused with each secret, and so is a new token without its caveats."""
    group = scene.alice.create(ObjectType.GROUP, groups=())
    grant, new, _ = issue(scene.alice, group, 2)
    narrowed = attenuate(new, OnlyHolder(b"", str(ALICE)), OnlyRights(int(Permission.READ)))
    assert isinstance(redeemed(scene, narrowed), messages.Failure)
    for secret in (scene.old.first, *scene.old.later):
        unknown = msgspec.structs.replace(grant, nonce=b"\x09" * 32)
        for forged in (grant, unknown):
            answer = redeemed(scene, seal_grant(record_name(secret, forged), forged))
            assert isinstance(answer, messages.Failure)
            assert answer.code == Code.EPERM


def test_a_token_of_before_can_be_widened_until_it_is_withdrawn(scene: Scene) -> None:
    """The limit that the threat model states: a secret that it has sealed the token."""
    narrowed = attenuate(scene.token, OnlyHolder(b"", str(ALICE)))
    assert isinstance(redeemed(scene, narrowed), messages.Failure)
    widened = seal_grant(record_name(scene.old.later[-1], scene.grant), scene.grant)
    assert widened == scene.token
    assert isinstance(redeemed(scene, widened), messages.References)
    scene.alice.ask(messages.Done, messages.Delete(scene.record, int(Flag.DESTROY)))
    scene.cluster.settle()
    assert isinstance(redeemed(scene, widened), messages.Failure)
