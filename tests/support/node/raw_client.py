"""A real node in a process of its own, and a client that speaks bare frames with it: for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from dios import limits
from dios.node.daemon import command
from dios.transport.unix.client import ClientChannel, close_all, connect
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, decode_reply, encode_request
from dios.wire.messages import AnyCall, AnyResult, Buffer, Committed, Created, Mapping
from dios.wire.types import Flag, ObjectType

T = TypeVar("T")
WAIT_S = 20.0
LARGE = 3 * limits.MIB + 5


class RawClient:
    """Frames in and out, numbered; descriptors are kept until ``close``."""

    def __init__(self, path: Path, *, hello: bool = True, groups: tuple[bytes, ...] = ()) -> None:
        self.sock: socket.socket = connect(path)
        self.channel = ClientChannel(self.sock)
        self.seq = 0
        self.fds: list[int] = []
        self.welcome: messages.Welcome
        if hello:
            self.welcome = self.ask(messages.Hello(PROTOCOL_VERSION, groups), messages.Welcome)
            self.page_fd = self.fds[-1]

    def send(self, call: AnyCall) -> int:
        """Send a call and return its sequence number."""
        self.seq += 1
        self.channel.send(encode_request(self.seq, call))
        return self.seq

    def receive(self) -> tuple[int, AnyResult, tuple[int, ...]]:
        """The next reply and its descriptors."""
        body, fds = self.channel.receive(WAIT_S)
        reply = decode_reply(body)
        self.fds += fds
        return reply.seq, reply.result, fds

    def any(self, call: AnyCall) -> AnyResult:
        """Send a call and return its result, whatever it is."""
        seq = self.send(call)
        while True:
            got, result, _ = self.receive()
            if got in {seq, 0}:
                return result

    def ask(self, call: AnyCall, kind: type[T]) -> T:
        """Send a call and return its result, which must be of ``kind``."""
        result = self.any(call)
        assert isinstance(result, kind), result
        return result

    def close(self) -> None:
        """Leave."""
        close_all(tuple(self.fds))
        self.fds.clear()
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NodeProcess:
    """A daemon on ``data``; settings as text, by key."""

    def __init__(self, data: Path, **flags: str) -> None:
        self.data = data
        self.socket = data / "node.sock"
        self._flags = flags
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers; AssertionError with what it says when it does not."""
        ready, far = os.pipe()
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("DIOS_", "XDG_"))
        }
        environment["XDG_RUNTIME_DIR"] = str(self.data.parent)
        environment["HOME"] = str(self.data.parent)
        # A scheduler's process beside each would cost every test seconds; tests of it ask for it.
        environment["DIOS_COORDINATOR"] = "off"
        try:
            self.process = subprocess.Popen(
                command(self.data, config=None, flags=self._flags, ready=far),
                pass_fds=(far,),
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        finally:
            os.close(far)
        with os.fdopen(ready, "rb") as pipe:
            said = pipe.readline()
        if said != b"ready\n":
            self.process.wait(WAIT_S)
        assert said == b"ready\n", said

    def client(self, *groups: bytes) -> RawClient:
        """A new session."""
        return RawClient(self.socket, groups=groups)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """End it in an orderly way; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


def create(client: RawClient, kind: ObjectType, data: bytes | None = None) -> Created:
    """A new object in the caller's home group."""
    assert client.welcome.home is not None
    call = messages.Create(kind, (client.welcome.home.ref,), data=data)
    return client.ask(call, Created)


def read(client: RawClient, ref: int, offset: int = 0, size: int = 0) -> bytes:
    """All bytes of a range, however they come."""
    return bytes_of(client, client.ask(messages.ReadOnce(ref, size, offset), Buffer))


def bytes_of(client: RawClient, result: Buffer) -> bytes:
    """The bytes a buffer reply speaks of."""
    if result.mapping is Mapping.NONE:
        return result.data or b""
    return os.pread(client.fds[-1], result.size, result.start)


def write(client: RawClient, ref: int, data: bytes, offset: int = 0, flags: int = 0) -> None:
    """Write a range by acquire, fill, commit and release."""
    buffer = client.ask(messages.AcquireWrite(ref, len(data), offset, flags=int(Flag.BLANK)), Buffer)
    if buffer.mapping is Mapping.NONE:
        client.ask(messages.CommitWrite(ref, buffer.buffer, flags=flags, data=data), Committed)
    else:
        os.pwrite(client.fds[-1], data, buffer.start)
        client.ask(messages.CommitWrite(ref, buffer.buffer, flags=flags), Committed)
    client.ask(messages.ReleaseWrite(ref, buffer.buffer), messages.Done)


def pattern(size: int, seed: int = 1) -> bytes:
    """Bytes that differ from place to place."""
    block = bytes((value * seed + value // 251) % 256 for value in range(4096))
    return (block * (size // len(block) + 1))[:size]
