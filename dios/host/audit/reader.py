"""Reading the audit log: read it, follow it while it is written, and verify its chain.

Writing is in ``dios.host.audit.log``; ``docs/formats.md#the-audit-log`` describes the bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from dios import limits
from dios.errors import DamagedError
from dios.host.audit.heads import HeadComparison, LogDigests, PublishedHead, compare_heads
from dios.host.audit.log import (
    DIGEST_BYTES,
    GENESIS,
    HEADER,
    LENGTH,
    REMOVAL,
    AuditRecord,
    FormatError,
    chained,
    raw_records,
    segment_path,
    segments,
    unpack_header,
)

_decoder: Final = msgspec.msgpack.Decoder(AuditRecord)


class AuditEntry(msgspec.Struct, frozen=True):
    """A record and its place: ``index`` counts over the whole log, ``offset`` is within ``segment``."""

    index: int
    segment: str
    offset: int
    digest: bytes
    record: AuditRecord


class Verdict(msgspec.Struct, frozen=True):
    """The result of ``verify``. ``index``, ``segment`` and ``offset`` are those of the first bad record.

    ``head`` is the digest of the last good record before it. ``torn_bytes`` at the end belong to a record
    that is being written or whose writing a crash interrupted; they alone are no damage. ``first`` is the
    index of the oldest record that is kept: the node removed those before it, and a record says so.
    ``heads`` is the number of signed heads that agree with the log, and ``lost`` says which losses the
    operator accepted. ``unknown`` are the reasons why further heads were not compared; the caller of
    ``verify`` adds them.
    """

    ok: bool
    records: int
    head: str
    problem: str = ""
    index: int = -1
    segment: str = ""
    offset: int = -1
    torn_bytes: int = 0
    first: int = 0
    heads: int = 0
    lost: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class AuditReader:
    """A reader that can run while the log is written: ``poll`` yields newly flushed records.

    With ``segments_max`` above 0 it begins with the oldest of the newest segments of this number.
    """

    def __init__(self, folder: Path, *, segments_max: int = 0) -> None:
        self._folder: Final = folder
        newest = segments(folder)[-segments_max:] if segments_max else []
        self._number = int(newest[0].stem) if newest else 0
        self._offset = 0
        self._index = 0

    def poll(self) -> Iterator[AuditEntry]:
        """Yield new records. Raise DamagedError at a record that cannot be decoded. Checks no digests."""
        while True:
            if not self._number:
                paths = segments(self._folder)
                if not paths:
                    return
                self._number = int(paths[0].stem)
            path = segment_path(self._folder, self._number)
            # Checked before reading: when the next segment exists, the present segment is complete.
            has_next = segment_path(self._folder, self._number + 1).exists()
            yield from self._read(path)
            if not has_next:
                # A segment that was removed meanwhile is skipped, with those after it.
                if not path.exists() and self._skip_removed():
                    continue
                return
            self._number, self._offset = self._number + 1, 0

    def _skip_removed(self) -> bool:
        """Continue with the oldest segment that still exists; return False if there is none."""
        paths = [path for path in segments(self._folder) if int(path.stem) > self._number]
        if paths:
            self._number, self._offset = int(paths[0].stem), 0
        return bool(paths)

    def _read(self, path: Path) -> Iterator[AuditEntry]:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if not self._offset:
                header = file.read(HEADER.size)
                if len(header) < HEADER.size:
                    return
                try:
                    _, _, self._index, _ = unpack_header(header)
                except FormatError as damage:
                    raise DamagedError(f"{path}: {damage}") from None
                self._offset = HEADER.size
            file.seek(self._offset)
            base = self._offset
            for offset, body, digest in raw_records(file.read(), 0):
                self._offset = base + offset + LENGTH.size + len(body) + DIGEST_BYTES
                index, self._index = self._index, self._index + 1
                try:
                    record = _decoder.decode(body)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise DamagedError(
                        f"{path}: cannot decode record {index} at byte {base + offset}: {error}. "
                        "Run `dios audit verify` for details."
                    ) from None
                yield AuditEntry(index, path.name, base + offset, digest, record)


def read(folder: Path, *, since: int = 0) -> Iterator[AuditEntry]:
    """Yield the records of the log in ``folder`` from index ``since`` on. Raise DamagedError on the way."""
    return (entry for entry in AuditReader(folder).poll() if entry.index >= since)


_LOST: Final = (
    "no record of this log has the given digest: the end of the log was cut off, or this is another log"
)
_LOST_OR_REMOVED: Final = (
    "no record of this log has the given digest: the record was removed (all before record {first} were), "
    "the end of the log was cut off, or this is another log"
)
_UNSTATED: Final = "the records before this one were removed, and no record of the node says so"
_REMOVAL_MARK: Final = b"".join(msgspec.msgpack.encode(word) for word in REMOVAL)


class _Chain:
    """The part of the chain that has been verified."""

    def __init__(self, anchor: str, published: Sequence[PublishedHead] = ()) -> None:
        self.anchor: Final = anchor
        self._published: Final = published
        self._wanted: Final = frozenset(kept.head.records for kept in published)
        self._digests: Final[dict[int, bytes]] = {}
        self.first = 0
        self.index = 0
        self.digest = GENESIS
        self.seen = not anchor or anchor == GENESIS.hex()
        self.offset = 0
        self._ends: Final[dict[int, str]] = {}
        self._stated: Final[dict[int, str]] = {}

    def verdict(self, torn_bytes: int = 0) -> Verdict:
        """Return the verdict on a chain without a bad record."""
        problem, place = "" if self.seen else _LOST, -1
        if not self.seen and self.first:
            problem = _LOST_OR_REMOVED.format(first=self.first)
        compared = compare_heads(self._published, LogDigests(self.first, self.index, self._digests))
        if compared.difference is not None and not problem:
            problem, place = difference_text(compared, self.index), compared.agreed
        return Verdict(
            not problem,
            self.index,
            self.digest.hex(),
            problem,
            index=place,
            torn_bytes=torn_bytes,
            first=self.first,
            heads=compared.equal,
            lost=tuple(_loss_text(kept) for kept in compared.void),
        )

    def begin(self, data: bytes) -> None:
        """Begin with the oldest segment, whose header says what it continues. Raise FormatError."""
        if len(data) >= HEADER.size:
            _, number, first, previous = unpack_header(data)
            if number > 1:
                self.first, self.index, self.digest = first, first, previous

    def follow(self, data: bytes, number: int) -> None:
        """Verify one segment. Raise FormatError with ``offset`` at the first bad place."""
        self.offset = 0
        _check_header(data, number, self.index, self.digest)
        self._digests[self.index] = self.digest
        self._ends[self.index] = self.digest.hex()
        self.offset = HEADER.size
        for offset, body, stored in raw_records(data, HEADER.size):
            self.offset = offset
            if chained(self.digest, body) != stored:
                raise FormatError("its digest does not match its bytes and the record before it")
            if _REMOVAL_MARK in body:
                self._note_removal(body)
            self.offset = offset + LENGTH.size + len(body) + DIGEST_BYTES
            self.index, self.digest = self.index + 1, stored
            if self.index in self._wanted:
                self._digests[self.index] = stored
            self.seen = self.seen or stored.hex() == self.anchor

    def _note_removal(self, body: bytes) -> None:
        """Note the end of the removed records, as a record of the node states it."""
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            record = _decoder.decode(body)
            if (record.action, record.outcome) == REMOVAL and record.subject.isdigit():
                digest = record.detail[: 2 * DIGEST_BYTES]
                self._stated[int(record.subject)] = digest
                self.seen = self.seen or digest == self.anchor

    def is_beginning_stated(self) -> bool:
        """Return True if nothing is missing before the oldest segment but what the node says it removed.

        The removal may have been interrupted, so that fewer segments are missing than the record states.
        """
        return not self.first or any(
            end >= self.first and self._ends.get(end) == digest for end, digest in self._stated.items()
        )

    def finish(self, data: bytes, *, last: bool) -> int:
        """Return the number of torn bytes at the end. Raise FormatError if they cannot be a torn record."""
        torn = len(data) - self.offset
        if torn and not (last and _may_be_torn(data, self.offset)):
            raise FormatError("the record here is incomplete, but more bytes follow")
        return torn


def difference_text(compared: HeadComparison, records: int) -> str:
    """Return the first difference between published heads and a log of ``records`` records in words."""
    assert compared.difference is not None, "the caller checks it"  # noqa: S101 - a broken promise of ours
    head, keeper = compared.difference
    when = datetime.fromtimestamp(head.time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if head.records > records:
        return (
            f"the log has {records} records, but at {when} this node published the head of {head.records} "
            f"({keeper}): records from {compared.agreed} on were lost, removed or changed"
        )
    return (
        f"record {head.records - 1} is not the one of which this node published the digest at {when} "
        f"({keeper}): records from {compared.agreed} on were changed, removed or added"
    )


def _loss_text(kept: PublishedHead) -> str:
    return (
        f"the loss of records up to {kept.head.records}, with the digest {kept.head.digest.hex()}, was "
        f"accepted ({kept.keeper})"
    )


def digests_after(folder: Path, counts: Collection[int]) -> LogDigests:
    """Return the digests after these numbers of records, without checking the chain.

    Only the segments with such records are read. The records of a segment without a good header have no
    digests.
    """
    digests: dict[int, bytes] = {}
    first, index = 0, 0
    paths = segments(folder)
    for path, following in itertools.zip_longest(paths, paths[1:]):
        with path.open("rb") as file:
            position = _position_of(file)
            if position is None:
                continue
            index, digest = position
            digests[index] = digest
            first = index if path == paths[0] else first
            end = None if following is None else _end_of(following)
            if end is not None and not any(index < count < end for count in counts):
                continue
            for _, _, stored in raw_records(file.read(), 0):
                index += 1
                if index in counts:
                    digests[index] = stored
    return LogDigests(first, index, digests)


def _end_of(following: Path) -> int | None:
    """Return the index after the last record of the segment before ``following``; None if it says nothing."""
    with following.open("rb") as file:
        position = _position_of(file)
    return None if position is None else position[0]


def _position_of(segment: BinaryIO) -> tuple[int, bytes] | None:
    """Return the index of a segment's first record, and the digest before it; None without a good header."""
    with contextlib.suppress(FormatError, struct.error):
        _, _, first, previous = unpack_header(segment.read(HEADER.size))
        return first, previous
    return None


def verify(folder: Path, *, anchor: str = "", published: Sequence[PublishedHead] = ()) -> Verdict:
    """Verify the whole chain of the log in ``folder``.

    ``anchor`` is a head digest from an earlier time (hex). The log must still contain its record. This shows
    that since then no records were cut off the end and no new chain was computed. The log must likewise agree
    with the heads in ``published``, of which the caller has checked the signatures.
    """
    chain, torn = _Chain(anchor, published), 0
    paths = segments(folder)
    oldest = int(paths[0].stem) if paths else 1
    for number, path in enumerate(paths, oldest):
        data = path.read_bytes()
        last = path == paths[-1]
        if last and len(data) < HEADER.size:
            torn = len(data)
            break
        try:
            if number == oldest:
                chain.begin(data)
            chain.follow(data, number)
            torn = chain.finish(data, last=last)
        except FormatError as damage:
            place = (chain.index, path.name, chain.offset)
            return Verdict(False, chain.index, chain.digest.hex(), str(damage), *place)
    if not chain.is_beginning_stated():
        return Verdict(
            False, chain.index, chain.digest.hex(), _UNSTATED, chain.first, paths[0].name, HEADER.size
        )
    return chain.verdict(torn)


def _check_header(data: bytes, number: int, first: int, previous: bytes) -> None:
    """Raise FormatError unless the segment continues exactly the segment before it."""
    if len(data) < HEADER.size:
        raise FormatError("the segment ends within its header")
    _, stored_number, stored_first, stored_previous = unpack_header(data)
    if stored_number != number:
        raise FormatError(f"segment {number} is missing: this is segment {stored_number}")
    if (stored_first, stored_previous) != (first, previous):
        raise FormatError(
            f"it does not continue record {first - 1}: records of the segment before were removed or added"
        )


def _may_be_torn(data: bytes, offset: int) -> bool:
    """Return True if the end of the newest segment can be the beginning of one record."""
    if len(data) - offset < LENGTH.size:
        return True
    (length,) = LENGTH.unpack_from(data, offset)
    return 0 < length <= limits.AUDIT_RECORD_BYTES_MAX or not any(data[offset:])
