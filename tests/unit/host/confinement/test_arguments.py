"""Each argument of each allowed call has its rule, and the filter refuses every bit that is outside of it."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import resource
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dios.host.confinement import policy, seccomp, syscall_numbers
from dios.host.confinement.arguments import ARGUMENTS, CONSTANTS, Harmless, Permitted, Rule, number_of

pytestmark = pytest.mark.skipif(
    not syscall_numbers.supported(), reason="no system-call table for this architecture"
)

TABLES: Mapping[str, tuple[tuple[policy.Allow, ...], bytes]] = {
    "folder": ((*policy.ALLOWED, policy.COUNTED_MEMORY), seccomp.program(has_folder=True)),
    "counted memory": (
        (*policy.ALLOWED, policy.ANY_MEMORY),
        seccomp.program(has_folder=True, memory_is_counted=True),
    ),
    "no folder": ((*policy.ALLOWED_WITHOUT_FOLDER, policy.COUNTED_MEMORY), seccomp.program()),
    "templates": (policy.ALLOWED_FOR_TEMPLATES, seccomp.program(for_template=True, has_folder=True)),
    "programs": (policy.ALLOWED_FOR_PROGRAMS, seccomp.program(for_programs=True)),
    "forkable": (policy.ALLOWED_FOR_FORKABLE, seccomp.program(for_forkable=True)),
}
"""The kinds of processes: the table of each, and its filter."""
OWN_PID = 1
MADE = {seccomp.RET_ALLOW, seccomp.RET_DONE, seccomp.RET_ASK}
TRACING = Path("/sys/kernel/tracing/events/syscalls")


def run(code: bytes, call: str, arguments: list[int]) -> int:
    """Return the answer of a filter, by the rules of the kernel's own machine."""
    filled = [*arguments, *([0] * (6 - len(arguments)))]
    architecture = syscall_numbers.AUDIT_ARCH[syscall_numbers.machine()]
    data = struct.pack("=IIQ6Q", syscall_numbers.number_of(call), architecture, 0, *filled)
    steps = list(struct.iter_unpack("=HBBI", code))
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
        elif kind in {0x15, 0x35}:
            holds = accumulator == value if kind == 0x15 else accumulator >= value
            at += then if holds else otherwise
        else:
            return int(value)


def exists(name: str) -> bool:
    """Return True if this architecture has the call."""
    column = ["x86_64", "aarch64"].index(os.uname().machine)
    return syscall_numbers.NUMBERS[name][column] >= 0


def first_value(rule: Rule) -> int:
    """Return a value that a rule permits."""
    if isinstance(rule, Harmless):
        return 0
    return number_of(rule.values.split()[0]) if rule.values else OWN_PID


def is_permitted(rule: Permitted, value: int) -> bool:
    """Return True if the table permits a value; the compiler of filters has no part in it."""
    low = value & 0xFFFF_FFFF & ~number_of(rule.bits.replace(" ", "|") or "0")
    values = {number_of(names) for names in rule.values.split()} | ({OWN_PID} if rule.or_own_pid else set())
    return low in values and not (rule.wide and value >> 32)


def cases(signature: Mapping[str, Rule]) -> Iterator[tuple[int, list[int], bool]]:
    """Yield each argument with each bit flipped: its place, all arguments, and True if they are permitted."""
    order = list(signature)
    for place, rule in enumerate(signature.values()):
        arguments = [first_value(signature[argument]) for argument in order]
        if isinstance(rule, Permitted) and rule.given is not None:
            arguments[order.index(rule.given[0])] = number_of(rule.given[1].split()[0])
        for bit in range(64):
            flipped = list(arguments)
            flipped[place] ^= 1 << bit
            permitted = isinstance(rule, Harmless) or is_permitted(rule, flipped[place])
            yield place, flipped, permitted


@pytest.mark.parametrize("kind", TABLES)
def test_every_bit_outside_of_a_rule_is_refused(kind: str) -> None:
    """With one bit changed in one argument, a call is made if and only if the table permits that value."""
    table, code = TABLES[kind]
    done = {number_of("F_SETLK"), number_of("F_SETLKW")}
    for entry in table:
        for name in filter(exists, entry.names):
            base = ARGUMENTS[name] if kind != "folder" else None
            if entry.signature(name) == base:
                continue  # the same rules were tried with the first table
            for place, arguments, permitted in cases(entry.signature(name)):
                if name == "fcntl" and entry.done is not None and arguments[1] in done:
                    continue
                is_performed = run(code, name, arguments) in MADE
                assert is_performed is permitted, (name, place, list(map(hex, arguments)))


def test_a_rule_of_a_request_holds_for_this_request_alone() -> None:
    """Flags of an open file are checked where they are set; other requests have other arguments there."""
    code = seccomp.program(has_folder=True)
    for request in ("F_DUPFD", "F_GETFL", "F_GETLK"):
        assert run(code, "fcntl", [3, number_of(request), 0xFFFF_FFFF]) == seccomp.RET_ALLOW
    assert run(code, "fcntl", [3, number_of("F_SETFL"), 0xFFFF_FFFF]) == seccomp.RET_EPERM


@pytest.mark.parametrize("kind", TABLES)
def test_a_mode_counts_for_a_new_file_alone(kind: str) -> None:
    """A file that is there is opened with anything in the register of the mode."""
    code = TABLES[kind][1]
    garbage = 0xFFFF_F000
    assert run(code, "openat", [number_of("AT_FDCWD"), 1, os.O_RDONLY | os.O_DIRECTORY, garbage]) in MADE
    assert run(code, "openat", [number_of("AT_FDCWD"), 1, os.O_WRONLY | os.O_CREAT, garbage]) not in MADE


@pytest.mark.parametrize("kind", TABLES)
def test_a_task_asks_for_its_own_processors_alone(kind: str) -> None:
    """With another number the call does not exist, which the C library expects of some kernels."""
    code = TABLES[kind][1]
    assert run(code, "sched_getaffinity", [0, 8, 1]) == seccomp.RET_ALLOW
    assert run(code, "sched_getaffinity", [4711, 8, 1]) == seccomp.RET_ENOSYS


def test_without_a_pid_namespace_other_processes_are_not_asked_about() -> None:
    """Its filter knows the task's own number there, and refuses those of others, which exist."""
    code = seccomp.program(4711)
    assert run(code, "sched_getaffinity", [4711, 8, 1]) == seccomp.RET_ALLOW
    assert run(code, "sched_getaffinity", [1, 8, 1]) == seccomp.RET_ENOSYS


def test_every_allowed_call_has_the_arguments_of_the_kernel() -> None:
    """Where the kernel describes its calls, the table has as many arguments as it has."""
    if not TRACING.is_dir():
        pytest.skip("the kernel's descriptions of its calls are not mounted here")
    renamed = {name: f"new{name}" for name in ("stat", "lstat", "fstat", "uname")}
    wrong = {}
    for name, signature in ARGUMENTS.items():
        path = TRACING / f"sys_enter_{renamed.get(name, name)}" / "format"
        if path.is_file():
            fields = re.findall(
                r"field:(?!.*(?:common_|__syscall_nr|__data_loc)).*;\toffset", path.read_text()
            )
            if len(fields) != len(signature):
                wrong[name] = (len(fields), len(signature))
    assert not wrong


def test_constants_are_those_of_this_machine() -> None:
    """A constant that Python's modules or the kernel's headers know has the same number there."""
    known = {
        name: int(value) & 0xFFFF_FFFF
        for module in (fcntl, mmap, os, resource, select, signal, socket, termios, time)
        for name, value in vars(module).items()
        if isinstance(value, int)
    }
    for header in ("futex.h", "sched.h", "prctl.h", "stat.h", "fcntl.h", "random.h", "seccomp.h"):
        path = Path("/usr/include/linux") / header
        text = path.read_text() if path.is_file() else ""
        for name, value in re.findall(
            r"^#define\s+(\w+)\s+(0x[0-9a-fA-F]+|[1-9]\d*)U?L*\s", text, re.MULTILINE
        ):
            known.setdefault(name, int(value, 0) & 0xFFFF_FFFF)
    own = {"O_LARGEFILE"}
    wrong = {
        name: (number, known[name]) for name, number in CONSTANTS.items() if known.get(name, number) != number
    }
    assert set(wrong) <= own, wrong
    assert len(set(CONSTANTS) & set(known)) > 2 * len(CONSTANTS) // 3


def test_a_call_without_a_row_stops_the_import() -> None:
    """An allowed call whose arguments nobody wrote down has no filter."""
    entry = policy.Allow(("setpriority",), "a reason of its own", "nothing")
    with pytest.raises(KeyError):
        entry.checks("setpriority")
