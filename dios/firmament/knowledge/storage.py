"""The stored form of a knowledge base in its durable object: one MessagePack value with a version."""

from __future__ import annotations

from typing import Final

import msgspec

from dios import limits
from dios.firmament.knowledge.aggregates import PackedAggregate, PackedMoments
from dios.firmament.knowledge.profiles import Profile
from dios.firmament.knowledge.samples import BadKnowledgeError, KnowledgeEntry, check_entry

STORED_VERSION: Final = 2
_READ: Final = (1, STORED_VERSION)
"""Version 1 had no usage profiles."""


class StoredProfile(msgspec.Struct, array_like=True, frozen=True):
    """One profile; its newest samples are indexes of entries."""

    task_class: str
    machine_type: str
    samples: int
    finished: int
    aggregates: dict[int, PackedAggregate]
    recent: list[int]


class StoredKnowledge(msgspec.Struct, array_like=True, frozen=True):
    """A stored knowledge base. Each entry occurs once in ``entries``; other fields hold its index."""

    version: int
    node: str
    incarnation: int
    position: int
    profiles: list[StoredProfile]
    pairs: list[tuple[str, str, str, dict[int, PackedMoments]]]
    unused: list[msgspec.Raw]
    """Empty; earlier releases kept samples here."""
    reports: list[int]
    places: list[int]
    heard: list[tuple[str, int, int, list[int]]]
    journal: list[int]
    entries: list[KnowledgeEntry]
    usage_profiles: list[int] = []


class EntryTable:
    """Entries by index, each of them once."""

    def __init__(self, entries: list[KnowledgeEntry] | None = None) -> None:
        self.entries: list[KnowledgeEntry] = entries or []
        self._index: dict[tuple[int, int, str], int] = {}

    def index(self, entry: KnowledgeEntry) -> int:
        """Return the index of an entry, which is added if it is new."""
        position = self._index.setdefault(entry.identity, len(self.entries))
        if position == len(self.entries):
            self.entries.append(entry)
        return position

    def at(self, indexes: list[int]) -> list[KnowledgeEntry]:
        """Return the entries at these indexes; raise IndexError for an index out of range."""
        if min(indexes, default=0) < 0:
            raise IndexError("an index of an entry is below 0")
        return [self.entries[index] for index in indexes]


def pack_profile(profile: Profile, table: EntryTable) -> StoredProfile:
    """Return a profile's stored form, and add its samples to the table."""
    return StoredProfile(
        profile.task_class,
        profile.machine_type,
        profile.samples,
        profile.finished,
        {int(metric): aggregate.pack() for metric, aggregate in profile.aggregates.items()},
        [table.index(entry) for entry in profile.recent],
    )


def encode(stored: StoredKnowledge) -> bytes:
    """Return the knowledge as MessagePack."""
    return msgspec.msgpack.encode(stored)


def decode(data: bytes) -> StoredKnowledge:
    """Return the stored knowledge, with its entries checked.

    Raises:
        BadKnowledgeError: the bytes are damaged, too many, or of another version.
    """
    if len(data) > limits.KNOWLEDGE_BYTES_MAX:
        raise BadKnowledgeError(
            f"the stored knowledge has {len(data)} bytes; at most {limits.KNOWLEDGE_BYTES_MAX} are allowed"
        )
    try:
        stored = msgspec.msgpack.decode(data, type=StoredKnowledge)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadKnowledgeError(f"damaged knowledge: {error}; begin with an empty one") from None
    if stored.version not in _READ:
        raise BadKnowledgeError(
            f"knowledge of version {stored.version} cannot be read; this is version {STORED_VERSION}"
        )
    for entry in stored.entries:
        check_entry(entry)
    return stored
