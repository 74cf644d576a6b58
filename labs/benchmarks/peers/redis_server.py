"""A private Redis server on its own socket, and a client for it; an existing Redis is not used."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol, cast

from labs.benchmarks.measure import pin

_SOCKET: Final = "redis.sock"


class Pipeline(Protocol):
    """The methods of a pipeline that are used here."""

    def get(self, name: str) -> object: ...  # noqa: D102 - theirs
    def set(self, name: str, value: bytes) -> object: ...  # noqa: D102 - theirs
    def execute(self) -> list[object]: ...  # noqa: D102 - theirs


class Client(Protocol):
    """The methods of redis-py's client that are used here."""

    def get(self, name: str) -> bytes | None: ...  # noqa: D102 - theirs
    def set(self, name: str, value: bytes) -> object: ...  # noqa: D102 - theirs
    def ping(self) -> object: ...  # noqa: D102 - theirs
    def info(self, section: str) -> Mapping[str, float]: ...  # noqa: D102 - theirs
    def pipeline(self, transaction: bool) -> Pipeline: ...  # noqa: D102, FBT001 - theirs
    def close(self) -> None: ...  # noqa: D102 - theirs


class MissingPeerError(Exception):
    """A system for comparison is not on this machine; the message says how to install it."""


@contextlib.contextmanager
def redis_client(folder: Path, cpu: int | None) -> Iterator[Client]:
    """Start a server without persistence, bound to ``cpu``; return a client of it."""
    try:
        import redis
    except ImportError:
        raise MissingPeerError("redis-py is not installed (pip install redis)") from None
    binary = shutil.which("redis-server")
    if binary is None:
        raise MissingPeerError("redis-server is not installed (apt install redis-server)")
    path = folder / _SOCKET
    arguments = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(
        [binary, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        client = cast("Client", redis.Redis(unix_socket_path=str(path)))
        _wait(client)
        if cpu is not None:
            pin(cpu, server.pid)
        yield client
        client.close()
    finally:
        server.terminate()
        server.wait()


def another_client(folder: Path) -> Client:
    """Return one more client of the server in this folder."""
    import redis

    return cast("Client", redis.Redis(unix_socket_path=str(folder / _SOCKET)))


def _wait(client: Client) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
        except Exception as error:  # noqa: BLE001 - its own kinds cannot be named without it
            if time.monotonic() > deadline:
                raise MissingPeerError(f"redis-server did not start: {error}") from None
            time.sleep(0.01)
        else:
            return


def pipelined(client: Client, make: Callable[[Pipeline], object], count: int) -> Callable[[], object]:
    """Return a function that sends ``count`` commands in one message."""

    def call() -> None:
        pipeline = client.pipeline(False)
        for _ in range(count):
            make(pipeline)
        pipeline.execute()

    return call
