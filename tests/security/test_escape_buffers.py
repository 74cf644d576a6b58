"""Hostile tasks after buffers, mapped memory, vectors and streams of others.

Not for: what a reader of memory can do to it outside the sandbox (``test_read_only_memory``), or rings by
themselves (``tests/contract/test_rings.py``). Every attempt is made in a real pure task.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from operator import attrgetter

import pytest
from capability_memory import address_of, attempt

from dios import limits
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import AcquireIov, CommitIov, Flag, Mode, NameKind, ObjectType, Permission
from tests.support.security.every_call import by_buffer
from tests.support.security.hostile_pair import SECRET, Puppet, Stage, open_stage
from tests.support.security.places import PLACES, GoneError

READ, WRITE = int(Permission.READ), int(Permission.WRITE)
LARGE = 256 * limits.KIB
PAGE = SECRET.ljust(4096, b".")


@pytest.fixture(scope="module", params=PLACES, ids=attrgetter("name"))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One node and its tasks, or sessions, for all attempts."""
    with open_stage(tmp_path_factory.mktemp("buffers"), request.param) as stage:
        yield stage


@pytest.fixture
def stage(opened: Stage) -> Iterator[Stage]:
    """A fresh secret before, and the victim unharmed after."""
    with opened.attempt() as stage:
        yield stage


# -- numbers of buffers -----------------------------------------------------------------------------
def _acquired(puppet: Puppet, ref: int, mode: Mode) -> int:
    call = messages.AcquireRead(ref) if mode is Mode.READ else messages.AcquireWrite(ref, 8)
    return puppet.ask(messages.Buffer, call).buffer


def _refused_everywhere(puppet: Puppet, ref: int, buffer: int) -> None:
    for call in by_buffer(ref, buffer).values():
        puppet.refused(call, Code.EBADF)


@pytest.mark.parametrize("mode", Mode, ids=str)
@pytest.mark.parametrize("holding", ["another-object", "the-same-object"])
def test_buffers_of_another_task(stage: Stage, mode: Mode, holding: str) -> None:
    """Another task's buffer is none, for every call, also for who has every right to the same object."""
    victim, mallory = stage.victim, stage.mallory
    created = victim.create(SECRET)
    ref = mallory.mine
    if holding == "the-same-object":
        ref = victim.gives(created.reference.ref, mallory)
    buffer = _acquired(victim, created.reference.ref, mode)
    _refused_everywhere(mallory, ref, buffer)
    if mode is Mode.READ:
        victim.ask(messages.Committed, messages.CommitRead(created.reference.ref, buffer))
        victim.ask(messages.Done, messages.ReleaseRead(created.reference.ref, buffer))
    else:
        victim.ask(messages.Committed, messages.CommitWrite(created.reference.ref, buffer, data=b"WHAT"))
        victim.ask(messages.Done, messages.ReleaseWrite(created.reference.ref, buffer))
        assert victim.read(created.reference.ref) == b"WHAT" + SECRET[4:]


GUESSES: dict[str, Callable[[int], int]] = {
    "none": lambda _: 0,
    "next": lambda own: own + 1,
    "before": lambda own: own - 1,
    "random": lambda _: secrets.randbits(62),
    "greatest": lambda _: 2**63 - 1,
}


@pytest.mark.parametrize("guess", GUESSES)
def test_guessed_buffers(stage: Stage, guess: str) -> None:
    """A guessed number is no buffer."""
    own = _acquired(stage.mallory, stage.mallory.mine, Mode.READ)
    buffer = GUESSES[guess](own)
    _refused_everywhere(stage.mallory, stage.mallory.mine, buffer)
    stage.mallory.ask(messages.Done, messages.ReleaseRead(stage.mallory.mine, own))


@pytest.mark.parametrize("mode", Mode, ids=str)
def test_buffers_after_release(stage: Stage, mode: Mode) -> None:
    """A released buffer is gone for every call, a second release among them."""
    puppet, ref = stage.mallory, stage.mallory.mine
    buffer = _acquired(puppet, ref, mode)
    release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
    puppet.ask(messages.Done, release(ref, buffer))
    _refused_everywhere(puppet, ref, buffer)


@pytest.mark.parametrize("mode", Mode, ids=str)
def test_buffers_after_their_reference(stage: Stage, mode: Mode) -> None:
    """With a reference its buffers go, and no other reference to the object brings them back."""
    victim, mallory = stage.victim, stage.mallory
    own_ref = victim.create(SECRET).reference.ref
    first, second = victim.gives(own_ref, mallory), victim.gives(own_ref, mallory)
    buffer = _acquired(mallory, first, mode)
    mallory.ask(messages.Done, messages.Delete(first))
    _refused_everywhere(mallory, second, buffer)
    assert (victim.stat(own_ref).a_r, victim.stat(own_ref).a_w) == (0, 0)


def test_buffers_of_another_reference(stage: Stage) -> None:
    """A buffer is used through the reference that it was acquired on, and no other."""
    puppet = stage.mallory
    other = puppet.create(b"other").reference.ref
    buffer = _acquired(puppet, puppet.mine, Mode.WRITE)
    for call in (
        messages.CommitWrite(other, buffer),
        messages.CommitAcquireWrite(other, buffer),
        messages.ReleaseWrite(other, buffer),
        messages.ReleaseWrite(other, buffer, int(Flag.RELEASE_COMMIT)),
    ):
        puppet.refused(call, Code.EBADF)
    puppet.ask(messages.Done, messages.ReleaseWrite(puppet.mine, buffer))
    assert puppet.read(other) == b"other"


@pytest.mark.parametrize("iov", [CommitIov.MOVE, CommitIov.BORROW], ids=str)
def test_own_bytes_are_not_moved_into_what_may_be_read(stage: Stage, iov: CommitIov) -> None:
    """Committing an own buffer through a reference that may only read writes nothing."""
    puppet = stage.mallory
    ref = stage.victim.gives(stage.secret.reference.ref, puppet, READ)
    for mode in Mode:
        buffer = _acquired(puppet, puppet.mine, mode)
        puppet.refused(messages.CommitWrite(ref, buffer, 0, iov), Code.EPERM)
        release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
        puppet.ask(messages.Done, release(puppet.mine, buffer))


@pytest.mark.parametrize("iov", [AcquireIov.TAKE, AcquireIov.BORROW], ids=str)
def test_own_buffers_do_not_open_what_may_not_be_read(stage: Stage, iov: AcquireIov) -> None:
    """Taking an own buffer to a reference without the right gives neither its bytes nor a request on it."""
    puppet = stage.mallory
    ref = stage.victim.gives(stage.secret.reference.ref, puppet, WRITE)
    buffer = _acquired(puppet, puppet.mine, Mode.READ)
    puppet.ask(messages.Committed, messages.CommitRead(puppet.mine, buffer))
    puppet.refused(messages.AcquireRead(ref, iov=iov, buffer=buffer), Code.EPERM)
    puppet.ask(messages.Done, messages.ReleaseRead(puppet.mine, buffer))


# -- memory -----------------------------------------------------------------------------------------
def _large(puppet: Puppet, kind: ObjectType = ObjectType.SHMEM_BLOB, page: bytes = PAGE) -> int:
    """A large object full of secrets, written by the task itself."""
    return int(
        puppet.does(
            f"import dios\nmade = node.create(dios.{kind.name}, groups=node.groups[:1])\n"
            f"made.write_bytes({page!r} * {LARGE // 4096})\n"
            "said = made.ref\n"
        )
    )


MAP_READ = """
import mmap, os, ctypes
fd = os.dup(fds[-1])
view = mmap.mmap(fd, {size}, mmap.MAP_SHARED, mmap.PROT_READ)
"""
THROUGH_READING: dict[str, str] = {
    "store": "view[0] = 1",
    "write": "os.pwrite(fd, b'evil', 0)",
    "truncate": "os.ftruncate(fd, 0)",
    "map-writable": "mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)",
    "unprotect": "checked(libc.mprotect(place, 4096, 3))",
    "map-twice-and-unprotect": "checked(libc.mprotect(checked(libc.mremap(place, 0, 4096, 1)), 4096, 3))",
    "remove": "checked(libc.madvise(place, 4096, 9))",
    "punch": "checked(libc.fallocate(fd, 3, 0, 4096))",
    "reopen": "os.pwrite(os.open(f'/proc/self/fd/{fd}', os.O_RDWR), b'evil', 0)",
    "own-memory-file": "os.pwrite(os.open('/proc/self/mem', os.O_RDWR), b'evil', place)",
    "trace-itself": "checked(libc.syscall(101, 0, 0, 0, 0))",
    "write-by-process": (
        "checked(libc.process_vm_writev(os.getpid(), (ctypes.c_size_t * 2)(place, 4), 1,"
        " (ctypes.c_size_t * 2)(place, 4), 1, 0))"
    ),
    "seal-off": "__import__('fcntl').fcntl(fd, 1033, 0)",
    "mode": "os.fchmod(fd, 0o600)",
}


@pytest.mark.parametrize("way", THROUGH_READING)
@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB], ids=str)
def test_writing_through_what_may_be_read(stage: Stage, way: str, kind: ObjectType) -> None:
    """The memory that a reader is sent cannot be written, by any way; some ways cost the task its life."""
    ref = _large(stage.victim, kind)
    theirs = stage.victim.gives(ref, stage.mallory, READ)
    stage.mallory.ask(messages.Buffer, messages.AcquireRead(theirs))
    stage.mallory.does(MAP_READ.format(size=LARGE) + address_of("view"))
    try:
        said = stage.mallory.does(attempt(THROUGH_READING[way]))
    except GoneError:
        said = "refused, and the task ended"
    assert said.startswith("refused"), said
    same = f"said = bytes(node.handle(made.stat()).read_bytes()) == {PAGE!r} * {LARGE // 4096}\n"
    assert stage.victim.does(same) == "True"


def test_blank_buffers_show_nothing(stage: Stage) -> None:
    """Memory to be written holds no bytes of others, though they let go of as much just before."""
    for _ in range(3):
        ref = _large(stage.victim)
        stage.victim.ask(messages.Done, messages.Delete(ref))
        for size in (LARGE, LARGE - 100, LARGE + 100):
            call = messages.AcquireWrite(stage.mallory.mine, size, flags=int(Flag.BLANK))
            buffer = stage.mallory.ask(messages.Buffer, call).buffer
            seen = stage.mallory.does("import os\nsaid = any(os.pread(fds[-1], 1 << 20, 0))")
            assert seen == "False"
            stage.mallory.ask(messages.Done, messages.ReleaseWrite(stage.mallory.mine, buffer))


def test_memory_kept_after_release_is_nobodys(stage: Stage) -> None:
    """A mapping kept after its release never becomes memory of another task, to read or to change."""
    call = messages.AcquireWrite(stage.mallory.mine, LARGE, flags=int(Flag.BLANK))
    buffer = stage.mallory.ask(messages.Buffer, call).buffer
    stage.mallory.does(f"import mmap, os\nkept = mmap.mmap(os.dup(fds[-1]), {LARGE})\n")
    stage.mallory.ask(messages.Done, messages.ReleaseWrite(stage.mallory.mine, buffer))
    for _ in range(4):
        ref = _large(stage.victim)
        position = stage.mallory.does(f"said = kept.find({SECRET[:8]!r})\nkept[:] = b'e' * len(kept)\n")
        assert position == "-1"
        whole = f"said = bytes(made.read_bytes()) == {PAGE!r} * {LARGE // 4096}\n"
        assert stage.victim.does(whole) == "True"
        stage.victim.ask(messages.Done, messages.Delete(ref))
    stage.mallory.does("kept.close()")


@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB], ids=str)
def test_memory_kept_after_a_commit_changes_nothing(stage: Stage, kind: ObjectType) -> None:
    """What was committed stays as it was, though its writer keeps the mapping and goes on writing."""
    ref = _large(stage.victim, kind)
    theirs = stage.victim.gives(ref, stage.mallory, READ | WRITE)
    call = messages.AcquireWrite(theirs, LARGE, flags=int(Flag.BLANK))
    buffer = stage.mallory.ask(messages.Buffer, call).buffer
    stage.mallory.does(
        f"import mmap, os\nkept = mmap.mmap(os.dup(fds[-1]), {LARGE})\nkept[:] = b'a' * {LARGE}\n"
    )
    stage.mallory.ask(messages.Committed, messages.CommitWrite(theirs, buffer))
    stage.mallory.does(f"kept[:] = b'b' * {LARGE}\n")
    stage.mallory.ask(messages.Done, messages.ReleaseWrite(theirs, buffer))
    stage.mallory.does(f"kept[:] = b'c' * {LARGE}\nkept.close()\n")
    assert stage.victim.does(f"said = bytes(made.read_bytes()) == b'a' * {LARGE}\n") == "True"


@pytest.mark.parametrize("size", [8, LARGE], ids=["in-a-message", "in-memory"])
def test_what_is_not_committed_is_not_seen(stage: Stage, size: int) -> None:
    """A reader sees nothing of a write that was not committed, by calls or in memory it has mapped."""
    ref = _large(stage.victim)
    theirs = stage.victim.gives(ref, stage.mallory, READ)
    stage.mallory.ask(messages.Buffer, messages.AcquireRead(theirs))
    stage.mallory.does(MAP_READ.format(size=LARGE))
    stage.victim.does(
        f"request = made.write({size}, dios.ANY)\nrequest.view[:] = b'n' * {size}\nsaid = 'filled'\n"
    )
    assert stage.mallory.read_some(theirs) == PAGE[:8]
    assert stage.mallory.does("said = bytes(view[:8]) == " + repr(PAGE[:8])) == "True"
    stage.victim.does("request.release()")


def test_no_reader_sees_half_a_write(stage: Stage) -> None:
    """While a hostile task commits one pattern after the other, every read is of one pattern."""
    ref = _large(stage.victim, page=b"0" * 4096)
    theirs = stage.victim.gives(ref, stage.mallory, READ | WRITE)
    stage.mallory.begins(
        "import dios\nfrom dios.wire import messages\n"
        f"(info,) = node.link.call(messages.Stat({theirs}))[0].references\n"
        "shared = node.handle(info)\n"
        "for turn in range(60):\n"
        f"    shared.write_bytes(bytes([48 + turn % 10]) * {LARGE})\n"
    )
    torn = stage.victim.does("said = sum(len(set(bytes(made.read_bytes()))) != 1 for _ in range(60))\n")
    stage.mallory.has_done()
    assert torn == "0"


# -- vectors ----------------------------------------------------------------------------------------
def _vector(puppet: Puppet, *calls: messages.PlainCall) -> list[messages.PlainResult]:
    return list(puppet.ask(messages.Results, messages.Vector(calls)).results)


def _code(result: messages.PlainResult) -> int:
    assert isinstance(result, messages.Failure), result
    return result.code


def test_vector_uses_what_it_deleted(stage: Stage) -> None:
    """A reference that an earlier call of the vector deleted is none for the later ones."""
    ref = stage.victim.gives(stage.secret.reference.ref, stage.mallory)
    calls: tuple[messages.PlainCall, ...] = (
        messages.Delete(ref, int(Flag.HANDLE_ONLY)),
        messages.ReadOnce(ref),
        messages.Copy(ref, stage.mallory.self_ref),
        messages.WriteOnce(ref, b"evil"),
    )
    done, *refused = _vector(stage.mallory, *calls)
    assert done == messages.Done(1)
    for call, result in zip(calls[1:], refused, strict=True):
        assert _code(result) == Code.EBADF
        assert isinstance(result, messages.Failure)
        stage.expect_denial(stage.mallory, call, result)


def test_vector_uses_what_it_released(stage: Stage) -> None:
    """A buffer that an earlier call of the vector released is none for the later ones."""
    puppet, ref = stage.mallory, stage.mallory.mine
    buffer = _acquired(puppet, ref, Mode.READ)
    release = messages.ReleaseRead(ref, buffer)
    results = _vector(puppet, release, messages.CommitRead(ref, buffer), release)
    assert [_code(result) for result in results[1:]] == [Code.EBADF, Code.EBADF]


def test_vector_guesses_what_it_makes(stage: Stage) -> None:
    """A vector's later calls cannot use what its earlier ones make, even where the number can be guessed."""
    puppet, ref = stage.mallory, stage.mallory.mine
    last = _acquired(puppet, ref, Mode.READ)
    puppet.ask(messages.Done, messages.ReleaseRead(ref, last))
    acquired, *refused = _vector(
        puppet,
        messages.AcquireRead(ref),
        messages.CommitRead(ref, last + 1),
        messages.ReleaseRead(ref, last + 1),
        messages.WriteOnce(ref, b"evil"),
    )
    assert isinstance(acquired, messages.Buffer)
    assert acquired.buffer == last + 1, "the number was not guessed"
    assert [_code(result) for result in refused] == [Code.EINVAL] * 3
    puppet.ask(messages.Done, messages.ReleaseRead(ref, last + 1))
    assert puppet.read(ref) == b"its own"


def test_vector_is_no_way_around_rights(stage: Stage) -> None:
    """Each call of a vector is checked by itself: one that is allowed lends nothing to the next."""
    ref = stage.victim.gives(stage.secret.reference.ref, stage.mallory, READ)
    guess = stage.secret.reference.ref
    first, *refused = _vector(
        stage.mallory,
        messages.ReadOnce(ref),
        messages.WriteOnce(ref, b"evil"),
        messages.ReadOnce(guess),
        messages.NodeInfo(),
    )
    assert isinstance(first, messages.Buffer)
    assert [_code(result) for result in refused] == [Code.EPERM, Code.EBADF, Code.EPERM]


# -- streams ----------------------------------------------------------------------------------------
def _stream(puppet: Puppet) -> int:
    call = messages.Create(ObjectType.SHMEM_STREAM, name_kind=NameKind.ANONYMOUS, size=4096)
    return puppet.ask(messages.Created, call).reference.ref


def _handle(ref: int) -> str:
    return (
        "import dios\nfrom dios.wire import messages\n"
        f"(info,) = node.link.call(messages.Stat({ref}))[0].references\n"
        "stream = node.handle(info)\n"
    )


def test_a_third_party_at_a_stream(stage: Stage) -> None:
    """Both ends taken, nobody else becomes one of them, with whatever rights."""
    ref = _stream(stage.victim)
    theirs, third = stage.victim.gives(ref, stage.confederate), stage.victim.gives(ref, stage.mallory)
    stage.victim.ask(messages.Attached, messages.Attach(ref, Mode.WRITE))
    stage.confederate.ask(messages.Attached, messages.Attach(theirs, Mode.READ))
    for mode in Mode:
        stage.mallory.refused(messages.Attach(third, mode), Code.EBUSY)
        stage.confederate.refused(messages.Attach(theirs, mode), Code.EBUSY)
    for call in (messages.ReadOnce(third), messages.AcquireWrite(third, 8)):
        stage.mallory.refused(call, Code.EINVAL)


@pytest.mark.parametrize("mode", Mode, ids=str)
def test_the_wrong_end_of_a_stream(stage: Stage, mode: Mode) -> None:
    """Who may only read does not become the writer, nor the other way round."""
    ref = _stream(stage.victim)
    right = WRITE if mode is Mode.READ else READ
    theirs = stage.victim.gives(ref, stage.mallory, right)
    stage.mallory.refused(messages.Attach(theirs, mode), Code.EPERM)
    vector = messages.Vector((messages.Attach(theirs, mode),))
    (refused,) = stage.mallory.ask(messages.Results, vector).results
    assert _code(refused) == Code.EPERM


CORRUPTIONS: dict[str, str] = {
    "beyond-the-ring": "end._own[0:8] = memoryview(array.array('Q', [1 << 40] * 8))",
    "backwards": "end._own[0:8] = memoryview(array.array('Q', [0] * 8))",
    "greatest": "end._own[0:8] = memoryview(array.array('Q', [2**64 - 1] * 8))",
    "all-of-its-memory": "end._own_map[:] = b'\\xff' * len(end._own_map)",
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("mode", Mode, ids=str)
def test_corrupted_counters(stage: Stage, corruption: str, mode: Mode) -> None:
    """Nonsense in one end's counters costs the stream: the other end is told, and neither hangs nor ends."""
    ref = _stream(stage.victim)
    right = WRITE if mode is Mode.WRITE else READ
    theirs = stage.victim.gives(ref, stage.mallory, right)
    mine, yours = ("reader", "writer") if mode is Mode.WRITE else ("writer", "reader")
    stage.victim.does(_handle(ref) + f"end = stream.{mine}\n")
    stage.mallory.does(_handle(theirs) + f"import array\nend = stream.{yours}\n")
    if mode is Mode.WRITE:
        stage.mallory.does("stream.send(b'hello', 5)")
        assert stage.victim.does("said = stream.receive(5)") == "b'hello'"
    else:
        stage.victim.does("stream.send(b'hello', 5)")
        assert stage.mallory.does("said = stream.receive(5)") == "b'hello'"
    stage.mallory.does(CORRUPTIONS[corruption])
    action = "stream.receive(0.05)" if mode is Mode.WRITE else "stream.send(b'x' * 1500, 0.05)"
    said = stage.victim.does(
        "said = ''\n"
        "for _ in range(4):\n"
        "    try:\n"
        f"        said += ' ' + repr({action})\n"
        "    except dios.DiosError as error:\n"
        "        said += ' ' + error.code.name\n"
    )
    assert set(said.split()) <= {"EPROTO", "EPIPE", "EOF", "EHOSTUNREACH", "ETIMEDOUT", "None"}, said
    assert "EPROTO" in said or corruption in {"backwards", "greatest", "all-of-its-memory"}, said
    stage.victim.does("stream.close()")


def test_memory_of_a_stream_after_leaving_it(stage: Stage) -> None:
    """A reader that left and kept its mapping sees nothing of what the writer says afterwards."""
    ref = _stream(stage.victim)
    theirs = stage.victim.gives(ref, stage.mallory, READ)
    stage.victim.does(_handle(ref) + "stream.writer\n")
    stage.mallory.does(
        _handle(theirs)
        + "end = stream.reader\n"
        + "kept = [memoryview(each) for each in (end._own_map, end._peer_map)]\nstream.close()\n"
    )
    for way in (f"send({SECRET!r}, 1)", f"writer.send_many([{SECRET!r}] * 3, 1)"):
        said = stage.victim.does(
            "try:\n"
            f"    stream.{way}\n"
            "    said = 'sent'\n"
            "except dios.DiosError as error:\n"
            "    said = error.code.name\n"
        )
        assert said == "EPIPE"
    assert stage.mallory.does(f"said = max(bytes(each).find({SECRET!r}) for each in kept)") == "-1"
