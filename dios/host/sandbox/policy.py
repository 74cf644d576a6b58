"""Which system calls a pure task may make, each with its reason; the table behind the filter.

Not for: turning the table into a program (``dios.host.sandbox.seccomp``). Three answers exist: a call
in ``ALLOWED`` is made when its checks hold; one in ``KILLED`` ends the task, because nothing but an
attack on the kernel calls it; any other gives EPERM (Python raises ``PermissionError``), or ENOSYS where
the C library then takes an older call. Arguments are checked in registers: nothing behind a pointer is.
"""

from __future__ import annotations

import termios
from typing import Final, NamedTuple

O_READ_ONLY_FLAGS: Final = 0o2000000 | 0o400000 | 0o200000 | 0o100000 | 0o4000 | 0o400 | 0o40000
"""CLOEXEC, NOFOLLOW and DIRECTORY (two values each), LARGEFILE, NONBLOCK and NOCTTY: none writes."""

CLONE_THREAD: Final = 0x10000
CLONE_NEW_ANYTHING: Final = 0x7E020080
INIT_PID: Final = 1
"""What a pure task's only process is called inside its own pid namespace."""


class Check(NamedTuple):
    """The low 32 bits of argument number ``argument``, masked, is one of ``values`` or the task's own pid.

    ``high_zero``: the high 32 bits must be 0 as well, which a pointer needs and an int does not.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFF_FFFF
    high_zero: bool = False
    or_own_pid: bool = False


class Allow(NamedTuple):
    """Calls that share a reason; every check must hold."""

    reason: str
    names: tuple[str, ...]
    checks: tuple[Check, ...] = ()


def _only(index: int, *values: int) -> tuple[Check, ...]:
    return (Check(index, values),)


MAP_SHARED: Final = 0x01
MAP_PRIVATE: Final = 0x02
MAP_ANONYMOUS: Final = 0x20

ANY_MEMORY: Final = Allow("its own memory and mapped buffers; a group counts all of it", ("mmap",))
COUNTED_MEMORY: Final = Allow(
    "the same where no group counts: no anonymous shared memory, which no limit of a process counts",
    ("mmap",),
    (
        Check(
            3,
            (MAP_SHARED, MAP_PRIVATE, MAP_SHARED | MAP_PRIVATE, MAP_PRIVATE | MAP_ANONYMOUS),
            mask=MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS,
        ),
    ),
)

ALLOWED: Final = (
    Allow("its own memory", ("brk", "munmap", "mprotect", "mremap", "madvise", "membarrier")),
    Allow("locks between its threads and on shared rings", ("futex", "futex_waitv")),
    Allow("the C library keeps a list of held locks for each thread", ("set_robust_list", "rseq")),
    Allow("the C library names a new thread's id", ("set_tid_address",)),
    Allow("the bytes of descriptors it holds", ("read", "readv", "pread64", "preadv", "lseek")),
    Allow("its console, wake-ups and buffers it may write", ("write", "writev", "pwrite64", "pwritev")),
    Allow("the DIOS socket", ("recvmsg", "sendmsg", "recvfrom", "sendto", "shutdown")),
    Allow("Python asks what a socket is", ("getsockopt", "getsockname", "getpeername")),
    Allow("closing and copying descriptors it holds", ("close", "close_range", "dup", "dup2", "dup3")),
    Allow("waiting on descriptors it holds", ("poll", "ppoll", "select", "pselect6")),
    Allow("event loops", ("epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2")),
    Allow("wake-ups inside the task", ("eventfd2", "pipe", "pipe2")),
    Allow(
        "event loops wake themselves with a connected pair; no datagrams, which could be sent elsewhere",
        ("socketpair",),
        (Check(0, (1,)), Check(1, (1,), mask=0xF)),
    ),
    Allow(
        "event loops make the buffer of their wake-up pair small: SO_SNDBUF and SO_RCVBUF alone",
        ("setsockopt",),
        (Check(1, (1,)), Check(2, (7, 8))),
    ),
    Allow("clocks", ("clock_gettime", "clock_getres", "gettimeofday", "time", "times", "getrusage")),
    Allow("sleeping", ("nanosleep", "clock_nanosleep", "sched_yield", "restart_syscall", "pause")),
    Allow("timers of its own", ("setitimer", "getitimer", "alarm")),
    Allow(
        "signal handlers of its own",
        ("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "sigaltstack"),
    ),
    Allow("waiting for a signal of its own", ("rt_sigtimedwait", "rt_sigsuspend")),
    Allow(
        "signals to itself: abort() and interrupts between threads",
        ("kill", "tgkill"),
        (Check(0, (), or_own_pid=True),),
    ),
    Allow("ending", ("exit", "exit_group")),
    Allow("who it is, which inside its namespaces says nothing", ("getpid", "gettid", "getppid")),
    Allow("the same for users and groups", ("getuid", "geteuid", "getgid", "getegid", "getgroups")),
    Allow("the same for saved identities", ("getresuid", "getresgid", "getpgrp", "getpgid", "getsid")),
    Allow("the machine's kind, which libraries choose code by", ("uname", "sysinfo", "getcpu")),
    Allow("how many CPUs there are, for thread pools", ("sched_getaffinity",)),
    Allow("pinning its own threads", ("sched_setaffinity",), _only(0, 0)),
    Allow("randomness from the kernel", ("getrandom",)),
    Allow("reading its own limits", ("getrlimit",)),
    Allow(
        "reading its own limits and setting none",
        ("prlimit64",),
        (Check(0, (0,), or_own_pid=True), Check(2, (0,), high_zero=True)),
    ),
    Allow(
        "imports from the read-only view: no flag that writes or creates",
        ("openat",),
        (Check(2, (0,), mask=~O_READ_ONLY_FLAGS & 0xFFFF_FFFF),),
    ),
    Allow(
        "the same through the older call",
        ("open",),
        (Check(1, (0,), mask=~O_READ_ONLY_FLAGS & 0xFFFF_FFFF),),
    ),
    Allow("finding modules in the view", ("fstat", "stat", "lstat", "newfstatat", "statx", "getdents64")),
    Allow("the same for links and access", ("access", "faccessat", "faccessat2", "readlink", "readlinkat")),
    Allow("where it stands in the view", ("getcwd", "statfs", "fstatfs")),
    Allow(
        "threads: numeric libraries and runtimes need them; never a process or a namespace",
        ("clone",),
        (Check(0, (CLONE_THREAD,), mask=CLONE_THREAD | CLONE_NEW_ANYTHING),),
    ),
    Allow(
        "flags of descriptors: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GET_SEALS",
        ("fcntl",),
        _only(1, 0, 1, 2, 3, 4, 1030, 1034),
    ),
    Allow(
        "asking for a terminal, and blocking mode of its own descriptors",
        ("ioctl",),
        _only(
            1,
            termios.TCGETS,
            termios.TIOCGWINSZ,
            termios.FIONREAD,
            termios.FIONBIO,
            termios.FIOCLEX,
            termios.FIONCLEX,
        ),
    ),
    Allow("names of its threads: PR_SET_NAME, PR_GET_NAME", ("prctl",), _only(0, 15, 16)),
)

NO_SUCH_CALL: Final = ("clone3", "openat2", "mseal", "map_shadow_stack")
"""Answered with ENOSYS: the C library then falls back to a call whose arguments the filter can see."""

KILLED: Final = (
    # the kernel's own machinery
    *("bpf", "perf_event_open", "userfaultfd", "kexec_load", "kexec_file_load", "init_module"),
    *("finit_module", "delete_module", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("iopl", "ioperm", "modify_ldt", "reboot", "swapon", "swapoff", "acct", "lookup_dcookie"),
    # the kernel's keyrings
    *("add_key", "request_key", "keyctl"),
    # other processes' memory and descriptors
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp"),
    # namespaces, mounts and roots
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "quotactl", "quotactl_fd"),
    # files by handle, around every path
    *("name_to_handle_at", "open_by_handle_at", "fanotify_init"),
)

REFUSED: Final = (
    # A few of the rest by name, for the tests and for reading; the default says the same of any other.
    *("execve", "execveat", "fork", "vfork", "socket", "connect", "bind", "listen", "accept", "accept4"),
    *("memfd_create", "memfd_secret", "setrlimit", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"),
    *("pidfd_open", "pidfd_send_signal", "truncate", "ftruncate", "fallocate", "mkdirat", "unlinkat"),
    *("renameat2", "linkat", "symlinkat", "fchmod", "fchmodat", "fchown", "seccomp"),
    *("inotify_init1", "shmget", "semget", "msgget", "mq_open", "personality", "sethostname", "chdir"),
)

CALLED_BY_THE_ZYGOTE: Final = (
    *("capset", "capget", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
    *("setresuid", "setresgid", "setgroups", "clone3", "syslog"),
)
