"""Running a task again like it was run before: the same, by who may, and with no right gained."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import effects, events
from dios.core.model.records import Provenance
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.messages import Handed, Limits
from dios.wire.types import Brand, Deletion, Flag, NameKind, ObjectType, Permission
from tests.support.core.harness import OWNER, Client, Node
from tests.support.core.limits import anonymous, destroyed, started

READ = int(Permission.READ)
QUIET = int(Flag.NON_BLOCKING)


class First:
    """A task that was run with everything a run call has."""

    def __init__(self, node: Node, principal: Principal = OWNER) -> None:
        self.node = node
        self.owner = node.session(principal)
        self.group = self.owner.create(ObjectType.GROUP).reference.ref
        self.program = self.owner.ask(messages.Created, anonymous(b"one")).reference
        self.input = self.owner.create(data=b"in").reference
        self.output = self.owner.create(data=b"out").reference
        self.call = messages.Run(
            self.program.ref,
            (self.group,),
            (Handed(self.input.ref, READ, "from"),),
            (Handed(self.output.ref, READ | 2, "to"),),
            ("--fast",),
            "job",
            limits=Limits(cpu_ms=500, memory_bytes=1 << 26, objects=9),
            flags=QUIET,
        )
        self.task = started(self.owner, self.call)
        self.ref = self.task.reference.ref

    def again(self, **options: object) -> messages.Run:
        """A call that repeats it."""
        return messages.Run(
            options.pop("executable", 0),  # type: ignore[arg-type]
            like=self.ref,
            flags=QUIET,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture
def first(node: Node) -> First:
    """A task that was run."""
    return First(node)


def spawned(node: Node) -> effects.Spawn:
    """What the host is told to start."""
    return next(effect for effect in node.outcome.after if isinstance(effect, effects.Spawn))


def handed(client: Client) -> list[tuple[int, int, str]]:
    """What a task has from its beginning: objects, rights and labels."""
    welcome = client.welcome
    assert welcome.executable is not None
    every = (*welcome.inputs, *welcome.outputs, welcome.executable, *welcome.groups)
    return [(reference.object, reference.permissions, reference.label) for reference in every]


# -- the same ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("over", [False, True])
def test_everything_is_the_same(first: First, *, over: bool) -> None:
    """A repeated task has the same program, groups, inputs, outputs, rights, labels, arguments and limits."""
    original = spawned(first.node)
    if over:
        first.node.end(first.task.task, exit_code=1)
    again = started(first.owner, first.again())
    assert handed(again) == handed(first.task)
    assert again.welcome.arguments == ("--fast",)
    assert (again.welcome.label, again.welcome.brand) == ("job", Brand.PURE)
    repeated = spawned(first.node)
    assert (repeated.limits, repeated.executable) == (original.limits, original.executable)
    states = first.node.core.state.tasks
    assert states[again.task].account.bounds == states[first.task.task].account.bounds
    assert states[again.task].memberships == states[first.task.task].memberships
    assert again.welcome.name != first.task.welcome.name


def test_inputs_are_added_behind(first: First) -> None:
    """Inputs of the call come after those of the task, with the rights and lifetimes that the call gives."""
    extra = first.owner.create(data=b"extra").reference
    more = (Handed(extra.ref, READ, "extra", lifetime_ns=50),)
    again = started(first.owner, first.again(inputs=more, label="debugged"))
    assert [reference.label for reference in again.welcome.inputs] == ["from", "extra"]
    assert again.welcome.inputs[1].permissions == READ
    assert again.welcome.inputs[1].expires_ns == first.node.now + 50
    assert again.welcome.label == "debugged"


def test_another_program_gets_the_first_as_its_last_input(first: First) -> None:
    """A program around the first is handed that to read and run, and nothing more of it."""
    around = first.owner.ask(messages.Created, anonymous(b"around")).reference
    extra = first.owner.create(data=b"extra").reference
    call = first.again(executable=around.ref, inputs=(Handed(extra.ref, READ, "extra"),))
    again = started(first.owner, call)
    assert again.welcome.executable is not None
    assert again.welcome.executable.object == around.object
    last = again.welcome.inputs[-1]
    assert [reference.label for reference in again.welcome.inputs] == ["from", "extra", "program"]
    rights = int(Permission.READ | Permission.EXECUTE)
    assert (last.object, last.permissions) == (first.program.object, rights)


def test_a_repeated_task_is_repeated(first: First) -> None:
    """What was added once is part of what is repeated the next time."""
    extra = first.owner.create(data=b"extra").reference
    second = started(first.owner, first.again(inputs=(Handed(extra.ref, READ, "extra"),)))
    third = started(first.owner, messages.Run(0, like=second.reference.ref, flags=QUIET))
    assert handed(third) == handed(second)


def test_lifetimes_begin_anew(first: First) -> None:
    """A lifetime that the run call gave counts from the start of each task."""
    lent = Handed(first.input.ref, READ, lifetime_ns=100)
    short = started(first.owner, messages.Run(first.program.ref, (), (lent,), flags=QUIET))
    first.node.now += 500
    call = messages.Run(0, like=short.reference.ref, flags=QUIET)
    again = started(first.owner, call)
    assert again.welcome.inputs[0].expires_ns == first.node.now + 100


# -- who --------------------------------------------------------------------------------------------
def test_only_sessions_repeat(first: First) -> None:
    """A task cannot repeat another, and so never gets what that one had."""
    child = first.owner.run()
    first.owner.delegate(first.ref, child.reference.ref)
    call = messages.Run(0, like=child.given().ref, flags=QUIET)
    assert child.refused(call) == Code.EPERM


@pytest.mark.parametrize("missing", [READ, 2, 4, 8, 16])
def test_every_right_on_the_task_is_needed(first: First, missing: int) -> None:
    """Who lacks any right on a task may not be it; who looks its name up has all."""
    other = first.node.session()
    first.owner.delegate(first.ref, _control(first, other), int(Permission.ALL) & ~missing)
    narrow = other.given().ref
    assert other.refused(messages.Run(0, like=narrow, flags=QUIET)) == Code.EPERM
    (reference,) = other.lookup(first.task.welcome.name)
    started(other, messages.Run(0, like=reference.ref, flags=QUIET))


def _control(first: First, other: Client) -> int:
    (reference,) = first.owner.lookup(other.welcome.name)
    return reference.ref


def test_other_principals_do_not_repeat(first: First) -> None:
    """A task's reference with every right, handed to another principal, repeats nothing."""
    other = first.node.session(Principal("uid:7"))
    state = first.node.core.state
    task = state.tasks[first.task.task].object
    got = state.add_reference(state.tasks[other.task], task, Permission.ALL, Provenance.DELEGATED)
    assert other.refused(messages.Run(0, like=got.id, flags=QUIET)) == Code.EPERM


def test_what_is_refused(first: First) -> None:
    """Only inputs may be added; what is no task, or nobody's recipe, is refused."""
    owner = first.owner
    for more in (
        {"groups": (first.group,)},
        {"outputs": (Handed(first.output.ref, READ),)},
        {"arguments": ("x",)},
        {"limits": Limits(cpu_ms=1)},
    ):
        assert owner.refused(first.again(**more)) == Code.EINVAL
    assert owner.refused(messages.Run(0, like=first.input.ref, flags=QUIET)) == Code.EINVAL
    assert owner.refused(messages.Run(0, like=99, flags=QUIET)) == Code.EBADF
    assert owner.refused(messages.Run(0, like=owner.self_ref, flags=QUIET)) == Code.ESRCH
    write_only = owner.ask(messages.References, messages.Copy(first.input.ref, owner.self_ref, 2))
    unable = (Handed(write_only.references[0].ref, READ),)
    assert owner.refused(first.again(inputs=unable)) == Code.EPERM
    assert owner.refused(first.again(executable=write_only.references[0].ref)) == Code.EPERM


def test_inputs_have_a_bound(first: First) -> None:
    """Repeating with more and more inputs ends at as many as a run call may have."""
    many = tuple(Handed(first.input.ref, READ) for _ in range(limits.ARGUMENTS_MAX - 1))
    second = started(first.owner, first.again(inputs=many))
    extra = (Handed(first.input.ref, READ),)
    call = messages.Run(0, (), extra, like=second.reference.ref, flags=QUIET)
    assert first.owner.refused(call) == Code.EFBIG


def test_restricted_mode_holds() -> None:
    """A node in restricted mode starts no task again outside the sandbox."""
    node = Node(restricted=True)
    first = First(node)
    again = messages.Run(first.program.ref, brand=Brand.LIMBO, flags=QUIET)
    task = started(first.owner, again)
    repeated = started(first.owner, messages.Run(0, like=task.reference.ref, flags=QUIET))
    assert (task.welcome.brand, repeated.welcome.brand) == (Brand.PURE, Brand.PURE)


# -- what is gone -----------------------------------------------------------------------------------
def test_gone_things_are_listed(first: First) -> None:
    """When inputs, outputs or the program are no more, the refusal names them, and so does Describe."""
    for reference in (first.input, first.output, first.program):
        first.owner.ask(messages.Done, destroyed(reference.ref))
    assert first.owner.refused(first.again()) == Code.ESTALE
    said = first.owner.answer(first.node.seq)
    assert isinstance(said, messages.Failure)
    for part in ("its program", "input from", "output to"):
        assert part in said.message
    detail = first.owner.ask(messages.TaskDetail, messages.Describe(first.ref))
    assert detail.repeatable == said.message


@pytest.mark.parametrize("flags", [0, int(Flag.EVERYONE)])
@pytest.mark.parametrize("attribute", ["input", "output", "program"])
@pytest.mark.parametrize("over", [False, True])
def test_what_was_taken_back_is_not_got_back(first: First, attribute: str, flags: int, *, over: bool) -> None:
    """Repeating a task gives nothing of what was retired since, also when it was over before."""
    if over:
        first.node.end(first.task.task, exit_code=1)
    target: messages.Reference = getattr(first, attribute)
    first.owner.ask(messages.Done, messages.Retire(target.ref, flags))
    assert first.owner.refused(first.again()) == Code.ESTALE
    fresh = started(first.owner, first.call)
    started(first.owner, messages.Run(0, like=fresh.reference.ref, flags=QUIET))


@pytest.mark.parametrize("as_program", [False, True])
def test_what_was_lent_ends_when_it_would_have(first: First, *, as_program: bool) -> None:
    """What the starter itself had for a while, a repeated task has no longer than that."""
    node, owner = first.node, first.owner
    lent = owner.ask(
        messages.References, messages.Copy(first.program.ref, owner.self_ref, lifetime_ns=100)
    ).references[0]
    given = () if as_program else (Handed(lent.ref, READ),)
    program = lent.ref if as_program else first.program.ref
    task = started(owner, messages.Run(program, (), given, flags=QUIET))
    call = messages.Run(0, like=task.reference.ref, flags=QUIET)
    node.now += 99
    again = started(owner, call)
    assert again.welcome.executable is not None
    got = again.welcome.executable if as_program else again.welcome.inputs[0]
    assert got.expires_ns == lent.expires_ns
    node.now += 1
    node.step(events.TimerFired(node.now))
    assert owner.refused(call) == Code.ESTALE


# -- programs of failed tasks -----------------------------------------------------------------------
def failed(
    first: First, exit_code: int = 1, size: int = 10, name: NameKind = NameKind.ANONYMOUS
) -> tuple[Client, messages.Created]:
    """A task of a program that nobody else refers to, and that has ended."""
    owner = first.owner
    groups = () if name is NameKind.ANONYMOUS else (owner.groups[0],)
    counted = Deletion.REFERENCE_COUNTED
    call = messages.Create(ObjectType.SHMEM_BLOB, groups, name, counted, data=b"x" * min(size, 10))
    program = owner.ask(messages.Created, call)
    for offset in range(10, size, limits.INLINE_BYTES_MAX):
        block = b"x" * min(limits.INLINE_BYTES_MAX, size - offset)
        owner.ask(messages.Committed, messages.WriteOnce(program.reference.ref, block, offset))
    task = started(owner, messages.Run(program.reference.ref, flags=QUIET))
    owner.ask(messages.Done, messages.Delete(program.reference.ref))
    first.node.end(task.task, exit_code=exit_code)
    return task, program


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, True),
        ({"exit_code": 0}, False),
        ({"name": NameKind.RANDOM}, False),
        ({"size": limits.FAILED_PROGRAM_BYTES_MAX}, True),
        ({"size": limits.FAILED_PROGRAM_BYTES_MAX + 1}, False),
    ],
    ids=str,
)
def test_programs_of_failed_tasks_are_kept(first: First, how: dict[str, object], *, kept: bool) -> None:
    """The program of a failed task stays for a repeat; not that of a good one, a named or a large one."""
    task, program = failed(first, **how)  # type: ignore[arg-type]
    assert (program.reference.object in first.node.core.state.objects) is kept
    call = messages.Run(0, like=task.reference.ref, flags=QUIET)
    if kept:
        started(first.owner, call)
    else:
        assert first.owner.refused(call) == Code.ESTALE


def test_kept_programs_are_let_go(first: First, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node keeps the newest few, and nothing of the others."""
    monkeypatch.setattr(limits, "FAILED_PROGRAMS_KEPT", 3)
    programs = [failed(first)[1].reference.object for _ in range(5)]
    objects = first.node.core.state.objects
    assert [number in objects for number in programs] == [False, False, True, True, True]


def test_a_kept_program_goes_when_its_repeat_is_over(first: First, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept program that runs again outlives its place among those kept, and goes with its last task."""
    monkeypatch.setattr(limits, "FAILED_PROGRAMS_KEPT", 1)
    task, program = failed(first)
    again = started(first.owner, messages.Run(0, like=task.reference.ref, flags=QUIET))
    failed(first)
    objects = first.node.core.state.objects
    assert program.reference.object in objects
    first.node.end(again.task)
    assert program.reference.object not in objects
