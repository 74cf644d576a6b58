"""Hostile programs of the escape suite after other programs and processes; ``attempt_of`` returns each.

Not for: anything but ``escape.Cage``, which runs them and knows what must come of each.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable

from escape_tools import checked, libc, number, numbered, raw

SELF = 0
HERE_ALONE = 1
"""What a task's only process is called inside its pid namespace."""

WORD = 8


# -- programs -----------------------------------------------------------------------------------------
def _try_execute_shell() -> object:
    return os.execv("/bin/sh", ["sh", "-c", "exit"])  # noqa: S606 - the attempt itself


def _try_execute_python() -> object:
    return os.execv(sys.executable, ["python", "-c", ""])  # noqa: S606 - the attempt itself


def _try_execute_setuid_program() -> object:
    return os.execv("/bin/su", ["su"])  # noqa: S606 - the attempt itself


def _try_execute_library() -> object:
    """The loader of programs is in the view: it would run what is mapped for reading."""
    with open(os.__file__, "rb") as file:  # noqa: PTH123 - the descriptor is wanted
        return os.execve(file.fileno(), ["x"], {})  # noqa: S606 - the attempt itself


def _try_execute_at() -> object:
    at_empty_path = 0x1000
    return raw("execveat", 1, b"\0", 0, 0, at_empty_path)


# -- processes of its own -----------------------------------------------------------------------------
def _try_fork() -> object:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]


def _try_fork_bomb() -> object:
    children = 0
    while children < 10_000:
        if os.fork() == 0:
            signal.pause()
        children += 1
    return children


def _try_process_pool() -> object:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1])


def _try_clone_sharing_memory() -> object:
    """A process that shares the memory, but not the thread group: it would be under no thread limit."""
    clone_vm = 0x100
    return raw("clone", clone_vm | signal.SIGCHLD, 0, 0, 0, 0)


def _try_clone_sibling() -> object:
    """A child of the zygote, beside this task."""
    clone_parent = 0x8000
    return raw("clone", clone_parent | signal.SIGCHLD, 0, 0, 0, 0)


def _try_clone_into_namespace() -> object:
    thread, vm, sighand, new_user = 0x10000, 0x100, 0x800, 0x10000000
    return raw("clone", thread | vm | sighand | new_user, 0, 0, 0, 0)


def _try_clone_into_group() -> object:
    """Another control group by ``clone3``, away from the task's limits."""
    into_cgroup = 0x2_0000_0000
    return raw("clone3", struct.pack("=11Q", into_cgroup, *([0] * 9), 1), 88)


# -- other processes ----------------------------------------------------------------------------------
def _try_trace_other() -> object:
    attach = 16
    return checked(libc.ptrace(attach, number("victim"), None, None))


def _try_seize_other() -> object:
    seize = 0x4206
    return checked(libc.ptrace(seize, number("victim"), None, None))


def _vectors() -> tuple[ctypes.Array[ctypes.c_char], bytes]:
    here = ctypes.create_string_buffer(WORD)
    return here, struct.pack("=QQ", ctypes.addressof(here), WORD)


def _try_read_other() -> object:
    _keep, vector = _vectors()
    return raw("process_vm_readv", number("victim"), vector, 1, vector, 1, 0)


def _try_write_other() -> object:
    _keep, vector = _vectors()
    return raw("process_vm_writev", number("victim"), vector, 1, vector, 1, 0)


def _try_read_itself_that_way() -> object:
    _keep, vector = _vectors()
    return raw("process_vm_readv", os.getpid(), vector, 1, vector, 1, 0)


def _try_advise_other() -> object:
    _keep, vector = _vectors()
    return raw("process_madvise", 1, vector, 1, 21, 0)


def _try_signal_by_descriptor_owner() -> object:
    """Make the kernel send SIGIO of its console's to another process."""
    return fcntl.fcntl(1, fcntl.F_SETOWN, number("victim"))


# -- scheduling and limits ----------------------------------------------------------------------------
def _try_be_first_by_parameter() -> None:
    os.sched_setparam(SELF, os.sched_param(0))


# -- namespaces and identity --------------------------------------------------------------------------
def _try_take_capabilities() -> object:
    header, wanted = struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *([0xFFFFFFFF] * 6))
    return raw("capset", header, wanted)


def _control(option: int, *arguments: int) -> object:
    words = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    return checked(libc.prctl(option, *words))


def _try_let_others_trace() -> object:
    any_process = 0xFFFF_FFFF_FFFF_FFFF
    return _control(0x59616D61, any_process)


def _try_move_its_own_layout() -> object:
    """PR_SET_MM: other arguments and environment in what ``ps`` shows of it."""
    return _control(35, 8, 4096)


# -- what two tasks could share -----------------------------------------------------------------------
def _try_leave_a_mark() -> object:
    """Set each flag of the descriptors that it was born with."""
    for descriptor in range(3):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_APPEND)
    return "left"


def _try_system_v() -> object:
    """Shared memory, semaphores and queues by number: those that are answered otherwise than by EPERM."""
    answered = []
    for name, arguments in (
        ("shmget", (77, 4096, 0o1666)),
        ("semget", (77, 1, 0o1666)),
        ("msgget", (77, 0o1666)),
    ):
        try:
            answered.append(raw(name, *arguments))
        except PermissionError:
            continue
    if not answered:
        raise OSError(errno.EPERM, "all of them")
    return "answered"


SHORT_ATTEMPTS: dict[str, Callable[[], object]] = {
    # programs
    "run_program": lambda: subprocess.run(["true"], check=True),
    "spawn_program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "open_terminal": pty.openpty,
    # processes of its own
    "vfork_by_number": lambda: numbered(58, -1),
    "clone_process": lambda: raw("clone", int(signal.SIGCHLD), 0, 0, 0, 0),
    "clone_by_structure": lambda: raw("clone3", bytes(88), 88),
    "wait_for_others": lambda: os.waitpid(-1, os.WNOHANG),
    # other processes
    "signal_other": lambda: os.kill(number("victim"), SELF),
    "kill_other": lambda: os.kill(number("victim"), signal.SIGKILL),
    "kill_node": lambda: os.kill(number("node"), signal.SIGKILL),
    "kill_everybody": lambda: os.kill(-1, signal.SIGKILL),
    "kill_group": lambda: os.killpg(0, signal.SIGKILL),
    "kill_groups_of_others": lambda: os.killpg(number("victim"), signal.SIGKILL),
    "be_traced": lambda: checked(libc.ptrace(0, 0, None, None)),
    "compare_with_other": lambda: raw("kcmp", os.getpid(), number("victim"), 0, 0, 0),
    "reap_other": lambda: numbered(448, 448, 1, 0),
    "kill_thread_of_other": lambda: raw("tgkill", number("victim"), number("victim"), int(signal.SIGKILL)),
    "kill_by_old_call": lambda: raw("tkill", number("victim"), int(signal.SIGKILL)),
    "queue_signal": lambda: raw("rt_sigqueueinfo", number("victim"), int(signal.SIGUSR1), bytes(128)),
    "queue_signal_to_thread": lambda: raw(
        "rt_tgsigqueueinfo", number("victim"), number("victim"), int(signal.SIGUSR1), bytes(128)
    ),
    "hold_other": lambda: os.pidfd_open(number("victim")),
    "hold_itself": lambda: os.pidfd_open(os.getpid()),
    "take_descriptor_of_other": lambda: raw("pidfd_getfd", 1, 0, 0),
    "signal_by_hold": lambda: raw("pidfd_send_signal", 1, int(signal.SIGKILL), 0, 0),
    # scheduling and limits
    "be_first": lambda: os.sched_setscheduler(SELF, os.SCHED_FIFO, os.sched_param(50)),
    "be_nicer_to_itself": lambda: os.setpriority(os.PRIO_PROCESS, SELF, -10),
    "slow_other": lambda: os.setpriority(os.PRIO_PROCESS, number("victim"), 19),
    "pin_other": lambda: os.sched_setaffinity(number("victim"), {0}),
    "pin_itself": lambda: os.sched_setaffinity(SELF, {0}),
    "be_first_by_structure": lambda: numbered(314, 274, 0, 0, 0),
    "prefer_own_disk_calls": lambda: numbered(251, 30, 1, 0, 2 << 13),
    "raise_own_limit": lambda: raw(
        "prlimit64", SELF, resource.RLIMIT_NPROC, struct.pack("=2Q", 1 << 20, 1 << 20), 0
    ),
    "raise_own_limit_by_old_call": lambda: raw(
        "setrlimit", resource.RLIMIT_NPROC, struct.pack("=2Q", 1 << 20, 1 << 20)
    ),
    "limits_of_other": lambda: resource.prlimit(number("victim"), resource.RLIMIT_NOFILE),
    "limit_other": lambda: resource.prlimit(number("victim"), resource.RLIMIT_CPU, (1, 1)),
    # namespaces and identity
    "become_root": lambda: os.setuid(0),
    "become_other_user": lambda: os.setresuid(1000, 1000, 1000),
    "become_other_group": lambda: os.setresgid(0, 0, 0),
    "join_groups": lambda: os.setgroups([0]),
    "new_session": os.setsid,
    "new_process_group": lambda: os.setpgid(0, 0),
    "unshare_user": lambda: raw("unshare", 0x10000000),
    "unshare_network": lambda: raw("unshare", 0x40000000),
    "unshare_mounts": lambda: raw("unshare", 0x00020000),
    "join_namespace": lambda: raw("setns", 1, 0),
    "files_as_root": lambda: numbered(122, 151, 0),
    "raise_ambient_capability": lambda: _control(47, 2, 21),
    "keep_capabilities": lambda: _control(8, 1),
    "undo_no_new_privs": lambda: _control(38, 0),
    "become_dumpable": lambda: _control(4, 1),
    "survive_the_zygote": lambda: _control(1, 0),
    "adopt_orphans": lambda: _control(36, 1),
    "rename_host": lambda: checked(libc.sethostname(b"mine", ctypes.c_size_t(4))),
    "rename_domain": lambda: checked(libc.setdomainname(b"mine", ctypes.c_size_t(4))),
    # what two tasks could share
    "see_marks": lambda: [fcntl.fcntl(descriptor, fcntl.F_GETFL) for descriptor in range(4)],
    "message_queue": lambda: raw("mq_open", b"/dios\0", os.O_CREAT | os.O_RDWR, 0o666, 0),
}
"""The attempts that are one expression; each other one is a function ``_try_NAME``."""
