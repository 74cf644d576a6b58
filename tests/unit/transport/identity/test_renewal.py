"""The renewal of certificates: in time, by nodes that sign, by none, and too late."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
import trio
from cryptography import x509

from dios import limits
from dios.errors import DiosError, InvalidError, NotPermittedError, TimeLimitError, UnreachableError
from dios.ids import NodeId, Principal
from dios.node import cluster_port
from dios.node.certificate_keeper import Address, CertificateKeeper, own_certificate, state_of
from dios.transport.identity import certificates, renewal
from dios.transport.identity.certificates import card_of, end_of
from dios.transport.identity.identity import (
    Identity,
    admit_here,
    adopt,
    authorize,
    create_cluster,
    known_of,
    load,
    renew,
)
from dios.transport.tcp.tls import Listener, connect, dial
from dios.wire.node_roles import NodeRole
from tests.support.peers.connections import Refusals, listening, make_cluster

DAY_S = 86_400


def aged(signer: Identity, node: Identity, days: float, life_days: int = 10) -> Identity:
    """The node with a certificate that was signed so many days ago."""
    chain = renew(
        signer, node.chain, node.key().public_key(), days=life_days, now_s=time.time() - days * DAY_S
    )
    return adopt(node, chain)


async def serve(own: Identity, listener: Listener) -> list[str]:
    """Serve one renewal; return the reason if it was refused."""
    try:
        await renewal.serve(own, await listener.accept(), days=10)
    except DiosError as error:
        return [error.message]
    return []


async def test_a_member_gets_its_next_certificate(tmp_path: Path) -> None:
    """It has the same id, name, key and role, ends later, and is stored before it is used."""
    n1, n2 = make_cluster(tmp_path)
    n2 = aged(n1, n2, 6)
    async with listening(n1) as (listener, nursery):
        nursery.start_soon(serve, n1, listener)
        following = await renewal.ask(listener.address, n2)
    assert following.signer == "n1"
    after = adopt(n2, following.chain)
    assert after.card.is_same_node(n2.card)
    assert (after.card.until_s or 0) > (n2.card.until_s or 0)
    assert after.trust is n2.trust
    stored = load(tmp_path / "n2")
    assert stored is not None
    assert stored.chain == after.chain


async def test_connections_go_on_and_new_ones_show_the_new_certificate(tmp_path: Path) -> None:
    """A connection that is open at the time of a renewal is not dropped."""
    n1, n2 = make_cluster(tmp_path)
    async with listening(n1) as (listener, nursery), listening(n2) as (second, _):
        dialled = await dial(listener.address, n2, nursery)
        accepted = await listener.accept()
        renewed = aged(n1, n2, -1)
        second.adopt(renewed)
        accepted.send_nowait(b"\x02\0\0\0hi")
        assert await dialled.receive() == [b"hi"]
        later = await dial(second.address, n1, nursery)
        assert later.peer.chain[0].until_s == renewed.card.until_s
        for connection in (dialled, accepted, later, await second.accept()):
            connection.close()


async def test_a_certificate_that_is_over_opens_its_renewal_alone(tmp_path: Path) -> None:
    """Other nodes refuse it with both times in the reason; an authority renews it all the same."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    n3.trust.note(known_of(n2.cards))
    n2 = aged(n1, n2, 400)
    refusals = Refusals()
    async with listening(n3, refusals) as (listener, nursery):
        with pytest.raises(NotPermittedError, match=r"certificate of n2 ended at .* the clock here says"):
            await dial(listener.address, n2, nursery)
        assert "n2 renews it by itself" in (await refusals.wait())[0]
        # It is refused also as the one that listens, and a member signs nothing.
        with pytest.raises(NotPermittedError, match="n3 has the role member and signs no certificates"):
            await renewal.ask(listener.address, n2)
    async with listening(n2) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="certificate of n2 ended"):
            await dial(listener.address, n3, nursery)
    async with listening(n1) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="certificate of n2 ended"):
            await dial(listener.address, n2, nursery)
        nursery.start_soon(serve, n1, listener)
        n2 = adopt(n2, (await renewal.ask(listener.address, n2)).chain)
        (await dial(listener.address, n2, nursery)).close()
        (await listener.accept()).close()


async def test_who_was_removed_is_not_renewed(tmp_path: Path) -> None:
    """An authority that knows of the removal refuses the renewal, also of a certificate that is over."""
    n1, n2 = make_cluster(tmp_path)
    await n1.trust.remove(n2.node)
    async with listening(n1) as (listener, _):
        with pytest.raises(NotPermittedError, match="n2 was revoked"):
            await renewal.ask(listener.address, n2)


async def test_a_role_does_not_grow_by_renewal(tmp_path: Path) -> None:
    """A worker stays a worker, and nobody gets a certificate for another key than its own."""
    (n1,) = make_cluster(tmp_path, "n1")
    worker = admit_here(n1, tmp_path / "w", name="w", role=NodeRole.WORKER)
    async with listening(n1) as (listener, nursery):
        nursery.start_soon(serve, n1, listener)
        chain = (await renewal.ask(listener.address, worker)).chain
    assert card_of(chain[0]).node_role is NodeRole.WORKER
    with pytest.raises(DiosError, match="another key"):
        renew(n1, worker.chain, n1.key().public_key())


async def test_a_wrong_clock_is_said(tmp_path: Path) -> None:
    """An authority whose clock is far behind signs certificates that are over here: both clocks are named."""
    n1, n2 = make_cluster(tmp_path)
    before = n2.chain
    async with listening(n1) as (listener, nursery):

        async def serve_late() -> None:
            await renewal.serve(n1, await listener.accept(), days=1, now_s=1_000_000_000)

        nursery.start_soon(serve_late)
        with pytest.raises(NotPermittedError, match="its clock says 2001-09-09 01:46 UTC, and this node's"):
            await renewal.ask(listener.address, n2)
    stored = load(tmp_path / "n2")
    assert stored is not None
    assert stored.chain == before


def test_ends_are_judged_with_a_tolerance(tmp_path: Path) -> None:
    """Clocks may differ by minutes in both directions; a certificate of an authority has no end."""
    n1, n2 = make_cluster(tmp_path)
    until_s = n2.card.until_s
    assert until_s is not None
    assert not end_of(n2.cards, until_s + limits.CERTIFICATE_SKEW_S)
    assert not end_of(n2.cards, n2.card.since_s - 10 * DAY_S)
    assert end_of(n2.cards, until_s + limits.CERTIFICATE_SKEW_S + 1)
    assert n1.card.until_s is None
    assert not end_of(n1.cards, 2**40)


def test_without_days_a_certificate_has_no_end(tmp_path: Path) -> None:
    """An operator may choose that members' certificates stay valid."""
    (n1,) = make_cluster(tmp_path, "n1")
    assert admit_here(n1, tmp_path / "n2", name="n2", days=0).card.until_s is None


async def test_a_node_has_one_renewal_at_a_time(tmp_path: Path) -> None:
    """Silent connections of a member are bounded: a second one is closed, and others are served."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    denied: list[str] = []
    served: set[NodeId] = set()

    def note(principal: Principal, why: str) -> None:
        denied.append(f"{principal}: {why}")

    async with listening(n1) as (listener, nursery):

        async def accept() -> None:
            with contextlib.suppress(trio.EndOfChannel):
                while True:
                    nursery.start_soon(cluster_port.certify, n1, await listener.accept(), note, 10, served)

        nursery.start_soon(accept)
        _, silent = await connect(listener.address, n2.renewal_context, n2.cluster, lambda _: None)
        while n2.node not in served:
            await trio.lowlevel.checkpoint()
        with pytest.raises(UnreachableError, match="without an answer"):
            await renewal.ask(listener.address, n2)
        assert (await renewal.ask(listener.address, n3)).signer == "n1"
        silent.close()
        while served:
            await trio.lowlevel.checkpoint()
        assert (await renewal.ask(listener.address, n2)).signer == "n1"
    assert denied == ["node:n2: the peer did not send one request"]


# -- the keeper -------------------------------------------------------------------------------------
async def test_the_keeper_renews_at_half_of_the_life(tmp_path: Path) -> None:
    """It asks the authority first, gives everybody the new identity, and notes the signer."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    keeper = CertificateKeeper(aged(n1, n2, 6))
    adopted: list[Identity] = []
    renewed = trio.Event()

    def adopt_it(own: Identity) -> None:
        adopted.append(own)
        renewed.set()

    keeper.watch(adopt_it)
    async with listening(n1) as (listener, nursery), listening(n3) as (other, _):
        nursery.start_soon(serve, n1, listener)
        known = [Address(n3.node, other.address), Address(n1.node, listener.address)]
        nursery.start_soon(keeper.keep, lambda: known)
        await renewed.wait()
    assert adopted == [keeper.own]
    assert "signed again by n1" in state_of(keeper.own).text
    assert not state_of(keeper.own).advice


async def test_that_no_authority_answers_is_a_state(tmp_path: Path) -> None:
    """The reason is shown until an authority is back, and then it is gone: nothing else is stored."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    keeper = CertificateKeeper(aged(n1, n2, 6))
    async with listening(n3) as (other, _), listening(n1) as (gone, _):
        nobody = gone.address
        gone.close()
        assert not await keeper.renew([Address(n3.node, other.address), Address(n1.node, nobody)])
    state = state_of(keeper.own)
    assert "not renewed since" in state.text
    assert "n3 has the role member and signs no certificates" in state.text
    assert "nobody answers" in state.text
    assert "authority" in state.advice
    assert own_certificate(tmp_path / "n2") == state_of(keeper.own)
    async with listening(n1) as (listener, nursery):
        nursery.start_soon(serve, n1, listener)
        assert await keeper.renew([Address(n1.node, listener.address)])
    assert "not renewed" not in state_of(keeper.own).text
    assert not state_of(keeper.own).advice


async def test_an_authority_that_was_down_finds_its_members_again(tmp_path: Path) -> None:
    """All members' certificates end while it is away; they renew at it, and then reach each other again."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    members = [aged(n1, node, 100) for node in (n2, n3)]
    async with listening(members[0]) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="ended"):
            await dial(listener.address, members[1], nursery)
    keepers = [CertificateKeeper(node) for node in members]
    async with listening(n1) as (listener, nursery):
        for keeper in keepers:
            nursery.start_soon(serve, n1, listener)
            assert await keeper.renew([Address(n1.node, listener.address)])
    async with listening(keepers[0].own) as (listener, nursery):
        dialled = await dial(listener.address, keepers[1].own, nursery)
        (await listener.accept()).close()
        dialled.close()


async def test_another_authority_renews_when_the_first_is_lost(tmp_path: Path) -> None:
    """Its certificate comes below the second authority then, so that the first may be removed."""
    n1, n2 = make_cluster(tmp_path, role=NodeRole.AUTHORITY)
    n3 = admit_here(n1, tmp_path / "n3", name="n3")
    n2.trust.note(known_of(n3.cards))
    await n2.trust.remove(n1.node)
    async with listening(n2) as (listener, nursery):
        nursery.start_soon(serve, n2, listener)
        keeper = CertificateKeeper(aged(n1, n3, 6))
        assert await keeper.renew([Address(n2.node, listener.address)])
    assert [card_of(certificate).name for certificate in keeper.own.chain] == ["n3", "n2", "n1", "dios"]


# -- clusters of before -----------------------------------------------------------------------------
@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Identity]:
    """A cluster of release 0.2: three nodes in a row, whose certificates have no role and no end."""
    subject = certificates._subject
    monkeypatch.setattr(certificates, "_subject", lambda name, number, _="": subject(name, number))
    nodes = make_cluster(tmp_path, "n1 n2 n3", in_a_row=True)
    monkeypatch.undo()
    assert not any(units_of(node.chain[0]) for node in nodes)
    return nodes


def units_of(certificate: bytes) -> list[object]:
    """The units in the subject of a certificate."""
    read = x509.load_der_x509_certificate(certificate)
    units = read.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATIONAL_UNIT_NAME)
    return [unit.value for unit in units]


async def test_a_cluster_of_before_goes_on(old: list[Identity], tmp_path: Path) -> None:
    """Its nodes admit and sign as before, have no end, and what joins from now on has a role and an end."""
    assert {node.card.node_role for node in old} == {NodeRole.AUTHORITY}
    assert {node.card.until_s for node in old} == {None}
    assert {state_of(node).text for node in old} == {"without an end"}
    n4 = admit_here(old[1], tmp_path / "n4", name="n4")
    assert n4.card.node_role is NodeRole.MEMBER
    for node in old:
        async with listening(node) as (listener, nursery):
            (await dial(listener.address, n4, nursery)).close()
            (await listener.accept()).close()
    async with listening(old[2]) as (listener, nursery):
        nursery.start_soon(serve, old[2], listener)
        late = aged(old[1], n4, 400)
        renewed = adopt(late, (await renewal.ask(listener.address, late)).chain)
    assert [card_of(certificate).name for certificate in renewed.chain] == ["n4", "n3", "n2", "n1", "dios"]


async def test_a_keeper_leaves_a_certificate_without_an_end(old: list[Identity]) -> None:
    """Nobody takes the right to sign from a node of a cluster of before by renewing it."""
    with trio.fail_after(20):
        await CertificateKeeper(old[1]).keep(list)


# -- the way back -----------------------------------------------------------------------------------
async def test_the_key_of_the_cluster_makes_an_authority(tmp_path: Path) -> None:
    """With the key that was kept offline a member signs, and is the same node as before."""
    key = tmp_path / "offline.key"
    n1 = create_cluster(tmp_path / "n1", name="n1", root_key_file=key)
    n2, n3 = (admit_here(n1, tmp_path / name, name=name) for name in ("n2", "n3"))
    n2.trust.note(known_of(n3.cards))
    await n3.trust.remove(n1.node)
    after = authorize(tmp_path / "n2", key)
    assert (after.node, after.name, after.card.key) == (n2.node, n2.name, n2.card.key)
    assert len(after.chain) == 2
    assert not n3.trust.refusal(after.cards)
    async with listening(after) as (listener, nursery):
        nursery.start_soon(serve, after, listener)
        late = aged(n1, n3, 400)
        renewed = adopt(late, (await renewal.ask(listener.address, late)).chain)
    assert [card_of(certificate).name for certificate in renewed.chain] == ["n3", "n2", "dios"]
    assert admit_here(after, tmp_path / "n4", name="n4").name == "n4"


def test_another_clusters_key_makes_no_authority(tmp_path: Path) -> None:
    """The key must be that of the root of the node's cluster, and readable by its owner alone."""
    key = tmp_path / "offline.key"
    create_cluster(tmp_path / "a", name="n1", root_key_file=key)
    n1 = create_cluster(tmp_path / "b", name="n1")
    n2 = admit_here(n1, tmp_path / "n2", name="n2")
    with pytest.raises(NotPermittedError, match="another cluster"):
        authorize(tmp_path / "n2", key)
    key.chmod(0o644)
    with pytest.raises(NotPermittedError):
        authorize(tmp_path / "n2", key)
    with pytest.raises(InvalidError, match="in no cluster"):
        authorize(tmp_path / "nothing", key)
    stored = load(tmp_path / "n2")
    assert stored is not None
    assert stored.chain == n2.chain


async def test_a_silent_authority_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has a time limit, after which another node may be asked."""
    monkeypatch.setattr(limits, "RENEWAL_MS_MAX", 50)
    n1, n2 = make_cluster(tmp_path)
    async with listening(n1) as (listener, _):
        with pytest.raises(TimeLimitError):
            await renewal.ask(listener.address, n2)
