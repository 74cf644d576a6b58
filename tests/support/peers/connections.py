"""Nodes' identities and connections for tests: real certificates, real sockets, no daemon.

Not for: whole nodes (``node_process``, ``running_node``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dios.transport.identity.identity import Identity, admit_here, create_cluster, renew
from dios.transport.tcp.secured import Secured
from dios.transport.tcp.tls import Listener, dial, listen
from dios.wire.node_roles import NodeRole

LIMIT_S = 20
HERE = "127.0.0.1:0"


def make_cluster(
    folder: Path, names: str = "n1 n2", *, in_a_row: bool = False, role: NodeRole = NodeRole.MEMBER
) -> list[Identity]:
    """Identities of one cluster, below ``folder``; the first admits the others, or each the next."""
    first, *others = names.split()
    members = [create_cluster(folder / first, name=first)]
    role = NodeRole.AUTHORITY if in_a_row else role
    for name in others:
        members.append(admit_here(members[-1 if in_a_row else 0], folder / name, name=name, role=role))
    return members


def renewed(signer: Identity, node: Identity) -> tuple[bytes, ...]:
    """The next chain of a node, as another one signs it."""
    return renew(signer, node.chain, node.key().public_key())


class Refusals:
    """What a listener refused: from where, and why."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._changed = trio.Event()

    def __call__(self, address: str, why: str) -> None:
        """Note one."""
        assert address
        self.reasons.append(why)
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, count: int = 1) -> list[str]:
        """Wait for so many."""
        while len(self.reasons) < count:
            await self._changed.wait()
        return self.reasons


@asynccontextmanager
async def listening(
    identity: Identity, refused: Callable[[str, str], None] = lambda _where, _why: None
) -> AsyncIterator[tuple[Listener, trio.Nursery]]:
    """A listener of this node on a free port, and the nursery that everything runs in."""
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            listener = await listen(HERE, identity, nursery, refused=refused)
            try:
                yield listener, nursery
            finally:
                listener.close()
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(here: Identity, there: Identity) -> AsyncIterator[tuple[Secured, Secured]]:
    """Both ends of one connection: that of the node which dialled, and that of the node which listens."""
    async with listening(there) as (listener, nursery):
        dialled = await dial(listener.address, here, nursery)
        accepted = await listener.accept()
        try:
            yield dialled, accepted
        finally:
            dialled.close()
            accepted.close()
