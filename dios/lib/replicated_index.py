"""A map in several copies that is correct as long as a majority of them answers (thesis §3.4).

The copies are independent objects; the rule of the majority makes them one map. ``dios.lib.keyvalue`` has the
places of the copies, and the values.

A write gives its entry a higher stamp than a majority knows, and is acknowledged when a majority has it. A
read takes the highest stamp of a majority, and makes sure that a majority has that before it returns. Two
majorities have a copy in common, so every read after an acknowledged write, or after a read of it, finds it.
A copy that was unreachable merges missing entries by their stamps; the order of merges makes no difference.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from dios.errors import DamagedError, DiosError, TooLargeError, UnreachableError
from dios.limits import INDEX_BYTES_MAX

FORMAT_VERSION: Final = 1


class IndexEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The present target of a key: the name of an object, or none, with the time of the change.

    Entries of one key are ordered by time, and by writer for equal times.
    """

    time: int
    writer: int
    name: bytes | None

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"Entry({self.time}, {'a value' if self.name else 'nothing'})"


Entries = dict[str, IndexEntry]


class _StoredIndex(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    entries: Entries


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decode: Final = msgspec.msgpack.Decoder(_StoredIndex).decode


class IndexCopy(Protocol):
    """One copy of the map. Any DiosError means that it does not answer now."""

    def read(self) -> bytes:
        """Return all of its bytes."""
        ...

    def update(self, change: Callable[[bytes], bytes | None]) -> None:
        """Replace its bytes by the result of ``change``, atomically; None leaves them."""
        ...


def encode(entries: Mapping[str, IndexEntry]) -> bytes:
    """Return the stored form of a copy; TooLargeError over INDEX_BYTES_MAX."""
    data = _encode(_StoredIndex(FORMAT_VERSION, dict(entries)))
    if len(data) > INDEX_BYTES_MAX:
        raise TooLargeError(f"the index has {len(data)} bytes, too many. Make a store with more shards.")
    return data


def decode(data: bytes) -> Entries:
    """Return the entries of a stored form; no bytes are an empty map. Raises DamagedError."""
    if not data:
        return {}
    try:
        content = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"a copy of the index cannot be read: {error}") from None
    if content.version != FORMAT_VERSION:
        raise DamagedError(
            f"the index has version {content.version}, and this program reads {FORMAT_VERSION}"
        )
    return content.entries


def newer(entry: IndexEntry, than: IndexEntry | None) -> bool:
    """Return True if an entry wins over another one of its key."""
    return than is None or (entry.time, entry.writer) > (than.time, than.writer)


class Index:
    """The map over its copies, the nearest first. For one thread at a time.

    ``drop`` is called with names to which no key refers any more.
    """

    def __init__(self, copies: Sequence[IndexCopy], drop: Callable[[bytes], None]) -> None:
        self._copies: Final = list(copies)
        self._drop: Final = drop
        self._needed: Final = len(copies) // 2 + 1
        self._writer: Final = secrets.randbits(63)
        self._time = 0

    def get(self, key: str) -> IndexEntry | None:
        """Return the target of a key by the last acknowledged write; UnreachableError without a majority."""
        found = [copy.get(key) for copy in self._read(self._needed)]
        best = _best(found)
        if best is not None and any(entry != best for entry in found):
            # A later reader must not find less than this one did.
            self._merge({key: best})
        return best

    def put(self, key: str, name: bytes | None) -> None:
        """Set the target of a key to an object, or to none.

        Raises UnreachableError if no majority has it; then it may have happened or not.
        """
        known = _best([copy.get(key) for copy in self._read(self._needed)])
        # An own write that failed half-way may be known to fewer copies than were just asked.
        self._time = max(self._time, 0 if known is None else known.time) + 1
        self._merge({key: IndexEntry(self._time, self._writer, name)})

    def all(self) -> Entries:
        """Return every key and its entry, also those without a target."""
        entries = _union(self._read(self._needed))
        self._merge(entries)
        return entries

    def repair(self) -> int:
        """Bring every copy that answers to the state of all; return the number of copies that do not."""
        found = self._read(len(self._copies), self._needed)
        self._merge(_union(found))
        return len(self._copies) - len(found)

    # -- the majority -----------------------------------------------------------------------------
    def _read(self, wanted: int, needed: int = 0) -> list[Entries]:
        """Return the first ``wanted`` copies that answer, and at least ``needed`` (default: all wanted)."""
        found: list[Entries] = []
        failure: DiosError | None = None
        for copy in tuple(self._copies):
            if len(found) == wanted:
                break
            try:
                found.append(decode(copy.read()))
            except DiosError as error:
                failure = error
                # Ask it last from now on, because a call to an unreachable node takes time.
                self._copies.remove(copy)
                self._copies.append(copy)
        self._enough(len(found), needed or wanted, failure)
        return found

    def _merge(self, entries: Entries) -> None:
        """Add entries to every copy that answers, and drop names that became unused."""
        out_of_use: set[bytes] = set()
        beaten = dict.fromkeys(entries, 0)
        reached = 0
        failure: DiosError | None = None
        for copy in self._copies:
            merge = _Merge(entries)
            try:
                copy.update(merge)
            except DiosError as error:
                failure = error
                continue
            reached += 1
            out_of_use |= merge.displaced
            for key in merge.beaten:
                beaten[key] += 1
        self._enough(reached, self._needed, failure)
        for key, count in beaten.items():
            name = entries[key].name
            if name is not None and count >= self._needed:
                # Another task wrote at the same time and won: no key will refer to this one.
                out_of_use.add(name)
        for name in out_of_use:
            self._drop(name)

    def _enough(self, count: int, needed: int, failure: DiosError | None) -> None:
        if count < needed:
            why = "" if failure is None else f" ({failure})"
            raise UnreachableError(
                f"{count} of {len(self._copies)} copies of the index answer, {needed} are needed{why}"
            ) from failure


class _Merge:
    """Return the change of one copy; it may be called several times, with the copy's content then."""

    def __init__(self, entries: Entries) -> None:
        self._entries: Final = entries
        self.displaced: set[bytes] = set()
        self.beaten: set[str] = set()

    def __call__(self, data: bytes) -> bytes | None:
        """Return the copy's bytes with the entries; None if it has them, or newer ones, already."""
        held = decode(data)
        self.displaced, self.beaten = set(), set()
        changed = False
        for key, entry in self._entries.items():
            present = held.get(key)
            if newer(entry, present):
                changed = True
                held[key] = entry
                if present is not None and present.name is not None:
                    self.displaced.add(present.name)
            elif present != entry:
                self.beaten.add(key)
        return encode(held) if changed else None


def _best(entries: Iterable[IndexEntry | None]) -> IndexEntry | None:
    best: IndexEntry | None = None
    for entry in entries:
        if entry is not None and newer(entry, best):
            best = entry
    return best


def _union(copies: Iterable[Entries]) -> Entries:
    union: Entries = {}
    for entries in copies:
        for key, entry in entries.items():
            if newer(entry, union.get(key)):
                union[key] = entry
    return union
