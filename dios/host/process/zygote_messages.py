"""What the daemon and the zygote say to each other, one message to a packet.

Not for: tasks, which never see this socket. Descriptors travel beside ``Make`` (the task's socket, then
its console's write end) and beside ``Made`` (a pidfd of the new process).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from dios.wire.types import Brand

LOCKDOWN_FAILED_STATUS: Final = 252
"""Exit status of a child whose lock-down failed; the reason stands on its console."""

EXCEPTION_STATUS: Final = 251
"""Exit status of a task that an exception ended. ``sys.exit(251)`` cannot be told from it."""


class Setup(Struct, frozen=True, tag=1):
    """First message to a zygote: for which brand, what to run and load, and what the machine has."""

    brand: Brand
    entry: str
    preload: tuple[str, ...]
    paths: tuple[str, ...]
    available: tuple[str, ...]


class Make(Struct, frozen=True, tag=2):
    """Make child ``id`` with these limits; 0 is no limit."""

    id: int
    memory_bytes: int
    cpu_ms: int
    processes: int


class Tighten(Struct, frozen=True, tag=3):
    """Lower the limits of child ``id``, which has not begun."""

    id: int
    memory_bytes: int
    cpu_ms: int
    processes: int


class Ready(Struct, frozen=True, tag=10):
    """The zygote is set up and its view holds ``trees``."""

    trees: tuple[str, ...]


class Failed(Struct, frozen=True, tag=11):
    """The zygote cannot be set up and ends."""

    reason: str


class Made(Struct, frozen=True, tag=12):
    """Child ``id`` exists; ``pid`` is its number for the daemon."""

    id: int
    pid: int


class NotMade(Struct, frozen=True, tag=13):
    """Child ``id`` could not be made."""

    id: int
    reason: str


class Tightened(Struct, frozen=True, tag=14):
    """The answer to Tighten; ``reason`` is empty when it holds."""

    id: int
    reason: str = ""


class Ended(Struct, frozen=True, tag=15):
    """Child ``id`` was reaped: its wait status, CPU time in ms, what the kernel's log said of it, and the
    most memory that was its own at once.
    """

    id: int
    status: int
    cpu_ms: int
    refused_call: str = ""
    memory_bytes: int = 0


ToZygote: TypeAlias = Setup | Make | Tighten
FromZygote: TypeAlias = Ready | Failed | Made | NotMade | Tightened | Ended

encode: Final = msgspec.msgpack.Encoder().encode
decode_to_zygote: Final = msgspec.msgpack.Decoder(ToZygote).decode
decode_from_zygote: Final = msgspec.msgpack.Decoder(FromZygote).decode
