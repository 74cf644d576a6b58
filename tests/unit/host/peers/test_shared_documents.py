"""The documents that all nodes share, over real connections: handed out, held back, stored again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios import limits
from dios.core import effects as fx
from dios.core.events import NodesRemoved, RegisterStored, SecretsStored
from dios.host.peers import shared_documents
from dios.host.peers.link import PeerSession
from dios.ids import TaskId
from dios.transport.identity import durable_files, identity
from dios.transport.identity.generations import GenerationStore
from dios.wire.codec import GENERATIONS_VERSION
from dios.wire.dcp_frames import LaterSecrets
from dios.wire.mandates import make_register
from dios.wire.node_roles import NodeRole
from tests.support.peers import hosts
from tests.support.peers.hosts import PeerHost, connected, peer_host, until

CALL = TaskId(1), 1, 1
ADMINISTRATOR = Ed25519PrivateKey.from_private_bytes(b"a" * 32)


def identities(folder: Path, count: int) -> list[Path]:
    """Data directories of nodes that are all authorities."""
    return hosts.identities(folder, count, NodeRole.AUTHORITY)


def store_of(host: PeerHost) -> GenerationStore:
    """What a node has stored."""
    return host.port.certificate.own.generations


def told(host: PeerHost) -> list[SecretsStored]:
    """What its core was told of secrets."""
    return host.core.seen(SecretsStored)


def secrets_of(host: PeerHost) -> tuple[bytes, ...]:
    """The later secrets that its core uses."""
    events = [event for event in told(host) if not event.failure]
    return events[-1].secrets if events else ()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that cannot be written now."""
    full: list[str] = []
    write = durable_files.write

    def write_unless_full(path: Path, data: bytes) -> None:
        if path.name in full:
            raise OSError(errno.ENOSPC, "no room")
        write(path, data)

    monkeypatch.setattr(durable_files, "write", write_unless_full)
    monkeypatch.setattr(limits, "STORE_AGAIN_MS", 20)
    monkeypatch.setattr(limits, "GENERATION_DUTY_MS", 20)
    return full


async def test_a_new_secret_reaches_all_nodes(tmp_path: Path) -> None:
    """The core of the node that makes it is told with the call, the others without."""
    paths = identities(tmp_path, 3)
    async with peer_host(paths[0]) as local, peer_host(paths[1]) as other, peer_host(paths[2]) as third:
        await connected(local, other, third)
        local.do(fx.RotateSecret(CALL))
        for host in (local, other, third):
            await until(lambda host=host: secrets_of(host), "it has it")  # type: ignore[misc] # bound early
        assert secrets_of(local) == secrets_of(other) == secrets_of(third)
        assert [event.call for event in told(local)] == [CALL]
        assert told(other)[0].call is None
        assert len({told(host)[-1].mark for host in (local, other, third)}) == 1


async def test_a_node_that_was_away_gets_it_when_it_comes_back(tmp_path: Path) -> None:
    """From whichever node it meets, also if that is not the one that made it."""
    paths = identities(tmp_path, 3)
    async with peer_host(paths[1]) as other:
        async with peer_host(paths[0]) as local:
            await connected(local, other)
            local.do(fx.RotateSecret(CALL))
            await until(lambda: secrets_of(other), "the other has it")
        async with peer_host(paths[2]) as third:
            await connected(third, other)
            await until(lambda: secrets_of(third), "the third has it")
            assert secrets_of(third) == secrets_of(other)


async def test_a_removal_changes_the_secret_and_the_removed_node_never_gets_it(tmp_path: Path) -> None:
    """Neither from the node that removed it nor from others, whom it asks for connections."""
    paths = identities(tmp_path, 3)
    async with peer_host(paths[0]) as local, peer_host(paths[1]) as other, peer_host(paths[2]) as bad:
        await connected(local, other, bad)
        local.do(fx.RemoveNode(bad.node, False, CALL))
        await until(lambda: secrets_of(other), "the other has the next one")
        assert secrets_of(local) == secrets_of(other)
        assert told(other)[-1].withheld == (bad.node,)
        await until(lambda: local.core.seen(NodesRemoved), "the removal was reported")
        bad.links.contact(other.node, other.name, other.address)
        await until(lambda: not bad.links.is_up(other.node), "it is let go")
        reported = len(local.core.seen(NodesRemoved))
        local.do(fx.RemoveNode(bad.node, False, CALL))
        await until(lambda: len(local.core.seen(NodesRemoved)) > reported, "it was removed again")
        await until(lambda: secrets_of(local) == secrets_of(other), "they agree")
        assert len(secrets_of(local)) == 1, "a removal that is repeated changes nothing"
    assert secrets_of(bad) == ()
    assert identity.load(paths[2]).generations.secrets == ()  # type: ignore[union-attr] # it has an identity


async def test_a_generation_that_was_not_made_before_a_crash_is_made_by_any_node(
    tmp_path: Path, disk: list[str]
) -> None:
    """The node that removes another one dies between the two; the removal alone has reached a third."""
    paths = identities(tmp_path, 3)
    bad = identity.load(paths[2])
    assert bad is not None
    async with peer_host(paths[1]) as other:
        async with peer_host(paths[0]) as local:
            await connected(local, other)
            disk.append("generations")
            local.do(fx.RemoveNode(bad.node, False, CALL))
            await until(lambda: other.core.seen(NodesRemoved), "the removal is known")
            assert secrets_of(local) == ()
        disk.clear()
        await until(lambda: secrets_of(other), "the other makes it")
        assert told(other)[-1].withheld == (bad.node,)
    async with peer_host(paths[0]) as again, peer_host(paths[1]) as other:
        await connected(again, other)
        await until(lambda: secrets_of(again), "the first one gets it")
        assert not store_of(again).is_due
        assert store_of(again).document == store_of(other).document


async def test_a_generation_is_stored_again_and_not_used_before(tmp_path: Path, disk: list[str]) -> None:
    """Of a node with a full disk, and of the node that makes it, whose operator is told why."""
    paths = identities(tmp_path, 2)
    async with peer_host(paths[0]) as local:
        disk.append("generations")
        local.do(fx.RotateSecret(CALL))
        await until(lambda: told(local), "it failed")
        (failed,) = told(local)
        assert failed.call == CALL
        assert failed.failure == (
            "cannot change the cluster's secret: it cannot be stored (no room). Free some space, then try "
            "again."
        )
        disk.clear()
        local.do(fx.RotateSecret(CALL))
        await until(lambda: secrets_of(local), "it has it")
        disk.append("generations")
        async with peer_host(paths[1]) as other:
            await connected(local, other)
            session = other.links.session_of(local.node)
            assert session is not None
            await until(lambda: session.received_bytes, "the node has heard")
            assert store_of(other).secrets == secrets_of(other) == ()
            disk.clear()
            await until(lambda: secrets_of(other), "it is stored when there is room")
            assert secrets_of(other) == store_of(other).secrets == secrets_of(local)


@pytest.mark.parametrize("role", [NodeRole.WORKER, NodeRole.MEMBER])
async def test_a_node_without_authority_makes_none_and_passes_those_of_others_on(
    tmp_path: Path, role: NodeRole, disk: list[str]
) -> None:
    """An authority has signed them, whoever sends them; also the duty after a removal is an authority's."""
    assert not disk
    paths = identities(tmp_path, 2)
    first = identity.load(paths[0])
    assert first is not None
    identity.admit_here(first, tmp_path / "w", name="w", role=role)
    async with peer_host(tmp_path / "w") as relay:
        async with peer_host(paths[0]) as local:
            await connected(local, relay)
            relay.do(fx.RotateSecret(CALL))
            await until(lambda: told(relay), "it was refused")
            assert "w is no authority and does not change the cluster's secret" in told(relay)[0].failure
            local.do(fx.RotateSecret(CALL))
            await until(lambda: secrets_of(relay), "it gets that of an authority")
        async with peer_host(paths[1]) as other:
            await connected(relay, other)
            await until(lambda: secrets_of(other), "it passes it on")
            assert secrets_of(other) == secrets_of(relay)


async def test_a_removal_by_a_member_makes_an_authority_change_the_secret(
    tmp_path: Path, disk: list[str]
) -> None:
    """It removes the node at once, and gets the next secret from an authority that the statement reaches."""
    assert not disk
    paths = hosts.identities(tmp_path, 3)
    bad = identity.load(paths[2])
    assert bad is not None
    async with peer_host(paths[0]) as authority, peer_host(paths[1]) as member:
        await connected(authority, member)
        member.do(fx.RemoveNode(bad.node, False, CALL))
        await until(lambda: secrets_of(member), "it has the next one")
        assert secrets_of(member) == secrets_of(authority)
        assert told(member)[-1].withheld == (bad.node,)


async def test_authorities_take_turns_with_a_generation_that_is_due(tmp_path: Path, disk: list[str]) -> None:
    """Those with lower ids come first, so that the others find it made."""
    assert not disk
    paths = identities(tmp_path, 4)
    async with (
        peer_host(paths[0]) as first,
        peer_host(paths[1]) as second,
        peer_host(paths[2]) as third,
        peer_host(paths[3]) as fourth,
    ):
        authorities = first, second, third, fourth
        await connected(*authorities)
        turns = sorted(host.links._documents._turn_s() for host in authorities)
    # Without others a turn is 10 to 20 ms here.
    assert [10 * (place + 1) <= 1000 * turn <= 20 * (place + 1) for place, turn in enumerate(turns)] == [
        True
    ] * 4


async def test_no_secret_is_made_while_a_node_could_not_check_its_seals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of an earlier release is named; it is not sent what it cannot read."""
    paths = identities(tmp_path, 2)
    sent: list[object] = []
    send = PeerSession.send_message

    def note(session: PeerSession, message: object, *more: object) -> None:
        sent.append(message)
        send(session, message, *more)  # type: ignore[arg-type] # as it was given

    async with peer_host(paths[0]) as local, peer_host(paths[1]) as other:
        await connected(local, other)
        session = local.links.session_of(other.node)
        assert session is not None
        monkeypatch.setattr(shared_documents, "GENERATIONS_VERSION", GENERATIONS_VERSION + 1)
        monkeypatch.setattr(PeerSession, "send_message", note)
        local.do(fx.RotateSecret(CALL))
        await until(lambda: told(local), "it was refused")
        assert "n1 cannot check later secrets. Update" in told(local)[0].failure
        await store_of(local).rotate(exactly=True)
        local.links._documents.send_to(other.node, session)
        assert not any(isinstance(message, LaterSecrets) for message in sent)


# -- the register -------------------------------------------------------------------------------------
async def test_a_register_that_cannot_be_stored_counts_and_is_stored_later(
    tmp_path: Path, disk: list[str]
) -> None:
    """It may remove a key. The administrator is told, and all nodes act on it at once."""
    paths = identities(tmp_path, 2)
    async with peer_host(paths[0]) as local, peer_host(paths[1]) as other:
        await connected(local, other)
        cluster = local.port.certificate.own.cluster
        register = make_register(ADMINISTRATOR, cluster, 1, {"uid:1": (b"k" * 32,)})
        disk.append("principals")
        local.do(fx.StoreRegister(register.data, CALL))
        for host in (local, other):
            await until(lambda host=host: host.core.seen(RegisterStored), "it counts")  # type: ignore[misc] # bound early
        (mine,), (its,) = (host.core.seen(RegisterStored) for host in (local, other))
        assert (mine.register, mine.call) == (its.register, CALL) == (register.data, CALL)
        assert "the register counts, but this node cannot store it (no room)" in mine.failure
        assert not its.failure
        assert not any((path / "identity" / "principals").exists() for path in paths)
        disk.clear()
        for path in paths:
            stored = path / "identity" / "principals"
            await until(stored.exists, "it is stored when there is room")
            assert stored.read_bytes() == register.data
        assert local.links.is_up(other.node)


async def test_a_register_of_another_signer_is_denied(tmp_path: Path, disk: list[str]) -> None:
    """The connection of the node that passed it on stays: it serves all users."""
    paths = identities(tmp_path, 2)
    assert not disk
    async with peer_host(paths[0]) as local, peer_host(paths[1]) as other:
        await connected(local, other)
        cluster = local.port.certificate.own.cluster
        for number, key in enumerate((ADMINISTRATOR, Ed25519PrivateKey.from_private_bytes(b"b" * 32)), 1):
            local.do(fx.StoreRegister(make_register(key, cluster, number, {}).data, CALL))
            await until(
                lambda number=number: len(local.core.seen(RegisterStored)) == number,  # type: ignore[misc] # bound early
                "it was answered",
            )
        refused = local.core.seen(RegisterStored)[-1]
        assert not refused.register
        assert "not by this cluster's administrator" in refused.failure
        assert local.links.is_up(other.node)


async def test_one_member_keeps_no_node_busy_with_secrets(
    tmp_path: Path, disk: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above its rate the newest one of a signer waits, and those of others count."""
    monkeypatch.setattr(limits, "STATEMENTS_BURST", 2)
    paths = identities(tmp_path, 2)
    assert not disk
    async with peer_host(paths[0]) as local, peer_host(paths[1]) as other:
        await connected(local, other)
        for _ in range(4):
            local.do(fx.RotateSecret(CALL))
        await until(lambda: len(secrets_of(local)) == 4, "they are made")
        await until(lambda: secrets_of(other) == secrets_of(local), "the last one arrives")
        assert len(told(other)) <= 3
