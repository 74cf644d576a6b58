"""A map in several copies that is correct as long as a majority of them answers (thesis §3.4).

The copies are independent objects; the rule of the majority makes them one map. ``dios.lib.keyvalue`` has the
places of the copies, and the values.

A write gives its entry a higher stamp than a majority knows, and is acknowledged when a majority has it. A
read takes the highest stamp of a majority, and makes sure that a majority has that before it returns. Two
majorities have a copy in common, so every read after an acknowledged write, or after a read of it, finds it.
A copy that was unreachable merges missing entries by their stamps; the order of merges makes no difference.

The copies can be replaced by others. A majority of them agrees on their successors, by Paxos for a single
value, in which each copy is an acceptor. A copy that has accepted successors is sealed: it changes no entry
any more. So no write is acknowledged by the old copies after a majority of them has accepted, and each write
that was acknowledged before is in one of that majority. A client that finds a sealed copy completes the
agreement and the transfer of all entries, before it uses the successors. ``docs/adr/0070-replaced-hosts.md``
has the reasons.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Final, Protocol, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dios.errors import Conflict, DamagedError, DiosError, TooLargeError, UnreachableError
from dios.lib.decoding import decoded
from dios.lib.retrying import Pauses
from dios.limits import INDEX_BYTES_MAX, INDEX_COPIES_MAX, RETRY_S_MAX
from dios.wire.fields import U63, NameBytes
from dios.wire.fields import Label as NodeName

T = TypeVar("T")

FORMAT_VERSION: Final = 2
_BEFORE_SUCCESSION: Final = 1


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


Ballot = tuple[U63, U63]
"""The number of an attempt to agree: its round, and the client that makes it."""


class Successors(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The copies that replace others: their hosts, and the names of the copies there."""

    hosts: Annotated[tuple[NodeName, ...], Meta(max_length=INDEX_COPIES_MAX)]
    copies: Annotated[tuple[NameBytes, ...], Meta(max_length=INDEX_COPIES_MAX)]

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"Successors(on {', '.join(self.hosts)})"


class Succession(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a copy in the agreement on its successors.

    It accepts nothing below ``promised``. With ``accepted`` it is sealed. It has ``moved`` when a majority of
    the ``successors`` has its entries; then it keeps none.
    """

    promised: Ballot = (0, 0)
    accepted: Ballot | None = None
    successors: Successors | None = None
    moved: bool = False


class _StoredIndex(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    entries: Entries
    succession: Succession | None = None


class SealedError(Exception):
    """The copy has accepted successors, so that it serves no more."""

    def __init__(self, successors: Successors) -> None:
        super().__init__(successors)
        self.successors: Final = successors


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decode: Final = msgspec.msgpack.Decoder(_StoredIndex).decode


class IndexCopy(Protocol):
    """One copy of the map. Any DiosError means that it does not answer now."""

    def read(self) -> bytes:
        """Return all of its bytes."""

    def update(self, change: Callable[[bytes], bytes | None]) -> None:
        """Replace its bytes by the result of ``change``, atomically; None leaves them."""


def encode(entries: Mapping[str, IndexEntry], succession: Succession | None = None) -> bytes:
    """Return the stored form of a copy; TooLargeError over INDEX_BYTES_MAX.

    Without a succession it has version 1, which clients of an earlier release read.
    """
    data = _encode(
        (_BEFORE_SUCCESSION, dict(entries))
        if succession is None
        else _StoredIndex(FORMAT_VERSION, dict(entries), succession)
    )
    if len(data) > INDEX_BYTES_MAX:
        raise TooLargeError(f"the index has {len(data)} bytes, too many. Make a store with more shards.")
    return data


def decode(data: bytes) -> Entries:
    """Return the entries of a stored form; no bytes are an empty map. Raises DamagedError and SealedError."""
    entries, succession = decode_whole(data)
    if succession.successors is not None:
        raise SealedError(succession.successors)
    return entries


def decode_whole(data: bytes) -> tuple[Entries, Succession]:
    """Return the entries and the succession of a stored form, also of a sealed one. Raises DamagedError."""
    if not data:
        return {}, Succession()
    content = decoded(_decode, data, "a copy of the index cannot be read")
    if content.version not in {_BEFORE_SUCCESSION, FORMAT_VERSION}:
        raise DamagedError(
            f"the index has version {content.version}, and this program reads {FORMAT_VERSION}"
        )
    return content.entries, content.succession or Succession()


def newer(entry: IndexEntry, than: IndexEntry | None) -> bool:
    """Return True if an entry wins over another one of its key."""
    return than is None or (entry.time, entry.writer) > (than.time, than.writer)


class Index:
    """The map over its copies, the nearest first. For one thread at a time.

    ``drop`` is called with names to which no key refers any more, and ``open_copies`` with successors whose
    copies it returns, the nearest first. ``hosts`` are those of the present copies.
    """

    def __init__(
        self,
        copies: Sequence[IndexCopy],
        drop: Callable[[bytes], None],
        open_copies: Callable[[Successors], Sequence[IndexCopy]] | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        self.hosts: tuple[str, ...] = tuple(hosts)
        self.successors: Successors | None = None
        """The successors that this client uses; None while it uses the first copies."""
        self._copies = list(copies)
        self._drop: Final = drop
        self._open_copies: Final = open_copies
        self._writer: Final = secrets.randbits(63)
        self._time = 0
        self._rounds = 0

    @property
    def _needed(self) -> int:
        return len(self._copies) // 2 + 1

    def get(self, key: str) -> IndexEntry | None:
        """Return the target of a key by the last acknowledged write; UnreachableError without a majority."""
        return self._on_present(lambda: self._get(key))

    def _get(self, key: str) -> IndexEntry | None:
        entries = [copy.get(key) for copy in self._read(self._needed)]
        best = _best(entries)
        if best is not None and any(entry != best for entry in entries):
            # A later reader must not find less than this one did.
            self._merge({key: best})
        return best

    def put(self, key: str, name: bytes | None) -> None:
        """Set the target of a key to an object, or to none.

        Raises UnreachableError if no majority has it; then it may have happened or not.
        """
        known = self._on_present(lambda: _best([copy.get(key) for copy in self._read(self._needed)]))
        # An own write that failed half-way may be known to fewer copies than were just asked.
        self._time = max(self._time, 0 if known is None else known.time) + 1
        entry = IndexEntry(self._time, self._writer, name)
        # The same entry also for successors: with a new stamp, one write could take effect twice.
        self._on_present(lambda: self._merge({key: entry}))

    def all(self) -> Entries:
        """Return every key and its entry, also those without a target."""

        def read() -> Entries:
            entries = _union(self._read(self._needed))
            self._merge(entries)
            return entries

        return self._on_present(read)

    def repair(self) -> int:
        """Bring every copy that answers to the state of all; return the number of copies that do not."""

        def bring() -> int:
            contents = self._read(len(self._copies), self._needed)
            self._merge(_union(contents))
            return len(self._copies) - len(contents)

        return self._on_present(bring)

    # -- successors -------------------------------------------------------------------------------
    def replace(self, successors: Successors) -> bool:
        """Replace the copies by these; return False if a majority has agreed on others, which are used then.

        Raises UnreachableError without a majority of the present copies, or of their successors.
        """
        self._move_to(successors)
        return self.successors == successors

    def _on_present(self, work: Callable[[], T]) -> T:
        """Work on the copies; if they are sealed, on their successors."""
        while True:
            try:
                return work()
            except SealedError as sealed:
                self._move_to(sealed.successors)

    def _move_to(self, proposed: Successors) -> None:
        """Complete the agreement on successors and the transfer to them, and use them."""
        chosen, entries = self._agree(proposed)
        copies = self._opened(chosen)
        if entries is not None:
            # Sealed successors are those of a majority that had all entries before.
            with suppress(SealedError):
                self._merge(entries, copies)
            self._tell_moved(chosen)
        self._copies, self.hosts, self.successors = copies, chosen.hosts, chosen

    def _opened(self, successors: Successors) -> list[IndexCopy]:
        if self._open_copies is None:
            raise UnreachableError("the copies of the index were replaced. Open the store again.")
        return list(self._open_copies(successors))

    def _agree(self, proposed: Successors) -> tuple[Successors, Entries | None]:
        """Return the agreed successors, and the entries to transfer or None.

        Paxos for one value: a majority promises to accept nothing below a ballot, and then accepts the value
        of the highest ballot that is accepted in it, or else the proposed one.
        """
        pauses = Pauses(RETRY_S_MAX)
        while True:
            # Never the same ballot twice, because the values may differ.
            self._rounds += 1
            ballot = (self._rounds, self._writer)
            try:
                promised = self._ask(partial(_Promise, ballot), ballot)
                accepted = [succession for succession in promised if succession.accepted is not None]
                best = max(accepted, key=lambda succession: succession.accepted or ballot, default=None)
                value = proposed if best is None or best.successors is None else best.successors
                entries: list[Entries] = []
                self._ask(partial(_Accept, ballot, value, entries), ballot)
            except _MovedError as moved:
                return moved.successors, None
            except _OvertakenError as overtaken:
                self._rounds = max(self._rounds, overtaken.promised[0])
                pauses.wait(Conflict("another client replaces the copies of the index at the same time"))
            else:
                return value, _union(entries)

    def _ask(self, change: Callable[[], _Promise | _Accept], ballot: Ballot) -> list[Succession]:
        """Change a majority of the copies; return their successions before."""
        successions: list[Succession] = []
        refused: Ballot | None = None
        failure: DiosError | None = None
        for copy in self._copies:
            asked = change()
            try:
                copy.update(asked)
            except DiosError as error:
                failure = error
                continue
            if asked.before.promised > ballot:
                refused = max(refused or ballot, asked.before.promised)
            else:
                successions.append(asked.before)
        if refused is not None and len(successions) < self._needed:
            raise _OvertakenError(refused)
        self._enough(len(successions), self._needed, failure)
        return successions

    def _tell_moved(self, successors: Successors) -> None:
        """Mark the former copies: their successors have everything, so they drop their entries."""

        def change(data: bytes) -> bytes | None:
            _, succession = decode_whole(data)
            told = replace(succession, accepted=succession.promised, successors=successors, moved=True)
            return None if succession.moved else encode({}, told)

        for copy in self._copies:
            with suppress(DiosError):
                copy.update(change)

    # -- the majority -----------------------------------------------------------------------------
    def _read(self, wanted: int, needed: int = 0) -> list[Entries]:
        """Return the first ``wanted`` copies that answer, and at least ``needed`` (default: all wanted)."""
        contents: list[Entries] = []
        failure: DiosError | None = None
        for copy in tuple(self._copies):
            if len(contents) == wanted:
                break
            try:
                contents.append(decode(copy.read()))
            except DiosError as error:
                failure = error
                # Ask it last from now on, because a call to an unreachable node takes time.
                self._copies.remove(copy)
                self._copies.append(copy)
        self._enough(len(contents), needed or wanted, failure)
        return contents

    def _merge(self, entries: Entries, copies: Sequence[IndexCopy] | None = None) -> None:
        """Add entries to every copy that answers, and drop names that became unused."""
        copies = self._copies if copies is None else copies
        needed = len(copies) // 2 + 1
        out_of_use: set[bytes] = set()
        beaten = dict.fromkeys(entries, 0)
        reached = 0
        failure: DiosError | None = None
        for copy in copies:
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
        self._enough(reached, needed, failure)
        for key, count in beaten.items():
            name = entries[key].name
            if name is not None and count >= needed:
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


class _OvertakenError(Exception):
    """A copy has promised to accept nothing below a higher ballot."""

    def __init__(self, promised: Ballot) -> None:
        super().__init__(promised)
        self.promised: Final = promised


class _MovedError(Exception):
    """The successors of a copy have all entries."""

    def __init__(self, successors: Successors) -> None:
        super().__init__(successors)
        self.successors: Final = successors


class _Promise:
    """The change of a copy that promises to accept nothing below a ballot."""

    def __init__(self, ballot: Ballot) -> None:
        self._ballot: Final = ballot
        self.before = Succession()

    def __call__(self, data: bytes) -> bytes | None:
        """Return the copy's bytes with the promise; None if it has made a higher one."""
        entries, self.before = _whole(data)
        if self.before.promised > self._ballot:
            return None
        return encode(entries, replace(self.before, promised=self._ballot))


class _Accept:
    """The change of a copy that accepts successors; ``entries`` get those that it has then, and for good."""

    def __init__(self, ballot: Ballot, successors: Successors, entries: list[Entries]) -> None:
        self._ballot: Final = ballot
        self._successors: Final = successors
        self._entries: Final = entries
        self.before = Succession()

    def __call__(self, data: bytes) -> bytes | None:
        """Return the sealed copy's bytes; None if it has promised not to accept."""
        entries, self.before = _whole(data)
        if self.before.promised > self._ballot:
            return None
        self._entries.append(entries)
        return encode(entries, Succession(self._ballot, self._ballot, self._successors))


def _whole(data: bytes) -> tuple[Entries, Succession]:
    """Return the content of a copy in an agreement; _MovedError if it is over."""
    entries, succession = decode_whole(data)
    if succession.moved and succession.successors is not None:
        raise _MovedError(succession.successors)
    return entries, succession


class _Merge:
    """Return the change of one copy; it may be called several times, with the copy's content then."""

    def __init__(self, entries: Entries) -> None:
        self._entries: Final = entries
        self.displaced: set[bytes] = set()
        self.beaten: set[str] = set()

    def __call__(self, data: bytes) -> bytes | None:
        """Return the copy's bytes with the entries; None if it has them, or newer ones, already."""
        held, succession = decode_whole(data)
        if succession.successors is not None:
            raise SealedError(succession.successors)
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
        # A promise must not be forgotten.
        return encode(held, succession if succession.promised > (0, 0) else None) if changed else None


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
