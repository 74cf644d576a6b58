"""Finds the bytes of a damaged object in one of its replicas, for the node that has the damage.

The digest of the bytes is known, so that any replica with these bytes will do, whatever its version, and no
other bytes are ever accepted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import trio
from blake3 import blake3

from dios import limits
from dios.errors import ClosedError, DiosError
from dios.lib.kept import replicas
from dios.wire.types import Semantics

if TYPE_CHECKING:
    from collections.abc import Callable

    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference

_NO_REPLICA: Final = "no other replica of it was found"


class Wanted(NamedTuple):
    """The content that is searched for: the object's name and groups, and the digest of its bytes."""

    object_id: int
    name: bytes
    groups: Sequence[bytes]
    size: int
    digest: bytes


async def fetch(node: AsyncNode, wanted: Wanted, fd: int, delay: Callable[[int], float]) -> str:
    """Write the content into the open file ``fd``; return "" if all of it is there, else the reason.

    ``node`` is a session that acts for the object's owner. ``delay`` returns the seconds to wait after a
    number of bytes. Raise ClosedError if the connection ends.
    """
    reason = _NO_REPLICA
    tried = {wanted.object_id}
    for name in wanted.groups:
        group = await node.group(name)
        if group is None:
            continue
        failure = await _fetch_from(node, wanted, group, tried, fd, delay)
        if not failure:
            return ""
        reason = failure if failure != _NO_REPLICA else reason
    return reason


async def _fetch_from(
    node: AsyncNode,
    wanted: Wanted,
    group: AsyncGroup,
    tried: set[int],
    fd: int,
    delay: Callable[[int], float],
) -> str:
    """Try the replicas that are in a group, and return as ``fetch`` does."""
    async with replicas.references_to(node, wanted.name, group) as references:
        others = [
            reference
            for reference in references
            if replicas.is_durable_blob(reference) and reference.object_id not in tried
        ]
        reason = "a node that may have a replica does not answer" if references.incomplete else _NO_REPLICA
        for replica in others:
            tried.add(replica.object_id)
            try:
                # The size may be hidden if it has a label: then the refusal to read it is the reason.
                fits = bool(replica.secrecy) or replica.size == wanted.size
                if fits and await _copy(replica, wanted, fd, delay):
                    return ""
                reason = f"the replica on {replica.node} has other bytes"
            except ClosedError:
                raise
            except DiosError as error:
                reason = f"the replica on {replica.node} cannot be read: {error.message}"
    return reason


async def _copy(reference: AsyncReference, wanted: Wanted, fd: int, delay: Callable[[int], float]) -> bool:
    """Write the bytes of a replica into the file; return True if they are those that are wanted."""
    hasher = blake3()

    def keep(data: memoryview, at: int) -> None:
        hasher.update(data)
        while data:
            done = os.pwrite(fd, data, at)
            data, at = data[done:], at + done

    for at in range(0, wanted.size, limits.KEPT_CHUNK_BYTES):
        want = min(wanted.size - at, limits.KEPT_CHUNK_BYTES)
        async with reference.read(Semantics.MRSW, size=want, offset=at) as request:
            await trio.to_thread.run_sync(keep, memoryview(request.view)[:want], at)
        await trio.sleep(delay(want))
    return hasher.digest() == wanted.digest
