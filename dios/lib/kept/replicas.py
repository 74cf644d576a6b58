"""The replicas of one object, as references of a keeper's session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio
from blake3 import blake3

from dios import limits
from dios.errors import Conflict, DiosError
from dios.lib.closing import close_all_async
from dios.lib.kept.versions import CREATED, VersionState
from dios.wire.types import ObjectType, Persistence, Semantics

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference
    from dios.client.ops.cluster import Gathered


@asynccontextmanager
async def references_to(
    node: AsyncNode, name: bytes, group: AsyncGroup
) -> AsyncIterator[Gathered[AsyncReference]]:
    """Yield references to the physical objects of a name, and close them."""
    references = await node.lookup(name, group=group)
    try:
        yield references
    finally:
        with trio.CancelScope(shield=True):
            await close_all_async(references)


def is_durable_blob(reference: AsyncReference) -> bool:
    """Return True for a replica that a promise counts."""
    return reference.type is ObjectType.DURABLE_BLOB and not reference.zombie


async def hash_of(reference: AsyncReference, pace: Callable[[int], Awaitable[None]]) -> blake3:
    """Return the hash of a replica's bytes; ``pace`` is called before each chunk is read.

    Raises Conflict if it is written meanwhile, and the errors of reading.
    """
    v_w, size = reference.v_w, reference.size
    hasher, at = blake3(), 0
    while True:
        want = min(size - at, limits.KEPT_CHUNK_BYTES)
        await pace(want)
        async with reference.read(Semantics.MRSW, size=want, offset=at) as request:
            if request.v_w != v_w:
                raise Conflict("the object is written while its bytes are compared")
            hasher.update(request.view[:want])
        at += want
        if at >= size:
            return hasher


class Digests:
    """The states of replicas by object id. Bytes are read only for versions that do not say enough."""

    def __init__(self) -> None:
        self._known: Final[dict[int, VersionState]] = {}
        self.bytes_read = 0

    async def state(self, reference: AsyncReference, *, written: bool) -> VersionState:
        """Return the state of a replica; ``written`` objects are compared by their bytes from version 1 on.

        A file of more than INLINE_BYTES_MAX bytes is created empty, and filled by a write before it is
        listed. So version 1 of it is what was put. Replicas of an object that programs edit may each have a
        version 1 of their own.

        Raises Conflict if it is written meanwhile.
        """
        v_w, size = reference.v_w, reference.size
        if v_w == 0:
            return CREATED
        if v_w == 1 and size > limits.INLINE_BYTES_MAX and not written:
            return VersionState(1, b"")
        known = self._known.get(reference.object_id)
        if known is not None and known.v_w == v_w:
            return known

        async def count(size: int) -> None:
            self.bytes_read += size

        hasher = await hash_of(reference, count)
        return self.note(reference.object_id, VersionState(v_w, hasher.digest(limits.KEPT_DIGEST_BYTES)))

    def note(self, object_id: int, state: VersionState) -> VersionState:
        """Remember the state of a replica, as that of a copy that has just been made."""
        if len(self._known) >= limits.KEPT_DIGESTS_MAX:
            self._known.clear()
        self._known[object_id] = state
        return state


async def copy_to(
    node: AsyncNode, name: bytes, group: AsyncGroup, source: AsyncReference, host: str
) -> AsyncReference | None:
    """Make a durable replica on another node; None if the object was destroyed in the meantime."""
    replica = await source.copy(persistence=Persistence.DURABLE, host=host)
    try:
        async with references_to(node, name, group) as now:
            others = [
                reference
                for reference in now
                if is_durable_blob(reference) and reference.object_id != replica.object_id
            ]
            is_gone = not now.incomplete and not others
    except DiosError:
        is_gone = False  # the source's node may have died just now, and then the copy is what remains
    if not is_gone:
        return replica
    # The object was destroyed while its bytes were on their way: the replica must not bring it back.
    with trio.CancelScope(shield=True), suppress(DiosError):
        await replica.destroy()
    return None


async def drop(reference: AsyncReference, v_w: int) -> bool:
    """Destroy a replica if it still has this version. Nobody can write to it between the look and the end."""
    try:
        request = await reference.write(1, Semantics.EXCL, blank=True)
    except DiosError:
        return False  # it is in use: another time
    gone = False
    try:
        if request.v_w == v_w:
            with suppress(DiosError):
                await reference.destroy()
                gone = True
    finally:
        with trio.CancelScope(shield=True), suppress(DiosError):
            await request.release()
    return gone
