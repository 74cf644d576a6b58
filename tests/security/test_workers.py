"""A worker computes for its users. Who takes it over admits, removes, schedules and administers nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from dios.errors import Code, NotPermittedError, ProtocolError
from dios.transport.identity import certificates, joining, statements, tokens
from dios.transport.identity.identity import Identity, admit_here, known_of
from dios.transport.tcp.tls import dial
from dios.wire import messages
from dios.wire.node_roles import NodeRole
from dios.wire.types import Brand, Flag, NameKind, NodeWish
from tests.support.core.cluster import Cluster
from tests.support.core.harness import OWNER
from tests.support.peers.connections import listening, make_cluster, renewed


async def joined(first: Identity, folder: Path, name: str) -> Identity:
    """A worker that joined by an invitation."""
    async with listening(first) as (listener, nursery):

        async def admit_one() -> None:
            await joining.admit(first, await listener.accept())

        nursery.start_soon(admit_one)
        return await joining.join(
            listener.address, tokens.issue(first, role=NodeRole.WORKER), name=name, directory=folder / name
        )


async def test_an_invitation_makes_a_worker(tmp_path: Path) -> None:
    """It is trusted as a node, stays a worker when its certificate is renewed, and all see what it is."""
    n1, n2 = make_cluster(tmp_path, in_a_row=True)
    worker = await joined(n1, tmp_path, "w1")
    assert worker.card.node_role is NodeRole.WORKER
    assert not any(card.node_role is NodeRole.WORKER for card in (*n1.cards, *n2.cards))
    n2.trust.note(known_of(worker.cards))
    assert certificates.card_of(renewed(n2, worker)[0]).node_role is NodeRole.WORKER
    async with listening(n2) as (listener, nursery):
        dialled = await dial(listener.address, worker, nursery)
        accepted = await listener.accept()
        assert accepted.peer.roles == str(NodeRole.WORKER)
        for connection in (dialled, accepted):
            connection.close()


async def test_a_worker_admits_nobody(tmp_path: Path) -> None:
    """It makes no invitation, and what it signs without asking is refused by each reader of a chain."""
    (n1,) = make_cluster(tmp_path, "n1")
    worker = await joined(n1, tmp_path, "w1")
    with pytest.raises(NotPermittedError, match="worker"):
        tokens.issue(worker)
    with pytest.raises(NotPermittedError, match="worker"):
        admit_here(worker, tmp_path / "n9", name="n9")
    # As a program that was changed would: it signs with its own key, below a certificate that may sign.
    key = Ed25519PrivateKey.generate()
    below = certificates.make_node(99, "n9", key.public_key(), n1.chain[0], worker.key())
    chain = (below, *n1.chain)
    with pytest.raises(ProtocolError):
        certificates.check_signatures(chain)
    renamed = _signed_by(worker, key)
    with pytest.raises(ProtocolError, match="may not sign"):
        certificates.check_signatures(renamed)
    with pytest.raises(ProtocolError, match="roles"):
        certificates.cards_of(renamed)


def _signed_by(worker: Identity, key: Ed25519PrivateKey) -> tuple[bytes, ...]:
    """A certificate that truly follows the worker's, which may sign none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_room", lambda _: 1)
        forged = certificates.make_node(99, "n9", key.public_key(), worker.chain[0], worker.key())
    return (forged, *worker.chain)


async def test_a_worker_removes_nobody(tmp_path: Path) -> None:
    """It makes no statement, and no node believes one that it signed nevertheless."""
    n1, n2 = make_cluster(tmp_path)
    worker = await joined(n1, tmp_path, "w1")
    with pytest.raises(NotPermittedError, match="worker"):
        await worker.trust.remove(n2.node)
    data = statements.make(
        worker.chain, worker.key(), 1, {int(n2.node): 0}, {int(worker.node): worker.card.key}
    ).data
    with pytest.raises(ProtocolError, match="removes no nodes"):
        await n1.trust.accept(data)
    assert not n1.trust.revoked
    await n1.trust.remove(worker.node)
    assert n1.trust.refusal(worker.cards)


CALLS: dict[str, messages.AnyCall] = {
    "drain": messages.SetNode("n1", NodeWish.DRAIN),
    "label": messages.LabelNode("n1", (("gpu", "yes"),)),
    "queue": messages.ReadQueue("n1", attend=True),
    "placement": messages.Place("n1", (messages.Placement(1, "n2"),)),
    "quotas": messages.SetAdmission("n1", ()),
    "advice": messages.Advise("n1", 1, b""),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("is_worker", [False, True])
def test_a_worker_administers_nobody(call: messages.AnyCall, *, is_worker: bool) -> None:
    """In the name of the nodes' own user it gets nothing from another node that only this user may have."""
    cluster = Cluster(("r1", "r1"), roles={2: NodeRole.WORKER} if is_worker else {})
    caller = cluster.nodes[1].session(OWNER)
    answer = cluster.wait(caller, caller.send(call))
    is_refused = isinstance(answer, messages.Failure) and answer.code == Code.EPERM
    assert is_refused is is_worker, answer


def test_a_worker_leaves_no_sandbox_elsewhere() -> None:
    """Also where limbo tasks of other nodes are let in, those of workers are not; pure ones run."""
    cluster = Cluster(("r1", "r1"), roles={2: NodeRole.WORKER})
    cluster.nodes[0].let_limbo_in()
    caller = cluster.nodes[1].session(OWNER)
    program = caller.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    run = messages.Run(program, host="n1", flags=int(Flag.NON_BLOCKING))
    assert caller.ask(messages.Failure, replace(run, brand=Brand.LIMBO)).code == Code.EPERM
    caller.ask(messages.Created, run)
