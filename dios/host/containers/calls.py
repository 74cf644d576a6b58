"""The system calls that programs in a container may make, as the runtime installs them.

This is a list of permitted calls: a call that is new in the kernel is refused with ENOSYS. It permits what
programs of every kind need, unlike the table of pure tasks (``dios.host.confinement.policy``), and none of
the calls that end a pure task. It has no inotify, because devices and the node's Python are files that other
programs of the machine open, too. The names are those of libseccomp; a name that it does not know permits
nothing.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from dios.host.confinement.policy import KILLED

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

_FILES: Final = """
access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 eventfd eventfd2
faccessat faccessat2 fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32
fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64
fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd getdents getdents64 getxattr
io_cancel io_destroy io_getevents
io_pgetevents io_setup io_submit ioctl lchown lchown32 lgetxattr link linkat listxattr llistxattr
lremovexattr lseek lsetxattr lstat lstat64 memfd_create mkdir mkdirat mknod mknodat newfstatat open
openat openat2 pipe pipe2 poll ppoll pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead
readlink readlinkat readv removexattr rename renameat renameat2 rmdir select pselect6 sendfile sendfile64
setxattr splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs tee
truncate truncate64 umask unlink unlinkat utime utimensat utimes vmsplice write writev epoll_create
epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old
"""
_PROCESSES: Final = """
alarm arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area
getcpu getegid geteuid getgid getgroups getitimer getpgid getpgrp getpid getppid getpriority getresgid
getresuid getrlimit getrusage getsid gettid getuid kill membarrier nanosleep pause pidfd_open
pidfd_send_signal prctl prlimit64 restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield
set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid
setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid sigaltstack signalfd signalfd4
sysinfo tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill uname vfork wait4 waitid waitpid clock_getres clock_gettime
clock_nanosleep gettimeofday landlock_add_rule landlock_create_ruleset landlock_restrict_self
"""
_MEMORY: Final = """
brk futex futex_requeue futex_wait futex_waitv futex_wake getrandom madvise mincore mlock mlock2 mlockall
mmap mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect
remap_file_pages mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget
msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
"""
_SOCKETS: Final = """
accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg
sendmsg sendto setsockopt shutdown socketpair
"""

PERMITTED: Final = tuple(f"{_FILES} {_PROCESSES} {_MEMORY} {_SOCKETS}".split())


def filter_of(machine: str) -> Json:
    """Return the part ``linux.seccomp`` of the order to a runtime, for an architecture as in ``uname``.

    Raise ValueError if a call that ends a pure task would be permitted.
    """
    wrong = set(PERMITTED) & set(KILLED)
    if wrong:
        raise ValueError(f"containers may not make {', '.join(sorted(wrong))}")
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        "architectures": [f"SCMP_ARCH_{machine.upper()}"],
        "syscalls": [
            {"names": list(PERMITTED), "action": "SCMP_ACT_ALLOW"},
            {"names": list(KILLED), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
            # The C library then calls clone, whose flags a filter can see.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
            _allow("clone", _compared(0, "SCMP_CMP_MASKED_EQ", _NAMESPACES, 0)),
            *(_allow("socket", _compared(0, "SCMP_CMP_EQ", family)) for family in _FAMILIES),
            *(_allow("personality", _compared(0, "SCMP_CMP_EQ", value)) for value in _PERSONALITIES),
        ],
    }


def _allow(name: str, argument: Json) -> Json:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]}


def _compared(index: int, operation: str, value: int, masked: int = 0) -> Json:
    return {"index": index, "value": value, "valueTwo": masked, "op": operation}
