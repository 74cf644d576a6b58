"""The program of the tasks of the benchmark ``security``, which execute timed commands."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Final

CALLS: Final = 20_000
ROUNDS: Final = 200_000


def main() -> int:
    """Answer commands until the other end closes the connection."""
    channel = socket.socket(fileno=3)
    channel.send(b"up")
    while command := channel.recv(64):
        channel.send(str(WORK[command.decode()]()).encode())
    return 0


def _timed(work: Callable[[], None]) -> int:
    began = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - began


def _ask_kernel() -> None:
    ask = os.getppid
    for _ in range(CALLS):
        ask()


def _compute() -> None:
    total = 0
    for number in range(ROUNDS):
        total += number * number


WORK: Final[dict[str, Callable[[], int]]] = {
    "system calls": lambda: _timed(_ask_kernel),
    "compute": lambda: _timed(_compute),
}
