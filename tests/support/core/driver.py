"""A node and the model beside it: picking among what there is, calling, and learning from answers.

Not for: the rules themselves (``core_rules``). The model is told only what the tasks were told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from dios.core.events import ObjectRecord
from dios.core.model.names import logs_group
from dios.core.model.records import Holder
from dios.core.model.state import State
from dios.errors import Code
from dios.ids import Name, ObjectId, TaskId
from dios.wire import messages
from dios.wire.types import (
    Buffering,
    Mode,
    ObjectType,
    Permission,
    Resource,
    Scope,
)
from tests.support.core.account_model import COUNTED, Books, Need
from tests.support.core.harness import Client, Node
from tests.support.core.model import ALL, Handle, Model, Person, Request, Thing
from tests.support.core.snapshot import snapshot

T = TypeVar("T")
BLOBS = {ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB, ObjectType.PRIVMEM_BLOB}


class Driver(RuleBasedStateMachine):
    """A node, its clients by task, and what the model knows."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.model = Model()
        self.books = Books()
        self.clients: dict[int, Client] = {}
        self.names: list[bytes] = [bytes(range(32)), bytes(32)]
        self.durable: dict[int, ObjectRecord] = {}

    # -- picking ------------------------------------------------------------------------------------
    def _client(self, pick: int) -> Client:
        able = [person for person in self.model.people if self._able(person)]
        if not able:
            return self._arrive(self.node.session())
        return self.clients[able[pick % len(able)]]

    def _able(self, task: int) -> bool:
        person = self.model.people[task]
        return not person.ended and not person.dying

    def _handle(
        self, client: Client | None, pick: int, kinds: set[ObjectType] | None = None
    ) -> Handle | None:
        """A reference of the client, or of anybody who can make calls."""
        mine = [
            handle
            for handle in self.model.handles.values()
            if (self._able(handle.task) if client is None else handle.task == client.task)
            and (kinds is None or handle.thing.type in kinds)
        ]
        return mine[pick % len(mine)] if mine else None

    def _request(self, client: Client | None, pick: int) -> Request | None:
        """A buffer of the client, or of anybody who can make calls."""
        mine = [
            request
            for request in self.model.requests.values()
            if (self._able(request.handle.task) if client is None else request.handle.task == client.task)
        ]
        return mine[pick % len(mine)] if mine else None

    def strange_group(self, client: Client, pick: int) -> Handle | None:
        """A group of the client's, mostly one of which it is no member: there the rights differ."""
        members = self.model.people[client.task].members
        mine = [
            handle
            for handle in self.model.handles.values()
            if handle.task == client.task and handle.thing.type is ObjectType.GROUP
        ]
        strange = [handle for handle in mine if handle.thing.name not in members]
        chosen = strange if strange and pick % 4 else mine
        return chosen[pick % len(chosen)] if chosen else None

    def strange_names(self, client: Client) -> list[bytes]:
        """The names of groups that the client can resolve and is no member of."""
        members = self.model.people[client.task].members
        return [
            thing.name
            for thing in self.model.things.values()
            if thing.alive
            and thing.type is ObjectType.GROUP
            and thing.groups & members
            and thing.name is not None
            and thing.name not in members
        ]

    def names_in(self, group: Handle) -> list[bytes]:
        """The names of what lives in a group."""
        living = [
            thing for thing in self.model.things.values() if thing.alive and group.thing.name in thing.groups
        ]
        return [thing.name for thing in living if thing.name is not None]

    # -- saying -------------------------------------------------------------------------------------
    def _call(self, client: Client, call: messages.AnyCall) -> object:
        """Make a call; a refusal other than a failed commit must have changed nothing."""
        before = snapshot(self.node.core.state)
        answer = client.call(call)
        if isinstance(answer, messages.Failure) and answer.code != Code.ECANCELED:
            assert snapshot(self.node.core.state) == before, call
        return answer

    def _used(self) -> Counter[tuple[tuple[Scope, object], Resource]]:
        """What everybody uses, by the model."""
        tasks = self.node.core.state.tasks.values()
        return self.books.used(self.model, {task.id: len(task.pending) for task in tasks if task.pending})

    def _room(self, needs: Iterable[Need]) -> bool:
        """Whether what a call needs fits all limits."""
        return not self.books.limits or self.books.fits(self._used(), needs)

    def _granted(
        self, client: Client, kind: type[T], call: messages.AnyCall, *, fine: bool, room: bool = True
    ) -> T | None:
        """Make a call that succeeds exactly when the model says so."""
        answer = client.call(call) if fine and room else self._call(client, call)
        if fine and not room:
            assert isinstance(answer, messages.Failure), (call, answer)
            assert answer.code == Code.EDQUOT, (call, answer)
            return None
        assert isinstance(answer, kind if fine else messages.Failure), (call, answer, fine)
        return answer if fine else None  # type: ignore[return-value]

    # -- becoming -----------------------------------------------------------------------------------
    def _thing(self, public: messages.Reference, **options: object) -> Thing:
        thing = Thing(
            public.object,
            public.type,
            options.pop("name", None),  # type: ignore[arg-type]
            options.pop("groups", frozenset()),  # type: ignore[arg-type]
            public.deletion,
            public.buffering is Buffering.RAW,
            size=public.size,
            **options,  # type: ignore[arg-type]
        )
        thing.bytes = Books.first(thing)
        assert thing.id not in self.model.things
        self.model.things[thing.id] = thing
        return thing

    def _arrive(self, client: Client, parent: int = 0, members: set[bytes] | None = None) -> Client:
        """A session or task has begun: know its own object, console, groups and default references."""
        task, welcome = self.node.core.state.tasks[client.task], client.welcome
        home = self.node.core.state.homes[task.principal]
        assert home.name is not None
        if home.id not in self.model.things:
            self.model.things[home.id] = Thing(
                home.id, home.type, home.name, frozenset(), home.deletion, pinned=True
            )
            self.names.append(home.name)
        self._thing(welcome.self_ref, name=welcome.name, groups=frozenset({home.name}), pinned=True)
        self._thing(welcome.console, pinned=True)
        if members is None or not members:
            names = {self.node.core.state.objects[ObjectId(group.object)].name for group in welcome.groups}
            known = {thing.name for thing in self.model.things.values()}
            for public in welcome.groups:
                name = self.node.core.state.objects[ObjectId(public.object)].name
                if name not in known:
                    self._thing(public, name=name)
            assert not members
            members = {name for name in names if name is not None}
        self.names.append(welcome.name)
        self.model.people[client.task] = Person(
            client.task,
            task.principal,
            session=parent == 0,
            members=set(members),
            self_ref=welcome.self_ref.ref,
            console=welcome.console.object,
            console_ref=welcome.console.ref,
            parent=parent,
        )
        self.clients[client.task] = client
        everything = ALL & ~int(Permission.EXECUTE)
        self.model.granted(client.task, welcome.self_ref, everything)
        self.model.granted(client.task, welcome.console, int(Permission.READ | Permission.WRITE) | 8)
        for public in welcome.groups:
            self.model.granted(client.task, public, ALL)
        return client

    # -- comparing ----------------------------------------------------------------------------------
    def compare(self) -> None:
        """Objects, names, counters, references, rights and buffers are exactly the model's."""
        model, state = self.model, self.node.core.state
        model.collect()
        assert set(state.objects) == {thing.id for thing in model.things.values() if thing.alive}
        for number, target in state.objects.items():
            thing = model.things[number]
            counters = (target.a_r, target.a_w, target.v_r, target.v_w)
            active = (model.active(thing, Mode.READ), model.active(thing, Mode.WRITE))
            if target.type in BLOBS:
                assert counters == (*active, thing.v_r, thing.v_w), thing
                assert target.size == thing.size
            assert set(target.references) == model.holders(thing)
        held = {
            (reference.id, task.id, reference.object.id, int(reference.permissions))
            for task in state.tasks.values()
            for reference in task.table
        }
        assert held == {
            (handle.id, handle.task, handle.thing.id, handle.rights) for handle in model.handles.values()
        }
        buffers = {
            (buffer.id, task.id, buffer.active)
            for task in state.tasks.values()
            for buffer in task.buffers.values()
        }
        assert buffers == {
            (request.id, request.handle.task, request.active) for request in model.requests.values()
        }
        for person in model.people.values():
            task = state.tasks.get(TaskId(person.id))
            assert task is None or _asked_for(state, task) == person.members
        self._compare_accounts()

    def _compare_accounts(self) -> None:
        """Everybody's account says what adding up from nothing gives."""
        used, state = self._used(), self.node.core.state
        accounts = {
            (Scope.PRINCIPAL, principal.subject): principal for principal in state.principals.values()
        }
        accounts |= {(Scope.TASK, task.id): task.account for task in state.tasks.values()}  # type: ignore[misc]
        for (scope, subject), account in accounts.items():
            expected = [used[(scope, subject), resource] for resource in COUNTED]
            assert [account.used[resource] for resource in COUNTED] == expected, (scope, subject)
        for name, group in state.groups.items():
            assert group.account is not None
            expected = [used[(Scope.GROUP, name), resource] for resource in COUNTED]
            assert [group.account.used[resource] for resource in COUNTED] == expected


def _asked_for(state: State, task: Holder) -> set[Name]:
    """A task's groups without that of its principal's logs, which every session is a member of."""
    home = state.homes.get(task.principal)
    logs = None if home is None or home.name is None else logs_group(home.name)
    return {name for name in task.memberships if name != logs}
