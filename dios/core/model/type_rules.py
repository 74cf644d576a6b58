"""The object types of Table 4.1, and the calls that are possible on each."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from dios.errors import InvalidError, NotSupportedError
from dios.wire.types import Buffering, Deletion, ObjectType, Persistence, Proximity


class TypeRules(Struct, frozen=True):
    """Defaults and abilities of one object type."""

    deletion: Deletion
    persistence: Persistence = Persistence.VOLATILE
    proximity: Proximity = Proximity.NODE
    creatable: bool = True
    bytes_in_host: bool = False  # a blob: random access to content that the host holds
    executable: bool = False


_COUNTED: Final = Deletion.REFERENCE_COUNTED

RULES: Final[dict[ObjectType, TypeRules]] = {
    ObjectType.DURABLE_BLOB: TypeRules(
        Deletion.IMMEDIATE, Persistence.DURABLE, bytes_in_host=True, executable=True
    ),
    ObjectType.PRIVMEM_BLOB: TypeRules(_COUNTED, proximity=Proximity.PROCESS, bytes_in_host=True),
    ObjectType.SHMEM_BLOB: TypeRules(_COUNTED, bytes_in_host=True, executable=True),
    ObjectType.TIMER_BLOB: TypeRules(_COUNTED, proximity=Proximity.PROCESS),
    ObjectType.SHMEM_STREAM: TypeRules(_COUNTED),
    ObjectType.UDP_STREAM: TypeRules(_COUNTED),
    ObjectType.TCP_STREAM: TypeRules(_COUNTED),
    ObjectType.TCP_ACCEPT_STREAM: TypeRules(_COUNTED),
    ObjectType.DURABLE_STREAM: TypeRules(Deletion.IMMEDIATE, Persistence.DURABLE),
    ObjectType.NETWORK: TypeRules(_COUNTED),
    ObjectType.CONSOLE_STREAM: TypeRules(Deletion.IMMORTAL, creatable=False),
    ObjectType.GROUP: TypeRules(Deletion.IMMEDIATE),
    ObjectType.TASK: TypeRules(_COUNTED, creatable=False),
}


def rules_for_creation(kind: ObjectType, buffering: Buffering) -> TypeRules:
    """Return the rules of a type that create may make.

    Raises:
        NotSupportedError: this release does not have the type.
        InvalidError: create may not make the type, or not with this buffering.
    """
    rules = RULES.get(kind)
    if rules is None:
        raise NotSupportedError(f"cannot create a {kind.name}: this release has no such objects on any node")
    if not rules.creatable:
        raise InvalidError(f"cannot create a {kind.name}: only the node itself makes such objects")
    if buffering is Buffering.RAW and kind is not ObjectType.SHMEM_BLOB:
        raise InvalidError(
            f"cannot create a {kind.name} with raw buffering: only a SHMEM_BLOB has it. Use double buffering."
        )
    return rules


def may_be_shared(kind: ObjectType) -> bool:
    """Return True if a share of a group lets others read objects of this type: reading takes nothing away."""
    return is_blob(kind) or kind is ObjectType.DURABLE_STREAM


def is_blob(kind: ObjectType) -> bool:
    """Return True if the host holds bytes for objects of this type."""
    rules = RULES.get(kind)
    return rules is not None and rules.bytes_in_host
