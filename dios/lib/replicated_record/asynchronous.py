"""The steps of the protocol as calls of an asynchronous session, for keepers and borders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

import trio

from dios import limits
from dios.errors import Busy, DamagedError, DiosError, UnreachableError
from dios.lib.closing import close_all_async
from dios.lib.replicated_record.frame import HEADER_BYTES_MAX, has_header
from dios.lib.replicated_record.steps import (
    CommitReplicas,
    Committed,
    Held,
    HoldReplicas,
    Look,
    ReadReplicas,
    ReleaseReplicas,
    Results,
    Sighting,
    Step,
    Steps,
    Wait,
    not_found,
    replicas_by_id,
    sighting,
)
from dios.lib.retrying import Pauses
from dios.wire.types import Semantics

if TYPE_CHECKING:
    from dios.client.aio.handles import AsyncWriteRequest
    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference

T = TypeVar("T")


class AsyncReplicas:
    """The replicas of the record of a name, as references of a session. ``async with`` closes them.

    ``known`` are the names of all nodes that are certain to live or to be removed; None stands for all nodes.
    """

    def __init__(
        self, node: AsyncNode, name: bytes, group: AsyncGroup, known: Collection[str] | None = ()
    ) -> None:
        self._node: Final = node
        self._known: Final = None if known is None else frozenset(known)
        self.name: Final = name
        self._group: Final = group
        self._held: Final[dict[int, AsyncWriteRequest]] = {}
        self.references: dict[int, AsyncReference] = {}
        """The replicas that were found last, by object id, the nearest first."""
        self.complete = False
        """True if every node of the cluster answered then."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            await close_all_async(self.references.values())
        self.references = {}

    async def look(self) -> Sighting:
        """Look the replicas up, and return them."""
        return await self._look(fresh=True)

    async def is_plain(self, object_id: int) -> bool:
        """Return True if a replica has content without a history, also if that cannot be found out now."""
        reference = self.references.get(object_id)
        try:
            return reference is None or not has_header(await reference.read_bytes(HEADER_BYTES_MAX))
        except DamagedError:
            return False
        except DiosError:
            return True

    async def destroy(self, object_id: int) -> None:
        """Destroy a replica that is no member any more; a node that does not answer keeps it."""
        reference = self.references.pop(object_id, None)
        if reference is not None:
            with suppress(DiosError):
                await reference.destroy()

    async def run(self, steps: Steps[T]) -> T:
        """Carry out the steps, and return their result."""
        pauses = Pauses(most_us=limits.CATALOGUE_PAUSE_US_MAX)
        result: object = None
        try:
            while True:
                result = await self._carry_out(steps.send(result), pauses)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()
            with trio.CancelScope(shield=True):
                await self._release(tuple(self._held))

    async def _carry_out(self, step: Step, pauses: Pauses) -> object:
        match step:
            case Look(fresh):
                return await self._look(fresh=fresh)
            case ReadReplicas(sizes):
                reads = {
                    object_id: self._reading(object_id, size)
                    for object_id, size in sizes.items()
                    if object_id in self.references
                }
                return not_found(sizes, self.references) | await _together(reads)
            case HoldReplicas(object_ids, size, blank):
                there = [object_id for object_id in object_ids if object_id in self.references]
                held = await _together(
                    {object_id: self._holding(object_id, size, blank=blank) for object_id in there}
                )
                return not_found(object_ids, self.references) | held
            case CommitReplicas(data, hold):
                return await self._commit(data, hold=hold)
            case ReleaseReplicas(object_ids):
                await self._release(object_ids)
            case Wait(conflict):
                await trio.sleep(pauses.after(conflict))
        return None

    async def _look(self, *, fresh: bool) -> Sighting:
        if fresh or not self.references:
            former = self.references
            references = await self._node.lookup(self.name, group=self._group)
            self.references = replicas_by_id(references)
            self.complete = not references.incomplete
            kept = {reference.ref for reference in references}
            await close_all_async(reference for reference in former.values() if reference.ref not in kept)
            await close_all_async(
                reference for reference in references if reference.object_id not in self.references
            )
        return sighting(self.references.values(), self._known, complete=self.complete and fresh)

    def _reading(self, object_id: int, size: int) -> Callable[[], Awaitable[bytes]]:
        async def read() -> bytes:
            return await self.references[object_id].read_bytes(size)

        return read

    def _holding(self, object_id: int, size: int, *, blank: bool) -> Callable[[], Awaitable[Held]]:
        async def hold() -> Held:
            reference = self.references[object_id]
            try:
                request = await reference.write(size, Semantics.MRSW, blank=blank, replace=True)
            except UnreachableError:
                await self._give_up(object_id)
                raise
            self._held[object_id] = request
            return Held(request.v_w, b"" if blank else bytes(request.view))

        return hold

    async def _commit(self, data: Mapping[int, bytes], *, hold: bool) -> Results[Committed]:
        def committing(object_id: int) -> Callable[[], Awaitable[Committed]]:
            request = self._held.pop(object_id)

            async def commit() -> Committed:
                request.fill(memoryview(data[object_id]))
                try:
                    if hold:
                        return await commit_and_hold()
                    await request.finish(len(data[object_id]))
                except UnreachableError:
                    await self._give_up(object_id)
                    raise
                return Committed(request.v_w, is_held=False)

            async def commit_and_hold() -> Committed:
                self._held[object_id] = request
                try:
                    await request.reacquire()
                except Busy:
                    # It was committed, and is not admitted again.
                    await self._release([object_id])
                    return Committed(request.v_w, is_held=False)
                except DiosError:
                    await self._release([object_id])
                    raise
                return Committed(request.v_w, is_held=True)

            return commit

        return await _together({object_id: committing(object_id) for object_id in data})

    async def _release(self, object_ids: Sequence[int]) -> None:
        for object_id in object_ids:
            try:
                await self._held.pop(object_id).release()
            except UnreachableError:
                await self._give_up(object_id)
            except DiosError:
                continue  # it has ended with its node

    async def _give_up(self, object_id: int) -> None:
        """Close the reference to a replica whose node did not answer, which may hold it for this client.

        The nodes see to it that the request ends with the reference, also after a partition. The next look
        finds the replica again.
        """
        reference = self.references.pop(object_id, None)
        if reference is not None:
            await close_all_async([reference])


async def _together(calls: Mapping[int, Callable[[], Awaitable[T]]]) -> Results[T]:
    """Make calls at the same time; return the result, or the error, of each."""
    results: Results[T] = {}

    async def make(object_id: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[object_id] = await call()
        except DiosError as error:
            results[object_id] = error

    async with trio.open_nursery() as nursery:
        for object_id, call in calls.items():
            nursery.start_soon(make, object_id, call)
    return results
