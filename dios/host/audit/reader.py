"""The reading end of the audit log: read it, follow it beside its writer, and verify its chain.

Not for: writing (``dios.host.audit.log``) or the bytes' layout (``docs/audit-format.md``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from dios import limits
from dios.errors import DamagedError
from dios.host.audit.log import (
    DIGEST_BYTES,
    GENESIS,
    HEADER,
    LENGTH,
    FormatError,
    Record,
    chained,
    raw_records,
    segment_path,
    segments,
    unpack_header,
)

_decoder: Final = msgspec.msgpack.Decoder(Record)


class Entry(msgspec.Struct, frozen=True):
    """A record and its place: ``index`` counts from 0 over the whole log, ``offset`` within ``segment``."""

    index: int
    segment: str
    offset: int
    digest: bytes
    record: Record


class Verdict(msgspec.Struct, frozen=True):
    """What ``verify`` found; ``index``, ``segment`` and ``offset`` are those of the first bad record.

    ``head`` chains all good records before it. ``torn_bytes`` at the end are a record that is being written
    or whose writing a crash cut short; that alone is no damage.
    """

    ok: bool
    records: int
    head: str
    problem: str = ""
    index: int = -1
    segment: str = ""
    offset: int = -1
    torn_bytes: int = 0


class AuditReader:
    """The reading end, beside a writer or not: each ``poll`` gives what was flushed since the last one."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._number = 0
        self._offset = 0
        self._index = 0

    def poll(self) -> Iterator[Entry]:
        """The records that are new; raises DamagedError at one that cannot be read. Checks no digests."""
        while True:
            if not self._number:
                found = segments(self._folder)
                if not found:
                    return
                self._number = int(found[0].stem)
            path = segment_path(self._folder, self._number)
            # Looked at before reading: whoever begins the next segment has finished this one.
            has_next = segment_path(self._folder, self._number + 1).exists()
            yield from self._read(path)
            if not has_next:
                return
            self._number, self._offset = self._number + 1, 0

    def _read(self, path: Path) -> Iterator[Entry]:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if not self._offset:
                header = file.read(HEADER.size)
                if len(header) < HEADER.size:
                    return
                try:
                    _, self._index, _ = unpack_header(header)
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
                        f"{path}: record {index} at byte {base + offset} cannot be read: {error}; "
                        "`dios audit verify` says more"
                    ) from None
                yield Entry(index, path.name, base + offset, digest, record)


def read(folder: Path, *, since: int = 0) -> Iterator[Entry]:
    """Every record of the log in ``folder`` from index ``since`` on; raises DamagedError as it goes."""
    return (entry for entry in AuditReader(folder).poll() if entry.index >= since)


_LOST: Final = (
    "the record with the given digest is not in this log: records were cut off, or the chain is another"
)


class _Chain:
    """The chain as far as it is known to be whole."""

    def __init__(self, anchor: str) -> None:
        self.anchor: Final = anchor
        self.index = 0
        self.digest = GENESIS
        self.seen = not anchor or anchor == GENESIS.hex()
        self.offset = 0

    def verdict(self, torn_bytes: int = 0) -> Verdict:
        """The verdict on a chain without a bad record."""
        problem = "" if self.seen else _LOST
        return Verdict(self.seen, self.index, self.digest.hex(), problem, torn_bytes=torn_bytes)

    def follow(self, data: bytes, number: int) -> None:
        """Check one segment; raises FormatError with ``offset`` at the first bad place."""
        self.offset = 0
        _check_header(data, number, self.index, self.digest)
        self.offset = HEADER.size
        for offset, body, stored in raw_records(data, HEADER.size):
            self.offset = offset
            if chained(self.digest, body) != stored:
                raise FormatError("its digest does not follow from the record before it and its bytes")
            self.offset = offset + LENGTH.size + len(body) + DIGEST_BYTES
            self.index, self.digest = self.index + 1, stored
            self.seen = self.seen or stored.hex() == self.anchor

    def finish(self, data: bytes, *, last: bool) -> int:
        """How many bytes after the last whole record may be torn; raises FormatError when none may."""
        torn = len(data) - self.offset
        if torn and not (last and _may_be_torn(data, self.offset)):
            raise FormatError("there is no whole record here, but more bytes follow")
        return torn


def verify(folder: Path, *, anchor: str = "") -> Verdict:
    """Recompute the whole chain of the log in ``folder``.

    ``anchor`` is a head digest seen earlier (hex): the log must still contain the record it belongs to,
    which shows that nobody cut records off the end or computed a new chain since then.
    """
    chain, torn = _Chain(anchor), 0
    found = segments(folder)
    for number, path in enumerate(found, 1):
        data = path.read_bytes()
        last = number == len(found)
        if last and len(data) < HEADER.size:
            return chain.verdict(len(data))
        try:
            chain.follow(data, number)
            torn = chain.finish(data, last=last)
        except FormatError as damage:
            place = (chain.index, path.name, chain.offset)
            return Verdict(False, chain.index, chain.digest.hex(), str(damage), *place)
    return chain.verdict(torn)


def _check_header(data: bytes, number: int, first: int, previous: bytes) -> None:
    """Raise FormatError unless the segment continues exactly what came before it."""
    if len(data) < HEADER.size:
        raise FormatError("the segment ends within its header")
    stored_number, stored_first, stored_previous = unpack_header(data)
    if stored_number != number:
        raise FormatError(f"segment {number} is missing: this one says it is {stored_number}")
    if (stored_first, stored_previous) != (first, previous):
        raise FormatError(
            f"it continues another record than {first - 1}: the segment before it lost or gained some"
        )


def _may_be_torn(data: bytes, offset: int) -> bool:
    """Whether the rest of the newest segment can be the beginning of one record."""
    if len(data) - offset < LENGTH.size:
        return True
    (length,) = LENGTH.unpack_from(data, offset)
    return 0 < length <= limits.AUDIT_RECORD_BYTES_MAX or not any(data[offset:])
