"""The table of system calls that a pure task may make, each with its reason; the basis of the filter.

``dios.host.confinement.arguments`` has the permitted arguments. ``dios.host.confinement.seccomp`` compiles
both. There are three results: a call in ``ALLOWED`` is made if its arguments are permitted. A call in
``KILLED`` ends the task, because only attacks on the kernel make it. Any other call gives EPERM
(``PermissionError`` in Python), or ENOSYS where the C library then uses an older call. A filter sees
arguments in registers only, not the memory that pointers refer to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dios.host.confinement.arguments import (
    A_THREAD,
    ARGUMENTS,
    COUNTED_MAPPING,
    FILE_REQUESTS,
    ITSELF_OR_0,
    ONLY_0,
    READING,
    THREAD_BY_0,
    Check,
    Harmless,
    Permitted,
    Rule,
    number_of,
)

INIT_PID: Final = 1
"""The id of a pure task's only process inside its own pid namespace."""

_AS_IN_THE_TABLE: Final[Mapping[str, Rule]] = {}


class Allow(NamedTuple):
    """A call, or several with one purpose, that a task may make with the arguments of ``ARGUMENTS``.

    ``reason`` says why it is allowed, ``without`` what would not work otherwise, and ``checked`` explains
    the permitted arguments. docs/calls.md shows the first and the last; a test compares it with this table.
    ``arguments`` are those that differ from ``ARGUMENTS``. If ``performed`` is False, a permitted call
    returns 0 without being made; a call for which ``done`` holds does so too. ``writes`` marks calls for the
    private folder: a task without one cannot make them. A call for which ``asked`` holds waits for the
    decision of the supervisor.
    """

    names: tuple[str, ...]
    reason: str
    without: str
    checked: str = ""
    arguments: Mapping[str, Rule] = _AS_IN_THE_TABLE
    performed: bool = True
    done: Check | None = None
    writes: bool = False
    asked: Check | None = None

    def signature(self, name: str) -> Mapping[str, Rule]:
        """Return the arguments of one of the calls, in the kernel's order, each with its rule."""
        return {argument: self.arguments.get(argument, rule) for argument, rule in ARGUMENTS[name].items()}

    def checks(self, name: str) -> tuple[Check, ...]:
        """Return the checks of the arguments of one of the calls."""
        signature = self.signature(name)
        return tuple(
            rule.check(signature, argument)
            for argument, rule in signature.items()
            if isinstance(rule, Permitted)
        )


ANY_MEMORY: Final = Allow(
    ("mmap",),
    "its own memory, libraries, and the buffers that the node shares with it",
    "nothing runs",
    "no stack that grows by itself (MAP_GROWSDOWN), which the limit of data does not count, and no huge "
    "pages, which belong to all; if no control group counts memory, not both shared and anonymous, which no "
    "other limit counts",
)
COUNTED_MEMORY: Final = ANY_MEMORY._replace(arguments={"flags": COUNTED_MAPPING})

_MEMORY: Final = (
    Allow(("brk",), "the C library's heap grows by it", "every allocation of a little memory"),
    Allow(("munmap",), "giving back memory and buffers", "memory is only ever taken"),
    Allow(("mprotect",), "guard pages of thread stacks, and loading of libraries", "threads, ctypes, numpy"),
    Allow(
        ("mremap",),
        "the C library moves large blocks instead of copying them",
        "growing of large arrays",
        "to a place that the kernel chooses, and leaving nothing behind",
    ),
    Allow(
        ("madvise",),
        "allocators give back pages that they keep the place of",
        "memory that shrinks again",
        "no merging of equal pages, which would reveal the contents of others' memory, and "
        "no writing of pages to the swap device",
    ),
)
_THREADS: Final = (
    Allow(
        ("clone",),
        "threads: numeric libraries and runtimes need them",
        "threading, numpy, asyncio.to_thread",
        "a thread that shares memory and descriptors; no process, no namespace, no descriptor of the thread",
    ),
    Allow(
        ("futex",),
        "locks between its threads, and waiting on shared rings",
        "threads and streams",
        "no lock with an owner (PI): the task writes the number of the owner, and learns of its end",
    ),
    Allow(("set_robust_list",), "the C library notes held locks of each new thread", "starting a thread"),
    Allow(("rseq",), "the C library registers each new thread for short atomic work", "starting a thread"),
    Allow(
        ("prctl",),
        "names of its threads, which thread pools give",
        "some runtimes' thread pools",
        "PR_SET_NAME and PR_GET_NAME",
    ),
    Allow(("gettid",), "the interpreter asks for each thread's number", "threading.get_native_id"),
    Allow(
        ("sched_yield",), "spinning locks of numeric libraries let others run", "numpy's thread pool spins on"
    ),
    Allow(
        ("sched_getaffinity",),
        "thread pools ask how many processors there are",
        "pools of the right size",
        "of itself, by the number 0 or its own; ENOSYS for others, so that the C library does without",
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
        "no owner that gets signals (F_SETOWN, O_ASYNC); with a private folder, databases ask for locks: "
        "F_GETLK finds none, and F_SETLK and F_SETLKW return success and change nothing, because such locks "
        "hold between processes and nobody else has the folder",
        done=Check(1, (number_of("F_SETLK"), number_of("F_SETLKW"))),
    ),
    Allow(
        ("ioctl",),
        "opening a file asks whether it is a terminal; sockets are made blocking or not",
        "open(), print, and every socket",
        "TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX",
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
        "no address: to the other end alone; no byte out of band (MSG_OOB)",
    ),
    Allow(("recvfrom",), "wake-ups of event loops", "asyncio and trio"),
    Allow(("shutdown",), "saying that no more is sent on a pair of its own", "orderly ends of sockets"),
    Allow(
        ("socketpair",),
        "event loops wake themselves with a connected pair",
        "asyncio and trio",
        "Unix streams: datagrams could be sent elsewhere",
    ),
    Allow(
        ("setsockopt",),
        "event loops make the buffer of their wake-up pair small",
        "trio",
        "SO_SNDBUF and SO_RCVBUF, which return success and change nothing: the size is in memory, where it "
        "could be large",
        performed=False,
    ),
    Allow(
        ("getsockopt",),
        "Python asks what kind of socket a descriptor is, and event loops for its error",
        "socket objects on the DIOS socket",
        "no option that identifies the peer; SO_PEERPIDFD would even return a descriptor of it",
    ),
    Allow(("getsockname", "getpeername"), "Python asks for a socket's family", "socket objects of any kind"),
)
_TIME: Final = (
    Allow(
        ("clock_gettime", "clock_getres", "gettimeofday", "time"),
        "clocks, where the machine's cannot be read without a call",
        "time.time and time.monotonic",
        "no clock of a process or thread by its number, nor of a device",
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
    ),
    Allow(
        ("open",),
        "the same by the older call, which allocators make directly",
        "some allocators' start",
        "no flag that writes, creates, truncates, or makes a bare handle (O_PATH)",
        {"flags": READING},
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
        writes=True,
    ),
    Allow(
        ("utimensat",),
        "copies of files get the times of the original",
        "shutil.copy2, and zip archives",
        "by path alone, because descriptors can be of the node's files",
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
        return entry._replace(arguments={"flags": READING, "mode": Harmless.UNUSED})
    if entry.names == ("fcntl",):
        return entry._replace(arguments={"cmd": FILE_REQUESTS}, done=None)
    return entry


ALLOWED_WITHOUT_FOLDER: Final = tuple(_reading_alone(entry) for entry in ALLOWED if not entry.writes)
"""The same for a task that has no private folder, on a machine that lacks namespaces: it writes no file."""

_SESSIONS: Final = (
    "CLONE_PARENT|CLONE_NEWUSER|CLONE_NEWPID|CLONE_NEWNS|CLONE_NEWNET|CLONE_NEWIPC|CLONE_NEWUTS|SIGCHLD"
)
"""A child of the caller's parent, in new namespaces of all kinds but that of times."""
_FORKABLE: Final = _SESSIONS.replace("|CLONE_NEWPID", "")
"""The same without a pid namespace: the first process of one cannot use CLONE_PARENT."""
_FORKS: Final = _FORKABLE.replace("|CLONE_NEWUSER", "")
"""The same without a user namespace: a session and its forks are in one."""

_SIGNAL_BITS: Final = 0xFF
CLONE_OF_SESSIONS: Final = number_of(_SESSIONS) & ~_SIGNAL_BITS
CLONE_OF_FORKABLE: Final = number_of(_FORKABLE) & ~_SIGNAL_BITS
CLONE_OF_FORKS: Final = number_of(_FORKS) & ~_SIGNAL_BITS
FORK_WORD: Final = number_of(f"{_FORKS}|CLONE_CHILD_SETTID|CLONE_CHILD_CLEARTID")
"""The whole first argument of the call."""

_LISTENER: Final = "NEW_LISTENER|WAIT_KILLABLE_RECV"
WITH_LISTENER: Final = number_of(_LISTENER)
"""With the second flag no signal handler runs during a question."""

_FOR_TEMPLATES: Final = (
    Allow(
        ("clone",),
        "threads of libraries; and sessions, which are children of the supervisor",
        "sessions",
        "a thread, or a process that the supervisor reaps, in new namespaces of all kinds; for sessions that "
        "can be forked without a pid namespace, and for their forks without a user namespace",
        {"flags": A_THREAD._replace(values=f"{A_THREAD.values} {_SESSIONS} {_FORKABLE} {_FORKS}")},
    ),
    Allow(
        ("prctl",),
        "names of threads; a new session gives up rights, and ends with the supervisor",
        "sessions",
        "",
        {
            "option": Permitted(
                "PR_SET_NAME PR_GET_NAME PR_SET_PDEATHSIG PR_SET_DUMPABLE "
                "PR_CAPBSET_DROP PR_SET_SECUREBITS PR_SET_NO_NEW_PRIVS"
            )
        },
    ),
    Allow(
        ("prlimit64",),
        "a new session lowers its limits",
        "limits of sessions",
        "of itself, by the number 0",
        {"pid": ONLY_0, "new": Harmless.MEMORY},
    ),
    Allow(
        ("seccomp",),
        "a new session installs the filter of pure tasks, which also holds then",
        "sessions",
        "SECCOMP_SET_MODE_FILTER without flags, or with those of a listener",
        {"flags": Permitted(f"0 {_LISTENER}")},
    ),
    Allow(
        ("kill", "tgkill"),
        "signals to itself; sessions that can be forked send them to their own process group",
        "interrupts of runs",
        "its own process group, or its own number, which in the pid namespace of a session is 1",
        {"pid": ITSELF_OR_0, "tgid": ITSELF_OR_0},
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
        {"pid": ONLY_0},
    ),
    Allow(
        ("prlimit64",),
        "reading its own limits, as thread stacks need",
        "resource.getrlimit, and starting a thread",
        "of itself, by the number 0, and setting none",
        {"pid": ONLY_0},
    ),
    Allow(
        ("sched_getaffinity",),
        "thread pools ask how many processors there are",
        "pools of the right size",
        "of itself, by the number 0; ENOSYS for others",
        {"pid": THREAD_BY_0},
    ),
)
_IN_FORKABLE: Final = frozenset({"tgkill", *(name for entry in _FOR_FORKABLE for name in entry.names)})

ALLOWED_FOR_FORKABLE: Final = (
    *(entry for entry in ALLOWED if not _IN_FORKABLE.issuperset(entry.names)),
    *_FOR_FORKABLE,
)
"""The same for a session that can be forked, and for its forks. They share a pid namespace with others, so
no call names a process by its number."""

for _entry in (ANY_MEMORY, *ALLOWED, *_FOR_TEMPLATES, *_FOR_PROGRAMS, *_FOR_FORKABLE):
    _unknown = set(_entry.arguments).difference(*(ARGUMENTS[_name] for _name in _entry.names))
    if _unknown:
        raise ValueError(f"{_entry.names} have no arguments {_unknown}: see dios.host.confinement.arguments")

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
