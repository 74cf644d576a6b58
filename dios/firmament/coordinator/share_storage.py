"""Storage of shares beyond the life of a coordinator, in a durable object of each node.

Each node remembers the newest version that it received. Its own coordinator, which need not be the one that
schedules, stores that version, and sends it to the node again after a restart. So the next coordinator that
schedules finds the shares on its own node.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import trio

from dios.errors import DiosError
from dios.limits import SHARES_BYTES_MAX
from dios.wire.fields import U63

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dios.client.aio.node import AsyncNode, AsyncReference
    from dios.wire.messages import Guarantee, HeldPart, Metered, Rate

SHARES: Final = "shares"
"""The label of the durable object in which a node keeps the shares."""


class _StoredVersion(msgspec.Struct, frozen=True, array_like=True):
    version: U63
    shares: Annotated[bytes, msgspec.Meta(max_length=SHARES_BYTES_MAX)]


class ShareStorage:
    """The newest shares that this coordinator knows."""

    def __init__(self, node: AsyncNode) -> None:
        self._node = node
        self._told: dict[str, int] = {}
        """The version that each node has, as far as this coordinator knows."""
        self._storing = trio.Lock()
        self._stored = 0
        self.version = 0
        self.shares = b""

    async def begin(self) -> None:
        """Read the shares that were stored before the start, and send them to the own node."""
        kept = self._object()
        data = await kept.read_bytes() if kept is not None else b""
        if data:
            try:
                stored = msgspec.msgpack.decode(data, type=_StoredVersion)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                sys.stderr.write(f"coordinator: the stored shares cannot be read and are ignored: {error}\n")
            else:
                self.version, self.shares, self._stored = stored.version, stored.shares, stored.version
        try:
            told = await self._node.govern(shares_version=self.version, shares=self.shares)
            await self.learn(told.shares_version, told.shares)
        except DiosError as error:
            sys.stderr.write(f"coordinator: cannot send the shares to the node, or store them: {error}\n")

    async def learn(self, version: int, shares: bytes) -> bool:
        """Store shares if they are newer; return True if they are.

        The new shares apply even if storing them fails.
        """
        if version <= self.version or not shares:
            return False
        self.version, self.shares = version, shares
        await self._store()
        return True

    async def store(self, shares: bytes) -> None:
        """Store new shares; the own node has them then, and other nodes receive them with the next rates."""
        await self.learn(max(self.version + 1, time.time_ns() // 1_000_000), shares)
        await self._node.govern(shares_version=self.version, shares=self.shares)

    async def govern(
        self,
        name: str,
        host: str,
        rates: Iterable[Rate],
        guarantees: Iterable[Guarantee],
        parts: Iterable[HeldPart],
        *,
        lease_ms: int,
    ) -> Metered:
        """Send a node its rates, guarantees, parts of tasks, and new shares; return its meters.

        ``host`` is the node's name for a call, empty for the own node.
        """
        fresh = self._told.get(name) != self.version
        metered = await self._node.govern(
            host,
            rates,
            lease_ms=lease_ms,
            shares_version=self.version,
            shares=self.shares if fresh else b"",
            guarantees=guarantees,
            parts=parts,
        )
        self._told[name] = metered.shares_version
        return metered

    @property
    def informed(self) -> Iterable[str]:
        """The nodes that have reported their shares, so that none of theirs are newer."""
        return self._told.keys()

    def _object(self) -> AsyncReference | None:
        return next((reference for reference in self._node.inputs if reference.label == SHARES), None)

    async def _store(self) -> None:
        kept = self._object()
        async with self._storing:
            if kept is not None and self._stored < self.version:
                data = _StoredVersion(self.version, self.shares)
                await kept.write_bytes(msgspec.msgpack.encode(data))
                self._stored = data.version
