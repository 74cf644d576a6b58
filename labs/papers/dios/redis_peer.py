"""A private Redis server on a Unix socket. Figures 5.3, 5.4 and ``nodes`` have lines of it.

An existing Redis is not used. ``python -m labs.papers.dios.redis_peer SOCKET BYTES MESSAGES PAUSE_US`` sends
messages to a list, like ``labs.papers.dios.senders``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol, cast

from dios.errors import UnreachableError
from labs.papers.dios.senders import CLOCK

REDIS: Final = "Redis, Unix socket"
_LIST: Final = "messages"
_START_S: Final = 30.0
_RECEIVE_S: Final = 60
_MADE: Final = ("--port", "0", "--save", "", "--appendonly", "no", "--unixsocketperm", "700")
"""A server without a port and without files; its socket is in a folder of the user alone."""


class RedisClient(Protocol):
    """The methods of redis-py's client that are used here."""

    def ping(self) -> object: ...  # noqa: D102 - theirs
    def get(self, name: str) -> bytes | None: ...  # noqa: D102 - theirs
    def set(self, name: str, value: bytes) -> object: ...  # noqa: D102 - theirs
    def rpush(self, name: str, value: bytes) -> object: ...  # noqa: D102 - theirs
    def blpop(self, name: str, timeout: int) -> tuple[bytes, bytes] | None: ...  # noqa: D102 - theirs
    def delete(self, name: str) -> object: ...  # noqa: D102 - theirs
    def close(self) -> None: ...  # noqa: D102 - theirs


class RedisServer:
    """A running server, by the path of its socket, and a client of it."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.client: Final = _client(path)

    def receive(self) -> tuple[bytes]:
        """Wait for the next message of a sender, and return it."""
        popped = self.client.blpop(_LIST, _RECEIVE_S)
        if popped is None:
            raise UnreachableError(f"the sender wrote nothing to Redis for {_RECEIVE_S} s")
        return (popped[1],)

    @contextlib.contextmanager
    def sending(self, size: int, count: int, pause_us: int) -> Iterator[None]:
        """Run a process that sends messages to a new list."""
        self.client.delete(_LIST)
        words = [str(argument) for argument in (self.path, size, count, pause_us)]
        process = subprocess.Popen([sys.executable, "-m", "labs.papers.dios.redis_peer", *words])
        try:
            yield
        finally:
            if sys.exception() is not None:
                process.kill()
            process.wait()


def missing_redis() -> str:
    """Return why Redis cannot be measured here; empty if it can."""
    if shutil.which("redis-server") is None:
        return "redis-server is not installed"
    if importlib.util.find_spec("redis") is None:
        return "the package redis is not installed"
    return ""


@contextlib.contextmanager
def redis_if_present() -> Iterator[RedisServer | None]:
    """Start a server below a temporary directory, and stop it at the end; None if Redis is not installed.

    Raise UnreachableError if it does not start.
    """
    if missing_redis():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="dios-redis-") as folder:
        path = Path(folder) / "redis.sock"
        process = subprocess.Popen(
            ["redis-server", *_MADE, "--unixsocket", str(path)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            server = RedisServer(path)
            _wait(server.client, process)
            yield server
            server.client.close()
        finally:
            process.terminate()
            process.wait()


def redis_note() -> tuple[str, ...]:
    """Return a note for the figure if Redis is not measured."""
    reason = missing_redis()
    return (f"Redis is not measured: {reason}.",) if reason else ()


def _client(path: Path) -> RedisClient:
    return cast("RedisClient", importlib.import_module("redis").Redis(unix_socket_path=str(path)))


def _wait(client: RedisClient, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            client.ping()
        except Exception as error:  # noqa: BLE001 - redis-py's kinds cannot be named without its import
            if process.poll() is not None or time.monotonic() > deadline:
                raise UnreachableError(f"redis-server did not start: {error}") from None
            time.sleep(0.01)
        else:
            return


def main() -> None:
    """Send the messages of the command line."""
    client = _client(Path(sys.argv[1]))
    size, count, pause_us = map(int, sys.argv[2:])
    rest = os.urandom(size - CLOCK.size)
    for _ in range(count):
        if pause_us:
            time.sleep(pause_us / 1e6)
        client.rpush(_LIST, CLOCK.pack(time.perf_counter_ns()) + rest)


if __name__ == "__main__":
    main()
