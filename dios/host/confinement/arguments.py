"""The table of the arguments of system calls: the permitted values of each, or why any value is harmless.

``dios.host.confinement.policy`` says which calls are allowed, and where a task of another kind differs from
this table. ``dios.host.confinement.seccomp`` compiles both. A bit, a flag or a number that is not in the
table is refused, so that a flag of a new kernel is refused until somebody has read what it does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias


class Harmless(Enum):
    """Why any value of an argument is harmless; the name is the word for it on the page for people."""

    DESCRIPTOR = "a place in the task's own table of descriptors, which has nothing that it was not given"
    MEMORY = "an address: the kernel reads and writes the task's own memory alone for it"
    PATH = "the address of a path: the view, its mounts and Landlock decide where it leads"
    SIZE = "a size, an offset or a number of elements: its limits of memory, files and descriptors hold"
    DURATION = "a time for which the task itself waits"
    SIGNAL = "the number of a signal to the task itself"
    THREAD = "the number of a thread: the kernel looks for it in the task's own process alone"
    OWN_LIMIT = "the number of one of its own limits"
    OWN_RIGHTS = "the kernel takes rights from the calling process alone"
    REQUEST = "a number, a flag or an address for the request about the task's own descriptor or process"
    OWN_VALUE = (
        "a number that the kernel compares with the task's memory, writes there, or reports at its end"
    )
    UNUSED = "the kernel does not use it, or the call is not made"


class Check(NamedTuple):
    """A check that argument number ``argument``, masked, is one of ``values``.

    Only its low 32 bits count. ``high_zero`` requires that the high 32 bits are 0, which is needed for
    arguments of 64 bits but not for an int. ``or_own_pid`` also accepts the task's own pid. ``given`` limits
    the check to calls whose argument number ``given[0]``, masked with ``given_mask``, has one of the values
    ``given[1]``. ``refusal`` is the errno of a call that does not pass.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFF_FFFF
    high_zero: bool = False
    or_own_pid: bool = False
    given: tuple[int, tuple[int, ...]] | None = None
    given_mask: int = 0xFFFF_FFFF
    refusal: int = errno.EPERM


class Permitted(NamedTuple):
    """The permitted values of an argument: one of ``values``, with any of ``bits``.

    Both are lists of names of ``CONSTANTS``, of names that are joined by "|", or of numbers, with spaces
    between them. ``wide`` marks arguments of 64 bits. With ``given``, the name and values of an earlier
    argument, the rule holds only for these, and ``otherwise`` says why any value is harmless for others.
    With ``given_bits``, these bits of that argument alone are compared. The other fields are those of
    ``Check``.
    """

    values: str = "0"
    bits: str = ""
    wide: bool = False
    or_own_pid: bool = False
    given: tuple[str, str] | None = None
    given_bits: str = ""
    otherwise: Harmless | None = None
    refusal: int = errno.EPERM

    def check(self, signature: Mapping[str, Rule], name: str) -> Check:
        """Return the check of the argument ``name`` of a call with these arguments."""
        order = list(signature)
        given = None
        if self.given is not None:
            given = order.index(self.given[0]), tuple(map(number_of, self.given[1].split()))
        values = tuple(map(number_of, self.values.split()))
        mask = 0xFFFF_FFFF & ~number_of(self.bits.replace(" ", "|") or "0")
        given_mask = number_of(self.given_bits) if self.given_bits else 0xFFFF_FFFF
        return Check(
            order.index(name), values, mask, self.wide, self.or_own_pid, given, given_mask, self.refusal
        )

    def __str__(self) -> str:
        *first, last = [*self.values.split(), *(["its own number"] if self.or_own_pid else [])]
        values = f"{', '.join(first)} or {last}" if first else last
        bits = f"any of {', '.join(self.bits.split())}" if self.bits else ""
        text = bits if values == "0" and bits else " with ".join(filter(None, (values, bits)))
        if self.given is None or self.otherwise is None:
            return text
        return f"{text} (for {', '.join(self.given[1].split())}, otherwise {self.otherwise.name})"


Rule: TypeAlias = Harmless | Permitted

_LARGE_FILE: Final = {"aarch64": 0o400000}.get(os.uname().machine, 0o100000)
"""The kernel's number. Python's is 0, because the C library sets the flag by itself."""

_NUMBERS: Final = """
    PROT_READ=1 PROT_WRITE=2 PROT_EXEC=4 PROT_BTI=0x10 PROT_GROWSDOWN=0x1000000 MAP_SHARED=1 MAP_PRIVATE=2
    MAP_FIXED=0x10 MAP_ANONYMOUS=0x20 MAP_DENYWRITE=0x800 MAP_NORESERVE=0x4000 MAP_POPULATE=0x8000
    MAP_STACK=0x20000 MAP_FIXED_NOREPLACE=0x100000 MREMAP_MAYMOVE=1 MADV_NORMAL=0 MADV_RANDOM=1
    MADV_SEQUENTIAL=2 MADV_WILLNEED=3 MADV_DONTNEED=4 MADV_FREE=8 MADV_HUGEPAGE=14 MADV_NOHUGEPAGE=15
    MADV_DONTDUMP=16 MADV_DODUMP=17 MADV_GUARD_INSTALL=102 MADV_GUARD_REMOVE=103 CLONE_VM=0x100
    CLONE_FS=0x200 CLONE_FILES=0x400 CLONE_SIGHAND=0x800 CLONE_PARENT=0x8000 CLONE_THREAD=0x10000
    CLONE_NEWNS=0x20000 CLONE_SYSVSEM=0x40000 CLONE_SETTLS=0x80000 CLONE_PARENT_SETTID=0x100000
    CLONE_CHILD_CLEARTID=0x200000 CLONE_DETACHED=0x400000 CLONE_CHILD_SETTID=0x1000000
    CLONE_NEWUTS=0x4000000 CLONE_NEWIPC=0x8000000 CLONE_NEWUSER=0x10000000 CLONE_NEWPID=0x20000000
    CLONE_NEWNET=0x40000000 SIGCHLD=17 FUTEX_WAIT=0 FUTEX_WAKE=1 FUTEX_REQUEUE=3 FUTEX_CMP_REQUEUE=4
    FUTEX_WAKE_OP=5 FUTEX_WAIT_BITSET=9 FUTEX_WAKE_BITSET=10 FUTEX_PRIVATE_FLAG=128
    FUTEX_CLOCK_REALTIME=256 PR_SET_PDEATHSIG=1 PR_SET_DUMPABLE=4 PR_SET_NAME=15 PR_GET_NAME=16
    PR_CAPBSET_DROP=24 PR_SET_SECUREBITS=28 PR_SET_NO_NEW_PRIVS=38 ARCH_SET_FS=0x1002 F_DUPFD=0 F_GETFD=1
    F_SETFD=2 F_GETFL=3 F_SETFL=4 F_GETLK=5 F_SETLK=6 F_SETLKW=7 F_DUPFD_CLOEXEC=1030 F_GET_SEALS=1034
    TCGETS=0x5401 TIOCGWINSZ=0x5413 FIONREAD=0x541B FIONBIO=0x5421 FIONCLEX=0x5450 FIOCLEX=0x5451
    SEEK_SET=0 SEEK_CUR=1 SEEK_END=2 SEEK_DATA=3 SEEK_HOLE=4 EPOLL_CTL_ADD=1 EPOLL_CTL_DEL=2
    EPOLL_CTL_MOD=3 EFD_SEMAPHORE=1 MSG_PEEK=2 MSG_DONTWAIT=0x40 MSG_WAITALL=0x100 MSG_NOSIGNAL=0x4000
    MSG_CMSG_CLOEXEC=0x40000000 SHUT_RD=0 SHUT_WR=1 SHUT_RDWR=2 AF_UNIX=1 SOCK_STREAM=1
    SOCK_CLOEXEC=0o2000000 SOCK_NONBLOCK=0o4000 SOL_SOCKET=1 SO_TYPE=3 SO_ERROR=4 SO_SNDBUF=7 SO_RCVBUF=8
    SO_ACCEPTCONN=30 SO_PROTOCOL=38 SO_DOMAIN=39 CLOCK_REALTIME=0 CLOCK_MONOTONIC=1
    CLOCK_PROCESS_CPUTIME_ID=2 CLOCK_THREAD_CPUTIME_ID=3 CLOCK_MONOTONIC_RAW=4 CLOCK_REALTIME_COARSE=5
    CLOCK_MONOTONIC_COARSE=6 CLOCK_BOOTTIME=7 CLOCK_TAI=11 TIMER_ABSTIME=1 RUSAGE_SELF=0 RUSAGE_THREAD=1
    RUSAGE_CHILDREN=0xFFFFFFFF ITIMER_REAL=0 ITIMER_VIRTUAL=1 ITIMER_PROF=2 SIG_BLOCK=0 SIG_UNBLOCK=1
    SIG_SETMASK=2 GRND_NONBLOCK=1 GRND_RANDOM=2 GRND_INSECURE=4 AT_FDCWD=0xFFFFFF9C
    AT_SYMLINK_NOFOLLOW=0x100 AT_REMOVEDIR=0x200 AT_EACCESS=0x200 AT_NO_AUTOMOUNT=0x800
    AT_EMPTY_PATH=0x1000 STATX_BASIC_STATS=0x7FF STATX_BTIME=0x800 R_OK=4 W_OK=2 X_OK=1
    SECCOMP_SET_MODE_FILTER=1 NEW_LISTENER=0x08 WAIT_KILLABLE_RECV=0x20
"""
CONSTANTS: Final[Mapping[str, int]] = {
    # Those of opened files differ among architectures. Python's are those of this machine.
    **{name: int(getattr(os, name)) for name in dir(os) if name.startswith("O_")},
    "O_LARGEFILE": _LARGE_FILE,
    **{name: int(number, 0) for name, _, number in (pair.partition("=") for pair in _NUMBERS.split())},
}
"""The kernel's constants that the tables name."""


def number_of(names: str) -> int:
    """Return the number of a constant, of several that are joined by "|", or of digits."""
    number = 0
    for name in names.split("|"):
        number |= int(name, 0) if name[0].isdigit() else CONSTANTS[name]
    return number


_FD: Final = Harmless.DESCRIPTOR
_MEMORY: Final = Harmless.MEMORY
_PATH: Final = Harmless.PATH
_SIZE: Final = Harmless.SIZE
_TIME: Final = Harmless.DURATION
_UNUSED: Final = Harmless.UNUSED

_MODE: Final = Permitted(bits="0o777")
"""Permissions, without the setuid, setgid and sticky bits."""
_MODE_OF_FILE: Final = Permitted(bits="0o777 0o170000")
"""The same. Programs also pass the kind of the file, as they read it, which the kernel ignores."""
_MODE_OF_NEW_FILE: Final = _MODE_OF_FILE._replace(
    given=("flags", "O_CREAT"), given_bits="O_CREAT", otherwise=Harmless.UNUSED
)
"""A call that creates no file may have anything in the register of the mode."""

THREAD_FLAGS: Final = "CLONE_VM|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD"
"""A thread without CLONE_FILES has a table of descriptors of its own, so that the limit of open files counts
for each thread alone."""
_THREAD_BITS: Final = "CLONE_FS CLONE_SYSVSEM CLONE_SETTLS CLONE_PARENT_SETTID"
_ADDRESS_BITS: Final = "CLONE_CHILD_SETTID CLONE_CHILD_CLEARTID"
A_THREAD: Final = Permitted(THREAD_FLAGS, f"{_THREAD_BITS} {_ADDRESS_BITS} CLONE_DETACHED", wide=True)
"""CLONE_DETACHED, which has no effect, is set by musl."""

_READING_BITS: Final = "O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_LARGEFILE O_NONBLOCK O_NOCTTY"
READING: Final = Permitted(bits=_READING_BITS)
WRITING: Final = Permitted("O_RDONLY O_WRONLY O_RDWR", f"{_READING_BITS} O_CREAT O_EXCL O_TRUNC O_APPEND")
"""Not O_TMPFILE or O_PATH, nor the flags that wait for a disk: O_DIRECT, O_SYNC and O_DSYNC."""

_MAPPING_BITS: Final = "MAP_FIXED MAP_FIXED_NOREPLACE MAP_DENYWRITE MAP_NORESERVE MAP_POPULATE MAP_STACK"
ANY_MAPPING: Final = Permitted("MAP_SHARED MAP_PRIVATE", f"{_MAPPING_BITS} MAP_ANONYMOUS", wide=True)
COUNTED_MAPPING: Final = Permitted(
    "MAP_SHARED MAP_PRIVATE MAP_PRIVATE|MAP_ANONYMOUS", _MAPPING_BITS, wide=True
)
_PROTECTION_BITS: Final = "PROT_READ PROT_WRITE PROT_EXEC PROT_BTI"
_PROTECTION: Final = Permitted(bits=_PROTECTION_BITS, wide=True)
_NEW_PROTECTION: Final = Permitted(bits=f"{_PROTECTION_BITS} PROT_GROWSDOWN", wide=True)
"""The C library names the whole stack of the first thread by its end (PROT_GROWSDOWN)."""
_ADVICE: Final = Permitted(
    "MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE "
    "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP MADV_GUARD_INSTALL "
    "MADV_GUARD_REMOVE"
)

_FILE_REQUESTS: Final = "F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC F_GET_SEALS"
FILE_REQUESTS: Final = Permitted(_FILE_REQUESTS)
_STATUS_FLAGS: Final = Permitted(
    "O_RDONLY O_WRONLY O_RDWR",
    "O_NONBLOCK O_APPEND O_LARGEFILE O_DIRECTORY O_NOFOLLOW O_CLOEXEC",
    given=("cmd", "F_SETFL"),
    otherwise=Harmless.REQUEST,
)
"""Programs set the flags that they read with one changed. O_ASYNC would make the kernel send signals."""

_FUTEX_OPERATIONS: Final = Permitted(
    (
        "FUTEX_WAIT FUTEX_WAKE FUTEX_REQUEUE FUTEX_CMP_REQUEUE FUTEX_WAKE_OP FUTEX_WAIT_BITSET "
        "FUTEX_WAKE_BITSET"
    ),
    "FUTEX_PRIVATE_FLAG FUTEX_CLOCK_REALTIME",
    refusal=errno.ENOSYS,
)
"""Not those with an owner (PI): the kernel looks for a thread by a number that the task writes into memory.
The C library takes ENOSYS as a kernel without such locks."""

_CLOCKS: Final = Permitted(
    "CLOCK_REALTIME CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_THREAD_CPUTIME_ID "
    "CLOCK_MONOTONIC_RAW CLOCK_REALTIME_COARSE CLOCK_MONOTONIC_COARSE CLOCK_BOOTTIME "
    "CLOCK_TAI"
)
"""A number below zero is the clock of a process, of a thread, or of a device that a descriptor refers to."""
_CLOCKS_OF_SLEEP: Final = Permitted("CLOCK_REALTIME CLOCK_MONOTONIC CLOCK_BOOTTIME CLOCK_TAI")
_TIMERS: Final = Permitted("ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF")

_RECEIVING: Final = Permitted(bits="MSG_PEEK MSG_DONTWAIT MSG_WAITALL MSG_NOSIGNAL MSG_CMSG_CLOEXEC")
_ACCESS: Final = Permitted(bits="R_OK W_OK X_OK")
_STATUS_BITS: Final = "AT_SYMLINK_NOFOLLOW AT_NO_AUTOMOUNT AT_EMPTY_PATH"
NULL: Final = Permitted(wide=True)
ONLY_0: Final = Permitted()
ITSELF: Final = Permitted("", or_own_pid=True)
ITSELF_OR_0: Final = Permitted(or_own_pid=True)
_THREAD_ITSELF: Final = ITSELF_OR_0._replace(refusal=errno.ENOSYS)
THREAD_BY_0: Final = ONLY_0._replace(refusal=errno.ENOSYS)
"""The C library asks for the processors of a thread by its number when a program asks for its stack, and does
without the answer where the kernel has no such call, but not where the call is refused."""

_POLL: Final = {"fds": _MEMORY, "nfds": _SIZE}
_SELECT: Final = {"n": _SIZE, "inp": _MEMORY, "outp": _MEMORY, "exp": _MEMORY}
_EPOLL_WAIT: Final = {"epfd": _FD, "events": _MEMORY, "maxevents": _SIZE, "timeout": _TIME}
_SIGNAL_MASK: Final = {"sigmask": _MEMORY, "sigsetsize": _SIZE}
_READ: Final = {"fd": _FD, "buf": _MEMORY, "count": _SIZE}
_VECTOR: Final = {"fd": _FD, "vec": _MEMORY, "vlen": _SIZE}
_NAME_OF_SOCKET: Final = {"fd": _FD, "addr": _MEMORY, "addrlen": _MEMORY}
_EXIT: Final = {"status": Harmless.OWN_VALUE}
_LIST: Final[Mapping[str, Rule]] = {"path": _UNUSED, "list": _UNUSED, "size": _UNUSED}

ARGUMENTS: Final[Mapping[str, Mapping[str, Rule]]] = {
    # memory
    "mmap": {
        "addr": _MEMORY,
        "length": _SIZE,
        "prot": _PROTECTION,
        "flags": ANY_MAPPING,
        "fd": _FD,
        "offset": _SIZE,
    },
    "brk": {"addr": _MEMORY},
    "munmap": {"addr": _MEMORY, "length": _SIZE},
    "mprotect": {"addr": _MEMORY, "length": _SIZE, "prot": _NEW_PROTECTION},
    "mremap": {
        "addr": _MEMORY,
        "old_length": _SIZE,
        "new_length": _SIZE,
        "flags": Permitted(bits="MREMAP_MAYMOVE", wide=True),
        "new_addr": _UNUSED,
    },
    "madvise": {"addr": _MEMORY, "length": _SIZE, "advice": _ADVICE},
    # threads. The last two arguments of clone have the other order on aarch64.
    "clone": {
        "flags": A_THREAD,
        "stack": _MEMORY,
        "parent_tid": _MEMORY,
        "child_tid": _MEMORY,
        "tls": _MEMORY,
    },
    "futex": {
        "uaddr": _MEMORY,
        "op": _FUTEX_OPERATIONS,
        "val": Harmless.OWN_VALUE,
        "timeout": _MEMORY,
        "uaddr2": _MEMORY,
        "val3": Harmless.OWN_VALUE,
    },
    "set_robust_list": {"head": _MEMORY, "len": _SIZE},
    "rseq": {"rseq": _MEMORY, "len": _SIZE, "flags": ONLY_0, "sig": Harmless.OWN_VALUE},
    "prctl": {
        "option": Permitted("PR_SET_NAME PR_GET_NAME"),
        "arg2": Harmless.REQUEST,
        "arg3": _UNUSED,
        "arg4": _UNUSED,
        "arg5": _UNUSED,
    },
    "gettid": {},
    "sched_yield": {},
    "sched_getaffinity": {"pid": _THREAD_ITSELF, "len": _SIZE, "mask": _MEMORY},
    "getcpu": {"cpu": _MEMORY, "node": _MEMORY, "cache": _UNUSED},
    "exit": _EXIT,
    "exit_group": _EXIT,
    "set_tid_address": {"tidptr": _MEMORY},
    "arch_prctl": {"option": Permitted("ARCH_SET_FS"), "addr": _MEMORY},
    # descriptors
    "read": _READ,
    "readv": _VECTOR,
    "pread64": {**_READ, "pos": _SIZE},
    "write": _READ,
    "writev": _VECTOR,
    "pwrite64": {**_READ, "pos": _SIZE},
    "lseek": {
        "fd": _FD,
        "offset": _SIZE,
        "whence": Permitted("SEEK_SET SEEK_CUR SEEK_END SEEK_DATA SEEK_HOLE"),
    },
    "close": {"fd": _FD},
    "close_range": {"first": _FD, "last": _FD, "flags": ONLY_0},
    "dup": {"fd": _FD},
    "dup2": {"old": _FD, "new": _FD},
    "dup3": {"old": _FD, "new": _FD, "flags": Permitted(bits="O_CLOEXEC")},
    "fcntl": {"fd": _FD, "cmd": Permitted(f"{_FILE_REQUESTS} F_GETLK"), "arg": _STATUS_FLAGS},
    "ioctl": {
        "fd": _FD,
        "request": Permitted("TCGETS TIOCGWINSZ FIONREAD FIONBIO FIOCLEX FIONCLEX"),
        "arg": Harmless.REQUEST,
    },
    "fstat": {"fd": _FD, "buf": _MEMORY},
    # waiting
    "poll": {**_POLL, "timeout": _TIME},
    "ppoll": {**_POLL, "timeout": _MEMORY, **_SIGNAL_MASK},
    "select": {**_SELECT, "timeout": _MEMORY},
    "pselect6": {**_SELECT, "timeout": _MEMORY, "sigmask": _MEMORY},
    "epoll_create1": {"flags": Permitted(bits="O_CLOEXEC")},
    "epoll_ctl": {
        "epfd": _FD,
        "op": Permitted("EPOLL_CTL_ADD EPOLL_CTL_DEL EPOLL_CTL_MOD"),
        "fd": _FD,
        "event": _MEMORY,
    },
    "epoll_wait": _EPOLL_WAIT,
    "epoll_pwait": {**_EPOLL_WAIT, **_SIGNAL_MASK},
    "eventfd2": {
        "count": Harmless.OWN_VALUE,
        "flags": Permitted(bits="O_CLOEXEC O_NONBLOCK EFD_SEMAPHORE"),
    },
    "pipe": {"fds": _MEMORY},
    "pipe2": {"fds": _MEMORY, "flags": Permitted(bits="O_CLOEXEC O_NONBLOCK")},
    # sockets
    "recvmsg": {"fd": _FD, "msg": _MEMORY, "flags": _RECEIVING},
    "sendto": {
        "fd": _FD,
        "buf": _MEMORY,
        "size": _SIZE,
        "flags": Permitted(bits="MSG_DONTWAIT MSG_NOSIGNAL"),
        "addr": NULL,
        "addrlen": _UNUSED,
    },
    "recvfrom": {
        "fd": _FD,
        "buf": _MEMORY,
        "size": _SIZE,
        "flags": _RECEIVING,
        "addr": _MEMORY,
        "addrlen": _MEMORY,
    },
    "shutdown": {"fd": _FD, "how": Permitted("SHUT_RD SHUT_WR SHUT_RDWR")},
    "socketpair": {
        "family": Permitted("AF_UNIX"),
        "type": Permitted("SOCK_STREAM", "SOCK_CLOEXEC SOCK_NONBLOCK"),
        "protocol": ONLY_0,
        "fds": _MEMORY,
    },
    "setsockopt": {
        "fd": _UNUSED,
        "level": Permitted("SOL_SOCKET"),
        "option": Permitted("SO_SNDBUF SO_RCVBUF"),
        "value": _UNUSED,
        "length": _UNUSED,
    },
    "getsockopt": {
        "fd": _FD,
        "level": Permitted("SOL_SOCKET"),
        "option": Permitted("SO_TYPE SO_ERROR SO_SNDBUF SO_RCVBUF SO_ACCEPTCONN SO_PROTOCOL SO_DOMAIN"),
        "value": _MEMORY,
        "length": _MEMORY,
    },
    "getsockname": _NAME_OF_SOCKET,
    "getpeername": _NAME_OF_SOCKET,
    # time
    "clock_gettime": {"clock": _CLOCKS, "time": _MEMORY},
    "clock_getres": {"clock": _CLOCKS, "time": _MEMORY},
    "gettimeofday": {"time": _MEMORY, "zone": _MEMORY},
    "time": {"time": _MEMORY},
    "times": {"buf": _MEMORY},
    "getrusage": {"who": Permitted("RUSAGE_SELF RUSAGE_THREAD RUSAGE_CHILDREN"), "usage": _MEMORY},
    "nanosleep": {"time": _MEMORY, "rest": _MEMORY},
    "clock_nanosleep": {
        "clock": _CLOCKS_OF_SLEEP,
        "flags": Permitted(bits="TIMER_ABSTIME"),
        "time": _MEMORY,
        "rest": _MEMORY,
    },
    "restart_syscall": {},
    "pause": {},
    "setitimer": {"which": _TIMERS, "new": _MEMORY, "old": _MEMORY},
    "getitimer": {"which": _TIMERS, "value": _MEMORY},
    "alarm": {"seconds": _TIME},
    # signals
    "rt_sigaction": {"sig": Harmless.SIGNAL, "act": _MEMORY, "old": _MEMORY, "size": _SIZE},
    "rt_sigprocmask": {
        "how": Permitted("SIG_BLOCK SIG_UNBLOCK SIG_SETMASK"),
        "set": _MEMORY,
        "old": _MEMORY,
        "size": _SIZE,
    },
    "rt_sigreturn": {},
    "sigaltstack": {"stack": _MEMORY, "old": _MEMORY},
    "rt_sigtimedwait": {"set": _MEMORY, "info": _MEMORY, "timeout": _MEMORY, "size": _SIZE},
    "kill": {"pid": ITSELF, "sig": Harmless.SIGNAL},
    "tgkill": {"tgid": ITSELF, "tid": Harmless.THREAD, "sig": Harmless.SIGNAL},
    # itself
    **{name: {} for name in ("getpid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getpgrp")},
    "uname": {"name": _MEMORY},
    "sysinfo": {"info": _MEMORY},
    "getrandom": {
        "buf": _MEMORY,
        "size": _SIZE,
        "flags": Permitted(bits="GRND_NONBLOCK GRND_RANDOM GRND_INSECURE"),
    },
    "prlimit64": {"pid": ITSELF_OR_0, "resource": Harmless.OWN_LIMIT, "new": NULL, "old": _MEMORY},
    # files
    "openat": {"dirfd": _FD, "path": _PATH, "flags": WRITING, "mode": _MODE_OF_NEW_FILE},
    "open": {"path": _PATH, "flags": READING, "mode": _UNUSED},
    "stat": {"path": _PATH, "buf": _MEMORY},
    "lstat": {"path": _PATH, "buf": _MEMORY},
    "newfstatat": {"dirfd": _FD, "path": _PATH, "buf": _MEMORY, "flags": Permitted(bits=_STATUS_BITS)},
    "statx": {
        "dirfd": _FD,
        "path": _PATH,
        "flags": Permitted(bits=_STATUS_BITS),
        "mask": Permitted(bits="STATX_BASIC_STATS STATX_BTIME"),
        "buf": _MEMORY,
    },
    "getdents64": _READ,
    "access": {"path": _PATH, "mode": _ACCESS},
    "faccessat": {"dirfd": _FD, "path": _PATH, "mode": _ACCESS},
    "faccessat2": {
        "dirfd": _FD,
        "path": _PATH,
        "mode": _ACCESS,
        "flags": Permitted(bits="AT_EACCESS AT_SYMLINK_NOFOLLOW AT_EMPTY_PATH"),
    },
    "readlink": {"path": _PATH, "buf": _MEMORY, "size": _SIZE},
    "readlinkat": {"dirfd": _FD, "path": _PATH, "buf": _MEMORY, "size": _SIZE},
    "getcwd": {"buf": _MEMORY, "size": _SIZE},
    "statfs": {"path": _PATH, "buf": _MEMORY},
    "fstatfs": {"fd": _FD, "buf": _MEMORY},
    "chdir": {"path": _PATH},
    "execve": {"path": _PATH, "argv": _MEMORY, "envp": _MEMORY},
    # the private folder
    "mkdir": {"path": _PATH, "mode": _MODE},
    "mkdirat": {"dirfd": _FD, "path": _PATH, "mode": _MODE},
    "unlink": {"path": _PATH},
    "unlinkat": {"dirfd": _FD, "path": _PATH, "flags": Permitted(bits="AT_REMOVEDIR")},
    "rmdir": {"path": _PATH},
    "rename": {"old": _PATH, "new": _PATH},
    "renameat": {"old_dirfd": _FD, "old": _PATH, "new_dirfd": _FD, "new": _PATH},
    "ftruncate": {"fd": _FD, "length": _SIZE},
    "fsync": {"fd": _UNUSED},
    "fdatasync": {"fd": _UNUSED},
    "msync": {"addr": _UNUSED, "length": _UNUSED, "flags": _UNUSED},
    "chmod": {"path": _PATH, "mode": _MODE_OF_FILE},
    "utimensat": {
        "dirfd": Permitted("AT_FDCWD"),
        "path": _PATH,
        "times": _MEMORY,
        "flags": Permitted(bits="AT_SYMLINK_NOFOLLOW"),
    },
    "listxattr": _LIST,
    "llistxattr": _LIST,
    # templates and forks
    "seccomp": {"op": Permitted("SECCOMP_SET_MODE_FILTER"), "flags": ONLY_0, "program": _MEMORY},
    "setsid": {},
    "capset": {"header": Harmless.OWN_RIGHTS, "data": _MEMORY},
    "umask": {"mask": Harmless.OWN_RIGHTS},
}
"""The arguments of each allowed call in the kernel's order, with the rules for a task with a folder."""
