"""Taking references back, with all that was delegated from them."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import effects, events
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Proximity,
    Semantics,
)
from tests.support.core.harness import Client, Node
from tests.support.core.limits import anonymous, destroyed

EVERYONE = int(Flag.EVERYONE)
ALL = int(Permission.ALL)


class Line:
    """A session that has an object and tasks that know each other, so that references can go on and on."""

    def __init__(self, node: Node, **options: object) -> None:
        self.node = node
        self.owner = node.session()
        call = messages.Create(
            ObjectType.SHMEM_BLOB,
            (self.owner.groups[0],),
            data=b"abc",
            **options,  # type: ignore[arg-type]
        )
        self.created = self.owner.ask(messages.Created, call)
        self.ref = self.created.reference.ref
        self.tasks = [self.owner.run() for _ in range(3)]

    def control(self, holder: Client, to: Client) -> int:
        """A reference of the holder to a task."""
        if holder is self.owner:
            return to.reference.ref
        self.owner.delegate(to.reference.ref, holder.reference.ref)
        return holder.given().ref

    def hand(self, giver: Client, ref: int, to: Client, rights: int = ALL) -> int:
        """Delegate, and what the receiver has then."""
        control = self.control(giver, to)
        giver.delegate(ref, control, rights)
        if giver is not self.owner:
            giver.ask(messages.Done, messages.Delete(control, int(Flag.HANDLE_ONLY)))
        return to.given().ref

    def chain(self) -> list[int]:
        """The object handed from the owner to the first task, from there to the second, and so on."""
        refs, giver, ref = [], self.owner, self.ref
        for task in self.tasks:
            ref = self.hand(giver, ref, task)
            refs.append(ref)
            giver = task
        return refs

    def retire(self, ref: int = 0, flags: int = 0, by: Client | None = None) -> int:
        """Take back what came from a reference; how many."""
        return (by or self.owner).ask(messages.Done, messages.Retire(ref or self.ref, flags)).value


@pytest.fixture
def line(node: Node) -> Line:
    """An object, its owner and three tasks."""
    return Line(node)


def has(client: Client, ref: int) -> bool:
    """Whether a reference is still in its holder's table."""
    return not isinstance(client.call(messages.Stat(ref)), messages.Failure)


# -- who loses what ---------------------------------------------------------------------------------
def test_over_several_hops(line: Line) -> None:
    """What was delegated on and on goes, the reference itself stays, and the answer counts them."""
    refs = line.chain()
    assert line.retire() == 3
    for task, ref in zip(line.tasks, refs, strict=True):
        assert task.refused(messages.ReadOnce(ref)) == Code.EBADF
    assert has(line.owner, line.ref)
    assert line.retire() == 0


def test_from_the_middle(line: Line) -> None:
    """A receiver takes back what it handed on, and keeps its own."""
    first, second, third = line.chain()
    assert line.retire(second, by=line.tasks[1]) == 1
    assert has(line.tasks[0], first)
    assert has(line.tasks[1], second)
    assert not has(line.tasks[2], third)


def test_only_what_came_from_it(line: Line) -> None:
    """To take back a part, delegate it from a copy of one's own: what came from elsewhere stays."""
    owner = line.owner
    copy = owner.ask(messages.References, messages.Copy(line.ref, owner.self_ref)).references[0].ref
    owner.event()
    part = line.hand(owner, copy, line.tasks[0])
    rest = line.hand(owner, line.ref, line.tasks[1])
    assert line.retire(copy) == 1
    assert not has(line.tasks[0], part)
    assert has(line.tasks[1], rest)
    assert line.retire() == 2
    assert not has(owner, copy)


@pytest.mark.parametrize("how", ["delete", "end"])
def test_the_line_goes_on_over_a_gap(line: Line, how: str) -> None:
    """When somebody in the middle lets go or ends, whoever is above can still take back what is below."""
    _, second, third = line.chain()
    if how == "delete":
        line.tasks[1].ask(messages.Done, messages.Delete(second, int(Flag.HANDLE_ONLY)))
    else:
        line.node.end(line.tasks[1].task)
    assert has(line.tasks[2], third)
    assert line.retire() == 2
    assert not has(line.tasks[2], third)


def test_without_anybody_above_only_everyone_reaches(line: Line) -> None:
    """What came from a reference that is deleted is taken back by EVERYONE, or not at all."""
    (reference,) = line.owner.lookup(line.created.name)
    refs = line.chain()
    line.owner.ask(messages.Done, messages.Delete(line.ref, int(Flag.HANDLE_ONLY)))
    assert line.retire(reference.ref) == 0
    assert has(line.tasks[0], refs[0])
    assert line.retire(reference.ref, EVERYONE) == 3
    assert not any(has(task, ref) for task, ref in zip(line.tasks, refs, strict=True))


def test_everyone_needs_the_right_to_delete(line: Line) -> None:
    """Without DELETE a holder takes back what it delegated, and no more."""
    held = line.hand(line.owner, line.ref, line.tasks[0], ALL & ~int(Permission.DELETE))
    assert line.tasks[0].refused(messages.Retire(held, EVERYONE)) == Code.EPERM
    assert line.retire(held, by=line.tasks[0]) == 0


def test_everyone_spares_names_and_the_caller(line: Line) -> None:
    """EVERYONE leaves what was created or resolved, and the caller's own copies."""
    owner = line.owner
    other = line.node.session()
    (resolved,) = other.lookup(line.created.name)
    copy = owner.ask(messages.References, messages.Copy(line.ref, owner.self_ref)).references[0].ref
    line.chain()
    assert line.retire(flags=EVERYONE) == 3
    assert has(other, resolved.ref)
    assert has(owner, copy)
    assert other.lookup(line.created.name)


def test_everyone_by_who_was_given_it(line: Line) -> None:
    """Who was handed the right to delete takes back from everybody, and keeps its own reference."""
    refs = line.chain()
    assert line.retire(refs[1], EVERYONE, by=line.tasks[1]) == 2
    assert [has(task, ref) for task, ref in zip(line.tasks, refs, strict=True)] == [False, True, False]


def test_one_holder_loses_its_references(line: Line) -> None:
    """With a holder, its delegated references go with those derived from them; those of others stay."""
    refs = line.chain()
    rest = line.hand(line.owner, line.ref, line.tasks[0])
    call = messages.Retire(line.ref, EVERYONE, line.tasks[1].reference.fingerprint)
    assert line.owner.ask(messages.Done, call).value == 2
    assert [has(task, ref) for task, ref in zip(line.tasks, refs, strict=True)] == [True, False, False]
    assert has(line.tasks[0], rest)
    assert line.owner.ask(messages.Done, messages.Retire(line.ref, EVERYONE, "nobody")).value == 0


def test_one_holder_is_named_by_the_right_to_delete(line: Line) -> None:
    """A holder without EVERYONE is refused, and so is a caller without the right to delete."""
    holder = line.tasks[1].reference.fingerprint
    held = line.hand(line.owner, line.ref, line.tasks[0], ALL & ~int(Permission.DELETE))
    assert line.owner.refused(messages.Retire(line.ref, 0, holder)) == Code.EINVAL
    assert line.tasks[0].refused(messages.Retire(held, EVERYONE, holder)) == Code.EPERM


@pytest.mark.parametrize("flags", [0, EVERYONE])
def test_what_a_task_began_with(line: Line, flags: int) -> None:
    """Inputs, outputs and the program of a task were delegated to it like everything else."""
    handed = messages.Handed(line.ref, ALL)
    seq = line.owner.send(messages.Run(line.ref, (), (handed,), (handed,)))
    spawn = next(effect for effect in line.node.outcome.after if isinstance(effect, effects.Spawn))
    welcome = line.node.answers[spawn.task, 0]
    assert isinstance(welcome, messages.Welcome)
    line.node.step(events.TaskStarted(line.node.now, spawn.task, 100))
    assert line.owner.answer(seq)
    child = Client(line.node, spawn.task, welcome)
    assert line.retire(flags=flags) == 3
    assert welcome.executable is not None
    for reference in (*welcome.inputs, *welcome.outputs, welcome.executable):
        assert not has(child, reference.ref)
    assert has(child, child.self_ref)


def test_control_of_a_task(line: Line) -> None:
    """A task's reference that was handed on is taken back; whoever started the task keeps its own."""
    first, second = line.tasks[:2]
    control = line.control(first, second)
    assert line.retire(second.reference.ref) == 1
    assert first.refused(messages.Pause(control)) == Code.EBADF
    line.owner.ask(messages.Done, messages.Pause(second.reference.ref))


def test_a_console_goes_with_its_task(line: Line) -> None:
    """A console that came from a task's reference is taken back with that."""
    first, second = line.tasks[:2]
    control = line.control(first, second)
    console = first.ask(messages.References, messages.ConsoleOf(control)).references[0].ref
    assert line.retire(second.reference.ref) == 2
    assert not has(first, console)


@pytest.mark.parametrize("flags", [0, EVERYONE])
def test_any_holder_and_nobody_else(line: Line, flags: int) -> None:
    """A foreign reference is EBADF, flags that mean nothing are EINVAL."""
    first = line.chain()[0]
    assert line.tasks[1].refused(messages.Retire(first, flags)) == Code.EBADF
    assert line.owner.refused(messages.Retire(line.ref, flags | int(Flag.DESTROY))) == Code.EINVAL


# -- what happens to open requests ------------------------------------------------------------------
@pytest.mark.parametrize("mode", list(Mode))
def test_open_requests_are_aborted(line: Line, mode: Mode) -> None:
    """A request of who loses its reference ends without commit: counters exact, content unchanged."""
    held = line.hand(line.owner, line.ref, line.tasks[0])
    kind = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
    buffer = line.tasks[0].ask(messages.Buffer, kind(held, semantics=Semantics.MRSW)).buffer
    before = line.owner.counters(line.ref)
    assert before[mode] == 1
    line.retire()
    assert line.owner.counters(line.ref) == (0, 0, *before[2:])
    assert not [effect for effect in line.node.outcome.after if isinstance(effect, effects.ApplyWrite)]
    commit = messages.CommitRead if mode is Mode.READ else messages.CommitWrite
    assert line.tasks[0].refused(commit(held, buffer)) == Code.EBADF
    line.owner.ask(messages.Committed, messages.WriteOnce(line.ref, b"new", semantics=Semantics.EXCL))


def test_a_borrowed_buffer_goes_home(line: Line) -> None:
    """A buffer borrowed for what is taken back is its owner's again."""
    task = line.tasks[0]
    held = line.hand(line.owner, line.ref, task)
    own = task.ask(messages.Created, anonymous(b"own")).reference.ref
    buffer = task.ask(messages.Buffer, messages.AcquireRead(own)).buffer
    task.ask(messages.Committed, messages.CommitRead(own, buffer))
    task.ask(messages.Buffer, messages.AcquireRead(held, iov=AcquireIov.BORROW, buffer=buffer))
    line.retire()
    assert line.owner.counters(line.ref)[0] == 0
    again = messages.AcquireRead(own, iov=AcquireIov.REUSE, buffer=buffer)
    task.ask(messages.Buffer, again)


def test_a_lent_buffer_is_closed(line: Line) -> None:
    """A buffer of what is taken back goes, also while it serves another object."""
    task = line.tasks[0]
    held = line.hand(line.owner, line.ref, task)
    own = task.ask(messages.Created, anonymous(b"own")).reference.ref
    buffer = task.ask(messages.Buffer, messages.AcquireRead(held)).buffer
    task.ask(messages.Committed, messages.CommitRead(held, buffer))
    task.ask(messages.Buffer, messages.AcquireRead(own, iov=AcquireIov.BORROW, buffer=buffer))
    line.retire()
    assert task.counters(own)[0] == 0
    assert task.refused(messages.ReleaseRead(own, buffer)) == Code.EBADF


def test_the_other_end_of_a_stream_learns_it(node: Node) -> None:
    """An end of a stream whose reference is taken back is closed."""
    owner = node.session()
    stream = owner.create(ObjectType.SHMEM_STREAM, name_kind=NameKind.ANONYMOUS).reference.ref
    child = owner.run(inputs=(messages.Handed(stream, int(Permission.READ)),))
    child.ask(messages.Attached, messages.Attach(child.welcome.inputs[0].ref, Mode.READ))
    owner.ask(messages.Attached, messages.Attach(stream, Mode.WRITE))
    owner.ask(messages.Done, messages.Retire(stream))
    closed = [effect for effect in node.outcome.after if isinstance(effect, effects.CloseStreamEnd)]
    assert [end.mode for end in closed] == [Mode.READ]


def test_waiting_calls_are_answered(line: Line) -> None:
    """A select or a read that waits on what is taken back answers; one on something else waits on."""
    first, second = line.tasks[:2]
    control = line.control(first, second)
    status = first.send(messages.ReadOnce(control))
    both = first.send(messages.Select((first.self_ref, control)))
    alone = first.send(messages.ReadOnce(first.welcome.console.ref))
    assert (first.answer(status), first.answer(both)) == (None, None)
    line.retire(second.reference.ref)
    for seq in (status, both):
        said = first.answer(seq)
        assert isinstance(said, messages.Failure)
        assert said.code == Code.EINVAL
    assert first.answer(alone) is None


def test_a_waiting_console_read_is_answered(line: Line) -> None:
    """Who waits for a console's next bytes is told when the console is taken back."""
    first, second = line.tasks[:2]
    control = line.control(first, second)
    console = first.ask(messages.References, messages.ConsoleOf(control)).references[0].ref
    seq = first.send(messages.ReadOnce(console))
    assert first.answer(seq) is None
    line.retire(second.reference.ref)
    assert isinstance(first.answer(seq), messages.Failure)


# -- what the holder learns -------------------------------------------------------------------------
def test_the_holder_is_told(line: Line) -> None:
    """Who loses a reference finds which one, of which object, under which label; a waiting select ends."""
    handed = messages.Handed(line.ref, ALL, "mine")
    child = line.owner.run(inputs=(handed,))
    seq = child.send(messages.Select((child.self_ref,)))
    line.retire()
    assert child.answer(seq) == messages.Selected(0)
    told = child.event()
    lost = child.welcome.inputs[0]
    assert told == messages.Retired(lost.ref, lost.object, lost.fingerprint, "mine", expired=False)


def test_the_leaves_are_told_first(line: Line) -> None:
    """Nobody holds what came from a reference that is gone: the last in the line loses it first."""
    line.chain()
    line.retire()
    records = [effect for effect in line.node.outcome.after if isinstance(effect, effects.Audit)]
    assert {record.action for record in records} == {"retire"}
    prints = [task.welcome.self_ref.fingerprint for task in reversed(line.tasks)]
    assert [record.detail for record in records] == [f"of {fingerprint}" for fingerprint in prints]


def test_lost_events_are_counted(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the holder's queue is full, it finds how many it was not told."""
    monkeypatch.setattr(limits, "EVENTS_PER_TASK_MAX", 3)
    task = line.tasks[0]
    for _ in range(3):
        line.owner.delegate(line.ref, task.reference.ref)
    assert line.retire() == 3
    for _ in range(3):
        assert isinstance(task.event(), messages.Delegated)
    assert task.event() == messages.Lost(3)


# -- what else --------------------------------------------------------------------------------------
def test_the_last_reference_takes_its_object(line: Line) -> None:
    """When what is taken back was all that counted, the object is destroyed; nobody is left with a ghost."""
    node, owner = line.node, line.owner
    stream = owner.create(ObjectType.SHMEM_STREAM, name_kind=NameKind.ANONYMOUS).reference
    held = line.hand(owner, stream.ref, line.tasks[0])
    node.now += 5
    short = messages.Copy(held, line.tasks[0].self_ref, ALL, lifetime_ns=10)
    line.tasks[0].ask(messages.References, short)
    owner.ask(messages.Done, messages.Delete(stream.ref, int(Flag.HANDLE_ONLY)))
    line.tasks[0].ask(messages.Done, messages.Delete(held, int(Flag.HANDLE_ONLY)))
    assert stream.object in node.core.state.objects
    node.now += 10
    node.step(events.TimerFired(node.now))
    assert stream.object not in node.core.state.objects


def test_a_destroyed_object_leaves_nothing_to_take(line: Line) -> None:
    """After an object is gone its handles are stale; retiring takes those that came from one's own."""
    refs = line.chain()
    line.tasks[0].ask(messages.Done, destroyed(refs[0]))
    assert line.retire(flags=EVERYONE) == 0
    assert line.retire() == 2


def test_in_a_vector(line: Line) -> None:
    """A vector retires what it delegated before, but nothing whose bytes it has read."""
    task = line.tasks[0]
    give = messages.Copy(line.ref, task.reference.ref)
    sent = line.owner.call(messages.Vector((give, messages.Retire(line.ref))))
    assert isinstance(sent, effects.AnswerVector)
    assert [part.result for part in sent.parts] == [messages.Done(1), messages.Done(1)]
    sent = line.owner.call(messages.Vector((messages.ReadOnce(line.ref), messages.Retire(line.ref))))
    assert isinstance(sent, effects.AnswerVector)
    said = sent.parts[1].result
    assert isinstance(said, messages.Failure)
    assert said.code == Code.EINVAL


def test_copies_of_the_data_stay(line: Line) -> None:
    """A copy is another object: taking back the first leaves it alone."""
    held = line.hand(line.owner, line.ref, line.tasks[0])
    private = messages.Copy(held, line.tasks[0].self_ref, proximity=Proximity.PROCESS)
    kept = line.tasks[0].ask(messages.References, private).references[0].ref
    assert line.retire(flags=EVERYONE) == 1
    assert has(line.tasks[0], kept)


def test_rights_do_not_come_back(line: Line) -> None:
    """Who was handed less and lost it is handed anew only by who has it."""
    held = line.hand(line.owner, line.ref, line.tasks[0], int(Permission.READ | Permission.DELEGATE))
    line.retire()
    to_itself = messages.Copy(held, line.tasks[0].self_ref)
    assert line.tasks[0].refused(to_itself) == Code.EBADF
    assert line.tasks[0].lookup(line.created.name) == ()
