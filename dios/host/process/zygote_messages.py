"""The messages between the daemon and a zygote, one per packet.

Tasks never see this socket. Descriptors travel with ``CreateChild`` (the task's socket, then its console's
write end) and with ``ChildCreated`` (a pidfd of the new process).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from dios.wire.types import Brand

LOCKDOWN_FAILED_STATUS: Final = 252
"""Exit status of a child whose lock-down failed; the reason is on its console."""

EXCEPTION_STATUS: Final = 251
"""Exit status of a task that an exception ended; ``sys.exit(251)`` looks the same."""


class ZygoteSetup(Struct, frozen=True, tag=1):
    """The first message to a zygote: brand, entry point, modules to load, and available mechanisms."""

    brand: Brand
    entry: str
    preload: tuple[str, ...]
    paths: tuple[str, ...]
    available: tuple[str, ...]


class CreateChild(Struct, frozen=True, tag=2):
    """A request to create child ``id`` with these limits; 0 means no limit."""

    id: int
    memory_bytes: int
    cpu_ms: int
    processes: int


class LowerLimits(Struct, frozen=True, tag=3):
    """A request to lower the limits of child ``id``, which has not started its task."""

    id: int
    memory_bytes: int
    cpu_ms: int
    processes: int


class ZygoteReady(Struct, frozen=True, tag=10):
    """The zygote is set up; its view contains ``trees``."""

    trees: tuple[str, ...]


class SetupFailed(Struct, frozen=True, tag=11):
    """The zygote cannot be set up and ends."""

    reason: str


class ChildCreated(Struct, frozen=True, tag=12):
    """Child ``id`` exists; ``pid`` is its process id as the daemon sees it."""

    id: int
    pid: int


class CreateFailed(Struct, frozen=True, tag=13):
    """Child ``id`` could not be created."""

    id: int
    reason: str


class LimitsLowered(Struct, frozen=True, tag=14):
    """The answer to Tighten; ``reason`` is empty for success."""

    id: int
    reason: str = ""


class ChildExited(Struct, frozen=True, tag=15):
    """Child ``id`` was reaped, with its wait status, CPU time in ms, and peak memory in bytes.

    ``refused_call`` is the system call that the sandbox killed it for, if the kernel's log names it.
    """

    id: int
    status: int
    cpu_ms: int
    refused_call: str = ""
    memory_bytes: int = 0


ToZygote: TypeAlias = ZygoteSetup | CreateChild | LowerLimits
FromZygote: TypeAlias = ZygoteReady | SetupFailed | ChildCreated | CreateFailed | LimitsLowered | ChildExited

encode: Final = msgspec.msgpack.Encoder().encode
decode_to_zygote: Final = msgspec.msgpack.Decoder(ToZygote).decode
decode_from_zygote: Final = msgspec.msgpack.Decoder(FromZygote).decode
