"""The construction of external and internal names (thesis §4.3.1).

``dios.wire.nametext`` writes names as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hmac import compare_digest
from typing import Final, NamedTuple

from blake3 import blake3

from dios.ids import InternalName, Name, NodeId, TaskId
from dios.limits import NAME_BYTES, SPECIAL_NAMES_MAX

_DETERMINISTIC: Final = b"dios deterministic name\0"
_TASK: Final = b"dios task name\0"
_LOG: Final = b"dios task log\0"
_LOGS: Final = b"dios logs of a principal\0"
_HOME: Final = b"dios home group\0"
_SERVICES: Final = b"dios services of a principal\0"
_KEPT: Final = b"dios kept replicas of a principal\0"
_GROUP: Final = b"dios group name\0"
_MARK: Final = b"dios mark of a generation\0"
_MARK_BYTES: Final = 2
_SHARE: Final = b"dios share of a group\0"
_HOLDER: Final = b"dios task of another node\0"
_SPECIAL_PREFIX: Final = bytes(NAME_BYTES - 2)

HOLDER_KEY_BYTES: Final = 32
_POSITIVE_63_BITS: Final = 2**63 - 1

CONSOLE: Final = 1
TIMER: Final = 2
NETWORK: Final = 3
SERVICES: Final = 4
KEPT: Final = 5


def internal_name(name: Name, group: Name) -> InternalName:
    """Return H(external name || external name of the group), the key of the name table."""
    return InternalName(blake3(name + group).digest())


def deterministic_name(task: Name, counter: int) -> Name:
    """Return the name of the ``counter``-th deterministic creation of the task with this name."""
    return Name(blake3(_DETERMINISTIC + task + counter.to_bytes(8, "big")).digest())


def child_task_name(task: Name, counter: int) -> Name:
    """Return the name of the ``counter``-th child of the task with this name."""
    return Name(blake3(_TASK + task + counter.to_bytes(8, "big")).digest())


def log_name(task: Name) -> Name:
    """Return the name of the log with the output of the task with this name."""
    return Name(blake3(_LOG + task).digest())


def logs_group(home: Name) -> Name:
    """Return the name of the group of a principal's logs, which follows from its home group's name."""
    return Name(blake3(_LOGS + home).digest())


def home_name(secret: bytes, principal: str) -> Name:
    """Return the name of a principal's home group: the same on every node with the cluster's secret."""
    return Name(blake3(_HOME + principal.encode(), key=secret).digest())


def services_name(secret: bytes, principal: str) -> Name:
    """Return the name of the records of a principal's services, which no task can derive."""
    return Name(blake3(_SERVICES + principal.encode(), key=secret).digest())


def kept_name(secret: bytes, principal: str) -> Name:
    """Return the name of the records of a principal's kept replicas, which no task can derive."""
    return Name(blake3(_KEPT + principal.encode(), key=secret).digest())


class Secrets(NamedTuple):
    """The secrets of a cluster: the ``first`` one names things, and ``later`` ones seal, the last one now.

    Without later ones, the first one seals as well. It is empty outside of a cluster.
    """

    first: bytes = b""
    later: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"<secrets of {len(self.later)} generations>"

    @property
    def sealing(self) -> bytes:
        """The secret that seals now."""
        return self.later[-1] if self.later else self.first

    def sealed_with(self) -> Iterator[bytes]:
        """Yield the secrets that may have sealed something, the present one first."""
        yield from reversed(self.later)
        yield self.first


def group_name(secrets: Secrets, random: bytes, owner: str) -> Name:
    """Return a name from random bytes and a seal, by which a holder of the secrets recognises the owner."""
    if secrets.later:
        return Name(random + _later_seal(secrets.later[-1], random, owner))
    return Name(random + _first_seal(secrets.first, random, owner))


def is_signed(secrets: Secrets, name: bytes, owner: str) -> bool:
    """Return True if ``group_name`` made the name for this owner, with whichever of the secrets."""
    if not secrets.first:
        return False
    half = NAME_BYTES // 2
    random, seal = name[:half], name[half:]
    return compare_digest(seal, _first_seal(secrets.first, random, owner)) or any(
        compare_digest(seal, _later_seal(secret, random, owner))
        for secret in _marked(secrets.later).get(seal[:_MARK_BYTES], ())
    )


def belongs_to(secrets: Secrets, name: Name, owner: str) -> bool:
    """Return True if a holder of the secrets sees from the name of a group that it is this owner's."""
    if not secrets.first or not owner:
        return False
    home = home_name(secrets.first, owner)
    return name in {home, logs_group(home)} or is_signed(secrets, name, owner)


def _first_seal(secret: bytes, random: bytes, owner: str) -> bytes:
    return blake3(_GROUP + random + owner.encode(), key=secret).digest(NAME_BYTES // 2)


def _later_seal(secret: bytes, random: bytes, owner: str) -> bytes:
    """Return a seal that begins with the mark of its secret, so that few secrets are tried."""
    mac = blake3(_GROUP + random + owner.encode(), key=secret).digest(NAME_BYTES // 2 - _MARK_BYTES)
    return _mark(secret) + mac


def _mark(secret: bytes) -> bytes:
    return blake3(_MARK, key=secret).digest(_MARK_BYTES)


@lru_cache(maxsize=4)
def _marked(secrets: tuple[bytes, ...]) -> dict[bytes, tuple[bytes, ...]]:
    """Return later secrets by their marks."""
    marked: dict[bytes, tuple[bytes, ...]] = {}
    for secret in secrets:
        mark = _mark(secret)
        marked[mark] = (*marked.get(mark, ()), secret)
    return marked


def share_name(nonce: bytes, group: bytes, reader: str, expires_ns: int) -> Name:
    """Return the name of the record of a share, which binds the group, the reader and the end."""
    return Name(blake3(_SHARE + nonce + group + expires_ns.to_bytes(8, "big") + reader.encode()).digest())


def holder_id(key: bytes, node: NodeId, task: TaskId) -> TaskId:
    """Return the id, on the node with this key, of a task that has the id ``task`` on another node."""
    told = _HOLDER + node.to_bytes(8, "big") + task.to_bytes(8, "big")
    return TaskId(int.from_bytes(blake3(told, key=key).digest(8), "big") & _POSITIVE_63_BITS or 1)


def special_name(number: int) -> Name:
    """Return the well-known name of a default resource: zero bytes and a 16-bit number."""
    if not 0 < number < SPECIAL_NAMES_MAX:
        raise ValueError(f"a special name has a number from 1 to {SPECIAL_NAMES_MAX - 1}, not {number}")
    return Name(_SPECIAL_PREFIX + number.to_bytes(2, "big"))


def special_number(name: bytes) -> int:
    """Return the number of a special name, 0 for every other name."""
    if not name.startswith(_SPECIAL_PREFIX):
        return 0
    return int.from_bytes(name[-2:], "big")
