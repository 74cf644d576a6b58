"""The rules by which tasks, time, limits, the store and death act on a node and on the model alike.

Not for: what tasks do with things (``core_rules``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dios.core import events
from dios.core.events import ObjectRecord
from dios.errors import Code
from dios.ids import TaskId, Ticket
from dios.limits import TASK_MEMORY_BYTES_DEFAULT
from dios.wire import messages
from dios.wire.types import AcquireIov, Cause, Flag, Mode, ObjectType, Permission, Resource, Scope
from tests.support.core.account_model import COUNTED, Account, Books, Need
from tests.support.core.driver import Driver
from tests.support.core.harness import OWNER, Client
from tests.support.core.model import Handle, Request, Thing

PEOPLE_MAX = 12
PICKS = st.integers(0, 10_000)
MODES = st.sampled_from(list(Mode))
LIVES = [0, 0, 0, 0, 30, 90]
SCOPES = [Scope.TASK, Scope.GROUP, Scope.PRINCIPAL]
_NEW_TASK_REFERENCES = 5  # to itself, its console, its group, its input and its program


class Fate(Driver):
    """Limits, time, and what befalls tasks and the store."""

    # -- what calls need ----------------------------------------------------------------------------
    def _to_make(self, client: Client, groups: frozenset[bytes], size: int, *more: Resource) -> list[Need]:
        whose = self.books.whose(self.model, client.task, groups)
        needs = [(account, resource, 1) for account in whose for resource in (Resource.OBJECTS, *more)]
        return needs + [(account, Resource.BYTES, size) for account in whose]

    def _to_hold(self, client: Client, things: Iterable[Thing]) -> list[Need]:
        whose = [
            account for thing in things for account in self.books.whose(self.model, client.task, thing.shared)
        ]
        return [(account, Resource.REFERENCES, 1) for account in whose]

    def _to_run(self, client: Client, program: Handle, handed: Handle, grouped: Handle | None) -> list[Need]:
        above = list(self.books.above(self.model, client.task))
        named = [] if grouped is None or grouped.thing.name is None else [grouped.thing.name]
        things = [program.thing, handed.thing, *([] if grouped is None else [grouped.thing])]
        shared = [name for thing in things for name in thing.shared]
        return [
            *((account, Resource.REFERENCES, _NEW_TASK_REFERENCES + 1) for account in above),
            *((account, Resource.TASKS, 1) for account in [*above, *self.books.groups(named)]),
            *((account, Resource.REFERENCES, 1) for account in self.books.groups(shared)),
        ]

    def _to_delegate(self, client: Client, handle: Handle, to: int, *, copied: bool) -> bool:
        whose = self.books.whose(self.model, to, handle.thing.shared)
        needs = [(account, Resource.REFERENCES, 1) for account in whose]
        if copied:
            needs += self._to_make(client, handle.thing.shared, handle.thing.size)
        return self._room(needs)

    def _to_acquire(self, handle: Handle, mode: Mode, request: Request | None, iov: AcquireIov) -> list[Need]:
        thing, needs = handle.thing, []
        length = thing.size or 4096
        if request is None:
            whose = self.books.whose(self.model, handle.task, thing.shared)
            needs = [(account, Resource.REQUESTS, 1) for account in whose]
            if mode is Mode.WRITE and not thing.raw:
                needs += [
                    (account, Resource.BYTES, length) for account in self.books.above(self.model, handle.task)
                ]
        elif iov is not AcquireIov.REUSE:
            needs = [
                (account, Resource.REQUESTS, 1)
                for account in self.books.groups(thing.shared - request.serves)
            ]
        if mode is Mode.WRITE and thing.raw:
            needs += self.books.growth(self.model, thing, length)
        return needs

    def _grows(self, thing: Thing, end: int, answer: object, more: Iterable[Need] = ()) -> bool:
        """Whether a commit had room; otherwise it must have been refused for that."""
        needs = [*self.books.growth(self.model, thing, max(thing.size, end)), *more]
        if self._room(needs):
            return True
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.EDQUOT
        return False

    def _written(self, thing: Thing, end: int) -> None:
        thing.size = max(thing.size, end)
        self.books.rewrite(self.model, thing)

    # -- limits and what is told of them ------------------------------------------------------------
    def _account(self, client: Client, scope: Scope, pick: int) -> tuple[Account, messages.SetLimits] | None:
        """Some account that the client can set limits of, and a call that sets none yet."""
        none = (messages.Bound(Resource.OBJECTS, None),)
        if scope is Scope.PRINCIPAL:
            principal = self.model.people[client.task].principal
            return (scope, principal), messages.SetLimits(scope, none, principal=principal)
        kind = ObjectType.TASK if scope is Scope.TASK else ObjectType.GROUP
        handle = self._handle(client, pick, {kind})
        if handle is None or not handle.thing.alive:
            return None
        person = self.model.people.get(handle.thing.id)
        if scope is Scope.TASK and (person is None or person.session or person.ended):
            return None
        if scope is Scope.GROUP and (handle.thing.pinned or handle.thing.name is None):
            return None
        subject = handle.thing.id if scope is Scope.TASK else handle.thing.name
        return (scope, subject), messages.SetLimits(scope, none, handle.id)

    @rule(who=PICKS, pick=PICKS, scope=st.sampled_from(SCOPES), resource=st.sampled_from(COUNTED), room=PICKS)
    def set_limits(self, who: int, pick: int, scope: Scope, resource: Resource, room: int) -> None:
        """The node's own user limits somebody, a little above or below what is used, or lifts a limit."""
        able = [
            person.id
            for person in self.model.people.values()
            if self._able(person.id) and person.session and person.principal == OWNER
        ]
        if not able:
            return
        client = self.clients[able[who % len(able)]]
        chosen = self._account(client, scope, pick)
        if chosen is None:
            return
        account, call = chosen
        wide = 10 if resource is Resource.BYTES else 1
        value = max(self._used()[account, resource] + wide * (room % 7 - 2), 0) if room % 2 else None
        self._granted(
            client,
            messages.LimitRows,
            messages.SetLimits(scope, (messages.Bound(resource, value),), call.ref, call.principal),
            fine=True,
        )
        self.books.limits.pop((account, resource), None)
        if value is not None:
            self.books.limits[account, resource] = value

    @rule(who=PICKS, pick=PICKS)
    def describe(self, who: int, pick: int) -> None:
        """Who may read a task that was started is told what it uses, and nobody else."""
        client = self._client(who)
        handle = self._handle(client, pick, {ObjectType.TASK})
        if handle is None:
            return
        fine = bool(handle.rights & Permission.READ) and not self.model.people[handle.thing.id].session
        told = self._granted(client, messages.TaskDetail, messages.Describe(handle.id), fine=fine)
        if told is not None:
            used = self._used()
            expected = [used[(Scope.TASK, handle.thing.id), resource] for resource in COUNTED]
            assert [told.usage.used[resource] for resource in COUNTED] == expected
            assert told.memory_limit_bytes == TASK_MEMORY_BYTES_DEFAULT

    @rule(pick=PICKS, everyone=st.booleans())
    def retire(self, pick: int, *, everyone: bool) -> None:
        """Just what was delegated from a reference goes, or of its object to anybody else."""
        handle = self._handle(None, pick)
        if handle is None or (handle.thing.type is ObjectType.TASK and pick % 4):
            return
        client = self.clients[handle.task]
        victims = self.model.came_from(handle)
        if everyone:
            every = [
                delegated
                for delegated in self.model.handles.values()
                if delegated.thing is handle.thing and delegated.given and handle.thing.alive
            ]
            further = [other for delegated in every for other in self.model.came_from(delegated)]
            victims = [
                reached
                for reached in {id(reached): reached for reached in every + further}.values()
                if reached.task != client.task
            ]
        fine = not everyone or bool(handle.rights & Permission.DELETE)
        call = messages.Retire(handle.id, int(Flag.EVERYONE) if everyone else 0)
        answer = self._granted(client, messages.Done, call, fine=fine)
        if answer is not None:
            assert answer.value == len(victims)
            for victim in victims:
                self.model.drop(victim)

    # -- tasks, time and the store ------------------------------------------------------------------
    @rule(who=PICKS, pick=PICKS, resume=st.booleans())
    def pause_or_resume(self, who: int, pick: int, *, resume: bool) -> None:
        """Pausing changes no reference, counter or right of anybody."""
        client = self._client(who)
        handle = self._handle(client, pick, {ObjectType.TASK})
        if handle is not None:
            self._call(client, messages.Resume(handle.id) if resume else messages.Pause(handle.id))

    @rule(who=PICKS, pick=PICKS, mode=MODES)
    def attach(self, who: int, pick: int, mode: Mode) -> None:
        """Attaching an end changes nothing the model knows."""
        client = self._client(who)
        handle = self._handle(client, pick, {ObjectType.SHMEM_STREAM})
        if handle is not None:
            self._call(client, messages.Attach(handle.id, mode))

    @rule(who=PICKS, pick=PICKS, patience=st.sampled_from([0, 5, 50, None]))
    def select(self, who: int, pick: int, patience: int | None) -> None:
        """A select may wait; time, deletion and death must not upset it."""
        client = self._client(who)
        handle = self._handle(client, pick)
        if handle is not None and len(self.node.core.state.pending) < 50:
            client.send(messages.Select((handle.id,), timeout_ns=patience))

    @rule(passed=st.integers(1, 60))
    def time_passes(self, passed: int) -> None:
        """Deadlines come due."""
        self.node.now += passed
        self.node.step(events.TimerFired(self.node.now))
        self.model.expire(self.node.now)

    @precondition(lambda self: len(self.clients) > 2)
    @rule(who=PICKS, crash=st.booleans())
    def end(self, who: int, *, crash: bool) -> None:
        """A process or a session is gone."""
        living = [candidate for candidate in self.model.people.values() if not candidate.ended]
        if not living:
            return
        person = living[who % len(living)]
        if person.session:
            reason = "sent what is no message" if crash else ""
            self.node.step(events.Disconnected(self.node.now, TaskId(person.id), reason))
        else:
            self.node.end(TaskId(person.id), Cause.SIGNAL if crash else Cause.EXITED)
        self.model.end(person.id, crash=crash)
        if len(self.clients) >= PEOPLE_MAX:
            del self.clients[person.id]  # room for another

    @rule()
    def store_catches_up(self) -> None:
        """Everything issued is durable."""
        last = Ticket(self.node.core.state.next_ticket - 1)
        self.node.step(events.Persisted(self.node.now, last))
        self.durable = dict(self.node.stored)

    @rule()
    def store_fails(self) -> None:
        """Nothing since the last catching up took place: what was made is gone, what was gone is back."""
        state = self.node.core.state
        first, last = Ticket(state.settled + 1), Ticket(state.next_ticket - 1)
        if first > last:
            return
        written = dict(self.node.stored)
        self.node.step(events.PersistFailed(self.node.now, first, last, int(Code.ENOSPC), "full"))
        self.node.step(events.Persisted(self.node.now, last))
        for number in written.keys() - self.durable.keys():
            self.model.destroy(self.model.things[number])
        for number, record in self.durable.items():
            self._go_back(number, record, written.get(number))
        self._limits_go_back()
        self.node.stored = dict(self.durable)

    def _limits_go_back(self) -> None:
        """What durable groups and homes say of limits is what was stored."""
        homes = {home.id for home in self.node.core.state.homes.values()}
        for thing in self.model.things.values():
            if thing.type is not ObjectType.GROUP or thing.name is None:
                continue
            record = self.durable.get(thing.id)
            if record is None:
                continue
            account: Account = (Scope.GROUP, thing.name)
            if thing.id in homes:
                account = (Scope.PRINCIPAL, record.owner)
            self.books.limits = {key: limit for key, limit in self.books.limits.items() if key[0] != account}
            self.books.limits |= {
                (account, bound.resource): bound.value for bound in record.limits if bound.value is not None
            }

    def _go_back(self, number: int, record: ObjectRecord, written: ObjectRecord | None) -> None:
        if written is record:
            return
        thing = self.model.things[number]
        if written is None:
            # It is back, but whoever held the old one holds a zombie.
            thing = replace(thing, alive=True, reinstated=True, v_r=record.v_r, log=[])
            self.model.things[number] = thing
            thing.bytes = Books.first(thing)
        thing.size, thing.v_w = record.size, record.v_w
        if thing.type is ObjectType.DURABLE_BLOB:
            thing.bytes.size = record.size
        thing.log.append(("dirty", 0, Mode.WRITE))
