"""The calls of clients on the model: the answers of a node to the messages of one session.

Both clients of the library run on it (``labs.sim.kept.links``), so its programs and keepers are the real
ones. A call takes a while, and fails with its nodes, sometimes after it had its effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar, cast

import trio

from dios.client.session import Operation
from dios.core.model import io_requests
from dios.errors import (
    BadReferenceError,
    Busy,
    ClosedError,
    Conflict,
    DamagedError,
    DiosError,
    ExistsError,
    InvalidError,
    NoSpaceError,
    StaleError,
    UnreachableError,
)
from dios.lib.kept.records import KEPT_NAME
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult, PlainResult
from dios.wire.nametext import fingerprint
from dios.wire.types import (
    Brand,
    Buffering,
    Deletion,
    Flag,
    Mode,
    NodeStatus,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
    Semantics,
)
from labs.sim.kept.nodes import ModelBuffer, ModelCluster, ModelNode, StoredReplica
from labs.sim.node.checker import BrokenPromiseError

if TYPE_CHECKING:
    from dios.core.model.records import Buffer, PhysicalObject

T = TypeVar("T")

_TRANSFER_S: Final = 0.3
_NO_ANSWER_S: Final = 1.0
_LONG_S: Final = 6.0
_CHANGING: Final = (
    messages.Create,
    messages.CommitWrite,
    messages.CommitAcquireWrite,
    messages.WriteOnce,
    messages.Copy,
)


class Killed(BaseException):
    """The end of a program, at any point."""


class ModelSession:
    """A session with a node, which is closed when the node ends.

    ``kill_at`` is the number of the change at which the session's program is killed: before the change, while
    it is made, or before its answer. ``drops`` counts what a keeper dropped.
    """

    def __init__(
        self,
        cluster: ModelCluster,
        number: int,
        group: bytes,
        *,
        keeps: bool = False,
        kill_at: int | None = None,
    ) -> None:
        self.cluster: Final = cluster
        self.number: Final = number
        self.group: Final = group
        self.keeps: Final = keeps
        self.kill_at: Final = kill_at
        self.serial: Final = next(cluster.serials)
        self.killed = False
        self.closed = False
        self.in_doubt = False
        """True after a call whose outcome or whose whole answer its caller does not know."""
        self.drops = 0
        self.changes = 0
        self.written = -1
        """The last write of this session."""
        self._numbers: Final = count(1)
        self._references: Final[dict[int, tuple[StoredReplica, int]]] = {}
        self._buffers: Final[dict[int, ModelBuffer]] = {}
        self._group = self._own_reference(ObjectType.GROUP, fingerprint(group))
        cluster.nodes[number].sessions[self] = None

    # -- the connection -----------------------------------------------------------------------------
    def welcome(self) -> messages.Welcome:
        """Return the first reply on the connection."""
        own = self._own_reference(ObjectType.TASK, "session")
        console = self._own_reference(ObjectType.CONSOLE_STREAM, "console")
        groups = () if self.keeps else (self._group,)
        return messages.Welcome(1, bytes(32), Brand.LEGACY, own, console, groups, (), (), (), None, "", None)

    def close(self) -> None:
        """End the session. Other nodes release its requests when they hear of it."""
        self.closed = True
        self.cluster.nodes[self.number].sessions.pop(self, None)

    def kill(self) -> Killed:
        """End the session with its program."""
        self.killed = True
        self.close()
        return Killed()

    def give_back(self, result: AnyResult) -> None:
        """Release the requests that a call has begun for a caller that was cancelled."""
        for part in result.results if isinstance(result, messages.Results) else (result,):
            if isinstance(part, messages.Buffer) and part.buffer in self._buffers:
                self._end(self._buffers[part.buffer])

    async def run(
        self, operation: Operation[T], make: Callable[[AnyCall], Awaitable[AnyResult]] | None = None
    ) -> T:
        """Run an operation of a client, which makes its calls with ``make``."""
        answer: tuple[AnyResult, tuple[int, ...]] | None = None
        error: DiosError | None = None
        while True:
            try:
                if error is not None:
                    call = operation.throw(error)
                else:
                    call = next(operation) if answer is None else operation.send(answer)
            except StopIteration as done:
                return cast("T", done.value)
            error = None
            try:
                answer = await (make or self.call)(call), ()
            except DiosError as failure:
                error = failure

    async def call(self, call: AnyCall) -> AnyResult:
        """Return the answer to a call. Raises its refusal, and Killed."""
        if isinstance(call, messages.Vector):
            return messages.Results(tuple([await self._part(part_call) for part_call in call.calls]))
        self._require_open()
        is_change = isinstance(call, _CHANGING) or (
            isinstance(call, messages.Delete) and bool(call.flags & Flag.DESTROY)
        )
        self.changes += is_change
        if is_change and self.changes == self.kill_at:
            moment = self.cluster.random.randrange(3)
            if moment == 1:
                self.cluster.nursery.start_soon(self._unheard, call)
            elif moment == 2:
                with suppress(DiosError):
                    await self._answer(call)
            raise self.kill()
        try:
            result = await self._answer(call)
        except UnreachableError:
            self.in_doubt = True
            raise
        self.in_doubt = self.in_doubt or self.closed
        self._require_open()
        return result

    def _require_open(self) -> None:
        if self.killed:
            raise Killed
        if self.closed:
            raise ClosedError("the node has ended")

    async def _unheard(self, call: AnyCall) -> None:
        with suppress(DiosError):
            await self._answer(call)

    async def _part(self, call: messages.PlainCall) -> PlainResult:
        if isinstance(call, messages.Lookup):
            call = messages.Lookup(call.name, call.group, call.limit, call.flags | _IN_VECTOR)
        try:
            return cast("PlainResult", await self.call(call))
        except DiosError as error:
            return messages.Failure(int(error.code), error.message)

    async def _answer(self, call: AnyCall) -> AnyResult:
        answer = _ANSWERS.get(type(call))
        if answer is None:
            raise InvalidError(f"the model has no {type(call).__name__}")
        return await answer(self, call)

    # -- messages -----------------------------------------------------------------------------------
    async def _travel(self, node: int) -> ModelNode:
        """Take the time of a message to a node, and of its disk if that is stalled."""
        cluster = self.cluster
        if node == self.number:
            await trio.lowlevel.checkpoint()
        else:
            await trio.sleep(cluster.random.uniform(0, cluster.delay_s))
        if cluster.long_delays and node != self.number and cluster.random.random() < cluster.long_delays:
            await trio.sleep(cluster.random.uniform(0, _LONG_S))
        await cluster.wait_disk(cluster.nodes[node])
        await self._require_reach(node)
        return cluster.nodes[node]

    async def _require_reach(self, node: int) -> None:
        if not self.cluster.reach(self.number, node):
            if self.cluster.nodes[self.number].is_up:
                await trio.sleep(_NO_ANSWER_S)
            raise UnreachableError(f"n{node} does not answer")

    async def _return(self, node: int) -> None:
        """Take the time of an answer to a change."""
        if node != self.number:
            await trio.sleep(self.cluster.random.uniform(0, self.cluster.delay_s))
            await self._require_reach(node)

    async def _reached(self, ref: int) -> StoredReplica:
        """Return an object after the way to its node. Raises StaleError if it does not exist any more."""
        known = self._references.get(ref)
        if known is None:
            raise BadReferenceError("there is no such reference")
        replica, epoch = known
        node = await self._travel(replica.node)
        if node.epoch != epoch or replica.object_id not in node.replicas:
            raise StaleError("the object was destroyed, or its node was restarted")
        self._release_ended(replica)
        return replica

    async def _commit(self, node: ModelNode, effect: Callable[[], None]) -> None:
        if not await self.cluster.commit(node, effect):
            raise UnreachableError(f"{node.name} does not answer")

    def _release_ended(self, replica: StoredReplica) -> None:
        """Release the requests of sessions that have ended, as far as the object's node knows of that."""
        cluster = self.cluster
        for buffer in list(replica.buffers.values()):
            home = buffer.session.number
            heard = cluster.reach(replica.node, home) and (buffer.session.closed or buffer.is_dropped)
            if heard or cluster.status(replica.node, home) is NodeStatus.DEAD:
                self._end(buffer)

    # -- references ---------------------------------------------------------------------------------
    def _own_reference(self, kind: ObjectType, mark: str) -> messages.Reference:
        return messages.Reference(
            next(self._numbers),
            0,
            kind,
            int(Permission.ALL),
            Persistence.VOLATILE,
            Proximity.NODE,
            Deletion.IMMEDIATE,
            Buffering.DOUBLE,
            0,
            0,
            0,
            0,
            0,
            0,
            mark,
        )

    def _grant(self, replica: StoredReplica) -> messages.Reference:
        ref = next(self._numbers)
        node = self.cluster.nodes[replica.node]
        self._references[ref] = replica, node.epoch
        return self._shown(ref, replica)

    def _shown(self, ref: int, replica: StoredReplica) -> messages.Reference:
        node = self.cluster.nodes[replica.node]
        is_durable = replica.type is ObjectType.DURABLE_BLOB
        return messages.Reference(
            ref,
            replica.object_id,
            replica.type,
            int(Permission.ALL),
            Persistence.DURABLE if is_durable else Persistence.VOLATILE,
            Proximity.NODE if replica.node == self.number else Proximity.CLUSTER,
            Deletion.IMMEDIATE,
            Buffering.DOUBLE,
            0,
            len(replica.data),
            replica.v_r,
            replica.v_w,
            replica.a_r,
            replica.a_w,
            fingerprint(replica.name),
            node=node.name,
            rack=node.rack,
        )

    async def _present(self, call: messages.Present) -> AnyResult:
        await self._travel(self.number)
        return messages.References(tuple(self._group for name in call.groups if name == self.group))

    async def _stat(self, call: messages.Stat) -> AnyResult:
        return messages.References((self._shown(call.ref, await self._reached(call.ref)),))

    async def _list_nodes(self, call: messages.ListNodes) -> AnyResult:
        del call
        await self._travel(self.number)
        return messages.Nodes(tuple(self.cluster.members(self.number)))

    async def _lookup(self, call: messages.Lookup) -> AnyResult:
        """Return references to the physical objects of a name, of all nodes that answer."""
        cluster, random = self.cluster, self.cluster.random
        replicas = (await self._travel(self.number)).named(call.name)
        if call.flags & Flag.LOCAL_ONLY or len(replicas) >= call.limit:
            return messages.References(tuple(self._grant(replica) for replica in replicas[: call.limit]))
        if call.flags & _IN_VECTOR:
            return messages.References(tuple(map(self._grant, replicas)), incomplete=True)
        incomplete = False
        asked: list[tuple[float, int]] = []
        for member in list(cluster.members(self.number))[1:]:
            if member.status is NodeStatus.DEAD:
                incomplete = True  # a dead node is not asked, and may come back with more
            else:
                slow = cluster.long_delays and random.random() < cluster.long_delays
                asked.append((random.uniform(0, _LONG_S if slow else cluster.delay_s), member.node - 1))
        begun, silent = trio.current_time(), False
        for delay, number in sorted(asked):
            await trio.sleep_until(begun + delay)
            if cluster.reach(self.number, number):
                replicas += cluster.nodes[number].named(call.name)
            else:
                silent = True
            if len(replicas) >= call.limit:
                break
        else:
            if silent:
                await trio.sleep_until(begun + _NO_ANSWER_S)
        self.in_doubt = self.in_doubt or incomplete or silent
        return messages.References(
            tuple(self._grant(replica) for replica in replicas[: call.limit]), incomplete or silent
        )

    # -- creating, copying, destroying --------------------------------------------------------------
    async def _create(self, call: messages.Create) -> AnyResult:
        node = await self._travel(self.number)
        cluster = self.cluster
        volatile = call.object_type is not ObjectType.DURABLE_BLOB
        if call.flags & Flag.KEPT:
            name, write = KEPT_NAME, -1
            if any(replica.type is call.object_type for replica in node.named(name)):
                raise ExistsError("this node has these records already")
        else:
            name, write = cluster.random.randbytes(32), cluster.history.begin()
            cluster.creators[name] = self
        self._require_room(node, volatile=volatile)
        stored = cluster.new_replica(name, self.number, call.data or b"", write, volatile=volatile)

        def store() -> None:
            node.replicas[stored.object_id] = stored

        if volatile:
            store()
        else:
            await self._commit(node, store)
        self.written = write
        return messages.Created(None if name == KEPT_NAME else name, self._grant(stored))

    @staticmethod
    def _require_room(node: ModelNode, *, volatile: bool = False) -> None:
        if node.full and not volatile:
            raise NoSpaceError("the disk is full")

    async def _copy(self, call: messages.Copy) -> AnyResult:
        """Make a replica on another node, which goes on if the caller ends."""
        replica = await self._reached(call.ref)
        if not call.host:
            return messages.References((self._grant(replica),))
        ended = trio.Event()
        replicas: list[StoredReplica] = []
        errors: list[DiosError] = []

        async def transfer() -> None:
            try:
                replicas.append(await self._transferred(replica, call.host))
            except DiosError as error:
                errors.append(error)
            ended.set()

        self.cluster.nursery.start_soon(transfer)
        await ended.wait()
        await self._return(replica.node)
        if errors:
            raise errors[0]
        return messages.References((self._grant(replicas[0]),))

    async def _transferred(self, replica: StoredReplica, host: str) -> StoredReplica:
        cluster = self.cluster
        target = cluster.by_name(host)
        if target is None:
            raise UnreachableError(f"there is no node {host}")
        self._require_sound(replica)
        data, v_w, write = replica.data, replica.v_w, replica.write
        await trio.sleep(cluster.random.uniform(0, _TRANSFER_S))
        if replica.object_id not in cluster.nodes[replica.node].replicas:
            raise StaleError("the object was destroyed")
        if not cluster.reach(replica.node, target.number):
            raise UnreachableError(f"{host} does not answer")
        self._require_room(target)
        copied = cluster.new_replica(replica.name, target.number, data, write, v_w=v_w)

        def store() -> None:
            target.replicas[copied.object_id] = copied

        await self._commit(target, store)
        return copied

    async def _delete(self, call: messages.Delete) -> AnyResult:
        if call.flags & Flag.HANDLE_ONLY:
            self._references.pop(call.ref, None)
            for buffer in self._buffers.values():
                buffer.is_dropped = buffer.is_dropped or buffer.ref == call.ref
            return messages.Done()
        replica = await self._reached(call.ref)
        node = self.cluster.nodes[replica.node]

        def destroy() -> None:
            if node.replicas.pop(replica.object_id, None) is not None:
                self._note_drop(replica)

        await self._commit(node, destroy)
        for buffer in list(replica.buffers.values()):
            self._end(buffer)
        await self._return(replica.node)
        self._references.pop(call.ref, None)
        return messages.Done()

    def _note_drop(self, gone: StoredReplica) -> None:
        """Raise BrokenPromiseError if no living disk has the bytes that a keeper dropped, or later ones."""
        cluster, history = self.cluster, self.cluster.history
        if gone.type is not ObjectType.DURABLE_BLOB:
            return
        cluster.destroyed(gone, f"the {'keeper' if self.keeps else 'program'} on n{self.number}")
        if not self.keeps:
            return
        self.drops += 1
        if gone.name in history.acknowledged:
            left = [replica.write for replica in cluster.living(gone.name)]
            if not any(history.has(write, gone.write) for write in left):
                raise BrokenPromiseError(
                    f"the keeper on n{self.number} dropped the last replica of write {gone.write} "
                    f"of {fingerprint(gone.name)}, on n{gone.node}"
                )

    # -- reading ------------------------------------------------------------------------------------
    @staticmethod
    def _require_sound(replica: StoredReplica) -> None:
        if replica.damaged:
            raise DamagedError(f"the bytes on n{replica.node} do not match their digest")

    def _admit(
        self, ref: int, replica: StoredReplica, mode: Mode, level: Semantics, offset: int, size: int
    ) -> ModelBuffer:
        if not io_requests.admits(cast("PhysicalObject", replica), level):
            raise Busy("other requests are active")
        buffer = ModelBuffer(next(self._numbers), replica, self, mode, level, offset, size, ref)
        io_requests.begin(cast("Buffer", buffer), level)
        replica.buffers[buffer.id, buffer.session.serial] = buffer
        self._buffers[buffer.id] = buffer
        return buffer

    def _end(self, buffer: ModelBuffer) -> None:
        io_requests.abort(cast("Buffer", buffer))
        buffer.object.buffers.pop((buffer.id, buffer.session.serial), None)
        buffer.session.forget(buffer)

    def forget(self, buffer: ModelBuffer) -> None:
        """Forget a request that has ended."""
        self._buffers.pop(buffer.id, None)

    def _buffer(self, number: int) -> ModelBuffer:
        buffer = self._buffers.get(number)
        if buffer is None:
            raise StaleError("the request ended with its node")
        return buffer

    @staticmethod
    def _range(replica: StoredReplica, offset: int, size: int) -> bytes:
        return replica.data[offset : offset + size] if size else replica.data[offset:]

    async def _read_once(self, call: messages.ReadOnce) -> AnyResult:
        if call.ref == self._group.ref:
            return messages.Buffer(0, 32, 0, 0, data=self.group)
        replica = await self._reached(call.ref)
        self._require_sound(replica)
        if not io_requests.admits(cast("PhysicalObject", replica), call.semantics):
            raise Busy("other requests are active")
        data = self._range(replica, call.offset, call.size)
        replica.v_r += 1
        return messages.Buffer(0, len(data), replica.v_r, replica.v_w, data=data)

    async def _acquire_read(self, call: messages.AcquireRead) -> AnyResult:
        replica = await self._reached(call.ref)
        self._require_sound(replica)
        data = self._range(replica, call.offset, call.size)
        buffer = self._admit(call.ref, replica, Mode.READ, call.semantics, call.offset, len(data))
        return messages.Buffer(buffer.id, len(data), replica.v_r, replica.v_w, data=data)

    async def _commit_read(self, call: messages.CommitRead) -> AnyResult:
        return await self._read_committed(call.buffer, call.ref, release=False)

    async def _release_read(self, call: messages.ReleaseRead) -> AnyResult:
        if call.flags & Flag.RELEASE_COMMIT:
            await self._read_committed(call.buffer, call.ref, release=True)
        else:
            await self._reached(call.ref)
            self._end(self._buffer(call.buffer))
        return messages.Done()

    async def _read_committed(self, number: int, ref: int, *, release: bool) -> messages.Committed:
        await self._reached(ref)
        buffer = self._buffer(number)
        valid = io_requests.holds(cast("Buffer", buffer))
        io_requests.settle(cast("Buffer", buffer), valid=valid)
        if release:
            self._end(buffer)
        if not valid:
            raise Conflict("another request came between acquire and commit")
        return messages.Committed(buffer.object.v_r, buffer.object.v_w)

    # -- writing ------------------------------------------------------------------------------------
    async def _acquire_write(self, call: messages.AcquireWrite) -> AnyResult:
        replica = await self._reached(call.ref)
        size = call.size or len(replica.data)
        data = None if call.flags & Flag.BLANK else self._range(replica, call.offset, size)
        buffer = self._admit(call.ref, replica, Mode.WRITE, call.semantics, call.offset, size)
        return messages.Buffer(buffer.id, size, replica.v_r, replica.v_w, data=data)

    async def _commit_write(self, call: messages.CommitWrite) -> AnyResult:
        replica = await self._reached(call.ref)
        await self._committed_write(replica, call)
        await self._return(replica.node)
        return messages.Committed(replica.v_r, replica.v_w)

    async def _committed_write(
        self, replica: StoredReplica, call: messages.CommitWrite | messages.CommitAcquireWrite
    ) -> ModelBuffer:
        buffer = self._buffer(call.buffer)
        if not io_requests.holds(cast("Buffer", buffer)):
            io_requests.settle(cast("Buffer", buffer), valid=False)
            raise Conflict("another request came between acquire and commit")
        await self._write(replica, call.data or b"", buffer.offset, replace=bool(call.flags & Flag.REPLACE))
        # The write has counted the version already.
        io_requests.deactivate(cast("Buffer", buffer))
        buffer.committed = True
        return buffer

    async def _commit_acquire_write(self, call: messages.CommitAcquireWrite) -> AnyResult:
        """Commit and begin the next request in one step, as the core does: no other one comes between."""
        replica = await self._reached(call.ref)
        buffer = await self._committed_write(replica, call)
        answer: AnyResult = messages.Committed(replica.v_r, replica.v_w)
        if buffer.id in self._buffers and io_requests.admits(cast("PhysicalObject", replica), call.semantics):
            io_requests.begin(cast("Buffer", buffer), call.semantics)
            data = None if call.flags & Flag.BLANK else self._range(replica, buffer.offset, buffer.size)
            answer = messages.Buffer(buffer.id, buffer.size, replica.v_r, replica.v_w, data=data)
        await self._return(replica.node)
        return answer

    async def _release_write(self, call: messages.ReleaseWrite) -> AnyResult:
        await self._reached(call.ref)
        self._end(self._buffer(call.buffer))
        return messages.Done()

    async def _write_once(self, call: messages.WriteOnce) -> AnyResult:
        replica = await self._reached(call.ref)
        if not io_requests.admits(cast("PhysicalObject", replica), call.semantics):
            raise Busy("other requests are active")
        await self._write(replica, call.data, call.offset, replace=bool(call.flags & Flag.REPLACE))
        await self._return(replica.node)
        return messages.Committed(replica.v_r, replica.v_w)

    async def _write(self, replica: StoredReplica, data: bytes, offset: int, *, replace: bool) -> None:
        """Write bytes to an object, which count as one write however many replicas get them."""
        if not (replace and offset == 0):
            self._require_sound(replica)
        node, history = self.cluster.nodes[replica.node], self.cluster.history
        volatile = replica.type is not ObjectType.DURABLE_BLOB
        self._require_room(node, volatile=volatile)
        end = offset + len(data)
        after = replica.data[:offset].ljust(offset, b"\0") + data + (b"" if replace else replica.data[end:])

        def store() -> None:
            if replica.write >= 0:
                replica.write = self.written = history.after(replica.write, after)
            replica.data, replica.v_w, replica.damaged = after, replica.v_w + 1, False
            self.cluster.stored(replica)

        if volatile:
            store()
        else:
            await self._commit(node, store)


_IN_VECTOR: Final = Flag.NON_BLOCKING
"""A lookup that does not wait for other nodes, as one in a vector does."""

_ANSWERS: Final = cast(
    "dict[type, Callable[[ModelSession, AnyCall], Awaitable[AnyResult]]]",
    {
        messages.Present: ModelSession._present,  # noqa: SLF001 - the table of this class
        messages.Stat: ModelSession._stat,  # noqa: SLF001
        messages.ListNodes: ModelSession._list_nodes,  # noqa: SLF001
        messages.Lookup: ModelSession._lookup,  # noqa: SLF001
        messages.Create: ModelSession._create,  # noqa: SLF001
        messages.CreateLabelled: ModelSession._create,  # noqa: SLF001
        messages.Copy: ModelSession._copy,  # noqa: SLF001
        messages.Delete: ModelSession._delete,  # noqa: SLF001
        messages.ReadOnce: ModelSession._read_once,  # noqa: SLF001
        messages.AcquireRead: ModelSession._acquire_read,  # noqa: SLF001
        messages.CommitRead: ModelSession._commit_read,  # noqa: SLF001
        messages.ReleaseRead: ModelSession._release_read,  # noqa: SLF001
        messages.AcquireWrite: ModelSession._acquire_write,  # noqa: SLF001
        messages.CommitWrite: ModelSession._commit_write,  # noqa: SLF001
        messages.CommitAcquireWrite: ModelSession._commit_acquire_write,  # noqa: SLF001
        messages.ReleaseWrite: ModelSession._release_write,  # noqa: SLF001
        messages.WriteOnce: ModelSession._write_once,  # noqa: SLF001
    },
)
