"""The start of a node's process, as another program needs it to take the process over (``continuation``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

CONTINUE: Final = "--continue"
TRY: Final = "--try"


@dataclass(slots=True)
class Launch:
    """The command and the descriptors of a process that the program which replaces the present one needs."""

    command: tuple[str, ...]
    """The interpreter and its arguments, without those of one start."""
    descriptors: tuple[int, ...] = ()
    """Descriptors that the arguments name."""
    pid_file: int = -1


class Continued(NamedTuple):
    """Descriptors from the former program: the memory with its state, and the pid file."""

    memory: int
    pid_file: int
