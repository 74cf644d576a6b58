"""Attackers: connections to a node that send frames in every way that a socket allows.

The frames are made in ``frames``, the checks are in ``campaign``. One thread drives many attackers in steps,
so that the random generator alone decides what happens next.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, Self

from dios import limits
from dios.errors import ProtocolError
from dios.transport.unix.path import socket_address
from dios.wire import messages
from dios.wire.codec import FrameSplitter, decode_reply
from tests.fuzz.bending import Bent
from tests.fuzz.frames import BURST_SEQUENCE, Frames, framed
from tests.fuzz.known import Known
from tests.fuzz.story import Story

STRANGER_UID: Final = 65_531
ANSWER_S: Final = 20.0
PATIENCE_S: Final = 0.05
_LENGTH: Final = struct.Struct("<I")

MANNERS: Final = (
    *["plain"] * 8,
    *["bent"] * 8,
    *["choppy"] * 2,
    *("half", "gone", "cut", "deaf", "handing", "rude", "scribbler", "silent"),
)


class StuckError(Exception):
    """An attacker's mark was not answered in time, and its connection was not closed."""


class Told:
    """Values of other principals that attackers get: numbers and names that must be useless to them."""

    def __init__(self, refs: Sequence[int] = (), names: Sequence[bytes] = ()) -> None:
        self.refs: Final = refs
        self.names: Final = names


class Attacker:
    """One connection with its own behaviour, and the values that it has learned."""

    def __init__(self, who: int, rng: Random, path: Path, told: Told, story: Story, *, foreign: bool) -> None:
        self.who: Final = who
        self.manners: Final = rng.choice(MANNERS)
        self.known: Final = Known(told.refs, told.names)
        self.open = True
        self.frames_sent = 0
        self.waiting = False
        self.lost = False
        self._rng: Final = rng
        self._story: Final = story
        self._source: Final = Frames(rng, self.known, grave=foreign)
        self._bent: Final = Bent(rng, self._source)
        self._splitter = FrameSplitter(limits.SEND_QUEUE_BYTES_MAX)
        self._mark = 0
        self._out = bytearray()
        self._hands: Sequence[int] = ()
        self._got = bytearray()
        with acting(foreign=foreign):
            self.sock: Final = connect(path)
        story.add("open", who)
        if self.manners not in {"silent", "rude"}:
            self._put(framed(self._source.hello()))
            self.waiting = self.manners not in {"deaf", "gone", "cut", "half"}

    # -- sending ------------------------------------------------------------------------------------
    def burst(self, count: int) -> None:
        """Send about ``count`` frames in the manner of this attacker."""
        if self.manners == "silent":
            return
        good = self._source.good
        if self.manners == "rude" and not self.frames_sent:
            # Without a Hello, with an invalid one, or with a second one.
            first = self._rng.choice((b"", framed(self._source.hello()) * 2))
            self._put(first, frames=2 if first else 0)
        self._put(b"".join([framed(good()) for _ in range(count)]), frames=count)
        self.lost = self.manners in {"bent", "rude"} and self._rng.random() < 0.5
        if self.lost:
            self._put(self._bent.frame())
            self._put(b"".join([framed(good()) for _ in range(2)]), frames=2)
        if self.manners == "cut":
            body = framed(good())
            self._put(body[: 1 + int(self._rng.random() * (len(body) - 1))])
        self.waiting = self.manners not in {"cut", "gone", "deaf"}
        if self.waiting and self.manners != "half":
            self._mark += 1
            self._put(framed(self._source.mark(self._mark)))

    def _put(self, data: bytes, frames: int = 1) -> None:
        self._out += data
        self.frames_sent += frames

    def give_up(self) -> None:
        """Shut down sending: after a wrong length the node may wait for the rest."""
        self.lost = False
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        self._story.add("shut", self.who)

    def flush(self) -> None:
        """Send the data that the socket accepts at once."""
        while self._out and self.open:
            size = len(self._out)
            if self.manners == "choppy":
                size = 1 + int(self._rng.random() * 60)
            try:
                if self.manners == "handing" and self._rng.random() < 0.5:
                    sent = self._hand(bytes(self._out[:size]))
                else:
                    sent = self.sock.send(self._out[:size])
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            self._story.add("send", self.who, bytes(self._out[:sent]))
            del self._out[:sent]
        if self.manners == "half" and self.open:
            self.give_up()
        if self.manners in {"gone", "cut"}:
            self.close()

    def _hand(self, data: bytes) -> int:
        read_end, write_end = os.pipe()
        try:
            fds = array("i", [read_end, write_end, *[read_end] * 30])
            self._story.add("hand", self.who)
            return self.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds.tobytes())])
        finally:
            os.close(read_end)
            os.close(write_end)

    def leaves(self) -> bool:
        """Return True if the attacker disconnects now, as one in ten does after each burst."""
        return self._rng.random() < 0.1

    @property
    def unsent(self) -> bool:
        """Return True if unsent bytes wait for the node to read."""
        return bool(self._out) and self.open

    # -- receiving ----------------------------------------------------------------------------------
    def receive(self) -> None:
        """Receive available data."""
        if self.manners == "deaf":
            return
        try:
            data = self._receive_and_scribble() if self.manners == "scribbler" else self.sock.recv(262_144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._story.add("got", self.who, data)
        for body in self._splitter.feed(data):
            self._learn(body)

    def _learn(self, body: bytes) -> None:
        try:
            reply = decode_reply(body)
        except ProtocolError as error:
            raise AssertionError(f"the node sent what is no reply: {error}") from error
        if isinstance(reply.result, messages.Welcome):
            self.known.welcome(reply.result)
            self.waiting = False
        elif reply.seq >= BURST_SEQUENCE:
            self.waiting = reply.seq != BURST_SEQUENCE + self._mark
        else:
            self._source.answered(reply.seq, reply.result)

    def _receive_and_scribble(self) -> bytes:
        """Receive the descriptors, too, and write to all of them that are writable."""
        data, fds, _, _ = socket.recv_fds(self.sock, 262_144, limits.DESCRIPTORS_PER_FRAME_MAX)
        for fd in fds:
            with contextlib.suppress(OSError, ValueError):
                os.ftruncate(fd, 0)
            with contextlib.suppress(OSError, ValueError), mmap.mmap(fd, mmap.PAGESIZE) as page:
                for place in range(0, mmap.PAGESIZE, 64):
                    page[place : place + 8] = self._rng.randbytes(8)
            with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(fd)) as pair:
                pair.setblocking(True)
                pair.send(self._rng.randbytes(512), socket.MSG_DONTWAIT)
            os.close(fd)
        return data

    def close(self) -> None:
        """Disconnect; unread replies stay unread."""
        if self.open:
            self.open = False
            self.waiting = False
            self._story.add("close", self.who)
            self.sock.close()


@contextlib.contextmanager
def acting(*, foreign: bool) -> Iterator[None]:
    """Act as another user of the machine in this context; it needs root."""
    if foreign:
        os.seteuid(STRANGER_UID)
    try:
        yield
    finally:
        if foreign:
            os.seteuid(0)


def connect(path: Path) -> socket.socket:
    """Open a non-blocking connection."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            sock.connect(address)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class Gang:
    """Attackers that are connected at the same time."""

    def __init__(self, make: Callable[[], Attacker], size: int) -> None:
        self._make: Final = make
        self._members: Final[list[Attacker]] = []
        self._size: Final = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.close()

    def burst(self, count: int) -> tuple[int, int, list[bytes]]:
        """Let every attacker send ``count`` frames, and wait until the node has read them.

        Return the number of frames and connections, and the names of durable objects that exist now. Raises
        StuckError if the node neither answers an attacker nor closes its connection.
        """
        left = [member for member in self._members if not member.open]
        self._members[:] = [member for member in self._members if member.open]
        before = sum(member.frames_sent for member in self._members)
        opened = 0
        while len(self._members) < self._size:
            self._members.append(self._make())
            opened += 1
        for member in self._members:
            member.flush()
        self._settle()
        for member in self._members:
            member.burst(count)
            member.flush()
        self._settle()
        sent = sum(member.frames_sent for member in self._members) - before
        names = [name for member in (*left, *self._members) for name in member.known.created]
        for member in self._members:
            member.known.created.clear()
            if member.leaves():
                member.close()
        return sent, opened, names

    def _settle(self) -> None:
        deadline = time.monotonic() + ANSWER_S
        patient_until = time.monotonic() + PATIENCE_S
        poll = select.poll()
        by_fd = {member.sock.fileno(): member for member in self._members if member.open}
        for fd, member in by_fd.items():
            poll.register(fd, _wanted(member))
        while True:
            now = time.monotonic()
            if now > patient_until:
                for fd, member in list(by_fd.items()):
                    if member.manners == "deaf" and member.unsent:
                        poll.unregister(fd)
                        del by_fd[fd]
                        member.close()
                    elif member.lost and member.waiting and not member.unsent:
                        member.give_up()
            if not any(member.waiting or member.unsent for member in by_fd.values()):
                return
            if now > deadline:
                stuck = [member for member in by_fd.values() if member.waiting or member.unsent]
                told = [(member.who, member.manners, member.frames_sent, member.unsent) for member in stuck]
                raise StuckError(f"not answered within {ANSWER_S} s: {told}")
            for fd, _ in poll.poll(20):
                member = by_fd[fd]
                if member.unsent:
                    member.flush()
                if member.open:
                    member.receive()
                if member.open:
                    poll.modify(fd, _wanted(member))
                else:
                    poll.unregister(fd)
                    del by_fd[fd]


def _wanted(member: Attacker) -> int:
    reading = 0 if member.manners == "deaf" else select.POLLIN
    return reading | (select.POLLOUT if member.unsent else 0)
