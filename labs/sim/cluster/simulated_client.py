"""A simulated client: a seeded session or task that makes random calls and checks every answer.

The time and place of its calls are in ``labs.sim.cluster.world``; the promises to all clients are in
``PromiseLedger``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dios.errors import Code
from dios.ids import BufferId, NodeId, TaskId
from dios.wire import messages
from dios.wire.codec import decode_event
from dios.wire.types import (
    Flag,
    NameKind,
    ObjectType,
    Permission,
    Semantics,
)
from labs.sim.cluster.promises import Key, PromiseLedger, Write
from labs.sim.node.checker import BrokenPromiseError

AnswerHandler: TypeAlias = Callable[[messages.AnyResult, list[bytes | None]], None]

UNCERTAIN: Final = frozenset({Code.EHOSTUNREACH, Code.EIO})
"""The only failures after which a change may have been made all the same."""
BLOBS: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB})


class PendingCall(Struct):
    """A call that waits for its answer; ``waits`` if it may wait for ever."""

    call: messages.AnyCall
    since: int
    then: AnswerHandler
    nodes: frozenset[NodeId]
    waits: bool = False


class ClientEnvironment(Protocol):
    """The simulated cluster, as a client sees it."""

    @property
    def promises(self) -> PromiseLedger:
        """The promises to all clients."""

    @property
    def now(self) -> int:
        """The virtual time in nanoseconds."""

    def call(self, client: SimulatedClient, seq: int, call: messages.AnyCall) -> None:
        """Make a call at the client's node."""

    def fill(self, client: SimulatedClient, buffer: BufferId, data: bytes) -> None:
        """Write to a mapped buffer."""

    def host_names(self) -> list[str]:
        """Return the names of the nodes."""

    def node_named(self, name: str) -> NodeId:
        """Return the node with this name."""

    def names(self) -> list[bytes]:
        """Return every name that any client knows."""

    def task_names(self) -> list[bytes]:
        """Return the names of the tasks and sessions that are alive."""

    def fresh_label(self) -> str:
        """Return a unique label."""

    def forget_group(self, name: bytes) -> None:
        """Stop giving this group to new sessions as part of their keyring."""

    def disbanded(self, client: SimulatedClient, name: bytes) -> None:
        """Record that the client's node has destroyed the group."""

    def may_resolve(self, client: SimulatedClient, key: Key) -> bool:
        """Return True if the client is a member of one of the object's groups."""

    def expected(self, client: SimulatedClient, name: bytes) -> list[int]:
        """Return the objects that a lookup which begins now finds if its node and theirs are undisturbed."""

    def looked_up(
        self, client: SimulatedClient, expected: list[int], result: messages.References, limit: int
    ) -> None:
        """Check the answer to a lookup."""


class SimulatedClient:
    """One session or task, while its node is up."""

    def __init__(
        self, rng: Random, environment: ClientEnvironment, node: NodeId, task: TaskId, who: str
    ) -> None:
        self._rng: Final = rng
        self._environment: Final = environment
        self._promises: Final = environment.promises
        self.node: Final = node
        self.task: Final = task
        self.label: Final = who
        self.welcome: messages.Welcome | None = None
        self.groups: Final[dict[bytes, messages.Reference]] = {}
        self.held: Final[dict[int, messages.Reference]] = {}
        self.tasks: Final[dict[int, messages.Reference]] = {}
        self.pending_calls: Final[dict[int, PendingCall]] = {}
        self.paused = False
        self.lost_events = False
        self._seq = 1
        self._acts: Final = self.choices()

    def choices(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the possible actions with their weights."""
        return [
            (10, self._create),
            (12, self._lookup),
            (16, self._write),
            (16, self._read),
            (6, self._vector),
            (5, self._delete),
        ]

    # -- sending --------------------------------------------------------------------------------------
    def act(self) -> None:
        """Make one random call."""
        if self.welcome is not None and not self.paused:
            weights = [weight for weight, _ in self._acts]
            self._rng.choices([act for _, act in self._acts], weights)[0]()

    def start_many(self) -> None:
        """Start several tasks at once."""

    def begin(self, welcome: messages.Welcome) -> None:
        """Start with the node's welcome message."""
        self.welcome = welcome
        for group in welcome.groups:
            self.groups[bytes([len(self.groups)])] = group
        for given in (*welcome.inputs, *welcome.outputs):
            if given.type in BLOBS:
                self.held[given.ref] = given
        self.listen()

    def listen(self) -> None:
        """Wait for the next event."""
        assert self.welcome is not None  # noqa: S101 - begin has set it
        self._call(messages.ReadOnce(self.welcome.self_ref.ref), self._event_received, waits=True)

    def _event_received(self, result: messages.AnyResult, data: list[bytes | None]) -> None:
        if isinstance(result, messages.Buffer) and data[0] is not None:
            event = decode_event(data[0])
            match event:
                case messages.Delegated():
                    self._take(event.reference)
                case messages.Retired():
                    self.held.pop(event.ref, None)
                    self.tasks.pop(event.ref, None)
                case messages.ChildEnded():
                    self._promises.child_ended(self.task, event.object)
                case messages.Lost():
                    self.lost_events = True
        if isinstance(result, messages.Buffer):
            self.listen()

    def _call(
        self,
        call: messages.AnyCall,
        then: AnswerHandler,
        *,
        about: tuple[messages.Reference, ...] = (),
        waits: bool = False,
        everybody: bool = False,
    ) -> None:
        self._seq += 1
        environment = self._environment
        named = (
            environment.host_names()
            if everybody
            else [reference.node for reference in about if reference.node]
        )
        nodes = frozenset({self.node, *(environment.node_named(name) for name in named)})
        self.pending_calls[self._seq] = PendingCall(call, environment.now, then, nodes, waits)
        environment.call(self, self._seq, call)

    def answered(self, seq: int, result: messages.AnyResult, data: list[bytes | None]) -> None:
        """Handle an answer."""
        sent = self.pending_calls.pop(seq, None)
        if sent is None:
            raise BrokenPromiseError(
                f"call {seq} has an answer, but it was answered before or never made: {result!r}"
            )
        sent.then(result, data)

    # -- what it has ----------------------------------------------------------------------------------
    def _take(self, reference: messages.Reference) -> None:
        if reference.type in BLOBS:
            self.held[reference.ref] = reference
        elif reference.type is ObjectType.TASK:
            self.tasks[reference.ref] = reference

    def _some(self, right: Permission = Permission.NONE) -> messages.Reference | None:
        candidates = [candidate for candidate in self.held.values() if candidate.permissions & right == right]
        return self._rng.choice(candidates) if candidates else None

    def _home_of(self, reference: messages.Reference) -> NodeId:
        return self._environment.node_named(reference.node) if reference.node else self.node

    def _fresh(self) -> bytes:
        size = self._rng.choice((12, 20, 60, 150))
        return self._rng.randbytes(size)

    def _drop_invalid(self, reference: messages.Reference, result: messages.AnyResult) -> None:
        """Drop a reference that the node has refused as invalid or stale."""
        if isinstance(result, messages.Failure) and result.code in {Code.EBADF, Code.ESTALE}:
            self.held.pop(reference.ref, None)
            if result.code == Code.ESTALE and self._rng.random() < 0.7:
                self._call(
                    messages.Delete(reference.ref, int(Flag.HANDLE_ONLY)), ignore_answer, about=(reference,)
                )

    # -- objects --------------------------------------------------------------------------------------
    def _create(self) -> None:
        kind = self._rng.choice((ObjectType.DURABLE_BLOB, ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB))
        name_kind = self._rng.choice((NameKind.RANDOM, NameKind.RANDOM, NameKind.RANDOM, NameKind.ANONYMOUS))
        host = self._rng.choice(("", "", *self._environment.host_names()))
        self.create(kind, name_kind, host)

    def create(
        self, kind: ObjectType, name_kind: NameKind = NameKind.RANDOM, host: str = "", *, lock: bool = False
    ) -> None:
        """Ask for an object."""
        group = self._rng.choice(list(self.groups.values()))
        value = self._fresh()
        write = Write(value, self._environment.now)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Created):
                reference = result.reference
                key: Key = reference.object if result.name is None else result.name
                write.end = self._environment.now
                durable = kind is ObjectType.DURABLE_BLOB
                self._promises.register(
                    reference.object, key, self._home_of(reference), write, durable=durable
                )
                self._may_have(key)
                if result.name is not None:
                    self._promises.groups_of.setdefault(key, ())
                    self._promises.groups_of[key] += (self._name_of(group),)
                if lock:
                    self._promises.locks.add(reference.object)
                self._take(reference)

        call = messages.Create(kind, (group.ref,), name_kind, data=value, host=host)
        at_host = () if not host else (at_node(group, host),)
        self._call(call, then, about=at_host)

    def _may_have(self, key: Key) -> None:
        """Record that the client may get a reference with all rights to an object."""
        self._promises.allow(self.task, key)

    def _name_of(self, group: messages.Reference) -> bytes:
        """Return the group's fingerprint, which is derived from its name."""
        return group.fingerprint.encode()

    def _lookup(self) -> None:
        names = self._environment.names()
        if names:
            self.lookup(self._rng.choice(names))

    def lookup(
        self, name: bytes, listener: Callable[[messages.References], None] | None = None, *, limit: int = 0
    ) -> None:
        """Resolve a name."""
        if self._environment.may_resolve(self, name):
            self._may_have(name)
        expected = self._environment.expected(self, name)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.References):
                self._environment.looked_up(self, expected, result, limit)
                for reference in result.references:
                    self._take(reference)
                if listener is not None:
                    listener(result)

        limit = limit or self._rng.choice((1, 2, 8))
        self._call(messages.Lookup(name, limit=limit), then, everybody=True)

    def _delete(self) -> None:
        reference = self._some()
        if reference is None or (self._rng.random() < 0.5 and reference.permissions & Permission.DELETE):
            return
        flags = self._rng.choice((0, int(Flag.HANDLE_ONLY), int(Flag.HANDLE_ONLY), int(Flag.DESTROY)))
        if reference.object in self._promises.locks:
            flags = int(Flag.HANDLE_ONLY)
        register = self._promises.registers.get(reference.object)
        destroys = reference.permissions & Permission.DELETE and not flags & Flag.HANDLE_ONLY
        if destroys:
            self._promises.maybe_deleted.add(reference.object)
            if register is not None:
                register.may_be_deleted = True
        self.held.pop(reference.ref, None)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            certain = flags & Flag.DESTROY or reference.type is ObjectType.DURABLE_BLOB
            if result == messages.Done(1) and register is not None and destroys and certain:
                register.deleted_at = register.deleted_at or self._environment.now

        self._call(messages.Delete(reference.ref, flags), then, about=(reference,))

    # -- values ---------------------------------------------------------------------------------------
    def _write(self) -> None:
        reference = self._some(Permission.WRITE)
        if reference is None or reference.object in self._promises.locks:
            return
        value = self._fresh()
        self.overwrite(reference, value, self._rng.choice(list(Semantics)))

    def overwrite(self, reference: messages.Reference, value: bytes, level: Semantics) -> None:
        """Give an object a value."""
        call = messages.WriteOnce(reference.ref, value, 0, level, int(Flag.REPLACE))
        self._call(call, self._writing(reference, value), about=(reference,))

    def _writing(self, reference: messages.Reference, value: bytes) -> AnswerHandler:
        write = self._promises.begin(reference.object, value, self._environment.now)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Failure):
                if result.code not in UNCERTAIN:
                    self._promises.withdraw(reference.object, write)
            elif isinstance(result, messages.Committed):
                write.end = self._environment.now
            self._drop_invalid(reference, result)

        return then

    def _read(self) -> None:
        reference = self._some(Permission.READ)
        if reference is not None:
            self.read(reference, self._rng.choice(list(Semantics)))

    def read(
        self, reference: messages.Reference, level: Semantics, done: AnswerHandler | None = None
    ) -> None:
        """Read an object's value."""
        then = self._reading(reference)

        def both(result: messages.AnyResult, data: list[bytes | None]) -> None:
            then(result, data)
            if done is not None:
                done(result, data)

        self._call(messages.ReadOnce(reference.ref, semantics=level), both, about=(reference,))

    def _reading(self, reference: messages.Reference) -> AnswerHandler:
        since = self._environment.now
        may_read = self._promises.may_read((self.task, self.label), reference.object)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            if isinstance(result, messages.Buffer) and data[0] is not None:
                if not may_read:
                    raise BrokenPromiseError("a read began after the right to read was taken back")
                self._promises.read(reference.object, data[0], since)
            self._drop_invalid(reference, result)

        return then

    def _vector(self) -> None:
        chosen = {
            candidate.object: candidate
            for candidate in (self._some(Permission.READ) for _ in range(4))
            if candidate is not None
        }
        calls: list[messages.PlainCall] = []
        thens: list[AnswerHandler] = []
        for reference in chosen.values():
            may_write = (
                reference.permissions & Permission.WRITE and reference.object not in self._promises.locks
            )
            if may_write and self._rng.random() < 0.4:
                value = self._fresh()
                calls.append(messages.WriteOnce(reference.ref, value, 0, Semantics.ANY, int(Flag.REPLACE)))
                thens.append(self._writing(reference, value))
            else:
                calls.append(messages.ReadOnce(reference.ref))
                thens.append(self._reading(reference))

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            if isinstance(result, messages.Results):
                for handler, part, part_data in zip(thens, result.results, data, strict=True):
                    handler(part, [part_data])
            else:
                for handler in thens:
                    handler(result, [None])

        if calls:
            self._call(messages.Vector(tuple(calls)), then, about=tuple(chosen.values()))


def ignore_answer(result: messages.AnyResult, data: list[bytes | None]) -> None:
    """Ignore the answer."""
    del result, data


def at_node(reference: messages.Reference, host: str) -> messages.Reference:
    """Return the reference with another node, for a call that depends on the state of that node."""
    return replace(reference, node=host)
