"""The stored records of a backup: the snapshots, and lists of files.

``docs/backup.md#the-format-of-backups`` describes them. They are stored encrypted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Annotated, Final, TypeVar

import msgspec

from dios import limits
from dios.errors import InvalidError
from dios.lib.packs.chunks import ChunkPlace
from dios.lib.packs.failures import DamagedBackupError
from dios.wire.fields import Secrecy

FORMAT_VERSION: Final = 1
"""The version of lists of files and of snapshots."""
SNAPSHOT_BYTES_MAX: Final = 64 * limits.MIB
SNAPSHOTS_MAX: Final = 100_000
SNAPSHOTS: Final = "snapshots"
SNAPSHOT_MAGIC: Final = b"DIOSBKS1"
_SNAPSHOT_FILE: Final = re.compile(r"[0-9]{10}")

_Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Natural = Annotated[int, msgspec.Meta(ge=0)]
_R = TypeVar("_R", bound=msgspec.Struct)


class RecordKind(enum.IntEnum):
    """The kind of an entry of a catalogue."""

    FILE = 0
    LOG = 1
    DIRECTORY = 2


class FileRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file, log or directory of a group, as it was when it was read.

    ``object_id`` and ``version`` identify the bytes on the node that was read: equal ones need no reading.
    ``replicas`` is the promise of a single file; 0 for none. ``secrecy`` are the tags of its objects. Only a
    record with tags has this element, so that programs which know no labels refuse such a list and no other.
    """

    kind: RecordKind
    path: str
    name: bytes
    size: _Natural
    put_ns: int
    object_id: int
    version: int
    chunks: tuple[ChunkPlace, ...]
    replicas: _Natural = 0
    apart: bool = False
    secrecy: Secrecy = ()

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"FileRecord({self.path!r}, {self.size} bytes)"


class FileList(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Everything in a group's catalogue; ``packs`` are the ids of the packs of the chunks."""

    version: int
    packs: tuple[_Digest, ...]
    files: Annotated[tuple[FileRecord, ...], msgspec.Meta(max_length=limits.CATALOGUE_ENTRIES_MAX)]


class GroupRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A group in a snapshot: its alias and name, and the chunks of its encoded list of files."""

    alias: str
    name: bytes
    files: _Natural
    size: _Natural
    replicas: _Natural
    apart: bool
    packs: tuple[_Digest, ...]
    chunks: tuple[ChunkPlace, ...]

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"GroupRecord({self.alias!r}, {self.files} files)"


class Snapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One backup. ``previous`` is the digest of the snapshot before it, or empty.

    ``left_out`` is the number of files that could not be read. The last two have the keyring's names.
    """

    version: int
    repository: bytes
    sequence: _Natural
    time_ns: int
    previous: bytes
    left_out: _Natural
    groups: tuple[GroupRecord, ...]
    keyring_groups: dict[str, bytes]
    keyring_objects: dict[str, bytes]

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"Snapshot({self.sequence}, {len(self.groups)} groups)"


def encode(record: FileList | Snapshot) -> bytes:
    """Return the stored form of a record, before it is encrypted."""
    if isinstance(record, FileList):
        rows = [msgspec.structs.astuple(file_record) for file_record in record.files]
        return msgspec.msgpack.encode(
            (record.version, record.packs, [row if row[-1] else row[:-1] for row in rows])
        )
    return msgspec.msgpack.encode(record)


def decode_list(data: bytes) -> FileList:
    """Return a list of files. Raises DamagedBackupError."""
    file_list = _decoded(data, FileList, "a list of files")
    _require_places(file_list.packs, (place for record in file_list.files for place in record.chunks))
    return file_list


def decode_snapshot(data: bytes) -> Snapshot:
    """Return a snapshot. Raises DamagedBackupError."""
    snapshot = _decoded(data, Snapshot, "a snapshot")
    for group in snapshot.groups:
        _require_places(group.packs, group.chunks)
    return snapshot


def _decoded(data: bytes, kind: type[_R], subject: str) -> _R:
    try:
        parts = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
        number = msgspec.msgpack.decode(parts[0] if parts else b"", type=int)
        if number != FORMAT_VERSION:
            raise InvalidError(
                f"{subject} has version {number}, this program reads {FORMAT_VERSION}. Update it."
            )
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DamagedBackupError(
            f"{subject} cannot be read: {error}. See docs/backup.md#the-format-of-backups."
        ) from None


def _require_places(packs: tuple[bytes, ...], chunks: Iterable[ChunkPlace]) -> None:
    count = len(packs)
    if any(place.pack >= count for place in chunks):
        raise DamagedBackupError("a chunk names a pack that its list does not have")


def snapshot_path(sequence: int) -> str:
    """Return the place of a snapshot."""
    return f"{SNAPSHOTS}/{sequence:010}"


def sequences(names: list[str]) -> list[int]:
    """Return the numbers of the snapshots among the names of files, in order."""
    return sorted(int(name) for name in names if _SNAPSHOT_FILE.fullmatch(name))[-SNAPSHOTS_MAX:]
