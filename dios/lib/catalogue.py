"""Catalogues: the list of the objects that a user put into a group, to find them again by file name.

A node never lists names, because names are capabilities. A catalogue is an ordinary durable object of the
group, written by ``dios put`` and the file system, with the names that the user stored; a task that may read
it has them all.

``dios.lib.files`` edits catalogues: read, change, write under EXCL if nobody wrote in between, else again.
``docs/files.md`` shows their use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar

import msgspec

from dios import limits
from dios.client.sync.node import Reference
from dios.errors import Busy, Conflict, DamagedError, InvalidError, LimitError
from dios.lib.decoding import decoded
from dios.lib.replicated_record.frame import content_of
from dios.lib.retrying import Pauses
from dios.wire.types import Proximity, Semantics

V = TypeVar("V")

FORMAT_VERSION: Final = 5
"""Version 2 added the digests, version 3 files in parts, version 4 tiered files, version 5 notes.

A catalogue has the lowest version, from 2 on, that can have its files. Version 1 is read, too.
"""

_WITHOUT_PARTS: Final = 2
_WITH_PARTS: Final = 3
_WITH_TIERS: Final = 4
_VERSIONS: Final = frozenset({1, _WITHOUT_PARTS, _WITH_PARTS, _WITH_TIERS, FORMAT_VERSION})
_SHOWN_CHARACTERS: Final = 200
_PART_BYTES: Final = limits.NAME_BYTES + limits.DIGEST_BYTES
_UNKNOWN: Final = bytes(limits.DIGEST_BYTES)
_MARK_BYTES: Final = 32
_MANIFEST_BYTES_MAX: Final = 16 * limits.KIB

_Parts = Annotated[bytes, msgspec.Meta(max_length=_PART_BYTES * limits.FILE_PARTS_MAX)]


class Part(NamedTuple):
    """An object with some of a file's bytes: its name, and the BLAKE3 of its bytes, empty if unknown."""

    name: bytes
    digest: bytes

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"Part({self.digest.hex()[:12]})"


def pack_parts(parts: Iterable[Part]) -> bytes:
    """Return the stored form of parts: the name and the digest of each, one after the other."""
    return b"".join(part.name + (part.digest or _UNKNOWN) for part in parts)


def _unpacked(packed: bytes) -> tuple[Part, ...]:
    middle = limits.NAME_BYTES
    records = (packed[start : start + _PART_BYTES] for start in range(0, len(packed), _PART_BYTES))
    return tuple(
        Part(record[:middle], b"" if record[middle:] == _UNKNOWN else record[middle:]) for record in records
    )


class Tiered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of a file's bytes in a store outside of the cluster, for ``dios.lib.files.tier``.

    ``place`` is the URL of the store, and the random ``mark`` gives the names of the file's packs there.
    With ``stored`` these are the bytes of the file, else the file is local. ``left`` is True while the other
    side may have something, too: local objects of a stored file, or packs of a local one. ``manifest`` says
    where the list of the file's chunks is; without it whatever the store has under the mark is of no use.

    ========  ======  ============  ================================================
    ``stored``  ``left``  ``manifest``  state
    ========  ======  ============  ================================================
    no        no      no            local, and being stored
    yes       yes     yes           in the store; local objects are being destroyed
    yes       no      yes           in the store
    no        yes     yes           local again, and still in the store
    no        yes     no            local; the packs are being removed
    ========  ======  ============  ================================================
    """

    place: Annotated[str, msgspec.Meta(max_length=limits.TEXT_BYTES_MAX)]
    mark: Annotated[bytes, msgspec.Meta(min_length=_MARK_BYTES, max_length=_MARK_BYTES)]
    stored: bool
    left: bool = False
    manifest: Annotated[bytes, msgspec.Meta(max_length=_MANIFEST_BYTES_MAX)] = b""


class CatalogueEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One stored file: its path, its name, its size, its time (nanoseconds), the BLAKE3 of its bytes.

    ``digest`` is empty if it is not known: of directories, logs, and files that version 1 listed. A large
    file has ``packed_parts``, objects with ``part_bytes`` each and the rest in the last one. Its ``name`` is
    that of the first part. A file with ``tier`` is, was or will be in a store outside of the cluster; the
    objects of a stored one are destroyed.
    """

    file: str
    name: bytes
    size: int
    put_ns: int
    digest: Annotated[bytes, msgspec.Meta(max_length=limits.DIGEST_BYTES)] = b""
    part_bytes: Annotated[int, msgspec.Meta(ge=0, le=limits.BLOB_BYTES_MAX)] = 0
    packed_parts: _Parts = b""
    tier: Tiered | None = None

    @property
    def in_parts(self) -> bool:
        """True if the file is stored in several objects."""
        return bool(self.packed_parts)

    @property
    def tiered(self) -> bool:
        """True if the bytes are in a store outside of the cluster, and must be brought back to be read."""
        return self.tier is not None and self.tier.stored

    @property
    def in_store(self) -> bool:
        """True if a store has the bytes: of a tiered file, or of a local one that was brought back."""
        return self.tier is not None and bool(self.tier.manifest)

    @property
    def names(self) -> list[bytes]:
        """The names of all objects of the file; none of a directory and of a tiered file."""
        return [] if self.tiered else self.local_names

    @property
    def local_names(self) -> list[bytes]:
        """The names of all objects that the file has, or had before it was tiered."""
        if not self.packed_parts:
            return [self.name] if self.name else []
        return [part.name for part in _unpacked(self.packed_parts)]

    @property
    def packed_objects(self) -> bytes:
        """The name and the digest of each object, packed as parts; b"" for a directory and a tiered file."""
        if self.tiered:
            return b""
        return self.packed_parts or (pack_parts([Part(self.name, self.digest)]) if self.name else b"")

    @property
    def objects(self) -> tuple[Part, ...]:
        """The name and the digest of each object of the file; none of a directory and of a tiered file."""
        return _unpacked(self.packed_objects)

    def parts(self) -> tuple[Part, ...]:
        """Return the parts in their order; DamagedError if they cannot be those of a file of this size."""
        parts = _unpacked(self.packed_parts)
        least, most = self.part_bytes * (len(parts) - 1), self.part_bytes * len(parts)
        whole = (
            len(parts) * _PART_BYTES == len(self.packed_parts) and parts[:1] and parts[0].name == self.name
        )
        if not whole or not least < self.size <= most or not all(part.digest for part in parts):
            raise DamagedError(
                f"the catalogue is damaged: the parts of {self.file!r} are not {self.size} bytes"
            )
        return parts

    def size_of_part(self, number: int) -> int:
        """Return the number of bytes of the part with this number, from 0 on."""
        return min(self.part_bytes, self.size - number * self.part_bytes)

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"Entry({self.file!r}, {self.size} bytes)"


class UnfinishedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A large file that is being stored, or whose storing was interrupted: nobody can read it yet.

    ``run`` is a random mark of the program that stores it, and ``size`` is 0 if it is not known. The parts
    are in no order; those without a digest may be empty.
    """

    file: str
    run: Annotated[bytes, msgspec.Meta(max_length=limits.DIGEST_BYTES)]
    size: int
    begun_ns: int
    part_bytes: Annotated[int, msgspec.Meta(ge=0, le=limits.BLOB_BYTES_MAX)]
    packed_parts: _Parts = b""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that were created."""
        return _unpacked(self.packed_parts)

    @property
    def stored_bytes(self) -> int:
        """The number of bytes that are stored; those of the newest parts are not counted yet."""
        stored = self.part_bytes * sum(bool(part.digest) for part in self.parts)
        return min(stored, self.size) if self.size else stored

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"Unfinished({self.file!r}, {len(self.parts)} parts)"


class Note(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A former file whose objects are to be destroyed, when each object of ``until`` is kept.

    ``until`` has the objects of the file that replaced it, packed as parts. An object is kept if as many
    replicas as are promised have the bytes of its digest. It is b"" if there is nothing to wait for: the user
    removed the file. ``noted_ns`` is the time of the note.
    """

    former: CatalogueEntry
    until: _Parts
    noted_ns: int

    @property
    def replacement(self) -> tuple[Part, ...]:
        """The objects that have to be kept before those of the former file are destroyed."""
        return _unpacked(self.until)

    def without_store(self) -> Note:
        """Return the note of the file's objects alone."""
        return msgspec.structs.replace(self, former=msgspec.structs.replace(self.former, tier=None))

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"Note({self.former.file!r}, {len(self.replacement)} objects)"


class Listed(NamedTuple):
    """The content of a catalogue: its files and directories, unfinished files, and notes of former ones."""

    entries: tuple[CatalogueEntry, ...]
    unfinished: tuple[UnfinishedFile, ...] = ()
    notes: tuple[Note, ...] = ()


class _CatalogueContent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    entries: tuple[CatalogueEntry, ...]
    unfinished: (
        Annotated[tuple[UnfinishedFile, ...], msgspec.Meta(max_length=limits.CATALOGUE_UNFINISHED_MAX)] | None
    ) = None
    notes: Annotated[tuple[Note, ...], msgspec.Meta(max_length=limits.CATALOGUE_NOTES_MAX)] | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_CatalogueContent).decode
_decode_pieces: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_version: Final = msgspec.msgpack.Decoder(int).decode
_decode_list: Final = msgspec.msgpack.Decoder(
    Annotated[list[msgspec.Raw], msgspec.Meta(max_length=limits.CATALOGUE_ENTRIES_MAX)]
).decode
_decode_entry: Final = msgspec.msgpack.Decoder(CatalogueEntry).decode
_decode_noted: Final = msgspec.msgpack.Decoder(
    Annotated[tuple[Note, ...], msgspec.Meta(max_length=limits.CATALOGUE_NOTES_MAX)]
).decode
_NOTES_FIELD: Final = 3
_FIELDS_WITHOUT_PARTS: Final = 5
_FIELDS_WITHOUT_TIER: Final = 7


def encode(
    entries: Iterable[CatalogueEntry],
    unfinished: Iterable[UnfinishedFile] = (),
    notes: Iterable[Note] = (),
) -> bytes:
    """Return the stored form of a catalogue; raises LimitError if it is full."""
    listed, begun, noted = tuple(entries), tuple(unfinished), tuple(notes)
    if len(listed) > limits.CATALOGUE_ENTRIES_MAX:
        raise LimitError(
            f"the catalogue is full: it holds at most {limits.CATALOGUE_ENTRIES_MAX} objects. "
            "Remove some, or put the others into another group."
        )
    if len(begun) > limits.CATALOGUE_UNFINISHED_MAX:
        raise LimitError(
            f"the group has {len(begun) - 1} unfinished files. `dios ls --unfinished` lists them; put them "
            "again, or remove them with `dios rm`."
        )
    rows = list(map(_row, listed))
    packed = sum(len(entry.packed_parts) for entry in listed) + sum(len(file.packed_parts) for file in begun)
    if packed > limits.CATALOGUE_PARTS_MAX * _PART_BYTES:
        raise LimitError(
            f"the catalogue is full: its large files have more than {limits.CATALOGUE_PARTS_MAX} parts. "
            "Remove some, or put the others into another group."
        )
    if noted:
        return _encode((FORMAT_VERSION, rows, begun, _note_rows(noted)))
    if any(entry.tier for entry in listed):
        return _encode((_WITH_TIERS, rows, begun))
    return _encode((_WITH_PARTS, rows, begun) if packed or begun else (_WITHOUT_PARTS, rows))


def _note_rows(notes: Sequence[Note]) -> list[tuple[object, ...]]:
    """Return the stored form of notes; LimitError if they are too many."""
    packed = sum(len(note.former.packed_parts) + len(note.until) for note in notes)
    many = packed > limits.CATALOGUE_NOTES_PARTS_MAX * _PART_BYTES
    if many or len(notes) > limits.CATALOGUE_NOTES_MAX:
        raise LimitError(
            f"the catalogue is full: {len(notes)} former files wait until their replacements are kept. "
            "`dios group describe` shows why replicas are missing; try again when they are made."
        )
    return [(_row(note.former), note.until, note.noted_ns) for note in notes]


def _row(entry: CatalogueEntry) -> tuple[object, ...]:
    """Return the stored form of an entry, without the fields at the end that it does not use."""
    return msgspec.structs.astuple(entry)[: _fields_of(entry)]


def _fields_of(entry: CatalogueEntry) -> int | None:
    """Return the number of fields that are written; None for all."""
    if entry.tier:
        return None
    return _FIELDS_WITHOUT_TIER if entry.packed_parts else _FIELDS_WITHOUT_PARTS


def decode(data: bytes) -> tuple[CatalogueEntry, ...]:
    """Return the entries in the order of their storage; none for an empty object. Raises DamagedError."""
    return decode_all(data).entries


def decode_all(data: bytes) -> Listed:
    """Return the whole content; nothing for an empty object. Raises DamagedError."""
    data = content_of(data)
    if not data:
        return Listed(())
    content = decoded(_decode, data, "the catalogue cannot be read")
    version = content.version
    if version not in _VERSIONS:
        raise _other_version(version)
    present = 2 + (content.unfinished is not None) + (content.notes is not None)
    if present != _fields_of_version(version):
        raise DamagedError(f"the catalogue cannot be read: it has not the fields of version {version}")
    return Listed(content.entries, content.unfinished or (), content.notes or ())


def _fields_of_version(version: int) -> int:
    return 2 + (version >= _WITH_PARTS) + (version >= FORMAT_VERSION)


def _other_version(version: int) -> DamagedError:
    return DamagedError(
        f"the catalogue has version {version}, this program reads {FORMAT_VERSION}. Update it."
    )


def decode_slowly(data: bytes) -> Iterator[CatalogueEntry]:
    """Yield the entries one after the other, so that a reader can do other work between them.

    Raises DamagedError, also after the first entries.
    """
    data = content_of(data)
    if not data:
        return
    try:
        pieces = _decode_pieces(data)
        version = _decode_version(pieces[0]) if pieces else 0
        if version in _VERSIONS and len(pieces) == _fields_of_version(version):
            yield from map(_decode_entry, _decode_list(pieces[1]))
            return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"the catalogue cannot be read: {error}") from None
    raise _other_version(version)


def decode_notes(data: bytes) -> tuple[Note, ...]:
    """Return the notes alone, without decoding the entries. Raises DamagedError."""
    data = content_of(data)
    try:
        pieces = _decode_pieces(data) if data else []
        return _decode_noted(pieces[_NOTES_FIELD]) if len(pieces) > _NOTES_FIELD else ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"the catalogue cannot be read: {error}") from None


class ReplaceableObject(Protocol[V]):
    """An object that is read and replaced as a whole; ``V`` is what identifies its versions."""

    def read(self) -> tuple[bytes, V]:
        """Return content and version; Conflict if a writer came between."""

    def replace(self, data: bytes, version: V) -> V | None:
        """Write the content and return its version; Conflict if it was not ``version`` any more.

        Return None if others have changed the content again since.
        """


class CatalogueObject(ReplaceableObject[V], Protocol[V]):
    """The object of a catalogue."""

    def version(self) -> V | None:
        """Return the present version without a call; None if that is not possible."""

    def likely_version(self) -> V | None:
        """Return a version without asking other nodes, which may have a later one; None if not possible."""

    def read_likely(self) -> tuple[bytes, V] | None:
        """Return content and version, as ``likely_version``."""


class StoredCatalogue:
    """A catalogue in an object of the node."""

    def __init__(self, reference: Reference) -> None:
        self._reference: Final = reference

    def read(self) -> tuple[bytes, int]:
        """Return content and version."""
        with self._reference.read(Semantics.MRSW) as request:
            return bytes(request.view), request.v_w

    def version(self) -> int | None:
        """Return the present version without a call; None if the node does not share it."""
        reference = self._reference
        if reference.proximity > Proximity.NODE or reference.link.page is None or reference.zombie:
            return None
        return reference.v_w

    def replace(self, data: bytes, version: int) -> int:
        """Write the content if nobody wrote since ``version``; return the new version."""
        with self._reference.write(len(data), Semantics.EXCL, blank=True, replace=True) as request:
            if request.v_w != version:
                raise Conflict("another task changed the catalogue")
            request.fill(memoryview(data))
        return request.v_w


def edit(
    stored: ReplaceableObject[V], change: Callable[[tuple[CatalogueEntry, ...]], Iterable[CatalogueEntry]]
) -> None:
    """Replace the entries of a list that is no tree of files, even if others edit it at the same time.

    ``change`` may be called several times. Raises Busy or Conflict after CATALOGUE_EDITS_MAX attempts.
    """
    pauses = Pauses()
    for attempt in range(limits.CATALOGUE_EDITS_MAX):
        try:
            data, version = stored.read()
            stored.replace(encode(change(decode(data))), version)
        except (Busy, Conflict) as conflict:
            if attempt == limits.CATALOGUE_EDITS_MAX - 1:
                raise
            pauses.wait(conflict)
        else:
            return


def matches(entry: CatalogueEntry, text: str) -> bool:
    """Return True if an entry is stored as ``text``: the whole path as it was given, or its last parts."""
    return entry.file == text or entry.file.endswith(f"/{text.lstrip('/')}")


def checked_file(text: str) -> str:
    """Return a path that can be stored; InvalidError with the reason if it cannot."""
    why = why_not_stored(text)
    if why:
        raise InvalidError(f"{shown_path(text)!r} cannot be stored: {why}")
    return text


def why_not_stored(text: str) -> str:
    """Return why a path cannot be stored; empty if it can."""
    if not text:
        return "it is empty"
    if len(text.encode(errors="replace")) > limits.TEXT_BYTES_MAX:
        return f"a path has at most {limits.TEXT_BYTES_MAX} bytes"
    if text.isprintable():
        return ""
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        return "its name is not UTF-8"
    return "it has characters that cannot be shown"


def shown_path(text: str) -> str:
    """Return the end of a path for a message, with the bytes that are not UTF-8 as escapes."""
    shown = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"…{shown[-_SHOWN_CHARACTERS:]}"
