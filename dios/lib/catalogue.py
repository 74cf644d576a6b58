"""Catalogues: what a person put into a group, so that they can find it again by file name.

Not for: finding objects in general. A node never lists names: they are capabilities, and whoever has
none learns of nothing. A catalogue is an ordinary durable object of the group, written by ``dios put``,
in which the names stand that a person chose to remember; who may read it has them all.

Edits are optimistic: read, change, write under EXCL only if nobody wrote in between, else again.
``docs/command-line.md`` shows what it is used for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from dios import limits
from dios.client.sync.node import Reference
from dios.errors import Busy, Conflict, DamagedError, InvalidError, LimitError
from dios.wire.types import Semantics

FORMAT_VERSION: Final = 1


class CatalogueEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One object that was put: as which file, under which name, how large, when (nanoseconds)."""

    file: str
    name: bytes
    size: int
    put_ns: int

    def __repr__(self) -> str:
        """Without the name, which is a secret."""
        return f"Entry({self.file!r}, {self.size} bytes)"


class _CatalogueContent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    entries: tuple[CatalogueEntry, ...]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_CatalogueContent).decode


def encode(entries: Iterable[CatalogueEntry]) -> bytes:
    """The stored form of a catalogue; raises LimitError when it is full."""
    listed = tuple(entries)
    if len(listed) > limits.CATALOGUE_ENTRIES_MAX:
        raise LimitError(
            f"the catalogue is full: it holds at most {limits.CATALOGUE_ENTRIES_MAX} objects. "
            "Remove some, or put the others into another group."
        )
    return _encode(_CatalogueContent(FORMAT_VERSION, listed))


def decode(data: bytes) -> tuple[CatalogueEntry, ...]:
    """Entries in the order they were put; an empty object is an empty catalogue. Raises DamagedError."""
    if not data:
        return ()
    try:
        content = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"the catalogue cannot be read: {error}") from None
    if content.version != FORMAT_VERSION:
        raise DamagedError(
            f"the catalogue has version {content.version}; this program reads {FORMAT_VERSION}"
        )
    return content.entries


class CatalogueObject(Protocol):
    """The object that a catalogue is kept in."""

    def read(self) -> tuple[bytes, int]:
        """The whole content and its version; raises Conflict when a writer came between."""
        ...

    def replace(self, data: bytes, version: int) -> None:
        """Write the whole content if its version still is ``version``; raises Conflict otherwise."""
        ...


class StoredCatalogue:
    """A catalogue as an object of the node."""

    def __init__(self, reference: Reference) -> None:
        self._reference: Final = reference

    def read(self) -> tuple[bytes, int]:
        """Content and version."""
        with self._reference.read(Semantics.MRSW) as request:
            return bytes(request.view), request.v_w

    def replace(self, data: bytes, version: int) -> None:
        """Write if nobody did since."""
        with self._reference.write(len(data), Semantics.EXCL, replace=True) as request:
            if request.v_w != version:
                raise Conflict("the catalogue was written meanwhile")
            request.view[:] = data


def edit(
    stored: CatalogueObject, change: Callable[[tuple[CatalogueEntry, ...]], Iterable[CatalogueEntry]]
) -> tuple[CatalogueEntry, ...]:
    """Apply ``change`` to the entries as they are, whoever else edits meanwhile; returns the result.

    ``change`` may be called several times. Raises Conflict after CATALOGUE_EDITS_MAX attempts.
    """
    for attempt in range(limits.CATALOGUE_EDITS_MAX):
        try:
            data, version = stored.read()
            after = tuple(change(decode(data)))
            stored.replace(encode(after), version)
        except (Busy, Conflict):
            if attempt == limits.CATALOGUE_EDITS_MAX - 1:
                raise
        else:
            return after
    raise AssertionError("the last attempt returns or raises")


def matching(entries: Iterable[CatalogueEntry], text: str) -> list[CatalogueEntry]:
    """Those put as ``text``: the whole path as it was given then, or its last parts."""
    return [entry for entry in entries if entry.file == text or entry.file.endswith(f"/{text.lstrip('/')}")]


def checked_file(text: str) -> str:
    """A file name that can be kept; raises InvalidError for one that is empty, long or not printable."""
    if not text or len(text.encode(errors="replace")) > limits.TEXT_BYTES_MAX or not text.isprintable():
        raise InvalidError(
            f"{text[:80]!r} is no file name that a catalogue can keep; choose another with --as"
        )
    return text
