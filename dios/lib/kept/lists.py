"""The list of a group's files, as a keeper reads and edits it in its session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from dios import limits
from dios.errors import Busy, Conflict, DiosError, UnreachableError
from dios.lib import catalogue
from dios.lib.catalogue import Listed
from dios.lib.kept import replicas
from dios.lib.kept.records import KeptPromise
from dios.lib.retrying import Pauses
from dios.wire.types import Semantics

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference


async def read_list(node: AsyncNode, group: AsyncGroup, promise: KeptPromise) -> Listed:
    """Return the present list. Raises UnreachableError if no node has it, and the errors of reading."""
    async with replicas.found(node, promise.target, group) as found:
        return catalogue.decode_all((await _read(_latest(found)))[0])


async def edit_list(
    node: AsyncNode, group: AsyncGroup, promise: KeptPromise, change: Callable[[Listed], Listed]
) -> None:
    """Change the list in one write, even if others edit it at the same time.

    ``change`` may be called several times. Raises UnreachableError if no node has the list, and Busy or
    Conflict after CATALOGUE_EDITS_MAX attempts.
    """
    pauses = Pauses()
    for attempt in range(limits.CATALOGUE_EDITS_MAX):
        try:
            async with replicas.found(node, promise.target, group) as found:
                await _try_edit(found, change)
        except (Busy, Conflict) as conflict:
            if attempt == limits.CATALOGUE_EDITS_MAX - 1:
                raise
            await trio.sleep(pauses.after(conflict))
        else:
            return


async def _try_edit(found: list[AsyncReference], change: Callable[[Listed], Listed]) -> None:
    """Write the latest replica, then the others that are equal to it."""
    latest = _latest(found)
    former, version = await _read(latest)
    data = catalogue.encode(*change(catalogue.decode_all(former)))
    others = [one for one in found if one.object_id != latest.object_id and one.v_w == version]
    equal = [one for one in others if await _has(one, former, version)]
    await _replace(latest, data, version)
    for one in equal:
        try:
            await _replace(one, data, version)
        except DiosError:
            continue


def _latest(found: list[AsyncReference]) -> AsyncReference:
    there = [one for one in found if replicas.is_durable_blob(one)]
    if not there:
        raise UnreachableError("the list of the group's files is on no node that answers", call="lookup")
    return max(there, key=lambda one: (one.v_w, -one.object_id))


async def _has(one: AsyncReference, data: bytes, version: int) -> bool:
    try:
        return await _read(one) == (data, version)
    except DiosError:
        return False


async def _read(one: AsyncReference) -> tuple[bytes, int]:
    async with one.read(Semantics.MRSW) as request:
        return bytes(request.view), request.v_w


async def _replace(one: AsyncReference, data: bytes, version: int) -> None:
    async with one.write(len(data), Semantics.EXCL, blank=True, replace=True) as request:
        if request.v_w != version:
            raise Conflict("another program changed the list of the group's files")
        request.fill(memoryview(data))
