"""Renewed certificates contain the admission, which is judged: no other authority launders a node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios import limits
from dios.errors import LimitError, NotPermittedError, ProtocolError
from dios.transport.identity import certificates, renewal
from dios.transport.identity.certificates import (
    admission_of,
    card_of,
    cards_of,
    check_signatures,
    life_of,
    make_node,
)
from dios.transport.identity.identity import Identity, admit_here, adopt, create_cluster, known_of, load
from dios.transport.identity.trust import Known
from dios.transport.tcp.tls import dial
from dios.wire.node_roles import NodeRole
from tests.support.peers.connections import listening, renewed
from tests.support.peers.statements import merge, revoke


class Nodes:
    """A first node r, its authorities a and b, a member that it admitted, and one that a admitted."""

    def __init__(self, folder: Path) -> None:
        self.r = create_cluster(folder / "r", name="r")
        self.a = admit_here(self.r, folder / "a", name="a", role=NodeRole.AUTHORITY)
        self.b = admit_here(self.r, folder / "b", name="b", role=NodeRole.AUTHORITY)
        self.watcher = admit_here(self.r, folder / "watcher", name="watcher")
        self.honest = admit_here(self.r, folder / "honest", name="honest")
        self.evil = admit_here(self.a, folder / "evil", name="evil")


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Six nodes; the watcher never met the last two."""
    return Nodes(tmp_path)


def renewed_at(signer: Identity, node: Identity) -> Identity:
    """The node after a renewal, which the signer grants because it met the node."""
    signer.trust.note(known_of(node.cards))
    return adopt(node, renewed(signer, node))


def names(chain: tuple[bytes, ...]) -> list[str]:
    """The names in a chain."""
    return [card_of(certificate).name for certificate in chain]


# -- removals ---------------------------------------------------------------------------------------
async def test_a_node_falls_with_the_authority_that_admitted_it(nodes: Nodes) -> None:
    """An authority that was taken over admits a node, which renews elsewhere: that node stays below it."""
    evil = renewed_at(nodes.b, nodes.evil)
    assert names(evil.chain) == ["evil", "b", "r", "dios"]
    assert [card.name for card in evil.cards] == ["evil", "a", "r", "dios"]
    async with listening(nodes.watcher) as (listener, nursery):
        (await dial(listener.address, evil, nursery)).close()
        (await listener.accept()).close()
        nodes.watcher.trust._known.pop(evil.node)
        await nodes.watcher.trust.remove(nodes.a.node)
        for chain in (evil, nodes.evil):
            with pytest.raises(NotPermittedError, match="evil was admitted by a, which was revoked"):
                await dial(listener.address, chain, nursery)
    # Neither does b renew it any more, nor does a statement of it count.
    await nodes.b.trust.accept(nodes.watcher.trust.statements[0])
    async with listening(nodes.b) as (listener, _):
        with pytest.raises(NotPermittedError, match="which was revoked"):
            await renewal.ask(listener.address, evil)
    await evil.trust.remove(nodes.b.node)
    assert not await nodes.watcher.trust.accept(evil.trust.statements[0])


def test_a_chain_of_renewals_changes_nothing(nodes: Nodes) -> None:
    """It may renew as often and wherever it likes, also at its own admitter in between."""
    evil = nodes.evil
    for signer in (nodes.b, nodes.r, nodes.a, nodes.b):
        evil = renewed_at(signer, evil)
        assert names(admission_of(evil.chain)) == ["evil", "a", "r", "dios"]
    revoke(nodes.watcher.trust, nodes.a.node)
    assert "admitted by a" in nodes.watcher.trust.refusal(evil.cards)


@pytest.mark.parametrize("renewals", [1, 2])
async def test_a_node_outlives_the_authority_that_renewed_it(nodes: Nodes, renewals: int) -> None:
    """A node that never met it removes that authority: the honest node is let in, and renews elsewhere."""
    honest = nodes.honest
    for _ in range(renewals):
        honest = renewed_at(nodes.b, honest)
    assert names(honest.chain) == ["honest", "b", "r", "dios"]
    statement = await nodes.watcher.trust.remove(nodes.b.node)
    assert nodes.watcher.trust.known
    async with listening(nodes.watcher) as (listener, nursery):
        (await dial(listener.address, honest, nursery)).close()
        (await listener.accept()).close()
    await nodes.a.trust.accept(statement)
    nodes.a.trust.note(known_of(honest.cards))
    async with listening(nodes.a) as (listener, nursery):

        async def serve() -> None:
            await renewal.serve(nodes.a, await listener.accept(), days=10)

        nursery.start_soon(serve)
        honest = adopt(honest, (await renewal.ask(listener.address, honest)).chain)
    assert names(honest.chain) == ["honest", "a", "r", "dios"]
    stored = load(honest.folder.parent)
    assert stored is not None
    assert [card.name for card in stored.cards] == ["honest", "r", "dios"]


def test_a_removal_keeps_the_known_nodes_of_a_removed_admitter(nodes: Nodes) -> None:
    """As before renewals: a member that met the node keeps it, and it may have renewed anywhere."""
    met = renewed_at(nodes.b, nodes.evil)
    nodes.honest.trust.note(known_of(met.cards))
    merge(nodes.watcher.trust, revoke(nodes.honest.trust, nodes.a.node))
    assert not nodes.watcher.trust.refusal(met.cards)


def test_the_count_stays_with_the_admitter(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of one authority that were renewed at another fill the places of the first alone."""
    evil = renewed_at(nodes.b, nodes.evil)
    assert known_of(evil.cards) == known_of(nodes.evil.cards)
    assert known_of(evil.cards).admitters == (nodes.a.node, nodes.r.node)
    monkeypatch.setattr(limits, "NODES_MAX", 100)
    for number in range(100 - limits.NODES_RESERVED):
        nodes.watcher.trust.note(
            Known(1000 + number, f"s{number}", bytes(32), known_of(evil.cards).admitters)
        )
    with pytest.raises(LimitError, match="a and the nodes below it"):
        nodes.watcher.trust.note(known_of(evil.cards))
    nodes.watcher.trust.note(known_of(renewed_at(nodes.b, nodes.honest).cards))


# -- forms ------------------------------------------------------------------------------------------
def test_the_first_signer_adds_nothing(nodes: Nodes) -> None:
    """Where the admitter renews, the certificate has the form that it had before."""
    honest = renewed_at(nodes.r, nodes.honest)
    assert not honest.card.admission
    evil = renewed_at(nodes.b, nodes.evil)
    assert names(evil.card.admission) == ["evil", "a"]
    extensions = x509.load_der_x509_certificate(evil.chain[0]).extensions
    # A release that does not know the extension reads the rest as before.
    assert [e.critical for e in extensions if isinstance(e.value, x509.UnrecognizedExtension)] == [False]


def test_the_longest_admission_fits(tmp_path: Path) -> None:
    """A node at the end of the longest chain renews at the first node of another long one, and back."""
    first = create_cluster(tmp_path / "first", name=f"{0:063}")
    ends = []
    for branch in range(2):
        node = first
        for number in range(limits.CHAIN_CERTIFICATES_MAX - 4):
            name = f"{branch * 100 + number + 1:063}"
            node = admit_here(node, tmp_path / name, name=name, role=NodeRole.AUTHORITY)
        ends.append(node)
    last = admit_here(ends[0], tmp_path / "last", name=f"{99:063}")
    after = renewed_at(ends[1], last)
    assert len(after.chain[0]) <= limits.CERTIFICATE_BYTES_MAX
    assert after.cards[1:] == last.cards[1:]
    check_signatures(after.chain)


def test_an_authority_is_not_renewed(nodes: Nodes) -> None:
    """Its certificate has no end, and one below another authority would hide who admitted it."""
    nodes.b.trust.note(known_of(nodes.a.cards))
    with pytest.raises(NotPermittedError, match="a is an authority, whose certificate has no end"):
        renewed(nodes.b, nodes.a)


def test_a_node_wants_its_admission_in_the_answer(nodes: Nodes) -> None:
    """An authority that leaves it out would take the node for itself."""
    honest = nodes.honest
    key = honest.key().public_key()
    bare = make_node(honest.node, "honest", key, nodes.b.chain[0], nodes.b.key(), life=life_of(10))
    with pytest.raises(ProtocolError, match="does not say who admitted"):
        adopt(honest, (bare, *nodes.b.chain))


# -- forgeries --------------------------------------------------------------------------------------
def forged(
    nodes: Nodes,
    admission: tuple[bytes, ...],
    *,
    number: int | None = None,
    name: str = "evil",
    role: NodeRole = NodeRole.MEMBER,
) -> tuple[bytes, ...]:
    """A chain of evil's that the authority a signs with an admission of its choice."""
    certificate = make_node(
        number or nodes.evil.node,
        name,
        nodes.evil.key().public_key(),
        nodes.a.chain[0],
        nodes.a.key(),
        role=role,
        life=life_of(10),
        admission=admission,
    )
    return (certificate, *nodes.a.chain)


FORGERIES: dict[str, Callable[[Nodes], tuple[bytes, ...]]] = {
    "of another node": lambda nodes: forged(nodes, nodes.honest.chain[:1]),
    "another key": lambda nodes: forged(
        nodes, nodes.honest.chain[:1], number=nodes.honest.node, name="honest"
    ),
    "another name": lambda nodes: forged(nodes, nodes.evil.chain[:1], name="other"),
    "another role": lambda nodes: forged(nodes, nodes.evil.chain[:1], role=NodeRole.WORKER),
    "an authority": lambda nodes: forged(nodes, nodes.evil.chain[:1], role=NodeRole.AUTHORITY),
    "the root alone": lambda nodes: forged(nodes, nodes.evil.chain[-1:]),
    "with the root": lambda nodes: forged(nodes, nodes.evil.chain),
    "signer left out": lambda nodes: forged(nodes, renewed_at(nodes.b, nodes.evil).chain[:1]),
    "an admission inside": lambda nodes: forged(nodes, renewed_at(nodes.b, nodes.evil).chain[:-1]),
    "too many": lambda nodes: forged(nodes, nodes.evil.chain[:1] * limits.CHAIN_CERTIFICATES_MAX),
    "no signature of r": lambda nodes: forged(nodes, (unsigned(nodes),)),
}


def unsigned(nodes: Nodes) -> bytes:
    """A certificate of evil's that names r as its signer and has another signature."""
    return make_node(
        nodes.evil.node,
        "evil",
        nodes.evil.key().public_key(),
        nodes.r.chain[0],
        Ed25519PrivateKey.generate(),
        life=life_of(10),
    )


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_admission_is_refused(nodes: Nodes, kind: str) -> None:
    """An authority that was taken over cannot say that somebody else admitted its node."""
    chain = FORGERIES[kind](nodes)
    with pytest.raises(ProtocolError):
        cards_of(chain)


def test_the_true_admission_of_a_node_is_read(nodes: Nodes) -> None:
    """The forgeries above are refused for what is wrong in them: the same with nothing wrong is read."""
    assert cards_of(forged(nodes, nodes.evil.chain[:1]))[1:] == nodes.evil.cards[1:]


def test_an_admission_with_changed_bytes_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the extension has, signed by an authority: ProtocolError, and never another admitter."""
    true = certificates._sequence(renewed_at(nodes.b, nodes.evil).card.admission)
    rng = Random(1)  # noqa: S311 - repeatable, nothing secret
    bad = [true[:length] for length in (0, 3, 4, 5, 700, len(true) - 1)]
    bad += [true + b"\0", true + true, b"\x30\x82\0\0", b"\x30\x82\xff\xff", b"\x30\x82\0\4\x30\x82\0\0"]
    for _ in range(300):
        bent = bytearray(true)
        bent[rng.choice((rng.randrange(12), rng.randrange(len(bent))))] ^= 1 << rng.randrange(8)
        bad.append(bytes(bent))
    for data in bad:
        monkeypatch.setattr(certificates, "_sequence", lambda _, data=data: data)
        chain = forged(nodes, nodes.evil.chain[:1])
        with contextlib.suppress(ProtocolError):
            assert cards_of(chain)[1].name == "a"
