"""Greedy neighbours on a real node: each is a process of its own, which works until it is killed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import time
from pathlib import Path
from typing import Final

from dios import limits
from dios.errors import DiosError
from dios.transport.unix.client import ClientChannel, close_all, connect
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, decode_reply, encode_request
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.types import ObjectType
from labs.benchmarks.neighbours.kinds import KINDS

OTHER_UID: Final = 65_531
"""The user as whom greedy neighbours run, if this process may become another user."""

_PR_SET_PDEATHSIG: Final = 1
_ANSWER_S: Final = 60.0
_POSTED_MAX: Final = 256
_PAUSE_S: Final = 0.05


class Connection:
    """A connection that sends calls and takes the answers and their descriptors."""

    def __init__(self, socket: Path, label: str = "") -> None:
        self._channel: Final = ClientChannel(connect(socket))
        self._seq = 0
        self._open = 0
        hello = messages.Hello(PROTOCOL_VERSION, label=label)
        welcome = self.ask(hello)
        assert isinstance(welcome, messages.Welcome), welcome
        self.welcome: Final = welcome

    def post(self, call: AnyCall) -> int:
        """Send a call without waiting, and return its number. Its answer is dropped."""
        while self._open >= _POSTED_MAX:
            self._receive(0)
        self._open += 1
        return self.write(call)

    def take(self) -> None:
        """Wait for the answer of a call that was sent without waiting."""
        self._receive(0)

    def write(self, call: AnyCall) -> int:
        """Send a call and return its number."""
        self._seq += 1
        self._channel.send(encode_request(self._seq, call))
        return self._seq

    def write_part(self, call: AnyCall) -> None:
        """Send a frame without its end."""
        self._channel.send(encode_request(self._seq + 1, call)[:-1])

    def ask(self, call: AnyCall) -> AnyResult:
        """Send a call and wait for its answer; a buffer in shared memory is filled."""
        seq = self.write(call)
        while (answer := self._receive(seq)) is None:
            pass
        if isinstance(answer, messages.Failure) and isinstance(call, messages.Hello):
            raise DiosError(answer.message)
        return answer

    def _receive(self, seq: int) -> AnyResult | None:
        body, fds = self._channel.receive(_ANSWER_S)
        try:
            reply = decode_reply(body)
            if reply.seq != seq:
                self._open -= 1
                return None
            if isinstance(reply.result, messages.Buffer) and fds:
                with contextlib.suppress(OSError):
                    os.pwrite(fds[-1], b"g" * min(reply.result.size, limits.MIB), reply.result.start)
            return reply.result
        finally:
            close_all(fds)

    def close(self) -> None:
        """Disconnect."""
        self._channel.close()


class GreedyClient:
    """A greedy neighbour, see ``kinds.Greedy``."""

    table: Final = 15_000

    def __init__(self, socket: Path) -> None:
        self._socket: Final = socket
        self._connection = Connection(socket)
        self._crowd: Final[list[Connection]] = []

    @property
    def welcome(self) -> messages.Welcome:
        """The node's greeting of the present connection."""
        return self._connection.welcome

    def ask(self, call: AnyCall) -> AnyResult:
        """Make a call and wait for its answer."""
        return self._connection.ask(call)

    def post(self, call: AnyCall) -> int:
        """Make a call that may wait, and return its number."""
        return self._connection.post(call)

    def leave(self, label: str = "") -> None:
        """Disconnect, and connect again."""
        self._connection.close()
        self._connection = Connection(self._socket, label)

    def cut(self) -> None:
        """Disconnect in the middle of a frame, and connect again."""
        self._connection.write_part(messages.Create(ObjectType.SHMEM_BLOB, data=bytes(20_000)))
        self.leave()

    def crowd(self, call: AnyCall, count: int) -> None:
        """Make a call on each of ``count`` further connections, before the first answer is read."""
        while len(self._crowd) < count:
            self._crowd.append(Connection(self._socket))
        for client in self._crowd:
            client.post(call)
        for client in self._crowd:
            client.take()

    def deafen(self, call: AnyCall, count: int) -> None:
        """Make calls without reading any answer, as far as the node takes them; then connect again."""
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            for _ in range(count):
                self._connection.write(call)
            time.sleep(1.0)
        except _EnoughError:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.leave()

    def linger(self, seconds: float) -> None:
        """Let started tasks work for a moment."""
        time.sleep(seconds)


class _EnoughError(Exception):
    """The node takes no more calls of a client that reads no answers."""


def _interrupt(number: int, frame: object) -> None:
    del number, frame
    raise _EnoughError


def start(kind: str, socket: Path) -> int:
    """Start a greedy neighbour, which ends with this process; return its process id."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        gc.freeze()
        os.closerange(3, 1024)
        if may_change_user() and not KINDS[kind].owner:
            os.setgroups(())
            os.setresgid(OTHER_UID, OTHER_UID, OTHER_UID)
            os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        while os.getppid() == parent:
            # The node ends connections of neighbours that go too far; they come back.
            with contextlib.suppress(DiosError, OSError):
                for _ in KINDS[kind].kind(GreedyClient(socket)):
                    pass
            time.sleep(_PAUSE_S)
    finally:
        os._exit(1)


def may_change_user() -> bool:
    """Return True if neighbours can run as another user of the machine."""
    return os.geteuid() == 0
