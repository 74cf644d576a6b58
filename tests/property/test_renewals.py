"""Renewals while authorities are down, links are cut, a node is removed and time goes on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from unittest import mock

import pytest
import trio

from dios.errors import DiosError, NotPermittedError
from dios.node.certificate_keeper import Address, CertificateKeeper
from dios.transport.identity import renewal
from dios.transport.identity.certificates import end_of
from dios.transport.identity.identity import Identity, admit_here, create_cluster, known_of
from dios.transport.tcp.tls import Listener, dial
from dios.wire.node_roles import NodeRole
from tests.support.peers.connections import listening

STEPS = 14
DAY_S = 86_400
BEGIN_S = 1_800_000_000.0


class Clock:
    """The clock of all machines; each has an offset below the tolerance, which is not modelled."""

    def __init__(self) -> None:
        self.now_s = BEGIN_S

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        return self.now_s


class Cluster:
    """Two authorities with their ports, and members with their keepers."""

    def __init__(self, folder: Path, rng: Random) -> None:
        self._rng = rng
        first = create_cluster(folder / "a1", name="a1")
        second = admit_here(first, folder / "a2", name="a2", role=NodeRole.AUTHORITY)
        self.authorities = [first, second]
        self.members = [
            CertificateKeeper(admit_here(first, folder / name, name=name)) for name in ("n1", "n2", "bad")
        ]
        self.laundered = CertificateKeeper(admit_here(second, folder / "evil", name="evil"))
        self.stranger = admit_here(first, folder / "stranger", name="stranger", days=0)
        self.members.append(self.laundered)
        self.everybody = [*self.authorities, *(keeper.own for keeper in self.members)]
        for node, other in itertools.permutations(self.everybody, 2):
            node.trust.note(known_of(other.cards))
        self.addresses: dict[str, str] = {}
        self.down: set[str] = set()
        self.cut: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve renewals at the authorities."""
        async with AsyncExitStack() as stack:
            for own in self.authorities:
                listener, nursery = await stack.enter_async_context(listening(own))
                self.addresses[own.name] = listener.address
                nursery.start_soon(self._serve, own, listener, nursery)
            yield

    async def _serve(self, own: Identity, listener: Listener, nursery: trio.Nursery) -> None:
        while True:
            try:
                connection = await listener.accept()
            except trio.EndOfChannel:
                return
            if connection.peer.renews:
                nursery.start_soon(_answer, own, connection)
            else:
                connection.close()

    def reach(self, keeper: CertificateKeeper) -> list[Address]:
        """The authorities that answer a member now; a silent one has no address."""
        return [
            Address(own.node, self.addresses[own.name])
            for own in self.authorities
            if own.name not in self.down and (keeper.own.name, own.name) not in self.cut
        ]

    def disturb(self) -> None:
        """An authority ends or comes back, a link is cut or healed, or neither."""
        act, own = self._rng.randrange(4), self._rng.choice(self.authorities)
        pair = self._rng.choice(self.members).own.name, own.name
        if act == 0:
            self.down ^= {own.name}
        elif act == 1:
            self.cut ^= {pair}

    async def spread(self, data: bytes) -> None:
        """Give a statement to all nodes, as gossip does in the end."""
        for own in self.everybody:
            await own.trust.accept(data)


async def _answer(own: Identity, connection: object) -> None:
    try:
        await renewal.serve(own, connection, days=14)  # type: ignore[arg-type] # a connection of the listener
    except DiosError:
        return


@pytest.mark.parametrize("seed", range(5))
async def test_members_are_valid_again_when_an_authority_answers(tmp_path: Path, seed: int) -> None:
    """A due member that reaches an authority has a new certificate; at the end all but the removed one."""
    rng, clock = Random(seed), Clock()  # noqa: S311 - repeatable, no secret
    with mock.patch("time.time", clock):
        cluster = Cluster(tmp_path, rng)
        bad = cluster.members[2]
        async with cluster.serving():
            for _ in range(STEPS):
                cluster.disturb()
                clock.now_s += rng.uniform(0.2, 12) * DAY_S
                for keeper in cluster.members:
                    due_s = keeper.own.card.renewal_s
                    assert due_s is not None
                    if due_s > clock():
                        continue
                    reachable = cluster.reach(keeper)
                    assert await keeper.renew(reachable) is bool(reachable)
                    if reachable:
                        assert (keeper.own.card.renewal_s or 0) > clock()
            # One authority removes a member while the other one is cut off and still renews it.
            statement = await cluster.authorities[0].trust.remove(bad.own.node)
            cluster.down, cluster.cut = {"a1"}, set()
            assert await bad.renew(cluster.reach(bad))
            await cluster.spread(statement)
            cluster.down = set()
            clock.now_s += rng.choice((8, 400)) * DAY_S
            assert not await bad.renew(cluster.reach(bad))
            for keeper in cluster.members[:2]:
                assert await keeper.renew(cluster.reach(keeper))
                assert not end_of(keeper.own.cards)
                for authority in cluster.authorities:
                    async with trio.open_nursery() as nursery:
                        (await dial(cluster.addresses[authority.name], keeper.own, nursery)).close()
            # A node that met none of them removes the second authority: the one that it admitted falls with
            # it, wherever it was renewed, and none of those that it renewed.
            assert await cluster.laundered.renew(cluster.reach(cluster.laundered))
            await cluster.stranger.trust.remove(cluster.authorities[1].node)
            async with listening(cluster.stranger) as (listener, nursery):
                for keeper in cluster.members[:2]:
                    (await dial(listener.address, keeper.own, nursery)).close()
                with pytest.raises(NotPermittedError, match="evil was admitted by a2, which was revoked"):
                    await dial(listener.address, cluster.laundered.own, nursery)
            async with listening(cluster.members[0].own) as (listener, nursery):
                (await dial(listener.address, cluster.members[1].own, nursery)).close()
                with pytest.raises(NotPermittedError, match="revoked"):
                    await dial(listener.address, bad.own, nursery)
