"""The copies of a user's records, and of the objects that they name, on all nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic

from dios.errors import Busy, Conflict, DiosError
from dios.lib.closing import close_all_async
from dios.lib.user_records.kind import RecordKind, S
from dios.wire.types import ObjectType, Persistence, Semantics

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode, AsyncReference


class RecordCopies(Generic[S]):
    """The copies that can be reached, as references of one session."""

    def __init__(self, node: AsyncNode, kind: RecordKind[S]) -> None:
        self._node: Final = node
        self._kind: Final = kind
        self._copies: list[AsyncReference] = []
        self._read_version = -1
        self._known: S = kind.decode(b"")

    @property
    def nodes(self) -> set[str]:
        """The names of the nodes that have a copy."""
        return {reference.node for reference in self._copies}

    async def find(self) -> None:
        """Look the copies up again."""
        await self.close()
        references = await self._node.lookup(self._kind.special_name)
        self._copies = [candidate for candidate in references if candidate.type is ObjectType.DURABLE_BLOB]
        await close_all_async(reference for reference in references if reference not in self._copies)
        self._read_version = -1

    async def read_own(self, here: str) -> S:
        """Return the records of this node's copy, which is read again only if it has changed."""
        own = next((reference for reference in self._copies if reference.node == here), None)
        if own is None:
            return self._known
        version = (await own.stat()).v_w
        if version != self._read_version:
            self._known, self._read_version = self._kind.decode(await own.read_bytes()), version
        return self._known

    async def repair(self, nodes: Collection[str]) -> S:
        """Make all copies equal, add one on each of these nodes that has none, and return the records."""
        read: list[tuple[AsyncReference, S, int]] = []
        for reference in self._copies:
            with suppress(DiosError):
                async with reference.read(Semantics.MRSW) as request:
                    read.append((reference, self._kind.decode(bytes(request.view)), request.v_w))
        whole = self._kind.merge(copy for _, copy, _ in read)
        data = self._kind.encode(whole)
        for reference, copy, version in read:
            if self._kind.encode(copy) != data:
                with suppress(Busy, Conflict):
                    await _replace(reference, data, version)
        self._read_version = -1
        for name in nodes:
            if name not in self.nodes and read:
                with suppress(DiosError):
                    added = await read[0][0].copy(persistence=Persistence.DURABLE, host=name)
                    self._copies.append(added)
        return whole

    async def store(self, change: S) -> None:
        """Merge changed records into all copies, unless a copy has later ones."""
        for reference in self._copies:
            with suppress(DiosError):
                async with reference.read(Semantics.MRSW) as request:
                    copy, version = self._kind.decode(bytes(request.view)), request.v_w
                await _replace(reference, self._kind.encode(self._kind.merge((copy, change))), version)

    async def spread(self, names: Iterable[bytes], nodes: Collection[str]) -> None:
        """Copy objects to those of the nodes that have none, each from its latest copy."""
        for name in names:
            references = sorted(
                await self._node.lookup(name), key=lambda replica: (-replica.v_w, replica.object_id)
            )
            there = {replica.node for replica in references}
            for target in nodes:
                if references and target not in there:
                    with suppress(DiosError):
                        copied = await references[0].copy(persistence=Persistence.DURABLE, host=target)
                        await close_all_async([copied])
            await close_all_async(references)

    async def drop(self, names: Iterable[bytes]) -> None:
        """Destroy all copies of objects that can be reached."""
        for name in names:
            references = await self._node.lookup(name)
            for reference in references:
                with suppress(DiosError):
                    await reference.destroy()
            await close_all_async(references)

    async def close(self) -> None:
        """Close the references."""
        copies, self._copies = self._copies, []
        await close_all_async(copies)


async def _replace(reference: AsyncReference, data: bytes, version: int) -> None:
    async with reference.write(len(data), Semantics.EXCL, blank=True, replace=True) as request:
        if request.v_w != version:
            raise Conflict("another program changed the records")
        request.fill(memoryview(data))
