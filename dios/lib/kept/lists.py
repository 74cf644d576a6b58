"""The list of a group's files, as a keeper reads and edits it in its session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from dios import limits
from dios.errors import Busy, Conflict
from dios.lib import catalogue
from dios.lib.catalogue import Listed
from dios.lib.kept.records import KeptPromise
from dios.lib.replicated_record import protocol
from dios.lib.replicated_record.asynchronous import AsyncReplicas
from dios.lib.retrying import Pauses

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode


async def read_list(node: AsyncNode, group: AsyncGroup, promise: KeptPromise) -> Listed:
    """Return the present list. Raises UnreachableError if too few nodes have it, and DamagedError."""
    async with AsyncReplicas(node, promise.target, group) as record:
        reading = await record.run(protocol.read_record())
    return catalogue.decode_all(reading.value.content or b"")


async def edit_list(
    node: AsyncNode, group: AsyncGroup, promise: KeptPromise, change: Callable[[Listed], Listed]
) -> None:
    """Change the list in one write, even if others edit it at the same time.

    ``change`` may be called several times. Raises UnreachableError if too few nodes have the list, and Busy
    or Conflict after CATALOGUE_EDIT_S.
    """
    pauses = Pauses(limits.CATALOGUE_EDIT_S, most_us=limits.CATALOGUE_PAUSE_US_MAX)
    while True:
        try:
            async with AsyncReplicas(node, promise.target, group) as record:
                reading = await record.run(protocol.read_record())
                listed = catalogue.decode_all(reading.value.content or b"")
                data = catalogue.encode(*change(listed))
                await record.run(protocol.replace(reading.value, data))
        except (Busy, Conflict) as conflict:
            if pauses.is_over:
                raise
            await trio.sleep(pauses.after(conflict))
        else:
            return
