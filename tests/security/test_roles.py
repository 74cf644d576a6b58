"""Each role of nodes against each right: who has it may, and nobody else, whatever its own program does."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios.errors import NotPermittedError, ProtocolError
from dios.transport.identity import certificates, renewal, statements, tokens
from dios.transport.identity.identity import Identity, admit_here, create_cluster, known_of
from dios.transport.tcp.tls import dial
from dios.wire.node_roles import NodeRight, NodeRole
from tests.support.peers.connections import listening, make_cluster

ROLES = list(NodeRole)


def of_role(folder: Path, role: NodeRole) -> tuple[Identity, Identity]:
    """A first node, and one that it admitted in a role."""
    (n1,) = make_cluster(folder, "n1")
    return n1, admit_here(n1, folder / "n2", name="n2", role=role)


def signed_by(node: Identity, role: NodeRole = NodeRole.MEMBER) -> tuple[bytes, ...]:
    """A chain that a changed program of this node makes: it signs with its key whatever its role says."""
    key = Ed25519PrivateKey.generate().public_key()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_room", lambda _: 1)
        forged = certificates.make_node(99, "n9", key, node.chain[0], node.key(), role=role)
    return (forged, *node.chain)


@pytest.mark.parametrize("role", ROLES)
def test_who_may_sign_admits_and_nobody_else(tmp_path: Path, role: NodeRole) -> None:
    """Invitations, admissions and certificates of others are void, with the role in the reason."""
    _, node = of_role(tmp_path, role)
    if NodeRight.SIGN in role.rights:
        assert tokens.issue(node)
        certificates.check_signatures(signed_by(node))
        assert certificates.cards_of(signed_by(node))
        return
    with pytest.raises(NotPermittedError, match=f"n2 has the role {role}"):
        tokens.issue(node)
    with pytest.raises(NotPermittedError, match=f"n2 has the role {role}"):
        admit_here(node, tmp_path / "n9", name="n9")
    with pytest.raises(ProtocolError, match="may not sign"):
        certificates.check_signatures(signed_by(node))
    with pytest.raises(ProtocolError, match="roles"):
        certificates.cards_of(signed_by(node))


@pytest.mark.parametrize("role", ROLES)
async def test_who_may_sign_renews_and_nobody_else(tmp_path: Path, role: NodeRole) -> None:
    """A node asks no other for its certificate, and one without the right answers no such request."""
    n1, node = of_role(tmp_path, role)
    third = admit_here(n1, tmp_path / "n3", name="n3")
    node.trust.note(known_of(third.cards))
    async with listening(node) as (listener, nursery):

        async def serve() -> None:
            await renewal.serve(node, await listener.accept())

        if NodeRight.SIGN in role.rights:
            nursery.start_soon(serve)
            assert (await renewal.ask(listener.address, third)).signer == "n2"
        else:
            with pytest.raises(NotPermittedError, match=f"n2 has the role {role} and signs no certificates"):
                await renewal.ask(listener.address, third)


@pytest.mark.parametrize("role", ROLES)
async def test_who_may_remove_removes_and_nobody_else(tmp_path: Path, role: NodeRole) -> None:
    """Another node believes a removal by its signer's certificate, and not by the signer's program."""
    n1, node = of_role(tmp_path, role)
    third = admit_here(n1, tmp_path / "n3", name="n3")
    data = statements.make(
        node.chain, node.key(), 1, {int(third.node): 0}, {int(node.node): node.card.key}
    ).data
    if NodeRight.REMOVE in role.rights:
        assert await n1.trust.accept(data)
        assert n1.trust.revoked == {third.node}
        return
    with pytest.raises(ProtocolError, match="removes no nodes"):
        await n1.trust.accept(data)
    with pytest.raises(NotPermittedError, match=f"n2 has the role {role}"):
        await node.trust.remove(third.node)
    assert not n1.trust.revoked


@pytest.mark.parametrize("role", ROLES)
async def test_others_see_the_role_in_the_certificate(tmp_path: Path, role: NodeRole) -> None:
    """The listening node knows by the handshake what its peer may do; nothing else tells it."""
    n1, node = of_role(tmp_path, role)
    async with listening(n1) as (listener, nursery):
        dialled = await dial(listener.address, node, nursery)
        accepted = await listener.accept()
        assert accepted.peer.roles == str(role)
        for connection in (dialled, accepted):
            connection.close()


def test_no_certificate_for_a_role_without_the_right_signs(tmp_path: Path) -> None:
    """A certificate that says member and lets it sign is no certificate of a cluster."""
    n1 = create_cluster(tmp_path / "n1", name="n1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_as_no_signer", lambda builder, _: certificates._as_signer(builder, 1))
        key = Ed25519PrivateKey.generate().public_key()
        forged = certificates.make_node(9, "n9", key, n1.chain[0], n1.key(), role=NodeRole.WORKER)
    with pytest.raises(ProtocolError, match="role worker signs others"):
        certificates.card_of(forged)
