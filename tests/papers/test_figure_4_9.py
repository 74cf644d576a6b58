"""Figure 4.9, the re-order matrix: each pair of calls in both orders and overlapped, here and across nodes.

The text of the figure that is at hand has its symbols and not its colours; in the row of ``delete`` one cell
too many, of which the blank beside ``pause/resume`` is taken for none; and cells that span two columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import pytest
from msgspec import Struct

from dios.core.model.names import deterministic_name
from dios.errors import Code
from dios.ids import Name, ObjectId, TaskId
from dios.wire import messages
from dios.wire.types import (
    Cause,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Persistence,
    Semantics,
    TaskState,
)
from tests.support.core.cluster import Citizen, Cluster

CALLS: Final = (
    "create", "lookup", "delete", "run", "copy", "pause", "select",
    "acquire_read", "commit_read", "release_read", "acquire_write", "commit_write", "release_write",
)  # fmt: skip
ALWAYS, STALE, REMAINS, VARIES, LEVELS = "✓", "*", "†", "‡", "§"
ROWS: Final = (
    "✓*✓✓✓✓✓✓✓✓✓✓✓",  # create, with create, lookup, delete ...
    "✓*✓**✓**✓**✓",
    "††††‡§§✓§§✓",
    "✓✓✓✓✓✓✓✓§✓",
    "✓✓✓**✓*§✓",
    "✓‡✓✓✓✓✓✓",
    "‡✓‡✓✓‡✓",
    "§§✓§§✓",
    "§✓§§✓",
    "✓§§✓",
    "§§✓",
    "§✓",
    "✓",
)
CELLS: Final = [
    (CALLS[row], CALLS[row + column], symbol)
    for row, symbols in enumerate(ROWS)
    for column, symbol in enumerate(symbols)
]
APPROPRIATE: Final = {
    Code.EBUSY,  # not admitted beside what is active
    Code.ECANCELED,  # the commit does not hold
    Code.ESTALE,  # the object is gone
    Code.EBADF,  # the reference, or with it the buffer, is gone
}
OLD, NEW, CREATED = b"before", b"AFTER!", b"made"
READ, WRITE = Mode

Said: TypeAlias = tuple[object, ...]


class State(Struct, frozen=True):
    """Everything that somebody can find out afterwards."""

    counters: tuple[int, int, int, int] | None
    content: bytes | None
    open_requests: tuple[int, int]
    held: tuple[int, ...]
    paused: bool
    cause: Cause
    children: int
    created: int
    physical: int

    def lasting(self) -> tuple[object, ...]:
        """Without the references that the callers have."""
        return (self.counters, self.paused, self.cause, self.children, self.created, self.physical)


class Outcome(Struct, frozen=True):
    """What both callers were told, and how everything stands in the end."""

    first: Said
    second: Said
    state: State


class Actor(Citizen):
    """A caller and its references to the object, the task and a program."""

    ref: int
    job: int
    program: int


class Scene(NamedTuple):
    """Whether over three nodes, whether one caller makes both calls, and at which level."""

    away: bool
    alone: bool
    level: Semantics


class Stage:
    """Two callers, an object and a task, on one node or on three."""

    def __init__(self, scene: Scene) -> None:
        away, alone, self.level = scene
        self.away = away
        self.cluster = Cluster(("r1", "r1", "r2") if away else ("r1",))
        self.home = self.cluster.nodes[-1]
        self.keeper = self.cluster.session(self.home)
        first_actor = self._actor(0)
        self.actors = (first_actor, first_actor if alone else self._actor(int(away)))
        created = self.keeper.create(data=OLD)
        self.object, self.name = ObjectId(created.reference.object), created.name or b""
        self.job = self.keeper.run(label="the task")
        for actor in dict.fromkeys(self.actors):
            actor.program = actor.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
            (reference,) = actor.lookup(self.name)
            (job,) = actor.lookup(self.job.welcome.name)
            actor.ref, actor.job = reference.ref, job.ref
        self.sought = self.name
        self.cluster.settle()

    def _actor(self, place: int) -> Actor:
        session = self.cluster.session(self.cluster.nodes[place])
        return Actor(session.node, session.task, session.welcome)

    def calls(self, names: tuple[str, str]) -> list[messages.PlainCall]:
        """Both callers' calls, with whatever has to be done before them."""
        first, second = names
        # Beside an active exclusive request no other could be acquired, and so not be committed.
        level = Semantics.ANY if "commit" in second else self.level
        return [
            self._call(first, self.actors[0], second, self.level),
            self._call(second, self.actors[1], first, level),
        ]

    def _call(self, name: str, actor: Actor, other: str, level: Semantics) -> messages.PlainCall:
        ref = actor.ref
        host = f"n{self.home.node}" if self.away else ""
        on_task = "pause" in {name, other}
        if name in {"commit_read", "release_read"}:
            buffer = self._acquired(actor, READ, level, settled=name == "release_read")
            kind = messages.CommitRead if name == "commit_read" else messages.ReleaseRead
            return kind(ref, buffer)
        if name in {"commit_write", "release_write"}:
            buffer = self._acquired(actor, WRITE, level, settled=name == "release_write")
            if name == "release_write":
                return messages.ReleaseWrite(ref, buffer)
            return messages.CommitWrite(ref, buffer, data=NEW)
        if name == "create" and other == "lookup":
            self.sought = deterministic_name(Name(actor.welcome.name), 0)
            return messages.Create(
                ObjectType.SHMEM_BLOB, (actor.groups[0],), NameKind.DETERMINISTIC, data=CREATED
            )
        calls: dict[str, messages.PlainCall] = {
            "create": messages.Create(ObjectType.SHMEM_BLOB, (actor.groups[0],), host=host, data=CREATED),
            "lookup": messages.Lookup(self.job.welcome.name if on_task else self.sought),
            "delete": messages.Delete(actor.job if on_task else ref, int(Flag.DESTROY)),
            "run": messages.Run(
                actor.program,
                inputs=(messages.Handed(ref, int(Permission.READ)),),
                label="child",
                host=host,
                flags=int(Flag.NON_BLOCKING),
            ),
            "copy": messages.Copy(
                actor.job if on_task else ref,
                actor.self_ref,
                persistence=Persistence.DURABLE if other == "delete" else None,
            ),
            "pause": messages.Pause(actor.job),
            "select": messages.Select((actor.job if on_task else ref,), timeout_ns=0),
            "acquire_read": messages.AcquireRead(ref, semantics=level),
            "acquire_write": messages.AcquireWrite(ref, semantics=level),
        }
        return calls[name]

    def _acquired(self, actor: Actor, mode: Mode, level: Semantics, *, settled: bool) -> int:
        """A buffer with a request under way at the level, or over."""
        reading = mode is READ
        kind = messages.AcquireRead if reading else messages.AcquireWrite
        buffer = actor.ask(messages.Buffer, kind(actor.ref, semantics=level)).buffer
        if settled:
            commit = messages.CommitRead if reading else messages.CommitWrite
            actor.ask(messages.Committed, commit(actor.ref, buffer))
        return buffer

    def said(self, actor: Actor, seq: int, name: str) -> Said:
        """What a caller was told, without what is different each time."""
        answer = self.cluster.wait(actor, seq)
        if isinstance(answer, messages.Failure):
            assert answer.code in APPROPRIATE, answer
            return ("failure", Code(answer.code).name)
        if isinstance(answer, messages.References):
            return (
                "references",
                *(
                    (reference.object, reference.permissions, reference.size)
                    for reference in answer.references
                ),
            )
        if isinstance(answer, messages.Created):
            return ("created", answer.reference.type, answer.reference.permissions)
        if isinstance(answer, messages.Buffer):
            return ("buffer", answer.size, actor.node.received[actor.task, seq])
        if isinstance(answer, messages.Committed):
            return ("committed", name)
        return (answer,)

    def state(self) -> State:
        """Everything that somebody can find out afterwards."""
        self.cluster.advance(20)
        self.cluster.check()
        target = self.home.core.state.objects.get(self.object)
        job = self.home.core.state.tasks[TaskId(self.job.task)]
        tasks = [task for node in self.cluster.nodes for task in node.core.state.tasks.values()]
        held = [
            sum(
                1 for entry in actor.node.core.state.tasks[actor.task].table if entry.object.id == self.object
            )
            for actor in self.actors
        ]
        counters = None if target is None else (target.a_r, target.a_w, target.v_r, target.v_w)
        holders = [*self.home.core.state.tasks.values(), *self.home.core.state.remote_tasks.values()]
        active = [buffer.mode for task in holders for buffer in task.buffers.values() if buffer.active]
        everything = [replica for node in self.cluster.nodes for replica in node.core.state.objects.values()]
        return State(
            counters,
            None if target is None else self.home.contents[self.object],
            (active.count(READ), active.count(WRITE)),
            tuple(held),
            job.state is TaskState.PAUSED,
            job.cause,
            sum(1 for task in tasks if task.label == "child"),
            [content for node in self.cluster.nodes for content in node.contents.values()].count(CREATED),
            sum(1 for replica in everything if replica.name == self.name),
        )


def in_turn(stage: Stage, names: tuple[str, str], *, backwards: bool) -> Outcome:
    """One call after the other is answered."""
    calls = stage.calls(names)
    said: dict[int, Said] = {}
    for place in (1, 0) if backwards else (0, 1):
        actor = stage.actors[place]
        said[place] = stage.said(actor, actor.send(calls[place]), names[place])
        stage.cluster.settle()
    return Outcome(said[0], said[1], stage.state())


def at_once(stage: Stage, names: tuple[str, str], pick: Callable[[int], int]) -> Outcome:
    """Both are under way before either arrives; what the nodes say then comes in the order of ``select``."""
    calls = stage.calls(names)
    stage.cluster.settle()
    stage.cluster.select = pick
    sent = [actor.send(call) for actor, call in zip(stage.actors, calls, strict=True)]
    said = [stage.said(actor, seq, name) for actor, seq, name in zip(stage.actors, sent, names, strict=True)]
    stage.cluster.settle()
    stage.cluster.select = first_of
    return Outcome(said[0], said[1], stage.state())


def first_of(waiting: int) -> int:
    """Messages in the order in which they were sent."""
    return 0 * waiting


def middle(waiting: int) -> int:
    """Neither the earliest nor the latest."""
    return waiting // 2


def last(waiting: int) -> int:
    """The latest message first."""
    return waiting - 1


def told(outcome: Outcome, names: tuple[str, str], *, but: frozenset[str]) -> list[Said]:
    """What the callers were told by calls that are not among these."""
    said = zip(names, (outcome.first, outcome.second), strict=True)
    return [answer for name, answer in said if name not in but]


def require(symbol: str, names: tuple[str, str], forth: Outcome, back: Outcome, *, alone: bool) -> None:
    """Both orders differ in nothing but what the cell's symbol allows."""
    for outcome in (forth, back):
        state = outcome.state
        committed = [outcome.first, outcome.second].count(("committed", "commit_write"))
        if state.counters is not None:
            # What was acknowledged is there, and no request is left that nobody has.
            assert state.counters[3] == committed + names.count("release_write")
            assert state.content == (NEW if committed else OLD)
            assert state.counters[:2] == state.open_requests
        else:
            assert "delete" in names
    if symbol == ALWAYS:
        assert forth.state == back.state
        # Who deletes the reference that it uses elsewhere may be told that it is gone.
        assert forth == back or (alone and "delete" in names)
    elif symbol == STALE:
        # Only which references were found, and what they said; the next question is answered right.
        assert told(forth, names, but=_FINDING) == told(back, names, but=_FINDING)
        assert forth.state.lasting() == back.state.lasting()
    elif symbol == VARIES:
        assert told(forth, names, but=_SELECT) == told(back, names, but=_SELECT) or "delete" in names
        assert forth.state == back.state
    elif symbol == REMAINS:
        # This physical object is gone either way; another one of the same name may have been made before.
        assert forth.state.counters is back.state.counters is None or "pause" in names
        assert {forth.state.physical, back.state.physical} <= {0, 1}
    else:
        assert symbol == LEVELS
        assert forth.state.lasting()[1:] == back.state.lasting()[1:]


def require_level(names: tuple[str, str], level: Semantics, outcome: Outcome) -> None:
    """Of two commits the first one holds just if its level bears the other request beside it."""
    other_writes = names[1] == "commit_write"
    borne = {Semantics.MRSW: not other_writes, Semantics.SRMW: other_writes, Semantics.ANY: True}[level]
    assert outcome.first == (("committed", names[0]) if borne else ("failure", "ECANCELED"))
    assert outcome.second == ("committed", names[1])


_FINDING: Final = frozenset({"lookup", "copy"})
_SELECT: Final = frozenset({"select"})


@pytest.mark.parametrize(("first", "second", "symbol"), CELLS, ids=str)
def test_cell(first: str, second: str, symbol: str) -> None:
    """Both orders differ in what the symbol says; overlapped calls give what one of the two orders gives."""
    names = (first, second)
    levels: tuple[Semantics, ...] = (Semantics.ANY,)
    if symbol == LEVELS:
        levels = (Semantics.EXCL, Semantics.ANY)
    if "commit" in first and "commit" in second:
        levels = (Semantics.MRSW, Semantics.SRMW, Semantics.ANY)
    for scene in itertools.starmap(Scene, itertools.product((False, True), (True, False), levels)):
        forth, back = (in_turn(Stage(scene), names, backwards=backwards) for backwards in (False, True))
        require(symbol, names, forth, back, alone=scene.alone)
        if "commit" in first and "commit" in second:
            require_level(names, scene.level, forth)
            require_level(names, scene.level, back)
        if scene.away:
            for pick in (last, middle):
                assert at_once(Stage(scene), names, pick) in {forth, back}, scene


def test_pause_and_resume_at_once() -> None:
    """Each says what it found, and the task is suspended afterwards just if the last one to arrive did it."""
    for pick in (first_of, middle, last):
        stage = Stage(Scene(away=True, alone=False, level=Semantics.ANY))
        stage.cluster.select = pick
        first, other = stage.actors
        calls = (first.send(messages.Pause(first.job)), other.send(messages.Resume(other.job)))
        said = (stage.cluster.wait(first, calls[0]), stage.cluster.wait(other, calls[1]))
        resumed = said[1] == messages.Done(1)
        assert said[0] == messages.Done(1)
        assert stage.state().paused is not resumed


def test_every_pair_has_its_cell() -> None:
    """The matrix has 91 cells: each call with itself and each other."""
    assert [len(row) for row in ROWS] == list(range(len(CALLS), 0, -1))
    assert len(CELLS) == 91
