"""External and internal names: how they are made (thesis §4.3.1).

Not for: writing names as text (``dios.wire.nametext``) or looking them up (``dios.core.nametable``).
"""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from dios.ids import InternalName, Name
from dios.limits import NAME_BYTES, SPECIAL_NAMES_MAX

_DETERMINISTIC: Final = b"dios deterministic name\0"
_TASK: Final = b"dios task name\0"
_SPECIAL_PREFIX: Final = bytes(NAME_BYTES - 2)

CONSOLE: Final = 1
TIMER: Final = 2
NETWORK: Final = 3


def internal_name(name: Name, group: Name) -> InternalName:
    """H(external name || external name of the group): what the name table is keyed by."""
    return InternalName(blake3(name + group).digest())


def deterministic_name(task: Name, counter: int) -> Name:
    """The ``counter``-th deterministic creation of the task of that name."""
    return Name(blake3(_DETERMINISTIC + task + counter.to_bytes(8, "big")).digest())


def child_task_name(task: Name, counter: int) -> Name:
    """The ``counter``-th task started by the task of that name."""
    return Name(blake3(_TASK + task + counter.to_bytes(8, "big")).digest())


def special_name(number: int) -> Name:
    """The well-known name of a default resource: zero bytes and a 16-bit number."""
    if not 0 < number < SPECIAL_NAMES_MAX:
        raise ValueError(f"special names are numbered 1 to {SPECIAL_NAMES_MAX - 1}, not {number}")
    return Name(_SPECIAL_PREFIX + number.to_bytes(2, "big"))


def special_number(name: bytes) -> int:
    """The number of a special name, 0 for every other name."""
    if not name.startswith(_SPECIAL_PREFIX):
        return 0
    return int.from_bytes(name[-2:], "big")
