"""Hostile tasks after references of others, and after rights that they were not given.

Not for: names and groups (``test_escape_names``), buffers and streams (``test_escape_buffers``). Every frame
comes from a real pure task; after each test the victim's object must be what it was, and every denial be on
record.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from operator import attrgetter

import msgspec
import pytest
from capability_memory import address_of, attempt

from dios import limits
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import Brand, Cause, Flag, Mode, ObjectType, Permission, Persistence
from tests.support.security.every_call import ALL, BY_REFERENCE, own_program
from tests.support.security.hostile_pair import SECRET, Puppet, Stage, anonymous, open_stage, status_of
from tests.support.security.places import PLACES

READ, WRITE, EXECUTE = int(Permission.READ), int(Permission.WRITE), int(Permission.EXECUTE)
DELEGATE, DELETE = int(Permission.DELEGATE), int(Permission.DELETE)
HELD = READ | DELEGATE
NEVER = 0x5EED_5EED
"""A number that was never anybody's reference, but by a chance of one in 2**63."""


@pytest.fixture(scope="module", params=PLACES, ids=attrgetter("name"))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One node and its tasks, or sessions, for all attempts."""
    with open_stage(tmp_path_factory.mktemp("references"), request.param) as stage:
        yield stage


@pytest.fixture
def stage(opened: Stage) -> Iterator[Stage]:
    """A fresh secret before, and the victim unharmed after."""
    with opened.attempt() as stage:
        yield stage


# -- numbers that are no reference of the caller ---------------------------------------------------
def _deleted(stage: Stage) -> int:
    ref = stage.mallory.create().reference.ref
    stage.mallory.ask(messages.Done, messages.Delete(ref))
    return ref


def _deleted_and_slot_used_again(stage: Stage) -> int:
    before = stage.mallory.create().reference
    stage.mallory.ask(messages.Done, messages.Delete(before.ref))
    after = stage.mallory.create(b"new").reference
    assert after.slot == before.slot, "the slot was not used again"
    return before.ref


def _of_an_ended_task(stage: Stage) -> int:
    short = stage.puppet("short-lived")
    ref = stage.victim.gives(stage.secret.reference.ref, short)
    assert short.read(ref) == SECRET
    short.end()
    return ref


def _taken_back_with_its_object(stage: Stage) -> int:
    """Held once, dropped, and the object still there."""
    ref = stage.victim.gives(stage.secret.reference.ref, stage.mallory, HELD)
    stage.mallory.ask(messages.Done, messages.Delete(ref))
    return ref


def _held_by_a_confederate(stage: Stage) -> int:
    return stage.victim.gives(stage.secret.reference.ref, stage.confederate, HELD)


GUESSES: dict[str, Callable[[Stage], int]] = {
    "random": lambda _: secrets.randbits(63) | 1,
    "the-victims-exactly": lambda stage: stage.secret.reference.ref,
    "one-above-the-victims": lambda stage: stage.secret.reference.ref + 1,
    "one-below-the-victims": lambda stage: stage.secret.reference.ref - 1,
    "one-above-its-own": lambda stage: stage.mallory.self_ref + 1,
    "one-bit-off-its-own": lambda stage: stage.mallory.self_ref ^ 1 << 40,
    "one": lambda _: 1,
    "greatest": lambda _: 2**63 - 1,
    "the-slot": lambda stage: stage.secret.reference.slot,
    "the-object": lambda stage: stage.secret.reference.object,
    "its-own-object": lambda stage: stage.mallory.welcome.self_ref.object,
    "the-victims-task": lambda stage: stage.victim.self_ref,
    "the-victims-console": lambda stage: stage.victim.welcome.console.ref,
    "the-victims-group": lambda stage: stage.victim.own_group,
    "a-buffer": lambda stage: (
        stage.victim.ask(
            messages.Buffer,
            messages.AcquireRead(stage.secret.reference.ref, iov=4),  # type: ignore[arg-type]
        ).buffer
    ),
    "the-neighbours": lambda stage: stage.neighbours,
    "deleted": _deleted,
    "deleted-and-slot-used-again": _deleted_and_slot_used_again,
    "of-an-ended-task": _of_an_ended_task,
    "taken-back": _taken_back_with_its_object,
    "held-by-a-confederate": _held_by_a_confederate,
}
"""Where a number that shall pass for a reference comes from."""


@pytest.mark.extended(keep=8)
@pytest.mark.long
@pytest.mark.parametrize("guess", GUESSES)
def test_a_number_is_no_reference(stage: Stage, guess: str) -> None:
    """In every place of every call, a number that is no reference of the caller is EBADF, and on record.

    The refusal of one that exists elsewhere and of one that never was are the same to the last letter.
    """
    ref = GUESSES[guess](stage)
    for call_name, make in BY_REFERENCE.items():
        told = stage.mallory.refused(make(stage.mallory, ref), Code.EBADF)
        assert told == stage.mallory.refused(make(stage.mallory, NEVER), Code.EBADF), call_name
    for buffer in _open_buffers(stage, guess):
        stage.victim.ask(messages.Done, messages.ReleaseRead(stage.secret.reference.ref, buffer))


def _open_buffers(stage: Stage, guess: str) -> list[int]:
    """The victim's buffer that a guess was made from; it must be there still, and can be released."""
    if guess != "a-buffer":
        return []
    ref = stage.secret.reference.ref
    last = stage.victim.ask(messages.Buffer, messages.AcquireRead(ref)).buffer
    stage.victim.ask(messages.Done, messages.ReleaseRead(ref, last))
    return [last - 1]


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63, 2**64 - 1, 1.5, "1", None, True], ids=repr)
def test_what_is_no_number_of_a_reference_costs_the_connection(stage: Stage, number: object) -> None:
    """A number outside the range, or none at all, is no message: the task that sent it is ended."""
    hostile = stage.puppet("malformed")
    body = msgspec.msgpack.encode([1, [20, number]])
    hostile.breaks_the_rules(len(body).to_bytes(4, "little") + body)
    hostile.ends_as_protocol()
    hostile.end()


# -- rights that were not given --------------------------------------------------------------------
Act = Callable[[Puppet, int], messages.AnyCall]
WITHOUT: dict[str, tuple[int, Act]] = {
    "write-through-read": (READ, lambda _, ref: messages.WriteOnce(ref, b"evil")),
    "acquire-write-through-read": (READ, lambda _, ref: messages.AcquireWrite(ref, 4)),
    "read-through-write": (WRITE, lambda _, ref: messages.ReadOnce(ref)),
    "acquire-read-through-write": (WRITE, lambda _, ref: messages.AcquireRead(ref)),
    "wait-to-read-through-write": (WRITE, lambda _, ref: messages.Select((ref,), Mode.READ, 0)),
    "wait-to-write-through-read": (READ, lambda _, ref: messages.Select((ref,), Mode.WRITE, 0)),
    "read-through-delegate": (DELEGATE, lambda _, ref: messages.ReadOnce(ref)),
    "read-through-nothing": (0, lambda _, ref: messages.ReadOnce(ref)),
    "destroy-without-delete": (ALL & ~DELETE, lambda _, ref: messages.Delete(ref, int(Flag.DESTROY))),
    "run-without-execute": (ALL & ~EXECUTE, lambda _, ref: messages.Run(ref)),
    "copy-without-delegate": (ALL & ~DELEGATE, lambda puppet, ref: messages.Copy(ref, puppet.self_ref)),
    "copy-bytes-without-delegate": (
        ALL & ~DELEGATE,
        lambda puppet, ref: messages.Copy(ref, puppet.self_ref, persistence=Persistence.DURABLE),
    ),
    "hand-without-delegate": (
        ALL & ~DELEGATE,
        lambda puppet, ref: messages.Run(own_program(puppet), inputs=(messages.Handed(ref, READ),)),
    ),
}
"""What is held, and what is tried with it."""


@pytest.mark.parametrize("attempt", WITHOUT)
def test_a_right_that_is_not_held(stage: Stage, attempt: str) -> None:
    """Whatever needs a right that the reference lacks is EPERM, and on record."""
    rights, act = WITHOUT[attempt]
    ref = stage.victim.gives(stage.secret.reference.ref, stage.mallory, rights)
    stage.mallory.refused(act(stage.mallory, ref), Code.EPERM)


@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB], ids=str)
def test_deleting_without_the_right_drops_only_the_handle(stage: Stage, kind: ObjectType) -> None:
    """Whoever may not delete gets rid of the own handle by it, and of nothing else."""
    created = stage.victim.create(SECRET, kind)
    ref = stage.victim.gives(created.reference.ref, stage.mallory, ALL & ~DELETE)
    stage.mallory.ask(messages.Done, messages.Delete(ref))
    stage.mallory.refused(messages.ReadOnce(ref), Code.EBADF)
    assert stage.victim.read(created.reference.ref) == SECRET
    assert len(stage.victim.finds(created.name)) == 1


@pytest.mark.parametrize("buffering", ["double", "raw"])
def test_writing_is_not_reading(stage: Stage, buffering: str) -> None:
    """Who may only write is shown none of the bytes that stand there, in a message or in memory."""
    for size in (len(SECRET), 2 * limits.INLINE_BYTES_MAX):
        data = SECRET.ljust(size, b"\0")
        call = messages.Create(
            ObjectType.SHMEM_BLOB,
            (stage.victim.own_group,),
            buffering=1 if buffering == "raw" else 0,  # type: ignore[arg-type]
        )
        ref = stage.victim.ask(messages.Created, call).reference.ref
        for start in range(0, size, 16_384):
            part = messages.WriteOnce(ref, data[start : start + 16_384], start)
            stage.victim.ask(messages.Committed, part)
        theirs = stage.victim.gives(ref, stage.mallory, WRITE)
        assert _shown(stage.mallory, messages.AcquireWrite(theirs)).find(SECRET[:8]) < 0


def _shown(puppet: Puppet, call: messages.AcquireWrite) -> bytes:
    """Whatever bytes the answer to an acquire shows; nothing when it is refused."""
    result = puppet.any(call)
    if isinstance(result, messages.Failure):
        assert result.code == Code.EPERM
        return b""
    assert isinstance(result, messages.Buffer)
    shown = result.data or b""
    if result.mapping:
        shown += bytes.fromhex(puppet.does("import os\nsaid = os.pread(fds[-1], 1 << 20, 0).hex()"))
    puppet.ask(messages.Done, messages.ReleaseWrite(call.ref, result.buffer))
    return shown


# -- rights that shall become more ------------------------------------------------------------------
def _by_copy_to_itself(stage: Stage, ref: int) -> tuple[Puppet, messages.Reference]:
    call = messages.Copy(ref, stage.mallory.self_ref, ALL)
    return stage.mallory, stage.mallory.ask(messages.References, call).references[0]


def _by_a_confederate(stage: Stage, ref: int) -> tuple[Puppet, messages.Reference]:
    there = stage.mallory.gives(ref, stage.confederate, ALL)
    stage.confederate.ask(
        messages.Done, messages.Copy(there, stage.introduce(stage.confederate, stage.mallory))
    )
    return stage.mallory, stage.mallory.given(stage.secret.reference.object)


def _by_copying_bytes(stage: Stage, ref: int) -> tuple[Puppet, messages.Reference]:
    call = messages.Copy(ref, stage.mallory.self_ref, ALL, persistence=Persistence.DURABLE)
    return stage.mallory, stage.mallory.ask(messages.References, call).references[0]


def _by_bits_that_are_none(stage: Stage, ref: int) -> tuple[Puppet, messages.Reference]:
    call = messages.Copy(ref, stage.mallory.self_ref, 2**62 | ALL)
    return stage.mallory, stage.mallory.ask(messages.References, call).references[0]


WIDER: dict[str, Callable[[Stage, int], tuple[Puppet, messages.Reference]]] = {
    "by-copy-to-itself": _by_copy_to_itself,
    "by-a-confederate-and-back": _by_a_confederate,
    "by-copying-the-bytes": _by_copying_bytes,
    "by-bits-that-are-none": _by_bits_that_are_none,
}
"""Ways to ask for every right when two are held."""


@pytest.mark.parametrize("way", WIDER)
def test_rights_never_grow(stage: Stage, way: str) -> None:
    """Asking for more than is held, by whatever way, gives what is held."""
    ref = stage.victim.gives(stage.secret.reference.ref, stage.mallory, HELD)
    puppet, got = WIDER[way](stage, ref)
    assert got.permissions == HELD
    puppet.refused(messages.WriteOnce(got.ref, b"evil"), Code.EPERM)
    puppet.refused(messages.Delete(got.ref, int(Flag.DESTROY)), Code.EPERM)


def test_a_child_is_given_no_more_than_its_parent_has(stage: Stage) -> None:
    """Handed over with every right at a start, a reference still has those of the giver's only."""
    ref = stage.victim.gives(stage.secret.reference.ref, stage.mallory, HELD)
    source = (
        b"import dios\n"
        b"from dios.wire.messages import WriteOnce\n"
        b"node = dios.connect()\n"
        b"given = node.input('x')\n"
        b"try:\n    given.write_bytes(b'evil')\nexcept dios.DiosError as error:\n    print(error.code.name)\n"
        b"print(int(given.stat().permissions))\n"
    )
    said = stage.mallory.does(_child_source(ref, source))
    assert said.split() == ["EPERM", str(HELD)]


def _child_source(ref: int, source: bytes) -> str:
    """What the task does to start a child with a reference that it was told by number."""
    return (
        "from dios.wire import messages\n"
        f"(info,) = node.link.call(messages.Stat({ref}))[0].references\n"
        f"child = node.run({source!r}, inputs={{'x': node.handle(info)}})\n"
        "status = child.wait(20)\n"
        "said = b''.join(child.console()).decode() + status.detail\n"
        "child.close()\n"
    )


@pytest.mark.parametrize(("brand", "code"), [(Brand.LIMBO, Code.EPERM), (Brand.LEGACY, Code.EINVAL)], ids=str)
def test_no_child_outside_the_sandbox(stage: Stage, brand: Brand, code: Code) -> None:
    """A pure task starts pure tasks only: what holds it is not to be left by a child."""
    stage.mallory.refused(messages.Run(own_program(stage.mallory), brand=brand), code)


def test_a_program_that_may_be_run_but_not_read(stage: Stage) -> None:
    """The right to execute shows nothing of the program to who runs it."""
    program = stage.victim.ask(messages.Created, anonymous(b"raise SystemExit(7)")).reference.ref
    ref = stage.victim.gives(program, stage.mallory, EXECUTE)
    stage.mallory.refused(messages.ReadOnce(ref), Code.EPERM)
    stage.mallory.refused(messages.Copy(ref, stage.mallory.self_ref), Code.EPERM)


# -- other tasks ------------------------------------------------------------------------------------
OVER_TASKS: dict[str, tuple[str, Act]] = {
    "pause": ("read write delegate delete", lambda _, ref: messages.Pause(ref)),
    "resume": ("read write delegate delete", lambda _, ref: messages.Resume(ref)),
    "kill": (
        "read write execute delegate",
        lambda _, ref: messages.Delete(ref, int(Flag.DESTROY)),
    ),
    "console": ("write execute delegate delete", lambda _, ref: messages.ConsoleOf(ref)),
    "status": ("write execute delegate delete", lambda _, ref: messages.ReadOnce(ref)),
    "describe": ("write execute delegate delete", lambda _, ref: messages.Describe(ref)),
    # No right does: a task that could repeat another would get what that one was handed.
    "repeat": (
        "read write execute delegate delete",
        lambda puppet, ref: messages.Run(own_program(puppet), like=ref),
    ),
    "wait-for-end": (
        "write execute delegate delete",
        lambda _, ref: messages.Select((ref,), Mode.READ, 0),
    ),
    "run": ("read write delegate delete", lambda _, ref: messages.Run(ref)),
    "hand": ("read execute delegate delete", lambda puppet, ref: messages.Copy(puppet.mine, ref)),
}
"""What is tried with a reference to another task, and every right but the one that it needs."""


@pytest.mark.parametrize("attempt", OVER_TASKS)
def test_power_over_another_task(stage: Stage, attempt: str) -> None:
    """To suspend, end, watch or read a task takes the right to just that; all the others do not do."""
    rights, act = OVER_TASKS[attempt]
    ref = stage.introduce(stage.mallory, stage.victim, rights)
    stage.mallory.refused(act(stage.mallory, ref), Code.EPERM)
    assert stage.victim.alive


def test_events_of_another_are_not_read(stage: Stage) -> None:
    """Reading another's task reference gives its status and none of its events, which stay for it to read."""
    ref = stage.introduce(stage.mallory, stage.victim, "read")
    gift = stage.confederate.create(b"a gift").reference
    to = stage.introduce(stage.confederate, stage.victim)
    stage.confederate.ask(messages.Done, messages.Copy(gift.ref, to))
    assert status_of(stage.mallory, ref).cause is Cause.NONE
    assert stage.victim.read(stage.victim.given(gift.object).ref) == b"a gift"


# -- the public page --------------------------------------------------------------------------------
def test_the_page_shows_only_its_own(stage: Stage) -> None:
    """On its page a task finds nothing of a reference of another's, nor of one that it dropped."""
    ref = stage.victim.gives(stage.secret.reference.ref, stage.mallory, READ)
    seen = _numbers_on_page(stage.mallory)
    assert {ref, stage.secret.reference.object} <= seen
    stage.mallory.ask(messages.Done, messages.Delete(ref))
    seen = _numbers_on_page(stage.mallory)
    assert not {ref, stage.secret.reference.ref, stage.secret.reference.object} & seen
    assert stage.mallory.self_ref in seen


def _numbers_on_page(puppet: Puppet) -> set[int]:
    said = puppet.does(
        "import struct\n"
        "page = bytes(node.link.page._view)\n"
        "said = ' '.join(str(n) for n in set(struct.unpack(f'{len(page) // 8}Q', page)))\n"
    )
    return {int(word) for word in said.split()}


WRITING: dict[str, str] = {
    "store": "node.link.page._view[0] = 1",
    "unprotect": "checked(libc.mprotect(place, 4096, 3))",
    "map-over-it": "checked(libc.mmap(place, 4096, 3, 0x11, os.open('/proc/self/fd/3', 2), 0))",
    "map-twice": "checked(libc.mprotect(checked(libc.mremap(place, 0, 4096, 1)), 4096, 3))",
}
"""Ways to write to the page; what ends in an exception was refused."""


@pytest.mark.parametrize("way", WRITING)
def test_the_page_cannot_be_written(stage: Stage, way: str) -> None:
    """The page of references is written by the node alone, whatever its task does with the mapping."""
    said = stage.mallory.does(address_of("node.link.page._view") + attempt(WRITING[way]))
    assert said.startswith("refused"), said
    assert stage.mallory.self_ref in _numbers_on_page(stage.mallory)
