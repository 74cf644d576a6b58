"""The functions that other systems run as tasks; their processes import this module, which imports little."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol


def first_line(spin_ms: int) -> int:
    """Return the clock of the first line in nanoseconds, after ``spin_ms`` milliseconds of work."""
    began = time.perf_counter_ns()
    until = began + spin_ms * 1_000_000
    while time.perf_counter_ns() < until:
        pass
    return began


class Sender(Protocol):
    """The sending end of a pipe of multiprocessing."""

    def send(self, value: int) -> None:
        """Send an object."""


def send_first_line(sender: Sender, spin_ms: int) -> None:
    """Send the clock of the first line, from a process of its own."""
    sender.send(first_line(spin_ms))


def count_range(path: str, begin: int, end: int) -> Counter[bytes]:
    """Count the words of the lines that begin in a range of a file, in bytes."""
    counts: Counter[bytes] = Counter()
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib would be one more import of each process
        if begin:
            file.seek(begin - 1)
            file.readline()
        place = file.tell()
        for line in file:
            if place >= end:
                break
            place += len(line)
            counts.update(line.split())
    return counts


def add_up(parts: Sequence[Counter[bytes]]) -> tuple[int, int]:
    """Return the number of words of all parts, and of different ones."""
    total: Counter[bytes] = Counter()
    for part in parts:
        total.update(part)
    return total.total(), len(total)
