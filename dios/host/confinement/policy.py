"""The table of system calls that a pure task may make, each with its reason; the basis of the filter.

``dios.host.confinement.seccomp`` compiles it. There are three results: a call in ``ALLOWED`` is made if its
checks hold. A call in ``KILLED`` ends the task, because only attacks on the kernel make it. Any other call
gives EPERM (``PermissionError`` in Python), or ENOSYS where the C library then uses an older call. Checks see
arguments in registers only, not the memory that pointers refer to.
"""

from __future__ import annotations

import termios
from typing import Final, NamedTuple

O_READ_ONLY_FLAGS: Final = 0o2000000 | 0o400000 | 0o200000 | 0o100000 | 0o4000 | 0o400 | 0o40000
"""CLOEXEC, NOFOLLOW and DIRECTORY (two values each), LARGEFILE, NONBLOCK and NOCTTY: none writes."""

O_WRITING_FLAGS: Final = 0o1 | 0o2 | 0o100 | 0o200 | 0o1000 | 0o2000
"""WRONLY, RDWR, CREAT, EXCL, TRUNC and APPEND. Not TMPFILE, nor the flags that wait for a disk."""

CLONE_OF_THREADS: Final = 0x100 | 0x400 | 0x800 | 0x10000
"""CLONE_VM, CLONE_FILES, CLONE_SIGHAND and CLONE_THREAD. A thread without CLONE_FILES has a table of
descriptors of its own, so that the limit of open files counts for each thread alone."""

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
    the checks. docs/calls.md shows all three; a test compares it with this table. If ``performed`` is
    False, a call that passes the checks returns 0 without being made; a call for which ``done`` holds does so
    too. ``writes`` marks calls for the private folder: a task without one cannot make them. A call for which
    ``asked`` holds waits for the decision of the supervisor.
    """

    names: tuple[str, ...]
    reason: str
    without: str
    checked: str = ""
    checks: tuple[Check, ...] = ()
    performed: bool = True
    done: Check | None = None
    writes: bool = False
    asked: Check | None = None


def _only(index: int, *values: int) -> tuple[Check, ...]:
    return (Check(index, values),)


MAP_SHARED: Final = 0x01
MAP_PRIVATE: Final = 0x02
MAP_ANONYMOUS: Final = 0x20
MAP_GROWSDOWN: Final = 0x100
MAP_HUGETLB: Final = 0x40000
MREMAP_MAYMOVE: Final = 1

_GROWING_OR_HUGE: Final = Check(3, (0,), mask=MAP_GROWSDOWN | MAP_HUGETLB)

ANY_MEMORY: Final = Allow(
    ("mmap",),
    "its own memory, libraries, and the buffers that the node shares with it",
    "nothing runs",
    "no stack that grows by itself (MAP_GROWSDOWN), which the limit of data does not count, and no huge "
    "pages, which belong to all; if no control group counts memory, not both shared and anonymous, which no "
    "other limit counts",
    (_GROWING_OR_HUGE,),
)
COUNTED_MEMORY: Final = ANY_MEMORY._replace(
    checks=(
        _GROWING_OR_HUGE,
        Check(
            3,
            (MAP_SHARED, MAP_PRIVATE, MAP_SHARED | MAP_PRIVATE, MAP_PRIVATE | MAP_ANONYMOUS),
            mask=MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS,
        ),
    ),
)

_ADVICE: Final = {
    "NORMAL": 0,
    "RANDOM": 1,
    "SEQUENTIAL": 2,
    "WILLNEED": 3,
    "DONTNEED": 4,
    "FREE": 8,
    "HUGEPAGE": 14,
    "NOHUGEPAGE": 15,
    "DONTDUMP": 16,
    "DODUMP": 17,
    "GUARD_INSTALL": 102,
    "GUARD_REMOVE": 103,
}

_READS_ONLY: Final = "no flag that writes, creates, truncates, or makes a bare handle (O_PATH)"
_NOT_READING: Final = ~O_READ_ONLY_FLAGS & 0xFFFF_FFFF
_SPECIAL_MODE_BITS: Final = 0o7000
_AT_FDCWD: Final = 0xFFFF_FF9C

_MEMORY: Final = (
    Allow(("brk",), "the C library's heap grows by it", "every allocation of a little memory"),
    Allow(("munmap",), "giving back memory and buffers", "memory is only ever taken"),
    Allow(("mprotect",), "guard pages of thread stacks, and loading of libraries", "threads, ctypes, numpy"),
    Allow(
        ("mremap",),
        "the C library moves large blocks instead of copying them",
        "growing of large arrays",
        "MREMAP_MAYMOVE: to a place that the kernel chooses, and leaving nothing behind",
        _only(3, 0, MREMAP_MAYMOVE),
    ),
    Allow(
        ("madvise",),
        "allocators give back pages that they keep the place of",
        "memory that shrinks again",
        "MADV_"
        + ", ".join(_ADVICE)
        + ": no merging of equal pages, which would reveal the contents of others' memory, and "
        "no writing of pages to the swap device",
        _only(2, *_ADVICE.values()),
    ),
)
_THREADS: Final = (
    Allow(
        ("clone",),
        "threads: numeric libraries and runtimes need them",
        "threading, numpy, asyncio.to_thread",
        "a thread that shares memory and descriptors; no process, no namespace",
        (Check(0, (CLONE_OF_THREADS,), mask=CLONE_OF_THREADS | CLONE_NEW_ANYTHING),),
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
        "F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GET_SEALS; with a private folder, "
        "databases ask for locks: F_GETLK finds none, and F_SETLK and F_SETLKW return success and change "
        "nothing, because such locks hold between processes and nobody else has the folder",
        _only(1, 0, 1, 2, 3, 4, 5, 1030, 1034),
        done=Check(1, (6, 7)),
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
    Allow(("recvmsg",), "replies of the node, with their buffers", "every call"),
    Allow(
        ("sendto",),
        "calls to the node",
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
        "SO_SNDBUF and SO_RCVBUF, which return success and change nothing: the size is in memory, where it "
        "could be large",
        (Check(1, (1,)), Check(2, (7, 8))),
        performed=False,
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
    Allow(
        ("setitimer", "getitimer", "alarm"),
        "timers of its own, for profilers and time limits",
        "signal.setitimer, signal.alarm",
    ),
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
        "imports from the read-only view, and the files of its private folder",
        "every import",
        "without a private folder no flag that writes, creates or truncates; never O_TMPFILE, O_PATH, or a "
        "flag that waits for a disk; the view is mounted read-only, and Landlock allows changes in the "
        "private folder alone",
        (Check(2, (0,), mask=_NOT_READING & ~O_WRITING_FLAGS),),
    ),
    Allow(
        ("open",),
        "the same by the older call, which allocators make directly",
        "some allocators' start",
        _READS_ONLY,
        (Check(1, (0,), mask=_NOT_READING),),
    ),
    Allow(("stat", "lstat", "newfstatat", "statx"), "finding modules in the view", "every import"),
    Allow(("getdents64",), "listing of library directories, which importing does", "every import"),
    Allow(("access", "faccessat", "faccessat2"), "loaders ask whether a library is there", "some imports"),
    Allow(("readlink", "readlinkat"), "libraries are found through links", "pathlib.resolve, some imports"),
    Allow(("getcwd",), "the interpreter asks where it stands", "os.getcwd, and importing by relative path"),
    Allow(("statfs", "fstatfs"), "databases ask what kind of files they are on", "some databases' start"),
)
_PRIVATE_FOLDER: Final = (
    Allow(
        ("mkdir", "mkdirat"), "caches and temporary files have folders", "tempfile, matplotlib", writes=True
    ),
    Allow(
        ("unlink", "unlinkat", "rmdir"),
        "temporary files and their folders are removed after use",
        "tempfile, and databases",
        writes=True,
    ),
    Allow(
        ("rename", "renameat"),
        "a written file gets its name when it is complete",
        "caches, and os.replace",
        writes=True,
    ),
    Allow(
        ("ftruncate",),
        "files get their size before they are mapped; shared memory is sealed in its size",
        "numpy.memmap, and databases",
        writes=True,
    ),
    Allow(
        ("fsync", "fdatasync", "msync"),
        "libraries wait for a disk after they wrote",
        "databases, and numpy.memmap",
        "return success and do nothing: the folder is in memory, and nobody makes the node's disk work",
        performed=False,
        writes=True,
    ),
    Allow(
        ("chmod",),
        "copies of files get the mode of the original",
        "shutil.copy",
        "by path alone, because descriptors can be of the node's files; no setuid, setgid or sticky bit",
        (Check(1, (0,), mask=_SPECIAL_MODE_BITS),),
        writes=True,
    ),
    Allow(
        ("utimensat",),
        "copies of files get the times of the original",
        "shutil.copy2, and zip archives",
        "by path alone, because descriptors can be of the node's files",
        (Check(0, (_AT_FDCWD,)),),
        writes=True,
    ),
    Allow(
        ("listxattr", "llistxattr"),
        "copying a file asks for its extended attributes",
        "shutil.copy2",
        "return an empty list, and read nothing",
        performed=False,
        writes=True,
    ),
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
    *_PRIVATE_FOLDER,
)


def _reading_alone(entry: Allow) -> Allow:
    if entry.names == ("openat",):
        return entry._replace(checks=(Check(2, (0,), mask=_NOT_READING),))
    if entry.names == ("fcntl",):
        return entry._replace(checks=_only(1, 0, 1, 2, 3, 4, 1030, 1034), done=None)
    return entry


ALLOWED_WITHOUT_FOLDER: Final = tuple(_reading_alone(entry) for entry in ALLOWED if not entry.writes)
"""The same for a task that has no private folder, on a machine that lacks namespaces: it writes no file."""

CLONE_PARENT: Final = 0x8000
CLONE_OF_SESSIONS: Final = CLONE_PARENT | 0x7C020000
"""CLONE_PARENT, and new user, pid, mount, network, IPC and uts namespaces, all of them."""
CLONE_OF_FORKABLE: Final = CLONE_OF_SESSIONS & ~0x20000000
"""The same without a pid namespace: the first process of one cannot use CLONE_PARENT."""
CLONE_OF_FORKS: Final = CLONE_OF_FORKABLE & ~0x10000000
"""The same without a user namespace: a session and its forks are in one."""
FORK_WORD: Final = CLONE_OF_FORKS | 0x01200000 | 17
"""The whole first argument of the call: in addition CLONE_CHILD_SETTID and _CLEARTID, and SIGCHLD."""

_SECCOMP_SET_MODE_FILTER: Final = 1
WITH_LISTENER: Final = 0x08 | 0x20
"""SECCOMP_FILTER_FLAG_NEW_LISTENER and _WAIT_KILLABLE_RECV: no signal handler runs during a question."""

_FOR_TEMPLATES: Final = (
    Allow(
        ("clone",),
        "threads of libraries; and sessions, which are children of the supervisor",
        "sessions",
        "a thread, or a process that the supervisor reaps, in new namespaces of all kinds; for sessions that "
        "can be forked without a pid namespace, and for their forks without a user namespace",
        (
            Check(
                0,
                (CLONE_OF_THREADS, CLONE_OF_SESSIONS, CLONE_OF_FORKABLE, CLONE_OF_FORKS),
                mask=CLONE_OF_THREADS | CLONE_NEW_ANYTHING | CLONE_PARENT,
            ),
        ),
    ),
    Allow(
        ("prctl",),
        "names of threads; a new session gives up rights, and ends with the supervisor",
        "sessions",
        "PR_SET_NAME, PR_GET_NAME, PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_SECUREBITS and "
        "PR_SET_NO_NEW_PRIVS",
        _only(0, 15, 16, 1, 4, 24, 28, 38),
    ),
    Allow(
        ("prlimit64",),
        "a new session lowers its limits",
        "limits of sessions",
        "of itself",
        (Check(0, (0,), or_own_pid=True),),
    ),
    Allow(
        ("seccomp",),
        "a new session installs the filter of pure tasks, which also holds then",
        "sessions",
        "SECCOMP_SET_MODE_FILTER without flags, or with those of a listener",
        (Check(0, (_SECCOMP_SET_MODE_FILTER,)), Check(1, (0, WITH_LISTENER))),
    ),
    Allow(
        ("kill", "tgkill"),
        "signals to itself; sessions that can be forked send them to their own process group",
        "interrupts of runs",
        "its own process group, or its own number, which in the pid namespace of a session is 1",
        (Check(0, (0,), or_own_pid=True),),
    ),
    Allow(
        ("setsid", "capset", "close_range", "umask", "chdir"),
        "a new session leaves its process group, capabilities, descriptors and directory",
        "sessions",
    ),
)
_REPLACED: Final = frozenset(name for entry in _FOR_TEMPLATES for name in entry.names)

ALLOWED_FOR_TEMPLATES: Final = (
    *(entry for entry in ALLOWED if not _REPLACED.issuperset(entry.names)),
    *_FOR_TEMPLATES,
)
"""The same for the process of a template. Each of its sessions installs the filter of ``ALLOWED`` as well, so
that both hold there."""

_ARCH_SET_FS: Final = 0x1002

_FOR_PROGRAMS: Final = (
    Allow(
        ("execve",),
        "a task becomes a native program of the node's settings",
        "native programs",
        "nothing in registers; Landlock permits the files of the settings and their loader alone, and the "
        "filter, the namespaces and the limits stay as they are",
    ),
    Allow(
        ("arch_prctl",),
        "the C library sets the place of a thread's own variables when a program starts",
        "native programs",
        "ARCH_SET_FS",
        _only(0, _ARCH_SET_FS),
    ),
    Allow(
        ("set_tid_address",),
        "the C library asks for its thread's number when a program starts",
        "native programs",
    ),
    Allow(("getpgrp",), "a shell asks for its process group when it starts", "bash"),
)

ALLOWED_FOR_PROGRAMS: Final = (*ALLOWED, *_FOR_PROGRAMS)
"""The calls of all pure tasks of a node with native programs."""

_FOR_FORKABLE: Final = (
    Allow(
        ("clone",),
        "threads of libraries; and forks of the session",
        "forks",
        "a thread; a process in new namespaces of all kinds but two, if the supervisor has an order for it",
        (Check(0, (CLONE_OF_THREADS,), mask=CLONE_OF_THREADS | CLONE_NEW_ANYTHING),),
        asked=Check(0, (FORK_WORD,)),
    ),
    Allow(
        ("setsid",),
        "a new fork reports to the supervisor by it, which looks at the process and gives it its descriptors",
        "forks",
        "never without the supervisor",
        asked=Check(0, (0,), mask=0),
    ),
    Allow(
        ("close_range", "chdir"), "a new fork leaves the descriptors and the folder of its origin", "forks"
    ),
    Allow(
        ("kill",),
        "signals to itself: interrupts",
        "interrupts of runs",
        "its own process group, in which it is alone",
        (Check(0, (0,)),),
    ),
    Allow(
        ("prlimit64",),
        "reading its own limits, as thread stacks need",
        "resource.getrlimit, and starting a thread",
        "of itself, by the number 0, and setting none",
        (Check(0, (0,)), Check(2, (0,), high_zero=True)),
    ),
    Allow(
        ("sched_getaffinity",),
        "thread pools ask how many processors there are",
        "pools of the right size",
        "of itself, by the number 0",
        (Check(0, (0,)),),
    ),
)
_IN_FORKABLE: Final = frozenset({"tgkill", *(name for entry in _FOR_FORKABLE for name in entry.names)})

ALLOWED_FOR_FORKABLE: Final = (
    *(entry for entry in ALLOWED if not _IN_FORKABLE.issuperset(entry.names)),
    *_FOR_FORKABLE,
)
"""The same for a session that can be forked, and for its forks. They share a pid namespace with others, so
no call names a process by its number."""

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
    # These can send descriptors, which count for the whole user while nobody receives them.
    *("sendmsg", "sendmmsg"),
    *("memfd_create", "memfd_secret", "setrlimit", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"),
    *("pidfd_open", "pidfd_send_signal", "truncate", "fallocate", "renameat2", "linkat", "symlinkat"),
    # These would reach the node's own files through descriptors that the task may read.
    *("fchmod", "fchmodat", "fchown", "fsetxattr", "flock"),
    "seccomp",
    # These were allowed once. Measurements showed that no library needs them.
    *("membarrier", "futex_waitv", "set_tid_address", "preadv", "pwritev", "close_range", "epoll_pwait2"),
    *("rt_sigpending", "rt_sigsuspend", "getgroups", "getresuid", "getresgid", "getpgrp"),
    *("getpgid", "getsid", "sched_setaffinity", "getrlimit"),
    *("inotify_init1", "shmget", "semget", "msgget", "mq_open", "personality", "sethostname", "chdir"),
)

CALLED_BY_THE_ZYGOTE: Final = (
    *("capset", "capget", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
    *("setresuid", "setresgid", "setgroups", "clone3", "syslog"),
)
