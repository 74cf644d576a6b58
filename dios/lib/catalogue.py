"""Catalogues: the list of the objects that a user put into a group, to find them again by file name.

A node never lists names, because names are capabilities. A catalogue is an ordinary durable object of the
group, written by ``dios put``, with the names that the user stored; a task that may read it has them all.

Edits are optimistic: read, change, write under EXCL if nobody wrote in between, else again.
``docs/command-line.md`` shows the use of catalogues.
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
    """One stored object: its file, its name, its size, its time (nanoseconds)."""

    file: str
    name: bytes
    size: int
    put_ns: int

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"Entry({self.file!r}, {self.size} bytes)"


class _CatalogueContent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    entries: tuple[CatalogueEntry, ...]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_CatalogueContent).decode


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
    if content.version != FORMAT_VERSION:
        raise DamagedError(
            f"the catalogue has version {content.version}, this program reads {FORMAT_VERSION}. Update it."
        )
    return content.entries


class CatalogueObject(Protocol):
    """The object of a catalogue."""

    def read(self) -> tuple[bytes, int]:
        """Return content and version; Conflict if a writer came between."""
        ...

    def replace(self, data: bytes, version: int) -> None:
        """Write the content if its version is still ``version``; Conflict otherwise."""
        ...


class StoredCatalogue:
    """A catalogue in an object of the node."""

    def __init__(self, reference: Reference) -> None:
        self._reference: Final = reference

    def read(self) -> tuple[bytes, int]:
        """Return content and version."""
        with self._reference.read(Semantics.MRSW) as request:
            return bytes(request.view), request.v_w

    def replace(self, data: bytes, version: int) -> None:
        """Write the content if nobody wrote since ``version``."""
        with self._reference.write(len(data), Semantics.EXCL, replace=True) as request:
            if request.v_w != version:
                raise Conflict("another task changed the catalogue")
            request.view[:] = data


def edit(
    stored: CatalogueObject, change: Callable[[tuple[CatalogueEntry, ...]], Iterable[CatalogueEntry]]
) -> tuple[CatalogueEntry, ...]:
    """Apply ``change`` to the entries, even if others edit them at the same time; return the result.

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
    """Return the entries stored as ``text``: the whole path as it was given, or its last parts."""
    return [entry for entry in entries if entry.file == text or entry.file.endswith(f"/{text.lstrip('/')}")]


def checked_file(text: str) -> str:
    """Return a file name that can be stored; InvalidError if it is empty, long or not printable."""
    if not text or len(text.encode(errors="replace")) > limits.TEXT_BYTES_MAX or not text.isprintable():
        raise InvalidError(f"{text[:80]!r} cannot be stored as a file name. Choose another one with --as.")
    return text
