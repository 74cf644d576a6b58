from __future__ import annotations

import os
import struct

import pytest

from dios.host.sandbox import policy, seccomp, syscall_numbers

OWN_ARCHITECTURE = syscall_numbers.AUDIT_ARCH.get(os.uname().machine, 0)
SYSCALL_MAX = 0xFFFF_FFFF

pytestmark = pytest.mark.skipif(
    not syscall_numbers.supported(), reason="no system-call table for this architecture"
)


def answer(call: int, *arguments: int, architecture: int = OWN_ARCHITECTURE, own_pid: int = 1) -> int:
    """What the filter says to a call, by the rules of the kernel's own machine."""
    data = struct.pack("=IIQ6Q", call, architecture, 0, *arguments, *([0] * (6 - len(arguments))))
    code = list(struct.iter_unpack("=HBBI", seccomp.program(own_pid)))
    accumulator, at = 0, 0
    while True:
        kind, then, otherwise, value = code[at]
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


def named(name: str, *arguments: int, own_pid: int = 1) -> int:
    """What the filter says to a call by name."""
    return answer(syscall_numbers.number_of(name), *arguments, own_pid=own_pid)


def exists(name: str) -> bool:
    """Whether this architecture has the call."""
    return syscall_numbers.NUMBERS[name][["x86_64", "aarch64"].index(os.uname().machine)] >= 0


def test_every_unchecked_call_of_the_table_is_allowed() -> None:
    """Calls without a check are made whatever their arguments."""
    for entry in policy.ALLOWED:
        if not entry.checks:
            for name in filter(exists, entry.names):
                assert named(name, *([SYSCALL_MAX] * 6)) == seccomp.RET_ALLOW, name


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


def test_only_the_table_is_allowed() -> None:
    """Of the numbers up to 1,000, the table's unchecked calls alone pass with hostile arguments."""
    table = {
        syscall_numbers.number_of(name)
        for entry in policy.ALLOWED
        if not entry.checks
        for name in filter(exists, entry.names)
    }
    passed = {number for number in range(1001) if answer(number, *([SYSCALL_MAX] * 6)) == seccomp.RET_ALLOW}
    assert passed == table


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
        (("clone", policy.CLONE_THREAD | 0x3D0F00), True),
        (("clone", 17), False),
        (("clone", policy.CLONE_THREAD | 0x10000000), False),
        (("clone", policy.CLONE_THREAD | 0x80), False),
        (("kill", 1, 6), True),
        (("kill", 0, 6), False),
        (("kill", 0xFFFF_FFFF, 6), False),
        (("tgkill", 1, 7, 6), True),
        (("tgkill", 2, 7, 6), False),
        (("prlimit64", 0, 7, 0), True),
        (("prlimit64", 1, 7, 0), True),
        (("prlimit64", 2, 7, 0), False),
        (("prlimit64", 0, 7, 0x7F00_0000_0000), False),
        (("prlimit64", 0, 7, 4096), False),
        (("socketpair", 1, 1), True),
        (("socketpair", 1, 1 | 0o2000000 | 0o4000), True),
        (("socketpair", 1, 2), False),
        (("socketpair", 1, 5), False),
        (("socketpair", 2, 1), False),
        (("setsockopt", 3, 1, 7), True),
        (("setsockopt", 3, 1, 16), False),
        (("fcntl", 3, 1033), False),
        (("fcntl", 3, 1034), True),
        (("prctl", 15), True),
        (("prctl", 1), False),
        (("prctl", 4), False),
        (("ioctl", 0, 0x5412), False),
        (("sched_setaffinity", 0), False),
        (("sendto", 3, 1, 1, 0, 0), True),
        (("sendto", 3, 1, 1, 0, 0x7F00_0000_0000), False),
        (("sendto", 3, 1, 1, 0, 4096), False),
        (("getsockopt", 3, 1, 3), True),
        (("getsockopt", 3, 1, 17), False),
        (("getsockopt", 3, 1, 59), False),
        (("getsockopt", 3, 1, 77), False),
        (("getsockopt", 3, 6, 3), False),
    ],
)
def test_arguments_are_checked(call: tuple[str, int], allowed: bool) -> None:  # noqa: FBT001 - a table's column
    """A call with checks passes with the arguments of its reason and is refused with others."""
    name, *arguments = call
    assert named(name, *arguments) == (seccomp.RET_ALLOW if allowed else seccomp.RET_EPERM)


def test_without_a_pid_namespace_the_own_pid_is_the_real_one() -> None:
    """A filter made for pid 4711 lets signals reach 4711 and nothing else, process 1 included."""
    assert named("kill", 4711, 6, own_pid=4711) == seccomp.RET_ALLOW
    assert named("kill", 1, 6, own_pid=4711) == seccomp.RET_EPERM
    assert named("fcntl", 3, 1, own_pid=4711) == seccomp.RET_ALLOW


def test_memory_that_nothing_counts_is_refused() -> None:
    """Without a group, anonymous shared memory is refused; private memory and mapped buffers are not."""
    private, shared, anonymous = policy.MAP_PRIVATE, policy.MAP_SHARED, policy.MAP_ANONYMOUS
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
