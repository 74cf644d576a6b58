"""The audit heads that nodes keep of each other: genuine ones stay, and a log that goes back is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from dios import limits
from dios.core.events import PeerDown
from dios.host.audit import signing
from dios.host.audit.heads import AuditHead, read_heads
from dios.host.audit.reader import read
from dios.node import seeds
from dios.node.head_keepers import ask_known_nodes
from dios.transport.identity import identity
from dios.transport.identity.identity import Identity
from dios.wire.dcp_frames import AuditHeads
from tests.support.peers.hosts import PeerHost, connected, identities, peer_host, two_hosts, until


def identity_of(folder: Path, host: PeerHost) -> Identity:
    """The identity of a host whose data directory is below a folder."""
    own = identity.load(folder / host.name)
    assert own is not None
    return own


def signed(own: Identity, records: int, *, era: int = 0, digest: int = 0) -> AuditHead:
    """A head that a node has signed."""
    unsigned = AuditHead(own.node, era, 0, records, bytes([digest or records]) * 32, 1000, b"", b"")
    return signing.sign(unsigned, own.key())


def say(local: PeerHost, other: PeerHost, *heads: AuditHead) -> None:
    """Send heads as a node may send them, true or not."""
    session = local.links.session_of(other.node)
    assert session is not None
    session.send_message(AuditHeads(tuple(head.line for head in heads)))


def outcomes(folder: Path, host: PeerHost) -> list[tuple[str, str]]:
    """The outcomes and principals of a node's records about audit logs."""
    host.host.journal.flush()
    entries = read(folder / host.name / "audit")
    return [
        (entry.record.outcome, entry.record.principal) for entry in entries if entry.record.action == "audit"
    ]


async def test_a_head_is_kept_and_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A published head is stored by another node, which returns the newest when they connect again."""
    monkeypatch.setattr(limits, "AUDIT_HEAD_STORED_MS_MIN", 1)
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        own, path = identity_of(tmp_path, local), other.links.heads.path_of(local.node)
        for records in (1, 2):
            local.links.publish_head(signed(own, records))
            await until(lambda records=records: len(read_heads(path).heads) == records, "it is stored")  # type: ignore[misc] # bound early
        returned: list[tuple[AuditHead, str]] = []
        local.links.heads.returned = lambda head, keeper: returned.append((head, keeper))
        session = local.links.session_of(other.node)
        assert session is not None
        session.end()
        await until(lambda: returned, "it is returned")
        assert returned == [(signed(own, 2), other.name)]
        assert outcomes(tmp_path, other) == []


async def test_all_kept_heads_are_sent_to_a_node_that_asks(tmp_path: Path) -> None:
    """A node that does not serve gets the heads of its own log, and the reasons why others are unknown."""
    async with two_hosts(tmp_path) as (local, other):
        own = identity_of(tmp_path, local)
        path = other.links.heads.path_of(local.node)
        other.links.heads._merge(signed(own, 4))
        other.links.heads._merge(signed(own, 9))
        seeds.write(tmp_path / local.name, [other.address, "127.0.0.1:1"])
        known = await ask_known_nodes(tmp_path / local.name, 10_000)
        assert {kept.head.records for kept in known.published} == {4, 9}
        assert {kept.keeper for kept in known.published} == {f"kept by {other.name}"}
        assert len(known.unknown) == 1
        assert "127.0.0.1:1" in known.unknown[0]
        assert read_heads(path).newest == signed(own, 9)


@pytest.mark.parametrize(
    ("records", "era", "outcome"),
    [(4, 0, "behind"), (5, 0, "behind"), (4, 1, "lost")],
)
async def test_a_log_that_goes_back_is_recorded_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int, era: int, outcome: str
) -> None:
    """A head behind the kept one, or another one in its place, is in the other node's log once."""
    monkeypatch.setattr(limits, "AUDIT_HEAD_STORED_MS_MIN", 1)
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        own, path = identity_of(tmp_path, local), other.links.heads.path_of(local.node)
        returned: list[AuditHead] = []
        local.links.heads.returned = lambda head, _: returned.append(head)
        say(local, other, signed(own, 5))
        await until(lambda: read_heads(path).newest, "it is stored")
        for _ in range(2):
            say(local, other, signed(own, records, era=era, digest=77))
            await until(lambda: outcomes(tmp_path, other), "it is recorded")
        assert outcomes(tmp_path, other) == [(outcome, f"node:{local.name}")]
        stored = read_heads(path)
        assert signed(own, 5) in stored.heads
        if outcome == "behind":
            assert stored.newest == signed(own, 5)
            await until(lambda: returned, "the node learns of it")
            assert set(returned) == {signed(own, 5)}
        else:
            assert stored.newest == signed(own, records, era=era, digest=77)


async def test_a_head_of_another_key_is_not_kept(tmp_path: Path) -> None:
    """Neither a head that the sender did not sign nor one of the receiver that it did not sign counts."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        own, victim = identity_of(tmp_path, local), identity_of(tmp_path, other)
        returned: list[AuditHead] = []
        other.links.heads.returned = lambda head, _: returned.append(head)
        by_the_wrong_key = signing.sign(signed(own, 3), victim.key())
        in_the_name_of_the_victim = signing.sign(signed(victim, 3), own.key())
        changed = signed(own, 3)._replace(records=4)
        say(local, other, by_the_wrong_key, in_the_name_of_the_victim, changed)
        await until(lambda: outcomes(tmp_path, other), "it is recorded")
        assert outcomes(tmp_path, other) == [("forged", f"node:{local.name}")]
        assert returned == []
        assert not other.links.heads.path_of(local.node).exists()


@pytest.mark.parametrize("kind", ["third", "malformed"])
async def test_a_head_that_no_node_sends_costs_the_connection(tmp_path: Path, kind: str) -> None:
    """A head of a third node, and a line that is no head, end the connection of their sender."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        session = local.links.session_of(other.node)
        assert session is not None
        third = signed(identity_of(tmp_path, local), 3)._replace(node=5)
        session.send_message(AuditHeads((third.line if kind == "third" else "dios-audit-head-1",)))
        await until(lambda: other.core.seen(PeerDown), "the connection ended")
        assert not other.links.heads.path_of(local.node).exists()


async def test_a_flood_of_heads_is_stored_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many heads the newest is stored next, when the time for it has come; the others are dropped."""
    monkeypatch.setattr(limits, "AUDIT_HEAD_STORED_MS_MIN", 200)
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        own, path = identity_of(tmp_path, local), other.links.heads.path_of(local.node)
        for records in range(1, 200):
            say(local, other, signed(own, records))
        await until(
            lambda: (newest := read_heads(path).newest) and newest.records == 199, "the last is stored"
        )
        assert len(read_heads(path).heads) < limits.AUDIT_HEADS_KEPT_MAX


async def test_a_returned_head_is_not_lost_among_heads_of_the_sender(tmp_path: Path) -> None:
    """A node learns of its own head, and stores that of the sender, whichever came in the later message."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        own, path = identity_of(tmp_path, local), other.links.heads.path_of(local.node)
        returned: list[AuditHead] = []
        other.links.heads.returned = lambda head, _: returned.append(head)
        session = other.links.session_of(local.node)
        assert session is not None
        of_the_other, of_the_sender = signed(identity_of(tmp_path, other), 7), signed(own, 3)
        for head in (of_the_other, of_the_sender):
            other.links.heads.receive(local.node, session.line.peer, session, AuditHeads((head.line,)))
        await until(lambda: returned and read_heads(path).newest, "both arrived")
        assert returned == [of_the_other]
        assert read_heads(path).newest == of_the_sender


async def test_a_returned_head_arrives_at_a_node_that_cannot_store_others(tmp_path: Path) -> None:
    """A node learns of its own head although its folder of heads cannot be written."""
    async with two_hosts(tmp_path) as (local, other):
        await connected(local, other)
        path = other.links.heads.path_of(local.node)
        path.parent.touch()
        returned: list[AuditHead] = []
        other.links.heads.returned = lambda head, _: returned.append(head)
        of_the_other = signed(identity_of(tmp_path, other), 7)
        say(local, other, signed(identity_of(tmp_path, local), 3), of_the_other)
        await until(lambda: returned, "it arrived")
        assert returned == [of_the_other]
        assert not path.exists()


async def test_a_few_nodes_keep_the_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head is sent to AUDIT_HEAD_KEEPERS of the connected nodes, always the same ones."""
    monkeypatch.setattr(limits, "AUDIT_HEAD_KEEPERS", 2)
    monkeypatch.setattr(limits, "AUDIT_HEAD_STORED_MS_MIN", 1)
    paths = identities(tmp_path, 4)
    async with (
        peer_host(paths[0]) as local,
        peer_host(paths[1]) as n1,
        peer_host(paths[2]) as n2,
        peer_host(paths[3]) as n3,
    ):
        await connected(local, n1, n2, n3)
        own = identity_of(tmp_path, local)
        files = [host.links.heads.path_of(local.node) for host in (n1, n2, n3)]
        for records in (1, 2):
            local.links.publish_head(signed(own, records))
            await until(
                lambda records=records: sum(len(read_heads(path).heads) == records for path in files) == 2,  # type: ignore[misc] # bound early
                "two nodes have it",
            )
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert sorted(len(read_heads(path).heads) for path in files) == [0, 2, 2]
