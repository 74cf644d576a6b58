"""The copies of a user's records, and of the programs and inputs that they name, on all nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from dios.errors import Busy, Conflict, DiosError
from dios.lib.supervised import records
from dios.lib.supervised.records import SERVICES_NAME, ServiceRecord
from dios.wire.types import ObjectType, Persistence, Semantics

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode, AsyncReference


class ServiceCopies:
    """The copies that can be reached, as references of one session."""

    def __init__(self, node: AsyncNode) -> None:
        self._node: Final = node
        self._copies: list[AsyncReference] = []
        self._read_version = -1
        self._known: dict[str, ServiceRecord] = {}

    @property
    def nodes(self) -> set[str]:
        """The names of the nodes that have a copy."""
        return {one.node for one in self._copies}

    async def find(self) -> None:
        """Look the copies up again."""
        await self.close()
        found = await self._node.lookup(SERVICES_NAME)
        self._copies = [one for one in found if one.type is ObjectType.DURABLE_BLOB]
        for one in found:
            if one.type is not ObjectType.DURABLE_BLOB:
                await _closed(one)
        self._read_version = -1

    async def read_own(self, here: str) -> dict[str, ServiceRecord]:
        """Return the records of this node's copy, which is read again only if it has changed."""
        own = next((one for one in self._copies if one.node == here), None)
        if own is None:
            return self._known
        version = (await own.stat()).v_w
        if version != self._read_version:
            self._known, self._read_version = records.decode(await own.read_bytes()), version
        return self._known

    async def repair(self, nodes: Collection[str]) -> dict[str, ServiceRecord]:
        """Make all copies equal, add one on each of these nodes that has none, and return the records."""
        read: list[tuple[AsyncReference, dict[str, ServiceRecord], int]] = []
        for one in self._copies:
            with suppress(DiosError):
                async with one.read(Semantics.MRSW) as request:
                    read.append((one, records.decode(bytes(request.view)), request.v_w))
        whole = records.merged(copy for _, copy, _ in read)
        data = records.encode(whole.values())
        for one, copy, version in read:
            if records.encode(copy.values()) != data:
                with suppress(Busy, Conflict):
                    await _replace(one, data, version)
        self._read_version = -1
        for name in nodes:
            if name not in self.nodes and read:
                with suppress(DiosError):
                    added = await read[0][0].copy(persistence=Persistence.DURABLE, host=name)
                    self._copies.append(added)
        return whole

    async def store(self, record: ServiceRecord) -> None:
        """Write the record of one service into all copies, unless they have a later one."""
        for one in self._copies:
            with suppress(DiosError):
                async with one.read(Semantics.MRSW) as request:
                    copy, version = records.decode(bytes(request.view)), request.v_w
                merged = records.merged((copy, {record.name: record}))
                await _replace(one, records.encode(merged.values()), version)

    async def spread(self, names: Iterable[bytes], nodes: Collection[str]) -> None:
        """Copy objects to those of the nodes that have none."""
        for name in names:
            found = await self._node.lookup(name)
            there = {one.node for one in found}
            for target in nodes:
                if found and target not in there:
                    with suppress(DiosError):
                        await _closed(await found[0].copy(persistence=Persistence.DURABLE, host=target))
            for one in found:
                await _closed(one)

    async def drop(self, names: Iterable[bytes]) -> None:
        """Destroy all copies of objects that can be reached."""
        for name in names:
            for one in await self._node.lookup(name):
                with suppress(DiosError):
                    await one.destroy()
                await _closed(one)

    async def close(self) -> None:
        """Close the references."""
        copies, self._copies = self._copies, []
        for one in copies:
            await _closed(one)


async def _replace(one: AsyncReference, data: bytes, version: int) -> None:
    async with one.write(len(data), Semantics.EXCL, blank=True, replace=True) as request:
        if request.v_w != version:
            raise Conflict("another program changed the records of the services")
        request.fill(memoryview(data))


async def _closed(one: AsyncReference) -> None:
    with suppress(DiosError):
        await one.close()
