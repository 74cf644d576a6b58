"""The terms of the thesis as plain constants for programs: ``dios.EXCL``, ``dios.DURABLE_BLOB``.

``dios.wire.types`` has the enumerations.
"""

from __future__ import annotations

from typing import Final

from dios.wire.types import Buffering, NameKind, ObjectType, Semantics

DURABLE_BLOB: Final = ObjectType.DURABLE_BLOB
PRIVMEM_BLOB: Final = ObjectType.PRIVMEM_BLOB
SHMEM_BLOB: Final = ObjectType.SHMEM_BLOB
TIMER_BLOB: Final = ObjectType.TIMER_BLOB
DURABLE_STREAM: Final = ObjectType.DURABLE_STREAM
TCP_STREAM: Final = ObjectType.TCP_STREAM
TCP_ACCEPT_STREAM: Final = ObjectType.TCP_ACCEPT_STREAM
UDP_STREAM: Final = ObjectType.UDP_STREAM
NETWORK: Final = ObjectType.NETWORK
SHMEM_STREAM: Final = ObjectType.SHMEM_STREAM
CONSOLE_STREAM: Final = ObjectType.CONSOLE_STREAM
GROUP: Final = ObjectType.GROUP
TASK: Final = ObjectType.TASK

EXCL: Final = Semantics.EXCL
MRSW: Final = Semantics.MRSW
SRMW: Final = Semantics.SRMW
ANY: Final = Semantics.ANY

RANDOM: Final = NameKind.RANDOM
DETERMINISTIC: Final = NameKind.DETERMINISTIC
ANONYMOUS: Final = NameKind.ANONYMOUS

RAW: Final = Buffering.RAW
