"""The table of system calls that a pure task may make, each with its reason; the basis of the filter.

``dios.host.sandbox.seccomp`` compiles it. There are three results: a call in ``ALLOWED`` is made if its
checks hold. A call in ``KILLED`` ends the task, because only attacks on the kernel make it. Any other call
gives EPERM (``PermissionError`` in Python), or ENOSYS where the C library then uses an older call. Checks see
arguments in registers only, not the memory that pointers refer to.
"""

from __future__ import annotations

import termios
from typing import Final, NamedTuple

O_READ_ONLY_FLAGS: Final = 0o2000000 | 0o400000 | 0o200000 | 0o100000 | 0o4000 | 0o400 | 0o40000
"""CLOEXEC, NOFOLLOW and DIRECTORY (two values each), LARGEFILE, NONBLOCK and NOCTTY: none writes."""

CLONE_THREAD: Final = 0x10000
CLONE_NEW_ANYTHING: Final = 0x7E020080
INIT_PID: Final = 1
"""The id of a pure task's only process inside its own pid namespace."""


class Check(NamedTuple):
    """A check that argument number ``argument``, masked, is one of ``values``.

    Only its low 32 bits count. ``high_zero`` requires that the high 32 bits are 0, which is needed for
    pointers but not for an int. ``or_own_pid`` also accepts the task's own pid.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFF_FFFF
    high_zero: bool = False
    or_own_pid: bool = False


class Allow(NamedTuple):
    """A call, or several with one purpose, that a task may make if every check holds.

    ``reason`` says why it is allowed, ``without`` what would not work otherwise, and ``checked`` describes
    the checks. docs/system-calls.md shows all three; a test compares it with this table.
    """

    names: tuple[str, ...]
    reason: str
    without: str
    checked: str = ""
    checks: tuple[Check, ...] = ()


def _only(index: int, *values: int) -> tuple[Check, ...]:
    return (Check(index, values),)


MAP_SHARED: Final = 0x01
MAP_PRIVATE: Final = 0x02
MAP_ANONYMOUS: Final = 0x20

ANY_MEMORY: Final = Allow(
    ("mmap",),
    "its own memory, libraries, and the buffers that the node shares with it",
    "nothing runs",
    "if no control group counts memory: not both shared and anonymous, which no other limit counts",
)
COUNTED_MEMORY: Final = ANY_MEMORY._replace(
    checks=(
        Check(
            3,
            (MAP_SHARED, MAP_PRIVATE, MAP_SHARED | MAP_PRIVATE, MAP_PRIVATE | MAP_ANONYMOUS),
            mask=MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS,
        ),
    ),
)

_READS_ONLY: Final = "no flag that writes, creates, truncates, or makes a bare handle (O_PATH)"
_READ_FLAGS: Final = ~O_READ_ONLY_FLAGS & 0xFFFF_FFFF

_MEMORY: Final = (
    Allow(("brk",), "the C library's heap grows by it", "every allocation of a little memory"),
    Allow(("munmap",), "giving back memory and buffers", "memory is only ever taken"),
    Allow(("mprotect",), "guard pages of thread stacks, and loading of libraries", "threads, ctypes, numpy"),
    Allow(("mremap",), "the C library moves large blocks instead of copying them", "growing of large arrays"),
    Allow(
        ("madvise",), "allocators give back pages that they keep the place of", "memory that shrinks again"
    ),
)
_THREADS: Final = (
    Allow(
        ("clone",),
        "threads: numeric libraries and runtimes need them",
        "threading, numpy, asyncio.to_thread",
        "a thread of this process; no process, no namespace",
        (Check(0, (CLONE_THREAD,), mask=CLONE_THREAD | CLONE_NEW_ANYTHING),),
    ),
    Allow(("futex",), "locks between its threads, and waiting on shared rings", "threads and streams"),
    Allow(("set_robust_list",), "the C library notes held locks of each new thread", "starting a thread"),
    Allow(("rseq",), "the C library registers each new thread for short atomic work", "starting a thread"),
    Allow(
        ("prctl",),
        "names of its threads, which thread pools give",
        "some runtimes' thread pools",
        "PR_SET_NAME and PR_GET_NAME",
        _only(0, 15, 16),
    ),
    Allow(("gettid",), "the interpreter asks for each thread's number", "threading.get_native_id"),
    Allow(
        ("sched_yield",), "spinning locks of numeric libraries let others run", "numpy's thread pool spins on"
    ),
    Allow(
        ("sched_getaffinity",), "thread pools ask how many processors there are", "pools of the right size"
    ),
    Allow(("getcpu",), "allocators choose an arena by processor", "some allocators' start"),
    Allow(("exit",), "a thread ends", "threads that end"),
    Allow(("exit_group",), "the program ends", "ending with a status"),
)
_DESCRIPTORS: Final = (
    Allow(("read", "readv"), "the bytes of files and wake-ups it holds", "imports and event loops"),
    Allow(("pread64",), "loading of libraries, and columns of files", "every import of a C library"),
    Allow(("write", "writev"), "its console and wake-ups", "print, and every error message"),
    Allow(("pwrite64",), "buffers that it may write, without mapping them", "writes of large buffers"),
    Allow(
        ("lseek",), "files of its view are read by place", "imports from zip files, and seeking in any file"
    ),
    Allow(("close",), "giving back descriptors", "running out of them"),
    Allow(("dup", "dup2", "dup3"), "copies of descriptors it holds", "socket objects on the DIOS socket"),
    Allow(
        ("fcntl",),
        "blocking mode and inheritance of its descriptors, and what seals a buffer has",
        "event loops, and checks of shared memory",
        "F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GET_SEALS",
        _only(1, 0, 1, 2, 3, 4, 1030, 1034),
    ),
    Allow(
        ("ioctl",),
        "opening a file asks whether it is a terminal; sockets are made blocking or not",
        "open(), print, and every socket",
        "TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX",
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
    Allow(("fstat",), "the interpreter asks what a descriptor is", "open() of any file"),
)
_WAITING: Final = (
    Allow(("poll", "ppoll"), "waiting for the node's answer with a time limit", "calls with a timeout"),
    Allow(("select", "pselect6"), "the same by an older call, also in the warm-up of tasks", "its start"),
    Allow(("epoll_create1", "epoll_ctl"), "event loops are built on it", "asyncio and trio"),
    Allow(("epoll_wait", "epoll_pwait"), "an event loop waits", "asyncio and trio"),
    Allow(("eventfd2",), "wake-ups between threads of a runtime", "numeric runtimes' event loops"),
    Allow(("pipe", "pipe2"), "wake-ups of signal handlers and event loops", "signal.set_wakeup_fd"),
)
_SOCKETS: Final = (
    Allow(("sendmsg",), "calls to the node, in several pieces", "every call"),
    Allow(("recvmsg",), "replies of the node, with their buffers", "every call"),
    Allow(
        ("sendto",),
        "calls to the node, in one piece",
        "every call",
        "no address: to the other end alone",
        (Check(4, (0,), high_zero=True),),
    ),
    Allow(("recvfrom",), "wake-ups of event loops", "asyncio and trio"),
    Allow(("shutdown",), "saying that no more is sent on a pair of its own", "orderly ends of sockets"),
    Allow(
        ("socketpair",),
        "event loops wake themselves with a connected pair",
        "asyncio and trio",
        "Unix streams: datagrams could be sent elsewhere",
        (Check(0, (1,)), Check(1, (1,), mask=0xF)),
    ),
    Allow(
        ("setsockopt",),
        "event loops make the buffer of their wake-up pair small",
        "trio",
        "SO_SNDBUF and SO_RCVBUF",
        (Check(1, (1,)), Check(2, (7, 8))),
    ),
    Allow(
        ("getsockopt",),
        "Python asks what kind of socket a descriptor is, and event loops for its error",
        "socket objects on the DIOS socket",
        "SO_TYPE, SO_ERROR, SO_SNDBUF, SO_RCVBUF, SO_ACCEPTCONN, SO_PROTOCOL, SO_DOMAIN: no option that "
        "identifies the peer; SO_PEERPIDFD would even return a descriptor of it",
        (Check(1, (1,)), Check(2, (3, 4, 7, 8, 30, 38, 39))),
    ),
    Allow(("getsockname", "getpeername"), "Python asks for a socket's family", "socket objects of any kind"),
)
_TIME: Final = (
    Allow(
        ("clock_gettime", "clock_getres", "gettimeofday", "time"),
        "clocks, where the machine's cannot be read without a call",
        "time.time and time.monotonic",
    ),
    Allow(("times", "getrusage"), "its own use of processor time and memory", "resource, os.times"),
    Allow(("nanosleep", "clock_nanosleep"), "sleeping for a time", "time.sleep"),
    Allow(("restart_syscall",), "the kernel resumes a sleep that a signal broke", "sleeps in stopped tasks"),
    Allow(("pause",), "waiting for any signal", "signal.pause"),
    Allow(("setitimer", "getitimer"), "timers of its own, for profilers and time limits", "signal.setitimer"),
)
_SIGNALS: Final = (
    Allow(
        ("rt_sigaction", "rt_sigprocmask", "rt_sigreturn"),
        "signal handlers of its own; the C library blocks signals while it starts a thread",
        "signal.signal, and starting a thread",
    ),
    Allow(("sigaltstack",), "handlers of stack overflows have a stack of their own", "faulthandler"),
    Allow(("rt_sigtimedwait",), "waiting for a signal of its own", "signal.sigwait"),
    Allow(
        ("kill", "tgkill"),
        "signals to itself: abort() and interrupts between threads",
        "abort, and signal.raise_signal",
        "its own number, which in its pid namespace is 1",
        (Check(0, (), or_own_pid=True),),
    ),
)
_SELF_INSPECTION: Final = (
    Allow(
        ("getpid", "getppid"), "its own number, which inside its namespace says nothing", "logging, random"
    ),
    Allow(("getuid", "geteuid", "getgid", "getegid"), "the library asks before it trusts files", "site"),
    Allow(
        ("uname", "sysinfo"), "libraries choose code and sizes by kind of machine", "platform, sorting in C"
    ),
    Allow(("getrandom",), "randomness from the kernel", "secrets, random, hashing"),
    Allow(
        ("prlimit64",),
        "reading its own limits, as thread stacks need",
        "resource.getrlimit, and starting a thread",
        "of itself, and setting none",
        (Check(0, (0,), or_own_pid=True), Check(2, (0,), high_zero=True)),
    ),
)
_FILES: Final = (
    Allow(
        ("openat",),
        "imports from the read-only view",
        "every import",
        _READS_ONLY,
        (Check(2, (0,), mask=_READ_FLAGS),),
    ),
    Allow(
        ("open",),
        "the same by the older call, which allocators make directly",
        "some allocators' start",
        _READS_ONLY,
        (Check(1, (0,), mask=_READ_FLAGS),),
    ),
    Allow(("stat", "lstat", "newfstatat", "statx"), "finding modules in the view", "every import"),
    Allow(("getdents64",), "listing of library directories, which importing does", "every import"),
    Allow(("access", "faccessat", "faccessat2"), "loaders ask whether a library is there", "some imports"),
    Allow(("readlink", "readlinkat"), "libraries are found through links", "pathlib.resolve, some imports"),
    Allow(("getcwd",), "the interpreter asks where it stands", "os.getcwd, and importing by relative path"),
    Allow(("statfs", "fstatfs"), "databases ask what kind of files they are on", "some databases' start"),
)

ALLOWED: Final = (
    *_MEMORY,
    *_THREADS,
    *_DESCRIPTORS,
    *_WAITING,
    *_SOCKETS,
    *_TIME,
    *_SIGNALS,
    *_SELF_INSPECTION,
    *_FILES,
)

NO_SUCH_CALL: Final = ("clone3", "openat2", "mseal", "map_shadow_stack")
"""Answered with ENOSYS: the C library then uses an older call whose arguments the filter can check."""

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
    # Some of the remaining calls by name, for tests and readers; the default result is the same for all
    # others.
    *("execve", "execveat", "fork", "vfork", "socket", "connect", "bind", "listen", "accept", "accept4"),
    *("memfd_create", "memfd_secret", "setrlimit", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"),
    *("pidfd_open", "pidfd_send_signal", "truncate", "ftruncate", "fallocate", "mkdirat", "unlinkat"),
    *("renameat2", "linkat", "symlinkat", "fchmod", "fchmodat", "fchown", "seccomp"),
    # These were allowed once. Measurements showed that no library needs them.
    *("membarrier", "futex_waitv", "set_tid_address", "preadv", "pwritev", "close_range", "epoll_pwait2"),
    *("alarm", "rt_sigpending", "rt_sigsuspend", "getgroups", "getresuid", "getresgid", "getpgrp"),
    *("getpgid", "getsid", "sched_setaffinity", "getrlimit"),
    *("inotify_init1", "shmget", "semget", "msgget", "mq_open", "personality", "sethostname", "chdir"),
)

CALLED_BY_THE_ZYGOTE: Final = (
    *("capset", "capget", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
    *("setresuid", "setresgid", "setgroups", "clone3", "syslog"),
)
