"""The port of a border: one TLS context for all handshakes, until the trusted clusters change."""

from __future__ import annotations

import ssl
from pathlib import Path
from unittest.mock import patch

import trio

from dios.errors import DiosError
from dios.transport.identity.identity import Identity, admit_here, adopt, create_cluster, renew
from dios.transport.identity.trusted_clusters import TrustedCluster
from dios.transport.tcp import border
from dios.transport.tcp.border import BorderListener, call_border
from dios.transport.tcp.tls import bind
from tests.support.peers.connections import HERE, LIMIT_S, Refusals


class Bound:
    """A bound that notes who passed, and admits everybody or nobody."""

    def __init__(self) -> None:
        self.is_open = True
        self.names: list[str] = []

    def admits(self, address: str) -> bool:
        """Return True while it is open."""
        return self.is_open

    def passed(self, address: str) -> None:
        """Note an address."""
        self.names.append(address)


def trusted_of(identity: Identity, address: str = "") -> TrustedCluster:
    """The cluster of a node, as another one trusts it."""
    return TrustedCluster(identity.name, identity.chain[-1], address)


async def test_one_context_serves_all_until_the_trust_changes(tmp_path: Path) -> None:
    """Three handshakes make one context; a change of the clusters makes another, and counts at once."""
    home, abroad = (create_cluster(tmp_path / name, name=name) for name in ("home", "abroad"))
    bound, refusals = Bound(), Refusals()
    trusted = {abroad.cluster: trusted_of(abroad)}
    with trio.fail_after(LIMIT_S), patch.object(border, "_context", wraps=border._context) as contexts:
        async with trio.open_nursery() as nursery:
            listener = BorderListener(await bind(HERE), home, lambda: trusted, nursery, refusals, bound)
            there = trusted_of(home, listener.address)

            async def call() -> None:
                caller = await call_border(abroad, there, nursery)
                accepted = await listener.accept()
                assert accepted.peer.node == abroad.node
                caller.close()
                accepted.close()

            for _ in range(3):
                await call()
            assert [arguments.args[1] for arguments in contexts.call_args_list] == [
                ssl.PROTOCOL_TLS_CLIENT,
                ssl.PROTOCOL_TLS_SERVER,
            ]
            assert bound.names == ["127.0.0.1"] * 3
            trusted = {}
            assert await _is_refused(abroad, there, nursery)
            assert len(contexts.call_args_list) == 3
            bound.is_open = False
            assert await _is_refused(abroad, there, nursery)
            assert "too many" in refusals.reasons[-1]
            assert len(contexts.call_args_list) == 3
            listener.close()
            nursery.cancel_scope.cancel()


async def _is_refused(own: Identity, there: TrustedCluster, nursery: trio.Nursery) -> bool:
    try:
        (await call_border(own, there, nursery)).close()
    except DiosError:
        return True
    return False


async def test_a_border_judges_ends_and_shows_renewed_certificates(tmp_path: Path) -> None:
    """A member of a trusted cluster is refused after its end, and reaches a border that was renewed."""
    home, abroad = (create_cluster(tmp_path / name, name=name) for name in ("home", "abroad"))
    here = admit_here(home, tmp_path / "here", name="here")
    member = admit_here(abroad, tmp_path / "member", name="member")
    key = member.key().public_key()
    late = adopt(member, renew(abroad, member.chain, key, now_s=1_000_000_000))
    refusals = Refusals()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            trusted = {abroad.cluster: trusted_of(abroad)}
            listener = BorderListener(await bind(HERE), here, lambda: trusted, nursery, refusals, Bound())
            there = trusted_of(home, listener.address)
            assert await _is_refused(late, there, nursery)
            assert "certificate of member ended at 2001-09-23" in refusals.reasons[-1]
            renewed = adopt(here, renew(home, here.chain, here.key().public_key(), days=30))
            listener.adopt(renewed)
            caller = await call_border(adopt(late, renew(abroad, member.chain, key)), there, nursery)
            accepted = await listener.accept()
            assert accepted.peer.name == "member"
            assert caller.peer.chain[0].until_s == renewed.card.until_s
            caller.close()
            accepted.close()
            listener.close()
            nursery.cancel_scope.cancel()
