"""What sessions and tasks of a simulated cluster do with each other: lock, delegate, take back, start, copy.

Not for: objects and their values (``dios.sim.cluster.simulated_client``).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct

from dios.ids import BufferId, NodeId, TaskId
from dios.sim.cluster.promises import Child, Grant, Hold, Register, Write
from dios.sim.cluster.simulated_client import Answered, Around, Caller, at_node, whatever
from dios.sim.event_queue import MS
from dios.wire import messages
from dios.wire.types import (
    Brand,
    Flag,
    ObjectType,
    Permission,
    Persistence,
    Semantics,
)

LIFETIME_NS_MAX: Final = 3_000 * MS


class Request(Struct):
    """A buffer that the caller holds."""

    ref: messages.Reference
    buffer: int
    writing: bool
    v_w: int
    since: int
    lock: bool = False


class Inhabitant(Caller):
    """A caller who is not alone."""

    def __init__(self, rng: Random, around: Around, node: NodeId, task: TaskId, who: str) -> None:
        super().__init__(rng, around, node, task, who)
        self.requests: Final[list[Request]] = []

    def choices(self) -> list[tuple[int, Callable[[], None]]]:
        """What it may do, and how often."""
        return [
            *super().choices(),
            (10, self._acquire),
            (14, self._settle),
            (6, self._lock),
            (8, self._look_for_task),
            (10, self._delegate),
            (5, self._retire),
            (5, self._run),
            (4, self._control),
            (3, self._select),
            (4, self._replicate),
            (2, self._group),
            (2, self._ask_around),
        ]

    # -- requests -------------------------------------------------------------------------------------
    def _acquire(self) -> None:
        writing = self._rng.random() < 0.5
        reference = self._some(Permission.WRITE if writing else Permission.READ)
        if reference is None or reference.object in self._ledger.locks or len(self.requests) > 6:
            return
        level = self._rng.choice(list(Semantics))
        call = (
            messages.AcquireWrite(reference.ref, 16, semantics=level, flags=int(Flag.BLANK))
            if writing
            else messages.AcquireRead(reference.ref, semantics=level)
        )
        self._ask(call, self._acquiring(reference, writing=writing), about=(reference,))

    def _acquiring(self, reference: messages.Reference, *, writing: bool, lock: bool = False) -> Answered:
        since = self._around.now

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            if isinstance(result, messages.Buffer):
                now = self._around.now
                self.requests.append(Request(reference, result.buffer, writing, result.v_w, now, lock))
                if not writing and data[0] is not None:
                    self._ledger.read(reference.object, data[0], since)
            self._lost(reference, result)

        return then

    def _settle(self) -> None:
        """Commit or release one of the buffers."""
        if not self.requests:
            return
        request = self._rng.choice(self.requests)
        if self._rng.random() < 0.5 and not request.lock:
            self._release(request)
        elif not request.writing:
            self._ask(messages.CommitRead(request.ref.ref, request.buffer), whatever, about=(request.ref,))
        else:
            self._commit(request)

    def _release(self, request: Request) -> None:
        self.requests.remove(request)
        kind = messages.ReleaseWrite if request.writing else messages.ReleaseRead
        self._ask(kind(request.ref.ref, request.buffer), whatever, about=(request.ref,))

    def _commit(self, request: Request) -> None:
        value = self._rng.randbytes(16)
        inside = self._rng.random() < 0.5
        if not inside:
            self._around.fill(self, BufferId(request.buffer), value)
        call = messages.CommitWrite(
            request.ref.ref, request.buffer, flags=int(Flag.REPLACE), data=value if inside else None
        )
        writing = self._writing(request.ref, value)
        sent = self._around.now
        self.requests.remove(request)

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            writing(result, data)
            if isinstance(result, messages.Committed) and request.lock:
                self._ledger.held(request.ref.object, Hold(request.since, sent, result.v_w))
            self._ask(messages.ReleaseWrite(request.ref.ref, request.buffer), whatever, about=(request.ref,))

        self._ask(call, then, about=(request.ref,))

    def _lock(self) -> None:
        """Take a lock, or let go of one (§4.7)."""
        mine = [one for one in self.requests if one.lock]
        if mine:
            self._commit(mine[0])
            return
        locks = [one for one in self.held.values() if one.object in self._ledger.locks]
        able = [one for one in locks if one.permissions & Permission.WRITE]
        if able:
            reference = self._rng.choice(able)
            call = messages.AcquireWrite(reference.ref, 16, semantics=Semantics.EXCL, flags=int(Flag.BLANK))
            self._ask(call, self._acquiring(reference, writing=True, lock=True), about=(reference,))

    # -- other tasks ----------------------------------------------------------------------------------
    def _look_for_task(self) -> None:
        names = self._around.task_names()
        if names and len(self.tasks) < 6:
            self.look(self._rng.choice(names))

    def _delegate(self) -> None:
        reference = self._some(Permission.DELEGATE)
        assert self.welcome is not None  # noqa: S101 - act looked
        to = self._rng.choice([self.welcome.self_ref, *self.tasks.values()])
        if reference is None or reference.object not in self._ledger.keys:
            return
        mask = self._rng.choice((31, 31, 3, 1, 9, 11))
        lifetime_ns = self._rng.choice((0, 0, 0, self._rng.randint(MS, LIFETIME_NS_MAX)))
        call = messages.Copy(reference.ref, to.ref, mask, lifetime_ns=lifetime_ns)
        key = self._ledger.keys[reference.object]
        given = self._ledger.lend(self._me(), reference.ref, to.object, key, mask & reference.permissions)
        self._ask(call, self._giving(given), about=(reference, to))

    def _me(self) -> tuple[int, str]:
        return self.task, self.label

    def _giving(self, given: Grant) -> Answered:
        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if not isinstance(result, messages.Failure):
                given.given_at = self._around.now
            if isinstance(result, messages.References):
                for reference in result.references:
                    self._take(reference)

        return then

    def _retire(self) -> None:
        reference = self._some()
        if reference is None:
            return
        since = self._around.now

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Done):
                self._ledger.retire(reference.ref, since)

        self._ask(messages.Retire(reference.ref), then, about=(reference,))

    def _run(self) -> None:
        program = self._some(Permission.EXECUTE | Permission.READ)
        if program is None or program.object not in self._ledger.keys:
            return
        handed = [
            one
            for one in (self._some(Permission.DELEGATE) for _ in range(self._rng.randint(0, 3)))
            if one is not None and one.object in self._ledger.keys
        ]
        inputs = tuple(messages.Handed(one.ref, self._rng.choice((31, 3, 1, 9))) for one in handed)
        host = self._rng.choice(("", *self._around.host_names()))
        label = self._around.fresh_label()
        flags = int(self._rng.choice((Flag.NONE, Flag.NON_BLOCKING)))
        groups = tuple(one.ref for one in self.groups.values() if self._rng.random() < 0.7)
        call = messages.Run(
            program.ref, groups, inputs, label=label, brand=Brand.PURE, host=host, flags=flags
        )
        child = Child(self.task)
        self._ledger.children.append(child)
        grants: list[Grant] = []
        for reference, mask in [(program, 5), *zip(handed, (one.permissions for one in inputs), strict=True)]:
            key = self._ledger.keys.get(reference.object)
            if key is not None:
                grant = self._ledger.lend(self._me(), reference.ref, label, key, mask & reference.permissions)
                grant.given_at = None

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Created):
                child.object = result.reference.object
                for grant in grants:
                    grant.given_at = self._around.now
                self._take(result.reference)

        where = (at_node(program, host),) if host else ()
        self._ask(call, then, about=(program, *handed, *where), everybody=not host)

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
        # The status of a task is read when it has ended.
        self._ask(call, whatever, about=(reference,), waits=isinstance(call, messages.ReadOnce))

    def _select(self) -> None:
        references = [one for one in (self._some(Permission.READ) for _ in range(3)) if one is not None]
        if references:
            timeout = self._rng.choice((0, 200 * MS))
            call = messages.Select(tuple(one.ref for one in references), timeout_ns=timeout)
            self._ask(call, whatever, about=tuple(references))

    def _replicate(self) -> None:
        reference = self._some(Permission.DELEGATE)
        assert self.welcome is not None  # noqa: S101 - act looked
        key = None if reference is None else self._ledger.keys.get(reference.object)
        if reference is None or not isinstance(key, bytes) or reference.object in self._ledger.locks:
            return
        origin = self._ledger.registers[reference.object]
        host = self._rng.choice(self._around.host_names())
        durable = self._rng.random() < 0.7
        persistence = Persistence.DURABLE if durable else Persistence.VOLATILE
        since = self._around.now
        call = messages.Copy(reference.ref, self.welcome.self_ref.ref, persistence=persistence, host=host)
        self._ledger.entitle(self.task, key, int(Permission.ALL))

        def then(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.References):
                for made in result.references:
                    self._copied(origin, made, since)

        self._ask(call, then, about=(reference, at_node(reference, host)))

    def _copied(self, origin: Register, made: messages.Reference, since: int) -> None:
        """A copy was made: it has one of the values that the original had meanwhile."""
        self._take(made)
        durable = made.type is ObjectType.DURABLE_BLOB
        ledger, home = self._ledger, self._home_of(made)
        if made.object not in ledger.registers:
            ledger.register(made.object, origin.key, home, None, durable=durable)
            copy = ledger.registers[made.object]
            copy.writes.extend(Write(value, since) for value in origin.possible(since))

    def _group(self) -> None:
        """Make a group in one's home, or destroy one's own."""
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
                    self._around.disbanded(self, name)

            self._around.forget_group(name)
            self._ask(messages.Delete(reference.ref, int(Flag.DESTROY)), gone)
            return

        def made(result: messages.AnyResult, data: list[bytes | None]) -> None:
            del data
            if isinstance(result, messages.Created) and result.name is not None:
                self.groups[result.name] = result.reference

        home = self.welcome.groups[0]
        self._ask(messages.Create(ObjectType.GROUP, (home.ref,)), made)

    def _ask_around(self) -> None:
        if self.welcome is not None and self.welcome.brand is not Brand.PURE:
            call = self._rng.choice((messages.ListTasks(), messages.ListNodes()))
            self._ask(call, whatever, everybody=True)
