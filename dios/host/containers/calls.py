"""The system calls that programs in a container may make, as the runtime installs them.

This is a list of permitted calls: a call that is new in the kernel is refused with ENOSYS. It permits what
programs of every kind need, unlike the table of pure tasks (``dios.host.confinement.policy``), and none of
the calls that end a pure task. It has no inotify, because devices and the node's Python are files that other
programs of the machine open, too; no asynchronous input and output (``io_setup``), whose requests are a
number for the whole machine; and no ``sync``, which makes the disks of the machine work. A call for which
that table checks arguments is in ``COMPARED``, or in ``UNCOMPARED`` with the reason.

The names are those of libseccomp; a name that it does not know permits nothing. It compares registers of 64
bits, of which the kernel uses 32 for most arguments. So a comparison lists values, or masks bits out: it
never excludes values, because the upper half would make any of them another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from dios.host.confinement.policy import ALLOWED, KILLED

Json: TypeAlias = "bool | int | str | list[Json] | dict[str, Json] | None"

_ENOSYS: Final = 38
_EPERM: Final = 1
_NAMESPACES: Final = 0x7E020080
"""The flags of clone that make a namespace."""

_FAMILIES: Final = (1, 2, 10)
"""Unix, IPv4 and IPv6. A container is alone in its network, so that even these lead nowhere outside of it.
Other families are interfaces of the kernel, or of the machine's host (AF_VSOCK), which is in no namespace."""

_PERSONALITIES: Final = (0, 0xFFFF_FFFF)
"""An ordinary Linux process, and the question for the present one."""

_FILE_REQUESTS: Final = (*range(8), 9, 11, 16, 36, 37, 38, *range(1030, 1039))
"""Not F_SETLEASE and F_NOTIFY: other programs of the machine open devices and the node's Python, too. Not
those that choose who gets a signal."""

_SOCKET_OPTIONS: Final = (*range(2, 11), 12, 13, *range(15, 22), 29, 30, 38, 39, 66, 67)
"""Options of SOL_SOCKET. Not SO_PEERPIDFD, which returns a descriptor of the node; no program as a filter."""
_SOCKET_LEVELS: Final = (0, 6, 17, 41)
"""IP, TCP, UDP and IPv6: these sockets reach nothing outside of the container."""

_ADVICE: Final = (*range(5), 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23, 25, 102, 103)
"""Not the merging of equal pages, which shows the contents of others' memory, nor the swap device."""

_PROCESS_REQUESTS: Final = (
    *(*range(1, 5), 7, 8, 15, 16, 21, 22, 23, 24, 27, 28, 29, 30, 36, 37, 38, 39, 40, 41, 42, 47, 52, 53),
    0x53564D41,
)
"""Not PR_SET_MEMORY_MERGE, as above, and not PR_SCHED_CORE, which keeps others from a processor."""

_HUGE_PAGES: Final = {"mmap": (3, 0x40000), "memfd_create": (1, 4), "shmget": (2, 0o4000)}
"""The argument and the flag that takes pages of a stock of the machine, which no control group counts."""

_FILES: Final = """
access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 eventfd eventfd2
faccessat faccessat2 fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32
fchownat fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64
fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd getdents getdents64 getxattr
ioctl lchown lchown32 lgetxattr link linkat listxattr llistxattr
lremovexattr lseek lsetxattr lstat lstat64 mkdir mkdirat mknod mknodat newfstatat open
openat openat2 pipe pipe2 poll ppoll pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead
readlink readlinkat readv removexattr rename renameat renameat2 rmdir select pselect6 sendfile sendfile64
setxattr splice stat stat64 statfs statfs64 statx symlink symlinkat sync_file_range tee
truncate truncate64 umask unlink unlinkat utime utimensat utimes vmsplice write writev epoll_create
epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old
"""
_PROCESSES: Final = """
alarm arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area
getcpu getegid geteuid getgid getgroups getitimer getpgid getpgrp getpid getppid getpriority getresgid
getresuid getrlimit getrusage getsid gettid getuid kill membarrier nanosleep pause pidfd_open
pidfd_send_signal prlimit64 restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_setattr sched_setparam sched_setscheduler sched_yield
set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid
setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid sigaltstack signalfd signalfd4
sysinfo tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill uname vfork wait4 waitid waitpid clock_getres clock_gettime
clock_nanosleep gettimeofday landlock_add_rule landlock_create_ruleset landlock_restrict_self
"""
_MEMORY: Final = """
brk futex futex_requeue futex_wait futex_waitv futex_wake getrandom mincore mlock mlock2 mlockall
mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect
remap_file_pages mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget
msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt
"""
_SOCKETS: Final = """
accept accept4 bind connect getpeername getsockname listen recvfrom recvmmsg recvmsg sendmmsg
sendmsg sendto shutdown
"""


def _compared(index: int, operation: str, value: int) -> Json:
    return {"index": index, "value": value, "valueTwo": 0, "op": f"SCMP_CMP_{operation}"}


def _one_of(index: int, values: Iterable[int]) -> list[list[Json]]:
    return [[_compared(index, "EQ", value)] for value in values]


def _without(index: int, bits: int) -> list[list[Json]]:
    return [[_compared(index, "MASKED_EQ", bits)]]


_OPTIONS: Final = [
    *([_compared(1, "EQ", 1), _compared(2, "EQ", option)] for option in _SOCKET_OPTIONS),
    *_one_of(1, _SOCKET_LEVELS),
]

COMPARED: Final[Mapping[str, list[list[Json]]]] = {
    "clone": _without(0, _NAMESPACES),
    "fcntl": _one_of(1, _FILE_REQUESTS),
    "getsockopt": _OPTIONS,
    "madvise": _one_of(2, _ADVICE),
    "personality": _one_of(0, _PERSONALITIES),
    "prctl": _one_of(0, _PROCESS_REQUESTS),
    "setsockopt": _OPTIONS,
    "socket": _one_of(0, _FAMILIES),
    # Any other family would make the kernel look for a module.
    "socketpair": _one_of(0, _FAMILIES[:1]),
    **{name: _without(index, flag) for name, (index, flag) in _HUGE_PAGES.items()},
}
"""The calls with compared arguments: one of the lists of comparisons must hold."""

_OF_THE_CONTAINER: Final = "numbers of processes are those of the container"
_IN_MEMORY: Final = "what can be written is in memory, and the machine's files are mounted read-only"

UNCOMPARED: Final[Mapping[str, str]] = {
    "mremap": "memory that stays is counted by the control group",
    "futex": "locks with an owner are for processes of the container",
    "sched_getaffinity": _OF_THE_CONTAINER,
    "ioctl": "devices that hold nothing, terminals of the container, and files that it may read",
    "sendto": "sockets reach nothing outside, and the node reads no byte out of band",
    "clock_gettime": "clocks of processes are those of the container, and it has no device with a clock",
    "clock_getres": "the same",
    "gettimeofday": "the same",
    "time": "the same",
    "kill": _OF_THE_CONTAINER,
    "tgkill": _OF_THE_CONTAINER,
    "prlimit64": f"{_OF_THE_CONTAINER}, and a limit is only lowered",
    "openat": _IN_MEMORY,
    "open": _IN_MEMORY,
    "fsync": _IN_MEMORY,
    "fdatasync": _IN_MEMORY,
    "msync": _IN_MEMORY,
    "chmod": f"{_IN_MEMORY}; marks of other users have no effect",
    "utimensat": _IN_MEMORY,
    "listxattr": _IN_MEMORY,
    "llistxattr": _IN_MEMORY,
}
"""Why programs of a container may choose the arguments of a call that are checked for a pure task."""

PERMITTED: Final = tuple(f"{_FILES} {_PROCESSES} {_MEMORY} {_SOCKETS}".split())


def filter_of(machine: str) -> Json:
    """Return the part ``linux.seccomp`` of the order to a runtime, for an architecture as in ``uname``.

    Raise ValueError if a call that ends a pure task would be permitted, or one whose arguments a pure task
    may not choose without a comparison and without a reason.
    """
    checked = {name for allow in ALLOWED if allow.checked for name in allow.names}
    wrong = set(PERMITTED) & ({*KILLED, *COMPARED} | checked.difference(UNCOMPARED))
    if wrong:
        raise ValueError(f"containers may not make {', '.join(sorted(wrong))} with any arguments")
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        "architectures": [f"SCMP_ARCH_{machine.upper()}"],
        "syscalls": [
            {"names": list(PERMITTED), "action": "SCMP_ACT_ALLOW"},
            {"names": list(KILLED), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
            # The C library then calls clone, whose flags a filter can see.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
            *(_allow(name, comparisons) for name, rows in COMPARED.items() for comparisons in rows),
        ],
    }


def _allow(name: str, comparisons: list[Json]) -> Json:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": comparisons}
