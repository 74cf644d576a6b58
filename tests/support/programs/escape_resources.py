"""Hostile programs of the escape suite that want all there is of something; ``attempt_of`` returns each.

Not for: anything but ``escape.Cage``, which runs them and knows what must come of each.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable

from escape_tools import checked, libc

import dios
from dios.errors import DiosError
from dios.wire import messages
from dios.wire.codec import encode_request
from dios.wire.messages import AnyCall
from dios.wire.types import Flag

OWN = 3
BLOCK = 1 << 20
SECONDS = 0.4
"""How long a storm lasts."""

SMALL_STACK = 1 << 17
"""So that it is their number that ends threads, and not their memory."""

NAMES_IN_VAIN = 600_000
WAIT_S = 10.0
FIRST_SEQUENCE = 1 << 20
"""Numbers of raw calls, which the client of the task does not use."""


def _own() -> socket.socket:
    return socket.socket(fileno=os.dup(OWN))


def _storm() -> Callable[[], bool]:
    """Whether a storm still lasts."""
    end = time.monotonic() + SECONDS
    return lambda: time.monotonic() < end


def _until_refused(take: Callable[[], object]) -> int:
    """Take until it is refused; the refusal is raised, with how many there were lost on the way."""
    kept = []
    while True:
        kept.append(take())


def _frame(call: AnyCall, sequence: int = FIRST_SEQUENCE) -> bytes:
    return encode_request(sequence, call)


# -- memory -------------------------------------------------------------------------------------------
def _try_mapped_memory_bomb() -> object:
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return _until_refused(lambda: mmap.mmap(-1, BLOCK, flags=private))


def _try_memory_without_a_reserve() -> object:
    """Memory that the kernel promises without keeping it: the limit counts the promise."""
    no_reserve = 0x4000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return checked(libc.mmap(None, 1 << 40, 3, flags, -1, 0))


def _try_shared_memory_bomb() -> object:
    """Memory that no limit of a process counts: a control group does, or the call is refused."""
    taken = []
    for _ in range(1024):
        memory = mmap.mmap(-1, BLOCK, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        memory[:] = b"x" * BLOCK
        taken.append(memory)
    return len(taken)


def _try_stack_bomb() -> object:
    """Threads that ask for more stack than there is memory."""
    threading.stack_size(1 << 30)
    return _until_refused(lambda: threading.Thread(target=signal.pause, daemon=True).start())


def _try_deep_recursion() -> object:
    def down() -> object:
        return down()

    return down()


def _try_deep_recursion_in_c() -> object:
    """Calls from C to C and back until the stack is used up."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int)

    def down() -> int:
        return int(kind(down)())

    import sys

    sys.setrecursionlimit(1 << 30)
    return down()


def _try_names_in_vain() -> object:
    """Names that do not exist, for each of which the kernel keeps an entry."""
    place = f"{os.path.dirname(os.__file__)}/{os.urandom(6).hex()}{'x' * 190}"  # noqa: PTH120 - a million of them
    for number in range(NAMES_IN_VAIN):
        with contextlib.suppress(OSError):
            os.stat(f"{place}{number}")  # noqa: PTH116 - the same
    return NAMES_IN_VAIN


def _try_protect_many_pages() -> object:
    """As many mappings as can be had: each second page with other rights."""
    size = mmap.PAGESIZE * 200_000
    place = checked(libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))
    for page in range(0, 200_000, 2):
        address = ctypes.c_void_p(place + page * mmap.PAGESIZE)
        checked(libc.mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), 1))
    return "all"


# -- processor, threads, descriptors ------------------------------------------------------------------
def _try_burn() -> object:
    while True:
        pass


def _try_burn_in_threads() -> object:
    for _ in range(4):
        threading.Thread(target=_try_burn, daemon=True).start()
    return _try_burn()


def _try_thread_bomb() -> object:
    # Not ``Thread.start``, which waits for ever for a thread that has no memory to begin.
    _thread.stack_size(SMALL_STACK)
    return _until_refused(lambda: _thread.start_new_thread(signal.pause, ()))


def _try_pipe_bomb() -> object:
    """Pipes hold memory of the kernel's: each is filled."""

    def fill() -> tuple[int, int]:
        read_end, write_end = os.pipe2(os.O_NONBLOCK)
        os.write(write_end, bytes(65536))
        return read_end, write_end

    return _until_refused(fill)


def _try_event_bomb() -> object:
    import select

    return _until_refused(select.epoll)


def _try_socket_pair_bomb() -> object:
    def fill() -> tuple[socket.socket, socket.socket]:
        pair = socket.socketpair()
        pair[0].setblocking(False)
        try:
            while True:
                pair[0].send(bytes(65536))
        except BlockingIOError:
            return pair

    return _until_refused(fill)


def _try_futex_storm() -> object:
    threading.stack_size(SMALL_STACK)
    lasts, lock = _storm(), threading.Lock()

    def fight() -> None:
        while lasts():
            with lock:
                pass

    fighters = [threading.Thread(target=fight) for _ in range(16)]
    for fighter in fighters:
        fighter.start()
    for fighter in fighters:
        fighter.join()
    return "over"


def _try_signal_storm() -> object:
    lasts = _storm()
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    while lasts():
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    return "over"


def _try_yield_storm() -> object:
    lasts = _storm()
    while lasts():
        os.sched_yield()
    return "over"


# -- the socket ---------------------------------------------------------------------------------------
def _flood(blocks: list[bytes]) -> object:
    """Send until the node has had enough."""
    with _own() as own:
        own.settimeout(WAIT_S)
        try:
            for block in itertools.cycle(blocks):
                own.sendall(block)
        except (BrokenPipeError, ConnectionResetError):
            raise OSError(errno.ECONNRESET, "the node hung up") from None
    return "never"


def _try_endless_frame() -> object:
    """A frame that is promised as long as may be, and comes a byte at a time."""
    with _own() as own:
        own.send(struct.pack("<I", 65536))
        lasts = _storm()
        while lasts():
            own.send(b"\x90")
    return "over"


def _try_deep_frame() -> object:
    body = b"\x91" * 200_000
    return _flood([struct.pack("<I", len(body)) + body])


def _try_wide_frame() -> object:
    """An array of four thousand million members, of which none comes."""
    body = b"\x92\x01\xdd\xff\xff\xff\xff"
    return _flood([struct.pack("<I", len(body)) + body])


def _try_giant_vector() -> object:
    stat = messages.Stat(dios.connect().self.ref)
    return _flood([_frame(messages.Vector((stat,) * 1025))])


def _try_flood_with_calls() -> object:
    """Lawful calls, pipelined, with the replies read: nothing to be refused, and others must be served."""
    frame = _frame(messages.Stat(dios.connect().self.ref)) * 64
    lasts = _storm()
    with _own() as own:
        own.setblocking(False)
        while lasts():
            try:
                own.send(frame)
                own.recv(BLOCK)
            except BlockingIOError:
                continue
    return "over"


def _try_never_read_replies() -> object:
    """Ask for replies a thousand times larger than the calls, and read none."""
    node = dios.connect()
    blob = node.create(dios.SHMEM_BLOB, data=bytes(32_000), naming=dios.ANONYMOUS)
    frame = _frame(messages.ReadOnce(blob.ref)) * 64
    with _own() as own:
        own.settimeout(SECONDS)
        try:
            while True:
                own.sendall(frame)
        except TimeoutError:
            raise OSError(errno.EAGAIN, "the node does not read on") from None
        except (BrokenPipeError, ConnectionResetError):
            raise OSError(errno.ECONNRESET, "the node hung up") from None


def _try_wait_without_end() -> object:
    """As many waiting calls as may be, and then one more."""
    ref = dios.connect().self.ref
    with _own() as own:
        for number in range(300):
            own.sendall(_frame(messages.Select((ref,)), FIRST_SEQUENCE + number))
        own.settimeout(WAIT_S)
        answer = own.recv(4096)
    # Nobody else answers: whatever comes first is the refusal of the call that was too many.
    return "refused" if answer else "hung up"


# -- what the node holds ------------------------------------------------------------------------------
def _refusal(answers: list[object]) -> DiosError | None:
    return next((answer for answer in answers if isinstance(answer, DiosError)), None)


def _fill(calls: list[messages.PlainCall]) -> object:
    """Make calls by the hundred until one is refused, and raise its refusal."""
    node = dios.connect()
    for _ in range(1000):
        refused = _refusal(list(node.vector(calls)))
        if refused is not None:
            raise refused
    return "never"


def _try_every_reference() -> object:
    call = messages.Create(dios.ObjectType.SHMEM_BLOB, name_kind=dios.ANONYMOUS, data=b"x")
    return _fill([call] * 512)


def _try_every_buffer() -> object:
    node = dios.connect()
    blob = node.create(dios.SHMEM_BLOB, data=b"x", naming=dios.ANONYMOUS)
    return _fill([messages.AcquireWrite(blob.ref, 64, 0, flags=int(Flag.BLANK))] * 512)


def _try_every_large_buffer() -> object:
    """Buffers of shared memory, each with a descriptor and a mapping of the node's."""
    node = dios.connect()
    blob = node.create(dios.SHMEM_BLOB, data=b"x", naming=dios.ANONYMOUS)
    return _until_refused(lambda: blob.write(BLOCK, dios.ANY))


def _try_every_stream() -> object:
    """Streams, each attached at one end, so that the node has a ring for it."""
    node = dios.connect()

    def attached() -> object:
        stream = node.create_stream(ring_bytes=4096)
        stream.writer.close()
        return stream

    return _until_refused(attached)


def _try_giant_blob() -> object:
    node = dios.connect()
    blob = node.create(dios.SHMEM_BLOB, data=b"x", naming=dios.ANONYMOUS)
    return dios.syscalls.acquire_write(node, blob.ref, 1 << 50)


def _try_flood_the_console() -> object:
    for _ in range(1000):
        os.write(1, b"x" * 65535 + b"\n")
    return "over"


def _try_flood_the_audit_log() -> object:
    """Refused calls leave records: a thousand names that nobody has, again and again."""
    node = dios.connect()
    lasts = _storm()
    while lasts():
        node.vector([messages.Stat(number) for number in range(1, 257)])
    return "over"


def _try_task_bomb() -> object:
    """Tasks until no more can be had; they are ended again, so that others can have some."""
    node = dios.connect()
    program = node.create_program(b"import dios; dios.connect().next_event()")
    children: list[dios.Task] = []

    def start() -> None:
        children.append(node.run(program))

    try:
        return _until_refused(start)
    finally:
        for child in children:
            child.kill()


SHORT_ATTEMPTS: dict[str, Callable[[], object]] = {
    # memory
    "memory_bomb": lambda: _until_refused(lambda: bytearray(BLOCK)),
    "one_giant_mapping": lambda: mmap.mmap(-1, 1 << 42, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
    # processor, threads, descriptors
    "descriptor_bomb": lambda: _until_refused(lambda: os.dup(OWN)),
    # the socket
    "flood_with_rubbish": lambda: _flood([os.urandom(65536)]),
    "flood_with_zeroes": lambda: _flood([bytes(65536)]),
    "giant_frame": lambda: _flood([struct.pack("<I", (1 << 32) - 1)]),
}
"""The attempts that are one expression; each other one is a function ``_try_NAME``."""
