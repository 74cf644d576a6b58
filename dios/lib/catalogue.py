"""Catalogues: the list of the objects that a user put into a group, to find them again by file name.

A node never lists names, because names are capabilities. A catalogue is an ordinary durable object of the
group, written by ``dios put`` and the file system, with the names that the user stored; a task that may read
it has them all.

``dios.lib.files`` edits catalogues: read, change, write under EXCL if nobody wrote in between, else again.
``docs/files.md`` shows their use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final, Protocol

import msgspec

from dios import limits
from dios.client.sync.node import Reference
from dios.errors import Busy, Conflict, DamagedError, InvalidError, LimitError
from dios.lib.retrying import Pauses
from dios.wire.types import Proximity, Semantics

FORMAT_VERSION: Final = 2
"""Version 2 added the digests; catalogues of version 1 are read, and written as version 2."""

_VERSIONS: Final = frozenset({1, FORMAT_VERSION})


class CatalogueEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One stored object: its file, its name, its size, its time (nanoseconds), the BLAKE3 of its bytes.

    ``digest`` is empty if it is not known: of directories, logs, and files that version 1 listed.
    """

    file: str
    name: bytes
    size: int
    put_ns: int
    digest: Annotated[bytes, msgspec.Meta(max_length=limits.DIGEST_BYTES)] = b""

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"Entry({self.file!r}, {self.size} bytes)"


class _CatalogueContent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    entries: tuple[CatalogueEntry, ...]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_CatalogueContent).decode
_decode_parts: Final = msgspec.msgpack.Decoder(
    tuple[int, Annotated[list[msgspec.Raw], msgspec.Meta(max_length=limits.CATALOGUE_ENTRIES_MAX)]]
).decode
_decode_entry: Final = msgspec.msgpack.Decoder(CatalogueEntry).decode


def encode(entries: Iterable[CatalogueEntry]) -> bytes:
    """Return the stored form of a catalogue; raises LimitError if it is full."""
    listed = tuple(entries)
    if len(listed) > limits.CATALOGUE_ENTRIES_MAX:
        raise LimitError(
            f"the catalogue is full: it holds at most {limits.CATALOGUE_ENTRIES_MAX} objects. "
            "Remove some, or put the others into another group."
        )
    return _encode(_CatalogueContent(FORMAT_VERSION, listed))


def decode(data: bytes) -> tuple[CatalogueEntry, ...]:
    """Return the entries in the order of their storage; none for an empty object. Raises DamagedError."""
    if not data:
        return ()
    try:
        content = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"the catalogue cannot be read: {error}") from None
    if content.version not in _VERSIONS:
        raise DamagedError(
            f"the catalogue has version {content.version}, this program reads {FORMAT_VERSION}. Update it."
        )
    return content.entries


def decode_slowly(data: bytes) -> Iterator[CatalogueEntry]:
    """Yield the entries one after the other, so that a reader can do other work between them.

    Raises DamagedError, also after the first entries.
    """
    try:
        version, parts = _decode_parts(data) if data else (FORMAT_VERSION, [])
        if version in _VERSIONS:
            yield from map(_decode_entry, parts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"the catalogue cannot be read: {error}") from None
    if version not in _VERSIONS:
        raise DamagedError(
            f"the catalogue has version {version}, this program reads {FORMAT_VERSION}. Update it."
        )


class CatalogueObject(Protocol):
    """The object of a catalogue."""

    def version(self) -> int | None:
        """Return the present version without a call; None if that is not possible."""
        ...

    def read(self) -> tuple[bytes, int]:
        """Return content and version; Conflict if a writer came between."""
        ...

    def replace(self, data: bytes, version: int) -> int:
        """Write the content and return its version; Conflict if it was not ``version`` any more."""
        ...


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
    stored: CatalogueObject, change: Callable[[tuple[CatalogueEntry, ...]], Iterable[CatalogueEntry]]
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
    """Return a file name that can be stored; InvalidError if it is empty, long or not printable."""
    if not text or len(text.encode(errors="replace")) > limits.TEXT_BYTES_MAX or not text.isprintable():
        raise InvalidError(f"{text[:80]!r} cannot be stored as a file name. Choose another one with --as.")
    return text
