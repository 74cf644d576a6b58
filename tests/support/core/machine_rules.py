"""The rules by which tasks make, hand on, read and write things, on a node and on the model alike.

Not for: choosing how they are drawn (``tests/property/test_core_machine.py``), or what befalls tasks
(``core_fate``).
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from dios.core import effects, events
from dios.core.machine import Core
from dios.core.snapshot import decode, encode
from dios.errors import Code
from dios.ids import Principal
from dios.limits import STREAM_RING_BYTES_DEFAULT
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Brand,
    Buffering,
    CommitIov,
    Deletion,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Persistence,
    Resource,
    Semantics,
)
from tests.support.core.account_model import Bytes, moved
from tests.support.core.driver import BLOBS
from tests.support.core.harness import OWNER, Client
from tests.support.core.lifetime_rules import LIVES, MODES, PEOPLE_MAX, PICKS, Fate
from tests.support.core.model import ALL, Request
from tests.support.core.snapshot import snapshot

CREATABLE = [
    ObjectType.SHMEM_BLOB,
    ObjectType.DURABLE_BLOB,
    ObjectType.GROUP,
    ObjectType.PRIVMEM_BLOB,
    ObjectType.TIMER_BLOB,
    ObjectType.SHMEM_STREAM,
]
KINDS = st.sampled_from(CREATABLE)
RIGHTS = st.sampled_from([ALL, ALL, ALL, 1, 2, 3, 9, 11, 15, 16, 0])
LEVELS = st.sampled_from(list(Semantics))


class CoreMachine(Fate):
    """Random calls of several tasks; after each step the node and the model must say the same."""

    def __init__(self) -> None:
        super().__init__()
        self._arrive(self.node.session(OWNER))
        self._arrive(self.node.session(OWNER))
        # Something to begin with, so that short runs reach the requests.
        for kind, raw in ((ObjectType.SHMEM_BLOB, False), (ObjectType.SHMEM_BLOB, True)):
            self.create(0, kind, 0, 9, raw=raw, counted=True)
            self.lookup(1, len(self.names) - 1, 0, with_group=False)
        self.create(0, ObjectType.DURABLE_BLOB, 0, 9, raw=False, counted=False)
        self.store_catches_up()

    @precondition(lambda self: len(self.clients) < PEOPLE_MAX)
    @rule(foreign=st.booleans(), pick=PICKS)
    def open_session(self, foreign: bool, pick: int) -> None:  # noqa: FBT001 - hypothesis passes by name
        """A session of one of two principals, presenting some name as a group."""
        presented = (self.names[pick % len(self.names)],)
        principal = Principal("uid:7") if foreign else OWNER
        state = self.node.core.state
        group = state.groups.get(presented[0])  # type: ignore[call-overload]
        client = self.node.session(principal, presented)
        welcomed = {joined.object for joined in client.welcome.groups}
        home = state.homes[principal].id
        mine = group is not None and group.owner == principal
        assert welcomed == {home} | ({group.id} if mine and group is not None else set())
        self._arrive(client)

    @precondition(lambda self: len(self.clients) < PEOPLE_MAX)
    @rule(who=PICKS, program=PICKS, group=PICKS, given=PICKS, rights=RIGHTS, with_group=st.booleans())
    def run(self, who: int, program: int, group: int, given: int, rights: int, *, with_group: bool) -> None:
        """A child with an input and perhaps a group."""
        executable = self._handle(None, program, BLOBS)
        client = self._client(who) if executable is None else self.clients[executable.task]
        handed = self._handle(client, given)
        if executable is None or handed is None:
            return
        grouped = self.strange_group(client, group) if with_group else None
        fine = (
            executable.thing.alive
            and bool(executable.rights & Permission.EXECUTE)
            and executable.thing.type is not ObjectType.PRIVMEM_BLOB
            and handed.thing.alive
            and bool(handed.rights & Permission.DELEGATE)
            and handed.thing.type not in {ObjectType.GROUP, ObjectType.PRIVMEM_BLOB}
            and (grouped is None or (grouped.thing.alive and self.model.may_grant(client.task, grouped)))
        )
        life = LIVES[given % len(LIVES)]
        call = messages.Run(
            executable.id,
            () if grouped is None else (grouped.id,),
            (messages.Handed(handed.id, rights, "in", life),),
            flags=int(Flag.NON_BLOCKING),
        )
        room = self._room(self._to_run(client, executable, handed, grouped)) if fine else True
        created = self._granted(client, messages.Created, call, fine=fine, room=room)
        if created is None:
            return
        spawn = next(effect for effect in self.node.outcome.after if isinstance(effect, effects.Spawn))
        welcome = self.node.answers[spawn.task, 0]
        assert isinstance(welcome, messages.Welcome)
        assert welcome.brand is Brand.PURE
        child = Client(self.node, spawn.task, welcome)
        name = None if grouped is None else grouped.thing.name
        self._arrive(child, client.task, set() if name is None else {name})
        person = self.model.people[child.task]
        person.program, person.granted = executable.thing, frozenset(() if name is None else {name})
        executable.thing.run_by += 1
        end = self.node.now + life if life else 0
        self.model.granted(child.task, welcome.inputs[0], handed.rights & rights, handed, end)
        assert welcome.executable is not None
        may = int(Permission.READ | Permission.EXECUTE)
        self.model.granted(child.task, welcome.executable, may, executable)
        self.model.granted(client.task, created.reference, ALL)
        self.node.step(events.TaskStarted(self.node.now, spawn.task, 100))

    # -- objects and references ---------------------------------------------------------------------
    @rule(who=PICKS, kind=KINDS, group=PICKS, raw=st.booleans(), counted=st.booleans(), named=PICKS)
    def create(self, who: int, kind: ObjectType, group: int, named: int, *, raw: bool, counted: bool) -> None:
        """Any creatable type, in a group the task can refer to."""
        client = self._client(who)
        handle = self._handle(client, group, {ObjectType.GROUP})
        fine = (not raw or kind is ObjectType.SHMEM_BLOB) and (handle is None or handle.thing.alive)
        call = messages.Create(
            kind,
            () if handle is None else (handle.id,),
            NameKind(named % 3),
            Deletion.REFERENCE_COUNTED if counted else None,
            buffering=Buffering.RAW if raw else Buffering.DOUBLE,
            data=b"x" * (named % 9) if kind in BLOBS else None,
        )
        named_in = set() if handle is None or call.name_kind is NameKind.ANONYMOUS else {handle.thing.name}
        groups = frozenset(name for name in named_in if name is not None)
        size = named % 9 if kind in BLOBS else STREAM_RING_BYTES_DEFAULT * (kind is ObjectType.SHMEM_STREAM)
        room = self._room(self._to_make(client, groups, size, Resource.REFERENCES))
        created = self._granted(client, messages.Created, call, fine=fine, room=room)
        if created is None:
            return
        thing = self._thing(
            created.reference, name=created.name, groups=groups, creator=client.task, shared=groups
        )
        self.model.granted(client.task, created.reference, ALL)
        if created.name is not None:
            self.names.append(created.name)
            if thing.type is ObjectType.GROUP:
                person = self.model.people[client.task]
                person.created.add(created.name)
                if person.session:
                    person.members.add(created.name)

    @rule(who=PICKS, name=PICKS, group=PICKS, with_group=st.booleans())
    def lookup(self, who: int, name: int, group: int, *, with_group: bool) -> None:
        """Exactly what is reachable is found, and everything else is the empty answer."""
        client = self._client(who)
        handle = self.strange_group(client, group) if with_group else None
        wanted = self.names[name % len(self.names)]
        inside = self.strange_names(client) if handle is None else self.names_in(handle)
        if inside and name % 4:
            wanted = inside[name % len(inside)]
        call = messages.Lookup(wanted, 0 if handle is None else handle.id)
        fine = handle is None or handle.thing.alive
        expected = self.model.resolve(client.task, wanted, handle)
        room = self._room(self._to_hold(client, [self.model.things[thing_id] for thing_id in expected]))
        answer = self._granted(client, messages.References, call, fine=fine, room=room)
        if answer is not None:
            assert {reference.object for reference in answer.references} == expected
            for public in answer.references:
                self.model.granted(client.task, public, ALL)

    @rule(who=PICKS, pick=PICKS, to=PICKS, rights=RIGHTS, durable=st.booleans())
    def delegate(self, who: int, pick: int, to: int, rights: int, *, durable: bool) -> None:
        """Rights only shrink; a durable copy is a new object."""
        handle = self._handle(None, pick, BLOBS if who % 2 else None)
        client = self.clients[handle.task] if handle is not None else self._client(who)
        receiver = self._handle(client, to, {ObjectType.TASK})
        if handle is None or receiver is None:
            return
        person = self.model.people[receiver.thing.id]
        copied = durable and handle.thing.type in BLOBS - {ObjectType.DURABLE_BLOB}
        fine = (
            handle.thing.alive
            and handle.thing.type is not ObjectType.GROUP
            and bool(handle.rights & Permission.DELEGATE)
            and bool(receiver.rights & Permission.WRITE)
            and not person.ended
            and (not durable or handle.thing.type in BLOBS)
            and (copied or handle.thing.type is not ObjectType.PRIVMEM_BLOB or person.id == client.task)
        )
        life = LIVES[pick % len(LIVES)]
        call = messages.Copy(
            handle.id,
            receiver.id,
            rights,
            persistence=Persistence.DURABLE if durable else None,
            lifetime_ns=life,
        )
        kind = messages.References if person.id == client.task else messages.Done
        if (
            self._granted(
                client,
                kind,
                call,
                fine=fine,
                room=not fine or self._to_delegate(client, handle, person.id, copied=copied),
            )
            is None
        ):
            return
        public = next(
            effect.reference for effect in self.node.outcome.after if isinstance(effect, effects.BindSlot)
        )
        if copied:
            origin = handle.thing
            duplicate = self._thing(
                public, name=origin.name, groups=origin.groups, creator=client.task, shared=origin.shared
            )
            assert duplicate.type is ObjectType.DURABLE_BLOB
            duplicate.v_r, duplicate.v_w = origin.v_r, origin.v_w
        else:
            assert public.object == handle.thing.id
        end = self.node.now + life if life else 0
        came = None if copied else handle
        self.model.granted(person.id, public, handle.rights & rights, came, end, given=True)

    @rule(who=PICKS, pick=PICKS, flags=st.sampled_from([0, 0, 16, 256]))
    def delete(self, who: int, pick: int, flags: int) -> None:
        """A handle goes; the object as its deletion mode says."""
        handle = self._handle(None, pick)
        if handle is None or (handle.thing.type is ObjectType.TASK and who % 4):
            return  # ends of tasks are rare, or nothing else would happen
        client = self.clients[handle.task]
        thing, person = handle.thing, self.model.people[client.task]
        stranger = thing.type is ObjectType.GROUP and not self.model.may_grant(client.task, handle)
        stranger = stranger and thing.alive  # nothing of a group that is gone is left to protect
        destroy, may = bool(flags & Flag.DESTROY), bool(handle.rights & Permission.DELETE) and not stranger
        own_end = thing.id == client.task and (destroy or (handle.id == person.self_ref and not flags))
        kept = handle.id in {person.self_ref, person.console_ref} and not own_end
        fine = not kept and not (destroy and (not may or thing.deletion is Deletion.IMMORTAL))
        if self._granted(client, messages.Done, messages.Delete(handle.id, flags), fine=fine) is None:
            return
        if thing.type is ObjectType.TASK and (own_end or destroy):
            self._condemn(thing.id, by=client.task)
            return
        self.model.drop(handle)
        if thing.alive and (destroy or (not flags and may and thing.deletion is Deletion.IMMEDIATE)):
            self.model.destroy(thing)

    def _condemn(self, task: int, *, by: int) -> None:
        person = self.model.people[task]
        if person.session:
            self.model.end(task)
        else:
            self.model.condemn(person, by=by)

    # -- requests -----------------------------------------------------------------------------------
    @rule(who=PICKS, pick=PICKS, mode=MODES, level=LEVELS, other=PICKS, iov=st.sampled_from(AcquireIov))
    def acquire(self, who: int, pick: int, mode: Mode, level: Semantics, other: int, iov: AcquireIov) -> None:
        """Admitted exactly beside what the table allows, with every buffer option but NONE."""
        handle = self._handle(None, pick, BLOBS)
        client = self.clients[handle.task] if handle is not None else self._client(who)
        request = self._request(client, other) if iov in {AcquireIov.TAKE, AcquireIov.BORROW} else None
        if iov is AcquireIov.REUSE:
            request = self._request(client, other)
            handle = None if request is None else request.handle
            mode = mode if request is None else request.mode
        if handle is None or (request is None and iov not in {AcquireIov.CREATE, AcquireIov.NONE}):
            return
        iov = AcquireIov.CREATE if iov is AcquireIov.NONE else iov
        right = Permission.READ if mode is Mode.READ else Permission.WRITE
        if mode is Mode.WRITE and handle.thing.raw:
            right |= Permission.READ  # the object's own memory shows what stands there
        able = handle.rights & right == right and handle.thing.alive
        fine = able and self.model.admitted(handle.thing, level)
        if request is not None:
            moves = iov is not AcquireIov.REUSE
            fine = fine and not request.active
            stuck = request.owner is not None or request.raw or (mode is Mode.WRITE and handle.thing.raw)
            fine = fine and not (moves and stuck)
            fine = fine and not (iov is AcquireIov.BORROW and request.handle is handle)
            if iov is AcquireIov.REUSE and mode is Mode.WRITE:
                fine = fine and (handle.thing.size or 4096) <= request.length
        kind = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
        call = kind(handle.id, semantics=level, iov=iov, buffer=0 if request is None else request.id)
        room = not fine or self._room(self._to_acquire(handle, mode, request, iov))
        answer = self._granted(client, messages.Buffer, call, fine=fine, room=room)
        if answer is None:
            return
        if request is None:
            request = Request(answer.buffer, handle, mode, level, 0, answer.size)
            self.model.requests[answer.buffer] = request
            if mode is Mode.WRITE and not handle.thing.raw:
                request.held = Bytes(answer.size, client.task)
        elif iov is AcquireIov.BORROW:
            request.owner, request.lent = request.handle, (request.mode, request.offset, request.length)
        request.handle, request.mode, request.offset, request.length = handle, mode, 0, answer.size
        moved(request, handle.thing, None if request.owner is None else request.owner.thing)
        if mode is Mode.WRITE and handle.thing.raw:
            self.books.open_raw(self.model, handle.thing, answer.size)
        if mode is Mode.READ or handle.thing.raw:
            request.held = handle.thing.bytes
        self.model.begin(request, level)

    @rule(pick=PICKS)
    def commit(self, pick: int) -> None:
        """Holds exactly when the level held."""
        request = self._request(None, pick)
        if request is None:
            return
        client = self.clients[request.handle.task]
        thing, mode = request.handle.thing, request.mode
        kind = messages.CommitRead if mode is Mode.READ else messages.CommitWrite
        answer = self._call(client, kind(request.handle.id, request.id))
        right = Permission.READ if mode is Mode.READ else Permission.WRITE
        if not (request.handle.rights & right and thing.alive and (request.active or request.committed)):
            assert isinstance(answer, messages.Failure)
            assert answer.code != Code.ECANCELED
            return
        if mode is Mode.WRITE and not self._grows(thing, request.offset + request.length, answer):
            return
        held = self.model.commit(request)
        assert isinstance(answer, messages.Committed if held else messages.Failure)
        if held and mode is Mode.WRITE:
            self._written(thing, request.offset + request.length)

    @rule(pick=PICKS, to=PICKS, move=st.booleans())
    def commit_elsewhere(self, pick: int, to: int, *, move: bool) -> None:
        """A buffer written to another object: valid as its original, owned as the option says."""
        request = self._request(None, pick)
        if request is None:
            return
        client = self.clients[request.handle.task]
        target = self._handle(client, to, BLOBS)
        if target is None:
            return
        iov = CommitIov.MOVE if move else CommitIov.BORROW
        origin = request.handle
        fine = (
            bool(target.rights & Permission.WRITE)
            and target.thing.alive
            and origin.thing.alive
            and origin is not target
            and request.owner is None
            and (request.active or request.committed)
            and not (move and (request.raw or target.thing.raw))
        )
        answer = self._call(client, messages.CommitWrite(target.id, request.id, iov=iov))
        if not fine:
            assert isinstance(answer, messages.Failure)
            assert answer.code != Code.ECANCELED
            return
        serves = self.books.groups(target.thing.shared - request.serves) if move else []
        needs = [(account, Resource.REQUESTS, 1) for account in serves]
        if not self._grows(target.thing, request.length, answer, needs):
            return
        held = self.model.holds(request)
        if request.mode is Mode.READ:
            self.model.commit(request)
        else:
            self.model.abort(request)
            request.committed = True
        assert isinstance(answer, messages.Committed if held else messages.Failure)
        if held:
            self.model.versioned(target.thing, 0, Mode.WRITE)
            self._written(target.thing, request.length)
        if move:
            # Its last acquire was on another object; what a further commit would be judged by is that.
            request.handle, request.mode, request.committed = target, Mode.WRITE, False
            moved(request, target.thing, None)

    @rule(pick=PICKS, committing=st.booleans())
    def release(self, pick: int, *, committing: bool) -> None:
        """A buffer goes back once; committed first where the flag says so."""
        request = self._request(None, pick)
        if request is None:
            return
        client = self.clients[request.handle.task]
        thing, mode = request.handle.thing, request.mode
        kind = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
        flags = int(Flag.RELEASE_COMMIT) if committing else 0
        answer = self._call(client, kind(request.handle.id, request.id, flags))
        if committing and not (request.active and thing.alive):
            assert isinstance(answer, messages.Failure)
            assert answer.code != Code.ECANCELED
            return
        end = request.offset + request.length
        if committing and mode is Mode.WRITE and not self._grows(thing, end, answer):
            return
        held = self.model.commit(request) if committing else True
        assert isinstance(answer, messages.Done if held else messages.Failure)
        if committing and held and mode is Mode.WRITE:
            self._written(thing, end)
        self.model.release(request)

    @rule(pick=PICKS, mode=MODES, level=LEVELS, size=st.integers(0, 12), vector=st.booleans())
    def once(self, pick: int, mode: Mode, level: Semantics, size: int, *, vector: bool) -> None:
        """A compound, alone or in a vector with its neighbours."""
        handle = self._handle(None, pick, BLOBS)
        if handle is None:
            return
        client = self.clients[handle.task]
        right = Permission.READ if mode is Mode.READ else Permission.WRITE
        thing = handle.thing
        fine = bool(handle.rights & right) and thing.alive and self.model.admitted(thing, level)
        data = b"y" * size
        call: messages.PlainCall = messages.ReadOnce(handle.id, semantics=level)
        if mode is Mode.WRITE:
            call = messages.WriteOnce(handle.id, data, semantics=level)
        room = mode is Mode.READ or self._room(self.books.growth(self.model, thing, max(thing.size, size)))
        if vector:
            parts = client.ask(
                effects.AnswerVector, messages.Vector((messages.Stat(1), call, messages.Stat(handle.id)))
            ).parts
            other = effects.AnswerBytes | effects.AnswerAttach
            kinds = [type(part.result) for part in parts if not isinstance(part, other)]
            assert (kinds[1] is not messages.Failure) is (fine and room)
            assert (kinds[0], kinds[2]) == (messages.Failure, messages.References)
        else:
            kind = messages.Buffer if mode is Mode.READ else messages.Committed
            self._granted(client, kind, call, fine=fine, room=room)
        if fine and room:
            self.model.once(thing, mode)
            if mode is Mode.WRITE:
                self._written(thing, size)

    # -- foreign and forged -------------------------------------------------------------------------
    @rule(who=PICKS, pick=PICKS)
    def use_a_foreign_reference(self, who: int, pick: int) -> None:
        """A reference or buffer of anybody else is EBADF, and nothing happens."""
        client = self._client(who)
        others = [handle.id for handle in self.model.handles.values() if handle.task != client.task]
        ref = others[pick % len(others)] if others else pick
        calls = (messages.Stat(ref), messages.ReadOnce(ref), messages.Delete(ref), messages.Copy(ref, ref))
        assert client.refused(calls[pick % len(calls)]) == Code.EBADF
        foreign = [request for request in self.model.requests.values() if request.handle.task != client.task]
        mine = self._handle(client, pick, BLOBS)
        if foreign and mine is not None:
            buffer = foreign[pick % len(foreign)].id
            assert client.refused(messages.ReleaseRead(mine.id, buffer)) == Code.EBADF

    # -- snapshots ----------------------------------------------------------------------------------
    @rule()
    def continue_from_a_snapshot(self) -> None:
        """The state is encoded and decoded to the same state, and the core goes on from the decoded one."""
        state = self.node.core.state
        data = encode(state)
        decoded = decode(data, state.entropy)
        assert encode(decoded) == data
        assert snapshot(decoded) == snapshot(state)
        self.node.core = Core.continued(decoded)

    @invariant()
    def both_say_the_same(self) -> None:
        """Objects, names, counters, references, rights and buffers are exactly the model's."""
        self.compare()
