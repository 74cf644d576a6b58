"""A small model of a node in plain dicts: what the thesis says, without how the core does it.

Not for: messages or effects. It knows who holds what with which rights, which requests are active, and
what happened to each object since; validity of a commit is read off that history, not off counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dios.limits import FAILED_PROGRAMS_KEPT
from dios.wire.messages import Reference
from dios.wire.types import Deletion, Mode, ObjectType, Permission, Semantics
from tests.support.core.account_model import Books, Bytes, moved

ALL = int(Permission.ALL)


@dataclass
class Thing:
    """A physical object. ``log`` has what happened to it: (what, by which buffer, in which mode)."""

    id: int
    type: ObjectType
    name: bytes | None
    groups: frozenset[bytes]
    deletion: Deletion
    raw: bool = False
    pinned: bool = False
    reinstated: bool = False
    run_by: int = 0
    """By how many tasks that run, or have failed and are kept, it is the program."""
    creator: int = 0
    """The task whose use it is; 0 for what the node made."""
    shared: frozenset[bytes] = frozenset()
    """The groups whose use it is as well."""
    opened: bool = False
    """Whether a writer was given its own memory."""
    bytes: Bytes = field(default_factory=lambda: Bytes(0, 0))
    alive: bool = True
    size: int = 0
    v_r: int = 0
    v_w: int = 0
    log: list[tuple[str, int, Mode]] = field(default_factory=list)


@dataclass
class Handle:
    """A reference: whose, to what, with which rights."""

    id: int
    task: int
    thing: Thing
    rights: int
    origin: Handle | None = None
    expires: int = 0
    given: bool = False
    """Whether it was delegated, by whomever."""


@dataclass
class Request:
    """A buffer and the request on it; ``since`` is the place in the object's log it counts from."""

    id: int
    handle: Handle
    mode: Mode
    level: Semantics
    offset: int
    length: int
    since: int = 0
    active: bool = False
    committed: bool = False
    owner: Handle | None = None
    lent: tuple[Mode, int, int] = (Mode.READ, 0, 0)
    held: Bytes | None = None
    serves: frozenset[bytes] = frozenset()
    """The groups whose use it is."""

    @property
    def raw(self) -> bool:
        """Whether it writes the object's own bytes."""
        return self.mode is Mode.WRITE and self.handle.thing.raw


@dataclass
class Person:
    """A task or session."""

    id: int
    principal: str
    session: bool
    members: set[bytes]
    self_ref: int
    console: int
    console_ref: int
    parent: int = 0
    created: set[bytes] = field(default_factory=set)
    dying: bool = False
    failed: bool = False
    """Whether whoever condemned it was somebody else."""
    ended: bool = False
    program: Thing | None = None
    granted: frozenset[bytes] = frozenset()
    """The groups that it was started in."""


class Model:
    """Everything a node has to remember, the simple way."""

    def __init__(self) -> None:
        self.things: dict[int, Thing] = {}
        self.handles: dict[int, Handle] = {}
        self.requests: dict[int, Request] = {}
        self.people: dict[int, Person] = {}
        self.failed_programs: list[Thing] = []

    # -- looking ------------------------------------------------------------------------------------
    def handle(self, task: int, ref: int) -> Handle | None:
        """The task's own reference."""
        handle = self.handles.get(ref)
        return handle if handle is not None and handle.task == task else None

    def holders(self, thing: Thing) -> set[int]:
        """The references that count."""
        return (
            {handle.id for handle in self.handles.values() if handle.thing is thing} if thing.alive else set()
        )

    def active(self, thing: Thing, mode: Mode) -> int:
        """a_r or a_w."""
        return sum(
            1
            for request in self.requests.values()
            if request.active and request.mode is mode and request.handle.thing is thing
        )

    def admitted(self, thing: Thing, level: Semantics) -> bool:
        """The acquire columns."""
        readers, writers = self.active(thing, Mode.READ), self.active(thing, Mode.WRITE)
        return not (
            (level in {Semantics.EXCL, Semantics.MRSW} and writers)
            or (level in {Semantics.EXCL, Semantics.SRMW} and readers)
        )

    def holds(self, request: Request) -> bool:
        """The commit columns, from what others did since the acquire."""
        thing = request.handle.thing
        since = thing.log[request.since :]
        others = [entry for entry in since if entry[1] != request.id]
        if any(event == "dirty" for event, _, _ in since):
            return False
        busy = {
            rival.mode
            for rival in self.requests.values()
            if rival.active and rival is not request and rival.handle.thing is thing
        }
        done = {mode for event, _, mode in others if event == "commit"}
        if request.level is Semantics.EXCL:
            return not others and not busy
        if request.level is Semantics.MRSW:
            return Mode.WRITE not in done | busy
        if request.level is Semantics.SRMW:
            return Mode.READ not in done | busy
        return True

    def resolve(self, task: int, name: bytes, group: Handle | None) -> set[int]:
        """What a resolution gives: the ids of objects within the task's reach."""
        members = self.people[task].members
        if group is not None:
            wanted = {group.thing.name} & set(members)
        else:
            wanted = set(members)
        return {
            thing.id
            for thing in self.things.values()
            if thing.alive
            and thing.name == name
            and thing.groups & wanted
            and (
                thing.type is not ObjectType.PRIVMEM_BLOB
                or any(handle.task == task and handle.thing is thing for handle in self.handles.values())
            )
        }

    def may_grant(self, task: int, handle: Handle) -> bool:
        """Table 4.2, last column."""
        person = self.people[task]
        return handle.thing.name in person.members | person.created

    # -- changing -----------------------------------------------------------------------------------
    def granted(
        self,
        task: int,
        public: Reference,
        rights: int,
        origin: Handle | None = None,
        expires: int = 0,
        *,
        given: bool = False,
    ) -> None:
        """A reference was given; it must have exactly these rights and end, and lead where the model says."""
        assert public.permissions == rights
        if origin is not None and origin.expires:
            expires = min(expires or origin.expires, origin.expires)
        assert public.expires_ns == expires
        assert public.ref not in self.handles
        thing = self.things[public.object]
        assert thing.alive
        thing.reinstated = False
        self.handles[public.ref] = Handle(
            public.ref, task, thing, rights, origin, expires, given or origin is not None
        )

    def begin(self, request: Request, level: Semantics) -> None:
        """An acquire."""
        request.level, request.active, request.committed = level, True, False
        log = request.handle.thing.log
        log.append(("begin", request.id, request.mode))
        request.since = len(log)

    def commit(self, request: Request, *, also: bool = True) -> bool:
        """A commit: whether it holds."""
        held = self.holds(request) and also
        thing = request.handle.thing
        request.active, request.committed = False, True
        if held:
            self.versioned(thing, request.id, request.mode)
            request.since = len(thing.log)
        elif request.raw:
            thing.log.append(("dirty", 0, Mode.WRITE))
        return held

    @staticmethod
    def versioned(thing: Thing, by: int, mode: Mode) -> None:
        """A successful commit."""
        thing.log.append(("commit", by, mode))
        if mode is Mode.READ:
            thing.v_r += 1
        else:
            thing.v_w += 1

    @staticmethod
    def once(thing: Thing, mode: Mode) -> None:
        """A compound of acquire, commit and release."""
        thing.log.append(("begin", 0, mode))
        Model.versioned(thing, 0, mode)

    def abort(self, request: Request) -> None:
        """An active request ends without commit."""
        if request.active:
            request.active = False
            if request.raw:
                request.handle.thing.log.append(("dirty", 0, Mode.WRITE))

    def release(self, request: Request) -> None:
        """A buffer goes back, or home to whom it was borrowed from."""
        self.abort(request)
        if request.owner is None:
            del self.requests[request.id]
            return
        request.handle, request.owner = request.owner, None
        request.mode, request.offset, request.length = request.lent
        request.committed = False
        moved(request, request.handle.thing, None)

    def drop(self, handle: Handle) -> None:
        """A reference is deleted: its own buffers go, borrowed ones go home."""
        for request in list(self.requests.values()):
            if request.owner is handle:
                self.abort(request)
                del self.requests[request.id]
            elif request.handle is handle:
                self.release(request)
        del self.handles[handle.id]
        for other in self.handles.values():
            if other.origin is handle:
                other.origin = handle.origin

    def came_from(self, handle: Handle) -> list[Handle]:
        """What was delegated from a reference, directly and further on."""
        children = [child for child in self.handles.values() if child.origin is handle]
        return children + [further for child in children for further in self.came_from(child)]

    def expire(self, now: int) -> None:
        """Time has passed."""
        for handle in [candidate for candidate in self.handles.values() if 0 < candidate.expires <= now]:
            self.drop(handle)

    def destroy(self, thing: Thing) -> None:
        """Zombie, then gone: active requests on it end."""
        thing.alive = False
        if thing.name is not None and thing.type is ObjectType.GROUP:
            for person in self.people.values():
                person.members.discard(thing.name)
                person.created.discard(thing.name)
        for request in self.requests.values():
            if request.handle.thing is thing:
                request.active = False

    def _let_go(self, program: Thing, *, failed: bool) -> None:
        """One task less runs it; what nobody can find and a failed task ran is kept for a while."""
        if not failed or not program.alive or program.name is not None:
            program.run_by -= 1
            return
        self.failed_programs.append(program)
        if len(self.failed_programs) > FAILED_PROGRAMS_KEPT:
            self.failed_programs.pop(0).run_by -= 1

    def collect(self) -> None:
        """What nobody refers to any more is gone, unless only a delete call may end it."""
        for thing in self.things.values():
            named = thing.deletion is Deletion.IMMEDIATE and thing.name is not None
            kept = thing.pinned or thing.run_by or thing.reinstated or named
            if thing.alive and not kept and not self.holders(thing):
                self.destroy(thing)
        Books.disown(self)

    def condemn(self, person: Person, *, by: int) -> None:
        """A task is to end; the first to say so decides whether it failed."""
        if not person.dying:
            person.dying, person.failed = True, by != person.id

    def end(self, task: int, *, crash: bool = False) -> None:
        """A task's process or session is gone."""
        person = self.people[task]
        if person.ended:
            return
        person.ended = True
        if person.program is not None:
            self._let_go(person.program, failed=person.failed if person.dying else crash)
        for handle in [candidate for candidate in self.handles.values() if candidate.task == task]:
            self.drop(handle)
        if person.session:
            self.things[task].pinned = self.things[person.console].pinned = False
            return
        for child in self.people.values():
            if child.parent == task and not child.ended and len(self.holders(self.things[child.id])) <= 1:
                self.condemn(child, by=task)
