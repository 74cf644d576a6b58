"""Hostile programs of the escape suite that attack the kernel's own surface; each ``_try_`` function is one.

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

from escape_tools import NothingFoundError, checked, libc, numbered, raw

X32_BIT = 0x40000000
FUTEX_WAIT = 0
FUTEX_WAKE = 1
FUTEX_REQUEUE = 3
FUTEX_LOCK_PI = 6
FUTEX_TRYLOCK_PI = 8
FUTEX_WAIT_REQUEUE_PI = 11
FEW = 64


# -- machinery ----------------------------------------------------------------------------------------
def _try_load_program() -> object:
    return raw("bpf", 5, bytes(128), 128)


def _try_make_map() -> object:
    return raw("bpf", 0, struct.pack("=5I", 2, 4, 4, 1, 0) + bytes(64), 84)


def _try_ring_of_calls() -> object:
    return raw("io_uring_setup", 4, bytes(120))


def _try_enter_ring() -> object:
    return raw("io_uring_enter", 1, 1, 0, 0, 0, 0)


def _try_register_with_ring() -> object:
    return raw("io_uring_register", 1, 0, 0, 0)


def _try_old_ring_of_calls() -> object:
    return numbered(206, 0, 1, 0)


def _try_count_events() -> object:
    return raw("perf_event_open", struct.pack("=2I", 1, 128) + bytes(120), 0, -1, -1, 0)


def _try_handle_page_faults() -> object:
    return raw("userfaultfd", 0)


def _try_load_module() -> object:
    return raw("init_module", b"\0", 0, b"\0")


def _try_load_module_file() -> object:
    return raw("finit_module", 1, b"\0", 0)


def _try_remove_module() -> object:
    return raw("delete_module", b"ext4\0", 0)


def _try_other_kernel() -> object:
    return raw("kexec_load", 0, 0, 0, 0)


def _try_other_kernel_file() -> object:
    return raw("kexec_file_load", 1, 1, 0, b"\0", 0)


def _try_restart() -> object:
    return raw("reboot", 0xFEE1DEAD, 672274793, 0, 0)


def _try_swap_off() -> object:
    return raw("swapoff", b"/swap\0")


def _try_swap_on() -> object:
    return raw("swapon", b"/swap\0", 0)


def _try_account_processes() -> object:
    return raw("acct", 0)


def _try_set_clock() -> object:
    return numbered(227, 112, 0, 0)


def _try_adjust_clock() -> object:
    return numbered(159, 171, 0)


def _try_hang_up() -> object:
    return numbered(153, 58)


# -- keys and secrets ---------------------------------------------------------------------------------
def _try_add_key() -> object:
    return raw("add_key", b"user\0", b"dios\0", b"x", 1, -5)


def _try_request_key() -> object:
    return raw("request_key", b"user\0", b"dios\0", None, -5)


def _try_read_keyring() -> object:
    session = -3
    return raw("keyctl", 0, session, 0)


def _try_kernel_log() -> object:
    return raw("syslog", 3, bytes(4096), 4096)


def _try_size_of_kernel_log() -> object:
    return raw("syslog", 10, 0, 0)


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


def _try_filter_by_prctl() -> object:
    return checked(libc.prctl(22, 2, 0, 0, 0))


def _try_strict_mode() -> object:
    return checked(libc.prctl(22, 1, 0, 0, 0))


def _try_listen_to_filter() -> object:
    return raw("seccomp", 3, 0, bytes(8))


def _try_other_rules() -> object:
    return raw("landlock_create_ruleset", struct.pack("=Q", 1), 8, 0)


def _try_restrict_again() -> object:
    return raw("landlock_restrict_self", 1, 0)


def _try_intercept_own_calls() -> object:
    """PR_SET_SYSCALL_USER_DISPATCH: calls answered by a handler instead of the kernel."""
    return checked(libc.prctl(59, 1, 0, 0, 0))


def _try_speculate() -> object:
    """Undo what keeps processors from guessing past checks."""
    return checked(libc.prctl(53, 0, 2, 0, 0))


# -- the processor ------------------------------------------------------------------------------------
def _try_segments() -> object:
    return raw("modify_ldt", 0, bytes(16), 16)


def _try_ports() -> object:
    return raw("iopl", 3)


def _try_port() -> object:
    return raw("ioperm", 0x80, 1, 1)


def _try_personality() -> object:
    no_randomness = 0x0040000
    return raw("personality", no_randomness)


def _try_base_registers() -> object:
    return numbered(158, -1, 0x1003, 0)


def _try_memory_keys() -> object:
    return numbered(330, 289, 0, 0)


def _try_execute_by_x32() -> object:
    return numbered(X32_BIT | 520, -1, 0, 0, 0)


def _try_read_by_x32() -> object:
    return numbered(X32_BIT | 0, -1, 0, 0, 0)


def _try_number_below_zero() -> object:
    return numbered(-1, -1)


def _try_number_of_nothing() -> object:
    return numbered(5000, 5000)


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


def _try_lock_memory() -> object:
    return checked(libc.mlockall(3))


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


def _try_move_pages() -> object:
    return numbered(279, 239, 1, 0, 0, 0, 0, 0)


def _try_place_memory() -> object:
    return numbered(237, 235, 0, 4096, 0, 0, 0, 0)


def _try_splice_pipes() -> object:
    return numbered(278, 75, 1, 0, 1, 0)


def _try_remap_pages() -> object:
    return numbered(216, 234, 4096, 4096, 0, 0, 0)


# -- futexes ------------------------------------------------------------------------------------------
def _futex(operation: int, *arguments: int) -> int:
    word = ctypes.create_string_buffer(16)
    return raw("futex", ctypes.addressof(word), operation, *arguments)


def _try_wake_nobody() -> object:
    return _futex(FUTEX_WAKE, 1)


def _try_wait_for_other_value() -> object:
    return _futex(FUTEX_WAIT, 1, 0)


def _try_futex_at_odd_address() -> object:
    return raw("futex", 4097, FUTEX_WAKE, 1)


def _try_futex_of_kernel() -> object:
    return raw("futex", 0xFFFF_8000_0000_0000, FUTEX_WAIT, 0, 0)


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


def _try_wait_for_many() -> object:
    return raw("futex_waitv", 0, 0, 0, 0, 0)


def _try_robust_list_into_kernel() -> object:
    """A list of held locks that leads into the kernel: it is walked when the thread ends."""
    return raw("set_robust_list", 0xFFFF_8000_0000_0000, 24)


def _try_robust_list_of_others() -> object:
    return numbered(274, 100, 1, 0, 0)


# -- numbers inside of arguments -----------------------------------------------------------------------
def _clock(call: str, number: int, kind: int) -> int:
    """Ask a clock that is named by a process, a thread or a descriptor."""
    return raw(call, (~number << 3) | kind, ctypes.addressof(ctypes.create_string_buffer(16)))


def _try_clock_of_process() -> object:
    return _clock("clock_gettime", 1, 2)


def _try_clock_of_thread() -> object:
    return _clock("clock_getres", 1, 6)


def _try_clock_of_device() -> object:
    return _clock("clock_gettime", 0, 3)


def _try_sleep_by_another_clock() -> object:
    return raw("clock_nanosleep", (~1 << 3) | 2, 0, bytes(16), None)


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


def _try_owner_of_descriptor() -> object:
    return fcntl.fcntl(0, fcntl.F_SETOWN, 1)


def _try_pipe_of_notifications() -> object:
    return raw("pipe2", ctypes.addressof(ctypes.create_string_buffer(8)), os.O_EXCL)


def _try_unbuffered_reading() -> object:
    return os.open(os.__file__, os.O_RDONLY | os.O_DIRECT)


def _try_affinity_of_others() -> object:
    return raw("sched_getaffinity", 4711, 8, ctypes.addressof(ctypes.create_string_buffer(8)))


# -- devices and signals ------------------------------------------------------------------------------
def _try_type_for_others() -> object:
    return fcntl.ioctl(0, termios.TIOCSTI, b"x")


def _try_take_terminal() -> object:
    return fcntl.ioctl(0, termios.TIOCSCTTY, 1)


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


def _try_handle_the_unhandled() -> object:
    return signal.signal(signal.SIGKILL, signal.SIG_IGN)


def _try_handle_the_filters_signal() -> object:
    """Who could handle SIGSYS would live on after an attack."""
    signal.signal(signal.SIGSYS, lambda *_: None)
    return raw("ptrace", 0, 0, 0, 0)


def _try_block_the_filters_signal() -> object:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGSYS})
    return raw("ptrace", 0, 0, 0, 0)
