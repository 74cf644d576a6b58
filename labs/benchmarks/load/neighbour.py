"""A neighbour's process: short calls and echoes in turns, with a pause after each, until its input ends.

An echo is one byte to another process and back. It shows how late the machine itself is: a call cannot be
faster. The neighbour has a process of its own, because the clients of a burst share one loop and would delay
it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from typing import Final

from msgspec import Struct, json

import dios
from dios.errors import DiosError
from dios.wire.types import NameKind, ObjectType

_PAUSE_S: Final = 0.01


class Told(Struct, frozen=True):
    """What a neighbour's process prints at its end: milliseconds, and the texts of refused calls."""

    calls: list[float]
    echoes: list[float]
    refused: list[str]


def main() -> None:
    """Call the node whose socket is the first argument."""
    calls: list[float] = []
    echoes: list[float] = []
    refused: list[str] = []
    echo = _echo()
    with dios.connect(sys.argv[1], groups=()) as node:
        own = node.create(ObjectType.SHMEM_BLOB, data=b"neighbour", naming=NameKind.ANONYMOUS)
        print(flush=True)  # the clients begin then
        while not select.select([0], [], [], _PAUSE_S)[0]:
            began = time.perf_counter()
            try:
                own.stat()
            except DiosError as error:
                refused.append(str(error))
            calls.append((time.perf_counter() - began) * 1000)
            if select.select([0], [], [], _PAUSE_S)[0]:
                break
            began = time.perf_counter()
            echo.send(b"?")
            echo.recv(1)
            echoes.append((time.perf_counter() - began) * 1000)
    print(json.encode(Told(calls, echoes, refused)).decode())


def _echo() -> socket.socket:
    """Start a process that returns each byte, and return the socket to it."""
    near, far = socket.socketpair()
    if not os.fork():
        near.close()
        while data := far.recv(1):
            far.send(data)
        os._exit(0)
    far.close()
    return near


if __name__ == "__main__":
    main()
