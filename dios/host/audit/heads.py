"""Heads of audit logs: signed lines of a node about the newest record of its log that is on disk.

A chain of digests alone cannot show that another chain replaced it. The heads can, if they are kept where the
log's writer cannot change them: other nodes keep them (``dios.host.peers.heads``), and so does a file of the
operator's choice. ``docs/formats.md`` has the format; ``signing`` signs heads, ``reader`` compares them
with a log.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from dios import limits
from dios.errors import ProtocolError
from dios.transport.identity import durable_files

FOLDER: Final = "audit-heads"
"""The folder of a node's data directory with its own heads and those of other nodes."""
OWN: Final = "own"
_WORD: Final = "dios-audit-head-1"
_INTEGER_MAX: Final = 2**63 - 1
_LINE: Final = re.compile(
    rf"{_WORD} ([0-9a-f]{{1,16}}) (\d{{1,19}}) (\d{{1,19}}) (\d{{1,19}}) ([0-9a-f]{{64}}) (\d{{1,19}}) "
    r"([0-9a-f]{64}) ([0-9a-f]{128})",
    re.ASCII,
)


class AuditHead(NamedTuple):
    """A statement of ``node`` (0: a node without a cluster) that its log has this number of records.

    ``digest`` is that of the last of them. ``era`` is the number of losses that the node's operator has
    accepted, and the records before ``since`` are those of earlier eras that were not lost.
    """

    node: int
    era: int
    since: int
    records: int
    digest: bytes
    time_ns: int
    key: bytes
    """The public key of the signer, 32 bytes."""
    signature: bytes

    @property
    def order(self) -> tuple[int, int]:
        """Of two heads of one node the one with the higher order is newer."""
        return self.era, self.records

    @property
    def signed_text(self) -> str:
        """The part of the line that is signed."""
        return (
            f"{_WORD} {self.node:x} {self.era} {self.since} {self.records} {self.digest.hex()} "
            f"{self.time_ns} {self.key.hex()}"
        )

    @property
    def line(self) -> str:
        """The head as a line of text, without the line's end."""
        return f"{self.signed_text} {self.signature.hex()}"


def parse_head(line: str) -> AuditHead:
    """Return the head of a line; its signature is not checked. Raise ProtocolError."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ProtocolError("this line is not the head of an audit log")
    node, era, since, records, digest, time_ns, key, signature = match.groups()
    head = AuditHead(
        int(node, 16),
        int(era),
        int(since),
        int(records),
        bytes.fromhex(digest),
        int(time_ns),
        bytes.fromhex(key),
        bytes.fromhex(signature),
    )
    if head.line != line or max(head[:4]) > _INTEGER_MAX or head.time_ns > _INTEGER_MAX:
        raise ProtocolError("the numbers in the head of an audit log are not as a node writes them")
    if not head.since <= head.records or not head.records:
        raise ProtocolError("the head of an audit log has fewer records than it keeps of earlier eras")
    return head


class StoredHeads(NamedTuple):
    """The heads in a file, oldest first, and the number of its lines that are no heads."""

    heads: tuple[AuditHead, ...]
    damaged: int

    @property
    def newest(self) -> AuditHead | None:
        """The newest head, or None."""
        return max(self.heads, key=lambda head: head.order, default=None)


def read_heads(path: Path) -> StoredHeads:
    """Return the heads in a file, of very many a part; none if there is no such file. Raise OSError."""
    heads: list[AuditHead] = []
    damaged = 0
    with _regular_file(path) as file:
        while line := file.readline(2 * limits.AUDIT_HEAD_BYTES_MAX):
            try:
                heads.append(_parse_bytes(line))
            except ProtocolError:
                damaged += 1
            if len(heads) > limits.AUDIT_HEADS_READ_MAX:
                heads = _every_second(heads)
    return StoredHeads(tuple(heads), damaged)


def _every_second(heads: list[AuditHead]) -> list[AuditHead]:
    """Return every second head, and if they are few enough, also the last of each era."""
    kept = [
        head
        for place, head in enumerate(heads)
        if place % 2 == 0 or place == len(heads) - 1 or head.era != heads[place + 1].era
    ]
    return kept if len(kept) <= limits.AUDIT_HEADS_READ_MAX * 3 // 4 else [*heads[:-1:2], heads[-1]]


def read_last_head(path: Path) -> StoredHeads:
    """Return the last head in a file that ``append_head`` writes, if there is one. Raise OSError."""
    with _regular_file(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2 * limits.AUDIT_HEAD_BYTES_MAX))
        lines = file.readlines()
    for line in reversed(lines):
        with contextlib.suppress(ProtocolError):
            return StoredHeads((_parse_bytes(line),), 0)
    return StoredHeads((), 0)


def _parse_bytes(line: bytes) -> AuditHead:
    """Return the head in a line of a file, also after a head of which a crash has left a part."""
    text = line.removesuffix(b"\n").decode("ascii", "replace")
    return parse_head(text[max(0, text.rfind(_WORD)) :])


def _regular_file(path: Path) -> BinaryIO:
    """Open a file to read; an empty one in place of none, and of a pipe or a device. Raise OSError."""
    try:
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        return io.BytesIO()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    return io.BytesIO()


def with_head(heads: Sequence[AuditHead], head: AuditHead) -> tuple[AuditHead, ...]:
    """Return the heads with another, at most AUDIT_HEADS_KEPT_MAX: those of older records less densely.

    The oldest and the newest head always stay, and so does the last of each era if there are few eras:
    without it, an accepted loss would be a loss again for the heads of earlier eras.
    """
    kept = sorted({*heads, head}, key=lambda head: head.order)
    while len(kept) > limits.AUDIT_HEADS_KEPT_MAX:
        newest = kept[-1].records
        inner = range(1, len(kept) - 1)
        places = [place for place in inner if kept[place].era == kept[place + 1].era] or inner
        del kept[min(places, key=lambda place: _density(kept, place, newest))]
    return tuple(kept)


def _density(heads: Sequence[AuditHead], place: int, newest: int) -> float:
    """Return the gap that the removal of a head leaves, in relation to the age of its records."""
    gap = heads[place + 1].records - heads[place - 1].records
    return abs(gap) / (abs(newest - heads[place].records) + 1)


def write_heads(path: Path, heads: Iterable[AuditHead]) -> None:
    """Replace the file of heads durably. Raise OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    durable_files.write(path, "".join(f"{head.line}\n" for head in heads).encode())


def append_head(path: Path, head: AuditHead) -> None:
    """Append a head to a file that is only ever extended; create it if necessary. Raise OSError."""
    fd = _open_without_waiting(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, f"{head.line}\n".encode())
        with contextlib.suppress(OSError):  # a pipe or a device cannot be synced
            os.fsync(fd)
    finally:
        os.close(fd)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a named pipe that nobody reads would else stop the thread."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


class PublishedHead(NamedTuple):
    """A head with a signature of the node, and the place where it was kept."""

    head: AuditHead
    keeper: str


class KnownHeads(NamedTuple):
    """The known genuine heads of a node's log, and the reasons why others may be missing."""

    published: tuple[PublishedHead, ...] = ()
    unknown: tuple[str, ...] = ()

    def with_others(self, others: KnownHeads) -> KnownHeads:
        """Return these and others together."""
        return KnownHeads(self.published + others.published, self.unknown + others.unknown)

    @property
    def newest(self) -> KnownHeads:
        """The newest head of each keeper in each era."""
        newest: dict[tuple[str, int], PublishedHead] = {}
        for kept in sorted(self.published, key=lambda kept: kept.head.order):
            newest[kept.keeper, kept.head.era] = kept
        return KnownHeads(tuple(newest.values()), self.unknown)


class LogDigests(NamedTuple):
    """The digests of a log by the number of records up to them. The node removed ``first`` records."""

    first: int
    records: int
    digests: Mapping[int, bytes]


class HeadComparison(NamedTuple):
    """The result of comparing published heads with a log.

    ``equal`` is the number of heads that agree with it, and ``agreed`` the number of records up to the last
    of them before ``difference``, the first head that does not agree. ``void`` are heads of which the
    operator accepted the loss, in a later era.
    """

    equal: int
    agreed: int
    difference: PublishedHead | None
    void: tuple[PublishedHead, ...]


def compare_heads(published: Iterable[PublishedHead], log: LogDigests) -> HeadComparison:
    """Compare heads with a log; those of records that the node removed are passed over."""
    ordered = sorted(published, key=lambda kept: (kept.head.records, kept.head.era))
    void = tuple(kept for kept in ordered if _is_void(kept.head, ordered))
    equal = agreed = 0
    for kept in ordered:
        if kept in void or kept.head.records < log.first:
            continue
        if log.digests.get(kept.head.records) != kept.head.digest:
            return HeadComparison(equal, agreed, kept, void)
        equal, agreed = equal + 1, kept.head.records
    return HeadComparison(equal, agreed, None, void)


def _is_void(head: AuditHead, published: Sequence[PublishedHead]) -> bool:
    return any(later.head.era > head.era and later.head.since < head.records for later in published)
