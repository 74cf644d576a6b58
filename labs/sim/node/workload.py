"""A seeded client that makes random calls, and records what the node promised.

``labs.sim.node.checker`` checks the promises after every crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct

from dios.errors import Code
from dios.ids import Name, TaskId
from dios.wire import messages
from dios.wire.types import Flag, NameKind, ObjectType, Permission, Semantics
from labs.sim.node.direct_reads import DirectReader, DirectReads, Running

LIFETIME_NS_MAX: Final = 5_000_000  # a few steps of the virtual clock


class ObjectPromise(Struct):
    """The known state of one durable object.

    ``acknowledged`` is the last value that the node acknowledged (None: deleted). ``possible`` are the values
    of writes without an answer when the node crashed; each of them may have happened or not.
    """

    acknowledged: bytes | None
    possible: list[bytes | None]


class SentCall(Struct, frozen=True):
    """A call that waits for its answer."""

    call: messages.AnyCall
    name: Name | None = None
    value: bytes | None = None
    running: Running | None = None


class KnownPromises:
    """The promises to all clients, over all starts of the node.

    ``creating`` counts the values of durable objects that may exist although no client knows their name;
    ``refusals`` counts the codes of failures.
    """

    def __init__(self) -> None:
        self.promises: Final[dict[Name, ObjectPromise]] = {}
        self.named: Final[dict[int, Name]] = {}
        self.creating: Final[Counter[bytes]] = Counter()
        self.refusals: Final[Counter[int]] = Counter()
        self.direct: Final = DirectReads()


class WorkloadClient:
    """One session's references, buffers, and durable objects by name."""

    def __init__(
        self,
        rng: Random,
        task: TaskId,
        memory: KnownPromises,
        send: Callable[[TaskId, int, messages.AnyCall], None],
    ) -> None:
        self._rng: Final = rng
        self._send: Final = send
        self._memory: Final = memory
        self.task: Final = task
        self.promises: Final = memory.promises
        self.welcome: messages.Welcome | None = None
        self.references: list[messages.Reference] = []
        self.named: Final = memory.named
        self.buffers: list[tuple[int, int, bool]] = []
        self.sent: dict[int, SentCall] = {}
        self._reader: DirectReader | None = None
        self._seq = 1

    # -- sending -----------------------------------------------------------------------------------
    def act(self) -> None:
        """Make one random call, valid or not."""
        if self.welcome is None:
            return
        choices = (
            self._create,
            self._write,
            self._write,
            self._read,
            self._read_through_client,
            self._read_through_client,
            self._acquire,
            self._buffer_call,
            self._delete,
            self._lookup,
            self._delegate,
            self._retire,
            self._nonsense,
        )
        self._rng.choice(choices)()

    def _call(
        self,
        call: messages.AnyCall,
        name: Name | None = None,
        value: bytes | None = None,
        running: Running | None = None,
    ) -> None:
        self._seq += 1
        self.sent[self._seq] = SentCall(call, name, value, running)
        promise = None if name is None else self.promises.get(name)
        if promise is not None and not isinstance(call, messages.ReadOnce):
            promise.possible.append(value)
        self._send(self.task, self._seq, call)

    def _some(self) -> messages.Reference | None:
        if not self.references:
            return None
        if self._rng.random() < 0.4:
            # Much happens to a few objects, so that reads without a call meet writers.
            popular = [
                reference for reference in self.references if reference.object in self._memory.direct.popular
            ]
            if popular:
                return self._rng.choice(popular)
        return self._rng.choice(self.references)

    def _bytes(self) -> bytes:
        # Some of the longer values exceed the limit for a row, so that they are stored in an extent.
        return self._rng.randbytes(self._rng.choice((self._rng.randint(0, 40), self._rng.randint(41, 300))))

    def _create(self) -> None:
        kind = self._rng.choice((ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB, ObjectType.GROUP))
        data = None if kind is ObjectType.GROUP else self._bytes()
        self.create(kind, self._rng.choice((NameKind.RANDOM, NameKind.RANDOM, NameKind.ANONYMOUS)), data)

    def create(self, kind: ObjectType, name_kind: NameKind, data: bytes | None) -> None:
        """Ask for an object; the session must have been welcomed."""
        assert self.welcome is not None  # noqa: S101 - the caller looked
        group = self._rng.choice([*self.welcome.groups]).ref
        call = messages.Create(kind, (group,), name_kind, data=data)
        if _is_promised(call):
            self._memory.creating[data or b""] += 1
        self._call(call, value=data)

    def _write(self) -> None:
        reference = self._some()
        if reference is not None:
            data = self._bytes()
            level = self._rng.choice(list(Semantics))
            call = messages.WriteOnce(reference.ref, data, 0, level, int(Flag.REPLACE))
            self._call(call, self.named.get(reference.object), data)

    def _read(self) -> None:
        reference = self._some()
        if reference is not None:
            self._call(messages.ReadOnce(reference.ref), self.named.get(reference.object))

    def _read_through_client(self) -> None:
        reference = self._some()
        if reference is None:
            return
        if self._reader is None:
            self._reader = DirectReader(self._rng, self.task, self._memory.direct, self._run_call)
        self._reader.act(reference)

    def _run_call(self, call: messages.AnyCall, running: Running) -> None:
        self._call(call, running=running)

    def _acquire(self) -> None:
        reference = self._some()
        if reference is None:
            return
        level = self._rng.choice(list(Semantics))
        if self._rng.random() < 0.5:
            self._call(messages.AcquireRead(reference.ref, semantics=level))
        elif reference.object not in self.named:
            self._call(messages.AcquireWrite(reference.ref, 8, semantics=level))

    def _buffer_call(self) -> None:
        if not self.buffers:
            return
        ref, buffer, writing = self._rng.choice(self.buffers)
        direct = self._memory.direct
        if self._rng.random() < 0.5:
            direct.commits(self.task, buffer)
            self._call(messages.CommitWrite(ref, buffer) if writing else messages.CommitRead(ref, buffer))
        else:
            direct.releases(self.task, buffer)
            self.buffers.remove((ref, buffer, writing))
            release = messages.ReleaseWrite if writing else messages.ReleaseRead
            self._call(release(ref, buffer))

    def _delete(self) -> None:
        if self._rng.random() < 0.6:
            return
        reference = self._some()
        if reference is not None:
            self.references.remove(reference)
            destroys = bool(reference.permissions & int(Permission.DELETE))
            self._call(messages.Delete(reference.ref), self.named.get(reference.object) if destroys else None)

    def _lookup(self) -> None:
        if self.promises:
            self._call(messages.Lookup(self._rng.choice(list(self.promises))))

    def _delegate(self) -> None:
        reference = self._some()
        if reference is not None and self.welcome is not None:
            rights = self._rng.randrange(int(Permission.ALL) + 1)
            lifetime_ns = self._rng.choice((0, 0, self._rng.randint(1, LIFETIME_NS_MAX)))
            target = self.welcome.self_ref.ref
            self._call(messages.Copy(reference.ref, target, rights, lifetime_ns=lifetime_ns))

    def _retire(self) -> None:
        reference = self._some()
        if reference is not None:
            self._call(messages.Retire(reference.ref))

    def _nonsense(self) -> None:
        ref = self._rng.choice([0, 7, self._rng.getrandbits(60)])
        self._call(self._rng.choice((messages.Delete(ref), messages.ReadOnce(ref), messages.Stat(ref))))

    # -- answers -----------------------------------------------------------------------------------
    def answered(
        self, seq: int, result: messages.AnyResult, data: bytes | None, *, uncertain: bool = False
    ) -> None:
        """Check and record an answer; ``uncertain``: a failed call may have been carried out after all."""
        if isinstance(result, messages.Welcome):
            self.welcome = result
            return
        sent = self.sent.pop(seq, None)
        if sent is None:
            return
        if sent.running is not None and self._reader is not None:
            self._reader.answered(sent.running, result, data)
        elif isinstance(result, messages.Failure):
            self._memory.refusals[result.code] += 1
            if not (uncertain and result.code == Code.EIO):
                self._withdraw(sent)
        elif isinstance(sent.call, messages.Create) and isinstance(result, messages.Created):
            self._created(sent, sent.call, result)
        elif isinstance(result, messages.References):
            self.references.extend(
                reference
                for reference in result.references
                if reference.type in {ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB}
            )
        elif isinstance(result, messages.Buffer):
            self._buffer(sent, result, data)
        elif sent.name is not None and sent.name in self.promises:
            if result == messages.Done(0):
                self._withdraw(sent)  # the reference was stale: nothing was deleted
            else:
                self._acknowledge(sent)

    def _withdraw(self, sent: SentCall) -> None:
        promise = None if sent.name is None else self.promises.get(sent.name)
        if promise is not None and not isinstance(sent.call, messages.ReadOnce):
            promise.possible.remove(sent.value)
        self._not_creating(sent)

    def _not_creating(self, sent: SentCall) -> None:
        if isinstance(sent.call, messages.Create) and _is_promised(sent.call):
            self._memory.creating[sent.value or b""] -= 1

    def _created(self, sent: SentCall, call: messages.Create, result: messages.Created) -> None:
        if result.reference.type is ObjectType.GROUP:
            return
        self._not_creating(sent)
        self.references.append(result.reference)
        if call.object_type is ObjectType.DURABLE_BLOB and result.name is not None:
            name = Name(result.name)
            self.named[result.reference.object] = name
            self.promises[name] = ObjectPromise(sent.value, [])

    def _buffer(self, sent: SentCall, result: messages.Buffer, data: bytes | None) -> None:
        if isinstance(sent.call, messages.AcquireRead | messages.AcquireWrite):
            writing = isinstance(sent.call, messages.AcquireWrite)
            self.buffers.append((sent.call.ref, result.buffer, writing))
            self._memory.direct.acquired(
                self.task, sent.call.ref, result.buffer, sent.call.semantics, writing=writing
            )
        elif sent.name is not None and sent.name in self.promises:
            promise = self.promises[sent.name]
            expected = [promise.acknowledged, *promise.possible]
            if data not in expected:
                raise AssertionError(f"read {data!r}, expected one of {expected}")

    def _acknowledge(self, sent: SentCall) -> None:
        assert sent.name is not None  # noqa: S101 - the caller looked
        promise = self.promises[sent.name]
        if sent.value in promise.possible:
            promise.possible.remove(sent.value)
        if isinstance(sent.call, messages.WriteOnce):
            promise.acknowledged = sent.value
        elif isinstance(sent.call, messages.Delete):
            promise.acknowledged = None


def _is_promised(call: messages.Create) -> bool:
    return call.object_type is ObjectType.DURABLE_BLOB and call.name_kind is NameKind.RANDOM
