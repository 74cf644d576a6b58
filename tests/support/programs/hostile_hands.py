"""Inside the task: a hostile program that plays, by seed, with everything that it really holds.

It holds the ends of its own streams and of one that it shares with another task, buffers that it may write or
only read, its console, and its socket. Nothing here judges what comes of it (``hostile_hands_rig`` does that
outside).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
import socket
import struct
import sys
import termios
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType
from typing import Final, cast

import dios
from dios.client.sync.connection import Connection
from dios.client.sync.node import ambient
from dios.transport.unix.client import ClientChannel
from dios.wire import messages
from dios.wire.codec import decode_reply, encode_request
from dios.wire.types import Flag, Mode, ObjectType

OWN: Final = 3
WAIT_S: Final = 10.0
STUCK_S: Final = 0.05
RING_BYTES: Final = 64 * 1024
LARGE: Final = 100_000
SEQ_FIRST: Final = 1 << 20
WORDS: Final = (0, 1, 2, 63, 2**16, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
PLACES: Final = (*range(24), 8, 16, 511, 512)
FLAGS: Final = (
    0,
    os.O_APPEND,
    os.O_NONBLOCK,
    os.O_APPEND | os.O_NONBLOCK,
    os.O_ASYNC,
    os.O_DIRECT,
    os.O_NOATIME,
)
MADVISE: Final = (0, 3, 4, 8, 9, 10, 12, 14, 21)

libc: Final = ctypes.CDLL(None, use_errno=True)


class StuckError(BaseException):
    """An act of the task itself took too long."""


@contextlib.contextmanager
def hurried(seconds: float = STUCK_S) -> Iterator[None]:
    """Interrupt what this task does in a context after a moment."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise StuckError

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Hands:
    """What the task holds, and what it can do with it."""

    def __init__(self, seed: int, channel: ClientChannel) -> None:
        self.rng: Final = Random(seed)  # noqa: S311 - repeatable, nothing secret
        self.channel: Final = channel
        self.views: Final[list[mmap.mmap]] = []
        self.refs: Final[list[int]] = []
        self.fds: Final[list[int]] = []
        self._seq = SEQ_FIRST
        self._racing = True

    # -- calls ------------------------------------------------------------------------------------
    def call(self, call: messages.AnyCall) -> messages.AnyResult:
        """Make a call and keep every descriptor that comes."""
        self._seq += 1
        self.channel.send(encode_request(self._seq, call))
        while True:
            body, came = self.channel.receive(WAIT_S)
            self.fds.extend(came)
            reply = decode_reply(body)
            if reply.seq == self._seq:
                return reply.result

    def take_everything(self, welcome: messages.Welcome) -> None:
        """Attach streams and acquire buffers, own ones and those that were handed over."""
        for given, mode in (
            *((reference, Mode.READ) for reference in welcome.inputs),
            *((reference, Mode.WRITE) for reference in welcome.outputs),
        ):
            self.refs.append(given.ref)
            if given.type is ObjectType.SHMEM_STREAM:
                self.call(messages.Attach(given.ref, mode))
            else:
                self.call(messages.AcquireRead(given.ref))
        for _ in range(2):
            created = self.call(messages.Create(ObjectType.SHMEM_STREAM, size=RING_BYTES))
            if isinstance(created, messages.Created):
                self.refs.append(created.reference.ref)
                for mode in Mode:
                    self.call(messages.Attach(created.reference.ref, mode))
        for kind in (ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB):
            created = self.call(messages.Create(kind))
            if isinstance(created, messages.Created):
                ref = created.reference.ref
                self.refs.append(ref)
                self.call(messages.WriteOnce(ref, b"w" * 30_000))
                self.call(messages.AcquireRead(ref))
                self.call(messages.AcquireWrite(ref, LARGE, flags=int(Flag.BLANK)))

    def any_fd(self) -> int:
        """Return one of its descriptors."""
        return self.rng.choice(self.fds) if self.fds else OWN

    # -- wake-ups -----------------------------------------------------------------------------------
    def fill(self) -> None:
        """Wake an end without a reason, once or until there is no room for another wake-up."""
        fd, data = (
            self.any_fd(),
            self.rng.choice((b"x", bytes(8), struct.pack("=Q", 2**64 - 2), bytes(4_096))),
        )
        with hurried():
            for _ in range(self.rng.choice((1, 2, 1_000))):
                os.write(fd, data)

    def drain(self) -> None:
        """Take a wake-up that was for another, or for nobody."""
        with hurried():
            os.read(self.any_fd(), self.rng.choice((1, 8, 4_096)))

    def hang_up(self) -> None:
        """Shut down the wake-ups of an end in one direction or both."""
        with socket.socket(fileno=os.dup(self.any_fd())) as sock:
            sock.shutdown(self.rng.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))

    # -- flags of open files ----------------------------------------------------------------------
    def set_flags(self) -> None:
        """Change the status flags of an open file: whether it blocks, and where writes go."""
        fcntl.fcntl(self.any_fd(), fcntl.F_SETFL, self.rng.choice(FLAGS))

    def block(self) -> None:
        """Make an open file block, by one of two ways, and fill it."""
        fd = self.any_fd()
        if self.rng.random() < 0.5:
            os.set_blocking(fd, True)
        else:
            fcntl.ioctl(fd, termios.FIONBIO, struct.pack("=i", 0))
        with hurried():
            for _ in range(1_000):
                os.write(fd, struct.pack("=Q", 2**64 - 2) * 64)

    def hand_over(self) -> None:
        """Send descriptors through a socket, to the node, to another end, or round in a circle."""
        fds = array("i", [self.any_fd() for _ in range(self.rng.choice((1, 2, 250)))])
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds.tobytes())]
        to = self.rng.choice((OWN, self.any_fd()))
        with socket.socket(fileno=os.dup(to)) as sock, hurried():
            sock.sendmsg([b"x"], beside)

    def duplicate(self) -> None:
        """Have many descriptors of one open file, and close some of them."""
        fd = self.any_fd()
        copies = [os.dup(fd) for _ in range(self.rng.choice((1, 20)))]
        for copy in copies[:: self.rng.choice((1, 2))]:
            os.close(copy)

    def close_some(self) -> None:
        """Close one of its own ends."""
        if len(self.fds) > 4:
            fd = self.fds.pop(self.rng.randrange(len(self.fds)))
            os.close(fd)

    # -- memory -----------------------------------------------------------------------------------
    def map_some(self) -> None:
        """Map a descriptor for writing, where that is possible."""
        fd = self.any_fd()
        size = self.rng.choice((4096, 4096, 8192, 4096 + RING_BYTES))
        with contextlib.suppress(OSError, ValueError):
            mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self.views.append(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))

    def write_words(self) -> None:
        """Write numbers over control words, whole ones and halves, again and again."""
        view = self.rng.choice(self.views)
        for _ in range(self.rng.choice((1, 8, 200))):
            place = self.rng.choice(PLACES) * 8
            word = struct.pack("=Q", self.rng.choice((*WORDS, self.rng.getrandbits(64))))
            torn = self.rng.choice((8, 8, 4, 1))
            view[place : place + torn] = word[:torn]

    def swap_words(self) -> None:
        """Copy a control word over another one."""
        view = self.rng.choice(self.views)
        offset, other = (self.rng.choice((0, 8, 16)) * 8 for _ in range(2))
        view[offset : offset + 8] = view[other : other + 8]

    def race(self) -> None:
        """Let a thread change control words for as long as the task lives."""
        view, seed = self.rng.choice(self.views), self.rng.getrandbits(32)

        def run() -> None:
            rng = Random(seed)  # noqa: S311 - the same
            with contextlib.suppress(Exception):
                while self._racing:
                    place = rng.choice((0, 0, 8, 8, 16)) * 8
                    torn = rng.choice((8, 4))
                    view[place : place + torn] = struct.pack("=Q", rng.choice(WORDS))[:torn]
                    time.sleep(rng.choice((0, 0, 0.0001)))

        threading.Thread(target=run, daemon=True).start()

    def advise(self) -> None:
        """Give back, poison or populate pages of a mapping."""
        view = self.rng.choice(self.views)
        view.madvise(self.rng.choice(MADVISE), 0, 4096)

    def resize(self) -> None:
        """Cut a memory, let it grow, or punch a hole in it."""
        fd, size = self.any_fd(), self.rng.choice((0, 1, 4096, 2**31, 2**40))
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
        libc.fallocate(fd, self.rng.choice((0, 1, 3, 16)), 0, ctypes.c_long(max(1, size)))

    def write_at(self) -> None:
        """Write bytes by the descriptor, at its place or at the end."""
        fd = self.any_fd()
        with hurried():
            os.pwrite(fd, self.rng.randbytes(64), self.rng.choice((0, 64, 4096, 8192, 2**31)))

    # -- the socket -------------------------------------------------------------------------------
    def half_a_frame(self) -> None:
        """Send the beginning of a frame; what follows completes it to nonsense."""
        frame = encode_request(1, messages.Stat(1))
        os.write(OWN, frame[: self.rng.randrange(1, len(frame))])

    def drip(self) -> None:
        """Send a frame byte by byte."""
        self._seq += 1
        for byte in encode_request(self._seq, messages.Stat(self.rng.choice(self.refs or [1]))):
            os.write(OWN, bytes([byte]))

    def flood(self) -> None:
        """Make calls and read no answer."""
        sock = socket.socket(fileno=os.dup(OWN))
        sock.setblocking(False)
        frame = b"".join(encode_request(9, messages.ReadOnce(ref)) for ref in self.refs) * 20
        with contextlib.suppress(BlockingIOError):
            for _ in range(self.rng.choice((1, 50))):
                sock.send(frame)
        sock.close()

    def shut(self) -> None:
        """Shut down one direction of the socket."""
        with socket.socket(fileno=os.dup(OWN)) as sock:
            sock.shutdown(self.rng.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))

    def narrow(self) -> None:
        """Make the buffers of the socket as small as possible, or as large."""
        with socket.socket(fileno=os.dup(OWN)) as sock:
            option = self.rng.choice((socket.SO_SNDBUF, socket.SO_RCVBUF))
            sock.setsockopt(socket.SOL_SOCKET, option, self.rng.choice((0, 1, 2**30)))

    def use(self) -> None:
        """Make a call on one of the objects whose memory it has spoiled."""
        ref = self.rng.choice(self.refs)
        soon = int(Flag.NON_BLOCKING)
        self.call(
            self.rng.choice(
                (
                    messages.Stat(ref),
                    messages.ReadOnce(ref, flags=soon),
                    messages.WriteOnce(ref, b"x", flags=soon),
                    messages.Attach(ref, self.rng.choice(list(Mode)), flags=soon),
                    messages.AcquireWrite(ref, LARGE, flags=soon),
                    messages.Select((ref,), self.rng.choice(list(Mode)), 0),
                    messages.Delete(ref) if self.rng.random() < 0.1 else messages.Stat(ref),
                )
            )
        )

    # -- ends -------------------------------------------------------------------------------------
    def end(self) -> None:
        """End at a moment that suits nobody."""
        ends: tuple[tuple[Callable[[], object], ...], ...] = (
            (),
            (lambda: os._exit(3),),
            (os.abort,),
            (lambda: ctypes.string_at(0),),
            (self.half_a_frame, lambda: os._exit(0)),
            (lambda: os.close(OWN), lambda: time.sleep(0.2)),
            (self.flood, lambda: os._exit(4)),
            (self.race, lambda: time.sleep(0.05), lambda: os._exit(5)),
            (lambda: os.kill(os.getpid(), signal.SIGSTOP),),
            (threading.Thread(target=time.sleep, args=(60,)).start,),
            (lambda: sys.exit("an end with words\x1b[2J"),),
        )
        for step in self.rng.choice(ends):
            step()


ACTS: Final[dict[str, tuple[str, ...]]] = {
    "wakeups": ("fill", "fill", "drain", "block", "hang_up", "use"),
    "flags": ("set_flags", "block", "duplicate", "fill", "write_at", "close_some", "use"),
    "counters": ("map_some", "write_words", "write_words", "swap_words", "race", "use"),
    "memory": ("map_some", "resize", "advise", "write_at", "write_words", "use"),
    "socket": ("drip", "flood", "narrow", "hand_over", "use", "fill"),
    "frames": ("half_a_frame", "drip", "use"),
    "ends": ("shut", "flood", "half_a_frame"),
    "all": (
        *(
            "fill",
            "drain",
            "block",
            "hang_up",
            "hand_over",
            "set_flags",
            "duplicate",
            "close_some",
            "map_some",
            "write_words",
            "swap_words",
        ),
        *("race", "advise", "resize", "write_at", "drip", "flood", "narrow", "use", "use"),
    ),
}
"""The plays: what each of them does, in an order and a number that the seed decides."""


def main(play: str, seed: int, steps: int) -> None:
    """Play; how it ends is part of it."""
    node = dios.connect()
    inside = ambient()
    assert inside is not None
    hands = Hands(seed, cast("ClientChannel", cast("Connection", node.link)._channel))
    hands.take_everything(inside[1])
    for act in ["map_some"] * len(hands.fds) + [hands.rng.choice(ACTS[play]) for _ in range(steps)]:
        # Acts on the wrong sort of descriptor fail, and so does everything after the end of the connection.
        with contextlib.suppress(Exception, StuckError):
            cast("Callable[[], None]", getattr(hands, act))()
    hands.end()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
