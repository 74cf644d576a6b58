"""System calls that Python does not offer, as thin functions that raise ``OSError``.

Importing this module loads ``ctypes``. The zygote and the probe import it, the daemon never does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import select
import struct
from array import array
from typing import Final

from dios.host.confinement import syscall_numbers

CLONE_NEWTIME: Final = 0x00000080
CLONE_PARENT: Final = 0x00008000
CLONE_CHILD_CLEARTID: Final = 0x00200000
CLONE_CHILD_SETTID: Final = 0x01000000
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_KEEPCAPS: Final = 8
PR_CAPBSET_READ: Final = 23
PR_CAPBSET_DROP: Final = 24
PR_SET_SECUREBITS: Final = 28
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_GET_NO_NEW_PRIVS: Final = 39
PR_GET_TID_ADDRESS: Final = 40

_SIGCHLD: Final = 17
_CLOSE_RANGE: Final = 436  # on every architecture; called in every child, so it avoids the generic path
_CLONE_ARGS: Final = struct.Struct("=11Q")
_SCHED_ATTR: Final = struct.Struct("=IIQiI3QII")
_SCHED_FLAG_RESET_ON_FORK: Final = 1
_SLICE_FIELD: Final = 5

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_pthread_self: Final = _libc.pthread_self
_pthread_self.restype = ctypes.c_ulong
# Called dozens of times in every child, so it avoids the generic path.
_prctl: Final = _libc.prctl
_prctl.argtypes = [ctypes.c_int, *([ctypes.c_ulong] * 4)]
_close_range: Final = _libc["syscall"]
_close_range.argtypes = [ctypes.c_long, *([ctypes.c_uint] * 3)]
# PyDLL keeps the interpreter's lock during the call, so that the thread that clones holds the lock in the
# parent and in the child.
_python: Final = ctypes.PyDLL(None, use_errno=True)
_python_syscall: Final = _python.syscall
_python_syscall.restype = ctypes.c_long
_clone3: Final = _python["syscall"]
_clone3.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t]
_clone3.restype = ctypes.c_long
# Looked up once: a look-up in a new child would cost it eighty page faults.
_before_fork: Final = _python.PyOS_BeforeFork
_after_fork_in_parent: Final = _python.PyOS_AfterFork_Parent
_after_fork_in_child: Final = _python.PyOS_AfterFork_Child


def syscall(name: str, *arguments: int | bytes | None) -> int:
    """Make the system call ``name``; integers are passed as machine words, bytes as the address of a copy.

    Raise ``OSError`` with the call's errno, or with ENOSYS if this machine has no such call.
    """
    number = syscall_numbers.number_of(name)
    words: list[ctypes.c_void_p | ctypes.c_ulong | bytes] = []
    for argument in arguments:
        if argument is None:
            words.append(ctypes.c_void_p(0))
        elif isinstance(argument, bytes):
            words.append(argument)
        else:
            words.append(ctypes.c_ulong(argument & 0xFFFF_FFFF_FFFF_FFFF))
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, argument: int = 0) -> int:
    """Call prctl with one argument, the others 0. Raise ``OSError``."""
    result: int = _prctl(option, argument, 0, 0, 0)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
    return result


def sync_file_system(descriptor: int) -> None:
    """Write all that the file system of a descriptor has in memory to its disk. Raise ``OSError``."""
    if _libc.syncfs(ctypes.c_int(descriptor)):
        code = ctypes.get_errno()
        raise OSError(code, f"syncfs: {os.strerror(code)}")


def close_range(first: int, last: int) -> None:
    """Close all descriptors from ``first`` to ``last``. Raise ``OSError``."""
    if _close_range(_CLOSE_RANGE, first, last, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"close_range: {os.strerror(code)}")


def set_time_slice(pid: int, nanoseconds: int) -> None:
    """Let the first thread of an ordinary process run for at most this time before another one has its turn.

    Its share of the processor stays the same. Its new threads and children have the kernel's slice, unless
    it has a negative nice value, which they would lose as well. A kernel before 6.12 ignores the slice. Raise
    ``OSError``.
    """
    nice = os.getpriority(os.PRIO_PROCESS, pid)
    flags = _SCHED_FLAG_RESET_ON_FORK if nice >= 0 else 0
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, flags, nice, 0, nanoseconds, 0, 0, 0, 0)
    syscall("sched_setattr", pid, attributes, 0)


def time_slice(pid: int) -> int:
    """Return the nanoseconds of the slice of a process's first thread, 0 with a kernel before 6.12.

    Raise ``OSError``.
    """
    attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
    syscall("sched_getattr", pid, ctypes.addressof(attributes), _SCHED_ATTR.size, 0)
    return int(_SCHED_ATTR.unpack(attributes.raw)[_SLICE_FIELD])


@functools.cache
def tid_address() -> int:
    """Return the address at which the C library keeps the calling thread's id, or 0 if it is unknown.

    It stays the same in forks, which may have no right to ask for it: call it before.
    """
    with contextlib.suppress(ValueError):
        # Where glibc has the id in a thread's structure, as it describes that to debuggers. Since 2.42 the
        # address that the kernel knows is another one, and signals to a thread use this.
        _, _, offset = (ctypes.c_uint32 * 3).in_dll(_libc, "_thread_db_pthread_tid")
        own: int = _pthread_self()
        return own + int(offset)
    address = ctypes.c_ulong(0)
    try:
        prctl(PR_GET_TID_ADDRESS, ctypes.addressof(address))
    except OSError:
        return 0
    return address.value


def clone3(flags: int, *, settid: int = 0) -> tuple[int, int]:
    """Fork into the namespaces of ``flags``. Return (pid, pidfd) in the parent and (0, -1) in the child.

    ``settid`` is ``tid_address()``: the kernel writes the child's new thread id there, as fork does. Only for
    a process with one thread. The interpreter's fork handlers run on both sides, so that the child is in the
    same state as after ``os.fork``. Raise ``OSError``.
    """
    pidfd = ctypes.c_int(-1)
    clone_pidfd = 0x00001000
    if settid:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    arguments = _CLONE_ARGS.pack(
        flags | clone_pidfd, ctypes.addressof(pidfd), settid, 0, _SIGCHLD, 0, 0, 0, 0, 0, 0
    )
    number = syscall_numbers.number_of("clone3")
    _before_fork()
    pid: int = _clone3(number, arguments, _CLONE_ARGS.size)
    if pid == 0:
        _after_fork_in_child()
        return 0, -1
    code = ctypes.get_errno()
    _after_fork_in_parent()
    if pid < 0:
        raise OSError(code, f"clone3: {os.strerror(code)}")
    return pid, pidfd.value


def clone_sibling(flags: int, settid: int) -> int:
    """Fork into the namespaces of ``flags`` as a child of this process's parent, which reaps it.

    Return the child's pid in the parent's own namespace, and 0 in the child. ``settid`` is ``tid_address()``.
    This uses the older call ``clone``, whose flags a filter of system calls can check. A process with other
    threads may call it if they wait without a lock; the child has none of them. Raise ``OSError``.
    """
    if settid:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    # The last two arguments are the child's thread pointer, which stays, and the address of its thread id.
    # Their order depends on the architecture.
    order = (settid, 0) if syscall_numbers.machine() == "x86_64" else (0, settid)
    words = [ctypes.c_ulong(word) for word in (flags | CLONE_PARENT | _SIGCHLD, 0, 0, *order)]
    number = ctypes.c_long(syscall_numbers.number_of("clone"))
    _before_fork()
    pid: int = _python_syscall(number, *words)
    if pid == 0:
        _after_fork_in_child()
        return 0
    code = ctypes.get_errno()
    _after_fork_in_parent()
    if pid < 0:
        raise OSError(code, f"clone: {os.strerror(code)}")
    return pid


def open_descriptors(first: int, end: int) -> list[int]:
    """Return the open descriptors from ``first`` to ``end - 1``, without /proc. Raise ``OSError``."""
    # Each row of 8 bytes ends with the events that the kernel reports, in 2 bytes. The machines that
    # ``syscall_numbers`` knows are little-endian.
    table = array("q", range(first, end))
    if _libc.poll(ctypes.c_void_p(table.buffer_info()[0]), ctypes.c_ulong(len(table)), 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"poll: {os.strerror(code)}")
    events, closed = table.tobytes()[6::8], bytes([select.POLLNVAL])
    descriptors = []
    while rest := events.lstrip(closed):
        descriptors.append(end - len(rest))
        events = rest[1:]
    return descriptors


def address_of(program: ctypes.Array[ctypes.c_char]) -> int:
    """Return the address of a buffer made by ``hold``; valid while the buffer is referenced."""
    return ctypes.addressof(program)


def hold(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """Copy bytes into memory with a fixed address, for structures that contain pointers to them."""
    return ctypes.create_string_buffer(data, len(data))


def describe(error: OSError) -> str:
    """Return the errno's name and the text of an error."""
    return f"{errno.errorcode.get(error.errno or 0, '?')} ({error.strerror})"
