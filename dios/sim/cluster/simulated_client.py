"""A seeded session or task in a simulated cluster: makes random calls, and holds the nodes to every answer.

Not for: when it acts, or where (``dios.sim.cluster.world``); the promises of all together stand in the
``Ledger``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dios.errors import Code
from dios.ids import BufferId, NodeId, TaskId
from dios.sim.cluster.promises import Key, Ledger, Write
from dios.sim.node.checker import BrokenPromiseError
from dios.wire import messages
from dios.wire.codec import decode_event
from dios.wire.types import (
    Flag,
    NameKind,
    ObjectType,
    Permission,
    Semantics,
)

Answered: TypeAlias = Callable[[messages.AnyResult, list[bytes | None]], None]

UNCERTAIN: Final = frozenset({Code.EHOSTUNREACH, Code.EBADF, Code.EIO})
"""Refusals after which a change may have been made all the same: its answer was lost on the way."""
BLOBS: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB})


class Sent(Struct):
    """A call that waits for its answer; ``waits`` when it may do so for ever."""

    call: messages.AnyCall
    since: int
    then: Answered
    nodes: frozenset[NodeId]
    waits: bool = False


class Around(Protocol):
    """What a caller knows of the world."""

    @property
    def ledger(self) -> Ledger:
        """What was promised."""
        ...

    @property
    def now(self) -> int:
        """Virtual time."""
        ...

    def call(self, caller: Caller, seq: int, call: messages.AnyCall) -> None:
        """Make a call at the caller's node."""
        ...

    def fill(self, caller: Caller, buffer: BufferId, data: bytes) -> None:
        """Write into a mapped buffer."""
        ...

    def host_names(self) -> list[str]:
        """The nodes' names."""
        ...

    def node_named(self, name: str) -> NodeId:
        """The node of this name."""
        ...

    def names(self) -> list[bytes]:
        """Every name that anybody was told."""
        ...

    def task_names(self) -> list[bytes]:
        """The names of the tasks and sessions that live."""
        ...

    def fresh_label(self) -> str:
        """A label like which there is no other."""
        ...

    def forget_group(self, name: bytes) -> None:
        """Nobody comes with this group in the keyring any more."""
        ...

    def disbanded(self, caller: Caller, name: bytes) -> None:
        """The caller's node has destroyed the group."""
        ...

    def may_resolve(self, caller: Caller, key: Key) -> bool:
        """Whether the caller is a member of one of the object's groups."""
        ...


class Caller:
    """One session or task, as long as its node lives."""

    def __init__(self, rng: Random, around: Around, node: NodeId, task: TaskId, who: str) -> None:
        self._rng: Final = rng
        self._around: Final = around
        self._ledger: Final = around.ledger
        self.node: Final = node
        self.task: Final = task
        self.label: Final = who
        self.welcome: messages.Welcome | None = None
        self.groups: Final[dict[bytes, messages.Reference]] = {}
        self.held: Final[dict[int, messages.Reference]] = {}
        self.tasks: Final[dict[int, messages.Reference]] = {}
        self.sent: Final[dict[int, Sent]] = {}
        self.paused = False
        self.lost_events = False
        self._seq = 1
        self._acts: Final = self.choices()

    def choices(self) -> list[tuple[int, Callable[[], None]]]:
        """What it may do, and how often."""
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

    def begin(self, welcome: messages.Welcome) -> None:
        """The node said who the caller is."""
        self.welcome = welcome
        for group in welcome.groups:
            self.groups[bytes([len(self.groups)])] = group
        for given in (*welcome.inputs, *welcome.outputs):
            if given.type in BLOBS:
                self.held[given.ref] = given
        self.listen()

    def listen(self) -> None:
        """Wait for the next event."""
        assert self.welcome is not None  # noqa: S101 - it was told
        self._ask(messages.ReadOnce(self.welcome.self_ref.ref), self._heard, waits=True)

    def _heard(self, result: messages.AnyResult, data: list[bytes | None]) -> None:
        if isinstance(result, messages.Buffer) and data[0] is not None:
            event = decode_event(data[0])
            match event:
                case messages.Delegated():
                    self._take(event.reference)
                case messages.Retired():
                    self.held.pop(event.ref, None)
                    self.tasks.pop(event.ref, None)
                case messages.ChildEnded():
                    self._ledger.child_ended(self.task, event.object)
                case messages.Lost():
                    self.lost_events = True
        if isinstance(result, messages.Buffer):
            self.listen()

    def _ask(
        self,
        call: messages.AnyCall,
        then: Answered,
        *,
        about: tuple[messages.Reference, ...] = (),
        waits: bool = False,
        everybody: bool = False,
    ) -> None:
        self._seq += 1
        around = self._around
        named = around.host_names() if everybody else [one.node for one in about if one.node]
        nodes = frozenset({self.node, *(around.node_named(name) for name in named)})
        self.sent[self._seq] = Sent(call, around.now, then, nodes, waits)
        around.call(self, self._seq, call)

    def answered(self, seq: int, result: messages.AnyResult, data: list[bytes | None]) -> None:
        """Take an answer."""
        sent = self.sent.pop(seq, None)
        if sent is None:
            raise BrokenPromiseError(
                f"an answer to call {seq}, which was answered, or never made: {result!r}"
            )
        sent.then(result, data)

    # -- what it has ----------------------------------------------------------------------------------
    def _take(self, reference: messages.Reference) -> None:
        if reference.type in BLOBS:
            self.held[reference.ref] = reference
        elif reference.type is ObjectType.TASK:
            self.tasks[reference.ref] = reference

    def _some(self, right: Permission = Permission.NONE) -> messages.Reference | None:
        found = [one for one in self.held.values() if one.permissions & right == right]
        return self._rng.choice(found) if found else None

    def _home_of(self, reference: messages.Reference) -> NodeId:
        return self._around.node_named(reference.node) if reference.node else self.node

    def _fresh(self) -> bytes:
        size = self._rng.choice((12, 20, 60, 150))
        return self._rng.randbytes(size)

    def _lost(self, reference: messages.Reference, result: messages.AnyResult) -> None:
        """A reference that is no good is of no use."""
        if isinstance(result, messages.Failure) and result.code in {Code.EBADF, Code.ESTALE}:
            self.held.pop(reference.ref, None)
            if result.code == Code.ESTALE and self._rng.random() < 0.7:
                self._ask(messages.Delete(reference.ref, int(Flag.HANDLE_ONLY)), whatever, about=(reference,))

    # -- objects --------------------------------------------------------------------------------------
    def _create(self) -> None:
        kind = self._rng.choice((ObjectType.DURABLE_BLOB, ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB))
        name_kind = self._rng.choice((NameKind.RANDOM, NameKind.RANDOM, NameKind.RANDOM, NameKind.ANONYMOUS))
        host = self._rng.choice(("", "", *self._around.host_names()))
        self.create(kind, name_kind, host)

    def create(
        self, kind: ObjectType, name_kind: NameKind = NameKind.RANDOM, host: str = "", *, lock: bool = False
    ) -> None:
        """Ask for an object."""
        group = self._rng.choice(list(self.groups.values()))
        value = self._fresh()
        write = Write(value, self._around.now)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Created):
                reference = result.reference
                key: Key = reference.object if result.name is None else result.name
                write.end = self._around.now
                durable = kind is ObjectType.DURABLE_BLOB
                self._ledger.register(reference.object, key, self._home_of(reference), write, durable=durable)
                self._ledger.entitle(self.task, key)
                if result.name is not None:
                    self._ledger.groups_of.setdefault(key, ())
                    self._ledger.groups_of[key] += (self._name_of(group),)
                if lock:
                    self._ledger.locks.add(reference.object)
                self._take(reference)

        call = messages.Create(kind, (group.ref,), name_kind, data=value, host=host)
        where = () if not host else (at_node(group, host),)
        self._ask(call, then, about=where)

    def _name_of(self, group: messages.Reference) -> bytes:
        """Groups are known by their fingerprints, which their names make."""
        return group.fingerprint.encode()

    def _lookup(self) -> None:
        names = self._around.names()
        if names:
            self.look(self._rng.choice(names))

    def look(
        self, name: bytes, found: Callable[[messages.References], None] | None = None, *, limit: int = 0
    ) -> None:
        """Resolve a name."""
        if self._around.may_resolve(self, name):
            self._ledger.entitle(self.task, name)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.References):
                for reference in result.references:
                    self._take(reference)
                if found is not None:
                    found(result)

        limit = limit or self._rng.choice((1, 2, 8))
        self._ask(messages.Lookup(name, limit=limit), then, everybody=True)

    def _delete(self) -> None:
        reference = self._some()
        if reference is None or (self._rng.random() < 0.5 and reference.permissions & Permission.DELETE):
            return
        flags = self._rng.choice((0, int(Flag.HANDLE_ONLY), int(Flag.HANDLE_ONLY), int(Flag.DESTROY)))
        if reference.object in self._ledger.locks:
            flags = int(Flag.HANDLE_ONLY)
        register = self._ledger.registers.get(reference.object)
        destroys = reference.permissions & Permission.DELETE and not flags & Flag.HANDLE_ONLY
        if destroys:
            self._ledger.perhaps_gone.add(reference.object)
            if register is not None:
                register.may_be_gone = True
        self.held.pop(reference.ref, None)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            certain = flags & Flag.DESTROY or reference.type is ObjectType.DURABLE_BLOB
            if result == messages.Done(1) and register is not None and destroys and certain:
                register.gone_at = register.gone_at or self._around.now

        self._ask(messages.Delete(reference.ref, flags), then, about=(reference,))

    # -- values ---------------------------------------------------------------------------------------
    def _write(self) -> None:
        reference = self._some(Permission.WRITE)
        if reference is None or reference.object in self._ledger.locks:
            return
        value = self._fresh()
        level = self._rng.choice(list(Semantics))
        call = messages.WriteOnce(reference.ref, value, 0, level, int(Flag.REPLACE))
        self._ask(call, self._writing(reference, value), about=(reference,))

    def _writing(self, reference: messages.Reference, value: bytes) -> Answered:
        write = self._ledger.begin(reference.object, value, self._around.now)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Failure):
                if result.code not in UNCERTAIN:
                    self._ledger.withdraw(reference.object, write)
            elif isinstance(result, messages.Committed) and write is not None:
                write.end = self._around.now
            self._lost(reference, result)

        return then

    def _read(self) -> None:
        reference = self._some(Permission.READ)
        if reference is not None:
            self.read(reference, self._rng.choice(list(Semantics)))

    def read(self, reference: messages.Reference, level: Semantics, done: Answered | None = None) -> None:
        """Read an object's value."""
        then = self._reading(reference)

        def both(result: messages.AnyResult, data: list[bytes | None]) -> None:
            then(result, data)
            if done is not None:
                done(result, data)

        self._ask(messages.ReadOnce(reference.ref, semantics=level), both, about=(reference,))

    def _reading(self, reference: messages.Reference) -> Answered:
        since = self._around.now

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            if isinstance(result, messages.Buffer) and data[0] is not None:
                self._ledger.read(reference.object, data[0], since)
            self._lost(reference, result)

        return then

    def _vector(self) -> None:
        chosen = {
            one.object: one for one in (self._some(Permission.READ) for _ in range(4)) if one is not None
        }
        calls: list[messages.PlainCall] = []
        thens: list[Answered] = []
        for reference in chosen.values():
            may_write = (
                reference.permissions & Permission.WRITE and reference.object not in self._ledger.locks
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
                for one, part, its in zip(thens, result.results, data, strict=True):
                    one(part, [its])
            else:
                for one in thens:
                    one(result, [None])

        if calls:
            self._ask(messages.Vector(tuple(calls)), then, about=tuple(chosen.values()))


def whatever(result: messages.AnyResult, data: list[bytes | None]) -> None:
    """Any answer will do."""
    del result, data


def at_node(reference: messages.Reference, host: str) -> messages.Reference:
    """Something on that node, for whom its state matters."""
    return replace(reference, node=host)
