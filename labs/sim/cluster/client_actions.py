"""A simulated client that works with others: locks, delegation, retiring, starting tasks, replicas.

Objects and their values are in ``labs.sim.cluster.simulated_client``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct

from dios.ids import BufferId, NodeId, TaskId
from dios.wire import messages
from dios.wire.types import (
    Brand,
    Flag,
    ObjectType,
    Permission,
    Persistence,
    Semantics,
)
from labs.sim.cluster.promises import Grant, LockHold, StartedTask, ValueHistory, Write
from labs.sim.cluster.simulated_client import (
    AnswerHandler,
    ClientEnvironment,
    SimulatedClient,
    at_node,
    ignore_answer,
)
from labs.sim.event_queue import MS

LIFETIME_NS_MAX: Final = 3_000 * MS
STARTED_AT_ONCE: Final = 10
_AGAIN_SHARE: Final = 80
"""The share, out of 256, of commits that also acquire the next request."""


class ClientBuffer(Struct):
    """A buffer of an active I/O request of the client."""

    ref: messages.Reference
    buffer: int
    writing: bool
    v_w: int
    since: int
    lock: bool = False


class CooperatingClient(SimulatedClient):
    """A simulated client that delegates to, starts and controls other tasks."""

    def __init__(
        self, rng: Random, environment: ClientEnvironment, node: NodeId, task: TaskId, who: str
    ) -> None:
        super().__init__(rng, environment, node, task, who)
        self.buffers: Final[list[ClientBuffer]] = []

    def choices(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the possible actions with their weights."""
        return [
            *super().choices(),
            (10, self._acquire),
            (14, self._finish_buffer),
            (6, self._lock),
            (8, self._look_for_task),
            (10, self._delegate),
            (5, self._retire),
            (5, self._run),
            (4, self._control),
            (3, self._select),
            (4, self._replicate),
            (2, self._group),
            (2, self._list),
        ]

    # -- requests -------------------------------------------------------------------------------------
    def _acquire(self) -> None:
        writing = self._rng.random() < 0.5
        reference = self._some(Permission.WRITE if writing else Permission.READ)
        if reference is None or reference.object in self._promises.locks or len(self.buffers) > 6:
            return
        level = self._rng.choice(list(Semantics))
        call = (
            messages.AcquireWrite(reference.ref, 16, semantics=level, flags=int(Flag.BLANK))
            if writing
            else messages.AcquireRead(reference.ref, semantics=level)
        )
        self._call(call, self._acquiring(reference, writing=writing), about=(reference,))

    def _acquiring(
        self, reference: messages.Reference, *, writing: bool, lock: bool = False
    ) -> AnswerHandler:
        since = self._environment.now

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            if isinstance(result, messages.Buffer):
                now = self._environment.now
                self.buffers.append(ClientBuffer(reference, result.buffer, writing, result.v_w, now, lock))
                if not writing and data[0] is not None:
                    self._promises.read(reference.object, data[0], since)
            self._drop_invalid(reference, result)

        return then

    def _finish_buffer(self) -> None:
        """Commit or release one of the open buffers."""
        if not self.buffers:
            return
        request = self._rng.choice(self.buffers)
        if self._rng.random() < 0.5 and not request.lock:
            self._release(request)
        elif not request.writing:
            self._call(
                messages.CommitRead(request.ref.ref, request.buffer), ignore_answer, about=(request.ref,)
            )
        else:
            self._commit(request)

    def _release(self, request: ClientBuffer) -> None:
        self.buffers.remove(request)
        kind = messages.ReleaseWrite if request.writing else messages.ReleaseRead
        self._call(kind(request.ref.ref, request.buffer), ignore_answer, about=(request.ref,))

    def _commit(self, request: ClientBuffer) -> None:
        value = self._rng.randbytes(16)
        inside = self._rng.random() < 0.5
        if not inside:
            self._environment.fill(self, BufferId(request.buffer), value)
        data = value if inside else None
        # A bit of the value decides, so that the choice draws nothing from the source of random choices.
        level = Semantics.MRSW if value[0] & 1 else Semantics.ANY
        call: messages.PlainCall = (
            messages.CommitAcquireWrite(
                request.ref.ref, request.buffer, semantics=level, flags=int(Flag.REPLACE), data=data
            )
            if value[1] < _AGAIN_SHARE and not request.lock
            else messages.CommitWrite(request.ref.ref, request.buffer, flags=int(Flag.REPLACE), data=data)
        )
        writing = self._writing(request.ref, value)
        sent = self._environment.now
        self.buffers.remove(request)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            if isinstance(result, messages.Buffer):
                now = self._environment.now
                self.buffers.append(ClientBuffer(request.ref, result.buffer, True, result.v_w, now))
                writing(messages.Committed(result.v_r, result.v_w), data)
                return
            writing(result, data)
            if isinstance(result, messages.Committed) and request.lock:
                self._promises.record_hold(request.ref.object, LockHold(request.since, sent, result.v_w))
            self._call(
                messages.ReleaseWrite(request.ref.ref, request.buffer), ignore_answer, about=(request.ref,)
            )

        self._call(call, then, about=(request.ref,))

    def _lock(self) -> None:
        """Acquire a lock, or release one (§4.7)."""
        mine = [buffer for buffer in self.buffers if buffer.lock]
        if mine:
            self._commit(mine[0])
            return
        locks = [candidate for candidate in self.held.values() if candidate.object in self._promises.locks]
        able = [lock for lock in locks if lock.permissions & Permission.WRITE]
        if able:
            reference = self._rng.choice(able)
            call = messages.AcquireWrite(reference.ref, 16, semantics=Semantics.EXCL, flags=int(Flag.BLANK))
            self._call(call, self._acquiring(reference, writing=True, lock=True), about=(reference,))

    # -- other tasks ----------------------------------------------------------------------------------
    def _look_for_task(self) -> None:
        names = self._environment.task_names()
        if names and len(self.tasks) < 6:
            self.lookup(self._rng.choice(names))

    def _delegate(self) -> None:
        reference = self._some(Permission.DELEGATE)
        assert self.welcome is not None  # noqa: S101 - act looked
        to = self._rng.choice([self.welcome.self_ref, *self.tasks.values()])
        if reference is None or reference.object not in self._promises.keys:
            return
        mask = self._rng.choice((31, 31, 3, 1, 9, 11))
        lifetime_ns = self._rng.choice((0, 0, 0, self._rng.randint(MS, LIFETIME_NS_MAX)))
        self.give(reference, to, mask, lifetime_ns)

    def give(
        self, reference: messages.Reference, to: messages.Reference, mask: int, lifetime_ns: int = 0
    ) -> None:
        """Delegate a reference to a task."""
        call = messages.Copy(reference.ref, to.ref, mask, lifetime_ns=lifetime_ns)
        key = self._promises.keys[reference.object]
        grant = self._promises.grant(
            self._own_keys(), reference.ref, to.object, key, mask & reference.permissions
        )
        self._call(call, self._grant_answered(grant), about=(reference, to))

    def _own_keys(self) -> tuple[int, str]:
        return self.task, self.label

    def _grant_answered(self, grant: Grant) -> AnswerHandler:
        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if not isinstance(result, messages.Failure):
                grant.granted_at = self._environment.now
            if isinstance(result, messages.References):
                for reference in result.references:
                    self._take(reference)

        return then

    def _retire(self) -> None:
        reference = self._some()
        if reference is not None:
            self.take_back(reference)

    def take_back(self, reference: messages.Reference) -> None:
        """Retire the references that were delegated from one."""
        since = self._environment.now

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Done):
                self._promises.retire(reference.ref, since)

        self._call(messages.Retire(reference.ref), then, about=(reference,))

    def _run(self) -> None:
        program = self._some(Permission.EXECUTE | Permission.READ)
        if program is None or program.object not in self._promises.keys:
            return
        handed = [
            delegable
            for delegable in (self._some(Permission.DELEGATE) for _ in range(self._rng.randint(0, 3)))
            if delegable is not None and delegable.object in self._promises.keys
        ]
        inputs = tuple(messages.Handed(given.ref, self._rng.choice((31, 3, 1, 9))) for given in handed)
        host = self._rng.choice(("", *self._environment.host_names()))
        label = self._environment.fresh_label()
        flags = int(self._rng.choice((Flag.NONE, Flag.NON_BLOCKING)))
        groups = tuple(group.ref for group in self.groups.values() if self._rng.random() < 0.7)
        call = messages.Run(
            program.ref, groups, inputs, label=label, brand=Brand.PURE, host=host, flags=flags
        )
        child = StartedTask(self.task)
        self._promises.children.append(child)
        grants: list[Grant] = []
        for reference, mask in [
            (program, 5),
            *zip(handed, (argument.permissions for argument in inputs), strict=True),
        ]:
            key = self._promises.keys.get(reference.object)
            if key is not None:
                grant = self._promises.grant(
                    self._own_keys(), reference.ref, label, key, mask & reference.permissions
                )
                grants.append(grant)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Created):
                child.object = result.reference.object
                for grant in grants:
                    grant.granted_at = self._environment.now
                self._take(result.reference)

        at_host = (at_node(program, host),) if host else ()
        self._call(call, then, about=(program, *handed, *at_host), everybody=not host)

    def start_many(self) -> None:
        """Start more tasks at once than a node of a slow cluster may run."""
        for _ in range(STARTED_AT_ONCE):
            self._run()

    def _control(self) -> None:
        if not self.tasks:
            return
        reference = self._rng.choice(list(self.tasks.values()))
        call = self._rng.choice(
            (
                messages.Pause(reference.ref),
                messages.Resume(reference.ref),
                messages.Resume(reference.ref),
                messages.Stat(reference.ref),
                messages.Describe(reference.ref),
                messages.ReadOnce(reference.ref),
                messages.Delete(reference.ref, int(Flag.HANDLE_ONLY)),
                messages.Delete(reference.ref, int(Flag.DESTROY)),
            )
        )
        own = self.welcome is not None and reference.object == self.welcome.self_ref.object
        ends = isinstance(call, messages.Delete) and call.flags & Flag.DESTROY
        if own or (ends and reference.label == "session"):
            return
        if isinstance(call, messages.Delete) and not ends:
            self.tasks.pop(reference.ref, None)
        # A read of a task returns its exit status, so it waits until the task ends.
        self._call(call, ignore_answer, about=(reference,), waits=isinstance(call, messages.ReadOnce))

    def _select(self) -> None:
        references = [
            reference
            for reference in (self._some(Permission.READ) for _ in range(3))
            if reference is not None
        ]
        if references:
            timeout = self._rng.choice((0, 200 * MS))
            call = messages.Select(tuple(reference.ref for reference in references), timeout_ns=timeout)
            self._call(call, ignore_answer, about=tuple(references))

    def _replicate(self) -> None:
        reference = self._some(Permission.DELEGATE)
        assert self.welcome is not None  # noqa: S101 - act looked
        key = None if reference is None else self._promises.keys.get(reference.object)
        if reference is None or not isinstance(key, bytes) or reference.object in self._promises.locks:
            return
        origin = self._promises.registers[reference.object]
        host = self._rng.choice(self._environment.host_names())
        durable = self._rng.random() < 0.7
        persistence = Persistence.DURABLE if durable else Persistence.VOLATILE
        since = self._environment.now
        call = messages.Copy(reference.ref, self.welcome.self_ref.ref, persistence=persistence, host=host)
        self._may_have(key)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.References):
                for replica in result.references:
                    self._copied(origin, replica, since)

        self._call(call, then, about=(reference, at_node(reference, host)))

    def _copied(self, origin: ValueHistory, replica: messages.Reference, since: int) -> None:
        """Record a replica: it has one of the values that the original had in the meantime."""
        self._take(replica)
        durable = replica.type is ObjectType.DURABLE_BLOB
        promises, home = self._promises, self._home_of(replica)
        if replica.object not in promises.registers:
            promises.register(replica.object, origin.key, home, None, durable=durable)
            copy = promises.registers[replica.object]
            copy.writes.extend(Write(value, since) for value in origin.possible(since))

    def _group(self) -> None:
        """Create a group in the client's home group, or destroy one of the client's groups."""
        assert self.welcome is not None  # noqa: S101 - act looked
        if self.welcome.brand is Brand.PURE:
            return
        own = [name for name in self.groups if len(name) > 1]
        if own and self._rng.random() < 0.3:
            name = self._rng.choice(own)
            reference = self.groups.pop(name)

            def gone(result: messages.AnyResult, data: list[bytes | None]) -> None:
                del data
                if result == messages.Done(1):
                    self._environment.disbanded(self, name)

            self._environment.forget_group(name)
            self._call(messages.Delete(reference.ref, int(Flag.DESTROY)), gone)
            return

        def take_group(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Created) and result.name is not None:
                self.groups[result.name] = result.reference

        home = self.welcome.groups[0]
        self._call(messages.Create(ObjectType.GROUP, (home.ref,)), take_group)

    def _list(self) -> None:
        if self.welcome is not None and self.welcome.brand is not Brand.PURE:
            call = self._rng.choice((messages.ListTasks(), messages.ListNodes()))
            self._call(call, ignore_answer, everybody=True)
