from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct

import pytest

from dios.host.confinement import policy, seccomp, syscall_numbers
from dios.host.confinement.arguments import THREAD_FLAGS, number_of

THREAD = number_of(THREAD_FLAGS)
GROWS_DOWN = 0x100
HUGE = 0x40000
OWN_ARCHITECTURE = syscall_numbers.AUDIT_ARCH.get(os.uname().machine, 0)
SYSCALL_MAX = 0xFFFF_FFFF

pytestmark = pytest.mark.skipif(
    not syscall_numbers.supported(), reason="no system-call table for this architecture"
)


def answer(
    call: int,
    *arguments: int,
    architecture: int = OWN_ARCHITECTURE,
    own_pid: int = 1,
    folder: bool = False,
    code: bytes = b"",
) -> int:
    """What the filter says to a call, by the rules of the kernel's own machine."""
    data = struct.pack("=IIQ6Q", call, architecture, 0, *arguments, *([0] * (6 - len(arguments))))
    steps = list(struct.iter_unpack("=HBBI", code or seccomp.program(own_pid, has_folder=folder)))
    accumulator, at = 0, 0
    while True:
        kind, then, otherwise, value = steps[at]
        at += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif kind == 0x54:
            accumulator &= value
        elif kind == 0x05:
            at += value
        elif kind == 0x15:
            at += then if accumulator == value else otherwise
        elif kind == 0x35:
            at += then if accumulator >= value else otherwise
        else:
            assert kind == 0x06, f"instruction {kind:#x}"
            return int(value)


def named(name: str, *arguments: int, own_pid: int = 1, folder: bool = False) -> int:
    """What the filter says to a call by name."""
    return answer(syscall_numbers.number_of(name), *arguments, own_pid=own_pid, folder=folder)


def exists(name: str) -> bool:
    """Whether this architecture has the call."""
    return syscall_numbers.NUMBERS[name][["x86_64", "aarch64"].index(os.uname().machine)] >= 0


TABLES = pytest.mark.parametrize(
    ("folder", "table"),
    [(True, policy.ALLOWED), (False, policy.ALLOWED_WITHOUT_FOLDER)],
    ids=["private folder", "no folder"],
)


@TABLES
def test_every_unchecked_call_of_the_table_is_answered(
    folder: bool,  # noqa: FBT001 - a table's column
    table: tuple[policy.Allow, ...],
) -> None:
    """Calls without a check are made whatever their arguments, or are done without being made."""
    for entry in table:
        expected = seccomp.RET_ALLOW if entry.performed else seccomp.RET_DONE
        for name in filter(exists, entry.names):
            if not entry.checks(name):
                assert named(name, *([SYSCALL_MAX] * 6), folder=folder) == expected, name


def test_every_killed_call_ends_the_task() -> None:
    """Calls of the list of attacks end the process."""
    for name in filter(exists, policy.KILLED):
        assert named(name) == seccomp.RET_KILL_PROCESS, name


def test_every_refused_call_gets_eperm() -> None:
    """Calls refused by name get EPERM by default."""
    for name in filter(exists, policy.REFUSED):
        assert named(name) == seccomp.RET_EPERM, name


def test_the_lists_do_not_overlap() -> None:
    """No call stands in two of the policy's lists, or twice in the table."""
    names = [name for entry in (*policy.ALLOWED, policy.ANY_MEMORY) for name in entry.names]
    names += [*policy.KILLED, *policy.REFUSED, *policy.NO_SUCH_CALL]
    assert len(names) == len(set(names))


@TABLES
def test_only_the_table_is_allowed(
    folder: bool,  # noqa: FBT001 - a table's column
    table: tuple[policy.Allow, ...],
) -> None:
    """Of the numbers up to 1,000, the table's unchecked calls alone pass with hostile arguments."""
    unchecked = {
        syscall_numbers.number_of(name)
        for entry in table
        for name in filter(exists, entry.names)
        if not entry.checks(name) and entry.performed
    }
    worst = [SYSCALL_MAX - 1] * 6
    passed = {number for number in range(1001) if answer(number, *worst, folder=folder) == seccomp.RET_ALLOW}
    assert passed == unchecked


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        (os.O_RDONLY, True),
        (os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, True),
        (os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, True),
        (os.O_WRONLY | os.O_APPEND, True),
        (os.O_RDWR | os.O_TMPFILE, False),
        (os.O_PATH, False),
        (os.O_RDWR | os.O_SYNC, False),
        (os.O_RDWR | os.O_DSYNC, False),
        (os.O_RDONLY | os.O_NOATIME, False),
        (os.O_RDONLY | os.O_ASYNC, False),
        (os.O_RDONLY | os.O_DIRECT, False),
        (os.O_WRONLY | os.O_RDWR, False),
    ],
)
def test_files_are_written_in_a_folder(flags: int, allowed: bool) -> None:  # noqa: FBT001 - a table's column
    """A task with a private folder opens for writing too, and by no other flag."""
    expected = seccomp.RET_ALLOW if allowed else seccomp.RET_EPERM
    assert named("openat", 0xFFFF_FF9C, 1, flags, folder=True) == expected


def test_changes_by_descriptor_are_refused() -> None:
    """Modes and times are changed by path alone, no special bit is set, and locks are not made."""
    assert named("chmod", 1, 0o755, folder=True) == seccomp.RET_ALLOW
    for special in (0o4755, 0o2755, 0o1755):
        assert named("chmod", 1, special, folder=True) == seccomp.RET_EPERM
    assert named("utimensat", 0xFFFF_FF9C, 1, folder=True) == seccomp.RET_ALLOW
    assert named("utimensat", 5, 0, folder=True) == seccomp.RET_EPERM
    for lock, expected in ((fcntl.F_SETLK, seccomp.RET_DONE), (fcntl.F_SETLKW, seccomp.RET_DONE)):
        assert named("fcntl", 5, lock, 1, folder=True) == expected
        assert named("fcntl", 5, lock, 1) == seccomp.RET_EPERM
    for other in (fcntl.F_SETLEASE, fcntl.F_NOTIFY, fcntl.F_ADD_SEALS, fcntl.F_SETOWN, fcntl.F_SETPIPE_SZ):
        assert named("fcntl", 5, other, 1, folder=True) == seccomp.RET_EPERM


def test_calls_newer_than_the_table_do_not_exist() -> None:
    """An unknown newer call gets ENOSYS, so that the C library falls back to one we know."""
    assert answer(syscall_numbers.NEWEST + 1) == seccomp.RET_ENOSYS
    assert answer(5000) == seccomp.RET_ENOSYS
    assert named("clone3") == seccomp.RET_ENOSYS


def test_foreign_calls_end_the_task() -> None:
    """Another architecture's calls, and those of the x32 ABI, end the process."""
    assert answer(0, architecture=0x40000003) == seccomp.RET_KILL_PROCESS
    assert answer(0x40000000) == seccomp.RET_KILL_PROCESS
    assert answer(SYSCALL_MAX) == seccomp.RET_KILL_PROCESS


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        (os.O_RDONLY, True),
        (os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_NONBLOCK, True),
        (os.O_WRONLY, False),
        (os.O_RDWR, False),
        (os.O_WRONLY | os.O_RDWR, False),
        (os.O_CREAT, False),
        (os.O_TRUNC, False),
        (os.O_APPEND, False),
        (os.O_TMPFILE, False),
        (os.O_PATH, False),
    ],
)
def test_files_open_for_reading_alone(flags: int, allowed: bool) -> None:  # noqa: FBT001 - a table's column
    """No flag that writes, creates or makes a bare path handle passes openat."""
    expected = seccomp.RET_ALLOW if allowed else seccomp.RET_EPERM
    assert named("openat", 0xFFFF_FF9C, 1, flags) == expected
    if exists("open"):
        assert named("open", 1, flags) == expected


@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        (("clone", 0x3D0F00), True),
        (("clone", 0x7D0F00), True),
        (("clone", 17), False),
        (("clone", THREAD | 0x1000), False),
        (("clone", THREAD | 0x10000000), False),
        (("mremap", 0, 4096, 8192, 1), True),
        (("mremap", 0, 4096, 8192, 3, 0), False),
        (("madvise", 0, 4096, 102), True),
        (("madvise", 0, 4096, 12), False),
        (("madvise", 0, 4096, 21), False),
        (("kill", 1, 6), True),
        (("kill", 0, 6), False),
        (("kill", 0xFFFF_FFFF, 6), False),
        (("tgkill", 2, 7, 6), False),
        (("prlimit64", 1, 7, 0), True),
        (("prlimit64", 2, 7, 0), False),
        (("prlimit64", 0, 7, 0x7F00_0000_0000), False),
        (("socketpair", 1, 1 | 0o2000000 | 0o4000), True),
        (("socketpair", 1, 2), False),
        (("socketpair", 1, 5), False),
        (("fcntl", 3, 1033), False),
        (("fcntl", 3, 8, 1), False),
        (("fcntl", 3, 4, 0o4002), True),
        (("fcntl", 3, 4, 0o20002), False),
        (("fcntl", 3, 0, 0o20002), True),
        (("prctl", 4), False),
        (("ioctl", 0, 0x5412), False),
        (("sched_setaffinity", 0), False),
        (("sendto", 3, 1, 1, 0x4040, 0), True),
        (("sendto", 3, 1, 1, 1, 0), False),
        (("sendto", 3, 1, 1, 0, 0x7F00_0000_0000), False),
        (("recvmsg", 3, 1, 0x40000000), True),
        (("recvmsg", 3, 1, 0x2000), False),
        (("recvfrom", 3, 1, 1, 1), False),
        (("getsockopt", 3, 1, 3), True),
        (("getsockopt", 3, 1, 17), False),
        (("getsockopt", 3, 1, 77), False),
        (("clock_gettime", 11), True),
        (("clock_gettime", 0xFFFF_FFFF & (~2 << 3 | 2)), False),
        (("clock_getres", 0xFFFF_FFFF & (~2 << 3 | 6)), False),
        (("clock_nanosleep", 0xFFFF_FFFF & (~2 << 3 | 3)), False),
        (("pipe2", 1, 0o200), False),
        (("mprotect", 4096, 4096, 3 | 0x0100_0000), True),
        (("mprotect", 4096, 4096, 3 | 0x0200_0000), False),
        (("mmap", 0, 4096, 3 | 0x0100_0000, 2 | 0x20), False),
        (("getrandom", 1, 1, 2), True),
        (("getrandom", 1, 1, 8), False),
        (("statx", 5, 1, 0x2000, 1), False),
    ],
)
def test_arguments_are_checked(call: tuple[str, int], allowed: bool) -> None:  # noqa: FBT001 - a table's column
    """A call with checks passes with the arguments of its reason and is refused with others."""
    name, *arguments = call
    assert named(name, *arguments) == (seccomp.RET_ALLOW if allowed else seccomp.RET_EPERM)


@pytest.mark.parametrize("operation", [6, 7, 8, 11, 12, 13, 6 | 128])
def test_locks_with_an_owner_do_not_exist(operation: int) -> None:
    """Operations that find a thread by its number are answered like those of a kernel without them."""
    assert named("futex", 4096, operation) == seccomp.RET_ENOSYS
    assert named("futex", 4096, 0 | 128) == seccomp.RET_ALLOW


def test_a_socket_keeps_the_size_of_its_buffers() -> None:
    """Setting the size of a buffer returns success, so that event loops start, and is not made."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        assert named("setsockopt", 3, socket.SOL_SOCKET, option) == seccomp.RET_DONE
    assert seccomp.RET_DONE & 0xFFFF == 0


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("flag", [GROWS_DOWN, HUGE])
def test_no_memory_grows_by_itself_or_is_huge(counted: bool, flag: int) -> None:  # noqa: FBT001 - a column
    """Neither is to be had, with or without a group that counts memory."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    stack = 0x20000
    code = seccomp.program(memory_is_counted=counted)
    number = syscall_numbers.number_of("mmap")
    assert answer(number, 0, 4096, 3, private | stack, code=code) == seccomp.RET_ALLOW
    assert answer(number, 0, 4096, 3, private | stack | flag, code=code) == seccomp.RET_EPERM


def test_without_a_pid_namespace_the_own_pid_is_the_real_one() -> None:
    """A filter made for pid 4711 lets signals reach 4711 and nothing else, process 1 included."""
    assert named("kill", 4711, 6, own_pid=4711) == seccomp.RET_ALLOW
    assert named("kill", 1, 6, own_pid=4711) == seccomp.RET_EPERM
    assert named("fcntl", 3, 1, own_pid=4711) == seccomp.RET_ALLOW


def test_memory_that_nothing_counts_is_refused() -> None:
    """Without a group, anonymous shared memory is refused; private memory and mapped buffers are not."""
    private, shared, anonymous = mmap.MAP_PRIVATE, mmap.MAP_SHARED, mmap.MAP_ANONYMOUS
    for flags in (private, shared, private | anonymous, private | anonymous | 0x20000):
        assert named("mmap", 0, 4096, 3, flags) == seccomp.RET_ALLOW
    for flags in (shared | anonymous, shared | private | anonymous, anonymous):
        assert named("mmap", 0, 4096, 3, flags) == seccomp.RET_EPERM
    assert seccomp.program(memory_is_counted=True) != seccomp.program()


def test_names_and_numbers_agree() -> None:
    """A number's name is the name it was looked up by; unknown ones are said in words."""
    assert syscall_numbers.name_of(syscall_numbers.number_of("bpf")) == "bpf"
    assert syscall_numbers.name_of(9999) == "call number 9999"
    for column in range(2):
        used = [row[column] for row in syscall_numbers.NUMBERS.values() if row[column] >= 0]
        assert len(used) == len(set(used))


@pytest.mark.parametrize(
    ("architecture", "number", "text"),
    [
        (f"{OWN_ARCHITECTURE:x}", str(syscall_numbers.NUMBERS["bpf"][0]), "bpf"),
        ("40000003", "11", "call number 11 of another architecture (40000003)"),
        (f"{OWN_ARCHITECTURE:x}", str(0x40000000 | 59), "call number 59 of the x32 ABI"),
        ("", "1", ""),
        ("c000003e", "many", ""),
    ],
)
def test_a_refused_call_is_named_by_its_own_architecture(architecture: str, number: str, text: str) -> None:
    """A number of another table is not given the name that it has in this machine's."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    assert syscall_numbers.described(architecture, number) == text


@pytest.mark.parametrize(
    ("call", "task", "template"),
    [
        (("clone", THREAD), True, True),
        (("clone", policy.CLONE_OF_SESSIONS | 17), False, True),
        (("clone", 17), False, False),
        (("clone", 0x8000 | 17), False, False),
        (("clone", (policy.CLONE_OF_SESSIONS & ~0x8000) | 17), False, False),
        (("clone", (policy.CLONE_OF_SESSIONS & ~0x10000000) | 17), False, False),
        (("clone", policy.CLONE_OF_SESSIONS | 0x100 | 17), False, False),
        (("prctl", 1, 9), False, True),
        (("prctl", 23, 0), False, False),
        (("prlimit64", 0, 7, 8), False, True),
        (("prlimit64", 5, 7, 8), False, False),
        (("seccomp", 1, 0), False, True),
        (("seccomp", 0, 0), False, False),
        (("setsid",), False, True),
        (("move_mount",), False, False),
        (("socket", 1, 1), False, False),
        (("execve",), False, False),
        (("setns", 1), False, False),
    ],
)
def test_a_template_may_fork_tasks_and_little_else(
    call: tuple[str, *tuple[int, ...]], *, task: bool, template: bool
) -> None:
    """The filter of a template permits exactly the flags of its tasks, and what their lock-down needs."""
    name, *arguments = call
    number = syscall_numbers.number_of(name)
    for allowed, code in (
        (task, seccomp.program(has_folder=True)),
        (template, seccomp.program(has_folder=True, for_template=True)),
    ):
        assert (answer(number, *arguments, code=code) == seccomp.RET_ALLOW) is allowed
