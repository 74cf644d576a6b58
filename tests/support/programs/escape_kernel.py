"""Hostile programs of the escape suite that attack the kernel's own surface; ``attempt_of`` returns each.

Not for: anything but ``escape.Cage``, which runs them and knows what must come of each.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import socket
import struct
import termios
from collections.abc import Callable

from escape_tools import NothingFoundError, checked, libc, numbered, raw

X32_BIT = 0x40000000
FUTEX_WAIT = 0
FUTEX_WAKE = 1
FUTEX_REQUEUE = 3
FUTEX_LOCK_PI = 6
FUTEX_TRYLOCK_PI = 8
FUTEX_WAIT_REQUEUE_PI = 11
FEW = 64


# -- keys and secrets ---------------------------------------------------------------------------------
def _try_read_keyring() -> object:
    session = -3
    return raw("keyctl", 0, session, 0)


def _try_cached_pages() -> object:
    """Which pages of the library others have read: a way to watch them."""
    file = os.open(os.__file__, os.O_RDONLY)
    with mmap.mmap(file, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ):
        place = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        seen = ctypes.create_string_buffer(1)
        return checked(libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), seen))


def _try_drop_cached_pages() -> None:
    dont_need = 4
    os.posix_fadvise(os.open(os.__file__, os.O_RDONLY), 0, 0, dont_need)


# -- the sandbox itself -------------------------------------------------------------------------------
def _try_other_filter() -> object:
    allow_all = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    held = ctypes.create_string_buffer(allow_all)
    return raw("seccomp", 1, 0, struct.pack("=HxxxxxxQ", 1, ctypes.addressof(held)))


def _try_intercept_own_calls() -> object:
    """PR_SET_SYSCALL_USER_DISPATCH: calls answered by a handler instead of the kernel."""
    return checked(libc.prctl(59, 1, 0, 0, 0))


def _try_speculate() -> object:
    """Undo what keeps processors from guessing past checks."""
    return checked(libc.prctl(53, 0, 2, 0, 0))


# -- the processor ------------------------------------------------------------------------------------
def _try_personality() -> object:
    no_randomness = 0x0040000
    return raw("personality", no_randomness)


def _try_number_with_high_bits() -> object:
    """59 is execve; the kernel looks at the low half of the number alone."""
    return numbered((1 << 32) | 59, (1 << 32) | 221, 0, 0, 0)


def _code(machine: bytes) -> int:
    """Put machine code into memory and run it; an int of what it left."""
    place = libc.mmap(None, mmap.PAGESIZE, 7, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memmove(place, machine, len(machine))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(place)())


def _need_x86_64() -> None:
    if os.uname().machine != "x86_64":
        raise NothingFoundError


def _try_call_of_32_bits() -> object:
    """``int 0x80`` with eax = 11, which is execve for 32 bits and munmap for 64."""
    _need_x86_64()
    return _code(b"\x31\xdb\x31\xc9\x31\xd2\xb8\x0b\x00\x00\x00\xcd\x80\xc3")


def _try_harmless_call_of_32_bits() -> object:
    """``int 0x80`` with eax = 20: getpid."""
    _need_x86_64()
    return _code(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")


def _try_old_entry_page() -> object:
    """The fixed page of old kernels' clocks: it tells the time, which the filter allows, or nothing."""
    _need_x86_64()
    # mov rax, 0xffffffffff600400; xor edi, edi; call rax; ret
    return "time" if _code(b"\x48\xc7\xc0\x00\x04\x60\xff\x31\xff\xff\xd0\xc3") > 0 else "nothing"


# -- memory -------------------------------------------------------------------------------------------
def _try_map_address_zero() -> object:
    fixed = 0x10
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    place = libc.mmap(None, mmap.PAGESIZE, 3, flags, -1, 0)
    if place is None:
        return "mapped"
    return checked(place)


def _try_huge_pages() -> object:
    huge = 0x40000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | huge
    return checked(libc.mmap(None, 1 << 21, 3, flags, -1, 0))


def _try_poison_page() -> object:
    """Tell the kernel that a page of the machine is broken, which takes it from everybody."""
    poison = 100
    place = libc.mmap(None, mmap.PAGESIZE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    return checked(libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), poison))


def _try_merge_pages() -> object:
    """Same-page merging would tell, by the time of a write, what pages others have."""
    mergeable = 12
    place = libc.mmap(None, mmap.PAGESIZE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    checked(libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), mergeable))
    return "advised"


# -- futexes ------------------------------------------------------------------------------------------
def _futex(operation: int, *arguments: int) -> int:
    word = ctypes.create_string_buffer(16)
    return raw("futex", ctypes.addressof(word), operation, *arguments)


def _try_requeue_to_itself() -> object:
    word = ctypes.create_string_buffer(16)
    place = ctypes.addressof(word)
    return raw("futex", place, FUTEX_WAIT_REQUEUE_PI, 0, 0, place, 0)


def _try_requeue_less_than_none() -> object:
    word = ctypes.create_string_buffer(16)
    place = ctypes.addressof(word)
    return raw("futex", place, FUTEX_REQUEUE, -1, -1, place + 4, 0)


def _try_lock_owned_by_nobody() -> object:
    """A lock that says it belongs to a thread that does not exist."""
    word = ctypes.create_string_buffer(struct.pack("=I", 4711), 16)
    return raw("futex", ctypes.addressof(word), FUTEX_LOCK_PI, 0, 0, 0, 0)


def _try_lock_between_processes() -> object:
    """A lock that others could share: the kernel would look for its owner by number, and report its end."""
    word = ctypes.create_string_buffer(struct.pack("=I", 2), 16)
    return raw("futex", ctypes.addressof(word), FUTEX_TRYLOCK_PI, 0, 0, 0, 0)


def _try_robust_list_into_kernel() -> object:
    """A list of held locks that leads into the kernel: it is walked when the thread ends."""
    return raw("set_robust_list", 0xFFFF_8000_0000_0000, 24)


# -- numbers inside of arguments -----------------------------------------------------------------------
def _clock(call: str, number: int, kind: int) -> int:
    """Ask a clock that is named by a process, a thread or a descriptor."""
    return raw(call, (~number << 3) | kind, ctypes.addressof(ctypes.create_string_buffer(16)))


def _try_descriptor_of_thread() -> object:
    """CLONE_PIDFD with the flags of a thread: a descriptor by which others could watch and signal it."""
    return raw("clone", 0x3D0F00 | 0x1000, 0, 0, 0, 0)


def _try_out_of_band() -> object:
    with socket.socketpair()[0] as pair:
        return pair.send(b"x", socket.MSG_OOB)


def _try_read_errors_of_socket() -> object:
    with socket.socketpair()[0] as pair:
        return pair.recv(1, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)


def _try_signals_of_descriptor() -> object:
    """O_ASYNC: the kernel sends a signal when there is something to read."""
    return fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


# -- devices and signals ------------------------------------------------------------------------------
def _try_paste_into_terminal() -> object:
    tioclinux = 0x541C
    return fcntl.ioctl(0, tioclinux, b"\x03")


def _try_every_other_request() -> object:
    """Requests of 64 kinds of device on each descriptor: those answered otherwise than by EPERM."""
    answered = []
    for kind in range(FEW):
        for descriptor in range(4):
            try:
                fcntl.ioctl(descriptor, 0x8000_0000 | kind << 8 | kind, bytes(64))
                answered.append(kind)
            except PermissionError:
                continue
            except OSError:
                answered.append(kind)
    if not answered:
        raise NothingFoundError
    return answered


def _try_return_from_no_signal() -> object:
    """A forged signal frame sets every register: it is the task that falls over it."""
    return raw("rt_sigreturn")


def _try_handle_the_filters_signal() -> object:
    """Who could handle SIGSYS would live on after an attack."""
    signal.signal(signal.SIGSYS, lambda *_: None)
    return raw("ptrace", 0, 0, 0, 0)


def _try_block_the_filters_signal() -> object:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGSYS})
    return raw("ptrace", 0, 0, 0, 0)


SHORT_ATTEMPTS: dict[str, Callable[[], object]] = {
    # machinery
    "load_program": lambda: raw("bpf", 5, bytes(128), 128),
    "make_map": lambda: raw("bpf", 0, struct.pack("=5I", 2, 4, 4, 1, 0) + bytes(64), 84),
    "ring_of_calls": lambda: raw("io_uring_setup", 4, bytes(120)),
    "enter_ring": lambda: raw("io_uring_enter", 1, 1, 0, 0, 0, 0),
    "register_with_ring": lambda: raw("io_uring_register", 1, 0, 0, 0),
    "old_ring_of_calls": lambda: numbered(206, 0, 1, 0),
    "count_events": lambda: raw("perf_event_open", struct.pack("=2I", 1, 128) + bytes(120), 0, -1, -1, 0),
    "handle_page_faults": lambda: raw("userfaultfd", 0),
    "load_module": lambda: raw("init_module", b"\0", 0, b"\0"),
    "load_module_file": lambda: raw("finit_module", 1, b"\0", 0),
    "remove_module": lambda: raw("delete_module", b"ext4\0", 0),
    "other_kernel": lambda: raw("kexec_load", 0, 0, 0, 0),
    "other_kernel_file": lambda: raw("kexec_file_load", 1, 1, 0, b"\0", 0),
    "restart": lambda: raw("reboot", 0xFEE1DEAD, 672274793, 0, 0),
    "swap_off": lambda: raw("swapoff", b"/swap\0"),
    "swap_on": lambda: raw("swapon", b"/swap\0", 0),
    "account_processes": lambda: raw("acct", 0),
    "set_clock": lambda: numbered(227, 112, 0, 0),
    "adjust_clock": lambda: numbered(159, 171, 0),
    "hang_up": lambda: numbered(153, 58),
    # keys and secrets
    "add_key": lambda: raw("add_key", b"user\0", b"dios\0", b"x", 1, -5),
    "request_key": lambda: raw("request_key", b"user\0", b"dios\0", None, -5),
    "kernel_log": lambda: raw("syslog", 3, bytes(4096), 4096),
    "size_of_kernel_log": lambda: raw("syslog", 10, 0, 0),
    # the sandbox itself
    "filter_by_prctl": lambda: checked(libc.prctl(22, 2, 0, 0, 0)),
    "strict_mode": lambda: checked(libc.prctl(22, 1, 0, 0, 0)),
    "listen_to_filter": lambda: raw("seccomp", 3, 0, bytes(8)),
    "other_rules": lambda: raw("landlock_create_ruleset", struct.pack("=Q", 1), 8, 0),
    "restrict_again": lambda: raw("landlock_restrict_self", 1, 0),
    # the processor
    "segments": lambda: raw("modify_ldt", 0, bytes(16), 16),
    "ports": lambda: raw("iopl", 3),
    "port": lambda: raw("ioperm", 0x80, 1, 1),
    "base_registers": lambda: numbered(158, -1, 0x1003, 0),
    "memory_keys": lambda: numbered(330, 289, 0, 0),
    "execute_by_x32": lambda: numbered(X32_BIT | 520, -1, 0, 0, 0),
    "read_by_x32": lambda: numbered(X32_BIT | 0, -1, 0, 0, 0),
    "number_below_zero": lambda: numbered(-1, -1),
    "number_of_nothing": lambda: numbered(5000, 5000),
    # memory
    "lock_memory": lambda: checked(libc.mlockall(3)),
    "move_pages": lambda: numbered(279, 239, 1, 0, 0, 0, 0, 0),
    "place_memory": lambda: numbered(237, 235, 0, 4096, 0, 0, 0, 0),
    "splice_pipes": lambda: numbered(278, 75, 1, 0, 1, 0),
    "remap_pages": lambda: numbered(216, 234, 4096, 4096, 0, 0, 0),
    # futexes
    "wake_nobody": lambda: _futex(FUTEX_WAKE, 1),
    "wait_for_other_value": lambda: _futex(FUTEX_WAIT, 1, 0),
    "futex_at_odd_address": lambda: raw("futex", 4097, FUTEX_WAKE, 1),
    "futex_of_kernel": lambda: raw("futex", 0xFFFF_8000_0000_0000, FUTEX_WAIT, 0, 0),
    "wait_for_many": lambda: raw("futex_waitv", 0, 0, 0, 0, 0),
    "robust_list_of_others": lambda: numbered(274, 100, 1, 0, 0),
    # numbers inside of arguments
    "clock_of_process": lambda: _clock("clock_gettime", 1, 2),
    "clock_of_thread": lambda: _clock("clock_getres", 1, 6),
    "clock_of_device": lambda: _clock("clock_gettime", 0, 3),
    "sleep_by_another_clock": lambda: raw("clock_nanosleep", (~1 << 3) | 2, 0, bytes(16), None),
    "owner_of_descriptor": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, 1),
    "pipe_of_notifications": lambda: raw(
        "pipe2", ctypes.addressof(ctypes.create_string_buffer(8)), os.O_EXCL
    ),
    "unbuffered_reading": lambda: os.open(os.__file__, os.O_RDONLY | os.O_DIRECT),
    "affinity_of_others": lambda: raw(
        "sched_getaffinity", 4711, 8, ctypes.addressof(ctypes.create_string_buffer(8))
    ),
    # devices and signals
    "type_for_others": lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x"),
    "take_terminal": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 1),
    "handle_the_unhandled": lambda: signal.signal(signal.SIGKILL, signal.SIG_IGN),
}
"""The attempts that are one expression; each other one is a function ``_try_NAME``."""
