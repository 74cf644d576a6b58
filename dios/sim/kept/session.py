"""The calls that a keeper makes on a node, on the model: each takes a while, and fails with its nodes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import trio

from dios.client.ops.cluster import Gathered, Member
from dios.errors import Busy, ClosedError, ExistsError, NoSpaceError, StaleError, UnreachableError
from dios.sim.kept.nodes import ModelCluster, StoredReplica
from dios.sim.node.checker import BrokenPromiseError
from dios.wire.types import Flag, ObjectType, Persistence, Semantics

_DELAY_S: Final = 0.02
_TRANSFER_S: Final = 1.0
_NO_ANSWER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """A group of the user."""

    name: bytes


class ModelSession:
    """A session with a node. It is closed when the node ends; ``drops`` counts what its keeper dropped."""

    def __init__(self, cluster: ModelCluster, number: int) -> None:
        self.cluster: Final = cluster
        self.number: Final = number
        self.closed = False
        self.drops = 0

    async def travel(self, node: int) -> None:
        """Take the time of a message to or from a node."""
        if self.closed:
            raise ClosedError("the node has ended")
        await trio.sleep(self.cluster.random.uniform(0, _DELAY_S))
        if self.closed:
            raise ClosedError("the node has ended")
        if not self.cluster.reach(self.number, node):
            await trio.sleep(_NO_ANSWER_S)
            raise UnreachableError(f"n{node} does not answer")

    async def nodes(self) -> list[Member]:
        """Return the nodes as the session's node knows them."""
        await self.travel(self.number)
        return self.cluster.members(self.number)

    async def group(self, name: bytes) -> ModelGroup:
        """Return a group by its name."""
        await self.travel(self.number)
        return ModelGroup(name)

    async def lookup(
        self, name: bytes, *, group: ModelGroup | None = None, local_only: bool = False
    ) -> Gathered[ModelReference]:
        """Return references to the physical objects of a name, of all nodes that answer."""
        del group
        found: list[ModelReference] = []
        incomplete = False
        for member in self.cluster.members(self.number):
            if (local_only and not member.here) or not (member.here or member.usable):
                # A dead node is not asked, and a suspected one may have more.
                incomplete = incomplete or (not local_only and member.status.name == "SUSPECT")
                continue
            try:
                await self.travel(member.node)
                there = [one for one in self.cluster.nodes[member.node].replicas.values() if one.name == name]
                found += [ModelReference(self, one) for one in there]
            except UnreachableError:
                incomplete = True
        return Gathered(found, incomplete=incomplete)

    async def create(self, kind: ObjectType, *, flags: Flag) -> ModelReference:
        """Make the object in which the keeper reports."""
        del kind
        await self.travel(self.number)
        name = _RECORDS[flags]
        mine = self.cluster.nodes[self.number].replicas.values()
        if any(one.name == name and one.type is ObjectType.SHMEM_BLOB for one in mine):
            raise ExistsError("the report exists already")
        return ModelReference(self, self.cluster.store(name, self.number, b"", -1, volatile=True))


_RECORDS: Final = {Flag.KEPT: bytes(31) + b"\x05"}


class ModelReference:
    """A reference to a physical object, with its version and size as they were at the lookup."""

    def __init__(self, session: ModelSession, replica: StoredReplica) -> None:
        self.session: Final = session
        self.replica: Final = replica
        self.object_id: Final = replica.object_id
        self.node: Final = f"n{replica.node}"
        self.type: Final = replica.type
        self.v_w: Final = replica.v_w
        self.size: Final = len(replica.data)
        self.zombie: Final = False

    @property
    def _there(self) -> dict[int, StoredReplica]:
        return self.session.cluster.nodes[self.replica.node].replicas

    async def reached(self) -> StoredReplica:
        """Return the object after the way to its node. Raises StaleError if it does not exist any more."""
        await self.session.travel(self.replica.node)
        if self.object_id not in self._there:
            raise StaleError("the object was destroyed")
        return self.replica

    async def stat(self) -> ModelReference:
        """Return the present version and size."""
        return ModelReference(self.session, await self.reached())

    async def close(self) -> None:
        """Close the reference, which costs nothing."""

    async def read_bytes(self) -> bytes:
        """Return the bytes."""
        return (await self.reached()).data

    async def write_bytes(self, data: bytes) -> None:
        """Replace the bytes."""
        replica = await self.reached()
        replica.data, replica.v_w = data, replica.v_w + 1

    def read(self, semantics: Semantics, *, size: int = 0, offset: int = 0) -> ModelRequest:
        """Begin a request to read."""
        del semantics, size
        return ModelRequest(self, None, offset)

    def write(
        self, size: int, semantics: Semantics, *, blank: bool = False, replace: bool = False
    ) -> ModelRequest:
        """Begin a request that excludes all others."""
        del semantics, blank, replace
        return ModelRequest(self, size, 0)

    async def destroy(self) -> None:
        """Destroy the object. Raise BrokenPromiseError if no living disk has its bytes, or later ones."""
        gone = await self.reached()
        del self._there[self.object_id]
        if gone.write >= 0:
            cluster, history = self.session.cluster, self.session.cluster.history
            left = [one.write for one in cluster.living(gone.name)]
            if not any(history.has(write, gone.write) for write in left):
                raise BrokenPromiseError(
                    f"the keeper on n{self.session.number} dropped the last replica of write {gone.write} "
                    f"of {gone.name!r}, on {self.node}"
                )
            self.session.drops += 1
        await self.session.travel(self.replica.node)

    async def copy(self, *, persistence: Persistence, host: str) -> ModelReference:
        """Make a replica on another node, which goes on if the caller ends."""
        del persistence
        await self.reached()
        ended = trio.Event()
        made: list[StoredReplica] = []
        errors: list[UnreachableError | NoSpaceError | StaleError] = []

        async def transfer() -> None:
            try:
                made.append(await self._transferred(host))
            except (UnreachableError, NoSpaceError, StaleError) as error:
                errors.append(error)
            ended.set()

        self.session.cluster.nursery.start_soon(transfer)
        await ended.wait()
        await self.session.travel(self.replica.node)
        if errors:
            raise errors[0]
        return ModelReference(self.session, made[0])

    async def _transferred(self, host: str) -> StoredReplica:
        cluster, one = self.session.cluster, self.replica
        target = cluster.by_name(host)
        data, v_w, write = one.data, one.v_w, one.write
        await trio.sleep(cluster.random.uniform(0, _TRANSFER_S))
        if self.object_id not in self._there:
            raise StaleError("the object was destroyed")
        if not cluster.reach(one.node, target.number):
            raise UnreachableError(f"{host} does not answer")
        if target.full:
            raise NoSpaceError("the disk is full")
        return cluster.store(one.name, target.number, data, write, v_w=v_w)


class ModelRequest:
    """An I/O request: to read, or one that excludes all others if ``size`` is given."""

    def __init__(self, reference: ModelReference, size: int | None, offset: int) -> None:
        self._reference: Final = reference
        self._size: Final = size
        self._offset: Final = offset
        self._filled: bytes | None = None
        self.v_w = 0
        self.view = memoryview(b"")

    async def _begin(self) -> Self:
        replica = await self._reference.reached()
        if replica.held_by is not None:
            raise Busy("another request holds the object")
        if self._size is not None:
            replica.held_by = self
        self.v_w, self.view = replica.v_w, memoryview(replica.data)[self._offset :]
        return self

    def __await__(self) -> Generator[object, None, Self]:
        return self._begin().__await__()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._filled = None
        with trio.CancelScope(shield=True):
            await self.release()

    def fill(self, data: memoryview) -> None:
        """Set the bytes that the release commits."""
        self._filled = bytes(data)

    async def release(self) -> None:
        """End the request, with a write if it was filled."""
        if self._size is None:
            return
        replica = self._reference.replica
        if replica.held_by is not self:
            raise StaleError("the request ended with its node")
        replica.held_by = None
        await self._reference.reached()
        if self._filled is not None:
            replica.data, replica.v_w = self._filled, replica.v_w + 1
