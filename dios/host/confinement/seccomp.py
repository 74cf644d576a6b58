"""Compiles the system-call policy of pure tasks into a filter program for the kernel.

``dios.host.confinement.policy`` is the policy. The program is a binary search over call numbers, so that a
call costs about nine comparisons, and less where the kernel caches the result.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from typing import Final

from dios.host.confinement import linux_calls, policy, syscall_numbers
from dios.host.confinement.arguments import Check

_INSTRUCTION: Final = struct.Struct("=HBBI")
_LOAD: Final = 0x20
_AND: Final = 0x54
_JUMP: Final = 0x05
_IF_EQUAL: Final = 0x15
_IF_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06

RET_ALLOW: Final = 0x7FFF0000
RET_KILL_PROCESS: Final = 0x80000000
RET_DONE: Final = 0x00050000
"""The call is not made and returns 0."""
RET_EPERM: Final = RET_DONE | errno.EPERM
RET_ENOSYS: Final = RET_DONE | errno.ENOSYS
RET_ASK: Final = 0x7FC00000
"""The call waits for an answer of the listener."""

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16
_FAR: Final = 255
_INSTRUCTIONS_MAX: Final = 4096

_SECCOMP_SET_MODE_FILTER: Final = 1

Code = list[bytes]


def _op(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, then, otherwise, value)


def _return(value: int) -> Code:
    return [_op(_RETURN, value)]


def _check(check: Check, own_pid: int) -> Code:
    """Return code that falls through if the check holds and returns its errno otherwise."""
    refusal = _op(_RETURN, RET_DONE | check.refusal)
    at = _ARGUMENTS_AT + 8 * check.argument
    code: Code = []
    if check.high_zero:
        code += [_op(_LOAD, at + 4), _op(_IF_EQUAL, 0, 1, 0), refusal]
    code.append(_op(_LOAD, at))
    if check.mask != 0xFFFF_FFFF:
        code.append(_op(_AND, check.mask))
    values = (*check.values, own_pid) if check.or_own_pid else check.values
    for index, value in enumerate(values):
        # Jump over the remaining comparisons and the refusal after them.
        code.append(_op(_IF_EQUAL, value, len(values) - index, 0))
    code.append(refusal)
    return _for_given(check, code)


def _for_given(check: Check, code: Code) -> Code:
    """Return the code of a check, which falls through for other values of the argument that it depends on."""
    if check.given is None:
        return code
    argument, values = check.given
    start = [_op(_LOAD, _ARGUMENTS_AT + 8 * argument)]
    if check.given_mask != 0xFFFF_FFFF:
        start.append(_op(_AND, check.given_mask))
    start += [_op(_IF_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [*start, _op(_JUMP, len(code)), *code]


def _done(check: Check) -> Code:
    """Return code that returns 0 for the call if the check holds and falls through otherwise."""
    code = [_op(_LOAD, _ARGUMENTS_AT + 8 * check.argument)]
    for index, value in enumerate(check.values):
        last = index == len(check.values) - 1
        code.append(_op(_IF_EQUAL, value, len(check.values) - 1 - index, 1 if last else 0))
    return code + _return(RET_DONE)


def _asked(check: Check) -> Code:
    """Return code that asks the listener about the call if the check holds and falls through otherwise."""
    (value,) = check.values
    load = [_op(_LOAD, _ARGUMENTS_AT + 8 * check.argument), _op(_AND, check.mask)]
    return [*load, _op(_IF_EQUAL, value, 0, 1), *_return(RET_ASK)]


def _allowed(entry: policy.Allow, name: str, own_pid: int) -> Code:
    done = _done(entry.done) if entry.done is not None else []
    asked = _asked(entry.asked) if entry.asked is not None else []
    checks = [op for check in entry.checks(name) for op in _check(check, own_pid)]
    return done + asked + checks + _return(RET_ALLOW if entry.performed else RET_DONE)


def _answers(own_pid: int, memory: policy.Allow, allowed: Iterable[policy.Allow]) -> dict[int, Code]:
    answers: dict[int, Code] = {}

    def put(names: Iterable[str], code: Code) -> None:
        for name in names:
            try:
                answers[syscall_numbers.number_of(name)] = code
            except OSError:
                continue  # this architecture has no such call

    for entry in (*allowed, memory):
        for name in entry.names:
            put((name,), _allowed(entry, name, own_pid))
    put(policy.KILLED, _return(RET_KILL_PROCESS))
    put(policy.NO_SUCH_CALL, _return(RET_ENOSYS))
    return answers


def _ranges(answers: dict[int, Code]) -> list[tuple[int, Code]]:
    """Return the start of each run of equal results, from number 0 to the highest number."""
    refused, unknown, foreign = _return(RET_EPERM), _return(RET_ENOSYS), _return(RET_KILL_PROCESS)
    starts: list[tuple[int, Code]] = []
    for number in range(syscall_numbers.NEWEST + 1):
        code = answers.get(number, refused)
        if not starts or starts[-1][1] != code:
            starts.append((number, code))
    for number, code in sorted((n, c) for n, c in answers.items() if n > syscall_numbers.NEWEST):
        starts.append((number, code))
        starts.append((number + 1, unknown))
    starts.append((syscall_numbers.NEWEST + 1, unknown))
    starts.append((syscall_numbers.X32_BIT, foreign))
    return sorted(dict(reversed(starts)).items(), key=lambda start: start[0])


def _search(starts: list[tuple[int, Code]]) -> Code:
    if len(starts) == 1:
        return starts[0][1]
    middle = len(starts) // 2
    below, above = _search(starts[:middle]), _search(starts[middle:])
    pivot = starts[middle][0]
    if len(below) <= _FAR:
        return [_op(_IF_AT_LEAST, pivot, len(below), 0), *below, *above]
    return [_op(_IF_AT_LEAST, pivot, 0, 1), _op(_JUMP, len(below)), *below, *above]


def program(
    own_pid: int = policy.INIT_PID,
    *,
    memory_is_counted: bool = False,
    has_folder: bool = False,
    for_template: bool = False,
    for_programs: bool = False,
    for_forkable: bool = False,
) -> bytes:
    """Return the filter for a task whose own pid is ``own_pid``, which is always 1 in a pid namespace.

    ``memory_is_counted`` means that a control group limits all of the task's memory, including shared memory.
    ``has_folder`` means that the task has a private folder, in which it may write. ``for_template`` returns
    the filter for the process of a template, which may start sessions. ``for_programs`` returns the filter of
    a task that may become a native program; it has a folder. ``for_forkable`` returns that of a session that
    can be forked, whose listener decides about that.
    Raise ``OSError`` with ENOSYS on an architecture without a table of numbers.
    """
    if not syscall_numbers.supported():
        raise OSError(errno.ENOSYS, f"no system-call table for {syscall_numbers.machine()}")
    memory = policy.ANY_MEMORY if memory_is_counted else policy.COUNTED_MEMORY
    allowed = policy.ALLOWED if has_folder else policy.ALLOWED_WITHOUT_FOLDER
    if for_template:
        allowed = policy.ALLOWED_FOR_TEMPLATES
    elif for_programs:
        allowed = policy.ALLOWED_FOR_PROGRAMS
    elif for_forkable:
        allowed = policy.ALLOWED_FOR_FORKABLE
    code = [
        _op(_LOAD, _ARCHITECTURE_AT),
        _op(_IF_EQUAL, syscall_numbers.AUDIT_ARCH[syscall_numbers.machine()], 1, 0),
        *_return(RET_KILL_PROCESS),
        _op(_LOAD, _NUMBER_AT),
        *_search(_ranges(_answers(own_pid, memory, allowed))),
    ]
    assert len(code) <= _INSTRUCTIONS_MAX, "the kernel takes no longer filter"  # noqa: S101 - a fact of the table
    return b"".join(code)


class SeccompFilter:
    """A filter program in memory, which any number of children can install."""

    def __init__(self, code: bytes) -> None:
        self._code = linux_calls.hold(code)
        header = struct.pack("@HxxxxxxQ", len(code) // _INSTRUCTION.size, linux_calls.address_of(self._code))
        self._header = linux_calls.hold(header)

    def install(self) -> None:
        """Install the filter in the calling thread for good; needs no_new_privs. Raise ``OSError``."""
        linux_calls.syscall("seccomp", _SECCOMP_SET_MODE_FILTER, 0, linux_calls.address_of(self._header))

    def install_with_listener(self) -> int:
        """Install the filter, and return the descriptor of its listener. Raise ``OSError``."""
        return linux_calls.syscall(
            "seccomp", _SECCOMP_SET_MODE_FILTER, policy.WITH_LISTENER, linux_calls.address_of(self._header)
        )
