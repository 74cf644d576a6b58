"""Hostile programs of the escape suite against the table of arguments; each ``_try_`` function is one.

Most try every value of an argument and return those that were answered otherwise than by a refusal. Not for:
anything but ``escape.Cage``, which runs them and knows what must come of each.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterable

from escape_tools import NothingFoundError, checked, libc, number, numbered, raw

THREAD = 0x3D0F00
"""The flags with which the C library starts a thread."""

HIGH = 1 << 32
SIGN = 0xFFFF_FFFF << 32
PAGE = mmap.PAGESIZE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
REFUSALS = frozenset({errno.EPERM, errno.ENOSYS})
RACES = 20_000


def _answered(values: Iterable[int], call: Callable[[int], object]) -> object:
    """The values for which a call is answered by anything but a refusal."""
    answered = []
    for value in values:
        try:
            call(value)
        except OSError as error:
            if error.errno in REFUSALS:
                continue
        answered.append(value)
    if not answered:
        raise NothingFoundError
    return answered


def _bits(width: int, allowed: int) -> list[int]:
    return [1 << bit for bit in range(width) if not 1 << bit & allowed]


def _place(size: int = PAGE) -> int:
    return checked(libc.mmap(None, size, 3, PRIVATE, -1, 0))


def _room(size: int = 4096) -> int:
    """The address of zeroes that stay for the rest of the program."""
    held = ctypes.create_string_buffer(size)
    _HELD.append(held)
    return ctypes.addressof(held)


_HELD: list[object] = []


# -- threads ------------------------------------------------------------------------------------------
def _try_thread_with_a_high_half() -> object:
    return raw("clone", THREAD | SIGN, 0, 0, 0, 0)


def _try_thread_with_any_other_flag() -> object:
    """Also the low byte, where a process has the signal of its end, and a new one its namespace of time."""
    return _answered(_bits(64, THREAD | 0x1400000), lambda bit: raw("clone", THREAD | bit, 0, 0, 0, 0))


def _try_thread_with_less_in_common() -> object:
    """A thread that shares less: without each flag that makes it one."""
    shared = [0x100, 0x400, 0x800, 0x10000]
    return _answered(shared, lambda bit: raw("clone", THREAD & ~bit, 0, 0, 0, 0))


def _try_register_again() -> object:
    """Take back, or replace, what the kernel knows of this thread's short atomic work."""
    return _answered([1, 2, HIGH | 1], lambda flags: raw("rseq", _room(), 32, flags, 0x53053053))


def _try_stop_all_processors() -> object:
    """A barrier on every processor of the machine, again and again."""
    return numbered(324, 283, 1, 0, 0)


# -- memory -------------------------------------------------------------------------------------------
def _map(flags: int) -> int:
    return raw("mmap", 0, PAGE, 3, flags, -1, 0)


def _try_mapping_of_every_other_kind() -> object:
    allowed = 0x3F | 0x800 | 0x4000 | 0x8000 | 0x20000 | 0x100000
    kinds = [*(0x20 | kind for kind in (0, *range(3, 16))), *(PRIVATE | bit for bit in _bits(64, allowed))]
    return _answered(kinds, _map)


def _try_every_other_protection() -> object:
    place = _place()
    bits = _bits(64, 7 | 0x10 | 0x1000000)
    return _answered(bits, lambda bit: raw("mprotect", place, PAGE, bit))


def _try_move_onto_a_place() -> object:
    """Over other memory, or with the old place left behind, which the limit of data would count once."""
    place, target = _place(), _place()
    return _answered([2, 3, 4, 5, 7, HIGH | 1], lambda flags: raw("mremap", place, PAGE, PAGE, flags, target))


def _try_every_other_advice() -> object:
    place = _place()
    allowed = {0, 1, 2, 3, 4, 8, 14, 15, 16, 17, 102, 103}
    numbers = [*(value for value in range(128) if value not in allowed), 1 << 31, 0xFFFF_FFFF]
    return _answered(numbers, lambda advice: raw("madvise", place, PAGE, advice))


def _try_pages_of_the_cache() -> object:
    """The newer call that says how much of a file is in the machine's cache."""
    file = os.open(os.__file__, os.O_RDONLY)
    return numbered(451, 451, file, _room(), _room(), 0)


# -- itself -------------------------------------------------------------------------------------------
def _try_every_other_control() -> object:
    special = [0x59616D61, 0x53564D41, 0x4D444D41, 1 << 31, HIGH | 4]
    options = [*(option for option in range(100) if option not in {15, 16}), *special]
    return _answered(options, lambda option: raw("prctl", option, 1, 0, 0, 0))


def _try_every_base_register() -> object:
    options = [*range(0x1000, 0x1030), *range(0x2000, 0x2010), *range(0x3000, 0x3008), *range(0x4000, 0x4006)]
    return _answered(options, lambda option: numbered(158, -1, option, _room()))


def _try_signal_by_high_numbers() -> object:
    """Numbers of which the low half is not its own; the kernel looks at that alone."""
    numbers = [0, -1, -2, 1 << 31, 0x8000_0001, SIGN, HIGH | number("victim"), SIGN | 0xFFFF_FFFF]
    return _answered(numbers, lambda pid: raw("kill", pid, 0))


def _try_signal_thread_elsewhere() -> object:
    """Threads of others by number, in its own process: the kernel looks for them there alone."""
    own = threading.get_native_id()
    others = [tid for tid in (*range(2, 300), number("victim"), number("node")) if tid != own]
    for tid in others:
        with contextlib.suppress(ProcessLookupError):
            raw("tgkill", os.getpid(), tid, 0)
            return tid
    raise NothingFoundError


def _try_limit_by_high_pointer() -> object:
    """A pointer to new limits with a low half of 0."""
    return raw("prlimit64", 0, 7, HIGH, 0)


def _try_resume_nothing() -> object:
    return raw("restart_syscall")


# -- descriptors --------------------------------------------------------------------------------------
def _try_every_other_command() -> object:
    """Owners, signals, leases, watches, seals, hints, sizes of pipes: of each descriptor that it has."""
    allowed = {0, 1, 2, 3, 4, 5, 6, 7, 1030, 1034}
    commands = [command for command in (*range(64), *range(1024, 1060)) if command not in allowed]
    commands += [HIGH | 8, 1 << 31, 0xFFFF_FFFF]

    def on_each(command: int) -> None:
        refused = 0
        for descriptor in range(4):
            try:
                raw("fcntl", descriptor, command, 1)
            except OSError as error:
                refused += error.errno in REFUSALS
        if refused == 4:
            raise PermissionError(errno.EPERM, "on each")

    return _answered(commands, on_each)


def _try_every_request_of_files_and_sockets() -> object:
    """Owners, groups, sessions, flags of files, copies of extents, sizes, a descriptor of a socket's path."""
    requests = [0x5452, 0x8901, 0x8902, 0x8903, 0x8904, 0x5410, 0x540F, 0x5429, 0x5411, 0x5460, 0x1, 0x2]
    requests += [0x80086601, 0x40086602, 0x801C581F, 0x40049409, 0xC0189436, 0x89E0, 0x8906, 0x8907]
    requests += [0x40088A01, 0x80088A02, 0xB701, 0xB702, 0xB704, 0x82187201, 0xC0502100, 0xC0182101]
    requests += [*range(0x8910, 0x8960), SIGN | 0x8901, HIGH | 0x5452]
    return _answered(requests, lambda request: raw("ioctl", 3, request, _room()))


def _try_every_other_option_of_a_socket() -> object:
    size = _room()
    ctypes.c_uint.from_address(size).value = 64
    allowed = {(1, option) for option in (3, 4, 7, 8, 30, 38, 39)}
    pairs = [
        (level, option)
        for level in (0, 1, 6, 17, 41, 263, 270, 281, HIGH, SIGN | 1)
        for option in range(100)
        if (level & 0xFFFF_FFFF, option) not in allowed
    ]
    asked = _answered(range(len(pairs)), lambda at: raw("getsockopt", 3, *pairs[at], _room(), size))
    return [pairs[at] for at in asked] if isinstance(asked, list) else asked


def _try_set_every_option_of_a_socket() -> object:
    """Credentials with each message, filters, devices, marks, busy polling, zero copies, time limits."""
    value = _room()
    options = [option for option in range(100) if option not in {7, 8}]
    return _answered(options, lambda option: raw("setsockopt", 3, 1, option, value, 4))


def _try_more_room_in_a_socket() -> object:
    """The call returns success, and the room stays as it was."""
    with socket.socketpair()[0] as pair:
        before = pair.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        pair.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        return "more" if pair.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) != before else "same"


def _try_send_with_every_flag() -> object:
    with socket.socketpair()[0] as pair:
        bits = _bits(32, 0x40 | 0x4000)
        return _answered(bits, lambda bit: raw("sendto", pair.fileno(), b"x", 1, bit, 0, 0))


def _try_send_to_high_address() -> object:
    """An address with a low half of 0."""
    return raw("sendto", 3, b"", 0, 0, HIGH, 16)


def _try_receive_with_every_flag() -> object:
    with socket.socketpair()[0] as pair:
        bits = _bits(32, 2 | 0x40 | 0x100 | 0x4000 | 0x40000000)
        return _answered(bits, lambda bit: raw("recvfrom", pair.fileno(), _room(), 1, bit | 0x40, 0, 0))


def _try_forge_credentials() -> object:
    """Words of another process to the node: control data with its number."""
    with socket.socket(fileno=os.dup(3)) as own:
        forged = struct.pack("3i", number("node"), 0, 0)
        return own.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, forged)])


def _try_pair_of_every_kind() -> object:
    kinds = [*range(2, 11), 1 | 0x10, HIGH | 5, 2 | 0o4000]
    return _answered(kinds, lambda kind: raw("socketpair", 1, kind, 0, _room()))


def _try_pipe_of_every_kind() -> object:
    bits = _bits(32, os.O_CLOEXEC | os.O_NONBLOCK)
    return _answered(bits, lambda bit: raw("pipe2", _room(), bit))


def _try_queue_that_watches_itself() -> object:
    import select

    first, second = select.epoll(), select.epoll()
    first.register(second.fileno(), select.EPOLLIN)
    second.register(first.fileno(), select.EPOLLIN)
    return "watched"


def _try_queues_for_signals_and_timers() -> object:
    """signalfd4, timerfd_create, timer_create with a thread's number, fanotify_mark, inotify_add_watch."""
    calls = [(289, 74), (283, 85), (222, 107), (301, 263), (254, 27), (282, -1), (286, 86)]
    return _answered(range(len(calls)), lambda at: numbered(*calls[at], 0, _room(), _room(), 8))


# -- clocks and files ---------------------------------------------------------------------------------
def _try_every_other_clock() -> object:
    """Clocks that wake the machine, of devices, of processes; none of these sleeps."""
    clocks = [8, 9, 10, *range(12, 64), *range(-64, 0), 1 << 31, HIGH | 8, SIGN | 8]
    return _answered(clocks, lambda clock: raw("clock_nanosleep", clock, 1, _room(), 0))


def _try_every_other_status() -> object:
    """The mount of a file, its alignment for a disk, its volume; and waiting for a server of files."""
    place = os.__file__.encode() + b"\0"
    bits = _bits(32, 0xFFF)
    masks = _answered_or_none(bits, lambda bit: raw("statx", -100, place, 0, bit, _room()))
    flags = _bits(32, 0x100 | 0x800 | 0x1000)
    return masks or _answered(flags, lambda bit: raw("statx", -100, place, bit, 0x7FF, _room()))


def _answered_or_none(values: Iterable[int], call: Callable[[int], object]) -> object:
    try:
        return _answered(values, call)
    except NothingFoundError:
        return None


def _try_every_other_way_to_open() -> object:
    """Bare handles, unnamed files, signals, times that stay, and waiting for a disk."""
    place = os.__file__.encode() + b"\0"
    allowed = os.O_ACCMODE | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOCTTY
    allowed |= os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_APPEND | 0o100000 | 0o400000 * (_arm())
    bits = [*_bits(32, allowed), 3, 0o20000000 | os.O_DIRECTORY]
    return _answered(bits, lambda bit: raw("openat", -100, place, bit, 0))


def _arm() -> bool:
    return os.uname().machine == "aarch64"


def _try_file_with_another_owners_rights() -> object:
    """A file that would run as its owner, or keep its group: at its creation, and afterwards."""
    special = [0o4755, 0o2755, 0o1755, 0o6000]
    os.close(os.open("mine", os.O_CREAT | os.O_WRONLY, 0o600))
    changed = _answered_or_none(special, lambda mode: raw("chmod", b"mine\0", mode))
    return changed or _answered(special, lambda mode: raw("openat", -100, b"new\0", os.O_CREAT | 1, mode))


def _try_race_with_a_path() -> object:
    """A path that another thread changes while the kernel reads it: the library, or a file outside."""
    inside, outside = os.__file__.encode(), b"/etc/passwd"
    path = ctypes.create_string_buffer(max(len(inside), len(outside)) + 1)
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for name in (outside, inside):
                ctypes.memmove(path, name + b"\0", len(name) + 1)

    changing = threading.Thread(target=change)
    changing.start()
    wanted, opened = os.stat(inside), []  # noqa: PTH116 - the same call as below
    try:
        for _ in range(RACES):
            try:
                descriptor = raw("openat", -100, ctypes.addressof(path), os.O_RDONLY, 0)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EISDIR}:
                    continue
                raise
            if not os.path.samestat(os.fstat(descriptor), wanted):
                opened.append(os.fstat(descriptor).st_ino)
            os.close(descriptor)
    finally:
        over.set()
        changing.join()
    if not opened:
        raise NothingFoundError
    return opened


# -- numbers of calls ---------------------------------------------------------------------------------
def _try_x32_numbers_without_the_bit() -> object:
    """512 to 547 are calls of the x32 ABI, which old kernels made without its bit."""
    return _answered(range(512, 548), lambda call: numbered(call, call, 0, 0, 0, 0))


def _try_newest_calls() -> object:
    """Every call from 434 on that does not end the task: handles, futexes, mounts, attributes, modules."""
    ending = {438, 440, 442, 443}
    return _answered(
        [call for call in range(434, 600) if call not in ending],
        lambda call: numbered(call, call, _room(), 0, 0, _room()),
    )


def _try_go_to_32_bits() -> object:
    """Jump into a segment of 32 bits, and make a harmless call there by its number: 20, getpid."""
    if os.uname().machine != "x86_64":
        raise NothingFoundError
    low, fixed, limit32 = 0x1000_0000, 0x10, 0x23
    place = checked(libc.mmap(low, 2 * PAGE, 7, PRIVATE | fixed, -1, 0))
    # In 64 bits: keep the stack, take one below 4 GiB, and return far to 32 bits.
    start = b"\x48\xbc" + struct.pack("<Q", place + 2 * PAGE - 64)
    start += b"\x6a" + bytes([limit32]) + b"\x68" + struct.pack("<I", place + 256) + b"\x48\xcb"
    ctypes.memmove(place, start, len(start))
    # In 32 bits: mov eax, 20; int 0x80; then an instruction that is none.
    ctypes.memmove(place + 256, b"\xb8\x14\x00\x00\x00\xcd\x80\x0f\x0b", 9)
    return ctypes.CFUNCTYPE(ctypes.c_int)(place)()


def _try_own_death_by_its_filter() -> object:
    """Who ignores the filter's signal in another thread dies of it as well."""
    signal.signal(signal.SIGSYS, signal.SIG_IGN)
    attacker = threading.Thread(target=raw, args=("ptrace", 0, 0, 0, 0))
    attacker.start()
    attacker.join()
    return "alive"


def _try_lock_by_every_command() -> object:
    """Locks for others to wait for: success is told, and nothing is locked."""
    file = os.open("locked", os.O_CREAT | os.O_RDWR, 0o600)
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    fcntl.fcntl(file, fcntl.F_SETLK, whole)
    kind, *_ = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, whole))
    return "free" if kind == fcntl.F_UNLCK else "locked"
